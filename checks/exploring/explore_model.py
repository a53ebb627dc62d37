"""Exhaustive exploration of the executable model: its own transitions, judged by the spec.

The configuration is ``pool`` (:mod:`kvproof.model.transitions`).  Every new state is translated into
the spec's relations and checked with the spec's rules on bit planes: the model says what happens, the
text says what is right.

Blocks can be renamed, because no operation names one: every block sits somewhere in the free list, a
table or a pin, so reading those in a fixed order and numbering blocks by first appearance gives one
form for all states that differ by a renaming.  ``full`` renames requests as well.
"""

from __future__ import annotations

import itertools
import math
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvproof.checks.exploring.exploration import Checkpoint
from kvproof.checks.exploring.planes import first_false
from kvproof.checks.proof.refute import ONE_STREAM, ROW_RELATIONS
from kvproof.checks.proof.states_in_words import told
from kvproof.checks.proof.unroll import Happened
from kvproof.checks.readings.finite import Cell
from kvproof.checks.readings.machine import Goal, Machine, Scope
from kvproof.model.engine import QueuedCopy
from kvproof.model.interface import BLOCKS, Destination
from kvproof.model.mutants import MUTANTS
from kvproof.model.transitions import Move, PoolMachine, State
from kvproof.spec.modules import STORAGE_MODULE

Behalf = tuple[frozenset[int], ...]
"""For each queued copy, the requests that it is done for; kept only where destinations must be pinned."""
Node = tuple[State, Behalf]

CHECKED = (
    "owned_xor_free",
    "reads_keep_their_source",
    "writes_stay_home",
    "slot_has_one_writer",
    "nothing_lost",
    "reserved_ids_untouched",
    "one_index_per_block",
    "tables_have_no_holes",
    "destinations_stay_home",
)
"""Rules and theorems that are checked in every state of the model."""
RULE_OF = {
    "one_index_per_block": "owned_xor_free",
    "tables_have_no_holes": "table_covers_need",
    "destinations_stay_home": "writes_stay_home",
    "free_means_no_owner": "counts_match_owners",
    "sources_of_copies_are_kept": "reads_keep_their_source",
    "destinations_of_copies_are_kept": "writes_stay_home",
}
"""The rule that a theorem stands for in reports."""
ACTIONS = ("admit", "grow", "fork", "complete", "release_pins", "finish")


@dataclass(frozen=True)
class Limits:
    """The size of the pool."""

    blocks: int
    requests: int
    table: int
    copies: int


