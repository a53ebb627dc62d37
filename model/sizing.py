"""How large the pools become: first the state slots, then blocks from what memory is left (chapter, 4.3.1).

All sizes are bytes.  Block counts include the never-issued block 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

STATE_RESERVATIONS = 2
"""The state reservation is taken twice: for the slots, and for a copy buffer."""


def blocks_that_fit(
    total: int,
    utilisation: float,
    peak: int,
    other: int,
    slots: int,
    slot_bytes: int,
    block_bytes: int,
) -> int:
    """Blocks of one device: what is left after the model's peak and the doubled state reservation.

    ``total`` device memory, of which ``utilisation`` may be used; ``peak`` of the profiling run;
    ``other`` memory outside the framework (negative readings count as 0); ``slots`` with slot 0.
    """
    available = Fraction(str(utilisation)) * total - (peak + max(other, 0))
    available -= STATE_RESERVATIONS * slots * slot_bytes
    return max(0, math.floor(available / block_bytes))


def common_blocks(ranks: Sequence[int]) -> int:
    """One number for all ranks: the mean, rounded down to an even number (not the minimum)."""
    mean = sum(ranks) // len(ranks)
    return mean - mean % 2


def longest_run(max_length: int, drafts: int, overlap: bool) -> int:
    """Positions that the longest request can ever need: drafts twice, and one more step with overlap."""
    return max_length + 2 * drafts + (drafts + 1 if overlap else 0)


def may_start(max_length: int, drafts: int, overlap: bool, block_size: int, blocks: int) -> bool:
    """The start-up rule: the longest request fits into four fifths of the pool."""
    return longest_run(max_length, drafts, overlap) <= block_size * blocks * 4 // 5
