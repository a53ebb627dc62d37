"""The vocabulary in which the spec is written: sorts, relations, quantifiers, functional update.

The spec's text is plain Python that *builds* formulas; nothing here says what they mean.  A
*reading* (see ``checks``) gives the meaning: sets, Z3 terms, Boolean cells or bit planes.  So the
text is written once and read several ways.

Sorts of quantified variables come from their names: in ``forall(lambda block, other_block: ...)``
both variables are of sort ``block``, because the last word of each name is a sort.

An update never says what stays: ``s.but(free=s.free.remove(block))`` is the whole post-state, in
which every other relation is that of ``s`` (no frame axioms).  Applying a relation of a post-state
gives a formula over the pre-state.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Any, TypeAlias


class SpecError(TypeError):
    """The text itself is wrong: an unknown sort, relation or argument."""


# ---------------------------------------------------------------------------------------------- sorts


@dataclass(frozen=True)
class Sort:
    """A kind of thing that a variable ranges over.  ``ordered`` sorts have ``<`` (a total order)."""

    name: str
    doc: str
    ordered: bool = False


class Variable:
    """A variable of one sort.  Two variables are the same only if they are one object."""

    __slots__ = ("name", "sort")

    def __init__(self, name: str, sort: Sort) -> None:
        self.name, self.sort = name, sort

    def __eq__(self, other: object) -> Formula:  # type: ignore[override]
        return Equal(self, _variable(other, self.sort))

    def __ne__(self, other: object) -> Formula:  # type: ignore[override]
        return ~(self == other)

    def __lt__(self, other: Variable) -> Formula:
        return Less(self, _variable(other, self.sort))

    def __gt__(self, other: Variable) -> Formula:
        return Less(_variable(other, self.sort), self)

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return self.name


def _variable(value: object, sort: Sort) -> Variable:
    if not isinstance(value, Variable):
        raise SpecError(f"{value!r} stands where a variable of sort {sort.name} belongs")
    if value.sort is not sort:
        raise SpecError(f"{value.name} is a {value.sort.name}, but a {sort.name} belongs here")
    return value


# ------------------------------------------------------------------------------------------- formulas


class Formula:
    """A truth value, not yet read.  ``&  |  ~`` combine; ``==`` is "if and only if", ``!=`` "either or"."""

    __slots__ = ()

    def __and__(self, other: Formula) -> Formula:
        return And((self, _formula(other)))

    def __or__(self, other: Formula) -> Formula:
        return Or((self, _formula(other)))

    def __invert__(self) -> Formula:
        return self.body if isinstance(self, Not) else Not(self)

    def __eq__(self, other: object) -> Formula:  # type: ignore[override]
        return Iff(self, _formula(other))

    def __ne__(self, other: object) -> Formula:  # type: ignore[override]
        return ~(self == other)

    def __bool__(self) -> bool:
        raise SpecError("a formula has no truth value of its own: use & | ~ instead of and, or, not, if")

    __hash__ = object.__hash__


def _formula(value: object) -> Formula:
    if isinstance(value, Formula):
        return value
    if isinstance(value, bool):
        return TRUE if value else FALSE
    raise SpecError(f"{value!r} stands where a formula belongs")


class Truth(Formula):
    """True or false."""

    __slots__ = ("value",)

    def __init__(self, value: bool) -> None:
        self.value = value


TRUE, FALSE = Truth(True), Truth(False)


class Atom(Formula):
    """``relation(variables)`` in the state called ``state``."""

    __slots__ = ("relation", "state", "variables")

    def __init__(self, state: str, relation: Relation, variables: tuple[Variable, ...]) -> None:
        self.state, self.relation, self.variables = state, relation, variables


class Equal(Formula):
    """Two variables name the same thing."""

    __slots__ = ("left", "right")

    def __init__(self, left: Variable, right: Variable) -> None:
        self.left, self.right = left, right


class Less(Formula):
    """``left`` comes before ``right`` in the order of their sort."""

    __slots__ = ("left", "right")

    def __init__(self, left: Variable, right: Variable) -> None:
        if not left.sort.ordered:
            raise SpecError(f"sort {left.sort.name} has no order")
        self.left, self.right = left, right


class Not(Formula):
    """Negation."""

    __slots__ = ("body",)

    def __init__(self, body: Formula) -> None:
        self.body = body


class And(Formula):
    """Conjunction."""

    __slots__ = ("parts",)

    def __init__(self, parts: tuple[Formula, ...]) -> None:
        self.parts = parts


class Or(Formula):
    """Disjunction."""

    __slots__ = ("parts",)

    def __init__(self, parts: tuple[Formula, ...]) -> None:
        self.parts = parts


class Implies(Or):
    """``premise -> conclusion``: a disjunction that remembers which part says when there is something to keep."""

    __slots__ = ("conclusion", "premise")

    def __init__(self, premise: Formula, conclusion: Formula) -> None:
        super().__init__((~premise, conclusion))
        self.premise, self.conclusion = premise, conclusion


class Iff(Formula):
    """Equivalence."""

    __slots__ = ("left", "right")

    def __init__(self, left: Formula, right: Formula) -> None:
        self.left, self.right = left, right


class ForAll(Formula):
    """Universal quantification."""

    __slots__ = ("body", "variables")

    def __init__(self, variables: tuple[Variable, ...], body: Formula) -> None:
        self.variables, self.body = variables, body


class Exists(Formula):
    """Existential quantification."""

    __slots__ = ("body", "variables")

    def __init__(self, variables: tuple[Variable, ...], body: Formula) -> None:
        self.variables, self.body = variables, body


class Compare(Formula):
    """``left op right`` for whole numbers; ``op`` is one of ``== < <=``."""

    __slots__ = ("left", "op", "right")

    def __init__(self, op: str, left: Number, right: Number) -> None:
        self.op, self.left, self.right = op, left, right


def forall(body: Callable[..., Formula]) -> Formula:
    """The body holds for all values of its parameters."""
    variables = bound_variables(body)
    return ForAll(variables, _formula(body(*variables)))


def exists(body: Callable[..., Formula]) -> Formula:
    """The body holds for at least one choice of its parameters."""
    variables = bound_variables(body)
    return Exists(variables, _formula(body(*variables)))


def implies(premise: Formula, conclusion: Formula) -> Formula:
    """If the premise holds, so does the conclusion."""
    return Implies(premise, _formula(conclusion))


def every(*parts: Formula) -> Formula:
    """All parts hold."""
    return And(tuple(_formula(part) for part in parts))


def either(*parts: Formula) -> Formula:
    """At least one part holds."""
    return Or(tuple(_formula(part) for part in parts))


# -------------------------------------------------------------------------------------------- numbers


Numeric: TypeAlias = "Number | int"


class Number:
    """A whole number, not yet read."""

    __slots__ = ()

    def __add__(self, other: Numeric) -> Number:
        return Arithmetic("+", self, number_of(other))

    __radd__ = __add__

    def __sub__(self, other: Numeric) -> Number:
        return Arithmetic("-", self, number_of(other))

    def __rsub__(self, other: Numeric) -> Number:
        return Arithmetic("-", number_of(other), self)

    def __mul__(self, other: Numeric) -> Number:
        return Arithmetic("*", self, number_of(other))

    __rmul__ = __mul__

    def __floordiv__(self, other: Numeric) -> Number:
        return Arithmetic("//", self, number_of(other))

    def __mod__(self, other: Numeric) -> Number:
        return Arithmetic("%", self, number_of(other))

    def __eq__(self, other: object) -> Formula:  # type: ignore[override]
        return Compare("==", self, number_of(other))

    def __ne__(self, other: object) -> Formula:  # type: ignore[override]
        return ~(self == other)

    def __lt__(self, other: Numeric) -> Formula:
        return Compare("<", self, number_of(other))

    def __le__(self, other: Numeric) -> Formula:
        return Compare("<=", self, number_of(other))

    def __gt__(self, other: Numeric) -> Formula:
        return Compare("<", number_of(other), self)

    def __ge__(self, other: Numeric) -> Formula:
        return Compare("<=", number_of(other), self)

    __hash__ = object.__hash__


class Literal(Number):
    """A written number."""

    __slots__ = ("value",)

    def __init__(self, value: int) -> None:
        self.value = value


class Measure(Number):
    """``function(variables)`` in the state called ``state``: a number that the state has for a thing."""

    __slots__ = ("function", "state", "variables")

    def __init__(self, state: str, function: Relation, variables: tuple[Variable, ...]) -> None:
        self.state, self.function, self.variables = state, function, variables


class Arithmetic(Number):
    """``left op right``; ``op`` is one of ``+ - * // %`` (floor division, divisor positive)."""

    __slots__ = ("left", "op", "right")

    def __init__(self, op: str, left: Number, right: Number) -> None:
        self.op, self.left, self.right = op, left, right


