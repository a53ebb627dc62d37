"""The storage machine: what the actions of ``ownership`` and ``rows`` speak of.

It is the state of ``state.py`` and a little more: ghosts that the induction needs, and the declared
disciplines, which are parameters of the text.  Definitions that both files use stand here.
"""

from __future__ import annotations

from collections.abc import Callable

from .language import (
    Formula,
    State,
    Updated,
    Variable,
    Vocabulary,
    either,
    every,
    exists,
    forall,
    implies,
    measure,
    relation,
)
from .rules import has, owned
from .state import BLOCK, EVENT, KEY, OFFSET, REQUEST, STATE, WORK

MACHINE = Vocabulary(
    sorts=tuple(STATE.sorts.values()),
    relations=(
        *STATE.relations.values(),
        # -- declared disciplines: the parameters of the text
        relation("stream_ordered", fixed=True, doc="declared: the source of a copy is not pinned, later writers wait"),
        relation("destination_pinned", fixed=True, doc="declared: the destination of a queued copy has one more owner"),
        relation(
            "destination_cancelled", fixed=True, doc="declared: a copy not yet submitted is cancelled with its reader"
        ),
        # -- ghosts of the induction
        relation("copies", WORK, doc="ghost: the work is a copy, not a step"),
        relation("cancellable", WORK, doc="ghost: the copy stands on the host's list and is not on a stream yet"),
        relation(
            "fills",
            WORK,
            REQUEST,
            BLOCK,
            OFFSET,
            doc="ghost: when it is done, the row holds data that was the request's",
        ),
        relation(
            "delivers", WORK, REQUEST, BLOCK, OFFSET, doc="ghost: the same, for the position that stands there now"
        ),
        relation(
            "blank", REQUEST, BLOCK, OFFSET, doc="ghost: nothing was written for the position that stands there now"
        ),
        relation("stored", BLOCK, OFFSET, doc="ghost: the row still holds what it held when its block was published"),
    ),
)
"""A state of the storage machine."""

HAPPENING = Vocabulary(
    sorts=tuple(STATE.sorts.values()),
    relations=(
        *EVENT.relations.values(),
        relation("names_work", WORK, doc="the operation speaks of this queued work"),
    ),
)
"""What happened in a step of the storage machine."""

GIVEN = Vocabulary(
    sorts=tuple(STATE.sorts.values()),
    relations=(
        relation("reserved", OFFSET, doc="rows of the block for which there is a position to write"),
        relation("copied", OFFSET, doc="rows of the block that the copy takes"),
        relation("held_back", BLOCK, doc="blocks that are released only with the copy's source"),
        relation("after", WORK, doc="queued work that streams and events order before the new work"),
        relation("to_read", BLOCK, OFFSET, doc="rows that the step reads"),
        relation("to_write", BLOCK, OFFSET, doc="rows that the step writes"),
        relation("in_order", doc="whatever uses those rows later is ordered behind the step"),
        relation("planned", KEY, doc="keys whose contents the new owner of the block will write there"),
        measure("tokens", doc="whole numbers that a caller chooses, in positions"),
        measure("drafts", doc="likewise"),
        measure("rows", doc="likewise"),
    ),
)
"""What the caller of an action chooses freely."""


def idle(s: State, work: Variable) -> Formula:
    """The name is not in use: nothing is queued or pinned under it."""
    return every(~s.pending(work), ~exists(lambda block: s.pinned(work, block)))


def first_empty(s: State, request: Variable, index: Variable) -> Formula:
    """The table of the request ends just before this index."""
    return forall(
        lambda other_index: exists(lambda block: s.table(request, other_index, block)) == (other_index < index)
    )


def last_used(s: State, request: Variable, index: Variable) -> Formula:
    """The last entry of the request's table stands at this index."""
    return every(
        exists(lambda block: s.table(request, index, block)),
        forall(lambda other_index, block: implies(s.table(request, other_index, block), ~(index < other_index))),
    )


def published(s: State, block: Variable) -> Formula:
    """The block can be hit under some key."""
    return exists(lambda key: s.key(block, key))


def give_back(s: State, t: State) -> State:
    """Blocks whose last owner of ``s`` is gone in ``t`` become cached if they can be hit, else free."""

    def dropped(block: Variable) -> Formula:
        return owned(s, block) & ~owned(t, block)

    return t.but(
        free=t.free.also(lambda block: dropped(block) & ~published(s, block)),
        cached=t.cached.also(lambda block: dropped(block) & published(s, block)),
    )


def forget(s: State, gone: Callable[[Variable], Formula]) -> State:
    """Work that is done or cancelled reads, writes and orders nothing any more.  Its pins stay."""
    return s.but(
        pending=s.pending.only(lambda work: ~gone(work)),
        copies=s.copies.only(lambda work: ~gone(work)),
        cancellable=s.cancellable.only(lambda work: ~gone(work)),
        reads=s.reads.only(lambda work, block, offset: ~gone(work)),
        writes=s.writes.only(lambda work, block, offset: ~gone(work)),
        reads_in_order=s.reads_in_order.only(lambda work: ~gone(work)),
        writes_in_order=s.writes_in_order.only(lambda work: ~gone(work)),
        on_behalf=s.on_behalf.only(lambda work, request: ~gone(work)),
        before=s.before.only(lambda work, other_work: ~gone(work) & ~gone(other_work)),
        fills=s.fills.only(lambda work, request, block, offset: ~gone(work)),
        delivers=s.delivers.only(lambda work, request, block, offset: ~gone(work)),
    )


