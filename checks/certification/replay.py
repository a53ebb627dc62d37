"""Run a trace again: does the violation happen again?

- **violated** (1): the target breaks a rule at or after the recorded operations;
- **certified** (0): it breaks none and answers every operation as recorded;
- **undetermined** (3): it answers otherwise than recorded, so that what follows is another story.

A trace is untrusted.  Only a built-in target is taken from its header; any other has to be named by the
caller (``on``), so that opening a file never imports code that the file names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvproof.checks.adapters.registry import TargetError, builtin_targets, resolve, resolve_builtin
from kvproof.checks.certification.explain import explain
from kvproof.checks.certification.finding import Finding
from kvproof.checks.certification.script import CALL_LIMIT, Run, Script, Seen, Stage, as_address, record
from kvproof.checks.lockstep.operations import Operation
from kvproof.model.interface import Factory
from kvproof.model.trace import ARGUMENTS, Trace, describe, read_trace
from kvproof.model.trace import Operation as Recorded

MOST_BLOCKS = 1 << 16
"""A target is built for the configuration of a trace: larger pools than this are refused."""


MOST_POSITIONS = 1 << 18
"""At the end of a replay one request asks for the whole pool: a larger one would take minutes."""


class ReplayError(ValueError):
    """The trace cannot be replayed (exit code 2)."""


@dataclass(frozen=True)
class Replay:
    """The outcome of a replay."""

    verdict: str
    target: str
    operations: int
    """Operations performed, the breaking one included."""
    finding: Finding | None = None
    note: str = ""

    @property
    def exit_code(self) -> int:
        """0 no violation, 1 violation, 3 undetermined."""
        return {"certified": 0, "violated": 1}.get(self.verdict, 3)


def replay(path: str | Path, on: str | None = None, *, call_limit: float = CALL_LIMIT) -> Replay:
    """Replay the trace in ``path`` on the target ``on``, or on the built-in target of its header.

    Raises :class:`~kvproof.model.trace.TraceError`, :class:`ReplayError`, ``OSError`` or a target error.
    """
    trace = read_trace(path)
    target, factory = _target(trace, on)
    for what in ("blocks", "state_slots"):
        if getattr(trace.configuration, what) > MOST_BLOCKS:
            raise ReplayError(f"line 1: config.{what} is {getattr(trace.configuration, what)}, more than {MOST_BLOCKS}")
    positions = trace.configuration.blocks * trace.configuration.block_size
    if positions > MOST_POSITIONS:
        raise ReplayError(f"line 1: config has a pool of {positions} positions, more than {MOST_POSITIONS}")
    return run_again(trace, target, factory, call_limit=call_limit, trace_file=str(path))


def _target(trace: Trace, on: str | None) -> tuple[str, Factory]:
    if on is not None:
        return on, resolve(on)
    if trace.target not in builtin_targets():
        raise TargetError(
            f"the trace was recorded on {trace.target!r}, which is not built in: name what to replay it on with "
            "--on package.module:factory (a file's own choice of code is never imported)"
        )
    return trace.target, resolve_builtin(trace.target)


def run_again(
    trace: Trace, target: str, factory: Factory, *, call_limit: float = CALL_LIMIT, trace_file: str | None = None
) -> Replay:
    """Perform the recorded operations in lockstep, compare the answers, then give everything back."""
    operations = [recorded for recorded in trace.operations if recorded.op != "read"]
    stage = Stage(factory, trace.configuration, call_limit)
    try:
        for number, (line, recorded) in enumerate(zip(script_of(operations), operations, strict=True), 2):
            if stage.run.breach is not None:
                break
            if recorded.op == "move" or not hasattr(stage.lockstep.allocator, recorded.op):
                note = f"line {number}: {target} has no {recorded.op}"
                return Replay("undetermined", target, _done(stage), note=note)
            if (reason := stage.refuses(line)) is not None:
                raise ReplayError(f"line {number}: {recorded.op} may not be asked there: {reason}")
            stage.perform(line)
            if stage.run.breach is None and (difference := _differs(recorded, stage.seen[-1])):
                return Replay("undetermined", target, _done(stage), note=f"line {number}: {difference}")
        if stage.run.breach is None:
            stage.drain()
        performed = _done(stage)
    finally:
        stage.close()
    if stage.run.breach is None and not operations:
        return Replay("undetermined", target, performed, note="the run has no operations")
    if stage.run.breach is None:
        return Replay("certified", target, performed)
    return Replay("violated", target, performed, _finding(factory, target, stage.run, call_limit, trace_file))


def _done(stage: Stage) -> int:
    return len(stage.run.operations)


def _finding(factory: Factory, target: str, run: Run, call_limit: float, trace_file: str | None) -> Finding:
    assert run.breach is not None
    finding = explain(factory, target, run, run.breach, phase="replay", call_limit=call_limit)
    return finding.saved(trace_file) if trace_file else finding


def script_of(operations: Sequence[Recorded]) -> Script:
    """The recorded operations as a script: tickets and addresses by where they came from."""
    asked = [Operation(o.op, o.request, _arguments(o)) for o in operations]
    return record(asked, [_made(o) for o in operations])


def _arguments(recorded: Recorded) -> dict[str, Any]:
    return {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in recorded.args.items()
        if name in ARGUMENTS[recorded.op]
    }


def _made(recorded: Recorded) -> list[int]:
    """Tickets and addresses that the operation made when it was recorded."""
    reply = recorded.effects.get("reply")
    made = list(dict.fromkeys(copy["ticket"] for copy in reply["copies"])) if reply else []
    result = recorded.effects.get("result")
    if recorded.op in ("submit", "take") and isinstance(result, int):
        made.append(as_address(result) if recorded.op == "take" else result)
    return made


def _differs(recorded: Recorded, seen: Seen) -> str | None:
    """How the answer differs from the recorded one; None when it is the same to a caller."""
    args = [recorded.args[name] for name in ARGUMENTS[recorded.op]]
    actual = describe(recorded.op, recorded.request, args, seen.outcome, None)
    if actual.answer != recorded.answer:
        return f"{recorded.op} is answered {actual.answer} where {recorded.answer} was recorded"
    before, now = recorded.effects.get("reply"), actual.effects.get("reply")
    if before and now and before["hit_rows"] != now["hit_rows"]:
        return f"{recorded.op} hits {now['hit_rows']} rows where {before['hit_rows']} were recorded"
    if recorded.op in ("evict", "clone", "probe") and "result" in recorded.effects:
        was, is_now = recorded.effects["result"], actual.effects.get("result")
        if was != is_now:
            return f"{recorded.op} returns {is_now!r} where {was!r} was recorded"
    return None
