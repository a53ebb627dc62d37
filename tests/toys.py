"""Small allocators: correct ones that must never be flagged, and ones with a fault that must be.

Each function that takes a :class:`Configuration` is a target factory, so a toy is certified with, for
instance, ``kvproof certify tests.toys:lifo`` (from the repository's root).  :data:`CORRECT` and
:data:`FAULTY` list them by name.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvproof.model.interface import (
    BLOCKS,
    Allocator,
    Answer,
    Configuration,
    Copy,
    Declaration,
    Factory,
    Order,
    Pool,
    Reason,
    Reply,
    Snapshot,
    Surplus,
)

CORRECT: dict[str, Factory] = {}
"""Correct allocators by name."""


@dataclass(frozen=True)
class Fault:
    """A faulty allocator: what kind of finding it must end in, and the rules that may be named."""

    factory: Factory
    kind: str
    rules: frozenset[str | None]


FAULTY: dict[str, Fault] = {}
"""Faulty allocators by name."""


@dataclass
class Owner:
    """What the toy knows of one request."""

    tokens: list[int]
    drafts: int = 0
    table: list[int] = field(default_factory=list)


class Toy:
    """A plain paged allocator with owner counts; block 0 is reserved.  Subclasses change one thing."""

    order: Order = "fifo"
    surplus: Surplus = "exact"
    never = True

    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        self.size = configuration.block_size
        self.free = list(range(1, configuration.blocks + 1))
        self.counts = dict.fromkeys(self.free, 0)
        self.owners: dict[str, Owner] = {}
        self.supports_drafts = True
        self.declaration = Declaration(surplus=self.surplus, never=self.never, order=self.order)

    # The pool

    def take(self) -> int:
        """One free block."""
        block = self.free.pop(0 if self.order == "fifo" else -1)
        self.counts[block] = 1
        return block

    def put(self, block: int) -> None:
        """One owner fewer."""
        self.counts[block] -= 1
        if self.counts[block] == 0:
            self.free.append(block)

    def in_hand_out_order(self) -> tuple[int, ...]:
        """The free list, next block first."""
        return tuple(self.free if self.order != "lifo" else reversed(self.free))

    def issuable(self) -> int:
        """How many blocks can be issued."""
        return len(self.free)

    def answer(self, blocks: int, kept: int = 0) -> Answer:
        """May somebody who keeps ``kept`` blocks have so many more?"""
        if blocks <= self.issuable():
            return Answer.OK
        return Answer.NEVER if self.never and blocks + kept > self.configuration.blocks else Answer.LATER

    # The minimum

    def admit(self, request: str, tokens: Sequence[int]) -> Reply:
        """Reserve the prompt."""
        need = -(-len(tokens) // self.size)
        answer = self.answer(need)
        if answer is Answer.OK:
            self.owners[request] = Owner(list(tokens), 0, [self.take() for _ in range(need)])
        return Reply(answer)

    def extend(self, request: str, tokens: Sequence[int], drafts: int = 0) -> Reply:
        """Append tokens, reserve drafts, give the surplus back."""
        owner = self.owners[request]
        need = -(-(len(owner.tokens) + len(tokens) + drafts) // self.size)
        more = max(0, need - len(owner.table))
        answer = self.answer(more, len(owner.table))
        if answer is Answer.OK:
            owner.tokens += tokens
            owner.drafts = drafts
            owner.table += [self.take() for _ in range(more)]
            self.shrink(owner, need)
        return Reply(answer)

    def shrink(self, owner: Owner, need: int) -> None:
        """Give back what lies beyond the need, unless surplus is kept."""
        while self.surplus == "exact" and len(owner.table) > need:
            self.put(owner.table.pop())

    def commit(self, request: str, rows: int) -> None:
        """Drafts beyond ``rows`` are dropped; accepted ones stay covered."""
        owner = self.owners[request]
        owner.drafts = max(0, rows - len(owner.tokens))
        self.shrink(owner, -(-(len(owner.tokens) + owner.drafts) // self.size))

    def release(self, request: str, reason: Reason) -> None:
        """Give everything back, last block first."""
        del reason
        for block in reversed(self.owners.pop(request).table):
            self.put(block)

    def snapshot(self) -> Snapshot:
        """The one pool."""
        tables = {name: tuple(owner.table) for name, owner in self.owners.items()}
        usable = frozenset(range(1, self.configuration.blocks + 1))
        return {
            BLOCKS: Pool(usable, self.in_hand_out_order(), tables, reserved=frozenset({0}), counts=dict(self.counts))
        }


class Forking(Toy):
    """Shares complete blocks; copies a partial tail through a queue and keeps its source until then."""

    def __init__(self, configuration: Configuration) -> None:
        super().__init__(configuration)
        self.queued: dict[int, int] = {}
        self.tickets = itertools.count(1)

    def fork(self, parent: str, child: str, rows: int) -> Reply:
        """Start the child; its private tail is copied later."""
        source, keep = self.owners[parent], rows // self.size
        partial = 1 if rows % self.size else 0
        answer = self.answer(partial, len(source.table))
        if answer is not Answer.OK:
            return Reply(answer)
        shared = source.table[:keep]
        for block in shared:
            self.counts[block] += 1
        copies: tuple[Copy, ...] = ()
        if partial:
            tail, ticket = source.table[keep], next(self.tickets)
            self.counts[tail] += 1
            self.queued[ticket] = tail
            fresh = self.take()
            copies = (Copy(tail, fresh, rows % self.size, ticket),)
            shared = [*shared, fresh]
        self.owners[child] = Owner(source.tokens[:rows], 0, shared)
        return Reply(Answer.OK, hit_rows=rows, copies=copies)

    def complete(self, tickets: Sequence[int]) -> None:
        """The copies are done: their sources lose the queue's ownership."""
        for ticket in tickets:
            self.put(self.queued.pop(ticket))

    def snapshot(self) -> Snapshot:
        """The queue is an owner too."""
        pool = super().snapshot()[BLOCKS]
        holds = {f"copy {ticket}": (block,) for ticket, block in self.queued.items()}
        return {BLOCKS: Pool(pool.usable, pool.free, pool.tables, pool.reserved, holds=holds, counts=pool.counts)}


