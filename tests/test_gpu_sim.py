"""What the simulated device promises: CUDA's order, and nothing more."""

from __future__ import annotations

import itertools

import pytest

pytest.importorskip("torch")

from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.gpu.device import Deadlock, Kernel, NeverRecorded
from kvproof.gpu.schedules import (
    Diverged,
    Drawn,
    Eager,
    Lazy,
    Random,
    Recorded,
    Recording,
    Starve,
    by_name,
    every_name,
)
from kvproof.gpu.sim import SimDevice

STREAMS = ("compute", "copy", "load")


def note(log: list[str], what: str, items: int = 1) -> Kernel:
    """A kernel that writes its name (and item) into the log when it runs."""

    def run(first: int, stop: int) -> None:
        log.extend(what if items == 1 else f"{what}{item}" for item in range(first, stop))

    return Kernel(what, (), (), run, items)


def device(schedule: str, seed: int = 0) -> SimDevice:
    return SimDevice(by_name(schedule, seed))


@pytest.mark.parametrize("schedule", every_name(STREAMS))
def test_a_stream_runs_in_order_under_every_schedule(schedule: str) -> None:
    for seed in range(20):
        dev, log = device(schedule, seed), list[str]()
        for number in range(6):
            dev.launch(dev.stream(STREAMS[number % 3]), note(log, str(number)))
        dev.drain()
        assert sorted(log) == list("012345")
        assert all(log.index(str(n)) < log.index(str(n + 3)) for n in range(3))


def test_streams_have_no_order_between_them() -> None:
    seen = set()
    for seed in range(200):
        dev, log = SimDevice(Random(seed)), list[str]()
        for name in STREAMS:
            dev.launch(dev.stream(name), note(log, name))
        dev.drain()
        seen.add(tuple(log))
    assert seen == set(itertools.permutations(STREAMS))


@pytest.mark.parametrize("schedule", every_name(STREAMS))
def test_a_wait_orders_two_streams_under_every_schedule(schedule: str) -> None:
    for seed in range(20):
        dev, log = device(schedule, seed), list[str]()
        compute, copy = dev.stream("compute"), dev.stream("copy")
        dev.launch(compute, note(log, "write"))
        dev.wait(copy, dev.record(compute))
        dev.launch(copy, note(log, "copy"))
        dev.drain()
        assert log == ["write", "copy"]


def test_record_captures_the_work_queued_before_it_only() -> None:
    dev, log = SimDevice(Lazy()), list[str]()
    compute = dev.stream("compute")
    dev.launch(compute, note(log, "before"))
    event = dev.record(compute)
    dev.launch(compute, note(log, "after"))
    dev.synchronize(event)
    assert log == ["before"]


def test_recording_again_does_not_move_a_wait_that_is_already_queued() -> None:
    dev, log = SimDevice(Lazy()), list[str]()
    compute, copy = dev.stream("compute"), dev.stream("copy")
    event = dev.record(compute)
    dev.wait(copy, event)
    dev.launch(copy, note(log, "copy"))
    dev.launch(compute, note(log, "later"))
    dev.record(compute, event)
    dev.synchronize(dev.record(copy))
    assert log == ["copy"], "the wait refers to the first recording; the later work must not be needed"


def test_a_wait_captures_the_latest_record_at_the_call() -> None:
    dev, log = SimDevice(Lazy()), list[str]()
    compute, copy = dev.stream("compute"), dev.stream("copy")
    event = dev.record(compute)
    dev.launch(compute, note(log, "later"))
    dev.record(compute, event)
    dev.wait(copy, event)
    dev.launch(copy, note(log, "copy"))
    dev.synchronize(dev.record(copy))
    assert log == ["later", "copy"]


@pytest.mark.parametrize("verb", ["wait", "query", "synchronize"])
def test_an_event_that_was_never_recorded_is_an_error(verb: str) -> None:
    dev = SimDevice()
    arguments = (dev.stream("compute"),) if verb == "wait" else ()
    with pytest.raises(NeverRecorded, match="never recorded"):
        getattr(dev, verb)(*arguments, dev.event())


