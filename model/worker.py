"""The device's side of the engine: queues the recorded copies and the steps, and reads rows back.

Rows hold stamps.  The lineage of a row is a hash of all tokens up to it, because key and value rows
depend on the whole prefix: the right token behind the wrong prefix is still a wrong row.

The schedule is lazy on purpose: nothing runs before somebody must wait for it.  Two streams,
``compute`` for steps and ``copy`` for copies, have no order between them except the waits placed
here: a step waits for every pending copy *into* a block of its table.  That wait is what the
discipline ``ordered`` promises for destinations.  Nothing protects a *source*, except its pin.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from .device import COMPUTE, COPY, UNWRITTEN, Device, Row, Stamp, Ticket
from .engine import NO_BLOCK, QueuedCopy
from .interface import BLOCKS, SLOTS
from .request import NO_SLOT, Request
from .slots import oldest_kept

DRAFT = -2
"""Token stamp of a draft: its rows are written before anybody knows whether it will count."""


class Contents:
    """The tokens of one request, how far its rows were written, and its content keys.

    ``in_slot`` is how far its state slot was written: hit blocks bring their rows, but not the ring,
    which the first step then fills (a real engine loads it from a store).  ``published`` counts the
    leading blocks that need no publishing any more.
    """

    __slots__ = ("in_slot", "keys", "lineages", "published", "tokens", "written")

    def __init__(self, tokens: Iterable[int], written: int = 0, keys: Sequence[str] = (), published: int = 0) -> None:
        self.tokens: list[int] = []
        self.lineages: list[int] = []
        self.written = written
        self.in_slot = 0
        self.keys = list(keys)
        self.published = published
        self.append(tokens)

    def append(self, tokens: Iterable[int]) -> None:
        """More history."""
        lineage = self.lineages[-1] if self.lineages else 0
        for token in tokens:
            lineage = hash((lineage, token))
            self.tokens.append(token)
            self.lineages.append(lineage)

    def stamp(self, position: int) -> Stamp:
        """What the row of a position must hold."""
        if position < len(self.tokens):
            return Stamp(self.tokens[position], position, self.lineages[position])
        return Stamp(DRAFT, position, DRAFT)


class Worker:
    """Runs what an engine decided on a :class:`Device`.  ``ring`` is the length of a state slot's ring."""

    def __init__(self, block_size: int, ring: int, device: Device | None = None) -> None:
        self.block_size = block_size
        self.ring = ring
        self.device = device or Device()
        self.copies: dict[int, tuple[QueuedCopy, Ticket]] = {}
        """Copies that are queued and not observed, with their events."""

    # Copies ---------------------------------------------------------------------------------------

    def submit(self, copy: QueuedCopy) -> None:
        """Queue one recorded copy, behind all steps queued so far.  Without destination it is only an event."""
        self.device.wait(COPY, self.device.record(COMPUTE))
        self.copies[copy.ticket] = copy, self.device.move(COPY, self.pairs(copy))

    def pairs(self, copy: QueuedCopy) -> list[tuple[Row, Row]]:
        """The rows that a copy moves."""
        if copy.destination == NO_BLOCK:
            return []
        rows = copy.rows or self.ring
        return [(Row(copy.pool, copy.source, i), Row(copy.pool, copy.destination, i)) for i in range(rows)]

    def observe(self, ticket: int) -> None:
        """The host waits for the copy's event."""
        _, event = self.copies.pop(ticket)
        self.device.finish(event)

    def filling(self, request: Request) -> list[Ticket]:
        """Events of the queued copies that fill a block or the slot of the request."""
        return [
            event
            for copy, event in self.copies.values()
            if (copy.destination in request.table if copy.pool == BLOCKS else copy.destination == request.slot)
        ]

    # Steps ----------------------------------------------------------------------------------------

    def step(self, request: Request, contents: Contents, upto: int) -> Ticket:
        """Queue the step that writes the rows from ``contents.written`` up to position ``upto``."""
        for event in self.filling(request):
            self.device.wait(COMPUTE, event)
        writes = self.writes(request, contents, upto)
        contents.written = contents.in_slot = max(contents.written, min(upto, len(contents.tokens)))
        return self.device.step(COMPUTE, (), writes)

    def finish_steps(self) -> None:
        """The host waits for every step queued so far."""
        self.device.finish(self.device.record(COMPUTE))

    def writes(self, request: Request, contents: Contents, upto: int) -> Mapping[Row, Stamp]:
        """The write set of that step: paged rows, and the last ``ring`` rows in the state slot."""
        size, table = self.block_size, request.table
        first = max(contents.written, request.settled)  # the rows of accepted drafts are there already, named or not
        positions = range(first, upto)
        rows = {Row(BLOCKS, table[p // size], p % size): contents.stamp(p) for p in positions}
        if request.slot != NO_SLOT:
            positions = range(max(contents.in_slot, upto - self.ring), upto)
            rows |= {Row(SLOTS, request.slot, p % self.ring): contents.stamp(p) for p in positions}
        return rows

    def rename(self, request: Request, contents: Contents, first: int, upto: int) -> None:
        """Rows ``first`` to ``upto`` held accepted drafts; their tokens are known now, their bytes were right."""
        stamps = {position: contents.stamp(position) for position in range(first, upto)}
        for position, stamp in stamps.items():
            self.device.rows[Row(BLOCKS, *request.row(position, self.block_size))] = stamp
        contents.written = max(contents.written, upto)

    # Reading back ---------------------------------------------------------------------------------

    def read(self, request: Request, rows: int, recorded: Sequence[QueuedCopy] = ()) -> list[Stamp]:
        """The first ``rows`` rows as a step queued now would read them.  Runs nothing.

        ``recorded``: copies that are not submitted yet and would go ahead of that step, behind all
        that are.
        """
        events = [self.device.record(COPY)] if recorded else self.filling(request)
        memory = self.device.preview(events, [self.pairs(copy) for copy in recorded])
        size, table = self.block_size, request.table
        return [memory.get(Row(BLOCKS, table[p // size], p % size), UNWRITTEN) for p in range(rows)]

    def read_slot(self, request: Request, written: int) -> list[Stamp]:
        """The ring of the request's slot, oldest position first, after positions below ``written`` were written."""
        memory = self.device.preview(self.filling(request))
        positions = range(oldest_kept(written, self.ring), written)
        return [memory.get(Row(SLOTS, request.slot, p % self.ring), UNWRITTEN) for p in positions]
