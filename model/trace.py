"""Traces: a run written down, one JSON object a line, and played back.

The first line is a header, each further line one operation::

    {"format": "kvproof-trace", "version": 1, "config": {...}, "target": "reference", "seed": 0, "packages": {}}
    {"op": "admit", "request": "A", "args": {"tokens": [100, 101]}, "answer": "ok", "effects": {...}}

``effects`` holds what the operation returned (``reply``, ``result`` or ``error``) and ``pools``, the
snapshot after it; what never changes (usable and reserved ids) is in the header's ``pools``, with
the snapshot before the first operation.

A trace is untrusted input: sizes are bounded, every field is checked, unknown ones are refused, and
:class:`TraceError` names the line, the field and what was expected.  Reading executes nothing.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from .interface import MISUSES, Allocator, Configuration, Copy, Pool, Reply, Snapshot
from .schema import (
    Check,
    Mismatch,
    items,
    label,
    mapping,
    one_of,
    optional,
    pair,
    parse,
    plain,
    record,
    shown,
    text,
    whole,
)

FORMAT = "kvproof-trace"
VERSION = 1

MAX_BYTES = 256 * 2**20
MAX_LINE = 8 * 2**20
MAX_OPERATIONS = 1_000_000
MAX_BLOCKS = 2**20

_count = whole(0)
_name = label()
_ids = items(_count)
_number_each = items(pair(_count, _count))

ARGUMENTS: Mapping[str, Mapping[str, Check]] = {
    "admit": {"tokens": items(whole())},
    "extend": {"tokens": items(whole()), "drafts": _count},
    "commit": {"rows": _count},
    "release": {"reason": one_of(("finish", "preempt", "abort"))},
    "fork": {"child": _name, "rows": _count},
    "complete": {"tickets": items(_count)},
    "submit": {},
    "advance": {"rows": _count},
    "read": {},
    "pin": {"name": _name},
    "unpin": {"name": _name},
    "evict": {"blocks": _count},
    "hold": {"holder": _name},
    "ack": {"holder": _name},
    "move": {"tier": _name},
    "take": {"value": plain()},
    "clone": {"address": _count},
    "recycle": {},
    "probe": {"misuse": one_of(MISUSES)},
}
"""Arguments of every operation, in call order, without the request (for ``fork`` the parent)."""

NAMELESS = frozenset({"complete", "unpin", "evict", "ack", "clone", "recycle"})
"""Operations that speak of no request: theirs is null."""


def _call_order(op: str) -> tuple[str, ...]:
    first = () if op in NAMELESS else ("parent",) if op == "fork" else ("request",)
    return (*first, *ARGUMENTS[op])


_POOL_STATE: Mapping[str, Check] = {
    "free": _ids,
    "tables": mapping(_ids),
    "evictable": _ids,
    "holds": mapping(_ids, key=label(1000)),
    "counts": optional(items(pair(_count, whole()))),
    "keys": optional(items(pair(_count, plain(0)))),
    "committed": optional(mapping(whole())),
}
_POOL_MORE: Mapping[str, Check] = {"queued": optional(_ids)}
_POOL_FRAME: Mapping[str, Check] = {"usable": _number_each, "reserved": _number_each}

_COPY = record({"source": _count, "destination": _count, "rows": _count, "ticket": _count, "pool": _name})
_EFFECTS = record(
    {},
    {
        "reply": record({"hit_rows": _count, "copies": items(_COPY), "evicted": optional(_ids)}),
        "result": plain(),
        "error": record({"type": _name, "message": text(10_000)}),
        "pools": mapping(record(_POOL_STATE, _POOL_MORE)),
    },
)
_ANSWERS = ("ok", "later", "never", "done", "raised", "unsupported")
_OPERATION = record(
    {
        "op": one_of(ARGUMENTS),
        "request": optional(_name),
        "args": mapping(plain()),
        "answer": one_of(_ANSWERS),
        "effects": _EFFECTS,
    }
)
_CONFIG = record(
    {
        "blocks": whole(1, MAX_BLOCKS),
        "block_size": whole(1, MAX_BLOCKS),
        "max_requests": whole(1, MAX_BLOCKS),
        "state_slots": whole(0, MAX_BLOCKS),
        "seed": whole(),
    }
)
_HEADER = record(
    {
        "format": one_of((FORMAT,)),
        "version": whole(1),
        "config": _CONFIG,
        "target": label(1000),
        "seed": whole(),
        "packages": mapping(_name),
    },
    {"pools": mapping(record({**_POOL_FRAME, **_POOL_STATE}, _POOL_MORE))},
)


class TraceError(ValueError):
    """The file is not a trace that can be read: which line, which field, what was expected."""

    def __init__(self, line: int, problem: str) -> None:
        super().__init__(f"line {line}: {problem}")
        self.line = line


@dataclass(frozen=True)
class Operation:
    """One line: what was asked, what was answered, what it did."""

    op: str
    request: str | None
    args: Mapping[str, Any]
    answer: str
    effects: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Trace:
    """A whole run.  ``pools`` is the header's: usable and reserved ids, and the state at the start."""

    configuration: Configuration
    target: str
    seed: int
    packages: Mapping[str, str]
    operations: Sequence[Operation]
    pools: Mapping[str, Any] | None = None

    def start(self) -> Snapshot | None:
        """The snapshot before the first operation, when the trace has it."""
        return None if self.pools is None else _snapshot(self.pools, self.pools)

    def after(self, operation: Operation) -> Snapshot | None:
        """The snapshot after an operation, when the trace has it."""
        states = operation.effects.get("pools")
        return None if states is None or self.pools is None else _snapshot(self.pools, states)


