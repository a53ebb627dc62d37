"""The ground reading: sorts are small sets, but numbers are any whole numbers (unknowns of the solver).

The modules of lengths and records speak of numbers, which bit planes do not have; their shortest
counterexamples come from here.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import z3

from kvproof.checks.proof.unroll import Happened, Run
from kvproof.checks.readings.finite import Cell, Tuple
from kvproof.checks.readings.formulas import premise_of
from kvproof.checks.readings.z3_reading import new_solver
from kvproof.spec import language as L
from kvproof.spec.language import RULES
from kvproof.spec.steps import Module, Step, nothing

SMALL = {"block_size": (1, 4), "usable_blocks": (0, 8), "usable_slots": (0, 8)}
"""Bounds of fixed numbers, so that counterexamples can be read."""
LARGEST = 16
"""Bound of the numbers that a caller chooses, for the same reason."""

Env = Mapping[L.Variable, int]


class Ground:
    """One state of the unrolled system: a solver unknown for every cell."""

    def __init__(self, module: Module, sizes: Mapping[str, int], number: int, declared: frozenset[str]) -> None:
        self.module, self.sizes, self.number, self.declared = module, sizes, number, declared
        self.unknowns: dict[Cell, Any] = {}

    def tuples(self, sorts: tuple[L.Sort, ...]) -> Iterator[Tuple]:
        """All tuples over these sorts."""
        return itertools.product(*(range(self.sizes[sort.name]) for sort in sorts))

    def cell(self, state: str, relation: L.Relation, row: Tuple) -> Any:
        """The unknown of a relation's tuple, in this state or among the choices made in it."""
        if relation.fixed and not relation.numeric:
            return z3.BoolVal(relation.name in self.declared)
        where = "fixed" if relation.fixed else f"{state}@{self.number}"
        key = (f"{where}.{relation.name}", row)
        if key not in self.unknowns:
            make = z3.Int if relation.numeric else z3.Bool
            self.unknowns[key] = make(f"{key[0]}{list(row)}")
        return self.unknowns[key]

    def formula(self, formula: L.Formula, env: Env) -> Any:
        """A formula as a solver term."""
        match formula:
            case L.Truth():
                return z3.BoolVal(formula.value)
            case L.Atom():
                return self.cell(formula.state, formula.relation, tuple(env[v] for v in formula.variables))
            case L.Equal():
                return z3.BoolVal(env[formula.left] == env[formula.right])
            case L.Less():
                return z3.BoolVal(env[formula.left] < env[formula.right])
            case L.Not():
                return z3.Not(self.formula(formula.body, env))
            case L.And():
                return z3.And([self.formula(part, env) for part in formula.parts])
            case L.Or():
                return z3.Or([self.formula(part, env) for part in formula.parts])
            case L.Iff():
                return self.formula(formula.left, env) == self.formula(formula.right, env)
            case L.ForAll() | L.Exists():
                join = z3.And if isinstance(formula, L.ForAll) else z3.Or
                rows = self.tuples(tuple(v.sort for v in formula.variables))
                inner = ({**env, **dict(zip(formula.variables, row, strict=True))} for row in rows)
                return join([self.formula(formula.body, e) for e in inner])
            case L.Compare():
                left, right = self.value(formula.left, env), self.value(formula.right, env)
                return left == right if formula.op == "==" else left < right if formula.op == "<" else left <= right
        raise L.SpecError(f"the ground reading does not know {type(formula).__name__}")

    def value(self, number: L.Number, env: Env) -> Any:
        """A number as a solver term."""
        match number:
            case L.Literal():
                return z3.IntVal(number.value)
            case L.Measure():
                return self.cell(number.state, number.function, tuple(env[v] for v in number.variables))
            case L.Choice():
                return z3.If(
                    self.formula(number.condition, env), self.value(number.then, env), self.value(number.otherwise, env)
                )
            case L.Arithmetic():
                left, right = self.value(number.left, env), self.value(number.right, env)
                match number.op:
                    case "+":
                        return left + right
                    case "-":
                        return left - right
                    case "*":
                        return left * right
                    case "//":
                        return left / right
                    case _:
                        return left % right
        raise L.SpecError(f"the ground reading does not know {type(number).__name__}")


def shortest(
    module: Module,
    rule: str,
    actions: tuple[str, ...],
    sizes: Mapping[str, int],
    declared: frozenset[str],
    most: int,
    timeout_ms: int,
) -> tuple[Run, str] | None:
    """The shortest run of at most ``most`` steps that breaks the rule, and the sentence that is then true."""
    s, given = module.states.state("s"), module.choices.state("given")
    steps = {name: module.actions[name].step(s, given, nothing("event", module.events)) for name in actions}
    solver = new_solver()
    solver.set("timeout", timeout_ms)
    here = Ground(module, sizes, 0, declared)
    _begin(solver, module, here)
    path: list[tuple[Ground, list[tuple[str, Tuple, Any]]]] = []
    for depth in range(1, most + 1):
        after = Ground(module, sizes, depth, declared)
        taken = _add_step(solver, module, steps, here, after)
        path.append((here, taken))
        for sentence, broken in _broken(module, rule, steps, here, after, taken):
            solver.push()
            solver.add(broken)
            answer = solver.check()
            if answer == z3.sat:
                return _run(module, path, solver.model()), sentence
            solver.pop()
            if answer == z3.unknown:
                raise TimeoutError(f"the solver gave up at depth {depth}: {solver.reason_unknown()}")
        here = after
    return None


