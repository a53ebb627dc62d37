"""Mutants: the text with one action replaced, each of which must break one rule.

A mutant stands beside the action that it breaks and changes one thing.  Names are shared with the
executable model where both have the break.  ``stage`` says how small a pool shows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from . import lengths, ownership, rows
from .language import Choice, State, Variable, ceil_div, either, every, exists
from .rules import has, in_table
from .steps import Action, action, happens, require
from .storage import last_used, published


@dataclass(frozen=True)
class Stage:
    """A pool that is large enough: things of each sort (one if not named), declarations, state slots.

    ``actions`` are enough to reach the break; ``coarse`` leaves the rows out.
    """

    actions: tuple[str, ...]
    sizes: Mapping[str, int] = field(default_factory=dict)
    declared: frozenset[str] = frozenset()
    slots: int = 0
    reserved_blocks: int = 0
    coarse: bool = False


@dataclass(frozen=True)
class Mutant:
    """One break: which module's action is replaced by what, the rule it must break, and how to see it.

    ``shortest`` is the length of the shortest run that shows it, in operations.  ``seen_as`` names the
    theorem under which it shows where the rule itself cannot be read (first-order logic does not count).
    """

    name: str
    rule: str
    module: str
    replaces: str
    by: Action
    stage: Stage
    shortest: int
    seen_as: str = ""

    @property
    def what(self) -> str:
        """What it does, in one sentence."""
        return self.by.sentence


# -------------------------------------------------------------------------------- ownership and the rows


@action
def issue_twice(s: State, given: State, request: Variable, index: Variable, block: Variable) -> State:
    """A block that is handed out stays in the free list."""
    return ownership.admit.body(s, given, request, index, block).but(free=s.free)


@action
def finish_frees_shared(s: State, request: Variable) -> State:
    """Finishing frees blocks that others own."""
    t = ownership.finish.body(s, request)
    return t.but(free=t.free.also(lambda block: has(s, request, block) & ~published(s, block)))


@action
def pin_uncounted(s: State, request: Variable) -> State:
    """A pin adds an owner and no count: when the other owners leave, the block is free."""
    t = ownership.finish.body(s, request)
    return t.but(
        free=t.free.also(
            lambda block: every(
                in_table(s, request, block),
                ~exists(lambda other_request: has(t, other_request, block)),
                ~exists(lambda work: t.pinned(work, block)),
            )
        )
    )


@action
def refusal_keeps_block(s: State, given: State, request: Variable, index: Variable, block: Variable) -> State:
    """A refused admission keeps a block."""
    t = ownership.admit.body(s, given, request, index, block)
    happens(refused=True)
    return t


@action
def double_release(s: State, request: Variable) -> State:
    """A second release is not refused."""
    happens(names=request, misused=True)
    require(~s.live(request))
    return s


@action
def early_release(
    s: State,
    given: State,
    parent_request: Variable,
    child_request: Variable,
    index: Variable,
    block: Variable,
    new_block: Variable,
    work: Variable,
) -> State:
    """The source pin goes before the copy ran."""
    t = ownership.fork.body(s, given, parent_request, child_request, index, block, new_block, work)
    return t.but(pinned=t.pinned.remove(work, block))


@action
def destination_unpinned(
    s: State,
    given: State,
    parent_request: Variable,
    child_request: Variable,
    index: Variable,
    block: Variable,
    new_block: Variable,
    work: Variable,
) -> State:
    """Destinations are declared pinned and are not."""
    t = ownership.fork.body(s, given, parent_request, child_request, index, block, new_block, work)
    return t.but(pinned=t.pinned.remove(work, new_block))


@action
def share_partial_tail(
    s: State, given: State, parent_request: Variable, child_request: Variable, index: Variable, block: Variable
) -> State:
    """A fork shares a partly filled block."""
    happens(names=(parent_request, child_request))
    require(
        s.live(parent_request),
        ~s.borrows(parent_request),
        ~s.live(child_request),
        s.table(parent_request, index, block),
        last_used(s, parent_request, index),
    )
    t = ownership.continues(s, parent_request, child_request)
    return t.but(
        table=s.table.also(
            lambda request, i_index, b_block: (request == child_request) & s.table(parent_request, i_index, b_block)
        ),
        uses=s.uses.also(
            lambda request, b_block, offset: every(
                request == child_request,
                s.committed(parent_request, b_block, offset) | ((b_block == block) & given.reserved(offset)),
            )
        ),
        committed=s.committed.also(
            lambda request, b_block, offset: (request == child_request) & s.committed(parent_request, b_block, offset)
        ),
        may_write=s.may_write.also(
            lambda request, b_block, offset: every(
                request == child_request,
                b_block == block,
                given.reserved(offset),
                ~s.committed(parent_request, b_block, offset),
            )
        ),
    )


@action
def copy_dropped(s: State, work: Variable) -> State:
    """A queued copy is never run."""
    t = rows.complete.body(s, work)
    return t.but(
        filled=t.filled.only(
            lambda request, block, offset: either(
                ~s.copies(work), ~s.writes(work, block, offset), s.filled(request, block, offset)
            )
        )
    )


@action
def stale_key(s: State, block: Variable) -> State:
    """A reissued block keeps its content key."""
    return ownership.evict.body(s, block).but(key=s.key)


@action
def fork_shares_slot(
    s: State,
    request: Variable,
    index: Variable,
    block: Variable,
    new_block: Variable,
    work: Variable,
) -> State:
    """A child writes its parent's slot: it is admitted without a clone of it."""
    require(s.borrows(request), s.table(request, index, block), s.free(new_block), ~s.exclusive(new_block))
    happens(names=request, names_work=work)
    return s.but(
        borrows=s.borrows.remove(request),
        may_write=s.may_write.also(
            lambda r_request, b_block, offset: (r_request == request) & s.slot(request, b_block)
        ),
    )


