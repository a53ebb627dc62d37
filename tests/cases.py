"""Faulty allocators after public bug reports: each repeats the *mechanism* of one report, nothing of its code.

Every class changes one thing in the correct reference.  :data:`CASES` lists them by class name with
the report they stand for; :data:`CORRECT` lists what looks like a fault and is none.  The numbers are
those of public issues and pull requests; the sentences are ours.

Where a report speaks of a transfer or of a remote writer, a queued copy stands for it: all are work that
some stream runs later.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from kvproof.model import ReferenceAllocator
from kvproof.model.cache import CachingPool, content_keys
from kvproof.model.device import COMPUTE, COPY, Row
from kvproof.model.engine import Engine, QueuedCopy
from kvproof.model.interface import BLOCKS, SLOTS, Answer, Configuration, Copy, Factory, Reason, Reply
from kvproof.model.pool import LATER, NEVER, OK, ReleaseOrder
from kvproof.model.records import Handle, Records
from kvproof.model.request import Request
from kvproof.model.worker import Contents, Worker

Made = TypeVar("Made", bound=type)


@dataclass(frozen=True)
class Case:
    """One faulty allocator: where it was reported, and how to build it."""

    reports: tuple[str, ...]
    factory: Factory


CASES: dict[str, Case] = {}
"""Faulty allocators by class name."""
CORRECT: dict[str, Factory] = {}
"""Allocators that must never be flagged, by class name."""


def built(part: type, **options: Any) -> Factory:
    """A factory for a reference allocator, or for the reference allocator with one part exchanged."""
    if issubclass(part, ReferenceAllocator):
        allocator: type[ReferenceAllocator] = part
    else:
        parts = {Engine: "engine_type", Worker: "worker_type", Records: "records_type"}
        name = next(name for base, name in parts.items() if issubclass(part, base))
        allocator = type(part.__name__, (ReferenceAllocator,), {name: part})

    def build(configuration: Configuration) -> ReferenceAllocator:
        made = allocator(configuration, **options)
        offered = made.declaration.capabilities or frozenset()
        # An engine offers no misuse to try, and promises no order of its free list.
        made.declaration = replace(made.declaration, capabilities=offered - {"strict"}, order="none")
        return made

    return build


def case(*reports: str, **options: Any) -> Callable[[Made], Made]:
    """Register a faulty part."""

    def register(part: Made) -> Made:
        CASES[part.__name__] = Case(reports, built(part, **options))
        return part

    return register


def correct(**options: Any) -> Callable[[Made], Made]:
    """Register a correct part."""

    def register(part: Made) -> Made:
        CORRECT[part.__name__] = built(part, **options)
        return part

    return register


def uncounted(factory: Factory) -> Factory:
    """The same allocator, which does not show its owner counts: only the consequences are left to see."""

    def build(configuration: Configuration) -> Any:
        allocator: Any = factory(configuration)
        shown = allocator.snapshot
        allocator.snapshot = lambda: {name: replace(pool, counts=None) for name, pool in shown().items()}
        return allocator

    return build


def with_pool(pool: type[CachingPool]) -> type[Engine]:
    """An engine with another block pool."""
    return type(f"EngineOf{pool.__name__}", (Engine,), {"cache_type": pool})


def pool_case(*reports: str) -> Callable[[Made], Made]:
    """Register a faulty block pool."""

    def register(pool: Made) -> Made:
        CASES[pool.__name__] = Case(reports, built(with_pool(pool)))
        return pool

    return register


class Careless(CachingPool):
    """Refuses nothing: a release of a block without an owner puts it into the free list once more."""

    def release(self, blocks: Sequence[int]) -> None:
        """One owner fewer, or one entry more."""
        for block in reversed(blocks):
            count = self._counts.pop(block, 0) - 1
            if count > 0:
                self._counts[block] = count
            else:
                self._retire(block)


# ------------------------------------------------------------------------- double release, duplicate entries


@correct(cache=False)
class CopiesOnWrite(ReferenceAllocator):
    """Correct: a fork shares everything, and whoever writes next to another owner's rows gets a private copy first.

    Two owners of a partly filled tail cannot both append: the second one to do so copies.
    """

    def fork(self, parent: str, child: str, rows: int) -> Reply:
        """Everything is shared; the partly filled tail too."""
        engine, size = self.engine, self.configuration.block_size
        owner, source = engine.request(parent), self.contents[parent]
        if engine.slots is not None or (owner.reserved > rows and rows % size):  # the parent goes on writing there
            return super().fork(parent, child, rows)
        table = owner.table[: -(-rows // size)]
        engine.blocks.pin(table)
        engine.requests[child] = Request(child, rows, table, 0, rows)
        full = rows // size
        self.contents[child] = Contents(source.tokens[:rows], rows, source.keys[:full], full)
        return Reply(OK, rows)

    def extend(self, request: str, tokens: Sequence[int], drafts: int = 0) -> Reply:
        """Copy on write before the first row is appended."""
        engine, owner = self.engine, self.engine.request(request)
        rows = owner.length % self.configuration.block_size
        shared = rows and len(tokens) + drafts and self.shares(owner)
        if not shared:
            return super().extend(request, tokens, drafts)
        need = -(-(owner.length + len(tokens) + drafts) // self.configuration.block_size)
        answer = engine.blocks.answer(need - len(owner.table) + 1)
        if answer is not OK:  # the copy can be waited for: it is needed only as long as the tail is shared
            return Reply(NEVER if need > engine.blocks.usable else LATER)
        index = owner.length // self.configuration.block_size
        tail, private = owner.table[index], engine._allocate(1)[0]
        owner.table[index] = private
        copy = engine._record(BLOCKS, tail, private, rows)
        self._submit_copies()
        reply = super().extend(request, tokens, drafts)
        return replace(reply, copies=(Copy(tail, private, rows, copy.ticket),))

    def shares(self, owner: Request) -> bool:
        """Whether somebody else owns the partly filled tail."""
        return self.engine.blocks.count(owner.table[owner.length // self.configuration.block_size]) > 1


@case("vllm-project/vllm#1556", cache=False)
class OwnerIsATablePosition(CopiesOnWrite):
    """An old table entry is dropped by the copy-on-write and once more by the final walk over all entries."""

    def __init__(self, configuration: Configuration, **options: Any) -> None:
        super().__init__(configuration, **options)
        self.older: dict[str, list[int]] = {}

    def extend(self, request: str, tokens: Sequence[int], drafts: int = 0) -> Reply:
        """The replaced entry stays on a second list."""
        reply = super().extend(request, tokens, drafts)
        self.older.setdefault(request, []).extend(copy.source for copy in reply.copies)
        return reply

    def release(self, request: str, reason: Reason) -> None:
        """Walks that list too."""
        super().release(request, reason)
        blocks = self.engine.blocks
        blocks.release([block for block in self.older.pop(request, ()) if blocks.count(block)])


@pool_case("vllm-project/vllm#42571")
class ReleasesThenLooks(CachingPool):
    """Lowers all counts of a list first, then frees every *entry* whose block ended at zero."""

    def release(self, blocks: Sequence[int]) -> None:
        """A block that is named twice is freed twice."""
        for block in blocks:
            self._counts[block] -= 1
        for block in reversed(blocks):
            if not self._counts.get(block):
                self._counts.pop(block, None)
                self._retire(block)


@case("sgl-project/sglang#12224", "sgl-project/sglang-jax#982")
class TwoPathsFreeTheLastSlot(Engine):
    """The finish path frees all that is allocated, the overlap path the slot of the extra step once more."""

    cache_type = Careless

    def release(self, name: str, reason: Reason = "finish") -> None:
        """Rows that are in flight are released by both paths."""
        request = self.request(name)
        overrun = request.table[-(-request.num_tokens // self.block_size) :]
        super().release(name, reason)
        self.blocks.release(overrun)


@case("sgl-project/sglang-omni#1607")
class CompensatesWhatIsCached(ReferenceAllocator):
    """After a finish somebody downstream frees the last full block again, which the cache holds by then."""

    def release(self, request: str, reason: Reason) -> None:
        """The block is cached, and it is on the free list."""
        full = self.engine.request(request).table[: self.engine.requests[request].settled // self.engine.block_size]
        super().release(request, reason)
        if full and full[-1] in self.engine.blocks._parked:  # type: ignore[attr-defined]
            self.engine.blocks._free.append(full[-1])


@case("sgl-project/sglang#25805")
class StaleMapToTheSecondPool(Engine):
    """The second pool's entry is found through a map from block ids that nobody clears when a block is reissued."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.slot_of: dict[int, int] = {}

    def admit(self, name: str, length: int, keys: Sequence[Hashable] = ()) -> Answer:
        """An entry that is there already stays."""
        answer = super().admit(name, length, keys)
        if answer is OK:
            self.slot_of.setdefault(self.requests[name].table[0], self.requests[name].slot)
        return answer

    def release(self, name: str, reason: Reason = "finish") -> None:
        """Frees the slot that the map names."""
        request = self.request(name)
        slot = self.slot_of.get(request.table[0], request.slot)
        if self.slots is not None and self.slots.count(slot):
            request.slot = slot
        super().release(name, reason)


