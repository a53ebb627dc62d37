"""Output records: taken by a step, cloned by whoever keeps them, recycled at a later sync point (chapter, 4.3.9).

Cloning makes a new object; pinning, in contrast, adds an owner of the same block.  An address is
only a number, so nothing in it shows that its record is gone: the *generation* that this model adds
does, and catches a reader that kept the address without cloning.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

from .errors import PoolExhausted, StaleRecord


class Handle(NamedTuple):
    """What a reader keeps: the address, and the generation it had then (a ghost in a real engine)."""

    address: int
    generation: int


class Records:
    """A pool of ``size`` records with addresses 1 to ``size``; the highest free address comes first."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.free: list[int] = list(range(1, size + 1))
        self.live: dict[int, Any] = {}
        self.generations: dict[int, int] = dict.fromkeys(self.free, 0)

    def take(self, value: Any) -> Handle:
        """Build a record that holds ``value``."""
        if not self.free:
            raise PoolExhausted(1, 0)
        address = self.free.pop()
        self.live[address] = value
        return Handle(address, self.generations[address])

    def clone(self, handle: Handle) -> Any:
        """An independent copy of the record's value; :class:`StaleRecord` when it was recycled since."""
        return copy.deepcopy(self.live[self._checked(handle)])

    def peek(self, address: int) -> Any:
        """What an engine without generations does: whatever the address holds now."""
        return self.live.get(address)

    def recycle(self, handles: Sequence[Handle] | None = None) -> None:
        """A sync point: these records (all live ones by default) may be reused from here on."""
        addresses = list(self.live) if handles is None else [self._checked(handle) for handle in handles]
        for address in addresses:
            del self.live[address]
            self.generations[address] += 1
            self.free.append(address)

    def _checked(self, handle: Handle) -> int:
        if handle.address not in self.live or self.generations[handle.address] != handle.generation:
            raise StaleRecord(handle.address)
        return handle.address
