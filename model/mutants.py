"""Single-rule breaks: what each check must catch.  Each mutant breaks one thing in one place.

A mutant is a subclass of a part of the model with one method replaced; the correct code knows
nothing of it.  All are visible through the interface within six operations on seven blocks of four
positions.

    >>> allocator = make_mutant("early_release")(Configuration(blocks=4, block_size=4))
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .cache import CachingPool
from .device import Row
from .engine import Engine, ForkPath, QueuedCopy
from .interface import BLOCKS, Answer, Configuration, Destination, Factory, Reason
from .pool import LATER, NEVER, BlockPool, ReleaseOrder
from .records import Handle, Records
from .reference import ReferenceAllocator
from .request import Request
from .worker import Worker


@dataclass(frozen=True)
class Mutant:
    """One break: its name, the rule it must be reported under, what it does, and the part it replaces.

    ``state_slots``: the fewest slots a configuration needs for the break to show.
    """

    name: str
    rule: str
    what: str
    engine: type[Engine] = Engine
    worker: type[Worker] = Worker
    records: type[Records] = Records
    destination: Destination = "ordered"
    state_slots: int = 0

    def build(self, configuration: Configuration) -> ReferenceAllocator:
        """The broken allocator."""
        parts = {"engine_type": self.engine, "worker_type": self.worker, "records_type": self.records}
        broken = type(f"Mutant_{self.name}", (ReferenceAllocator,), parts)
        allocator: ReferenceAllocator = broken(configuration, destination=self.destination)
        return allocator


# Copies and forks ---------------------------------------------------------------------------------


class EarlyRelease(Engine):
    """Drops the pin on a copy's source as soon as the copy is queued (chapter, 4.2, first run)."""

    def _record(self, pool: str, source: int, destination: int, rows: int) -> QueuedCopy:
        copy = super()._record(pool, source, destination, rows)
        if pool == BLOCKS:
            self.blocks.release((source,))
        return copy

    def held(self, copy: QueuedCopy) -> dict[str, int]:
        """Everything but the source of a block copy."""
        held = super().held(copy)
        return {end: block for end, block in held.items() if end != "source" or copy.pool != BLOCKS}


class DestinationUnpinned(Engine):
    """Declares ``pinned`` destinations and does not pin them."""

    def _pin_destination(self, copy: QueuedCopy) -> None:
        pass

    def held(self, copy: QueuedCopy) -> dict[str, int]:
        """Only the source."""
        return {"source": copy.source}