class ModelSubject:
    """The model's states and moves; what an exploration needs to know about them."""

    def __init__(self, limits: Limits, symmetry: str, mutant: str | None, destination: Destination) -> None:
        self.limits, self.symmetry = limits, symmetry
        engine = {}
        if mutant is not None:
            engine = {"engine_type": MUTANTS[mutant].engine}
            destination = MUTANTS[mutant].destination
        real: Destination = destination if mutant is not None else "ordered"
        self.machine = PoolMachine(
            limits.blocks, limits.requests, limits.table, limits.copies, destination=real, **engine
        )
        self._start: Node = (self.machine.state(), ())
        self.demanded = destination
        self.tracks = destination == "pinned"
        self._pins = self._pinned_ends()
        self._permutations = list(itertools.permutations(range(limits.requests)))
        sizes = {
            "request": limits.requests,
            "index": limits.table,
            "block": limits.blocks,
            "offset": 1,
            "work": max(1, limits.copies),
            "holder": 0,
            "key": 0,
            "record": 0,
        }
        scope = Scope(sizes, choices=ONE_STREAM, without=ROW_RELATIONS, actions=ACTIONS)
        self.spec = Machine(STORAGE_MODULE, scope)
        self.goals: list[Goal] = self.spec.goals(CHECKED)
        self._place = {cell: place for place, cell in enumerate(self.spec.cells)}

    def _pinned_ends(self) -> tuple[bool, bool]:
        """Which ends of a queued copy the engine says that it holds."""
        held = self.machine.engine.held(QueuedCopy(1, BLOCKS, 1, 2, 1))
        return "source" in held, "destination" in held

    # -- moves

    def start(self) -> Node:
        """The empty pool."""
        return self._start

    def successors(self, node: Node) -> Iterator[tuple[Move, Node]]:
        """Every enabled move and where it leads."""
        machine, (state, behalf) = self.machine, node
        machine.restore(state)
        for move in machine.moves():
            machine.restore(state)
            machine.apply(move)
            after = machine.state()
            yield move, (after, self._behalf(move, behalf, len(after[2])) if self.tracks else ())

    @staticmethod
    def _behalf(move: Move, behalf: Behalf, copies: int) -> Behalf:
        operation, request, argument = move
        if operation == "fork":
            inherited = tuple(who | {argument} if request in who else who for who in behalf)
            return (*inherited, frozenset({argument})) if copies > len(behalf) else inherited
        if operation == "finish":
            return tuple(who - {request} for who in behalf)
        if operation == "collect":
            return behalf[1:]
        return behalf

    # -- symmetry

    def canonical(self, node: Node) -> Node:
        """The representative of a state's class."""
        if self.symmetry == "none":
            return node
        if self.symmetry == "blocks":
            return _renamed(node, None)
        return min((_renamed(node, order) for order in self._permutations), key=_sortable)

    def orbit(self) -> int:
        """How many states a class of ``blocks`` symmetry has: every block sits somewhere, so N!."""
        return math.factorial(self.limits.blocks) if self.symmetry == "blocks" else 1

    # -- keys

    def key(self, node: Node) -> bytes:
        """The state as a fixed number of bytes."""
        (free, tables, copies), behalf = node
        limits = self.limits
        key = bytearray(self.key_bytes())
        key[: len(free)] = bytes(free)
        at = limits.blocks
        for table in tables:
            key[at : at + len(table)] = bytes(table)
            at += limits.table
        for number, (source, destination) in enumerate(copies):
            who = sum(1 << request for request in behalf[number]) if behalf else 0
            key[at : at + 4] = bytes((source, abs(destination), 1 if destination > 0 else 2, who))
            at += 4
        return bytes(key)

    def key_bytes(self) -> int:
        """The number of bytes of a key."""
        limits = self.limits
        return limits.blocks + limits.requests * limits.table + 4 * limits.copies

    def node(self, key: bytes) -> Node:
        """The state of a key."""
        limits = self.limits
        free = tuple(block for block in key[: limits.blocks] if block)
        at = limits.blocks
        tables = []
        for _ in range(limits.requests):
            tables.append(tuple(block for block in key[at : at + limits.table] if block))
            at += limits.table
        copies = []
        behalf = []
        for _ in range(limits.copies):
            source, destination, flag, who = key[at : at + 4]
            at += 4
            if flag:
                copies.append((source, destination if flag == 1 else -destination))
                behalf.append(frozenset(r for r in range(limits.requests) if who >> r & 1))
        return (free, tuple(tables), tuple(copies)), tuple(behalf) if self.tracks else ()

    # -- the spec's view

    def cells(self, node: Node) -> Iterator[Cell]:
        """The spec's relations in this state (block ids from 0)."""
        (free, tables, copies), behalf = node
        for block in free:
            yield "free", (block - 1,)
        for request, table in enumerate(tables):
            if table:
                yield "live", (request,)
            for index, block in enumerate(table):
                yield "table", (request, index, block - 1)
        source_held, destination_held = self._pins
        waiting: list[int] = []
        for work, (source, destination) in enumerate(copies):
            if source_held:
                yield "pinned", (work, source - 1)
            if destination_held and destination:
                yield "pinned", (work, abs(destination) - 1)
            if destination <= 0:
                continue
            for earlier in waiting:
                yield "before", (earlier, work)
            waiting.append(work)
            for name in ("pending", "copies"):
                yield name, (work,)
            yield "reads", (work, source - 1, 0)
            yield "writes", (work, destination - 1, 0)
            if self.demanded == "ordered":
                yield "writes_in_order", (work,)
            for request in behalf[work] if behalf else ():
                yield "on_behalf", (work, request)

    def bits(self, nodes: Sequence[Node]) -> NDArray[np.bool_]:
        """The spec's cells of many states, one row a state."""
        rows = np.zeros((len(nodes), len(self.spec.cells)), dtype=np.bool_)
        place = self._place
        for row, node in enumerate(nodes):
            for cell in self.cells(node):
                here = place.get(cell)
                if here is not None:
                    rows[row, here] = True
        return rows

    def broken(self, nodes: Sequence[Node]) -> tuple[int, str, str] | None:
        """The first state that breaks a rule: its place, the rule, and the sentence."""
        if not nodes:
            return None
        bits = self.bits(nodes)
        found = first_false(self.spec.circuit, [goal.node for goal in self.goals], self.spec.inputs, bits)
        broken = [(row, goal) for row, goal in zip(found, self.goals, strict=True) if row >= 0]
        if not broken:
            return None
        row, goal = min(broken, key=lambda pair: pair[0])
        sentence = told(self.spec, goal.sentence, goal.formula, self.cells(nodes[row]))
        return row, RULE_OF.get(goal.name, goal.name), sentence


def _renamed(node: Node, order: tuple[int, ...] | None) -> Node:
    """Blocks numbered by first appearance in the free list, the tables (in this order), the copies."""
    (free, tables, copies), behalf = node
    if order is not None:
        tables = tuple([tables[r] for r in order])
        behalf = tuple(frozenset(order.index(r) for r in who) for who in behalf)
    names: dict[int, int] = {}
    for block in free:
        names[block] = len(names) + 1
    for table in tables:
        for block in table:
            if block not in names:
                names[block] = len(names) + 1
    for copy in copies:
        for block in copy:
            if block and abs(block) not in names:
                names[abs(block)] = len(names) + 1
    return (
        (
            tuple([names[b] for b in free]),
            tuple([tuple([names[b] for b in table]) for table in tables]),
            tuple([(names[a], names[b] if b > 0 else -names[-b] if b else 0) for a, b in copies]),
        ),
        behalf,
    )


