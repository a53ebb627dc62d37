"""The sanitizer: ordering errors on KV rows, found when work is launched.

A byte comparison sees an ordering error only if the device happened to run things in the bad order
and nothing overwrote the evidence.  The sanitizer needs neither: it keeps a vector clock per stream
and one for the host, and for every row the last write and the last read of each stream.  A launch
whose rows conflict with an earlier access that is not ordered before it is an error, whatever the
device does later.  So one trace is enough: *if the trace of launches has no report, every schedule
of it has the same outcome* (tested by enumerating them).

Two more checks close what races alone cannot see.  An owner that queued work relies on has a
*ticket*; giving it up is legal only after the host has observed that launch.  And host memory that
the device reads later (staging buffers of asynchronous uploads) has rows like any other memory.

Which rule a report breaks (see the rule book):

=======================  ==========================  =====================================================
kind                     rule                        meaning
=======================  ==========================  =====================================================
``write-after-read``     ``reads_keep_their_source``  a write is not ordered behind a queued read
``early-release``        ``reads_keep_their_source``  an owner went before the read it protects was observed
``write-after-write``    ``writes_stay_home``         a write is not ordered behind another owner's write
``read-after-write``     ``no_read_before_fill``      a read is not ordered behind the write that fills it
``read-of-unfilled``     ``no_read_before_fill``      nobody has filled the row since it was issued
=======================  ==========================  =====================================================

**Around other code.**  :class:`Watch` wraps torch code that knows nothing of this package::

    with Watch() as watch:
        with watch.kernel("append", stream=compute, writes=[Span("kv", 3, 0, 2)], who="parent"):
            kv[3, :2] = rows
        watch.wait(copies, watch.record(compute))
        with watch.kernel("tail copy", stream=copies, reads=[Span("kv", 3, 0, 2)],
                          writes=[Span("kv", 4, 0, 2)], who="child") as copied:
            kv[4, :2] = kv[3, :2]
        done = watch.record(copies)
        watch.synchronize(done)
        watch.release([copied.ticket], "source pin of block 3")

Leaving the block raises :class:`OrderingError` if there was a report.  On a machine without a GPU
streams can be plain strings: the judgement needs the order of the calls, not the hardware.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal

from .cells import Footprint, Span, describe
from .order import HOST, Clock, Ticket, known, merge

Kind = Literal["write-after-read", "write-after-write", "read-after-write", "read-of-unfilled", "early-release"]

RULES: dict[Kind, str] = {
    "write-after-read": "reads_keep_their_source",
    "early-release": "reads_keep_their_source",
    "write-after-write": "writes_stay_home",
    "read-after-write": "no_read_before_fill",
    "read-of-unfilled": "no_read_before_fill",
}
"""The rule of the rule book that each kind of report breaks."""

_REPAIRS: dict[Kind, str] = {
    "write-after-read": "make the writer's stream wait for an event recorded after the read",
    "early-release": "wait for an event recorded after that launch, on its stream, before releasing",
    "write-after-write": "make the later writer's stream wait for an event recorded after the earlier write",
    "read-after-write": "make the reader's stream wait for an event recorded after the write",
    "read-of-unfilled": "fill the row first, or do not read beyond the committed rows",
}


@dataclass(frozen=True, slots=True)
class Access:
    """One launch (or host access): the half of a report."""

    ticket: Ticket
    name: str
    who: str
    position: int
    """Place in the trace: launches, records, waits and host calls, counted from 1."""
    operation: str
    """What the allocator was doing, as told to :meth:`Sanitizer.during`."""

    def __str__(self) -> str:
        who = f" for {self.who}" if self.who else ""
        operation = f", during {self.operation}" if self.operation else ""
        return f"{self.name}{who} on stream {self.ticket.stream} (trace position {self.position}{operation})"


@dataclass(frozen=True, slots=True)
class Report:
    """One ordering error, with both accesses."""

    kind: Kind
    rows: Footprint
    earlier: Access | None
    """The access that is not ordered before the later one; ``None`` if there was none at all."""
    later: Access

    @property
    def rule(self) -> str:
        """The broken rule, by its name in the rule book."""
        return RULES[self.kind]

    @property
    def sentence(self) -> str:
        """What is wrong and how to repair it, without the rule's name."""
        rows = f" of {describe(self.rows)}" if self.rows else ""
        against = f" is not ordered behind {self.earlier}" if self.earlier else " finds no earlier write at all"
        return f"{self.kind}{rows}: {self.later}{against}; repair: {_REPAIRS[self.kind]}"

    def __str__(self) -> str:
        return f"{self.rule}: {self.sentence}"


