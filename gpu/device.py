"""What the backend needs from a device: streams that run later, events, and tickets.

Work is *launched* on a stream and runs later, in order inside the stream and in no order between
streams.  Order between streams comes from events only: :meth:`Device.record` marks a point in a
stream, :meth:`Device.wait` makes another stream stop until that point has passed.  The host learns
that work is done from :meth:`Device.query` and :meth:`Device.synchronize`.

Two implementations: :class:`kvproof.gpu.sim.SimDevice`, where a schedule decides which stream runs
next, and :class:`kvproof.gpu.cuda.CudaDevice`.  Both report to a sanitizer if they are given one,
so the same program is judged the same way on either.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from .cells import Footprint
from .order import Clock, Ticket, known
from .sanitizer import Sanitizer


class Stream:
    """An in-order queue of the device, by name; ``native`` is the stream of the real device."""

    __slots__ = ("launches", "name", "native")

    def __init__(self, name: str, native: Any = None) -> None:
        self.name = name
        self.native = native
        self.launches = 0

    def __repr__(self) -> str:
        return f"Stream({self.name!r})"


class Event:
    """A point in a stream.  Recording again moves it; waits that were queued before do not move."""

    __slots__ = ("clock", "finished", "native", "recorded", "stream", "ticket")

    def __init__(self, native: Any = None) -> None:
        self.native = native
        self.recorded = 0
        """How often it was recorded: the generation that a wait or a query refers to."""
        self.finished = 0
        """The latest generation that the simulated device has passed."""
        self.clock: Clock | None = None
        """What is known to be done once this event has passed (kept for the sanitizer)."""
        self.stream: Stream | None = None
        """Where it was last recorded."""
        self.ticket = Ticket("", 0)
        """The last launch before that recording: done once the event has passed."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """Work for a stream, with the rows that it reads and writes.

    ``run(first, stop)`` does the items ``first .. stop - 1``.  The items of one launch have no
    order among themselves, as the blocks of a grid have none: the simulated device may run them in
    pieces, in any order, with other streams in between; a real device gets them all at once.
    ``who`` names the request or pool that the work is for; it appears in reports.
    """

    name: str
    reads: Footprint
    writes: Footprint
    run: Callable[[int, int], object]
    items: int = 1
    who: str = ""


class NeverRecorded(RuntimeError):
    """An event was waited for before anybody recorded it.

    CUDA treats such an event as complete, so the mistake is silent there.  Here it is an error.
    """


class Deadlock(RuntimeError):
    """Nothing can run, yet the host waits: some stream waits for an event nobody will reach."""


class Device(ABC):
    """Streams, events and launches; bookkeeping and reports are shared by all devices."""

    memory: str
    """Where tensors for this device live: ``"cpu"`` or ``"cuda"``."""

    def __init__(self, sanitizer: Sanitizer | None = None) -> None:
        self.sanitizer = sanitizer
        self._streams: dict[str, Stream] = {}
        self._done: dict[str, int] = {}

    def stream(self, name: str) -> Stream:
        """The stream of that name; made on first use."""
        found = self._streams.get(name)
        if found is None:
            found = self._streams[name] = Stream(name, self._open(name))
        return found

    def launch(self, stream: Stream, kernel: Kernel) -> Ticket:
        """Queue the kernel; it runs later.  The returned ticket names this launch."""
        stream.launches += 1
        ticket = Ticket(stream.name, stream.launches)
        if self.sanitizer is not None:
            self.sanitizer.launched(ticket, kernel.name, kernel.who, kernel.reads, kernel.writes)
        self._launch(stream, kernel)
        return ticket

    def event(self) -> Event:
        """An event that nobody recorded yet."""
        return Event(self._new_event())

    def record(self, stream: Stream, event: Event | None = None) -> Event:
        """Mark the work queued on ``stream`` so far; a fresh event unless one is given."""
        event = event or self.event()
        event.recorded += 1
        event.stream = stream
        event.ticket = Ticket(stream.name, stream.launches)
        if self.sanitizer is not None:
            event.clock = self.sanitizer.recorded(stream.name)
        self._record(stream, event)
        return event

    def wait(self, stream: Stream, event: Event) -> None:
        """Later work on ``stream`` starts only after the event's latest recording, as of now."""
        self._must_be_recorded(event, "wait for")
        if self.sanitizer is not None and event.clock is not None:
            self.sanitizer.waited(stream.name, event.clock)
        self._wait(stream, event)

    def query(self, event: Event) -> bool:
        """Has the event's latest recording passed?  True tells the host so for good."""
        self._must_be_recorded(event, "query")
        passed = self._query(event)
        if passed:
            self._observe(event)
        return passed

    def synchronize(self, event: Event) -> None:
        """The host blocks until the event's latest recording has passed."""
        self._must_be_recorded(event, "synchronise with")
        self._synchronize(event)
        self._observe(event)

    def observed(self, ticket: Ticket) -> bool:
        """Has the host seen an event of that stream, recorded after this launch, pass?  Asks nothing of the device."""
        return known(ticket, self._done)

    def drain(self) -> None:
        """The host blocks until every stream is empty."""
        for event in [self.record(stream) for stream in self._streams.values()]:
            self.synchronize(event)

    def host_writes(self, rows: Footprint, name: str, who: str = "") -> None:
        """Announce that the host is about to overwrite memory which queued work may still read."""
        if self.sanitizer is not None:
            self.sanitizer.host_accessed(name, who, (), rows)

    def host_reads(self, rows: Footprint, name: str, who: str = "") -> None:
        """Announce that the host is about to read memory which queued work may still write."""
        if self.sanitizer is not None:
            self.sanitizer.host_accessed(name, who, rows, ())

    def forget(self, rows: Footprint) -> None:
        """Announce that these pages are gone: their names will not be used again."""
        if self.sanitizer is not None:
            for span in rows:
                self.sanitizer.forgotten(span.space, span.page)

    def host_releases(self, tickets: Iterable[Ticket], name: str, who: str = "") -> None:
        """Announce that an owner held for these launches is given up (rule 4, host-observed)."""
        if self.sanitizer is not None:
            for ticket in tickets:
                self.sanitizer.released(ticket, name, who)

    def _observe(self, event: Event) -> None:
        stream, clock = event.ticket
        self._done[stream] = max(clock, self._done.get(stream, 0))
        if self.sanitizer is not None and event.clock is not None:
            self.sanitizer.observed(event.clock)

    @staticmethod
    def _must_be_recorded(event: Event, verb: str) -> None:
        if not event.recorded:
            raise NeverRecorded(
                f"cannot {verb} an event that was never recorded: CUDA would treat it as complete, so the missing "
                "record would go unnoticed; call record(stream, event) first"
            )

    def settle(self) -> None:  # noqa: B027  (nothing to do where all work goes through streams)
        """The host waits for work that went around the streams: the filling of new tensors."""

    @abstractmethod
    def _open(self, name: str) -> Any:
        """Make the native stream."""

    @abstractmethod
    def _new_event(self) -> Any:
        """Make the native event."""

    @abstractmethod
    def _launch(self, stream: Stream, kernel: Kernel) -> None: ...

    @abstractmethod
    def _record(self, stream: Stream, event: Event) -> None: ...

    @abstractmethod
    def _wait(self, stream: Stream, event: Event) -> None: ...

    @abstractmethod
    def _query(self, event: Event) -> bool: ...

    @abstractmethod
    def _synchronize(self, event: Event) -> None: ...
