"""Is a recorded step one that the text allows?  The step is told as actions, and the actions are applied.

An operation of an allocator is one or several actions of the text (``spec/operations.py``).  Which ones
is read off the observation: which block stands at which index now, which copies were queued, what was
evicted.  The text then decides: every action's conditions must hold, and the state that the text
arrives at must be the one that was observed.  Nothing is implemented a second time here.

Rows are left out (the rule book judges them on the same step): conditions that read them are dropped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from kvproof.checks.lockstep.operations import Operation
from kvproof.checks.lockstep.shadow import StateSlot
from kvproof.checks.proof.refute import ROW_RELATIONS
from kvproof.checks.readings.set_actions import NotAllowed, SetMachine
from kvproof.checks.readings.sets import Facts, Row
from kvproof.model.interface import BLOCKS, SLOTS, Answer, Configuration, Copy, Declaration, Reply, Snapshot
from kvproof.spec.modules import STORAGE_MODULE
from kvproof.spec.storage import MACHINE

Things = Mapping[str, Hashable]
Choices = Mapping[str, Sequence[Row]]

SILENT = ("release_pins", "submit_copy", "publish", "evict")
"""Actions that may happen inside an operation without being asked for."""


@dataclass(frozen=True)
class Told:
    """One action of the text, with its things and the caller's choices."""

    action: str
    things: Things
    given: Choices = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.action}({', '.join(f'{name}={thing}' for name, thing in self.things.items())})"


class Refused(ValueError):
    """The step is not allowed by the text: why, and which actions led there."""

    def __init__(self, reason: str, actions: Sequence[Told]) -> None:
        told = ", then ".join(map(str, actions)) or "nothing"
        super().__init__(f"{reason} (told as: {told})")
        self.reason = reason


