"""The model explored: the counts that three independent checkers agree on, and the shortest breaks."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from kvproof.checks.exploring.explore import explore
from kvproof.checks.readings.spec_errors import CheckpointError, UsageError

CONCRETE = {4: (100_752, 469_296, 16), 5: (1_760_880, 9_144_600, 20), 6: (25_963_200, None, None)}
"""States, transitions and depth as SPIN, TLC and stateright count them."""


def test_all_states_at_four_blocks_are_as_three_checkers_count_them() -> None:
    result = explore(symmetry="none", blocks=4)
    assert (result.states, result.edges, result.depth) == CONCRETE[4]
    assert result.finding is None
    assert result.complete
    assert "reads_keep_their_source" in result.checked


@pytest.mark.parametrize(("blocks", "classes"), [(4, 4_198), (5, 14_674)])
def test_classes_by_blocks_times_permutations_are_all_states(blocks: int, classes: int) -> None:
    result = explore(symmetry="blocks", blocks=blocks)
    assert result.classes == classes
    assert result.orbit_sum == classes * math.factorial(blocks) == CONCRETE[blocks][0]
    assert result.states is None
    assert result.finding is None


@pytest.mark.parametrize(("blocks", "classes"), [(4, 866), (5, 2_780), (6, 6_590)])
def test_classes_by_blocks_and_requests(blocks: int, classes: int) -> None:
    result = explore(symmetry="full", blocks=blocks)
    assert result.classes == classes
    assert result.finding is None
    if blocks == 4:
        assert result.class_edges == 4_237


def test_six_blocks_have_the_classes_whose_states_spin_counts() -> None:
    assert 36_060 * math.factorial(6) == CONCRETE[6][0]


@pytest.mark.parametrize("symmetry", ["none", "blocks", "full"])
def test_early_release_is_caught_in_three_operations(symmetry: str) -> None:
    finding = explore(symmetry=symmetry, mutant="early_release").finding
    assert finding is not None
    assert (finding.rule, finding.length) == ("reads_keep_their_source", 3)
    assert [step.split("(")[0] for step in finding.steps] == ["admit", "fork", "release"]


@pytest.mark.parametrize("symmetry", ["none", "blocks", "full"])
def test_an_unpinned_destination_is_caught_in_four_operations(symmetry: str) -> None:
    finding = explore(symmetry=symmetry, mutant="destination_unpinned").finding
    assert finding is not None
    assert (finding.rule, finding.length) == ("writes_stay_home", 4)
    assert [step.split("(")[0] for step in finding.steps] == ["admit", "fork", "release", "admit"]


def test_the_destination_hazard_is_found_only_if_pinned_destinations_are_demanded() -> None:
    assert explore(symmetry="full", destination="ordered").finding is None
    finding = explore(symmetry="full", destination="pinned").finding
    assert finding is not None
    assert finding.rule == "writes_stay_home"


def test_a_resumed_exploration_ends_with_the_same_counts(tmp_path: Path) -> None:
    file = tmp_path / "run.npz"
    whole = explore(symmetry="full", blocks=4, checkpoint=file)
    assert file.exists()
    from kvproof.checks.exploring.explore_model import Limits, ModelRun, ModelSubject

    subject = ModelSubject(Limits(4, 3, 3, 2), "full", None, "ordered")
    run = ModelRun.begin(subject)
    for _ in range(6):
        run.next_level(None)
    what = f"model {subject.limits} full None ordered"
    run.checkpoint().save(file, what)
    resumed = explore(symmetry="full", blocks=4, checkpoint=file)
    assert (resumed.classes, resumed.class_edges, resumed.depth) == (whole.classes, whole.class_edges, whole.depth)
    with pytest.raises(CheckpointError, match="is a checkpoint of"):
        explore(symmetry="none", blocks=4, checkpoint=file)


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "run.npz"
    file.write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="not a checkpoint"):
        explore(symmetry="full", checkpoint=file)


def test_a_bounded_exploration_says_that_it_is_not_complete() -> None:
    result = explore(symmetry="none", max_states=1_000)
    assert not result.complete
    assert result.exit_code() == 3


def test_nonsense_is_refused_with_the_choices() -> None:
    for wrong in ({"subject": "x"}, {"symmetry": "x"}, {"mutant": "x"}, {"device": "x"}):
        with pytest.raises(UsageError, match="choose"):
            explore(**wrong)  # type: ignore[arg-type]
