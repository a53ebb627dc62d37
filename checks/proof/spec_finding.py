"""What a reading of the spec found: the rule, the shortest run, and how to see it again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvproof.checks.proof.unroll import Happened

NOT_COUNTED = frozenset({"submit", "accept", "reserve", "reject", "submit_copy", "publish", "rest"})
"""Actions that belong to the operation that reserved the rows, or are no operation at all."""


@dataclass(frozen=True)
class SpecFinding:
    """A broken rule and the shortest run to it.  ``trace`` is a file, if one was written.

    ``rule`` is None where the finding is not about a rule; ``kind`` then says what it is about.
    """

    rule: str | None
    message: str
    length: int
    steps: tuple[str, ...]
    kind: str = "rule"
    trace: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The finding as it appears in every JSON output."""
        return {
            "rule": self.rule,
            "kind": self.kind,
            "length": self.length,
            "trace": self.trace,
            "message": self.message,
            "steps": list(self.steps),
        }


def length_of(steps: Sequence[Happened]) -> int:
    """Operations of a run, as they are counted: admit, extend, fork, release, pin, unpin, copy completions.

    Work that completes without being a copy (a step) belongs to the operation that reserved its rows.
    """
    copies: set[int] = set()
    length = 0
    for step in steps:
        things = dict(step.things)
        if step.action in ("fork", "clone_slot", "privatise", "copy_on_write"):
            copies.add(things["work"])
        if step.action in NOT_COUNTED or (step.action == "complete" and things["work"] not in copies):
            continue
        length += 1
    return length
