"""A run as a script that can be edited and performed again, on a fresh target or on another one.

Tickets and addresses are chosen by the target, so a script names them by where they came from: "the
second piece of work that operation 3 queued".  Performing a script skips the operations that are not
legal any more, which is what lets a minimiser drop operations one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from kvproof.checks.certification.generate import NEEDS, offered
from kvproof.checks.lockstep.follow import Follower
from kvproof.checks.lockstep.harness import Breach, Lockstep, Violation
from kvproof.checks.lockstep.operations import Operation, length
from kvproof.model.interface import Configuration, Factory, Snapshot

CALL_LIMIT = 10.0
"""Seconds that one call to the target may take."""


@dataclass(frozen=True)
class Made:
    """The ``number``-th ticket or address that the line ``line`` of the script made."""

    line: int
    number: int


@dataclass(frozen=True)
class Line:
    """One operation of a script; ``key`` stays the same when other lines are dropped.

    ``offset`` says where a number of rows lay when the line was performed: behind the history for a
    commit, behind the committed rows for a fork (0: all of them, negative: fewer).
    """

    key: int
    operation: Operation
    offset: int | None = None


Script = tuple[Line, ...]


@dataclass
class Run:
    """What happened when a script was performed."""

    configuration: Configuration
    lines: list[Line] = field(default_factory=list)
    """The lines that were legal, the breaking one last."""
    operations: list[Operation] = field(default_factory=list)
    """The same with the target's own tickets and addresses."""
    replies: list[Any] = field(default_factory=list)
    """What the target answered; the breaking operation may have none."""
    breach: Breach | None = None
    draining: bool = False
    """The rule broke while everything was given back after the last operation."""
    before_drain: int = 0
    """If so: how many of the lines came before that."""

    @property
    def length(self) -> int:
        """Length as counterexamples are counted."""
        return length(self.operations)

    @property
    def size(self) -> tuple[int, int, int, int]:
        """What the minimiser makes small: length, operations, rules broken at once, tokens."""
        tokens = sum(len(o.args.get("tokens", ())) for o in self.operations)
        rules = len(self.breach.also) if self.breach is not None else 0
        return self.length, len(self.operations), rules, tokens

    def breaks(self, breach: Breach | None) -> bool:
        """Whether this run ends in the same kind of breach."""
        return (
            self.breach is not None
            and breach is not None
            and (self.breach.kind, self.breach.rule) == (breach.kind, breach.rule)
        )


def made_by(lockstep: Lockstep) -> list[int]:
    """Everything that the target made so far and that an operation may name: tickets, then addresses.

    An address and a ticket may be the same number: an address is told as its complement (:func:`as_address`).
    """
    follower = lockstep.follower
    return [*follower.copies, *follower.step_tickets, *map(as_address, follower.records)]


def as_address(number: int) -> int:
    """The address of a record, told apart from tickets; applied twice, the address itself."""
    return ~number


def record(operations: Sequence[Operation], made: Sequence[Sequence[int]]) -> Script:
    """A script of operations that were performed; ``made[i]`` is what operation i made."""
    origin: dict[int, Made] = {}
    script = []
    for key, operation in enumerate(operations):
        script.append(Line(key, _symbolic(operation, origin)))
        if key < len(made):
            origin.update({value: Made(key, number) for number, value in enumerate(made[key])})
    return tuple(script)


def _symbolic(operation: Operation, origin: dict[int, Made]) -> Operation:
    if operation.op == "complete":
        tickets = tuple(origin.get(ticket, Made(-1, ticket)) for ticket in operation.args["tickets"])
        return replace(operation, args={"tickets": tickets})
    if operation.op == "clone":
        address = operation.args["address"]
        return replace(operation, args={"address": origin.get(as_address(address), Made(-1, address))})
    return operation


def _concrete(operation: Operation, values: dict[Made, int]) -> Operation | None:
    if operation.op == "complete":
        tickets = [values[made] for made in operation.args["tickets"] if made in values]
        return replace(operation, args={"tickets": tuple(tickets)}) if tickets else None
    if operation.op == "clone":
        made = operation.args["address"]
        return replace(operation, args={"address": as_address(values[made])}) if made in values else None
    return operation


