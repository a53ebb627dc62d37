"""One target in lockstep with the follower, every rule evaluated after every operation.

:class:`Lockstep` makes the call (with a time limit), checks that the answer is an answer, takes the
snapshot, lets the :class:`~kvproof.checks.lockstep.follow.Follower` take note, and evaluates the rule book.
The first thing that is wrong raises :class:`Violation`.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kvproof.checks.adapters.registry import TargetError as TargetError
from kvproof.checks.lockstep.calls import STRAY, CallFailed, call, close, shown, told
from kvproof.checks.lockstep.follow import Follower
from kvproof.checks.lockstep.form import frozen, reply_problem, snapshot_problem, whole
from kvproof.checks.lockstep.operations import Operation, length
from kvproof.checks.lockstep.shadow import StateSlot, Work
from kvproof.checks.readings import sets
from kvproof.checks.readings.sets import Facts, RuleBook
from kvproof.model.interface import (
    BLOCKS,
    SLOTS,
    Allocator,
    Answer,
    Configuration,
    Factory,
    NotAnAllocator,
    Reply,
    Snapshot,
    capabilities_of,
    declaration_of,
)
from kvproof.spec import RULES

KINDS = (
    "rule",
    "raises",
    "hangs",
    "nondeterministic",
    "changes_answer",
    "reserved_block",
    "contract",
    "wrong_rows",
    "order",
)
"""What a finding can be: a broken rule, or a target that misbehaves before any rule can be judged."""

LOOK_TWICE = 8
"""Every so many operations the snapshot is taken twice."""

ANSWERING = frozenset({"admit", "extend", "fork", "pin", "hold", "move"})
"""Operations that answer with a :class:`Reply`."""


class IllegalOperation(ValueError):
    """The harness was told to make a call that the contract does not allow now."""


@dataclass(frozen=True)
class Breach:
    """What is wrong, in one sentence, and the past of the block that it is about."""

    rule: str | None
    """The broken rule; None when the target misbehaved before any rule could be judged."""
    kind: str
    message: str
    also: tuple[str, ...] = ()
    """Other rules broken by the same operation."""
    block: str | None = None
    pool: str | None = None
    """The pool of that block: ``blocks`` or ``slots``."""
    history: tuple[str, ...] = ()
    """What happened to that block, oldest first."""


class Violation(Exception):
    """The target broke a rule or misbehaved."""

    def __init__(self, breach: Breach) -> None:
        super().__init__(breach.message)
        self.breach = breach


def build(factory: Factory, configuration: Configuration, call_limit: float = 10.0) -> Allocator:
    """A fresh allocator; raises :class:`TargetError` when the factory fails or what it makes is none."""
    try:
        allocator: Allocator = call("the factory", max(60.0, call_limit), factory, configuration)
        if isinstance(allocator, type):
            raise TargetError(f"the factory returned the class {allocator.__name__}: return an instance of it")
        capabilities_of(allocator)
    except NotAnAllocator as error:
        raise TargetError(str(error)) from error
    except STRAY as error:
        if isinstance(error, (TargetError, CallFailed)):
            raise TargetError(str(error)) from error
        raise TargetError(f"asking the target what it declares raised {told(error)}") from error
    return allocator


@dataclass
class Lockstep:
    """A fresh target, and everything known about it.  ``call_limit``: seconds that one call may take."""

    factory: Factory
    configuration: Configuration
    call_limit: float = 10.0
    read_all: bool = True
    """Read every request back after each operation that changes rows (else only the one concerned)."""
    operations: list[Operation] = field(default_factory=list)
    statistics: Counter[str] = field(default_factory=Counter)
    checked: Counter[str] = field(default_factory=Counter)
    """How often each rule had something to judge."""
    watch: Callable[[Operation, object, Snapshot], None] | None = None
    """Called after each operation, before it is judged: recorders of traces."""

    def __post_init__(self) -> None:
        self.allocator: Any = build(self.factory, self.configuration, self.call_limit)
        self.capabilities = capabilities_of(self.allocator)
        self.declaration = declaration_of(self.allocator)
        self.follower = Follower(self.configuration, self.declaration, self.capabilities)
        self.book = RuleBook(RULES.values())
        self.least_never: int | None = None
        self.snapshot = self._look("the first snapshot")
        self.follower.observe(None, self.snapshot)
        self._judge(None, None)

    # ------------------------------------------------------------------------------------------- one call

    def perform(self, operation: Operation) -> Any:
        """Make the call and judge it; returns what the target answered.

        Raises :class:`Violation`, and :class:`IllegalOperation` for a call that may not be made now.
        """
        if operation.op not in ("admit",) and not hasattr(self.allocator, operation.op):
            raise IllegalOperation(f"{operation.op}: the target has no such capability")
        if reason := self.follower.illegal(operation):
            raise IllegalOperation(reason)
        self.operations.append(operation)
        reply = self._call(operation)
        self._check_reply(operation, reply)
        last, self.snapshot = self.snapshot, self._look(f"the snapshot after {operation}")
        self._count(operation, reply)
        if self.watch:
            self.watch(operation, reply, self.snapshot)
        if isinstance(reply, Reply):
            self._check_constancy(operation, reply, last)
        before, event, _ = self.follower.follow(operation, reply, self.snapshot)
        self._judge(before, event)
        if isinstance(reply, Reply):
            self._check_order(operation, reply, last)
        self._read_back(operation)
        return reply

    def _call(self, operation: Operation) -> Any:
        method = getattr(self.allocator, operation.op)
        try:
            return call(str(operation), self.call_limit, method, *copy.deepcopy(operation.arguments()))
        except CallFailed as error:
            repair = ". Running out is an answer, not an exception; the adapter has to translate the documented errors"
            raise self._violation(error.kind, f"{error}{repair if error.kind == 'raises' else ''}") from error

    def _observe(self, what: str) -> Snapshot:
        try:
            snapshot = call(what, self.call_limit, self.allocator.snapshot)
        except CallFailed as error:
            raise self._violation(error.kind, str(error)) from error
        if problem := snapshot_problem(snapshot):
            raise self._violation("contract", f"{what}: {problem}")
        return {name: frozen(pool) for name, pool in snapshot.items()}

    def _look(self, what: str) -> Snapshot:
        """One snapshot; now and then a second one, since looking must not change anything."""
        first = self._observe(what)
        if len(self.operations) % LOOK_TWICE == 0 and self._observe(what) != first:
            raise self._violation("contract", f"{what}: a second snapshot differs from the first; looking changed it")
        return first

    def _check_reply(self, operation: Operation, reply: object) -> None:
        if operation.op in ANSWERING:
            problem = reply_problem(operation, reply, self.snapshot, self.configuration)
            problem = problem or self._reused_ticket(reply)
            if problem:
                raise self._violation("contract", f"{operation}: {problem}")
        elif operation.op in ("submit", "take", "evict"):
            if not whole(reply):
                raise self._violation("contract", f"{operation} returned {shown(reply)}: a whole number belongs there")
            if operation.op == "submit" and (reply in self.follower.step_tickets or reply in self.follower.copies):
                raise self._violation("contract", f"{operation}: ticket {reply} is queued already")

    def _reused_ticket(self, reply: object) -> str | None:
        assert isinstance(reply, Reply)
        again = [copy.ticket for copy in reply.copies if copy.ticket in self.follower.copies]
        return f"ticket {again[0]} is queued already: a later operation needs its own" if again else None

    def _violation(self, kind: str, message: str) -> Violation:
        return Violation(Breach(None, kind, message))

    def _count(self, operation: Operation, reply: Any) -> None:
        count = self.statistics
        count["operations"] += 1
        count[operation.op] += 1
        if isinstance(reply, Reply):
            count[f"{operation.op}:{reply.answer.value}"] += 1
            if operation.op == "admit" and reply.hit_rows:
                count["hits"] += 1
            count["copies"] += len(reply.copies)
            count["evicted"] += len(reply.evicted or ())
        elif operation.op == "evict":
            count["evicted"] += reply

    # -------------------------------------------------------------------------------------- judging one step

    def _judge(self, before: Facts | None, event: Facts | None) -> None:
        now = self.follower.facts
        assert now is not None
        breaches = self.book.first_breaches(before, event, now)
        self.checked = self.book.exercised
        if breaches:
            first = most_telling(breaches)
            also = tuple(b.rule for b in breaches if b.rule != first.rule)
            raise Violation(self._describe(first, also))

    def _describe(self, breach: sets.Breach, also: tuple[str, ...]) -> Breach:
        kind = "reserved_block" if breach.rule == "reserved_ids_untouched" else "rule"
        block = breach.witness.get("block")
        if isinstance(block, StateSlot):
            breach = replace(breach, sentence=breach.sentence.replace(" block {block}", " state slot {block}"))
        message = str(breach)
        request = breach.witness.get("request")
        if breach.rule == "no_read_before_fill" and isinstance(request, str) and request in self.follower.requests:
            wanted, found = self.follower.expected_tokens(request), self.follower.found_tokens(request)
            if detail := difference(request, wanted, found):
                kind, message = "wrong_rows", f"{message}: {detail}"
            if -1 in found and any(o.op == "fork" and o.args["child"] == request for o in self.operations):
                message += f" (nothing was written there: was a Copy into block {block} left out of the reply?)"
        if breach.rule == "counts_match_owners" and isinstance(block, (int, StateSlot)):
            message += self._count_detail(block)
        work = breach.witness.get("work")
        if isinstance(work, Work) and work.copy is not None:
            message += f" (ticket {work.copy.ticket}, for {work.request})"
        past = tuple(self.follower.history.get(block, ())) if isinstance(block, (int, StateSlot)) else ()
        pool = None if block is None else SLOTS if isinstance(block, StateSlot) else BLOCKS
        return Breach(breach.rule, kind, message, also, None if block is None else str(block), pool, past)

    def _count_detail(self, block: int | StateSlot) -> str:
        pool = self.snapshot[SLOTS if isinstance(block, StateSlot) else BLOCKS]
        number = block.id if isinstance(block, StateSlot) else block
        owners = [name for name, table in pool.tables.items() if number in table]
        owners += [str(name) for name, ids in pool.holds.items() if number in ids]
        count = (pool.counts or {}).get(number)
        return f": it counts {count}, its owners are {', '.join(owners) or 'nobody'}"

    def _check_constancy(self, operation: Operation, reply: Reply, last: Snapshot) -> None:
        """Nothing changed, so the same question gets the same answer; and NEVER is for ever."""
        if reply.answer is not Answer.OK and self.snapshot == last:
            again = self._call(operation)
            self._check_reply(operation, again)
            if again.answer is not reply.answer:
                raise self._violation(
                    "changes_answer",
                    f"{operation} was answered {reply.answer.name}, then {again.answer.name}, though nothing changed",
                )
        if operation.op != "admit":
            return
        blocks = -(-len(operation.args["tokens"]) // self.configuration.block_size)
        if reply.answer is Answer.NEVER:
            self.least_never = min(blocks, self.least_never or blocks)
        elif reply.answer is Answer.OK and self.least_never is not None and blocks >= self.least_never:
            raise self._violation(
                "changes_answer",
                f"{operation} needs {blocks} blocks and was admitted; {self.least_never} blocks were answered NEVER",
            )

    def _check_order(self, operation: Operation, reply: Reply, last: Snapshot) -> None:
        """A declared hand-out order: the blocks taken stood first in the free list; a refusal leaves it alone."""
        if self.declaration.order not in ("fifo", "lifo"):
            return
        free, now = last[BLOCKS].free, self.snapshot[BLOCKS].free
        if reply.answer is not Answer.OK:
            before = set(free)
            kept = [block for block in now if block in before] == list(free)
        else:
            still = set(now)
            # A hit takes an idle cached block from wherever it stands, and what was evicted may stand anywhere.
            plain = [block for block in free if block not in last[BLOCKS].evictable]
            taken = [block for block in plain if block not in still]
            kept = taken == plain[: len(taken)]
        if not kept:
            raise self._violation(
                "order",
                f"{operation}: the free list was {list(free)} and is {list(now)}, declared {self.declaration.order}",
            )

    def _read_back(self, operation: Operation) -> None:
        """Compare the rows that the target reads back with what they must hold."""
        if "rows" not in self.capabilities or operation.op not in ("commit", "complete", "fork", "extend"):
            return
        names = list(self.follower.requests) if self.read_all or operation.request is None else [operation.request]
        for name in names:
            shadow = self.follower.requests.get(name)
            if shadow is None or shadow.optimistic or not shadow.committed or not self.follower.readable(name):
                continue
            try:
                rows = call(f"read({name!r})", self.call_limit, self.allocator.read, name)
            except CallFailed as error:
                raise self._violation(error.kind, str(error)) from error
            if not isinstance(rows, Sequence) or isinstance(rows, str):
                raise self._violation("contract", f"read({name!r}) returned {shown(rows)}: a sequence belongs there")
            found = list(rows[: shadow.committed + 1])
            self.statistics["rows read"] += len(found)
            if detail := difference(name, self.follower.expected_tokens(name), found):
                raise Violation(Breach("no_read_before_fill", "wrong_rows", detail))

    # ------------------------------------------------------------------------------------------- the end

    def drain(self) -> None:
        """Give everything back, then check that nothing is owned and that a pool-sized request fits."""
        follower = self.follower
        if follower.copies:
            self.perform(Operation("complete", None, {"tickets": list(follower.copies)}))
        for name in list(follower.requests):
            self.perform(Operation("release", name, {"reason": "finish"}))
        for name in list(follower.pins):
            self.perform(Operation("unpin", None, {"name": name}))
        for holder in list(follower.holders):
            self.perform(Operation("ack", None, {"holder": holder}))
        if "records" in self.capabilities:
            self.perform(Operation("recycle"))
        if "cache" in self.capabilities:
            self.perform(Operation("evict", None, {"blocks": len(self.snapshot[BLOCKS].usable)}))
        deferred = any(ids for pool in self.snapshot.values() for ids in pool.holds.values())
        if not deferred:
            self._judge_quiescence()
        if self._fill_the_pool() is not Answer.OK and deferred:
            self._judge_quiescence()

    def _judge_quiescence(self) -> None:
        """Everything was given back, so nothing is owned (rule ``nothing_lost``)."""
        follower, before = self.follower, self.follower.facts
        follower.quiescent = True
        follower.observe(None, self.snapshot)
        self._judge(before, None)
        follower.quiescent = False
        follower.observe(None, self.snapshot)

    def _fill_the_pool(self) -> Answer:
        """Everybody has finished, so a request as large as the pool is admitted (rule ``progress``).

        A release that an implementation settles at a later call is settled by this one at the latest.
        """
        tokens = list(range(1, len(self.snapshot[BLOCKS].usable) * self.configuration.block_size + 1))
        reply: Reply = self.perform(Operation("admit", "the whole pool", {"tokens": tokens}))
        if reply.answer is Answer.OK:
            self.perform(Operation("release", "the whole pool", {"reason": "abort"}))
        return reply.answer

    def close(self) -> None:
        """Tell the target that it is no longer needed."""
        if not close(self.allocator, self.call_limit):
            self.statistics["close failed"] += 1

    @property
    def length(self) -> int:
        """Length of the run so far, as counterexamples are counted."""
        return length(self.operations)


_TELLING = (
    "reserved_ids_untouched",
    "only_owners_release",
    "nothing_lost",
    "slot_has_one_writer",
    "owned_xor_free",
    "writes_stay_home",
    "reads_keep_their_source",
    "cache_tells_the_truth",
    "no_read_before_fill",
    "table_covers_need",
    "advance_settles_once",
    "records_outlive_readers",
    "progress",
    "counts_match_owners",
)
"""One mistake often breaks several rules: the more particular one names it."""


def most_telling(breaches: list[sets.Breach]) -> sets.Breach:
    """The breach that names the mistake best; the others are reported beside it."""
    return min(breaches, key=lambda breach: _TELLING.index(breach.rule))


def difference(request: str, wanted: list[int | None], found: list[int]) -> str | None:
    """Where the rows read for a request differ from what they must hold, in words."""
    if len(found) != len(wanted):
        return f"{request} reads {len(found)} rows where {len(wanted)} are committed"
    wrong = [p for p, token in enumerate(wanted) if token is not None and token != found[p]]
    if not wrong:
        return None
    return (
        f"{request} reads {' and '.join(str(found[p]) for p in wrong[:4])} at position"
        f"{'s' if len(wrong) > 1 else ''} {', '.join(map(str, wrong[:4]))} where "
        f"{' and '.join(str(wanted[p]) for p in wrong[:4])} {'were' if len(wrong) > 1 else 'was'} expected"
    )
