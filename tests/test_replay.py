"""Replay: the violation happens again, or it does not, or the target tells another story."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvproof.checks.adapters import registry
from kvproof.checks.certification.certify import Plan, certify
from kvproof.checks.certification.finding import Finding
from kvproof.checks.certification.replay import ReplayError, replay
from kvproof.model import make_reference
from kvproof.model.interface import Configuration
from kvproof.model.trace import Recorder, TraceError, read_trace, write_trace

SMALL = Plan(examples=2, pairs=2, rows=10, operations=500)


@pytest.fixture(scope="module")
def early_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The counterexample of the chapter's first run, saved."""
    return _saved("reference:early_release", tmp_path_factory.mktemp("traces"), seed=1)


def _saved(target: str, directory: Path, seed: int = 0) -> Path:
    finding: Finding = certify(registry.resolve(target), target, seed=seed).findings[0]
    assert finding.recorded is not None
    path = directory / "finding.jsonl"
    write_trace(path, finding.recorded)
    return path


def _recorded(directory: Path, use: Callable[[Any], None], target: str = "reference") -> Path:
    configuration = Configuration(blocks=4, block_size=4)
    allocator = Recorder(make_reference(configuration), configuration, target=target)
    use(allocator)
    path = directory / "recorded.jsonl"
    write_trace(path, allocator.trace())
    return path


def _chapter(allocator: Any) -> None:
    allocator.admit("parent", list(range(100, 110)))
    allocator.commit("parent", 10)
    forked = allocator.fork("parent", "child", 10)
    allocator.release("parent", "finish")
    allocator.complete([forked.copies[0].ticket])


def _edited(path: Path, line: int, change: Callable[[dict[str, Any]], None]) -> Path:
    lines = path.read_text().splitlines()
    value = json.loads(lines[line - 1])
    change(value)
    lines[line - 1] = json.dumps(value)
    edited = path.with_name("edited.jsonl")
    edited.write_text("\n".join(lines) + "\n")
    return edited


def test_a_saved_counterexample_breaks_the_same_rule_again(early_release: Path) -> None:
    outcome = replay(early_release)
    assert (outcome.verdict, outcome.exit_code, outcome.target) == ("violated", 1, "reference:early_release")
    assert outcome.finding is not None
    assert (outcome.finding.rule, outcome.finding.length) == ("reads_keep_their_source", 3)
    assert "B reads 900 and 901 where 108 and 109 were expected" in outcome.finding.full_message()
    assert outcome.finding.trace == str(early_release)


def test_the_repaired_target_passes_the_same_trace(early_release: Path) -> None:
    outcome = replay(early_release, on="reference")
    assert (outcome.verdict, outcome.exit_code, outcome.finding) == ("certified", 0, None)


def test_a_counterexample_survives_the_round_trip_through_a_file(early_release: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.jsonl"
    write_trace(again, read_trace(early_release))
    assert again.read_text() == early_release.read_text()
    assert replay(again).exit_code == 1


@pytest.mark.parametrize("mutant", ["issue_twice", "abort_leaks", "recycle_early", "stale_key", "issue_block_zero"])
def test_every_kind_of_counterexample_replays(mutant: str, tmp_path: Path) -> None:
    target = f"reference:{mutant}"
    outcome = replay(_saved(target, tmp_path))
    assert outcome.exit_code == 1
    assert outcome.finding is not None
    assert outcome.finding.rule == registry.builtin_targets()[target].rule


def test_a_recorded_run_of_a_correct_target_passes(tmp_path: Path) -> None:
    outcome = replay(_recorded(tmp_path, _chapter))
    assert (outcome.verdict, outcome.exit_code) == ("certified", 0)
    assert outcome.operations >= 5


def test_a_target_that_answers_otherwise_is_undetermined_never_a_pass(tmp_path: Path) -> None:
    def later(value: dict[str, Any]) -> None:
        value["answer"] = "later"

    outcome = replay(_edited(_recorded(tmp_path, _chapter), 2, later))
    assert (outcome.verdict, outcome.exit_code) == ("undetermined", 3)
    assert outcome.note == "line 2: admit is answered ok where later was recorded"


def test_other_hit_rows_are_another_answer(tmp_path: Path) -> None:
    def hit(value: dict[str, Any]) -> None:
        value["effects"]["reply"]["hit_rows"] = 4

    outcome = replay(_edited(_recorded(tmp_path, _chapter), 2, hit))
    assert (outcome.exit_code, outcome.note) == (3, "line 2: admit hits 0 rows where 4 were recorded")


def test_only_built_in_targets_are_taken_from_a_header(tmp_path: Path) -> None:
    path = _recorded(tmp_path, _chapter, target="antigravity:fly")
    with pytest.raises(registry.TargetError, match="not built in: name what to replay it on with --on"):
        replay(path)
    assert replay(path, on="reference").exit_code == 0


def test_a_trace_that_asks_for_what_may_not_be_asked_is_an_error_not_a_verdict(tmp_path: Path) -> None:
    def too_many(value: dict[str, Any]) -> None:
        value["args"]["rows"] = 4000

    with pytest.raises(ReplayError, match=r"^line 3: commit may not be asked there: "):
        replay(_edited(_recorded(tmp_path, _chapter), 3, too_many))


def test_a_ticket_that_nothing_queued_is_an_error(tmp_path: Path) -> None:
    def unknown(value: dict[str, Any]) -> None:
        value["args"]["tickets"] = [77]

    with pytest.raises(ReplayError, match=r"^line 6: complete may not be asked there: it names queued work"):
        replay(_edited(_recorded(tmp_path, _chapter), 6, unknown))


def test_a_billion_blocks_are_refused_before_anything_is_built(tmp_path: Path) -> None:
    def billion(value: dict[str, Any]) -> None:
        value["config"]["blocks"] = 10**9

    with pytest.raises(TraceError, match=r"^line 1: field config.blocks: 1000000000 is not between 1 and"):
        replay(_edited(_recorded(tmp_path, _chapter), 1, billion))


def test_more_blocks_than_a_replay_builds_are_refused(tmp_path: Path) -> None:
    def many(value: dict[str, Any]) -> None:
        value["config"]["blocks"] = 10**6

    with pytest.raises(ReplayError, match=r"^line 1: config.blocks is 1000000, more than 65536"):
        replay(_edited(_recorded(tmp_path, _chapter), 1, many))


def test_a_finding_on_a_longer_run_is_saved_shorter_and_replays() -> None:
    target = "reference:early_release"
    result = certify(registry.resolve(target), target, seed=1, plan=SMALL)
    assert result.findings[0].recorded is not None
    assert len(result.findings[0].recorded.operations) == 4
