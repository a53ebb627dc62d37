"""Shadow memory: for every row of a page its last write and the reads since.

Neighbouring rows with the same history share a segment, so a page costs as much as its history is
uneven: one segment for a block that was copied whole, one for each row that was appended alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .reports import Access


@dataclass(slots=True)
class Segment:
    """Neighbouring rows of one page with the same history."""

    first: int
    stop: int
    write: Access | None = None
    reads: dict[str, Access] = field(default_factory=dict)
    filled: bool = True

    def split(self, at: int) -> Segment:
        """Cut at a row; returns the new right part."""
        right = Segment(at, self.stop, self.write, dict(self.reads), self.filled)
        self.stop = at
        return right


class Page:
    """The history of one page, as few segments as its rows allow, in row order."""

    __slots__ = ("segments",)

    def __init__(self) -> None:
        self.segments: list[Segment] = []

    def cover(self, first: int, stop: int) -> list[Segment]:
        """The segments of exactly these rows; missing rows get a fresh, quiet history."""
        segments = self.segments
        low = 0
        while low < len(segments) and segments[low].stop <= first:
            low += 1
        if low < len(segments) and segments[low].first < first:
            segments.insert(low + 1, segments[low].split(first))
            low += 1
        at, row = low, first
        while row < stop:
            if at == len(segments) or segments[at].first > row:
                gap_ends = stop if at == len(segments) else min(stop, segments[at].first)
                segments.insert(at, Segment(row, gap_ends))
            elif segments[at].stop > stop:
                segments.insert(at + 1, segments[at].split(stop))
            row = segments[at].stop
            at += 1
        return segments[low:at]

    def replace(self, old: list[Segment], new: Segment) -> None:
        """Put one segment in the place of neighbouring ones."""
        if len(old) == 1:
            only = old[0]
            only.write, only.reads, only.filled = new.write, new.reads, new.filled
            return
        at = self.segments.index(old[0])
        self.segments[at : at + len(old)] = [new]
