"""Two implementations, the same operations: ``kvproof diff A B``.

After every operation the host's view must agree: answers, tables, counts, the free list in order,
pending copies, released sources.  That is compared without touching the device.  Contents are
compared without waiting either: a reading is *queued* behind whatever runs there and looked at when
the program is over, because a reading that waits hides the very errors that it looks for.

The backend on the simulated device runs under a schedule, or under all of them, and is watched by the
sanitizer, whose reports count as differences: the reference has none.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, cast

from rich.console import Console
from rich.progress import Progress

from kvproof.checks.adapters.registry import REFERENCE, TargetError, resolve
from kvproof.checks.certification.certificate import finding_report
from kvproof.checks.certification.finding import Finding, Step, answer_text
from kvproof.checks.certification.generate import Choices, Generator, SeededChoices
from kvproof.checks.lockstep.follow import Follower
from kvproof.checks.lockstep.form import frozen
from kvproof.checks.lockstep.harness import build
from kvproof.checks.lockstep.operations import Operation, length
from kvproof.model.interface import (
    Allocator,
    Configuration,
    Factory,
    Pool,
    Snapshot,
    capabilities_of,
    declaration_of,
)
from kvproof.model.reference import ReferenceAllocator

Detector = Literal["state", "bytes", "race", "ticket", "raises"]
"""What noticed the difference.

``state``: answers or snapshots; ``bytes``: rows read back, or a row that a step found wrong; ``race``
and ``ticket``: the sanitizer; ``raises``: one side raised.
"""

STREAMS = ("compute", "copy", "load")
"""Streams of the backend, for the schedules that starve one of them."""
ALL_SCHEDULES = ("eager", "lazy", "random", *(f"starve:{stream}" for stream in STREAMS))
"""Every schedule by name."""
READ_PERCENT = 25
"""How often an operation is followed by a reading of some request."""
LONGEST = 40
"""Operations of one program, at most."""

Side = Callable[[Configuration, str, int], Allocator]
"""Builds one side of the comparison: configuration, schedule and seed (ignored without streams)."""


class LooksLater(Protocol):
    """What an implementation offers whose readings need not wait."""

    def read_later(self, request: str) -> Any:
        """Queue a reading of the committed rows."""

    def look(self, reading: Any) -> Sequence[int]:
        """Its tokens."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One disagreement; ``rule`` where the sanitizer names one."""

    detector: Detector
    message: str
    rule: str | None = None


@dataclass
class Program:
    """One generated program and what came of it."""

    configuration: Configuration
    schedule: str
    seed: int
    operations: list[Operation] = field(default_factory=list)
    replies: list[Any] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)

    @property
    def detectors(self) -> frozenset[Detector]:
        """Which detectors fired."""
        return frozenset(difference.detector for difference in self.differences)


@dataclass(frozen=True, slots=True)
class Result:
    """What ``kvproof diff`` found out."""

    verdict: Literal["certified", "violated"]
    examples: int
    """Examples that were begun; each one is run once for every schedule."""
    programs: int
    operations: int
    finding: Finding | None

    def as_json(self) -> dict[str, Any]:
        """The result as ``kvproof diff --json`` prints it."""
        return {
            "verdict": self.verdict,
            "examples": self.examples,
            "programs": self.programs,
            "operations": self.operations,
            "finding": self.finding.as_json() if self.finding else None,
        }


def side(name: str) -> Side:
    """One side by its target name: ``reference``, ``gpu``, ``gpu:MUTANT``, or any other target."""
    if name == REFERENCE:
        return lambda configuration, _schedule, _seed: ReferenceAllocator(configuration, steps=True)
    kind, _, mutant = name.partition(":")
    if kind == "gpu":
        return _gpu(mutant)
    factory: Factory = resolve(name)
    return lambda configuration, _schedule, _seed: build(factory, configuration)


