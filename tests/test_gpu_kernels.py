"""Kernels: each does what it says, declares what it touches, and means the same on every implementation."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence

import pytest

pytest.importorskip("torch")

import torch

from kvproof.gpu import kernels, ops
from kvproof.gpu.cells import Span, rows_in
from kvproof.gpu.device import Kernel
from kvproof.gpu.footprint import fault_of, needless_reads
from kvproof.gpu.kernels import DuplicateDestination, Pair, batches
from kvproof.gpu.memory import DeviceList, HostMemory, Pages, Snapshot, flat_row, ring_row
from kvproof.gpu.stamps import UNFILLED, WrongToken, stamps_of, tokens_in, words_of

LAYOUTS = ("block-major", "layer-major")
LAYERS, WORDS, SIZE = 3, 2, 4


def paged(layout: str = "block-major", usable: int = 7) -> Pages:
    return Pages("blocks", usable, SIZE, LAYERS, WORDS, layout)  # type: ignore[arg-type]


def listed(entries: Sequence[tuple[int, ...]]) -> DeviceList:
    found = HostMemory().list(len(entries), len(entries[0]))
    found.values.copy_(torch.tensor(entries))
    return found


def written(pages: Pages, table: Sequence[int], tokens: Sequence[int]) -> list[tuple[int, int]]:
    """Write the tokens' rows; returns (flat row, stamp)."""
    entries = [(flat_row(table, p, SIZE), stamp) for p, stamp in enumerate(stamps_of(tokens))]
    kernel = kernels.scatter_stamps(pages, [row for row, _ in entries], listed(entries))
    kernel.run(0, kernel.items)
    return entries


def read(pages: Pages, table: Sequence[int], count: int) -> list[int]:
    """Gather the first rows of a table and say which tokens they hold."""
    flat = [flat_row(table, p, SIZE) for p in range(count)]
    snapshot = Snapshot(0, torch.zeros(LAYERS, count, WORDS, dtype=torch.int64))
    kernel = kernels.gather(pages, flat, listed([(row, 0) for row in flat]), snapshot)
    kernel.run(0, kernel.items)
    return tokens_in(snapshot.rows)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_written_through_a_table_are_read_back_through_it(layout: str) -> None:
    pages = paged(layout)
    tokens = list(range(100, 110))
    written(pages, [5, 2, 7], tokens)
    assert read(pages, [5, 2, 7], 10) == tokens
    assert read(pages, [5, 2, 6], 10)[8:] == [UNFILLED, UNFILLED], "a wrong block shows"


def test_a_stamp_depends_on_the_whole_prefix() -> None:
    assert stamps_of([1, 2, 3])[2] != stamps_of([9, 2, 3])[2]
    assert stamps_of([1, 2])[1] != stamps_of([2])[0]


def test_rows_whose_layers_disagree_read_as_unfilled() -> None:
    rows = words_of(torch.tensor(stamps_of([7, 8])), LAYERS, WORDS)
    assert tokens_in(rows) == [7, 8]
    rows[1, 0] = rows[1, 1]
    assert tokens_in(rows) == [UNFILLED, 8]


@pytest.mark.parametrize("token", [-1, 2**32])
def test_a_token_that_does_not_fit_is_refused(token: int) -> None:
    with pytest.raises(WrongToken, match="does not fit"):
        stamps_of([token])


def test_the_two_layouts_have_the_same_view() -> None:
    block, layer = paged("block-major"), paged("layer-major")
    assert block.rows.shape == layer.rows.shape == (LAYERS, 8, SIZE, WORDS)
    assert block.rows[:, 3].transpose(0, 1).stride() != layer.rows[:, 3].transpose(0, 1).stride()
    assert block.storage[3].is_contiguous(), "block-major: one block is one contiguous run"


def test_a_slot_address_wraps_around_its_ring() -> None:
    assert [ring_row(2, position, 3) for position in range(5)] == [6, 7, 8, 6, 7]


# Block copies ---------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_many_pairs_are_copied_across_all_layers_row_exactly(layout: str) -> None:
    pages = paged(layout)
    written(pages, [1, 2], list(range(8)))
    pairs = [Pair(1, 4, 4), Pair(2, 5, 2), Pair(2, 0, 4)]
    kernel = kernels.copy_pages(pages, pairs, listed(pairs))
    kernel.run(0, kernel.items)
    assert read(pages, [4, 5], 8) == [0, 1, 2, 3, 4, 5, UNFILLED, UNFILLED]
    assert int((pages.rows[:, 0] != UNFILLED).sum()) == 0, "destination 0 means: copy nothing"


