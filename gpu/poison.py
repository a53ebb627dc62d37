"""Poison on free: an adversary that uses a block the moment its last owner has left.

An early release corrupts nothing until somebody else happens to take the block in time.  The
poisoner always does, on a stream of its own, and is as well behaved as any new owner: it is ordered
behind the compute and load streams, and *not* behind copies, because a copy's source is supposed to
be owned.  So a correct backend does not notice it, and a wrong one shows bytes that say "poison".
"""

from __future__ import annotations

from collections.abc import Sequence

from .device import Event
from .kernels import fill
from .stamps import POISON
from .worker import Worker

STREAM = "poison"


class Poisoner:
    """Overwrites freed blocks, and makes whoever gets them next wait for that."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._stream = worker.device.stream(STREAM)
        self._poisoned: dict[int, Event] = {}

    def freed(self, blocks: Sequence[int]) -> None:
        """These blocks have no owner any more."""
        if not blocks:
            return
        worker, device = self._worker, self._worker.device
        for stream in (worker.compute, worker.load):
            device.wait(self._stream, device.record(stream))
        listed = worker.staging.upload(self._stream, [(block, 0) for block in blocks], "poison")
        device.launch(self._stream, fill(worker.kv, blocks, listed, POISON, "poison", "freed blocks"))
        done = device.record(self._stream)
        self._poisoned |= dict.fromkeys(blocks, done)

    def issued(self, blocks: Sequence[int]) -> None:
        """These blocks have a new owner."""
        worker = self._worker
        for event in {self._poisoned.pop(block): None for block in blocks if block in self._poisoned}:
            for stream in (worker.compute, worker.copy, worker.load):
                worker.device.wait(stream, event)