def _gpu(mutant: str) -> Side:
    """The backend, or a mutant of it, on the simulated device.  Imports torch, so only when asked for."""
    try:
        from kvproof.gpu.backend import GpuAllocator, Policy
        from kvproof.gpu.mutants import MUTANTS
        from kvproof.gpu.sanitizer import Sanitizer
        from kvproof.gpu.schedules import by_name
        from kvproof.gpu.sim import SimDevice
    except ImportError as error:
        raise TargetError(str(error)) from error
    if mutant:
        resolve(f"gpu:{mutant}")  # says which mutants there are
    build = MUTANTS[mutant].build if mutant else GpuAllocator

    def make(configuration: Configuration, schedule: str, seed: int) -> Allocator:
        device = SimDevice(by_name(schedule, seed), Sanitizer())
        return build(configuration, device, Policy(strict=False))

    return make


# One program --------------------------------------------------------------------------------------


class Comparison:
    """Two allocators side by side."""

    def __init__(self, make_a: Side, make_b: Side, configuration: Configuration, schedule: str, seed: int) -> None:
        self.program = Program(configuration, schedule, seed)
        self.a: Any = make_a(configuration, schedule, seed)
        self.b: Any = make_b(configuration, schedule, seed)
        self.capabilities = capabilities_of(self.a) & capabilities_of(self.b)
        self.follower = Follower(configuration, declaration_of(self.a), self.capabilities)
        self.follower.observe(None, _frozen(self.a.snapshot()))
        self._readings: list[tuple[str, Sequence[int], Any]] = []

    @property
    def agrees(self) -> bool:
        """Nothing was noticed yet."""
        return not self.program.differences

    def perform(self, operation: Operation) -> None:
        """Both sides do it; then everything that the host can see is compared."""
        self.program.operations.append(operation)
        try:
            reply_a = getattr(self.a, operation.op)(*operation.arguments())
            after_a = _frozen(self.a.snapshot())
            self.program.replies.append(reply_a)
            reply_b = getattr(self.b, operation.op)(*operation.arguments())
            after_b = _frozen(self.b.snapshot())
        except Exception as error:
            which = "B"
            if len(self.program.replies) < len(self.program.operations):
                which = "A"
                self.program.replies.append(None)
            self._differ("raises", f"{operation}: {which} raised {type(error).__name__}: {error}")
            return
        if reply_a != reply_b:
            self._differ("state", f"{operation} was answered {answer_text(reply_a)} and {answer_text(reply_b)}")
        elif problem := difference_of(after_a, after_b):
            self._differ("state", f"after {operation}, {problem}")
        self.follower.follow(operation, reply_a, after_a)

    def read(self, request: str) -> None:
        """Queue a reading of the request's committed rows on both sides."""
        try:
            wanted = list(self.a.read(request))
            if hasattr(self.b, "read_later"):
                self._readings.append((request, wanted, cast(LooksLater, self.b).read_later(request)))
            elif (found := list(self.b.read(request))) != wanted:
                self._differ("bytes", f"{request} holds {found} where {wanted} was expected")
        except Exception as error:
            self._differ("raises", f"reading {request}: {type(error).__name__}: {error}")

    def finish(self) -> None:
        """The program is over: ask the sanitizer, which names a rule; then let everything run, and look."""
        for report in (*getattr(self.a, "reports", ()), *getattr(self.b, "reports", ())):
            self._differ("ticket" if report.kind == "early-release" else "race", report.sentence, report.rule)
        try:
            self._look()
        except Exception as error:
            self._differ("raises", f"at the end: {type(error).__name__}: {error}")

    def _look(self) -> None:
        if hasattr(self.b, "close"):
            self.b.close()
        for request, wanted, reading in self._readings:
            found = list(self.b.look(reading))
            if found != wanted:
                self._differ("bytes", f"a reading of {request} found {found} where {wanted} was expected")
        if hasattr(self.b, "bad_rows") and (bad := self.b.bad_rows()):
            self._differ("bytes", f"steps found {bad} rows that do not hold what they must")

    def _differ(self, detector: Detector, message: str, rule: str | None = None) -> None:
        self.program.differences.append(Difference(detector, message, rule))


