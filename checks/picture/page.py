"""A trace as a picture: one HTML page that shows which event broke which rule, on which block, and whose.

:func:`picture` makes a page that stands alone: no network, no other file, nothing executed from the trace.
All its text comes from an untrusted file and is escaped by the template engine; a content security policy
allows the page's own style and script and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from shlex import quote
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined

from kvproof.checks.picture.blame import Blame, FindingLike, blame
from kvproof.checks.picture.grid import Grid, Place, lay_out, name_of
from kvproof.checks.picture.shapes import Drawing, draw
from kvproof.checks.picture.told import biography
from kvproof.checks.picture.words import answer, call, clean, opening
from kvproof.model.trace import Trace

WINDOW = 60
"""Operations up to the breach that are shown first."""
AFTERWARDS = 4
"""Operations after the breach that are shown with them."""
MOST_CELLS = 8_000
"""Cells of the picture of the whole run; of a longer run the part around the breach is shown."""
MOST_LIFE = 40
"""Sentences of a block's history."""
MOST_LISTED = 1_500
"""Operations that a list spells out."""


@dataclass(frozen=True)
class Listing:
    """A pasteable program: lines with the number of their operation, 0 for the others."""

    lines: tuple[tuple[int, str, str], ...]
    """Number, code, comment."""


@dataclass(frozen=True)
class View:
    """One figure with its list of operations."""

    drawing: Drawing
    listing: Listing
    title: str
    note: str


def picture(trace: Trace, finding: FindingLike | Mapping[str, Any] | None = None) -> str:
    """The page for a trace, as HTML text.

    ``finding`` says what broke: an object or a mapping with ``rule``, ``kind``, ``length`` and ``message``
    (see :class:`~kvproof.checks.picture.blame.FindingLike`); without one the run alone is shown.  The same
    input always gives the same text.
    """
    guilty = None if finding is None else blame(trace, finding)
    total = len(trace.operations)
    centre = total if guilty is None else guilty.moment
    first, last = max(0, centre - WINDOW), min(total, centre + AFTERWARDS)
    near = lay_out(trace, first, last, guilty)
    longer = None if first == 0 and last == total else lay_out(trace, *_reach(near, centre, total), guilty)
    template = _environment().get_template("picture.html")
    return template.render(
        blame=guilty,
        facts=_facts(trace, guilty),
        window=_view(trace, near, guilty, "near", longer),
        whole=None if longer is None else _view(trace, longer, guilty, "all"),
        life=_life(guilty, longer or near),
        total=total,
        policy=_policy(),
    )


# --------------------------------------------------------------------------------------------------- views


def _reach(near: Grid, centre: int, total: int) -> tuple[int, int]:
    """The whole run, or as much of it around the breach as a page can hold."""
    room = max(2 * WINDOW, MOST_CELLS // max(1, len(near.rows)))
    last = min(total, max(room, centre + room // 10))
    return max(0, last - room), last


def _view(trace: Trace, grid: Grid, guilty: Blame | None, key: str, longer: Grid | None = None) -> View:
    drawing = draw(trace, grid, guilty, key, longer)
    first, last, total = max(1, grid.first), grid.last, len(trace.operations)
    title = f"Operations {first:,} to {last:,} of {total:,}" if total else "The start, before any operation"
    notes = []
    if not grid.rows:
        notes.append("This trace has no snapshots, so there are no blocks to draw: the list of operations is all.")
    if grid.left_out > 0:
        notes.append(f"{grid.left_out:,} more blocks and slots have no row: nothing happened to them here.")
    if key == "all" and (first > 1 or last < total):
        notes.append("A page cannot hold more of this run: the rest is in the trace file.")
    listing = _listing(trace, 1 if key == "all" else first, last, guilty)
    return View(drawing, listing, title, " ".join(notes))


def _listing(trace: Trace, first: int, last: int, guilty: Blame | None) -> Listing:
    """The operations as a program that can be pasted; a list that does not start at the first one says so."""
    first = max(first, last - MOST_LISTED + 1)
    lines = [(0, line, "") for line in opening(trace)] + [(0, "", "")]
    if first > 1:
        lines.append((0, "", f"# Operations 1 to {first - 1} come first: they are in the trace."))
    for number in range(first, last + 1):
        operation = trace.operations[number - 1]
        lines.append((number, f"allocator.{call(operation)}", f"# {answer(operation)}"))
        if guilty is not None and guilty.moment == number:
            lines.append((0, "", f"# Here {clean(guilty.name, 60)} breaks."))
    return Listing(tuple(lines))


def _facts(trace: Trace, guilty: Blame | None) -> list[tuple[str, str]]:
    """What a reader must know to read the rest, the target first."""
    c = trace.configuration
    pool = f"{c.blocks:,} blocks of {c.block_size} positions, at most {c.max_requests} requests"
    if c.state_slots:
        pool += f", {c.state_slots} state slots"
    facts = [("target", clean(trace.target, 200) or "not named"), ("pool", pool), ("seed", str(trace.seed))]
    if trace.packages:
        named = (f"{clean(name, 40)} {clean(version, 40)}" for name, version in list(trace.packages.items())[:12])
        facts.append(("versions", ", ".join(named)))
    if guilty is not None and guilty.trace:
        facts.append(("again", f"kvproof replay {quote(guilty.trace)}"))
    return facts


def _life(guilty: Blame | None, grid: Grid) -> tuple[str, list[tuple[int, str]]]:
    """Name and history of the guilty block up to the breach, from the first moment that the page has."""
    if guilty is None or guilty.block is None:
        return "", []
    where: Place = guilty.pool, guilty.block
    if where not in grid.cells:
        return name_of(where), []
    told = [(moment, sentence) for moment, sentence in biography(grid, where) if moment <= guilty.moment]
    return name_of(where), told if len(told) <= MOST_LIFE else [told[0], *told[1 - MOST_LIFE :]]


# ------------------------------------------------------------------------------------------------ template


@cache
def _environment() -> Environment:
    folder = resources.files("kvproof.checks.picture") / "templates"
    return Environment(
        loader=FunctionLoader(lambda name: (folder / name).read_text(encoding="utf-8")),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


@cache
def _policy() -> str:
    """The page may use its own style and script, by their hashes, and load nothing."""
    style, script = (_hash(_environment().get_template(name).render()) for name in ("picture.css", "picture.js"))
    return f"default-src 'none'; style-src {style}; script-src {script}; base-uri 'none'; form-action 'none'"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
