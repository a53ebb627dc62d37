"""The memory: paged KV tensors, state slots with rings, device lists and staging buffers.

All sizes are counted in *rows* of ``words`` 64-bit words, in ``layers`` layers.  64-bit words,
because indexed copies of bytes are two to three times slower.

Page 0 is real memory that is never issued: padding and "no destination" point there, so a kernel
may write to it without harm (it is a *dump page*).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from .cells import Footprint, Span, span_of
from .stamps import UNFILLED, WORDS_LIMIT

Layout = Literal["block-major", "layer-major"]
"""``block-major`` [page, layer, row, word]: one block is one contiguous run, copied at full speed.
``layer-major`` [layer, page, row, word]: what attention kernels usually want."""


class Pages:
    """Pages of rows in several layers: the paged KV cache, or the state slots.

    ``rows`` is a view [layers, pages, page_rows, words] whatever the layout: kernels use its
    strides, so there is one kernel for both.
    """

    def __init__(
        self,
        space: str,
        usable: int,
        page_rows: int,
        layers: int = 2,
        words: int = 2,
        layout: Layout = "block-major",
        memory: str = "cpu",
    ) -> None:
        if layers * words > WORDS_LIMIT:
            raise ValueError(
                f"{layers} layers of {words} words: at most {WORDS_LIMIT} words a row in all, so that a stamp fits"
            )
        self.space = space
        self.page_rows = page_rows
        pages = usable + 1
        shape = (pages, layers) if layout == "block-major" else (layers, pages)
        self.storage = torch.full((*shape, page_rows, words), UNFILLED, dtype=torch.int64, device=memory)
        self.rows = self.storage.transpose(0, 1) if layout == "block-major" else self.storage

    @property
    def layers(self) -> int:
        """Number of layers."""
        return self.rows.shape[0]

    @property
    def words(self) -> int:
        """64-bit words of one row in one layer."""
        return self.rows.shape[3]

    @property
    def usable(self) -> int:
        """Pages that may be issued: 1 to this number."""
        return self.rows.shape[1] - 1

    def empty(self, length: int) -> torch.Tensor:
        """Uninitialised device memory for ``length`` rows, [layers, length, words]."""
        return torch.empty((self.layers, length, self.words), dtype=torch.int64, device=self.rows.device)

    def page(self, page: int) -> Footprint:
        """All rows of one page."""
        return span_of(self.space, page, self.page_rows)


def flat_row(table: Sequence[int], position: int, block_size: int) -> int:
    """The flat row number of a position in a block table (chapter, section 4.1)."""
    return table[position // block_size] * block_size + position % block_size


def ring_row(slot: int, position: int, ring: int) -> int:
    """The flat row number of a position in a state slot: ``slot * ring + position % ring``."""
    return slot * ring + position % ring


@dataclass(frozen=True, slots=True)
class HostBuffer:
    """Host memory that uploads read.

    From *pinned* memory an asynchronous upload reads when it runs, so the host must not touch the
    buffer before it has observed the upload.  From pageable memory the driver takes a copy first.
    """

    number: int
    values: torch.Tensor
    pinned: bool = True

    def cells(self, length: int) -> Footprint:
        """The first ``length`` values, as rows of the space ``staging``."""
        return span_of("staging", self.number, length)


@dataclass(frozen=True, slots=True)
class DeviceList:
    """Numbers in device memory (block ids, row numbers, stamps), as int64 [length, width]."""

    number: int
    values: torch.Tensor

    def cells(self, length: int) -> Footprint:
        """The first ``length`` entries, as rows of the space ``lists``."""
        return (Span("lists", self.number, 0, length),) if length else ()


class HostMemory:
    """Makes host buffers and device lists, and keeps them all alive.

    Nothing is given back while the backend lives: the caching allocator of PyTorch could hand the
    memory of a dropped buffer to somebody else while a queued upload still reads it.
    """

    def __init__(self, memory: str = "cpu") -> None:
        self.memory = memory
        self._buffers: list[HostBuffer] = []
        self._lists: list[DeviceList] = []
        self._rows_buffers = 0

    def buffer(self, length: int, width: int) -> HostBuffer:
        """A pinned host buffer for ``length`` entries of ``width`` numbers (pinned only on CUDA)."""
        values = torch.zeros((length, width), dtype=torch.int64, pin_memory=self.memory == "cuda")
        self._buffers.append(HostBuffer(len(self._buffers), values))
        return self._buffers[-1]

    def rows_buffer(self, pages: Pages, length: int) -> HostBuffer:
        """A pinned host buffer for ``length`` rows of all layers, to download into.

        Not kept: whoever reads it holds on to it until then.
        """
        shape = (pages.layers, length, pages.words)
        values = torch.zeros(shape, dtype=torch.int64, pin_memory=self.memory == "cuda")
        self._rows_buffers += 1
        return HostBuffer(-self._rows_buffers, values)

    def list(self, length: int, width: int) -> DeviceList:
        """Device memory for a list of ``length`` entries of ``width`` numbers.

        Not initialised: clearing it would be work on a stream of its own, which nobody waits for.
        """
        values = torch.empty((length, width), dtype=torch.int64, device=self.memory)
        self._lists.append(DeviceList(len(self._lists), values))
        return self._lists[-1]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Rows gathered on a stream, [layers, T, words] in device memory."""

    number: int
    rows: torch.Tensor

    @property
    def length(self) -> int:
        """How many rows."""
        return self.rows.shape[1]

    def cells(self) -> Footprint:
        """All its rows, in the space ``snapshots``."""
        return span_of("snapshots", self.number, self.length)
