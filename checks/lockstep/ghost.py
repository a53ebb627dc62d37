"""The ghost: what must be true of an allocator and what no allocator keeps.  Data only, nothing judges here."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Any

from kvproof.checks.lockstep.shadow import Block, Shadow, Work
from kvproof.checks.lockstep.stamps import Stamps
from kvproof.checks.lockstep.weak_device import WeakDevice
from kvproof.model.interface import BLOCKS, Configuration, Declaration

HISTORY = 40
"""Events remembered for each block."""


class Ghost:
    """Live requests, row contents, queued copies, pins, holders, records and the past of every block."""

    def __init__(self, configuration: Configuration, declaration: Declaration, capabilities: frozenset[str]) -> None:
        self.configuration, self.declaration, self.capabilities = configuration, declaration, capabilities
        self.size = configuration.block_size
        self.stamps = Stamps()
        self.requests: dict[str, Shadow] = {}
        self.device = WeakDevice(self.size, declaration, self.requests, self.stamps, self.note)
        self.copies: dict[int, list[Work]] = self.device.copies
        """Copies queued and not observed complete, by ticket, in the order of the queue."""
        self.step_tickets: dict[int, str] = {}
        self.pins: dict[str, tuple[int, ...]] = {}
        self.holders: dict[str, tuple[int, ...]] = {}
        self.records: dict[int, Any] = {}
        """Records handed out and not cloned since the last synchronisation point."""
        self.key_contents: dict[Hashable, tuple[int, ...]] = {}
        self.published: dict[int, Hashable] = {}
        self.lost_records: set[int] = set()
        self.handed: set[int] = set()
        self.history: dict[Block, deque[str]] = {}
        self.quiescent = False

    def note(self, block: Block, what: str) -> None:
        """Remember what happened to a block."""
        self.history.setdefault(block, deque(maxlen=HISTORY)).append(what)

    def readable(self, name: str) -> bool:
        """No queued copy still fills rows of this request: its rows can be compared."""
        return not any(work.writes and name in self.device.beneficiaries(work) for work in self.device.queued())

    def expected_tokens(self, name: str) -> list[int | None]:
        """Tokens that the committed rows must hold; None where nobody can say: the allocator does not know the
        tokens of accepted drafts, and a placeholder in the table has no rows."""
        shadow = self.requests[name]
        reserved = self.device.pools[BLOCKS].reserved

        def known(position: int) -> bool:
            cell = shadow.cell(position, self.size)
            placeholder = cell is not None and cell[0] in reserved
            return position < len(shadow.tokens) and position not in shadow.opaque and not placeholder

        return [shadow.tokens[p] if known(p) else None for p in range(shadow.committed)]

    def found_tokens(self, name: str) -> list[int]:
        """Tokens that the committed rows hold by the follower's own device."""
        shadow = self.requests[name]
        cells = (shadow.cell(p, self.size) for p in range(shadow.committed))
        return [self.stamps.token(self.device.holds(cell)) if cell else -1 for cell in cells]
