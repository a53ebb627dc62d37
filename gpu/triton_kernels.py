"""Fused CUDA versions of the primitives, in Triton: the same names and meaning as :mod:`kvproof.gpu.ops`.

Optional: call :func:`install` on a machine with Triton and a CUDA device, and the operators use these
kernels for CUDA tensors from then on.  The indexed versions move every byte twice more, through a
temporary; these move it once.

Every index is compared with a bound before it is used, because a GPU reads past the end of a tensor
without a word.  Skipped entries (destination 0, negative slots) touch no memory at all.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from . import ops

TILE = 1024
"""64-bit words that one program moves."""


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _copy(  # type: ignore[no-untyped-def]
    rows, pairs, pair_stride, layer_stride, page_stride, words, page_words, pages, TILE: tl.constexpr
):
    pair = pairs + tl.program_id(0).to(tl.int64) * pair_stride
    source, destination, count = tl.load(pair), tl.load(pair + 1), tl.load(pair + 2)
    offset = tl.program_id(2) * TILE + tl.arange(0, TILE)
    inside = (offset < count * words) & (offset < page_words)
    inside = inside & (source >= 0) & (source < pages) & (destination > 0) & (destination < pages)
    layer = rows + tl.program_id(1).to(tl.int64) * layer_stride
    values = tl.load(layer + source * page_stride + offset, mask=inside)
    tl.store(layer + destination * page_stride + offset, values, mask=inside)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _move(  # type: ignore[no-untyped-def]
    rows, others, slots, slot_stride, layer_stride, page_stride, other_layer, other_row,
    words, page_rows, pages, SCATTER: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Scatter (others to rows) or gather (rows to others): one program moves one row of one layer."""
    slot = tl.load(slots + tl.program_id(0).to(tl.int64) * slot_stride)
    word = tl.arange(0, WIDE)
    inside = (word < words) & (slot >= 0) & (slot < pages * page_rows)
    layer = tl.program_id(1).to(tl.int64)
    here = rows + layer * layer_stride + slot // page_rows * page_stride + slot % page_rows * words + word
    there = others + layer * other_layer + tl.program_id(0).to(tl.int64) * other_row + word
    if SCATTER:
        tl.store(here, tl.load(there, mask=inside), mask=inside)
    else:
        tl.store(there, tl.load(here, mask=inside), mask=inside)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _verify(  # type: ignore[no-untyped-def]
    rows, slots, stamps, slot_stride, stamp_stride, result, layer_stride, page_stride,
    words, page_rows, pages, LAYERS: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """One program compares one row in all layers with its stamp; nothing is gathered."""
    index = tl.program_id(0).to(tl.int64)
    slot, stamp = tl.load(slots + index * slot_stride), tl.load(stamps + index * stamp_stride)
    word = tl.arange(0, WIDE)
    inside = (word < words) & (slot >= 0) & (slot < pages * page_rows)
    row = rows + slot // page_rows * page_stride + slot % page_rows * words + word
    expected = stamp * LAYERS * words + word
    wrong = tl.zeros([WIDE], dtype=tl.int32)
    for _ in range(LAYERS):
        found = tl.load(row, mask=inside, other=0)
        wrong += ((found != expected) & inside).to(tl.int32)
        row += layer_stride
        expected += words
    bad = ((tl.sum(wrong) > 0) | (slot >= pages * page_rows)).to(tl.int64)
    tl.atomic_add(result, bad)
    tl.atomic_min(result + 1, tl.where(bad > 0, index, 1 << 62))


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _fill(  # type: ignore[no-untyped-def]
    rows, which, which_stride, layer_stride, page_stride, page_words, pages, value, TILE: tl.constexpr
):
    page = tl.load(which + tl.program_id(0).to(tl.int64) * which_stride)
    offset = tl.program_id(2) * TILE + tl.arange(0, TILE)
    inside = (offset < page_words) & (page >= 0) & (page < pages)
    start = rows + tl.program_id(1).to(tl.int64) * layer_stride + page * page_stride
    tl.store(start + offset, tl.zeros([TILE], dtype=tl.int64) + value, mask=inside)


class WrongStrides(ValueError):
    """The rows of a page are not one contiguous run in each layer, which these kernels rely on."""

    def __init__(self, rows: torch.Tensor) -> None:
        super().__init__(
            f"rows have strides {rows.stride()}: the last two dimensions must be contiguous, as in kvproof.gpu.memory"
        )


def _checked(rows: torch.Tensor) -> tuple[int, int, int, int]:
    """The shape [layers, pages, page_rows, words] of tensors whose pages are contiguous in each layer."""
    layers, pages, page_rows, words = rows.shape
    if rows.stride(3) != 1 or rows.stride(2) != words:
        raise WrongStrides(rows)
    return layers, pages, page_rows, words


def copy_rows(rows: torch.Tensor, pairs: torch.Tensor) -> None:
    """See :func:`kvproof.gpu.ops.copy_rows`."""
    layers, pages, page_rows, words = _checked(rows)
    grid = (pairs.shape[0], layers, triton.cdiv(page_rows * words, TILE))
    layer_stride, page_stride = rows.stride(0), rows.stride(1)
    _launch(_copy, grid, rows, pairs, pairs.stride(0), layer_stride, page_stride, words, page_rows * words, pages, TILE)


def scatter_rows(rows: torch.Tensor, values: torch.Tensor, slots: torch.Tensor) -> None:
    """See :func:`kvproof.gpu.ops.scatter_rows`."""
    _move_rows(rows, values.contiguous(), slots, scatter=True)


def gather_rows(rows: torch.Tensor, slots: torch.Tensor, out: torch.Tensor) -> None:
    """See :func:`kvproof.gpu.ops.gather_rows`."""
    _move_rows(rows, out, slots, scatter=False)


def _move_rows(rows: torch.Tensor, others: torch.Tensor, slots: torch.Tensor, scatter: bool) -> None:
    layers, pages, page_rows, words = _checked(rows)
    if others.stride(2) != 1:
        raise WrongStrides(others)
    _launch(
        _move, (slots.shape[0], layers), rows, others, slots, slots.stride(0), rows.stride(0), rows.stride(1),
        others.stride(0), others.stride(1), words, page_rows, pages, scatter, triton.next_power_of_2(words),
    )  # fmt: skip


def verify_rows(rows: torch.Tensor, slots: torch.Tensor, stamps: torch.Tensor, result: torch.Tensor) -> None:
    """See :func:`kvproof.gpu.ops.verify_rows`."""
    layers, pages, page_rows, words = _checked(rows)
    _launch(
        _verify, (slots.shape[0],), rows, slots, stamps, slots.stride(0), stamps.stride(0), result,
        rows.stride(0), rows.stride(1), words, page_rows, pages, layers, triton.next_power_of_2(words),
    )  # fmt: skip


def fill_pages(rows: torch.Tensor, pages: torch.Tensor, value: int) -> None:
    """See :func:`kvproof.gpu.ops.fill_pages`."""
    layers, count, page_rows, words = _checked(rows)
    grid = (pages.shape[0], layers, triton.cdiv(page_rows * words, TILE))
    _launch(
        _fill, grid, rows, pages, pages.stride(0), rows.stride(0), rows.stride(1), page_rows * words, count, value, TILE
    )


def _launch(kernel: Any, grid: tuple[int, ...], *arguments: Any) -> None:
    """An empty grid is an error in CUDA, and nothing to do here."""
    if all(grid):
        kernel[grid](*arguments)


def install() -> None:
    """Use these kernels for CUDA tensors from now on."""
    ops.copy_rows.register_kernel("cuda")(copy_rows)
    ops.scatter_rows.register_kernel("cuda")(scatter_rows)
    ops.gather_rows.register_kernel("cuda")(gather_rows)
    ops.verify_rows.register_kernel("cuda")(verify_rows)
    ops.fill_pages.register_kernel("cuda")(fill_pages)
