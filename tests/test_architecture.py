"""ARCHITECTURE.md is true: it names every module of the tree, and nothing that is not there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "ARCHITECTURE.md"


def test_every_module_has_a_line_and_every_line_a_module() -> None:
    told = set(re.findall(r"^\| `([\w/]+\.py)` \|", PAGE.read_text(encoding="utf-8"), flags=re.M))
    there = {
        str(path.relative_to(ROOT))
        for folder in ("spec", "model", "gpu", "checks")
        for path in (ROOT / folder).rglob("*.py")
        if path.name != "__init__.py"
    }
    assert told == there
