"""Two questions about a row, answered separately, each condition failing alone."""

from __future__ import annotations

from kvproof.model.engine import Engine
from kvproof.model.visibility import Condition, committed, failing, failing_in_slot, key_length, visible_to_step


def engine_with(length: int, rows: int, **options: int) -> Engine:
    engine = Engine(9, 4, **options)
    engine.admit("A", length)
    engine.commit("A", rows)
    return engine


def test_a_committed_row_meets_all_four_conditions() -> None:
    engine = engine_with(10, 10)
    assert all(committed(engine, "A", position) for position in range(10))


def test_a_row_without_a_block_is_not_owned() -> None:
    assert failing(engine_with(10, 10), "A", 12) == [Condition.OWNED, Condition.COUNTED]


def test_a_reserved_row_is_not_counted_before_its_step() -> None:
    engine = engine_with(10, 4)
    assert failing(engine, "A", 3) == []
    assert failing(engine, "A", 4) == [Condition.COUNTED]


def test_an_optimistic_row_does_not_count_before_it_is_settled() -> None:
    engine = engine_with(8, 8)
    engine.extend("A", 1, drafts=3)
    engine.advance("A", 4)
    assert failing(engine, "A", 8) == [Condition.COUNTED]
    engine.commit("A", 9)
    assert failing(engine, "A", 8) == []
    assert failing(engine, "A", 9) == [Condition.COUNTED]


def test_a_rejected_draft_leaves_bytes_and_no_meaning() -> None:
    engine = engine_with(9, 9)
    engine.extend("A", 1, drafts=1)
    engine.advance("A", 2)
    engine.commit("A", 10)
    assert failing(engine, "A", 10) == [Condition.COUNTED]  # its block is still owned, position 10 is not counted
    assert not committed(engine, "A", 10)


def test_a_row_that_a_queued_copy_fills_is_not_filled_before_it_is_done() -> None:
    engine = engine_with(10, 10)
    engine.fork("A", "B", 10)
    assert [failing(engine, "B", position) for position in (7, 8, 9)] == [[], [Condition.FILLED], [Condition.FILLED]]
    assert failing(engine, "A", 8) == []
    engine.complete(1)
    assert failing(engine, "B", 8) == []


def test_a_slot_row_is_replaced_by_a_wrap_also_of_rejected_drafts() -> None:
    engine = engine_with(10, 10, slots=2)
    assert failing_in_slot(engine, "A", 4, ring=6, written=10) == []
    assert failing_in_slot(engine, "A", 3, ring=6, written=10) == [Condition.NOT_REPLACED]
    assert failing_in_slot(engine, "A", 4, ring=6, written=11) == [Condition.NOT_REPLACED]  # a draft at position 10


def test_a_cloned_slot_is_not_filled_before_its_copy_is_done() -> None:
    engine = engine_with(8, 8, slots=2)
    engine.fork("A", "B", 8)
    assert failing_in_slot(engine, "B", 7, ring=6, written=8) == [Condition.FILLED]
    assert failing_in_slot(engine, "A", 7, ring=6, written=8) == []
    engine.complete(1)
    assert failing_in_slot(engine, "B", 7, ring=6, written=8) == []


def test_a_request_without_a_slot_owns_no_slot_row() -> None:
    assert failing_in_slot(engine_with(8, 8), "A", 7, ring=6, written=8) == [Condition.OWNED]


def test_the_current_step_sees_more_than_the_committed_prefix() -> None:
    engine = engine_with(9, 8)
    engine.extend("A", 0, drafts=2)
    engine.requests["A"].inflight = 1
    engine.resize("A")
    assert key_length(engine, "A", queries=3) == 12
    seen = [position for position in range(20) if visible_to_step(engine, "A", position, queries=3)]
    assert seen == list(range(12))
    assert [position for position in range(20) if committed(engine, "A", position)] == list(range(8))


def test_no_step_sees_beyond_its_table() -> None:
    engine = engine_with(8, 8)
    assert not visible_to_step(engine, "A", 8, queries=5)
