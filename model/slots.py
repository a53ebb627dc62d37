"""State slots: a ring per layer, regions with different lifetimes, and what is worth storing (chapter, 4.4).

    >>> layout = SlotLayout(stored_layers=20)
    >>> layout.inference_ring, layout.layer_bytes
    (134, 70752)
    >>> layout.state_size_to_disk
    1415040

All sizes are bytes, all lengths are rows (token positions).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

RowT = TypeVar("RowT")

WINDOW = 128
"""Positions that sliding-window attention looks back."""
BACKTRACK = 6
"""Positions that may be taken back: the widest step, one token and five drafts."""
ROW_BYTES = 512 + 16
"""One row: 512 values of 8 bits, and 16 scales, one for every 32 values."""
LAYER_ALIGNMENT = 32
"""Each layer's ring is padded to a multiple of this."""


def slot_pool_size(max_requests: int, ratio: float = 1.2) -> int:
    """Slots of the pool, the never-issued slot 0 included: floor(ratio * max_requests) + 1."""
    return math.floor(Fraction(str(ratio)) * max_requests) + 1


def ring_row(slot: int, position: int, ring: int) -> int:
    """Logical row of a position: slot * ring + position % ring (chapter 3 and 4.4)."""
    return slot * ring + position % ring


def oldest_kept(written: int, ring: int) -> int:
    """The oldest position still in a ring after positions 0 to ``written`` - 1 were written."""
    return max(0, written - ring)


@dataclass(frozen=True)
class SlotLayout:
    """One request's slot: [stored layers | dropped layers | compression state].

    ``stored_layers``: layers whose window must survive the request.  ``dropped_layers``: layers that
    are recomputed instead.  ``compression_bytes``: the rolling compression state, dropped too.
    ``extra_prefill_rows``: rows by which the ring is longer when extra prefill state is kept (128
    plus a few); 0 when that is off.
    """

    stored_layers: int
    dropped_layers: int = 0
    compression_bytes: int = 0
    extra_prefill_rows: int = 0
    window: int = WINDOW
    backtrack: int = BACKTRACK
    row_bytes: int = ROW_BYTES

    @property
    def inference_ring(self) -> int:
        """Rows that decoding needs: the window and what may be taken back."""
        return self.window + self.backtrack

    @property
    def ring(self) -> int:
        """Rows that a slot really has for each layer."""
        return self.inference_ring + self.extra_prefill_rows

    @property
    def layer_bytes(self) -> int:
        """One stored layer at the inference ring length, padded: 134 * 528 = 70,752."""
        return _padded(self.inference_ring * self.row_bytes, LAYER_ALIGNMENT)

    @property
    def state_size_to_disk(self) -> int:
        """Bytes worth storing: the stored layers only.  Always counted with the inference ring."""
        return self.stored_layers * self.layer_bytes

    @property
    def slot_bytes(self) -> int:
        """The whole slot, rounded up so that every slot starts at a row."""
        layer = _padded(self.ring * self.row_bytes, LAYER_ALIGNMENT)
        total = (self.stored_layers + self.dropped_layers) * layer + self.compression_bytes
        return _padded(total, math.lcm(LAYER_ALIGNMENT, self.row_bytes))

    @property
    def cuts_directly(self) -> bool:
        """Whether the first ``state_size_to_disk`` bytes of a slot are what must be stored.

        Not with extra prefill state: the rings are then longer and must be reordered first.
        """
        return self.extra_prefill_rows == 0

    def to_store(self, layers: Sequence[Sequence[RowT]], length: int) -> list[list[RowT | None]]:
        """The stored layers' rings at inference length, after ``length`` positions were written.

        ``layers`` holds one ring of ``ring`` rows for every layer, stored ones first.  A row that
        was never written is None.  The dropped region is left out by truncation.
        """
        kept = range(oldest_kept(length, self.inference_ring), length)
        images: list[list[RowT | None]] = []
        for ring in layers[: self.stored_layers]:
            image: list[RowT | None] = [None] * self.inference_ring
            for position in kept:
                image[position % self.inference_ring] = ring[position % self.ring]
            images.append(image)
        return images


def _padded(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment
