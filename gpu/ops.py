"""The primitives on rows, as PyTorch custom operators: visible to anything that watches the dispatcher.

``rows`` is always [layers, pages, page_rows, words]; a *flat* row number is
``page * page_rows + row``.  Three implementations have the same names and meaning: loops of
contiguous copies on a CPU (eight times faster there than one indexed copy), indexed torch
operations on CUDA that never make the host wait, and Triton kernels on CUDA where
:mod:`kvproof.gpu.triton_kernels` is imported.

=====================  ==========================================================================
operator               meaning
=====================  ==========================================================================
``copy_rows``          for each (source, destination, n): the first n rows of a page to another
``scatter_rows``       values[:, i] to flat row slots[i]; a negative slot means skip
``gather_rows``        flat row slots[i] to out[:, i]; a negative slot leaves it as it is
``verify_rows``        compares rows in place with stamps; counts the bad ones, keeps the first
``fill_pages``         one value in every word of some pages
=====================  ==========================================================================
"""

from __future__ import annotations

import torch

from .stamps import words_of


@torch.library.custom_op("kvproof::copy_rows", mutates_args=("rows",), device_types="cpu")
def copy_rows(rows: torch.Tensor, pairs: torch.Tensor) -> None:
    """Copy the first n rows of page source to page destination, for each (source, destination, n) of ``pairs``.

    Destination 0 means "copy nothing".  The pairs have no order: none may read or write what
    another one writes (see :func:`kvproof.gpu.kernels.batches`).
    """
    page_rows = rows.shape[2]
    for source, destination, count in pairs.tolist():
        if destination and count == page_rows:
            rows[:, destination].copy_(rows[:, source])
        elif destination:
            rows[:, destination, :count].copy_(rows[:, source, :count])


@torch.library.custom_op("kvproof::scatter_rows", mutates_args=("rows",), device_types="cpu")
def scatter_rows(rows: torch.Tensor, values: torch.Tensor, slots: torch.Tensor) -> None:
    """Write ``values`` [layers, T, words] to the flat rows ``slots`` [T]; a negative slot means skip."""
    page_rows = rows.shape[2]
    for index, slot in enumerate(slots.tolist()):
        if slot >= 0:
            page, row = divmod(slot, page_rows)
            rows[:, page, row] = values[:, index]


@torch.library.custom_op("kvproof::gather_rows", mutates_args=("out",), device_types="cpu")
def gather_rows(rows: torch.Tensor, slots: torch.Tensor, out: torch.Tensor) -> None:
    """Read the flat rows ``slots`` [T] into ``out`` [layers, T, words]; a negative slot means skip."""
    page_rows = rows.shape[2]
    for index, slot in enumerate(slots.tolist()):
        if slot >= 0:
            page, row = divmod(slot, page_rows)
            out[:, index] = rows[:, page, row]


@torch.library.custom_op("kvproof::verify_rows", mutates_args=("result",), device_types="cpu")
def verify_rows(rows: torch.Tensor, slots: torch.Tensor, stamps: torch.Tensor, result: torch.Tensor) -> None:
    """Compare the flat rows ``slots`` with ``stamps`` in place: nothing is gathered.

    ``result`` [2] accumulates: the number of rows that differ in any word, and the smallest index
    of one (so it starts at 0 and at a number above every index).  Negative slots are skipped.
    """
    layers, _, page_rows, words = rows.shape
    expected = words_of(stamps, layers, words)
    for index, slot in enumerate(slots.tolist()):
        if slot >= 0:
            page, row = divmod(slot, page_rows)
            if not torch.equal(rows[:, page, row], expected[:, index]):
                result[0] += 1
                result[1] = min(int(result[1]), index)


@torch.library.custom_op("kvproof::fill_pages", mutates_args=("rows",), device_types="cpu")
def fill_pages(rows: torch.Tensor, pages: torch.Tensor, value: int) -> None:
    """Put ``value`` into every word of the pages ``pages`` [T]."""
    for page in pages.tolist():
        rows[:, page] = value


# On CUDA nothing may ask for a value on the host: that would make the host wait for the stream, and
# hide the very errors that this package looks for.  So skipped entries go to the dump page instead,
# and so do entries out of range, which a CPU refuses and which would end the process on a GPU.


@copy_rows.register_kernel("cuda")
def _copy_rows_cuda(rows: torch.Tensor, pairs: torch.Tensor) -> None:
    row = torch.arange(rows.shape[2], device=rows.device)
    source, destination, count = (pairs[:, column : column + 1] for column in range(3))
    pages = rows.shape[1]
    wanted = (row < count) & (destination > 0) & (destination < pages) & (source >= 0) & (source < pages)
    source = torch.where(wanted, source, 0)
    destination = torch.where(wanted, destination, 0)
    rows[:, destination, row] = rows[:, source, row]


@scatter_rows.register_kernel("cuda")
def _scatter_rows_cuda(rows: torch.Tensor, values: torch.Tensor, slots: torch.Tensor) -> None:
    page, row, real = _page_and_row(rows, slots)
    rows[:, page, row] = torch.where(real.view(1, -1, 1), values, rows[:, page, row])


@gather_rows.register_kernel("cuda")
def _gather_rows_cuda(rows: torch.Tensor, slots: torch.Tensor, out: torch.Tensor) -> None:
    page, row, real = _page_and_row(rows, slots)
    out.copy_(torch.where(real.view(1, -1, 1), rows[:, page, row], out))


@verify_rows.register_kernel("cuda")
def _verify_rows_cuda(rows: torch.Tensor, slots: torch.Tensor, stamps: torch.Tensor, result: torch.Tensor) -> None:
    page, row, real = _page_and_row(rows, slots)
    expected = words_of(stamps, rows.shape[0], rows.shape[3])
    differs = ((rows[:, page, row] != expected).any(dim=2).any(dim=0) | ~real) & (slots >= 0)
    index = torch.arange(slots.shape[0], device=slots.device)
    result[0] += differs.sum()
    result[1] = torch.minimum(result[1], torch.where(differs, index, result[1]).min())


@fill_pages.register_kernel("cuda")
def _fill_pages_cuda(rows: torch.Tensor, pages: torch.Tensor, value: int) -> None:
    rows[:, torch.where((pages >= 0) & (pages < rows.shape[1]), pages, 0)] = value


def _page_and_row(rows: torch.Tensor, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Page and row of each slot, and whether it is one; what is not points to row 0 of the dump page."""
    pages, page_rows = rows.shape[1], rows.shape[2]
    real = (slots >= 0) & (slots < pages * page_rows)
    safe = torch.where(real, slots, 0)
    return safe.div(page_rows, rounding_mode="floor"), safe % page_rows, real
