"""``kvproof selftest``: what only a machine can show, as one table.

On a machine with a GPU (``--device cuda``) the backend runs on real streams: it is compared with the
model, an early release is made visible by holding the copy stream back, the same on one stream must
*not* show, and speeds are measured against a plain device copy.  ``--device cpu`` runs the same on the
simulated device.  A test that delays work proves that the delay was long enough; if it was not, the
line says *undetermined* instead of *passed*.  Speeds have goals, but they decide no verdict.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.table import Table

from kvproof.checks.adapters.registry import TargetError
from kvproof.checks.differential.diff import Program, Side, diff, programs, side
from kvproof.model.interface import BLOCKS, Allocator, Configuration

if TYPE_CHECKING:
    from kvproof.gpu.backend import GpuAllocator
    from kvproof.gpu.device import Device

Verdict = Literal["passed", "failed", "undetermined", "measured"]
EXAMPLES = 60
"""Programs of the comparison with the model, for each schedule or on the real device."""
HOLD_MILLISECONDS = 300.0
"""How long the copy stream is held back."""
PROMPT = list(range(100, 110))
WRITER = [900, 901]
"""The chapter's sharing experiment."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table."""

    name: str
    verdict: Verdict
    detail: str
    seconds: float


def run(*, device: str, out: Path | None = None, json_output: bool = False) -> int:
    """Run everything, print the table, and return the exit code: 0 passed, 1 failed, 3 undetermined."""
    console = Console(highlight=False, soft_wrap=True, file=sys.stderr if json_output else sys.stdout)
    machine = machine_for(device)
    lines: list[Line] = []
    for name, check in checks_on(machine):
        start = time.monotonic()
        try:
            verdict, detail = check()
        except Exception as error:
            verdict, detail = "failed", f"{type(error).__name__}: {error}"
        lines.append(Line(name, verdict, detail, round(time.monotonic() - start, 2)))
        console.print(f"  {name}: {verdict}", markup=False)
    result = {"verdict": verdict_of(lines), "device": machine.name, "lines": [asdict(line) for line in lines]}
    console.print(table_of(lines))
    console.print(f"{machine.name}: {result['verdict']}", markup=False)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "selftest.json").write_text(json.dumps(result, indent=2) + "\n")
    if json_output:
        sys.stdout.write(json.dumps(result) + "\n")
    return {"certified": 0, "violated": 1, "undetermined": 3}[str(result["verdict"])]


def verdict_of(lines: list[Line]) -> str:
    """Violated if anything failed, undetermined if anything could not be shown, else certified."""
    verdicts = {line.verdict for line in lines}
    return "violated" if "failed" in verdicts else "undetermined" if "undetermined" in verdicts else "certified"


def table_of(lines: list[Line]) -> Table:
    """The lines as a table."""
    table = Table(box=None, padding=(0, 2))
    for column in ("check", "verdict", "seconds", "detail"):
        table.add_column(column)
    for line in lines:
        table.add_row(line.name, line.verdict, f"{line.seconds:.1f}", line.detail)
    return table


# The machine ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Machine:
    """How to make devices here.  ``hold`` keeps a device's copy stream busy; a schedule does it in the simulation."""

    name: str
    memory: str
    held: Callable[[], Device]
    """A device whose copy stream can be held back."""
    single: Callable[[], Device]
    """A device whose streams are all the same one."""
    hold: Callable[[Device], None]
    settle: Callable[[], None]
    """Wait for everything, for honest times."""


