"""The follower: what must be true of an allocator, whatever blocks it chooses.

It is told each operation, the answer and the snapshot after it, and keeps what no allocator keeps:
the tokens of every request (``shadow.py``), what each row holds and what is still queued
(``weak_device.py``).  From these and the snapshot it makes the facts that the rules of the spec speak
of (``facts.py``).  It never judges: the rules do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kvproof.checks.lockstep.facts import event_facts, state_facts
from kvproof.checks.lockstep.ghost import Ghost
from kvproof.checks.lockstep.legal import why_illegal
from kvproof.checks.lockstep.operations import Operation
from kvproof.checks.lockstep.shadow import Block, Shadow, StateSlot, Work
from kvproof.checks.lockstep.stamps import NOTHING
from kvproof.checks.readings.sets import Facts, Row
from kvproof.model.interface import BLOCKS, SLOTS, Answer, Configuration, Declaration, Reply, Snapshot


class Follower(Ghost):
    """Follows one allocator through one run."""

    def __init__(self, configuration: Configuration, declaration: Declaration, capabilities: frozenset[str]) -> None:
        super().__init__(configuration, declaration, capabilities)
        self.facts: Facts | None = None
        self._owners: dict[Block, frozenset[str]] = {}

    def illegal(self, operation: Operation) -> str | None:
        """Why the harness may not make this call now; None when it may."""
        return why_illegal(self, operation)

    def follow(self, operation: Operation, reply: object, snapshot: Snapshot) -> tuple[Facts | None, Facts, Facts]:
        """Take note of one operation that was answered; returns the state before, the event, the state after."""
        before = self.facts
        event = event_facts(self, operation, reply)
        if not (isinstance(reply, Reply) and reply.answer is not Answer.OK):
            effect: Callable[[Operation, Any, Snapshot], None] | None = getattr(self, f"_do_{operation.op}", None)
            if effect:
                effect(operation, reply, snapshot)
        if "copies" not in self.capabilities:
            self.device.finish_copies(list(self.copies))
        self.observe(operation, snapshot)
        assert self.facts is not None
        return before, event, self.facts

    def _do_admit(self, operation: Operation, reply: Reply, snapshot: Snapshot) -> None:
        name, tokens = operation.request or "", list(operation.args["tokens"])
        shadow = Shadow(name, tokens, self.stamps.chain(NOTHING, tokens), reply.hit_rows, reserved=len(tokens))
        self.requests[name] = shadow
        self._adopt(snapshot)
        self.device.take_copies(shadow, reply)
        self.device.schedule(shadow, reply.hit_rows, len(tokens), first=True)

    def _do_extend(self, operation: Operation, reply: Reply, snapshot: Snapshot) -> None:
        shadow, tokens = self.requests[operation.request or ""], list(operation.args["tokens"])
        start = len(shadow.tokens)
        shadow.chain += self.stamps.chain(shadow.chain[-1] if shadow.chain else NOTHING, tokens)
        shadow.tokens += tokens
        for position in range(start, min(shadow.committed, len(shadow.tokens))):
            self.stamps.name(shadow.draft_stamps[position], shadow.chain[position])
            shadow.opaque.add(position)
        shadow.unnamed = 0
        shadow.drafts = operation.args["drafts"]
        shadow.reserved = max(len(shadow.tokens) + shadow.drafts, shadow.committed)
        self._adopt(snapshot)
        self.device.take_copies(shadow, reply)
        drafts = self.stamps.drafts(shadow.chain[-1], shadow.reserved - len(shadow.tokens))
        shadow.draft_stamps = dict(enumerate(drafts, len(shadow.tokens)))
        self.device.schedule(shadow, max(start, shadow.committed), shadow.reserved)

    def _do_commit(self, operation: Operation, _reply: object, _snapshot: Snapshot) -> None:
        shadow, rows = self.requests[operation.request or ""], operation.args["rows"]
        self.device.run_up_to(shadow, rows)
        shadow.steps = [step for step in shadow.steps if step.end > rows and step.end <= len(shadow.tokens)]
        shadow.committed, shadow.optimistic, shadow.counts = rows, 0, True
        shadow.drafts = 0
        shadow.unnamed = max(0, rows - len(shadow.tokens))
        if shadow.slot is not None and rows:
            shadow.state = shadow.stamp(rows - 1)
            self.device.content[StateSlot(shadow.slot), 0] = shadow.state

    def _do_advance(self, operation: Operation, _reply: object, _snapshot: Snapshot) -> None:
        shadow, rows = self.requests[operation.request or ""], operation.args["rows"]
        self.device.run_up_to(shadow, shadow.committed + rows)
        shadow.optimistic = rows

    def _do_release(self, operation: Operation, _reply: object, snapshot: Snapshot) -> None:
        shadow = self.requests[operation.request or ""]
        submitted = "steps" not in self.capabilities or shadow.name in self.step_tickets.values()
        for step in shadow.steps if submitted else ():  # in flight: it runs before anything queued later, in order
            self.device.run(step)
        del self.requests[shadow.name]
        if self.declaration.destination == "cancelled":
            self.device.cancel(self._cancelled(snapshot))
        self.step_tickets = {t: name for t, name in self.step_tickets.items() if name != shadow.name}

    def _cancelled(self, snapshot: Snapshot) -> list[int]:
        """Copies that the allocator dropped: it says so, or else those whose destination nobody owns."""

        def dropped(ticket: int, work: Work) -> bool:
            assert work.copy is not None
            pool = snapshot[work.copy.pool]
            if pool.queued is not None:
                return ticket not in pool.queued
            owned = {block for ids in (*pool.holds.values(), *pool.tables.values()) for block in ids}
            return not work.ran and work.copy.destination not in owned

        return [ticket for ticket, copies in self.copies.items() if all(dropped(ticket, work) for work in copies)]

    def _do_fork(self, operation: Operation, reply: Reply, snapshot: Snapshot) -> None:
        parent, child, rows = self.requests[operation.request or ""], operation.args["child"], operation.args["rows"]
        shadow = Shadow(child, parent.tokens[:rows], parent.chain[:rows], rows, reserved=rows, counts=True)
        shadow.opaque = {p for p in parent.opaque if p < rows}
        shadow.state = shadow.chain[-1]
        self.requests[child] = shadow
        self._adopt(snapshot)
        self.device.take_copies(shadow, reply)

    def _do_complete(self, operation: Operation, _reply: object, _snapshot: Snapshot) -> None:
        tickets = list(operation.args["tickets"])
        self.device.finish_copies([t for t in tickets if t in self.copies])
        for ticket in tickets:
            if ticket in self.step_tickets:
                name = self.step_tickets.pop(ticket)
                for step in self.requests[name].steps:
                    self.device.run(step)

    def _do_submit(self, operation: Operation, reply: int, _snapshot: Snapshot) -> None:
        self.step_tickets[reply] = operation.request or ""

    def _do_pin(self, operation: Operation, _reply: object, _snapshot: Snapshot) -> None:
        self.pins[operation.args["name"]] = self._real(self.requests[operation.request or ""].table)

    def _do_unpin(self, operation: Operation, _reply: object, _snapshot: Snapshot) -> None:
        del self.pins[operation.args["name"]]

    def _do_hold(self, operation: Operation, _reply: object, _snapshot: Snapshot) -> None:
        self.holders[operation.args["holder"]] = self._real(self.requests[operation.request or ""].table)

    def _do_ack(self, operation: Operation, _reply: object, _snapshot: Snapshot) -> None:
        del self.holders[operation.args["holder"]]

    def _do_take(self, operation: Operation, reply: int, _snapshot: Snapshot) -> None:
        if reply in self.records:
            self.lost_records.add(reply)
        self.records[reply] = operation.args["value"]
        self.handed.add(reply)

    def _do_clone(self, operation: Operation, reply: object, _snapshot: Snapshot) -> None:
        address = operation.args["address"]
        if reply != self.records[address]:
            self.lost_records.add(address)
        else:
            del self.records[address]

    def _do_recycle(self, _operation: Operation, _reply: object, _snapshot: Snapshot) -> None:
        self.records.clear()
        self.handed.clear()
        self.lost_records.clear()

    def _real(self, table: Iterable[int]) -> tuple[int, ...]:
        reserved = self.device.pools[BLOCKS].reserved
        return tuple(block for block in dict.fromkeys(table) if block not in reserved)

    def _adopt(self, snapshot: Snapshot) -> None:
        """Tables are the allocator's choice: follow it."""
        self.device.pools = snapshot
        tables = snapshot[BLOCKS].tables
        slots = snapshot[SLOTS].tables if SLOTS in snapshot else {}
        for name, shadow in self.requests.items():
            shadow.table = tuple(tables.get(name, ()))
            held = slots.get(name, ())
            shadow.slot = held[0] if held else None

    def observe(self, operation: Operation | None, snapshot: Snapshot) -> None:
        """Adopt the snapshot and make the facts of the state now."""
        self._adopt(snapshot)
        relations, measures = state_facts(self, snapshot)
        self._remember(operation, relations)
        self.facts = Facts(relations, measures, last=self.facts)

    def _remember(self, operation: Operation | None, relations: Mapping[str, list[Row]]) -> None:
        """Who got and who lost each block by this operation."""
        owners: dict[Block, set[str]] = {}
        for name in ("table", "slot", "held"):
            for row in relations[name]:
                owners.setdefault(row[-1], set()).add(str(row[0]))  # type: ignore[arg-type]
        free = {row[0] for row in relations["free"]} | {row[0] for row in relations["cached"]}
        now = {block: frozenset(who) for block, who in owners.items()}
        if operation is not None:
            for block in sorted(now.keys() | self._owners.keys(), key=str):
                had, has = self._owners.get(block, frozenset()), now.get(block, frozenset())
                if had != has:
                    gained, lost = sorted(has - had), sorted(had - has)
                    parts = [f"given to {', '.join(gained)}"] if gained else []
                    parts += [f"given up by {', '.join(lost)}"] if lost else []
                    parts += ["now free"] if not has and block in free else []
                    self.note(block, f"{operation.op} {operation.request or ''}".strip() + ": " + ", ".join(parts))
        self._owners = now
