"""The same bit planes, run by compiled loops (optional extra ``numba``).

The circuit is not translated into machine code: a loop interprets it, a row of words at a time, so
nothing is compiled again for another pool.  New states are found with an open hash table that holds
whole keys, so they are exact; each is written once, with its parent and its move.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvproof.checks.exploring.engine import Mover
from kvproof.checks.exploring.layout import Layout
from kvproof.checks.exploring.planes import WORD, Program
from kvproof.checks.readings.circuit import AND, NOT, TRUE
from kvproof.checks.readings.machine import Machine

ROW = 16
"""Words of a plane that are computed together: 1,024 states."""
LUT_BITS = 11
"""Bits of a column that are renamed with one look-up."""


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The loop compiled by numba, which is optional: this module is imported only where its engine is asked for."""
    made: Callable[..., Any] = import_module("numba").njit(cache=True, nogil=True)(function)
    return made


def registers(program: Program) -> tuple[NDArray[np.int32], dict[int, int], int]:
    """The program with nodes replaced by rows of a scratch array; a row is used again when it is free.

    Rows 0 and 1 hold zeros and ones.
    """
    row = {0: 0, 1: 1}
    for node in program.inputs:
        row[node] = len(row)
    used = len(row)
    spare: list[int] = []
    code = []
    for (node, kind, left, right), done in zip(program.operations, program._free_after, strict=True):
        operation = (kind == AND and 0) or (kind == NOT and 2) or int(kind != AND)
        a, b = row[left], row[left] if kind == NOT else row[right]
        if spare:
            target = spare.pop()
        else:
            target, used = used, used + 1
        row[node] = target
        code.append((operation, a, b, target))
        spare += [row[old] for old in done if old not in program.inputs]
    return np.array(code, dtype=np.int32).reshape(-1, 4), row, used


@compiled
def _mix(words: Any, count: int) -> Any:  # pragma: no cover - compiled
    h = np.uint64(0x9E3779B97F4A7C15)
    for k in range(count):
        h = (h ^ np.uint64(words[k])) * np.uint64(0xBF58476D1CE4E5B9)
        h ^= h >> np.uint64(31)
    h *= np.uint64(0x94D049BB133111EB)
    return h ^ (h >> np.uint64(29))


