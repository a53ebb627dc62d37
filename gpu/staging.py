"""Lists on their way to the device: block ids, row numbers and stamps, through pinned staging buffers.

An asynchronous upload reads its staging buffer when it runs, so a buffer belongs to its upload
until the host has observed it.  One buffer that is filled again for every step is a common bug: the
queued uploads then all carry the last list.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import torch

from .device import Device, Stream
from .kernels import upload
from .memory import DeviceList, HostBuffer, HostMemory
from .order import Ticket

SMALLEST = 64
"""Entries of the smallest buffer or list."""
MOST_BUSY = 256
"""Uploads of one stream that may be on their way; the host waits for the stream when there are more."""


class Staging:
    """Uploads lists of number tuples to a stream.

    Every stream has one device list that its uploads overwrite in turn: the stream's own order
    makes that safe.  Host buffers come from a pool and return to it once their upload was observed.
    """

    def __init__(self, device: Device, memory: HostMemory) -> None:
        self._device = device
        self._memory = memory
        self._busy: dict[tuple[str, int], deque[tuple[HostBuffer, Ticket]]] = {}
        self._lists: dict[tuple[str, int], DeviceList] = {}

    def upload(self, stream: Stream, entries: Sequence[tuple[int, ...]], who: str = "") -> DeviceList:
        """Queue the upload of ``entries`` (all of one width); the list is valid for later work on ``stream``."""
        length, width = len(entries), len(entries[0])
        buffer = self.take(stream, length, width)
        self._device.host_writes(buffer.cells(length), "fill staging buffer", who)
        buffer.values[:length] = torch.tensor(entries)
        target = self._list_for(stream, length, width)
        ticket = self._device.launch(stream, upload(buffer, target, length, who))
        self._busy[stream.name, width].append((buffer, ticket))
        return target

    def take(self, stream: Stream, length: int, width: int) -> HostBuffer:
        """A buffer that no queued upload reads any more; a new one where there is none."""
        busy = self._busy.setdefault((stream.name, width), deque())
        if len(busy) >= MOST_BUSY and not self._device.observed(busy[0][1]):
            self._device.synchronize(self._device.record(stream))
        if busy and self._device.observed(busy[0][1]):
            buffer, _ = busy.popleft()
            if buffer.values.shape[0] >= length:
                return buffer
        return self._memory.buffer(max(SMALLEST, 2 * length), width)

    def _list_for(self, stream: Stream, length: int, width: int) -> DeviceList:
        """The stream's own list; a longer one replaces it, and the old one stays alive."""
        found = self._lists.get((stream.name, width))
        if found is None or found.values.shape[0] < length:
            found = self._lists[stream.name, width] = self._memory.list(max(SMALLEST, 2 * length), width)
        return found
