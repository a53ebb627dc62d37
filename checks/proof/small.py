"""Small before-and-after states of a failed proof obligation.

The prover's own counterexamples have whatever size the solver likes.  Here the same question is asked
for a few blocks, so that the answer can be read: a state that keeps all rules and theorems, one step,
and a state that does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import z3

from kvproof.checks.proof.obligations import Obligation
from kvproof.checks.proof.states_in_words import before_and_after
from kvproof.checks.proof.unroll import Happened, Moment
from kvproof.checks.readings.machine import Machine, Scope, state_clauses
from kvproof.spec.language import SpecError
from kvproof.spec.steps import Module

DISCIPLINES: tuple[frozenset[str], ...] = (
    frozenset({"destination_pinned"}),
    frozenset(),
    frozenset({"destination_cancelled"}),
)
"""Declared destination disciplines, each a choice of fixed relations (none: ordered)."""


@dataclass(frozen=True)
class Small:
    """A failed step: what happened, and how the state looked before and afterwards."""

    happened: Happened
    lines: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join((f"  {self.happened}", *self.lines))


class OpenMachine(Machine):
    """A machine in which every cell may have any value: all states, not only those that are reached."""

    def _find_cells(self) -> None:
        for relation in self._relations():
            for row in self._rows(relation.name):
                self._variable[relation.name, row] = self.circuit.variable()


def scopes(module: Module, sizes: Mapping[str, int] | None = None, slots: int = 0) -> Iterator[Scope]:
    """Scopes to look in, smallest first."""
    for declared in DISCIPLINES:
        base = dict.fromkeys(module.states.sorts, 1)
        base.update(sizes or {})
        yield Scope(base, declared=declared, slots=slots)
    if sizes is None:
        yield Scope({**base, "block": 2}, reserved_blocks=1)
        bigger = dict.fromkeys(module.states.sorts, 1) | {"request": 2, "index": 2, "block": 3, "work": 2, "offset": 1}
        for declared in DISCIPLINES:
            yield Scope(bigger, declared=declared)
            yield Scope({**bigger, "block": 4}, declared=declared, slots=2)


def small_counterexample(module: Module, obligation: Obligation, timeout_ms: int = 5_000) -> Small | None:
    """A small state before the action and its successor in which the clause fails, if one is found."""
    for scope in scopes(module):
        found = _in_scope(module, obligation, scope, timeout_ms)
        if found is not None:
            return found
    return None


def _in_scope(module: Module, obligation: Obligation, scope: Scope, timeout_ms: int) -> Small | None:
    machine = OpenMachine(module, replace(scope, actions=(obligation.action,)))
    now = Moment(machine, 0)
    solver = z3.SolverFor("QF_FD")
    solver.set("timeout", timeout_ms)
    state = module.states.state("s")
    try:
        for _, clauses in state_clauses(module, state):
            for clause in clauses:
                solver.add(now.term(machine.node(clause.formula)))
        for theorem in module.assumes:
            solver.add(now.term(machine.node(theorem.formula(state))))
    except SpecError:
        return None  # the module speaks of numbers
    for instance in machine.instances:
        env = dict(zip(module.actions[obligation.action].variables, (n for _, n in instance.things), strict=True))
        broken = machine.circuit.negate(machine.reading().formula(obligation.clause.formula, env))
        solver.push()
        solver.add(now.term(instance.guard), now.term(broken))
        if solver.check() == z3.sat:
            model = _fewest(solver, now)
            before = now.true_cells(model)
            changes = {machine.cells[place]: now.term(node) for place, node in instance.changes}
            after = {cell for cell in before if cell not in changes}
            after |= {cell for cell, term in changes.items() if z3.is_true(model.eval(term, model_completion=True))}
            happened = Happened(instance.action, instance.things, now.choices(instance, model))
            return Small(happened, tuple(before_and_after(module, before, frozenset(after))))
        solver.pop()
    return None


def _fewest(solver: z3.Solver, now: Moment) -> Any:
    """A model with as few true cells as taking them away one by one allows."""
    model = solver.model()
    for cell in now.cells:
        if z3.is_true(model.eval(cell, model_completion=True)):
            solver.push()
            solver.add(z3.Not(cell))
            if solver.check() == z3.sat:
                model = solver.model()
            else:
                solver.pop()
        else:
            solver.add(z3.Not(cell))
    return model
