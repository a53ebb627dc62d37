"""Bit planes: one machine word holds one relation cell of 64 states.

A circuit becomes a straight-line program of word operations; running it once answers a question for
thousands of states.  Arrays are NumPy's, or torch's on whatever device they live: only ``& | ~`` are
used here, so the same program runs on both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvproof.checks.readings.circuit import AND, CONSTANT, NOT, OR, TRUE, VARIABLE, Circuit

WORD = 64
Words = NDArray[np.uint64]


class Program:
    """Word operations, in order, that compute some nodes of a circuit from its inputs."""

    def __init__(self, circuit: Circuit, roots: Sequence[int]) -> None:
        self.roots = tuple(roots)
        order = circuit.cone(self.roots)
        self.operations = [
            (node, circuit.kind[node], circuit.left[node], circuit.right[node])
            for node in order
            if circuit.kind[node] in (NOT, AND, OR)
        ]
        self.inputs = [node for node in order if circuit.kind[node] == VARIABLE]
        last: dict[int, int] = {}
        for place, (_, kind, left, right) in enumerate(self.operations):
            last[left] = place
            if kind != NOT:
                last[right] = place
        kept = set(self.roots)
        self._free_after: list[list[int]] = [[] for _ in self.operations]
        for node, place in last.items():
            if node not in kept and circuit.kind[node] != CONSTANT:
                self._free_after[place].append(node)

    def run(self, inputs: Mapping[int, Any], ones: Any) -> list[Any]:
        """The plane of every root; ``ones`` is a plane of ones of the right shape."""
        values: dict[int, Any] = {0: ones ^ ones, 1: ones}
        for node in self.inputs:
            values[node] = inputs[node]
        for (node, kind, left, right), done in zip(self.operations, self._free_after, strict=True):
            if kind == AND:
                values[node] = values[left] & values[right]
            elif kind == OR:
                values[node] = values[left] | values[right]
            else:
                values[node] = ~values[left]
            for old in done:
                values.pop(old, None)
        return [values[root] for root in self.roots]


def to_planes(bits: NDArray[np.bool_]) -> Words:
    """Rows of truth values (states x cells) as planes (cells x words); unused bits are 0."""
    states = bits.shape[0]
    padded = np.zeros((bits.shape[1], -(-states // WORD) * WORD), dtype=np.bool_)
    padded[:, :states] = bits.T
    return np.packbits(padded, axis=1, bitorder="little").view(np.uint64)


def from_plane(plane: Words, states: int) -> NDArray[np.bool_]:
    """The truth values of one plane."""
    return np.unpackbits(np.ascontiguousarray(plane).view(np.uint8), bitorder="little", count=states).astype(np.bool_)


def first_false(circuit: Circuit, nodes: Sequence[int], inputs: Sequence[int], bits: NDArray[np.bool_]) -> list[int]:
    """For each node, the first state (row) in which it is false, or -1."""
    planes = to_planes(bits)
    ones = np.full(planes.shape[1], ~np.uint64(0))
    found = Program(circuit, nodes).run(dict(zip(inputs, planes, strict=True)), ones)
    result = []
    for node, plane in zip(nodes, found, strict=True):
        truth = from_plane(plane, bits.shape[0]) if node > TRUE else np.full(bits.shape[0], node == TRUE)
        bad = np.flatnonzero(~truth)
        result.append(int(bad[0]) if bad.size else -1)
    return result
