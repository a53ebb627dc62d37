"""The finite reading: sorts are small sets, quantifiers are expanded, relation cells are Boolean inputs.

A *cell* is one tuple of one relation of one state.  The reading turns a formula into a node of a
circuit; what then happens with the circuit is somebody else's business: bit planes (explore), a
satisfiability solver (refute, small counterexamples), or plain truth values.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

from kvproof.checks.readings.circuit import FALSE, TRUE, Circuit
from kvproof.checks.readings.formulas import free_variables
from kvproof.spec import language as L

Tuple = tuple[int, ...]
Cell = tuple[str, Tuple]
"""A relation's name and a tuple of small numbers."""
CellOf = Callable[[str, L.Relation, Tuple], int]
"""The node of a relation's tuple in the state of that name."""

MANY = 1 << 22
"""A quantifier over more tuples than this is refused: the sorts are too large for a finite reading."""


class FiniteReading:
    """Reads formulas over sorts of given sizes into a circuit."""

    def __init__(self, circuit: Circuit, sizes: Mapping[str, int], cell_of: CellOf) -> None:
        self.circuit, self.sizes, self.cell_of = circuit, sizes, cell_of
        self._memo: dict[tuple[int, Tuple], int] = {}
        self._free: dict[int, tuple[L.Variable, ...]] = {}
        self._kept: list[object] = []

    def tuples(self, sorts: Sequence[L.Sort]) -> Iterator[Tuple]:
        """All tuples over these sorts."""
        ranges = []
        many = 1
        for sort in sorts:
            if sort.name not in self.sizes:
                raise L.SpecError(f"no size was given for sort {sort.name}")
            many *= max(1, self.sizes[sort.name])
            ranges.append(range(self.sizes[sort.name]))
        if many > MANY:
            raise L.SpecError(f"{many:,} tuples of {[sort.name for sort in sorts]} are too many to expand")
        return itertools.product(*ranges)

    def formula(self, formula: L.Formula, env: Mapping[L.Variable, int] | None = None) -> int:
        """The node of a formula whose free variables have these values."""
        return self._read(formula, dict(env or {}))

    def _read(self, formula: L.Formula, env: dict[L.Variable, int]) -> int:
        kind = type(formula)
        if kind is L.Atom:
            assert isinstance(formula, L.Atom)
            return self.cell_of(formula.state, formula.relation, tuple([env[v] for v in formula.variables]))
        if kind is L.Equal:
            assert isinstance(formula, L.Equal)
            return TRUE if env[formula.left] == env[formula.right] else FALSE
        if kind is L.Less:
            assert isinstance(formula, L.Less)
            return TRUE if env[formula.left] < env[formula.right] else FALSE
        if kind is L.Truth:
            assert isinstance(formula, L.Truth)
            return TRUE if formula.value else FALSE
        key = (id(formula), tuple([env[v] for v in self._variables(formula)]))
        found = self._memo.get(key)
        if found is None:
            found = self._memo[key] = self._compound(formula, env)
        return found

    def _variables(self, formula: L.Formula) -> tuple[L.Variable, ...]:
        found = self._free.get(id(formula))
        if found is None:
            self._kept.append(formula)
            found = self._free[id(formula)] = tuple(free_variables(formula))
        return found

    def _compound(self, formula: L.Formula, env: dict[L.Variable, int]) -> int:
        c = self.circuit
        match formula:
            case L.Not():
                return c.negate(self._read(formula.body, env))
            case L.And():
                return c.every(self._until(formula.parts, env, FALSE))
            case L.Or():
                return c.any(self._until(formula.parts, env, TRUE))
            case L.Iff():
                return c.same(self._read(formula.left, env), self._read(formula.right, env))
            case L.ForAll():
                return c.every(self._instances(formula, env, FALSE))
            case L.Exists():
                return c.any(self._instances(formula, env, TRUE))
        raise L.SpecError(f"the finite reading has no numbers: {type(formula).__name__}")

    def _until(self, parts: Sequence[L.Formula], env: dict[L.Variable, int], last: int) -> Iterator[int]:
        for part in parts:
            node = self._read(part, env)
            yield node
            if node == last:
                return

    def _instances(self, formula: L.ForAll | L.Exists, env: dict[L.Variable, int], last: int) -> Iterator[int]:
        inner = dict(env)
        for values in self.tuples([v.sort for v in formula.variables]):
            inner.update(zip(formula.variables, values, strict=True))
            node = self._read(formula.body, inner)
            yield node
            if node == last:
                return
