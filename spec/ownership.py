"""Who owns which block: the actions that move ownership, for requests, copies, holders and the cache.

Each action is one English sentence, what it requires, and the next state.  An action is finer than
an operation: ``admit`` of three blocks is ``admit``, ``grow``, ``grow`` (``README.md`` has the table).

What the rows of a block mean changes with its owner, so these actions also say what becomes of
``uses``, ``may_write``, ``committed``, ``filled``, ``blank``, ``fills``, ``delivers``; ``rows.py`` has the actions that
change only those.  A reading that does not care about rows leaves those relations out.
"""

from __future__ import annotations

from .language import Formula, State, Updated, Variable, every, exists, forall, implies
from .rules import has, in_table
from .steps import Action, action, happens, require
from .storage import (
    arrives,
    first_empty,
    forget,
    give_back,
    idle,
    last_used,
    queue_copy,
    rescue,
    steps_let_go,
    waits_for_conflicts,
)

# -------------------------------------------------------------------------- admit, grow, shrink, slots


def take(s: State, given: State, request: Variable, index: Variable, block: Variable) -> State:
    """The free block stands in the table; its reserved rows may be written and hold nothing yet."""

    def here(other_request: Variable, other_block: Variable) -> Formula:
        return (other_request == request) & (other_block == block)

    return s.but(
        table=s.table.add(request, index, block),
        free=s.free.remove(block),
        uses=s.uses.also(lambda r_request, b_block, offset: here(r_request, b_block) & given.reserved(offset)),
        may_write=s.may_write.also(
            lambda r_request, b_block, offset: here(r_request, b_block) & given.reserved(offset)
        ),
        blank=s.blank.also(lambda r_request, b_block, offset: here(r_request, b_block)),
        delivers=s.delivers.remove(..., request, block, ...),
        matches=replanned(s, given, block),
    )


def replanned(s: State, given: State, block: Variable) -> Updated:
    """The new owner of a block decides what it will hold."""
    return s.matches.only(lambda other_block, key: ~(other_block == block)).also(
        lambda other_block, key: (other_block == block) & given.planned(key)
    )


@action
def admit(s: State, given: State, request: Variable, index: Variable, block: Variable) -> State:
    """A request that owns nothing takes a free block for the first index of its table."""
    happens(names=request, admits=True)
    require(
        ~s.live(request),
        s.free(block),
        ~s.exclusive(block),
        first_empty(s, request, index),
    )
    return take(s, given, request, index, block).but(live=s.live.add(request), quiescent=s.quiescent.remove())


@action
def grow(s: State, given: State, request: Variable, index: Variable, block: Variable) -> State:
    """A live request takes a free block for the next index of its table."""
    happens(names=request)
    require(
        s.live(request),
        ~s.borrows(request),
        s.free(block),
        ~s.exclusive(block),
        first_empty(s, request, index),
    )
    return take(s, given, request, index, block)


@action
def shrink(s: State, request: Variable, index: Variable, block: Variable) -> State:
    """A request gives back the last block of its table, in which nothing is committed; what its queued steps
    still touch there is taken only in order behind them."""
    happens(names=request)
    require(
        ~s.borrows(request),
        s.table(request, index, block),
        last_used(s, request, index),
        forall(lambda offset: ~s.committed(request, block, offset)),
        steps_let_go(s, request, lambda b_block: b_block == block),
    )
    t = s.but(
        pinned=rescue(s, request, lambda b_block: b_block == block),
        table=s.table.remove(request, index, block),
        uses=s.uses.remove(request, block, ...),
        may_write=s.may_write.remove(request, block, ...),
    )
    return give_back(s, t)


@action
def take_slot(s: State, request: Variable, block: Variable) -> State:
    """A live request without a state slot takes a free one; every row of it is its own to write."""
    happens(names=request)
    require(
        s.live(request),
        ~s.borrows(request),
        ~exists(lambda other_block: s.slot(request, other_block)),
        s.free(block),
        s.exclusive(block),
    )

    def here(other_request: Variable, other_block: Variable) -> Formula:
        return (other_request == request) & (other_block == block)

    return s.but(
        slot=s.slot.add(request, block),
        free=s.free.remove(block),
        uses=s.uses.also(lambda r_request, b_block, offset: here(r_request, b_block)),
        may_write=s.may_write.also(lambda r_request, b_block, offset: here(r_request, b_block)),
        blank=s.blank.also(lambda r_request, b_block, offset: here(r_request, b_block)),
        delivers=s.delivers.remove(..., request, block, ...),
    )


