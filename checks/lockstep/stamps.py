"""Stamps: what a row must hold, as one number for the token and everything before it.

Key and value rows depend on the whole prefix, so the right token behind the wrong prefix is a wrong
row.  A stamp is an interned pair (stamp of the position before, token); equal numbers mean equal
token and equal prefix, hence equal position.
"""

from __future__ import annotations

from collections.abc import Iterable

NOTHING = 0
"""The stamp before position 0, and of a row that was never written."""


class Stamps:
    """Gives every (prefix, token) its number."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[int, int], int] = {}
        self._tokens: list[int] = [-1]
        self._before: list[int] = [NOTHING]
        self._same: dict[int, int] = {}

    def after(self, prefix: int, token: int) -> int:
        """The stamp of ``token`` behind the position stamped ``prefix``."""
        number = self._numbers.setdefault((prefix, token), len(self._tokens))
        if number == len(self._tokens):
            self._tokens.append(token)
            self._before.append(prefix)
        return number

    def chain(self, prefix: int, tokens: Iterable[int]) -> list[int]:
        """The stamps of consecutive tokens."""
        made = []
        for token in tokens:
            prefix = self.after(prefix, token)
            made.append(prefix)
        return made

    def drafts(self, prefix: int, how_many: int) -> list[int]:
        """Stamps of consecutive drafts: equal to nothing until :meth:`name` says which tokens they were."""
        made = []
        for _ in range(how_many):
            self._tokens.append(-2)
            self._before.append(prefix)
            prefix = len(self._tokens) - 1
            made.append(prefix)
        return made

    def descends(self, stamp: int, ancestor: int) -> bool:
        """Whether ``stamp`` is ``ancestor`` or stands behind it; named drafts count as what they turned out to be."""
        stamp, ancestor = self.same(stamp), self.same(ancestor)
        while stamp not in (ancestor, NOTHING):
            stamp = self.same(self._before[stamp])
        return stamp == ancestor

    def name(self, draft: int, stamp: int) -> None:
        """An accepted draft turns out to have been this token."""
        self._same[draft] = stamp

    def same(self, stamp: int) -> int:
        """The stamp itself, or what an accepted draft turned out to be."""
        return self._same.get(stamp, stamp)

    def token(self, stamp: int) -> int:
        """The token; -1 for a row never written, -2 for an unnamed draft."""
        return self._tokens[self.same(stamp)]