@action
def abort_leaks(s: State, request: Variable, index: Variable, block: Variable) -> State:
    """An aborted request forgets its last block."""
    t = ownership.preempt.body(s, request)
    require(s.table(request, index, block), last_used(s, request, index))
    return t.but(free=t.free.remove(block), cached=t.cached.remove(block))


@action
def shrink_forgets(s: State, request: Variable, index: Variable, block: Variable) -> State:
    """Surplus blocks never reach the free list."""
    t = ownership.shrink.body(s, request, index, block)
    return t.but(free=s.free, cached=s.cached)


@action
def issue_block_zero(s: State, given: State, request: Variable, index: Variable, block: Variable) -> State:
    """Block 0 is handed out."""
    happens(names=request, admits=True)
    require(~s.live(request), ~s.usable(block))
    return ownership.take(s, given, request, index, block).but(live=s.live.add(request), quiescent=s.quiescent.remove())


# ------------------------------------------------------------------------------------ lengths and records


@action
def table_too_short(s: State, given: State, request: Variable) -> State:
    """No room is reserved for drafts."""
    t = lengths.extend.body(s, given, request)
    length = s.history(request) + given.tokens() + s.in_flight(request)
    return t.but(entries=s.entries.set(request, ceil_div(length, s.block_size())))


@action
def surplus_kept(s: State, given: State, request: Variable) -> State:
    """Surplus blocks stay after a rejection."""
    t = lengths.extend.body(s, given, request)
    wanted = t.entries(request)
    kept = Choice(s.entries(request) <= wanted, wanted, s.entries(request))
    return t.but(entries=s.entries.set(request, kept))


@action
def commit_adds(s: State, given: State, request: Variable) -> State:
    """A commit adds to the optimistic count."""
    t = lengths.commit.body(s, given, request)
    return t.but(num_tokens=s.num_tokens.set(request, s.num_tokens(request) + given.rows()))


@action
def later_for_never(s: State, given: State, request: Variable) -> State:
    """LATER where waiting cannot help."""
    t = lengths.ask.body(s, given, request)
    happens(later=True, never=False)
    return t


@action
def never_for_later(s: State, given: State, request: Variable) -> State:
    """NEVER where waiting would help."""
    t = lengths.ask.body(s, given, request)
    happens(later=False, never=True)
    return t


@action
def recycle_early(s: State, record: Variable) -> State:
    """A record is reused too early."""
    require(~s.recycled(record))
    return s.but(recycled=s.recycled.add(record), intact=s.intact.remove(record))


# ----------------------------------------------------------------------------------------------- the list

_PIPELINE = ("admit", "fork", "complete", "release_pins", "finish")
_STEP = ("submit", "complete", "accept")
_FORK = {"request": 3, "block": 4, "index": 2, "work": 1}