def test_chains_are_split_into_launches_and_duplicates_refused() -> None:
    chain = [Pair(3, 4, 4), Pair(4, 5, 4), Pair(1, 6, 4), Pair(7, 1, 4)]
    assert batches(chain) == [chain[:1], chain[1:3], chain[3:]]
    independent = [Pair(1, 4, 4), Pair(1, 5, 4)]
    assert batches(independent) == [independent]
    assert batches([Pair(3, 0, 0)]) == []
    with pytest.raises(DuplicateDestination, match="page 4"):
        batches([Pair(1, 4, 4), Pair(2, 5, 4), Pair(2, 4, 4)])


def test_a_split_chain_gives_the_result_of_copies_in_order() -> None:
    pages = paged()
    written(pages, [3, 4], list(range(8)))
    for batch in batches([Pair(3, 4, 4), Pair(4, 5, 4)]):
        kernels.copy_pages(pages, batch, listed(batch)).run(0, len(batch))
    assert read(pages, [5], 4) == [0, 1, 2, 3]


# In-place verification ------------------------------------------------------------------------


def test_verification_counts_bad_rows_and_keeps_the_first() -> None:
    pages = paged()
    entries = written(pages, [5, 2], list(range(7)))
    result = listed([tuple(kernels.clean_result("cpu").tolist())])
    kernel = kernels.verify(pages, [row for row, _ in entries], listed(entries), result)
    kernel.run(0, 7)
    assert result.values.tolist() == [[0, kernels.NO_ROW]]
    pages.rows[1, 2, 0, 1] += 1
    pages.rows[2, 2, 2, 0] += 1
    kernel.run(0, 7)
    assert result.values.tolist() == [[2, 4]]


def test_negative_slots_are_skipped_everywhere() -> None:
    pages = paged()
    before = pages.rows.clone()
    entries = [(-1, stamps_of([5])[0])]
    kernels.scatter_stamps(pages, [-1], listed(entries)).run(0, 1)
    assert torch.equal(pages.rows, before)
    assert rows_in(kernels.scatter_stamps(pages, [-1], listed(entries)).writes) == 0
    out = torch.full((LAYERS, 1, WORDS), 9)
    ops.gather_rows(pages.rows, torch.tensor([-1]), out)
    assert (out == 9).all()


# Staging --------------------------------------------------------------------------------------


def test_an_upload_from_pinned_memory_reads_when_it_runs_and_from_pageable_memory_at_once() -> None:
    memory = HostMemory()
    pinned, target = memory.buffer(1, 1), memory.list(1, 1)
    pageable = dataclasses.replace(pinned, pinned=False)
    pinned.values[0] = 1
    late, early = kernels.upload(pinned, target, 1), kernels.upload(pageable, target, 1)
    pinned.values[0] = 2
    late.run(0, 1)
    assert target.values.tolist() == [[2]]
    early.run(0, 1)
    assert target.values.tolist() == [[1]]
    assert rows_in(late.reads) == 1
    assert early.reads == (), "nobody can disturb the driver's own copy"


# Declarations are true ------------------------------------------------------------------------


def arena_of(
    pages: Sequence[Pages] = (), lists: Sequence[DeviceList] = (), snapshots: Sequence[Snapshot] = ()
) -> dict[tuple[str, int], torch.Tensor]:
    arena: dict[tuple[str, int], torch.Tensor] = {}
    for each in pages:
        for page in range(each.rows.shape[1]):
            arena[each.space, page] = each.rows[:, page].transpose(0, 1)
    arena |= {("lists", each.number): each.values for each in lists}
    arena |= {("snapshots", each.number): each.rows.transpose(0, 1) for each in snapshots}
    return arena


