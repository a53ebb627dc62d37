"""A module of the spec as a finite machine: Boolean cells, and for every action its instances.

A :class:`Scope` says how many things of each sort there are, what is declared, and what is left out.
Leaving out relations (rows, say) is an *abstraction*: guards that read them are dropped, which only
adds behaviour, so what holds without them holds with them.  What was dropped is recorded.

Cells that no action ever changes are folded into constants, so a scope pays only for what it uses.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from kvproof.checks.exploring.renaming import Renaming, pattern
from kvproof.checks.readings.circuit import FALSE, TRUE, Circuit
from kvproof.checks.readings.finite import Cell, FiniteReading, Tuple
from kvproof.checks.readings.formulas import reads
from kvproof.spec import language as L
from kvproof.spec.language import RULES, Clause
from kvproof.spec.steps import Action, Module, Step, Theorem, nothing

ALL = "all"
NONE = "none"
FREE = "free"
"""What is known of a choice: all tuples, none, or nothing (every possibility counts)."""


@dataclass(frozen=True)
class Scope:
    """How large a machine is and what it leaves out.

    ``sizes``: things of each sort.  ``declared``: fixed relations; those not named are false, except
    ``usable``, which is all blocks minus ``reserved_blocks``.  ``slots``: how many of the last blocks
    are state slots.  ``choices``: what callers choose (``all``, ``none``, or ``free``, the default).
    ``without``: relations left out.  ``actions``: names of the actions that take part (default: all).
    """

    sizes: Mapping[str, int]
    declared: frozenset[str] = frozenset()
    slots: int = 0
    reserved_blocks: int = 0
    choices: Mapping[str, str] = field(default_factory=dict)
    without: frozenset[str] = frozenset()
    actions: tuple[str, ...] | None = None

    def fixed(self, relation: L.Relation, row: Tuple) -> bool:
        """Whether a fixed relation holds."""
        if relation.name == "usable":
            return row[0] >= self.reserved_blocks
        if relation.name == "exclusive":
            return row[0] >= self.sizes["block"] - self.slots
        return relation.name in self.declared


@dataclass(frozen=True)
class Instance:
    """An action with its variables replaced by things: when it may happen, and which cells it changes.

    ``chosen`` names the input nodes for what its caller chooses.
    """

    action: str
    things: tuple[tuple[str, int], ...]
    guard: int
    changes: tuple[tuple[int, int], ...]
    """Pairs of a cell's position and the node of its value afterwards."""
    chosen: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.action}({', '.join(f'{name}={thing}' for name, thing in self.things)})"


@dataclass(frozen=True)
class Goal:
    """One clause of a rule or theorem that a machine checks: the node that is true where it holds."""

    name: str
    sentence: str
    node: int
    formula: L.Formula


