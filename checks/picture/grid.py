"""A trace as a grid: what every block was after every operation, and which copies were under way.

A *moment* is the state after one operation; moment 0 is the start.  A *cell* is one block at one moment.
Only a stretch of moments is laid out, so that a long trace stays a picture; the words about contents
are those of the requests' own tokens, followed from the first operation on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

from kvproof.checks.picture.blame import Blame
from kvproof.checks.picture.words import clean, numbers, place, span
from kvproof.model.interface import BLOCKS, SLOTS
from kvproof.model.trace import Operation, Trace

MOST_ROWS = 64
"""Rows of one grid: all blocks of a pool up to this many, else those that something happened to."""

MOST_NAMED = 6
"""Owners of one block, and copies under way there, that are named one by one."""

Place = tuple[str, int]
"""Pool and id."""


@dataclass(frozen=True)
class Cell:
    """One block at one moment, as it was observed."""

    owners: tuple[str, ...] = ()
    """Requests that have it in their table."""
    holders: tuple[str, ...] = ()
    """Every other owner: pins, copy ends, cache nodes, external holders."""
    free: int = 0
    """How often it stands in the free list."""
    cached: bool = False
    """Nobody owns it and its contents can be hit."""
    count: int | None = None
    key: str = ""
    contents: tuple[str, ...] = ()
    """One sentence an owner: which of its positions stand here, and whether they count."""
    last: tuple[str, ...] = ()
    """The same for the last requests that had it, where none has it now."""
    seen: bool = True
    """False where the trace has no snapshot."""
    usable: bool = True
    """False for reserved ids, and for ids that the pool does not have."""

    @property
    def owned(self) -> bool:
        """Somebody has it."""
        return bool(self.owners or self.holders)

    @property
    def kind(self) -> str:
        """``owned``, ``shared``, ``held``, ``cached``, ``free``, ``reserved``; ``clash``, ``twice``, ``lost`` where
        something is wrong already; ``unseen``."""
        if not self.seen:
            return "unseen"
        if self.owned and (self.free or self.cached):
            return "clash"
        if self.free > 1:
            return "twice"
        if self.owners:
            return "shared" if len(self.owners) > 1 else "owned"
        if self.holders:
            return "held"
        if self.cached or self.free:
            return "cached" if self.cached else "free"
        return "lost" if self.usable else "reserved"

    def state(self) -> str:
        """The cell in a few words."""
        everybody = (*self.owners, *self.holders)
        who = "+".join(clean(owner, 24) for owner in everybody[:MOST_NAMED])
        who += f"+{len(everybody) - MOST_NAMED} more" if len(everybody) > MOST_NAMED else ""
        words = {"twice": "free twice", "unseen": "not seen", "clash": f"{who}, yet free"}
        return words.get(self.kind, who or self.kind)

    def look(self) -> tuple[object, ...]:
        """What makes two neighbouring cells look the same."""
        return self.kind, self.owners, self.holders


@dataclass(frozen=True)
class QueuedCopy:
    """A copy from the moment it was queued to the moment it was observed complete (None: never in the trace)."""

    ticket: int
    pool: str
    source: int
    destination: int
    rows: int
    queued: int
    completed: int | None = None

    def pending(self, moment: int) -> bool:
        """It was queued and not yet observed complete."""
        return self.queued <= moment and (self.completed is None or moment < self.completed)

    def route(self) -> str:
        """Which copy, from where to where."""
        return f"copy {self.ticket} ({self.source} to {self.destination or 'nothing'})"


@dataclass
class Grid:
    """The stretch from moment ``first`` to moment ``last``: ``cells[place]`` has one cell a moment."""

    first: int
    last: int
    rows: list[Place] = field(default_factory=list)
    cells: dict[Place, list[Cell]] = field(default_factory=dict)
    copies: list[QueuedCopy] = field(default_factory=list)
    left_out: int = 0
    """Blocks without a row: nothing happened to them here."""

    def cell(self, where: Place, moment: int) -> Cell:
        """One cell."""
        return self.cells[where][moment - self.first]

    @cached_property
    def copies_at(self) -> Mapping[Place, Sequence[QueuedCopy]]:
        """Copies by the blocks they read and write."""
        at: dict[Place, list[QueuedCopy]] = {}
        for copy in self.copies:
            for block in dict.fromkeys((copy.source, copy.destination)):
                at.setdefault((copy.pool, block), []).append(copy)
        return at


# ----------------------------------------------------------------------------------------------- contents


class Contents:
    """Follows what each request's positions hold: its own tokens, and how many of them are committed."""

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._tokens: dict[str, list[int]] = {}
        self._committed: dict[str, int] = {}

    def follow(self, operation: Operation) -> None:
        """Take note of one operation that was not refused."""
        if operation.answer not in ("ok", "done"):
            return
        name, args = operation.request or "", operation.args
        match operation.op:
            case "admit":
                self._tokens[name] = list(args["tokens"])
                self._committed[name] = operation.effects.get("reply", {}).get("hit_rows", 0)
            case "extend" if name in self._tokens:
                self._tokens[name] += args["tokens"]
            case "commit":
                self._committed[name] = args["rows"]
            case "fork" if name in self._tokens:
                self._tokens[args["child"]] = self._tokens[name][: args["rows"]]
                self._committed[args["child"]] = args["rows"]
            case "release":
                self._tokens.pop(name, None)

    def sentence(self, request: str, index: int, committed: int | None) -> str:
        """What stands in the block at ``index`` of the request's table."""
        tokens = self._tokens.get(request)
        first = index * self._size
        who = clean(request, 40)
        if tokens is None or first >= len(tokens):
            return f"{who}: {span(first, first + self._size - 1)}, no token yet"
        here = tokens[first : first + self._size]
        last = first + len(here) - 1
        done = self._committed.get(request, 0) if committed is None else committed
        how = "committed" if done > last else f"committed up to {span(done - 1, done - 1)}"
        if done <= first:
            how = "not yet committed"
        word = "token" if len(here) == 1 else "tokens"
        return f"{who}: {span(first, last)}, {word} {numbers(here)}, {how}"