class Case:
    """Every kernel on random pages, with lists that hold valid numbers."""

    def __init__(self, layout: str) -> None:
        self.pages, self.slots = paged(layout), Pages("slots", 3, 5, LAYERS, WORDS, layout)  # type: ignore[arg-type]
        self.memory = HostMemory()
        self.snapshot = Snapshot(0, torch.zeros(LAYERS, 3, WORDS, dtype=torch.int64))
        self.lists: list[DeviceList] = []
        self.buffer, self.target = self.memory.buffer(4, 2), self.memory.rows_buffer(self.pages, 3)
        written(self.pages, [3], [1, 2, 3, 4])
        written(self.pages, [6], [5, 6, 7, 8])

    def listed(self, entries: Sequence[tuple[int, ...]]) -> DeviceList:
        self.lists.append(self.memory.list(len(entries), len(entries[0])))
        self.lists[-1].values.copy_(torch.tensor(entries))
        return self.lists[-1]

    def arena(self) -> dict[tuple[str, int], torch.Tensor]:
        arena = arena_of((self.pages, self.slots), self.lists, (self.snapshot,))
        arena["staging", self.buffer.number] = self.buffer.values
        arena["staging", self.target.number] = self.target.values.transpose(0, 1)
        return arena


def block_copy(case: Case) -> Kernel:
    pairs = [Pair(3, 4, 4), Pair(6, 1, 2), Pair(3, 0, 0)]
    return kernels.copy_pages(case.pages, pairs, case.listed(pairs))


def slot_clone(case: Case) -> Kernel:
    return kernels.clone_slots(case.slots, [(1, 3)], case.listed([(1, 3, 5)]))


def scatter(case: Case) -> Kernel:
    entries = list(zip([13, -1, 26], stamps_of([1, 2, 3]), strict=True))
    return kernels.scatter_stamps(case.pages, [13, -1, 26], case.listed(entries))


def gather(case: Case) -> Kernel:
    return kernels.gather(case.pages, [12, 27, 13], case.listed([(12, 0), (27, 0), (13, 0)]), case.snapshot)


def verify(case: Case) -> Kernel:
    entries = list(zip([12, 13, 24], [*stamps_of([1, 2]), *stamps_of([5])], strict=True))
    result = case.listed([tuple(kernels.clean_result("cpu").tolist())])
    return kernels.verify(case.pages, [12, 13, 24], case.listed(entries), result)


def fill(case: Case) -> Kernel:
    return kernels.fill(case.pages, [2, 5], case.listed([(2, 0), (5, 0)]), -7)


def upload(case: Case) -> Kernel:
    return kernels.upload(case.buffer, case.listed([(0, 0)] * 4), 3)


def download(case: Case) -> Kernel:
    return kernels.download(case.snapshot, case.target)


EVERY_KERNEL = (block_copy, slot_clone, scatter, gather, verify, fill, upload, download)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("build", EVERY_KERNEL)
def test_every_declaration_is_true(build: Callable[[Case], Kernel], layout: str) -> None:
    case = Case(layout)
    kernel = build(case)
    assert fault_of(kernel, case.arena()) is None
    assert [read for read in needless_reads(kernel, case.arena()) if read[0] != "lists"] == []


@pytest.mark.parametrize(
    ("reads", "writes", "fault"),
    [
        ((Span("blocks", 3, 0, 4),), (Span("blocks", 4, 0, 4),), "contents that depend on undeclared rows"),
        ((Span("blocks", 3, 0, 2),), (Span("blocks", 4, 0, 1),), r"writes blocks\[4\] rows \[1\]"),
        ((Span("blocks", 3, 0, 1),), (Span("blocks", 4, 0, 2),), "contents that depend on undeclared rows"),
    ],
    ids=["more written than declared rows exist", "undeclared write", "undeclared read"],
)
def test_a_wrong_declaration_is_found(reads: tuple[Span, ...], writes: tuple[Span, ...], fault: str) -> None:
    pages = paged()

    def two_rows(*_: int) -> None:
        pages.rows[:, 4, :2] = pages.rows[:, 3, :2]

    found = fault_of(Kernel("copy of two rows", reads, writes, two_rows), arena_of((pages,)))
    assert found is not None
    assert re.search(fault, found), found


def test_a_needless_read_and_an_undeclared_list_are_found() -> None:
    case = Case("block-major")
    kernel = block_copy(case)
    wide = Kernel(kernel.name, (*kernel.reads, Span("blocks", 7, 0, 1)), kernel.writes, kernel.run, kernel.items)
    assert ("blocks", 7, 0) in needless_reads(wide, case.arena())
    blind = Kernel(kernel.name, kernel.reads[1:], kernel.writes, kernel.run, kernel.items)
    assert fault_of(blind, case.arena()) is not None