@dataclass(slots=True)
class _Segment:
    """Neighbouring rows of one page with the same history."""

    first: int
    stop: int
    write: Access | None = None
    reads: dict[str, Access] = field(default_factory=dict)
    filled: bool = True

    def split(self, at: int) -> _Segment:
        """Cut at a row; returns the new right part."""
        right = _Segment(at, self.stop, self.write, dict(self.reads), self.filled)
        self.stop = at
        return right


class _Page:
    """The history of one page, as few segments as its rows allow, in row order."""

    __slots__ = ("segments",)

    def __init__(self) -> None:
        self.segments: list[_Segment] = []

    def cover(self, first: int, stop: int) -> list[_Segment]:
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
                segments.insert(at, _Segment(row, gap_ends))
            elif segments[at].stop > stop:
                segments.insert(at + 1, segments[at].split(stop))
            row = segments[at].stop
            at += 1
        return segments[low:at]

    def replace(self, old: list[_Segment], new: _Segment) -> None:
        """Put one segment in the place of neighbouring ones."""
        if len(old) == 1:
            only = old[0]
            only.write, only.reads, only.filled = new.write, new.reads, new.filled
            return
        at = self.segments.index(old[0])
        self.segments[at : at + len(old)] = [new]


class Sanitizer:
    """Judges every launch, host access and release at the moment it is announced.

    Reports collect in :attr:`reports`; nothing is raised.  ``limit`` bounds their number.
    """

    def __init__(self, limit: int = 1000) -> None:
        self.reports: list[Report] = []
        self.position = 0
        self._limit = limit
        self._operation = ""
        self._host: dict[str, int] = {}
        self._clocks: dict[str, dict[str, int]] = {}
        self._pages: dict[tuple[str, int], _Page] = {}
        self._issued: set[tuple[str, int]] = set()
        self._unobserved: dict[str, deque[Access]] = {}

    def during(self, operation: str) -> None:
        """From here on, accesses are part of this operation of the allocator (for reports)."""
        self._operation = operation

    def launched(self, ticket: Ticket, name: str, who: str, reads: Sequence[Span], writes: Sequence[Span]) -> None:
        """A kernel was queued.  It is ordered behind its stream, its stream's waits and the host."""
        clock = self._of_stream(ticket.stream)
        clock[ticket.stream] = ticket.clock
        access = self._access(ticket, name, who)
        self._unobserved.setdefault(ticket.stream, deque()).append(access)
        self._judge(access, clock, reads, writes)

    def host_accessed(self, name: str, who: str, reads: Sequence[Span], writes: Sequence[Span]) -> None:
        """The host itself reads or writes, now.  It is ordered behind what the host has observed."""
        self._host[HOST] = self._host.get(HOST, 0) + 1
        ticket = Ticket(HOST, self._host[HOST])
        self._judge(self._access(ticket, name, who), self._host, reads, writes)

    def recorded(self, stream: str) -> Clock:
        """An event was recorded: the clock that whoever observes the event may merge."""
        self.position += 1
        return dict(self._of_stream(stream))

    def waited(self, stream: str, clock: Clock) -> None:
        """Later launches of the stream are ordered behind the event that had this clock."""
        self.position += 1
        merge(self._of_stream(stream), clock)

    def observed(self, clock: Clock) -> None:
        """The host knows that the event that had this clock has passed."""
        self.position += 1
        merge(self._host, clock)
        for stream, launches in self._unobserved.items():
            while launches and launches[0].ticket.clock <= self._host.get(stream, 0):
                launches.popleft()

    def released(self, ticket: Ticket, name: str, who: str = "") -> None:
        """An owner held for this launch is given up: legal once the host has observed the launch."""
        if not known(ticket, self._host):
            launches = self._unobserved.get(ticket.stream, ())
            earlier = next((access for access in launches if access.ticket == ticket), None)
            later = self._access(Ticket(HOST, self._host.get(HOST, 0)), name, who)
            self._report(Report("early-release", (), earlier, later))

    def issued(self, space: str, page: int, rows: int) -> None:
        """The page has a new owner: its rows are unfilled until somebody writes them.

        Their history stays: the new owner must still be ordered behind the old one's accesses.
        """
        for segment in self._page(space, page).cover(0, rows):
            segment.filled = False
        self._issued.add((space, page))

    def forgotten(self, space: str, page: int) -> None:
        """The page is gone, with its history."""
        self._pages.pop((space, page), None)

    def _of_stream(self, stream: str) -> dict[str, int]:
        """The stream's clock, up to date with the host's: whatever the host saw is done for it."""
        clock = self._clocks.get(stream)
        if clock is None:
            clock = self._clocks[stream] = {}
        merge(clock, self._host)
        return clock

    def _access(self, ticket: Ticket, name: str, who: str) -> Access:
        self.position += 1
        return Access(ticket, name, who, self.position, self._operation)

    def _page(self, space: str, page: int) -> _Page:
        found = self._pages.get((space, page))
        if found is None:
            found = self._pages[space, page] = _Page()
        return found

    def _judge(self, access: Access, clock: Clock, reads: Sequence[Span], writes: Sequence[Span]) -> None:
        """Compare with the history of every row, then become part of it."""
        found: dict[tuple[Kind, Access | None], list[Span]] = {}
        for span in reads:
            self._read(span, access, clock, found)
        for span in writes:
            self._write(span, access, clock, found)
        for span in reads:  # after the writes: a step may read what it writes itself
            if (span.space, span.page) in self._issued:
                self._find_unfilled(span, found)
        for (kind, earlier), spans in found.items():
            self._report(Report(kind, tuple(spans), earlier, access))

    def _read(
        self, span: Span, access: Access, clock: Clock, found: dict[tuple[Kind, Access | None], list[Span]]
    ) -> None:
        for segment in self._page(span.space, span.page).cover(span.first, span.stop):
            write = segment.write
            if write is not None and not known(write.ticket, clock):
                _note(found, "read-after-write", write, span, segment)
            segment.reads[access.ticket.stream] = access

    def _write(
        self, span: Span, access: Access, clock: Clock, found: dict[tuple[Kind, Access | None], list[Span]]
    ) -> None:
        page = self._page(span.space, span.page)
        segments = page.cover(span.first, span.stop)
        for segment in segments:
            write = segment.write
            if write is not None and not known(write.ticket, clock):
                _note(found, "write-after-write", write, span, segment)
            for read in segment.reads.values():
                if read is not access and not known(read.ticket, clock):
                    _note(found, "write-after-read", read, span, segment)
        if segments:
            page.replace(segments, _Segment(span.first, span.stop, access))

    def _find_unfilled(self, span: Span, found: dict[tuple[Kind, Access | None], list[Span]]) -> None:
        for segment in self._page(span.space, span.page).cover(span.first, span.stop):
            if not segment.filled:
                _note(found, "read-of-unfilled", None, span, segment)

    def _report(self, report: Report) -> None:
        if len(self.reports) < self._limit:
            self.reports.append(report)


