"""The backend against the model, correct and broken: who notices what."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

pytest.importorskip("torch")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvproof.checks.adapters.registry import TargetError, resolve
from kvproof.checks.certification.generate import SeededChoices
from kvproof.checks.certification.stateful import HypothesisChoices, Outcome, seeded
from kvproof.checks.differential import diff_table
from kvproof.checks.differential.diff import (
    ALL_SCHEDULES,
    Detector,
    Program,
    Side,
    diff,
    programs,
    run_program,
    side,
)
from kvproof.gpu.backend import GpuAllocator, Policy
from kvproof.gpu.mutants import MUTANTS
from kvproof.gpu.sanitizer import Sanitizer
from kvproof.gpu.schedules import Drawn, by_name, every_name
from kvproof.gpu.sim import SimDevice
from kvproof.gpu.worker import STREAMS
from kvproof.model.interface import Allocator, Configuration
from kvproof.model.reference import ReferenceAllocator

REFERENCE, GPU = side("reference"), side("gpu")


def test_the_schedules_of_the_comparison_are_those_of_the_device() -> None:
    assert set(ALL_SCHEDULES) == set(every_name(STREAMS))


def test_model_and_backend_agree_under_every_schedule() -> None:
    result = diff("reference", "gpu", examples=16, seed=1, schedule="all")
    assert result.finding is None
    assert (result.verdict, result.examples, result.programs) == ("certified", 16, 96)
    assert result.operations > 2000


@settings(max_examples=20, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_they_agree_when_hypothesis_draws_the_program_and_every_choice_of_the_device(data: st.DataObject) -> None:
    def backend(configuration: Configuration, _schedule: str, _seed: int) -> Allocator:
        device = SimDevice(Drawn(lambda n: data.draw(st.integers(0, n - 1))), Sanitizer())
        return GpuAllocator(configuration, device, Policy(strict=False))

    program = run_program(REFERENCE, backend, Configuration(state_slots=4), HypothesisChoices(data), "drawn", 0)
    assert program.differences == []


def test_the_programs_of_the_comparison_do_everything() -> None:
    done = {operation.op for program in programs(REFERENCE, GPU, 25, 1, "lazy") for operation in program.operations}
    assert done >= {"admit", "extend", "commit", "advance", "release", "fork", "complete", "submit", "pin", "hold"}


VARIANTS: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "destination pinned": ({"destination": "pinned"}, {}),
    "destination cancelled": ({"destination": "cancelled"}, {}),
    "decode path": ({"fork_path": "decode"}, {}),
    "prompt path": ({"fork_path": "prompt"}, {}),
    "no cache": ({"cache": False}, {}),
    "every prompt loaded": ({}, {"load_every": 1}),
    "poison": ({}, {"poison": True}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_declared_discipline_agrees_with_the_model(variant: str) -> None:
    shared, own = VARIANTS[variant]

    def model(configuration: Configuration, _schedule: str, _seed: int) -> Allocator:
        allocator = ReferenceAllocator(configuration, steps=True, **shared)  # type: ignore[arg-type]
        if shared.get("destination") == "cancelled":
            # A holder reads on the device, so the backend submits for it what the model may still cancel.
            capabilities = (allocator.declaration.capabilities or frozenset()) - {"holders"}
            allocator.declaration = dataclasses.replace(allocator.declaration, capabilities=capabilities)
        return allocator

    def backend(configuration: Configuration, schedule: str, seed: int) -> Allocator:
        device = SimDevice(by_name(schedule, seed), Sanitizer())
        return GpuAllocator(configuration, device, Policy(strict=False, **shared, **own))  # type: ignore[arg-type]

    for program in programs(model, backend, 5, 3, "all"):
        assert program.differences == [], program.operations


def test_in_stream_order_the_sanitizer_is_silent_and_the_bytes_are_those_of_the_eager_order() -> None:
    def backend(configuration: Configuration, schedule: str, seed: int) -> Allocator:
        device = SimDevice(by_name(schedule, seed), Sanitizer())
        return GpuAllocator(configuration, device, Policy(strict=False, release_rule="stream"))

    def eager(configuration: Configuration, _schedule: str, seed: int) -> Allocator:
        return backend(configuration, "eager", seed)

    for program in programs(eager, backend, 5, 3, "all"):
        assert program.differences == [], program.operations


# Mutants ------------------------------------------------------------------------------------------


def detectors_of(mutant: str, schedule: str, most: int, enough: frozenset[Detector]) -> frozenset[Detector]:
    """Which detectors fired within ``most`` programs; stops when all that are wanted have."""
    found: frozenset[Detector] = frozenset()
    for program in programs(REFERENCE, side(f"gpu:{mutant}"), most, 1, schedule):
        found |= program.detectors
        if enough <= found:
            break
    return found


@pytest.mark.parametrize("mutant", MUTANTS)
def test_each_mutant_is_caught_by_its_detectors_within_sixty_programs(mutant: str) -> None:
    wanted: frozenset[Detector] = frozenset(MUTANTS[mutant].caught_by)
    assert wanted <= detectors_of(mutant, "lazy", 60, wanted)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_eager_order_shows_no_mutant_by_bytes(mutant: str) -> None:
    assert not {"bytes", "raises"} & detectors_of(mutant, "eager", 20, frozenset({"bytes"}))


def test_the_table_in_the_documentation_says_the_same() -> None:
    """It is generated by ``python -m kvproof.checks.differential.diff_table gpu/README.md``."""
    table = diff_table.parse((Path(__file__).parent.parent / "gpu" / "README.md").read_text())
    assert list(table) == [diff_table.CORRECT, *MUTANTS]
    assert not any(table[diff_table.CORRECT].values()), "no false alarm"
    for name, mutant in MUTANTS.items():
        assert all(table[name][detector] > 0 for detector in mutant.caught_by)
        assert table[name]["bytes eager"] == 0
    for schedule in set(ALL_SCHEDULES) - {"eager"}:
        assert any(row[f"bytes {schedule}"] for row in table.values()), "every other schedule shows something"
    one = diff_table.rows([diff_table.CORRECT], count=2)
    assert diff_table.parse(f"{diff_table.BEGIN}\n{diff_table.markdown(one)}\n{diff_table.END}") == one


# What a difference looks like ----------------------------------------------------------------------


def test_a_difference_is_made_short_and_told_as_a_finding() -> None:
    result = diff("reference", "gpu:early_release", examples=60, seed=1, schedule="lazy")
    assert result.verdict == "violated"
    finding = result.finding
    assert finding is not None
    assert finding.length <= 3, [str(step.operation) for step in finding.steps]
    assert "seed" in finding.message


def test_a_race_is_a_finding_with_the_rule_that_it_breaks() -> None:
    finding = diff("reference", "gpu:reader_does_not_wait", examples=60, seed=1, schedule="eager").finding
    assert finding is not None
    assert (finding.rule, finding.kind) == ("no_read_before_fill", "rule")
    assert "is not ordered behind" in finding.message


def test_poison_shows_early_releases_by_bytes_where_they_stay_hidden_without_it() -> None:
    def broken(poison: bool) -> Side:
        def make(configuration: Configuration, schedule: str, seed: int) -> Allocator:
            device = SimDevice(by_name(schedule, seed), Sanitizer())
            policy = Policy(strict=False, cache=False, poison=poison)
            return MUTANTS["early_release"].build(configuration, device, policy)

        return make

    def wrong_bytes(poison: bool) -> int:
        """Programs with wrong bytes; both sides are broken alike, so the host's view never differs."""

        def eager(configuration: Configuration, _schedule: str, seed: int) -> Allocator:
            return broken(False)(configuration, "eager", seed)

        found: list[Program] = list(programs(eager, broken(poison), 60, 2, "starve:copy"))
        assert not any("state" in program.detectors for program in found)
        return sum("bytes" in program.detectors for program in found)

    assert wrong_bytes(poison=True) > wrong_bytes(poison=False)


@pytest.mark.parametrize("mutant", ["early_release", "reader_does_not_wait"])
def test_a_broken_backend_is_a_target_that_certification_refuses(mutant: str) -> None:
    outcome = Outcome()
    runs = (
        seeded(resolve(f"gpu:{mutant}"), Configuration(seed=seed), seed=seed, most=40, call_limit=10.0, outcome=outcome)
        for seed in range(60)
    )
    found = next(run for run in runs if run is not None)
    assert found.breach is not None
    assert found.breach.kind in ("raises", "rule")


def test_what_cannot_be_compared_is_refused_in_one_line() -> None:
    for name in ("gpu:no_such_mutant", "no_such_target"):
        with pytest.raises(TargetError):
            side(name)
    with pytest.raises(TargetError, match="unknown schedule 'fair'"):
        diff("reference", "gpu", schedule="fair")


def test_a_program_depends_on_nothing_but_its_seed() -> None:
    def run() -> Program:
        return run_program(REFERENCE, side("gpu:copy_does_not_wait"), Configuration(), SeededChoices(5), "random", 5)

    one, other = run(), run()
    assert (one.operations, one.differences) == (other.operations, other.differences)
