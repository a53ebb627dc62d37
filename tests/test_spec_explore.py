"""The spec explored: pinned counts, the same from every engine, and classes that stand for all states."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from kvproof.checks.exploring.explore import explore
from kvproof.checks.exploring.explore_model import Limits
from kvproof.checks.exploring.explore_spec import engine_for, machine_for
from kvproof.checks.exploring.layout import Layout
from kvproof.checks.readings.spec_errors import UsageError
from kvproof.spec.mutants import MUTANTS

COUNTS = {3: (12_904, 52_269, 9), 4: (285_637, 1_300_888, 12)}
"""States, edges and depth; the benchmark's Promela model of the same system counts the same."""
ENGINES = ["numpy", *(["numba"] if importlib.util.find_spec("numba") else [])]
COARSE = [name for name, mutant in MUTANTS.items() if mutant.module == "storage" and mutant.stage.coarse]


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_counts_the_same_states(engine: str) -> None:
    result = explore(subject="spec", blocks=3, engine=engine)
    assert (result.states, result.edges, result.depth) == COUNTS[3]
    assert result.finding is None
    assert result.complete
    assert {"owned_xor_free", "reads_keep_their_source", "destinations_stay_home"} <= set(result.checked)


def test_torch_counts_the_same_states() -> None:
    pytest.importorskip("torch")
    result = explore(subject="spec", blocks=3, engine="torch")
    assert (result.states, result.edges, result.depth) == COUNTS[3]


def test_four_blocks_are_counted_too() -> None:
    result = explore(subject="spec", blocks=4)
    assert (result.states, result.edges, result.depth) == COUNTS[4]


@pytest.mark.parametrize("blocks", [3, 4])
@pytest.mark.parametrize("engine", ENGINES)
def test_orbits_of_the_classes_are_all_states(blocks: int, engine: str) -> None:
    result = explore(subject="spec", blocks=blocks, symmetry="blocks", engine=engine)
    assert result.orbit_sum == COUNTS[blocks][0]
    assert result.classes < COUNTS[blocks][0] / 5


@pytest.mark.parametrize("engine", ENGINES)
def test_renaming_requests_and_work_merges_more(engine: str) -> None:
    assert explore(subject="spec", blocks=3, symmetry="full", engine=engine).classes == 257
    assert explore(subject="spec", blocks=4, symmetry="full", engine=engine).classes == 1_212


@pytest.mark.parametrize("destination", ["ordered", "pinned", "cancelled"])
def test_the_three_destination_disciplines_keep_all_rules(destination: str) -> None:
    result = explore(subject="spec", blocks=4, symmetry="full", destination=destination)  # type: ignore[arg-type]
    assert result.finding is None
    assert result.complete


@pytest.mark.parametrize("symmetry", ["none", "blocks", "full"])
@pytest.mark.parametrize(
    ("mutant", "rule", "length"),
    [
        ("early_release", "reads_keep_their_source", 3),
        ("destination_unpinned", "writes_stay_home", 4),
    ],
)
def test_fixed_mutants_are_caught_at_their_shortest_length(mutant: str, rule: str, length: int, symmetry: str) -> None:
    finding = explore(subject="spec", blocks=4, symmetry=symmetry, mutant=mutant).finding
    assert finding is not None
    assert (finding.rule, finding.length) == (rule, length)
    assert len(finding.steps) == length


@pytest.mark.parametrize("mutant", COARSE)
def test_every_mutant_that_shows_without_rows_is_found(mutant: str) -> None:
    finding = explore(subject="spec", blocks=4, mutant=mutant).finding
    assert finding is not None
    assert finding.rule == MUTANTS[mutant].rule


def test_a_mutant_of_rows_or_numbers_is_sent_to_refute() -> None:
    with pytest.raises(UsageError, match="use refute"):
        explore(subject="spec", mutant="commit_adds")


def test_a_state_fits_into_words_and_comes_back() -> None:
    machine = machine_for(Limits(3, 3, 3, 2))
    layout = Layout(machine)
    generator = np.random.default_rng(1)
    for _ in range(20):
        values = generator.integers(0, 2, len(machine.cells)).astype(bool)
        cells = {cell for cell, value in zip(machine.cells, values, strict=True) if value}
        assert layout.unpack([int(word) for word in layout.pack(values.tolist())]) == cells
    for cell, bit in zip(machine.cells, layout.bits, strict=True):
        assert layout.bit(cell) == bit


@pytest.mark.parametrize("engine", ENGINES)
def test_a_resumed_exploration_ends_with_the_same_counts(engine: str, tmp_path: Path) -> None:
    from kvproof.checks.exploring.exploration import Checkpoint

    limits = Limits(3, 3, 3, 2)
    machine = machine_for(limits)
    explorer, _ = engine_for(machine, Layout(machine), "none", "cpu", engine)
    levels = [0]
    for _ in range(4):
        first, last = levels[-1], explorer.count
        explorer.expand(first, last)
        levels.append(last)
    parents, moves = explorer.history()
    file = tmp_path / "run.npz"
    what = f"spec {limits} none None ordered"
    Checkpoint(np.asarray(explorer.all_keys()), parents, moves, levels, explorer.edges).save(file, what)
    resumed = explore(subject="spec", blocks=3, engine=engine, checkpoint=file)
    assert (resumed.states, resumed.edges, resumed.depth) == COUNTS[3]


def test_an_unfinished_exploration_says_so() -> None:
    result = explore(subject="spec", blocks=4, max_states=500)
    assert not result.complete
    assert result.exit_code() == 3


def test_expanding_by_renaming_blocks_gives_the_same_moves() -> None:
    """What is worked out once and renamed equals what is worked out for every block, state by state."""
    from kvproof.checks.readings.machine import Machine

    quick = machine_for(Limits(3, 2, 2, 2))
    direct = Machine(quick.module, quick.scope, renames=False)
    assert quick.cells == direct.cells
    assert [str(i) for i in quick.instances] == [str(i) for i in direct.instances]
    generator = np.random.default_rng(2)
    for _ in range(15):
        truth = generator.integers(0, 2, len(quick.cells)).astype(bool)
        ours = dict(zip(quick.inputs, truth.tolist(), strict=True))
        theirs = dict(zip(direct.inputs, truth.tolist(), strict=True))
        for a, b in zip(quick.instances, direct.instances, strict=True):
            assert quick.circuit.evaluate(a.guard, ours) == direct.circuit.evaluate(b.guard, theirs)
            after_a = {place: quick.circuit.evaluate(node, ours) for place, node in a.changes}
            after_b = {place: direct.circuit.evaluate(node, theirs) for place, node in b.changes}
            for place in after_a.keys() | after_b.keys():
                old = bool(truth[place])
                assert after_a.get(place, old) == after_b.get(place, old)


def test_a_device_that_is_not_there_is_named() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(UsageError, match="no CUDA device"):
        explore(subject="spec", device="cuda")