# ------------------------------------------------------------------------------------ fork a prefix


def continues(s: State, parent: Variable, child: Variable) -> State:
    """All that is or will be there for the parent is there for the child: rows, and queued work."""
    return s.but(
        live=s.live.add(child),
        on_behalf=s.on_behalf.also(lambda work, request: (request == child) & s.on_behalf(work, parent)),
        filled=s.filled.remove(child, ..., ...).also(
            lambda request, block, offset: (request == child) & s.filled(parent, block, offset)
        ),
        fills=s.fills.also(
            lambda work, request, block, offset: (request == child) & s.fills(work, parent, block, offset)
        ),
        delivers=s.delivers.also(
            lambda work, request, block, offset: (request == child) & s.delivers(work, parent, block, offset)
        ),
        blank=s.blank.remove(child, ..., ...).also(
            lambda request, block, offset: (request == child) & s.blank(parent, block, offset)
        ),
    )


def below(s: State, request: Variable, index: Variable, block: Variable) -> Formula:
    """The block stands in the table before this index."""
    return exists(lambda other_index: (other_index < index) & s.table(request, other_index, block))


def copied_tail(
    s: State,
    t: State,
    given: State,
    reader: Variable,
    source: Variable,
    target: Variable,
    work: Variable,
) -> State:
    """The reader's tail is a fresh block: a queued copy brings its committed rows, the rest may be written."""

    def here(other_request: Variable, other_block: Variable) -> Formula:
        return (other_request == reader) & (other_block == target)

    t = t.but(
        free=t.free.remove(target),
        uses=t.uses.also(
            lambda request, block, offset: here(request, block) & (given.copied(offset) | given.reserved(offset))
        ),
        may_write=t.may_write.also(
            lambda request, block, offset: every(here(request, block), given.reserved(offset), ~given.copied(offset))
        ),
        committed=t.committed.also(lambda request, block, offset: here(request, block) & given.copied(offset)),
        blank=t.blank.also(lambda request, block, offset: here(request, block)),
        delivers=t.delivers.remove(..., reader, target, ...),
        matches=replanned(s, given, target),
    )
    return queue_copy(t, given, work, reader, source, target)


def copy_is_ordered(s: State, given: State, source: Variable, target: Variable) -> Formula:
    """The copy waits for queued work that writes its source rows or touches its target rows."""
    return waits_for_conflicts(
        s,
        given,
        lambda block, offset: (block == source) & given.copied(offset),
        lambda block, offset: (block == target) & given.copied(offset),
    )


@action
def fork(
    s: State,
    given: State,
    parent_request: Variable,
    child_request: Variable,
    index: Variable,
    block: Variable,
    new_block: Variable,
    work: Variable,
) -> State:
    """A child shares the parent's blocks before an index; the block at the index is copied into a fresh one.

    The chapter copies only a partly filled tail; DeepInfer's decode path copies the last processed
    block even when it is full.  Either is this action: rows that are shared are read, never written.
    """
    happens(names=(parent_request, child_request), names_work=work)
    require(
        s.live(parent_request),
        ~s.live(child_request),
        s.table(parent_request, index, block),
        s.free(new_block),
        ~s.exclusive(new_block),
        idle(s, work),
        forall(lambda offset: implies(given.copied(offset), s.committed(parent_request, block, offset))),
        copy_is_ordered(s, given, block, new_block),
    )

    def shared(b_block: Variable) -> Formula:
        return below(s, parent_request, index, b_block)

    t = continues(s, parent_request, child_request)
    t = t.but(
        table=s.table.also(
            lambda request, i_index, b_block: every(
                request == child_request,
                ((i_index < index) & s.table(parent_request, i_index, b_block))
                | ((i_index == index) & (b_block == new_block)),
            )
        ),
        uses=s.uses.also(
            lambda request, b_block, offset: every(
                request == child_request, shared(b_block), s.committed(parent_request, b_block, offset)
            )
        ),
        committed=s.committed.also(
            lambda request, b_block, offset: every(
                request == child_request, shared(b_block), s.committed(parent_request, b_block, offset)
            )
        ),
    )
    return copied_tail(s, t, given, child_request, block, new_block, work)


