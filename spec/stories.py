"""Stories: short runs that show that every action can happen.

Each is a list of action names; a finite reading must find a run from the empty pool in which they
happen in this order.  No rule is worth much if the interesting things never take place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Story:
    """What happens, in one sentence, as action names, and how many things it takes.

    ``sizes`` are numbers of things of each sort; sorts not named have one thing.  The first
    ``reserved_blocks`` blocks are reserved, the last ``slots`` are state slots.
    """

    about: str
    actions: tuple[str, ...]
    sizes: Mapping[str, int] = field(default_factory=dict)
    declared: frozenset[str] = frozenset()
    slots: int = 0
    reserved_blocks: int = 0


STORIES: tuple[Story, ...] = (
    Story(
        "a request comes, is refused once, grows, shrinks and finishes; the pool rests",
        ("refuse", "admit", "grow", "shrink", "finish", "rest"),
        {"index": 2, "block": 2},
    ),
    Story(
        "a step writes a row that joins the committed prefix; the next row is reserved, rejected and written again",
        ("admit", "submit", "complete", "accept", "reserve", "submit", "reject", "complete", "finish"),
        {"offset": 2},
    ),
    Story(
        "a child is forked while its parent decodes; the copy completes, its source is released later",
        ("admit", "submit", "complete", "accept", "fork", "finish", "complete", "release_pins", "finish"),
        {"request": 2, "block": 2, "work": 2},
    ),
    Story(
        "a child continues at a block boundary and grows",
        ("admit", "submit", "complete", "accept", "grow", "fork_at_boundary", "grow"),
        {"request": 2, "index": 2, "block": 3},
    ),
    Story(
        "a fork borrows the parent's table and slot, gets a slot and a last block of its own, and goes on alone",
        ("admit", "take_slot", "submit", "complete", "accept", "borrow", "clone_slot", "privatise", "finish"),
        {"request": 2, "block": 4, "work": 2},
        slots=2,
    ),
    Story(
        "a fork at a block boundary gets a slot of its own and copies nothing else",
        ("admit", "take_slot", "submit", "complete", "accept", "grow", "borrow", "clone_slot", "privatise_at_boundary"),
        {"request": 2, "index": 2, "block": 4, "work": 2},
        slots=2,
    ),
    Story(
        "a fork at a boundary shares a block that is partly filled, and copies it before it writes",
        ("admit", "submit", "complete", "accept", "grow", "fork_at_boundary", "copy_on_write"),
        {"request": 2, "index": 2, "block": 3, "offset": 2},
    ),
    Story(
        "a request is preempted while its step is queued",
        ("admit", "submit", "preempt", "complete"),
        {},
    ),
    Story(
        "a copy is put on a stream, so that it can no longer be cancelled",
        ("admit", "submit", "complete", "accept", "fork", "submit_copy", "complete", "release_pins"),
        {"request": 2, "block": 2, "work": 2},
        frozenset({"destination_cancelled"}),
    ),
    Story(
        "a copy is cancelled with the request that would have read it",
        ("admit", "submit", "complete", "accept", "fork", "finish"),
        {"request": 2, "block": 2, "work": 2},
        frozenset({"destination_cancelled"}),
    ),
    Story(
        "the source of a queued copy is freed and reissued; the new owner's step waits for the copy",
        ("admit", "submit", "complete", "accept", "fork", "finish", "admit", "submit", "complete"),
        {"request": 2, "block": 2, "work": 2},
        frozenset({"stream_ordered"}),
    ),
    Story(
        "a child finishes before its copy ran; the new owner of the destination writes and reads behind the copy",
        ("admit", "submit", "complete", "accept", "fork", "finish", "admit", "submit", "submit"),
        {"request": 2, "block": 2, "work": 3},
    ),
    Story(
        "block 0 is there and nobody gets it",
        ("admit", "finish"),
        {"block": 2},
        reserved_blocks=1,
    ),
    Story(
        "a holder keeps a block beyond the life of its request, whatever is refused meanwhile",
        ("admit", "pin", "refuse", "finish", "unpin"),
        {"holder": 1},
    ),
    Story(
        "a finished request's block is published, hit by another request, and evicted",
        ("admit", "submit", "complete", "accept", "publish", "finish", "hit", "finish", "evict"),
        {},
    ),
)
"""Stories of the storage machine."""

LENGTH_STORIES: tuple[Story, ...] = (
    Story(
        "a prompt is evaluated, tokens are added, a draft is rejected, and the request ends",
        ("admit", "advance_prompt", "extend", "submit", "advance", "commit", "release"),
    ),
    Story("a child starts with its parent's prefix", ("admit", "advance_prompt", "fork"), {"request": 2}),
    Story("a request is refused", ("ask",), declared=frozenset({"promises_never"})),
)
"""Stories of lengths."""

RECORD_STORIES: tuple[Story, ...] = (
    Story(
        "a record is built, its address kept, cloned, recycled and built again",
        ("take", "keep", "clone", "recycle", "take"),
    ),
)
"""Stories of the record pool."""