# --------------------------------------------------------------------------------------------------- cells


@dataclass
class _State:
    """One pool's snapshot, turned round: by block."""

    owners: dict[int, dict[str, int]] = field(default_factory=dict)
    """For each block its requests, each with the first index of its table that names the block."""
    holders: dict[int, list[str]] = field(default_factory=dict)
    free: Counter[int] = field(default_factory=Counter)
    evictable: frozenset[int] = frozenset()
    counts: dict[int, int] = field(default_factory=dict)
    keys: dict[int, Any] = field(default_factory=dict)
    committed: Mapping[str, int] = field(default_factory=dict)
    seen: bool = True

    @staticmethod
    def of(pool: Mapping[str, Any] | None) -> _State:
        """From the pool as a trace writes it down; None where it was not observed."""
        if pool is None:
            return _State(seen=False)
        state = _State(evictable=frozenset(pool["evictable"]), committed=pool["committed"] or {})
        for request, table in pool["tables"].items():
            for index, block in enumerate(table):
                state.owners.setdefault(block, {}).setdefault(request, index)
        for holder, blocks in pool["holds"].items():
            for block in dict.fromkeys(blocks):
                state.holders.setdefault(block, []).append(holder)
        state.free = Counter(pool["free"])
        state.counts, state.keys = dict(pool["counts"] or ()), dict(pool["keys"] or ())
        return state

    def cell(self, block: int, contents: Contents, paged: bool) -> Cell:
        """One block of it."""
        if not self.seen:
            return Cell(seen=False)
        owners = self.owners.get(block, {})
        told = [contents.sentence(r, at, self.committed.get(r)) for r, at in list(owners.items())[:4] if paged]
        return Cell(
            owners=tuple(owners),
            holders=tuple(self.holders.get(block, ())),
            free=self.free.get(block, 0),
            cached=block in self.evictable,
            count=self.counts.get(block),
            key=clean(self.keys[block], 40) if block in self.keys else "",
            contents=tuple(told),
        )

    def touched(self, before: _State) -> set[int]:
        """Blocks whose owners or class differ."""
        changed = self.evictable ^ before.evictable
        for mine, theirs in ((self.owners, before.owners), (self.holders, before.holders)):
            changed |= {block for block in mine.keys() | theirs.keys() if mine.get(block) != theirs.get(block)}
        return set(changed | (self.free.keys() ^ before.free.keys()))