def machine_for(device: str) -> Machine:
    """The machine behind ``--device``; :class:`TargetError` when there is none."""
    try:
        import torch

        from kvproof.gpu.sanitizer import Sanitizer
        from kvproof.gpu.schedules import Starve
        from kvproof.gpu.sim import SimDevice
    except ImportError as error:
        raise TargetError(str(error)) from error
    if device == "cpu":
        torch.set_num_threads(1)  # many small operations: a second thread only gets in the way

        class OneStream(SimDevice):
            def stream(self, name: str) -> Any:
                del name
                return super().stream("all")

        return Machine(
            "simulated device",
            "cpu",
            lambda: SimDevice(Starve("copy"), Sanitizer()),
            lambda: OneStream(Starve("copy"), Sanitizer()),
            lambda _device: None,
            lambda: None,
        )
    if device != "cuda":
        raise TargetError(f"unknown device {device!r}: use cpu or cuda")
    from kvproof.gpu.cuda import CudaDevice, NoCuda

    class OneCudaStream(CudaDevice):
        def stream(self, name: str) -> Any:
            del name
            return super().stream("all")

    try:
        CudaDevice()
    except NoCuda as error:
        raise TargetError(str(error)) from error

    def hold(held: Device) -> None:
        assert isinstance(held, CudaDevice)
        held.hold(held.stream("copy"), HOLD_MILLISECONDS)

    return Machine(
        torch.cuda.get_device_name(),
        "cuda",
        lambda: CudaDevice(Sanitizer()),
        lambda: OneCudaStream(Sanitizer()),
        hold,
        torch.cuda.synchronize,
    )


Check = Callable[[], tuple[Verdict, str]]


def checks_on(machine: Machine) -> Iterator[tuple[str, Check]]:
    """Every check by name, in the order of the table."""
    if machine.memory == "cuda":
        yield "fused kernels", use_triton
    yield "same as the model", lambda: same_as_the_model(machine)
    yield "early release shows", lambda: early_release(machine.held(), machine.hold, early=True, shows=True)
    yield "deferred release does not", lambda: early_release(machine.held(), machine.hold, early=False, shows=False)
    yield "early release on one stream", lambda: early_release(machine.single(), machine.hold, early=True, shows=False)
    yield "every mutant is reported", lambda: every_mutant(machine)
    yield "block copy bandwidth", lambda: copy_bandwidth(machine)
    yield "sanitizer overhead", lambda: sanitizer_overhead(machine)
    yield "explorer rate", lambda: explorer_rate(machine)


# Order ------------------------------------------------------------------------------------------------


def use_triton() -> tuple[Verdict, str]:
    """Use the fused kernels from here on, if Triton is there."""
    try:
        from kvproof.gpu import triton_kernels
    except ImportError:
        return "measured", "Triton is not installed: the indexed torch versions are used"
    triton_kernels.install()
    return "passed", "Triton kernels are used from here on"


