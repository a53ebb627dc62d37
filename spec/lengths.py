"""How long a request is, how many blocks that needs, and what to answer when they are not there.

All lengths count token positions, all other numbers blocks.  The actions below are whole operations
(admit, extend, fork, submit, advance, commit, release) seen by their numbers only; who owns which
block is the business of ``ownership.py``.  That the number of table entries is the number that the
actions here call ``entries`` is checked by the monitor: first-order logic cannot count.
"""

from __future__ import annotations

from .language import Formula, Number, Numeric, State, Variable, ceil_div, every, forall, implies
from .state import EVENT, STATE
from .steps import Action, Module, Theorem, action, does_not_hold, happens, require, theorem
from .storage import GIVEN

# --------------------------------------------------------------------------- operations, by their numbers


@action
def admit(s: State, given: State, request: Variable) -> State:
    """A new request reserves the blocks that cover its whole prompt."""
    happens(names=request, admits=True)
    require(~s.live(request), given.tokens() >= 0)
    return s.but(
        live=s.live.add(request),
        history=s.history.set(request, given.tokens()),
        in_flight=s.in_flight.set(request, 0),
        drafts=s.drafts.set(request, 0),
        reserved=s.reserved.set(request, given.tokens()),
        entries=s.entries.set(request, ceil_div(given.tokens(), s.block_size())),
        num_tokens=s.num_tokens.set(request, 0),
        settled=s.settled.set(request, 0),
        optimistic=s.optimistic.set(request, 0),
    )


@action
def extend(s: State, given: State, request: Variable) -> State:
    """Tokens are appended and drafts reserved; the table then covers exactly that, surplus goes back."""
    happens(names=request)
    length = s.history(request) + given.tokens() + s.in_flight(request) + given.drafts()
    require(
        s.live(request),
        ~s.borrows(request),
        given.tokens() >= 0,
        given.drafts() >= 0,
        s.num_tokens(request) <= length,
    )
    return s.but(
        history=s.history.set(request, s.history(request) + given.tokens()),
        drafts=s.drafts.set(request, given.drafts()),
        reserved=s.reserved.set(request, length),
        entries=s.entries.set(request, ceil_div(length, s.block_size())),
    )


@action
def fork(s: State, given: State, parent_request: Variable, child_request: Variable) -> State:
    """A child starts with some of the parent's committed positions, and a table that covers them."""
    happens(names=(parent_request, child_request))
    require(
        s.live(parent_request),
        ~s.live(child_request),
        s.optimistic(parent_request) == 0,
        given.rows() >= 0,
        given.rows() <= s.num_tokens(parent_request),
    )
    return s.but(
        live=s.live.add(child_request),
        history=s.history.set(child_request, given.rows()),
        in_flight=s.in_flight.set(child_request, 0),
        drafts=s.drafts.set(child_request, 0),
        reserved=s.reserved.set(child_request, given.rows()),
        entries=s.entries.set(child_request, ceil_div(given.rows(), s.block_size())),
        num_tokens=s.num_tokens.set(child_request, given.rows()),
        settled=s.settled.set(child_request, given.rows()),
        optimistic=s.optimistic.set(child_request, 0),
    )


@action
def submit(s: State, given: State, request: Variable) -> State:
    """A step is scheduled: positions move from history and drafts that wait into flight, inside the reservation."""
    happens(names=request)
    require(
        s.live(request),
        given.rows() >= 0,
        s.history(request) + s.in_flight(request) + given.rows() + s.drafts(request) <= s.reserved(request),
    )
    return s.but(in_flight=s.in_flight.set(request, s.in_flight(request) + given.rows()))


@action
def advance(s: State, given: State, request: Variable) -> State:
    """A step's output is processed: the committed count goes up by every position that the step evaluated."""
    happens(names=request, advances=request)
    require(
        s.live(request),
        s.optimistic(request) == 0,
        given.rows() >= 0,
        s.num_tokens(request) + given.rows() <= s.entries(request) * s.block_size(),
    )
    return s.but(
        num_tokens=s.num_tokens.set(request, s.num_tokens(request) + given.rows()),
        optimistic=s.optimistic.set(request, given.rows()),
    )


@action
def advance_prompt(s: State, given: State, request: Variable) -> State:
    """A prompt chunk's output is processed: its positions are settled at once, there is nothing to correct."""
    happens(names=request, advances=request)
    require(
        s.live(request),
        s.optimistic(request) == 0,
        given.rows() >= 0,
        s.num_tokens(request) + given.rows() <= s.entries(request) * s.block_size(),
    )
    return s.but(
        num_tokens=s.num_tokens.set(request, s.num_tokens(request) + given.rows()),
        settled=s.settled.set(request, s.settled(request) + given.rows()),
    )


