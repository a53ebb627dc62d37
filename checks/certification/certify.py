"""Certify one target: is it deterministic, does it keep every rule, on small pools and on a real workload?

The phases, in this order; the first violation ends the run, is minimised and explained:

1. **build**: the target is built and its capabilities are looked at (a target that cannot be built
   raises :class:`~kvproof.checks.lockstep.harness.TargetError`);
2. **determinism**: the same operations on two fresh instances must be answered alike;
3. **random**: seeded runs on several small pools, every one followed by giving everything back;
4. **stateful**: Hypothesis does the same with its own draws;
5. **workload**: the rows of a real workload, scaled to the pool;
6. **long**: longer seeded runs, until the promised number of operations is reached.

The verdict is *certified* only if everything that the plan promises was reached.  The seed decides
the run; the budget can only cut it short, and then the verdict is *undetermined*.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import Any

from kvproof.checks.certification.drive import Driven, Driver
from kvproof.checks.certification.explain import explain
from kvproof.checks.certification.finding import Finding
from kvproof.checks.certification.generate import WEIGHTS, offered
from kvproof.checks.certification.minimise import Minimiser
from kvproof.checks.certification.nondeterminism import compare, difference_run
from kvproof.checks.certification.script import CALL_LIMIT, Run, made_by, play
from kvproof.checks.certification.stateful import Outcome, broken_run, search, seeded
from kvproof.checks.certification.workload import Workload, load_workload
from kvproof.checks.lockstep.calls import close
from kvproof.checks.lockstep.harness import Breach, Lockstep, TargetError, Violation, build
from kvproof.checks.lockstep.operations import Operation
from kvproof.model.interface import Configuration, Declaration, Factory, Snapshot, capabilities_of, declaration_of
from kvproof.spec import RULES

SMALL_POOLS = (
    Configuration(blocks=7, block_size=4, max_requests=4),
    Configuration(blocks=4, block_size=4, max_requests=3),
    Configuration(blocks=8, block_size=2, max_requests=4, state_slots=4),
    Configuration(blocks=12, block_size=4, max_requests=5, state_slots=6),
    Configuration(blocks=5, block_size=1, max_requests=3),
)
"""The chapter's pool first, so that counterexamples look like its experiments."""
WORKLOAD_POOL = Configuration(blocks=24, block_size=4, max_requests=5, state_slots=7)
"""The pool that a workload is scaled to."""
MINIMISE_SECONDS = 20.0
MINIMISE_AT_LEAST = 5.0
"""Seconds for making a counterexample short: at most, and at least even when the budget is over."""
QUICK_LIMIT = 1.0
"""Seconds a call may take while a hang is minimised."""


@dataclass(frozen=True)
class Plan:
    """What a run promises.  The default takes about half a minute for the model."""

    examples: int = 25
    """Hypothesis runs for each small pool."""
    steps: int = 60
    """Operations of one run at most."""
    pairs: int = 4
    """Runs for each small pool that are compared on two instances."""
    rows: int = 700
    """Workload rows, or all of them if there are fewer."""
    operations: int = 20_000
    """Checked operations altogether."""
    pools: tuple[Configuration, ...] = SMALL_POOLS
    workload_pool: Configuration = WORKLOAD_POOL

    def with_block_size(self, block_size: int) -> Plan:
        """The same plan for a target that takes one block size only."""
        pools = tuple(dict.fromkeys(replace(pool, block_size=block_size) for pool in self.pools))
        return replace(self, pools=pools, workload_pool=replace(self.workload_pool, block_size=block_size))


@dataclass
class Progress:
    """What a caller may show while a run goes on: a phase, and how far it is (0 to 1)."""

    show: Callable[[str, float], None] = lambda _phase, _done: None


@dataclass
class Result:
    """The verdict, and everything that a report needs."""

    target: str
    seed: int
    plan: Plan
    verdict: str = "undetermined"
    capabilities: frozenset[str] = frozenset()
    declaration: Declaration = field(default_factory=Declaration)
    findings: list[Finding] = field(default_factory=list)
    checked: Counter[str] = field(default_factory=Counter)
    statistics: Counter[str] = field(default_factory=Counter)
    driven: dict[str, int] = field(default_factory=dict)
    workload: str = ""
    promised: dict[str, int] = field(default_factory=dict)
    reached: dict[str, int] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0
    phases: dict[str, float] = field(default_factory=dict)
    """Seconds that each phase took."""

    @property
    def operations(self) -> int:
        """Operations that were performed and checked."""
        return self.statistics["operations"]

    @property
    def exit_code(self) -> int:
        """0 certified, 1 violated, 3 undetermined."""
        return {"certified": 0, "violated": 1}.get(self.verdict, 3)


