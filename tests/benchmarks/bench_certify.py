"""Checked operations a second of certify against Hypothesis stateful with an empty invariant.

    python tests/benchmarks/bench_certify.py

Both drive the reference allocator on the same pool for the same number of runs.  The baseline is what
somebody would write first: a ``RuleBasedStateMachine`` that admits, extends, commits and releases, with an
invariant that checks nothing.  Certify checks fourteen rules, every row and every answer after each
operation.  Rates are of one run on one machine; the ratio is what can be compared.
"""

from __future__ import annotations

import json
import platform
import sys
import time
from typing import Any

import hypothesis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from kvproof.checks.certification.stateful import Outcome, search, seeded
from kvproof.model import make_reference
from kvproof.model.interface import Answer, Configuration

POOL = Configuration(blocks=7, block_size=4, max_requests=4)
RUNS, STEPS, SEED = 60, 50, 1
COUNT = {"operations": 0}


class Baseline(RuleBasedStateMachine):
    """The four minimum operations, and an invariant that looks at nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.allocator: Any = make_reference(POOL)
        self.live: dict[str, int] = {}
        self.number = 0

    @precondition(lambda self: len(self.live) < POOL.max_requests)
    @rule(length=st.integers(1, 16))
    def admit(self, length: int) -> None:
        """A new request."""
        COUNT["operations"] += 1
        self.number += 1
        name = f"r{self.number}"
        if self.allocator.admit(name, list(range(length))).answer is Answer.OK:
            self.live[name] = length

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def extend(self, data: st.DataObject) -> None:
        """One token more."""
        COUNT["operations"] += 1
        name = data.draw(st.sampled_from(sorted(self.live)))
        if self.allocator.extend(name, (7,)).answer is Answer.OK:
            self.live[name] += 1

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        """The step is done."""
        COUNT["operations"] += 1
        name = data.draw(st.sampled_from(sorted(self.live)))
        self.allocator.commit(name, self.live[name])

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        """The end of a request."""
        COUNT["operations"] += 1
        name = data.draw(st.sampled_from(sorted(self.live)))
        self.allocator.release(name, "finish")
        del self.live[name]

    @invariant()
    def nothing(self) -> None:
        """Checks nothing."""


def baseline() -> float:
    """Operations a second of Hypothesis stateful with an empty invariant."""
    settings = hypothesis.settings(
        max_examples=RUNS,
        stateful_step_count=STEPS,
        database=None,
        deadline=None,
        derandomize=True,
        phases=(hypothesis.Phase.generate,),
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    COUNT["operations"] = 0
    start = time.perf_counter()
    run_state_machine_as_test(Baseline, settings=settings)
    return COUNT["operations"] / (time.perf_counter() - start)


def certify_stateful() -> float:
    """Checked operations a second of certify's Hypothesis phase."""
    outcome = Outcome()
    start = time.perf_counter()
    search(
        make_reference,
        POOL,
        seed=SEED,
        examples=RUNS,
        most=STEPS,
        call_limit=10.0,
        outcome=outcome,
        over=lambda: False,
    )
    return outcome.statistics["operations"] / (time.perf_counter() - start)


def certify_seeded() -> float:
    """Checked operations a second of certify's seeded runs."""
    outcome = Outcome()
    start = time.perf_counter()
    for number in range(RUNS):
        seeded(make_reference, POOL, seed=SEED * 1000 + number, most=STEPS, call_limit=10.0, outcome=outcome)
    return outcome.statistics["operations"] / (time.perf_counter() - start)


def main() -> None:
    """Measure all three and print one JSON object."""
    certify_seeded()  # warm: the rules are compiled once
    rates = {run.__name__: round(run()) for run in (baseline, certify_stateful, certify_seeded)}
    print(
        json.dumps(
            {
                "benchmark": "checked operations of certify against Hypothesis stateful with an empty invariant",
                "operations_per_second": rates,
                "ratio_stateful": round(rates["certify_stateful"] / rates["baseline"], 3),
                "ratio_seeded": round(rates["certify_seeded"] / rates["baseline"], 3),
                "machine": f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}, one core",
                "arguments": {"runs": RUNS, "steps": STEPS, "pool": [POOL.blocks, POOL.block_size], "seed": SEED},
            },
            indent=2,
        )
    )


if __name__ == "__main__":
    sys.exit(main())
