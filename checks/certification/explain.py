"""From a minimised run to a finding that explains itself.

The run is performed once more, with a look at the pools after every operation.  Then the story goes
on, on fresh targets and without checks: somebody takes the block in question and writes it, the queued
copies run, and every request is read back, so that a broken rule shows as wrong data where it can.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from kvproof.checks.certification.finding import Finding, Step, answer_text
from kvproof.checks.certification.generate import FIRST_TOKEN, STREAM, name_of
from kvproof.checks.certification.script import CALL_LIMIT, Run, Seen, Stage
from kvproof.checks.lockstep.harness import Breach
from kvproof.checks.lockstep.operations import Operation
from kvproof.model.interface import BLOCKS, SLOTS, Answer, Factory, Snapshot
from kvproof.model.trace import ARGUMENTS as TRACE_ARGUMENTS
from kvproof.model.trace import Trace, describe, frames_of

DATA_RULES = frozenset(
    {"reads_keep_their_source", "writes_stay_home", "owned_xor_free", "no_read_before_fill", "cache_tells_the_truth"}
)
"""Rules whose breach can end in wrong data."""
MOST_EVENTS = 12
"""Lines of a block's history that are shown."""


def explain(
    factory: Factory, target: str, run: Run, breach: Breach, *, phase: str, call_limit: float = CALL_LIMIT
) -> Finding:
    """The finding for a run that ended in ``breach``."""
    steps, trace = _retell(factory, target, run, call_limit)
    consequence: tuple[Step, ...] = ()
    what_then = ""
    if run.lines and breach.rule in DATA_RULES and not run.draining:
        consequence, what_then = _play_on(factory, run, breach, call_limit)
    return Finding(
        rule=breach.rule,
        kind=breach.kind,
        message=breach.message,
        length=run.length,
        target=target,
        configuration=run.configuration,
        steps=steps,
        draining=run.draining,
        also=tuple(breach.also),
        consequence=consequence,
        what_then=what_then,
        history=tuple(f"{_where(breach)}: {event}" for event in breach.history[-MOST_EVENTS:]),
        block=breach.block,
        pool=breach.pool,
        phase=phase,
        recorded=trace,
    )


def _where(breach: Breach) -> str:
    return f"{'state slot' if breach.pool == SLOTS else 'block'} {breach.block}"


def _retell(factory: Factory, target: str, run: Run, call_limit: float) -> tuple[tuple[Step, ...], Trace | None]:
    """Every operation with its answer and what the pool looked like afterwards, and the same as a trace."""
    stage = Stage(factory, run.configuration, call_limit)
    steps = []
    start: Snapshot | None = None
    try:
        if stage.run.breach is None:
            start = stage.lockstep.snapshot
        for line in run.lines:
            if stage.run.breach is not None:
                break
            if stage.perform(line):
                steps.append(Step(stage.run.operations[-1], _answer(stage), *_pool(stage)))
        return tuple(steps), _trace(target, run, start, stage.seen)
    finally:
        stage.close()


def _trace(target: str, run: Run, start: Snapshot | None, seen: Sequence[Seen]) -> Trace:
    """What was asked and answered, in the common trace format."""
    configuration = run.configuration
    operations = tuple(
        describe(
            operation.op,
            operation.request,
            [operation.args[name] for name in TRACE_ARGUMENTS[operation.op]],
            outcome,
            snapshot,
        )
        for operation, outcome, snapshot in seen
    )
    pools = frames_of(start) if start is not None else None
    return Trace(configuration, target, configuration.seed, packages(), operations, pools)


