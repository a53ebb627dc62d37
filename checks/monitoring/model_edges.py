"""Every edge of the model's graph, told as actions of the text.

The model's states (:mod:`kvproof.model.transitions`) are translated into the text's relations, the
move into actions, and the text says where they lead.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence

from kvproof.checks.exploring.explore_model import ModelSubject, Node
from kvproof.checks.proof.refute import ROW_RELATIONS
from kvproof.checks.readings.set_actions import NotAllowed, SetMachine
from kvproof.checks.readings.sets import Facts, Row
from kvproof.model.transitions import Move
from kvproof.spec.modules import STORAGE_MODULE
from kvproof.spec.storage import MACHINE

SEEN = ("table", "free", "live", "pending", "reads", "writes")
"""Relations that the model's state determines exactly; pins are compared by block, because the text's
names of queued work stay and the model's are places in a queue."""

_MACHINE = SetMachine(STORAGE_MODULE, ROW_RELATIONS)


def facts_of(subject: ModelSubject, node: Node) -> Facts:
    """A state of the model in the text's relations."""
    relations: dict[str, list[Row]] = {"usable": [(b,) for b in range(subject.limits.blocks)]}
    for name, row in subject.cells(node):
        relations.setdefault(name, []).append(row)
    return Facts(relations, vocabulary=MACHINE)


def world_of(subject: ModelSubject) -> Facts:
    """Everything that there is in a pool of this size."""
    limits = subject.limits
    tables = [(r, i, b) for r in range(limits.requests) for i in range(limits.table) for b in range(limits.blocks)]
    reads = [(work, 0, 0) for work in range(limits.copies)]
    return Facts({"table": tables, "reads": reads}, vocabulary=MACHINE)


def actions_of(before: Node, move: Move, after: Node) -> Iterator[tuple[str, Mapping[str, Hashable]]]:
    """The actions that a move consists of; which blocks were taken is read off the state after it."""
    operation, request, argument = move
    tables, copies = before[0][1], before[0][2]
    if operation in ("admit", "grow"):
        mine, theirs = tables[request], after[0][1][request]
        for index in range(len(mine), len(theirs)):
            action = "grow" if index else "admit"
            yield action, {"request": request, "index": index, "block": theirs[index] - 1}
    elif operation == "fork":
        index = len(tables[request]) - 1
        things = {"parent_request": request, "child_request": argument, "index": index}
        child = after[0][1][argument]
        new_block = child[index] - 1 if len(child) > index else -1
        yield "fork", {**things, "block": tables[request][index] - 1, "new_block": new_block, "work": len(copies)}
    elif operation == "finish":
        yield "finish", {"request": request}
    elif operation == "complete":
        yield "complete", {"work": next(w for w, (_, destination) in enumerate(copies) if destination > 0)}
    else:
        yield "release_pins", {"work": 0}


def edge_differs(subject: ModelSubject, before: Node, move: Move, after: Node) -> str | None:
    """Why the text does not allow this edge, or None if it does."""
    state, world = facts_of(subject, before), world_of(subject)
    given: Mapping[str, Sequence[Row]] = {
        "copied": [(0,)],
        "after": list(state.table("pending").rows),
    }
    try:
        for action, things in actions_of(before, move, after):
            state = _MACHINE.apply(state, action, things, world, given)
    except NotAllowed as error:
        return str(error)
    seen = facts_of(subject, after)
    if move[0] == "collect":
        seen = _moved_back(seen)
    for name in SEEN:
        if set(state.table(name).rows) != set(seen.table(name).rows):
            return f"{name} differs after {move}"
    if sorted(b for _, b in state.table("pinned").rows) != sorted(b for _, b in seen.table("pinned").rows):  # type: ignore[type-var]
        return f"pinned differs after {move}"
    return None


def _moved_back(seen: Facts) -> Facts:
    """The queue's places after its head was collected, in the names that the work had before."""
    moved = {
        name: [(int(str(row[0])) + 1, *row[1:]) for row in seen.table(name).rows]
        for name in ("pending", "reads", "writes", "pinned")
    }
    kept = {name: list(seen.table(name).rows) for name in ("table", "free", "live")}
    return Facts({**kept, **moved}, vocabulary=MACHINE)
