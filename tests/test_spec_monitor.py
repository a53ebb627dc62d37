"""The monitor binds the model to the text: it accepts every step of the model, and nothing that is bent."""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kvproof.checks.certification.generate import Generator, SeededChoices
from kvproof.checks.exploring.explore_model import Limits, ModelSubject
from kvproof.checks.lockstep.harness import Lockstep, Violation
from kvproof.checks.lockstep.operations import Operation
from kvproof.checks.monitoring.allowed import OwnershipMonitor, Refused, Told
from kvproof.checks.monitoring.model_edges import edge_differs
from kvproof.checks.monitoring.monitor import Monitor, judge, monitor
from kvproof.model.interface import BLOCKS, Configuration, Destination, Pool, Snapshot
from kvproof.model.mutants import MUTANTS, make_mutant
from kvproof.model.reference import ReferenceAllocator, make_reference
from kvproof.model.trace import Recorder, Trace, describe, frames_of, write_trace
from kvproof.spec.state import EVENT, STATE
from kvproof.spec.storage import MACHINE

SMALL = Configuration(blocks=7, block_size=4, max_requests=4)


MOST = (
    *("admit", "grow", "shrink", "take_slot", "fork", "fork_at_boundary", "borrow", "clone_slot", "privatise"),
    *("privatise_at_boundary", "finish", "preempt", "complete", "release_pins", "pin", "unpin", "publish", "hit"),
    "evict",
)
"""Actions that the reference model's operations consist of."""


def random_steps(
    seed: int, count: int, slots: int, destination: Destination
) -> Iterator[tuple[Lockstep, Operation, object, Snapshot]]:
    """Random legal operations on the model, as they are observed."""
    configuration = replace(SMALL, state_slots=slots)
    lockstep = Lockstep(lambda c: ReferenceAllocator(c, destination=destination), configuration)
    generator = Generator(SeededChoices(seed), lockstep.capabilities, configuration)
    yield lockstep, Operation("recycle"), None, lockstep.snapshot
    for _ in range(count):
        operation = generator.next(lockstep.follower)
        reply = lockstep.perform(operation)
        yield lockstep, operation, reply, lockstep.snapshot


def test_ten_thousand_random_operations_of_the_model_are_allowed() -> None:
    seen: Counter[str] = Counter()
    steps = 0
    for seed in range(25):
        for slots in (0, 5):
            for destination in ("ordered", "pinned"):
                watcher: OwnershipMonitor | None = None
                for lockstep, operation, reply, snapshot in random_steps(seed, 100, slots, destination):  # type: ignore[arg-type]
                    if watcher is None:
                        watcher = OwnershipMonitor(lockstep.configuration, lockstep.declaration, snapshot)
                        continue
                    seen.update(told.action for told in watcher.step(operation, reply, snapshot))
                    steps += 1
    assert steps == 10_000
    assert set(seen) == set(MOST)


def bent(pool: Pool, dice: random.Random) -> Iterator[tuple[str, Pool]]:
    """The pool with one thing wrong, once for each relation where that is possible."""
    free, usable = list(pool.free), sorted(pool.usable)
    if free:
        lost = dice.choice(free)
        yield "a free block is lost", replace(pool, free=[b for b in free if b != lost])
    owned = [b for b in usable if b not in free and b not in pool.evictable]
    if owned:
        yield "an owned block is free", replace(pool, free=[*free, dice.choice(owned)])
    tables = {name: list(table) for name, table in pool.tables.items() if table}
    if tables:
        name = dice.choice(sorted(tables))
        yield "a table lost its last block", replace(pool, tables={**pool.tables, name: tables[name][:-1]})
        strange = dice.choice([b for b in usable if b not in tables[name]] or [0])
        yield "a table has another block", replace(pool, tables={**pool.tables, name: [*tables[name][:-1], strange]})
    if pool.holds:
        gone = dice.choice(sorted(pool.holds, key=str))
        yield "an owner is gone", replace(pool, holds={n: ids for n, ids in pool.holds.items() if n != gone})
    yield "an owner came from nowhere", replace(pool, holds={**pool.holds, "nobody": (dice.choice(usable),)})
    if pool.evictable:
        yield "a cached block is not", replace(pool, evictable=frozenset(sorted(pool.evictable)[1:]))


def twin(watcher: Monitor) -> Monitor:
    """A monitor in the same state; what never changes is shared."""
    assert watcher.ownership is not None
    shared = (watcher.book, watcher.ownership.machine, STATE, EVENT, MACHINE)
    return copy.deepcopy(watcher, {id(thing): thing for thing in shared})