class Machine:
    """A module within a scope."""

    def __init__(self, module: Module, scope: Scope, *, renames: bool = True) -> None:
        """``renames``: expand actions for some blocks and rename for the others (the same, only sooner)."""
        self.module, self.scope, self.renames = module, scope, renames
        self._renamings: dict[tuple[tuple[int, int], ...], Renaming] = {}
        self.circuit = Circuit()
        self.dropped_guards: dict[str, int] = {}
        self.skipped: list[str] = []
        self._s = module.states.state("s")
        self._given = module.choices.state("given")
        self._chosen: dict[Cell, int] = {}
        self._steps = {name: self._step(module.actions[name]) for name in self._names()}
        self._variable: dict[Cell, int] = {}
        """Input node of every cell that changes."""
        self._constant: dict[Cell, bool] = {}
        self._find_cells()

    # -- the text

    def _names(self) -> tuple[str, ...]:
        names = self.scope.actions if self.scope.actions is not None else tuple(self.module.actions)
        if unknown := sorted(set(names) - set(self.module.actions)):
            raise L.SpecError(f"module {self.module.name} has no actions {unknown}")
        return names

    def _step(self, action: Action) -> Step:
        step = action.step(self._s, self._given, nothing("event", self.module.events))
        left_out = self.scope.without
        kept = tuple(guard for guard in step.guards if not reads(guard) & left_out and not _numeric(guard))
        if len(kept) < len(step.guards):
            self.dropped_guards[action.name] = len(step.guards) - len(kept)
        return Step(kept, step.event, step.after)

    def _relations(self) -> Iterator[L.Relation]:
        for relation in self.module.states.relations.values():
            if not (relation.fixed or relation.numeric or relation.name in self.scope.without):
                yield relation

    # -- cells

    def _initial_value(self, relation: L.Relation, row: Tuple) -> bool:
        """``all_is_free``: free blocks are those that are usable, everything else is empty."""
        if relation.name == "free":
            return row[0] >= self.scope.reserved_blocks
        return relation.name == "recycled"

    def reading(self) -> FiniteReading:
        """A reading of formulas about the states ``s`` (cells) and ``given`` (choices)."""
        return FiniteReading(self.circuit, self.scope.sizes, self._cell)

    def _cell(self, state: str, relation: L.Relation, row: Tuple) -> int:
        if relation.fixed:
            return TRUE if self.scope.fixed(relation, row) else FALSE
        if state == "given":
            known = self.scope.choices.get(relation.name, FREE)
            if known != FREE:
                return TRUE if known == ALL else FALSE
            cell = (relation.name, row)
            if cell not in self._chosen:
                self._chosen[cell] = self.circuit.variable()
            return self._chosen[cell]
        cell = (relation.name, row)
        node = self._variable.get(cell)
        if node is not None:
            return node
        if cell not in self._constant:
            raise L.SpecError(f"{relation.name} is left out of this scope, yet something kept depends on it")
        return TRUE if self._constant[cell] else FALSE

    def _find_cells(self) -> None:
        """Start with every cell constant; whatever an action changes becomes an input; until nothing does."""
        probe = FiniteReading(Circuit(), self.scope.sizes, lambda *_: FALSE)
        for relation in self._relations():
            for row in probe.tuples(relation.sorts):
                self._constant[relation.name, row] = self._initial_value(relation, row)
        while True:
            reading = self.reading()
            new: set[str] = set()
            for name, step in self._steps.items():
                for relation in self._changed(step):
                    if relation.name in new:
                        continue
                    if self._can_change(reading, name, step, relation):
                        new.add(relation.name)
            new = {name for name in new if any((name, row) in self._constant for row in self._rows(name))}
            if not new:
                return
            for name in sorted(new):
                for row in self._rows(name):
                    if (name, row) in self._constant:
                        del self._constant[name, row]
                        self._variable[name, row] = self.circuit.variable()

    def _rows(self, name: str) -> list[Tuple]:
        relation = self.module.states.relations[name]
        return list(FiniteReading(self.circuit, self.scope.sizes, self._cell).tuples(relation.sorts))

    def _changed(self, step: Step) -> Iterator[L.Relation]:
        left_out = self.scope.without
        for name, updated in step.after:
            relation = updated.relation
            if name not in left_out and not relation.numeric and not isinstance(updated, L.Unchanged):
                yield relation

    def _can_change(self, reading: FiniteReading, name: str, step: Step, relation: L.Relation) -> bool:
        if any((relation.name, row) in self._variable for row in self._rows(relation.name)):
            return False
        after = getattr(step.after, relation.name)
        columns = L.fresh_variables(relation.sorts)
        formula = after(*columns)
        variables = self.module.actions[name].variables
        for things in reading.tuples([v.sort for v in variables]):
            if self.blocks_are_alike and pattern(variables, things)[0] != things:
                continue
            env = dict(zip(variables, things, strict=True))
            if reading.circuit.every(reading.formula(guard, env) for guard in step.guards) == FALSE:
                continue
            for row in reading.tuples(relation.sorts):
                node = reading.formula(formula, {**env, **dict(zip(columns, row, strict=True))})
                if node != (TRUE if self._constant[relation.name, row] else FALSE):
                    return True
        return False

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """The cells that change, in a fixed order: a state is one truth value for each."""
        order = {name: i for i, name in enumerate(self.module.states.relations)}
        return tuple(sorted(self._variable, key=lambda cell: (order[cell[0]], cell[1])))

    @cached_property
    def inputs(self) -> tuple[int, ...]:
        """The input node of each cell."""
        return tuple(self._variable[cell] for cell in self.cells)

    @cached_property
    def initial(self) -> tuple[bool, ...]:
        """The state in which everything is free."""
        relations = self.module.states.relations
        return tuple(self._initial_value(relations[name], row) for name, row in self.cells)

    # -- actions

    @cached_property
    def instances(self) -> tuple[Instance, ...]:
        """Every action for every choice of things; those whose guard can never hold are left out."""
        return tuple(self._instances())

    def _instances(self) -> Iterator[Instance]:
        for name in self._steps:
            expanded = _Expansion(self, name)
            variables = self.module.actions[name].variables
            for things in self.reading().tuples([v.sort for v in variables]):
                found = expanded.at(things)
                if found is None:
                    continue
                guard, changes = found
                named = tuple((v.name, thing) for v, thing in zip(variables, things, strict=True))
                chosen = self._chosen_in([guard, *(node for _, node in changes)])
                yield Instance(name, named, guard, changes, chosen)

    @property
    def blocks_are_alike(self) -> bool:
        """No block is reserved or a state slot, so renaming blocks changes nothing."""
        return self.renames and not (self.scope.slots or self.scope.reserved_blocks)

    @cached_property
    def position(self) -> dict[Cell, int]:
        """The place of each cell in a state."""
        return {cell: place for place, cell in enumerate(self.cells)}

    def renaming(self, chosen: Mapping[int, int]) -> Renaming:
        """The permutation of blocks that begins with these, for cells and nodes."""
        key = tuple(sorted(chosen.items()))
        if key not in self._renamings:
            relations, choices = self.module.states.relations, self.module.choices.relations
            inputs = {node: ("s", relations[name], row) for (name, row), node in self._variable.items()}
            inputs |= {node: ("given", choices[name], row) for (name, row), node in self._chosen.items()}
            self._renamings[key] = Renaming(self.scope.sizes["block"], chosen, self.circuit, inputs, self._cell)
        return self._renamings[key]

    def _chosen_in(self, nodes: Sequence[int]) -> tuple[int, ...]:
        if not self._chosen:
            return ()
        inputs = set(self._chosen.values())
        return tuple(node for node in self.circuit.cone(nodes) if node in inputs)

    def choice_names(self) -> dict[int, Cell]:
        """What each chosen input stands for."""
        return {node: cell for cell, node in self._chosen.items()}

    # -- what must hold

    def goals(self, names: Sequence[str] | None = None) -> list[Goal]:
        """The clauses of state rules and theorems that this machine can read, by default all of them."""
        found: list[Goal] = []
        for name, clauses in state_clauses(self.module):
            if names is not None and name not in names:
                continue
            for clause in clauses:
                if reads(clause.formula) & self.scope.without or _numeric(clause.formula):
                    self.skipped.append(f"{name}: {clause.broken}")
                    continue
                found.append(Goal(name, clause.broken, self.reading().formula(clause.formula), clause.formula))
        return found

    def node(self, formula: L.Formula) -> int:
        """The node of a closed formula about the state ``s``."""
        return self.reading().formula(formula)


