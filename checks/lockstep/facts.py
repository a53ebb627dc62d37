"""The facts of a followed allocator: what the rules speak of, from the snapshot and the ghost.

Each function fills in the relations of one part of ``spec/state.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from kvproof.checks.lockstep.ghost import Ghost
from kvproof.checks.lockstep.operations import Operation
from kvproof.checks.lockstep.shadow import Block, Cell, StateSlot, Work
from kvproof.checks.lockstep.stamps import NOTHING
from kvproof.checks.readings.sets import Facts, Row
from kvproof.model.interface import BLOCKS, RECORDS, SLOTS, Answer, Pool, Reply, Snapshot
from kvproof.spec import EVENT

Relations: TypeAlias = dict[str, list[Row]]
Measures: TypeAlias = dict[str, dict[Row, int]]


def state_facts(now: Ghost, snapshot: Snapshot) -> tuple[Relations, Measures]:
    """Every relation of the state, and every number."""
    relations, measures = _ownership(now, snapshot)
    _rows(now, relations)
    _queue(now, relations)
    _lengths(now, relations, measures, snapshot[BLOCKS])
    _cache(now, relations, snapshot[BLOCKS])
    _record_facts(now, relations, snapshot.get(RECORDS))
    return relations, measures


def _ownership(now: Ghost, snapshot: Snapshot) -> tuple[Relations, Measures]:
    declared = now.declaration
    relations: Relations = {
        name: [] for name in ("usable", "exclusive", "table", "slot", "held", "free", "cached", "counted")
    }
    measures: Measures = {"listed": {}, "count": {}}
    measures["block_size"] = {(): now.size}
    relations["live"] = [(name,) for name in now.requests]
    relations["external"] = [(name,) for name in (*now.pins, *now.holders)]
    relations["promises_never"] = [()] if declared.never else []
    relations["surplus_exact"] = [()] if declared.surplus == "exact" else []
    relations["quiescent"] = [()] if now.quiescent else []
    for name, wrap in ((BLOCKS, None), (SLOTS, StateSlot)):
        pool = snapshot.get(name)
        if pool is not None:
            _pool_facts(pool, wrap, relations, measures)
    named = {**now.pins, **now.holders}
    relations["held"] += [(name, block) for name, blocks in named.items() for block in blocks]
    measures["usable_blocks"] = {(): len(snapshot[BLOCKS].usable)}
    measures["usable_slots"] = {(): len(snapshot[SLOTS].usable) if SLOTS in snapshot else 0}
    return relations, measures


def _pool_facts(
    pool: Pool,
    wrap: Callable[[int], StateSlot] | None,
    relations: Relations,
    measures: Measures,
) -> None:
    def made(ids: Iterable[int]) -> list[Block]:
        return [wrap(i) for i in ids] if wrap else list(ids)

    relations["usable"] += [(b,) for b in made(sorted(pool.usable))]
    if wrap:
        relations["exclusive"] += [(b,) for b in made(sorted(pool.usable | pool.reserved))]
    free = made(pool.free)
    relations["free"] += [(b,) for b in dict.fromkeys(free)]
    listed = measures["listed"]
    for b in free:
        listed[(b,)] = listed.get((b,), 0) + 1
    for request, table in pool.tables.items():
        if wrap:
            relations["slot"] += [(request, b) for b in dict.fromkeys(made(table))]
        else:
            relations["table"] += [(request, i, b) for i, b in enumerate(table) if b not in pool.reserved]
    relations["held"] += [(str(name), b) for name, ids in pool.holds.items() for b in dict.fromkeys(made(ids))]
    if pool.counts is not None:
        for block, count in pool.counts.items():
            if block in pool.usable:
                b = wrap(block) if wrap else block
                relations["counted"].append((b,))
                measures["count"][(b,)] = count
    relations["cached"] += [(b,) for b in made(sorted(pool.evictable))]


def _rows(now: Ghost, relations: Relations) -> None:
    uses: list[Row] = []
    may_write: list[Row] = []
    committed: list[Row] = []
    filled: list[Row] = []
    content, same, reserved = now.device.content, now.stamps.same, now.device.pools[BLOCKS].reserved
    for name, shadow in now.requests.items():
        for position in range(shadow.reserved):
            cell = shadow.cell(position, now.size)
            if cell is None:
                break
            if cell[0] in reserved and position < shadow.committed:
                continue  # a placeholder: out of the window, never read again
            row: Row = (name, *cell)
            uses.append(row)
            (committed if position < shadow.committed else may_write).append(row)
            if same(content.get(cell, NOTHING)) == same(shadow.stamp(position)):
                filled.append(row)
        if shadow.slot is not None:
            row = (name, StateSlot(shadow.slot), 0)
            uses.append(row)
            may_write.append(row)
            if shadow.committed:
                committed.append(row)
            held = content.get((StateSlot(shadow.slot), 0), NOTHING)
            if shadow.state != NOTHING and same(held) == same(shadow.state):
                filled.append(row)
    for work in now.device.queued():
        filled += [
            (name, *cell)
            for name in now.device.beneficiaries(work)
            for cell, stamp in work.expected.items()
            if work.ran  # its read is past: what it read is in its destination, which is judged there
            or same(content.get(cell, NOTHING)) == same(stamp)
            or (isinstance(cell[0], StateSlot) and now.stamps.descends(content.get(cell, NOTHING), stamp))
        ]
    # A step reads the blocks that its request had when it was queued; a table may name others by now.
    for shadow in now.requests.values():
        for step in shadow.steps:
            for cell, position in step.positions.items():
                if cell != shadow.cell(position, now.size) and same(content.get(cell, NOTHING)) == same(
                    shadow.stamp(position)
                ):
                    filled.append((shadow.name, *cell))
    # Where contents can be hit before they are written, rows of a hit that a step is still writing are not
    # committed yet, and that step writes what every reader wants to find there.
    at_once = now.declaration.publish == "at_allocation"
    late = _late_hits(now, committed, filled) if at_once else set()
    early = _wanted_by_others(now) if at_once else set()
    relations |= {
        "uses": uses,
        "may_write": may_write if not early else [row for row in may_write if row not in early],
        "committed": [row for row in committed if row not in late],
        "filled": filled,
    }


def _late_hits(now: Ghost, committed: list[Row], filled: list[Row]) -> set[Row]:
    there = set(filled)
    coming = {
        (cell, shadow.stamp(position))
        for shadow in now.requests.values()
        for step in shadow.steps
        for cell, position in zip(step.writes, range(step.start, step.end), strict=False)
    }
    position_of = {
        (name, *cell): shadow.stamp(p)
        for name, shadow in now.requests.items()
        for p in range(shadow.committed)
        if (cell := shadow.cell(p, now.size)) is not None
    }
    return {
        row
        for row in committed
        if row not in there and row in position_of and ((row[1], row[2]), position_of[row]) in coming
    }


def _wanted_by_others(now: Ghost) -> set[Row]:
    """Rows that a request has still to write, that others share already, and that all of them want alike."""
    wanted: dict[Cell, dict[str, int]] = {}
    for name, shadow in now.requests.items():
        for position in range(shadow.reserved):
            cell = shadow.cell(position, now.size)
            if cell is not None:
                wanted.setdefault(cell, {})[name] = now.stamps.same(shadow.stamp(position))
    return {
        (name, *cell)
        for cell, stamps in wanted.items()
        if len(stamps) > 1 and len(set(stamps.values())) == 1
        for name in stamps
    }


def _queue(now: Ghost, relations: Relations) -> None:
    pending = now.device.pending()
    relations["pending"] = [(work,) for work in pending]
    relations["on_behalf"] = [(work, name) for work in pending for name in now.device.beneficiaries(work)]
    # What a step that has run read and wrote is past; only the host has not heard of it yet.
    relations["reads"] = [(work, *cell) for work in pending if work.copy or not work.ran for cell in work.reads]
    blind = _blind_steps(now, pending, set(relations["filled"]))
    relations["writes"] = [
        (work, *cell)
        for work in pending
        if work.copy or not work.ran
        for cell in work.writes
        if (work, cell) not in blind
    ]
    stream = now.declaration.release_rule == "stream"
    in_order = stream or now.declaration.destination == "ordered"
    relations["reads_in_order"] = [(work,) for work in pending if work.copy is None or stream]
    relations["writes_in_order"] = [(work,) for work in pending if work.copy is None or in_order]
    writers: dict[Cell, list[Work]] = {}
    for work in pending:
        for cell in work.writes:
            writers.setdefault(cell, []).append(work)
    before: dict[Row, None] = {}
    for work in pending:
        for cell in dict.fromkeys((*work.reads, *work.writes)):
            for writer in writers.get(cell, ()):
                first, second = (work, writer) if work.order < writer.order else (writer, work)
                if first is not second and (first, second) not in before and now.device.ordered(first, second):
                    before[first, second] = None
    relations["before"] = list(before)


def _blind_steps(now: Ghost, pending: list[Work], filled: set[Row]) -> set[tuple[Work, Cell]]:
    """Steps that continue from a state slot which nothing has filled, with that slot.

    A step writes the slot that it reads, and in the text what a work writes counts as filled for it: right
    for rows, which one step writes before it reads them, wrong for a slot, whose old state it reads first.
    """
    blind = set()
    for work in pending:
        for cell in work.reads if work.copy is None and not work.ran else ():
            if isinstance(cell[0], StateSlot) and (work.request, *cell) not in filled:
                earlier = (w for w in pending if w is not work and w.order < work.order and cell in w.writes)
                if not any(not w.ran and now.device.ordered(w, work) for w in earlier):
                    blind.add((work, cell))
    return blind


def _lengths(now: Ghost, relations: Relations, measures: Measures, pool: Pool) -> None:
    shadows = now.requests.items()
    measures["history"] = {(n,): max(len(s.tokens), s.committed) for n, s in shadows}
    measures["drafts"] = {(n,): s.drafts for n, s in shadows}
    measures["reserved"] = {(n,): s.reserved for n, s in shadows}
    measures["entries"] = {(n,): len(s.table) for n, s in shadows}
    measures["settled"] = {(n,): s.committed for n, s in shadows}
    measures["optimistic"] = {(n,): s.optimistic for n, s in shadows}
    reported = {n: pool.committed[n] for n, s in shadows if s.counts and pool.committed and n in pool.committed}
    relations["reports_count"] = [(n,) for n in reported]
    measures["num_tokens"] = {(n,): count for n, count in reported.items()}


def _cache(now: Ghost, relations: Relations, pool: Pool) -> None:
    relations["key"] = relations["matches"] = []
    keys = pool.keys or {}
    if not keys:
        now.published = {}
        return
    promised = _promised(now)
    matches: list[Row] = []
    for block, key in keys.items():
        held = tuple(now.device.holds((block, o)) for o in range(now.size))
        will = promised.get(block, held)
        if now.published.get(block) != key and key not in now.key_contents:
            seen = will if now.declaration.publish == "at_allocation" else held
            if NOTHING not in seen:
                now.key_contents[key] = seen
        wanted = now.key_contents.get(key)
        truth = (will, held) if now.declaration.publish == "at_allocation" else (held,)
        if wanted in truth and wanted == promised.get(block, wanted):
            matches.append((block, key))
    relations["key"] = [(block, key) for block, key in keys.items()]
    relations["matches"] = matches
    now.published = dict(keys)


def _promised(now: Ghost) -> dict[int, tuple[int, ...]]:
    """What the rows of each owned block hold once its owners' scheduled work is done."""
    promised: dict[int, list[int]] = {}
    for shadow in now.requests.values():
        for position in range(shadow.reserved):
            cell = shadow.cell(position, now.size)
            if cell is None:
                break
            block, offset = cell
            if isinstance(block, StateSlot):
                continue
            rows = promised.setdefault(
                block, [now.stamps.same(now.device.content.get((block, o), NOTHING)) for o in range(now.size)]
            )
            rows[offset] = now.stamps.same(shadow.stamp(position))
    return {block: tuple(rows) for block, rows in promised.items()}