def lay_out(trace: Trace, first: int, last: int, guilty: Blame | None, *, rows: Sequence[Place] | None = None) -> Grid:
    """The moments ``first`` to ``last`` of a trace as a grid."""
    grid = Grid(first, last, copies=[c for c in queued_copies(trace) if c.queued <= last and _seen_from(c, first)])
    states = {number: _states(trace, number) for number in range(first, last + 1)}
    chosen = list(rows) if rows is not None else _rows(trace, grid, states, guilty)
    grid.rows = chosen[: 2 * MOST_ROWS]
    grid.left_out = sum(_usable(pool) for pool in _frames(trace, states)) - len(grid.rows)
    contents = Contents(trace.configuration.block_size)
    grid.cells = {where: [] for where in grid.rows}
    usable = {name: _among(pool["usable"], grid.rows, name) for name, pool in (trace.pools or {}).items()}
    for number in range(last + 1):
        if number:
            contents.follow(trace.operations[number - 1])
        if number >= first:
            for pool, block in grid.rows:
                row = grid.cells[pool, block]
                cell = states[number][pool].cell(block, contents, paged=pool == BLOCKS)
                last_held = row[-1].contents or row[-1].last if row and not cell.owners else ()
                row.append(replace(cell, last=last_held, usable=block in usable[pool]))
    return grid


def _seen_from(copy: QueuedCopy, first: int) -> bool:
    return copy.completed is None or copy.completed >= first


def _states(trace: Trace, number: int) -> dict[str, _State]:
    pools = trace.pools if number == 0 else trace.operations[number - 1].effects.get("pools")
    return {name: _State.of((pools or {}).get(name)) for name in trace.pools or {}}


def _frames(trace: Trace, states: Mapping[int, Mapping[str, _State]]) -> Iterator[Mapping[str, Any]]:
    """Pools that a picture shows in full."""
    return ((trace.pools or {})[name] for name in (BLOCKS, SLOTS) if name in (trace.pools or {}) and states)


def _among(ranges: Iterable[Sequence[int]], rows: Iterable[Place], name: str) -> frozenset[int]:
    """Blocks of the rows that lie in the ranges."""
    held = [(first, last) for first, last in ranges]
    return frozenset(b for pool, b in rows if pool == name and any(first <= b <= last for first, last in held))


def _usable(pool: Mapping[str, Any]) -> int:
    return sum(last - first + 1 for first, last in pool["usable"])


# ---------------------------------------------------------------------------------------------------- rows


def _rows(trace: Trace, grid: Grid, states: Mapping[int, Mapping[str, _State]], guilty: Blame | None) -> list[Place]:
    """Blocks that get a row: every block of a small pool, else what something happened to, last things first."""
    rows: list[Place] = []
    for name, pool in (trace.pools or {}).items():
        touched = _touched(states, name)
        named = [copy.source for copy in grid.copies if copy.pool == name]
        named += [copy.destination for copy in grid.copies if copy.pool == name and copy.destination]
        if guilty is not None and guilty.pool == name and guilty.block is not None:
            named.insert(0, guilty.block)
        if name in (BLOCKS, SLOTS) and _usable(pool) <= MOST_ROWS:
            usable = [block for first, last in pool["usable"] for block in range(first, last + 1)]
            chosen = {*usable, *touched, *named}
        else:
            chosen = set(list(dict.fromkeys([*named, *touched]))[:MOST_ROWS])
        rows += [(name, block) for block in sorted(chosen)]
    return rows


def _touched(states: Mapping[int, Mapping[str, _State]], name: str) -> list[int]:
    """Blocks that changed, the latest change first."""
    order: dict[int, None] = {}
    moments = sorted(states, reverse=True)
    for later, earlier in pairwise(moments):
        new, old = states[later][name], states[earlier][name]
        if new.seen and old.seen:
            order.update(dict.fromkeys(sorted(new.touched(old))))
    return list(order)


# -------------------------------------------------------------------------------------------------- copies


def queued_copies(trace: Trace) -> list[QueuedCopy]:
    """Every copy of the trace.  Tickets can be used again after a copy is complete."""
    copies: list[QueuedCopy] = []
    pending: dict[int, int] = {}
    for number, operation in enumerate(trace.operations, 1):
        for copy in operation.effects.get("reply", {}).get("copies", ()):
            pending[copy["ticket"]] = len(copies)
            copies.append(
                QueuedCopy(
                    copy["ticket"], copy["pool"], copy["source"], copy["destination"], copy["rows"], queued=number
                )
            )
        if operation.op == "complete" and operation.answer == "done":
            for ticket in operation.args["tickets"]:
                if (at := pending.pop(ticket, None)) is not None:
                    copies[at] = replace(copies[at], completed=number)
    return copies


def name_of(where: Place) -> str:
    """How a row is called."""
    return place(*where)
