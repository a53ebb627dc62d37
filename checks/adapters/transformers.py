"""The KV cache of `transformers` continuous batching, seen through kvproof's interface.

The object under test is a real ``PagedAttentionCache`` on the CPU, with the geometry of a one-head
Llama of full-attention layers.  Nothing of it is replaced.  Every verb makes the calls that the engine's own scheduler
and batch processor make, in their order; the comment at each place names it.  One verb is one batch of one request,
with a token budget that always suffices, and a safety margin of 0 (the scheduler called ``prefill_first``).

What the engine does, in kvproof's words:

- The unit of the pool is a *sector* of one or more blocks.  The two trash sectors are reserved.  The shape of the
  rows is chosen so that sectors divide the pool: usable blocks are exactly ``Configuration.blocks``.
- A prompt may hit complete blocks, cached or still owned by others, but never all of itself: at least one token is
  left to compute.  When the last block of a prompt is recomputed for that reason it is a duplicate: after the step
  the request's table is changed *in place* to the block that is already known, and the duplicate is freed.
- A refused request triggers the eviction of *all* cached blocks, then one more try.  Blocks that the request itself
  had hit are given back without being cached again.
- A fork shares the blocks that lie wholly below ``rows`` and copies every other block of the parent's table.  The
  engine forks only where the parent's computed rows end, so the adapter shows it the table up to there.  A fork never
  evicts: refused means refused until somebody evicts or finishes.
- Copies are enqueued on the compute stream at once and nothing is pinned for them.  The adapter keeps that stream:
  a copy runs when it is completed, or just before the next read or write that the stream would order behind it.

The rows hold stamps.  A key row holds the token, the value row holds a hash of all tokens up to there, so that the
right token on the wrong prefix shows as well; :meth:`TransformersAllocator.read` gathers both through the table.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from kvproof.model.interface import (
    BLOCKS,
    Answer,
    Configuration,
    Copy,
    Declaration,
    Pool,
    Reason,
    Reply,
    Snapshot,
)

INSTALL = "pip install 'kvproof[transformers]'"
"""What to run when torch or transformers is missing."""

FOREIGN = -1
"""Stamp of a row that was never filled, or that was filled behind another prefix."""

_SECTOR_ALIGNMENT = 128  # bytes: the engine rounds a sector up to a multiple of this (PagedAttentionCache.__init__)
_STAMP_BYTES = 4  # one int32 for the key row and one for the value row
_LINEAGE_PRIME = 2_147_483_647  # lineage stamps are 1 .. this - 1, so zeroed memory is never a valid one
_WIDEST_BATCH = 64  # tokens: only sizes the engine's own memory estimate, no step is run

try:
    torch: Any = import_module("torch")
    _cache: Any = import_module("transformers.generation.continuous_batching.cache")
    _distributed: Any = import_module("transformers.generation.continuous_batching.distributed")
    _requests: Any = import_module("transformers.generation.continuous_batching.requests")
    _settings: Any = import_module("transformers.generation.configuration_utils")
    _llama: Any = import_module("transformers").LlamaConfig
    _cache.CachePool  # noqa: B018  (older versions have no sectors)
except (ImportError, AttributeError) as missing:
    raise ImportError(
        f"the target 'transformers' needs torch 2.13 and transformers 5.24 ({missing}): {INSTALL}"
    ) from missing


@dataclass(frozen=True, slots=True)
class Geometry:
    """Shape of the rows.  ``layers`` x ``head_dim`` stamps a row; ``blocks_per_sector`` follows from their bytes."""

    layers: int
    head_dim: int
    blocks_per_sector: int


def geometry(blocks: int, block_size: int) -> Geometry:
    """The row shape whose sectors divide ``blocks``: the largest such sector, with two layers where that costs nothing.

    A sector is the smallest multiple of 128 bytes that is whole in blocks, so narrow rows give many blocks a sector.
    A shape with one block a sector always exists, so the pool never has to be rounded.
    """
    shapes = []
    for width in (1, 2, 4, 8, 16):  # stamps a row
        block_bytes = 2 * _STAMP_BYTES * width * block_size
        per_sector = _SECTOR_ALIGNMENT // _common_divisor(block_bytes, _SECTOR_ALIGNMENT)
        if blocks % per_sector == 0:
            shapes.append((per_sector, width == 2, -width))
    per_sector, _, narrow = max(shapes)
    width = -narrow
    layers = min(width, 2)
    return Geometry(layers, width // layers, per_sector)


def _common_divisor(a: int, b: int) -> int:
    while b:
        a, b = b, a % b
    return a


def lineage_after(lineage: int, token: int) -> int:
    """Stamp of a prefix that is ``token`` longer than the one stamped ``lineage`` (0: the empty prefix)."""
    return (lineage * 1_000_003 + token + 17) % (_LINEAGE_PRIME - 1) + 1


@dataclass(slots=True)
class _Live:
    """One live request: the engine's own state object, and what a step has done for it."""

    state: Any
    """``RequestState``; its ``position_offset`` counts every reserved position, as after the engine's batch prep."""
    lineage: list[int] = field(default_factory=list)
    """Expected value stamp of each position of the history."""
    written: int = 0
    """Rows below were written by steps of this request, or came with a hit or a fork."""
    committed: int = 0
    """Rows below are valid."""

    def tokens(self) -> list[int]:
        history: list[int] = self.state.initial_tokens + self.state.generated_tokens
        return history

    def follow(self, tokens: Sequence[int]) -> None:
        last = self.lineage[-1] if self.lineage else 0
        for token in tokens:
            last = lineage_after(last, token)
            self.lineage.append(last)


