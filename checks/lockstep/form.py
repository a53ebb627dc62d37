"""The form of what a target returns: is it an answer, is it a snapshot?  What is not cannot be judged.

Every function returns the problem in one sentence, or None.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence, Set

from kvproof.checks.lockstep.calls import shown
from kvproof.checks.lockstep.operations import Operation
from kvproof.model.interface import BLOCKS, RECORDS, SLOTS, Answer, Configuration, Copy, Pool, Reply, Snapshot

POOLS = (BLOCKS, SLOTS, RECORDS)
MOST_IDS = 1 << 20
"""Ids that one pool may have: more would only exhaust this process."""


def whole(value: object, least: int = 0) -> bool:
    """A whole number (no bool) of at least ``least``."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def frozen(pool: Pool) -> Pool:
    """The observation, safe from later changes by the target."""
    return Pool(
        usable=frozenset(pool.usable),
        free=tuple(pool.free),
        tables={name: tuple(table) for name, table in pool.tables.items()},
        reserved=frozenset(pool.reserved),
        evictable=frozenset(pool.evictable),
        holds={name: tuple(ids) for name, ids in pool.holds.items()},
        counts=None if pool.counts is None else dict(pool.counts),
        keys=None if pool.keys is None else dict(pool.keys),
        committed=None if pool.committed is None else dict(pool.committed),
        queued=None if pool.queued is None else tuple(pool.queued),
    )


def snapshot_problem(snapshot: object) -> str | None:
    """What is wrong with the form of a snapshot."""
    if not isinstance(snapshot, Mapping):
        return f"snapshot() returned a {type(snapshot).__name__}: a mapping from pool names to Pool belongs there"
    if BLOCKS not in snapshot:
        return f"snapshot() has pools {sorted(map(str, snapshot))}: {BLOCKS!r} is missing"
    for name, pool in snapshot.items():
        if name not in POOLS:
            return f"snapshot() has a pool {shown(name)}: known are {', '.join(POOLS)}"
        if not isinstance(pool, Pool):
            return f"snapshot()[{name!r}] is a {type(pool).__name__}: a kvproof.model.interface.Pool belongs there"
        for problem in _pool_problems(pool):
            return f"snapshot()[{name!r}].{problem}"
    return None


def _pool_problems(pool: Pool) -> Iterator[str]:
    for what, ids, kind in (
        ("usable", pool.usable, Set),
        ("free", pool.free, Sequence),
        ("reserved", pool.reserved, Set),
        ("evictable", pool.evictable, Set),
        ("queued", () if pool.queued is None else pool.queued, Sequence),
    ):
        if not isinstance(ids, kind) or isinstance(ids, str) or len(ids) > MOST_IDS or not all(map(whole, ids)):
            form = "set" if kind is Set else "sequence"
            yield f"{what} is {shown(ids)}: a {form} of at most {MOST_IDS} whole numbers belongs there"
    if both := sorted(frozenset(pool.usable) & frozenset(pool.reserved)):
        yield f"usable and reserved share the ids {both[:5]}: a reserved id is never owned"
    for what, owners in (("tables", pool.tables), ("holds", pool.holds)):
        if not isinstance(owners, Mapping):
            yield f"{what} is {shown(owners)}: a mapping from owners to their ids belongs there"
            return
        for owner, ids in owners.items():
            if what == "tables" and not isinstance(owner, str):
                yield f"tables has an owner {shown(owner)}: the name of a request belongs there"
            if not isinstance(ids, Sequence) or isinstance(ids, str) or not all(map(whole, ids)):
                yield f"{what} gives {owner!r} the ids {shown(ids)}: a sequence of whole numbers belongs there"
    for what, numbers, key, least in (
        ("counts", pool.counts, int, None),
        ("committed", pool.committed, str, 0),
    ):
        if numbers is None:
            continue
        if not isinstance(numbers, Mapping):
            yield f"{what} is {shown(numbers)}: a mapping to whole numbers belongs there"
        elif any(not isinstance(k, key) or not _number(n, least) for k, n in numbers.items()):
            yield f"{what} is {shown(numbers)}: {key.__name__} keys and whole numbers belong there"
    keys = pool.keys
    if keys is not None and (
        not isinstance(keys, Mapping) or any(not whole(b) or not isinstance(k, Hashable) for b, k in keys.items())
    ):
        yield f"keys is {shown(keys)}: a mapping from ids to content keys belongs there"


def reply_problem(operation: Operation, reply: object, snapshot: Snapshot, configuration: Configuration) -> str | None:
    """What is wrong with the form of an answer; ``snapshot``: the pools before it."""
    if type(reply) is not Reply:  # a subclass could compare or print itself in ways of its own
        return f"it returned {shown(reply)}: a kvproof.model.interface.Reply belongs there"
    if not isinstance(reply.answer, Answer):
        return f"Reply.answer is {shown(reply.answer)}: an Answer belongs there"
    if not whole(reply.hit_rows):
        return f"Reply.hit_rows is {shown(reply.hit_rows)}: a number of rows belongs there"
    if operation.op == "admit" and reply.hit_rows > len(operation.args["tokens"]):
        return f"Reply.hit_rows is {reply.hit_rows}, more than the {len(operation.args['tokens'])} tokens of the prompt"
    if reply.answer is not Answer.OK and (reply.hit_rows or reply.copies):
        return f"the answer is {reply.answer.name}, yet it reports hit rows or copies: a refusal changes nothing"
    if operation.op == "fork" and reply.hit_rows > operation.args["rows"]:
        return f"Reply.hit_rows is {reply.hit_rows}, more than the {operation.args['rows']} rows of the fork"
    for what, values in (("copies", reply.copies), ("evicted", reply.evicted or ())):
        if not isinstance(values, Sequence) or isinstance(values, str):
            return f"Reply.{what} is {shown(values)}: a tuple belongs there"
    if not all(map(whole, reply.evicted or ())):
        return f"Reply.evicted is {shown(reply.evicted)}: whole numbers belong there"
    for copy in reply.copies:
        if problem := _copy_problem(copy, snapshot, configuration.block_size):
            return problem
    return None


def _copy_problem(copy: object, snapshot: Snapshot, block_size: int) -> str | None:
    if not isinstance(copy, Copy):
        return f"Reply.copies holds {shown(copy)}: Copy objects belong there"
    if not isinstance(copy.pool, str) or copy.pool not in snapshot:
        return f"a Copy names the pool {shown(copy.pool)}: known are {sorted(snapshot)}"
    for what in ("source", "destination", "rows", "ticket"):
        if not whole(getattr(copy, what)):
            return f"Copy.{what} is {shown(getattr(copy, what))}: a whole number of at least 0 belongs there"
    if copy.rows > block_size:
        return f"{copy} copies {copy.rows} rows of a block of {block_size}"
    return None


def _number(value: object, least: int | None) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and (least is None or value >= least)