def test_items_with_an_order_are_found() -> None:
    pages = paged()
    pages.rows.copy_(torch.arange(pages.rows.numel()).view(pages.rows.shape))

    def chain(first: int, stop: int) -> None:
        for source, destination in ((3, 4), (4, 5))[first:stop]:
            pages.rows[:, destination] = pages.rows[:, source]

    cells = tuple(Span("blocks", page, 0, SIZE) for page in (3, 4, 5))
    found = [fault_of(Kernel("chain", cells[:2], cells[1:], chain, 2), arena_of((pages,)), seed=s) for s in range(4)]
    assert any(fault is not None and "have an order" in fault for fault in found)


# The CUDA implementations ---------------------------------------------------------------------


def random_case(layout: str, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """rows, pairs, slots (some negative) and stamps."""
    torch.manual_seed(seed)
    pages = paged(layout)
    pages.rows.copy_(torch.randint(0, 2**40, pages.rows.shape))
    order = torch.randperm(7)[:6] + 1
    pairs = torch.stack([order[:3], order[3:], torch.randint(0, SIZE + 1, (3,))], dim=1)
    pairs[1, 1] *= seed % 2
    slots = torch.randperm(7 * SIZE)[:5] + SIZE
    slots[seed % 5] = -1
    return pages.rows, pairs, slots, torch.randint(0, 2**40, (5,))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_indexed_implementations_equal_the_cpu_loops(layout: str) -> None:
    for seed in range(10):
        rows, pairs, slots, stamps = random_case(layout, seed)
        values = words_of(stamps, LAYERS, WORDS)
        ops.scatter_rows(rows, values[:, :2], slots[:2])
        for loop, indexed, arguments in (
            (ops.copy_rows, ops._copy_rows_cuda, (pairs,)),
            (ops.scatter_rows, ops._scatter_rows_cuda, (values, slots)),
            (ops.fill_pages, ops._fill_pages_cuda, (pairs[:, 0], -7)),
        ):
            one, other = rows.clone(), rows.clone()
            loop(one, *arguments)
            indexed(other, *arguments)
            assert torch.equal(one[:, 1:], other[:, 1:]), "all pages but the dump page"
        one, other = torch.zeros_like(values), torch.zeros_like(values)
        ops.gather_rows(rows, slots, one)
        ops._gather_rows_cuda(rows, slots, other)
        assert torch.equal(one, other)
        one, other = kernels.clean_result("cpu"), kernels.clean_result("cpu")
        ops.verify_rows(rows, slots, stamps, one)
        ops._verify_rows_cuda(rows, slots, stamps, other)
        assert torch.equal(one, other)
        assert 0 < int(one[0]) < 5, "some rows match and some do not"


def test_the_indexed_implementations_never_ask_the_device_for_a_value() -> None:
    """Meta tensors have shapes and no values: reading one back raises, and so does mixing devices.

    A read-back would make the host wait for the stream, and hide the very races that are looked for.
    """

    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.int64, device="meta")

    rows, slots, stamps = empty(LAYERS, 8, SIZE, WORDS), empty(5), empty(5)
    values = words_of(stamps, LAYERS, WORDS)
    assert (values.shape, values.device.type) == ((LAYERS, 5, WORDS), "meta")
    ops._copy_rows_cuda(rows, empty(3, 3))
    ops._scatter_rows_cuda(rows, values, slots)
    ops._gather_rows_cuda(rows, slots, empty(LAYERS, 5, WORDS))
    ops._verify_rows_cuda(rows, slots, stamps, empty(2))
    ops._fill_pages_cuda(rows, slots, -7)
    with pytest.raises((RuntimeError, NotImplementedError)):
        empty(3).tolist()


def test_the_operators_are_visible_to_the_dispatcher_with_what_they_mutate() -> None:
    schema = str(torch.ops.kvproof.copy_rows.default._schema)
    assert "Tensor(a0!) rows" in schema
    for name in ("copy_rows", "scatter_rows", "gather_rows", "verify_rows", "fill_pages"):
        assert "!" in str(getattr(torch.ops.kvproof, name).default._schema)
