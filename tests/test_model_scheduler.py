"""DeepInfer's passes on the model: everything ends, nothing is lost, and slots beyond the request limit."""

from __future__ import annotations

import random

import pytest

from kvproof.model.engine import Engine
from kvproof.model.scheduler import OneBlockIsNotEnough, Scheduler, Sequence, Status
from kvproof.model.slots import slot_pool_size


def consistent(engine: Engine) -> None:
    """Every block is owned or free, and each count is the number of owners."""
    pool = engine.blocks
    owners = [block for request in engine.requests.values() for block in request.table]
    owners += [copy.source for copy in engine.copies.values() if copy.pool == "blocks"]
    assert pool.counts == {block: owners.count(block) for block in owners}
    assert sorted([*pool.free, *set(owners)]) == list(range(1, pool.usable + 1))
    if engine.slots is not None:
        slots = [request.slot for request in engine.requests.values()]
        slots += [copy.source for copy in engine.copies.values() if copy.pool == "slots"]
        assert engine.slots.counts == {slot: slots.count(slot) for slot in slots}
        assert sorted([*engine.slots.free, *set(slots)]) == list(range(1, engine.slots.usable + 1))


def drain(scheduler: Scheduler, most: int = 500) -> int:
    for steps in range(most):
        if scheduler.idle():
            return steps
        scheduler.step()
        consistent(scheduler.engine)
    raise AssertionError("no end in sight")


@pytest.mark.parametrize("overlap", [True, False])
def test_one_request_runs_to_its_end_and_leaves_nothing(overlap: bool) -> None:
    engine = Engine(7, 4, slots=2)
    scheduler = Scheduler(engine, max_requests=2, drafts=2, overlap=overlap)
    sequence = scheduler.add("A", prompt=6, most_outputs=5)
    drain(scheduler)
    assert sequence.status is Status.LENGTH_CAPPED
    assert sequence.length == 11
    assert sorted(engine.blocks.free) == list(range(1, 8))
    assert sorted(scheduler.draft_slots) == [1, 2]


def test_between_steps_a_running_request_has_processed_all_but_its_last_token() -> None:
    scheduler = Scheduler(Engine(20, 4), max_requests=2, drafts=2, overlap=False, accept=lambda _: 1)
    sequence = scheduler.add("A", prompt=6, most_outputs=9)
    while not scheduler.idle():
        scheduler.step()
        if sequence.status is Status.RUNNING:
            request = scheduler.engine.requests["A"]
            assert request.num_tokens == request.length - 1
            assert request.length == sequence.length


def test_with_overlap_an_end_is_released_two_steps_after_the_step_that_sampled_it() -> None:
    engine = Engine(7, 4)
    scheduler = Scheduler(engine, max_requests=1)
    sequence = scheduler.add("A", prompt=4, most_outputs=2)
    scheduler.step()  # prompt step: the first output
    scheduler.step()  # k: samples the last output, which the host has not seen
    assert sequence.status is Status.RUNNING
    extra = scheduler.step()  # k + 1: one more step runs with it
    assert [entry.name for entry, _ in extra.queries] == ["A"]
    assert sequence.status is Status.LENGTH_CAPPED
    assert "A" in engine.requests
    assert scheduler.step().finished == [sequence]  # k + 2
    assert "A" not in engine.requests


def test_a_long_prompt_reserves_everything_at_its_first_chunk() -> None:
    engine = Engine(7, 4)
    scheduler = Scheduler(engine, max_requests=2, budget=5)
    scheduler.add("A", prompt=12, most_outputs=1)
    chunks = []
    for _ in range(3):
        ((_, queries),) = scheduler.step().queries
        chunks.append((queries, len(engine.requests["A"].table)))
    assert chunks == [(5, 3), (5, 3), (2, 3)]


def test_a_prompt_that_can_never_fit_is_ignored_and_the_next_one_served() -> None:
    scheduler = Scheduler(Engine(3, 4), max_requests=2)
    never, fits = scheduler.add("A", 13, 1), scheduler.add("B", 4, 1)
    drain(scheduler)
    assert never.status is Status.IGNORED
    assert fits.status is Status.LENGTH_CAPPED


def test_a_waiting_head_stops_everything_behind_it() -> None:
    scheduler = Scheduler(Engine(10, 4), max_requests=3)
    scheduler.add("A", 24, 20)
    scheduler.step()
    big, small = scheduler.add("B", 20, 1), scheduler.add("C", 1, 1)
    scheduler.step()
    assert [sequence.status for sequence in (big, small)] == [Status.WAITING, Status.WAITING]


