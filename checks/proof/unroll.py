"""A machine unrolled for a solver: its states after 0, 1, 2, ... steps as Boolean unknowns.

Used for bounded model checking (``refute``), for showing that actions can happen (``prove``), and for
small before-and-after states of a failed proof.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import z3

from kvproof.checks.readings.circuit import AND, CONSTANT, NOT, TRUE, VARIABLE
from kvproof.checks.readings.finite import Cell
from kvproof.checks.readings.machine import Instance, Machine


@dataclass(frozen=True)
class Happened:
    """One step of a run: the action, its things, and what the caller chose."""

    action: str
    things: tuple[tuple[str, int], ...]
    chosen: tuple[Cell, ...] = ()

    def __str__(self) -> str:
        chosen = "".join(f", {name}{list(row) if row else ''}" for name, row in self.chosen)
        return f"{self.action}({', '.join(f'{name}={thing}' for name, thing in self.things)}{chosen})"


@dataclass(frozen=True)
class Run:
    """A run of a machine: steps, and the true cells of every state, the first one included."""

    steps: tuple[Happened, ...]
    states: tuple[frozenset[Cell], ...]


class Moment:
    """The nodes of a machine's circuit as solver terms in one state."""

    def __init__(self, machine: Machine, number: int) -> None:
        self.machine, self.number = machine, number
        self.cells = [z3.Bool(f"{name}{row}@{number}") for name, row in machine.cells]
        self._terms: dict[int, Any] = {0: z3.BoolVal(False), 1: z3.BoolVal(True)}
        self._terms.update(zip(machine.inputs, self.cells, strict=True))

    def term(self, node: int) -> Any:
        """The solver's term for a node."""
        circuit = self.machine.circuit
        for here in circuit.cone([node]):
            if here in self._terms:
                continue
            kind = circuit.kind[here]
            left = self._terms.get(circuit.left[here])
            if kind == VARIABLE:
                self._terms[here] = z3.Bool(f"choice{here}@{self.number}")
            elif kind == NOT:
                self._terms[here] = z3.Not(left)
            elif kind == CONSTANT:
                self._terms[here] = z3.BoolVal(here == TRUE)
            else:
                joined = z3.And if kind == AND else z3.Or
                self._terms[here] = joined(left, self._terms[circuit.right[here]])
        return self._terms[node]

    def true_cells(self, model: Any) -> frozenset[Cell]:
        """The cells that are true in a model."""
        return frozenset(
            cell
            for cell, term in zip(self.machine.cells, self.cells, strict=True)
            if z3.is_true(model.eval(term, model_completion=True))
        )

    def choices(self, instance: Instance, model: Any) -> tuple[Cell, ...]:
        """What the caller of an instance chose in a model."""
        names = self.machine.choice_names()
        return tuple(
            names[node] for node in instance.chosen if z3.is_true(model.eval(self.term(node), model_completion=True))
        )


class Unrolling:
    """The runs of a machine, one more step at a time."""

    def __init__(self, machine: Machine, *, from_start: bool = True, timeout_ms: int = 60_000) -> None:
        self.machine = machine
        self.solver = z3.SolverFor("QF_FD")
        self.solver.set("timeout", timeout_ms)
        self.moments = [Moment(machine, 0)]
        self._taken: list[list[tuple[Instance, Any]]] = []
        if from_start:
            for term, value in zip(self.moments[0].cells, machine.initial, strict=True):
                self.solver.add(term if value else z3.Not(term))

    def step(self, instances: Iterable[Instance]) -> None:
        """One more step: exactly one of these instances happens."""
        now, after = self.moments[-1], Moment(self.machine, len(self.moments))
        taken: list[tuple[Instance, Any]] = []
        changers: dict[int, list[tuple[Any, int]]] = {}
        for number, instance in enumerate(instances):
            chosen = z3.Bool(f"step{number}@{now.number}")
            taken.append((instance, chosen))
            self.solver.add(z3.Implies(chosen, now.term(instance.guard)))
            for place, node in instance.changes:
                changers.setdefault(place, []).append((chosen, node))
        self.solver.add(z3.PbEq([(chosen, 1) for _, chosen in taken], 1) if taken else z3.BoolVal(False))
        for place, (before, next_one) in enumerate(zip(now.cells, after.cells, strict=True)):
            if place not in changers:
                self.solver.add(next_one == before)
                continue
            for chosen, node in changers[place]:
                self.solver.add(z3.Implies(chosen, next_one == now.term(node)))
            untouched = z3.Not(z3.Or([chosen for chosen, _ in changers[place]]))
            self.solver.add(z3.Implies(untouched, next_one == before))
        self._taken.append(taken)
        self.moments.append(after)

    def last_step(self) -> tuple[Moment, list[tuple[Instance, Any]]]:
        """The state before the last step, and for each instance the term that says that it is the one."""
        return self.moments[-2], self._taken[-1]

    def solve(self, *extra: Any) -> Run | None:
        """A run in which the extra terms hold as well, or None if there is none.

        Raises ``TimeoutError`` when the solver gives up.
        """
        self.solver.push()
        self.solver.add(*extra)
        answer = self.solver.check()
        run = self._run(self.solver.model()) if answer == z3.sat else None
        self.solver.pop()
        if answer == z3.unknown:
            raise TimeoutError(f"the solver gave up after {len(self._taken)} steps: {self.solver.reason_unknown()}")
        return run

    def _run(self, model: Any) -> Run:
        steps = []
        for moment, taken in zip(self.moments, self._taken, strict=False):
            for instance, chosen in taken:
                if z3.is_true(model.eval(chosen, model_completion=True)):
                    steps.append(Happened(instance.action, instance.things, moment.choices(instance, model)))
        return Run(tuple(steps), tuple(moment.true_cells(model) for moment in self.moments))


def along(machine: Machine, actions: Sequence[str]) -> Unrolling:
    """The runs from the start in which actions of these names happen in this order."""
    unrolling = Unrolling(machine)
    for name in actions:
        unrolling.step([instance for instance in machine.instances if instance.action == name])
    return unrolling


def follow(machine: Machine, actions: Sequence[str]) -> Run | None:
    """One of the runs in which actions of these names happen in this order, if there is one."""
    return along(machine, actions).solve()