@action
def fork_at_boundary(s: State, parent_request: Variable, child_request: Variable, index: Variable) -> State:
    """A child continues at a block boundary: it shares the blocks before the index, and nothing is copied."""
    happens(names=(parent_request, child_request))
    require(
        s.live(parent_request),
        ~s.live(child_request),
        exists(lambda block: below(s, parent_request, index, block)),
    )

    def shared(b_block: Variable) -> Formula:
        return below(s, parent_request, index, b_block)

    return continues(s, parent_request, child_request).but(
        table=s.table.also(
            lambda request, i_index, b_block: every(
                request == child_request, i_index < index, s.table(parent_request, i_index, b_block)
            )
        ),
        uses=s.uses.also(
            lambda request, b_block, offset: every(
                request == child_request, shared(b_block), s.committed(parent_request, b_block, offset)
            )
        ),
        committed=s.committed.also(
            lambda request, b_block, offset: every(
                request == child_request, shared(b_block), s.committed(parent_request, b_block, offset)
            )
        ),
    )


@action
def borrow(s: State, parent_request: Variable, child_request: Variable) -> State:
    """A fork not yet admitted owns all that the parent owns, state slot included, and writes nothing
    (chapter, listing 4.7)."""
    happens(names=(parent_request, child_request))
    require(s.live(parent_request), ~s.live(child_request))
    return continues(s, parent_request, child_request).but(
        borrows=s.borrows.add(child_request),
        table=s.table.also(
            lambda request, index, block: (request == child_request) & s.table(parent_request, index, block)
        ),
        slot=s.slot.also(lambda request, block: (request == child_request) & s.slot(parent_request, block)),
        uses=s.uses.also(
            lambda request, block, offset: (request == child_request) & s.committed(parent_request, block, offset)
        ),
        committed=s.committed.also(
            lambda request, block, offset: (request == child_request) & s.committed(parent_request, block, offset)
        ),
    )


@action
def clone_slot(
    s: State, given: State, request: Variable, block: Variable, new_block: Variable, work: Variable
) -> State:
    """A borrower gets a state slot of its own; a queued copy fills it, and the old slot stays pinned
    until that copy is done (chapter, listing 4.8)."""
    happens(names=request, names_work=work)
    require(
        s.borrows(request),
        s.slot(request, block),
        s.free(new_block),
        s.exclusive(new_block),
        idle(s, work),
        forall(lambda offset: implies(given.copied(offset), arrives(s, given, request, block, offset))),
        copy_is_ordered(s, given, block, new_block),
        steps_let_go(s, request, lambda b_block: b_block == block),
    )

    t = s.but(
        slot=s.slot.remove(request, block).add(request, new_block),
        free=s.free.remove(new_block),
        pinned=rescue(s, request, lambda b_block: b_block == block),
        blank=s.blank.also(lambda r_request, b_block, offset: (r_request == request) & (b_block == new_block)),
        delivers=s.delivers.remove(..., request, new_block, ...),
    )
    return give_back(s, queue_copy(t, given, work, request, block, new_block))


def own_slot(s: State, request: Variable) -> Formula:
    """Nobody else has the state slot of the request, if it has one."""
    return forall(
        lambda other_request, block: implies(
            s.slot(request, block) & s.slot(other_request, block), other_request == request
        )
    )


def beyond(s: State, request: Variable, index: Variable, block: Variable) -> Formula:
    """The block stands in the table, but not before this index."""
    return every(in_table(s, request, block), ~below(s, request, index, block))


def admitted(s: State, request: Variable, index: Variable) -> State:
    """The borrower keeps the blocks before the index, owns its slot alone, and writes from now on."""

    def stays(other_request: Variable, block: Variable) -> Formula:
        return ~((other_request == request) & beyond(s, request, index, block))

    return s.but(
        pinned=rescue(s, request, lambda block: beyond(s, request, index, block)),
        borrows=s.borrows.remove(request),
        table=s.table.only(lambda r_request, i_index, block: ~(r_request == request) | (i_index < index)),
        uses=s.uses.only(lambda r_request, block, offset: stays(r_request, block)).also(
            lambda r_request, block, offset: (r_request == request) & s.slot(request, block)
        ),
        committed=s.committed.only(lambda r_request, block, offset: stays(r_request, block)),
        may_write=s.may_write.also(lambda r_request, block, offset: (r_request == request) & s.slot(request, block)),
    )


