"""Certify: the model passes, every mutant is named by its rule with a short run, a budget is never a pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvproof.checks.adapters.registry import builtin_targets, resolve
from kvproof.checks.certification.certify import Plan, Result, certify, expected_events, not_applicable
from kvproof.checks.certification.finding import program, regression_test
from kvproof.model import make_reference
from kvproof.model.interface import Declaration
from kvproof.spec import RULES

SMALL = Plan(examples=6, pairs=1, rows=80, operations=4_000)
SEEDS = {"early_release": 1, "destination_unpinned": 1, "surplus_kept": 2, "never_for_later": 1, "copy_dropped": 1}
"""Seeds with which a mutant is found early; any other seed finds it later."""
MUTANTS = sorted(name.partition(":")[2] for name, target in builtin_targets().items() if target.rule)


@pytest.fixture(scope="module")
def reference() -> Result:
    """One certification of the model, shared by the tests that look at it."""
    return certify(make_reference, "reference", plan=SMALL)


def test_the_model_is_certified_because_everything_promised_was_reached(reference: Result) -> None:
    assert reference.verdict == "certified"
    assert (reference.missing, reference.findings, reference.exit_code) == ([], [], 0)
    assert reference.operations >= 4_000
    assert all(reference.reached[what] >= count for what, count in reference.promised.items())


def test_every_rule_is_put_to_the_test_on_the_model(reference: Result) -> None:
    assert [name for name in RULES if not reference.checked[name]] == []


def test_every_operation_and_every_answer_occurs(reference: Result) -> None:
    counts = reference.statistics
    for answer in ("admit:ok", "admit:later", "admit:never", "extend:ok", "extend:later", "extend:never"):
        assert counts[answer] > 0, answer
    for event in ("hits", "evicted", "copies", "fork:ok", "fork:later", "rows read"):
        assert counts[event] > 0, event


def test_the_workload_shows_hits_waiting_and_preemption(reference: Result) -> None:
    for event in ("hit admissions", "fresh admissions", "waits", "preemptions", "finished", "refused for good"):
        assert reference.driven[event] > 0, event


def test_the_seed_decides_the_run(reference: Result) -> None:
    again = certify(make_reference, "reference", plan=SMALL)
    other = certify(make_reference, "reference", plan=SMALL, seed=1)
    assert (again.statistics, again.driven) == (reference.statistics, reference.driven)
    assert other.statistics != reference.statistics


@pytest.mark.parametrize("budget", [0.0, 1.0])
def test_a_budget_that_ends_too_early_is_undetermined_never_a_pass(budget: float) -> None:
    result = certify(make_reference, "reference", budget=budget)
    assert (result.verdict, result.exit_code) == ("undetermined", 3)
    assert result.missing
    assert "the budget ended before the promised coverage was reached" in result.notes


@pytest.mark.parametrize("mutant", MUTANTS)
def test_every_mutant_is_found_under_its_rule_with_at_most_six_operations(mutant: str) -> None:
    target = builtin_targets()[f"reference:{mutant}"]
    result = certify(target.load(), target.name, seed=SEEDS.get(mutant, 0))
    assert (result.verdict, result.exit_code) == ("violated", 1)
    finding = result.findings[0]
    assert finding.rule == target.rule
    assert finding.length <= 6


def test_there_are_at_least_twelve_mutants_and_every_rule_has_one() -> None:
    rules = {target.rule for target in builtin_targets().values() if target.rule}
    assert len(MUTANTS) >= 12
    assert rules >= RULES.keys() - {"writes_stay_home", "no_read_before_fill"} or rules == set(RULES)


def test_early_release_ends_as_in_the_chapter() -> None:
    result = certify(resolve("reference:early_release"), "reference:early_release", seed=1)
    finding = result.findings[0]
    assert (finding.rule, finding.length) == ("reads_keep_their_source", 3)
    assert [str(operation) for operation in finding.operations] == [
        f"admit('A', {tuple(range(100, 110))})",
        "commit('A', 10)",
        "fork('A', 'B', 10)",
        "release('A', 'finish')",
    ]
    assert finding.configuration.blocks == 4
    assert finding.what_then.endswith("B reads 900 and 901 where 108 and 109 were expected")


def test_a_finding_prints_as_a_program_that_shows_it(capsys: pytest.CaptureFixture[str]) -> None:
    result = certify(resolve("reference:early_release"), "reference:early_release", seed=1)
    source = program(result.findings[0])
    exec(compile(source, "pasted.py", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert "free [3]" in lines[0]
    assert lines[-1] == str([*range(100, 108), 900, 901])


def test_a_finding_is_a_ready_regression_test(tmp_path: Path) -> None:
    result = certify(resolve("reference:early_release"), "reference:early_release", seed=1)
    space: dict[str, object] = {}
    exec(compile(regression_test(result.findings[0]), "test_it.py", "exec"), space)
    (test,) = [value for name, value in space.items() if name.startswith("test_")]
    with pytest.raises(Exception, match="may be issued again while queued copy"):
        test()  # type: ignore[operator]


def test_rules_without_a_subject_are_told_apart_from_rules_not_reached() -> None:
    plain: frozenset[str] = frozenset()
    assert set(not_applicable({}, plain)) == {
        "counts_match_owners",
        "cache_tells_the_truth",
        "advance_settles_once",
        "slot_has_one_writer",
        "records_outlive_readers",
    }
    assert "cache_tells_the_truth" not in not_applicable({}, frozenset({"cache"}))
    assert "cache_tells_the_truth" not in not_applicable({"cache_tells_the_truth": 1}, plain)


def test_what_must_have_happened_follows_from_capabilities() -> None:
    assert set(expected_events(frozenset(), Declaration())) == {"admit:ok", "admit:later"}
    every = frozenset({"cache", "forks", "copies"})
    assert set(expected_events(every, Declaration(never=True))) == {
        "admit:ok",
        "admit:later",
        "admit:never",
        "hits",
        "evicted",
        "fork:ok",
        "copies",
    }
