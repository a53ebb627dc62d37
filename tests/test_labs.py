"""The labs print the chapter's saved outputs, and the exercises' answers show on the model."""

from __future__ import annotations

import pytest

from kvproof.checks.labs import MOST_DRAFTS, MOST_PROCESSED, lab_blocks, lab_share
from kvproof.model.interface import Configuration
from kvproof.model.reference import ReferenceAllocator
from kvproof.model.request import Request

BLOCKS = """\
admit A(6), B(9)               A=[1, 2] B=[3, 4, 5]         free=[6, 7]
A reaches 8 tokens             A=[1, 2] B=[3, 4, 5]         free=[6, 7]
A reaches 9 tokens             A=[1, 2, 6] B=[3, 4, 5]      free=[7]
A at 11, two drafts reserved   A=[1, 2, 6, 7] B=[3, 4, 5]   free=[]
drafts rejected; A at 12       A=[1, 2, 6] B=[3, 4, 5]      free=[7]
admission check for 4 blocks: LATER
B finishes                     A=[1, 2, 6]                  free=[7, 5, 4, 3]
admission check for 4 blocks: OK
admission check for 8 blocks: NEVER
"""

SHARE = """\
Release the tail pin before the queued copy
  fork: parent=[1, 2, 3] child=[1, 2, 4] refs 1:2 2:2 3:2 4:1 copy=[(3, 4)]
  parent finishes: free=[]; shared [1, 2] kept
  writer receives block 3 before the copy runs
  child reads [100, 101]...[900, 901]: correct=False

Release the tail pin after the queued copy
  fork: parent=[1, 2, 3] child=[1, 2, 4] refs 1:2 2:2 3:2 4:1 copy=[(3, 4)]
  parent finishes: free=[]; shared [1, 2] kept
  writer waits; receives block 3 after the copy
  child reads [100, 101]...[108, 109]: correct=True
"""


def test_the_blocks_lab_prints_the_saved_output_byte_for_byte() -> None:
    assert lab_blocks() == BLOCKS


def test_the_share_lab_prints_the_saved_output_byte_for_byte() -> None:
    assert lab_share() == SHARE


# Exercise 1: five drafts, and when one block a step is enough ----------------------------------------


def test_five_drafts_need_one_more_block_and_six_need_two() -> None:
    """16 positions fill four blocks exactly; 17 need a fifth, and only one block is free."""
    assert "A at 11, five drafts reserved  A=[1, 2, 6, 7] B=[3, 4, 5]   free=[]\n" in lab_blocks(drafts=5)
    assert "A at 11, six drafts: LATER     A=[1, 2, 6] B=[3, 4, 5]      free=[7]\n" in lab_blocks(drafts=6)


def test_one_block_a_step_is_enough_exactly_when_a_step_adds_at_most_a_block_of_positions() -> None:
    for size in range(1, 9):
        for added in range(1, 3 * size):
            growth = set()
            for length in range(1, 4 * size):
                request = Request("A", length, [])
                before = request.need(size)
                request.drafts = added
                growth.add(request.need(size) - before)
            assert (max(growth) <= 1) == (added <= size)


# Exercise 2: a fork at a block boundary --------------------------------------------------------------


def test_eight_processed_tokens_need_no_copy_and_cannot_be_corrupted() -> None:
    text = lab_share(processed=8)
    assert text.count("  fork: parent=[1, 2] child=[1, 2] refs 1:2 2:2 copy=[]\n") == 2
    assert text.count("correct=True") == 2
    assert "correct=False" not in text


@pytest.mark.parametrize("processed", range(1, MOST_PROCESSED + 1))
def test_an_early_release_corrupts_exactly_when_a_tail_copy_was_queued(processed: int) -> None:
    early, late = lab_share(processed).split("\n\n")
    assert ("correct=False" in early) == (processed % 4 != 0)
    assert "correct=True" in late


# Exercise 3: the release order -----------------------------------------------------------------------


def test_forward_order_reissues_the_first_block_of_the_ended_request_first() -> None:
    assert "free=[7, 3, 4, 5]\n" in lab_blocks(release_order="forward")
    assert "free=[7, 5, 4, 3]\n" in lab_blocks(release_order="reverse")


@pytest.mark.parametrize(("order", "hit_rows"), [("reverse", 8), ("forward", 0)])
def test_reverse_order_keeps_the_beginning_of_a_prefix_longer(order, hit_rows) -> None:  # type: ignore[no-untyped-def]
    """What is released first is reissued first, and a cached prefix is only as good as its beginning."""
    a = ReferenceAllocator(Configuration(blocks=7, block_size=4), release_order=order)
    a.admit("A", range(13))
    a.commit("A", 13)
    a.release("A", "finish")
    a.evict(1)
    assert a.admit("B", range(13)).hit_rows == hit_rows


# Options ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drafts", [-1, MOST_DRAFTS + 1])
def test_drafts_out_of_range_are_refused(drafts: int) -> None:
    with pytest.raises(ValueError, match="choose 0 to"):
        lab_blocks(drafts)


@pytest.mark.parametrize("processed", [0, MOST_PROCESSED + 1])
def test_prefixes_out_of_range_are_refused(processed: int) -> None:
    with pytest.raises(ValueError, match="choose 1 to"):
        lab_share(processed)


def test_every_option_in_range_gives_text_that_ends_with_a_newline() -> None:
    for order in ("reverse", "forward"):
        for drafts in range(MOST_DRAFTS + 1):
            assert lab_blocks(drafts, order).endswith("NEVER\n")
        for processed in range(1, MOST_PROCESSED + 1):
            assert lab_share(processed, order).endswith("correct=True\n")