@action
def privatise(
    s: State,
    given: State,
    request: Variable,
    index: Variable,
    block: Variable,
    new_block: Variable,
    work: Variable,
) -> State:
    """A borrower is admitted: the block at the index is copied into a fresh one; later blocks go back at once
    (chapter) or with the copy's source (DeepInfer, listing 4.8)."""
    happens(names=request, names_work=work)
    require(
        s.borrows(request),
        s.table(request, index, block),
        s.free(new_block),
        ~s.exclusive(new_block),
        idle(s, work),
        own_slot(s, request),
        forall(lambda offset: implies(given.copied(offset), s.committed(request, block, offset))),
        copy_is_ordered(s, given, block, new_block),
        steps_let_go(s, request, lambda b_block: beyond(s, request, index, b_block)),
    )
    t = admitted(s, request, index)
    t = t.but(table=t.table.add(request, index, new_block))
    t = copied_tail(s, t, given, request, block, new_block, work)
    t = t.but(
        pinned=t.pinned.also(
            lambda w_work, b_block: every(
                w_work == work, beyond(s, request, index, b_block), given.held_back(b_block), ~s.stream_ordered()
            )
        )
    )
    return give_back(s, t)


@action
def privatise_at_boundary(s: State, request: Variable, index: Variable) -> State:
    """A borrower is admitted at a block boundary: it keeps the blocks before the index, and nothing is copied."""
    happens(names=request)
    require(
        s.borrows(request),
        exists(lambda block: below(s, request, index, block)),
        own_slot(s, request),
        steps_let_go(s, request, lambda block: beyond(s, request, index, block)),
    )
    return give_back(s, admitted(s, request, index))


@action
def copy_on_write(
    s: State,
    given: State,
    request: Variable,
    index: Variable,
    block: Variable,
    new_block: Variable,
    work: Variable,
) -> State:
    """A request that would write into a block that it shares gets a private copy of it first."""
    happens(names=request, names_work=work)
    require(
        s.live(request),
        ~s.borrows(request),
        s.table(request, index, block),
        s.free(new_block),
        ~s.exclusive(new_block),
        idle(s, work),
        forall(lambda offset: given.copied(offset) == s.committed(request, block, offset)),
        copy_is_ordered(s, given, block, new_block),
        steps_let_go(s, request, lambda b_block: b_block == block),
    )
    t = s.but(
        pinned=rescue(s, request, lambda b_block: b_block == block),
        table=s.table.remove(request, index, block).add(request, index, new_block),
        uses=s.uses.remove(request, block, ...),
        may_write=s.may_write.remove(request, block, ...),
        committed=s.committed.remove(request, block, ...),
    )
    return give_back(s, copied_tail(s, t, given, request, block, new_block, work))


# ------------------------------------------------------------------- release: requests, copies, holders


def leave(s: State, request: Variable) -> State:
    """The request owns nothing any more, and nothing queued is done for it.

    A copy into its blocks that is not submitted yet, and that nobody else waits for, is cancelled;
    if somebody else waits for it, its destination is pinned from now on.
    """

    def wanted(work: Variable) -> Formula:
        return exists(lambda other_request: ~(other_request == request) & s.on_behalf(work, other_request))

    def cancelled(work: Variable) -> Formula:
        return every(s.cancellable(work), s.on_behalf(work, request), ~wanted(work))

    t = forget(s, cancelled)
    t = t.but(
        pinned=rescue(s, request, lambda block: has(s, request, block)).only(lambda work, block: ~cancelled(work)),
        on_behalf=t.on_behalf.remove(..., request),
        fills=t.fills.remove(..., request, ..., ...),
        delivers=t.delivers.remove(..., request, ..., ...),
        blank=s.blank.remove(request, ..., ...),
        live=s.live.remove(request),
        borrows=s.borrows.remove(request),
        table=s.table.remove(request, ..., ...),
        slot=s.slot.remove(request, ...),
        uses=s.uses.remove(request, ..., ...),
        may_write=s.may_write.remove(request, ..., ...),
        committed=s.committed.remove(request, ..., ...),
    )
    return give_back(s, t)


@action
def finish(s: State, request: Variable) -> State:
    """A request whose steps were observed to be done gives back all that it owns."""
    happens(names=request)
    require(
        s.live(request),
        ~exists(lambda work: every(s.pending(work), ~s.copies(work), s.on_behalf(work, request))),
    )
    return leave(s, request)


