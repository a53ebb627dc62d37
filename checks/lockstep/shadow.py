"""What the harness knows of one request, and of the work queued for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from kvproof.checks.lockstep.stamps import NOTHING
from kvproof.model.interface import SLOTS, Copy


class StateSlot(NamedTuple):
    """A state slot where blocks and slots are spoken of together."""

    id: int

    def __str__(self) -> str:
        return str(self.id)


Block: TypeAlias = "int | StateSlot"
Cell: TypeAlias = "tuple[Block, int]"


@dataclass(eq=False)
class Work:
    """A copy or a step on its way through a device stream.  ``moves``: what a copy carries."""

    name: str
    request: str
    order: int
    copy: Copy | None = None
    start: int = 0
    end: int = 0
    reads: tuple[Cell, ...] = ()
    writes: tuple[Cell, ...] = ()
    expected: Mapping[Cell, int] = field(default_factory=dict)
    """What a copy's source rows must hold when it runs."""
    positions: Mapping[Cell, int] = field(default_factory=dict)
    """The position of every row that a step reads."""
    ran: bool = False

    def __str__(self) -> str:
        return self.name

    @property
    def source(self) -> Block:
        """The block or slot that a copy reads."""
        assert self.copy is not None
        return StateSlot(self.copy.source) if self.copy.pool == SLOTS else self.copy.source


@dataclass(eq=False)
class Shadow:
    """One live request, as the harness knows it.  Lengths in positions."""

    name: str
    tokens: list[int]
    chain: list[int]
    """Stamp of every position of ``tokens``."""
    committed: int = 0
    drafts: int = 0
    reserved: int = 0
    """Positions reserved by the last admit, extend or fork."""
    table: tuple[int, ...] = ()
    slot: int | None = None
    state: int = NOTHING
    """What its state slot must hold."""
    steps: list[Work] = field(default_factory=list)
    """Steps scheduled whose result is not seen."""
    draft_stamps: dict[int, int] = field(default_factory=dict)
    unnamed: int = 0
    """Committed positions whose tokens the next ``extend`` names: accepted drafts."""
    opaque: set[int] = field(default_factory=set)
    """Positions whose rows were written as drafts: the allocator never learned their tokens."""
    optimistic: int = 0
    counts: bool = False
    """The allocator's committed count can be compared from the first commit (or fork) on."""

    @property
    def in_flight(self) -> int:
        """Positions of steps scheduled whose result is not seen."""
        return max((step.end for step in self.steps), default=self.committed) - self.committed

    def cell(self, position: int, size: int) -> Cell | None:
        """The row of a position, for blocks of ``size``; None where the table does not reach."""
        index = position // size
        return (self.table[index], position % size) if index < len(self.table) else None

    def stamp(self, position: int) -> int:
        """What the row of a position must hold."""
        return self.chain[position] if position < len(self.chain) else self.draft_stamps.get(position, NOTHING)
