"""A grid as shapes with coordinates, in CSS pixels: what the template draws, and nothing it has to compute.

Neighbouring cells that look the same become one *bar*; neighbouring cells of which the same is known
become one *spot*, an invisible area that answers to the pointer.  That keeps a picture small: its size
follows what changed, not the number of cells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from kvproof.checks.picture.blame import Blame
from kvproof.checks.picture.grid import Cell, Grid, Place, QueuedCopy, name_of
from kvproof.checks.picture.told import facts
from kvproof.checks.picture.words import call, clean, subject
from kvproof.model.trace import Operation, Trace

COLOURS = 8
"""Colours of the style sheet, ``c0`` to ``c7``."""
HEAD = 96
"""Width of the row names."""
FEW = 14
"""Up to so many moments get wide columns with horizontal titles."""
TALL, LOW = 36, 26
"""Row heights: of few rows, of many."""
MOST_COPIES = 1_000
"""Copies of one figure that are drawn, the latest."""
MOST_LINES = 40
"""Copies that were never seen to complete and still get a line; beyond that the target does not report them."""

_LETTER = 7.4
"""Width of a letter at the size of the labels."""


@dataclass(frozen=True)
class Column:
    """One moment: where it stands and how it is called."""

    moment: int
    x: float
    title: str
    op: str
    about: str
    refused: bool
    guilty: bool


@dataclass(frozen=True)
class Row:
    """One block: where it stands and how it is called."""

    y: float
    name: str
    guilty: bool


@dataclass(frozen=True)
class Bar:
    """Cells that look the same.  ``fill`` is a class of the style sheet or the id of a hatching."""

    kind: str
    x: float
    y: float
    width: float
    fill: str
    hatch: str
    labels: tuple[tuple[float, str], ...]
    pinned: bool


@dataclass(frozen=True)
class Spot:
    """Cells of which the same is known; ``row`` counts from 0, ``first`` and ``last`` are moments."""

    row: int
    first: int
    last: int
    x: float
    y: float
    width: float
    text: str


@dataclass(frozen=True)
class Arrow:
    """A queued copy: from the source's row at ``y1`` to the destination's at ``y2``, in the column at ``x``."""

    x: float
    y1: float
    y2: float | None
    tip: str
    label: str
    guilty: bool


@dataclass(frozen=True)
class Line:
    """The time in which a queued copy still reads or writes a row; ``done`` when it was observed complete."""

    x1: float
    x2: float
    y: float
    label: str
    done: bool
    writes: bool
    guilty: bool


@dataclass(frozen=True)
class Legend:
    """One owner and its colour."""

    name: str
    fill: str


@dataclass
class Drawing:
    """Everything of one figure."""

    key: str
    width: float
    height: float
    """Without the column titles."""
    head: float
    """Height of the column titles."""
    row_height: float
    column_width: float
    wide: bool
    columns: list[Column] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    hatchings: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    spots: list[Spot] = field(default_factory=list)
    arrows: list[Arrow] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    legend: list[Legend] = field(default_factory=list)
    guilty_column: int | None = None
    guilty_row: int | None = None
    table: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)
    """The same as words: for each moment its title, and one word a row."""
    start: Spot | None = None
    """The spot whose words are shown first."""


def draw(trace: Trace, grid: Grid, guilty: Blame | None, key: str, longer: Grid | None = None) -> Drawing:
    """The figure of a grid; ``key`` starts every id in it.

    ``longer`` is a grid of more of the same trace: colours agree with its figure, and what began before
    ``grid`` does is dated by it.
    """
    return _Drafter(trace, grid, guilty, key, longer or grid).draw()


class _Drafter:
    """Draws one grid."""

    def __init__(self, trace: Trace, grid: Grid, guilty: Blame | None, key: str, longer: Grid) -> None:
        self.trace, self.grid, self.guilty, self.longer = trace, grid, guilty, longer
        self.copies = frozenset(copy.ticket for copy in grid.copies)
        self.titles = {m: self._labels(m) for m in range(grid.first, grid.last + 1)}
        wide = len(self.titles) <= FEW
        longest = max(len(word) for _, op, about in self.titles.values() for word in (op, about))
        least = max(88, min(160, 640 // len(self.titles)))
        self.step = float(max(least, min(150, round(longest * _LETTER) + 16))) if wide else 30.0
        row = TALL if len(grid.rows) <= 16 else LOW
        rotated = min(150, max(70, 34 + round(5.4 * max(len(f"{o} {a}") for _, o, a in self.titles.values()))))
        head = 70 if wide else rotated
        self.gap = 12.0
        pools = len({pool for pool, _ in grid.rows})
        self.out = Drawing(
            key,
            width=HEAD + self.step * len(self.titles) + (10 if wide else 90),
            height=row * len(grid.rows) + self.gap * max(0, pools - 1) + 2,
            head=head,
            row_height=row,
            column_width=self.step,
            wide=wide,
        )
        self.y: dict[Place, float] = {}
        colours = _colours(longer, grid)
        self.colour = {name: colours[name] for name in _owners(grid)}

    def draw(self) -> Drawing:
        """Everything, back to front."""
        out, guilty = self.out, self.guilty
        if guilty is not None and self.grid.first <= guilty.moment <= self.grid.last:
            out.guilty_column = guilty.moment - self.grid.first
        self._frame()
        for where in self.grid.rows:
            out.bars += self._bars(where)
            out.spots += self._spots(where)
        self._copies()
        out.legend = [Legend(clean(name, 40), f"c{at}") for name, at in self.colour.items()]
        out.table = [
            (title, tuple(self._word(where, moment) for where in self.grid.rows))
            for moment, (title, _, _) in self.titles.items()
        ]
        out.start = self._start()
        return out

    # Titles -------------------------------------------------------------------------------------------

    def _labels(self, moment: int) -> tuple[str, str, str]:
        """A moment's full title, its operation, and whom that is about."""
        if moment == 0:
            return "at the start", "start", ""
        operation = self.trace.operations[moment - 1]
        words = {"later": "LATER", "never": "NEVER", "raised": "raised"}
        about = subject(operation, self.copies)
        if operation.answer in words:
            about = f"{about}: {words[operation.answer]}" if about else words[operation.answer]
        return f"operation {moment}: {clean(call(operation), 120)}", operation.op, clean(about, 26)

    def _x(self, moment: int) -> float:
        return HEAD + self.step * (moment - self.grid.first)

    def _frame(self) -> None:
        out = self.out
        for moment, (title, op, about) in self.titles.items():
            operation: Operation | None = self.trace.operations[moment - 1] if moment else None
            is_guilty = out.guilty_column == moment - self.grid.first
            refused = operation is not None and operation.answer in ("later", "never", "raised")
            out.columns.append(Column(moment, self._x(moment), title, op, about, refused, is_guilty))
        y = 1.0
        last = self.grid.rows[0][0] if self.grid.rows else ""
        for number, where in enumerate(self.grid.rows):
            if where[0] != last:
                y, last = y + self.gap, where[0]
            self.y[where] = y
            is_guilty = self.guilty is not None and where == (self.guilty.pool, self.guilty.block)
            if is_guilty:
                out.guilty_row = number
            out.rows.append(Row(y, name_of(where), is_guilty))
            y += out.row_height

    # Bars and spots -----------------------------------------------------------------------------------

    def _bars(self, where: Place) -> Iterator[Bar]:
        for first, last, cell in _runs(self.grid, where, lambda cell, _moment: cell.look()):
            width = self.step * (last - first + 1)
            fill, hatch = self._fill(cell)
            yield Bar(
                cell.kind,
                self._x(first),
                self.y[where],
                width,
                fill,
                hatch,
                self._bar_labels(cell, self._x(first), width),
                bool(cell.holders),
            )

    def _bar_labels(self, cell: Cell, x: float, width: float) -> tuple[tuple[float, str], ...]:
        text = cell.state()
        if cell.owners and cell.kind != "clash":
            text = replace(cell, holders=()).state()
        room = int((width - (20 if cell.holders else 11)) / _LETTER)
        if cell.kind == "free" and not self.out.wide:
            return ()
        if room < len(text):
            text = "" if room < 1 else text[:1] if room == 1 else text[: room - 1] + "…"
        every = 330.0
        last = 0.0 if self.out.wide else width - 30 - len(text) * _LETTER
        return tuple((x + 6 + every * n, text) for n in range(1 + int(max(0.0, last) // every))) if text else ()

    def _fill(self, cell: Cell) -> tuple[str, str]:
        """Class of a plain fill, and id of a hatching where several requests share the block."""
        if len(cell.owners) < 2:
            return (f"c{self.colour[cell.owners[0]]}" if cell.owners else "none"), ""
        colours = tuple(f"c{self.colour[owner]}" for owner in cell.owners[:4])
        name = f"{self.out.key}-{'-'.join(colours)}"
        if (name, colours) not in self.out.hatchings:
            self.out.hatchings.append((name, colours))
        return f"s{colours[0][1:]}", name

    def _spots(self, where: Place) -> Iterator[Spot]:
        row = self.grid.rows.index(where)
        since = dict(self._since(where))

        def known(_cell: Cell, moment: int) -> tuple[str, ...]:
            return facts(self.grid, where, moment, since[moment])

        for first, last, _ in _runs(self.grid, where, known):
            text = "\n".join(facts(self.grid, where, first, since[first]))
            yield Spot(row, first, last, self._x(first), self.y[where], self.step * (last - first + 1), text)

    def _since(self, where: Place) -> Iterator[tuple[int, str]]:
        """For each moment from which operation on the block has looked as it does."""
        known = self.longer if where in self.longer.cells else self.grid
        for first, last, _ in _runs(known, where, lambda cell, _moment: cell.look()):
            if first == 0:
                words = "since the start"
            elif first == known.first:
                words = f"since operation {first} or before"
            else:
                operation = self.trace.operations[first - 1]
                words = f"since operation {first}: {operation.op} {subject(operation, self.copies)}".rstrip()
            yield from ((moment, words) for moment in range(first, last + 1))

    def _word(self, where: Place, moment: int) -> str:
        cell = self.grid.cell(where, moment)
        return clean(cell.state() + (" (held)" if cell.owners and cell.holders else ""), 60)

    def _start(self) -> Spot | None:
        """The guilty cell; where no block is guilty, the first one that the guilty operation changed."""
        row, column = self.out.guilty_row, self.out.guilty_column
        moment = self.grid.last if column is None else self.grid.first + column
        here = [spot for spot in self.out.spots if spot.first <= moment <= spot.last]
        if row is not None:
            return here[row]
        changed = [spot for spot in here if spot.first == moment and column]
        return next(iter([*changed, *here]), None)

    # Copies -------------------------------------------------------------------------------------------

    def _copies(self) -> None:
        out, grid = self.out, self.grid
        endless = sum(copy.completed is None for copy in grid.copies)
        lanes: dict[Place, int] = {}
        taken: dict[int, int] = {}
        for copy in grid.copies[-MOST_COPIES:]:
            is_guilty = self.guilty is not None and self.guilty.ticket == copy.ticket
            nth = taken[copy.queued] = taken.get(copy.queued, -1) + 1
            x = self._x(max(copy.queued, grid.first)) + self._offset(nth)
            if copy.queued >= grid.first:
                out.arrows += self._arrow(copy, x, is_guilty)
            if copy.completed is not None or endless <= MOST_LINES or is_guilty:
                out.lines += self._lines(copy, x if copy.queued >= grid.first else HEAD, lanes, is_guilty)
        out.lines.sort(key=lambda line: line.guilty)

    def _offset(self, nth: int) -> float:
        return self.step * (0.62, 0.78, 0.46, 0.9, 0.3)[nth % 5] if self.out.wide else 9.0 + 5.0 * (nth % 4)

    def _arrow(self, copy: QueuedCopy, x: float, is_guilty: bool) -> Iterator[Arrow]:
        source = self.y.get((copy.pool, copy.source))
        if source is None:
            return
        middle = self.out.row_height / 2
        target = self.y.get((copy.pool, copy.destination)) if copy.destination else None
        label = f"copy {copy.ticket}" if self.out.wide else ""
        if target is None or target == source:
            yield Arrow(x, source + middle, None, "", label, is_guilty)
            return
        down = target > source
        end = target + 6 if down else target + self.out.row_height - 6
        tip = f"{x - 4.5},{end - 8 if down else end + 8} {x + 4.5},{end - 8 if down else end + 8} {x},{end}"
        yield Arrow(x, source + middle, end - 6 if down else end + 6, tip, label, is_guilty)

    def _lines(self, copy: QueuedCopy, x: float, lanes: dict[Place, int], is_guilty: bool) -> Iterator[Line]:
        done = copy.completed is not None and copy.completed <= self.grid.last
        end = self._x(copy.completed or 0) + self.step / 2 if done else self._x(self.grid.last) + self.step
        for block, writes in ((copy.source, False), (copy.destination, True)):
            where = (copy.pool, block)
            if where not in self.y:
                continue
            lane = lanes[where] = lanes.get(where, -1) + 1
            y = self.y[where] + self.out.row_height - 6 - 4 * (lane % 3)
            label = f"copy {copy.ticket} {'will write' if writes else 'still reads'}" if end - x > 150 else ""
            yield Line(x, end, y, label if self.out.wide else "", done, writes, is_guilty)


def _runs(grid: Grid, where: Place, key: Callable[[Cell, int], object]) -> Iterator[tuple[int, int, Cell]]:
    """Neighbouring moments with an equal key: first, last, and the first cell."""
    cells: Sequence[Cell] = grid.cells[where]
    first, held = grid.first, key(cells[0], grid.first)
    for moment in range(grid.first + 1, grid.last + 1):
        now = key(cells[moment - grid.first], moment)
        if now != held:
            yield first, moment - 1, cells[first - grid.first]
            first, held = moment, now
    yield first, grid.last, cells[first - grid.first]


def _owners(grid: Grid) -> list[str]:
    """Every request that owns something in the grid, in the order of appearance."""
    living = (grid.cell(where, m).owners for m in range(grid.first, grid.last + 1) for where in grid.rows)
    return list(dict.fromkeys(owner for owners in living for owner in owners))


def _colours(*grids: Grid) -> dict[str, int]:
    """A colour for every request, in the order of appearance; one that nobody living has, as long as there is one."""
    chosen: dict[str, int] = {}
    used = [-1] * COLOURS
    """When each colour was last seen."""
    for grid in grids:
        for moment in range(grid.first, grid.last + 1):
            living = dict.fromkeys(o for where in grid.rows for o in grid.cell(where, moment).owners)
            for name in living:
                if name in chosen:
                    used[chosen[name]] = moment
            for name in living:
                if name not in chosen:
                    chosen[name] = min(range(COLOURS), key=lambda colour: (used[colour], colour))
                    used[chosen[name]] = moment
    return chosen
