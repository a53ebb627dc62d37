"""State slots: sizes that come out of the code, ring addresses, and what is worth storing."""

from __future__ import annotations

import pytest

from kvproof.model.sizing import blocks_that_fit, common_blocks, longest_run, may_start
from kvproof.model.slots import SlotLayout, oldest_kept, ring_row, slot_pool_size

V4 = SlotLayout(stored_layers=20)


def test_one_stored_layer_takes_70752_bytes_and_twenty_1415040() -> None:
    assert V4.inference_ring == 134
    assert V4.layer_bytes == 70_752
    assert V4.state_size_to_disk == 1_415_040


def test_the_number_of_slots_follows_the_request_limit() -> None:
    assert [slot_pool_size(m) for m in (1, 2, 3, 4, 5, 10, 128)] == [2, 3, 4, 5, 7, 13, 154]
    assert slot_pool_size(10, ratio=1.5) == 16


def test_a_slot_starts_at_a_row() -> None:
    assert SlotLayout(stored_layers=2, dropped_layers=1, compression_bytes=1000).slot_bytes == 3 * 70_752 + 1_056
    assert SlotLayout(stored_layers=1).slot_bytes % 528 == 0


def test_an_odd_ring_is_padded_for_each_layer() -> None:
    odd = SlotLayout(stored_layers=3, window=2, backtrack=1, row_bytes=10)
    assert odd.layer_bytes == 32
    assert odd.state_size_to_disk == 96


def test_slots_never_share_a_row_and_neither_do_positions_of_one_window() -> None:
    ring = 5
    rows = {ring_row(slot, position, ring) for slot in range(4) for position in range(7, 7 + ring)}
    assert len(rows) == 4 * ring
    assert ring_row(2, 12, ring) == ring_row(2, 7, ring)  # a wrap replaces the position one ring before


def test_a_ring_keeps_its_last_rows_only() -> None:
    for written in range(20):
        ring: dict[int, int] = {}
        for position in range(written):
            ring[ring_row(0, position, 6)] = position
        assert sorted(ring.values()) == list(range(oldest_kept(written, 6), written))


@pytest.mark.parametrize("length", [0, 1, 3, 5, 6, 9, 23])
def test_without_extra_state_a_direct_cut_is_the_stored_image(length: int) -> None:
    layout = SlotLayout(stored_layers=2, dropped_layers=1, window=3, backtrack=2)
    assert layout.cuts_directly
    layers = written(layout, length)
    direct = [list(ring) for ring in layers[: layout.stored_layers]]
    assert layout.to_store(layers, length) == direct


@pytest.mark.parametrize("length", [6, 9, 23])
def test_with_extra_state_a_direct_cut_would_be_wrong_and_the_rows_are_reordered(length: int) -> None:
    layout = SlotLayout(stored_layers=2, dropped_layers=1, window=3, backtrack=2, extra_prefill_rows=4)
    plain = SlotLayout(stored_layers=2, dropped_layers=1, window=3, backtrack=2)
    assert not layout.cuts_directly
    layers = written(layout, length)
    image = layout.to_store(layers, length)
    assert image == plain.to_store(written(plain, length), length)
    assert image != [ring[: plain.ring] for ring in layers[: layout.stored_layers]]


def test_the_stored_size_does_not_depend_on_extra_state() -> None:
    assert SlotLayout(stored_layers=20, extra_prefill_rows=130).state_size_to_disk == 1_415_040


def written(layout: SlotLayout, length: int) -> list[list[tuple[int, int] | None]]:
    """One ring a layer after ``length`` positions, each row naming its layer and position."""
    layers: list[list[tuple[int, int] | None]] = []
    for layer in range(layout.stored_layers + layout.dropped_layers):
        ring: list[tuple[int, int] | None] = [None] * layout.ring
        for position in range(length):
            ring[position % layout.ring] = (layer, position)
        layers.append(ring)
    return layers


# Pool sizing --------------------------------------------------------------------------------------


def test_blocks_are_what_is_left_after_twice_the_state() -> None:
    memory = {"total": 1000, "utilisation": 0.9, "peak": 300, "other": 50, "block_bytes": 7}
    assert blocks_that_fit(**memory, slots=5, slot_bytes=10) == (900 - 350 - 2 * 50) // 7
    assert blocks_that_fit(**memory, slots=0, slot_bytes=0) == 550 // 7
    assert blocks_that_fit(**{**memory, "other": -50}, slots=0, slot_bytes=0) == 600 // 7
    assert blocks_that_fit(**memory, slots=100, slot_bytes=10) == 0


def test_ranks_share_the_mean_rounded_down_to_even() -> None:
    assert common_blocks([10, 13]) == 10
    assert common_blocks([11, 14]) == 12
    assert common_blocks([1, 100]) == 50  # more than the first rank has: the mean, not the minimum


def test_the_longest_request_must_fit_into_four_fifths_of_the_pool() -> None:
    assert longest_run(100, drafts=5, overlap=True) == 116
    assert longest_run(100, drafts=5, overlap=False) == 110
    assert may_start(100, 5, True, block_size=4, blocks=37)
    assert not may_start(100, 5, True, block_size=4, blocks=36)
