"""A device that runs later: streams as first-in first-out queues, events, and rows that hold stamps.

The host only *queues* work.  When each stream advances is the caller's choice: that is the
schedule, and a correct engine is right under every one of them.  A row holds a :class:`Stamp` in
place of key and value numbers, so a wrong block shows up as a wrong value.

    >>> device = Device()
    >>> done = device.step("compute", writes={Row("blocks", 3, 0): Stamp(108, 8, 0)})
    >>> device.passed(done)
    False
    >>> device.finish(done)
    >>> device.rows[Row("blocks", 3, 0)].token
    108
"""

from __future__ import annotations

from collections import ChainMap, deque
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import NamedTuple

from .errors import Misuse

COMPUTE = "compute"
"""Stream of forward passes."""
COPY = "copy"
"""Stream of block and slot copies."""


class Row(NamedTuple):
    """One row of memory: pool name, block or slot id, offset in it."""

    pool: str
    block: int
    offset: int


class Stamp(NamedTuple):
    """What a row holds: the token, its position, and the lineage (a hash of the whole prefix up to it)."""

    token: int
    position: int
    lineage: int


UNWRITTEN = Stamp(-1, -1, -1)
"""What a row holds before anything was written to it."""


class Ticket(NamedTuple):
    """A point in a stream: passed once the stream has run ``clock`` pieces of work.  Also an event."""

    stream: str
    clock: int


class Deadlock(Misuse):
    """Work waits for an event that lies behind it in a queue."""

    rule = "progress"

    def __init__(self, stream: str) -> None:
        super().__init__(f"stream {stream!r}", "it waits for work behind itself", "record before waiting")


class Move(NamedTuple):
    """Queued work: copy rows, source to destination, all read before any is written."""

    pairs: Sequence[tuple[Row, Row]]


class Step(NamedTuple):
    """Queued work: a forward pass with its read set and what it writes."""

    reads: Sequence[Row]
    writes: Mapping[Row, Stamp]


class Wait(NamedTuple):
    """Queued work: nothing behind it on this stream runs before the event has passed."""

    event: Ticket


Work = Move | Step | Wait


class Device:
    """Named streams over one memory of rows.  A row that is not in ``rows`` is :data:`UNWRITTEN`."""

    def __init__(self, streams: Iterable[str] = (COMPUTE, COPY)) -> None:
        self.rows: MutableMapping[Row, Stamp] = {}
        self.seen: dict[Ticket, list[Stamp]] = {}
        self._queues: dict[str, deque[Work]] = {stream: deque() for stream in streams}
        self._ran: dict[str, int] = dict.fromkeys(self._queues, 0)

    # The host queues ------------------------------------------------------------------------------

    def move(self, stream: str, pairs: Sequence[tuple[Row, Row]]) -> Ticket:
        """Queue a copy of rows (source, destination)."""
        return self._queue(stream, Move(pairs))

    def step(self, stream: str, reads: Sequence[Row] = (), writes: Mapping[Row, Stamp] | None = None) -> Ticket:
        """Queue a step.  What its reads saw is in ``seen[ticket]`` once it has run."""
        return self._queue(stream, Step(reads, writes or {}))

    def record(self, stream: str) -> Ticket:
        """An event that passes when all work queued on the stream so far has run."""
        return Ticket(stream, self._ran[stream] + len(self._queues[stream]))

    def wait(self, stream: str, event: Ticket) -> None:
        """Work queued on the stream from now on runs after the event has passed."""
        if not self.passed(event):
            self._queue(stream, Wait(event))

    # The schedule: the caller's choice ------------------------------------------------------------

    def ready(self) -> list[str]:
        """Streams whose next piece of work can run now."""
        return [stream for stream, queue in self._queues.items() if queue and not self._blocked(queue[0])]

    def run(self, stream: str) -> None:
        """Run the next piece of work of one ready stream."""
        work = self._queues[stream].popleft()
        self._ran[stream] += 1
        if isinstance(work, Move):
            self._move(work)
        elif isinstance(work, Step):
            self.rows.update(work.writes)
            if work.reads:
                self.seen[Ticket(stream, self._ran[stream])] = [self.rows.get(row, UNWRITTEN) for row in work.reads]

    def passed(self, event: Ticket) -> bool:
        """Has the stream run everything up to the event?"""
        return self._ran[event.stream] >= event.clock

    def finish(self, event: Ticket) -> None:
        """Run exactly what must run before the event passes, and nothing else (the host waits)."""
        waiting = [event]
        while waiting:
            stream, clock = waiting[-1]
            if self._ran[stream] >= clock:
                waiting.pop()
                continue
            work = self._queues[stream][0]
            if isinstance(work, Wait) and not self.passed(work.event):
                if any(other.stream == work.event.stream for other in waiting):
                    raise Deadlock(stream)
                waiting.append(work.event)
            else:
                self.run(stream)

    def drain(self) -> None:
        """Run everything that is queued."""
        for stream in self._queues:
            self.finish(self.record(stream))

    def preview(self, events: Iterable[Ticket], then: Iterable[Sequence[tuple[Row, Row]]] = ()) -> Mapping[Row, Stamp]:
        """The rows as they would be if the host waited for these events now.  Changes nothing.

        ``then``: copies that would run after that, in order.
        """
        pending = [event for event in events if not self.passed(event)]
        moves = [Move(pairs) for pairs in then]
        if not pending and not moves:
            return self.rows
        twin = Device(())
        twin.rows = ChainMap({}, self.rows)
        twin._queues = {stream: queue.copy() for stream, queue in self._queues.items()}
        twin._ran = dict(self._ran)
        for event in pending:
            twin.finish(event)
        for move in moves:
            twin._move(move)
        return twin.rows

    # Private --------------------------------------------------------------------------------------

    def _queue(self, stream: str, work: Work) -> Ticket:
        self._queues[stream].append(work)
        return self.record(stream)

    def _move(self, move: Move) -> None:
        values = [self.rows.get(source, UNWRITTEN) for source, _ in move.pairs]
        for (_, destination), value in zip(move.pairs, values, strict=True):
            self.rows[destination] = value

    def _blocked(self, work: Work) -> bool:
        return isinstance(work, Wait) and not self.passed(work.event)
