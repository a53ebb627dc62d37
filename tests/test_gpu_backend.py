"""The backend: the whole interface on tensors, streams and events, and the chapter's experiments on it."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch")

import torch

from kvproof.gpu.backend import GpuAllocator, Policy, make_gpu, make_gpu_on
from kvproof.gpu.mutants import MUTANTS
from kvproof.gpu.reports import OrderingError
from kvproof.gpu.sanitizer import Sanitizer
from kvproof.gpu.schedules import Eager, Lazy, Schedule, Starve
from kvproof.gpu.sim import SimDevice
from kvproof.gpu.worker import Shape
from kvproof.model.interface import BLOCKS, CAPABILITIES, SLOTS, Answer, Configuration, capabilities_of

CHAPTER = Configuration(blocks=4, block_size=4, max_requests=4)
PROMPT = list(range(100, 110))


def backend(
    schedule: Schedule | None = None,
    configuration: Configuration = CHAPTER,
    build: type[GpuAllocator] = GpuAllocator,
    **policy: object,
) -> GpuAllocator:
    device = SimDevice(schedule or Lazy(), Sanitizer())
    return build(configuration, device, Policy(cache=False, load_every=0, strict=False, **policy))  # type: ignore[arg-type]


def test_the_backend_has_every_capability_but_tiers() -> None:
    allocator = make_gpu(Configuration(state_slots=2))
    assert capabilities_of(allocator) == frozenset(CAPABILITIES) - {"tiers"}


def test_a_request_reads_back_what_it_was_given() -> None:
    allocator = backend()
    assert allocator.admit("A", PROMPT).answer is Answer.OK
    allocator.commit("A", 10)
    assert allocator.read("A") == PROMPT


def test_nothing_runs_before_the_host_waits() -> None:
    allocator = backend(Lazy())
    allocator.admit("A", PROMPT)
    allocator.commit("A", 10)
    assert int((allocator.worker.kv.rows != -1).sum()) == 0
    allocator.read("A")
    assert int((allocator.worker.kv.rows[:, :, :, 0] != -1).sum()) == 10 * allocator.worker.kv.layers


# The chapter's sharing lab, on streams -----------------------------------------------------------


def sharing_lab(allocator: GpuAllocator, load_the_writer: bool = False) -> list[int]:
    """Admit, fork, finish the parent, let a writer take what is free; returns what the child reads."""
    allocator.admit("parent", PROMPT)
    allocator.commit("parent", 10)
    (copy,) = allocator.fork("parent", "child", 10).copies
    assert (copy.source, copy.destination, copy.rows) == (3, 4, 2)
    allocator.release("parent", "finish")
    if allocator.admit("writer", [900, 901]).answer is Answer.LATER:
        allocator.complete([copy.ticket])
        assert allocator.admit("writer", [900, 901]).answer is Answer.OK
    assert allocator.snapshot()[BLOCKS].tables["writer"] == (3,)
    allocator.contents["writer"].loads = load_the_writer
    allocator.commit("writer", 2)
    return list(allocator.read("child"))


@pytest.mark.parametrize("schedule", [Eager(), Lazy(), Starve("copy")])
def test_the_deferred_release_makes_the_writer_wait(schedule: Schedule) -> None:
    allocator = backend(schedule)
    assert sharing_lab(allocator, load_the_writer=True) == PROMPT
    assert not allocator.reports


def test_an_early_release_gives_the_child_the_writers_rows() -> None:
    """900 and 901 where 108 and 109 were expected, as in the chapter: the copy stream is held back."""
    allocator = backend(Starve("copy"), build=MUTANTS["early_release"].build)
    assert sharing_lab(allocator, load_the_writer=True)[8:] != [108, 109]
    assert [report.kind for report in allocator.device.sanitizer.reports] == ["early-release", "write-after-read"]  # type: ignore[union-attr]


def test_an_early_release_is_reported_even_where_the_bytes_are_right() -> None:
    allocator = backend(Eager(), build=MUTANTS["early_release"].build)
    assert sharing_lab(allocator, load_the_writer=True) == PROMPT
    assert [report.kind for report in allocator.device.sanitizer.reports] == ["early-release", "write-after-read"]  # type: ignore[union-attr]


def test_in_stream_order_the_source_goes_at_once_and_the_bytes_are_right() -> None:
    """The other legal discipline: every later writer is behind the copy, so the writer need not wait."""
    for schedule in (Eager(), Lazy(), Starve("copy"), Starve("compute")):
        allocator = backend(schedule, release_rule="stream")
        assert allocator.declaration.release_rule == "stream"
        assert sharing_lab(allocator, load_the_writer=True) == PROMPT
        assert not allocator.reports


def test_a_strict_backend_raises_at_the_operation_that_is_wrong() -> None:
    device = SimDevice(Lazy(), Sanitizer())
    allocator = MUTANTS["early_release"].build(CHAPTER, device, Policy(load_every=0))
    allocator.admit("parent", PROMPT)
    allocator.commit("parent", 10)
    with pytest.raises(OrderingError, match=r"early-release.*operation 3, fork parent child"):
        allocator.fork("parent", "child", 10)


def test_a_fork_of_a_fork_before_its_copy_ran_reads_the_right_rows() -> None:
    for schedule in (Lazy(), Starve("copy"), Starve("compute")):
        allocator = backend(schedule, Configuration(blocks=7, block_size=4))
        allocator.admit("A", PROMPT)
        allocator.commit("A", 10)
        allocator.fork("A", "B", 10)
        allocator.fork("B", "C", 9)
        allocator.release("B", "finish")
        assert allocator.read("C") == PROMPT[:9]
        assert not allocator.reports


def test_parent_and_child_append_to_their_own_tails_while_the_copy_is_queued() -> None:
    allocator = backend(Starve("copy"))
    allocator.admit("A", PROMPT)
    allocator.commit("A", 10)
    allocator.fork("A", "B", 10)
    for name, token in (("A", 500), ("B", 600)):
        allocator.extend(name, [token])
        allocator.commit(name, 11)
    assert allocator.read("A") == [*PROMPT, 500]
    assert allocator.read("B") == [*PROMPT, 600]
    assert not allocator.reports, "row granularity: row 2 is written while rows 0 and 1 are still copied"


def test_rejected_drafts_leave_bytes_and_no_meaning() -> None:
    allocator = backend()
    allocator.admit("A", PROMPT)
    allocator.commit("A", 10)
    allocator.extend("A", [110], drafts=3)
    allocator.commit("A", 11)
    assert allocator.read("A") == [*PROMPT, 110]
    allocator.extend("A", [111])
    allocator.commit("A", 12)
    assert allocator.read("A") == [*PROMPT, 110, 111]
    assert allocator.bad_rows() == 0


def test_accepted_drafts_are_named_by_the_next_extend() -> None:
    allocator = backend()
    allocator.admit("A", PROMPT)
    allocator.commit("A", 10)
    allocator.extend("A", [110], drafts=2)
    allocator.commit("A", 12)
    assert allocator.read("A") == [*PROMPT, 110, -2]
    allocator.extend("A", [111, 112])
    assert allocator.read("A") == [*PROMPT, 110, 111]


def test_bytes_that_no_committed_prefix_holds_cannot_matter() -> None:
    """Rejected drafts, free blocks and the dump page may hold anything: readings do not change."""
    allocator = backend(Eager(), Configuration(blocks=9, block_size=4))
    allocator.admit("A", PROMPT)
    allocator.commit("A", 10)
    allocator.fork("A", "B", 9)
    allocator.extend("B", [700], drafts=3)
    allocator.commit("B", 10)
    before = {name: allocator.read(name) for name in ("A", "B")}
    rows = allocator.worker.kv.rows
    meant = torch.zeros(rows.shape[1], rows.shape[2], dtype=torch.bool)
    for name, table in allocator.snapshot()[BLOCKS].tables.items():
        for position in range(len(before[name])):
            meant[table[position // 4], position % 4] = True
    assert 0 < int(meant.sum()) < meant.numel()
    rows[:, ~meant] = 12345
    assert {name: allocator.read(name) for name in ("A", "B")} == before
    allocator.extend("B", [701])
    allocator.commit("B", 11)
    assert allocator.bad_rows() == 0


# State slots ------------------------------------------------------------------------------------


def test_a_forked_ring_is_its_own() -> None:
    """The parent goes on and overwrites its ring; the child's clone must not see that."""
    for schedule in (Lazy(), Starve("copy"), Starve("compute")):
        allocator = backend(schedule, Configuration(blocks=9, block_size=4, state_slots=3), shape=Shape(ring=4))
        allocator.admit("A", PROMPT)
        allocator.commit("A", 10)
        copies = allocator.fork("A", "B", 10).copies
        assert [copy.pool for copy in copies] == [SLOTS, BLOCKS]
        for step in range(6):
            for name in ("A", "B"):
                allocator.extend(name, [200 + step + 100 * (name == "B")])
                allocator.commit(name, 11 + step)
        assert allocator.bad_rows() == 0
        assert not allocator.reports