# Writing ------------------------------------------------------------------------------------------


def dumps(trace: Trace) -> str:
    """The trace as text, one JSON object a line."""
    config = trace.configuration
    header: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "config": {name: getattr(config, name) for name in Configuration.__slots__},
        "target": trace.target,
        "seed": trace.seed,
        "packages": dict(trace.packages),
    }
    if trace.pools is not None:
        header["pools"] = trace.pools
    lines = [header, *({**vars(operation)} for operation in trace.operations)]
    return "".join(json.dumps(line) + "\n" for line in lines)


def write_trace(path: Path | str, trace: Trace) -> None:
    """Write the trace to a file."""
    Path(path).write_text(dumps(trace), encoding="utf-8")


# Reading ------------------------------------------------------------------------------------------


def read_trace(path: Path | str) -> Trace:
    """Read a trace file.  :class:`TraceError` on anything that is not one, ``OSError`` when it cannot be opened."""
    with open(path, "rb") as file:
        return _read(_lines(file))


def loads(content: str) -> Trace:
    """Read a trace from text."""
    return _read(_lines(io.BytesIO(content.encode("utf-8", "surrogatepass"))))


def _read(lines: Iterator[tuple[int, str]]) -> Trace:
    header: Any = None
    operations: list[Operation] = []
    for number, line in lines:
        try:
            if not line.endswith("\n"):
                raise Mismatch("", "the line has no end: the file is truncated")
            value = parse(line)
            if header is None:
                header = _checked_header(value)
            elif len(operations) == MAX_OPERATIONS:
                raise Mismatch("", f"more than {MAX_OPERATIONS} operations")
            else:
                operations.append(_checked_operation(value, header.get("pools")))
        except Mismatch as problem:
            raise TraceError(number, str(problem)) from None
    if header is None:
        raise TraceError(1, f'the file is empty: a header {{"format": "{FORMAT}", ...}} was expected')
    return Trace(
        Configuration(**header["config"]),
        header["target"],
        header["seed"],
        header["packages"],
        operations,
        header.get("pools"),
    )


def _lines(file: BinaryIO) -> Iterator[tuple[int, str]]:
    number = size = 0
    while line := file.readline(MAX_LINE + 1):
        number += 1
        size += len(line)
        if len(line) > MAX_LINE:
            raise TraceError(number, f"longer than {MAX_LINE} bytes")
        if size > MAX_BYTES:
            raise TraceError(number, f"the file is larger than {MAX_BYTES} bytes")
        try:
            yield number, line.decode("utf-8")
        except UnicodeDecodeError:
            raise TraceError(number, "not UTF-8 text") from None


