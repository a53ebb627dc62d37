"""The follower: what must be true of an allocator, whatever blocks it chooses.

It is told each operation, the answer and the snapshot after it, and keeps what no allocator keeps:
the tokens of every request, what each row holds, the copies and steps still queued.  From these and
the snapshot it makes the *facts* that the rules of the spec speak of.  It never judges: the rules do.

Device semantics are the weakest that the allocator's declaration allows.  Steps run in order on one
stream; copies run in order on another, behind the steps queued before them.  A step runs behind a
queued copy only where the declaration says so (``stream``, ``ordered``) or because it reads what the
copy fills.  So an allocator that releases a source too early *does* lose data here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

from kvproof.model.interface import (
    BLOCKS,
    RECORDS,
    SLOTS,
    Answer,
    Configuration,
    Copy,
    Declaration,
    Pool,
    Reply,
    Snapshot,
)
from kvproof.spec import EVENT

from .operations import Operation
from .sets import Facts, Row
from .stamps import NOTHING, Stamps

HISTORY = 40
"""Events remembered for each block."""


class StateSlot(NamedTuple):
    """A state slot where blocks and slots are spoken of together."""

    id: int

    def __str__(self) -> str:
        return str(self.id)


Block: TypeAlias = "int | StateSlot"
Cell: TypeAlias = "tuple[Block, int]"


@dataclass(eq=False)
class Work:
    """A copy or a step on its way through a device stream.  ``moves``: what a copy carries."""

    name: str
    request: str
    order: int
    copy: Copy | None = None
    start: int = 0
    end: int = 0
    reads: tuple[Cell, ...] = ()
    writes: tuple[Cell, ...] = ()
    expected: Mapping[Cell, int] = field(default_factory=dict)
    """What a copy's source rows must hold when it runs."""
    ran: bool = False

    def __str__(self) -> str:
        return self.name


@dataclass(eq=False)
class Shadow:
    """One live request, as the harness knows it.  Lengths in positions."""

    name: str
    tokens: list[int]
    chain: list[int]
    """Stamp of every position of ``tokens``."""
    committed: int = 0
    drafts: int = 0
    reserved: int = 0
    """Positions reserved by the last admit, extend or fork."""
    table: tuple[int, ...] = ()
    slot: int | None = None
    state: int = NOTHING
    """What its state slot must hold."""
    steps: list[Work] = field(default_factory=list)
    """Steps scheduled whose result is not seen."""
    draft_stamps: dict[int, int] = field(default_factory=dict)
    unnamed: int = 0
    """Committed positions whose tokens the next ``extend`` names: accepted drafts."""
    opaque: set[int] = field(default_factory=set)
    """Positions whose rows were written as drafts: the allocator never learned their tokens."""
    optimistic: int = 0
    counts: bool = False
    """The allocator's committed count can be compared from the first commit (or fork) on."""

    @property
    def in_flight(self) -> int:
        """Positions of steps scheduled whose result is not seen."""
        return max((step.end for step in self.steps), default=self.committed) - self.committed

    def stamp(self, position: int) -> int:
        """What the row of a position must hold."""
        return self.chain[position] if position < len(self.chain) else self.draft_stamps.get(position, NOTHING)