UNEXERCISED = frozenset({"tiers"})
"""Capabilities of the interface whose operations no phase performs."""
RULE_NEEDS: Mapping[str, tuple[frozenset[str], str]] = {
    "counts_match_owners": (frozenset(), "owner counts to show"),
    "cache_tells_the_truth": (frozenset({"cache"}), "prefix cache"),
    "advance_settles_once": (frozenset({"advances"}), "committed counts to show"),
    "slot_has_one_writer": (frozenset({"slots"}), "state slots"),
    "records_outlive_readers": (frozenset({"records"}), "output records"),
}
"""Rules that only some targets can be put to the test with: any of these capabilities, and what else it would take."""


class _BudgetOver(Exception):
    """The budget ended inside a phase."""


def certify(
    factory: Factory,
    target: str,
    *,
    seed: int = 0,
    budget: float | None = None,
    workload: str | PathLike[str] | None = None,
    plan: Plan | None = None,
    call_limit: float = CALL_LIMIT,
    progress: Progress | None = None,
) -> Result:
    """Certify one target.  ``budget`` in seconds; ``workload`` is a file, or the bundled one.

    Raises :class:`~kvproof.checks.lockstep.harness.TargetError` when the target cannot be built, and
    :class:`~kvproof.checks.certification.workload.WorkloadError` for a file that is no workload.
    """
    run = _Certification(factory, target, seed, budget, plan or Plan(), call_limit, progress or Progress())
    return run.run(workload)