@case("sgl-project/sglang#38840")
class TwoPartsShareABoundary(Engine):
    """A request's two parts both list the block on their boundary, and each part releases its list."""

    cache_type = Careless

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.prompt: dict[str, int] = {}

    def admit(self, name: str, length: int, keys: Sequence[Hashable] = ()) -> Answer:
        """The first part."""
        self.prompt[name] = length
        return super().admit(name, length, keys)

    def release(self, name: str, reason: Reason = "finish") -> None:
        """The block with rows of both parts is released by both."""
        request, first = self.request(name), self.prompt.pop(name, 0)
        boundary = request.table[first // self.block_size :][:1]
        both = first % self.block_size and request.length > first
        super().release(name, reason)
        if both:
            self.blocks.release(boundary)


@case("NVIDIA/TensorRT-LLM#14937")
class OneCountForTwoEntries(Engine):
    """Two entries for one block are backed by one count."""

    def _record(self, pool: str, source: int, destination: int, rows: int) -> QueuedCopy:
        twice = any(copy.source == source and copy.pool == pool for copy in self.copies.values())
        copy = super()._record(pool, source, destination, rows)
        if twice:
            self._pool(pool).release((source,))
        return copy


# ------------------------------------------------------------------------------------------------- leaks


@case("sgl-project/sglang#13826", "sgl-project/sglang-jax#1147")
class DraftsAreNotRecorded(Engine):
    """Drafts take blocks and do not raise the recorded length, so the release stops short."""

    def release(self, name: str, reason: Reason = "finish") -> None:
        """Gives back what the history needs."""
        request = self.request(name)
        del request.table[-(-request.length // self.block_size) :]
        super().release(name, reason)


@case("sgl-project/sglang#22862")
class NextTurnOverwritesTheTail(Engine):
    """The next turn of a session writes fresh ids over table entries that are still allocated."""

    def commit(self, name: str, rows: int) -> None:
        """What was rejected stays allocated."""
        self.check_commit(name, rows)
        request = self.requests[name]
        if not request.unsettled:
            request.advance(rows - request.num_tokens)
        request.commit(rows - request.previous)
        request.drafts = max(0, rows - request.length)

    def extend(self, name: str, added: int, drafts: int = 0) -> Answer:
        """The old ids are unreachable from here on."""
        request = self.request(name)
        keep = -(-(request.length + request.drafts) // self.block_size)
        before = request.table[:]
        del request.table[keep:]
        answer = super().extend(name, added, drafts)
        if answer is not OK:
            request.table = before
        return answer


@case("sgl-project/sglang#16067")
class RefusalKeepsASlot(Engine):
    """The state slot is taken before the admission is decided, and a refusal does not return it."""

    def admit(self, name: str, length: int, keys: Sequence[Hashable] = ()) -> Answer:
        """A refused request leaves a slot behind."""
        answer = super().admit(name, length, keys)
        if answer is not OK and self.slots is not None and len(self.slots):
            self.slots.allocate(1)
        return answer


@case("vllm-project/vllm#46283")
class AcknowledgementOfTheAborted(ReferenceAllocator):
    """An acknowledgement that comes after its request was aborted finds nobody to release for."""

    def __init__(self, configuration: Configuration, **options: Any) -> None:
        super().__init__(configuration, **options)
        self.held_for: dict[str, str] = {}

    def hold(self, request: str, holder: str) -> Reply:
        """Remembers whom the transfer is for."""
        self.held_for[holder] = request
        return super().hold(request, holder)

    def ack(self, holder: str) -> None:
        """Ignored when that request is gone."""
        if self.held_for.pop(holder) in self.engine.requests:
            super().ack(holder)


@case("vllm-project/vllm#51637")
class JobsByRequestName(AcknowledgementOfTheAborted):
    """Jobs are counted by request name: a job of the first life is charged to the second."""

    def ack(self, holder: str) -> None:
        """Settles the youngest job of that name."""
        name = self.held_for.pop(holder)
        youngest = next(
            other for other in reversed(self.engine.pins) if other == holder or self.held_for.get(str(other)) == name
        )
        if youngest != holder:
            self.engine.pins[holder], self.engine.pins[youngest] = (
                self.engine.pins[youngest],
                self.engine.pins[holder],
            )
        self.engine.unpin(holder)


@case("LMCache/LMCache#3884")
class CountAndPin(ReferenceAllocator):
    """A retrieve takes a count and a pin, the normal path gives back one of them."""

    def hold(self, request: str, holder: str) -> Reply:
        """One owner, two counts."""
        self.engine.blocks.pin(self.engine.request(request).table)
        return super().hold(request, holder)


@pool_case("xLLM-AI/xllm#828")
class CounterSkipsPublished(CachingPool):
    """A counter of used blocks beside the sets: publishing comes first, and then it is not lowered."""

    __slots__ = ("used",)

    def __init__(self, usable: int, order: ReleaseOrder = "reverse") -> None:
        super().__init__(usable, order)
        self.used = 0

    def allocate(self, wanted: int) -> list[int]:
        """Counts up."""
        self.used += wanted
        return super().allocate(wanted)

    def release(self, blocks: Sequence[int]) -> None:
        """Counts down, but not for a published block."""
        self.used -= sum(self.count(block) == 1 and block not in self._key_of for block in blocks)
        super().release(blocks)

    def answer(self, wanted: int, kept: int = 0, shared: Sequence[int] = ()) -> Answer:
        """Believes the counter."""
        answer = super().answer(wanted, kept, shared)
        return LATER if answer is OK and wanted > self.usable - self.used else answer


# -------------------------------------------------------------- released while somebody else still reads


@case("vllm-project/vllm#52360")
class StoreIsNoOwner(ReferenceAllocator):
    """A store job reads blocks in the background and owns none of them."""

    def hold(self, request: str, holder: str) -> Reply:
        """Nothing is noted."""
        return Reply(OK)

    def ack(self, holder: str) -> None:
        """Nothing was noted."""


class PartialEngine(Engine):
    """Copies own their source, except those noted as unowned."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.unowned: set[int] = set()

    def held(self, copy: QueuedCopy) -> dict[str, int]:
        """Nothing, for an unowned copy."""
        return {} if copy.ticket in self.unowned else super().held(copy)


@correct()
class ReusesPartly(ReferenceAllocator):
    """Correct: a cached block that matches for some rows only is copied from, and owned until the copy is done."""

    engine_type = PartialEngine
    engine: PartialEngine

    def __init__(self, configuration: Configuration, **options: Any) -> None:
        super().__init__(configuration, **options)
        self.texts: dict[Hashable, list[int]] = {}

    def admit(self, request: str, tokens: Sequence[int]) -> Reply:
        """The rows behind the last full hit come from a block that begins alike."""
        reply = super().admit(request, tokens)
        match = self.partial_match(request, list(tokens)) if reply.answer is OK else None
        if match is None:
            return reply
        source, rows = match
        owner, contents = self.engine.requests[request], self.contents[request]
        self.protect(source)
        copy = self.engine._record(BLOCKS, source, owner.table[reply.hit_rows // self.engine.block_size], rows)
        owner.num_tokens = owner.previous = contents.written = reply.hit_rows + rows
        self._submit_copies()
        mine = Copy(copy.source, copy.destination, copy.rows, copy.ticket)
        return replace(reply, hit_rows=reply.hit_rows + rows, copies=(mine,))

    def protect(self, source: int) -> None:
        """The copy owns its source."""
        assert self.engine.cache is not None
        self.engine.cache.share((source,))

    def partial_match(self, request: str, tokens: list[int]) -> tuple[int, int] | None:
        """A cached block and how many of its rows fit behind the rows that were hit."""
        hit, size = self.engine.requests[request].num_tokens, self.engine.block_size
        assert self.engine.cache is not None
        for block, key in self.engine.cache.keys.items():
            text = self.texts.get(key, [])
            rows = sum(1 for _ in same(text[hit:], tokens[hit:-1])) if len(text) == hit + size else 0
            if text[:hit] == tokens[:hit] and rows and block not in self.engine.requests[request].table:
                return block, rows
        return None

    def _publish(self, request: str) -> None:
        super()._publish(request)
        contents, size = self.contents[request], self.engine.block_size
        for index, key in enumerate(contents.keys):
            self.texts[key] = contents.tokens[: (index + 1) * size]


def same(left: Sequence[int], right: Sequence[int]) -> Iterator[int]:
    """The common beginning of two lists."""
    for a, b in zip(left, right, strict=False):
        if a != b:
            return
        yield a


@case("NVIDIA/TensorRT-LLM#9056")
class PartialMatchUnprotected(ReusesPartly):
    """The source of a partial match may be evicted and reissued while it is copied."""

    def protect(self, source: int) -> None:
        """Nobody owns it."""
        self.engine.unowned.add(self.engine.tickets + 1)


# ------------------------------------------------------------- a queued write into a block that was reissued


class TargetsFreed(Engine):
    """Releases, for some reasons, what a queued copy will still write; declares that this cannot be."""

    reasons: tuple[Reason, ...] = ()

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.freed: set[int] = set()

    def release(self, name: str, reason: Reason = "finish") -> None:
        """The copy's own pin on its destination goes with the request."""
        table = self.request(name).table
        if reason in self.reasons:
            for copy in self.copies.values():
                if copy.pool == BLOCKS and copy.destination in table and copy.ticket not in self.freed:
                    self.freed.add(copy.ticket)
                    self.blocks.release((copy.destination,))
        super().release(name, reason)

    def held(self, copy: QueuedCopy) -> dict[str, int]:
        """What the copy still owns."""
        held = super().held(copy)
        return {"source": held["source"]} if copy.ticket in self.freed else held


@case("vllm-project/vllm#45357", destination="pinned")
class FinishFreesTargets(TargetsFreed):
    """A finish frees blocks that work already in flight will write."""

    reasons = ("finish",)


@case("sgl-project/sglang#24527", destination="pinned")
class AbortFreesTargets(TargetsFreed):
    """An abort frees blocks although a remote writer with a life of its own still fills them."""

    reasons = ("abort",)


@case("sgl-project/sglang#28468", destination="pinned")
class TargetLooksIdle(TargetsFreed):
    """A destination looks idle once its request is gone, and becomes the destination of a second copy."""

    reasons = ("finish", "preempt", "abort")


@correct(destination="pinned")
class Deduplicates(ReferenceAllocator):
    """Correct: a block whose contents are in the cache already is exchanged for the cached one and given back."""

    def _publish(self, request: str) -> None:
        super()._publish(request)
        owner, contents, cache = self.engine.requests[request], self.contents[request], self.engine.cache
        assert cache is not None
        for index, key in enumerate(contents.keys[: owner.settled // self.engine.block_size]):
            kept, mine = cache._block_of.get(key), owner.table[index]
            if kept is not None and kept != mine and mine not in cache.keys and not self.is_target(mine):
                cache.share((kept,))
                owner.table[index] = kept
                cache.release((mine,))

    def is_target(self, block: int) -> bool:
        """Whether a queued copy will still write the block."""
        return any(copy.destination == block for copy in self.engine.copies.values() if copy.pool == BLOCKS)


@case("sgl-project/sglang#35769", destination="pinned")
class InsertFreesTargets(Deduplicates):
    """Inserting into the cache removes a duplicate by freeing the very block that a queued copy will write."""

    def is_target(self, block: int) -> bool:
        """Nobody asks."""
        return False

    class engine_type(Engine):
        """The table is the only owner of a destination."""

        def _pin_destination(self, copy: QueuedCopy) -> None:
            pass

        def held(self, copy: QueuedCopy) -> dict[str, int]:
            """The source only."""
            return {"source": copy.source}


@case("vllm-project/vllm#45357 (stream)", "vllm-project/vllm#45096", steps=True)
class StaleStepLands(Worker):
    """A copy engine does not wait for steps in flight, so a step of a request that ended overwrites what it brought."""

    def submit(self, copy: QueuedCopy) -> None:
        """Behind nothing but earlier copies."""
        self.copies[copy.ticket] = copy, self.device.move(COPY, self.pairs(copy))


# -------------------------------------------------------------------------- keys that do not tell the truth


@pool_case("vllm-project/vllm#4764")
class MapKeepsTheHash(CachingPool):
    """A block that is taken from the evictor stays in the lookup map, so that a block being written can be hit."""

    def withdraw(self, block: int) -> None:
        """The map is left alone."""


@case("vllm-project/vllm#56525")
class PublishesWhenScheduled(ReferenceAllocator):
    """Keys are published when a step is scheduled, and stay when its request is aborted before the step ran."""

    def admit(self, request: str, tokens: Sequence[int]) -> Reply:
        """All full blocks can be hit at once."""
        reply = super().admit(request, tokens)
        if reply.answer is OK and self.engine.cache is not None:
            keys = content_keys(list(tokens), self.configuration.block_size)
            for block, key in zip(self.engine.requests[request].table, keys, strict=False):
                self.engine.cache.publish(block, key)
        return reply


@case("vllm-project/vllm#34587")
class FullByArithmetic(ReferenceAllocator):
    """A block counts as full when the history says so, though the chunk that was computed ends inside it."""

    def _publish(self, request: str) -> None:
        contents, table = self.contents[request], self.engine.requests[request].table
        keys = content_keys(contents.tokens, self.configuration.block_size)
        assert self.engine.cache is not None
        for block, key in zip(table, keys, strict=False):
            self.engine.cache.publish(block, key)


@pool_case("jundot/omlx#3087")
class RemembersTheLookup(CachingPool):
    """Block ids are looked up once, and taken later without asking whether they still hold the same."""

    __slots__ = ("memory",)

    def __init__(self, usable: int, order: ReleaseOrder = "reverse") -> None:
        super().__init__(usable, order)
        self.memory: dict[tuple[Hashable, ...], list[int]] = {}

    def lookup(self, keys: Any) -> list[int]:
        """What was found the first time, as long as somebody owns it or it is cached."""
        hits = self.memory.setdefault(tuple(keys), super().lookup(keys))
        return hits if all(self.count(block) or block in self._parked for block in hits) else super().lookup(keys)


# ----------------------------------------------------------------------------- shared and missing rows


@case("Avarok-Cybersecurity/atlas#692")
class HandsOutThePartialTail(ReferenceAllocator):
    """An equal prompt is given the donor's partly filled last block, without a count and without a copy."""

    def admit(self, request: str, tokens: Sequence[int]) -> Reply:
        """Two writers, one block."""
        reply, prompt = super().admit(request, tokens), list(tokens)
        donor = next(
            (
                name
                for name, owner in self.engine.requests.items()
                if name != request and self.contents[name].tokens == prompt and owner.num_tokens == len(prompt)
            ),
            None,
        )
        if reply.answer is not OK or donor is None or not len(prompt) % self.engine.block_size:
            return reply
        owner = self.engine.requests[request]
        self.engine.blocks.release(owner.table[-1:])
        owner.table[-1] = self.engine.requests[donor].table[len(owner.table) - 1]
        return reply


@case("xLLM-AI/xllm#1984")
class CopyIsMissing(ReferenceAllocator):
    """On one backend the copy that separates two beams is not there at all."""

    class worker_type(Worker):
        """Moves nothing."""

        def pairs(self, copy: QueuedCopy) -> list[tuple[Row, Row]]:
            """No rows."""
            return []

    def fork(self, parent: str, child: str, rows: int) -> Reply:
        """The fork is granted, nothing is queued."""
        reply = super().fork(parent, child, rows)
        self.complete([copy.ticket for copy in reply.copies])
        return replace(reply, copies=())


# ----------------------------------------------------------------------------------- drafts, order of removal


@case("vllm-project/vllm#46899")
class DraftsOutliveTheirWindow(Engine):
    """Drafts that were settled survive, and are taken for real ones in a later pass that has none."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.old_drafts: dict[str, int] = {}

    def commit(self, name: str, rows: int) -> None:
        """The old number stays somewhere."""
        drafts = self.request(name).drafts
        super().commit(name, rows)
        self.old_drafts[name] = drafts

    def extend(self, name: str, added: int, drafts: int = 0) -> Answer:
        """And comes back."""
        return super().extend(name, added, drafts or self.old_drafts.get(name, 0))


@case("apache/tvm#17045")
class RemovalInReverseOnly(Engine):
    """Removing a parent keeps what its last child shares and frees what an earlier child shares."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.last_child: dict[str, str] = {}

    def fork(self, parent: str, child: str, rows: int, length: int | None = None) -> Answer:
        """Remembers one child."""
        answer = super().fork(parent, child, rows, length)
        if answer is OK:
            self.last_child[parent] = child
        return answer

    def release(self, name: str, reason: Reason = "finish") -> None:
        """Everything that this child does not share is free."""
        table, child = self.request(name).table[:], self.last_child.pop(name, None)
        super().release(name, reason)
        kept = self.requests[child].table if child in self.requests else table
        for block in table:
            while block not in kept and self.blocks.count(block):
                self.blocks.release((block,))


# ------------------------------------------------------------------------------------- admission, atomicity


@pool_case("vllm-project/vllm#39734")
class WaitsForEver(CachingPool):
    """A request that can never fit is told to wait."""

    def answer(self, wanted: int, kept: int = 0, shared: Sequence[int] = ()) -> Answer:
        """LATER, for ever."""
        answer = super().answer(wanted, kept, shared)
        return LATER if answer is NEVER else answer


@case("vllm-project/vllm#11565")
class TouchesBeforeItTests(Engine):
    """Hit blocks are taken before the capacity is tested, and stay taken when the test fails."""

    def admit(self, name: str, length: int, keys: Sequence[Hashable] = ()) -> Answer:
        """A refusal keeps the hits."""
        hits = self.cache.lookup(keys) if self.cache is not None else []
        answer = super().admit(name, length, keys)
        if answer is LATER and self.cache is not None:
            self.cache.share(hits)
        return answer


@pool_case("vllm-project/vllm#11565 (review)")
class CountsHitsAsRoom(CachingPool):
    """The capacity test comes first and counts the hit blocks themselves as room for the others."""

    def answer(self, wanted: int, kept: int = 0, shared: Sequence[int] = ()) -> Answer:
        """Hits are counted twice."""
        answer = super().answer(wanted, kept, shared)
        return super().answer(wanted, kept) if answer is LATER else answer


@case("vllm-project/vllm#8824")
class TestsWithoutLookahead(Engine):
    """The capacity test leaves out the positions behind the history that the allocation then takes."""

    def resize(self, name: str) -> Answer:
        """Asks for less than it takes."""
        request = self.request(name)
        missing = request.need(self.block_size) - len(request.table)
        tested = -(-request.length // self.block_size) - len(request.table)
        if missing > 0 and self.blocks.answer(max(0, tested), len(request.table)) is OK:
            request.grow(self._allocate(missing))
            return OK
        return super().resize(name)


@case("huggingface/transformers#46117")
class ForkWithoutUndo(Engine):
    """A fork copies block by block, and what it took before it ran out is lost."""

    def fork(self, parent: str, child: str, rows: int, length: int | None = None) -> Answer:
        """No test before, no undo after."""
        taken: list[int] = []
        for _ in range(-(-rows // self.block_size)):
            if not self.blocks.free:
                return LATER
            taken += self.blocks.allocate(1)
        self.blocks.release(taken)
        return super().fork(parent, child, rows, length)


# --------------------------------------------------------------------------------- counts, eviction, pins


@case("apache/tvm#16666")
class ForkIsNotCounted(Engine):
    """A fork does not raise the count of what it shares."""

    def fork(self, parent: str, child: str, rows: int, length: int | None = None) -> Answer:
        """The shared blocks count one owner too few."""
        answer = super().fork(parent, child, rows, length)
        if answer is OK:
            self.blocks.release(self.requests[child].table[: rows // self.block_size])
        return answer


@case("Avarok-Cybersecurity/atlas#373 (a)")
class EvictionIgnoresOwners(Engine):
    """Evicting a cache entry sets the count to zero although live requests share the block."""

    def evict(self, most: int) -> list[int]:
        """Owned entries go too."""
        assert self.cache is not None
        evicted = []
        for block in list(self.cache.keys)[:most]:
            self.cache.withdraw(block)
            self.cache._parked.pop(block, None)
            self.cache._counts.pop(block, None)
            self.cache._free.append(block)
            evicted.append(block)
        return evicted


@correct()
class TreeOwns(ReferenceAllocator):
    """Correct: a node of the cache tree is an owner of its block, until the node is evicted."""

    def release(self, request: str, reason: Reason) -> None:
        """The blocks that were published go to the tree first."""
        for index, key in enumerate(self.contents[request].keys[: self.contents[request].published]):
            self.insert(key, self.engine.requests[request].table[index])
        super().release(request, reason)

    def insert(self, key: Hashable, mine: int) -> None:
        """A node for the key, unless there is one; it owns the block that the key leads to."""
        cache, node = self.engine.cache, f"node {key}"
        assert cache is not None
        if node not in self.engine.pins and key in cache._block_of:
            block = cache._block_of[key]
            cache.share((block,))
            self.engine.pins[node] = [block]

    def evict(self, blocks: int) -> int:
        """Nodes go, and with them what nobody else owns."""
        for node in [name for name in self.engine.pins if str(name).startswith("node ")]:
            self.engine.unpin(node)
        return super().evict(blocks)


@case("Avarok-Cybersecurity/atlas#373 (c)")
class NodeCountsTheWrongBlock(TreeOwns):
    """The tree counts the finishing request's block, though its node leads to an older one with the same contents."""

    def insert(self, key: Hashable, mine: int) -> None:
        """Right only when both are the same block."""
        cache, node = self.engine.cache, f"node {key}"
        assert cache is not None
        if node not in self.engine.pins and key in cache._block_of:
            cache.share((mine,))
            self.engine.pins[node] = [cache._block_of[key]]


@case("NVIDIA/TensorRT-LLM#12648")
class PinsTheTreesBlock(ReferenceAllocator):
    """A transfer pins the cached block of the same contents, not the block that it sends, even when nobody owns it."""

    def hold(self, request: str, holder: str) -> Reply:
        """The wrong blocks, some of them without an owner."""
        cache = self.engine.cache
        assert cache is not None
        pairs = zip(self.engine.request(request).table, [*self.contents[request].keys, *[None] * 99], strict=False)
        blocks = [cache._block_of.get(key, block) for block, key in pairs]
        for block in blocks:
            cache._counts[block] = cache.count(block) + 1
        self.engine.pins[holder] = blocks
        return Reply(OK)


@case("vllm-project/vllm#44409")
class AllocatesBeforeItTouches(Engine):
    """Blocks are allocated between the lookup and the taking of the hits, and may be those very hits."""

    def admit(self, name: str, length: int, keys: Sequence[Hashable] = ()) -> Answer:
        """Two phases in the wrong order."""
        hits = self.cache.lookup(keys) if self.cache is not None else []
        need = -(-length // self.block_size)
        if not hits or self.cache is None or self.slots is not None:
            return super().admit(name, length, keys)
        answer = self.blocks.answer(need - len(hits))
        if answer is OK:
            fresh = self._allocate(need - len(hits))
            self.cache.share(hits)
            self.requests[name] = Request(name, length, hits + fresh, 0, len(hits) * self.block_size)
        return answer


@pool_case("NVIDIA/TensorRT-LLM#12834")
class CounterOfTheWrongLevel(CachingPool):
    """A counter of free blocks beside the list is raised by releases that free nothing."""

    __slots__ = ("available",)

    def __init__(self, usable: int, order: ReleaseOrder = "reverse") -> None:
        super().__init__(usable, order)
        self.available = usable

    def allocate(self, wanted: int) -> list[int]:
        """Counts down."""
        self.available -= wanted
        return super().allocate(wanted)

    def release(self, blocks: Sequence[int]) -> None:
        """Counts up for every owner that leaves."""
        self.available += len(blocks)
        super().release(blocks)

    def answer(self, wanted: int, kept: int = 0, shared: Sequence[int] = ()) -> Answer:
        """Believes the counter."""
        answer = super().answer(wanted, kept, shared)
        return OK if answer is LATER and wanted <= self.available else answer


# ------------------------------------------------------------------------------------------- state slots


@case("vllm-project/vllm#32118")
class SlotIsNotInitialised(Engine):
    """A new request decodes at once from a state slot that nothing has filled."""

    def _clone_slot(self, request: Request) -> None:
        if self.slots is not None:
            old, request.slot = request.slot, self.slots.allocate(1)[0]
            self.slots.release((old,))


@case("wtdcode/vllm-backport#63")
class CopiesThroughAnOldTable(Engine):
    """State is copied through a row table of an earlier step, so the source is whose slot it was then."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.first_slot: dict[str, int] = {}
        self.protects: dict[int, int] = {}

    def share(self, parent: str, child: str, rows: int, length: int) -> None:
        """Looks the parent up in the old table."""
        super().share(parent, child, rows, length)
        self.old = self.first_slot.get(parent, self.requests[parent].slot)

    def admit(self, name: str, length: int, keys: Sequence[Hashable] = ()) -> Answer:
        """The table is filled in once."""
        answer = super().admit(name, length, keys)
        if answer is OK:
            self.first_slot.setdefault(name, self.requests[name].slot)
        return answer

    def _record(self, pool: str, source: int, destination: int, rows: int) -> QueuedCopy:
        copy = super()._record(pool, source, destination, rows)
        if pool == SLOTS:
            self.protects[copy.ticket], copy.source = source, self.old
        return copy

    def held(self, copy: QueuedCopy) -> dict[str, int]:
        """The slot that it should have read."""
        return {**super().held(copy), "source": self.protects.get(copy.ticket, copy.source)}


# ------------------------------------------------------------------------------- widths, records, rows


@case("vllm-project/vllm#10730")
class AllocatesBeyondTheRow(Engine):
    """One spare block is allocated ahead, also when the table is as long as it may become."""

    def admit(self, name: str, length: int, keys: Sequence[Hashable] = ()) -> Answer:
        """One too many."""
        answer = super().admit(name, length, keys)
        if answer is OK and self.blocks.free:
            self.requests[name].grow(self._allocate(1))
        return answer


@case("sgl-project/sglang#13713")
class RingOfResults(Records):
    """Results wait in a ring; a long prompt takes several entries, so the ring wraps onto results not yet read."""

    def __init__(self, size: int) -> None:
        super().__init__(6)
        self.last = 0

    def take(self, value: Any) -> Handle:
        """The next entry, whatever it holds."""
        self.last = self.last % self.size + 1
        if self.last in self.free:
            self.free.remove(self.last)
        self.live[self.last] = value
        return Handle(self.last, self.generations[self.last])


@case("sgl-project/sglang#18803")
class RowGoesWithItsRequest(ReferenceAllocator):
    """A finished request's record goes to the next one while a step in flight still reads it."""

    def release(self, request: str, reason: Reason) -> None:
        """Does not wait for the reader."""
        super().release(request, reason)
        mine = [address for address, (name, _) in self.handles.items() if name == request]
        self.records.recycle([self.handles.pop(address)[1] for address in mine])


@case("sgl-project/sglang#34067")
class DefersAView(Engine):
    """A deferred release keeps a view of a table that is still written to, and frees what stands there then."""

    def pin(self, request: str, name: Hashable) -> None:
        """The list itself, not a copy."""
        super().pin(request, name)
        self.pins[name] = self.request(request).table


class ReleasesAtOnce(Engine):
    """Sources are released as soon as the copy is queued."""

    def _record(self, pool: str, source: int, destination: int, rows: int) -> QueuedCopy:
        copy = super()._record(pool, source, destination, rows)
        self._pool(pool).release((source,))
        return copy

    def held(self, copy: QueuedCopy) -> dict[str, int]:
        """Nothing."""
        return {}


class StreamOrdered(ReferenceAllocator):
    """Declares that stream order alone protects sources."""

    engine_type = ReleasesAtOnce

    def __init__(self, configuration: Configuration, **options: Any) -> None:
        super().__init__(configuration, **options)
        self.declaration = replace(self.declaration, release_rule="stream")


@case("pytorch/pytorch#27366", "sgl-project/sglang#34076")
class TrustsAnOrderThatIsNotThere(StreamOrdered):
    """Storage is released at once because "one stream orders all", while copies run on another stream."""


# --------------------------------------------------------------------------- what looks like a fault and is none


@correct()
class SameStream(StreamOrdered):
    """Everything runs on one stream, so a block may be reissued under work that is still queued (vllm#45096)."""

    class worker_type(Worker):
        """One stream for steps and copies."""

        def submit(self, copy: QueuedCopy) -> None:
            """Behind all steps, before all later ones."""
            self.copies[copy.ticket] = copy, self.device.move(COMPUTE, self.pairs(copy))


@correct(steps=True)
class ReleasesUnderItsOwnStep(ReferenceAllocator):
    """A request ends while its step is in flight and its blocks go at once (vllm's deferred-free tests)."""


class _Revalidates(CachingPool):
    __slots__ = ()

    def withdraw(self, block: int) -> None:
        """The map keeps the entry; the block forgets its contents."""
        del self._key_of[block]

    def publish(self, block: int, key: Hashable) -> bool:
        """A stale entry is replaced."""
        if self._key_of.get(self._block_of.get(key, 0)) == key or block in self._key_of:
            return False
        self._key_of[block], self._block_of[key] = key, block
        return True

    def lookup(self, keys: Any) -> list[int]:
        """A hit counts only if the block still has these contents."""
        hits: list[int] = []
        for key in keys:
            if self._key_of.get(self._block_of.get(key, 0)) != key:
                break
            hits.append(self._block_of[key])
        return hits


@correct()
class StaleMapEntries(with_pool(_Revalidates)):  # type: ignore[misc]
    """The lookup map keeps entries of reissued blocks, and a hit is checked against the block (nano-vllm#163)."""


class _OneKeyManyBlocks(CachingPool):
    __slots__ = ()

    def publish(self, block: int, key: Hashable) -> bool:
        """Every copy of the contents is known; the latest one is hit."""
        if block in self._key_of:
            return False
        self._key_of[block], self._block_of[key] = key, block
        return True

    def withdraw(self, block: int) -> None:
        """The key is gone with its last block."""
        key = self._key_of.pop(block)
        left = [other for other, its in self._key_of.items() if its == key]
        if left:
            self._block_of[key] = left[-1]
        else:
            del self._block_of[key]


@correct()
class SeveralBlocksOneKey(with_pool(_OneKeyManyBlocks)):  # type: ignore[misc]
    """Equal contents are in several blocks under one key (vllm#55092)."""


class LowestAddressFirst(Records):
    """Correct: addresses count from 1, as tickets do."""

    def take(self, value: Any) -> Handle:
        """The lowest free address."""
        address = min(self.free)
        self.free.remove(address)
        self.live[address] = value
        return Handle(address, self.generations[address])


WINDOW = 4
"""Positions that a sliding window looks back."""


class Pruning(Engine):
    """Releases blocks that lie behind the window; 0 stands in the table for them."""

    def prune(self, name: str, rows: int) -> None:
        """Blocks that a step behind ``rows`` rows does not read any more."""
        table = self.requests[name].table
        for index in range(max(0, rows - WINDOW) // self.block_size):
            if table[index]:
                self.blocks.release((table[index],))
                table[index] = 0

    def commit(self, name: str, rows: int) -> None:
        """What was settled decides."""
        super().commit(name, rows)
        self.prune(name, self.requests[name].settled)

    def release(self, name: str, reason: Reason = "finish") -> None:
        """Placeholders are nobody's."""
        request = self.request(name)
        request.table = [block for block in request.table if block]
        super().release(name, reason)


@correct(cache=False)
class SlidingWindow(ReferenceAllocator):
    """Rows behind the window are gone for good, and their blocks are somebody else's."""

    engine_type = Pruning

    def __init__(self, configuration: Configuration, **options: Any) -> None:
        super().__init__(configuration, **options)
        self.declaration = replace(self.declaration, capabilities=frozenset({"drafts", "advances"}))


@case("vllm-project/vllm#47728", cache=False)
class PrunesTheOptimisticCount(SlidingWindow):
    """Blocks behind the window are released by the count that a step in flight has advanced and may still lose."""

    class engine_type(Pruning):
        """Prunes too early."""

        def advance(self, name: str, rows: int) -> None:
            """Before anything is settled."""
            super().advance(name, rows)
            self.prune(name, self.requests[name].num_tokens)


@case("vllm-project/vllm#33997", cache=False)
class PrunesWithDrafts(SlidingWindow):
    """Blocks behind the window are released as if all drafts were accepted, and a rejection needs them back."""

    class engine_type(Pruning):
        """Prunes too much."""

        def extend(self, name: str, added: int, drafts: int = 0) -> Answer:
            """Drafts count as rows."""
            answer = super().extend(name, added, drafts)
            if answer is OK:
                self.prune(name, self.requests[name].reserved)
            return answer
