"""What else holds in every reachable state of the storage machine.

The rule book alone is not inductive: a state that keeps all rules may have a successor that does
not.  These sentences close the gap; each is a theorem of its own, proved with the rules.
"""

from __future__ import annotations

from .language import Formula, State, every, exists, forall, implies
from .rules import has, in_table, issuable, owned
from .steps import Theorem, broken_says, theorem
from .storage import published, there

# ------------------------------------------------------------------------------------ tables and slots


@theorem
def one_block_per_index(s: State) -> Formula:
    """At an index of a table stands at most one block."""
    return forall(
        lambda request, index, block, other_block: implies(
            s.table(request, index, block) & s.table(request, index, other_block), block == other_block
        )
    )


@theorem
def one_index_per_block(s: State) -> Formula:
    """A block stands at most once in a table."""
    return forall(
        lambda request, index, other_index, block: implies(
            s.table(request, index, block) & s.table(request, other_index, block), index == other_index
        )
    )


@theorem
def tables_have_no_holes(s: State) -> Formula:
    """Before an index that is used, every index is used."""
    return forall(
        lambda request, index, other_index, block: implies(
            s.table(request, index, block) & (other_index < index),
            exists(lambda other_block: s.table(request, other_index, other_block)),
        )
    )


@theorem
def only_live_requests_own(s: State) -> Formula:
    """What stands in a table or slot belongs to a live request, and so does queued work."""
    return every(
        forall(lambda request, block: implies(has(s, request, block), s.live(request))),
        forall(lambda work, request: implies(s.on_behalf(work, request), s.live(request))),
        forall(lambda request: implies(s.borrows(request), s.live(request))),
    )


@theorem
def slots_are_exclusive(s: State) -> Formula:
    """State slots are exclusive, blocks of tables are not, and a request has at most one slot."""
    return every(
        forall(lambda request, block: implies(s.slot(request, block), s.exclusive(block))),
        forall(lambda request, block: implies(in_table(s, request, block), ~s.exclusive(block))),
        forall(
            lambda request, block, other_block: implies(
                s.slot(request, block) & s.slot(request, other_block), block == other_block
            )
        ),
    )


@theorem
def only_usable_ids_move(s: State) -> Formula:
    """Reserved ids are in no table, slot, pin or hold, and nowhere free or cached."""
    return forall(lambda block: implies(owned(s, block) | issuable(s, block), s.usable(block)))


@theorem
def free_is_not_cached(s: State) -> Formula:
    """A free block cannot be hit; a cached one can, and is not free."""
    return every(
        forall(lambda block, key: implies(s.free(block), ~s.key(block, key))),
        forall(lambda block: implies(s.cached(block), published(s, block) & ~s.free(block))),
    )


@theorem
def holders_are_external(s: State) -> Formula:
    """A holder holds something only between the operations that name it."""
    return forall(lambda holder, block: implies(s.held(holder, block), s.external(holder)))


@theorem
def rest_is_complete(s: State) -> Formula:
    """At quiescence there is no request, no work, no pin and no holder."""
    return implies(
        s.quiescent(),
        every(
            forall(lambda request: ~s.live(request)),
            forall(lambda work: ~s.pending(work)),
            forall(lambda work, block: ~s.pinned(work, block)),
            forall(lambda holder, block: ~s.held(holder, block)),
        ),
    )


# ------------------------------------------------------------------------------------------------ rows


@theorem
def rows_lie_in_owned_blocks(s: State) -> Formula:
    """A request uses rows of blocks that it owns only."""
    return forall(lambda request, block, offset: implies(s.uses(request, block, offset), has(s, request, block)))


@theorem
def a_row_is_committed_or_open(s: State) -> Formula:
    """A row that is used is committed or may be written, never both; a borrower writes nothing."""
    return every(
        forall(
            lambda request, block, offset: implies(
                s.may_write(request, block, offset),
                every(s.uses(request, block, offset), ~s.committed(request, block, offset), ~s.borrows(request)),
            )
        ),
        forall(
            lambda request, block, offset: implies(
                s.committed(request, block, offset), s.uses(request, block, offset) & ~s.exclusive(block)
            )
        ),
        forall(
            lambda request, block, offset: implies(
                s.borrows(request) & s.uses(request, block, offset), s.committed(request, block, offset)
            )
        ),
    )


@theorem
def published_blocks_are_final(s: State) -> Formula:
    """A block that can be hit is usable, no slot, still holds what was published, and nobody writes it."""
    return forall(
        lambda block, key: implies(
            s.key(block, key),
            every(
                ~s.exclusive(block),
                forall(lambda offset: s.stored(block, offset)),
                forall(lambda request, offset: ~s.may_write(request, block, offset)),
                forall(lambda work, offset: ~(s.pending(work) & s.writes(work, block, offset))),
            ),
        )
    )


