"""The set reading: relations are finite sets, so a rule is evaluated on one observed state or step.

This is what certify, the stateful tests and the monitor run after each operation.  A clause
``forall x: premise -> conclusion`` is read as a search for a witness of ``premise and not
conclusion``, driven by the tuples of the premise's relations (never by the product of the sorts),
through indexes on the columns already known.  A rule is evaluated again only when a relation that
it reads has changed.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any, TypeAlias

from kvproof.checks.readings.formulas import free_variables
from kvproof.spec import language as L
from kvproof.spec.language import Clause, Formula, Number, Rule, Sort, Variable
from kvproof.spec.state import EVENT, STATE

Row: TypeAlias = tuple[Hashable, ...]


class Table:
    """The tuples of one relation, in a stable order, with indexes on demand.  Immutable."""

    __slots__ = ("_indexes", "rows")

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self.rows: dict[Row, None] = dict.fromkeys(rows)
        self._indexes: dict[tuple[int, ...], dict[Row, list[Row]]] = {}

    def where(self, columns: tuple[int, ...], values: Row) -> Collection[Row]:
        """The tuples that have these values in these columns."""
        if not columns:
            return self.rows
        index = self._indexes.get(columns)
        if index is None:
            index = self._indexes[columns] = {}
            for row in self.rows:
                index.setdefault(tuple(row[c] for c in columns), []).append(row)
        return index.get(values, ())


_NOTHING = Table()


class Facts:
    """A state (or an event) as sets: relations by name, numbers by name.  What is left out is empty or 0."""

    __slots__ = ("_universe", "measures", "tables", "vocabulary")

    def __init__(
        self,
        relations: Mapping[str, Iterable[Row]],
        measures: Mapping[str, Mapping[Row, int]] | None = None,
        *,
        vocabulary: L.Vocabulary = STATE,
        last: Facts | None = None,
    ) -> None:
        """``last``: an earlier state; relations equal to its own are shared, with their indexes."""
        known = vocabulary.relations
        if unknown := [n for n in (*relations, *(measures or ())) if n not in known]:
            raise L.SpecError(f"the vocabulary has no relation {unknown}")
        self.vocabulary = vocabulary
        self.tables: dict[str, Table] = {}
        for name, rows in relations.items():
            table = Table(rows)
            if last is not None:
                before = last.tables.get(name)
                if before is not None and before.rows == table.rows:
                    table = before
            self.tables[name] = table
        self.measures: dict[str, Mapping[Row, int]] = dict(measures or {})
        if last is not None:
            for name, values in self.measures.items():
                if last.measures.get(name) == values:
                    self.measures[name] = last.measures[name]
        self._universe: dict[str, list[Hashable]] | None = None

    def table(self, name: str) -> Table:
        """The tuples of a relation."""
        return self.tables.get(name, _NOTHING)

    def number(self, name: str, at: Row = ()) -> int:
        """The value of a measure."""
        return self.measures.get(name, {}).get(at, 0)

    def version(self, name: str) -> object:
        """An object that stays the same as long as the relation does."""
        return self.measures.get(name) if self.vocabulary.relations[name].numeric else self.tables.get(name)

    def universe(self, sort: Sort) -> list[Hashable]:
        """Everything of a sort that any relation mentions."""
        if self._universe is None:
            found: dict[str, dict[Hashable, None]] = {}
            for name, relation in self.vocabulary.relations.items():
                rows: Iterable[Row] = self.measures.get(name, ()) if relation.numeric else self.table(name).rows
                for row in rows:
                    for column, value in zip(relation.sorts, row, strict=True):
                        found.setdefault(column.name, {})[value] = None
            self._universe = {name: list(values) for name, values in found.items()}
        return self._universe.get(sort.name, [])


# ------------------------------------------------------------------------- compiling clauses to search

Environment: TypeAlias = list[Any]
States: TypeAlias = Mapping[str, Facts]
Test: TypeAlias = Callable[[Environment, States], bool]
Search: TypeAlias = Callable[[Environment, States], Iterator[None]]
Value: TypeAlias = Callable[[Environment, States], int]
Lookup: TypeAlias = Callable[[Environment], Row]


def negation_normal(formula: Formula, positive: bool = True) -> Formula:
    """The same formula with negation pushed down to the atoms."""
    match formula:
        case L.Not():
            return negation_normal(formula.body, not positive)
        case L.And() | L.Or():
            parts = tuple(negation_normal(part, positive) for part in formula.parts)
            return L.And(parts) if isinstance(formula, L.And) == positive else L.Or(parts)
        case L.Iff():
            left, right = formula.left, formula.right
            return negation_normal(L.Or((L.And((left, right)), L.And((~left, ~right)))), positive)
        case L.ForAll() | L.Exists():
            body = negation_normal(formula.body, positive)
            kind = L.ForAll if isinstance(formula, L.ForAll) == positive else L.Exists
            return kind(formula.variables, body)
        case L.Truth():
            return L.Truth(formula.value == positive)
        case _:
            return formula if positive else L.Not(formula)


class _Compiler:
    """Turns one clause into a search.  Every variable gets a place in the environment."""

    def __init__(self) -> None:
        self.places: dict[int, int] = {}
        self.reads: set[tuple[str, str]] = set()

    def place(self, variable: Variable) -> int:
        return self.places.setdefault(id(variable), len(self.places))

    # -- tests: all variables are known

    def test(self, formula: Formula) -> Test:
        """Truth of a formula in negation normal form whose free variables are all known."""
        match formula:
            case L.Truth():
                value = formula.value
                return lambda _env, _states: value
            case L.Atom():
                return self._member(formula)
            case L.Equal():
                a, b = self.place(formula.left), self.place(formula.right)
                return lambda env, _states: bool(env[a] == env[b])
            case L.Less():
                a, b = self.place(formula.left), self.place(formula.right)
                return lambda env, _states: bool(env[a] < env[b])
            case L.Compare():
                return self._compare(formula)
            case L.Not():
                inner = self.test(formula.body)
                return lambda env, states: not inner(env, states)
            case L.And():
                tests = [self.test(part) for part in sorted(formula.parts, key=_weight)]
                return lambda env, states: all(test(env, states) for test in tests)
            case L.Or():
                tests = [self.test(part) for part in sorted(formula.parts, key=_weight)]
                return lambda env, states: any(test(env, states) for test in tests)
            case L.Exists():
                known, body = free_variables(formula), formula.body
                if isinstance(body, L.Atom) and len(set(body.variables)) == len(body.variables):
                    return self._some_row(body, known)
                search = self.search(body, known)
                return lambda env, states: _found(search(env, states))
            case L.ForAll():
                counter = negation_normal(formula.body, False)
                search = self.search(counter, free_variables(formula))
                return lambda env, states: not _found(search(env, states))
        raise L.SpecError(f"the set reading does not know {type(formula).__name__}")

    def _member(self, atom: L.Atom) -> Test:
        name, state = atom.relation.name, atom.state
        self.reads.add((state, name))
        places = [self.place(v) for v in atom.variables]
        if len(places) == 1:
            (a,) = places
            return lambda env, states: (env[a],) in states[state].table(name).rows
        if len(places) == 2:
            a, b = places
            return lambda env, states: (env[a], env[b]) in states[state].table(name).rows
        return lambda env, states: tuple(env[p] for p in places) in states[state].table(name).rows

    def _compare(self, formula: L.Compare) -> Test:
        left, right = self.number(formula.left), self.number(formula.right)
        if formula.op == "==":
            return lambda env, states: left(env, states) == right(env, states)
        if formula.op == "<":
            return lambda env, states: left(env, states) < right(env, states)
        return lambda env, states: left(env, states) <= right(env, states)

    # -- numbers

    def number(self, number: Number) -> Value:
        match number:
            case L.Literal():
                value = number.value
                return lambda _env, _states: value
            case L.Measure():
                name, state = number.function.name, number.state
                self.reads.add((state, name))
                places = [self.place(v) for v in number.variables]
                return lambda env, states: states[state].number(name, tuple(env[p] for p in places))
            case L.Arithmetic():
                return self._arithmetic(number)
            case L.Choice():
                condition = self.test(negation_normal(number.condition))
                then, otherwise = self.number(number.then), self.number(number.otherwise)
                return lambda env, states: then(env, states) if condition(env, states) else otherwise(env, states)
            case L.HowMany():
                search = self.search(negation_normal(number.body), free_variables(number))
                counted = [self.place(v) for v in number.variables]
                return lambda env, states: len({tuple(env[p] for p in counted) for _ in search(env, states)})
        raise L.SpecError(f"the set reading does not know {type(number).__name__}")

    def _arithmetic(self, number: L.Arithmetic) -> Value:
        left, right, op = self.number(number.left), self.number(number.right), number.op
        if op == "+":
            return lambda env, states: left(env, states) + right(env, states)
        if op == "-":
            return lambda env, states: left(env, states) - right(env, states)
        if op == "*":
            return lambda env, states: left(env, states) * right(env, states)
        if op == "//":
            return lambda env, states: left(env, states) // right(env, states)
        return lambda env, states: left(env, states) % right(env, states)

    # -- searches: some variables are known, the others are found

    def search(self, formula: Formula, known: frozenset[Variable]) -> Search:
        """All ways to make a formula in negation normal form true, given the known variables."""
        match formula:
            case L.And() | L.Exists():
                return self._conjunction(_conjuncts(formula), known)
            case L.Or():
                wanted = free_variables(formula)
                branches = [self._complete(part, known, wanted) for part in formula.parts]

                def alternatives(env: Environment, states: States) -> Iterator[None]:
                    for branch in branches:
                        yield from branch(env, states)

                return alternatives
            case L.Atom() if not known >= free_variables(formula):
                return self._scan(formula, known)
            case _:
                return self._complete(formula, known, free_variables(formula))

    def _complete(self, formula: Formula, known: frozenset[Variable], wanted: frozenset[Variable]) -> Search:
        """A search that leaves all wanted variables known, by enumerating those that nothing finds."""
        found = known | _finds(formula, known)
        if missing := sorted(wanted - found, key=lambda v: v.name):
            return self._enumerate(missing[0], self._complete(formula, known | {missing[0]}, wanted))
        if known >= free_variables(formula):
            return _filter([self.test(formula)], _once)
        return self.search(formula, known)

    def _scan(self, atom: L.Atom, known: frozenset[Variable]) -> Search:
        name, state = atom.relation.name, atom.state
        self.reads.add((state, name))
        columns, given = self._known_columns(atom, known)
        targets = [(c, self.place(v)) for c, v in enumerate(atom.variables) if v not in known]
        repeated = len({p for _, p in targets}) < len(targets)

        def scan(env: Environment, states: States) -> Iterator[None]:
            for row in states[state].table(name).where(columns, given(env)):
                for column, place in targets:
                    env[place] = row[column]
                if repeated and any(env[place] != row[column] for column, place in targets):
                    continue
                yield

        return scan

    def _known_columns(self, atom: L.Atom, known: frozenset[Variable]) -> tuple[tuple[int, ...], Lookup]:
        """The columns whose values are known, and how to read those values from the environment."""
        columns = tuple(c for c, v in enumerate(atom.variables) if v in known)
        places = [self.place(atom.variables[c]) for c in columns]
        if len(places) == 1:
            (only,) = places
            return columns, lambda env: (env[only],)
        if len(places) == 2:
            first, second = places
            return columns, lambda env: (env[first], env[second])
        return columns, lambda env: tuple([env[place] for place in places])

    def _some_row(self, atom: L.Atom, known: frozenset[Variable]) -> Test:
        """Whether the relation has a tuple with the known values: the commonest question of all."""
        name, state = atom.relation.name, atom.state
        self.reads.add((state, name))
        columns, given = self._known_columns(atom, known)
        return lambda env, states: bool(states[state].table(name).where(columns, given(env)))

    def _enumerate(self, variable: Variable, rest: Search) -> Search:
        place, sort = self.place(variable), variable.sort

        def every(env: Environment, states: States) -> Iterator[None]:
            for value in dict.fromkeys(v for facts in states.values() for v in facts.universe(sort)):
                env[place] = value
                yield from rest(env, states)

        return every

    def _conjunction(self, parts: list[Formula], known: frozenset[Variable]) -> Search:
        """Known facts first, then the atom with the most known columns; enumeration last."""
        tests = [part for part in parts if known >= free_variables(part)]
        open_parts = [part for part in parts if not known >= free_variables(part)]
        compiled = [self.test(part) for part in sorted(tests, key=_weight)]
        if not open_parts:
            return _filter(compiled, _once)
        best = min(open_parts, key=lambda part: _cost(part, known))
        rest = [part for part in open_parts if part is not best]
        if isinstance(best, L.Atom):
            step = self._scan(best, known)
        elif isinstance(best, L.Or) and not _needs_enumeration(best, known):
            step = self.search(best, known)
        else:
            variable = min(free_variables(best) - known, key=lambda v: v.name)
            return _filter(compiled, self._enumerate(variable, self._conjunction(open_parts, known | {variable})))
        after = known | free_variables(best)
        return _filter(compiled, _then(step, self._conjunction(rest, after)))


def _conjuncts(formula: Formula) -> list[Formula]:
    """The parts of nested conjunctions and existentials (variables are distinct objects)."""
    match formula:
        case L.And():
            return [inner for part in formula.parts for inner in _conjuncts(part)]
        case L.Exists():
            return _conjuncts(formula.body)
        case _:
            return [formula]


def _finds(formula: Formula, known: frozenset[Variable]) -> frozenset[Variable]:
    """Variables that a search of the formula makes known without enumerating a sort."""
    match formula:
        case L.Atom():
            return frozenset(formula.variables)
        case L.And() | L.Exists():
            return frozenset().union(*(_finds(part, known) for part in _conjuncts(formula)))
        case L.Or():
            return frozenset.intersection(*(_finds(part, known) for part in formula.parts))
        case _:
            return frozenset()


def _needs_enumeration(formula: Formula, known: frozenset[Variable]) -> bool:
    return not known | _finds(formula, known) >= free_variables(formula)


def _cost(formula: Formula, known: frozenset[Variable]) -> tuple[int, int]:
    if isinstance(formula, L.Atom):
        return (1, len(free_variables(formula) - known))
    if isinstance(formula, L.Or) and not _needs_enumeration(formula, known):
        return (2, len(free_variables(formula) - known))
    return (3, len(free_variables(formula) - known))


def _weight(formula: Formula) -> int:
    """Cheap tests first."""
    match formula:
        case L.Truth() | L.Atom() | L.Equal() | L.Less():
            return 0
        case L.Not():
            return _weight(formula.body)
        case L.And() | L.Or():
            return 1 + max((_weight(part) for part in formula.parts), default=0)
        case _:
            return 9


def _once(_env: Environment, _states: States) -> Iterator[None]:
    yield


def _filter(tests: Sequence[Test], rest: Search) -> Search:
    if not tests:
        return rest

    def filtered(env: Environment, states: States) -> Iterator[None]:
        for test in tests:
            if not test(env, states):
                return
        yield from rest(env, states)

    return filtered


def _then(first: Search, second: Search) -> Search:
    if second is _once:
        return first

    def both(env: Environment, states: States) -> Iterator[None]:
        for _ in first(env, states):
            yield from second(env, states)

    return both


def _found(solutions: Iterator[None]) -> bool:
    return next(solutions, solutions) is not solutions


# ---------------------------------------------------------------------------------- rules, evaluated


@dataclass(frozen=True)
class Breach:
    """A clause that fails, with the things that make it fail."""

    rule: str
    sentence: str
    witness: Mapping[str, Hashable]

    def __str__(self) -> str:
        return self.sentence.format_map({name: str(value) for name, value in self.witness.items()})


class _CompiledClause:
    def __init__(self, rule: str, clause: Clause) -> None:
        self.rule, self.broken = rule, clause.broken
        compiler = _Compiler()
        counter = negation_normal(clause.formula, False)
        self.named: list[tuple[str, int]] = []
        while isinstance(counter, L.Exists):
            self.named += [(v.name, compiler.place(v)) for v in counter.variables]
            counter = counter.body
        wanted = free_variables(counter)
        self.search = compiler._complete(counter, frozenset(), wanted)
        self.premise = self._premise(clause.formula, compiler)
        self.size = len(compiler.places)
        self.relations = tuple(sorted({relation for _, relation in compiler.reads}))

    @staticmethod
    def _premise(formula: Formula, compiler: _Compiler) -> Search | None:
        """A search for something that the clause speaks of; None for a clause without a premise."""
        while isinstance(formula, L.ForAll):
            formula = formula.body
        if not isinstance(formula, L.Implies):
            return None
        premise = negation_normal(formula.premise)
        return compiler._complete(premise, frozenset(), free_variables(premise))

    def exercised(self, states: States) -> bool:
        """The clause has something to judge here: its premise holds of something."""
        return self.premise is None or _found(self.premise([None] * self.size, states))

    def breaches(self, states: States) -> Iterator[Breach]:
        env: Environment = [None] * self.size
        for _ in self.search(env, states):
            yield Breach(self.rule, self.broken, {name: env[place] for name, place in self.named})


class CompiledRule:
    """A rule, ready to be evaluated on sets."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        states = [STATE.state("s"), EVENT.state("event"), STATE.state("t")] if rule.step else [STATE.state("s")]
        self.clauses = [_CompiledClause(rule.name, clause) for clause in rule.clauses(*states)]

    def exercised(self, **states: Facts) -> bool:
        """At least one clause has something to judge here."""
        return any(clause.exercised(states) for clause in self.clauses)

    def breaches(self, **states: Facts) -> Iterator[Breach]:
        """Every way in which the rule is broken: ``s=`` for a state rule, ``s=, event=, t=`` for a step rule."""
        for clause in self.clauses:
            yield from clause.breaches(states)


