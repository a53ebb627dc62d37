"""States in words: the true cells of a small state, one relation a line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvproof.checks.readings.finite import Cell
from kvproof.checks.readings.machine import Machine
from kvproof.spec import language as L
from kvproof.spec.steps import Module

_LETTER = {"request": "R", "index": "i", "block": "B", "offset": "o", "work": "W", "holder": "H", "key": "K"}


def thing(sort: str, number: int) -> str:
    """A thing's short name: ``R0``, ``B2``."""
    return f"{_LETTER.get(sort, sort)}{number}"


def describe(module: Module, cells: Iterable[Cell], show: Sequence[str] | None = None) -> list[str]:
    """One line a relation: its name and its tuples."""
    rows: dict[str, list[str]] = {}
    relations = module.states.relations
    for name, row in sorted(cells, key=lambda cell: (list(relations).index(cell[0]), cell[1])):
        if show is not None and name not in show:
            continue
        words = [thing(sort.name, number) for sort, number in zip(relations[name].sorts, row, strict=True)]
        rows.setdefault(name, []).append(words[0] if len(words) == 1 else f"({', '.join(words)})" if words else "yes")
    return [f"{name}: {' '.join(tuples)}" for name, tuples in rows.items()]


def before_and_after(module: Module, before: frozenset[Cell], after: frozenset[Cell]) -> list[str]:
    """The state before, and what is new (+) and gone (-) afterwards."""
    lines = ["  before"] + [f"    {line}" for line in describe(module, before)]
    lines += ["  after"]
    lines += [f"    + {line}" for line in describe(module, after - before)]
    lines += [f"    - {line}" for line in describe(module, before - after)]
    return lines


def told(machine: Machine, sentence: str, formula: L.Formula, cells: Iterable[Cell]) -> str:
    """The sentence of a clause that fails in a state, with the names of the things that make it fail."""
    if not isinstance(formula, L.ForAll):
        return sentence
    inputs = dict(zip(machine.cells, machine.inputs, strict=True))
    values = {inputs[cell]: True for cell in cells}
    reading = machine.reading()
    for row in reading.tuples([v.sort for v in formula.variables]):
        node = reading.formula(formula.body, dict(zip(formula.variables, row, strict=True)))
        if not machine.circuit.evaluate(node, values):
            words = {v.name: thing(v.sort.name, number) for v, number in zip(formula.variables, row, strict=True)}
            if sentence.startswith("not so"):
                return f"{sentence} ({', '.join(words.values())})"
            return sentence.format_map(words)
    return sentence