def _note(
    found: dict[tuple[Kind, Access | None], list[Span]], kind: Kind, earlier: Access | None, span: Span, part: _Segment
) -> None:
    """Add the rows of ``part`` to what this launch has found so far."""
    rows = Span(span.space, span.page, part.first, part.stop)
    spans = found.setdefault((kind, earlier), [])
    if spans and spans[-1][:2] == rows[:2] and spans[-1].stop == rows.first:
        rows = Span(rows.space, rows.page, spans.pop().first, rows.stop)
    spans.append(rows)


class OrderingError(AssertionError):
    """The watched code has ordering errors; the message lists them."""

    def __init__(self, reports: Sequence[Report]) -> None:
        self.reports = tuple(reports)
        shown = "\n".join(f"  {report}" for report in self.reports[:20])
        more = f"\n  ... and {len(self.reports) - 20} more" if len(self.reports) > 20 else ""
        super().__init__(f"{len(self.reports)} ordering error(s):\n{shown}{more}")


@dataclass(frozen=True, slots=True)
class Launched:
    """What :meth:`Watch.kernel` hands out: the ticket of the launch."""

    ticket: Ticket


@dataclass(frozen=True, slots=True)
class Mark:
    """What :meth:`Watch.record` hands out: a recorded event and what it stands for."""

    clock: Clock
    native: Any