def _frozen(snapshot: Snapshot) -> Snapshot:
    return {name: frozen(pool) for name, pool in snapshot.items()}


def difference_of(one: Snapshot, other: Snapshot) -> str | None:
    """The first field in which two snapshots differ, in words."""
    if one.keys() != other.keys():
        return f"one has the pools {sorted(one)}, the other {sorted(other)}"
    for name in one:
        for what in Pool.__dataclass_fields__:
            left, right = getattr(one[name], what), getattr(other[name], what)
            if left != right:
                return f"{what} of {name}: {left} and {right}"
    return None


def run_program(
    make_a: Side, make_b: Side, configuration: Configuration, choices: Choices, schedule: str, seed: int
) -> Program:
    """Generate one program and run it on both sides until they differ, or it is over."""
    comparison = Comparison(make_a, make_b, configuration, schedule, seed)
    generator = Generator(choices, comparison.capabilities, configuration)
    for _ in range(choices.integer(LONGEST // 2, LONGEST)):
        comparison.perform(generator.next(comparison.follower))
        if not comparison.agrees:
            break
        live = list(comparison.follower.requests)
        if live and "rows" in comparison.capabilities and choices.chance(READ_PERCENT):
            comparison.read(choices.pick(live))
    comparison.finish()
    return comparison.program


def configuration_for(example: int, seed: int) -> Configuration:
    """A small pool; block size 1 and pools with and without state slots come up in turn."""
    size = (4, 1, 3, 2, 5)[example % 5]
    return Configuration(
        blocks=6 + example % 4, block_size=size, max_requests=4, state_slots=(0, 4)[example // 5 % 2], seed=seed
    )


def programs(make_a: Side, make_b: Side, examples: int, seed: int, schedule: str) -> Iterator[Program]:
    """Run ``examples`` programs, each under the schedule, or under every one of them for ``all``."""
    schedules = ALL_SCHEDULES if schedule == "all" else (schedule,)
    for example in range(examples):
        own = seed * 1_000_003 + example
        for name in schedules:
            yield run_program(make_a, make_b, configuration_for(example, own), SeededChoices(own), name, own)


# The whole comparison -----------------------------------------------------------------------------


def diff(
    name_a: str,
    name_b: str,
    *,
    examples: int = 100,
    seed: int = 0,
    schedule: str = "all",
    progress: Callable[[float], None] = lambda _done: None,
) -> Result:
    """Compare two targets on ``examples`` programs; stops at the first difference and makes it short.

    Raises :class:`~kvproof.checks.adapters.registry.TargetError` for a target or schedule that there is not.
    """
    if schedule != "all" and schedule not in ALL_SCHEDULES:
        raise TargetError(f"unknown schedule {schedule!r}: use all, {', '.join(ALL_SCHEDULES)}")
    make_a, make_b = side(name_a), side(name_b)
    each = len(ALL_SCHEDULES) if schedule == "all" else 1
    operations = count = 0
    for count, program in enumerate(programs(make_a, make_b, examples, seed, schedule), 1):
        operations += len(program.operations)
        progress(count / (examples * each))
        if program.differences:
            shortest = shorten(program, make_a, make_b)
            finding = finding_of(shortest, name_b)
            return Result("violated", -(-count // each), count, operations, finding)
    return Result("certified", examples, count, operations, None)


SHORTENING_RUNS = 600
"""Runs that making one program short may take."""


def shorten(program: Program, make_a: Side, make_b: Side) -> Program:
    """Drop operations and shorten prompts while the same detector still fires."""
    detector = program.differences[0].detector
    best, runs, changed = program, 0, True
    while changed:
        changed = False
        for candidate in _simpler(best.operations):
            runs += 1
            if runs > SHORTENING_RUNS:
                return best
            tried = replay(candidate, best, make_a, make_b)
            if detector in tried.detectors and _size(tried) < _size(best):
                best, changed = tried, True
                break
    return best


def _size(program: Program) -> tuple[int, int, int]:
    operations = program.operations
    tokens = sum(len(operation.args.get("tokens", ())) + operation.args.get("drafts", 0) for operation in operations)
    return length(operations), len(operations), tokens


def _simpler(operations: Sequence[Operation]) -> Iterator[list[Operation]]:
    """The program without one operation, without two neighbours, or with fewer tokens in one."""
    for index in reversed(range(len(operations))):
        yield [*operations[:index], *operations[index + 1 :]]
    for index in reversed(range(len(operations) - 1)):
        yield [*operations[:index], *operations[index + 2 :]]
    for index, operation in enumerate(operations):
        tokens = operation.args.get("tokens", ())
        for fewer in {len(tokens) // 2, len(tokens) - 1} if len(tokens) > 1 else ():
            shorter = replace(operation, args={**operation.args, "tokens": tokens[:fewer]})
            yield [*operations[:index], shorter, *operations[index + 1 :]]


def _fitted(operation: Operation, now: Follower) -> Operation:
    """The operation with its number of rows moved to what is possible now: a shortened program needs that."""
    live = now.requests.get(operation.request) if operation.request is not None else None
    if live is None or "rows" not in operation.args:
        return operation
    if operation.op == "commit":
        least, most = live.committed, live.committed + (live.optimistic or live.in_flight)
    elif operation.op == "fork":
        least, most = (live.committed if "slots" in now.capabilities else 1), live.committed
    else:
        least, most = 1, live.in_flight
    return replace(operation, args={**operation.args, "rows": min(max(operation.args["rows"], least), most)})


def replay(operations: Sequence[Operation], like: Program, make_a: Side, make_b: Side) -> Program:
    """Run given operations; those that are not legal any more are left out."""
    comparison = Comparison(make_a, make_b, like.configuration, like.schedule, like.seed)
    for operation in operations:
        fitted = _fitted(operation, comparison.follower)
        if comparison.follower.illegal(fitted):
            continue
        comparison.perform(fitted)
        if not comparison.agrees:
            break
    else:
        for request in comparison.follower.requests:
            if "rows" in comparison.capabilities:
                comparison.read(request)
    comparison.finish()
    return comparison.program


def finding_of(program: Program, target: str) -> Finding:
    """The first difference as a finding."""
    first = program.differences[0]
    steps = tuple(
        Step(operation, answer_text(reply))
        for operation, reply in zip(program.operations, program.replies, strict=True)
    )
    kind = {"state": "differs", "bytes": "wrong_rows", "raises": "raises", "race": "rule", "ticket": "rule"}
    return Finding(
        rule=first.rule,
        kind=kind[first.detector],
        message=f"{first.message} (schedule {program.schedule}, seed {program.seed})",
        length=length(program.operations),
        target=target,
        configuration=program.configuration,
        steps=steps,
    )


def run(*, a: str, b: str, examples: int, seed: int, schedule: str, json_output: bool) -> int:
    """``kvproof diff``: compare, print, and return the exit code (0 no difference, 1 there is one)."""
    messages = Console(stderr=True, highlight=False)
    with Progress(console=messages, transient=True, disable=not messages.is_terminal) as bar:
        task = bar.add_task(f"{a} and {b}", total=1.0)
        result = diff(
            a,
            b,
            examples=examples,
            seed=seed,
            schedule=schedule,
            progress=lambda done: bar.update(task, completed=done),
        )
    if json_output:
        sys.stdout.write(json.dumps(result.as_json(), default=str) + "\n")
        return int(result.finding is not None)
    console = Console(highlight=False, soft_wrap=True)
    under = "every schedule" if schedule == "all" else f"schedule {schedule}"
    console.print(
        f"{a} and {b}: {result.examples} examples under {under}, {result.programs} programs, "
        f"{result.operations} operations compared",
        markup=False,
    )
    if result.finding is None:
        console.print("no difference: answers, tables, counts, free order, copies, releases and rows agree")
        return 0
    for part in finding_report(result.finding):
        console.print(part)
    return 1