@action
def preempt(s: State, request: Variable) -> State:
    """A request is stopped while its steps are queued; what they touch is taken only in order behind them."""
    happens(names=request)
    require(s.live(request), steps_let_go(s, request, lambda block: has(s, request, block)))
    return leave(s, request)


@action
def release_pins(s: State, work: Variable) -> State:
    """Deferred release: the host has observed that the copy is done, and drops what was pinned for it."""
    happens(names_work=work)
    require(~s.pending(work), exists(lambda block: s.pinned(work, block)))
    return give_back(s, s.but(pinned=s.pinned.remove(work, ...)))


@action
def pin(s: State, request: Variable, holder: Variable) -> State:
    """A named holder becomes one more owner of every block in a request's table."""
    happens(names=request, names_holder=holder, pins=holder)
    require(s.live(request), ~s.external(holder), ~exists(lambda block: s.held(holder, block)))
    return s.but(
        external=s.external.add(holder),
        held=s.held.also(lambda h_holder, block: (h_holder == holder) & in_table(s, request, block)),
    )


@action
def unpin(s: State, holder: Variable) -> State:
    """A holder gives up all that it holds (a pin is dropped, a connector acknowledges)."""
    happens(names_holder=holder)
    require(s.external(holder))
    t = s.but(external=s.external.remove(holder), held=s.held.remove(holder, ...))
    return give_back(s, t)


# ----------------------------------------------------------------------------------- the prefix cache


@action
def publish(s: State, request: Variable, block: Variable, key: Variable) -> State:
    """A block all of whose rows are committed, filled and final can be hit under the key of its contents."""
    happens(names=request)
    require(
        in_table(s, request, block),
        forall(lambda offset: s.committed(request, block, offset) & s.filled(request, block, offset)),
        forall(lambda work, offset: ~(s.pending(work) & s.writes(work, block, offset))),
        s.matches(block, key),
    )
    return s.but(
        key=s.key.add(block, key),
        stored=s.stored.also(lambda b_block, offset: (b_block == block) & s.filled(request, block, offset)),
    )


@action
def hit(s: State, request: Variable, index: Variable, block: Variable, key: Variable) -> State:
    """A request that asks for a key is given the block that holds its contents, as the next of its table."""
    happens(names=request)
    require(
        ~s.borrows(request),
        s.key(block, key),
        first_empty(s, request, index),
        ~in_table(s, request, block),
    )

    def here(other_request: Variable, other_block: Variable) -> Formula:
        return (other_request == request) & (other_block == block)

    return s.but(
        live=s.live.add(request),
        quiescent=s.quiescent.remove(),
        table=s.table.add(request, index, block),
        cached=s.cached.remove(block),
        uses=s.uses.also(lambda r_request, b_block, offset: here(r_request, b_block)),
        committed=s.committed.also(lambda r_request, b_block, offset: here(r_request, b_block)),
        filled=s.filled.remove(request, block, ...).also(
            lambda r_request, b_block, offset: here(r_request, b_block) & s.stored(b_block, offset)
        ),
        blank=s.blank.remove(request, block, ...),
    )


@action
def evict(s: State, block: Variable) -> State:
    """A cached block becomes free; its keys are withdrawn first."""
    require(s.cached(block))
    return s.but(cached=s.cached.remove(block), free=s.free.add(block), key=s.key.remove(block, ...))


# ------------------------------------------------------------------------------- what changes nothing


@action
def refuse(s: State, request: Variable) -> State:
    """A call is answered LATER or NEVER, or is a misuse that is refused: nothing changes."""
    happens(names=request, refused=True, misused=True)
    return s


@action
def rest(s: State) -> State:
    """Every request, pin, holder and copy was ended."""
    require(
        ~exists(lambda request: s.live(request)),
        ~exists(lambda work: s.pending(work)),
        ~exists(lambda work, block: s.pinned(work, block)),
        ~exists(lambda holder, block: s.held(holder, block)),
    )
    return s.but(quiescent=s.quiescent.add())


OWNERSHIP: dict[str, Action] = {
    made.name: made
    for made in (
        admit,
        grow,
        shrink,
        take_slot,
        fork,
        fork_at_boundary,
        borrow,
        clone_slot,
        privatise,
        privatise_at_boundary,
        copy_on_write,
        finish,
        preempt,
        release_pins,
        pin,
        unpin,
        publish,
        hit,
        evict,
        refuse,
        rest,
    )
}
"""The actions of this file by name, in reading order."""
