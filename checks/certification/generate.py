"""One generator of legal operations, driven by anything that can make choices.

:class:`Generator` asks a :class:`Choices` object for every decision and the follower for what is
possible.  The drivers differ only in the choices: Hypothesis draws them (and shrinks them), a seeded
random source rolls them, an exhaustive driver enumerates them.

Sizes are biased to where allocators break: multiples of the block size and their neighbours, as much
as is free and one more, more than the pool can ever give.  Prompts repeat the beginnings of earlier
ones, so that a prefix cache is hit.  Every run has its own mix of operations (swarm testing): a mix
with few completions starves the copy queue, one with few releases fills the pool.

Tokens tell who wrote a row: the i-th fresh prompt counts up from ``100 + 800 * i``, as in the chapter.
Choice 0 is always the simplest one, because that is where Hypothesis shrinks to.
"""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Container, Mapping, Sequence, Set
from typing import Protocol, TypeVar

from kvproof.checks.lockstep.follow import Follower
from kvproof.checks.lockstep.operations import Operation
from kvproof.checks.lockstep.shadow import Shadow
from kvproof.model.interface import MISUSES, Configuration

T = TypeVar("T")

FIRST_TOKEN = 100
"""The first token of the first fresh prompt."""
STREAM = 800
"""Tokens from the start of one fresh prompt to the start of the next."""
MOST_RECORDS = 16
"""Output records taken and not cloned at the same time."""
REASONS = ("finish", "preempt", "abort")


class Choices(Protocol):
    """Where decisions come from."""

    def integer(self, lo: int, hi: int) -> int:
        """A whole number from ``lo`` to ``hi``, both included."""

    def pick(self, options: Sequence[T]) -> T:
        """One of the options; the first one is the simplest."""

    def chance(self, percent: int) -> bool:
        """True about ``percent`` times in a hundred; False is simpler."""


class SeededChoices:
    """Choices rolled by a seeded pseudo-random generator."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def integer(self, lo: int, hi: int) -> int:
        """See :class:`Choices`."""
        return self.random.randint(lo, hi)

    def pick(self, options: Sequence[T]) -> T:
        """See :class:`Choices`."""
        return options[self.random.randrange(len(options))]

    def chance(self, percent: int) -> bool:
        """See :class:`Choices`."""
        return self.random.randrange(100) < percent


WEIGHTS: Mapping[str, int] = {
    "admit": 16,
    "commit": 20,
    "fork": 16,
    "release": 10,
    "extend": 16,
    "complete": 8,
    "advance": 6,
    "pin": 3,
    "unpin": 3,
    "submit": 10,
    "hold": 3,
    "ack": 3,
    "evict": 2,
    "take": 2,
    "clone": 2,
    "recycle": 1,
    "probe": 1,
}
"""How often each operation is asked for, before a run's own mix; the order is the order of simplicity."""

MIX = (1, 0, 4)
"""What a run multiplies a weight with: as usual, never, often."""
ALWAYS = frozenset({"admit", "commit"})
"""Operations that no run leaves out: without them nothing happens."""


NEEDS: Mapping[str, str] = {
    "fork": "forks",
    "complete": "copies",
    "advance": "advances",
    "pin": "pins",
    "unpin": "pins",
    "submit": "steps",
    "evict": "cache",
    "hold": "holders",
    "ack": "holders",
    "take": "records",
    "clone": "records",
    "recycle": "records",
    "probe": "strict",
}
"""The capability that an operation needs; the others are the minimum."""


def offered(op: str, capabilities: Set[str]) -> bool:
    """Whether a target with these capabilities has the operation."""
    need = NEEDS.get(op)
    return need is None or need in capabilities or (op == "complete" and "steps" in capabilities)


def pending(now: Follower) -> list[int]:
    """Tickets of all queued work that can be completed, copies in queue order first."""
    return [*now.copies, *now.step_tickets]