def _record_facts(now: Ghost, relations: Relations, pool: Pool | None) -> None:
    relations["awaited"] = [(address,) for address in now.records]
    relations["intact"] = [(address,) for address in sorted(now.handed - now.lost_records)]
    free = set(pool.free) if pool is not None else set()
    relations["recycled"] = [(address,) for address in sorted(free)]


def event_facts(now: Ghost, operation: Operation, reply: object) -> Facts:
    """What happened, for the step rules; before the effect is taken note of."""
    args, answer = operation.args, reply.answer if isinstance(reply, Reply) else Answer.OK
    names = [operation.request] if operation.request is not None else []
    if operation.op == "fork":
        names.append(args["child"])
    blocks, slots = _asks(now, operation)
    holder = args.get("name") if operation.op in ("pin", "unpin") else args.get("holder")
    misused = operation.op == "probe"
    refused = answer is not Answer.OK or (misused and reply is True)
    return Facts(
        {
            "names": [(name,) for name in names],
            "names_holder": [(holder,)] if holder is not None else [],
            "admits": [()] if operation.op == "admit" else [],
            "pins": [(holder,)] if operation.op in ("pin", "hold") and answer is Answer.OK else [],
            "refused": [()] if refused else [],
            "later": [()] if answer is Answer.LATER else [],
            "never": [()] if answer is Answer.NEVER else [],
            "advances": [(operation.request,)] if operation.op == "advance" else [],
            "synchronises": [()] if operation.op in ("recycle",) else [],
            "misused": [()] if misused else [],
        },
        {"asks_blocks": {(): blocks}, "asks_slots": {(): slots}},
        vocabulary=EVENT,
    )


def _asks(now: Ghost, operation: Operation) -> tuple[int, int]:
    """Distinct blocks and slots in use for the asker, had the call been granted."""
    slots = 1 if "slots" in now.capabilities else 0
    args, shadow = operation.args, now.requests.get(operation.request or "")
    if operation.op == "admit":
        return -(-len(args["tokens"]) // now.size), slots
    if operation.op == "extend" and shadow is not None:
        wanted = max(len(shadow.tokens) + len(args["tokens"]) + args["drafts"], shadow.committed)
        return -(-wanted // now.size), slots
    if operation.op == "fork" and shadow is not None:
        # A design may share or copy: NEVER is wrong only if even a full copy of the rows fits.
        return len(set(shadow.table)) + -(-args["rows"] // now.size), 2 * slots
    return 0, 0
