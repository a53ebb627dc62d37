"""A small prefix cache: blocks that nobody owns, whose contents can still be hit.

A *content key* stands for the tokens of one full block and of everything before it.  A block is
published under its key once its rows are committed; when its last owner leaves, it is *parked*
outside the free list, and a later request with the same prefix can hit it.  When the free list runs
short, the block parked longest ago is evicted: first its key is withdrawn, then it joins the back
of the free list.  Both lists together are what the pool can issue.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

from .interface import Answer
from .pool import LATER, NEVER, OK, BlockPool, ReleaseOrder

Key = Hashable


def content_keys(tokens: Sequence[int], block_size: int, known: Sequence[str] = ()) -> list[str]:
    """One key for each *full* block of ``tokens``, chained: a key names the whole prefix up to its block.

    ``known``: the keys of the leading blocks, where they were computed before.
    """
    keys = list(known)
    for start in range(len(keys) * block_size, len(tokens) - block_size + 1, block_size):
        text = ",".join(map(str, tokens[start : start + block_size])).encode()
        chain = keys[-1].encode() if keys else b""
        keys.append(hashlib.blake2b(text, digest_size=16, key=chain).hexdigest())
    return keys


class CachingPool(BlockPool):
    """A block pool with a prefix cache.  Declared here: parked blocks are outside the free list."""

    __slots__ = ("_block_of", "_key_of", "_parked")

    def __init__(self, usable: int, order: ReleaseOrder = "reverse") -> None:
        super().__init__(usable, order)
        self._key_of: dict[int, Key] = {}
        self._block_of: dict[Key, int] = {}
        self._parked: dict[int, None] = {}  # parked longest ago first
        self._retire = self._park_or_free

    @property
    def evictable(self) -> frozenset[int]:
        """Blocks that nobody owns and whose contents can be hit."""
        return frozenset(self._parked)

    @property
    def keys(self) -> Mapping[int, Key]:
        """Content key of every block that can be hit, owned or not (a copy)."""
        return dict(self._key_of)

    def answer(self, wanted: int, kept: int = 0, shared: Sequence[int] = ()) -> Answer:
        """As in the plain pool; parked blocks can be issued too, except those the asker will share."""
        if kept + len(shared) + wanted > self.usable:
            return NEVER
        spoken_for = sum(block in self._parked for block in shared)
        return OK if wanted <= len(self._free) + len(self._parked) - spoken_for else LATER

    def lookup(self, keys: Iterable[Key]) -> list[int]:
        """The blocks of the longest run of leading keys that can be hit.  Changes nothing."""
        return list(self._hits(keys))

    def share(self, hits: Sequence[int]) -> None:
        """One more owner for each hit block; a parked one comes back to life with its contents."""
        for block in hits:
            if block in self._parked:
                del self._parked[block]
                self._counts[block] = 1
            else:
                self.pin((block,))

    def publish(self, block: int, key: Key) -> bool:
        """Let later requests hit ``block`` under ``key``; False when that key has a block already."""
        if key in self._block_of or block in self._key_of:
            return False
        self._key_of[block] = key
        self._block_of[key] = block
        return True

    def make_room(self, wanted: int) -> list[int]:
        """Evict until ``wanted`` blocks are free, as far as that goes; returns the evicted ones."""
        return self.evict(wanted - len(self._free))

    def evict(self, most: int) -> list[int]:
        """Drop the contents of up to ``most`` parked blocks, longest parked first; returns them."""
        evicted: list[int] = []
        while self._parked and len(evicted) < most:
            block = next(iter(self._parked))
            del self._parked[block]
            self.withdraw(block)
            self._free.append(block)
            evicted.append(block)
        return evicted

    def withdraw(self, block: int) -> None:
        """The block's contents can no longer be hit."""
        del self._block_of[self._key_of.pop(block)]

    def _hits(self, keys: Iterable[Key]) -> Iterator[int]:
        for key in keys:
            block = self._block_of.get(key)
            if block is None:
                return
            yield block

    def _park_or_free(self, block: int) -> None:
        if block in self._key_of:
            self._parked[block] = None
        else:
            self._free.append(block)

    def _undo_release(self, block: int) -> None:
        if block in self._parked:
            del self._parked[block]
            self._counts[block] = 1
        else:
            super()._undo_release(block)
