"""What an engine shows of itself: one :class:`~kvproof.model.interface.Pool` for each of its pools."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import lru_cache

from .engine import Engine, QueuedCopy
from .interface import BLOCKS, RECORDS, SLOTS, Copy, Pool
from .records import Handle, Records

RESERVED = frozenset({0})


def observe(engine: Engine, records: Records, handles: Mapping[int, tuple[str, Handle]]) -> dict[str, Pool]:
    """The pools of blocks, of records (``handles``: who took which), and of state slots if there are any."""
    requests, cache, slots = engine.requests, engine.cache, engine.slots
    pools = {
        BLOCKS: Pool(
            usable=_ids(engine.blocks.usable),
            free=engine.blocks.free,
            tables={name: tuple(owner.table) for name, owner in requests.items()},
            reserved=RESERVED,
            evictable=cache.evictable if cache is not None else frozenset(),
            holds={**_copy_ends(engine, BLOCKS), **{name: tuple(blocks) for name, blocks in engine.pins.items()}},
            counts=engine.blocks.counts,
            keys=cache.keys if cache is not None else None,
            committed={name: owner.num_tokens for name, owner in requests.items()},
            queued=_queued(engine, BLOCKS),
        ),
        RECORDS: Pool(
            usable=_ids(records.size),
            free=tuple(reversed(records.free)),
            tables={},
            holds={f"record of {name} at {at}": (at,) for at, (name, _) in handles.items()},
        ),
    }
    if slots is not None:
        pools[SLOTS] = Pool(
            usable=_ids(slots.usable),
            free=slots.free,
            tables={name: (owner.slot,) for name, owner in requests.items()},
            reserved=RESERVED,
            holds=_copy_ends(engine, SLOTS),
            counts=slots.counts,
            queued=_queued(engine, SLOTS),
        )
    return pools


def observed(copy: QueuedCopy) -> Copy:
    """A queued copy in the words of the interface."""
    return Copy(copy.source, copy.destination, copy.rows, copy.ticket, copy.pool)


@lru_cache(maxsize=64)
def _ids(usable: int) -> frozenset[int]:
    return frozenset(range(1, usable + 1))


def _queued(engine: Engine, pool: str) -> tuple[int, ...]:
    return tuple([ticket for ticket, copy in engine.copies.items() if copy.pool == pool])


def _copy_ends(engine: Engine, pool: str) -> dict[Hashable, Sequence[int]]:
    return {
        f"copy {ticket} {end}": (block,)
        for ticket, copy in engine.copies.items()
        if copy.pool == pool
        for end, block in engine.held(copy).items()
    }