class HowMany(Number):
    """The number of choices for the variables that make the body true.

    First-order logic cannot count: only finite readings know this one.
    """

    __slots__ = ("body", "variables")

    def __init__(self, variables: tuple[Variable, ...], body: Formula) -> None:
        self.variables, self.body = variables, body


def number_of(value: object) -> Number:
    """The value as a number of the language."""
    if isinstance(value, Number):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return Literal(value)
    raise SpecError(f"{value!r} stands where a whole number belongs")


def how_many(body: Callable[..., Formula]) -> Number:
    """How many choices of the parameters make the body true."""
    variables = bound_variables(body)
    return HowMany(variables, _formula(body(*variables)))


def ceil_div(left: Numeric, right: Numeric) -> Number:
    """``left / right`` rounded up, for a positive ``right``."""
    return (number_of(left) + number_of(right) - 1) // number_of(right)


# ------------------------------------------------------------------------------- relations and states


@dataclass(frozen=True)
class Relation:
    """A relation of the state (``numeric``: a function to whole numbers), with what it means.

    ``fixed`` relations are chosen once (a declaration, a fact about ids): no action changes them.
    """

    name: str
    sorts: tuple[Sort, ...]
    doc: str
    numeric: bool = False
    fixed: bool = False


class Vocabulary:
    """Sorts and relations of one kind of state, in reading order."""

    def __init__(self, sorts: Sequence[Sort], relations: Sequence[Relation]) -> None:
        self.sorts: Mapping[str, Sort] = {sort.name: sort for sort in sorts}
        self.relations: Mapping[str, Relation] = {relation.name: relation for relation in relations}

    def state(self, name: str = "s") -> State:
        """A state in which nothing has been updated; ``name`` tells several states apart."""
        return State(name, {n: Unchanged(name, relation) for n, relation in self.relations.items()})


