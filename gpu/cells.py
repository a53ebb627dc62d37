"""Names for memory: which rows of which page, in which space.

A *space* is one memory (``"blocks"``, ``"slots"``, ``"staging"`` ...), a *page* one block, slot or
buffer of it, a *row* one position inside a page.  A row means that row in every layer: no kernel
here touches one layer of a position without the others.

Rows, not blocks, are the unit of every ordering check.  With whole blocks a correct backend looks
wrong: a parent appends row 2 of a block while the tail copy of its child still reads rows 0 and 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Span(NamedTuple):
    """Rows ``first .. stop - 1`` of one page."""

    space: str
    page: int
    first: int
    stop: int

    def __str__(self) -> str:
        rows = f"row {self.first}" if self.stop == self.first + 1 else f"rows {self.first}..{self.stop - 1}"
        return f"{self.space}[{self.page}] {rows}"


Footprint = tuple[Span, ...]
"""A set of rows, as disjoint spans."""


def span_of(space: str, page: int, rows: int) -> Footprint:
    """The first ``rows`` rows of a page; empty when there are none."""
    return (Span(space, page, 0, rows),) if rows else ()


def spans_of_positions(space: str, table: Sequence[int], block_size: int, first: int, stop: int) -> Footprint:
    """Positions ``first .. stop - 1`` of a request, one span a block (chapter, section 4.1).

    Position p is row ``p % block_size`` of page ``table[p // block_size]``.
    """
    spans = []
    position = first
    while position < stop:
        index, row = divmod(position, block_size)
        end = min(block_size, row + stop - position)
        spans.append(Span(space, table[index], row, end))
        position += end - row
    return tuple(spans)


def spans_of_flat(space: str, rows: Iterable[int], page_rows: int) -> Footprint:
    """Flat row numbers (``page * page_rows + row``) as spans; negative numbers mean "no row"."""
    spans: list[Span] = []
    for flat in sorted({row for row in rows if row >= 0}):
        page, row = divmod(flat, page_rows)
        if spans and spans[-1].page == page and spans[-1].stop == row:
            spans[-1] = Span(space, page, spans[-1].first, row + 1)
        else:
            spans.append(Span(space, page, row, row + 1))
    return tuple(spans)


def rows_in(footprint: Footprint) -> int:
    """How many rows a footprint holds."""
    return sum(span.stop - span.first for span in footprint)


def describe(footprint: Footprint) -> str:
    """The footprint in words, for reports."""
    return ", ".join(str(span) for span in footprint) or "no rows"