class Watch:
    """The sanitizer around somebody else's code (see the module's example).

    Streams are ``torch.cuda.Stream`` objects, whose events are then recorded and waited for as
    well, or plain names.  With ``strict`` (the default) leaving the block raises
    :class:`OrderingError` if anything was reported; an exception of the code itself passes.
    """

    def __init__(self, strict: bool = True) -> None:
        self.sanitizer = Sanitizer()
        self._strict = strict
        self._names: dict[Any, str] = {}
        self._launches: dict[str, int] = {}

    @property
    def reports(self) -> Sequence[Report]:
        """What was found so far."""
        return self.sanitizer.reports

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._strict and self.reports:
            raise OrderingError(self.reports)

    @contextmanager
    def kernel(
        self, name: str, *, stream: Any, reads: Sequence[Span] = (), writes: Sequence[Span] = (), who: str = ""
    ) -> Iterator[Launched]:
        """Code that launches work on ``stream`` which reads and writes exactly these rows."""
        key = self._name(stream)
        self._launches[key] = self._launches.get(key, 0) + 1
        ticket = Ticket(key, self._launches[key])
        self.sanitizer.launched(ticket, name, who, reads, writes)
        with _on(stream):
            yield Launched(ticket)

    def record(self, stream: Any) -> Mark:
        """Record an event on the stream."""
        native = stream.record_event() if hasattr(stream, "record_event") else None
        return Mark(self.sanitizer.recorded(self._name(stream)), native)

    def wait(self, stream: Any, mark: Mark) -> None:
        """Make later work on the stream wait for the event."""
        if mark.native is not None:
            stream.wait_event(mark.native)
        self.sanitizer.waited(self._name(stream), mark.clock)

    def synchronize(self, mark: Mark) -> None:
        """The host waits for the event."""
        if mark.native is not None:
            mark.native.synchronize()
        self.sanitizer.observed(mark.clock)

    def host(self, name: str, *, reads: Sequence[Span] = (), writes: Sequence[Span] = (), who: str = "") -> None:
        """The host is about to touch memory that queued work reads or writes (staging buffers)."""
        self.sanitizer.host_accessed(name, who, reads, writes)

    def issue(self, space: str, page: int, rows: int) -> None:
        """The page has a new owner; its rows count as unfilled from here on."""
        self.sanitizer.issued(space, page, rows)

    def release(self, tickets: Iterable[Ticket], name: str, who: str = "") -> None:
        """An owner held for these launches is given up."""
        for ticket in tickets:
            self.sanitizer.released(ticket, name, who)

    def _name(self, stream: Any) -> str:
        """A stable, readable name of the stream; distinct streams get distinct names."""
        if isinstance(stream, str):
            return stream
        return self._names.setdefault(stream, f"stream {len(self._names)}")


def _on(stream: Any) -> AbstractContextManager[Any]:
    """The torch context of a CUDA stream; nothing for a name."""
    if isinstance(stream, str):
        return nullcontext()
    import torch

    manager: AbstractContextManager[Any] = torch.cuda.stream(stream)
    return manager
