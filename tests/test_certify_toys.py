"""Certify on small allocators: correct ones are never flagged, faulty ones end in the kind of their fault."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from kvproof.checks.certification.certify import Plan, certify
from kvproof.checks.lockstep.harness import TargetError

HERE = Path(__file__).parent
SMALL = Plan(examples=5, pairs=2, rows=60, operations=2_500)


def _load(path: Path, name: str) -> ModuleType:
    """A module beside the tests, which are not a package."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


toys = _load(HERE / "toys.py", "kvproof_test_toys")


@pytest.mark.parametrize("name", sorted(toys.CORRECT))
def test_a_correct_allocator_is_never_flagged(name: str) -> None:
    result = certify(toys.CORRECT[name], name, plan=SMALL)
    assert (result.verdict, result.findings, result.missing) == ("certified", [], [])


@pytest.mark.parametrize("name", sorted(toys.FAULTY))
def test_a_faulty_allocator_is_violated_with_its_kind(name: str) -> None:
    fault = toys.FAULTY[name]
    result = certify(fault.factory, name, plan=SMALL, call_limit=0.3)
    assert result.verdict == "violated"
    finding = result.findings[0]
    assert finding.kind == fault.kind
    assert finding.rule in fault.rules
    assert finding.length <= 6


def test_a_target_that_cannot_be_built_is_no_verdict() -> None:
    with pytest.raises(TargetError, match="the factory raised RuntimeError: no memory for 7 blocks"):
        certify(toys.unbuildable, "unbuildable", plan=SMALL)


def test_a_target_that_lacks_the_minimum_is_no_verdict() -> None:
    with pytest.raises(TargetError, match="has no extend, commit, release, snapshot"):
        certify(toys.Incomplete, "incomplete", plan=SMALL)


# ------------------------------------------------------------------------------------- the README's example


@pytest.fixture(scope="module")
def example() -> ModuleType:
    """The adapter of the README's 40-line allocator."""
    package = _load(HERE / "examples" / "__init__.py", "kvproof_test_examples")
    package.__path__ = [str(HERE / "examples")]
    _load(HERE / "examples" / "tiny_pool.py", "kvproof_test_examples.tiny_pool")
    return _load(HERE / "examples" / "tiny_adapter.py", "kvproof_test_examples.tiny_adapter")


def test_the_example_s_adapter_is_shorter_than_sixty_lines() -> None:
    lines = (HERE / "examples" / "tiny_adapter.py").read_text().splitlines()
    pool = (HERE / "examples" / "tiny_pool.py").read_text().splitlines()
    assert len(lines) < 60
    assert 35 <= len(pool) <= 45


def test_the_example_is_certified(example: ModuleType) -> None:
    result = certify(example.TinyAllocator, "tiny", plan=SMALL)
    assert (result.verdict, result.missing) == ("certified", [])
    assert result.capabilities == {"forks", "copies"}


def test_a_fault_in_the_example_is_found(example: ModuleType) -> None:
    class Forgetful(example.TinyAllocator):  # type: ignore[name-defined,misc]
        def complete(self, tickets: list[int]) -> None:
            del tickets

    result = certify(Forgetful, "forgetful", plan=SMALL)
    assert result.findings[0].rule in {"nothing_lost", "owned_xor_free"}


def test_the_readme_shows_the_example_as_it_is() -> None:
    readme = (HERE.parent / "README.md").read_text()
    if "tiny_adapter.py" not in readme:
        pytest.skip("this checkout's README has no example yet")
    for name in ("tiny_pool.py", "tiny_adapter.py"):
        assert (HERE / "examples" / name).read_text().strip() in readme
