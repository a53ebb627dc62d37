"""How the text speaks of change: actions, theorems, modules and mutants.

An *action* says when a step may happen (``require``) and what the state is afterwards (the value
that it returns).  ``happens`` tells the step rules what the operation is about.  Parameters are
variables; a parameter called ``given`` stands for what the caller chooses freely: sets of rows, an
order, numbers.

A *theorem* is a sentence about every reachable state, about every step, or about whole numbers; its
parameters say which: ``(s)``, ``(s, event, t)``, or anything else (each parameter is a whole
number).  A statement that was found false is entered with ``does_not_hold``.

A *module* is a part of the system that is proved by itself: its vocabulary, the states it starts in,
its actions, and the rules and theorems that hold in it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace

from .language import (
    TRUE,
    Formula,
    Number,
    Numeric,
    Relation,
    SpecError,
    State,
    Truth,
    Updated,
    Variable,
    Vocabulary,
    bound_variables,
    number_of,
)

# ------------------------------------------------------------------------------------- whole numbers


class Whole(Number):
    """A whole number that a theorem speaks of: it stands for every value."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


# ------------------------------------------------------------------------------------------- actions


@dataclass
class _Notes:
    """What ``require`` and ``happens`` collect while the body of an action runs."""

    guards: list[Formula] = field(default_factory=list)
    event: dict[str, Updated] = field(default_factory=dict)
    blank: State | None = None


_NOTES: ContextVar[_Notes] = ContextVar("notes of the action that is being read")


def require(*conditions: Formula) -> None:
    """The action may happen only if all these hold.  To be called in the body of an action."""
    notes = _notes("require")
    for condition in conditions:
        if not isinstance(condition, Formula):
            raise SpecError(f"require({condition!r}): a guard is a formula")
        notes.guards.append(condition)


def happens(**facts: Variable | Sequence[Variable] | bool | Formula | Numeric) -> None:
    """What the operation is: ``happens(names=request)``, ``happens(refused=True, asks_blocks=n)``.

    A variable is in the event's relation, and so are several; a truth value or formula is that of a
    relation without columns; a number is the value of a measure.  What is not said is false, or 0.
    """
    notes = _notes("happens")
    assert notes.blank is not None
    for name, fact in facts.items():
        relation: Updated = getattr(notes.blank, name)
        if relation.relation.numeric:
            notes.event[name] = relation.set(number_of(fact))
        elif isinstance(fact, bool | Formula):
            truth = Truth(fact) if isinstance(fact, bool) else fact
            notes.event[name] = relation.also(lambda truth=truth: truth)
        else:
            for variable in (fact,) if isinstance(fact, Variable) else _variables(fact):
                relation = relation.add(variable)
            notes.event[name] = relation


def _variables(fact: object) -> Sequence[Variable]:
    if isinstance(fact, Sequence) and all(isinstance(part, Variable) for part in fact):
        return fact
    raise SpecError(f"happens(...={fact!r}): a variable, several variables, a truth value or a number belongs here")


def _notes(word: str) -> _Notes:
    try:
        return _NOTES.get()
    except LookupError:
        raise SpecError(f"{word}(...) belongs into the body of an action") from None


@dataclass(frozen=True)
class Step:
    """An action read on a pre-state: when it may happen, what it is, and the state afterwards."""

    guards: tuple[Formula, ...]
    event: State
    after: State


@dataclass(frozen=True)
class Action:
    """A named step of the system."""

    name: str
    sentence: str
    body: Callable[..., State]
    given: bool
    variables: tuple[Variable, ...]

    def step(self, s: State, given: State, blank_event: State, variables: Sequence[Variable] | None = None) -> Step:
        """The action on the pre-state ``s``; by default for its own variables."""
        notes = _Notes(blank=blank_event)
        token = _NOTES.set(notes)
        try:
            arguments = (*((given,) if self.given else ()), *(self.variables if variables is None else variables))
            after = self.body(s, *arguments)
        finally:
            _NOTES.reset(token)
        if not isinstance(after, State):
            raise SpecError(f"the action {self.name} returns {after!r}: it must return the next state")
        return Step(tuple(notes.guards), blank_event.but(**notes.event), after)