def tells(
    module: Module, actions: Sequence[str], sizes: Mapping[str, int], declared: frozenset[str]
) -> dict[str, bool] | None:
    """Whether there is a run with these actions, in this order; and for each clause of the module's rules
    whether its premise can be met in one.  None if there is no such run."""
    s, given = module.states.state("s"), module.choices.state("given")
    solver = new_solver()
    solver.set("timeout", 20_000)
    here = Ground(module, sizes, 0, declared)
    _begin(solver, module, here)
    path: list[tuple[Ground, str, Step, list[tuple[str, Tuple, Any]]]] = []
    for number, name in enumerate(actions, start=1):
        step = module.actions[name].step(s, given, nothing("event", module.events))
        after = Ground(module, sizes, number, declared)
        path.append((here, name, step, _add_step(solver, module, {name: step}, here, after)))
        here = after
    if solver.check() != z3.sat:
        return None
    met: dict[str, bool] = {}
    for rule in module.rules:
        for i, clause in enumerate(_clauses(module, rule, s, nothing("event", module.events), s)):
            if (rule, i) in module.not_carried:
                continue
            if not RULES[rule].step:
                wanted = [here.formula(premise_of(clause.formula), {})]
            else:
                wanted = []
                for before, name, step, taken in path:
                    there = premise_of(_clauses(module, rule, s, step.event, step.after)[i].formula)
                    for _, row, chosen in taken:
                        env = dict(zip(module.actions[name].variables, row, strict=True))
                        wanted.append(z3.And(chosen, before.formula(there, env)))
            solver.push()
            solver.add(z3.Or(wanted))
            met[f"{rule}: {clause.broken}"] = solver.check() == z3.sat
            solver.pop()
    return met


def _clauses(module: Module, rule: str, s: L.State, event: L.State, t: L.State) -> tuple[L.Clause, ...]:
    del module
    return RULES[rule].clauses(s, event, t) if RULES[rule].step else RULES[rule].clauses(s)


def _begin(solver: z3.Solver, module: Module, here: Ground) -> None:
    """The first state: where the module starts, with small fixed numbers."""
    s = module.states.state("s")
    solver.add(here.formula(module.initial(s), {}))
    for theorem in module.assumes:
        solver.add(here.formula(theorem.formula(s), {}))
    for name, (low, high) in SMALL.items():
        if name in module.states.relations:
            fixed = here.cell("s", module.states.relations[name], ())
            solver.add(fixed >= low, fixed <= high)


def _add_step(
    solver: z3.Solver, module: Module, steps: Mapping[str, Step], here: Ground, after: Ground
) -> list[tuple[str, Tuple, Any]]:
    taken: list[tuple[str, Tuple, Any]] = []
    relations = [r for r in module.states.relations.values() if not r.fixed]
    for choice in module.choices.relations.values():
        if choice.numeric:
            number = here.cell("given", choice, ())
            solver.add(number >= 0, number <= LARGEST)
    for name, step in steps.items():
        variables = module.actions[name].variables
        for row in here.tuples(tuple(v.sort for v in variables)):
            env = dict(zip(variables, row, strict=True))
            chosen = z3.Bool(f"{name}{list(row)}@{here.number}")
            taken.append((name, row, chosen))
            solver.add(z3.Implies(chosen, z3.And([here.formula(guard, env) for guard in step.guards])))
            for relation in relations:
                columns = L.fresh_variables(relation.sorts)
                updated = getattr(step.after, relation.name)(*columns)
                for cell in here.tuples(relation.sorts):
                    inner = {**env, **dict(zip(columns, cell, strict=True))}
                    value = here.value(updated, inner) if relation.numeric else here.formula(updated, inner)
                    solver.add(z3.Implies(chosen, after.cell("s", relation, cell) == value))
    solver.add(z3.PbEq([(chosen, 1) for _, _, chosen in taken], 1))
    return taken


def _broken(
    module: Module,
    rule: str,
    steps: Mapping[str, Step],
    here: Ground,
    after: Ground,
    taken: list[tuple[str, Tuple, Any]],
) -> Iterator[tuple[str, Any]]:
    s = module.states.state("s")
    if not RULES[rule].step:
        for i, clause in enumerate(RULES[rule].clauses(s)):
            if (rule, i) not in module.not_carried:
                yield clause.broken, z3.Not(after.formula(clause.formula, {}))
        return
    sentences = [clause.broken for clause in RULES[rule].clauses(s, nothing("event", module.events), s)]
    for i, sentence in enumerate(sentences):
        if (rule, i) in module.not_carried:
            continue
        cases = []
        for name, row, chosen in taken:
            step = steps[name]
            clause = RULES[rule].clauses(s, step.event, step.after)[i]
            env = dict(zip(module.actions[name].variables, row, strict=True))
            cases.append(z3.And(chosen, z3.Not(here.formula(clause.formula, env))))
        yield sentence, z3.Or(cases)


def _run(module: Module, path: list[tuple[Ground, list[tuple[str, Tuple, Any]]]], model: Any) -> Run:
    steps = []
    for here, taken in path:
        for name, row, chosen in taken:
            if z3.is_true(model.eval(chosen, model_completion=True)):
                action = module.actions[name]
                named = [(v.name, thing) for v, thing in zip(action.variables, row, strict=True)]
                if action.given:
                    used = {n.name for n in _chosen_numbers(module, name)}
                    for relation in module.choices.relations.values():
                        if relation.name in used:
                            value = model.eval(here.cell("given", relation, ()), model_completion=True)
                            named.append((relation.name, value.as_long()))
                steps.append(Happened(name, tuple(named)))
    return Run(tuple(steps), ())


def _chosen_numbers(module: Module, name: str) -> Iterator[L.Relation]:
    from kvproof.checks.readings.formulas import atoms_of

    step = module.actions[name].step(
        module.states.state("s"), module.choices.state("given"), nothing("event", module.events)
    )
    for guard in step.guards:
        for state, relation in atoms_of(guard):
            if state == "given" and relation.numeric:
                yield relation
