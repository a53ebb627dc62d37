"""Bounded model checking finds the shortest run that breaks each mutant, and none in the spec itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvproof.checks.proof.prove import mutated
from kvproof.checks.proof.refute import find, refute
from kvproof.checks.readings.spec_errors import UnknownMutant
from kvproof.model.mutants import MUTANTS as MODEL_MUTANTS
from kvproof.model.trace import read_trace
from kvproof.spec.modules import MODULES
from kvproof.spec.mutants import MUTANTS


@pytest.mark.parametrize("name", MUTANTS)
def test_every_mutant_is_refuted_by_a_shortest_run(name: str) -> None:
    result = refute(name)
    assert result.verdict == "violated"
    assert result.exit_code() == 1
    assert result.finding is not None
    assert result.finding.rule == MUTANTS[name].rule
    assert result.finding.length == MUTANTS[name].shortest
    assert "{" not in result.finding.message


@pytest.mark.parametrize("name", MUTANTS)
def test_the_spec_itself_has_no_such_run(name: str) -> None:
    mutant = MUTANTS[name]
    assert find(MODULES[mutant.module], mutant, most_steps=5) is None
    assert mutated(mutant) != MODULES[mutant.module]


def test_mutants_have_the_same_names_and_rules_in_spec_and_model() -> None:
    shared = MUTANTS.keys() & MODEL_MUTANTS.keys()
    assert shared == MODEL_MUTANTS.keys()
    assert {name: MUTANTS[name].rule for name in shared} == {name: MODEL_MUTANTS[name].rule for name in shared}
    assert {"early_release", "destination_unpinned"} <= shared


def test_a_counterexample_is_a_trace_that_can_be_replayed(tmp_path: Path) -> None:
    result = refute("early_release", out=tmp_path)
    assert result.finding is not None
    assert result.finding.trace is not None
    trace = read_trace(result.finding.trace)
    assert trace.target == "reference:early_release"
    assert [operation.op for operation in trace.operations if operation.op != "commit"] == ["admit", "fork", "release"]
    from kvproof.checks.certification.replay import replay

    replayed = replay(result.finding.trace)
    assert replayed.verdict == "violated"
    assert replayed.finding is not None
    assert replayed.finding.rule == "reads_keep_their_source"


def test_an_unknown_mutant_is_named() -> None:
    with pytest.raises(UnknownMutant, match="no_such"):
        refute("no_such")
