"""Which calls the contract allows now: the harness makes no other, so what goes wrong is the target's."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kvproof.checks.lockstep.ghost import Ghost
from kvproof.checks.lockstep.operations import Operation
from kvproof.checks.lockstep.stamps import NOTHING
from kvproof.model.interface import BLOCKS


def why_illegal(now: Ghost, operation: Operation) -> str | None:
    """Why this call may not be made now; None when it may."""
    if operation.request is not None and operation.op != "admit" and operation.request not in now.requests:
        return f"{operation.op}: there is no live request {operation.request}"
    check = _CHECKS.get(operation.op)
    return check(now, operation) if check else None


def _admit(now: Ghost, operation: Operation) -> str | None:
    if operation.request in now.requests:
        return f"admit: {operation.request} is live already"
    if not operation.args["tokens"]:
        return "admit: a request needs at least one token"
    return _too_many(now)


def _too_many(now: Ghost) -> str | None:
    if len(now.requests) >= now.configuration.max_requests:
        return f"there are {len(now.requests)} live requests, the most that the configuration allows"
    return None


def _extend(now: Ghost, operation: Operation) -> str | None:
    shadow = now.requests[operation.request or ""]
    tokens, drafts = operation.args["tokens"], operation.args["drafts"]
    if drafts and "drafts" not in now.capabilities:
        return "extend: the target does not take drafts"
    if drafts and shadow.steps:
        return f"extend: {shadow.name} has steps in flight; drafts need their results first"
    if any(step.end > len(shadow.tokens) for step in shadow.steps):
        return f"extend: the drafts of {shadow.name} were not verified yet"
    if len(tokens) < shadow.unnamed:
        return f"extend: {shadow.unnamed} accepted drafts of {shadow.name} have to be named first"
    if len(tokens) + drafts == 0:
        return "extend: nothing to add"
    return None


def _commit(now: Ghost, operation: Operation) -> str | None:
    shadow, rows = now.requests[operation.request or ""], operation.args["rows"]
    if shadow.optimistic and rows > shadow.committed + shadow.optimistic:
        return f"commit: {shadow.name} advanced to {shadow.committed + shadow.optimistic} only"
    if not shadow.committed <= rows <= shadow.committed + shadow.in_flight:
        most = shadow.committed + shadow.in_flight
        return f"commit: {shadow.name} can settle between {shadow.committed} and {most}, not {rows}"
    if rows < len(shadow.tokens) and any(step.end > len(shadow.tokens) for step in shadow.steps):
        return f"commit: a step that verifies drafts settles at least the {len(shadow.tokens)} known tokens"
    return None


def _advance(now: Ghost, operation: Operation) -> str | None:
    shadow, rows = now.requests[operation.request or ""], operation.args["rows"]
    if shadow.optimistic:
        return f"advance: {shadow.name} has not settled its last advance"
    if not 0 < rows <= shadow.in_flight:
        return f"advance: {shadow.name} has {shadow.in_flight} positions in flight, not {rows}"
    return None


def _fork(now: Ghost, operation: Operation) -> str | None:
    shadow, rows = now.requests[operation.request or ""], operation.args["rows"]
    if operation.args["child"] in now.requests:
        return f"fork: {operation.args['child']} is live already"
    if shadow.optimistic or shadow.unnamed:
        return f"fork: the count of {shadow.name} is not settled"
    if not 0 < rows <= shadow.committed:
        return f"fork: {shadow.name} has {shadow.committed} committed rows, not {rows}"
    if rows < shadow.committed and now.device.pools[BLOCKS].reserved.intersection(shadow.table):
        return f"fork: rows of {shadow.name} have left its window, so that only all {shadow.committed} can be shared"
    if "slots" in now.capabilities and shadow.state == NOTHING:
        return f"fork: the state slot of {shadow.name} is filled by its first step, which was not seen yet"
    if "slots" in now.capabilities and rows != shadow.committed:
        return f"fork: the state slot of {shadow.name} holds the state after {shadow.committed} positions, not {rows}"
    return _too_many(now)


def _complete(now: Ghost, operation: Operation) -> str | None:
    tickets = operation.args["tickets"]
    if unknown := [t for t in tickets if t not in now.copies and t not in now.step_tickets]:
        return f"complete: tickets {unknown} are not queued"
    queued = [t for t in now.copies if t in tickets]
    if queued != list(now.copies)[: len(queued)]:
        return "complete: copies complete in the order in which they were queued"
    return None


def _pin(now: Ghost, operation: Operation) -> str | None:
    return f"pin: {operation.args['name']} is in use" if operation.args["name"] in now.pins else None


def _hold(now: Ghost, operation: Operation) -> str | None:
    return f"hold: {operation.args['holder']} is in use" if operation.args["holder"] in now.holders else None


def _unpin(now: Ghost, operation: Operation) -> str | None:
    return None if operation.args["name"] in now.pins else f"unpin: there is no pin {operation.args['name']}"


def _ack(now: Ghost, operation: Operation) -> str | None:
    return None if operation.args["holder"] in now.holders else f"ack: there is no holder {operation.args['holder']}"


def _clone(now: Ghost, operation: Operation) -> str | None:
    return None if operation.args["address"] in now.records else "clone: the record was recycled or cloned"


_CHECKS: Mapping[str, Callable[[Ghost, Operation], str | None]] = {
    "admit": _admit,
    "extend": _extend,
    "commit": _commit,
    "advance": _advance,
    "fork": _fork,
    "complete": _complete,
    "pin": _pin,
    "hold": _hold,
    "unpin": _unpin,
    "ack": _ack,
    "clone": _clone,
}