def issuable(now: Follower) -> int:
    """How many blocks can be issued at the moment: free ones, and cached ones that nobody owns."""
    if now.facts is None:
        return now.configuration.blocks
    rows = {*now.facts.table("free").rows, *now.facts.table("cached").rows}
    return sum(isinstance(row[0], int) for row in rows)


def token_stream(index: int) -> int:
    """First token of the ``index``-th fresh prompt (0 counts from 100, 1 from 900)."""
    return FIRST_TOKEN + STREAM * index


class Generator:
    """Makes one legal operation after another for a target with these capabilities."""

    def __init__(self, choices: Choices, capabilities: Set[str], configuration: Configuration) -> None:
        self.choices = choices
        self.capabilities = capabilities
        self.configuration = configuration
        self.streams = 0
        self.names = 0
        self.prompts: list[tuple[int, ...]] = []
        """Prompts that a later one may begin like."""
        self.done: list[tuple[int, ...]] = []
        """Committed prefixes that a later prompt may begin like: these can be hit."""
        self.base: dict[str, int] = {}
        """Token that position 0 of a request's own stream has."""
        self.mix = {
            op: weight * (choices.pick(MIX) or (1 if op in ALWAYS else 0))
            for op, weight in WEIGHTS.items()
            if offered(op, capabilities)
        }
        self._makers: Mapping[str, Callable[[Follower, int], Operation | None]] = {
            "admit": self._admit,
            "extend": self._extend,
            "commit": self._commit,
            "advance": self._advance,
            "release": self._release,
            "fork": self._fork,
            "complete": self._complete,
            "submit": self._submit,
            "pin": self._pin,
            "unpin": self._unpin,
            "hold": self._hold,
            "ack": self._ack,
            "evict": self._evict,
            "take": self._take,
            "clone": self._clone,
            "recycle": self._recycle,
            "probe": self._probe,
        }

    def next(self, now: Follower) -> Operation:
        """One operation that is legal now."""
        free = issuable(now)
        possible = {op: weight for op, weight in self.mix.items() if weight and self._possible(op, now)}
        if free == 0 and "admit" in possible:
            possible["admit"] = max(1, possible["admit"] // 8)  # it will be refused: now and then is enough
        operation = None
        if possible:
            dice = self.choices.integer(0, sum(possible.values()) - 1)
            for op, weight in possible.items():
                dice -= weight
                if dice < 0:
                    operation = self._makers[op](now, free)
                    break
        if operation is None or now.illegal(operation) is not None:
            operation = self._fallback(now, free)
        return operation

    def _possible(self, op: str, now: Follower) -> bool:
        room = len(now.requests) < self.configuration.max_requests
        live = now.requests.values()
        match op:
            case "admit":
                return room
            case "evict" | "recycle":
                return True
            case "complete":
                return bool(pending(now))
            case "unpin":
                return bool(now.pins)
            case "ack":
                return bool(now.holders)
            case "clone":
                return bool(now.records)
            case "take":
                return bool(live) and len(now.records) < MOST_RECORDS
            case "fork":
                return room and any(_forkable(x) for x in live)
            case "commit":
                return any(_settles(x) for x in live)
            case "advance":
                return any(_advances(x) for x in live)
            case "extend":
                return any(_extends(x) for x in live)
        return bool(live)

    def _fallback(self, now: Follower, free: int) -> Operation:
        if len(now.requests) < self.configuration.max_requests:
            return self._admit(now, free)
        return self._release(now, free)

    # Makers, one an operation -------------------------------------------------------------------------

    def _admit(self, now: Follower, free: int) -> Operation:
        length = self._length(free)
        tokens = self._prompt(length)
        name = self._name(now)
        self.base[name] = token_stream(self.streams - 1)
        self.prompts.append(tokens)
        return Operation("admit", name, {"tokens": tokens})

    def _extend(self, now: Follower, free: int) -> Operation:
        name = self.choices.pick([n for n, x in now.requests.items() if _extends(x)])
        live, size = now.requests[name], self.configuration.block_size
        room = len(live.table) * size - live.reserved + free * size
        count = self._some((1, 1, 1, 1, 2, 0, size, size + 1, max(0, room + 1)), free * size + size)
        drafts = 0
        if "drafts" in self.capabilities and not live.steps:
            drafts = self._some((0, 0, 0, 1, 2, size, size + 1), 2 * size)
        least = max(live.unnamed, 0 if drafts else 1)
        if free == 0 and count + drafts > room and self.choices.chance(75):  # most refusals teach nothing new
            drafts, least = 0, max(live.unnamed, 1)
            count = min(count, room)
        count = max(count, least)
        return Operation("extend", name, {"tokens": self._more(name, live.tokens, count), "drafts": drafts})

    def _commit(self, now: Follower, free: int) -> Operation:
        del free
        name = self.choices.pick([n for n, x in now.requests.items() if _settles(x)])
        live = now.requests[name]
        least, most = live.committed, live.committed + (live.optimistic or live.in_flight)
        history = min(max(least, len(live.tokens)), most)
        rows = self.choices.pick((history, most, self.choices.integer(least, most), self._near_block(least, most)))
        if rows >= self.configuration.block_size:
            self.done.append(tuple(live.tokens[:rows]))
        return Operation("commit", name, {"rows": rows})

    def _advance(self, now: Follower, free: int) -> Operation:
        del free
        name = self.choices.pick([n for n, x in now.requests.items() if _advances(x)])
        return Operation("advance", name, {"rows": self.choices.integer(1, now.requests[name].in_flight)})

    def _release(self, now: Follower, free: int) -> Operation:
        del free
        name = self._live(now)
        return Operation("release", name, {"reason": self.choices.pick(REASONS)})

    def _fork(self, now: Follower, free: int) -> Operation:
        del free
        parent = self.choices.pick([n for n, x in now.requests.items() if _forkable(x)])
        most = now.requests[parent].committed
        rows = most
        if "slots" not in self.capabilities:  # a state slot holds the state after the committed positions only
            rows = self.choices.pick((most, self._near_block(1, most), self.choices.integer(1, most)))
        return Operation("fork", parent, {"child": self._name(now), "rows": rows})

    def _complete(self, now: Follower, free: int) -> Operation:
        del free
        tickets = pending(now)
        count = self.choices.pick((1, len(tickets), self.choices.integer(1, len(tickets))))
        return Operation("complete", None, {"tickets": tuple(tickets[:count])})

    def _submit(self, now: Follower, free: int) -> Operation:
        del free
        return Operation("submit", self._live(now), {})

    def _pin(self, now: Follower, free: int) -> Operation:
        del free
        return Operation("pin", self._live(now), {"name": _fresh("p", now.pins)})

    def _unpin(self, now: Follower, free: int) -> Operation:
        del free
        return Operation("unpin", None, {"name": self.choices.pick(sorted(now.pins))})

    def _hold(self, now: Follower, free: int) -> Operation:
        del free
        return Operation("hold", self._live(now), {"holder": _fresh("h", now.holders)})

    def _ack(self, now: Follower, free: int) -> Operation:
        del free
        return Operation("ack", None, {"holder": self.choices.pick(sorted(now.holders))})

    def _evict(self, now: Follower, free: int) -> Operation:
        del now, free
        return Operation("evict", None, {"blocks": self.choices.pick((1, 2, self.configuration.blocks))})

    def _take(self, now: Follower, free: int) -> Operation:
        del free
        return Operation("take", self._live(now), {"value": self.choices.integer(0, 99)})

    def _clone(self, now: Follower, free: int) -> Operation:
        del free
        return Operation("clone", None, {"address": self.choices.pick(sorted(now.records))})

    def _recycle(self, now: Follower, free: int) -> Operation:
        del now, free
        return Operation("recycle", None, {})

    def _probe(self, now: Follower, free: int) -> Operation:
        del free
        return Operation("probe", self._live(now), {"misuse": self.choices.pick(MISUSES)})

    # Parts --------------------------------------------------------------------------------------------

    def _live(self, now: Follower) -> str:
        return self.choices.pick(list(now.requests))

    def _name(self, now: Follower) -> str:
        """A new name; now and then one that was used before."""
        if self.names and self.choices.chance(10):
            old = name_of(self.choices.integer(0, self.names - 1))
            if old not in now.requests:
                self.base.pop(old, None)
                return old
        self.names += 1
        return name_of(self.names - 1)

    def _some(self, usual: Sequence[int], most: int) -> int:
        """One of the usual numbers, or anything up to ``most``."""
        index = self.choices.integer(0, len(usual))
        return usual[index] if index < len(usual) else self.choices.integer(0, most)

    def _length(self, free: int) -> int:
        """A prompt length; the simplest is two blocks and a half, as in the chapter."""
        size, usable = self.configuration.block_size, self.configuration.blocks
        usual = min(2 * size + size // 2, usable * size)
        issuable = max(1, free * size)
        match self.choices.integer(0, 11):
            case 0 | 1:
                return usual
            case 2:
                return size
            case 3:
                return size + 1
            case 4:
                return max(1, size - 1)
            case 5:
                return 2 * size
            case 6:
                return issuable
            case 7:
                return issuable + 1
            case 8:
                return usable * size + self.choices.pick((1, 0, size))
            case 9:
                return self.choices.integer(1, usable * size)
        return self.choices.integer(1, usual)

    def _prompt(self, length: int) -> tuple[int, ...]:
        """A fresh prompt, or one that begins like an earlier one."""
        base = token_stream(self.streams)
        self.streams += 1
        shared: tuple[int, ...] = ()
        if self.prompts and self.choices.chance(45):
            known = self.done if self.done and self.choices.chance(75) else self.prompts
            earlier = known[-1 - self.choices.integer(0, min(7, len(known) - 1))]
            size = self.configuration.block_size
            whole = self.choices.chance(60)
            keep = len(earlier) if whole else self.choices.integer(0, len(earlier))
            if not whole and self.choices.chance(60):
                keep -= keep % size
            shared = earlier[: min(keep, length)]
            if "cache" in self.capabilities and len(earlier) > size and self.choices.chance(20):
                # The same blocks behind another first one: a content key that forgets the prefix would be hit.
                return (*range(base, base + size), *earlier[size:])
        return (*shared, *range(base + len(shared), base + length))

    def _more(self, name: str, tokens: Sequence[int], count: int) -> tuple[int, ...]:
        """The next tokens of a request: its own stream goes on; a forked child starts one of its own."""
        if name not in self.base:
            self.base[name] = token_stream(self.streams)
            self.streams += 1
        start = self.base[name] + len(tokens)
        return tuple(range(start, start + count))

    def _near_block(self, least: int, most: int) -> int:
        """A number of rows next to a block boundary, if there is one in the range."""
        size = self.configuration.block_size
        boundary = self.choices.integer(least // size, most // size) * size
        return min(max(boundary + self.choices.pick((0, 1, -1)), least), most)


def _extends(live: Shadow) -> bool:
    """Drafts must be verified before more positions are reserved."""
    return all(step.end <= len(live.tokens) for step in live.steps)


def _settles(live: Shadow) -> bool:
    return bool(live.optimistic or live.in_flight)


def _advances(live: Shadow) -> bool:
    return not live.optimistic and live.in_flight > 0


def _forkable(live: Shadow) -> bool:
    return live.committed > 0 and not live.optimistic and not live.unnamed


def name_of(index: int) -> str:
    """The ``index``-th request name: A, B, ..., Z, r26, r27, ..."""
    return string.ascii_uppercase[index] if index < 26 else f"r{index}"


def _fresh(prefix: str, taken: Container[str]) -> str:
    index = 1
    while f"{prefix}{index}" in taken:
        index += 1
    return f"{prefix}{index}"