def packages() -> dict[str, str]:
    """Versions of what takes part in a run, where it is installed."""
    found = {"python": platform.python_version()}
    for name in ("kvproof", "hypothesis", "torch", "transformers"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _answer(stage: Stage) -> str:
    """The answer to the last operation; the breaking call may have given none."""
    return answer_text(stage.run.replies[-1]) if len(stage.run.replies) == len(stage.run.operations) else "no answer"


def _pool(stage: Stage) -> tuple[str, str]:
    """Tables and free list, as the chapter's experiments print them."""
    pool = stage.lockstep.snapshot[BLOCKS]
    tables = " ".join(f"{name}={list(table)}" for name, table in pool.tables.items())
    return tables, str(list(pool.free)) if len(pool.free) <= 16 else f"{len(pool.free)} blocks"


# ------------------------------------------------------------------------------------------- playing on


@dataclass(frozen=True)
class _Wrong:
    """Rows that a request reads and that are not its own."""

    reader: str
    first: int
    found: tuple[int, ...]
    expected: tuple[int, ...]


def _play_on(factory: Factory, run: Run, breach: Breach, call_limit: float) -> tuple[tuple[Step, ...], str]:
    """Operations that make the breach visible as wrong data, and the sentence that says so."""
    block = int(breach.block) if breach.block is not None and breach.block.isdigit() else None
    most = run.configuration.blocks
    for writer_blocks in (0, *range(1, most + 1)):
        try:
            steps, what = _one_future(factory, run, block, writer_blocks, call_limit)
        except Exception:  # the target is broken already: any failure here only means that there is nothing to show
            return (), ""
        if what:
            return steps, what
    return (), ""


def _one_future(
    factory: Factory, run: Run, block: int | None, writer_blocks: int, call_limit: float
) -> tuple[tuple[Step, ...], str]:
    """Admit a writer of so many blocks (none for 0), commit everybody, run the copies, read everybody."""
    stage = Stage(factory, run.configuration, call_limit)
    try:
        for line in run.lines:
            stage.perform(line)
        if "rows" not in stage.lockstep.capabilities:
            return (), ""
        return _future(stage, run, block, writer_blocks)
    finally:
        stage.close()


def _future(stage: Stage, run: Run, block: int | None, writer_blocks: int) -> tuple[tuple[Step, ...], str]:
    allocator: Any = stage.lockstep.allocator
    follower = stage.lockstep.follower
    expected = {name: list(shadow.tokens) for name, shadow in follower.requests.items()}
    committed = {name: shadow.committed for name, shadow in follower.requests.items()}
    steps: list[Step] = []

    def perform(operation: Operation) -> Any:
        reply = getattr(allocator, operation.op)(*operation.arguments())
        steps.append(Step(operation, answer_text(reply)))
        return reply

    writer = None
    if writer_blocks:
        writer = _unused_name(run.operations)
        first = _unused_token(run.operations)
        tokens = tuple(range(first, first + writer_blocks * run.configuration.block_size))
        reply = perform(Operation("admit", writer, {"tokens": tokens}))
        table = allocator.snapshot()[BLOCKS].tables.get(writer, ())
        if reply.answer is not Answer.OK or (block is not None and block not in table):
            return tuple(steps), ""
        expected[writer], committed[writer] = list(tokens), 0
    for name, history in expected.items():
        if committed[name] < len(history):
            perform(Operation("commit", name, {"rows": len(history)}))
    tickets = tuple(follower.copies)
    if tickets:
        perform(Operation("complete", None, {"tickets": tickets}))
    for name in expected:
        found = list(allocator.read(name))
        wrong = _wrong(name, found, expected[name])
        if wrong is not None:
            shown = ", ".join(map(str, wrong.found))
            steps.append(Step(Operation("read", name), f"{shown} at position {wrong.first}"))
            return tuple(steps), _sentence(wrong, block, writer, bool(tickets))
    return tuple(steps), ""


def _wrong(reader: str, found: Sequence[int], expected: Sequence[int]) -> _Wrong | None:
    pairs = list(zip(found, expected, strict=False))
    different = [at for at, (is_there, wanted) in enumerate(pairs) if is_there != wanted]
    if not different:
        return None
    first = different[0]
    end = first
    while end < len(pairs) and pairs[end][0] != pairs[end][1] and end - first < 4:
        end += 1
    return _Wrong(reader, first, tuple(found[first:end]), tuple(expected[first:end]))


def _sentence(wrong: _Wrong, block: int | None, writer: str | None, copies: bool) -> str:
    parts = []
    if writer is not None:
        parts.append(f"{writer} is given block {block} and writes its own rows there")
    if copies:
        parts.append("the queued copy runs")
    found, expected = _listed(wrong.found), _listed(wrong.expected)
    parts.append(f"{wrong.reader} reads {found} where {expected} were expected")
    return ", ".join(parts)


def _listed(tokens: Sequence[int]) -> str:
    words = ["an unwritten row" if token < 0 else str(token) for token in tokens]
    return " and ".join(words) if len(words) <= 2 else f"{', '.join(words[:-1])} and {words[-1]}"


def _unused_name(operations: Sequence[Operation]) -> str:
    used = {o.request for o in operations} | {o.args.get("child") for o in operations}
    index = 0
    while name_of(index) in used:
        index += 1
    return name_of(index)


def _unused_token(operations: Sequence[Operation]) -> int:
    """Where the next fresh prompt counts from."""
    most = max((token for o in operations for token in o.args.get("tokens", ())), default=FIRST_TOKEN - 1)
    return FIRST_TOKEN + STREAM * ((most - FIRST_TOKEN) // STREAM + 1)
