"""Faults planted in the real ``transformers`` cache: one wrapped method each, the rest is the engine's own code.

Each function here that takes a :class:`Configuration` is a target factory, so a fault is certified with, for instance,
``kvproof certify tests.planted:drops_a_release`` (from the repository's root).  :data:`PLANTED` lists them by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvproof.checks.adapters.transformers import TransformersAllocator, make_transformers
from kvproof.model.interface import Configuration, Factory

Plant = Callable[[Any, Any], None]
"""Changes one method of a real cache; takes the ``PagedAttentionCache`` and its one allocator group."""


@dataclass(frozen=True)
class Planted:
    """A fault, and the rules of which at least one must be named when it is found."""

    name: str
    plant: Plant
    breaks: frozenset[str]


PLANTED: dict[str, Planted] = {}
"""Every planted fault by name."""

SCRIBBLE = 900
"""Token that a planted writer leaves behind."""


def make_planted(name: str) -> Factory:
    """The factory of the target ``transformers`` with this fault."""
    plant = PLANTED[name].plant

    def factory(configuration: Configuration) -> TransformersAllocator:
        target = make_transformers(configuration)
        (group,) = target.cache.cache_allocators.values()
        plant(target.cache, group)
        return target

    factory.__name__ = factory.__qualname__ = name
    return factory


def _planted(*breaks: str) -> Callable[[Plant], Factory]:
    def register(plant: Plant) -> Factory:
        PLANTED[plant.__name__] = Planted(plant.__name__, plant, frozenset(breaks))
        return make_planted(plant.__name__)

    return register


# The five that certify promises to find


@_planted("nothing_lost", "owned_xor_free", "counts_match_owners", "only_owners_release")
def drops_a_release(cache: Any, group: Any) -> None:
    """The last block of a table is forgotten instead of released."""
    real = cache.free_blocks

    def free_blocks(request_id: str, no_cache: bool = False) -> None:
        del group.block_table.get(request_id, [])[-1:]
        real(request_id, no_cache)

    cache.free_blocks = free_blocks


@_planted("owned_xor_free", "counts_match_owners")
def issues_a_block_twice(cache: Any, group: Any) -> None:
    """The last block of every issue stays in the free list, so the next request may get it too."""
    pool, real = cache.pool, cache.pool.get_free_blocks

    def get_free_blocks(index: int, num_blocks: int) -> list[int]:
        blocks: list[int] = real(index, num_blocks)
        pool.free_blocks(group.index, blocks[-1:])
        return blocks

    pool.get_free_blocks = get_free_blocks


@_planted("only_owners_release", "no_read_before_fill", "reads_keep_their_source", "owned_xor_free", "writes_stay_home")
def frees_and_rewrites_the_source_before_the_copy(cache: Any, group: Any) -> None:
    """Before recorded copies run, their parents lose their tables and the source blocks are written by somebody."""
    real = cache.perform_cache_copy

    def perform_cache_copy(copies: dict[str, tuple[list[int], list[int]]]) -> None:
        for sources, _ in copies.values():
            for parent in [r for r, table in group.block_table.items() if set(table) & set(sources)]:
                cache.free_blocks(parent)
            _scribble(group, sources)
        real(copies)

    cache.perform_cache_copy = perform_cache_copy


@_planted("cache_tells_the_truth", "no_read_before_fill")
def keeps_a_key_after_the_block_is_reissued(cache: Any, group: Any) -> None:
    """Eviction returns the cached blocks to the pool but leaves their keys in the ledger."""
    ledger = group.ledger

    def evict_cached_blocks() -> list[int]:
        evicted = list(ledger.cached_blocks)
        ledger.cached_blocks.clear()
        return evicted

    ledger.evict_cached_blocks = evict_cached_blocks


@_planted("only_owners_release")
def keeps_a_block_when_it_refuses(cache: Any, group: Any) -> None:
    """A refused reservation leaves one block in the request's table, if there is one to have."""
    pool, real = cache.pool, cache.can_store_request_tokens

    def can_store_request_tokens(state: Any, request_len: int, dry_run: bool = False) -> bool:
        fits = bool(real(state, request_len, dry_run))
        if not fits and not dry_run:
            if pool.count_free_blocks(group.index) == 0 and pool.num_free_sectors:
                pool.allocate_sector(group.index)
            one = pool.get_free_blocks(group.index, min(1, pool.count_free_blocks(group.index)))
            group.block_table.setdefault(state.request_id, []).extend(one)
        return fits

    cache.can_store_request_tokens = can_store_request_tokens


# More, each visible in one kind of observation only


@_planted("counts_match_owners", "owned_xor_free")
def forgets_to_count_a_sharer(cache: Any, group: Any) -> None:
    """A second owner of a block is not counted."""
    ledger, real = group.ledger, group.ledger.acquire

    def acquire(block_id: int) -> None:
        if block_id in ledger.cached_blocks:
            real(block_id)

    ledger.acquire = acquire


@_planted("no_read_before_fill")
def skips_the_copy(cache: Any, group: Any) -> None:
    """Recorded copies are never run: only the rows of the child can show it."""
    cache.perform_cache_copy = lambda copies: None


@_planted("cache_tells_the_truth", "no_read_before_fill")
def publishes_before_the_step(cache: Any, group: Any) -> None:
    """The blocks of a prompt can be hit as soon as they are reserved, though the declaration says after the step."""
    real = cache.can_store_request_tokens

    def can_store_request_tokens(state: Any, request_len: int, dry_run: bool = False) -> bool:
        fits = bool(real(state, request_len, dry_run))
        if fits and not dry_run and not state.generated_tokens:
            cache.mark_complete_blocks(state, cache.count_new_complete_blocks(state, request_len))
        return fits

    cache.can_store_request_tokens = can_store_request_tokens


@_planted("reserved_ids_untouched", "nothing_lost", "owned_xor_free")
def hands_out_a_trash_block(cache: Any, group: Any) -> None:
    """Block 0, where padding is read from, is issued in place of the last block."""
    pool, real = cache.pool, cache.pool.get_free_blocks

    def get_free_blocks(index: int, num_blocks: int) -> list[int]:
        blocks: list[int] = real(index, num_blocks)
        return [*blocks[:-1], 0] if blocks else blocks

    pool.get_free_blocks = get_free_blocks


def _scribble(group: Any, blocks: list[int]) -> None:
    """Write :data:`SCRIBBLE` into every row of these blocks, as a step of another request would."""
    for layer in group.layer_indices:
        for rows in group._kv_token_views[layer]:
            for block in blocks:
                first = block * group.block_physical_stride
                rows[first : first + group.tokens_per_page] = SCRIBBLE
