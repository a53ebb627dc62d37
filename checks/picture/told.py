"""A grid in words: what is known about one cell, and the life of one block."""

from __future__ import annotations

from collections.abc import Iterator

from kvproof.checks.picture.grid import MOST_NAMED, Cell, Grid, Place, QueuedCopy
from kvproof.checks.picture.words import listed


def facts(grid: Grid, where: Place, moment: int, since: str) -> tuple[str, ...]:
    """All that is known about one cell, one sentence a line; ``since`` says from when on."""
    cell = grid.cell(where, moment)
    lines = [_who(cell, since)]
    if cell.seen and cell.count is not None:
        number = len(cell.owners) + len(cell.holders)
        differs = "" if number == cell.count else f", though it has {number} owner{'' if number == 1 else 's'}"
        lines.append(f"owner count {cell.count}{differs}")
    lines += cell.contents
    lines += [f"it last held {what}" for what in cell.last]
    if len(cell.owners) > 4:
        lines.append(f"… and {len(cell.owners) - 4} more requests")
    lines += _under_way(grid, where, moment)[:MOST_NAMED]
    if cell.key:
        lines.append(f"can be hit under key {cell.key}")
    return tuple(lines)


def _who(cell: Cell, since: str = "") -> str:
    """Who has it, or which class it is in."""
    when = f" {since}" if since else ""
    match cell.kind:
        case "unseen":
            return "not observed: the trace has no snapshot here"
        case "free":
            return f"free{when}"
        case "cached":
            return f"cached{when}: nobody owns it, its contents can be hit"
        case "reserved":
            return "reserved: it may be issued to nobody"
        case "lost":
            return f"in no class{when}: nobody owns it, yet it is neither free nor cached"
        case "twice":
            return f"in the free list {cell.free} times{when}"
    parts = []
    if cell.owners:
        how = "shared by" if len(cell.owners) > 1 else "owned by"
        parts.append(f"{how} {listed(cell.owners)}{when}")
    if cell.holders:
        parts.append(f"held by {listed(cell.holders)}" + ("" if cell.owners else when))
    if cell.kind == "clash":
        parts.append("and yet it may be issued")
    if not cell.usable:
        parts.append("though its id is reserved")
    return ", ".join(parts)


def _under_way(grid: Grid, where: Place, moment: int, queued_before: int | None = None) -> list[str]:
    """What queued copies still do to the block."""
    lines = []
    for copy in grid.copies_at.get(where, ()):
        if copy.pending(moment) and (queued_before is None or copy.queued < queued_before):
            lines += [f"queued {copy.route()} still reads it"] if copy.source == where[1] else []
            lines += [f"queued {copy.route()} will write it"] if copy.destination == where[1] else []
    return lines


def biography(grid: Grid, where: Place) -> list[tuple[int, str]]:
    """The life of one block as sentences, each with the moment it belongs to."""
    first = grid.cells[where][0]
    sentences = [(grid.first, "; ".join([f"it is {_who(first)}", *_under_way(grid, where, grid.first)[:MOST_NAMED]]))]
    for moment in range(grid.first + 1, grid.last + 1):
        before, cell = grid.cell(where, moment - 1), grid.cell(where, moment)
        parts = list(_changes(before, cell))
        if parts:  # what was under way already, and goes on
            parts += _under_way(grid, where, moment, queued_before=moment)[:MOST_NAMED]
        events = [event for copy in grid.copies_at.get(where, ()) for event in _copy_events(copy, where[1], moment)]
        if parts or events:
            sentences.append((moment, "; ".join([*parts, *events[:MOST_NAMED]])))
    return sentences


def _changes(before: Cell, cell: Cell) -> Iterator[str]:
    if not (before.seen and cell.seen):
        if before.seen != cell.seen:
            yield f"now {cell.state()}" if cell.seen else "not observed from here on"
        return
    mine, theirs = (*cell.owners, *cell.holders), (*before.owners, *before.holders)
    new, gone = [n for n in mine if n not in theirs], [n for n in theirs if n not in mine]
    told = dict(zip(cell.owners, cell.contents, strict=False))
    if new:
        others = [name for name in mine if name not in new]
        yield f"given to {listed(told.get(name, name) for name in new)}" + (
            f"; {listed(others)} {'has' if len(others) == 1 else 'have'} it too" if others else ""
        )
    if gone:
        yield f"given up by {listed(gone)}"
        if mine and not new:
            yield f"{listed(mine)} still {'has' if len(mine) == 1 else 'have'} it"
    if cell.kind != before.kind and cell.kind in ("free", "cached", "twice", "lost", "clash"):
        yield "now in no class: neither owned, free nor cached" if cell.kind == "lost" else f"now {cell.state()}"


def _copy_events(copy: QueuedCopy, block: int, moment: int) -> Iterator[str]:
    if copy.queued == moment:
        yield f"{copy.route()} is queued and will {'read' if copy.source == block else 'write'} it"
    if copy.completed == moment:
        yield f"{copy.route()} is observed complete"
