"""``kvproof monitor``: is every step of a recorded run allowed by the spec?

Two judgements on each step, both made by the text:

- the rule book, on the relations that the observation has (with the harness's ghost for rows);
- the actions: the step is told as actions of the text, which must be possible and must lead to the
  state that was observed (:mod:`kvproof.checks.monitoring.allowed`).

The second is for implementations whose only owners besides requests are pins, holders and queued
copies, and whose destinations are pinned or ordered; for others the rule book alone judges, and the
result says so.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvproof.checks.lockstep.follow import Follower
from kvproof.checks.lockstep.form import snapshot_problem
from kvproof.checks.lockstep.harness import ANSWERING, difference
from kvproof.checks.lockstep.operations import Operation, length
from kvproof.checks.monitoring.allowed import OwnershipMonitor, Refused
from kvproof.checks.proof.prove import CERTIFIED, UNDETERMINED, VIOLATED
from kvproof.checks.proof.spec_finding import SpecFinding
from kvproof.checks.readings.sets import RuleBook
from kvproof.model.interface import (
    BLOCKS,
    Answer,
    Configuration,
    Copy,
    Declaration,
    Reply,
    Snapshot,
    capabilities_of,
    declaration_of,
)
from kvproof.model.trace import Operation as Recorded
from kvproof.model.trace import Trace, read_trace
from kvproof.spec import RULES


@dataclass(frozen=True)
class MonitorResult:
    """``certified`` if all steps are allowed, ``violated`` with the first that is not, ``undetermined`` if the
    trace does not have the snapshots to judge by."""

    verdict: str
    finding: SpecFinding | None
    steps: int
    """Steps judged, the one that is not allowed included."""
    seconds: float
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The object that ``kvproof monitor --json`` prints."""
        return {
            "verdict": self.verdict,
            "finding": None if self.finding is None else self.finding.as_json(),
            "steps": self.steps,
            "seconds": round(self.seconds, 3),
            "notes": list(self.notes),
        }

    def exit_code(self) -> int:
        """0 certified, 1 violated, 3 undetermined."""
        return {CERTIFIED: 0, VIOLATED: 1}.get(self.verdict, 3)


class Monitor:
    """Judges one step after another.  ``actions`` says whether steps are told as actions too."""

    def __init__(
        self,
        configuration: Configuration,
        declaration: Declaration,
        capabilities: frozenset[str],
        start: Snapshot,
        *,
        actions: bool = True,
    ) -> None:
        self.follower = Follower(configuration, declaration, capabilities)
        self.book = RuleBook(RULES.values())
        self.follower.observe(None, start)
        told = actions and declaration.destination != "cancelled"
        self.ownership = OwnershipMonitor(configuration, declaration, start) if told else None

    def begin(self) -> tuple[str | None, str, str] | None:
        """What is wrong before the first operation, if anything."""
        assert self.follower.facts is not None
        breaches = self.book.first_breaches(None, None, self.follower.facts)
        return (breaches[0].rule, "rule", str(breaches[0])) if breaches else None

    def step(self, operation: Operation, reply: object, snapshot: Snapshot) -> tuple[str | None, str, str] | None:
        """The first thing that is wrong: the rule (or what else), its kind, and the sentence; None if nothing."""
        refused = None
        if self.ownership is not None:
            try:
                self.ownership.step(operation, reply, snapshot)
            except Refused as error:
                refused = str(error)
        before, event, now = self.follower.follow(operation, reply, snapshot)
        breaches = self.book.first_breaches(before, event, now)
        if breaches:
            return breaches[0].rule, "rule", str(breaches[0])
        if operation.op == "read" and isinstance(reply, Sequence) and (detail := self._misread(operation, reply)):
            return "no_read_before_fill", "wrong_rows", detail
        return None if refused is None else (None, "not_allowed", refused)

    def _misread(self, operation: Operation, found: Sequence[int]) -> str | None:
        """What a recorded reading of rows has that the request did not write."""
        name = operation.request or ""
        shadow = self.follower.requests.get(name)
        if shadow is None or shadow.optimistic or not self.follower.readable(name):
            return None
        return difference(name, self.follower.expected_tokens(name), list(found))


def monitor(path: str | Path, declaration: Declaration | None = None) -> MonitorResult:
    """Judge a recorded run.

    ``declaration`` is needed for targets that are not built in, unless they declare nothing.  Raises
    :class:`~kvproof.model.trace.TraceError` and ``OSError``.
    """
    return judge(read_trace(path), declaration)