@dataclass(slots=True)
class _QueuedCopies:
    """The copies of one fork: the dictionary that ``prepare_fork_request`` filled, and their tickets."""

    pairs: dict[str, tuple[list[int], list[int]]]
    tickets: range


class TransformersAllocator:
    """A ``PagedAttentionCache`` as a :class:`kvproof.model.interface.Allocator`.

    Capabilities: ``forks``, ``copies``, ``cache``, ``rows``.  ``cache`` is the engine's object; nothing else holds
    state that decides who owns a block.
    """

    declaration = Declaration(
        release_rule="stream",
        destination="ordered",
        publish="after_step",
        surplus="exact",
        never=False,
        order="none",
        capabilities=frozenset({"forks", "copies", "cache", "rows"}),
    )

    def __init__(self, configuration: Configuration) -> None:
        shape = geometry(configuration.blocks, configuration.block_size)
        self.block_size = configuration.block_size
        self.cache: Any = _build_cache(configuration, shape)
        ((self._name, self._group),) = self.cache.cache_allocators.items()
        # One allocator group uses every sector, so its usable blocks are those of the sectors behind the trash ones.
        width = self._group.blocks_per_sector
        first = self.cache.pool.num_reserved_sectors * width
        self._reserved = frozenset(range(first))
        self._usable = frozenset(range(first, first + self.cache.num_sectors * width))
        self._live: dict[str, _Live] = {}
        self._stream: deque[_QueuedCopies] = deque()
        self._next_ticket = 1
        self._nothing: Any = torch.empty(0, dtype=torch.int64)

    # The minimum

    def admit(self, request: str, tokens: Sequence[int]) -> Reply:
        """Look for a prefix in the cache, reserve the rest of the prompt; evict and try once more if need be."""
        state = _requests.RequestState(request_id=request, initial_tokens=list(tokens), max_new_tokens=None)
        self.cache.pool.try_to_free_sectors()  # Scheduler._try_to_meet_safety_margin, before every batch
        # Scheduler._infer_request_tokens: the hit blocks are owned from here on, even if the rest does not fit.
        hit = self.cache.search_prefix_match(request, state.initial_tokens) if self.cache.use_prefix_sharing else 0
        state.position_offset = hit
        fits, evicted = self._reserve(state, len(state.initial_tokens) - hit)
        if not fits:
            if hit:
                # OffloadingManager.offload_requests: a request that hit is active and starved, and is put back.
                self.cache.free_blocks(request, no_cache=True)
            return Reply(Answer.LATER, evicted=evicted)
        state.status = _requests.RequestStatus.DECODING
        state.position_offset = len(state.initial_tokens)
        live = _Live(state, written=hit, committed=hit)
        live.follow(state.initial_tokens)
        self._live[request] = live
        return Reply(Answer.OK, hit_rows=hit, evicted=evicted)

    def extend(self, request: str, tokens: Sequence[int], drafts: int = 0) -> Reply:
        """Reserve the positions of the next tokens; evict and try once more if need be."""
        if drafts:
            raise ValueError(f"extend({request!r}, drafts={drafts}): transformers has no drafts; leave drafts at 0")
        live = self._of(request)
        self.cache.pool.try_to_free_sectors()  # as in admit
        fits, evicted = self._reserve(live.state, len(tokens))
        if not fits:
            return Reply(Answer.LATER, evicted=evicted)
        live.state.generated_tokens.extend(tokens)
        live.state.position_offset += len(tokens)  # ContinuousBatchingIOs.prepare_batch_tensors
        live.follow(tokens)
        return Reply(Answer.OK, evicted=evicted)

    def commit(self, request: str, rows: int) -> None:
        """Run the step that fills positions up to ``rows``, then publish the blocks that it completed."""
        live = self._of(request)
        if rows > len(live.lineage):
            raise ValueError(
                f"commit({request!r}, {rows}): only {len(live.lineage)} positions are reserved; extend it first"
            )
        if rows <= live.committed:
            return
        self._write(live, rows)
        state, reserved = live.state, live.state.position_offset
        # Scheduler._process_candidates counts at scheduling time, when current_len() is what was computed before.
        state.position_offset = live.committed
        complete = self.cache.count_new_complete_blocks(state, rows - live.committed)
        state.position_offset = reserved
        live.committed = rows
        self.cache.mark_complete_blocks(state, complete)  # ContinuousBatchProcessor.update_batch

    def release(self, request: str, reason: Reason) -> None:
        """Give back the table.  A preempted request leaves nothing in the cache, as when the engine offloads it."""
        self._of(request)
        # finish: Scheduler.finish_request; abort: Scheduler.clear_cancelled_requests; preempt: offload_requests.
        self.cache.free_blocks(request, no_cache=reason == "preempt")
        del self._live[request]

    def snapshot(self) -> Snapshot:
        """Read pool, tables and ledger.  ``counts`` and ``keys`` are as the engine itself would read them."""
        ledger = self._group.ledger
        tables = {request: tuple(table) for request, table in self._group.block_table.items()}
        return {
            BLOCKS: Pool(
                usable=self._usable,
                reserved=self._reserved,
                free=self._free(),
                evictable=frozenset(ledger.cached_blocks),
                tables=tables,
                counts=_counts(ledger.shared_ref_counts, tables),
                keys=_keys(ledger.hash_to_block, ledger.block_to_hash),
            )
        }

    # Forks and copies

    def fork(self, parent: str, child: str, rows: int) -> Reply:
        """Share the parent's complete blocks below ``rows``; queue copies of the others into fresh blocks."""
        source = self._of(parent)
        if rows > source.committed:
            raise ValueError(f"fork({parent!r}, {child!r}, {rows}): only {source.committed} rows are committed")
        pairs: dict[str, tuple[list[int], list[int]]] = {self._name: ([], [])}
        self.cache.pool.try_to_free_sectors()  # ContinuousBatchProcessor.update_batch, once before it forks
        with self._computed_up_to(source.state, rows):
            forked = self.cache.prepare_fork_request(source.state, [child], pairs)
        if child not in forked:
            return Reply(Answer.LATER)
        prefix = source.tokens()[:rows]
        copied = _requests.RequestState(request_id=child, initial_tokens=prefix, max_new_tokens=None)
        copied.status = _requests.RequestStatus.DECODING
        copied.position_offset = rows
        self._live[child] = _Live(copied, lineage=source.lineage[:rows], written=rows, committed=rows)
        return Reply(Answer.OK, hit_rows=rows, copies=self._enqueue(pairs, rows))

    @contextmanager
    def _computed_up_to(self, state: Any, rows: int) -> Iterator[None]:
        """Show the engine a request whose computed rows, and whose table, end at ``rows``: the only place it forks at.

        The interface may also fork below that, or with reserved positions above.  The rest of the table is put back
        in place, so a table that the engine replaced or dropped meanwhile is not repaired by this.
        """
        table, reserved = self._group.block_table[state.request_id], state.position_offset
        end = -(-rows // self.block_size)
        beyond, table[end:] = table[end:], []
        state.position_offset = rows
        try:
            yield
        finally:
            state.position_offset = reserved
            table.extend(beyond)

    def complete(self, tickets: Sequence[int]) -> None:
        """Run the copy stream until these copies are done.  It is in order, so earlier ones are done too."""
        for ticket in tickets:
            if not 1 <= ticket < self._next_ticket:
                raise ValueError(f"complete({list(tickets)}): no copy was queued with ticket {ticket}")
        while self._stream and any(ticket >= self._stream[0].tickets.start for ticket in tickets):
            self._run_oldest_copies()

    # Prefix cache

    def evict(self, blocks: int) -> int:
        """Drop the cached contents: all of them, whatever ``blocks`` says (unless 0); the engine cannot do less."""
        if blocks <= 0:
            return 0
        return len(self._evict_cached())

    # Rows

    def read(self, request: str) -> list[int]:
        """Token stamps of the committed rows, gathered through the table as a step gathers them.

        A row that holds another token shows that token.  A row that holds the right token behind another prefix,
        that was never filled, or that the table does not cover, shows :data:`FOREIGN`.
        """
        live = self._of(request)
        self._drain_stream()
        covered = len(self._group.block_table.get(request, ())) * self.block_size
        rows = min(live.committed, covered)
        uncovered = [FOREIGN] * (live.committed - rows)
        return self._gather(request, live, rows) + uncovered if rows else uncovered

    def _gather(self, request: str, live: _Live, rows: int) -> list[int]:
        """Stamps of rows ``0 .. rows - 1``, which the table covers."""
        index = torch.tensor(self._group.get_read_indices(request, 0, rows), dtype=torch.int64)
        lineage = torch.tensor(live.lineage[:rows], dtype=torch.int32)[:, None]
        expected = torch.tensor(live.tokens()[:rows], dtype=torch.int32)[:, None]
        stamps = expected[:, 0].clone()
        for layer in self._group.layer_indices:
            keys, values = self._forward(layer, self._no_states(), self._no_states(), index, self._nothing)
            keys, values = keys.flatten(1), values.flatten(1)
            if torch.equal(keys, expected.expand_as(keys)) and torch.equal(values, lineage.expand_as(values)):
                continue
            foreign_token = (keys != expected).any(1)
            other = torch.where((keys != expected), keys, FOREIGN).amax(1)
            stamps = torch.where((values != lineage).any(1), FOREIGN, stamps)
            stamps = torch.where(foreign_token, other.to(stamps.dtype), stamps)
        read: list[int] = stamps.tolist()
        return read

    def close(self) -> None:
        """Forget the cache tensor."""
        self._stream.clear()
        self._live.clear()

    # What the scheduler does around an allocation

    def _reserve(self, state: Any, positions: int) -> tuple[bool, tuple[int, ...]]:
        """Reserve ``positions`` more for the request, evicting if it is starved.  Returns (fits, evicted blocks)."""
        if self.cache.can_store_request_tokens(state, positions):
            return True, ()
        # ContinuousBatchProcessor.prepare_next_batch: nothing fits, so evict and schedule again while that helps.
        evicted = self._evict_cached()
        if not evicted:
            return False, ()
        self.cache.pool.try_to_free_sectors()
        return bool(self.cache.can_store_request_tokens(state, positions)), evicted

    def _evict_cached(self) -> tuple[int, ...]:
        cached = tuple(self._group.ledger.cached_blocks)
        return cached if self.cache.evict_cached_blocks() else ()

    # The compute stream

    def _enqueue(self, pairs: dict[str, tuple[list[int], list[int]]], rows: int) -> tuple[Copy, ...]:
        """Put the copies of a fork at ``rows`` on the stream; each pair gets a ticket."""
        sources, destinations = pairs[self._name]
        first = self._next_ticket
        self._next_ticket += len(sources)
        if not sources:
            return ()
        self._stream.append(_QueuedCopies(pairs, range(first, self._next_ticket)))
        filled = rows - rows // self.block_size * self.block_size  # of the one block that is not complete
        return tuple(
            Copy(source, destination, filled, ticket)
            for source, destination, ticket in zip(sources, destinations, itertools.count(first))
        )

    def _run_oldest_copies(self) -> None:
        self.cache.perform_cache_copy(self._stream.popleft().pairs)

    def _drain_stream(self) -> None:
        """Everything queued so far runs before what comes next on the same stream."""
        while self._stream:
            self._run_oldest_copies()

    def _write(self, live: _Live, rows: int) -> None:
        """Write the stamps of positions ``live.written .. rows - 1`` where the engine says that they live."""
        start = live.written
        if start >= rows:
            return
        self._drain_stream()
        places = self._group.get_write_indices(live.state.request_id, start, rows - start)
        index = torch.tensor(places, dtype=torch.int64)
        shape = (rows - start, 1, self._group.head_dim)
        keys = torch.tensor(live.tokens()[start:rows], dtype=torch.int32)[:, None, None].expand(shape)
        values = torch.tensor(live.lineage[start:rows], dtype=torch.int32)[:, None, None].expand(shape)
        for layer in self._group.layer_indices:
            self._forward(layer, keys, values, self._nothing, index)
        live.written = rows

    def _forward(self, layer: int, keys: Any, values: Any, reads: Any, writes: Any) -> tuple[Any, Any]:
        """What one attention layer does with the cache in a forward pass: write its rows, gather what it reads."""
        gathered: tuple[Any, Any] = self._group.update(keys, values, layer, reads, writes)
        return gathered

    def _no_states(self) -> Any:
        return torch.empty((0, 1, self._group.head_dim), dtype=torch.int32)

    # Observation

    def _free(self) -> tuple[int, ...]:
        """Blocks of the group's own free list, then the blocks that the free sectors would become."""
        width = self._group.blocks_per_sector
        inside = self.cache.pool._free_blocks[self._group.index].trees.values()
        free = [block for leaves in inside for block in reversed(leaves)]
        for sector in reversed(self.cache.pool.free_sectors):
            free.extend(range(sector * width, (sector + 1) * width))
        return tuple(free)

    def _of(self, request: str) -> _Live:
        live = self._live.get(request)
        if live is None:
            raise ValueError(f"request {request!r} is not live: admit or fork it first")
        return live


def _counts(shared: dict[int, int], tables: dict[str, tuple[int, ...]]) -> dict[int, int]:
    """Owner counts as the ledger reads them: a block in a table without an entry counts one, any entry counts."""
    counts = {block: 1 for table in tables.values() for block in table}
    counts.update(shared)
    return counts


def _keys(hash_to_block: dict[int, int], block_to_hash: dict[int, int]) -> dict[int, int | tuple[int, ...]]:
    """Every key under which a block is known, from both of the ledger's dictionaries.

    Lookups use the first, caching and eviction the second.  They agree in a sound engine; where they do not, the
    block shows all its keys as a tuple.
    """
    if len(hash_to_block) == len(block_to_hash) and all(
        hash_to_block.get(key) == block for block, key in block_to_hash.items()
    ):
        return dict(block_to_hash)
    known: dict[int, set[int]] = {}
    for key, block in hash_to_block.items():
        known.setdefault(block, set()).add(key)
    for block, key in block_to_hash.items():
        known.setdefault(block, set()).add(key)
    return {block: next(iter(keys)) if len(keys) == 1 else tuple(sorted(keys)) for block, keys in known.items()}


def _build_cache(configuration: Configuration, shape: Geometry) -> Any:
    """A real cache of ``configuration.blocks`` blocks on the CPU, in one process, block sharing on."""
    model = _llama(
        num_hidden_layers=shape.layers,
        hidden_size=shape.head_dim,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=shape.head_dim,
        vocab_size=64,
    )
    settings = _settings.ContinuousBatchingConfig(
        page_size=configuration.block_size,
        num_blocks=configuration.blocks,
        max_batch_tokens=_WIDEST_BATCH,
        max_memory_percent=0.5,
        max_blocks_per_request=0,
        allow_block_sharing=True,
    )
    helper = _distributed.DistributedHelper(None, None)
    try:
        return _cache.PagedAttentionCache(model, settings, torch.device("cpu"), helper, torch.int32)
    except MemoryError as error:
        raise RuntimeError(
            f"transformers refuses a cache of {configuration.blocks} blocks ({error}); "
            "without psutil it may not see any memory at all: pip install psutil"
        ) from error


def make_transformers(configuration: Configuration) -> TransformersAllocator:
    """The target ``transformers``: a fresh cache.  State slots are not offered; ``max_requests`` has no counterpart."""
    return TransformersAllocator(configuration)
