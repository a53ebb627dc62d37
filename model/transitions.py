"""The engine as a transition system: states that can be compared, and moves between them.

Everything here drives the real :class:`~kvproof.model.engine.Engine`; nothing is implemented twice.
The configuration is called ``pool``: N blocks of one position, three requests, tables of at most
three blocks, at most two pins (queued copies and sources still held), DeepInfer's decode path for
forks, every position committed at once, state slots unlimited.

    >>> machine = PoolMachine(blocks=4)
    >>> machine.moves()
    [('admit', 0, 1), ('admit', 0, 2), ('admit', 0, 3), ('admit', 1, 1), ...]
    >>> machine.apply(("admit", 0, 2))
    >>> machine.state()
    ((3, 4), ((1, 2), (), ()), ())
"""

from __future__ import annotations

from collections import deque

from .engine import Engine, QueuedCopy
from .interface import BLOCKS, Destination
from .request import Request

Move = tuple[str, int, int]
"""``(operation, request, argument)``: the number of blocks for admit, the child for fork, else 0."""

State = tuple[tuple[int, ...], tuple[tuple[int, ...], ...], tuple[tuple[int, int], ...]]
"""(free list in hand-out order, table of each request, copies as (source, destination)).

The destination of a copy that is done is negative while it is still pinned, and 0 when only the source is."""


class PoolMachine:
    """One engine in the configuration ``pool``, with its moves.

    ``engine_type`` may be a mutant's engine.  ``destination`` is the declared discipline.
    """

    def __init__(
        self,
        blocks: int,
        requests: int = 3,
        table: int = 3,
        copies: int = 2,
        destination: Destination = "ordered",
        engine_type: type[Engine] = Engine,
    ) -> None:
        self.engine = engine_type(blocks, 1, fork_path="decode", destination=destination)
        self.names = [f"r{number}" for number in range(requests)]
        self._spare = [Request(name, 0, []) for name in self.names]  # put to use by restore
        self._done = -1 if destination == "pinned" else 0
        self.most_blocks = table
        self.most_copies = copies

    def state(self) -> State:
        """Everything that distinguishes two states; ticket numbers do not."""
        engine = self.engine
        requests = engine.requests
        return (
            engine.blocks.free,
            tuple([tuple(requests[name].table) if name in requests else () for name in self.names]),
            tuple([(c.source, c.destination * (self._done if c.done else 1)) for c in engine.copies.values()]),
        )

    def restore(self, state: State) -> None:
        """Put the engine into a state that :meth:`state` returned."""
        free, tables, copies = state
        engine = self.engine
        counts: dict[int, int] = {}
        requests = engine.requests
        requests.clear()
        for name, request, table in zip(self.names, self._spare, tables, strict=True):
            if table:
                request.length = request.num_tokens = request.previous = len(table)
                request.table = list(table)
                requests[name] = request
                for block in table:
                    counts[block] = counts.get(block, 0) + 1
        engine.copies.clear()
        engine.cancelled.clear()
        engine.tickets = len(copies)
        if copies:
            for ticket, (source, destination) in enumerate(copies, start=1):
                copy = QueuedCopy(ticket, BLOCKS, source, abs(destination), 1)
                copy.done = destination <= 0
                engine.copies[ticket] = copy
                for block in engine.held(copy).values():
                    counts[block] = counts.get(block, 0) + 1
        engine.blocks.restore(free, counts)

    def moves(self) -> list[Move]:
        """Every move that is enabled now."""
        engine = self.engine
        requests = engine.requests
        free = len(engine.blocks)
        live = [(number, requests.get(name)) for number, name in enumerate(self.names)]
        room = free and len(engine.copies) < self.most_copies
        moves: list[Move] = []
        for number, request in live:
            if request is None:
                moves += [("admit", number, size) for size in range(1, min(self.most_blocks, free) + 1)]
                continue
            if free and len(request.table) < self.most_blocks:
                moves.append(("grow", number, 0))
            if room:
                moves += [("fork", number, child) for child, other in live if other is None]
            moves.append(("finish", number, 0))
        if engine.copies:
            copies = list(engine.copies.values())
            if not copies[-1].done:
                moves.append(("complete", 0, 0))
            if copies[0].done:
                moves.append(("collect", 0, 0))
        return moves

    def apply(self, move: Move) -> None:
        """Make one enabled move."""
        operation, number, argument = move
        engine = self.engine
        if operation == "complete":
            engine.complete(next(copy.ticket for copy in engine.copies.values() if not copy.done))
            return
        if operation == "collect":
            engine.collect((next(iter(engine.copies)),))
            return
        name = self.names[number]
        if operation == "finish":
            engine.release(name)
        elif operation == "fork":
            engine.fork(name, self.names[argument], engine.requests[name].num_tokens)
        elif operation == "admit":
            engine.admit(name, argument)
            engine.commit(name, argument)
        else:
            engine.extend(name, 1)
            engine.commit(name, engine.requests[name].length)


def explore(machine: PoolMachine, limit: int | None = None) -> tuple[int, int, int]:
    """Every reachable state, breadth first: (states, transitions, depth).  Plain, for small sizes.

    Stops early once ``limit`` states were found.
    """
    start = machine.state()
    seen = {start}
    level: deque[State] = deque([start])
    edges = depth = 0
    while level and (limit is None or len(seen) < limit):
        following: deque[State] = deque()
        for state in level:
            machine.restore(state)
            for move in machine.moves():
                machine.restore(state)
                machine.apply(move)
                edges += 1
                after = machine.state()
                if after not in seen:
                    seen.add(after)
                    following.append(after)
        level = following
        depth += bool(level)
    return len(seen), edges, depth
