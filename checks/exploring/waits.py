"""Wait cycles: what exploration says about rule 10, ``progress``, beyond single answers.

A live request *waits* in a state if it would grow (its table is shorter than ``--table``) and the
engine answers that with LATER.  A *wait state* is a state in which something is live, every live
request waits, and completing every queued copy and dropping every pin gives no block back.  There
everybody waits for somebody who waits: LATER alone never ends.  Who has a full table does not wait: it
finishes.

The engine itself is asked and driven (``extend``, ``release``, the machine's moves); nothing is decided
here a second time.  Four things are counted over everything that was explored:

1. wait states: they exist, so "whoever is told LATER will be served without a preemption" does **not** hold;
2. what the preemption of each live request gives back, at once and after the copies are done;
3. states that are not at rest and in which no move gives anything back: none.  Each such move ends a
   request, a copy or a pin for good, so a machine that makes only such moves comes to rest;
4. states at rest in which a full table is not admitted: none.

Source: chapter, 4.1 (answers), 4.3.4 (no free block: another request is preempted), 4.3.7 and 4.3.8; rule 10.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kvproof.checks.exploring.explore_model import ModelRun, words
from kvproof.model.interface import Answer
from kvproof.model.transitions import PoolMachine, State

GIVES_BACK = ("finish", "complete", "collect")
"""Moves that end a request, a queued copy or a pin."""


@dataclass(frozen=True)
class Gain:
    """What the free list gains, in blocks, when a victim is preempted."""

    victim: str
    at_once: int
    after_copies: int
    """The same once every copy is done and its pins are dropped."""


@dataclass
class Waits:
    """Counts of what was explored: classes under symmetry, states without it.  Runs are shortest, in operations."""

    explored: int = 0
    wait_states: int = 0
    some_victim_gains: int = 0
    """Wait states in which preempting some live request frees a block at once."""
    some_victim_gains_nothing: int = 0
    """Wait states in which preempting some live request frees no block at once."""
    some_victim_never_gains: int = 0
    """Wait states in which preempting some live request frees no block even after the copies are done."""
    gains_nothing_anywhere: int = 0
    """The same as ``some_victim_gains_nothing`` for every state, waiting or not."""
    not_at_rest: int = 0
    stuck: int = 0
    """States not at rest from which no move gives anything back."""
    at_rest: int = 0
    full_table_refused: int = 0
    """States at rest in which a full table (or the whole pool, if it is smaller) is not admitted."""
    shortest_wait: tuple[str, ...] = ()
    shortest_gain_of_nothing: tuple[str, ...] = ()
    """The shortest run to a wait state with a victim that gains nothing at once."""

    def as_json(self) -> dict[str, Any]:
        """The object under ``waits`` in ``kvproof explore --json``."""
        return dict(vars(self))


def is_wait_state(machine: PoolMachine, state: State) -> bool:
    """Whether something is live, every live request waits, and no copy or pin can give a block back."""
    if not any(state[1]):
        return False
    machine.restore(state)
    engine = machine.engine
    for name, table in zip(machine.names, state[1], strict=True):
        # A refused call changes nothing; the first one that is not refused ends the question.
        if table and (len(table) >= machine.most_blocks or engine.extend(name, 1) is not Answer.LATER):
            return False
    return _free_after_copies(machine) == len(state[0])


def gains(machine: PoolMachine, state: State) -> list[Gain]:
    """What preempting each live request would give back."""
    found = []
    free = len(state[0])
    for name, table in zip(machine.names, state[1], strict=True):
        if table:
            machine.restore(state)
            machine.engine.release(name, "preempt")
            at_once = len(machine.engine.blocks) - free
            found.append(Gain(name, at_once, _free_after_copies(machine) - free))
    return found


def is_stuck(machine: PoolMachine, state: State) -> bool:
    """Whether the state is not at rest, and no move gives anything back."""
    machine.restore(state)
    return not at_rest(state) and all(move[0] not in GIVES_BACK for move in machine.moves())


def at_rest(state: State) -> bool:
    """No request is live, no copy is queued, no pin is held."""
    return not any(state[1]) and not state[2]


def drained(machine: PoolMachine, state: State) -> State:
    """Where the machine comes to when it only gives back; at rest, unless a state on the way is stuck."""
    machine.restore(state)
    while moves := [move for move in machine.moves() if move[0] in GIVES_BACK]:
        machine.apply(moves[0])
    return machine.state()


def admits_a_full_table(machine: PoolMachine, state: State) -> bool:
    """Whether a new request gets a full table, or the whole pool if that is smaller."""
    machine.restore(state)
    engine = machine.engine
    return engine.admit(machine.names[0], min(machine.most_blocks, engine.blocks.usable)) is Answer.OK


def waits_of(run: ModelRun) -> Waits:
    """Look at everything that a finished exploration found.  Numbers go up with depth: the first is a shortest."""
    machine = run.subject.machine
    found = Waits()
    first_wait = first_nothing = None
    for number, key in enumerate(run.number_of):
        state = run.subject.node(key)[0]
        found.explored += 1
        if at_rest(state):
            found.at_rest += 1
            found.full_table_refused += not admits_a_full_table(machine, state)
            continue
        found.not_at_rest += 1
        found.stuck += is_stuck(machine, state)
        each = gains(machine, state)
        nothing = any(gain.at_once == 0 for gain in each)
        found.gains_nothing_anywhere += nothing
        if not is_wait_state(machine, state):
            continue
        found.wait_states += 1
        first_wait = number if first_wait is None else first_wait
        found.some_victim_gains += any(gain.at_once > 0 for gain in each)
        found.some_victim_gains_nothing += nothing
        found.some_victim_never_gains += any(gain.after_copies == 0 for gain in each)
        if nothing and first_nothing is None:
            first_nothing = number
    found.shortest_wait = _told(run, first_wait)
    found.shortest_gain_of_nothing = _told(run, first_nothing)
    return found


def _told(run: ModelRun, number: int | None) -> tuple[str, ...]:
    return () if number is None else tuple(words(move) for move in run.path(number))


def _free_after_copies(machine: PoolMachine) -> int:
    """Free blocks once every queued copy is done and every pin is dropped (changes the machine)."""
    engine = machine.engine
    for ticket in engine.copies:
        engine.complete(ticket)
    engine.collect(tuple(engine.copies))
    return len(engine.blocks)