def test_the_longest_output_is_preempted_and_starts_again() -> None:
    scheduler = Scheduler(Engine(4, 2), max_requests=2, overlap=False)
    long, short = scheduler.add("A", 2, 4), scheduler.add("B", 2, 2)
    drain(scheduler)
    assert scheduler.preemptions > 0
    assert (long.outputs, short.outputs) == (4, 2)


def test_a_full_pool_preempts_even_if_nobody_has_to_grow() -> None:
    scheduler = Scheduler(Engine(4, 4), max_requests=2, overlap=False)
    scheduler.add("A", 5, 10)
    scheduler.add("B", 5, 10)
    scheduler._plan = lambda: scheduler._prompt_pass()  # type: ignore[method-assign]
    scheduler.step()
    assert [len(request.table) for request in scheduler.engine.requests.values()] == [2, 2]
    assert scheduler.engine.blocks.free == ()
    scheduler._decode_pass()
    assert scheduler.preemptions == 1


@pytest.mark.parametrize("whole", [True, False], ids=["decode path", "prompt path"])
def test_a_fork_shares_until_it_is_admitted(whole: bool) -> None:
    engine = Engine(12, 4, slots=4)
    scheduler = Scheduler(engine, max_requests=3, budget=100 if whole else 6, overlap=False)
    parent = scheduler.add("A", 11, 4)
    scheduler.step()
    child = scheduler.fork(parent, "B", 2)
    assert engine.requests["B"].table == engine.requests["A"].table
    assert engine.requests["B"].slot == engine.requests["A"].slot
    assert engine.slots is not None
    assert engine.slots.count(engine.requests["A"].slot) == 2
    assert (child in scheduler.prompted) == whole
    for _ in range(20):
        scheduler.step()
        consistent(engine)
    assert child.outputs == 2
    assert not engine.copies


def test_an_unlimited_growth_per_step_breaks_the_one_block_rule() -> None:
    scheduler = Scheduler(Engine(40, 2), max_requests=1, drafts=4, overlap=False)
    scheduler.add("A", 2, 20)
    with pytest.raises(OneBlockIsNotEnough):
        drain(scheduler)


@pytest.mark.parametrize("seed", range(6))
def test_random_runs_end_with_everything_free(seed: int) -> None:
    rng = random.Random(seed)
    size = 8
    engine = Engine(rng.randint(12, 24), size, slots=slot_pool_size(5) - 1)
    scheduler = Scheduler(
        engine,
        max_requests=5,
        drafts=rng.randint(0, 3),
        budget=rng.choice([20, 1000]),
        overlap=rng.random() < 0.5,
        accept=lambda _: rng.randint(0, 3),
    )
    sequences: list[Sequence] = []
    for number in range(300):
        kind = rng.random()
        running = [s for s in scheduler.running if not s.ended and s.name in engine.requests]
        if kind < 0.25 and len(scheduler.waiting) < 6:
            sequences.append(scheduler.add(f"s{number}", rng.randint(1, 50), rng.randint(1, 40)))
        elif kind < 0.35 and running:
            sequences.append(scheduler.fork(rng.choice(running), f"s{number}", rng.randint(1, 20)))
        elif kind < 0.42 and sequences:
            scheduler.abort(rng.choice(sequences))
        scheduler.step()
        consistent(engine)
    for _ in range(3000):
        if scheduler.idle():
            break
        if not scheduler.step().queries and not scheduler.step().queries:
            for sequence in stuck(scheduler):  # see the two wait cycles below: only an abort ends them
                scheduler.abort(sequence)
        consistent(engine)
    assert scheduler.idle()
    assert not engine.requests
    assert not engine.copies
    assert len(engine.blocks) == engine.blocks.usable
    assert {s.status for s in sequences} >= {Status.LENGTH_CAPPED, Status.ABORTED}


def stuck(scheduler: Scheduler) -> list[Sequence]:
    """Sequences that own storage and are not running."""
    return [s for s in (*scheduler.prompted, *scheduler.waiting) if s.name in scheduler.engine.requests]


def test_a_waiting_fork_that_pins_every_block_waits_for_ever() -> None:
    """A wait cycle of the passes: the fork needs one free block, and it holds them all."""
    engine = Engine(3, 4)
    scheduler = Scheduler(engine, max_requests=1, overlap=False)
    parent = scheduler.add("A", 11, 9)
    scheduler.step()
    child = scheduler.fork(parent, "B", 1)
    scheduler.abort(parent)
    for _ in range(50):
        assert not scheduler.step().queries
    assert engine.blocks.free == ()
    assert stuck(scheduler) == [child]
    scheduler.abort(child)
    drain(scheduler)
    assert len(engine.blocks) == 3