class _Certification:
    """One run of :func:`certify`."""

    def __init__(
        self,
        factory: Factory,
        target: str,
        seed: int,
        budget: float | None,
        plan: Plan,
        call_limit: float,
        progress: Progress,
    ) -> None:
        self.factory, self.plan, self.call_limit, self.progress = factory, plan, call_limit, progress
        self.result = Result(target, seed, plan)
        self.start = time.monotonic()
        self.end = None if budget is None else self.start + budget
        self.rows = 0

    def run(self, workload: str | PathLike[str] | None) -> Result:
        """All phases, then the verdict."""
        result, plan = self.result, self.plan
        self._build()
        pool = self._pool(plan.workload_pool)
        rows = load_workload(
            workload, block_size=pool.block_size, blocks=pool.blocks, seed=result.seed, limit=plan.rows
        )
        result.workload = rows.scale
        self._promise(rows)
        try:
            self._phase("determinism", self._determinism)
            self._phase("random", lambda: self._random("random", plan.operations // 4, plan.steps, 1019))
            self._phase("stateful", self._stateful)
            self._phase("workload", lambda: self._workload(rows, pool))
            self._phase("long", lambda: self._random("long", plan.operations, 4 * plan.steps, 1021))
        except _BudgetOver:
            result.notes.append("the budget ended before the promised coverage was reached")
        self._verdict()
        result.seconds = time.monotonic() - self.start
        return result

    # Phases -------------------------------------------------------------------------------------------

    def _build(self) -> None:
        """Look at the target: what it can do (state slots may depend on the configuration), what it promises.

        A small pool that the target does not take is left out and noted, as long as it takes another one.
        """
        taken, refused = [], []
        for configuration in self.plan.pools:
            try:
                self._look_at(configuration)
                taken.append(configuration)
            except TargetError as error:
                refused.append(error)
        if not taken:
            raise refused[0]
        self._look_at(self.plan.workload_pool)
        if refused:
            self.plan = self.result.plan = replace(self.plan, pools=tuple(taken))
            self.result.notes += [f"a pool was left out: {error}" for error in refused]

    def _look_at(self, configuration: Configuration) -> None:
        allocator = build(self.factory, self._pool(configuration), self.call_limit)
        self.result.capabilities |= capabilities_of(allocator)
        self.result.declaration = declaration_of(allocator)
        close(allocator, self.call_limit)

    def _phase(self, name: str, work: Callable[[], None]) -> None:
        if self.result.findings:
            return
        started = time.monotonic()
        self.progress.show(name, 0.0)
        try:
            if self._over():
                raise _BudgetOver
            work()
        finally:
            self.result.phases[name] = round(time.monotonic() - started, 3)

    def _determinism(self) -> None:
        total = len(self.plan.pools) * self.plan.pairs
        for number in range(total):
            pool = self._pool(self.plan.pools[number % len(self.plan.pools)])
            outcome = Outcome()
            run = compare(
                self.factory,
                pool,
                seed=self.result.seed * 1009 + number,
                most=self.plan.steps,
                call_limit=self.call_limit,
                outcome=outcome,
            )
            self._count(outcome)
            if run is not None:
                self._found(run, "determinism")
                return
            self.result.reached["pairs"] = self.result.reached.get("pairs", 0) + 1
            self._tick("determinism", (number + 1) / total)

    def _stateful(self) -> None:
        total = len(self.plan.pools) * self.plan.examples
        outcome = Outcome()

        def tick() -> None:
            self.progress.show("stateful", min(1.0, outcome.examples / total))

        for index, configuration in enumerate(self.plan.pools):
            pool = self._pool(configuration)
            before = outcome.examples
            found = search(
                self.factory,
                pool,
                seed=self.result.seed * 1013 + index,
                examples=self.plan.examples,
                most=self.plan.steps,
                call_limit=self.call_limit,
                outcome=outcome,
                over=self._over,
                tick=tick,
            )
            done = min(outcome.examples - before, self.plan.examples)
            self.result.reached["stateful runs"] = self.result.reached.get("stateful runs", 0) + done
            if found is not None:
                self._count(outcome)
                self._found(found, "stateful")
                return
            if not outcome.complete:
                self._count(outcome)
                raise _BudgetOver
            self.result.reached["pools"] = self.result.reached.get("pools", 0) + 1
        self._count(outcome)

    def _workload(self, rows: Workload, pool: Configuration) -> None:
        answers: list[Any] = []

        def watch(_operation: Operation, reply: object, _snapshot: Snapshot) -> None:
            answers.append(reply)

        lockstep = Lockstep(self.factory, pool, call_limit=self.call_limit, read_all=False, watch=watch)
        made: list[list[int]] = []
        known: set[int] = set()

        def perform(operation: Operation) -> Any:
            reply = lockstep.perform(operation)
            now = made_by(lockstep)
            made.append([value for value in now if value not in known])
            known.clear()
            known.update(now)
            if len(made) % 64 == 0:
                self.progress.show("workload", driver.driven.rows / max(1, rows.rows))
            return reply

        driver = Driver(lockstep, self.result.seed, perform=perform, over=self._over)
        draining = False
        planned = 0
        try:
            driven = driver.run(rows)
            self._driven(driven)
            if self._over():
                raise _BudgetOver
            draining = True
            planned = len(lockstep.operations)
            lockstep.drain()
            self.result.reached["drained"] = 1
        except Violation as violation:
            self._driven(driver.driven)
            found = broken_run(lockstep, made, answers, violation.breach)
            found.draining, found.before_drain = draining, planned
            self._found(found, "workload")
        finally:
            self.result.statistics.update(lockstep.statistics)
            self.result.checked.update(lockstep.checked)
            lockstep.close()

    def _driven(self, driven: Driven) -> None:
        self.result.driven = {**driven.counts, "rows": driven.rows}
        self.result.reached["workload rows"] = driven.rows

    def _random(self, phase: str, upto: int, most: int, prime: int) -> None:
        """Seeded runs of up to ``most`` operations until ``upto`` operations were checked altogether."""
        number = 0
        while self.result.operations < upto:
            outcome = Outcome()
            found = seeded(
                self.factory,
                self._pool(self.plan.pools[number % len(self.plan.pools)]),
                seed=self.result.seed * prime + number,
                most=most,
                call_limit=self.call_limit,
                outcome=outcome,
            )
            self._count(outcome)
            if found is not None:
                self._found(found, phase)
                return
            number += 1
            self._tick(phase, min(1.0, self.result.operations / upto))

    # Findings -----------------------------------------------------------------------------------------

    def _found(self, run: Run, phase: str) -> None:
        """Minimise and explain a violating run."""
        result, breach = self.result, run.breach
        assert breach is not None
        self.progress.show("minimising", 0.0)
        if breach.kind != "nondeterministic":
            run, breach = self._reproduced(run, breach)
        limit = min(self.call_limit, QUICK_LIMIT) if breach.kind == "hangs" else self.call_limit
        if breach.kind != "nondeterministic":
            left = MINIMISE_SECONDS if self.end is None else self.end - time.monotonic()
            seconds = min(MINIMISE_SECONDS, max(MINIMISE_AT_LEAST, left))
            run = Minimiser(self.factory, run, seconds=seconds, call_limit=limit).minimise()
        finding = explain(self.factory, result.target, run, run.breach or breach, phase=phase, call_limit=limit)
        result.findings.append(finding)

    def _reproduced(self, run: Run, breach: Breach) -> tuple[Run, Breach]:
        """The run as it breaks on a fresh target; a run that does not break again shows nondeterminism."""
        limit = min(self.call_limit, QUICK_LIMIT) if breach.kind == "hangs" else self.call_limit
        lines = run.lines[: run.before_drain] if run.draining else run.lines
        for _ in range(2):
            again = play(self.factory, run.configuration, lines, drain=run.draining, call_limit=limit)
            if again.breaks(breach):
                return run, breach
        return difference_run(run, again)

    # Bookkeeping --------------------------------------------------------------------------------------

    def _pool(self, configuration: Configuration) -> Configuration:
        return replace(configuration, seed=self.result.seed)

    def _over(self) -> bool:
        return self.end is not None and time.monotonic() > self.end

    def _tick(self, phase: str, done: float) -> None:
        self.progress.show(phase, done)
        if self._over():
            raise _BudgetOver

    def _count(self, outcome: Outcome) -> None:
        self.result.statistics.update(outcome.statistics)
        self.result.checked.update(outcome.checked)

    def _promise(self, rows: Workload) -> None:
        plan = self.plan
        self.result.promised = {
            "pairs": len(plan.pools) * plan.pairs,
            "pools": len(plan.pools),
            "stateful runs": len(plan.pools) * plan.examples,
            "workload rows": min(plan.rows, rows.rows),
            "drained": 1,
            "operations": plan.operations,
        }

    def _verdict(self) -> None:
        result = self.result
        result.reached["operations"] = result.operations
        if result.findings:
            result.verdict = "violated"
            result.missing = ["everything after the violation, which ended the run"]
        else:
            result.missing = missing(result.promised, result.reached, result.statistics, result.checked, result)
            result.verdict = "undetermined" if result.missing else "certified"
        if not result.declaration.never and not result.findings:
            result.notes.append("the target does not declare NEVER: a request that can never fit is told LATER")


def missing(
    promised: Mapping[str, int],
    reached: Mapping[str, int],
    statistics: Mapping[str, int],
    checked: Mapping[str, int],
    result: Result,
) -> list[str]:
    """What was promised and not reached, in words."""
    lacking = [
        f"{what}: {reached.get(what, 0)} of {count}" for what, count in promised.items() if reached.get(what, 0) < count
    ]
    for op in WEIGHTS:
        if offered(op, result.capabilities) and not statistics.get(op):
            lacking.append(f"no {op} was performed")
    for event, why in expected_events(result.capabilities, result.declaration).items():
        if not statistics.get(event):
            lacking.append(f"no {event}: {why}")
    lacking += [f"capability {name} is not exercised by this version" for name in result.capabilities & UNEXERCISED]
    idle = not_applicable(checked, result.capabilities)
    untested = [name for name in RULES if not checked.get(name) and name not in idle]
    return lacking + [f"rule {name} was never put to the test" for name in untested]


def not_applicable(checked: Mapping[str, int], capabilities: frozenset[str]) -> dict[str, str]:
    """Rules that say nothing about this target, and why."""
    return {
        rule: f"the target has no {what}"
        for rule, (needs, what) in RULE_NEEDS.items()
        if not checked.get(rule) and not (needs & capabilities)
    }


def expected_events(capabilities: frozenset[str], declaration: Declaration) -> dict[str, str]:
    """What must have happened at least once for a run to mean something."""
    events = {"admit:ok": "nothing was admitted", "admit:later": "the pool was never full"}
    if declaration.never:
        events["admit:never"] = "no request was larger than the pool"
    if "cache" in capabilities:
        events |= {"hits": "the prefix cache was never hit", "evicted": "nothing cached was ever dropped"}
    if "forks" in capabilities:
        events["fork:ok"] = "no fork was granted"
    if {"forks", "copies"} <= capabilities:
        events["copies"] = "no copy was queued"
    return events
