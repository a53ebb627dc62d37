"""Where a finding points: the operation, the block and the queued copy that it is about.

A finding is anything with the fields of :class:`FindingLike`, or the same as a mapping (the JSON
output).  What it does not say outright is read from its message, which names the block and the ticket.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kvproof.checks.lockstep.operations import COUNTED
from kvproof.checks.picture.words import clean
from kvproof.model.interface import BLOCKS, RECORDS, SLOTS
from kvproof.model.trace import Operation, Trace
from kvproof.spec import RULES

KIND_SENTENCES: Mapping[str, str] = {
    "rule": "The target broke a rule of the rule book.",
    "raises": "A call raised an exception that nothing translated into an answer.",
    "hangs": "A call did not come back within its time limit.",
    "nondeterministic": "The same calls on two fresh instances gave different answers.",
    "changes_answer": "The target changed an answer that it had already given.",
    "reserved_block": "A reserved id was handed out.",
    "contract": "The target broke the contract of the interface.",
    "wrong_rows": "A request reads rows that are not its own.",
}
"""What each kind of finding means, for those that are not about one rule."""

MOST_MESSAGE = 1_500
"""Characters of a message."""
MOST_EVENTS = 40
"""Lines of a history."""

_PLACE = re.compile(r"\b(block|slot|record) (\d{1,9})\b")
_TICKET = re.compile(r"\bticket (\d{1,9})\b")
_POOLS = {"block": BLOCKS, "slot": SLOTS, "record": RECORDS}
_THEN = "; what then happens: "


class FindingLike(Protocol):
    """What a finding must have.  Used as well when there: ``also``, ``history``, ``operations``, ``what_then``,
    ``block``, ``pool``, ``draining``, ``trace``."""

    @property
    def rule(self) -> str | None:
        """The broken rule, or None."""

    @property
    def kind(self) -> str:
        """The kind of finding."""

    @property
    def length(self) -> int:
        """Operations up to the breach, as counterexamples are counted."""

    @property
    def message(self) -> str:
        """What is wrong, in one sentence."""


@dataclass(frozen=True)
class Blame:
    """A finding, ready to be shown beside its trace.

    ``moment`` is the guilty operation's number from 1 on (0: before the first); ``pool`` and ``block`` the
    guilty row, ``ticket`` the guilty queued copy; None where the finding speaks of none.
    """

    name: str
    statement: str
    message: str
    moment: int
    rule_number: int | None = None
    chapter: str = ""
    then: str = ""
    also: tuple[str, ...] = ()
    history: tuple[str, ...] = ()
    pool: str = BLOCKS
    block: int | None = None
    ticket: int | None = None
    trace: str = ""
    """File that the run was saved to."""
    at_the_end: bool = False
    """It broke only when everything was given back after the last operation."""


def blame(trace: Trace, finding: FindingLike | Mapping[str, Any]) -> Blame:
    """Read a finding.  Unknown rules and kinds are shown by name, without a statement."""
    name, kind = _text(_get(finding, "rule")), _text(_get(finding, "kind"))
    rule = RULES.get(name)
    message, _, then = str(_get(finding, "message") or "").partition(_THEN)
    message = clean(message, MOST_MESSAGE)
    pool, block = _place(finding, message)
    ticket = _TICKET.search(message)
    return Blame(
        name=name or kind or "violation",
        statement=rule.statement if rule else KIND_SENTENCES.get(kind, ""),
        message=message,
        moment=_moment(trace.operations, finding),
        rule_number=rule.number if rule else None,
        chapter=rule.chapter if rule else "",
        then=clean(then or _text(_get(finding, "what_then")), MOST_MESSAGE),
        also=_texts(_get(finding, "also")),
        history=_texts(_get(finding, "history")),
        pool=pool,
        block=block,
        ticket=int(ticket[1]) if ticket else None,
        trace=_text(_get(finding, "trace")),
        at_the_end=bool(_get(finding, "draining") or _get(finding, "at_the_end")),
    )


def _get(finding: object, name: str) -> Any:
    return finding.get(name) if isinstance(finding, Mapping) else getattr(finding, name, None)


def _text(value: object) -> str:
    return "" if value is None else clean(value)


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        return ()
    return tuple(clean(item) for item in value[-MOST_EVENTS:])


def _place(finding: object, message: str) -> tuple[str, int | None]:
    """Pool and id of the guilty block: as the finding says, else the first one that the message names."""
    said, pool = _get(finding, "block"), _text(_get(finding, "pool"))
    found = _PLACE.search(message)
    if pool == "":
        pool = _POOLS[found[1]] if found else BLOCKS
    if isinstance(said, int) and not isinstance(said, bool):
        return pool, said
    if isinstance(said, str) and said.isdecimal() and len(said) < 10:
        return pool, int(said)
    return pool, int(found[2]) if found else None


def _moment(operations: Sequence[Operation], finding: object) -> int:
    """Number of the guilty operation: what the finding lists ends with it, else its length leads to it."""
    listed = _get(finding, "operations")
    if isinstance(listed, Sequence) and not isinstance(listed, str) and 0 < len(listed) <= len(operations):
        return len(listed)
    length = _get(finding, "length")
    if not isinstance(length, int) or length <= 0:
        return len(operations)
    counts = [_counts(operation) for operation in operations]
    if sum(counts) <= length:
        return len(operations)  # the trace ends with the breach
    reached = 0
    for number, count in enumerate(counts, 1):
        reached += count
        if reached >= length:
            return number
    return len(operations)


def _counts(operation: Operation) -> int:
    """How much an operation adds to a counterexample's length."""
    if operation.op not in COUNTED:
        return 0
    return len(operation.args.get("tickets", ())) if operation.op == "complete" else 1
