"""Output records: who keeps an address without cloning is caught, whatever the address holds by then."""

from __future__ import annotations

import pytest

from kvproof.model.errors import PoolExhausted, StaleRecord
from kvproof.model.records import Records


def test_a_clone_is_independent_of_its_record() -> None:
    records = Records(3)
    handle = records.take(["a"])
    mine = records.clone(handle)
    mine.append("b")
    assert records.clone(handle) == ["a"]
    records.recycle()
    assert mine == ["a", "b"]


def test_the_last_recycled_address_is_reused_first() -> None:
    records = Records(3)
    assert [records.take(value).address for value in "xy"] == [3, 2]
    records.recycle()
    assert records.take("z").address == 2


def test_a_reader_that_kept_the_address_is_caught_even_after_reuse() -> None:
    records = Records(1)
    kept = records.take("mine")
    records.recycle()
    with pytest.raises(StaleRecord, match="record 1"):
        records.clone(kept)
    again = records.take("someone else's")
    assert again.address == kept.address
    assert records.peek(kept.address) == "someone else's"  # what an engine without generations would read
    with pytest.raises(StaleRecord):
        records.clone(kept)
    assert records.clone(again) == "someone else's"


def test_only_records_handed_out_before_the_sync_point_are_recycled() -> None:
    records = Records(4)
    early, late = records.take("early"), records.take("late")
    records.recycle([early])
    assert records.clone(late) == "late"
    with pytest.raises(StaleRecord):
        records.clone(early)


def test_recycling_twice_is_refused_and_changes_nothing() -> None:
    records = Records(2)
    handle = records.take("x")
    records.recycle([handle])
    before = list(records.free)
    with pytest.raises(StaleRecord):
        records.recycle([handle])
    assert records.free == before


def test_more_records_than_there_are_is_a_misuse() -> None:
    records = Records(1)
    records.take("x")
    with pytest.raises(PoolExhausted):
        records.take("y")