# ----------------------------------------------------------------------------------------- queued work


@theorem
def finished_work_touches_nothing(s: State) -> Formula:
    """Only queued work reads, writes, orders and is done for somebody."""
    return every(
        forall(lambda work, block, offset: implies(s.reads(work, block, offset), s.pending(work))),
        forall(lambda work, block, offset: implies(s.writes(work, block, offset), s.pending(work))),
        forall(lambda work, request: implies(s.on_behalf(work, request), s.pending(work))),
        forall(lambda work, other_work: implies(s.before(work, other_work), s.pending(work) & s.pending(other_work))),
        forall(lambda work: implies(s.copies(work), s.pending(work))),
        forall(
            lambda work: implies(s.cancellable(work), every(s.pending(work), s.copies(work), ~s.writes_in_order(work)))
        ),
        forall(lambda work: implies(s.reads_in_order(work) | s.writes_in_order(work), s.pending(work))),
    )


@theorem
def order_goes_one_way(s: State) -> Formula:
    """No two queued pieces of work wait for each other, and none for itself."""
    return forall(lambda work, other_work: ~(s.before(work, other_work) & s.before(other_work, work)))


@theorem
def conflicts_are_ordered(s: State) -> Formula:
    """Of two pieces of queued work that touch one row, and not only read it, one comes before the other."""
    return forall(
        lambda work, other_work, block, offset: implies(
            every(
                s.writes(work, block, offset),
                s.reads(other_work, block, offset) | s.writes(other_work, block, offset),
                ~(work == other_work),
            ),
            s.before(work, other_work) | s.before(other_work, work),
        )
    )


@theorem
def work_fills_what_it_writes(s: State) -> Formula:
    """Work fills rows that it writes, for requests that it is done for."""
    return forall(
        lambda work, request, block, offset: implies(
            s.fills(work, request, block, offset),
            every(s.pending(work), s.writes(work, block, offset), s.on_behalf(work, request)),
        )
    ) & forall(
        lambda work, request, block, offset: implies(
            s.delivers(work, request, block, offset), s.fills(work, request, block, offset)
        )
    )


@broken_says("queued {work} reads block {block}, which is not pinned for it, and nothing orders later writers")
@theorem
def sources_of_copies_are_kept(s: State) -> Formula:
    """What a queued copy reads is pinned, or later writers are ordered behind the copy."""
    return forall(
        lambda work, block, offset: implies(
            every(s.copies(work), s.reads(work, block, offset)), s.pinned(work, block) | s.reads_in_order(work)
        )
    )


@broken_says("queued {work} writes block {block}, which is not pinned for it, and nothing orders later users")
@theorem
def destinations_of_copies_are_kept(s: State) -> Formula:
    """What a queued copy writes is pinned, or later users are ordered, or the copy can be cancelled with
    the requests that it is done for."""
    return forall(
        lambda work, block, offset: implies(
            every(s.copies(work), s.writes(work, block, offset)),
            s.pinned(work, block)
            | s.writes_in_order(work)
            | (s.cancellable(work) & exists(lambda request: s.on_behalf(work, request) & has(s, request, block))),
        )
    )


@broken_says("queued {work} will write block {block}, which {request} has now")
@theorem
def destinations_stay_home(s: State) -> Formula:
    """Who has the destination of a queued copy is one that the copy is done for, or is ordered behind it."""
    return forall(
        lambda work, request, block, offset: implies(
            every(s.pending(work), s.copies(work), s.writes(work, block, offset), has(s, request, block)),
            s.on_behalf(work, request) | s.writes_in_order(work),
        )
    )


@theorem
def steps_touch_what_is_owned(s: State) -> Formula:
    """What a queued step touches belongs to a request that it is done for, or later users are ordered."""
    return every(
        forall(
            lambda work, block, offset: implies(
                every(s.pending(work), ~s.copies(work), s.reads(work, block, offset)),
                s.reads_in_order(work) | exists(lambda request: s.on_behalf(work, request) & has(s, request, block)),
            )
        ),
        forall(
            lambda work, block, offset: implies(
                every(s.pending(work), ~s.copies(work), s.writes(work, block, offset)),
                s.writes_in_order(work) | exists(lambda request: s.on_behalf(work, request) & has(s, request, block)),
            )
        ),
    )


# ---------------------------------------------------------------------------------------- what is there