@action
def commit(s: State, given: State, request: Variable) -> State:
    """The advance is settled: of its positions this many count, the rest was rejected (chapter, listing 4.6);
    positions whose result is seen now are no longer in flight."""
    happens(names=request)
    require(
        s.live(request),
        given.rows() >= 0,
        given.rows() <= s.optimistic(request),
        given.tokens() >= 0,
        given.tokens() <= s.in_flight(request),
    )
    return s.but(
        in_flight=s.in_flight.set(request, s.in_flight(request) - given.tokens()),
        num_tokens=s.num_tokens.set(request, s.settled(request) + given.rows()),
        settled=s.settled.set(request, s.settled(request) + given.rows()),
        optimistic=s.optimistic.set(request, 0),
    )


@action
def release(s: State, request: Variable) -> State:
    """Finish, preempt or abort: the request has no length any more."""
    happens(names=request)
    require(s.live(request))
    return s.but(live=s.live.remove(request), borrows=s.borrows.remove(request))


@action
def ask(s: State, given: State, request: Variable) -> State:
    """An admission question that is refused: LATER, or NEVER if the request can never fit; nothing changes.

    The asker owns nothing, so what would be in use for it is what it asks for.
    """
    asks = given.tokens()
    fits = asks <= s.usable_blocks()
    happens(names=request, admits=True, refused=True, asks_blocks=asks, later=fits, never=~fits)
    require(~s.live(request), given.rows() >= 0, asks > given.rows())
    return s


LENGTHS: dict[str, Action] = {
    made.name: made for made in (admit, extend, fork, submit, advance, advance_prompt, commit, release, ask)
}
"""The actions of this file by name, in reading order."""


# -------------------------------------------------------------------------------- lemmas of the induction


@theorem
def lengths_are_natural(s: State) -> Formula:
    """No length is negative, and reserved positions are within the table."""
    return forall(
        lambda request: implies(
            s.live(request),
            every(
                s.history(request) >= 0,
                s.in_flight(request) >= 0,
                s.drafts(request) >= 0,
                s.num_tokens(request) >= 0,
                s.settled(request) >= 0,
                s.optimistic(request) >= 0,
                s.history(request) + s.in_flight(request) + s.drafts(request) <= s.reserved(request),
                s.reserved(request) <= s.entries(request) * s.block_size(),
                (s.entries(request) - 1) * s.block_size() < s.reserved(request),
            ),
        )
    )


@theorem
def counts_add_up(s: State) -> Formula:
    """The committed count is what is settled and what is advanced, and the table covers it."""
    return forall(
        lambda request: implies(
            s.live(request),
            every(
                s.num_tokens(request) == s.settled(request) + s.optimistic(request),
                s.num_tokens(request) <= s.entries(request) * s.block_size(),
            ),
        )
    )


@theorem
def a_block_has_positions(s: State) -> Formula:
    """A block has at least one position, and there is room for at least nothing."""
    return every(s.block_size() >= 1, s.usable_blocks() >= 0, s.usable_slots() >= 0)


def initial(s: State) -> Formula:
    """No request is live."""
    return every(forall(lambda request: ~s.live(request)), forall(lambda request: ~s.borrows(request)))


LENGTHS_MODULE = Module(
    name="lengths",
    about="positions and blocks of every request, as whole numbers",
    states=STATE,
    events=EVENT,
    choices=GIVEN,
    actions=LENGTHS,
    initial=initial,
    rules=("table_covers_need", "advance_settles_once", "progress"),
    theorems=(lengths_are_natural, counts_add_up),
    assumes=(a_block_has_positions,),
    not_carried={
        ("progress", 2): "needs to count owners: theorem later_has_somebody_to_wait_for, exploration, the harness"
    },
)


# ------------------------------------------------------------------------------- theorems about numbers


def blocks(positions: Numeric, size: Numeric) -> Number:
    """Blocks that cover so many positions."""
    return ceil_div(positions, size)


@theorem
def one_block_is_enough(length: Number, added: Number, size: Number) -> Formula:
    """If at most B positions are added per step, one more block per step is always enough."""
    return implies(
        every(length >= 0, size >= 1, added >= 0, added <= size),
        blocks(length + added, size) <= blocks(length, size) + 1,
    )


@theorem
def one_block_is_not_enough_beyond(added: Number, size: Number) -> Formula:
    """If more than B positions are added per step, one block is not enough: a full table needs two."""
    return implies(every(size >= 1, added > size), blocks(size + added, size) > blocks(size, size) + 1)


@theorem
def few_positions_are_idle(length: Number, size: Number) -> Formula:
    """A table that covers its reservation exactly has at most B - 1 idle positions."""
    return implies(
        every(length >= 0, size >= 1),
        every(blocks(length, size) * size >= length, blocks(length, size) * size - length <= size - 1),
    )


@theorem
def the_table_covers_a_step(
    history: Number, in_flight: Number, drafts: Number, size: Number, position: Number
) -> Formula:
    """Every position that scheduled work may write has an entry of the table."""
    reserved = history + in_flight + drafts
    return implies(
        every(history >= 0, in_flight >= 0, drafts >= 0, size >= 1, position >= 0, position < reserved),
        position // size < blocks(reserved, size),
    )