class Follower:
    """Follows one allocator through one run."""

    def __init__(self, configuration: Configuration, declaration: Declaration, capabilities: frozenset[str]) -> None:
        self.configuration, self.declaration, self.capabilities = configuration, declaration, capabilities
        self.size = configuration.block_size
        self.stamps = Stamps()
        self.requests: dict[str, Shadow] = {}
        self.copies: dict[int, Copy] = {}
        self.work: dict[int, Work] = {}
        """Queued copies by ticket."""
        self.step_tickets: dict[int, str] = {}
        self.pins: dict[str, tuple[int, ...]] = {}
        self.holders: dict[str, tuple[int, ...]] = {}
        self.records: dict[int, Any] = {}
        """Records handed out and not cloned since the last synchronisation point."""
        self.content: dict[Cell, int] = {}
        self.key_contents: dict[Hashable, tuple[int, ...]] = {}
        self.published: dict[int, Hashable] = {}
        self.lost_records: set[int] = set()
        self.handed: set[int] = set()
        self.history: dict[Block, deque[str]] = {}
        self.quiescent = False
        self.facts: Facts | None = None
        self._owners: dict[Block, frozenset[str]] = {}
        self._order = 0
        self._events = 0

    # ------------------------------------------------------------------------------ is it a legal call?

    def illegal(self, operation: Operation) -> str | None:
        """Why the harness may not make this call now; None when it may."""
        check: Callable[[Operation], str | None] | None = getattr(self, f"_illegal_{operation.op}", None)
        if operation.request is not None and operation.op not in ("admit",) and operation.request not in self.requests:
            return f"{operation.op}: there is no live request {operation.request}"
        return check(operation) if check else None

    def _illegal_admit(self, operation: Operation) -> str | None:
        if operation.request in self.requests:
            return f"admit: {operation.request} is live already"
        if not operation.args["tokens"]:
            return "admit: a request needs at least one token"
        return self._too_many()

    def _too_many(self) -> str | None:
        if len(self.requests) >= self.configuration.max_requests:
            return f"there are {len(self.requests)} live requests, the most that the configuration allows"
        return None

    def _illegal_extend(self, operation: Operation) -> str | None:
        shadow = self.requests[operation.request or ""]
        tokens, drafts = operation.args["tokens"], operation.args["drafts"]
        if drafts and "drafts" not in self.capabilities:
            return "extend: the target does not take drafts"
        if drafts and shadow.steps:
            return f"extend: {shadow.name} has steps in flight; drafts need their results first"
        if any(step.end > len(shadow.tokens) for step in shadow.steps):
            return f"extend: the drafts of {shadow.name} were not verified yet"
        if len(tokens) < shadow.unnamed:
            return f"extend: {shadow.unnamed} accepted drafts of {shadow.name} have to be named first"
        if len(tokens) + drafts == 0:
            return "extend: nothing to add"
        return None

    def _illegal_commit(self, operation: Operation) -> str | None:
        shadow, rows = self.requests[operation.request or ""], operation.args["rows"]
        if shadow.optimistic and rows > shadow.committed + shadow.optimistic:
            return f"commit: {shadow.name} advanced to {shadow.committed + shadow.optimistic} only"
        if not shadow.committed <= rows <= shadow.committed + shadow.in_flight:
            most = shadow.committed + shadow.in_flight
            return f"commit: {shadow.name} can settle between {shadow.committed} and {most}, not {rows}"
        if rows < len(shadow.tokens) and any(step.end > len(shadow.tokens) for step in shadow.steps):
            return f"commit: a step that verifies drafts settles at least the {len(shadow.tokens)} known tokens"
        return None

    def _illegal_advance(self, operation: Operation) -> str | None:
        shadow, rows = self.requests[operation.request or ""], operation.args["rows"]
        if shadow.optimistic:
            return f"advance: {shadow.name} has not settled its last advance"
        if not 0 < rows <= shadow.in_flight:
            return f"advance: {shadow.name} has {shadow.in_flight} positions in flight, not {rows}"
        return None

    def _illegal_fork(self, operation: Operation) -> str | None:
        shadow, rows = self.requests[operation.request or ""], operation.args["rows"]
        if operation.args["child"] in self.requests:
            return f"fork: {operation.args['child']} is live already"
        if shadow.optimistic or shadow.unnamed:
            return f"fork: the count of {shadow.name} is not settled"
        if not 0 < rows <= shadow.committed:
            return f"fork: {shadow.name} has {shadow.committed} committed rows, not {rows}"
        if "slots" in self.capabilities and rows != shadow.committed:
            return (
                f"fork: the state slot of {shadow.name} holds the state after {shadow.committed} positions, not {rows}"
            )
        return self._too_many()

    def _illegal_complete(self, operation: Operation) -> str | None:
        tickets = operation.args["tickets"]
        if unknown := [t for t in tickets if t not in self.copies and t not in self.step_tickets]:
            return f"complete: tickets {unknown} are not queued"
        queued = [t for t in self.copies if t in tickets]
        if queued != list(self.copies)[: len(queued)]:
            return "complete: copies complete in the order in which they were queued"
        return None

    def _illegal_pin(self, operation: Operation) -> str | None:
        return f"pin: {operation.args['name']} is in use" if operation.args["name"] in self.pins else None

    def _illegal_hold(self, operation: Operation) -> str | None:
        return f"hold: {operation.args['holder']} is in use" if operation.args["holder"] in self.holders else None

    def _illegal_unpin(self, operation: Operation) -> str | None:
        return None if operation.args["name"] in self.pins else f"unpin: there is no pin {operation.args['name']}"

    def _illegal_ack(self, operation: Operation) -> str | None:
        return (
            None if operation.args["holder"] in self.holders else f"ack: there is no holder {operation.args['holder']}"
        )

    def _illegal_clone(self, operation: Operation) -> str | None:
        return None if operation.args["address"] in self.records else "clone: the record was recycled or cloned"

    # ----------------------------------------------------------------------------- what an operation does

    def follow(self, operation: Operation, reply: object, snapshot: Snapshot) -> tuple[Facts | None, Facts, Facts]:
        """Take note of one operation that was answered; returns the state before, the event, the state after."""
        before = self.facts
        event = self._event(operation, reply)
        if not (isinstance(reply, Reply) and reply.answer is not Answer.OK):
            effect: Callable[[Operation, Any, Snapshot], None] | None = getattr(self, f"_do_{operation.op}", None)
            if effect:
                effect(operation, reply, snapshot)
        if "copies" not in self.capabilities:
            self._finish_copies(list(self.copies))
        self.observe(operation, snapshot)
        assert self.facts is not None
        return before, event, self.facts

    def _do_admit(self, operation: Operation, reply: Reply, snapshot: Snapshot) -> None:
        name, tokens = operation.request or "", list(operation.args["tokens"])
        shadow = Shadow(name, tokens, self.stamps.chain(NOTHING, tokens), reply.hit_rows, reserved=len(tokens))
        self.requests[name] = shadow
        self._adopt(snapshot)
        self._take_copies(shadow, reply, first=0)
        self._schedule(shadow, reply.hit_rows, len(tokens), first=True)

    def _do_extend(self, operation: Operation, reply: Reply, snapshot: Snapshot) -> None:
        shadow, tokens = self.requests[operation.request or ""], list(operation.args["tokens"])
        start = len(shadow.tokens)
        shadow.chain += self.stamps.chain(shadow.chain[-1] if shadow.chain else NOTHING, tokens)
        shadow.tokens += tokens
        for position in range(start, min(shadow.committed, len(shadow.tokens))):
            self.stamps.name(shadow.draft_stamps[position], shadow.chain[position])
            shadow.opaque.add(position)
        shadow.unnamed = 0
        shadow.drafts = operation.args["drafts"]
        shadow.reserved = max(len(shadow.tokens) + shadow.drafts, shadow.committed)
        self._adopt(snapshot)
        self._take_copies(shadow, reply, first=0)
        drafts = self.stamps.drafts(shadow.chain[-1], shadow.reserved - len(shadow.tokens))
        shadow.draft_stamps = dict(enumerate(drafts, len(shadow.tokens)))
        self._schedule(shadow, max(start, shadow.committed), shadow.reserved)

    def _do_commit(self, operation: Operation, _reply: object, _snapshot: Snapshot) -> None:
        shadow, rows = self.requests[operation.request or ""], operation.args["rows"]
        self._run_up_to(shadow, rows)
        shadow.steps = [step for step in shadow.steps if step.end > rows and step.end <= len(shadow.tokens)]
        shadow.committed, shadow.optimistic, shadow.counts = rows, 0, True
        shadow.drafts = 0
        shadow.unnamed = max(0, rows - len(shadow.tokens))
        if shadow.slot is not None and rows:
            shadow.state = shadow.stamp(rows - 1)
            self.content[StateSlot(shadow.slot), 0] = shadow.state

    def _do_advance(self, operation: Operation, _reply: object, _snapshot: Snapshot) -> None:
        shadow, rows = self.requests[operation.request or ""], operation.args["rows"]
        self._run_up_to(shadow, shadow.committed + rows)
        shadow.optimistic = rows

    def _do_release(self, operation: Operation, _reply: object, _snapshot: Snapshot) -> None:
        shadow = self.requests[operation.request or ""]
        for step in shadow.steps:  # what is in flight runs before anything queued later: one in-order stream
            self._run(step)
        del self.requests[shadow.name]
        if self.declaration.destination == "cancelled":
            for ticket in [t for t, work in self.work.items() if work.request == shadow.name and not work.ran]:
                del self.work[ticket], self.copies[ticket]
        self.step_tickets = {t: name for t, name in self.step_tickets.items() if name != shadow.name}

    def _do_fork(self, operation: Operation, reply: Reply, snapshot: Snapshot) -> None:
        parent, child, rows = self.requests[operation.request or ""], operation.args["child"], operation.args["rows"]
        shadow = Shadow(child, parent.tokens[:rows], parent.chain[:rows], rows, reserved=rows, counts=True)
        shadow.opaque = {p for p in parent.opaque if p < rows}
        shadow.state = shadow.chain[-1]
        self.requests[child] = shadow
        self._adopt(snapshot)
        self._take_copies(shadow, reply, first=0)

    def _do_complete(self, operation: Operation, _reply: object, _snapshot: Snapshot) -> None:
        tickets = list(operation.args["tickets"])
        self._finish_copies([t for t in tickets if t in self.copies])
        for ticket in tickets:
            if ticket in self.step_tickets:
                name = self.step_tickets.pop(ticket)
                for step in self.requests[name].steps:
                    self._run(step)

    def _do_submit(self, operation: Operation, reply: int, _snapshot: Snapshot) -> None:
        self.step_tickets[reply] = operation.request or ""

    def _do_pin(self, operation: Operation, _reply: object, _snapshot: Snapshot) -> None:
        self.pins[operation.args["name"]] = self._real(self.requests[operation.request or ""].table)

    def _do_unpin(self, operation: Operation, _reply: object, _snapshot: Snapshot) -> None:
        del self.pins[operation.args["name"]]

    def _do_hold(self, operation: Operation, _reply: object, _snapshot: Snapshot) -> None:
        self.holders[operation.args["holder"]] = self._real(self.requests[operation.request or ""].table)

    def _do_ack(self, operation: Operation, _reply: object, _snapshot: Snapshot) -> None:
        del self.holders[operation.args["holder"]]

    def _do_take(self, operation: Operation, reply: int, _snapshot: Snapshot) -> None:
        if reply in self.records:
            self.lost_records.add(reply)
        self.records[reply] = operation.args["value"]
        self.handed.add(reply)

    def _do_clone(self, operation: Operation, reply: object, _snapshot: Snapshot) -> None:
        address = operation.args["address"]
        if reply != self.records[address]:
            self.lost_records.add(address)
        else:
            del self.records[address]

    def _do_recycle(self, _operation: Operation, _reply: object, _snapshot: Snapshot) -> None:
        self.records.clear()
        self.handed.clear()
        self.lost_records.clear()

    # -------------------------------------------------------------------------------- device, weakly ordered

    def _real(self, table: Iterable[int]) -> tuple[int, ...]:
        return tuple(dict.fromkeys(table))

    def _adopt(self, snapshot: Snapshot) -> None:
        """Tables are the allocator's choice: follow it."""
        tables = snapshot[BLOCKS].tables
        slots = snapshot[SLOTS].tables if SLOTS in snapshot else {}
        for name, shadow in self.requests.items():
            shadow.table = tuple(tables.get(name, ()))
            held = slots.get(name, ())
            shadow.slot = held[0] if held else None

    def _cell(self, shadow: Shadow, position: int) -> Cell | None:
        index = position // self.size
        return (shadow.table[index], position % self.size) if index < len(shadow.table) else None

    def _cells(self, shadow: Shadow, first: int, last: int) -> tuple[Cell, ...]:
        return tuple(cell for p in range(first, last) if (cell := self._cell(shadow, p)) is not None)

    def _next(self) -> int:
        self._order += 1
        return self._order

    def _schedule(self, shadow: Shadow, start: int, end: int, first: bool = False) -> None:
        """Queue the step that writes positions ``start`` to ``end`` and reads all up to ``end``."""
        if start >= end:
            return
        slot: tuple[Cell, ...] = ((StateSlot(shadow.slot), 0),) if shadow.slot is not None else ()
        shadow.steps.append(
            Work(
                f"step of {shadow.name} on positions {start} to {end - 1}",
                shadow.name,
                self._next(),
                start=start,
                end=end,
                reads=self._cells(shadow, 0, end) + (() if first else slot),
                writes=self._cells(shadow, start, end) + slot,
            )
        )

    def _take_copies(self, shadow: Shadow, reply: Reply, first: int) -> None:
        for copy in reply.copies:
            slot = copy.pool == SLOTS
            source: Block = StateSlot(copy.source) if slot else copy.source
            target: Block = StateSlot(copy.destination) if slot else copy.destination
            offsets = (0,) if slot else tuple(range(copy.rows))
            if not copy.destination:
                offsets = ()
            at = shadow.table.index(copy.destination) if not slot and copy.destination in shadow.table else first
            expected = {(source, o): shadow.state if slot else shadow.stamp(at * self.size + o) for o in offsets}
            what = "copy of state slot" if slot else "copy"
            self.copies[copy.ticket] = copy
            self.work[copy.ticket] = Work(
                f"{what} {copy.source} to {copy.destination}",
                shadow.name,
                self._next(),
                copy=copy,
                reads=tuple((source, o) for o in offsets),
                writes=tuple((target, o) for o in offsets),
                expected=expected,
            )
            self._note(
                source, f"{what} {copy.source} -> {copy.destination} queued for {shadow.name} (ticket {copy.ticket})"
            )

    def _finish_copies(self, tickets: list[int]) -> None:
        for ticket in tickets:
            work = self.work.pop(ticket)
            self._run(work)
            copy = self.copies.pop(ticket)
            self._note(copy.source, f"{work.name} done (ticket {ticket})")

    def _run(self, work: Work) -> None:
        """The device runs this work now, after everything that is ordered before it."""
        if work.ran:
            return
        work.ran = True
        for earlier in self._earlier(work):
            self._run(earlier)
        if work.copy is None:
            self._run_step(work)
            return
        for (source, o), target in zip(work.reads, work.writes, strict=True):
            held = self.content.get((source, o), NOTHING)
            if isinstance(source, StateSlot) and self.stamps.descends(held, work.expected[source, o]):
                held = work.expected[source, o]  # a ring keeps the state of a few positions ago
            self.content[target] = held

    def _run_up_to(self, shadow: Shadow, rows: int) -> None:
        """Steps write what they scheduled below position ``rows``; a step that is cut there goes on later."""
        for step in shadow.steps:
            if step.start >= rows or step.ran:
                continue
            if step.end <= rows or step.end > len(shadow.tokens):
                self._run(step)
                continue
            done = rows - step.start
            first = replace(step, end=rows, writes=step.writes[:done] + step.writes[step.end - step.start :])
            step.start, step.writes = rows, step.writes[done:]
            self._run(first)

    def _run_step(self, step: Work) -> None:
        shadow = self.requests[step.request]
        for cell, position in zip(step.writes, range(step.start, step.end), strict=False):
            if not isinstance(cell[0], StateSlot):
                self.content[cell] = shadow.stamp(position)
        if step.writes and isinstance(step.writes[-1][0], StateSlot):
            shadow.state = shadow.stamp(step.end - 1)
            self.content[step.writes[-1]] = shadow.state

    def _pending(self) -> list[Work]:
        """Everything queued and not observed, in the order of the queue."""
        steps = [step for shadow in self.requests.values() for step in shadow.steps]
        return sorted([*self.work.values(), *steps], key=lambda work: work.order)

    def _earlier(self, work: Work) -> list[Work]:
        return [
            other
            for other in self._pending()
            if not other.ran and other.order < work.order and self.ordered(other, work)
        ]

    def ordered(self, first: Work, second: Work) -> bool:
        """Whether streams and events order ``first``, queued earlier, before ``second``."""
        if (first.copy is None) == (second.copy is None):
            return True
        if second.copy is not None:
            return True
        if self.declaration.release_rule == "stream" or first.request == second.request:
            return True
        if self.declaration.destination == "pinned":
            return not set(first.writes).isdisjoint(second.reads) and self._shares(first, second)
        return not set(first.writes).isdisjoint((*second.reads, *second.writes))

    def _shares(self, copy: Work, step: Work) -> bool:
        """A step that reads, as part of its own prefix, what the copy fills waits for the copy."""
        shadow = self.requests.get(step.request)
        if shadow is None or copy.copy is None or copy.copy.destination not in shadow.table:
            return False
        index = shadow.table.index(copy.copy.destination)
        return all(shadow.stamp(index * self.size + o) == stamp for (_, o), stamp in copy.expected.items())

    # ------------------------------------------------------------------------------------------------- facts

    def observe(self, operation: Operation | None, snapshot: Snapshot) -> None:
        """Adopt the snapshot and make the facts of the state now."""
        self._adopt(snapshot)
        self._events += 1
        relations, measures = self._ownership(snapshot)
        self._rows(relations)
        self._queue(relations)
        self._lengths(relations, measures, snapshot[BLOCKS])
        self._cache(relations, snapshot[BLOCKS])
        self._record_facts(relations, snapshot.get(RECORDS))
        self._remember(operation, relations)
        self.facts = Facts(relations, measures, last=self.facts)

    def _ownership(self, snapshot: Snapshot) -> tuple[dict[str, list[Row]], dict[str, dict[Row, int]]]:
        declared = self.declaration
        relations: dict[str, list[Row]] = {
            name: [] for name in ("usable", "exclusive", "table", "slot", "held", "free", "cached", "counted")
        }
        measures: dict[str, dict[Row, int]] = {"listed": {}, "count": {}}
        measures["block_size"] = {(): self.size}
        relations["live"] = [(name,) for name in self.requests]
        relations["external"] = [(name,) for name in (*self.pins, *self.holders)]
        relations["promises_never"] = [()] if declared.never else []
        relations["surplus_exact"] = [()] if declared.surplus == "exact" else []
        relations["quiescent"] = [()] if self.quiescent else []
        for name, wrap in ((BLOCKS, None), (SLOTS, StateSlot)):
            pool = snapshot.get(name)
            if pool is not None:
                self._pool_facts(pool, wrap, relations, measures)
        named = {**self.pins, **self.holders}
        relations["held"] += [(name, block) for name, blocks in named.items() for block in blocks]
        measures["usable_blocks"] = {(): len(snapshot[BLOCKS].usable)}
        measures["usable_slots"] = {(): len(snapshot[SLOTS].usable) if SLOTS in snapshot else 0}
        return relations, measures

    def _pool_facts(
        self,
        pool: Pool,
        wrap: Callable[[int], StateSlot] | None,
        relations: dict[str, list[Row]],
        measures: dict[str, dict[Row, int]],
    ) -> None:
        def made(ids: Iterable[int]) -> list[Block]:
            return [wrap(i) for i in ids] if wrap else list(ids)

        relations["usable"] += [(b,) for b in made(sorted(pool.usable))]
        if wrap:
            relations["exclusive"] += [(b,) for b in made(sorted(pool.usable | pool.reserved))]
        free = made(pool.free)
        relations["free"] += [(b,) for b in dict.fromkeys(free)]
        listed = measures["listed"]
        for b in free:
            listed[(b,)] = listed.get((b,), 0) + 1
        for request, table in pool.tables.items():
            if wrap:
                relations["slot"] += [(request, b) for b in dict.fromkeys(made(table))]
            else:
                relations["table"] += [(request, i, b) for i, b in enumerate(table) if b not in pool.reserved]
        relations["held"] += [(str(name), b) for name, ids in pool.holds.items() for b in dict.fromkeys(made(ids))]
        if pool.counts is not None:
            for block, count in pool.counts.items():
                if block in pool.usable:
                    b = wrap(block) if wrap else block
                    relations["counted"].append((b,))
                    measures["count"][(b,)] = count
        relations["cached"] += [(b,) for b in made(sorted(pool.evictable))]

    def _rows(self, relations: dict[str, list[Row]]) -> None:
        uses: list[Row] = []
        may_write: list[Row] = []
        committed: list[Row] = []
        filled: list[Row] = []
        content, same = self.content, self.stamps.same
        for name, shadow in self.requests.items():
            for position in range(shadow.reserved):
                cell = self._cell(shadow, position)
                if cell is None:
                    break
                row: Row = (name, *cell)
                uses.append(row)
                (committed if position < shadow.committed else may_write).append(row)
                if same(content.get(cell, NOTHING)) == same(shadow.stamp(position)):
                    filled.append(row)
            if shadow.slot is not None:
                row = (name, StateSlot(shadow.slot), 0)
                uses.append(row)
                may_write.append(row)
                if shadow.committed:
                    committed.append(row)
                    if content.get((StateSlot(shadow.slot), 0), NOTHING) == shadow.state:
                        filled.append(row)
        for work in self.work.values():
            filled += [
                (work.request, *cell)
                for cell, stamp in work.expected.items()
                if work.ran  # its read is past: what it read is in its destination, which is judged there
                or same(content.get(cell, NOTHING)) == same(stamp)
                or (isinstance(cell[0], StateSlot) and self.stamps.descends(content.get(cell, NOTHING), stamp))
            ]
        # A step reads the blocks that its request had when it was queued; a table may name others by now.
        for shadow in self.requests.values():
            for step in shadow.steps:
                for position, cell in enumerate(step.reads[: step.end]):
                    if cell != self._cell(shadow, position) and same(content.get(cell, NOTHING)) == same(
                        shadow.stamp(position)
                    ):
                        filled.append((shadow.name, *cell))
        # Rows of a hit that a step of the same batch is still writing are not committed yet.
        late = self._late_hits(committed, filled) if self.declaration.publish == "at_allocation" else set()
        relations |= {
            "uses": uses,
            "may_write": may_write,
            "committed": [row for row in committed if row not in late],
            "filled": filled,
        }

    def _late_hits(self, committed: list[Row], filled: list[Row]) -> set[Row]:
        there = set(filled)
        coming = {
            (cell, shadow.stamp(position))
            for shadow in self.requests.values()
            for step in shadow.steps
            for cell, position in zip(step.writes, range(step.start, step.end), strict=False)
        }
        position_of = {
            (name, *cell): shadow.stamp(p)
            for name, shadow in self.requests.items()
            for p in range(shadow.committed)
            if (cell := self._cell(shadow, p)) is not None
        }
        return {
            row
            for row in committed
            if row not in there and row in position_of and ((row[1], row[2]), position_of[row]) in coming
        }

    def _queue(self, relations: dict[str, list[Row]]) -> None:
        pending = self._pending()
        relations["pending"] = [(work,) for work in pending]
        relations["on_behalf"] = [(work, work.request) for work in pending]
        # What a step that has run read and wrote is past; only the host has not heard of it yet.
        relations["reads"] = [(work, *cell) for work in pending if work.copy or not work.ran for cell in work.reads]
        relations["writes"] = [(work, *cell) for work in pending if work.copy or not work.ran for cell in work.writes]
        stream = self.declaration.release_rule == "stream"
        in_order = stream or self.declaration.destination == "ordered"
        relations["reads_in_order"] = [(work,) for work in pending if work.copy is None or stream]
        relations["writes_in_order"] = [(work,) for work in pending if work.copy is None or in_order]
        writers: dict[Cell, list[Work]] = {}
        for work in pending:
            for cell in work.writes:
                writers.setdefault(cell, []).append(work)
        before: dict[Row, None] = {}
        for work in pending:
            for cell in dict.fromkeys((*work.reads, *work.writes)):
                for writer in writers.get(cell, ()):
                    first, second = (work, writer) if work.order < writer.order else (writer, work)
                    if first is not second and (first, second) not in before and self.ordered(first, second):
                        before[first, second] = None
        relations["before"] = list(before)

    def _lengths(self, relations: dict[str, list[Row]], measures: dict[str, dict[Row, int]], pool: Pool) -> None:
        shadows = self.requests.items()
        measures["history"] = {(n,): max(len(s.tokens), s.committed) for n, s in shadows}
        measures["drafts"] = {(n,): s.drafts for n, s in shadows}
        measures["reserved"] = {(n,): s.reserved for n, s in shadows}
        measures["entries"] = {(n,): len(s.table) for n, s in shadows}
        measures["settled"] = {(n,): s.committed for n, s in shadows}
        measures["optimistic"] = {(n,): s.optimistic for n, s in shadows}
        reported = {n: pool.committed[n] for n, s in shadows if s.counts and pool.committed and n in pool.committed}
        relations["reports_count"] = [(n,) for n in reported]
        measures["num_tokens"] = {(n,): count for n, count in reported.items()}

    def _cache(self, relations: dict[str, list[Row]], pool: Pool) -> None:
        relations["key"] = relations["matches"] = []
        keys = pool.keys or {}
        if not keys:
            self.published = {}
            return
        promised = self._promised()
        matches: list[Row] = []
        for block, key in keys.items():
            now = tuple(self.stamps.same(self.content.get((block, o), NOTHING)) for o in range(self.size))
            will = promised.get(block, now)
            if self.published.get(block) != key and key not in self.key_contents:
                seen = will if self.declaration.publish == "at_allocation" else now
                if NOTHING not in seen:
                    self.key_contents[key] = seen
            wanted = self.key_contents.get(key)
            truth = (will, now) if self.declaration.publish == "at_allocation" else (now,)
            if wanted in truth and wanted == promised.get(block, wanted):
                matches.append((block, key))
        relations["key"] = [(block, key) for block, key in keys.items()]
        relations["matches"] = matches
        self.published = dict(keys)

    def _promised(self) -> dict[int, tuple[int, ...]]:
        """What the rows of each owned block hold once its owners' scheduled work is done."""
        promised: dict[int, list[int]] = {}
        for shadow in self.requests.values():
            for position in range(shadow.reserved):
                cell = self._cell(shadow, position)
                if cell is None:
                    break
                block, offset = cell
                if isinstance(block, StateSlot):
                    continue
                rows = promised.setdefault(
                    block, [self.stamps.same(self.content.get((block, o), NOTHING)) for o in range(self.size)]
                )
                rows[offset] = self.stamps.same(shadow.stamp(position))
        return {block: tuple(rows) for block, rows in promised.items()}

    def _record_facts(self, relations: dict[str, list[Row]], pool: Pool | None) -> None:
        relations["awaited"] = [(address,) for address in self.records]
        relations["intact"] = [(address,) for address in sorted(self.handed - self.lost_records)]
        free = set(pool.free) if pool is not None else set()
        relations["recycled"] = [(address,) for address in sorted(free)]

    # ------------------------------------------------------------------------------------------------- events

    def _event(self, operation: Operation, reply: object) -> Facts:
        """What happened, for the step rules; before the effect is taken note of."""
        args, answer = operation.args, reply.answer if isinstance(reply, Reply) else Answer.OK
        names = [operation.request] if operation.request is not None else []
        if operation.op == "fork":
            names.append(args["child"])
        blocks, slots = self._asks(operation)
        holder = args.get("name") if operation.op in ("pin", "unpin") else args.get("holder")
        misused = operation.op == "probe"
        refused = answer is not Answer.OK or (misused and reply is True)
        return Facts(
            {
                "names": [(name,) for name in names],
                "names_holder": [(holder,)] if holder is not None else [],
                "admits": [()] if operation.op == "admit" else [],
                "pins": [(holder,)] if operation.op in ("pin", "hold") and answer is Answer.OK else [],
                "refused": [()] if refused else [],
                "later": [()] if answer is Answer.LATER else [],
                "never": [()] if answer is Answer.NEVER else [],
                "advances": [(operation.request,)] if operation.op == "advance" else [],
                "synchronises": [()] if operation.op in ("recycle",) else [],
                "misused": [()] if misused else [],
            },
            {"asks_blocks": {(): blocks}, "asks_slots": {(): slots}},
            vocabulary=EVENT,
        )

    def _asks(self, operation: Operation) -> tuple[int, int]:
        """Distinct blocks and slots in use for the asker, had the call been granted."""
        slots = 1 if "slots" in self.capabilities else 0
        args, shadow = operation.args, self.requests.get(operation.request or "")
        if operation.op == "admit":
            return -(-len(args["tokens"]) // self.size), slots
        if operation.op == "extend" and shadow is not None:
            wanted = max(len(shadow.tokens) + len(args["tokens"]) + args["drafts"], shadow.committed)
            return -(-wanted // self.size), slots
        if operation.op == "fork" and shadow is not None:
            return len(set(shadow.table)) + 1, 2 * slots
        return 0, 0

    # ------------------------------------------------------------------------------------------------ history

    def _note(self, block: Block, what: str) -> None:
        self.history.setdefault(block, deque(maxlen=HISTORY)).append(what)

    def _remember(self, operation: Operation | None, relations: Mapping[str, list[Row]]) -> None:
        """Who got and who lost each block by this operation."""
        owners: dict[Block, set[str]] = {}
        for name in ("table", "slot", "held"):
            for row in relations[name]:
                owners.setdefault(row[-1], set()).add(str(row[0]))  # type: ignore[arg-type]
        free = {row[0] for row in relations["free"]} | {row[0] for row in relations["cached"]}
        now = {block: frozenset(who) for block, who in owners.items()}
        if operation is not None:
            for block in sorted(now.keys() | self._owners.keys(), key=str):
                had, has = self._owners.get(block, frozenset()), now.get(block, frozenset())
                if had != has:
                    gained, lost = sorted(has - had), sorted(had - has)
                    parts = [f"given to {', '.join(gained)}"] if gained else []
                    parts += [f"given up by {', '.join(lost)}"] if lost else []
                    parts += ["now free"] if not has and block in free else []
                    self._note(block, f"{operation.op} {operation.request or ''}".strip() + ": " + ", ".join(parts))
        self._owners = now

    # ------------------------------------------------------------------------------------------------ reading

    def readable(self, name: str) -> bool:
        """No queued copy still fills rows of this request: its rows can be compared."""
        return not any(work.request == name and work.writes for work in self.work.values())

    def expected_tokens(self, name: str) -> list[int | None]:
        """Tokens that the committed rows must hold; None where the allocator cannot know (accepted drafts)."""
        shadow = self.requests[name]
        return [
            shadow.tokens[p] if p < len(shadow.tokens) and p not in shadow.opaque else None
            for p in range(shadow.committed)
        ]

    def found_tokens(self, name: str) -> list[int]:
        """Tokens that the committed rows hold by the follower's own device."""
        shadow = self.requests[name]
        cells = (self._cell(shadow, p) for p in range(shadow.committed))
        return [self.stamps.token(self.content.get(cell, NOTHING)) if cell else -1 for cell in cells]
