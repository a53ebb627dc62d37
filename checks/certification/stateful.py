"""Hypothesis drives the generator: many short runs on small pools, each followed by giving everything back.

Every example builds a fresh target, draws its own mix of operations (swarm testing) and performs them in
lockstep.  The first violation is shrunk by Hypothesis for a while; the smallest run seen goes on to the
minimiser.  Everything is fixed by the seed: no database, no deadline, no dependence on earlier runs.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import hypothesis
from hypothesis import strategies as st

from kvproof.checks.certification.generate import Choices, Generator, SeededChoices
from kvproof.checks.certification.script import Run, Seen, made_by, record
from kvproof.checks.lockstep.harness import Breach, Lockstep, Violation
from kvproof.checks.lockstep.operations import Operation
from kvproof.model.interface import Configuration, Factory, Snapshot

T = TypeVar("T")

SHRINK_RUNS = 200
SHRINK_SECONDS = 3.0
"""How long Hypothesis may shrink; dropping whole operations afterwards is faster."""


class _Enough(BaseException):
    """Ends a Hypothesis run early: the budget is over, or it has shrunk for long enough."""


class HypothesisChoices:
    """Choices that Hypothesis draws, and shrinks towards 0."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data

    def integer(self, lo: int, hi: int) -> int:
        """See :class:`kvproof.checks.certification.generate.Choices`."""
        return lo if lo == hi else self._data.draw(_integers(lo, hi)) - OFFSET

    def pick(self, options: Sequence[T]) -> T:
        """See :class:`kvproof.checks.certification.generate.Choices`."""
        return options[self.integer(0, len(options) - 1)]

    def chance(self, percent: int) -> bool:
        """See :class:`kvproof.checks.certification.generate.Choices`."""
        return self.integer(0, 99) >= 100 - percent


OFFSET = 3**37
"""Added to every number that Hypothesis draws.  Now and then it draws a constant that it saw in some loaded
module instead; no such constant is near this, so a run depends on its seed and on nothing else."""
_STRATEGIES: dict[tuple[int, int], st.SearchStrategy[int]] = {}


def _integers(lo: int, hi: int) -> st.SearchStrategy[int]:
    strategy = _STRATEGIES.get((lo, hi))
    if strategy is None:
        strategy = _STRATEGIES[lo, hi] = st.integers(OFFSET + lo, OFFSET + hi)
    return strategy


@dataclass
class Outcome:
    """What many runs came to."""

    examples: int = 0
    statistics: Counter[str] = field(default_factory=Counter)
    checked: Counter[str] = field(default_factory=Counter)
    found: Run | None = None
    """The smallest run that ended in the breach."""
    complete: bool = True
    """All promised examples were run (or a violation ended them)."""

    def add(self, lockstep: Lockstep) -> None:
        """Count one finished run."""
        self.examples += 1
        self.statistics.update(lockstep.statistics)
        self.checked.update(lockstep.checked)


def one_run(
    factory: Factory,
    configuration: Configuration,
    choices: Choices,
    most: int,
    *,
    call_limit: float,
    outcome: Outcome,
    seen: list[Seen] | None = None,
) -> Run | None:
    """One run of up to ``most`` operations, then everything is given back; the run if something broke.

    What was observed is added to ``seen``.
    """
    answers: list[Any] = []

    def watch(operation: Operation, reply: object, snapshot: Snapshot) -> None:
        answers.append(reply)
        if seen is not None:
            seen.append(Seen(operation, reply, snapshot))

    try:
        lockstep = Lockstep(factory, configuration, call_limit=call_limit, watch=watch)
    except Violation as violation:
        return Run(configuration, breach=violation.breach)
    made: list[list[int]] = []
    draining = False
    planned = 0
    try:
        generator = Generator(choices, lockstep.capabilities, configuration)
        known: set[int] = set()
        for _ in range(choices.integer(1, most)):
            operation = generator.next(lockstep.follower)
            lockstep.perform(operation)
            now = made_by(lockstep)
            made.append([value for value in now if value not in known])
            known = set(now)
        draining = True
        planned = len(lockstep.operations)
        lockstep.drain()
    except Violation as violation:
        run = broken_run(lockstep, made, answers, violation.breach)
        run.draining, run.before_drain = draining, planned
        return run
    finally:
        outcome.add(lockstep)
        lockstep.close()
    return None


def broken_run(lockstep: Lockstep, made: Sequence[Sequence[int]], answers: Sequence[Any], breach: Breach) -> Run:
    """The run that just ended in a breach; operations of giving everything back are among its lines."""
    return Run(
        lockstep.configuration,
        lines=list(record(lockstep.operations, made)),
        operations=list(lockstep.operations),
        replies=list(answers),
        breach=breach,
    )


def search(
    factory: Factory,
    configuration: Configuration,
    *,
    seed: int,
    examples: int,
    most: int,
    call_limit: float,
    outcome: Outcome,
    over: Callable[[], bool],
    tick: Callable[[], None] = lambda: None,
) -> Run | None:
    """Run ``examples`` runs under Hypothesis; the smallest violating run, or None.

    Counts go to ``outcome``; ``over()`` ends the search early, which ``outcome.complete`` then tells.
    """
    best: list[Run] = []
    shrinking = {"runs": 0, "end": 0.0}

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=examples,
        database=None,
        deadline=None,
        derandomize=False,
        report_multiple_bugs=False,
        print_blob=False,
        verbosity=hypothesis.Verbosity.quiet,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
    )
    @hypothesis.given(st.data())
    def body(data: st.DataObject) -> None:
        if over():
            outcome.complete = False
            raise _Enough
        if best:
            shrinking["runs"] += 1
            if shrinking["runs"] > SHRINK_RUNS or time.monotonic() > shrinking["end"]:
                raise _Enough
        run = one_run(factory, configuration, HypothesisChoices(data), most, call_limit=call_limit, outcome=outcome)
        tick()
        if run is None:
            return
        if not best:
            best.append(run)
            shrinking["end"] = time.monotonic() + SHRINK_SECONDS
        elif run.breaks(best[0].breach) and run.size < best[0].size:
            best[0] = run
        if run.breaks(best[0].breach):
            assert run.breach is not None
            raise Violation(run.breach)

    before = random.getstate()
    try:
        body()
    except (Violation, _Enough):
        pass
    except hypothesis.errors.Flaky:
        if not best:
            raise
    finally:
        random.setstate(before)
    return best[0] if best else None


def seeded(
    factory: Factory,
    configuration: Configuration,
    *,
    seed: int,
    most: int,
    call_limit: float,
    outcome: Outcome,
) -> Run | None:
    """One run driven by a seeded random source instead of Hypothesis."""
    return one_run(factory, configuration, SeededChoices(seed), most, call_limit=call_limit, outcome=outcome)