class OwnershipMonitor:
    """Carries the text's own state along a run, and compares it with what is observed."""

    def __init__(self, configuration: Configuration, declaration: Declaration, start: Snapshot) -> None:
        self.size = configuration.block_size
        self._usable = start[BLOCKS].usable
        self.machine = SetMachine(STORAGE_MODULE, ROW_RELATIONS)
        relations: dict[str, list[Row]] = {name: [] for name in ("usable", "exclusive", "free")}
        for name, wrap in ((BLOCKS, None), (SLOTS, StateSlot)):
            if name in start:
                ids = [wrap(i) if wrap else i for i in sorted(start[name].usable)]
                relations["usable"] += [(i,) for i in ids]
                relations["free"] += [(i,) for i in ids]
                relations["exclusive"] += [(i,) for i in ids] if wrap else []
        declared = {
            "stream_ordered": declaration.release_rule == "stream",
            "destination_pinned": declaration.destination == "pinned",
            "destination_cancelled": declaration.destination == "cancelled",
        }
        relations |= {name: [()] if holds else [] for name, holds in declared.items()}
        self.state = Facts(relations, vocabulary=MACHINE)
        self._holders: set[Hashable] = set()
        self._things: dict[str, dict[Hashable, None]] = {
            "request": {},
            "index": {},
            "block": dict.fromkeys(row[0] for row in relations["usable"]),
            "offset": dict.fromkeys(range(self.size)),
            "work": {},
            "holder": {},
            "key": {},
        }
        self.told: list[Told] = []

    # -- one operation

    def step(self, operation: Operation, reply: object, snapshot: Snapshot) -> list[Told]:
        """Tell the step as actions, apply them, compare; returns the actions.

        Raises :class:`Refused`; the text's state is then as it was before.
        """
        self.told = []
        observed, last = Observed(snapshot), self.state
        try:
            self._tell(operation, reply, observed)
            self._silent(observed)
            difference = observed.differs(self.state)
        except NotAllowed as error:
            self.state = last
            raise Refused(f"{operation}: {error}", self.told) from None
        if difference:
            self.state = last
            raise Refused(f"after {operation} {difference}", self.told)
        return self.told

    def _do(self, action: str, given: Choices | None = None, **things: Hashable) -> None:
        told = Told(action, things, given or {})
        self.told.append(told)
        for name, thing in things.items():
            self._things[name.rsplit("_", 1)[-1]][thing] = None
        self.state = self.machine.apply(self.state, action, things, self._world(), told.given)

    def _world(self) -> Facts:
        """Facts that mention every thing that there is, so that "for all" means all."""
        known = {sort: list(things) or [None] for sort, things in self._things.items()}

        def rows(*sorts: str) -> list[Row]:
            columns = [known[sort] for sort in sorts]
            firsts = [column[0] for column in columns]
            padded = zip_longest(*columns, fillvalue=_GAP)
            return [
                tuple(first if value is _GAP else value for first, value in zip(firsts, row, strict=True))
                for row in padded
            ]

        return Facts(
            {
                "table": rows("request", "index", "block"),
                "reads": rows("work", "block", "offset"),
                "held": rows("holder", "block"),
                "key": rows("block", "key"),
            },
            vocabulary=MACHINE,
        )

    def _tell(self, operation: Operation, reply: object, observed: Observed) -> None:
        if (isinstance(reply, Reply) and reply.answer is not Answer.OK) or operation.op == "probe":
            return
        tell = getattr(self, f"_tell_{operation.op}", None)
        if tell is not None:
            tell(operation, reply, observed)

    # -- what each operation is

    def _tell_admit(self, operation: Operation, reply: Reply, observed: Observed) -> None:
        name = operation.request or ""
        self._extend_table(name, observed, reply.hit_rows // self.size)
        self._take_slot(name, observed)

    def _tell_extend(self, operation: Operation, reply: Reply, observed: Observed) -> None:
        name = operation.request or ""
        mine, theirs = self.table(name), observed.table(name)
        if mine and len(mine) <= len(theirs) and mine[-1] != theirs[len(mine) - 1]:
            copy = next((c for c in reply.copies if c.source == mine[-1] and c.pool == BLOCKS), None)
            if copy is not None:
                self._make_room([copy.destination], observed)
                self._copy("copy_on_write", copy, request=name, index=len(mine) - 1)
        self._extend_table(name, observed, 0)
        self._take_slot(name, observed)

    def _tell_fork(self, operation: Operation, reply: Reply, observed: Observed) -> None:
        parent, child = operation.request or "", str(operation.args["child"])
        mine, theirs = self.table(parent), observed.table(child)
        shared = next((i for i, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), None)
        keep = min(len(mine), len(theirs)) if shared is None else shared
        copies = [copy for copy in reply.copies if copy.pool == BLOCKS]
        fresh = theirs[keep] if keep < len(theirs) else None
        tail = next((copy for copy in copies if copy.destination in self._usable and copy.destination == fresh), None)
        later = [(copy.source,) for copy in copies if copy.destination not in self._usable]
        if tail is not None:
            self._make_room([tail.destination], observed)
        slots = [copy for copy in reply.copies if copy.pool == SLOTS]
        if slots or later:
            self._do("borrow", parent_request=parent, child_request=child)
            for copy in slots:
                self._copy("clone_slot", copy, request=child)
            if tail is not None:
                self._copy("privatise", tail, {"held_back": later}, request=child, index=keep)
            else:
                self._do("privatise_at_boundary", request=child, index=keep)
        elif tail is not None:
            self._copy("fork", tail, parent_request=parent, child_request=child, index=keep)
        else:
            self._do("fork_at_boundary", parent_request=parent, child_request=child, index=keep)
        self._extend_table(child, observed, 0)

    def _tell_complete(self, operation: Operation, _reply: object, _observed: Observed) -> None:
        self._submit_copies()
        for ticket in sorted(operation.args["tickets"]):
            if (ticket,) in self.state.table("pending").rows:
                self._do("complete", work=ticket)

    def _tell_submit(self, _operation: Operation, _reply: object, _observed: Observed) -> None:
        self._submit_copies()

    def _tell_advance(self, _operation: Operation, _reply: object, _observed: Observed) -> None:
        self._submit_copies()

    def _submit_copies(self) -> None:
        """Before the device runs anything, the host hands it all copies; later users are ordered behind them."""
        for (work,) in list(self.state.table("cancellable").rows):
            self._do("submit_copy", {"in_order": [()]}, work=work)

    def _tell_release(self, operation: Operation, _reply: object, _observed: Observed) -> None:
        if (operation.request,) in self.state.table("live").rows:
            self._do("preempt" if operation.args["reason"] == "preempt" else "finish", request=operation.request)

    def _tell_pin(self, operation: Operation, _reply: object, _observed: Observed) -> None:
        self._holders.add(operation.args["name"])
        self._do("pin", request=operation.request, holder=operation.args["name"])

    def _tell_hold(self, operation: Operation, _reply: object, _observed: Observed) -> None:
        self._holders.add(operation.args["holder"])
        self._do("pin", request=operation.request, holder=operation.args["holder"])

    def _tell_unpin(self, operation: Operation, _reply: object, _observed: Observed) -> None:
        self._do("unpin", holder=operation.args["name"])

    def _tell_ack(self, operation: Operation, _reply: object, _observed: Observed) -> None:
        self._do("unpin", holder=operation.args["holder"])

    def _tell_evict(self, _operation: Operation, _reply: object, observed: Observed) -> None:
        self._make_room([block for (block,) in self.state.table("cached").rows if block in observed.free], observed)

    def _tell_commit(self, operation: Operation, _reply: object, observed: Observed) -> None:
        self._submit_copies()
        self._extend_table(operation.request or "", observed, 0)

    # -- parts

    def table(self, request: str) -> list[Hashable]:
        """The request's table in the text's state."""
        rows = [(row[1], row[2]) for row in self.state.table("table").rows if row[0] == request]
        return [block for _, block in sorted(rows, key=lambda row: int(str(row[0])))]

    def _extend_table(self, name: str, observed: Observed, hits: int) -> None:
        """Shrink or grow the table until it is the observed one."""
        theirs = observed.table(name)
        mine = self.table(name)
        while len(mine) > len(theirs):
            self._do("shrink", request=name, index=len(mine) - 1, block=mine.pop())
        for index in range(len(mine), len(theirs)):
            block = theirs[index]
            keys = [row[1] for row in self.state.table("key").rows if row[0] == block]
            if index < hits and keys:
                self._do("hit", request=name, index=index, block=block, key=keys[0])
                continue
            self._make_room([block], observed)
            live = (name,) in self.state.table("live").rows
            self._do("grow" if live else "admit", request=name, index=index, block=block)

    def _make_room(self, blocks: Sequence[Hashable], observed: Observed) -> None:
        """Evict those of the blocks that are cached."""
        del observed
        for block in blocks:
            if (block,) in self.state.table("cached").rows:
                self._do("evict", block=block)

    def _take_slot(self, name: str, observed: Observed) -> None:
        slot = observed.slots.get(name)
        if slot is not None and not any(row[0] == name for row in self.state.table("slot").rows):
            self._do("take_slot", request=name, block=slot)

    def _copy(self, action: str, copy: Copy, given: Choices | None = None, **things: Hashable) -> None:
        slot = copy.pool == SLOTS
        source: Hashable = StateSlot(copy.source) if slot else copy.source
        target: Hashable = StateSlot(copy.destination) if slot else copy.destination
        offsets = [0] if slot else list(range(copy.rows))
        touched = {(source, o) for o in offsets}, {(target, o) for o in offsets}
        after = {
            row[0]
            for name, cells in (("writes", touched[0] | touched[1]), ("reads", touched[1]))
            for row in self.state.table(name).rows
            if (row[1], row[2]) in cells
        }
        chosen: dict[str, Sequence[Row]] = {
            "copied": [(o,) for o in offsets],
            "after": [(work,) for work in after],
            **(given or {}),
        }
        self._do(action, chosen, **things, block=source, new_block=target, work=copy.ticket)

    def _silent(self, observed: Observed) -> None:
        """Deferred releases, published blocks and evictions that the operation did not ask for."""
        for block, key in observed.keys:
            if (block, key) not in self.state.table("key").rows:
                owner = next((row[0] for row in self.state.table("table").rows if row[2] == block), None)
                if owner is not None:
                    self._do("publish", request=owner, block=block, key=key)
        for (block,) in list(self.state.table("cached").rows):
            if block in observed.free and block not in observed.cached:
                self._do("evict", block=block)
        for work in dict.fromkeys(row[0] for row in self.state.table("pinned").rows):
            if (work,) in self.state.table("pending").rows:
                continue
            others = other_owners(self.state)
            blocks = [row[1] for row in self.state.table("pinned").rows if row[0] == work]
            if any(others[block] > observed.others[block] for block in blocks):
                self._do("release_pins", work=work)


_GAP = object()


def other_owners(state: Facts) -> Counter[Hashable]:
    """How many owners that are no request each block has."""
    return Counter(row[1] for name in ("pinned", "held") for row in state.table(name).rows)


class Observed:
    """One snapshot in the text's terms."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._tables: dict[str, list[Hashable]] = {}
        self.slots: dict[str, Hashable] = {}
        self.free: set[Hashable] = set()
        self.cached: set[Hashable] = set()
        self.others: Counter[Hashable] = Counter()
        self.keys: list[tuple[Hashable, Hashable]] = []
        self.has_keys = snapshot[BLOCKS].keys is not None
        for name, pool in snapshot.items():
            if name not in (BLOCKS, SLOTS):
                continue
            wrap = StateSlot if name == SLOTS else None

            def made(block: int, wrap: type[StateSlot] | None = wrap) -> Hashable:
                return wrap(block) if wrap else block

            self.free |= {made(block) for block in pool.free if block in pool.usable}
            self.cached |= {made(block) for block in pool.evictable}
            for ids in pool.holds.values():
                self.others.update({made(block) for block in ids})
            for request, table in pool.tables.items():
                if wrap is None:
                    self._tables[request] = [block for block in table if block not in pool.reserved]
                elif table:
                    self.slots[request] = made(table[0])
            if wrap is None:
                self.keys = list((pool.keys or {}).items())
        self.free -= self.cached

    def table(self, request: str) -> list[Hashable]:
        """A request's block table."""
        return self._tables.get(request, [])

    def differs(self, state: Facts) -> str | None:
        """Where the observation and the text's state differ first, in words; None if nowhere."""
        tables = [(r, i, b) for r, table in self._tables.items() for i, b in enumerate(table)]
        for name, seen, expected in (
            ("table", set(tables), set(state.table("table").rows)),
            ("slot", {(r, s) for r, s in self.slots.items()}, set(state.table("slot").rows)),
            ("free", {(b,) for b in self.free}, set(state.table("free").rows)),
            ("cached", {(b,) for b in self.cached}, set(state.table("cached").rows)),
            ("other owners", _counted(self.others), _counted(other_owners(state))),
            *((("key", set(self.keys), set(state.table("key").rows)),) if self.has_keys else ()),
        ):
            if seen != expected:
                return f"the observed {name} is not that of the text: {_words(seen - expected, expected - seen)}"
        return None


def _counted(counter: Counter[Hashable]) -> set[Row]:
    return {(block, count) for block, count in counter.items() if count}


def _words(more: set[Row], less: set[Row]) -> str:
    parts = [f"it has {_few(more)}"] if more else []
    parts += [f"it lacks {_few(less)}"] if less else []
    return " and ".join(parts)


def _few(rows: set[Row]) -> str:
    shown: Iterator[str] = iter(sorted(str(row) for row in rows))
    first = [next(shown) for _ in range(min(3, len(rows)))]
    return ", ".join(first) + (" ..." if len(rows) > 3 else "")