def test_a_kernel_is_not_atomic() -> None:
    seen = set()
    for seed in range(100):
        dev, log = SimDevice(Random(seed)), list[str]()
        dev.launch(dev.stream("compute"), note(log, "a", items=2))
        dev.launch(dev.stream("copy"), note(log, "b"))
        dev.drain()
        seen.add(tuple(log))
    assert {("a0", "b", "a1"), ("a1", "b", "a0")} <= seen, "another stream runs between the items of one launch"
    assert len(seen) == 6, "and everything else that is possible happens too"


def test_the_items_of_one_launch_have_no_order() -> None:
    seen = set()
    for seed in range(100):
        dev, log = SimDevice(Random(seed)), list[str]()
        dev.launch(dev.stream("compute"), note(log, "k", items=3))
        dev.drain()
        seen.add(tuple(log))
    assert len(seen) == 6


def test_the_lazy_device_does_nothing_until_the_host_waits_and_then_only_what_is_needed() -> None:
    dev, log = SimDevice(Lazy()), list[str]()
    compute, copy, load = (dev.stream(name) for name in STREAMS)
    dev.launch(compute, note(log, "write"))
    dev.launch(load, note(log, "unrelated"))
    dev.wait(copy, dev.record(compute))
    dev.launch(copy, note(log, "copy"))
    done = dev.record(copy)
    assert not dev.query(done)
    assert log == []
    assert dev.pending(copy) == 3
    dev.synchronize(done)
    assert log == ["write", "copy"]


def test_the_starved_stream_runs_last() -> None:
    dev, log = SimDevice(Starve("copy")), list[str]()
    dev.launch(dev.stream("copy"), note(log, "copy"))
    dev.launch(dev.stream("compute"), note(log, "compute"))
    dev.launch(dev.stream("load"), note(log, "load"))
    dev.drain()
    assert log[-1] == "copy"


def test_query_is_true_once_the_event_has_passed() -> None:
    dev, log = SimDevice(Eager()), list[str]()
    dev.launch(dev.stream("compute"), note(log, "work"))
    assert dev.query(dev.record(dev.stream("compute")))
    assert log == ["work"]


def test_work_launched_after_synchronize_runs_after_the_event() -> None:
    for seed in range(50):
        dev, log = SimDevice(Random(seed)), list[str]()
        dev.launch(dev.stream("copy"), note(log, "copy"))
        dev.synchronize(dev.record(dev.stream("copy")))
        dev.launch(dev.stream("load"), note(log, "load"))
        dev.drain()
        assert log == ["copy", "load"]


def test_a_wait_that_nobody_can_satisfy_is_a_deadlock_not_a_hang() -> None:
    dev = SimDevice(Lazy())
    compute, copy = dev.stream("compute"), dev.stream("copy")
    event = dev.record(compute)
    dev.wait(copy, event)
    stuck = dev.record(copy)
    dev._queues["compute"].clear()  # a device that lost work
    with pytest.raises(Deadlock):
        dev.synchronize(stuck)


def program(dev: SimDevice) -> list[str]:
    log: list[str] = []
    for number in range(8):
        stream = dev.stream(STREAMS[number % 3])
        dev.launch(stream, note(log, f"{number}.", items=1 + number % 3))
        if number % 2:
            dev.wait(dev.stream(STREAMS[(number + 1) % 3]), dev.record(stream))
    dev.drain()
    return log


def test_a_recorded_schedule_replays_exactly() -> None:
    for seed in range(20):
        recording = Recording(Random(seed))
        log = program(SimDevice(recording))
        assert program(SimDevice(Recorded(recording.choices, recording.cuts))) == log


def test_a_recorded_schedule_on_another_program_is_refused() -> None:
    recording = Recording(Random(3))
    program(SimDevice(recording))
    dev = SimDevice(Recorded(recording.choices, recording.cuts))

    def another_program() -> None:
        dev.launch(dev.stream("other"), note([], "x"))
        dev.drain()

    with pytest.raises(Diverged):
        another_program()


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.data())
def test_a_schedule_can_be_drawn_from_hypothesis(data: st.DataObject) -> None:
    log = program(SimDevice(Drawn(lambda n: data.draw(st.integers(0, n - 1)))))
    assert len(log) == sum(1 + number % 3 for number in range(8))


def test_schedule_names_are_checked() -> None:
    assert every_name(("a",)) == ("eager", "lazy", "random", "starve:a")
    for wrong in ("", "starve", "starve:", "fair"):
        with pytest.raises(ValueError, match="unknown schedule"):
            by_name(wrong)
