"""Where a position of a state slot lives, and for how long.

A state slot holds one ring per layer: position ``p`` of slot ``s`` has the address
``s * ring + p % ring`` (chapter, section 4 and chapter 3).  The ring is longer than the window that
attention reads; the difference is the slack of drafts that are rejected and of clones that run late.
"""

from __future__ import annotations

from .language import Formula, Number, Numeric, every, implies, number_of
from .steps import Theorem, does_not_hold, theorem

SWA_ROW_BYTES = 528
"""512 bytes of data and 16 of scales for one position of one layer (chapter, section 4.4)."""
INFERENCE_RING = 134
"""Positions of the inference ring: a window of 128 and a slack of 6 (chapter, section 4.4)."""
STORED_LAYERS = 20
"""Layers whose window is stored (chapter, section 4.4)."""


def address(slot: Numeric, ring: Numeric, position: Numeric) -> Number:
    """The row of a position in the tensor of all slots."""
    return number_of(slot) * ring + number_of(position) % ring


@theorem
def slots_never_collide(slot: Number, other_slot: Number, ring: Number, position: Number, other: Number) -> Formula:
    """Rows of two slots are different rows, whatever the positions."""
    return implies(
        every(ring >= 1, position >= 0, other >= 0, slot < other_slot),
        address(slot, ring, position) < address(other_slot, ring, other),
    )


@theorem
def a_window_never_collides(slot: Number, ring: Number, position: Number, distance: Number) -> Formula:
    """Two positions less than a ring apart have different rows."""
    return implies(
        every(ring >= 1, position >= 0, distance >= 1, distance < ring),
        address(slot, ring, position) != address(slot, ring, position + distance),
    )


@theorem
def a_wrap_overwrites_one_ring_back(slot: Number, ring: Number, position: Number) -> Formula:
    """Writing a position overwrites the one that is a whole ring before it."""
    return implies(
        every(ring >= 1, position >= ring),
        address(slot, ring, position) == address(slot, ring, position - ring),
    )


@theorem
def the_window_survives_rejected_drafts(
    window: Number, slack: Number, count: Number, written: Number, position: Number
) -> Formula:
    """After writing up to ``slack`` positions that are then rejected, no row of the window was overwritten."""
    ring = window + slack
    return implies(
        every(
            window >= 1,
            slack >= 0,
            count >= 0,
            position >= 0,
            position > count - window - 1,
            position < count,
            written >= count,
            written < count + slack,
        ),
        address(0, ring, position) != address(0, ring, written),
    )


@theorem
def a_late_clone_may_lag_by_the_slack(
    window: Number, slack: Number, count: Number, advanced: Number, position: Number, written: Number
) -> Formula:
    """A clone that starts at ``count`` and runs after the parent wrote ``advanced`` <= slack more positions
    still finds every row of its window."""
    ring = window + slack
    return implies(
        every(
            window >= 1,
            slack >= 0,
            advanced >= 0,
            advanced <= slack,
            count >= window,
            position >= count - window,
            position < count,
            written >= count,
            written < count + advanced,
        ),
        address(0, ring, position) != address(0, ring, written),
    )


@theorem
def truncation_keeps_the_stored_layers(layer: Number, stored: Number, layers: Number, bytes_each: Number) -> Formula:
    """Layers lie one after the other, stored ones first: cutting after ``stored`` layers keeps exactly those."""
    cut = stored * bytes_each
    return implies(
        every(bytes_each >= 1, layer >= 0, layer < layers, stored >= 0, stored <= layers),
        ((layer + 1) * bytes_each <= cut) == (layer < stored),
    )


@theorem
def the_published_figures_follow(padding: Number) -> Formula:
    """134 positions of 528 bytes are 70,752 bytes, a multiple of 32; twenty layers are 1,415,040 bytes."""
    ring_bytes = number_of(INFERENCE_RING) * SWA_ROW_BYTES
    return implies(
        every(padding >= 0, padding < 32, (ring_bytes + padding) % 32 == 0),
        every(ring_bytes == 70_752, padding == 0, ring_bytes * STORED_LAYERS == 1_415_040),
    )


@does_not_hold
def a_late_clone_may_lag_beyond_the_slack(
    window: Number, slack: Number, count: Number, position: Number, written: Number
) -> Formula:
    """A clone that lags by one position more than the slack finds its oldest row overwritten."""
    ring = window + slack
    return implies(
        every(
            window >= 1,
            slack >= 0,
            count >= window,
            position >= count - window,
            position < count,
            written >= count,
            written < count + slack + 1,
        ),
        address(0, ring, position) != address(0, ring, written),
    )


@does_not_hold
def a_longer_ring_can_be_cut_directly(window: Number, extra: Number, count: Number, position: Number) -> Formula:
    """The window of the longer (store) ring lies in its first rows: not so, it must be reordered first."""
    ring = window + extra
    return implies(
        every(window >= 1, extra >= 1, count >= window, position >= count - window, position < count),
        address(0, ring, position) < window,
    )


NUMBERS: tuple[Theorem, ...] = (
    slots_never_collide,
    a_window_never_collides,
    a_wrap_overwrites_one_ring_back,
    the_window_survives_rejected_drafts,
    a_late_clone_may_lag_by_the_slack,
    truncation_keeps_the_stored_layers,
    the_published_figures_follow,
)
"""Theorems about rings, for all whole numbers."""
