"""Rule 10 explored: waiting alone can be a cycle, a preemption ends it, and everything can always be given back."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

import kvproof.spec
from kvproof.checks.exploring.explore import explore
from kvproof.checks.exploring.explore_model import Limits, ModelRun, ModelSubject
from kvproof.checks.exploring.waits import Gain, Waits, at_rest, drained, gains, is_stuck, is_wait_state, waits_of
from kvproof.model.engine import Engine
from kvproof.model.interface import Answer, Reason
from kvproof.model.mutants import lose
from kvproof.model.pool import BlockPool
from kvproof.model.transitions import Move, PoolMachine, State


@cache
def explored(blocks: int, symmetry: str) -> ModelRun:
    run = ModelRun.begin(ModelSubject(Limits(blocks, 3, 3, 2), symmetry, None, "ordered"))
    while run.level:
        run.next_level(None)
    return run


@cache
def counted(blocks: int, symmetry: str) -> Waits:
    return waits_of(explored(blocks, symmetry))


def states(run: ModelRun) -> list[State]:
    return [run.subject.node(key)[0] for key in run.number_of]


@pytest.mark.parametrize(
    ("blocks", "symmetry", "all_of_them", "waiting"),
    [
        (3, "none", 4_758, 2_040),
        (3, "blocks", 793, 340),
        (3, "full", 194, 59),
        (4, "blocks", 4_198, 958),
        (4, "full", 866, 167),
    ],
)
def test_waiting_alone_can_be_a_cycle(blocks: int, symmetry: str, all_of_them: int, waiting: int) -> None:
    found = counted(blocks, symmetry)
    assert (found.explored, found.wait_states) == (all_of_them, waiting)


def test_wait_classes_by_blocks_times_permutations_are_all_wait_states() -> None:
    assert counted(3, "blocks").wait_states * math.factorial(3) == counted(3, "none").wait_states
    assert counted(3, "blocks").gains_nothing_anywhere * math.factorial(3) == counted(3, "none").gains_nothing_anywhere


@pytest.mark.parametrize("blocks", [3, 4])
def test_the_engine_agrees_with_a_count_from_the_tables_alone(blocks: int) -> None:
    run = explored(blocks, "full")
    for free, tables, copies in states(run):
        owned = set().union(*tables)
        by_tables = bool(owned) and len(owned) == blocks and all(len(table) < 3 for table in tables)
        assert is_wait_state(run.subject.machine, (free, tables, copies)) == by_tables


def test_two_admissions_are_a_wait_state_of_four_blocks() -> None:
    assert counted(4, "full").shortest_wait == ("admit(r0, 2 blocks)", "admit(r1, 2 blocks)")
    machine = PoolMachine(4)
    machine.apply(("admit", 0, 2))
    assert not is_wait_state(machine, machine.state())
    machine.restore(((3, 4), ((1, 2), (), ()), ()))
    machine.apply(("admit", 1, 2))
    full = machine.state()
    assert is_wait_state(machine, full)
    machine.restore(full)
    assert [machine.engine.extend(name, 1) for name in ("r0", "r1")] == [Answer.LATER, Answer.LATER]


def test_a_request_with_a_full_table_does_not_wait_and_neither_does_one_that_a_copy_will_serve() -> None:
    machine = PoolMachine(4)
    assert not is_wait_state(machine, ((), ((1, 2, 3), (4,), ()), ()))
    pinned_alone = ((), ((), (2,), (3, 4)), ((1, 2),))
    assert not is_wait_state(machine, pinned_alone), "block 1 comes back when the copy is done"
    pinned_and_owned = ((), ((1,), (2,), (3, 4)), ((1, 2),))
    assert is_wait_state(machine, pinned_and_owned)
    assert not is_wait_state(machine, ((1, 2, 3, 4), ((), (), ()), ())), "nothing is live"


@pytest.mark.parametrize(("blocks", "waiting", "useless"), [(3, 59, 41), (4, 167, 101)])
def test_in_every_wait_state_some_preemption_frees_a_block_at_once_but_not_any(
    blocks: int, waiting: int, useless: int
) -> None:
    found = counted(blocks, "full")
    assert found.some_victim_gains == found.wait_states == waiting
    assert found.some_victim_gains_nothing == useless
    assert found.some_victim_never_gains == 0


def test_a_preemption_that_gains_lets_somebody_else_grow() -> None:
    run = explored(4, "full")
    machine = run.subject.machine
    served = 0
    for state in states(run):
        if not is_wait_state(machine, state):
            continue
        for gain in gains(machine, state):
            if gain.at_once:
                machine.restore(state)
                machine.engine.release(gain.victim, "preempt")
                others = list(machine.engine.requests)
                assert others, "nobody waits for itself alone: a full pool does not fit into one table that can grow"
                assert machine.engine.extend(others[0], 1) is Answer.OK
                served += 1
    assert served == 323


def test_a_victim_gains_what_it_owns_alone() -> None:
    machine = PoolMachine(3)
    forked = ((), ((1, 2), (1, 3), ()), ((2, 3),))
    assert gains(machine, forked) == [Gain("r0", 0, 1), Gain("r1", 1, 1)]
    assert gains(machine, ((2, 3), ((1,), (1,), ()), ())) == [Gain("r0", 0, 0), Gain("r1", 0, 0)]


def test_the_last_block_of_a_table_is_in_no_other_table() -> None:
    for _, tables, _ in states(explored(4, "full")):
        for table in filter(None, tables):
            assert sum(table[-1] in other for other in tables) == 1


def test_the_shortest_useless_victim_is_the_parent_of_a_fork() -> None:
    assert counted(3, "full").shortest_gain_of_nothing == ("admit(r0, 2 blocks)", "fork(r0 -> r1)")
    shortest = counted(4, "full").shortest_gain_of_nothing
    assert shortest == ("admit(r0, 1 blocks)", "admit(r1, 2 blocks)", "fork(r0 -> r2)")
    assert (counted(3, "full").gains_nothing_anywhere, counted(4, "full").gains_nothing_anywhere) == (85, 399)


@pytest.mark.parametrize("blocks", [3, 4])
def test_the_pool_can_always_be_drained_and_then_admits_a_full_table(blocks: int) -> None:
    run = explored(blocks, "full")
    found = counted(blocks, "full")
    assert (found.stuck, found.full_table_refused, found.at_rest) == (0, 0, 1)
    assert found.not_at_rest == found.explored - 1
    for state in states(run):
        end = drained(run.subject.machine, state)
        assert at_rest(end)
        assert sorted(end[0]) == list(range(1, blocks + 1))


def test_a_machine_that_cannot_give_back_is_stuck() -> None:
    class Keeps(PoolMachine):
        def moves(self) -> list[Move]:
            return [move for move in super().moves() if move[0] != "finish"]

    machine = Keeps(3)
    assert is_stuck(machine, ((), ((1, 2), (3,), ()), ()))
    assert not is_stuck(machine, ((), ((1, 2), (1, 3), ()), ((2, 3),))), "the copy can still complete"
    assert not is_stuck(machine, machine.state()), "at rest"


def with_engine(blocks: int, engine_type: type[Engine]) -> Waits:
    """The counts of an exploration of another engine, whatever rules it breaks."""
    subject = ModelSubject(Limits(blocks, 3, 3, 2), "full", None, "ordered")
    subject.machine = PoolMachine(blocks, engine_type=engine_type)
    run = ModelRun.begin(subject)
    while run.level:
        run.next_level(None)
    return waits_of(run)


def test_the_engine_is_asked_so_a_wrong_answer_changes_the_counts() -> None:
    class NeverPool(BlockPool):
        def answer(self, wanted: int, kept: int = 0, shared: Sequence[int] = ()) -> Answer:
            answer = super().answer(wanted, kept, shared)
            return Answer.NEVER if answer is Answer.LATER else answer

    class LaterPool(BlockPool):
        def answer(self, wanted: int, kept: int = 0, shared: Sequence[int] = ()) -> Answer:
            answer = super().answer(wanted, kept, shared)
            return Answer.LATER if answer is Answer.NEVER else answer

    class SaysNever(Engine):
        pool_type = NeverPool

    class SaysLater(Engine):
        pool_type = LaterPool

    assert with_engine(3, Engine).wait_states == 59
    assert with_engine(3, SaysNever).wait_states == 0
    assert with_engine(2, Engine).wait_states == 6
    later = with_engine(2, SaysLater)
    assert (later.wait_states, later.shortest_wait) == (12, ("admit(r0, 2 blocks)",))
    owns_all = [tables for _, tables, _ in states(explored(2, "full")) if any(len(table) == 2 for table in tables)]
    assert len(owns_all) == 12 - 6, "the wrong LATER is the one to a request that waits for its own blocks"


def test_a_lost_block_shows_as_a_full_table_that_is_refused_at_rest() -> None:
    class Loses(Engine):
        def release(self, name: str, reason: Reason = "finish") -> None:
            lose(self.blocks, self.requests[name].table[-1:])
            del self.requests[name].table[-1:]
            super().release(name, reason)

    found = with_engine(3, Loses)
    assert (found.at_rest, found.full_table_refused) == (4, 3)
    assert found.some_victim_gains < found.wait_states


def test_the_command_reports_waits_for_classes_only() -> None:
    result = explore(symmetry="full", blocks=3)
    waits = json.loads(json.dumps(result.to_json()))["waits"]
    assert waits["wait_states"] == 59
    assert (waits["stuck"], waits["full_table_refused"]) == (0, 0)
    assert waits["shortest_wait"] == ["admit(r0, 1 blocks)", "admit(r1, 2 blocks)"]
    assert explore(symmetry="none", blocks=2).to_json()["waits"] is None
    assert explore(symmetry="full", mutant="early_release").waits is None


@pytest.mark.parametrize("blocks", [3, 4, 5])
def test_the_table_in_the_readme_of_the_spec_is_what_exploration_counts(blocks: int) -> None:
    text = (Path(kvproof.spec.__file__).parent / "README.md").read_text(encoding="utf-8")
    found = counted(blocks, "full")
    counts = (
        found.explored,
        found.wait_states,
        found.some_victim_gains,
        found.some_victim_gains_nothing,
        found.gains_nothing_anywhere,
        found.stuck,
    )
    assert f"| {blocks} | {' | '.join(f'{count:,}' for count in counts)} |" in text
    assert (found.some_victim_never_gains, found.full_table_refused) == (0, 0)
