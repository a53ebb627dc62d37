"""The backend with one line of its ordering protocol broken, by name.

Each mutant overrides one small method.  ``caught_by`` names the detectors that must find it:

``ticket``  a copy's source is released before the host observed the launch that reads it
``race``    two accesses to a row (of a block, a slot or a staging buffer) have no order
``state``   free list, counts, tables, pending copies or answers differ from the model's

Byte comparison is not among them: whether wrong bytes appear depends on the schedule, and under the
eager one, which is what PyTorch does on a CPU, none ever do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from kvproof.model.interface import Configuration, Factory

from .backend import GpuAllocator, Policy
from .contents import Contents
from .device import Device, Event, Stream
from .memory import HostBuffer
from .sanitizer import Sanitizer
from .schedules import Random
from .sim import SimDevice
from .staging import Staging
from .worker import COPY, Submitted, Worker

Detector = Literal["ticket", "race", "state"]


class EarlyRelease(GpuAllocator):
    """Sources go as soon as their copies are queued (the first run of the chapter's sharing lab)."""

    def submitted(self, tickets: Sequence[int], child: Contents) -> None:
        super().submitted(tickets, child)
        self.worker.announce_release(tickets)
        self.worker.forget(tickets)
        self.collected |= set(tickets)
        self.collect(tickets)


class _NoSynchronize(Worker):
    def synchronize(self, event: Event) -> None:
        """Forgets to wait."""


class ReleaseWithoutSynchronise(GpuAllocator):
    """Sources go at the right place in the program, but nobody waited for the event."""

    worker_type = _NoSynchronize


class _EventFirst(Worker):
    def launch_and_record(self, submitted: Sequence[Submitted], who: str) -> Event:
        done = self.device.record(self.copy)
        self.launch_copies(submitted, who)
        return done


class EventBeforeCopy(GpuAllocator):
    """The event is recorded before the copies are launched, so it says nothing about them."""

    worker_type = _EventFirst


class _EventElsewhere(Worker):
    def launch_and_record(self, submitted: Sequence[Submitted], who: str) -> Event:
        self.launch_copies(submitted, who)
        return self.device.record(self.compute)


class EventOnWrongStream(GpuAllocator):
    """The event is recorded on the compute stream; the copies run on the copy stream."""

    worker_type = _EventElsewhere


class _CopyAtOnce(Worker):
    def order_copy(self) -> None:
        """Forgets to wait."""


class CopyDoesNotWait(GpuAllocator):
    """A copy does not wait for the step that writes its source."""

    worker_type = _CopyAtOnce


class _ReadAtOnce(Worker):
    def use(self, contents: Contents) -> None:
        contents.ready = [event for event in contents.ready if event.stream is not self.copy]
        super().use(contents)


class ReaderDoesNotWait(GpuAllocator):
    """A step does not wait for the copy that fills what it reads."""

    worker_type = _ReadAtOnce


class _LoadAtOnce(Worker):
    def order_load(self) -> None:
        """Forgets to wait."""


class LoadDoesNotWait(GpuAllocator):
    """A load does not wait for the steps of whoever had the blocks before."""

    worker_type = _LoadAtOnce


class _OneBuffer(Staging):
    _shared: HostBuffer | None = None

    def take(self, stream: Stream, length: int, width: int) -> HostBuffer:
        if stream.name != COPY:
            return super().take(stream, length, width)
        self._shared = self._shared or super().take(stream, length, width)
        return self._shared


class _SharedStaging(Worker):
    staging_type = _OneBuffer


class SharedStaging(GpuAllocator):
    """All copy lists go through one staging buffer, which is filled again while an upload still reads it."""

    worker_type = _SharedStaging


class BorrowedReleaseList(GpuAllocator):
    """The release is deferred by one more call, and keeps an array that this next call fills again.

    DeepInfer's helper returns a borrowed array ("consume before the next call"); here is who does not.
    """

    def __init__(self, configuration: Configuration, device: Device, policy: Policy | None = None) -> None:
        super().__init__(configuration, device, policy)
        self._array: list[int] = []
        self._deferred: list[list[int]] = []

    def collect(self, tickets: Sequence[int]) -> None:
        self._array.clear()
        self._array += tickets
        for borrowed in self._deferred:
            super().collect(list(borrowed))
        self._deferred = [self._array]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A broken backend."""

    name: str
    what: str
    build: type[GpuAllocator]
    caught_by: frozenset[Detector]


def _mutant(name: str, build: type[GpuAllocator], *caught_by: Detector) -> Mutant:
    what = (build.__doc__ or "").partition("\n")[0]
    return Mutant(name, what, build, frozenset(caught_by))


MUTANTS: Mapping[str, Mutant] = {
    mutant.name: mutant
    for mutant in (
        _mutant("early_release", EarlyRelease, "ticket", "state"),
        _mutant("release_without_synchronise", ReleaseWithoutSynchronise, "ticket"),
        _mutant("event_before_copy", EventBeforeCopy, "ticket", "race"),
        _mutant("event_on_wrong_stream", EventOnWrongStream, "ticket", "race"),
        _mutant("copy_does_not_wait", CopyDoesNotWait, "race"),
        _mutant("reader_does_not_wait", ReaderDoesNotWait, "race"),
        _mutant("load_does_not_wait", LoadDoesNotWait, "race"),
        _mutant("shared_staging", SharedStaging, "race"),
        _mutant("borrowed_release_list", BorrowedReleaseList, "state"),
    )
}
"""Every mutant by name."""


def make_mutant(name: str) -> Factory:
    """The target ``gpu:NAME``: simulated streams in a random order, watched by the sanitizer."""

    def factory(configuration: Configuration) -> GpuAllocator:
        return MUTANTS[name].build(configuration, SimDevice(Random(configuration.seed), Sanitizer()))

    return factory