def judge(trace: Trace, declaration: Declaration | None = None) -> MonitorResult:
    """Judge a run that was read."""
    began = time.perf_counter()
    start = trace.start()
    if start is None:
        note = "the trace has no snapshots: record it with kvproof.model.trace.Recorder"
        return MonitorResult(UNDETERMINED, None, 0, time.perf_counter() - began, (note,))
    if problem := snapshot_problem(start):
        return MonitorResult(UNDETERMINED, None, 0, time.perf_counter() - began, (f"line 1: {problem}",))
    declared, capabilities = _promises(trace, declaration)
    explains = all(_told_owners(snapshot) for snapshot in _snapshots(trace))
    watcher = Monitor(trace.configuration, declared, capabilities, start, actions=explains)
    notes = (
        () if watcher.ownership else ("judged by the rule book alone: owners or disciplines the actions do not tell",)
    )
    last = start
    if (wrong := watcher.begin()) is not None:
        return MonitorResult(VIOLATED, _finding(wrong, []), 0, time.perf_counter() - began, notes)
    done: list[Operation] = []
    for number, recorded in enumerate(trace.operations, start=1):
        operation, reply = _operation(recorded), _reply(recorded)
        done.append(operation)
        if recorded.answer in ("raised", "unsupported"):
            finding = _finding((None, recorded.answer, f"{operation}: {recorded.answer}"), done)
            return MonitorResult(VIOLATED, finding, number, time.perf_counter() - began, notes)
        seen = trace.after(recorded)
        if (doubt := _doubt(watcher, operation, recorded, reply, seen)) is not None:
            note = f"line {number + 1}: {doubt}"
            return MonitorResult(UNDETERMINED, None, number - 1, time.perf_counter() - began, (*notes, note))
        snapshot = last if seen is None else seen
        wrong = watcher.step(operation, reply, snapshot)
        if wrong is not None:
            return MonitorResult(VIOLATED, _finding(wrong, done), number, time.perf_counter() - began, notes)
        last = snapshot
    if not done:
        return MonitorResult(UNDETERMINED, None, 0, time.perf_counter() - began, (*notes, "the run has no operations"))
    return MonitorResult(CERTIFIED, None, len(done), time.perf_counter() - began, notes)


def _doubt(
    watcher: Monitor, operation: Operation, recorded: Recorded, reply: object, seen: Snapshot | None
) -> str | None:
    """Why a step cannot be judged; None when it can."""
    if seen is not None and (problem := snapshot_problem(seen)):
        return problem
    if operation.op in ANSWERING and not isinstance(reply, Reply):
        return f"{_told(operation)} has no reply to judge"
    if operation.op != "read":
        if (reason := watcher.follower.illegal(operation)) is not None:
            return f"a caller may not ask this now: {reason}"
        if seen is None and recorded.answer not in ("later", "never"):
            return f"{_told(operation)} has no snapshot after it"
    return None


def _finding(wrong: tuple[str | None, str, str], done: Sequence[Operation]) -> SpecFinding:
    rule, kind, message = wrong
    return SpecFinding(rule, message, length(list(done)), tuple(_told(operation) for operation in done[-20:]), kind)


def _told(operation: Operation) -> str:
    return f"read({operation.request!r})" if operation.op == "read" else str(operation)


def _snapshots(trace: Trace) -> list[Snapshot]:
    found = [snapshot for recorded in trace.operations if (snapshot := trace.after(recorded)) is not None]
    start = trace.start()
    return [start, *found] if start is not None else found


def _told_owners(snapshot: Snapshot) -> bool:
    """Every owner that is no request is a pin, a holder, or an end of a queued copy."""
    holds = snapshot[BLOCKS].holds if BLOCKS in snapshot else {}
    return all(isinstance(name, str) and not name.startswith(("cache", "node")) for name in holds)


def _promises(trace: Trace, declaration: Declaration | None) -> tuple[Declaration, frozenset[str]]:
    """What the target declares: asked of a built-in one, else as given, with the capabilities that the run shows."""
    if declaration is None and trace.target.split(":")[0] == "reference":
        from kvproof.checks.adapters.registry import resolve_builtin

        small = replace(trace.configuration, blocks=min(trace.configuration.blocks, 1 << 12))
        allocator = resolve_builtin(trace.target)(small)
        return declaration_of(allocator), capabilities_of(allocator)
    used = {recorded.op for recorded in trace.operations}
    has = {"fork": "forks", "complete": "copies", "pin": "pins", "hold": "holders", "take": "records"}
    has |= {"advance": "advances", "submit": "steps", "evict": "cache"}
    capabilities = {name for op, name in has.items() if op in used}
    if "fork" in used:
        capabilities.add("copies")
    return declaration or Declaration(), frozenset(capabilities)


def _operation(recorded: Recorded) -> Operation:
    args: Mapping[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in recorded.args.items()
    }
    return Operation(recorded.op, recorded.request, args)


def _reply(recorded: Recorded) -> object:
    effects = recorded.effects
    if "reply" in effects:
        reply = effects["reply"]
        evicted: Sequence[Hashable] | None = reply.get("evicted")
        return Reply(
            Answer(recorded.answer),
            reply.get("hit_rows", 0),
            tuple(Copy(**copy) for copy in reply.get("copies", ())),
            None if evicted is None else tuple(int(str(block)) for block in evicted),
        )
    return effects.get("result")


def run(trace: str | Path, json_output: bool = False) -> int:
    """The command ``kvproof monitor``: prints, and returns the exit code."""
    from kvproof.checks.proof import present

    result = monitor(trace)
    if json_output:
        present.show_json(result.to_json())
    else:
        present.show_monitoring(result)
    return result.exit_code()
