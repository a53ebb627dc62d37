"""The labs print the chapter's saved outputs, and the exercises' answers show on the model."""

from __future__ import annotations

import pytest

from kvproof.checks.labs import lab_blocks, lab_share

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