def same_as_the_model(machine: Machine) -> tuple[Verdict, str]:
    """The differential test, on real streams or under every schedule."""
    if machine.memory == "cpu":
        result = diff("reference", "gpu", examples=EXAMPLES // 6, seed=1, schedule="all")
        if result.finding is not None:
            return "failed", result.finding.message
        return "passed", f"{result.programs} programs, {result.operations} operations, every schedule"
    operations = 0
    for program in _on_device(machine, ""):
        operations += len(program.operations)
        if program.differences:
            return "failed", program.differences[0].message
    return "passed", f"{EXAMPLES} programs, {operations} operations, on real streams"


def every_mutant(machine: Machine) -> tuple[Verdict, str]:
    """Each broken backend is reported by the detectors that must find it."""
    from kvproof.gpu.mutants import MUTANTS

    missed = []
    for name, mutant in MUTANTS.items():
        found: set[str] = set()
        for program in _on_device(machine, name):
            found |= program.detectors
            if found >= mutant.caught_by:
                break
        missed += [f"{name} by {detector}" for detector in mutant.caught_by - found]
    return ("failed", "not caught: " + ", ".join(missed)) if missed else ("passed", f"{len(MUTANTS)} mutants")


def _on_device(machine: Machine, mutant: str) -> Iterator[Program]:
    """The programs of the comparison, on this machine's device."""
    from kvproof.gpu.backend import GpuAllocator, Policy
    from kvproof.gpu.mutants import MUTANTS

    build = MUTANTS[mutant].build if mutant else GpuAllocator

    def backend(configuration: Configuration, _schedule: str, _seed: int) -> Allocator:
        return build(configuration, machine.held(), Policy(strict=False))

    reference: Side = side("reference")
    return programs(reference, backend, EXAMPLES, 1, "eager")


def early_release(device: Device, hold: Callable[[Device], None], *, early: bool, shows: bool) -> tuple[Verdict, str]:
    """The chapter's sharing experiment with the copy stream held back: what does the child read?"""
    from kvproof.gpu.backend import GpuAllocator, Policy
    from kvproof.gpu.mutants import MUTANTS

    build = MUTANTS["early_release"].build if early else GpuAllocator
    allocator = build(Configuration(blocks=4, block_size=4), device, Policy(cache=False, load_every=0, strict=False))
    _share(allocator, lambda: None)  # once without delay: loads every kernel, allocates every buffer
    child, done_in_time = _share(allocator, lambda: hold(device))
    wrong = child != PROMPT
    detail = f"the child reads {child[8:]} where {PROMPT[8:]} was expected" if wrong else "the child reads its own rows"
    if early and done_in_time and device.memory == "cuda":
        return "undetermined", "the copy was not held back long enough for this to mean anything"
    if early and not any(getattr(report, "kind", "") == "early-release" for report in allocator.reports):
        return "failed", "the sanitizer did not report the early release"
    return ("passed" if wrong == shows else "failed"), detail


def _share(allocator: GpuAllocator, hold: Callable[[], None]) -> tuple[list[int], bool]:
    """Admit, fork, finish the parent, let a writer load its rows; what the child reads, and was the copy done early?"""
    allocator.admit("parent", PROMPT)
    allocator.commit("parent", len(PROMPT))
    hold()
    copies = allocator.fork("parent", "child", len(PROMPT)).copies
    done = allocator.contents["child"].ready[-1]
    allocator.release("parent", "finish")
    tickets = [copy.ticket for copy in copies]
    if not allocator.snapshot()[BLOCKS].free:
        allocator.complete(tickets)
    allocator.admit("writer", WRITER)
    allocator.contents["writer"].loads = True
    allocator.commit("writer", len(WRITER))
    in_time = allocator.device.query(done)
    child = list(allocator.read("child"))
    allocator.complete([ticket for ticket in tickets if ticket in allocator.engine.copies])
    for name in ("child", "writer"):
        allocator.release(name, "finish")
    allocator.device.drain()
    return child, in_time


# Speed ------------------------------------------------------------------------------------------------


def medians(works: Mapping[str, Callable[[], object]], machine: Machine, rounds: int = 7) -> dict[str, float]:
    """Median seconds of each work, with everything that it queued; they take turns, so that noise hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name, work in works.items():
            machine.settle()
            start = time.perf_counter()
            work()
            machine.settle()
            if number:  # the first round warms up
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def copy_bandwidth(machine: Machine) -> tuple[Verdict, str]:
    """Blocks of 1 MiB, block-major, against one plain copy of the same bytes; goals: 90 % on a GPU, 80 % here."""
    import torch

    from kvproof.gpu.kernels import Pair, copy_pages
    from kvproof.gpu.memory import HostMemory, Pages

    count = 1024 if machine.memory == "cuda" else 100
    layers, rows, words = 16, 128, 64
    pages = Pages("blocks", 2 * count, rows, layers, words, "block-major", machine.memory)
    order = (torch.randperm(2 * count, generator=torch.Generator().manual_seed(1)) + 1).tolist()
    pairs = [Pair(source, target, rows) for source, target in zip(order[:count], order[count:], strict=True)]
    listed = HostMemory(machine.memory).list(count, 3)
    listed.values.copy_(torch.tensor(pairs))
    kernel = copy_pages(pages, pairs, listed)
    source = torch.ones(count * layers * rows * words, dtype=torch.int64, device=machine.memory)
    target = torch.zeros_like(source)
    seconds = medians({"plain": lambda: target.copy_(source), "ours": lambda: kernel.run(0, count)}, machine)
    plain, ours = seconds["plain"], seconds["ours"]
    moved = 2 * source.numel() * 8
    goal = 90 if machine.memory == "cuda" else 80
    return "measured", (
        f"{moved / ours / 1e9:.0f} GB/s for {count} blocks, {100 * plain / ours:.0f} % of a plain copy "
        f"({moved / plain / 1e9:.0f} GB/s); goal {goal} %"
    )


def sanitizer_overhead(machine: Machine) -> tuple[Verdict, str]:
    """One decode step of 64 requests, launched as one (captured on a GPU), with and without the sanitizer."""
    import torch

    from kvproof.gpu.cells import spans_of_flat
    from kvproof.gpu.device import Kernel
    from kvproof.gpu.kernels import clean_result, scatter_stamps, verify
    from kvproof.gpu.memory import HostMemory, Pages

    requests, rows = 64, 128
    length, layers, words, repeats = (1024, 16, 64, 50) if machine.memory == "cuda" else (8, 2, 2, 4)
    blocks_each = -(-(length + 1) // rows)
    pages = Pages("blocks", requests * blocks_each, rows, layers, words, "layer-major", machine.memory)
    memory = HostMemory(machine.memory)
    first = [(1 + request * blocks_each) * rows for request in range(requests)]
    context = [start + position for start in first for position in range(length)]
    fresh = [start + length for start in first]
    lists = []
    for flat in (context, fresh):
        listed = memory.list(len(flat), 2)
        listed.values.copy_(torch.tensor([(row, row) for row in flat]))
        lists.append(listed)
    result = memory.list(1, 2)
    result.values[0] = clean_result(machine.memory)
    parts = [verify(pages, context, lists[0], result), scatter_stamps(pages, fresh, lists[1])]

    def step(_first: int = 0, _stop: int = 1) -> None:
        for part in parts:
            part.run(0, part.items)

    launch: Callable[[int, int], object] = step
    if machine.memory == "cuda":
        graph = torch.cuda.CUDAGraph()
        step()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            step()
        launch = lambda _first, _stop: graph.replay()  # noqa: E731
    reads = spans_of_flat("blocks", context, rows)
    writes = spans_of_flat("blocks", fresh, rows)
    kernel = Kernel("decode step", reads, writes, launch)

    def many(watched: bool) -> Callable[[], None]:
        device = machine.held()
        if not watched:
            device.sanitizer = None
        stream = device.stream("compute")

        def work() -> None:
            for _ in range(repeats):
                device.launch(stream, kernel)
            device.drain()

        return work

    seconds = medians({"without": many(False), "watched": many(True)}, machine)
    extra = 100 * (seconds["watched"] / seconds["without"] - 1)
    goal = "; goal under 5 %" if machine.memory == "cuda" else ""
    return "measured", (
        f"{1e6 * seconds['without'] / repeats:.0f} us a step of {requests} requests x {length} rows, "
        f"{extra:+.1f} % with the sanitizer{goal}"
    )


def explorer_rate(machine: Machine) -> tuple[Verdict, str]:
    """States a second of the explorer of the spec on this device, where it is part of this version."""
    from kvproof.checks.exploring.explore import explore

    blocks = 4 if machine.memory == "cuda" else 2
    try:
        result = explore("spec", blocks=blocks, device=machine.memory, max_states=5_000_000)
    except ImportError as error:
        return "measured", f"not available: {error}"
    rate = result.classes / result.seconds if result.seconds else 0.0
    return "measured", f"{rate:,.0f} states a second ({result.classes:,} states, {blocks} blocks, {result.engine})"