def test_a_partial_prompt_above_the_watermark_waits_for_ever() -> None:
    """The other one: nine tenths are in use, all by the prompt that is therefore not continued."""
    scheduler = Scheduler(Engine(11, 4), max_requests=1, budget=8)
    sequence = scheduler.add("A", 44, 1)
    assert scheduler.step().queries == [(sequence, 8)]
    for _ in range(50):
        assert not scheduler.step().queries
    assert stuck(scheduler) == [sequence]


def test_the_original_loses_the_blocks_of_a_partial_prompt_that_is_aborted_while_it_waits() -> None:
    for leaks in (True, False):
        engine = Engine(7, 4)
        scheduler = Scheduler(engine, max_requests=2, budget=4, leaks_ignored=leaks)
        sequence = scheduler.add("A", 8, 1)
        scheduler.step()
        scheduler.abort(sequence)
        scheduler.step()
        assert scheduler.idle() or scheduler.step()
        assert scheduler.ignored == [sequence]
        assert len(engine.blocks) == (5 if leaks else 7)


# Exercise 4: more state slots than max_requests ---------------------------------------------------

LIMIT = 5


def slots_held(scheduler: Scheduler) -> int:
    assert scheduler.engine.slots is not None
    return scheduler.engine.slots.usable - len(scheduler.engine.slots)


def fill(scheduler: Scheduler, count: int, outputs: int = 50) -> list[Sequence]:
    sequences = [scheduler.add(f"r{number}", 3, outputs) for number in range(count)]
    scheduler.step()
    assert len(scheduler.running) == count
    return sequences


def make(blocks: int = 200, budget: int = 100) -> Scheduler:
    return Scheduler(Engine(blocks, 4, slots=slot_pool_size(LIMIT) - 1), max_requests=LIMIT, budget=budget)


def test_the_pool_has_one_spare_slot_for_every_five_requests() -> None:
    assert slot_pool_size(LIMIT) - 1 == 6


def test_a_partial_prompt_holds_a_slot_beside_all_running_requests() -> None:
    scheduler = make(blocks=59)
    parent = fill(scheduler, 4)[0]
    scheduler.add("long", 200, 1)
    scheduler.step()  # its first chunk: it owns its blocks and a slot, and is not running
    scheduler.fork(parent, "child", 10)
    assert not scheduler.step().prompt  # more than nine tenths are in use: the prompt is not continued
    assert len(scheduler.running) == LIMIT
    assert slots_held(scheduler) == LIMIT + 1


def test_an_ended_request_holds_its_slot_until_the_end_of_the_step_that_collects_it() -> None:
    scheduler = make()
    first = fill(scheduler, 5)[0]
    scheduler.fork(first, "child", 10)
    scheduler.abort(scheduler.running[-1])
    held = []
    release = scheduler._release
    scheduler._release = lambda sequence: (held.append(slots_held(scheduler)), release(sequence))  # type: ignore
    scheduler.step()  # collects the aborted one and admits the child in its place, in one pass
    assert len(scheduler.running) == LIMIT
    assert held == [LIMIT + 1]
    assert slots_held(scheduler) == LIMIT


def test_a_waiting_fork_keeps_the_slot_of_a_parent_that_is_gone() -> None:
    scheduler = make()
    parent = fill(scheduler, 5)[0]
    scheduler.fork(parent, "child one", 10)
    scheduler.fork(parent, "child two", 10)
    scheduler.abort(parent)
    for _ in range(3):
        scheduler.step()  # the parent is gone, child one took its place, child two waits
    assert parent.name not in scheduler.engine.requests
    assert len(scheduler.running) == LIMIT
    assert slots_held(scheduler) == LIMIT + 1


def test_a_pending_clone_does_not_exceed_the_limit_by_itself() -> None:
    """The source slot of a clone is the parent's own, or that of a parent whose place the child took."""
    scheduler = make()
    parent = fill(scheduler, 4)[0]
    scheduler.fork(parent, "child", 10)
    scheduler._plan()
    assert len(scheduler.running) == LIMIT
    assert [copy.pool for copy in scheduler.engine.copies.values()] == ["slots", "blocks"]
    assert slots_held(scheduler) == LIMIT