@compiled
def _canonical(
    words: Any, out: Any, scratch: Any, geometry: Any, luts: Any, rest_luts: Any
) -> None:  # pragma: no cover
    """The smallest form of a state over all renamings, into ``out``."""
    blocks, width, per_word, rest_word, rest_shift, rest_bits, count = geometry
    mask = np.int64((1 << width) - 1)
    low = np.int64((1 << LUT_BITS) - 1)
    for renaming in range(luts.shape[0]):
        for b in range(blocks):
            column = (words[b // per_word] >> np.int64(b % per_word * width)) & mask
            if renaming:
                moved = np.int64(0)
                part = 0
                while column:
                    moved |= luts[renaming, part, column & low]
                    column >>= LUT_BITS
                    part += 1
                column = moved
            at = b
            while at > 0 and scratch[at - 1] > column:
                scratch[at] = scratch[at - 1]
                at -= 1
            scratch[at] = column
        rest = (words[rest_word] >> np.int64(rest_shift)) & np.int64((1 << rest_bits) - 1)
        if renaming:
            moved = np.int64(0)
            part = 0
            while rest:
                moved |= rest_luts[renaming, part, rest & low]
                rest >>= LUT_BITS
                part += 1
            rest = moved
        smaller = renaming == 0
        decided = smaller
        for k in range(count):
            word = np.int64(0)
            for b in range(k * per_word, min(blocks, (k + 1) * per_word)):
                word |= scratch[b] << np.int64(b % per_word * width)
            if k == rest_word:
                word |= rest << np.int64(rest_shift)
            if not decided:
                if word > out[k]:
                    break
                if word < out[k]:
                    smaller = True
                    decided = True
                    for earlier in range(k):
                        out[earlier] = scratch[blocks + earlier]
            if smaller:
                out[k] = word
            else:
                scratch[blocks + k] = word


@compiled
def _insert_all(table: Any, store: Any, first: int, last: int, count: int) -> None:  # pragma: no cover
    """Enter stored keys into an empty table."""
    mask = np.uint64(table.shape[0] - 1)
    for number in range(first, last):
        at = _mix(store[number], count) & mask
        while True:
            empty = True
            for k in range(count):
                if table[at, k]:
                    empty = False
            if empty:
                for k in range(count):
                    table[at, k] = store[number, k]
                break
            at = (at + np.uint64(1)) & mask


@compiled
def _fill(
    store: Any, first: int, last: int, code: Any, scratch: Any, cell_word: Any, cell_shift: Any, cell_row: Any
) -> None:  # pragma: no cover - compiled
    """The planes of the cells of some states, and everything that the circuit computes from them."""
    row_words = (last - first + WORD - 1) // WORD
    for c in range(cell_row.shape[0]):
        row, word, shift = cell_row[c], cell_word[c], np.int64(cell_shift[c])
        for w in range(row_words):
            plane = np.uint64(0)
            begin = first + w * WORD
            for s in range(min(WORD, last - begin)):
                plane |= np.uint64((store[begin + s, word] >> shift) & 1) << np.uint64(s)
            scratch[row, w] = plane
    # the circuit
    for i in range(code.shape[0]):
        operation, a, b, target = code[i, 0], code[i, 1], code[i, 2], code[i, 3]
        if operation == 0:
            for w in range(row_words):
                scratch[target, w] = scratch[a, w] & scratch[b, w]
        elif operation == 1:
            for w in range(row_words):
                scratch[target, w] = scratch[a, w] | scratch[b, w]
        else:
            for w in range(row_words):
                scratch[target, w] = ~scratch[a, w]


@compiled
def _first_false(
    store: Any,
    first: int,
    last: int,
    code: Any,
    scratch: Any,
    cell_word: Any,
    cell_shift: Any,
    cell_row: Any,
    goal_row: Any,
) -> Any:  # pragma: no cover - compiled
    """The first state in which some goal is false, and that goal; (-1, -1) if there is none."""
    step = WORD * scratch.shape[1]
    for at in range(first, last, step):
        end = min(at + step, last)
        _fill(store, at, end, code, scratch, cell_word, cell_shift, cell_row)
        for w in range((end - at + WORD - 1) // WORD):
            inside = ~np.uint64(0)
            if end - at - w * WORD < WORD:
                inside = (np.uint64(1) << np.uint64(end - at - w * WORD)) - np.uint64(1)
            bad = np.uint64(0)
            for g in range(goal_row.shape[0]):
                bad |= ~scratch[goal_row[g], w] & inside
            if bad:
                s = 0
                while not (bad >> np.uint64(s)) & np.uint64(1):
                    s += 1
                for g in range(goal_row.shape[0]):
                    if not (scratch[goal_row[g], w] >> np.uint64(s)) & np.uint64(1):
                        return at + w * WORD + s, g
    return -1, -1


@compiled
def _expand(
    store: Any,
    parents: Any,
    moves: Any,
    first: int,
    last: int,
    found: int,
    table: Any,
    code: Any,
    scratch: Any,
    cell_word: Any,
    cell_shift: Any,
    cell_row: Any,
    guard_row: Any,
    keep: Any,
    fixed: Any,
    pointer: Any,
    bit_word: Any,
    bit_shift: Any,
    bit_row: Any,
    symmetric: bool,
    geometry: Any,
    luts: Any,
    rest_luts: Any,
    most: int,
) -> Any:  # pragma: no cover - compiled
    """Expand states ``first`` to ``last`` (at most ``64 * ROW``); returns how many states there are, and edges.

    At ``most`` states it stops and answers -1 edges: make room and ask again (what was found stays found).
    """
    count = store.shape[1]
    states = last - first
    row_words = (states + WORD - 1) // WORD
    mask = np.uint64(table.shape[0] - 1)
    edges = 0
    one = np.uint64(1)
    _fill(store, first, last, code, scratch, cell_word, cell_shift, cell_row)
    # the successors
    after = np.empty(count, np.int64)
    form = np.empty(count, np.int64)
    work = np.empty(geometry[0] + count, np.int64)
    for i in range(guard_row.shape[0]):
        for w in range(row_words):
            enabled = scratch[guard_row[i], w]
            if w == row_words - 1 and states % WORD:
                enabled &= (one << np.uint64(states % WORD)) - one
            while enabled:
                lowest = enabled & (~enabled + one)
                s = 0
                probe = lowest
                if probe >> np.uint64(32):
                    s += 32
                    probe >>= np.uint64(32)
                if probe >> np.uint64(16):
                    s += 16
                    probe >>= np.uint64(16)
                if probe >> np.uint64(8):
                    s += 8
                    probe >>= np.uint64(8)
                if probe >> np.uint64(4):
                    s += 4
                    probe >>= np.uint64(4)
                if probe >> np.uint64(2):
                    s += 2
                    probe >>= np.uint64(2)
                if probe >> one:
                    s += 1
                enabled ^= lowest
                edges += 1
                number = first + w * WORD + s
                for k in range(count):
                    after[k] = (store[number, k] & keep[i, k]) | fixed[i, k]
                for j in range(pointer[i], pointer[i + 1]):
                    if scratch[bit_row[j], w] & lowest:
                        after[bit_word[j]] |= np.int64(1) << np.int64(bit_shift[j])
                if symmetric:
                    _canonical(after, form, work, geometry, luts, rest_luts)
                    for k in range(count):
                        after[k] = form[k]
                at = _mix(after, count) & mask
                while True:
                    empty = True
                    same = True
                    for k in range(count):
                        there = table[at, k]
                        if there:
                            empty = False
                        if there != after[k]:
                            same = False
                    if same:
                        break
                    if empty:
                        if found == most:
                            return found, -1
                        for k in range(count):
                            table[at, k] = after[k]
                            store[found, k] = after[k]
                        parents[found] = number
                        moves[found] = i
                        found += 1
                        break
                    at = (at + one) & mask
    return found, edges


class _Compiled:
    """A program as arrays: code, scratch rows, and where its inputs come from in a state's words."""

    def __init__(self, machine: Machine, layout: Layout, roots: Sequence[int]) -> None:
        program = Program(machine.circuit, roots)
        self.code, self.row, used = registers(program)
        self.scratch = np.zeros((used, ROW), dtype=np.uint64)
        self.scratch[TRUE] = ~np.uint64(0)
        cells = [(self.row[n], b) for n, b in zip(machine.inputs, layout.bits, strict=True) if n in self.row]
        self.cell_row = np.array([r for r, _ in cells], dtype=np.int64)
        self.cell_word = np.array([b.word for _, b in cells], dtype=np.int64)
        self.cell_shift = np.array([b.shift for _, b in cells], dtype=np.int64)

    def arguments(self) -> tuple[Any, ...]:
        """In the order in which the loops take them."""
        return self.code, self.scratch, self.cell_word, self.cell_shift, self.cell_row


class CompiledEngine:
    """Expands levels of a machine with compiled loops.  Keys, parents and moves are numbered arrays."""

    def __init__(self, machine: Machine, layout: Layout, symmetry: str) -> None:
        self.machine, self.layout, self.symmetry = machine, layout, symmetry
        if any(instance.chosen for instance in machine.instances):
            raise ValueError("the scope leaves choices free: fix them to explore it")
        self.movers = [Mover(layout, instance) for instance in machine.instances]
        roots = {mover.guard for mover in self.movers}
        roots |= {node for mover in self.movers for _, _, node in mover.computed}
        self._program = _Compiled(machine, layout, sorted(roots))
        row = self._program.row
        self._guards = np.array([row[m.guard] for m in self.movers], dtype=np.int64)
        self._keep = np.array([m.keep for m in self.movers], dtype=np.int64)
        self._fixed = np.array([m.fixed for m in self.movers], dtype=np.int64)
        counts = [0, *(len(m.computed) for m in self.movers)]
        self._pointer = np.cumsum(np.array(counts, dtype=np.int64))
        bits = [bit for m in self.movers for bit in m.computed]
        self._bit_word = np.array([w for w, _, _ in bits], dtype=np.int64)
        self._bit_shift = np.array([s for _, s, _ in bits], dtype=np.int64)
        self._bit_row = np.array([row[n] for _, _, n in bits], dtype=np.int64)
        self._symmetry_tables()
        self.edges = 0
        self.count = 1
        self._goals: dict[tuple[int, ...], _Compiled] = {}
        self._store = np.zeros((1 << 12, layout.words), dtype=np.int64)
        self._parents = np.full(1 << 12, -1, dtype=np.int32)
        self._moves = np.full(1 << 12, -1, dtype=np.int16 if len(self.movers) < 1 << 15 else np.int32)
        self._table = np.zeros((1 << 12, layout.words), dtype=np.int64)
        start = layout.pack(machine.initial)
        if self.symmetry != "none":
            form = np.zeros_like(start)
            scratch = np.zeros(layout.blocks + layout.words, dtype=np.int64)
            _canonical(start, form, scratch, self._geometry, self._luts, self._rest_luts)
            start = form
        self._store[0] = start
        _insert_all(self._table, self._store, 0, 1, layout.words)

    def _symmetry_tables(self) -> None:
        layout = self.layout
        renamings = layout.renamings if self.symmetry == "full" else layout.renamings[:1]
        parts = -(-max(layout.width, len(layout.rest), 1) // LUT_BITS)
        self._luts = np.zeros((len(renamings), parts, 1 << LUT_BITS), dtype=np.int64)
        self._rest_luts = np.zeros_like(self._luts)
        for number, (columns, rest) in enumerate(renamings):
            for table, places in ((self._luts, columns), (self._rest_luts, rest)):
                for old, new in enumerate(places):
                    part, bit = divmod(old, LUT_BITS)
                    there = np.arange(1 << LUT_BITS) >> bit & 1
                    table[number, part] |= there.astype(np.int64) << np.int64(new)
        self._geometry = (
            layout.blocks,
            layout.width,
            layout.per_word,
            layout.rest_word,
            layout.rest_shift,
            len(layout.rest),
            layout.words,
        )

    def _room(self, more: int) -> None:
        """Make room for ``more`` states: arrays double, and the table is at most 60% full."""
        if self.count + more > len(self._store):
            size = max(2 * len(self._store), self.count + more)
            self._store = _grown(self._store, size, 0)
            self._parents = _grown(self._parents, size, -1)
            self._moves = _grown(self._moves, size, -1)
        if 5 * (self.count + more) > 3 * len(self._table):
            size = len(self._table)
            while 5 * (self.count + more) > 3 * size:
                size *= 2
            self._table = np.zeros((size, self.layout.words), dtype=np.int64)
            _insert_all(self._table, self._store, 0, self.count, self.layout.words)

    def expand(self, first: int, last: int) -> None:
        """Expand the states ``first`` to ``last``; new ones get the next numbers."""
        step = WORD * ROW
        for at in range(first, last, step):
            end = min(at + step, last)
            self._room(8 * (end - at))
            found, edges = self._call(at, end)
            while edges < 0:
                self.count = found
                self._room(8 * (end - at))
                found, edges = self._call(at, end)
            self.count = found
            self.edges += edges

    def _call(self, at: int, end: int) -> tuple[int, int]:
        most = min(len(self._store), 3 * len(self._table) // 4)
        found, edges = _expand(
            self._store,
            self._parents,
            self._moves,
            at,
            end,
            self.count,
            self._table,
            *self._program.arguments(),
            self._guards,
            self._keep,
            self._fixed,
            self._pointer,
            self._bit_word,
            self._bit_shift,
            self._bit_row,
            self.symmetry != "none",
            self._geometry,
            self._luts,
            self._rest_luts,
            most,
        )
        return int(found), int(edges)

    def first_broken(self, goals: Sequence[int], first: int, last: int) -> tuple[int, int] | None:
        """The first state from ``first`` to ``last`` in which a goal is false, and which goal (its place)."""
        kept = tuple(goals)
        if kept not in self._goals:
            self._goals[kept] = _Compiled(self.machine, self.layout, kept)
        program = self._goals[kept]
        rows = np.array([program.row[goal] for goal in kept], dtype=np.int64)
        state, goal = _first_false(self._store, first, last, *program.arguments(), rows)
        return None if state < 0 else (int(state), int(goal))

    def resume(self, keys: NDArray[np.int64], parents: NDArray[Any], moves: NDArray[Any], edges: int) -> None:
        """Go on from what was found before."""
        self.count, self.edges = 0, edges
        self._room(len(keys))
        self.count = len(keys)
        self._store[: self.count] = keys
        self._parents[: self.count] = parents
        self._moves[: self.count] = moves
        self._table[:] = 0
        _insert_all(self._table, self._store, 0, self.count, self.layout.words)

    def all_keys(self) -> NDArray[np.int64]:
        """The keys of all states by number."""
        return self._store[: self.count]

    def history(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """The parent and the move of every state by number."""
        return self._parents[: self.count], self._moves[: self.count]

    def bytes_used(self) -> int:
        """Memory of everything that grows with the number of states."""
        return self._store.nbytes + self._parents.nbytes + self._moves.nbytes + self._table.nbytes


def _grown(array: NDArray[Any], size: int, fill: int) -> NDArray[Any]:
    grown = np.full((size, *array.shape[1:]), fill, dtype=array.dtype)
    grown[: len(array)] = array
    return grown
