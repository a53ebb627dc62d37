"""Which actions of the text an operation of an allocator consists of.

Actions are finer than operations: ``admit`` of three blocks is ``admit``, ``grow``, ``grow``.  In the
table ``a | b`` means one of them, ``a*`` any number, ``a?`` at most one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Operation:
    """One verb of the interface: what it is for storage, and for the numbers (or records)."""

    name: str
    storage: str
    other: str = ""


OPERATIONS: tuple[Operation, ...] = (
    Operation("admit", "evict* hit* (admit grow*)? take_slot? submit?", "lengths.admit"),
    Operation("extend", "evict* (grow* | shrink*) copy_on_write? reserve*", "lengths.extend"),
    Operation(
        "fork",
        "fork | fork_at_boundary | borrow clone_slot? (privatise | privatise_at_boundary)",
        "lengths.fork",
    ),
    Operation("submit", "submit | submit_copy", "lengths.submit"),
    Operation("complete", "complete release_pins?", ""),
    Operation("advance", "", "lengths.advance | lengths.advance_prompt"),
    Operation("commit", "accept* reject* shrink* publish*", "lengths.commit"),
    Operation("release(finish)", "finish", "lengths.release"),
    Operation("release(preempt)", "preempt", "lengths.release"),
    Operation("release(abort)", "finish | preempt", "lengths.release"),
    Operation("pin", "pin"),
    Operation("unpin", "unpin"),
    Operation("publish", "publish*"),
    Operation("hit", "hit"),
    Operation("evict", "evict*"),
    Operation("hold", "pin"),
    Operation("ack", "unpin"),
    Operation("move", "preempt, later admit grow* (another memory is another pool)"),
    Operation("take", "", "records.take keep?"),
    Operation("clone", "", "records.clone"),
    Operation("recycle", "", "records.recycle"),
    Operation("(answered LATER or NEVER, or refused)", "refuse", "lengths.ask"),
    Operation("(everything was given back)", "rest"),
)
"""Every operation, in the order of the interface."""