@theorem
def committed_rows_arrive(s: State) -> Formula:
    """A committed row holds the request's data, or queued work brings it."""
    return forall(
        lambda request, block, offset: implies(
            s.committed(request, block, offset),
            there(s, request, block, offset)
            | exists(lambda work: s.pending(work) & s.delivers(work, request, block, offset)),
        )
    )


@theorem
def reads_find_their_data(s: State) -> Formula:
    """What queued work reads for a request is there, or is brought by work before it, or by itself."""
    return forall(
        lambda work, request, block, offset: implies(
            every(s.pending(work), s.on_behalf(work, request), s.reads(work, block, offset)),
            s.writes(work, block, offset)
            | s.filled(request, block, offset)
            | exists(
                lambda other_work: every(
                    s.pending(other_work), s.fills(other_work, request, block, offset), s.before(other_work, work)
                )
            ),
        )
    )


@theorem
def written_rows_stay_filled(s: State) -> Formula:
    """Once something was written for the position that stands in a row, the row holds it."""
    return forall(
        lambda request, block, offset: implies(
            every(s.uses(request, block, offset) | s.slot(request, block), ~s.blank(request, block, offset)),
            s.filled(request, block, offset),
        )
    )


@theorem
def strangers_write_first(s: State) -> Formula:
    """Queued work that writes a row of a request, but not its data, comes before the work that brings the
    data, and until then the data are not there."""
    return forall(
        lambda work, request, block, offset: implies(
            every(
                s.pending(work),
                s.writes(work, block, offset),
                s.uses(request, block, offset) | s.slot(request, block),
                ~s.delivers(work, request, block, offset),
            ),
            every(
                ~there(s, request, block, offset),
                forall(
                    lambda other_work: implies(
                        s.pending(other_work) & s.delivers(other_work, request, block, offset),
                        s.before(work, other_work),
                    )
                ),
            ),
        )
    )


@theorem
def data_arrive_after_strangers(s: State) -> Formula:
    """If queued work before a reader overwrites what it must find, other work before the reader, and after the
    stranger, brings it."""
    return forall(
        lambda work, other_work, request, block, offset: implies(
            every(
                s.pending(work),
                s.on_behalf(work, request),
                s.reads(work, block, offset),
                ~s.writes(work, block, offset),
                s.pending(other_work),
                s.writes(other_work, block, offset),
                s.before(other_work, work),
                ~s.fills(other_work, request, block, offset),
            ),
            exists(
                lambda third_work: every(
                    s.pending(third_work),
                    s.fills(third_work, request, block, offset),
                    s.before(other_work, third_work),
                    s.before(third_work, work),
                )
            ),
        )
    )


# ------------------------------------------------------------------- rule 2, as first-order logic has it


@broken_says("block {block} can be issued with an owner left, or cannot without one")
@theorem
def free_means_no_owner(s: State) -> Formula:
    """A usable block can be issued exactly when no owner is left (rule 2, first-order form)."""
    return forall(lambda block: implies(s.usable(block), issuable(s, block) == ~owned(s, block)))


@theorem
def only_named_owners_change(s: State, event: State, t: State) -> Formula:
    """An operation makes or unmakes owners only among the requests, work and holders that it names; each of
    them is one owner of a block, or none (rule 2, first-order form)."""
    return every(
        forall(lambda request, block: implies(has(s, request, block) != has(t, request, block), event.names(request))),
        forall(
            lambda work, block: implies(
                s.pinned(work, block) != t.pinned(work, block),
                event.names_work(work) | exists(lambda request: event.names(request) & s.on_behalf(work, request)),
            )
        ),
        forall(
            lambda holder, block: implies(s.held(holder, block) != t.held(holder, block), event.names_holder(holder))
        ),
    )


LEMMAS: tuple[Theorem, ...] = (
    one_block_per_index,
    one_index_per_block,
    tables_have_no_holes,
    only_live_requests_own,
    slots_are_exclusive,
    only_usable_ids_move,
    free_is_not_cached,
    holders_are_external,
    rest_is_complete,
    rows_lie_in_owned_blocks,
    a_row_is_committed_or_open,
    published_blocks_are_final,
    finished_work_touches_nothing,
    order_goes_one_way,
    conflicts_are_ordered,
    work_fills_what_it_writes,
    sources_of_copies_are_kept,
    destinations_of_copies_are_kept,
    destinations_stay_home,
    steps_touch_what_is_owned,
    committed_rows_arrive,
    reads_find_their_data,
    written_rows_stay_filled,
    strangers_write_first,
    data_arrive_after_strangers,
    free_means_no_owner,
    only_named_owners_change,
)