@functools.cache
def _compiled(rule: Rule) -> CompiledRule:
    """A compiled rule has no state, so one serves every run."""
    return CompiledRule(rule)


class RuleBook:
    """All rules, evaluated one state or step after another, skipping what cannot have changed.

    ``exercised`` counts, for every rule, the states or steps in which it had something to judge: a
    rule about state slots says nothing about an allocator without them.
    """

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = [_compiled(rule) for rule in rules]
        self.exercised: Counter[str] = Counter({compiled.rule.name: 0 for compiled in self.rules})
        self._held: dict[tuple[str, int], tuple[tuple[object, ...], bool]] = {}

    def first_breaches(self, before: Facts | None, event: Facts | None, now: Facts) -> list[Breach]:
        """One breach of every rule that is broken now, in the order of the book."""
        judged = [self._judge(compiled, before, event, now) for compiled in self.rules]
        return [breach for breach in judged if breach is not None]

    def _judge(self, compiled: CompiledRule, before: Facts | None, event: Facts | None, now: Facts) -> Breach | None:
        if not compiled.rule.step:
            return self._judge_state(compiled, now)
        if before is None or event is None:
            return None
        self.exercised[compiled.rule.name] += compiled.exercised(s=before, event=event, t=now)
        return next(compiled.breaches(s=before, event=event, t=now), None)

    def _judge_state(self, compiled: CompiledRule, now: Facts) -> Breach | None:
        """Clause by clause; one that held of the same relations before holds again."""
        name, states, any_exercised, first = compiled.rule.name, {"s": now}, False, None
        for at, clause in enumerate(compiled.clauses):
            versions = tuple([now.version(relation) for relation in clause.relations])
            held = self._held.get((name, at))
            if held is not None and all(map(is_, held[0], versions)):
                any_exercised |= held[1]
                continue
            breach, exercised = next(clause.breaches(states), None), clause.exercised(states)
            any_exercised |= exercised
            if breach is None:
                self._held[name, at] = versions, exercised
            first = first or breach
        self.exercised[name] += any_exercised
        return first