class Caching(Toy):
    """A prefix cache whose blocks stay *inside* the free list: free, and still hittable until they are reissued."""

    def __init__(self, configuration: Configuration) -> None:
        super().__init__(configuration)
        self.keys: dict[int, tuple[int, ...]] = {}
        self.declaration = Declaration(never=True, publish="after_step")

    def take(self) -> int:
        """Reissuing a block withdraws its key first."""
        block = super().take()
        self.keys.pop(block, None)
        return block

    def key(self, tokens: Sequence[int], end: int) -> tuple[int, ...]:
        """The contents of the block that ends there: all tokens up to it."""
        return tuple(tokens[:end])

    def admit(self, request: str, tokens: Sequence[int]) -> Reply:
        """Hit leading complete blocks, but never the whole prompt."""
        known = {key: block for block, key in self.keys.items()}
        hits: list[int] = []
        for end in range(self.size, len(tokens), self.size):
            block = known.get(self.key(tokens, end))
            if block is None:
                break
            hits.append(block)
        need = -(-len(tokens) // self.size)
        unowned = [block for block in hits if self.counts[block] == 0]
        if need - len(hits) > len(self.free) - len(unowned):
            return Reply(self.answer(need) if need > self.configuration.blocks else Answer.LATER)
        for block in hits:
            if self.counts[block] == 0:
                self.free.remove(block)
            self.counts[block] += 1
        self.owners[request] = Owner(list(tokens), 0, hits + [self.take() for _ in range(need - len(hits))])
        return Reply(Answer.OK, hit_rows=len(hits) * self.size)

    def commit(self, request: str, rows: int) -> None:
        """Publish the complete blocks of known tokens."""
        super().commit(request, rows)
        owner = self.owners[request]
        taken = set(self.keys.values())
        for index in range(min(rows, len(owner.tokens)) // self.size):
            key = self.key(owner.tokens, (index + 1) * self.size)
            block = owner.table[index]
            if key not in taken and block not in self.keys:
                self.keys[block] = key

    def evict(self, blocks: int) -> int:
        """Drop the keys of blocks that nobody owns."""
        unowned = [block for block in self.free if block in self.keys][:blocks]
        for block in unowned:
            del self.keys[block]
        return len(unowned)

    def snapshot(self) -> Snapshot:
        """Cached blocks are free and evictable at the same time."""
        pool = super().snapshot()[BLOCKS]
        evictable = frozenset(block for block in self.free if block in self.keys)
        return {
            BLOCKS: Pool(
                pool.usable, pool.free, pool.tables, pool.reserved, evictable, counts=pool.counts, keys=dict(self.keys)
            )
        }


# ------------------------------------------------------------------------------------------------ correct


def _correct(cls: type[Toy]) -> Factory:
    CORRECT[cls.__name__.lower()] = cls
    return cls


fifo = _correct(Toy)
forking = _correct(Forking)
caching = _correct(Caching)


@_correct
class Lifo(Toy):
    """Hands out the block that came back last."""

    order: Order = "lifo"


@_correct
class Shuffled(Toy):
    """Hands out any free block, as its seed says."""

    order: Order = "none"

    def __init__(self, configuration: Configuration) -> None:
        super().__init__(configuration)
        self.random = random.Random(configuration.seed)

    def take(self) -> int:
        """A random free block, the same one again for the same seed."""
        self.random.shuffle(self.free)
        return super().take()


@_correct
class Keeping(Toy):
    """Never gives surplus back before the request ends."""

    surplus: Surplus = "kept"


@_correct
class Patient(Toy):
    """Never says NEVER."""

    never = False


@_correct
class Uncounted(Toy):
    """Keeps counts, shows none."""

    def snapshot(self) -> Snapshot:
        """The pool without counts."""
        pool = super().snapshot()[BLOCKS]
        return {BLOCKS: Pool(pool.usable, pool.free, pool.tables, pool.reserved)}


# ------------------------------------------------------------------------------------------------- faulty


def _faulty(kind: str, *rules: str | None) -> Callable[[type[Toy]], type[Toy]]:
    def register(cls: type[Toy]) -> type[Toy]:
        FAULTY[cls.__name__.lower()] = Fault(cls, kind, frozenset(rules or (None,)))
        return cls

    return register


_INSTANCES = itertools.count()


@_faulty("nondeterministic")
class Nondeterministic(Toy):
    """Every second instance hands out blocks from the other end."""

    order: Order = "none"

    def __init__(self, configuration: Configuration) -> None:
        super().__init__(configuration)
        self.backwards = next(_INSTANCES) % 2 == 1

    def take(self) -> int:
        """The first free block, or the last."""
        if self.backwards:
            self.free.reverse()
        return super().take()


@_faulty("nondeterministic")
class Dicing(Toy):
    """Hands out a block that no seed decides."""

    order: Order = "none"

    def take(self) -> int:
        """A block that the operating system chose."""
        self.free.sort(key=lambda block: (os.urandom(4), block))
        return super().take()


@_faulty("hangs")
class Hanging(Toy):
    """Does not return from an extension beyond two blocks."""

    def extend(self, request: str, tokens: Sequence[int], drafts: int = 0) -> Reply:
        """Wait for ever."""
        while len(self.owners[request].table) > 2:
            time.sleep(0.01)
        return super().extend(request, tokens, drafts)


@_faulty("raises")
class Raising(Toy):
    """Raises when it runs out instead of answering."""

    def answer(self, blocks: int, kept: int = 0) -> Answer:
        """Out of memory is an exception here."""
        if blocks > len(self.free):
            raise MemoryError(f"{blocks} blocks wanted, {len(self.free)} free")
        return super().answer(blocks, kept)


@_faulty("changes_answer")
class Moody(Toy):
    """Says LATER once, and OK when it is asked again."""

    def __init__(self, configuration: Configuration) -> None:
        super().__init__(configuration)
        self.asked = 0

    def admit(self, request: str, tokens: Sequence[int]) -> Reply:
        """Every third question is refused."""
        self.asked += 1
        return Reply(Answer.LATER) if self.asked % 3 == 0 and self.owners else super().admit(request, tokens)


@_faulty("reserved_block", "reserved_ids_untouched")
class IssuesReserved(Toy):
    """Block 0 gets into the free list with the first release."""

    def release(self, request: str, reason: Reason) -> None:
        """One block too many comes back."""
        super().release(request, reason)
        self.free.append(0)
        self.counts[0] = 0


@_faulty("rule", "nothing_lost", "owned_xor_free")
class Leaking(Toy):
    """An abort forgets the last block."""

    def release(self, request: str, reason: Reason) -> None:
        """The last block is lost."""
        if reason == "abort":
            self.owners[request].table.pop()
        super().release(request, reason)


@_faulty("rule", "owned_xor_free", "writes_stay_home")
class DoubleIssuing(Toy):
    """A block that was handed out stays in the free list when it is the last one."""

    def take(self) -> int:
        """The last block is issued again and again."""
        last = self.free[-1]
        block = super().take()
        if block == last:
            self.free.append(block)
        return block


@_faulty("rule", "only_owners_release")
class KeepsWhenRefusing(Toy):
    """A refused extension keeps the blocks it could get."""

    surplus: Surplus = "kept"

    def extend(self, request: str, tokens: Sequence[int], drafts: int = 0) -> Reply:
        """Takes what is there, then refuses."""
        reply = super().extend(request, tokens, drafts)
        if reply.answer is not Answer.OK and self.free:
            self.owners[request].table.append(self.take())
        return reply


@_faulty("rule", "only_owners_release", "nothing_lost", "owned_xor_free", "table_covers_need")
class RobsOthers(Toy):
    """Under pressure it takes a block out of somebody else's table."""

    def admit(self, request: str, tokens: Sequence[int]) -> Reply:
        """The oldest request pays."""
        while self.owners and -(-len(tokens) // self.size) == len(self.free) + 1:
            victim = next(iter(self.owners.values()))
            if not victim.table:
                break
            self.put(victim.table.pop())
        return super().admit(request, tokens)


@_faulty("rule", "counts_match_owners")
class Miscounting(Forking):
    """A share is not counted, though it is given back."""

    def fork(self, parent: str, child: str, rows: int) -> Reply:
        """The shared blocks count one owner too few."""
        reply = super().fork(parent, child, rows)
        if reply.answer is Answer.OK and rows >= self.size:
            self.counts[self.owners[child].table[0]] -= 1
        return reply


@_faulty("rule", "table_covers_need")
class Short(Toy):
    """Forgets the drafts when it reserves."""

    def extend(self, request: str, tokens: Sequence[int], drafts: int = 0) -> Reply:
        """The drafts have no room."""
        del drafts
        return super().extend(request, tokens)


@_faulty("rule", "progress")
class Hopeless(Toy):
    """Says LATER to nobody's benefit: the last block is never handed out."""

    def answer(self, blocks: int, kept: int = 0) -> Answer:
        """One block always stays behind."""
        answer = super().answer(blocks, kept)
        return Answer.LATER if answer is Answer.OK and blocks == self.configuration.blocks else answer


@_faulty("rule", "reads_keep_their_source", "owned_xor_free")
class EarlyRelease(Forking):
    """The source of a queued copy is given up at once."""

    def fork(self, parent: str, child: str, rows: int) -> Reply:
        """The queue never owns its sources."""
        reply = super().fork(parent, child, rows)
        for ticket, block in list(self.queued.items()):
            self.put(block)
            del self.queued[ticket]
        return reply

    def complete(self, tickets: Sequence[int]) -> None:
        """Nothing is left to release."""


@_faulty("rule", "cache_tells_the_truth")
class StaleKeys(Caching):
    """A key survives the reissue of its block."""

    def take(self) -> int:
        """The key stays."""
        return Toy.take(self)


@_faulty("contract")
class WrongType(Toy):
    """Answers True instead of a Reply."""

    def admit(self, request: str, tokens: Sequence[int]) -> Any:
        """A plain bool."""
        return super().admit(request, tokens).answer is Answer.OK


@_faulty("contract")
class NamedBlocks(Toy):
    """Calls its blocks by names in a snapshot."""

    def snapshot(self) -> Any:
        """Strings where numbers belong."""
        pool = super().snapshot()[BLOCKS]
        return {BLOCKS: Pool(pool.usable, tuple(map(str, pool.free)), pool.tables)}  # type: ignore[arg-type]


def unbuildable(configuration: Configuration) -> Allocator:
    """A factory that fails."""
    raise RuntimeError(f"no memory for {configuration.blocks} blocks")


class Incomplete:
    """Lacks most of the minimum."""

    def __init__(self, configuration: Configuration) -> None:
        del configuration

    def admit(self, request: str, tokens: Sequence[int]) -> Reply:
        """The only method."""
        del request, tokens
        return Reply(Answer.OK)


@_faulty("rule", "cache_tells_the_truth", "no_read_before_fill")
class ForgetsThePrefix(Caching):
    """Names a block's contents by its own tokens: the same tokens behind another prefix are hit."""

    def key(self, tokens: Sequence[int], end: int) -> tuple[int, ...]:
        return tuple(tokens[end - self.size : end])


@_faulty("order")
class SaysFifo(Lifo):
    """Declares fifo and hands out what came back last."""

    def __init__(self, configuration: Configuration) -> None:
        super().__init__(configuration)
        self.declaration = Declaration(surplus=self.surplus, never=self.never, order="fifo")

    def in_hand_out_order(self) -> tuple[int, ...]:
        return tuple(self.free)


@_faulty("contract")
class LooksAndTouches(Toy):
    """Taking a snapshot turns the free list."""

    def snapshot(self) -> Snapshot:
        self.free.append(self.free.pop(0)) if self.free else None
        return super().snapshot()
