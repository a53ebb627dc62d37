"""Kernel descriptors: work on rows, each with the rows that it reads and writes.

The sanitizer believes these declarations, so each is proved by a non-interference test
(:mod:`kvproof.gpu.footprint`): nothing outside the write set changes, nothing outside the read set
matters, and the items of one launch have no order.

Kernels take their numbers (block ids, row numbers, stamps) from a :class:`~kvproof.gpu.memory.DeviceList`
when they *run*.  If the list was overwritten in between, they do the wrong thing, as on hardware.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from . import ops
from .cells import Footprint, Span, span_of, spans_of_flat
from .device import Kernel
from .memory import DeviceList, HostBuffer, Pages, Snapshot
from .stamps import words_of


class Pair(NamedTuple):
    """One page copy: the first ``rows`` rows of ``source`` to ``destination`` (0: copy nothing)."""

    source: int
    destination: int
    rows: int


class DuplicateDestination(ValueError):
    """Two copies of one batch write the same page: the last one wins on a CPU, nobody knows who on a GPU."""

    def __init__(self, page: int) -> None:
        super().__init__(f"page {page} is the destination of two copies of one list: drop one, or queue two lists")


def batches(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """Cut a list of copies, meant in order, into launches whose pairs have no order.

    A fork of a fork queues 3 -> 4 and 4 -> 5: in one launch, block 5 could get the old contents of
    block 4.  So a new launch starts where a pair touches what an earlier one writes, or writes what
    an earlier one reads.  Raises :class:`DuplicateDestination`.
    """
    cut: list[list[Pair]] = [[]]
    reads, writes, destinations = set[int](), set[int](), set[int]()
    for pair in pairs:
        if not pair.destination:
            continue
        if pair.destination in destinations:
            raise DuplicateDestination(pair.destination)
        destinations.add(pair.destination)
        if pair.source in writes or pair.destination in reads:
            cut.append([])
            reads, writes = set(), set()
        cut[-1].append(pair)
        reads.add(pair.source)
        writes.add(pair.destination)
    return [batch for batch in cut if batch]


def upload(source: HostBuffer, target: DeviceList, length: int, who: str = "") -> Kernel:
    """Copy the first ``length`` entries of a host buffer into a device list.

    A pinned buffer is read when the copy runs; a pageable one is read now, into memory that nobody
    else knows.
    """
    values = source.values[:length] if source.pinned else source.values[:length].clone()

    def run(first: int, stop: int) -> None:  # noqa: ARG001  (one item)
        target.values[:length].copy_(values, non_blocking=True)

    reads = source.cells(length) if source.pinned else ()
    return Kernel("upload", reads, target.cells(length), run, who=who)


def download(snapshot: Snapshot, target: HostBuffer, who: str = "") -> Kernel:
    """Copy gathered rows into a host buffer, to be looked at after an event has been observed."""

    def run(first: int, stop: int) -> None:  # noqa: ARG001  (one item)
        target.values.copy_(snapshot.rows, non_blocking=True)

    return Kernel("download", snapshot.cells(), target.cells(snapshot.length), run, who=who)


def copy_pages(
    pages: Pages, pairs: Sequence[Pair], listed: DeviceList, name: str = "block copy", who: str = ""
) -> Kernel:
    """Copy many pages across all layers; ``listed`` holds the same pairs.  See :func:`batches`."""
    reads = tuple(Span(pages.space, pair.source, 0, pair.rows) for pair in pairs if pair.rows)
    writes = tuple(Span(pages.space, pair.destination, 0, pair.rows) for pair in pairs if pair.rows)

    def run(first: int, stop: int) -> None:
        ops.copy_rows(pages.rows, listed.values[first:stop])

    return Kernel(name, listed.cells(len(pairs)) + reads, writes, run, len(pairs), who)


def clone_slots(slots: Pages, pairs: Sequence[tuple[int, int]], listed: DeviceList, who: str = "") -> Kernel:
    """Copy whole state slots; ``listed`` holds (source, destination, ring)."""
    whole = [Pair(source, destination, slots.page_rows) for source, destination in pairs]
    return copy_pages(slots, whole, listed, "slot clone", who)


def scatter_stamps(pages: Pages, flat: Sequence[int], listed: DeviceList, name: str = "step", who: str = "") -> Kernel:
    """Write rows by slot mapping; ``listed`` holds (flat row, stamp), ``flat`` the same row numbers.

    A negative row number means skip (padding).
    """

    def run(first: int, stop: int) -> None:
        entries = listed.values[first:stop]
        ops.scatter_rows(pages.rows, words_of(entries[:, 1], pages.layers, pages.words), entries[:, 0])

    writes = spans_of_flat(pages.space, flat, pages.page_rows)
    return Kernel(name, listed.cells(len(flat)), writes, run, len(flat), who)


def gather(
    pages: Pages, flat: Sequence[int], listed: DeviceList, into: Snapshot, name: str = "gather", who: str = ""
) -> Kernel:
    """Read rows through a table into a snapshot; ``listed`` holds (flat row, anything)."""

    def run(first: int, stop: int) -> None:
        ops.gather_rows(pages.rows, listed.values[first:stop, 0], into.rows[:, first:stop])

    reads = spans_of_flat(pages.space, flat, pages.page_rows)
    return Kernel(name, listed.cells(len(flat)) + reads, into.cells(), run, len(flat), who)


def verify(pages: Pages, flat: Sequence[int], listed: DeviceList, result: DeviceList, who: str = "") -> Kernel:
    """Compare rows in place with their stamps: the reads of a forward pass, without its arithmetic.

    ``listed`` holds (flat row, stamp).  ``result`` has one entry (bad rows, first bad index); both
    accumulate, so start it with :func:`clean_result`.
    """

    def run(first: int, stop: int) -> None:
        entries = listed.values[first:stop]
        found = clean_result(result.values.device)
        ops.verify_rows(pages.rows, entries[:, 0], entries[:, 1], found)
        result.values[0, 0] += found[0]
        result.values[0, 1] = torch.minimum(result.values[0, 1], found[1] + first)

    reads = spans_of_flat(pages.space, flat, pages.page_rows)
    lists = listed.cells(len(flat)) + result.cells(1)
    return Kernel("verify", lists + reads, result.cells(1), run, len(flat), who)


NO_ROW = 2**62
"""The "first bad index" of a result without bad rows."""


def clean_result(memory: torch.device | str) -> torch.Tensor:
    """A result without bad rows; made on the device, so that the host does not wait."""
    result = torch.zeros(2, dtype=torch.int64, device=memory)
    result[1:] = NO_ROW
    return result


def fill(
    pages: Pages, which: Sequence[int], listed: DeviceList, value: int, name: str = "fill", who: str = ""
) -> Kernel:
    """Put one value into every word of some pages; ``listed`` holds (page, anything)."""
    writes: Footprint = tuple(span for page in which for span in span_of(pages.space, page, pages.page_rows))

    def run(first: int, stop: int) -> None:
        ops.fill_pages(pages.rows, listed.values[first:stop, 0], value)

    return Kernel(name, listed.cells(len(which)), writes, run, len(which), who)
