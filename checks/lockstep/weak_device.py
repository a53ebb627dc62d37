"""The device that a followed allocator is held against: as weakly ordered as its declaration allows.

Steps run in order on one stream; copies run in order on another, behind the steps queued before
them.  A step runs behind a queued copy only where the declaration says so (``stream``, ``ordered``)
or because it reads what the copy fills.  Nothing runs before something forces it.  So an allocator
that releases a source too early *does* lose data here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from kvproof.checks.lockstep.shadow import Block, Cell, Shadow, StateSlot, Work
from kvproof.checks.lockstep.stamps import NOTHING, Stamps
from kvproof.model.interface import BLOCKS, SLOTS, Copy, Declaration, Reply, Snapshot


class WeakDevice:
    """Row contents, queued copies by ticket, and the steps in flight of every request."""

    def __init__(
        self,
        block_size: int,
        declaration: Declaration,
        requests: Mapping[str, Shadow],
        stamps: Stamps,
        note: Callable[[Block, str], None],
    ) -> None:
        self.size, self.declaration, self.requests, self.stamps, self.note = (
            block_size,
            declaration,
            requests,
            stamps,
            note,
        )
        self.content: dict[Cell, int] = {}
        self.copies: dict[int, list[Work]] = {}
        """Queued copies by ticket: one event may stand for several copies of one operation."""
        self.pools: Snapshot = {}
        """The snapshot whose tables the requests have adopted."""
        self._order = 0

    def _next(self) -> int:
        self._order += 1
        return self._order

    def schedule(self, shadow: Shadow, start: int, end: int, first: bool = False) -> None:
        """Queue the step that writes positions ``start`` to ``end`` and reads all up to ``end``."""
        if start >= end:
            return
        slot: tuple[Cell, ...] = ((StateSlot(shadow.slot), 0),) if shadow.slot is not None else ()
        reserved = self.pools[BLOCKS].reserved  # a placeholder in the table has no rows
        positions = {cell: p for p, cell in enumerate(self._cells(shadow, 0, end)) if cell[0] not in reserved}
        shadow.steps.append(
            Work(
                f"step of {shadow.name} on positions {start} to {end - 1}",
                shadow.name,
                self._next(),
                start=start,
                end=end,
                reads=(*positions, *(() if first else slot)),
                writes=self._cells(shadow, start, end) + slot,
                positions=positions,
            )
        )

    def take_copies(self, shadow: Shadow, reply: Reply) -> None:
        """Queue the copies that an answer names, for the request that asked."""
        for copy in reply.copies:
            slot = copy.pool == SLOTS
            source: Block = StateSlot(copy.source) if slot else copy.source
            target: Block = StateSlot(copy.destination) if slot else copy.destination
            offsets = (0,) if slot else tuple(range(copy.rows))
            if copy.destination == 0 and 0 not in self.pools[copy.pool].usable:
                offsets = ()  # no destination: the source is released later, nothing is copied
            at = shadow.table.index(copy.destination) if not slot and copy.destination in shadow.table else 0
            expected = {(source, o): shadow.state if slot else shadow.stamp(at * self.size + o) for o in offsets}
            what = "copy of state slot" if slot else "copy"
            work = Work(
                f"{what} {copy.source} to {copy.destination}",
                shadow.name,
                self._next(),
                copy=copy,
                reads=tuple((source, o) for o in offsets),
                writes=tuple((target, o) for o in offsets),
                expected=expected,
            )
            self.copies.setdefault(copy.ticket, []).append(work)
            self.note(
                source, f"{what} {copy.source} -> {copy.destination} queued for {shadow.name} (ticket {copy.ticket})"
            )

    def finish_copies(self, tickets: list[int]) -> None:
        for ticket in tickets:
            for work in self.copies[ticket]:
                self.run(work)
                self.note(work.source, f"{work.name} done (ticket {ticket})")
            del self.copies[ticket]

    def queued(self) -> list[Work]:
        """Every copy that was not observed done, in the order of the queue."""
        return [work for copies in self.copies.values() for work in copies]

    def run(self, work: Work) -> None:
        """The device runs this work now, after everything that is ordered before it."""
        if work.ran:
            return
        work.ran = True
        for earlier in self._earlier(work):
            self.run(earlier)
        if work.copy is None:
            self._run_step(work)
            return
        for (source, o), target in zip(work.reads, work.writes, strict=True):
            held = self.content.get((source, o), NOTHING)
            if isinstance(source, StateSlot) and self.stamps.descends(held, work.expected[source, o]):
                held = work.expected[source, o]  # a ring keeps the state of a few positions ago
            self.content[target] = held

    def run_up_to(self, shadow: Shadow, rows: int) -> None:
        """Steps write what they scheduled below position ``rows``; a step that is cut there goes on later."""
        for step in shadow.steps:
            if step.start >= rows or step.ran:
                continue
            if step.end <= rows or step.end > len(shadow.tokens):
                self.run(step)
                continue
            done = rows - step.start
            first = replace(step, end=rows, writes=step.writes[:done] + step.writes[step.end - step.start :])
            step.start, step.writes = rows, step.writes[done:]
            self.run(first)

    def _run_step(self, step: Work) -> None:
        shadow = self.requests[step.request]
        for cell, position in zip(step.writes, range(step.start, step.end), strict=False):
            if not isinstance(cell[0], StateSlot):
                self.content[cell] = shadow.stamp(position)
        if step.writes and isinstance(step.writes[-1][0], StateSlot):
            shadow.state = shadow.stamp(step.end - 1)
            self.content[step.writes[-1]] = shadow.state

    def pending(self) -> list[Work]:
        """Everything queued and not observed, in the order of the queue."""
        steps = [step for shadow in self.requests.values() for step in shadow.steps]
        return sorted([*self.queued(), *steps], key=lambda work: work.order)

    def _earlier(self, work: Work) -> list[Work]:
        return [
            other
            for other in self.pending()
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
        return step.request in self.beneficiaries(copy)

    def beneficiaries(self, work: Work) -> list[str]:
        """The requests that the work is done for: who queued it, and whoever shares what it fills."""
        copy = work.copy
        if copy is None:
            return [work.request]
        sharing = [
            name
            for name, shadow in self.requests.items()
            if name != work.request and copy.pool != SLOTS and self._is_prefix_of(work, copy, shadow)
        ]
        return [work.request, *sharing]

    def _is_prefix_of(self, work: Work, copy: Copy, shadow: Shadow) -> bool:
        """What the copy fills is, row for row as far as the request goes, what it must find there."""
        if not work.writes or copy.destination not in shadow.table:
            return False
        first = shadow.table.index(copy.destination) * self.size
        wanted = [(shadow.stamp(first + o), stamp) for (_, o), stamp in work.expected.items()]
        return wanted[0][0] == wanted[0][1] and all(mine in (stamp, NOTHING) for mine, stamp in wanted)

    def _cells(self, shadow: Shadow, first: int, last: int) -> tuple[Cell, ...]:
        return tuple(cell for p in range(first, last) if (cell := shadow.cell(p, self.size)) is not None)

    def cancel(self, tickets: Iterable[int]) -> None:
        """These copies will never run (destination discipline ``cancelled``)."""
        for ticket in tickets:
            del self.copies[ticket]

    def holds(self, cell: Cell) -> int:
        """The stamp that a row holds now."""
        return self.stamps.same(self.content.get(cell, NOTHING))
