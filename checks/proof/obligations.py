"""Proof obligations: for each action and each clause, one question to the prover.

"From every state that keeps all rules and theorems, does this action lead to a state that keeps this
clause?"  An action that changes nothing that the clause reads needs no question.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvproof.checks.readings.formulas import reads
from kvproof.checks.readings.machine import clause_of, state_clauses
from kvproof.spec.language import RULES, Clause, Formula, State, Unchanged
from kvproof.spec.steps import Module, Step, nothing

START = "the empty system"
"""Stands where an action's name would: the clause holds in the states that the module starts in."""


@dataclass(frozen=True)
class Obligation:
    """One question: ``clause`` (about the state after) must follow.  ``trivial``: nothing it reads changes."""

    theorem: str
    action: str
    clause: Clause
    trivial: bool = False


@dataclass(frozen=True)
class Premises:
    """What is known before: rules, theorems and assumptions about ``s``."""

    formulas: tuple[Formula, ...]


def premises(module: Module, s: State) -> Premises:
    """Everything that may be assumed of the state before."""
    known = [clause.formula for _, clauses in state_clauses(module, s) for clause in clauses]
    return Premises((*known, *(theorem.formula(s) for theorem in module.assumes)))


def step_of(module: Module, action: str, s: State) -> Step:
    """The action on the state ``s`` with the choices ``given``."""
    return module.actions[action].step(s, module.choices.state("given"), nothing("event", module.events))


def at_the_start(module: Module, s: State) -> Iterator[Obligation]:
    """State rules and theorems must hold where the module starts."""
    for name, clauses in state_clauses(module, s):
        for clause in clauses:
            yield Obligation(name, START, clause)


def of_action(module: Module, action: str, s: State, step: Step) -> Iterator[Obligation]:
    """Everything that the action must keep: state rules and theorems afterwards, step rules across."""
    changed = {name for name, updated in step.after if not isinstance(updated, Unchanged)}
    before = state_clauses(module, s)
    for (name, clauses), (_, old) in zip(state_clauses(module, step.after), before, strict=True):
        for clause, unchanged in zip(clauses, old, strict=True):
            yield Obligation(name, action, clause, not reads(unchanged.formula) & changed)
    for name in module.rules:
        if RULES[name].step:
            for i, clause in enumerate(RULES[name].clauses(s, step.event, step.after)):
                if (name, i) not in module.not_carried:
                    yield Obligation(name, action, clause)
    for theorem in module.theorems:
        if theorem.kind == "step":
            clause = clause_of(theorem, theorem.formula(s, step.event, step.after))
            yield Obligation(theorem.name, action, clause)
