"""The plane engine: a level of states in, the level of their new successors out.

Written once on an array library: NumPy, or torch on any device.  All words are signed 64-bit with a
clear sign bit, so that they compare alike everywhere.  States are found again by a hash of their words,
and every match is compared word by word: keys are exact, whatever their width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from kvproof.checks.exploring.layout import Layout
from kvproof.checks.exploring.planes import WORD, Program
from kvproof.checks.readings.circuit import TRUE
from kvproof.checks.readings.machine import Instance, Machine

CHUNK = 1 << 15
"""States expanded at once."""
MIX = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


class Arrays(Protocol):
    """The few array operations that differ between libraries."""

    name: str

    def words(self, values: Any) -> Any:
        """An array of 64-bit words."""

    def full(self, rows: int, value: int) -> Any:
        """A vector of one value."""

    def concat(self, parts: list[Any]) -> Any:
        """One after the other, along the first axis."""

    def sort(self, values: Any) -> tuple[Any, Any]:
        """Sorted values and where they came from (stable)."""

    def sort_columns(self, values: Any) -> Any:
        """Each row sorted."""

    def search(self, ordered: Any, values: Any) -> Any:
        """Where each value would be inserted before equal ones."""

    def where(self, condition: Any) -> Any:
        """The places where a vector is true."""

    def choose(self, condition: Any, then: Any, otherwise: Any) -> Any:
        """One or the other, element by element."""

    def to_numpy(self, values: Any) -> Any:
        """The same on the host."""

    def arange(self, count: int) -> Any:
        """0, 1, 2, ..."""

    def stack(self, vectors: list[Any]) -> Any:
        """Vectors as the columns of a matrix."""


class NumpyArrays:
    """NumPy."""

    name = "numpy"

    def words(self, values: Any) -> Any:
        """An array of 64-bit words."""
        return np.asarray(values, dtype=np.int64)

    def full(self, rows: int, value: int) -> Any:
        """A vector of one value."""
        return np.full(rows, value, dtype=np.int64)

    def concat(self, parts: list[Any]) -> Any:
        """One after the other, along the first axis."""
        return np.concatenate(parts)

    def sort(self, values: Any) -> tuple[Any, Any]:
        """Sorted values and where they came from (stable)."""
        order = np.argsort(values, kind="stable")
        return values[order], order

    def sort_columns(self, values: Any) -> Any:
        """Each row sorted."""
        return np.sort(values, axis=1)

    def search(self, ordered: Any, values: Any) -> Any:
        """Where each value would be inserted before equal ones."""
        return np.searchsorted(ordered, values)

    def where(self, condition: Any) -> Any:
        """The places where a vector is true."""
        return np.flatnonzero(condition)

    def choose(self, condition: Any, then: Any, otherwise: Any) -> Any:
        """One or the other, element by element."""
        return np.where(condition, then, otherwise)

    def to_numpy(self, values: Any) -> Any:
        """The same on the host."""
        return values

    def arange(self, count: int) -> Any:
        """0, 1, 2, ..."""
        return np.arange(count, dtype=np.int64)

    def stack(self, vectors: list[Any]) -> Any:
        """Vectors as the columns of a matrix."""
        return np.stack(vectors, axis=1)


class TorchArrays:
    """torch, on a device."""

    def __init__(self, device: str) -> None:
        import torch

        self.torch = torch
        self.device = torch.device(device)
        self.name = f"torch on {device}"

    def words(self, values: Any) -> Any:
        """An array of 64-bit words."""
        return self.torch.as_tensor(values, dtype=self.torch.int64, device=self.device)

    def full(self, rows: int, value: int) -> Any:
        """A vector of one value."""
        return self.torch.full((rows,), value, dtype=self.torch.int64, device=self.device)

    def concat(self, parts: list[Any]) -> Any:
        """One after the other, along the first axis."""
        return self.torch.cat(parts)

    def sort(self, values: Any) -> tuple[Any, Any]:
        """Sorted values and where they came from (stable)."""
        found = self.torch.sort(values, stable=True)
        return found.values, found.indices

    def sort_columns(self, values: Any) -> Any:
        """Each row sorted."""
        return self.torch.sort(values, dim=1).values

    def search(self, ordered: Any, values: Any) -> Any:
        """Where each value would be inserted before equal ones."""
        return self.torch.searchsorted(ordered, values)

    def where(self, condition: Any) -> Any:
        """The places where a vector is true."""
        return self.torch.nonzero(condition, as_tuple=True)[0]

    def choose(self, condition: Any, then: Any, otherwise: Any) -> Any:
        """One or the other, element by element."""
        return self.torch.where(condition, then, otherwise)

    def to_numpy(self, values: Any) -> Any:
        """The same on the host."""
        return values.cpu().numpy()

    def arange(self, count: int) -> Any:
        """0, 1, 2, ..."""
        return self.torch.arange(count, dtype=self.torch.int64, device=self.device)

    def stack(self, vectors: list[Any]) -> Any:
        """Vectors as the columns of a matrix."""
        return self.torch.stack(vectors, dim=1)


class Mover:
    """One instance, ready to be applied: words to clear and set, and bits that have to be computed."""

    def __init__(self, layout: Layout, instance: Instance) -> None:
        self.guard = instance.guard
        clear, fixed = [0] * layout.words, [0] * layout.words
        self.computed: list[tuple[int, int, int]] = []
        for place, node in instance.changes:
            bit = layout.bits[place]
            clear[bit.word] |= 1 << bit.shift
            if node == TRUE:
                fixed[bit.word] |= 1 << bit.shift
            elif node > TRUE:
                self.computed.append((bit.word, bit.shift, node))
        self.keep = [~word for word in clear]
        self.fixed = fixed


class PlaneEngine:
    """Expands levels of a machine.  ``new`` states are those that no earlier level had."""

    def __init__(self, machine: Machine, layout: Layout, symmetry: str, arrays: Arrays) -> None:
        self.machine, self.layout, self.symmetry, self.xp = machine, layout, symmetry, arrays
        if any(instance.chosen for instance in machine.instances):
            raise ValueError("the scope leaves choices free: fix them to explore it")
        self.movers = [Mover(layout, instance) for instance in machine.instances]
        roots = {mover.guard for mover in self.movers}
        roots |= {node for mover in self.movers for _, _, node in mover.computed}
        self.roots = sorted(roots)
        self.program = Program(machine.circuit, self.roots)
        self._goals: dict[tuple[int, ...], Program] = {}
        self.edges = 0
        start = self.canonical(self.xp.words(layout.pack(machine.initial))[None, :])
        self.keys: list[Any] = [start]
        self.count = 1
        self._hashes, self._numbers = self.hash(start), self.xp.arange(1)
        self.parents: list[Any] = [self.xp.full(1, -1)]
        self.moves: list[Any] = [self.xp.full(1, -1)]

    # -- words, planes and hashes

    def planes(self, keys: Any) -> dict[int, Any]:
        """The plane of every cell: bit ``s`` of word ``w`` belongs to state ``64 w + s``."""
        states = keys.shape[0]
        words = -(-states // WORD)
        weights = self.xp.words([_signed(1 << s) for s in range(WORD)])
        padding = self.xp.words(np.zeros((words * WORD - states, self.layout.words), dtype=np.int64))
        padded = self.xp.concat([keys, padding])
        found = {}
        for node, bit in zip(self.machine.inputs, self.layout.bits, strict=True):
            ones = (padded[:, bit.word] >> bit.shift) & 1
            found[node] = (ones.reshape(words, WORD) * weights).sum(1)
        return found

    def states_of(self, plane: Any, states: int) -> Any:
        """The states whose bit in the plane is set."""
        words = self.xp.where(plane != 0)
        bits = (plane[words][:, None] >> self.xp.arange(WORD)[None, :]) & 1
        places = self.xp.where(bits.reshape(-1) != 0)
        found = (words[places >> 6] << 6) + (places & 63)
        return found[found < states]

    def hash(self, keys: Any) -> Any:
        """A well-mixed word for each state."""
        mixed = keys[:, 0] * _signed(MIX[0])
        for word in range(self.layout.words):
            mixed = (mixed ^ ((mixed >> 29) & ((1 << 35) - 1))) * _signed(MIX[1]) + keys[:, word] * _signed(MIX[2])
        return mixed ^ ((mixed >> 32) & ((1 << 32) - 1))

    # -- symmetry

    def canonical(self, keys: Any) -> Any:
        """The representative of each state's class."""
        if self.symmetry == "none":
            return keys
        if self.symmetry == "blocks":
            return self._sorted(keys)
        best = None
        for columns, rest in self.layout.renamings:
            candidate = self._sorted(keys, columns, rest)
            best = candidate if best is None else self._smaller(best, candidate)
        return best

    def _sorted(self, keys: Any, column_bits: list[int] | None = None, rest_bits: list[int] | None = None) -> Any:
        layout = self.layout
        mask = (1 << layout.width) - 1
        columns = []
        for block in range(layout.blocks):
            start = layout.column_at(block)
            columns.append(_moved((keys[:, start.word] >> start.shift) & mask, column_bits))
        ordered = self.xp.sort_columns(self.xp.stack(columns))
        rest = (keys[:, layout.rest_word] >> layout.rest_shift) & ((1 << len(layout.rest)) - 1)
        words = [keys[:, 0] * 0 for _ in range(layout.words)]
        for block in range(layout.blocks):
            start = layout.column_at(block)
            words[start.word] = words[start.word] | (ordered[:, block] << start.shift)
        words[layout.rest_word] = words[layout.rest_word] | (_moved(rest, rest_bits) << layout.rest_shift)
        return self.xp.stack(words)

    def _smaller(self, a: Any, b: Any) -> Any:
        less = b[:, 0] < a[:, 0]
        same = b[:, 0] == a[:, 0]
        for word in range(1, self.layout.words):
            less = less | (same & (b[:, word] < a[:, word]))
            same = same & (b[:, word] == a[:, word])
        return self.xp.choose(less[:, None], b, a)

    # -- one level

    def expand(self, first: int, last: int) -> None:
        """Expand the states ``first`` to ``last``; new ones get the next numbers."""
        level = self.all_keys()[first:last]
        parts: list[tuple[Any, Any, Any]] = []
        for at in range(0, level.shape[0], CHUNK):
            raw = list(self.successors(level[at : at + CHUNK], first + at))
            if raw:
                keys, parents, moves = (self.xp.concat([part[i] for part in raw]) for i in range(3))
                self.edges += keys.shape[0]
                parts.append((self.canonical(keys), parents, moves))
            if sum(part[0].shape[0] for part in parts) > 1 << 21:
                parts = [self._distinct(parts)]
        if not parts:
            return
        keys, parents, moves = self._distinct(parts)
        hashes = self.hash(keys)
        fresh = ~self._known(keys, hashes)
        places = self.xp.where(fresh)
        keys, hashes = keys[places], hashes[places]
        numbers = self.xp.arange(keys.shape[0]) + self.count
        self.parents.append(parents[places])
        self.moves.append(moves[places])
        self.keys.append(keys)
        self.count += keys.shape[0]
        self._remember(hashes, numbers)

    def _remember(self, hashes: Any, numbers: Any) -> None:
        merged, order = self.xp.sort(self.xp.concat([self._hashes, hashes]))
        self._numbers = self.xp.concat([self._numbers, numbers])[order]
        self._hashes = merged

    def resume(self, keys: Any, parents: Any, moves: Any, edges: int) -> None:
        """Go on from what was found before."""
        self.keys = [self.xp.words(keys)]
        self.parents, self.moves = [self.xp.words(parents)], [self.xp.words(moves)]
        self.count, self.edges = len(keys), edges
        self._hashes, self._numbers = self.xp.words([]), self.xp.words([])
        self._remember(self.hash(self.keys[0]), self.xp.arange(self.count))

    def first_broken(self, goals: Sequence[int], first: int, last: int) -> tuple[int, int] | None:
        """The first state from ``first`` to ``last`` in which a goal is false, and which goal (its place)."""
        program = self._goals.setdefault(tuple(goals), Program(self.machine.circuit, goals))
        keys = self.all_keys()
        for at in range(first, last, CHUNK):
            chunk = keys[at : min(at + CHUNK, last)]
            ones = self.xp.full(-(-chunk.shape[0] // WORD), -1)
            broken = []
            for place, plane in enumerate(program.run(self.planes(chunk), ones)):
                states = self.states_of(~plane, chunk.shape[0])
                if states.shape[0]:
                    broken.append((at + int(states[0]), place))
            if broken:
                return min(broken)
        return None

    def bytes_used(self) -> int:
        """Memory of everything that grows with the number of states."""
        return 8 * self.count * (self.layout.words + 4)

    def successors(self, keys: Any, first: int) -> Iterator[tuple[Any, Any, Any]]:
        """For each move: where it leads, from which state (numbered from ``first``), and its number."""
        planes = self.planes(keys)
        ones = self.xp.full(-(-keys.shape[0] // WORD), -1)
        values = dict(zip(self.roots, self.program.run(planes, ones), strict=True))
        values[1] = ones
        for number, mover in enumerate(self.movers):
            states = self.states_of(values[mover.guard], keys.shape[0])
            if states.shape[0] == 0:
                continue
            chosen = keys[states]
            words = [(chosen[:, w] & mover.keep[w]) | mover.fixed[w] for w in range(self.layout.words)]
            for word, shift, node in mover.computed:
                bit = (values[node][states >> 6] >> (states & 63)) & 1
                words[word] = words[word] | (bit << shift)
            yield self.xp.stack(words), states + first, self.xp.full(states.shape[0], number)

    def _distinct(self, parts: list[tuple[Any, Any, Any]]) -> tuple[Any, Any, Any]:
        keys, parents, moves = (self.xp.concat([part[i] for part in parts]) for i in range(3))
        hashes, order = self.xp.sort(self.hash(keys))
        keys, parents, moves = keys[order], parents[order], moves[order]
        if keys.shape[0] < 2:
            return keys, parents, moves
        same_hash = hashes[1:] == hashes[:-1]
        same_key = (keys[1:] == keys[:-1]).all(1)
        if bool((same_hash & ~same_key).any()):
            raise HashCollision
        places = self.xp.where(~same_key) + 1
        places = self.xp.concat([self.xp.arange(1), places])
        return keys[places], parents[places], moves[places]

    def _known(self, keys: Any, hashes: Any) -> Any:
        """Which states an earlier level had."""
        places = self.xp.search(self._hashes, hashes)
        inside = places < self._hashes.shape[0]
        places = self.xp.choose(inside, places, places * 0)
        known = inside & (self._hashes[places] == hashes)
        found = self.xp.where(known)
        if found.shape[0]:
            everything = self.all_keys()
            stored = everything[self._numbers[places[found]]]
            if not bool((stored == keys[found]).all()):
                raise HashCollision
        return known

    def all_keys(self) -> Any:
        """The keys of all states by number."""
        if len(self.keys) > 1:
            self.keys = [self.xp.concat(self.keys)]
        return self.keys[0]

    def history(self) -> tuple[Any, Any]:
        """The parent and the move of every state by number."""
        return self.xp.to_numpy(self.xp.concat(self.parents)), self.xp.to_numpy(self.xp.concat(self.moves))


class HashCollision(RuntimeError):
    """Two different states have the same hash (about once in 10^9 runs of a million states)."""


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


def _moved(values: Any, places: list[int] | None) -> Any:
    """Bits of each word moved to their places."""
    if places is None or places == list(range(len(places))):
        return values
    result = values * 0
    for old, new in enumerate(places):
        result = result | (((values >> old) & 1) << new)
    return result