def test_a_step_with_one_relation_bent_is_refused() -> None:
    dice = random.Random(7)
    tried: Counter[str] = Counter()
    for seed in range(8):
        watcher: Monitor | None = None
        for number, (lockstep, operation, reply, snapshot) in enumerate(random_steps(seed, 60, 0, "ordered")):
            if watcher is None:
                promises = lockstep.declaration, lockstep.capabilities
                watcher = Monitor(lockstep.configuration, *promises, snapshot)
                continue
            for what, pool in bent(snapshot[BLOCKS], dice) if number % 3 == 0 else ():
                tried[what] += 1
                wrong = twin(watcher).step(operation, reply, {**snapshot, BLOCKS: pool})
                assert wrong is not None, f"{operation}: {what} was not noticed"
            assert watcher.step(operation, reply, snapshot) is None
    assert len(tried) == 7
    assert sum(tried.values()) > 500


def test_every_edge_of_the_models_graph_at_three_blocks_is_allowed_and_none_that_is_bent() -> None:
    subject = ModelSubject(Limits(3, 3, 3, 2), "none", None, "ordered")
    dice = random.Random(3)
    start = subject.start()
    seen, level, edges, refused = {start}, [start], 0, 0
    while level:
        following = []
        for node in level:
            for move, after in subject.successors(node):
                edges += 1
                assert edge_differs(subject, node, move, after) is None
                if edges % 7 == 0:
                    (free, tables, copies), behalf = after
                    block = dice.randrange(1, 4)
                    other = tuple(b for b in free if b != block) if block in free else (*free, block)
                    assert edge_differs(subject, node, move, ((other, tables, copies), behalf)) is not None
                    refused += 1
                if after not in seen:
                    seen.add(after)
                    following.append(after)
        level = following
    assert (len(seen), edges) == EDGES_AT_THREE_BLOCKS
    assert refused > 1_000


EDGES_AT_THREE_BLOCKS = (4_758, 19_470)
"""States and edges of the model's graph at three blocks."""


def broken_run(name: str) -> Trace:
    """A run of a mutant that breaks its rule, recorded step by step."""
    configuration = replace(SMALL, state_slots=MUTANTS[name].state_slots)
    for seed in range(50):
        lines = []
        try:
            lockstep = Lockstep(make_mutant(name), configuration)
        except Violation:
            allocator = make_mutant(name)(configuration)
            return Trace(configuration, f"reference:{name}", seed, {}, (), frames_of(allocator.snapshot()))
        start = frames_of(lockstep.snapshot)

        def note(operation: Operation, reply: object, snapshot: Snapshot, lines: list = lines) -> None:  # type: ignore[type-arg]
            lines.append(describe(operation.op, operation.request, list(operation.args.values()), reply, snapshot))

        lockstep.watch = note
        generator = Generator(SeededChoices(seed), lockstep.capabilities, configuration)
        try:
            for _ in range(60):
                lockstep.perform(generator.next(lockstep.follower))
        except Violation:
            for name_of_request in lockstep.follower.requests:
                rows = lockstep.allocator.read(name_of_request)
                lines.append(describe("read", name_of_request, [], list(rows), lockstep.snapshot))
            return Trace(configuration, f"reference:{name}", seed, {}, tuple(lines), start)
    raise AssertionError(f"{name} was not broken by 50 random runs")


@pytest.mark.parametrize("name", MUTANTS)
def test_every_mutant_of_the_model_is_caught_by_the_monitor(name: str) -> None:
    result = judge(broken_run(name))
    assert result.verdict == "violated"
    assert result.exit_code() == 1
    assert result.finding is not None


def test_a_correct_run_is_certified_from_a_file(tmp_path: Path) -> None:
    allocator = Recorder(make_reference(SMALL), SMALL, "reference")
    allocator.admit("A", list(range(10)))  # type: ignore[attr-defined]
    allocator.commit("A", 10)  # type: ignore[attr-defined]
    allocator.fork("A", "B", 10)  # type: ignore[attr-defined]
    allocator.release("A", "finish")  # type: ignore[attr-defined]
    allocator.complete([1])  # type: ignore[attr-defined]
    file = tmp_path / "run.jsonl"
    write_trace(file, allocator.trace())
    result = monitor(file)
    assert result.finding is None
    assert (result.verdict, result.steps) == ("certified", 5)
    assert result.to_json()["verdict"] == "certified"


def test_a_refused_step_names_the_difference_and_how_it_was_told() -> None:
    watcher = OwnershipMonitor(SMALL, make_reference(SMALL).declaration, make_reference(SMALL).snapshot())
    allocator = make_reference(SMALL)
    reply = allocator.admit("A", list(range(6)))
    snapshot = dict(allocator.snapshot())
    snapshot[BLOCKS] = replace(snapshot[BLOCKS], free=[3, 4, 5, 6])
    with pytest.raises(Refused, match=r"the observed free .* it lacks \(7,\).*told as: admit.*then grow"):
        watcher.step(Operation("admit", "A", {"tokens": tuple(range(6))}), reply, snapshot)
    assert Told("admit", {"request": "A"}).things == {"request": "A"}