Row = tuple["Variable | EllipsisType", ...]


class Updated:
    """A relation of some state, perhaps after updates.  Call it to get a formula (or a number)."""

    def __init__(self, relation: Relation) -> None:
        self.relation = relation

    def at(self, variables: tuple[Variable, ...]) -> Any:
        """The value at these variables."""
        raise NotImplementedError

    def __call__(self, *variables: Variable) -> Any:
        sorts = self.relation.sorts
        if len(variables) != len(sorts):
            raise SpecError(f"{self.relation.name} takes {len(sorts)} arguments, not {len(variables)}")
        for variable, sort in zip(variables, sorts, strict=True):
            _variable(variable, sort)
        return self.at(variables)

    def add(self, *row: Variable) -> Updated:
        """This relation and one more tuple."""
        return _Changed(self, lambda here, old: old | _matches(row, here))

    def remove(self, *row: Variable | EllipsisType) -> Updated:
        """This relation without the tuples that match; ``...`` matches anything."""
        return _Changed(self, lambda here, old: old & ~_matches(row, here))

    def also(self, body: Callable[..., Formula]) -> Updated:
        """This relation and all tuples of which the body is true (parameters in column order)."""
        return _Changed(self, lambda here, old: old | _formula(body(*here)))

    def only(self, body: Callable[..., Formula]) -> Updated:
        """The tuples of this relation of which the body is true (parameters in column order)."""
        return _Changed(self, lambda here, old: old & _formula(body(*here)))

    def __rshift__(self, value: object) -> Any:
        raise SpecError("numbers are updated with .set(...)")

    def set(self, *row_and_value: Variable | Numeric) -> Updated:
        """This function with one value changed: ``s.count.set(block, s.count(block) + 1)``."""
        *row, value = row_and_value
        return _Set(self, tuple(row), number_of(value))  # type: ignore[arg-type]


class Unchanged(Updated):
    """A relation as it is in a state, without any update."""

    def __init__(self, state: str, relation: Relation) -> None:
        super().__init__(relation)
        self.state = state

    def at(self, variables: tuple[Variable, ...]) -> Formula | Number:
        if self.relation.numeric:
            return Measure(self.state, self.relation, variables)
        return Atom(self.state, self.relation, variables)


class _Changed(Updated):
    def __init__(self, old: Updated, change: Callable[[tuple[Variable, ...], Formula], Formula]) -> None:
        super().__init__(old.relation)
        self.old, self.change = old, change
        if old.relation.numeric:
            raise SpecError(f"{old.relation.name} is a number for each thing: update it with .set(...)")

    def at(self, variables: tuple[Variable, ...]) -> Formula:
        return self.change(variables, self.old.at(variables))


class Choice(Number):
    """``then`` where the condition holds, ``otherwise`` elsewhere."""

    __slots__ = ("condition", "otherwise", "then")

    def __init__(self, condition: Formula, then: Number, otherwise: Number) -> None:
        self.condition, self.then, self.otherwise = condition, then, otherwise


