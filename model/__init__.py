"""kvproof.model: the executable model of a KV-cache block allocator (standard library only).

Read it in this order.

1. ``interface``  what any allocator offers, and the words for it
2. ``pool``       blocks, owner counts, the free list, the three answers
3. ``request``    how long a request is and which of its rows count
4. ``engine``     the operations: admit, extend, fork, commit, release, ...
5. ``device``     streams, events, and rows that hold stamps
6. ``worker``     what the engine decided, queued on a device
7. ``cache``, ``records``   two more kinds of owner
8. ``reference``  all of it behind the interface
9. ``mutants``    single-rule breaks of it
10. ``transitions``  the engine as states and moves, for exhaustive exploration
11. ``trace``, ``schema``   runs written down and played back
"""

from __future__ import annotations

from .cache import CachingPool, content_keys
from .device import Device, Row, Stamp, Ticket
from .engine import Engine, QueuedCopy
from .errors import Misuse
from .interface import (
    Allocator,
    Answer,
    Configuration,
    Copy,
    Declaration,
    Pool,
    Reply,
    capabilities_of,
    declaration_of,
)
from .mutants import MUTANTS, Mutant, make_mutant
from .pool import BlockPool
from .records import Handle, Records
from .reference import ReferenceAllocator, make_reference
from .request import Request
from .trace import Operation, Recorder, Replayed, Trace, TraceError, loads, read_trace, replay, write_trace
from .transitions import PoolMachine
from .worker import Contents, Worker

__all__ = [
    "MUTANTS",
    "Allocator",
    "Answer",
    "BlockPool",
    "CachingPool",
    "Configuration",
    "Contents",
    "Copy",
    "Declaration",
    "Device",
    "Engine",
    "Handle",
    "Misuse",
    "Mutant",
    "Operation",
    "Pool",
    "PoolMachine",
    "QueuedCopy",
    "Recorder",
    "Records",
    "ReferenceAllocator",
    "Replayed",
    "Reply",
    "Request",
    "Row",
    "Stamp",
    "Ticket",
    "Trace",
    "TraceError",
    "Worker",
    "capabilities_of",
    "content_keys",
    "declaration_of",
    "loads",
    "make_mutant",
    "make_reference",
    "read_trace",
    "replay",
    "write_trace",
]
