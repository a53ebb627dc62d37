"""A scheduler that drives a target with a workload: arrivals, growth token by token, finishes.

One *tick* is one step of an engine: requests arrive, the head of the queue is admitted as long as the
answer is OK, every running request computes (its prompt first, in chunks now and then, then token by
token, with drafts where the target takes them), and requests that are done finish.  A request that cannot
grow makes room by preempting another; a preempted one is admitted again with all its tokens.  Seeded
dice abort requests, fork them, pin them, and let external holders read them.  Copies are observed some
ticks later, now and then much later.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from kvproof.checks.certification.generate import MOST_RECORDS
from kvproof.checks.certification.workload import WorkRequest
from kvproof.checks.lockstep.harness import Lockstep
from kvproof.checks.lockstep.operations import Operation
from kvproof.model.interface import Answer, Reply

FORK_PERCENT = 3
ABORT_PERCENT = 1
CHUNK_PERCENT = 20
DRAFT_PERCENT = 30
HOLD_PERCENT = 2
STARVE_PERCENT = 5
"""Chances a tick or a request; every one of them is rolled from the seed."""
LAG = 4
"""Ticks until a copy is observed, at most, unless it is starved."""
STARVED = 40
"""Ticks until a starved copy is observed."""
PATIENCE = 60
"""Ticks that the head of the queue waits while nothing else runs before it is given up."""


@dataclass
class _Job:
    """One request of the workload on its way: what is left to decode."""

    name: str
    tokens: list[int]
    left: int
    next_token: int
    prompt_done: bool = False


@dataclass
class Driven:
    """What a workload run came to."""

    rows: int = 0
    """Workload rows that were finished, aborted or refused for good."""
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, what: str, by: int = 1) -> None:
        """Count an event."""
        self.counts[what] = self.counts.get(what, 0) + by


class Driver:
    """Runs a workload on a :class:`Lockstep`; every operation is checked there."""

    def __init__(
        self,
        lockstep: Lockstep,
        seed: int,
        *,
        perform: Callable[[Operation], Reply | Any] | None = None,
        over: Callable[[], bool] = lambda: False,
    ) -> None:
        self.lockstep = lockstep
        self.follower = lockstep.follower
        self.capabilities = lockstep.capabilities
        self.most = lockstep.configuration.max_requests
        self.size = lockstep.configuration.block_size
        self.room = lockstep.configuration.blocks * self.size
        self.dice = random.Random(seed)
        self.driven = Driven()
        self.over = over
        self.waiting: deque[_Job] = deque()
        self.running: dict[str, _Job] = {}
        self._perform = perform or lockstep.perform
        self._due: dict[int, int] = {}
        self._tick = 0
        self._idle = 0
        self._blocked = False
        self._forks = 0

    def run(self, workload: Iterable[WorkRequest]) -> Driven:
        """Drive the rows one by one in arrival order; stops early when ``over()`` says so."""
        for row in workload:
            self.waiting.append(_Job(row.name, list(row.prompt), row.output, 1))
            while len(self.waiting) > 2 and not self.over():
                self.tick()
            if self.over():
                return self.driven
        while (self.waiting or self.running) and not self.over():
            self.tick()
        return self.driven

    def tick(self) -> None:
        """One step of the engine."""
        self._tick += 1
        self._admit()
        for name in list(self.running):
            if name in self.running:
                self._compute(self.running[name])
        self._extras()
        self._complete()

    # Admission ----------------------------------------------------------------------------------------

    def _admit(self) -> None:
        while self.waiting and len(self.running) < self.most and not (self._blocked and self.running):
            job = self.waiting[0]
            reply = self._perform(Operation("admit", job.name, {"tokens": tuple(job.tokens)}))
            if reply.answer is Answer.OK:
                self._blocked = False
                self._idle = 0
                self.waiting.popleft()
                job.prompt_done = False
                self.running[job.name] = job
                self.driven.add("hit admissions" if reply.hit_rows else "fresh admissions")
                continue
            # A target without NEVER says LATER to what cannot ever fit: do not wait for it.
            hopeless = reply.answer is Answer.NEVER or len(job.tokens) > self.room
            self._idle = 0 if self.running or self.follower.copies else self._idle + 1
            if hopeless or self._idle > PATIENCE:
                self.waiting.popleft()
                self._over("refused for good")
                continue
            self._blocked = True
            self.driven.add("waits")
            return

    # Computing ----------------------------------------------------------------------------------------

    def _compute(self, job: _Job) -> None:
        shadow = self.follower.requests[job.name]
        if not job.prompt_done:
            self._prompt(job)
            return
        if self._roll(ABORT_PERCENT):
            self._leave(job, "abort")
            self._over("aborted")
            return
        if job.left <= 0:
            self._leave(job, "finish")
            self._over("finished")
            return
        drafts = 0
        if "drafts" in self.capabilities and self._roll(DRAFT_PERCENT):
            drafts = self.dice.randint(1, 3)
        count = shadow.unnamed + 1  # accepted drafts are named, and one token was sampled behind them
        if not self._grow(job, count, drafts):
            return
        job.left -= count
        end = len(shadow.tokens)
        accepted = self.dice.randint(0, shadow.drafts)  # there may be fewer drafts than wanted
        if "advances" in self.capabilities and shadow.in_flight and self._roll(50):
            self._perform(Operation("advance", job.name, {"rows": shadow.in_flight}))
        self._perform(Operation("commit", job.name, {"rows": end + accepted}))

    def _prompt(self, job: _Job) -> None:
        shadow = self.follower.requests[job.name]
        end = len(shadow.tokens)
        if end - shadow.committed > self.size and self._roll(CHUNK_PERCENT):
            middle = self.dice.randint(shadow.committed + 1, end - 1)
            self._perform(Operation("commit", job.name, {"rows": middle}))
            self.driven.add("chunks")
            return
        self._perform(Operation("commit", job.name, {"rows": end}))
        job.prompt_done = True

    def _grow(self, job: _Job, count: int, drafts: int) -> bool:
        """Reserve the next positions; preempt others as long as that is needed and possible."""
        while True:
            tokens = tuple(self._token(job) for _ in range(count))
            reply = self._perform(Operation("extend", job.name, {"tokens": tokens, "drafts": drafts}))
            if reply.answer is Answer.OK:
                job.tokens += tokens
                return True
            job.next_token -= count
            if drafts:
                drafts = 0
                continue
            victims = [other for other in self.running.values() if other is not job]
            if not victims:
                if self.follower.copies:
                    self._complete(everything=True)
                    continue
                # Alone and still too long: it can never go on.
                self._leave(job, "abort")
                self._over("outgrown")
                return False
            victim = max(victims, key=lambda other: len(other.tokens) - other.left)
            self._preempt(victim)

    def _preempt(self, job: _Job) -> None:
        self._leave(job, "preempt")
        self.driven.add("preemptions")
        self.waiting.appendleft(job)

    def _token(self, job: _Job) -> int:
        """The next output token, of this request only; the same again after a refusal."""
        job.next_token += 1
        value = job.next_token * 1_000_003 + len(job.tokens)
        for letter in job.name:
            value = (value * 131 + ord(letter)) % (2**61 - 1)
        return 1 + value % (2**31 - 1)

    # Leaving ------------------------------------------------------------------------------------------

    def _leave(self, job: _Job, reason: str) -> None:
        self._perform(Operation("release", job.name, {"reason": reason}))
        del self.running[job.name]
        self._blocked = False

    def _over(self, how: str) -> None:
        self.driven.rows += 1
        self.driven.add(how)

    # Everything that is not plain serving ---------------------------------------------------------------

    def _extras(self) -> None:
        if "forks" in self.capabilities and self._roll(FORK_PERCENT * 3):
            self._fork()
        if "pins" in self.capabilities:
            self._owner("pin", "unpin", "name", sorted(self.follower.pins))
        if "holders" in self.capabilities:
            self._owner("hold", "ack", "holder", sorted(self.follower.holders))
        if "records" in self.capabilities and self.running and self._roll(10):
            self._records()
        if "cache" in self.capabilities and self._roll(1):
            self._perform(Operation("evict", None, {"blocks": self.dice.randint(1, 4)}))
            self._blocked = False

    def _fork(self) -> None:
        ready = [job for job in self.running.values() if self._forkable(job)]
        if not ready or len(self.running) >= self.most:
            return
        job = self.dice.choice(ready)
        committed = self.follower.requests[job.name].committed
        rows = committed if "slots" in self.capabilities or self._roll(50) else self.dice.randint(1, committed)
        self._forks += 1
        child = f"{job.name}.fork{self._forks}"
        fork = Operation("fork", job.name, {"child": child, "rows": rows})
        if self.follower.illegal(fork):
            return
        reply = self._perform(fork)
        if reply.answer is Answer.OK:
            tokens = list(self.follower.requests[child].tokens)
            self.running[child] = _Job(child, tokens, self.dice.randint(0, self.size), 1, prompt_done=True)
            self.driven.rows -= 1  # a fork is no row of the workload; it is counted when it leaves
            self.driven.add("forks")

    def _forkable(self, job: _Job) -> bool:
        shadow = self.follower.requests[job.name]
        return job.prompt_done and shadow.committed > 0 and not shadow.unnamed and not shadow.optimistic

    def _owner(self, take: str, give: str, key: str, names: list[str]) -> None:
        if names and self._roll(15):
            self._perform(Operation(give, None, {key: self.dice.choice(names)}))
            self._blocked = False
        elif self.running and len(names) < 2 and self._roll(HOLD_PERCENT):
            name = f"{take}{self._tick}"
            self._perform(Operation(take, self.dice.choice(sorted(self.running)), {key: name}))

    def _records(self) -> None:
        if len(self.follower.records) < MOST_RECORDS // 2:
            self._perform(Operation("take", self.dice.choice(sorted(self.running)), {"value": self._tick}))
        if self._roll(70):
            for address in sorted(self.follower.records):
                self._perform(Operation("clone", None, {"address": address}))
        if self._roll(30):
            self._perform(Operation("recycle", None, {}))

    def _complete(self, *, everything: bool = False) -> None:
        """Observe the copies that are due, in queue order."""
        queued = list(self.follower.copies)
        for ticket in queued:
            if ticket not in self._due:
                wait = STARVED if self._roll(STARVE_PERCENT) else self.dice.randint(0, LAG)
                self._due[ticket] = self._tick + wait
        ready = []
        for ticket in queued:
            if not everything and self._due[ticket] > self._tick:
                break
            ready.append(ticket)
        if ready:
            self._perform(Operation("complete", None, {"tickets": tuple(ready)}))
            for ticket in ready:
                self._due.pop(ticket, None)
            self._blocked = False

    def _roll(self, percent: int) -> bool:
        return self.dice.randrange(100) < percent
