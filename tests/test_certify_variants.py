"""Every declared discipline of the model is correct, so no check may flag any of them."""

from __future__ import annotations

from typing import Any

import pytest

from kvproof.checks.certification.certify import Plan, certify
from kvproof.model import ReferenceAllocator

SHORT = Plan(examples=3, operations=1200, rows=40)

VARIANTS: dict[str, dict[str, Any]] = {
    "pinned": {"destination": "pinned"},
    "cancelled": {"destination": "cancelled"},
    "cancelled, steps, decode path": {"destination": "cancelled", "steps": True, "fork_path": "decode"},
    "prompt path": {"fork_path": "prompt"},
    "forward release, no cache": {"release_order": "forward", "cache": False},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_declared_discipline_is_never_flagged(variant: str) -> None:
    result = certify(lambda configuration: ReferenceAllocator(configuration, **VARIANTS[variant]), variant, plan=SHORT)
    assert [finding.message for finding in result.findings] == []
    assert result.operations >= SHORT.operations