class SharePartialTail(Engine):
    """A fork shares the partly filled last block as if it were complete."""

    def _cut(self, path: ForkPath, rows: int, length: int) -> tuple[int, int, int]:
        del path, length
        return -(-rows // self.block_size), 0, 0


class ForkSharesSlot(Engine):
    """A child keeps writing its parent's state slot."""

    def _clone_slot(self, request: Request) -> None:
        pass


class CopyDropped(Worker):
    """Queues the event of a copy, but not the copy."""

    def pairs(self, copy: QueuedCopy) -> list[tuple[Row, Row]]:
        """Nothing."""
        del copy
        return []


# Owner counts and the free list -------------------------------------------------------------------


class FinishFreesShared(Engine):
    """A request that ends takes its blocks away from the requests that share them."""

    def release(self, name: str, reason: Reason = "finish") -> None:
        """A block loses all its owners at once, if they are requests."""
        self._regain(name)
        table = self.request(name).table[:]
        super().release(name, reason)
        for block in reversed(table):
            sharers = sum(block in other.table for other in self.requests.values())
            if sharers and sharers == self.blocks.count(block):
                if self.cache is not None and block in self.cache.keys:
                    self.cache.withdraw(block)
                self.blocks.release([block] * sharers)

    def fork(self, parent: str, child: str, rows: int, length: int | None = None) -> Answer:
        """The parent goes on as if it still owned what it lost, as an engine without checks would."""
        self._regain(parent)
        return super().fork(parent, child, rows, length)

    def pin(self, request: str, name: Hashable) -> None:
        """As in :meth:`fork`."""
        self._regain(request)
        super().pin(request, name)

    def _regain(self, name: str) -> None:
        for block in self.request(name).table:
            if not self.blocks.count(block):
                regain(self.blocks, block)


def regain(pool: BlockPool, block: int) -> None:
    """Make a block without owner owned again, wherever it waits."""
    if block in pool._free:
        pool._free.remove(block)
        pool._counts[block] = 1
    elif isinstance(pool, CachingPool):
        pool.share((block,))


class PinUncounted(Engine):
    """A pin is noted by name, and not counted."""

    def pin(self, request: str, name: Hashable) -> None:
        """No count goes up."""
        self.pins[name] = self.request(request).table[:]


class RefusalKeepsBlock(Engine):
    """An admission that is refused keeps one free block for later."""

    def admit(self, name: str, length: int, keys: Sequence[Hashable] = ()) -> Answer:
        """The refusal changes something."""
        answer = super().admit(name, length, keys)
        if answer is LATER and self.blocks.free and f"refused {name}" not in self.pins:
            self.pins[f"refused {name}"] = self.blocks.allocate(1)
        return answer


class AbortLeaks(Engine):
    """An aborted request forgets its last block."""

    def release(self, name: str, reason: Reason = "finish") -> None:
        """The last block of the table is not given back."""
        if reason == "abort":
            lose(self.blocks, self.request(name).table[-1:])
            del self.request(name).table[-1:]
        super().release(name, reason)


class ShrinkForgets(Engine):
    """Surplus blocks leave the table and never reach the free list."""

    def _shrink(self, request: Request, need: int) -> None:
        lose(self.blocks, request.shrink(need))


def lose(pool: BlockPool, blocks: Iterable[int]) -> None:
    """Make blocks with one owner vanish: neither owned nor free."""
    for block in blocks:
        if pool.count(block) == 1:
            del pool._counts[block]
        else:
            pool.release((block,))


class _IssueTwice(CachingPool):
    def allocate(self, wanted: int) -> list[int]:
        """The first block handed out stays in the free list."""
        taken = super().allocate(wanted)
        self._free.extendleft(taken[:1])
        return taken


class IssueTwice(Engine):
    """A block that is handed out stays in the free list."""

    cache_type = _IssueTwice


class _DoubleRelease(CachingPool):
    def release(self, blocks: Sequence[int]) -> None:
        """Blocks without an owner are passed over in silence."""
        for block in reversed(blocks):
            if self.count(block):
                super().release((block,))


class DoubleReleaseAccepted(Engine):
    """A second release of the same block is not refused."""

    cache_type = _DoubleRelease


class _IssueZero(CachingPool):
    def __init__(self, usable: int, order: ReleaseOrder = "reverse") -> None:
        super().__init__(usable, order)
        self._free.appendleft(0)


class IssueBlockZero(Engine):
    """Block 0 is in the free list like any other."""

    cache_type = _IssueZero


# Lengths and counts of rows -----------------------------------------------------------------------


class TableTooShort(Engine):
    """Reserves for the history only: draft positions have no block."""

    def extend(self, name: str, added: int, drafts: int = 0) -> Answer:
        """Drafts are forgotten."""
        del drafts
        return super().extend(name, added, 0)


class SurplusKept(Engine):
    """Declares ``exact`` tables and keeps the surplus after a rejection."""

    def _shrink(self, request: Request, need: int) -> None:
        pass


class CommitAdds(Engine):
    """Adds the accepted rows to the optimistic count instead of the count before it."""

    def commit(self, name: str, rows: int) -> None:
        """Rejected rows, and the accepted ones twice, count."""
        request = self.request(name)
        accepted = rows - request.previous if request.unsettled else 0
        optimistic = request.num_tokens
        super().commit(name, rows)
        if accepted:
            request.num_tokens = min(optimistic + accepted, len(request.table) * self.block_size)


# Answers ------------------------------------------------------------------------------------------


class _LaterForNever(CachingPool):
    def answer(self, wanted: int, kept: int = 0, shared: Sequence[int] = ()) -> Answer:
        """The caller waits for ever."""
        answer = super().answer(wanted, kept, shared)
        return LATER if answer is NEVER else answer


class LaterForNever(Engine):
    """Says LATER where no amount of waiting helps."""

    cache_type = _LaterForNever


class _NeverForLater(CachingPool):
    def answer(self, wanted: int, kept: int = 0, shared: Sequence[int] = ()) -> Answer:
        """The caller gives up too early."""
        answer = super().answer(wanted, kept, shared)
        return NEVER if answer is LATER else answer


class NeverForLater(Engine):
    """Says NEVER where waiting would have helped."""

    cache_type = _NeverForLater


# Prefix cache and records -------------------------------------------------------------------------


class _StaleKey(CachingPool):
    def withdraw(self, block: int) -> None:
        """The key stays although the contents go."""

    def _hits(self, keys: Iterable[Hashable]) -> Iterator[int]:
        for block in super()._hits(keys):
            if not self.count(block) and block not in self._parked:
                return
            yield block


class StaleKey(Engine):
    """An evicted block keeps its content key when it is reissued."""

    cache_type = _StaleKey


class RecycleEarly(Records):
    """A new record takes the place of one that nobody had the chance to clone."""

    def take(self, value: Any) -> Handle:
        """Recycles at once instead of at the next synchronisation point."""
        self.recycle()
        return super().take(value)


MUTANTS: Mapping[str, Mutant] = {
    mutant.name: mutant
    for mutant in (
        Mutant("issue_twice", "owned_xor_free", "a block that is handed out stays in the free list", IssueTwice),
        Mutant("finish_frees_shared", "owned_xor_free", "finishing frees blocks that others own", FinishFreesShared),
        Mutant("pin_uncounted", "counts_match_owners", "a pin adds an owner and no count", PinUncounted),
        Mutant("refusal_keeps_block", "only_owners_release", "a refused admission keeps a block", RefusalKeepsBlock),
        Mutant("double_release", "only_owners_release", "a second release is not refused", DoubleReleaseAccepted),
        Mutant("early_release", "reads_keep_their_source", "the source pin goes before the copy ran", EarlyRelease),
        Mutant(
            "destination_unpinned",
            "writes_stay_home",
            "destinations are declared pinned and are not",
            DestinationUnpinned,
            destination="pinned",
        ),
        Mutant("share_partial_tail", "writes_stay_home", "a fork shares a partly filled block", SharePartialTail),
        Mutant("copy_dropped", "no_read_before_fill", "a queued copy is never run", worker=CopyDropped),
        Mutant("stale_key", "cache_tells_the_truth", "a reissued block keeps its content key", StaleKey),
        Mutant("table_too_short", "table_covers_need", "no room is reserved for drafts", TableTooShort),
        Mutant("surplus_kept", "table_covers_need", "surplus blocks stay after a rejection", SurplusKept),
        Mutant("commit_adds", "advance_settles_once", "a commit adds to the optimistic count", CommitAdds),
        Mutant("later_for_never", "progress", "LATER where waiting cannot help", LaterForNever),
        Mutant("never_for_later", "progress", "NEVER where waiting would help", NeverForLater),
        Mutant(
            "fork_shares_slot", "slot_has_one_writer", "a child writes its parent's slot", ForkSharesSlot, state_slots=2
        ),
        Mutant("recycle_early", "records_outlive_readers", "a record is reused too early", records=RecycleEarly),
        Mutant("abort_leaks", "nothing_lost", "an aborted request forgets its last block", AbortLeaks),
        Mutant("shrink_forgets", "nothing_lost", "surplus blocks never reach the free list", ShrinkForgets),
        Mutant("issue_block_zero", "reserved_ids_untouched", "block 0 is handed out", IssueBlockZero),
    )
}
"""Every mutant by name; at least one for each rule."""


def make_mutant(name: str) -> Factory:
    """The target ``reference:NAME``."""
    if name not in MUTANTS:
        raise ValueError(f"mutant {name!r} is unknown: choose one of {', '.join(MUTANTS)}")
    return MUTANTS[name].build