@theorem
def a_commit_only_takes_back(previous: Number, evaluated: Number, accepted: Number) -> Formula:
    """Settling an advance never raises the count, and never takes back what was settled before."""
    return implies(
        every(previous >= 0, accepted >= 0, accepted <= evaluated),
        every(previous + accepted <= previous + evaluated, previous <= previous + accepted),
    )


# -- OK, LATER, NEVER.  A pool of ``usable`` blocks: ``own`` owned by the asker, ``others`` by anybody else,
#    the rest free.  Waiting can at most return what others own.


@theorem
def the_answer_to_an_admission_is_right(usable: Number, others: Number, asked: Number, returned: Number) -> Formula:
    """A request that owns nothing: NEVER exactly when it does not fit whatever the others return; LATER
    exactly when it does not fit now, but does once all others have finished and their copies are done."""
    free = usable - others
    never, ok = asked > usable, asked <= free
    later = ~never & ~ok
    return implies(
        every(usable >= 0, others >= 0, others <= usable, asked >= 0, returned >= 0, returned <= others),
        every(
            implies(never, asked > free + returned),
            implies(~never, asked <= free + others),
            later == every(asked > free, asked <= free + others),
        ),
    )


@theorem
def the_answer_to_an_extension_is_right(
    usable: Number, own: Number, others: Number, added: Number, returned: Number
) -> Formula:
    """A request that owns blocks keeps them while it waits: NEVER exactly when what it would then have exceeds
    the pool; otherwise it fits once all others have finished."""
    free = usable - others - own
    never = own + added > usable
    return implies(
        every(own >= 0, others >= 0, own + others <= usable, added >= 0, returned >= 0, returned <= others),
        every(implies(never, added > free + returned), implies(~never, added <= free + others)),
    )


@theorem
def the_answer_to_a_fork_is_right(
    usable: Number, pinned: Number, others: Number, fresh: Number, returned: Number
) -> Formula:
    """A fork not yet admitted pins the parent's whole table: NEVER exactly when the fresh blocks do not fit
    beside it; otherwise they do once all others, the parent included, have finished."""
    free = usable - pinned - others
    never = pinned + fresh > usable
    return implies(
        every(pinned >= 0, others >= 0, pinned + others <= usable, fresh >= 0, returned >= 0, returned <= others),
        every(implies(never, fresh > free + returned), implies(~never, fresh <= free + others)),
    )


@theorem
def later_has_somebody_to_wait_for(usable: Number, own: Number, others: Number, added: Number) -> Formula:
    """If the request fits into the pool and still must wait, somebody else owns a block."""
    return implies(
        every(own >= 0, others >= 0, own + others <= usable, own + added <= usable, added > usable - own - others),
        others > 0,
    )


@theorem
def a_preemption_gains_what_only_the_victim_has(free: Number, alone: Number, shared: Number) -> Formula:
    """Releasing a victim raises the free count by the blocks that it alone owns, and by no more."""
    return implies(
        every(free >= 0, alone >= 0, shared >= 0),
        every(free + alone >= free, (free + alone > free) == (alone > 0)),
    )


@does_not_hold
def the_chapters_answer_to_an_extension(usable: Number, own: Number, others: Number, added: Number) -> Formula:
    """The chapter answers NEVER iff the blocks asked for exceed the pool.  A request that owns some of the
    pool and asks for the rest and one more is then told LATER for ever."""
    best = usable - own
    return implies(
        every(usable >= 0, own >= 0, others >= 0, own + others <= usable, added >= 0),
        (added > usable) == (added > best),
    )


@does_not_hold
def the_chapters_answer_to_a_fork(usable: Number, pinned: Number, fresh: Number) -> Formula:
    """The chapter's fork waits while no block is free.  A fork that has pinned the whole pool waits for ever:
    it is answered LATER where NEVER is right."""
    return implies(
        every(usable >= 1, pinned >= 0, pinned <= usable, fresh == 1),
        implies(fresh <= usable, fresh <= usable - pinned),
    )


@does_not_hold
def few_positions_are_idle_against_the_history(history: Number, drafts: Number, size: Number) -> Formula:
    """At most B - 1 positions idle, counted against the history: not so, the reserved drafts are idle too."""
    return implies(
        every(history >= 0, drafts >= 0, size >= 1), blocks(history + drafts, size) * size - history <= size - 1
    )


@does_not_hold
def one_block_is_always_enough(length: Number, added: Number, size: Number) -> Formula:
    """One block per step is enough whatever is added: not so when more than B positions are added."""
    return implies(every(length >= 0, added >= 0, size >= 1), blocks(length + added, size) <= blocks(length, size) + 1)


NUMBERS: tuple[Theorem, ...] = (
    one_block_is_enough,
    one_block_is_not_enough_beyond,
    few_positions_are_idle,
    the_table_covers_a_step,
    a_commit_only_takes_back,
    the_answer_to_an_admission_is_right,
    the_answer_to_an_extension_is_right,
    the_answer_to_a_fork_is_right,
    later_has_somebody_to_wait_for,
    a_preemption_gains_what_only_the_victim_has,
)
"""Theorems about lengths, for all whole numbers."""
