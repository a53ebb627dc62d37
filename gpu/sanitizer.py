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

What can be reported, and which rule it breaks: :mod:`kvproof.gpu.reports`.  Around code that knows
nothing of this package: :mod:`kvproof.gpu.watch`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TypeAlias

from .cells import Span
from .order import HOST, Clock, Ticket, known, merge
from .reports import Access, Kind, Report
from .shadow import Page, Segment

Found: TypeAlias = dict[tuple[Kind, Access | None], list[Span]]
"""Conflicting rows of one launch, by kind and earlier access."""


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
        self._pages: dict[tuple[str, int], Page] = {}
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

    def _page(self, space: str, page: int) -> Page:
        found = self._pages.get((space, page))
        if found is None:
            found = self._pages[space, page] = Page()
        return found

    def _judge(self, access: Access, clock: Clock, reads: Sequence[Span], writes: Sequence[Span]) -> None:
        """Compare with the history of every row, then become part of it."""
        found: Found = {}
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
        self, span: Span, access: Access, clock: Clock, found: Found
    ) -> None:
        for segment in self._page(span.space, span.page).cover(span.first, span.stop):
            write = segment.write
            if write is not None and not known(write.ticket, clock):
                _note(found, "read-after-write", write, span, segment)
            segment.reads[access.ticket.stream] = access

    def _write(
        self, span: Span, access: Access, clock: Clock, found: Found
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
            page.replace(segments, Segment(span.first, span.stop, access))

    def _find_unfilled(self, span: Span, found: Found) -> None:
        for segment in self._page(span.space, span.page).cover(span.first, span.stop):
            if not segment.filled:
                _note(found, "read-of-unfilled", None, span, segment)

    def _report(self, report: Report) -> None:
        if len(self.reports) < self._limit:
            self.reports.append(report)


def _note(
    found: Found, kind: Kind, earlier: Access | None, span: Span, part: Segment
) -> None:
    """Add the rows of ``part`` to what this launch has found so far."""
    rows = Span(span.space, span.page, part.first, part.stop)
    spans = found.setdefault((kind, earlier), [])
    if spans and spans[-1][:2] == rows[:2] and spans[-1].stop == rows.first:
        rows = Span(rows.space, rows.page, spans.pop().first, rows.stop)
    spans.append(rows)
