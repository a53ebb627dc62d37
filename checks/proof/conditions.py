"""Which conditions of an action does safety need?

A condition that can be dropped without breaking any rule or theorem is either there for its meaning
(an action that would do nothing, a name that is in use) or it forbids behaviour for no reason.  The
first kind is listed in :data:`FOR_MEANING`; there must be no second kind.
"""

from __future__ import annotations

from collections.abc import Iterator

import z3

from kvproof.checks.proof.obligations import of_action, step_of
from kvproof.checks.proof.prove import Induction
from kvproof.checks.readings.z3_reading import new_solver
from kvproof.spec.modules import MODULES

FOR_MEANING: dict[tuple[str, int], str] = {
    ("shrink", 1): "a borrower does not run",
    ("shrink", 2): "it names the block that is given back",
    ("fork", 1): "implied by the table entry",
    ("fork_at_boundary", 1): "a parent is a request that exists",
    ("fork_at_boundary", 3): "a child with an empty table is an admission",
    ("privatise_at_boundary", 2): "a child with an empty table is an admission",
    ("copy_on_write", 1): "implied by the table entry",
    ("finish", 1): "a request that does not exist cannot finish",
    ("preempt", 1): "a request that does not exist cannot be preempted",
    ("release_pins", 2): "there is something to release",
    ("pin", 1): "a request that does not exist has no blocks",
    ("pin", 2): "the holder's name is not in use",
    ("pin", 3): "the holder's name is not in use",
    ("unpin", 1): "the holder's name is in use",
    ("publish", 1): "implied by the committed rows",
    ("hit", 1): "a borrower does not run",
    ("reserve", 3): "the row is not reserved yet",
    ("submit", 2): "a borrower does not run",
    ("complete", 1): "there is something to complete",
    ("complete", 2): "what is not on a stream cannot be done",
    ("reject", 2): "a state slot has no drafts of its own",
}
"""Conditions (by action and place, from 1) that safety does not need, and why they stand in the text."""


def idle(action: str, timeout_ms: int = 2_000) -> Iterator[int]:
    """The places (from 1) of the action's conditions that can be dropped one by one without breaking anything."""
    module = MODULES["storage"]
    induction = Induction(module, timeout_ms)
    step = step_of(module, action, induction.s)
    guards = [induction.reading.formula(guard) for guard in step.guards]
    obligations = [o for o in of_action(module, action, induction.s, step) if not o.trivial]
    goals = [z3.Not(induction.reading.formula(o.clause.formula)) for o in obligations]
    for place in range(len(guards)):
        solver = new_solver()
        solver.set("timeout", timeout_ms)
        solver.add(*induction.known, *induction.reading.facts)
        solver.add(*(guard for other, guard in enumerate(guards) if other != place))
        if all(_follows(solver, goal) for goal in goals):
            yield place + 1


def _follows(solver: z3.Solver, negated: z3.ExprRef) -> bool:
    solver.push()
    solver.add(negated)
    answer = solver.check()
    solver.pop()
    return bool(answer == z3.unsat)
