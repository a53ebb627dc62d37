"""One pool of equal blocks: owner counts and a first-in first-out free list (chapter, 4.1 and 4.3.2).

    >>> pool = BlockPool(7)
    >>> a, b = pool.allocate(2), pool.allocate(3)
    >>> pool.release(b)                  # last block first
    >>> pool.free
    (6, 7, 5, 4, 3)
    >>> pool.answer(8)                   # more than the pool can ever issue
    <Answer.NEVER: 'never'>

The same class serves the paged blocks and the state slots.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from .errors import DoubleRelease, ForeignBlock, Misuse, PinOfFreeBlock, PoolExhausted, ReservedBlock, WrongAmount
from .interface import Answer

ReleaseOrder = Literal["reverse", "forward"]
"""How a list is released: last block first, as DeepInfer does, or first block first (exercise 3)."""

OK, LATER, NEVER = Answer.OK, Answer.LATER, Answer.NEVER


class BlockPool:
    """Ids 1 to ``usable``; id 0 is never issued.

    A block is *owned* while its count is at least one, and *free* otherwise: never both, never
    neither.  Every misuse raises a named :class:`~kvproof.model.errors.Misuse` and changes nothing,
    also when it is found in the middle of a list.
    """

    __slots__ = ("_counts", "_free", "_retire", "_reverse", "usable")

    def __init__(self, usable: int, order: ReleaseOrder = "reverse") -> None:
        if usable < 1:
            raise WrongAmount("usable blocks", usable)
        self.usable = usable
        self._reverse = order == "reverse"
        self._free: deque[int] = deque(range(1, usable + 1))
        self._counts: dict[int, int] = {}  # owned blocks only: a block that is missing here has no owner
        self._retire: Callable[[int], None] = self._free.append  # where a block goes when its last owner left

    # What can be observed -------------------------------------------------------------------------

    @property
    def reverses(self) -> bool:
        """Whether a list is released last block first."""
        return self._reverse

    @property
    def free(self) -> tuple[int, ...]:
        """Free ids, the next one to be issued first."""
        return tuple(self._free)

    def __len__(self) -> int:
        """How many blocks are free."""
        return len(self._free)

    @property
    def counts(self) -> Mapping[int, int]:
        """Owner count of every owned block (a copy)."""
        return dict(self._counts)

    def count(self, block: int) -> int:
        """Owners of one block; 0 when it is free."""
        return self._counts.get(block, 0)

    def answer(self, wanted: int, kept: int = 0, shared: Sequence[int] = ()) -> Answer:
        """Can ``wanted`` more blocks be had?  NEVER exactly when no amount of waiting helps.

        ``kept`` counts blocks that the asker holds and keeps, ``shared`` are blocks it will share:
        waiting cannot free those.  With neither this is the chapter's rule: NEVER for more than
        the pool can issue, else OK or LATER.
        """
        if kept + len(shared) + wanted > self.usable:
            return NEVER
        return OK if wanted <= len(self._free) else LATER

    # The three changes ----------------------------------------------------------------------------

    def allocate(self, wanted: int) -> list[int]:
        """Take ``wanted`` blocks from the front of the free list; each has one owner."""
        free = self._free
        if not 0 <= wanted <= len(free):
            raise PoolExhausted(wanted, len(free)) if wanted > 0 else WrongAmount("wanted blocks", wanted)
        taken = [free.popleft() for _ in range(wanted)]
        counts = self._counts
        for block in taken:
            counts[block] = 1
        return taken

    def pin(self, blocks: Sequence[int]) -> None:
        """One more owner for each block of the list, all of which must be owned."""
        counts = self._counts
        done = 0
        try:
            for block in blocks:
                counts[block] += 1
                done += 1
        except (KeyError, TypeError):
            for block in blocks[:done]:
                counts[block] -= 1
            raise self._misuse(blocks[done], PinOfFreeBlock) from None

    def release(self, blocks: Sequence[int]) -> None:
        """One owner fewer for each block of the list; without owners it goes to the back of the free list."""
        counts, retire = self._counts, self._retire
        ordered = blocks[::-1] if self._reverse else blocks
        done = 0
        try:
            for block in ordered:
                count = counts[block]
                if count == 1:
                    del counts[block]
                    retire(block)
                else:
                    counts[block] = count - 1
                done += 1
        except (KeyError, TypeError):
            for block in ordered[:done][::-1]:
                self._undo_release(block)
            raise self._misuse(ordered[done], DoubleRelease) from None

    # Private --------------------------------------------------------------------------------------

    def _undo_release(self, block: int) -> None:
        """Take back the most recent release of ``block``."""
        if block not in self._counts:
            self._free.pop()
        self._counts[block] = self._counts.get(block, 0) + 1

    def _misuse(self, block: object, unowned: Callable[[int], Misuse]) -> Misuse:
        """The named error for a block that has no owner."""
        if not isinstance(block, int) or not 0 <= block <= self.usable:
            return ForeignBlock(block, self.usable)
        return unowned(block) if block else ReservedBlock()

    def restore(self, free: Sequence[int], counts: dict[int, int]) -> None:
        """Set the whole state (exploration): ``free`` in order; ``counts`` of the owned blocks is taken over."""
        self._free.clear()
        self._free.extend(free)
        self._counts = counts
