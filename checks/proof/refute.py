"""``kvproof refute``: the shortest run that breaks a rule in a mutant of the spec (bounded model checking).

The mutant's stage says how small a pool is enough.  Runs of one step are asked for first, then of two,
and so on, so the first one found is a shortest one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import z3

from kvproof.checks.proof.prove import CERTIFIED, UNDETERMINED, VIOLATED, mutated
from kvproof.checks.proof.spec_finding import SpecFinding, length_of
from kvproof.checks.proof.spec_trace import write_run
from kvproof.checks.proof.states_in_words import told
from kvproof.checks.proof.unroll import Run, Unrolling
from kvproof.checks.readings.ground import shortest
from kvproof.checks.readings.machine import ALL, Machine, Scope
from kvproof.checks.readings.spec_errors import UnknownMutant
from kvproof.spec.language import RULES
from kvproof.spec.mutants import MUTANTS, Mutant
from kvproof.spec.steps import Module, nothing

ROW_RELATIONS = frozenset(
    {"uses", "may_write", "committed", "filled", "blank", "fills", "delivers", "matches", "stored"}
)
"""What a coarse scope leaves out: the meaning of rows."""
ONE_STREAM = {"copied": ALL, "after": ALL}
"""All work is on one in-order stream, and a copy takes all rows of its block."""
MOST_STEPS = 12


@dataclass(frozen=True)
class RefuteResult:
    """``violated`` with the shortest run, ``certified`` if no run within the bound breaks the rule."""

    verdict: str
    finding: SpecFinding | None
    seconds: float
    mutant: str
    bound: str

    def to_json(self) -> dict[str, Any]:
        """The object that ``kvproof refute --json`` prints."""
        return {
            "verdict": self.verdict,
            "finding": None if self.finding is None else self.finding.as_json(),
            "seconds": round(self.seconds, 3),
            "mutant": self.mutant,
            "bound": self.bound,
        }

    def exit_code(self) -> int:
        """1 when the mutant was caught."""
        return {CERTIFIED: 0, VIOLATED: 1}.get(self.verdict, 3)


def refute(name: str, *, out: str | Path | None = None, most_steps: int = MOST_STEPS) -> RefuteResult:
    """The shortest run that breaks the mutant's rule.

    ``out``: a folder for the trace, which can be replayed on ``reference:NAME``.  Raises
    :class:`UnknownMutant`.
    """
    if name not in MUTANTS:
        raise UnknownMutant(f"no mutant is called {name!r}: choose one of {', '.join(MUTANTS)}")
    began = time.perf_counter()
    mutant = MUTANTS[name]
    bound = f"{most_steps} steps, " + ", ".join(
        f"{n} {'indices' if sort == 'index' else sort + 's'}" for sort, n in sorted(_sizes(mutant).items()) if n > 1
    )
    try:
        found = find(mutated(mutant), mutant, most_steps)
    except TimeoutError:
        return RefuteResult(UNDETERMINED, None, time.perf_counter() - began, name, bound)
    if found is None:
        return RefuteResult(CERTIFIED, None, time.perf_counter() - began, name, bound)
    run, sentence = found
    sentence = sentence.replace("{", "a ").replace("}", "")
    finding = SpecFinding(mutant.rule, sentence, length_of(run.steps), tuple(str(step) for step in run.steps))
    if out is not None:
        finding = replace(finding, trace=write_run(name, run.steps, Path(out)))
    return RefuteResult(VIOLATED, finding, time.perf_counter() - began, name, bound)


def _sizes(mutant: Mutant) -> dict[str, int]:
    module = mutated(mutant)
    return {**dict.fromkeys(module.states.sorts, 1), **mutant.stage.sizes}


def scope_of(mutant: Mutant) -> Scope:
    """The mutant's stage as a scope."""
    stage = mutant.stage
    return Scope(
        _sizes(mutant),
        declared=stage.declared,
        slots=stage.slots,
        reserved_blocks=stage.reserved_blocks,
        choices=ONE_STREAM if stage.coarse else {},
        without=ROW_RELATIONS if stage.coarse else frozenset(),
        actions=tuple(dict.fromkeys((*stage.actions, mutant.replaces))),
    )


def find(module: Module, mutant: Mutant, most_steps: int = MOST_STEPS) -> tuple[Run, str] | None:
    """The shortest run of the module that breaks the mutant's rule within its stage, with the sentence.

    The module may be the mutant's or the correct one (which must have none).
    """
    stage = mutant.stage
    if mutant.module != "storage":
        actions = tuple(dict.fromkeys((*stage.actions, mutant.replaces)))
        return shortest(module, mutant.rule, actions, _sizes(mutant), stage.declared, most_steps, 60_000)
    machine = Machine(module, scope_of(mutant))
    names = (mutant.rule, *([mutant.seen_as] if mutant.seen_as else ()))
    goals = machine.goals(names)
    unrolling = Unrolling(machine)
    for _ in range(most_steps):
        unrolling.step(machine.instances)
        for goal in goals:
            run = unrolling.solve(z3.Not(unrolling.moments[-1].term(goal.node)))
            if run is not None:
                return run, told(machine, goal.sentence, goal.formula, run.states[-1])
        for sentence, broken in _broken_steps(module, machine, unrolling, names):
            run = unrolling.solve(broken)
            if run is not None:
                return run, sentence
    return None


def _broken_steps(
    module: Module, machine: Machine, unrolling: Unrolling, names: Sequence[str]
) -> Iterator[tuple[str, Any]]:
    """For each clause of a step rule, that the last step breaks it."""
    s = module.states.state("s")
    for name in names:
        if name not in RULES or not RULES[name].step:
            continue
        blank = nothing("event", module.events)
        for i, sentence in enumerate(clause.broken for clause in RULES[name].clauses(s, blank, s)):
            if (name, i) in module.not_carried:
                continue
            moment, taken = unrolling.last_step()
            cases = []
            for instance, chosen in taken:
                action = module.actions[instance.action]
                step = action.step(s, module.choices.state("given"), blank)
                env = dict(zip(action.variables, (number for _, number in instance.things), strict=True))
                clause = RULES[name].clauses(s, step.event, step.after)[i]
                node = machine.reading().formula(clause.formula, env)
                cases.append(z3.And(chosen, z3.Not(moment.term(node))))
            yield sentence, z3.Or(cases)


def run(mutant: str, json_output: bool = False, out: str | Path | None = None) -> int:
    """The command ``kvproof refute``: prints, and returns the exit code."""
    from kvproof.checks.proof import present

    result = refute(mutant, out=out)
    if json_output:
        present.show_json(result.to_json())
    else:
        present.show_refutation(result)
    return result.exit_code()
