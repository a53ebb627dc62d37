"""A run that cannot be judged is undetermined, with the line that says why: never a pass, never an accusation."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from kvproof.checks.certification.replay import run_again
from kvproof.checks.monitoring.monitor import judge
from kvproof.model import make_reference
from kvproof.model.interface import Configuration
from kvproof.model.trace import Operation, Recorder, Trace


def recorded() -> Trace:
    """Admit, commit, release: a run that is fine."""
    configuration = Configuration(blocks=7, block_size=4)
    recorder = Recorder(make_reference(configuration), configuration, "reference")
    recorder.admit("A", [100, 101])
    recorder.commit("A", 2)
    recorder.release("A", "finish")
    return recorder.trace()


def without(operation: Operation, *effects: str) -> Operation:
    return replace(operation, effects={name: e for name, e in operation.effects.items() if name not in effects})


def test_the_run_itself_is_accepted() -> None:
    assert judge(recorded()).verdict == "certified"
    assert run_again(recorded(), "reference", make_reference).verdict == "certified"


def test_an_empty_run_is_no_pass() -> None:
    empty = replace(recorded(), operations=[])
    assert judge(empty).verdict == "undetermined"
    assert run_again(empty, "reference", make_reference).verdict == "undetermined"


@pytest.mark.parametrize(
    ("missing", "why"),
    [("pools", "line 2: admit.* has no snapshot after it"), ("reply", "line 2: admit.* has no reply to judge")],
)
def test_a_step_without_its_effects_is_not_judged(missing: str, why: str) -> None:
    trace = recorded()
    first, *rest = trace.operations
    result = judge(replace(trace, operations=[without(first, missing), *rest]))
    assert (result.verdict, result.finding, result.steps) == ("undetermined", None, 0)
    assert re.match(why, result.notes[-1])


def test_a_call_that_no_caller_may_make_is_not_held_against_the_target() -> None:
    trace = recorded()
    admit, commit, release = trace.operations
    result = judge(replace(trace, operations=[admit, release, commit]))
    assert (result.verdict, result.finding, result.steps) == ("undetermined", None, 2)
    assert result.notes[-1].startswith("line 4: a caller may not ask this now")
