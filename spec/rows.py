"""What each row holds and who may read it: the actions that change only that.

A row is *reserved* (``uses``), may be written until it is *committed*, and is *filled* once the work
that brings its contents is done.  The committed prefix of section 4.5 is ``committed``; what a queued
step may read (current-step visibility) is what it uses and what arrives before it or is written by it.

Contents are put in place when work is observed to be done.  A device may do it any time earlier;
rules 4 and 5, which this text keeps, say that nobody could tell the difference.
"""

from __future__ import annotations

from .language import Formula, State, Variable, either, every, exists, forall, implies
from .steps import Action, action, happens, require
from .storage import arrives, forget, idle, queued_behind, there, waits_for_conflicts


@action
def reserve(s: State, request: Variable, block: Variable, offset: Variable) -> State:
    """A row of a block that the request has is reserved for a position to come, if nobody else uses it."""
    happens(names=request)
    require(
        ~s.borrows(request),
        exists(lambda index: s.table(request, index, block)),
        ~s.uses(request, block, offset),
        ~exists(lambda key: s.key(block, key)),
        forall(lambda other_request: ~s.uses(other_request, block, offset)),
        forall(
            lambda work: implies(
                s.pending(work),
                every(
                    implies(s.reads(work, block, offset), s.reads_in_order(work) | s.on_behalf(work, request)),
                    implies(s.writes(work, block, offset), s.writes_in_order(work)),
                ),
            )
        ),
    )
    return s.but(
        uses=s.uses.add(request, block, offset),
        may_write=s.may_write.add(request, block, offset),
        blank=s.blank.add(request, block, offset),
        delivers=s.delivers.remove(..., request, block, offset),
    )


@action
def submit(s: State, given: State, request: Variable, work: Variable) -> State:
    """A step joins a stream: it reads rows that the request uses and that hold their data by then, and
    writes rows that are the request's to write."""
    happens(names=request, names_work=work)
    require(
        s.live(request),
        ~s.borrows(request),
        idle(s, work),
        forall(
            lambda block, offset: implies(
                given.to_read(block, offset),
                s.uses(request, block, offset)
                & (given.to_write(block, offset) | arrives(s, given, request, block, offset)),
            )
        ),
        forall(lambda block, offset: implies(given.to_write(block, offset), s.may_write(request, block, offset))),
        forall(
            lambda other_request, block, offset: implies(
                every(given.to_write(block, offset), s.exclusive(block), s.slot(other_request, block)),
                other_request == request,
            )
        ),
        waits_for_conflicts(s, given, given.to_read, given.to_write),
    )

    def brings(w_work: Variable, r_request: Variable, block: Variable, offset: Variable) -> Formula:
        return every(w_work == work, r_request == request, given.to_write(block, offset))

    return s.but(
        pending=s.pending.add(work),
        reads=s.reads.also(lambda w_work, block, offset: (w_work == work) & given.to_read(block, offset)),
        writes=s.writes.also(lambda w_work, block, offset: (w_work == work) & given.to_write(block, offset)),
        reads_in_order=s.reads_in_order.also(lambda w_work: (w_work == work) & given.in_order()),
        writes_in_order=s.writes_in_order.also(lambda w_work: (w_work == work) & given.in_order()),
        on_behalf=s.on_behalf.add(work, request),
        before=queued_behind(s, given, work),
        fills=s.fills.also(brings),
        delivers=s.delivers.also(brings),
    )


@action
def submit_copy(s: State, given: State, work: Variable) -> State:
    """A copy leaves the host's list for a stream: it cannot be cancelled any more, so from now on its
    destination is pinned, or whatever uses it later is ordered behind the copy."""
    happens(names_work=work)
    require(s.cancellable(work))
    return s.but(
        cancellable=s.cancellable.remove(work),
        writes_in_order=s.writes_in_order.also(lambda w_work: (w_work == work) & given.in_order()),
        pinned=s.pinned.also(
            lambda w_work, block: every(
                w_work == work, ~given.in_order(), exists(lambda offset: s.writes(work, block, offset))
            )
        ),
    )


@action
def complete(s: State, work: Variable) -> State:
    """The host observes that queued work is done, after everything that it was ordered behind.

    A row that it wrote holds the data of the request that it was written for, provided all that the
    work read was right; for everybody else the row holds something else now.
    """
    happens(names_work=work)
    require(
        s.pending(work),
        ~s.cancellable(work),
        ~exists(lambda other_work: s.pending(other_work) & s.before(other_work, work)),
    )

    def right(request: Variable, block: Variable, offset: Variable) -> Formula:
        return every(
            s.fills(work, request, block, offset),
            forall(
                lambda r_block, r_offset: implies(
                    s.reads(work, r_block, r_offset),
                    s.writes(work, r_block, r_offset) | s.filled(request, r_block, r_offset),
                )
            ),
        )

    t = forget(s, lambda other_work: other_work == work)
    return t.but(
        filled=s.filled.only(lambda request, block, offset: ~s.writes(work, block, offset)).also(
            lambda request, block, offset: s.writes(work, block, offset) & right(request, block, offset)
        ),
        blank=s.blank.only(lambda request, block, offset: ~s.delivers(work, request, block, offset)),
        stored=s.stored.only(lambda block, offset: ~s.writes(work, block, offset)),
    )


@action
def accept(s: State, request: Variable, block: Variable, offset: Variable) -> State:
    """A row that a step of the request wrote or will have written joins the committed prefix."""
    happens(names=request)
    require(
        ~s.exclusive(block),
        s.may_write(request, block, offset),
        either(
            there(s, request, block, offset),
            exists(lambda work: s.pending(work) & s.delivers(work, request, block, offset)),
        ),
    )
    return s.but(
        committed=s.committed.add(request, block, offset),
        may_write=s.may_write.remove(request, block, offset),
    )


@action
def reject(s: State, request: Variable, block: Variable, offset: Variable) -> State:
    """A rejected draft: its bytes stay, but they are not what the request must find there any more."""
    happens(names=request)
    require(s.may_write(request, block, offset), ~s.exclusive(block))
    return s.but(
        blank=s.blank.add(request, block, offset),
        delivers=s.delivers.remove(..., request, block, offset),
    )


ROWS: dict[str, Action] = {made.name: made for made in (reserve, submit, submit_copy, complete, accept, reject)}
"""The actions of this file by name, in reading order."""