MUTANTS: dict[str, Mutant] = {
    mutant.name: mutant
    for mutant in (
        Mutant(
            "issue_twice",
            "owned_xor_free",
            "storage",
            "admit",
            issue_twice,
            Stage(("admit",)),
            shortest=1,
        ),
        Mutant(
            "finish_frees_shared",
            "owned_xor_free",
            "storage",
            "finish",
            finish_frees_shared,
            Stage(("admit", "grow", "fork_at_boundary", "finish"), {"request": 2, "index": 2, "block": 2}, coarse=True),
            shortest=3,
        ),
        Mutant(
            "pin_uncounted",
            "counts_match_owners",
            "storage",
            "finish",
            pin_uncounted,
            Stage(("admit", "pin", "finish"), {"holder": 1}, coarse=True),
            shortest=3,
            seen_as="free_means_no_owner",
        ),
        Mutant(
            "refusal_keeps_block",
            "only_owners_release",
            "storage",
            "refuse",
            refusal_keeps_block,
            Stage(("refuse",)),
            shortest=1,
        ),
        Mutant(
            "double_release",
            "only_owners_release",
            "storage",
            "refuse",
            double_release,
            Stage(("refuse",)),
            shortest=1,
        ),
        Mutant(
            "early_release",
            "reads_keep_their_source",
            "storage",
            "fork",
            early_release,
            Stage(_PIPELINE, _FORK, coarse=True),
            shortest=3,
        ),
        Mutant(
            "destination_unpinned",
            "writes_stay_home",
            "storage",
            "fork",
            destination_unpinned,
            Stage(_PIPELINE, _FORK, frozenset({"destination_pinned"}), coarse=True),
            shortest=4,
            seen_as="destinations_stay_home",
        ),
        Mutant(
            "share_partial_tail",
            "writes_stay_home",
            "storage",
            "fork_at_boundary",
            share_partial_tail,
            Stage(("admit", "fork_at_boundary"), {"request": 2}),
            shortest=2,
        ),
        Mutant(
            "copy_dropped",
            "no_read_before_fill",
            "storage",
            "complete",
            copy_dropped,
            Stage(("admit", "submit", "accept", "fork", "complete"), {"request": 2, "block": 2, "work": 2}),
            shortest=3,
        ),
        Mutant(
            "stale_key",
            "cache_tells_the_truth",
            "storage",
            "evict",
            stale_key,
            Stage(("admit", *_STEP, "publish", "finish", "evict")),
            shortest=4,
        ),
        Mutant(
            "table_too_short",
            "table_covers_need",
            "lengths",
            "extend",
            table_too_short,
            Stage(("admit", "extend")),
            shortest=2,
        ),
        Mutant(
            "surplus_kept",
            "table_covers_need",
            "lengths",
            "extend",
            surplus_kept,
            Stage(("admit", "extend"), declared=frozenset({"surplus_exact"})),
            shortest=3,
        ),
        Mutant(
            "commit_adds",
            "advance_settles_once",
            "lengths",
            "commit",
            commit_adds,
            Stage(("admit", "advance", "commit")),
            shortest=3,
        ),
        Mutant(
            "later_for_never",
            "progress",
            "lengths",
            "ask",
            later_for_never,
            Stage(("ask",), declared=frozenset({"promises_never"})),
            shortest=1,
        ),
        Mutant(
            "never_for_later",
            "progress",
            "lengths",
            "ask",
            never_for_later,
            Stage(("ask",)),
            shortest=1,
        ),
        Mutant(
            "fork_shares_slot",
            "slot_has_one_writer",
            "storage",
            "privatise",
            fork_shares_slot,
            Stage(("admit", "take_slot", "borrow", "privatise"), {"request": 2, "block": 3}, slots=1),
            shortest=4,
        ),
        Mutant(
            "recycle_early",
            "records_outlive_readers",
            "records",
            "recycle",
            recycle_early,
            Stage(("take", "recycle")),
            shortest=2,
        ),
        Mutant(
            "abort_leaks",
            "nothing_lost",
            "storage",
            "preempt",
            abort_leaks,
            Stage(("admit", "preempt"), coarse=True),
            shortest=2,
        ),
        Mutant(
            "shrink_forgets",
            "nothing_lost",
            "storage",
            "shrink",
            shrink_forgets,
            Stage(("admit", "grow", "shrink"), {"index": 2, "block": 2}, coarse=True),
            shortest=2,
        ),
        Mutant(
            "issue_block_zero",
            "reserved_ids_untouched",
            "storage",
            "admit",
            issue_block_zero,
            Stage(("admit",), {"block": 2}, reserved_blocks=1),
            shortest=1,
        ),
    )
}
"""Every mutant by name; at least one for each rule."""
