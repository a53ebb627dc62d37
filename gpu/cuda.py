"""The real device: CUDA streams and events through PyTorch.

Side streams of PyTorch are non-blocking: they have no hidden order with the default stream, so the
only order is the one that this code records and waits for.  Stream 0 is never used.
"""

from __future__ import annotations

from typing import Any

import torch

from .device import Device, Event, Kernel, Stream
from .sanitizer import Sanitizer


class NoCuda(RuntimeError):
    """This machine, or this build of PyTorch, has no CUDA device."""


class CudaDevice(Device):
    """One CUDA device.  Kernels run as one launch: their items are left to the hardware."""

    memory = "cuda"

    def __init__(self, sanitizer: Sanitizer | None = None) -> None:
        if not torch.cuda.is_available():
            raise NoCuda(
                "no CUDA device is available (torch.cuda.is_available() is False): use SimDevice, or install a CUDA "
                "build of PyTorch on a machine with a GPU"
            )
        super().__init__(sanitizer)

    def hold(self, stream: Stream, milliseconds: float) -> None:
        """Keep the stream busy for about that long (at 1.9 GHz), so that what follows is late.

        A test that delays work must assert ``not query(event)`` afterwards: otherwise it may pass
        without having tested anything.
        """
        with torch.cuda.stream(stream.native):
            torch.cuda._sleep(int(milliseconds * 1.9e6))  # type: ignore[no-untyped-call]

    def settle(self) -> None:
        """The host waits for the whole device."""
        torch.cuda.synchronize()

    def _open(self, name: str) -> Any:  # noqa: ARG002  (CUDA streams have no names)
        return torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def _new_event(self) -> Any:
        return torch.cuda.Event()  # type: ignore[no-untyped-call]

    def _launch(self, stream: Stream, kernel: Kernel) -> None:
        with torch.cuda.stream(stream.native):
            kernel.run(0, kernel.items)

    def _record(self, stream: Stream, event: Event) -> None:
        event.native.record(stream.native)

    def _wait(self, stream: Stream, event: Event) -> None:
        stream.native.wait_event(event.native)

    def _query(self, event: Event) -> bool:
        return bool(event.native.query())

    def _synchronize(self, event: Event) -> None:
        event.native.synchronize()
