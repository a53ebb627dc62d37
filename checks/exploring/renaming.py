"""Blocks are alike: what was worked out for some blocks holds for others, with the names changed.

An action is expanded once for blocks that appear in the order 0, 1, 2, ...; for any other choice of
blocks its guard and effects are those, renamed.  For eight blocks this saves nine tenths of the work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kvproof.checks.readings.circuit import AND, CONSTANT, NOT, VARIABLE, Circuit
from kvproof.checks.readings.finite import Tuple
from kvproof.spec import language as L


def pattern(variables: Sequence[L.Variable], things: Tuple) -> tuple[Tuple, dict[int, int]]:
    """The same choice with blocks numbered by first appearance, and which block each number stands for."""
    names: dict[int, int] = {}
    made = []
    for variable, thing in zip(variables, things, strict=True):
        made.append(names.setdefault(thing, len(names)) if variable.sort.name == "block" else thing)
    return tuple(made), {number: block for block, number in names.items()}


class Renaming:
    """One permutation of the blocks, applied to cells and to nodes of a circuit."""

    def __init__(
        self,
        blocks: int,
        chosen: Mapping[int, int],
        circuit: Circuit,
        cell_of_input: Mapping[int, tuple[str, L.Relation, Tuple]],
        cell: Callable[[str, L.Relation, Tuple], int],
    ) -> None:
        rest = [block for block in range(blocks) if block not in chosen.values()]
        self.to = {**chosen, **dict(zip((b for b in range(blocks) if b not in chosen), rest, strict=True))}
        self.circuit, self._cell_of_input, self._cell = circuit, cell_of_input, cell
        self._memo: dict[int, int] = {0: 0, 1: 1}

    def row(self, relation: L.Relation, row: Tuple) -> Tuple:
        """The tuple with its blocks renamed."""
        return tuple(
            self.to[thing] if sort.name == "block" else thing for sort, thing in zip(relation.sorts, row, strict=True)
        )

    def node(self, node: int) -> int:
        """The node with its blocks renamed."""
        memo, circuit = self._memo, self.circuit
        found = memo.get(node)
        if found is not None:
            return found
        for here in circuit.cone([node]):
            if here in memo:
                continue
            kind, left = circuit.kind[here], circuit.left[here]
            if kind == VARIABLE:
                state, relation, row = self._cell_of_input[here]
                memo[here] = self._cell(state, relation, self.row(relation, row))
            elif kind == NOT:
                memo[here] = circuit.negate(memo[left])
            elif kind == CONSTANT:
                memo[here] = here
            elif kind == AND:
                memo[here] = circuit.both(memo[left], memo[circuit.right[here]])
            else:
                memo[here] = circuit.either(memo[left], memo[circuit.right[here]])
        return memo[node]
