"""One operation, as data: what the generator makes, the harness runs, and a trace records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvproof.model.trace import ARGUMENTS as TRACED
from kvproof.model.trace import NAMELESS

COUNTED = frozenset({"admit", "extend", "fork", "release", "pin", "unpin", "complete", "hold", "ack", "evict", "move"})
"""Operations that count towards the length of a counterexample; steps that only fill reserved rows,
and readings, belong to the verb that reserved the rows."""

ARGUMENTS: Mapping[str, tuple[str, ...]] = {op: tuple(checks) for op, checks in TRACED.items()}
"""Argument names of every operation, after the request (``fork``'s request is the parent)."""


@dataclass(frozen=True)
class Operation:
    """``op`` on ``request`` (None where it speaks of none) with arguments by name."""

    op: str
    request: str | None = None
    args: Mapping[str, Any] = field(default_factory=dict)

    def arguments(self) -> tuple[Any, ...]:
        """Positional arguments of the allocator's method, the request first."""
        rest = tuple(self.args[name] for name in ARGUMENTS[self.op])
        return rest if self.op in NAMELESS else (self.request, *rest)

    def __str__(self) -> str:
        return f"{self.op}({', '.join(repr(argument) for argument in self.arguments())})"


def length(operations: list[Operation]) -> int:
    """The length of a run, as counterexamples are counted."""
    return sum(len(o.args["tickets"]) if o.op == "complete" else 1 for o in operations if o.op in COUNTED)
