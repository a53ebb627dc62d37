"""The sanitizer around somebody else's torch code, which knows nothing of this package::

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

Leaving the block raises :class:`~kvproof.gpu.reports.OrderingError` if there was a report.  Streams
are ``torch.cuda.Stream`` objects, or plain strings on a machine without a GPU: the judgement needs
the order of the calls, not the hardware.  ``reads`` and ``writes`` are believed;
:func:`kvproof.gpu.footprint.fault_of` tests whether they are true.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch

from .cells import Span
from .order import Clock, Ticket
from .reports import OrderingError, Report
from .sanitizer import Sanitizer


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
    manager: AbstractContextManager[Any] = torch.cuda.stream(stream)
    return manager
