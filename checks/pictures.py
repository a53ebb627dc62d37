"""States in words: the true cells of a small state, one relation a line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kvproof.spec.steps import Module

from .finite import Cell

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


def things(named: Sequence[tuple[str, int]], sorts: Mapping[str, str]) -> str:
    """An action's arguments in words."""
    return ", ".join(f"{name}={thing(sorts[name], number)}" for name, number in named)
