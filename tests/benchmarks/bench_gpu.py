"""Speed of the GPU backend's parts on a CPU, as ratios measured in one run.

    python tests/benchmarks/bench_gpu.py

Goals: copying 100 blocks of 1 MiB, block-major, at 80 % or more of one plain copy of the same bytes;
40,000 launches a second on the simulated device, 10,000 with the sanitizer.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch

from kvproof.gpu.cells import Span
from kvproof.gpu.device import Kernel
from kvproof.gpu.kernels import Pair, copy_pages
from kvproof.gpu.memory import HostMemory, Layout, Pages
from kvproof.gpu.sanitizer import Sanitizer
from kvproof.gpu.schedules import Eager, Lazy, Random, Schedule
from kvproof.gpu.sim import SimDevice

BLOCKS, LAYERS, ROWS, WORDS = 100, 16, 128, 64
"""100 blocks of 16 layers x 128 rows x 512 bytes: 1 MiB each."""
LAUNCHES = 20_000
ROUNDS = 7


def interleaved(cases: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Median seconds of each case; the cases take turns, so that a busy machine hits them alike."""
    times: dict[str, list[float]] = {name: [] for name in cases}
    for case in cases.values():
        case()
    for _ in range(ROUNDS):
        for name, case in cases.items():
            start = time.perf_counter()
            case()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def copy_case(layout: Layout) -> Callable[[], object]:
    """The copy kernel on 100 scattered pairs."""
    pages = Pages("blocks", 2 * BLOCKS, ROWS, LAYERS, WORDS, layout)
    order = (torch.randperm(2 * BLOCKS, generator=torch.Generator().manual_seed(1)) + 1).tolist()
    pairs = [Pair(source, target, ROWS) for source, target in zip(order[:BLOCKS], order[BLOCKS:], strict=True)]
    listed = HostMemory().list(BLOCKS, 3)
    listed.values.copy_(torch.tensor(pairs))
    kernel = copy_pages(pages, pairs, listed)
    return lambda: kernel.run(0, BLOCKS)


def plain_copy() -> Callable[[], object]:
    """One copy_ of the same bytes."""
    source = torch.ones(BLOCKS * LAYERS * ROWS * WORDS, dtype=torch.int64)
    target = torch.zeros_like(source)
    return lambda: target.copy_(source)


def launches(schedule: Callable[[], Schedule], sanitized: bool) -> Callable[[], object]:
    """A program of small kernels on three streams: 16 rows read, 16 written, a tenth of them followed by events."""
    kernels = [
        Kernel("k", (Span("blocks", i, 0, 16),), (Span("blocks", 7 * i % 64, 0, 16),), lambda *_: None)
        for i in range(64)
    ]

    def run() -> None:
        device = SimDevice(schedule(), Sanitizer() if sanitized else None)
        streams: Sequence = [device.stream(name) for name in ("compute", "copy", "load")]
        for number in range(LAUNCHES):
            device.launch(streams[number % 3], kernels[number % 64])
            if number % 10 == 9:
                event = device.record(streams[number % 3])
                device.wait(streams[(number + 1) % 3], event)
            if number % 50 == 49:
                device.synchronize(event)
        device.drain()

    return run


def main() -> None:
    """Print both tables."""
    torch.set_num_threads(1)
    layouts: tuple[Layout, ...] = ("block-major", "layer-major")
    seconds = interleaved({"plain copy_": plain_copy(), **{layout: copy_case(layout) for layout in layouts}})
    moved = 2 * BLOCKS * LAYERS * ROWS * WORDS * 8
    print(f"copy of {BLOCKS} blocks of 1 MiB (read and written bytes, one thread)")
    for name, taken in seconds.items():
        print(f"  {name:12s} {moved / taken / 1e9:6.1f} GB/s  {100 * seconds['plain copy_'] / taken:5.0f} % of plain")
    schedules: dict[str, Callable[[], Schedule]] = {"eager": Eager, "lazy": Lazy, "random": lambda: Random(1)}
    print(f"launches a second on the simulated device ({LAUNCHES} launches)")
    for name, schedule in schedules.items():
        both = interleaved({"without": launches(schedule, False), "with": launches(schedule, True)})
        rates = {key: LAUNCHES / taken for key, taken in both.items()}
        print(f"  {name:8s} {rates['without']:9,.0f} without, {rates['with']:9,.0f} with the sanitizer")


if __name__ == "__main__":
    main()
