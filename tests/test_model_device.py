"""The device: streams are queues, events order them, and the schedule is the caller's choice."""

from __future__ import annotations

import itertools

import pytest

from kvproof.model.device import COMPUTE, COPY, UNWRITTEN, Deadlock, Device, Row, Stamp

A, B, C = Row("blocks", 1, 0), Row("blocks", 2, 0), Row("blocks", 3, 0)
ONE, TWO = Stamp(1, 0, 1), Stamp(2, 0, 2)


def test_nothing_runs_before_somebody_waits() -> None:
    device = Device()
    event = device.step(COMPUTE, writes={A: ONE})
    assert not device.passed(event)
    assert A not in device.rows
    device.finish(event)
    assert device.rows[A] == ONE


def test_one_stream_runs_in_order() -> None:
    device = Device()
    device.step(COMPUTE, writes={A: ONE})
    device.move(COMPUTE, [(A, B)])
    device.step(COMPUTE, writes={A: TWO})
    device.drain()
    assert (device.rows[A], device.rows[B]) == (TWO, ONE)


def test_a_copy_reads_all_its_sources_before_it_writes() -> None:
    device = Device()
    device.rows |= {A: ONE, B: TWO}
    device.finish(device.move(COPY, [(A, B), (B, A)]))
    assert (device.rows[A], device.rows[B]) == (TWO, ONE)


def test_a_row_that_was_never_written_stays_so_when_it_is_copied() -> None:
    device = Device()
    device.rows[B] = ONE
    device.finish(device.move(COPY, [(A, B)]))
    assert device.rows[B] == UNWRITTEN


def test_waiting_for_an_event_runs_nothing_more_than_it_must() -> None:
    device = Device()
    first = device.step(COMPUTE, writes={A: ONE})
    later = device.step(COMPUTE, writes={B: ONE})
    other = device.move(COPY, [(A, C)])
    device.finish(first)
    assert not device.passed(later)
    assert not device.passed(other)


def test_a_wait_orders_two_streams_under_every_schedule() -> None:
    outcomes = set()
    for choice in itertools.product([COMPUTE, COPY], repeat=4):
        device = Device()
        written = device.step(COMPUTE, writes={A: ONE})
        device.wait(COPY, written)
        device.move(COPY, [(A, B)])
        for stream in choice:
            if stream in device.ready():
                device.run(stream)
        device.drain()
        outcomes.add(device.rows[B])
    assert outcomes == {ONE}


def test_without_the_wait_the_schedule_decides() -> None:
    outcomes = set()
    for first in (COMPUTE, COPY):
        device = Device()
        device.step(COMPUTE, writes={A: ONE})
        device.move(COPY, [(A, B)])
        device.run(first)
        device.drain()
        outcomes.add(device.rows[B])
    assert outcomes == {ONE, UNWRITTEN}


def test_an_event_waits_for_what_was_queued_when_it_was_recorded() -> None:
    device = Device()
    device.step(COMPUTE, writes={A: ONE})
    event = device.record(COMPUTE)
    device.step(COMPUTE, writes={A: TWO})
    device.finish(event)
    assert device.rows[A] == ONE


def test_a_step_remembers_what_its_reads_saw() -> None:
    device = Device()
    device.rows[A] = ONE
    event = device.step(COMPUTE, reads=[A, C], writes={B: TWO})
    device.finish(event)
    assert device.seen[event] == [ONE, UNWRITTEN]


def test_a_step_may_read_what_it_writes_itself() -> None:
    device = Device()
    event = device.step(COMPUTE, reads=[A], writes={A: ONE})
    device.finish(event)
    assert device.seen[event] == [ONE]


def test_a_blocked_stream_is_not_ready() -> None:
    device = Device()
    written = device.step(COMPUTE, writes={A: ONE})
    device.wait(COPY, written)
    device.move(COPY, [(A, B)])
    assert device.ready() == [COMPUTE]
    device.run(COMPUTE)
    assert device.ready() == [COPY]


def test_a_preview_shows_what_waiting_would_show_and_changes_nothing() -> None:
    device = Device()
    device.rows[A] = ONE
    event = device.move(COPY, [(A, B)])
    assert device.preview([event])[B] == ONE
    assert device.preview([event], then=[[(B, C)]])[C] == ONE
    assert B not in device.rows
    assert not device.passed(event)


def test_waiting_for_work_behind_oneself_is_a_deadlock_by_name() -> None:
    device = Device()
    device.step(COMPUTE, writes={A: ONE})
    future = device.record(COMPUTE)._replace(clock=3)
    device.wait(COMPUTE, future)
    last = device.step(COMPUTE)
    with pytest.raises(Deadlock, match="compute"):
        device.finish(last)
