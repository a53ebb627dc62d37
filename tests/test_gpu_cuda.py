"""The CUDA device without CUDA: what it asks of PyTorch, and that the backend runs on it unchanged.

``torch.cuda`` is replaced by stand-ins with the same signatures that run everything at once.  This
shows the calls, not the hardware: nothing here has run on a GPU.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

pytest.importorskip("torch")

import torch

from kvproof.checks.differential.diff import programs, side
from kvproof.gpu import ops
from kvproof.gpu.backend import GpuAllocator, Policy
from kvproof.gpu.cuda import CudaDevice
from kvproof.gpu.sanitizer import Sanitizer
from kvproof.model.interface import Allocator, Configuration

CALLS: list[tuple[str, ...]] = []
CURRENT: list[str] = ["default"]


class StandInStream:
    """Has the methods that the device uses, with the signatures of ``torch.cuda.Stream``."""

    made = 0

    def __init__(self) -> None:
        StandInStream.made += 1
        self.name = f"side {StandInStream.made}"

    def wait_event(self, event: StandInEvent) -> None:
        assert event.recorded
        CALLS.append(("wait", self.name))


class StandInEvent:
    """The same for ``torch.cuda.Event``."""

    def __init__(self) -> None:
        self.recorded = False

    def record(self, stream: StandInStream | None = None) -> None:
        assert stream is not None, "without a stream the event is recorded on whichever is current"
        self.recorded = True
        CALLS.append(("record", stream.name))

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        CALLS.append(("synchronize",))


@contextmanager
def stand_in_context(stream: StandInStream) -> Iterator[None]:
    CURRENT.append(stream.name)
    yield
    CURRENT.pop()


class CudaOnCpu(CudaDevice):
    """The real class, with tensors in host memory."""

    memory = "cpu"


@pytest.fixture
def _stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "Stream", StandInStream)
    monkeypatch.setattr(torch.cuda, "Event", StandInEvent)
    monkeypatch.setattr(torch.cuda, "stream", stand_in_context)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    for name in ("copy_rows", "scatter_rows", "gather_rows", "verify_rows", "fill_pages"):
        indexed = getattr(ops, f"_{name}_cuda")

        def on_a_stream(*arguments: object, indexed=indexed) -> None:  # type: ignore[no-untyped-def]
            assert CURRENT[-1] != "default", "a kernel was launched on the default stream"
            indexed(*arguments)

        monkeypatch.setattr(ops, name, on_a_stream)
    CALLS.clear()


def test_the_real_classes_have_the_methods_that_the_device_calls() -> None:
    assert "event" in inspect.signature(torch.cuda.Stream.wait_event).parameters
    assert "stream" in inspect.signature(torch.cuda.Event.record).parameters
    for method in ("query", "synchronize"):
        assert callable(getattr(torch.cuda.Event, method))


@pytest.mark.usefixtures("_stand_ins")
def test_every_stream_is_a_side_stream_and_every_event_is_recorded_on_one() -> None:
    device = CudaOnCpu()
    names = {device.stream(name).native.name for name in ("compute", "copy", "load")}
    assert len(names) == 3
    device.wait(device.stream("copy"), device.record(device.stream("compute")))
    device.synchronize(device.record(device.stream("copy")))
    compute, copy = device.stream("compute").native.name, device.stream("copy").native.name
    assert [("record", compute), ("wait", copy), ("record", copy), ("synchronize",)] == CALLS


@pytest.mark.usefixtures("_stand_ins")
def test_the_backend_runs_on_it_with_the_indexed_kernels_and_agrees_with_the_model() -> None:
    def backend(configuration: Configuration, _schedule: str, _seed: int) -> Allocator:
        return GpuAllocator(configuration, CudaOnCpu(Sanitizer()), Policy(strict=False, poison=True))

    for program in programs(side("reference"), backend, 25, 4, "eager"):
        assert program.differences == [], program.operations
    assert CURRENT == ["default"]
