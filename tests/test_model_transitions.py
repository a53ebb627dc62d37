"""The engine as a transition system: its counts are pinned, and the shortest breaks are as long as they must be."""

from __future__ import annotations

import pytest

from kvproof.model.engine import Engine
from kvproof.model.mutants import DestinationUnpinned, EarlyRelease
from kvproof.model.transitions import PoolMachine, State, explore


def depth_of_first(machine: PoolMachine, wrong: object, most: int = 5) -> int | None:
    """Operations to the first state in which ``wrong(state)``, breadth first."""
    assert callable(wrong)
    level, seen = [machine.state()], set()
    for depth in range(most + 1):
        if any(wrong(state) for state in level):
            return depth
        following = {}
        for state in level:
            machine.restore(state)
            for move in machine.moves():
                machine.restore(state)
                machine.apply(move)
                following[machine.state()] = None
        seen |= set(level)
        level = [state for state in following if state not in seen]
        if not level:
            break
    return None


def source_is_free(state: State) -> bool:
    free, _, copies = state
    return any(source in free for source, destination in copies if destination)


def destination_is_free(state: State) -> bool:
    free, _, copies = state
    return any(destination in free for _, destination in copies)


def test_three_blocks_give_4758_states_and_19470_transitions() -> None:
    assert explore(PoolMachine(3)) == (4758, 19470, 13)


def test_restore_is_the_inverse_of_state() -> None:
    machine, other = PoolMachine(4), PoolMachine(4)
    for move in [("admit", 0, 2), ("fork", 0, 1), ("finish", 0, 0), ("complete", 0, 0), ("admit", 2, 1)]:
        machine.apply(move)
        other.restore(machine.state())
        assert other.state() == machine.state()
        assert other.moves() == machine.moves()
        assert other.engine.blocks.counts == machine.engine.blocks.counts


def test_early_release_frees_a_source_after_three_operations() -> None:
    assert depth_of_first(PoolMachine(4, engine_type=EarlyRelease), source_is_free) == 3
    assert depth_of_first(PoolMachine(3), source_is_free, most=13) is None


@pytest.mark.parametrize(
    ("engine", "destination", "expected"),
    [(DestinationUnpinned, "pinned", 3), (Engine, "ordered", 3), (Engine, "pinned", None), (Engine, "cancelled", None)],
)
def test_only_pinning_or_cancelling_keeps_a_queued_destination_off_the_free_list(engine, destination, expected) -> None:  # type: ignore[no-untyped-def]
    machine = PoolMachine(3, destination=destination, engine_type=engine)
    assert depth_of_first(machine, destination_is_free, most=20) == expected


@pytest.mark.parametrize(
    ("engine", "destination"), [(DestinationUnpinned, "pinned"), (Engine, "ordered")], ids=["mutant", "ordered"]
)
def test_the_fourth_operation_gives_a_queued_destination_to_another_owner(engine, destination) -> None:  # type: ignore[no-untyped-def]
    machine = PoolMachine(4, destination=destination, engine_type=engine)
    for move in [("admit", 0, 1), ("fork", 0, 1), ("finish", 1, 0), ("admit", 2, 3)]:
        assert move in machine.moves()
        machine.apply(move)
    _, tables, copies = machine.state()
    assert copies == ((1, 2),)
    assert 2 in tables[2]


@pytest.mark.parametrize(("destination", "queued"), [("pinned", ((1, 2),)), ("cancelled", ())])
def test_the_other_two_disciplines_prevent_that(destination, queued) -> None:  # type: ignore[no-untyped-def]
    machine = PoolMachine(4, destination=destination)
    for move in [("admit", 0, 1), ("fork", 0, 1), ("finish", 1, 0)]:
        machine.apply(move)
    assert machine.state()[2] == queued
    assert (("admit", 2, 3) in machine.moves()) == (destination == "cancelled")


@pytest.mark.parametrize("destination", ["ordered", "pinned", "cancelled"])
def test_counts_are_the_number_of_owners_in_every_state(destination) -> None:  # type: ignore[no-untyped-def]
    machine = PoolMachine(3, destination=destination)
    engine, seen, todo = machine.engine, set(), [machine.state()]
    while todo:
        state = todo.pop()
        if state in seen:
            continue
        seen.add(state)
        machine.restore(state)
        for move in machine.moves():
            machine.restore(state)
            machine.apply(move)
            owners = [block for request in engine.requests.values() for block in request.table]
            owners += [block for copy in engine.copies.values() for block in engine.held(copy).values()]
            assert engine.blocks.counts == {block: owners.count(block) for block in owners}
            assert sorted([*engine.blocks.free, *set(owners)]) == [1, 2, 3]
            todo.append(machine.state())
    classes = {"ordered": 793, "pinned": 355, "cancelled": 362}  # every renaming of the three blocks is reachable
    assert len(seen) == 6 * classes[destination]
