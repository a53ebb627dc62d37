"""The set reading of actions: may this step happen here, and what is the state afterwards?

The same text that is proved and explored, evaluated on finite sets: guards are tests, and each relation
of the next state is a search for its tuples.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kvproof.checks.readings import sets
from kvproof.checks.readings.formulas import free_variables, reads
from kvproof.checks.readings.sets import Facts, Row
from kvproof.spec import language as L
from kvproof.spec.steps import Action, Module, nothing
from kvproof.spec.storage import GIVEN, MACHINE


class NotAllowed(ValueError):
    """The text does not allow this action here."""

    def __init__(self, action: str, things: Mapping[str, Hashable], guard: int) -> None:
        named = ", ".join(f"{name}={thing}" for name, thing in things.items())
        super().__init__(f"{action}({named}) is not allowed here: its condition {guard + 1} does not hold")
        self.action, self.guard = action, guard


@dataclass(frozen=True)
class _Update:
    relation: str
    search: sets.Search
    columns: tuple[int, ...]


def simplified(formula: L.Formula) -> L.Formula:
    """A formula in negation normal form without constants inside, and without empty or single joins."""
    match formula:
        case L.And() | L.Or():
            conjunction = isinstance(formula, L.And)
            parts: list[L.Formula] = []
            for part in map(simplified, formula.parts):
                if isinstance(part, L.Truth):
                    if part.value != conjunction:
                        return part
                elif type(part) is (L.And if conjunction else L.Or):
                    parts += part.parts
                else:
                    parts.append(part)
            if not parts:
                return L.Truth(conjunction)
            return parts[0] if len(parts) == 1 else (L.And if conjunction else L.Or)(tuple(parts))
        case L.ForAll() | L.Exists():
            body = simplified(formula.body)
            return body if isinstance(body, L.Truth) else type(formula)(formula.variables, body)
        case L.Not():
            body = simplified(formula.body)
            return L.Truth(not body.value) if isinstance(body, L.Truth) else ~body
        case _:
            return formula


class ActionCompiler(sets._Compiler):
    """The set reading's compiler, which also reads ``x == known`` as "x is that thing"."""

    def _complete(self, formula: L.Formula, known: frozenset[L.Variable], wanted: frozenset[L.Variable]) -> sets.Search:
        found = known | _finds(formula, known)
        if missing := sorted(wanted - found, key=lambda v: v.name):
            return self._enumerate(missing[0], self._complete(formula, known | {missing[0]}, wanted))
        if known >= free_variables(formula):
            return sets._filter([self.test(formula)], sets._once)
        return self.search(formula, known)

    def search(self, formula: L.Formula, known: frozenset[L.Variable]) -> sets.Search:
        if isinstance(formula, L.Equal) and not known >= free_variables(formula):
            return self._conjunction([formula], known)
        return super().search(formula, known)

    def _conjunction(self, parts: list[L.Formula], known: frozenset[L.Variable]) -> sets.Search:
        for part in parts:
            if not isinstance(part, L.Equal) or (part.left in known) == (part.right in known):
                continue
            source, target = (part.left, part.right) if part.left in known else (part.right, part.left)
            rest = self._conjunction([other for other in parts if other is not part], known | {target})
            return _bind(self.place(source), self.place(target), rest)
        return super()._conjunction(parts, known)


def _bind(source: int, target: int, rest: sets.Search) -> sets.Search:
    def bound(env: sets.Environment, states: sets.States) -> Iterator[None]:
        env[target] = env[source]
        yield from rest(env, states)

    return bound


def _finds(formula: L.Formula, known: frozenset[L.Variable]) -> frozenset[L.Variable]:
    """Variables that a search of the formula makes known without going through all things of a sort."""
    match formula:
        case L.Atom():
            return frozenset(formula.variables)
        case L.Equal():
            sides = frozenset((formula.left, formula.right))
            return sides if sides & known else frozenset()
        case L.And() | L.Exists():
            parts = sets._conjuncts(formula)
            found = known
            while more := frozenset[L.Variable]().union(*(_finds(part, found) for part in parts)) - found:
                found |= more
            return found - known
        case L.Or():
            return frozenset.intersection(*(_finds(part, known) for part in formula.parts))
        case _:
            return frozenset()


class SetAction:
    """One action, compiled to tests and searches.  ``without``: relations that are left out, with the guards
    that read them."""

    def __init__(self, module: Module, action: Action, without: frozenset[str]) -> None:
        self.action = action
        compiler = ActionCompiler()
        s, given = module.states.state("s"), module.choices.state("given")
        step = action.step(s, given, nothing("event", module.events))
        self.places = [compiler.place(variable) for variable in action.variables]
        known = frozenset(action.variables)
        self.guards = [
            (number, compiler.test(simplified(sets.negation_normal(guard))))
            for number, guard in enumerate(step.guards)
            if not reads(guard) & without
        ]
        self.updates: list[_Update] = []
        for name, updated in step.after:
            if isinstance(updated, L.Unchanged) or name in without or updated.relation.numeric:
                continue
            columns = L.fresh_variables(updated.relation.sorts)
            formula = simplified(sets.negation_normal(updated(*columns)))
            search = compiler._complete(formula, known, known | frozenset(columns))
            self.updates.append(_Update(name, search, tuple(compiler.place(column) for column in columns)))
        self.size = len(compiler.places)

    def apply(self, state: Facts, things: Mapping[str, Hashable], given: Facts, world: Facts) -> Facts:
        """The state afterwards.  ``world`` mentions everything that there is.  Raises :class:`NotAllowed`."""
        env: list[object] = [None] * self.size
        for place, variable in zip(self.places, self.action.variables, strict=True):
            env[place] = things[variable.name]
        states = {"s": state, "given": given, "world": world}
        for number, test in self.guards:
            if not test(env, states):
                raise NotAllowed(self.action.name, things, number)
        relations: dict[str, Sequence[Row]] = {name: list(table.rows) for name, table in state.tables.items()}
        for update in self.updates:
            rows: dict[Row, None] = {}
            for _ in update.search(env, states):
                rows[tuple(env[place] for place in update.columns)] = None
            relations[update.relation] = list(rows)
        return Facts(relations, vocabulary=MACHINE, last=state)


class SetMachine:
    """A module on finite sets."""

    def __init__(self, module: Module, without: frozenset[str]) -> None:
        self.module, self.without = module, without
        self._compiled: dict[str, SetAction] = {}

    def apply(
        self,
        state: Facts,
        action: str,
        things: Mapping[str, Hashable],
        world: Facts,
        given: Mapping[str, Sequence[Row]] | None = None,
    ) -> Facts:
        """The state after one action.  Raises :class:`NotAllowed`."""
        if action not in self._compiled:
            self._compiled[action] = SetAction(self.module, self.module.actions[action], self.without)
        return self._compiled[action].apply(state, things, Facts(given or {}, vocabulary=GIVEN), world)