class _Set(Updated):
    def __init__(self, old: Updated, row: Row, value: Number) -> None:
        super().__init__(old.relation)
        self.old, self.row, self.value = old, row, value
        if not old.relation.numeric:
            raise SpecError(f"{old.relation.name} is a relation: update it with .add(...) and .remove(...)")

    def at(self, variables: tuple[Variable, ...]) -> Number:
        return Choice(_matches(self.row, variables), self.value, self.old.at(variables))


def _matches(row: Row, here: tuple[Variable, ...]) -> Formula:
    if len(row) != len(here):
        raise SpecError(f"a row of {len(row)} entries updates a relation of {len(here)} columns")
    return every(*(x == y for x, y in zip(row, here, strict=True) if not isinstance(x, EllipsisType)))


class State:
    """One state: its relations are attributes.  States are values; ``but`` makes the next one."""

    def __init__(self, name: str, relations: Mapping[str, Updated]) -> None:
        self._name, self._relations = name, relations

    def __getattr__(self, name: str) -> Updated:
        try:
            return self._relations[name]
        except KeyError:
            raise SpecError(f"the state has no relation {name!r}: known are {sorted(self._relations)}") from None

    def but(self, **changes: Updated) -> State:
        """This state with the named relations replaced.  Fixed relations cannot be."""
        for name, change in changes.items():
            if name not in self._relations or change.relation.name != name:
                raise SpecError(f"but({name}=...) replaces a relation by another one")
            if change.relation.fixed:
                raise SpecError(f"{name} is fixed: no action may change it")
        return State(self._name, {**self._relations, **changes})

    def __iter__(self) -> Iterator[tuple[str, Updated]]:
        return iter(self._relations.items())


# ---------------------------------------------------------------------------------------- declarations

_SORTS: dict[str, Sort] = {}


def sort(name: str, doc: str, *, ordered: bool = False) -> Sort:
    """Declare a sort; its name is the last word of the names of its variables."""
    return _SORTS.setdefault(name, Sort(name, doc, ordered))


def relation(name: str, *sorts: Sort, doc: str, fixed: bool = False) -> Relation:
    """Declare a relation between things of these sorts."""
    return Relation(name, sorts, doc, fixed=fixed)


def measure(name: str, *sorts: Sort, doc: str, fixed: bool = False) -> Relation:
    """Declare a whole number that the state has for each choice of things of these sorts."""
    return Relation(name, sorts, doc, numeric=True, fixed=fixed)


def bound_variables(body: Callable[..., Any], skip: int = 0) -> tuple[Variable, ...]:
    """Fresh variables for the parameters of ``body`` after the first ``skip``; sorts by their names."""
    found = []
    for name in list(inspect.signature(body).parameters)[skip:]:
        kind = name.rsplit("_", 1)[-1]
        if kind not in _SORTS:
            raise SpecError(f"the variable {name} has no sort: its last word must be one of {sorted(_SORTS)}")
        found.append(Variable(name, _SORTS[kind]))
    return tuple(found)


def fresh_variables(sorts: Sequence[Sort]) -> tuple[Variable, ...]:
    """New variables, one for each sort (for readings that ask for every tuple of a relation)."""
    return tuple(Variable(sort.name, sort) for sort in sorts)


@dataclass(frozen=True)
class Clause:
    """One part of a rule: a formula, and the sentence that is true when it fails.

    The sentence may name the outermost bound variables in braces; a reading that finds a witness
    fills them in.
    """

    broken: str
    formula: Formula


@dataclass(frozen=True)
class Rule:
    """A rule of the rule book.  ``step`` rules speak of a state, an event and the next state."""

    number: int
    name: str
    statement: str
    chapter: str
    step: bool
    body: Callable[..., Iterator[Clause]]

    def clauses(self, *states: State) -> tuple[Clause, ...]:
        """The rule's clauses about ``s`` (state rule) or ``s, event, t`` (step rule)."""
        return tuple(self.body(*states))


RULES: dict[str, Rule] = {}
"""The rule book: every rule by name, in order."""


def rule(number: int, *, chapter: str) -> Callable[[Callable[..., Iterator[Clause]]], Rule]:
    """Enter a function into the rule book under its own name; its docstring is the statement."""

    def enter(body: Callable[..., Iterator[Clause]]) -> Rule:
        parameters = list(inspect.signature(body).parameters)
        if parameters not in (["s"], ["s", "event", "t"]):
            raise SpecError(f"{body.__name__} takes {parameters}: a rule takes (s) or (s, event, t)")
        statement = " ".join((body.__doc__ or "").split())
        if not statement:
            raise SpecError(f"{body.__name__} has no docstring: it is the rule's statement")
        made = Rule(number, body.__name__, statement, chapter, len(parameters) == 3, body)
        RULES[made.name] = made
        return made

    return enter
