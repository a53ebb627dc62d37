"""Certify on a real engine: the cache of transformers passes, and a fault planted in it is caught each time."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from kvproof.checks.certification.certify import Plan, certify
from kvproof.checks.lockstep.harness import TargetError
from kvproof.model.interface import Configuration, Factory

SMALL = Plan(examples=3, pairs=1, rows=80, operations=2_500)


def _planted() -> dict[str, tuple[Factory, frozenset[str]]]:
    path = Path(__file__).with_name("planted.py")
    spec = importlib.util.spec_from_file_location("kvproof_test_planted", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["kvproof_test_planted"] = module
    spec.loader.exec_module(module)
    return {name: (module.make_planted(name), fault.breaks) for name, fault in module.PLANTED.items()}


PLANTED = _planted()


def test_the_real_cache_is_certified_with_forks_hits_and_evictions() -> None:
    from kvproof.checks.adapters.transformers import make_transformers

    result = certify(make_transformers, "transformers", plan=SMALL)
    assert (result.verdict, result.missing) == ("certified", [])
    for event in ("fork:ok", "hits", "evicted", "copies", "admit:later", "extend:later"):
        assert result.statistics[event] > 0, event
    assert result.notes == ["the target does not declare NEVER: a request that can never fit is told LATER"]


@pytest.mark.parametrize("name", sorted(PLANTED))
def test_a_planted_fault_is_caught_under_its_rule(name: str) -> None:
    factory, rules = PLANTED[name]
    finding = certify(factory, name).findings[0]
    assert finding.rule in rules
    assert finding.length <= 6


def test_a_factory_that_fails_is_no_verdict() -> None:
    def factory(configuration: Configuration) -> None:
        raise ImportError(f"no cache for {configuration.blocks} blocks")

    with pytest.raises(TargetError, match="no cache for 7 blocks"):
        certify(factory, "broken", plan=SMALL)  # type: ignore[arg-type]
