"""Output records: pooled, handed out by address, recycled at a later synchronisation point.

A consumer that keeps the address must clone the record before the next synchronisation point; the
clone is its own.  Generations tell an address that was issued again from the one that was kept.
"""

from __future__ import annotations

from .language import Formula, State, Variable, Vocabulary, every, forall, implies, measure, relation
from .state import EVENT, RECORD, STATE
from .steps import Action, Module, action, happens, require, theorem
from .storage import GIVEN

RECORDS_STATE = Vocabulary(
    sorts=tuple(STATE.sorts.values()),
    relations=(
        *(STATE.relations[name] for name in ("awaited", "recycled", "intact")),
        relation("kept", RECORD, doc="ghost: a consumer has kept the address, and the generation it saw"),
        measure("generation", RECORD, doc="how often the address has been issued"),
        measure("seen", RECORD, doc="ghost: the generation that the consumer saw"),
    ),
)
"""The state of the record pool."""


@action
def take(s: State, record: Variable) -> State:
    """A record is built at an address that may be issued; its generation is a new one."""
    require(s.recycled(record))
    return s.but(
        recycled=s.recycled.remove(record),
        awaited=s.awaited.add(record),
        intact=s.intact.add(record),
        generation=s.generation.set(record, s.generation(record) + 1),
    )


@action
def keep(s: State, record: Variable) -> State:
    """A consumer keeps the address instead of the value."""
    require(s.awaited(record), ~s.kept(record))
    return s.but(kept=s.kept.add(record), seen=s.seen.set(record, s.generation(record)))


@action
def clone(s: State, record: Variable) -> State:
    """The consumer makes an independent copy of the record: it waits for it no longer."""
    require(s.awaited(record))
    return s.but(awaited=s.awaited.remove(record))


@action
def recycle(s: State) -> State:
    """A synchronisation point: every address handed out before it may be issued again, its value is gone."""
    happens(synchronises=True)
    return s.but(
        awaited=s.awaited.only(lambda record: ~s.awaited(record)),
        intact=s.intact.only(lambda record: ~s.intact(record)),
        recycled=s.recycled.also(lambda record: ~s.recycled(record)),
    )


RECORDS: dict[str, Action] = {made.name: made for made in (take, keep, clone, recycle)}
"""The actions of this file by name, in reading order."""


@theorem
def awaited_records_are_intact(s: State) -> Formula:
    """A record that a consumer waits for holds its value, and its address cannot be issued."""
    return forall(lambda record: implies(s.awaited(record), s.intact(record) & ~s.recycled(record)))


@theorem
def issued_addresses_are_not_issued_again(s: State) -> Formula:
    """A record that still holds its value is not at an address that may be issued."""
    return forall(lambda record: implies(s.intact(record), ~s.recycled(record)))


@theorem
def a_stale_address_is_told_apart(s: State) -> Formula:
    """An address that was kept is of the present generation, or has been issued again since: then its
    generation is a later one."""
    return forall(lambda record: implies(s.kept(record), s.seen(record) <= s.generation(record)))


@theorem
def generations_only_grow(s: State, event: State, t: State) -> Formula:  # noqa: ARG001
    """An address is issued again only under a later generation."""
    return forall(
        lambda record: every(
            s.generation(record) <= t.generation(record),
            implies(t.intact(record) & ~s.intact(record), s.generation(record) < t.generation(record)),
        )
    )


def initial(s: State) -> Formula:
    """Every address may be issued, and nobody has kept one."""
    return every(
        forall(lambda record: s.recycled(record)),
        forall(lambda record: ~s.awaited(record)),
        forall(lambda record: ~s.intact(record)),
        forall(lambda record: ~s.kept(record)),
    )


RECORDS_MODULE = Module(
    name="records",
    about="output records and their generations",
    states=RECORDS_STATE,
    events=EVENT,
    choices=GIVEN,
    actions=RECORDS,
    initial=initial,
    rules=("records_outlive_readers",),
    theorems=(
        awaited_records_are_intact,
        issued_addresses_are_not_issued_again,
        a_stale_address_is_told_apart,
        generations_only_grow,
    ),
)
