"""What the rows of one request must hold, and what has to happen before they do."""

from __future__ import annotations

from collections.abc import Iterable

from .device import Event
from .stamps import DRAFT, DRAFT_STAMP, append_stamps


class Contents:
    """The tokens of one request and their stamps, as the host knows them.

    ``stamps`` is aligned with ``tokens``.  ``filled`` counts the leading rows that queued work
    fills, and ``in_slot`` how far the state slot was written: hit blocks bring their rows, but not the
    ring.  ``ring`` is what each row of the slot must hold (missing: nobody wrote it).
    ``ready`` are events of copies and loads that fill the request and that ``compute`` has not
    waited for.  ``loads`` says that its prompt comes through the load stream.
    """

    __slots__ = ("filled", "in_slot", "keys", "loads", "name", "published", "ready", "ring", "stamps", "tokens")

    def __init__(self, name: str, tokens: Iterable[int], filled: int, keys: list[str], published: int) -> None:
        self.name = name
        self.tokens: list[int] = []
        self.stamps: list[int] = []
        self.filled = filled
        self.in_slot = 0
        self.ring: dict[int, int] = {}
        self.ready: list[Event] = []
        self.loads = False
        self.keys = keys
        self.published = published
        self.append(tokens)

    def append(self, tokens: Iterable[int]) -> None:
        """More history."""
        tokens = list(tokens)
        append_stamps(self.stamps, tokens)
        self.tokens += tokens

    def keep(self, rows: int) -> None:
        """Rows from ``rows`` on must be written (again): they held drafts that nobody settled."""
        self.filled = min(self.filled, rows)
        self.in_slot = min(self.in_slot, rows)

    def stamp(self, position: int) -> int:
        """What the row of a position must hold."""
        return self.stamps[position] if position < len(self.stamps) else DRAFT_STAMP

    def expected(self, rows: int) -> list[int]:
        """The tokens that the first ``rows`` rows must read as."""
        unnamed = max(0, rows - len(self.tokens))
        return self.tokens[:rows] + [DRAFT] * unnamed