class _Expansion:
    """One action of a machine, expanded for one choice of things after the other."""

    def __init__(self, machine: Machine, name: str) -> None:
        self.machine, self.step = machine, machine._steps[name]
        self.variables = machine.module.actions[name].variables
        self.reading = machine.reading()
        self.updates = []
        for relation in machine._changed(self.step):
            columns = L.fresh_variables(relation.sorts)
            self.updates.append((relation, columns, getattr(self.step.after, relation.name)(*columns)))
        self._done: dict[Tuple, tuple[int, tuple[tuple[int, int], ...]] | None] = {}

    def at(self, things: Tuple) -> tuple[int, tuple[tuple[int, int], ...]] | None:
        """The guard and the changes; None if the guard can never hold."""
        if not self.machine.blocks_are_alike:
            return self._expand(things)
        standard, chosen = pattern(self.variables, things)
        if standard not in self._done:
            self._done[standard] = self._expand(standard)
        found = self._done[standard]
        if found is None or standard == things:
            return found
        renaming = self.machine.renaming(chosen)
        guard, changes = found
        return renaming.node(guard), tuple(
            sorted((self._moved(renaming, place), renaming.node(node)) for place, node in changes)
        )

    def _moved(self, renaming: Renaming, place: int) -> int:
        name, row = self.machine.cells[place]
        return self.machine.position[name, renaming.row(self.machine.module.states.relations[name], row)]

    def _expand(self, things: Tuple) -> tuple[int, tuple[tuple[int, int], ...]] | None:
        machine, reading = self.machine, self.reading
        env = dict(zip(self.variables, things, strict=True))
        guard = machine.circuit.every(reading.formula(g, env) for g in self.step.guards)
        if guard == FALSE:
            return None
        changes = []
        for relation, columns, formula in self.updates:
            for row in reading.tuples(relation.sorts):
                place = machine.position.get((relation.name, row))
                if place is None:
                    continue
                env.update(zip(columns, row, strict=True))
                node = reading.formula(formula, env)
                if node != machine.inputs[place]:
                    changes.append((place, node))
        return guard, tuple(sorted(changes))


def state_clauses(module: Module, s: L.State | None = None) -> list[tuple[str, tuple[Clause, ...]]]:
    """The clauses of the module's state rules and state theorems, by name; not the ones that are not carried."""
    state = module.states.state("s") if s is None else s
    found: list[tuple[str, tuple[Clause, ...]]] = []
    for name in module.rules:
        if not RULES[name].step:
            clauses = RULES[name].clauses(state)
            kept = tuple(c for i, c in enumerate(clauses) if (name, i) not in module.not_carried)
            found.append((name, kept))
    for theorem in module.theorems:
        if theorem.kind == "state":
            found.append((theorem.name, (clause_of(theorem, theorem.formula(state)),)))
    return found


def clause_of(theorem: Theorem, formula: L.Formula) -> Clause:
    """A theorem as a clause."""
    return Clause(theorem.broken or f"not so: {theorem.sentence}", formula)


def _numeric(node: L.Formula) -> bool:
    """Does the formula speak of numbers?"""
    match node:
        case L.Compare():
            return True
        case L.Not() | L.ForAll() | L.Exists():
            return _numeric(node.body)
        case L.And() | L.Or():
            return any(_numeric(part) for part in node.parts)
        case L.Iff():
            return _numeric(node.left) or _numeric(node.right)
        case _:
            return False


def assignments(chosen: Sequence[int]) -> Iterator[dict[int, bool]]:
    """Every way to make the choices."""
    for values in itertools.product((False, True), repeat=len(chosen)):
        yield dict(zip(chosen, values, strict=True))
