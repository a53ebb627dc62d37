"""Two questions about a row: is it in the committed prefix, and may the current step read it? (chapter, 4.5)

No single data structure answers them.  Ownership is in the owner counts, the committed prefix in
``num_tokens``, physical replacement in address arithmetic, copy completion in device events, and
what the current step sees in its key length.
"""

from __future__ import annotations

import enum

from .engine import Engine
from .interface import BLOCKS, SLOTS
from .request import NO_SLOT
from .slots import oldest_kept


class Condition(enum.Enum):
    """The four conditions of a committed row, in the chapter's order."""

    OWNED = "the request owns the block or slot, alone or through a pin"
    COUNTED = "the position is below the committed count, and that count is settled"
    NOT_REPLACED = "no later write to the same physical place has replaced the row"
    FILLED = "every queued copy that fills the row is complete"


def failing(engine: Engine, name: str, position: int) -> list[Condition]:
    """Which conditions fail for the paged row of a position; none means: in the committed prefix.

    A paged row is never replaced while it is owned: every position has a row of its own.
    """
    request = engine.request(name)
    index, offset = divmod(position, engine.block_size)
    owned = index < len(request.table) and engine.blocks.count(request.table[index]) > 0
    filled = not owned or not any(
        copy.pool == BLOCKS and copy.destination == request.table[index] and offset < copy.rows and not copy.done
        for copy in engine.copies.values()
    )
    return _failing(owned, position < request.settled, True, filled)


def failing_in_slot(engine: Engine, name: str, position: int, ring: int, written: int) -> list[Condition]:
    """The same for the row of a position in the request's state slot, a ring of ``ring`` rows.

    ``written``: how far the ring was written, in positions.  Rejected drafts count: their bytes
    replaced older rows all the same.
    """
    request = engine.request(name)
    owned = request.slot != NO_SLOT and engine.slots is not None and engine.slots.count(request.slot) > 0
    filled = not any(
        copy.pool == SLOTS and copy.destination == request.slot and not copy.done for copy in engine.copies.values()
    )
    return _failing(owned, position < request.settled, position >= oldest_kept(written, ring), filled)


def committed(engine: Engine, name: str, position: int) -> bool:
    """Whether later steps, a fork or a store may use the paged row of a position."""
    return not failing(engine, name, position)


def key_length(engine: Engine, name: str, queries: int) -> int:
    """Rows that a step with ``queries`` positions may read: committed, in flight, and its own."""
    request = engine.request(name)
    return request.num_tokens + request.inflight + queries


def visible_to_step(engine: Engine, name: str, position: int, queries: int) -> bool:
    """Whether the step that is being built may read the paged row of a position.

    More than the committed prefix: rows that this step or one before it still has to write are
    visible, because the device runs them in order and the metadata says so.
    """
    request = engine.request(name)
    covered = len(request.table) * engine.block_size
    return position < min(key_length(engine, name, queries), covered)


def _failing(owned: bool, counted: bool, kept: bool, filled: bool) -> list[Condition]:
    answers = {
        Condition.OWNED: owned,
        Condition.COUNTED: counted,
        Condition.NOT_REPLACED: kept,
        Condition.FILLED: filled,
    }
    return [condition for condition, holds in answers.items() if not holds]