def queue_copy(s: State, given: State, work: Variable, reader: Variable, source: Variable, target: Variable) -> State:
    """Queue the copy of rows ``given.copied`` from ``source`` to ``target`` for the request ``reader``.

    The declared disciplines decide what is pinned: the source unless releases are stream-ordered;
    the destination if that is declared; else the copy can be cancelled, or later users are ordered.
    """

    def brings(new_work: Variable, request: Variable, block: Variable, offset: Variable) -> Formula:
        return every(new_work == work, request == reader, block == target, given.copied(offset))

    return s.but(
        pending=s.pending.add(work),
        copies=s.copies.add(work),
        cancellable=s.cancellable.also(lambda new_work: (new_work == work) & s.destination_cancelled()),
        reads=s.reads.also(
            lambda new_work, block, offset: every(new_work == work, block == source, given.copied(offset))
        ),
        writes=s.writes.also(
            lambda new_work, block, offset: every(new_work == work, block == target, given.copied(offset))
        ),
        pinned=s.pinned.also(
            lambda new_work, block: every(
                new_work == work,
                ((block == source) & ~s.stream_ordered()) | ((block == target) & s.destination_pinned()),
            )
        ),
        reads_in_order=s.reads_in_order.also(lambda new_work: (new_work == work) & s.stream_ordered()),
        writes_in_order=s.writes_in_order.also(
            lambda new_work: every(new_work == work, ~s.destination_pinned(), ~s.destination_cancelled())
        ),
        on_behalf=s.on_behalf.add(work, reader),
        before=queued_behind(s, given, work),
        fills=s.fills.also(brings),
        delivers=s.delivers.also(brings),
    )


def queued_behind(s: State, given: State, work: Variable) -> Updated:
    """The order of queued work once ``work`` has joined it behind what was chosen."""
    return s.before.also(lambda old_work, new_work: every(new_work == work, s.pending(old_work), given.after(old_work)))


def rescue(s: State, request: Variable, gone: Callable[[Variable], Formula]) -> Updated:
    """The pins once the request gives these blocks up: a copy into one of them that is not submitted yet,
    and that others wait for who do not have the block, pins it."""
    return s.pinned.also(
        lambda work, block: every(
            s.cancellable(work),
            s.on_behalf(work, request),
            gone(block),
            exists(lambda offset: s.writes(work, block, offset)),
            ~exists(
                lambda other_request: every(
                    ~(other_request == request), s.on_behalf(work, other_request), has(s, other_request, block)
                )
            ),
        )
    )


def waits_for_conflicts(
    s: State,
    given: State,
    new_reads: Callable[[Variable, Variable], Formula],
    new_writes: Callable[[Variable, Variable], Formula],
) -> Formula:
    """New work is ordered behind queued work that touches one of its rows, unless both only read it."""
    return forall(
        lambda old_work, block, offset: implies(
            every(
                s.pending(old_work),
                (s.writes(old_work, block, offset) & (new_reads(block, offset) | new_writes(block, offset)))
                | (s.reads(old_work, block, offset) & new_writes(block, offset)),
            ),
            given.after(old_work),
        )
    )


def there(s: State, request: Variable, block: Variable, offset: Variable) -> Formula:
    """The row holds the data of the position that stands there now."""
    return every(s.filled(request, block, offset), ~s.blank(request, block, offset))


def arrives(s: State, given: State, request: Variable, block: Variable, offset: Variable) -> Formula:
    """The row holds the request's data, or queued work that the new work waits for brings it."""
    return either(
        there(s, request, block, offset),
        exists(
            lambda old_work: every(
                s.pending(old_work), s.delivers(old_work, request, block, offset), given.after(old_work)
            )
        ),
    )


def steps_let_go(s: State, request: Variable, gone: Callable[[Variable], Formula]) -> Formula:
    """The request may give these blocks up although its queued steps touch them: whoever takes them
    later is ordered behind those steps, or another request that the step works for keeps the block."""

    def kept(work: Variable, block: Variable) -> Formula:
        return exists(
            lambda other_request: every(
                ~(other_request == request), s.on_behalf(work, other_request), has(s, other_request, block)
            )
        )

    return forall(
        lambda work, block, offset: implies(
            every(s.pending(work), ~s.copies(work), s.on_behalf(work, request), gone(block)),
            every(
                implies(s.reads(work, block, offset), s.reads_in_order(work) | kept(work, block)),
                implies(s.writes(work, block, offset), s.writes_in_order(work) | kept(work, block)),
            ),
        )
    )