def action(body: Callable[..., State]) -> Action:
    """Turn a function ``(s, [given,] variables...)`` into an action; its docstring is its sentence."""
    name = getattr(body, "__name__", "action")
    parameters = list(inspect.signature(body).parameters)
    if not parameters or parameters[0] != "s":
        raise SpecError(f"{name} takes {parameters}: the first parameter of an action is the state s")
    given = parameters[1:2] == ["given"]
    return Action(name, _sentence(body), body, given, bound_variables(body, skip=2 if given else 1))


def _sentence(body: Callable[..., object]) -> str:
    sentence = " ".join((body.__doc__ or "").split())
    if not sentence:
        raise SpecError(f"{getattr(body, '__name__', body)} has no docstring: it is what the text says in English")
    return sentence


# ------------------------------------------------------------------------------------------ theorems


@dataclass(frozen=True)
class Theorem:
    """A named sentence.  ``kind``: ``state``, ``step`` or ``numbers``.

    ``broken`` is the sentence that is true when it fails; like a clause's, it may name the outermost
    bound variables in braces.
    """

    name: str
    sentence: str
    kind: str
    body: Callable[..., Formula]
    parameters: tuple[str, ...]
    broken: str = ""

    def formula(self, *states: State) -> Formula:
        """The sentence about the given states, or about all numbers."""
        arguments = tuple(map(Whole, self.parameters)) if self.kind == "numbers" else states
        return self.body(*arguments)


def theorem(body: Callable[..., Formula]) -> Theorem:
    """Turn a function into a theorem under its own name; its docstring says it in English."""
    parameters = tuple(inspect.signature(body).parameters)
    kind = {("s",): "state", ("s", "event", "t"): "step"}.get(parameters, "numbers")
    return Theorem(getattr(body, "__name__", "theorem"), _sentence(body), kind, body, parameters)


def broken_says(sentence: str) -> Callable[[Theorem], Theorem]:
    """Give a theorem the sentence that is true when it fails."""
    return lambda made: replace(made, broken=sentence)


FALSE_STATEMENTS: dict[str, Theorem] = {}
"""Statements that one would like to hold and that do not, with the reason in their docstring."""


def does_not_hold(body: Callable[..., Formula]) -> Theorem:
    """Enter a statement that is false: the prover must find a counterexample to it."""
    made = theorem(body)
    FALSE_STATEMENTS[made.name] = made
    return made


# ------------------------------------------------------------------------------- modules and mutants


@dataclass(frozen=True)
class Module:
    """A part of the system that is proved by itself.

    ``rules`` are names of the rule book.  ``theorems`` help the induction and are proved with it.
    ``not_carried`` names clauses that first-order logic cannot carry here, by rule and position,
    with the reason and the tools that check them instead.
    """

    name: str
    about: str
    states: Vocabulary
    events: Vocabulary
    choices: Vocabulary
    actions: Mapping[str, Action]
    initial: Callable[[State], Formula]
    rules: tuple[str, ...]
    theorems: tuple[Theorem, ...]
    assumes: tuple[Theorem, ...] = ()
    not_carried: Mapping[tuple[str, int], str] = field(default_factory=dict)

    def with_action(self, name: str, body: Action) -> Module:
        """This module with one action replaced."""
        if name not in self.actions:
            raise SpecError(f"module {self.name} has no action {name!r}: it has {sorted(self.actions)}")
        return replace(self, actions={**self.actions, name: replace(body, name=name)})


def nothing(name: str, vocabulary: Vocabulary) -> State:
    """The state of a vocabulary in which every relation is empty and every number is 0."""
    return State(name, {n: _Nothing(relation) for n, relation in vocabulary.relations.items()})


class _Nothing(Updated):
    def __init__(self, relation: Relation) -> None:
        super().__init__(relation)

    def at(self, variables: tuple[Variable, ...]) -> Formula | Number:  # noqa: ARG002
        return number_of(0) if self.relation.numeric else Truth(False)


def always(*_: object) -> Formula:
    """The formula that is true."""
    return TRUE
