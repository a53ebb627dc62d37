"""kvproof.model: the executable model of a KV-cache block allocator (standard library only).

Read it in this order.

1. ``interface``    what any allocator offers, and the words for it
2. ``pool``         blocks, owner counts, the free list, the three answers
3. ``request``      how long a request is and which of its rows count
4. ``engine``       the operations: admit, extend, fork, commit, release, ...
5. ``device``       streams, events, and rows that hold stamps
6. ``worker``       what the engine decided, queued on a device
7. ``visibility``   which rows count, and which the current step may read
8. ``cache``        blocks without owner whose contents can still be hit
9. ``records``      output records and their readers
10. ``slots``, ``sizing``   state slots, and how large both pools become
11. ``scheduler``   DeepInfer's passes over the engine
12. ``reference``   the model behind the interface
13. ``mutants``     single-rule breaks of it
14. ``transitions`` the engine as states and moves, for exhaustive exploration
15. ``trace``, ``schema``   runs written down and played back

``errors`` has every misuse by name.
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
from .scheduler import Scheduler
from .slots import SlotLayout, slot_pool_size
from .trace import Operation, Recorder, Replayed, Trace, TraceError, loads, read_trace, replay, write_trace
from .transitions import PoolMachine
from .visibility import Condition, committed, failing, failing_in_slot, visible_to_step
from .worker import Contents, Worker

__all__ = [
    "MUTANTS",
    "Allocator",
    "Answer",
    "BlockPool",
    "CachingPool",
    "Condition",
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
    "Scheduler",
    "SlotLayout",
    "Stamp",
    "Ticket",
    "Trace",
    "TraceError",
    "Worker",
    "capabilities_of",
    "committed",
    "content_keys",
    "declaration_of",
    "failing",
    "failing_in_slot",
    "loads",
    "make_mutant",
    "make_reference",
    "read_trace",
    "replay",
    "slot_pool_size",
    "visible_to_step",
    "write_trace",
]
