"""How a state of the spec becomes a few machine words, and which states are the same up to renaming.

No relation speaks of two blocks, so a state is one *column* of bits for every block (its tables, pins,
rows, ...) and a few bits about no block at all.  Renaming blocks permutes columns, so sorting the
columns is a canonical form, exact and cheap.  Renaming requests and queued work permutes bits inside
the columns; with ``full`` symmetry the smallest result over all renamings is taken.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kvproof.checks.readings.finite import Cell
from kvproof.checks.readings.machine import Machine

BITS = 63
"""Bits used of a 64-bit word: the sign bit stays clear, so words compare alike everywhere."""
INTERCHANGEABLE = ("request", "work", "holder", "key")
"""Sorts without an order, other than blocks: their things can be renamed."""


@dataclass(frozen=True)
class Bit:
    """Where a cell lives."""

    word: int
    shift: int


class Layout:
    """Bit positions for the cells of a machine, and renamings."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        relations = machine.module.states.relations
        self.blocks = machine.scope.sizes["block"]
        self._column: dict[Cell, tuple[int, Cell]] = {}
        kinds: dict[Cell, int] = {}
        rest: list[Cell] = []
        for cell in machine.cells:
            name, row = cell
            places = [i for i, sort in enumerate(relations[name].sorts) if sort.name == "block"]
            if len(places) > 1:
                raise ValueError(f"{name} speaks of two blocks: columns cannot hold it")
            if not places:
                rest.append(cell)
                continue
            kind: Cell = (name, (*row[: places[0]], -1, *row[places[0] + 1 :]))
            kinds.setdefault(kind, len(kinds))
            self._column[cell] = (row[places[0]], kind)
        self.kinds, self.rest = list(kinds), rest
        self.width = len(kinds)
        if self.width > BITS or len(rest) > BITS:
            raise ValueError(f"{self.width} bits a block and {len(rest)} others: more than a word each")
        self.per_word = BITS // max(1, self.width)
        column_words = -(-self.blocks // self.per_word)
        used = (self.blocks - (column_words - 1) * self.per_word) * self.width
        fits = used + len(rest) <= BITS
        self.rest_word = column_words - 1 if fits else column_words
        self.rest_shift = used if fits else 0
        self.words = column_words if fits else column_words + 1

    def column_at(self, block: int) -> Bit:
        """Where the column of a block starts."""
        return Bit(block // self.per_word, block % self.per_word * self.width)

    def bit(self, cell: Cell) -> Bit:
        """Where a cell lives."""
        if cell in self._column:
            block, kind = self._column[cell]
            start = self.column_at(block)
            return Bit(start.word, start.shift + self.kinds.index(kind))
        return Bit(self.rest_word, self.rest_shift + self.rest.index(cell))

    @cached_property
    def bits(self) -> list[Bit]:
        """Where each cell of the machine lives, in the machine's order."""
        kind_at = {kind: i for i, kind in enumerate(self.kinds)}
        rest_at = {cell: i for i, cell in enumerate(self.rest)}
        found = []
        for cell in self.machine.cells:
            if cell in self._column:
                block, kind = self._column[cell]
                start = self.column_at(block)
                found.append(Bit(start.word, start.shift + kind_at[kind]))
            else:
                found.append(Bit(self.rest_word, self.rest_shift + rest_at[cell]))
        return found

    def pack(self, values: Sequence[bool]) -> NDArray[np.int64]:
        """The words of a state."""
        words = [0] * self.words
        for bit, value in zip(self.bits, values, strict=True):
            words[bit.word] |= int(value) << bit.shift
        return np.array(words, dtype=np.int64)

    def unpack(self, words: Sequence[int]) -> frozenset[Cell]:
        """The true cells of a state."""
        return frozenset(
            cell
            for cell, bit in zip(self.machine.cells, self.bits, strict=True)
            if int(words[bit.word]) >> bit.shift & 1
        )

    # -- renamings inside the columns

    @cached_property
    def renamings(self) -> list[tuple[list[int], list[int]]]:
        """For each renaming of requests, work, holders and keys: where each bit of a column, and of the rest,
        goes.  The identity is the first."""
        sizes = self.machine.scope.sizes
        groups = [list(itertools.permutations(range(sizes.get(sort, 0)))) for sort in INTERCHANGEABLE]
        found = []
        for chosen in itertools.product(*groups):
            names = dict(zip(INTERCHANGEABLE, chosen, strict=True))
            found.append((self._moved(self.kinds, names), self._moved(self.rest, names)))
        return found

    def _moved(self, cells: Sequence[Cell], names: dict[str, tuple[int, ...]]) -> list[int]:
        place = {cell: i for i, cell in enumerate(cells)}
        relations = self.machine.module.states.relations
        moved = []
        for name, row in cells:
            sorts = relations[name].sorts
            renamed = tuple(
                names[sort.name][thing] if sort.name in names and thing >= 0 else thing
                for sort, thing in zip(sorts, row, strict=True)
            )
            moved.append(place[name, renamed])
        return moved

    def interchangeable(self) -> bool:
        """Whether renaming blocks is allowed: no state slots, no reserved ids among them."""
        return not (self.machine.scope.slots or self.machine.scope.reserved_blocks)

    def orbit_sizes(self, keys: NDArray[np.int64]) -> int:
        """How many states the classes (by blocks) with these keys stand for."""
        columns = np.stack(list(self.columns(keys)), axis=1)
        total = 0
        ordered = np.sort(columns, axis=1)
        same = ordered[:, 1:] == ordered[:, :-1]
        run = np.ones(len(keys), dtype=np.int64)
        share = np.ones(len(keys), dtype=np.float64)
        for at in range(self.blocks - 1):
            run = np.where(same[:, at], run + 1, 1)
            share *= run
        sizes, counts = np.unique(share, return_counts=True)
        for size, count in zip(sizes, counts, strict=True):
            total += math.factorial(self.blocks) // round(size) * int(count)
        return total

    def columns(self, keys: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """The column of each block, as numbers."""
        mask = np.int64((1 << self.width) - 1)
        for block in range(self.blocks):
            start = self.column_at(block)
            yield keys[:, start.word] >> np.int64(start.shift) & mask