def _checked_header(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise Mismatch("format", f"a trace starts with a header whose format is {FORMAT!r}")
    whole(1)(value.get("version"), "version")
    if value["version"] > VERSION:
        raise Mismatch("version", f"version {value['version']} is newer than this program reads ({VERSION}): update it")
    _HEADER(value, "")
    found: dict[str, Any] = value
    for name, pool in (found.get("pools") or {}).items():
        if sum(last - first + 1 for first, last in pool["usable"] + pool["reserved"]) > 2 * MAX_BLOCKS:
            raise Mismatch(f"pools.{name}.usable", f"more than {MAX_BLOCKS} blocks")
    return found


def _checked_operation(value: Any, pools: Mapping[str, Any] | None) -> Operation:
    _OPERATION(value, "")
    op, request = value["op"], value["request"]
    record(ARGUMENTS[op])(value["args"], "args")
    if (request is None) != (op in NAMELESS):
        expected = "null" if op in NAMELESS else "the name of a request"
        raise Mismatch("request", f"{shown(request)} where {op} needs {expected}")
    if pools is not None and (unknown := sorted(value["effects"].get("pools", {}).keys() - pools.keys())):
        raise Mismatch(f"effects.pools.{unknown[0]}", "the header knows no such pool")
    return Operation(op, request, value["args"], value["answer"], value["effects"])


# Snapshots in traces ------------------------------------------------------------------------------


def pools_of(snapshot: Snapshot) -> dict[str, Any]:
    """The changing part of a snapshot, as JSON values."""
    return {
        name: {
            "free": list(pool.free),
            "tables": {request: list(table) for request, table in pool.tables.items()},
            "evictable": sorted(pool.evictable),
            "holds": {_label(owner): list(blocks) for owner, blocks in pool.holds.items()},
            "counts": None if pool.counts is None else [list(entry) for entry in sorted(pool.counts.items())],
            "keys": None if pool.keys is None else [[at, _plain_key(key)] for at, key in sorted(pool.keys.items())],
            "committed": None if pool.committed is None else dict(pool.committed),
            "queued": None if pool.queued is None else list(pool.queued),
        }
        for name, pool in snapshot.items()
    }


def frames_of(snapshot: Snapshot) -> dict[str, Any]:
    """The header's part: what never changes, and the state at the start."""
    return {
        name: {"usable": _ranges(snapshot[name].usable), "reserved": _ranges(snapshot[name].reserved), **state}
        for name, state in pools_of(snapshot).items()
    }


def _snapshot(frames: Mapping[str, Any], states: Mapping[str, Any]) -> Snapshot:
    return {
        name: Pool(
            usable=_ids_of(frames[name]["usable"]),
            free=tuple(state["free"]),
            tables={request: tuple(table) for request, table in state["tables"].items()},
            reserved=_ids_of(frames[name]["reserved"]),
            evictable=frozenset(state["evictable"]),
            holds={owner: tuple(blocks) for owner, blocks in state["holds"].items()},
            counts=None if state["counts"] is None else dict(state["counts"]),
            keys=None if state["keys"] is None else dict(state["keys"]),
            committed=state["committed"],
            queued=None if state.get("queued") is None else tuple(state["queued"]),
        )
        for name, state in states.items()
    }


def _ranges(ids: Iterable[int]) -> list[list[int]]:
    """Sorted ids as [first, last] pairs."""
    ranges: list[list[int]] = []
    for block in sorted(ids):
        if ranges and ranges[-1][1] == block - 1:
            ranges[-1][1] = block
        else:
            ranges.append([block, block])
    return ranges


def _ids_of(ranges: Iterable[Sequence[int]]) -> frozenset[int]:
    return frozenset(block for first, last in ranges for block in range(first, last + 1))


def _label(owner: Hashable) -> str:
    """The name of an owner, as a trace can hold it."""
    written = str(owner)
    return (written if written.isprintable() else ascii(written))[:1000]


def _plain_key(key: Hashable) -> Hashable:
    return key if isinstance(key, str | int) and not isinstance(key, bool) else repr(key)[:1000]


# Recording ----------------------------------------------------------------------------------------


def describe(op: str, request: str | None, args: Sequence[Any], outcome: object, after: Snapshot | None) -> Operation:
    """One line from one call: ``outcome`` is what it returned, or the exception it raised."""
    effects: dict[str, Any] = {}
    answer = "done"
    if isinstance(outcome, Reply):
        answer = outcome.answer.value
        effects["reply"] = {
            "hit_rows": outcome.hit_rows,
            "copies": [{name: getattr(copy, name) for name in Copy.__slots__} for copy in outcome.copies],
            "evicted": None if outcome.evicted is None else list(outcome.evicted),
        }
    elif isinstance(outcome, BaseException):
        answer = "raised"
        effects["error"] = {"type": type(outcome).__name__[:256], "message": str(outcome)[:10_000]}
    elif outcome is not None:
        effects["result"] = _plain(outcome)
    if after is not None:
        effects["pools"] = pools_of(after)
    named = {name: _plain(value) for name, value in zip(ARGUMENTS[op], args, strict=True)}
    return Operation(op, request, named, answer, effects)


def _plain(value: object) -> Any:
    """The value as JSON can hold it; anything else as its description."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, Sequence) else repr(value)[:10_000]


class Recorder:
    """Wraps any allocator and writes down every call.  It has exactly the capabilities of what it wraps."""

    def __init__(
        self,
        allocator: Allocator,
        configuration: Configuration,
        target: str = "",
        seed: int = 0,
        packages: Mapping[str, str] | None = None,
    ) -> None:
        self._allocator = allocator
        self._header = configuration, target, seed, dict(packages or {})
        self._pools = frames_of(allocator.snapshot())
        self.operations: list[Operation] = []
        for name in ("declaration", "supports_drafts", "supports_slots", "snapshot", "close"):
            if hasattr(allocator, name):
                setattr(self, name, getattr(allocator, name))
        for op in ARGUMENTS:
            if hasattr(allocator, op):
                setattr(self, op, self._wrap(op))

    def trace(self) -> Trace:
        """Everything so far."""
        configuration, target, seed, packages = self._header
        return Trace(configuration, target, seed, packages, tuple(self.operations), self._pools)

    def _wrap(self, op: str) -> Callable[..., Any]:
        method = getattr(self._allocator, op)
        order = _call_order(op)

        def call(*given: Any, **named: Any) -> Any:
            values = {"drafts": 0, **dict(zip(order, given, strict=False)), **named}
            request = values.get("parent", values.get("request"))
            args = [values.get(name) for name in ARGUMENTS[op]]
            outcome = _outcome(method, given, named)
            self.operations.append(describe(op, request, args, outcome, _observe(self._allocator)))
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        return call


# Playing back -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Replayed:
    """One operation of a trace, and what happened when it was asked again."""

    recorded: Operation
    actual: Operation

    @property
    def same_answer(self) -> bool:
        """The same answer, hit rows and result: what a caller can tell without looking at block ids."""
        return self._asked(self.recorded) == self._asked(self.actual)

    @property
    def identical(self) -> bool:
        """The same in everything that was recorded."""
        return self.same_answer and all(self.actual.effects.get(k) == v for k, v in self.recorded.effects.items())

    @staticmethod
    def _asked(operation: Operation) -> tuple[object, ...]:
        effects = operation.effects
        error = effects.get("error") or {}
        reply = effects.get("reply") or {}
        result = None if operation.op in ("take", "submit") else effects.get("result")  # an address, a ticket
        return operation.answer, reply.get("hit_rows"), result, error.get("type")


def replay(trace: Trace, allocator: Allocator) -> Iterator[Replayed]:
    """Ask ``allocator`` the recorded operations, one after the other.

    Tickets and record addresses are the allocator's own: recorded ones are translated through the
    replies.  An operation that the allocator does not have is answered ``unsupported``.
    """
    tickets: dict[int, int] = {}
    addresses: dict[int, int] = {}
    for recorded in trace.operations:
        written = [recorded.args[name] for name in ARGUMENTS[recorded.op]]
        args: list[Any] = written
        if recorded.op == "complete":
            args = [[tickets.get(ticket) for ticket in written[0] if tickets.get(ticket) is not None]]
        elif recorded.op == "clone":
            args = [addresses.get(written[0], written[0])]
        method = getattr(allocator, recorded.op, None)
        if method is None:
            yield Replayed(recorded, Operation(recorded.op, recorded.request, recorded.args, "unsupported"))
            continue
        outcome = _outcome(method, args if recorded.op in NAMELESS else [recorded.request, *args], {})
        yield Replayed(recorded, describe(recorded.op, recorded.request, written, outcome, _observe(allocator)))
        if isinstance(outcome, Reply):
            copies = recorded.effects.get("reply", {}).get("copies", [])
            tickets.update((old["ticket"], new.ticket) for old, new in zip(copies, outcome.copies, strict=False))
        elif isinstance(outcome, int) and isinstance(old := recorded.effects.get("result"), int):
            {"submit": tickets, "take": addresses}.get(recorded.op, {})[old] = outcome


def _outcome(method: Callable[..., object], args: Sequence[object], named: Mapping[str, object]) -> object:
    try:
        return method(*args, **named)
    except Exception as error:
        return error


def _observe(allocator: Allocator) -> Snapshot | None:
    try:
        return allocator.snapshot()
    except Exception:  # whatever made the call fail may make this fail too: the line is still worth having
        return None
