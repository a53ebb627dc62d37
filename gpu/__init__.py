"""The GPU side: real tensors, streams and events behind the model's interface, and a sanitizer.

Reading order: :mod:`cells` (what a row is called), :mod:`device` (streams, events, tickets),
:mod:`sim` and :mod:`schedules` (a device whose order the test chooses), :mod:`cuda` (the real one),
:mod:`memory` (the KV tensors), :mod:`kernels` (work with a declared footprint), :mod:`sanitizer`
(ordering errors, found when work is launched), :mod:`worker` and :mod:`backend` (the allocator itself).
"""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401  (only to say early and clearly that it is missing)
except ModuleNotFoundError as missing:
    if missing.name != "torch":
        raise
    raise ImportError(
        "kvproof.gpu needs PyTorch, which is not installed: run pip install 'kvproof[gpu]' (a CPU build is enough)"
    ) from None