def _sortable(node: Node) -> tuple[State, tuple[tuple[int, ...], ...]]:
    return node[0], tuple(tuple(sorted(who)) for who in node[1])


def told_as(moves: Sequence[Move], start: State, machine: PoolMachine) -> list[Happened]:
    """A run of moves as actions of the spec, for writing it down as a trace."""
    steps: list[Happened] = []
    machine.restore(start)
    queue: list[int] = []
    names = 0
    for move in moves:
        operation, request, argument = move
        tables = machine.state()[1]
        machine.apply(move)
        after = machine.state()[1]
        if operation in ("admit", "grow"):
            for index in range(len(tables[request]), len(after[request])):
                things = (("request", request), ("index", index), ("block", after[request][index] - 1))
                steps.append(Happened("grow" if index else "admit", things))
        elif operation == "fork":
            index = len(tables[request]) - 1
            blocks = (("block", tables[request][index] - 1), ("new_block", after[argument][index] - 1))
            pair = (("parent_request", request), ("child_request", argument), ("index", index))
            steps.append(Happened("fork", (*pair, *blocks, ("work", names))))
            queue.append(names)
            names += 1
        elif operation == "finish":
            steps.append(Happened("finish", (("request", request),)))
        elif operation == "complete":
            steps.append(Happened("complete", (("work", queue.pop(0)),)))
    return steps


def words(move: Move) -> str:
    """A move as the operation that it is."""
    operation, request, argument = move
    return {
        "admit": f"admit(r{request}, {argument} blocks)",
        "grow": f"extend(r{request})",
        "fork": f"fork(r{request} -> r{argument})",
        "finish": f"release(r{request})",
        "complete": "complete(oldest copy)",
        "collect": "unpin(oldest done copy)",
    }[operation]


def move_code(move: Move) -> int:
    """A move as a number."""
    names = ("admit", "grow", "fork", "finish", "complete", "collect")
    return names.index(move[0]) << 16 | move[1] << 8 | move[2]


def move_of(code: int) -> Move:
    """The move of a number."""
    names = ("admit", "grow", "fork", "finish", "complete", "collect")
    return names[code >> 16], code >> 8 & 255, code & 255


@dataclass
class ModelRun:
    """An exploration of the model: what was found so far, by number, level after level."""

    subject: ModelSubject
    number_of: dict[bytes, int]
    parents: array[int]
    moves: array[int]
    levels: list[int]
    level: list[Node]
    edges: int = 0

    @classmethod
    def begin(cls, subject: ModelSubject) -> ModelRun:
        """Only the empty pool was found."""
        start = subject.canonical(subject.start())
        return cls(subject, {subject.key(start): 0}, array("q", [-1]), array("q", [-1]), [0], [start])

    @classmethod
    def resume(cls, subject: ModelSubject, saved: Checkpoint) -> ModelRun:
        """Go on from a checkpoint."""
        keys = [row.tobytes() for row in saved.keys]
        last = saved.levels[-1]
        return cls(
            subject,
            {key: number for number, key in enumerate(keys)},
            array("q", saved.parents.tolist()),
            array("q", saved.moves.tolist()),
            list(saved.levels),
            [subject.node(key) for key in keys[last:]],
            saved.edges,
        )

    def checkpoint(self) -> Checkpoint:
        """Everything that was found up to the last finished level."""
        keys = np.frombuffer(b"".join(self.number_of), dtype=np.uint8).reshape(-1, self.subject.key_bytes())
        return Checkpoint(keys, np.array(self.parents), np.array(self.moves), self.levels, self.edges)

    def next_level(self, most: int | None) -> bool:
        """Expand the last level.  False if ``most`` states were found before it was finished."""
        subject = self.subject
        first = self.levels[-1]
        following: list[Node] = []
        for offset, node in enumerate(self.level):
            for move, after in subject.successors(node):
                self.edges += 1
                after = subject.canonical(after)
                key = subject.key(after)
                if key not in self.number_of:
                    self.number_of[key] = len(self.number_of)
                    self.parents.append(first + offset)
                    self.moves.append(move_code(move))
                    following.append(after)
            if most is not None and len(self.number_of) > most:
                return False
        self.levels.append(len(self.number_of) - len(following))
        self.level = following
        return True

    def path(self, number: int) -> list[Move]:
        """The moves that lead to a state, as they are made from the empty pool.

        Under symmetry a stored move speaks of the representative's requests; the run is told again from
        the start, choosing at each step a move that leads to the class of the next state.
        """
        chain = []
        while number > 0:
            chain.append(number)
            number = self.parents[number]
        chain.reverse()
        subject = self.subject
        node = subject.start()
        keys = list(self.number_of)
        told_moves: list[Move] = []
        for wanted in chain:
            for move, after in subject.successors(node):
                if subject.key(subject.canonical(after)) == keys[wanted]:
                    told_moves.append(move)
                    node = after
                    break
        return told_moves
