"""The rule book is inductive for any size; nothing that is said is empty; every mutant is refuted."""

from __future__ import annotations

import pytest

from kvproof.checks.proof.prove import PROVED, REFUTED, ProveResult, prove, prove_mutant, theorem_names
from kvproof.checks.readings.spec_errors import UnknownName
from kvproof.spec.language import RULES
from kvproof.spec.modules import MODULES, NUMBER_THEOREMS
from kvproof.spec.mutants import MUTANTS
from kvproof.spec.steps import FALSE_STATEMENTS


@pytest.fixture(scope="module")
def proof() -> ProveResult:
    return prove()


def test_every_theorem_is_proved_for_any_size_within_a_minute(proof: ProveResult) -> None:
    assert {t.name: t.verdict for t in proof.theorems if t.verdict != PROVED} == {}
    assert all(t.scope.startswith("any size") for t in proof.theorems)
    assert proof.verdict == "certified"
    assert proof.exit_code() == 0
    assert proof.seconds < 60


def test_every_rule_of_the_book_is_among_the_theorems(proof: ProveResult) -> None:
    assert set(RULES) <= {t.name for t in proof.theorems}
    assert len(RULES) == sum(len(module.rules) for module in MODULES.values()) == 14


def test_a_rule_that_logic_cannot_state_says_in_which_form_it_was_proved(proof: ProveResult) -> None:
    counts = next(t for t in proof.theorems if t.name == "counts_match_owners")
    assert "free_means_no_owner" in counts.scope
    assert "first-order" in counts.scope


def test_every_action_happens_and_every_premise_is_met_in_some_story(proof: ProveResult) -> None:
    assert [v.name for v in proof.vacuity if v.vacuous] == []
    met = {v.name for v in proof.vacuity if v.kind == "action"}
    lengths = {f"lengths.{name}" for name in MODULES["lengths"].actions}
    assert met == {*MODULES["storage"].actions, *MODULES["records"].actions, *lengths}
    assert sum(v.kind == "premise" for v in proof.vacuity) > 50


def test_statements_known_to_be_false_have_counterexamples(proof: ProveResult) -> None:
    assert {t.name: t.verdict for t in proof.does_not_hold} == dict.fromkeys(FALSE_STATEMENTS, REFUTED)
    assert all(t.counterexample for t in proof.does_not_hold)


def test_the_result_is_plain_json(proof: ProveResult) -> None:
    import json

    read = json.loads(json.dumps(proof.to_json()))
    assert {"verdict", "theorems", "seconds"} <= read.keys()
    assert {"name", "scope", "verdict", "seconds"} <= read["theorems"][0].keys()


def test_one_theorem_can_be_asked_alone_and_an_unknown_one_is_named() -> None:
    log: list[str] = []
    result = prove("no_read_before_fill", log=log.append)
    assert [t.name for t in result.theorems] == ["no_read_before_fill"]
    assert "fork preserves no_read_before_fill ... proved" in log
    with pytest.raises(UnknownName, match="no_such_theorem"):
        prove("no_such_theorem")
    assert len(theorem_names()) == len(set(theorem_names()))
    assert {t.name for t in NUMBER_THEOREMS} < set(theorem_names())


@pytest.mark.parametrize("name", MUTANTS)
def test_every_mutant_is_refuted_by_the_prover(name: str) -> None:
    result = prove_mutant(MUTANTS[name])
    assert result.verdict == REFUTED, name
    assert "does not preserve" in result.obligation


def test_every_rule_has_a_mutant() -> None:
    assert {mutant.rule for mutant in MUTANTS.values()} == set(RULES)


def test_a_failed_proof_shows_a_small_state_before_and_after() -> None:
    result = prove_mutant(MUTANTS["early_release"])
    assert result.counterexample is not None
    assert "fork(" in result.counterexample
    assert "before" in result.counterexample
    assert "after" in result.counterexample
    assert len(result.counterexample.splitlines()) < 30


@pytest.mark.parametrize("action", ["admit", "finish", "release_pins", "submit", "reserve", "evict"])
def test_every_condition_of_an_action_is_needed_or_says_why_it_stands_there(action: str) -> None:
    from kvproof.checks.proof.conditions import FOR_MEANING, idle

    assert set(idle(action)) == {place for name, place in FOR_MEANING if name == action}