def test_a_loaded_prompt_does_not_overwrite_the_ring_that_a_fork_still_clones() -> None:
    """A request that hits the cache can be forked before its own prompt is loaded (found by the comparison)."""
    device = SimDevice(Starve("copy"), Sanitizer())
    configuration = Configuration(blocks=9, block_size=1, state_slots=4)
    allocator = GpuAllocator(configuration, device, Policy(strict=False, load_every=2))
    allocator.admit("A", [100, 101, 102])
    allocator.commit("A", 3)
    assert allocator.admit("G", [100, 101, 500, 501]).hit_rows == 2
    allocator.fork("G", "H", 2)
    allocator.commit("G", 4)
    assert allocator.read("G") == [100, 101, 500, 501]
    assert not allocator.reports


# External holders --------------------------------------------------------------------------------


def test_a_holder_gets_the_settled_rows_whatever_the_request_does_next() -> None:
    for schedule in (Lazy(), Starve("load"), Starve("compute")):
        allocator = backend(schedule)
        allocator.admit("A", PROMPT)
        allocator.commit("A", 10)
        allocator.hold("A", "connector")
        allocator.extend("A", [110])
        allocator.commit("A", 11)
        allocator.release("A", "finish")
        assert allocator.admit("B", [900, 901, 902, 903, 904]).answer is Answer.LATER, "its blocks are still read"
        allocator.ack("connector")
        assert allocator.admit("B", [900, 901, 902, 903, 904]).answer is Answer.OK
        allocator.commit("B", 5)
        assert allocator.bad_rows() == 0
        assert not allocator.reports


