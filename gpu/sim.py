"""A device without hardware: queues, and a schedule that decides what runs when.

It promises what CUDA promises and nothing more (each line is a test in ``tests/test_gpu_sim.py``):

* first in, first out inside a stream; no order between streams but through events and the host;
* ``record`` captures what the stream holds at the call, ``wait`` captures the latest record at the
  call, and recording again moves neither;
* a kernel is not atomic: other streams run between its items, and its items have no order;
* memory is read when the kernel runs, not when it is launched, host memory too;
* the device moves only inside a call of the host, and only as far as the schedule wants, unless
  the host waits.

All memory changes come from tasks, so an execution is fully determined by the schedule's choices.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from .device import Deadlock, Device, Event, Kernel, Stream
from .sanitizer import Sanitizer
from .schedules import Eager, Moment, Piece, Schedule


class _Launch:
    """A queued kernel; once it has started, ``left`` are the pieces that have not run yet, last first."""

    __slots__ = ("kernel", "left")

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.left: list[Piece] | None = None


class _Record:
    """A queued record: passing it finishes that generation of the event."""

    __slots__ = ("event", "generation")

    def __init__(self, event: Event) -> None:
        self.event = event
        self.generation = event.recorded


class _Wait:
    """A queued wait: blocks its stream until that generation of the event is finished."""

    __slots__ = ("event", "generation", "recorded_on")

    def __init__(self, event: Event) -> None:
        self.event = event
        self.generation = event.recorded
        self.recorded_on = event.stream

    @property
    def blocked(self) -> bool:
        return self.event.finished < self.generation


_Task = _Launch | _Record | _Wait


class SimDevice(Device):
    """Streams as queues in host memory; ``schedule`` decides the order (default: eager)."""

    memory = "cpu"

    def __init__(self, schedule: Schedule | None = None, sanitizer: Sanitizer | None = None) -> None:
        super().__init__(sanitizer)
        self.schedule: Schedule = schedule or Eager()
        self._queues: dict[str, deque[_Task]] = {}

    def pending(self, stream: Stream) -> int:
        """How many tasks are queued on the stream and not finished."""
        return len(self._queues[stream.name])

    def ready(self) -> tuple[str, ...]:
        """Names of the streams whose next task may run."""
        return tuple(
            name
            for name, queue in self._queues.items()
            if queue and not (isinstance(queue[0], _Wait) and queue[0].blocked)
        )

    def advance(self, name: str) -> None:
        """Run one micro-step of the stream: one piece of a kernel, one record, or one wait."""
        queue = self._queues[name]
        task = queue[0]
        if isinstance(task, _Launch):
            if self._run_one_piece(task):
                return
        elif isinstance(task, _Record):
            task.event.finished = max(task.event.finished, task.generation)
        queue.popleft()

    def _run_one_piece(self, task: _Launch) -> bool:
        """Run the next piece; True while more remain."""
        kernel = task.kernel
        if kernel.items == 1:
            kernel.run(0, 1)
            return False
        if task.left is None:
            task.left = list(self.schedule.pieces(kernel.items))[::-1] if kernel.items else []
        if task.left:
            kernel.run(*task.left.pop())
        return bool(task.left)

    def _poll(self) -> None:
        """Let the schedule run as much as it likes."""
        while ready := self.ready():
            chosen = self.schedule.choose(Moment(ready, (), forced=False))
            if chosen is None:
                return
            self.advance(chosen)

    def _needed(self, event: Event, generation: int) -> tuple[str, ...]:
        """Ready streams on the way to the event: follow the waits that block its stream."""
        stream, seen = event.stream, set[str]()
        while stream is not None and stream.name not in seen:
            seen.add(stream.name)
            queue = self._queues[stream.name]
            if not queue or event.finished >= generation:
                break
            head = queue[0]
            if not (isinstance(head, _Wait) and head.blocked):
                return (stream.name,)
            event, generation, stream = head.event, head.generation, head.recorded_on
        return ()

    def _open(self, name: str) -> Any:
        self._queues[name] = deque()
        return None

    def _new_event(self) -> Any:
        return None

    def _launch(self, stream: Stream, kernel: Kernel) -> None:
        self._queues[stream.name].append(_Launch(kernel))
        self._poll()

    def _record(self, stream: Stream, event: Event) -> None:
        self._queues[stream.name].append(_Record(event))
        self._poll()

    def _wait(self, stream: Stream, event: Event) -> None:
        self._queues[stream.name].append(_Wait(event))
        self._poll()

    def _query(self, event: Event) -> bool:
        self._poll()
        return event.finished >= event.recorded

    def _synchronize(self, event: Event) -> None:
        generation = event.recorded
        while event.finished < generation:
            ready = self.ready()
            if not ready:
                raise Deadlock("the host waits for an event, but no stream can run")
            chosen = self.schedule.choose(Moment(ready, self._needed(event, generation), forced=True))
            self.advance(chosen if chosen is not None else ready[0])
