"""DeepInfer's scheduling passes over the engine: who is admitted, who grows, who is preempted, and when things go back.

One call of :meth:`Scheduler.step` is one engine step.  With ``overlap`` the step is planned while
the one before it still runs, so its result is seen one call later (zero-overhead scheduling).  The
order of events inside a step is the one that makes early releases safe or unsafe: plan, queue the
copies, queue the forward pass, see the result of the step before, release the sources of the
copies, give back what ended.

Left out: data-parallel votes, structured output, multimodal inputs, checkpoints inside a prompt.

One deviation: DeepInfer releases nothing for a request that ended while it waited, although a partly
processed prompt and an unadmitted fork own storage.  Here it is released; ``leaks_ignored`` restores
the original.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from .engine import Engine
from .errors import ForkBeyondCommitted, Misuse
from .interface import Answer
from .request import Request

OK, NEVER = Answer.OK, Answer.NEVER


class Status(enum.Enum):
    """Where a sequence is in its life; everything but the first two has ended."""

    WAITING = "waiting"
    RUNNING = "running"
    LENGTH_CAPPED = "reached its length"
    ABORTED = "aborted"
    IGNORED = "can never be served"


@dataclass(eq=False)
class Sequence:
    """What the scheduler keeps of a request besides its storage; it outlives preemption.

    ``length`` is the whole history, prompt and outputs.  ``fork``: a child that still shares
    everything with its parent and must not run yet.
    """

    name: str
    prompt: int
    most_outputs: int
    length: int = field(init=False)
    status: Status = Status.WAITING
    fork: bool = False
    draft_slot: int = 0

    def __post_init__(self) -> None:
        self.length = self.prompt

    @property
    def outputs(self) -> int:
        """Tokens generated so far."""
        return self.length - self.prompt

    @property
    def ended(self) -> bool:
        """Whether it will not be scheduled any more."""
        return self.status not in (Status.WAITING, Status.RUNNING)


@dataclass
class Step:
    """One planned step: for each sequence the number of positions it evaluates."""

    prompt: bool
    queries: list[tuple[Sequence, int]]
    finished: list[Sequence]


class OneBlockIsNotEnough(Misuse):
    """A step added more positions than one block holds, so one block a step cannot cover them."""

    rule = "table_covers_need"

    def __init__(self, name: str, missing: int) -> None:
        super().__init__(f"request {name!r}", f"it lacks {missing} blocks", "add at most a block of positions a step")


class Scheduler:
    """Queues, passes and steps.

    ``max_requests`` running at once; ``drafts`` the draft width D; ``budget`` positions of one prompt
    step; ``max_length`` longest history; ``prompt_every``: decode steps between two looks at the
    waiting queue.  ``accept(name)`` says how many of the D drafts a verification accepts.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        max_requests: int,
        drafts: int = 0,
        budget: int = 2**30,
        max_length: int = 2**30,
        overlap: bool = True,
        prompt_every: int = 1,
        leaks_ignored: bool = False,
        accept: Callable[[str], int] = lambda _: 0,
    ) -> None:
        self.engine = engine
        self.max_requests = max_requests
        self.drafts = drafts
        self.budget = budget
        self.max_length = max_length
        self.overlap = overlap
        self.prompt_every = prompt_every
        self.leaks_ignored = leaks_ignored
        self.accept = accept
        self.waiting: deque[Sequence] = deque()
        self.prompted: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.ignored: list[Sequence] = []
        self.draft_slots = list(range(max_requests, 0, -1))
        self.decode_steps = 0
        self.preemptions = 0
        self._before: Step | None = None
        """The step whose result the host has not seen."""
        self._last_inflight: dict[str, int] = {}

    # What callers do ------------------------------------------------------------------------------

    def add(self, name: str, prompt: int, most_outputs: int) -> Sequence:
        """A new request joins the waiting queue."""
        sequence = Sequence(name, prompt, most_outputs)
        self.waiting.append(sequence)
        return sequence

    def abort(self, sequence: Sequence) -> None:
        """Mark it; nothing is released before the pass that finds the mark."""
        if not sequence.ended:
            sequence.status = Status.ABORTED

    def fork(self, parent: Sequence, name: str, most_outputs: int) -> Sequence:
        """A child that shares everything, slot included, until it is admitted."""
        owner = self.engine.request(parent.name)
        child = Sequence(name, parent.length, most_outputs, fork=True)
        rows = min(owner.num_tokens, parent.length - 1)
        if rows < 1:
            raise ForkBeyondCommitted(parent.name, rows, owner.num_tokens)
        self.engine.share(parent.name, name, rows, parent.length)
        if owner.num_tokens < parent.length - 1:
            self.waiting.appendleft(child)
        else:
            self.prompted.append(child)
        return child

    # One engine step ------------------------------------------------------------------------------

    def step(self) -> Step:
        """Plan a step, queue it, see the result of the one before, and give back what ended."""
        step = self._plan()
        copies = [ticket for ticket, copy in self.engine.copies.items() if not copy.submitted]
        for ticket in copies:
            self.engine.submit(ticket)
        if self._before is not None:
            self._process(self._before)
            self._before = None
        for ticket in copies:  # deferred release: the host waits for the copies' event here
            self.engine.complete(ticket)
        self.engine.collect(copies)
        for sequence in step.finished:
            self._release(sequence)
        if step.prompt or not self.overlap:
            self._process(step)
        elif step.queries:
            self._before = step
        return step

    def idle(self) -> bool:
        """Nothing is queued, running or in flight."""
        return not (self.waiting or self.prompted or self.running or self._before)

    # Planning -------------------------------------------------------------------------------------

    def _plan(self) -> Step:
        blocks = self.engine.blocks
        if self.decode_steps % self.prompt_every == 0 and self.waiting:
            used = (blocks.usable + 1 - len(blocks)) / (blocks.usable + 1)
            step = self._prompt_pass() if used <= 0.9 else None
            if step is not None and step.queries:
                self.decode_steps = 0
                return step
        self.decode_steps += 1
        return self._decode_pass()

    def _prompt_pass(self) -> Step:
        """Admit from the head of the waiting queue; whatever stops at the head stops all behind it."""
        step = Step(True, [], [])
        left = self.budget
        while self.waiting:
            head = self.waiting[0]
            if head.ended:
                self._ignore(self.waiting.popleft())
                continue
            answer = self._admit_prompt(head, len(self.running) + len(step.queries), left)
            if answer is NEVER:
                head.status = Status.IGNORED
                self._ignore(self.waiting.popleft())
                continue
            if answer is not OK:
                break
            request = self.engine.requests[head.name]
            queries = min(left, head.length - request.num_tokens)
            left -= queries
            self._schedule(step, head, queries)
            self.waiting.popleft()
            if request.num_tokens + queries < head.length:
                break  # at most one partial prompt in a step, and it is the last one
            self._run(head)
        return step

    def _admit_prompt(self, head: Sequence, running: int, left: int) -> Answer:
        """Reserve for the whole history, at the first chunk.  A partial prompt owns its blocks already."""
        if head.length > self.max_length:
            return NEVER
        if running + 1 > self.max_requests or not left:
            return Answer.LATER
        if head.fork:
            return self._admit_fork_on_prompt_path(head)
        return OK if head.name in self.engine.requests else self.engine.admit(head.name, head.length)

    def _admit_fork_on_prompt_path(self, head: Sequence) -> Answer:
        request, engine = self.engine.requests[head.name], self.engine
        need = request.need(engine.block_size) - request.num_tokens // engine.block_size
        answer = engine.blocks.answer(need)
        if answer is OK and engine.slots is not None:
            answer = engine.slots.answer(1)
        if answer is OK:
            engine.separate(head.name, "prompt")
            head.fork = False
        return answer

    def _decode_pass(self) -> Step:
        """Collect what ended, admit forks, then give every running table what its next step needs."""
        step = Step(False, [], [sequence for sequence in self.running if sequence.ended])
        self.running = [sequence for sequence in self.running if not sequence.ended]
        for sequence in step.finished:
            self._free_draft_slot(sequence)
        for sequence in [sequence for sequence in self.waiting if sequence.ended]:
            self.waiting.remove(sequence)
            self._ignore(sequence)
        self._admit_forks(step)

        # Longest output first: the front is preempted, the back is served.
        candidates = deque(sorted(self.running, key=lambda sequence: -sequence.outputs))
        self.running = []
        while candidates:
            sequence = candidates.pop()
            while not len(self.engine.blocks) and candidates:
                self._preempt(candidates.popleft())
            # A free block is demanded even of those that need not grow.
            if len(self.engine.blocks):
                self._grow(sequence)
                self.running.append(sequence)
                self._schedule(step, sequence, 1 + self.engine.requests[sequence.name].drafts)
            else:
                self._preempt(sequence)
        return step

    def _admit_forks(self, step: Step) -> None:
        engine = self.engine
        while self.prompted and len(self.running) < self.max_requests:
            head = self.prompted[0]
            if head.ended:
                step.finished.append(self.prompted.popleft())
                continue
            if not len(engine.blocks) or (engine.slots is not None and not len(engine.slots)):
                return
            engine.separate(head.name, "decode")
            engine.requests[head.name].drafts = self.drafts
            head.fork = False
            self._run(self.prompted.popleft())
            self.running.append(head)

    def _grow(self, sequence: Sequence) -> None:
        """At most one block, or the surplus back (chapter, 4.3.4)."""
        request = self.engine.requests[sequence.name]
        missing = request.need(self.engine.block_size) - len(request.table)
        if missing > 1:
            raise OneBlockIsNotEnough(sequence.name, missing)
        self.engine.resize(sequence.name)

    def _preempt(self, sequence: Sequence) -> None:
        """Give back everything at once, also while a step is in flight, and start again from the history."""
        self.preemptions += 1
        self._release(sequence)
        sequence.status = Status.WAITING
        self.waiting.appendleft(sequence)

    def _schedule(self, step: Step, sequence: Sequence, queries: int) -> None:
        """Count D + 1 positions in flight, whatever the step really evaluates."""
        step.queries.append((sequence, queries))
        self.engine.requests[sequence.name].inflight += self.drafts + 1
        self._last_inflight[sequence.name] = self.drafts + 1

    # Seeing results -------------------------------------------------------------------------------

    def _process(self, step: Step) -> None:
        for sequence, queries in step.queries:
            request = self.engine.requests.get(sequence.name)
            if request is None:
                continue  # preempted meanwhile: the outputs of that step are discarded
            last = self._last_inflight[sequence.name]
            request.inflight = 0 if request.inflight == last else last
            if sequence.ended:
                self._free_draft_slot(sequence)
                if step.prompt:
                    self.running.append(sequence)  # so that the next decode pass collects it
                continue
            self._count(step, sequence, request, queries)

    def _count(self, step: Step, sequence: Sequence, request: Request, queries: int) -> None:
        """Advance by all positions evaluated; then a decode step is corrected to what was accepted."""
        request.advance(queries)
        if step.prompt and request.num_tokens < sequence.length:
            request.commit(queries)
            self.waiting.appendleft(sequence)
            return
        accepted = 0 if step.prompt else min(self.accept(sequence.name), queries - 1)
        room = min(sequence.most_outputs - sequence.outputs, self.max_length + 1 - sequence.length)
        appended = min(accepted + 1, room)
        sequence.length += appended
        request.length += appended
        request.commit(queries if step.prompt else appended)
        request.drafts = self.drafts
        if step.prompt:
            self.running.append(sequence)
        if appended == room:
            sequence.status = Status.LENGTH_CAPPED
            self._free_draft_slot(sequence)

    # Private --------------------------------------------------------------------------------------

    def _run(self, sequence: Sequence) -> None:
        sequence.status = Status.RUNNING
        sequence.draft_slot = self.draft_slots.pop()

    def _ignore(self, sequence: Sequence) -> None:
        """It ended while it waited; nobody else will give back what it owns."""
        self.ignored.append(sequence)
        if sequence.name in self.engine.requests and not self.leaks_ignored:
            self.engine.release(sequence.name)

    def _release(self, sequence: Sequence) -> None:
        self._free_draft_slot(sequence)
        self.engine.release(sequence.name)

    def _free_draft_slot(self, sequence: Sequence) -> None:
        if sequence.draft_slot:
            self.draft_slots.append(sequence.draft_slot)
            sequence.draft_slot = 0