def _fitted(line: Line, now: Follower, relative: bool) -> Line:
    """The line with its number of rows moved into what is possible now; an edited script needs that.

    ``relative``: keep the distance to the end of the history (or of the committed rows), not the number.
    """
    operation = line.operation
    live = now.requests.get(operation.request) if operation.request is not None else None
    if live is None or "rows" not in operation.args:
        return line
    base = live.committed
    match operation.op:
        case "commit":
            base = len(live.tokens)
            least, most = live.committed, live.committed + (live.optimistic or live.in_flight)
        case "fork":
            least, most = (live.committed if "slots" in now.capabilities else 1), live.committed
        case _:
            least, most = 1, live.in_flight
    wanted = base + line.offset if relative and line.offset is not None else operation.args["rows"]
    rows = min(max(wanted, least), most)
    return replace(line, operation=replace(operation, args={**operation.args, "rows": rows}), offset=rows - base)


class Seen(NamedTuple):
    """One performed operation: what came back (or the exception), and the snapshot after it if there is one."""

    operation: Operation
    outcome: object
    snapshot: Snapshot | None


class Stage:
    """A fresh target on which a script is performed line by line.

    A target whose very first snapshot breaks a rule has its breach in ``run.breach`` at once.
    """

    def __init__(
        self,
        factory: Factory,
        configuration: Configuration,
        call_limit: float = CALL_LIMIT,
        *,
        relative: bool = False,
    ) -> None:
        self.run = Run(configuration)
        self._relative = relative
        self.seen: list[Seen] = []
        self._lockstep: Lockstep | None = None
        self._values: dict[Made, int] = {}
        try:
            self._lockstep = Lockstep(factory, configuration, call_limit=call_limit, watch=self._watch)
        except Violation as violation:
            self.run.breach = violation.breach

    @property
    def lockstep(self) -> Lockstep:
        """The target in lockstep; only while nothing broke at the start."""
        assert self._lockstep is not None
        return self._lockstep

    def refuses(self, line: Line) -> str | None:
        """Why the line, as it stands, may not be performed now; None when it may."""
        operation = _concrete(line.operation, self._values)
        if operation is None:
            return "it names queued work or a record that nothing made"
        if not offered(operation.op, self.lockstep.capabilities):
            return f"the target lacks the capability {NEEDS[operation.op]}"
        return self.lockstep.follower.illegal(operation)

    def perform(self, line: Line) -> bool:
        """Perform one line; False when it was skipped as illegal.  A breach is kept in ``run.breach``."""
        if self._lockstep is None:
            return False
        lockstep, run = self._lockstep, self.run
        line = _fitted(line, lockstep.follower, self._relative)
        operation = _concrete(line.operation, self._values)
        if operation is None or not offered(operation.op, lockstep.capabilities):
            return False
        if lockstep.follower.illegal(operation):
            return False
        before = set(made_by(lockstep))
        run.lines.append(line)
        run.operations.append(operation)
        try:
            lockstep.perform(operation)
        except Violation as violation:
            run.breach = violation.breach
            if len(self.seen) < len(run.operations):
                self.seen.append(Seen(operation, violation.__cause__, None))
            return True
        new = [value for value in made_by(lockstep) if value not in before]
        self._values.update({Made(line.key, number): value for number, value in enumerate(new)})
        return True

    def _watch(self, operation: Operation, reply: object, snapshot: Snapshot) -> None:
        if len(self.run.replies) < len(self.run.operations):
            self.run.replies.append(reply)
            self.seen.append(Seen(operation, reply, snapshot))

    def drain(self) -> None:
        """Give everything back; a breach is kept in ``run.breach``."""
        if self._lockstep is None:
            return
        self.run.before_drain = len(self.run.lines)
        try:
            self._lockstep.drain()
        except Violation as violation:
            self.run.breach = violation.breach
            self.run.draining = True

    def close(self) -> None:
        """Close the target."""
        if self._lockstep is not None:
            self._lockstep.close()


def play(
    factory: Factory,
    configuration: Configuration,
    script: Sequence[Line],
    *,
    drain: bool,
    call_limit: float = CALL_LIMIT,
    relative: bool = False,
) -> Run:
    """Perform a script on a fresh target until something breaks; with ``drain``, give everything back at the end."""
    stage = Stage(factory, configuration, call_limit, relative=relative)
    try:
        for line in script:
            if stage.run.breach is not None:
                return stage.run
            stage.perform(line)
        if drain and stage.run.breach is None:
            stage.drain()
        return stage.run
    finally:
        stage.close()