def test_a_holder_that_is_dropped_before_its_transfer_was_observed_is_reported() -> None:
    allocator = backend(Lazy())
    allocator.admit("A", PROMPT)
    allocator.commit("A", 10)
    allocator.hold("A", "connector")
    reading, _ = allocator.worker.stores["connector"]
    allocator.device.host_releases(reading.tickets, "release of stored blocks", "connector")
    assert [report.kind for report in allocator.device.sanitizer.reports] == ["early-release"]  # type: ignore[union-attr]


# Poison on free ----------------------------------------------------------------------------------


def test_poison_never_shows_on_a_correct_backend() -> None:
    for schedule in (Eager(), Lazy(), Starve("copy"), Starve("compute"), Starve("poison")):
        allocator = backend(schedule, poison=True)
        assert sharing_lab(allocator) == PROMPT
        assert allocator.bad_rows() == 0
        assert not allocator.reports


def test_poison_shows_an_early_release_without_any_new_owner() -> None:
    allocator = backend(Starve("copy"), build=MUTANTS["early_release"].build, poison=True)
    allocator.admit("parent", PROMPT)
    allocator.commit("parent", 10)
    allocator.fork("parent", "child", 10)
    allocator.release("parent", "finish")
    allocator.device.drain()
    assert allocator.read("child")[8:] != [108, 109]
    plain = backend(Starve("copy"), build=MUTANTS["early_release"].build)
    plain.admit("parent", PROMPT)
    plain.commit("parent", 10)
    plain.fork("parent", "child", 10)
    plain.release("parent", "finish")
    plain.device.drain()
    assert plain.read("child") == PROMPT, "without poison nobody notices"


# Without hardware, and without PyTorch ----------------------------------------------------------


def test_the_cuda_device_says_when_there_is_none() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    from kvproof.gpu.cuda import CudaDevice, NoCuda

    with pytest.raises(NoCuda, match="use SimDevice"):
        CudaDevice()


def test_the_layout_does_not_matter() -> None:
    for layout in ("block-major", "layer-major"):
        allocator = backend(shape=Shape(layers=3, words=2, layout=layout))  # type: ignore[arg-type]
        assert sharing_lab(allocator) == PROMPT


def test_a_default_backend_is_strict_and_watched() -> None:
    allocator = make_gpu(CHAPTER)
    assert allocator.policy.strict
    assert allocator.device.sanitizer is not None
    assert make_gpu_on(SimDevice(), CHAPTER).device.sanitizer is None


def test_without_torch_one_line_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "try:\n    import kvproof.gpu\nexcept ImportError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().splitlines() == [
        "kvproof.gpu needs PyTorch, which is not installed: run pip install 'kvproof[gpu]' (a CPU build is enough)"
    ]


def test_the_example_in_the_documentation_runs() -> None:
    import doctest

    import kvproof.gpu.backend

    assert doctest.testmod(kvproof.gpu.backend).attempted == 5
    assert doctest.testmod(kvproof.gpu.backend).failed == 0
