"""One request: how long it is, what is reserved for it, and which of its rows count (chapter, 4.3.3 and 4.3.5)."""

from __future__ import annotations

NO_SLOT = 0
"""Slot 0 is never issued, so 0 means "no slot"."""


class Request:
    """Lengths and storage of one request, in token positions and block ids.

    ``length`` the token history; ``inflight`` positions of scheduled steps whose result the host
    has not seen; ``drafts`` guessed tokens that await verification; ``num_tokens`` the committed
    count; ``table`` the block table; ``slot`` the state slot.  ``unsettled`` says that
    ``num_tokens`` was advanced optimistically and waits for its correction.
    """

    __slots__ = ("drafts", "inflight", "length", "name", "num_tokens", "previous", "slot", "table", "unsettled")

    def __init__(self, name: str, length: int, table: list[int], slot: int = NO_SLOT, num_tokens: int = 0) -> None:
        self.name = name
        self.length = length
        self.inflight = 0
        self.drafts = 0
        self.table = table
        self.slot = slot
        self.num_tokens = num_tokens
        self.previous = num_tokens
        self.unsettled = False

    @property
    def reserved(self) -> int:
        """Positions that memory must cover: history, in-flight and drafts."""
        return self.length + self.inflight + self.drafts

    @property
    def settled(self) -> int:
        """Rows that are committed for good: what a fork or the prefix cache may use."""
        return self.previous if self.unsettled else self.num_tokens

    def need(self, block_size: int) -> int:
        """Blocks that the table must have: ceil((history + in-flight + drafts) / block size)."""
        return -(-(self.length + self.inflight + self.drafts) // block_size)

    def row(self, position: int, block_size: int) -> tuple[int, int]:
        """Where a position lives: its block and the offset in it (chapter, 4.1)."""
        return self.table[position // block_size], position % block_size

    def grow(self, blocks: list[int]) -> None:
        """Append freshly allocated blocks to the table."""
        self.table += blocks

    def shrink(self, need: int) -> list[int]:
        """Cut the table to ``need`` blocks and return the surplus, in table order."""
        surplus = self.table[need:]
        del self.table[need:]
        return surplus

    def advance(self, rows: int) -> None:
        """Count ``rows`` evaluated positions, optimistically: drafts are among them."""
        self.previous = self.num_tokens
        self.num_tokens += rows
        self.unsettled = True

    def commit(self, accepted: int) -> None:
        """Correct the last advance: only ``accepted`` of its rows count.

        The rows of rejected drafts keep their bytes, but they now lie at or beyond ``num_tokens``
        and mean nothing.
        """
        self.num_tokens = self.previous + accepted
        self.unsettled = False
