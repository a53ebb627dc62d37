"""Ordering errors as data: what was found, both accesses, and the rule that it breaks.

Which rule a report breaks (see the rule book):

======================  ===========================  ====================================================
kind                    rule                         meaning
======================  ===========================  ====================================================
``write-after-read``    ``reads_keep_their_source``  a write is not ordered behind a queued read
``early-release``       ``reads_keep_their_source``  an owner went before the read it protects was observed
``write-after-write``   ``writes_stay_home``         a write is not ordered behind another owner's write
``read-after-write``    ``no_read_before_fill``      a read is not ordered behind the write that fills it
``read-of-unfilled``    ``no_read_before_fill``      nobody has filled the row since it was issued
======================  ===========================  ====================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from .cells import Footprint, describe
from .order import Ticket

Kind = Literal["write-after-read", "write-after-write", "read-after-write", "read-of-unfilled", "early-release"]

RULES: dict[Kind, str] = {
    "write-after-read": "reads_keep_their_source",
    "early-release": "reads_keep_their_source",
    "write-after-write": "writes_stay_home",
    "read-after-write": "no_read_before_fill",
    "read-of-unfilled": "no_read_before_fill",
}
"""The rule of the rule book that each kind of report breaks."""

_REPAIRS: dict[Kind, str] = {
    "write-after-read": "make the writer's stream wait for an event recorded after the read",
    "early-release": "wait for an event recorded after that launch, on its stream, before releasing",
    "write-after-write": "make the later writer's stream wait for an event recorded after the earlier write",
    "read-after-write": "make the reader's stream wait for an event recorded after the write",
    "read-of-unfilled": "fill the row first, or do not read beyond the committed rows",
}


@dataclass(frozen=True, slots=True)
class Access:
    """One launch (or host access): the half of a report."""

    ticket: Ticket
    name: str
    who: str
    position: int
    """Place in the trace: launches, records, waits and host calls, counted from 1."""
    operation: str
    """What the allocator was doing, as told to :meth:`Sanitizer.during`."""

    def __str__(self) -> str:
        who = f" for {self.who}" if self.who else ""
        operation = f", during {self.operation}" if self.operation else ""
        return f"{self.name}{who} on stream {self.ticket.stream} (trace position {self.position}{operation})"


@dataclass(frozen=True, slots=True)
class Report:
    """One ordering error, with both accesses."""

    kind: Kind
    rows: Footprint
    earlier: Access | None
    """The access that is not ordered before the later one; ``None`` if there was none at all."""
    later: Access

    @property
    def rule(self) -> str:
        """The broken rule, by its name in the rule book."""
        return RULES[self.kind]

    @property
    def sentence(self) -> str:
        """What is wrong and how to repair it, without the rule's name."""
        rows = f" of {describe(self.rows)}" if self.rows else ""
        against = f" is not ordered behind {self.earlier}" if self.earlier else " finds no earlier write at all"
        return f"{self.kind}{rows}: {self.later}{against}; repair: {_REPAIRS[self.kind]}"

    def __str__(self) -> str:
        return f"{self.rule}: {self.sentence}"


class OrderingError(AssertionError):
    """The watched code has ordering errors; the message lists them."""

    def __init__(self, reports: Sequence[Report]) -> None:
        self.reports = tuple(reports)
        shown = "\n".join(f"  {report}" for report in self.reports[:20])
        more = f"\n  ... and {len(self.reports) - 20} more" if len(self.reports) > 20 else ""
        super().__init__(f"{len(self.reports)} ordering error(s):\n{shown}{more}")
