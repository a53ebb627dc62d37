"""The GPU backend: the common interface over real tensors, streams and events.

Ownership is decided by the model's own :class:`~kvproof.model.engine.Engine`; this class speaks the
verbs of :mod:`kvproof.model.interface`, and lets a :class:`~kvproof.gpu.worker.Worker` queue what the
engine decided on a device.  So the host side is the proved one, and what is new here is *order*:
copies, loads and steps that run later, on several streams.

    >>> allocator = make_gpu(Configuration(blocks=7, block_size=4))
    >>> allocator.admit("A", range(100, 110)).answer
    <Answer.OK: 'ok'>
    >>> allocator.commit("A", 10)
    >>> allocator.fork("A", "B", 10).copies
    (Copy(source=3, destination=4, rows=2, ticket=1, pool='blocks'),)
    >>> allocator.read("B") == list(range(100, 110))
    True

Two release disciplines are declared, and meant: with ``release_rule="event"`` the source of a copy
is released after the host observed the copy; with ``"stream"`` at once, and ``compute``, which every
later writer is behind, is put behind the copy.  Requests that leave are always stream-ordered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kvproof.model.cache import content_keys
from kvproof.model.engine import Engine, ForkPath, QueuedCopy
from kvproof.model.errors import Misuse, StaleRecord, UnknownTicket
from kvproof.model.interface import (
    BLOCKS,
    MISUSES,
    Answer,
    Configuration,
    Declaration,
    Destination,
    Pool,
    Reason,
    ReleaseRule,
    Reply,
)
from kvproof.model.observe import observe, observed
from kvproof.model.pool import ReleaseOrder
from kvproof.model.records import Handle, Records
from kvproof.model.request import Request

from .contents import Contents
from .device import Device, Event
from .poison import Poisoner
from .reports import OrderingError
from .sanitizer import Sanitizer
from .schedules import Random
from .sim import SimDevice
from .worker import Reading, Shape, Worker

RECORD_COUNT = 64
"""Output records that can be live at once; ``recycle`` gives them back."""

ALWAYS = frozenset({"forks", "copies", "drafts", "advances", "pins", "steps", "rows", "holders", "records", "strict"})
"""Capabilities that do not depend on how the backend is built."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How a backend is built.

    ``load_every``: every n-th admitted prompt is filled on the load stream, as a prompt fetched
    from elsewhere would be; 0 means never.  ``poison``: a block is overwritten by an adversary the
    moment its last owner leaves, so that a reader which relied on it shows (for fuzzing).
    ``strict``: an operation that the sanitizer objects to raises
    :class:`~kvproof.gpu.reports.OrderingError`.  The other fields are the model engine's.
    """

    shape: Shape = field(default_factory=Shape)
    release_rule: ReleaseRule = "event"
    destination: Destination = "ordered"
    fork_path: ForkPath = "chapter"
    release_order: ReleaseOrder = "reverse"
    cache: bool = True
    load_every: int = 2
    poison: bool = False
    strict: bool = True


class GpuAllocator:
    """Every capability but ``tiers``, on a device; answers and ownership are exactly the model's."""

    worker_type: type[Worker] = Worker
    supports_drafts = True

    def __init__(self, configuration: Configuration, device: Device, policy: Policy | None = None) -> None:
        self.configuration = configuration
        self.device = device
        self.policy = policy = policy or Policy()
        self.engine = Engine(
            configuration.blocks,
            configuration.block_size,
            configuration.state_slots,
            fork_path=policy.fork_path,
            destination=policy.destination,
            release_order=policy.release_order,
            cache=policy.cache,
        )
        self.worker = self.worker_type(
            device, configuration.blocks, configuration.block_size, configuration.state_slots, policy.shape
        )
        self.poisoner = Poisoner(self.worker) if policy.poison else None
        self.records = Records(RECORD_COUNT)
        self.contents: dict[str, Contents] = {}
        self.handles: dict[int, tuple[str, Handle]] = {}
        self.steps: dict[int, Event] = {}
        self.admissions = 0
        self._operations = 0
        self._recorded: dict[int, Contents] = {}  # copies that are not submitted yet, with the child they are for
        self.collected: set[int] = set()  # copies whose source was released without waiting for them
        self._pool_seen: tuple[set[int], set[int]] = (set(), set(self.engine.blocks.free))
        self.supports_slots = configuration.state_slots > 0
        self.declaration = Declaration(
            release_rule=policy.release_rule,
            destination=policy.destination,
            publish="after_step" if policy.cache else "never",
            never=True,
            order="fifo",
            capabilities=ALWAYS
            | ({"slots"} if self.supports_slots else set())
            | ({"cache"} if policy.cache else set()),
        )

    @property
    def reports(self) -> Sequence[object]:
        """What the sanitizer found so far; empty without one."""
        return self.device.sanitizer.reports if self.device.sanitizer is not None else ()

    # The minimum --------------------------------------------------------------------------------------

    def admit(self, request: str, tokens: Sequence[int]) -> Reply:
        """Reserve the whole prompt.  A full hit still leaves the last token to compute, as a step needs one."""
        with self._operation("admit", request):
            tokens = list(tokens)
            size = self.configuration.block_size
            keys = content_keys(tokens[:-1], size) if self.engine.cache is not None else []
            answer = self.engine.admit(request, len(tokens), keys)
            if answer is not Answer.OK:
                return Reply(answer)
            self._follow_pool()
            hit_rows = self.engine.requests[request].num_tokens
            contents = Contents(request, tokens, hit_rows, keys, hit_rows // size)
            self.admissions += 1
            contents.loads = self.policy.load_every > 0 and self.admissions % self.policy.load_every == 0
            self.contents[request] = contents
            return self._reply(hit_rows=hit_rows)

    def extend(self, request: str, tokens: Sequence[int], drafts: int = 0) -> Reply:
        """Append tokens and reserve drafts; tokens of drafts that were accepted before are named first."""
        with self._operation("extend", request):
            answer = self.engine.extend(request, len(tokens), drafts)
            if answer is not Answer.OK:
                return Reply(answer)
            self._follow_pool()
            owner, contents = self.engine.requests[request], self.contents[request]
            first = len(contents.tokens)
            contents.append(tokens)
            if first < owner.settled:
                self._submit_copies()
                self.worker.rename(owner, contents, first, min(owner.settled, len(contents.tokens)))
            # Rows that held drafts nobody settled are now rows of tokens: they must be written again.
            contents.keep(max(first, owner.settled))
            return self._reply()

    def commit(self, request: str, rows: int) -> None:
        """The step that writes the rows is queued, if it is not already; they count in stream order."""
        with self._operation("commit", request):
            self.engine.check_commit(request, rows)
            self._run_step(request, rows)
            self.engine.commit(request, rows)
            self._follow_pool()
            contents = self.contents[request]
            contents.keep(max(rows, len(contents.tokens)))
            self.worker.use(contents)
            self._publish(request)

    def release(self, request: str, reason: Reason) -> None:
        """Finish, preempt and abort give back the same; a preempted request is admitted again later."""
        with self._operation("release", request):
            self.engine.request(request)
            self.worker.leave(self.contents.pop(request))
            self.engine.release(request, reason)
            self._follow_pool()

    def snapshot(self) -> Mapping[str, Pool]:
        """Observe all pools.  Touches the host's bookkeeping only, never the device."""
        return observe(self.engine, self.records, self.handles)

    # Forks and copies ---------------------------------------------------------------------------------

    def fork(self, parent: str, child: str, rows: int) -> Reply:
        """The child shares complete blocks; what it will write is copied, later."""
        with self._operation("fork", f"{parent} {child}"):
            before = self.engine.tickets
            answer = self.engine.fork(parent, child, rows)
            if answer is not Answer.OK:
                return Reply(answer)
            self._follow_pool()
            shared, full = self.contents[parent], rows // self.configuration.block_size
            self.contents[child] = contents = Contents(child, shared.tokens[:rows], rows, shared.keys[:full], full)
            contents.ring, contents.in_slot = dict(shared.ring), min(shared.in_slot, rows)
            self.worker.use(shared)
            copies = [copy for ticket, copy in self.engine.copies.items() if ticket > before]
            self._recorded |= {copy.ticket: contents for copy in copies}
            reply = self._reply(hit_rows=rows, copies=copies)
            if self.policy.destination != "cancelled":
                self._submit_copies()
            return reply

    def complete(self, tickets: Sequence[int]) -> None:
        """The host waits for these copies or steps; the sources of the copies are released."""
        with self._operation("complete", " ".join(map(str, tickets))):
            gone = self.engine.cancelled | self.collected
            tickets = [ticket for ticket in tickets if ticket not in gone]
            for ticket in tickets:
                if (ticket not in self.engine.copies and ticket not in self.steps) or tickets.count(ticket) > 1:
                    raise UnknownTicket(ticket)
            self._submit_copies()
            copies = [ticket for ticket in tickets if ticket in self.engine.copies]
            self.worker.observe(copies)
            self.collect(copies)
            for ticket in tickets:
                if ticket in self.steps:
                    self.device.synchronize(self.steps.pop(ticket))

    def collect(self, tickets: Sequence[int]) -> None:
        """Deferred release: these copies were observed, so what was held for them may go."""
        for ticket in tickets:
            self.engine.complete(ticket)
        self.engine.collect(tickets)
        self._follow_pool()

    def submit(self, request: str) -> int:
        """Queue the step that writes the reserved rows not yet written; returns its ticket."""
        with self._operation("submit", request):
            owner = self.engine.request(request)
            self._submit_copies()
            self.engine.tickets += 1
            self.steps[self.engine.tickets] = self.worker.step(owner, self.contents[request], owner.reserved)
            return self.engine.tickets

    # Counting and reading rows ------------------------------------------------------------------------

    def advance(self, request: str, rows: int) -> None:
        """A step evaluated ``rows`` more positions, drafts among them."""
        with self._operation("advance", request):
            self.engine.check_advance(request, rows)
            self._run_step(request, self.engine.requests[request].num_tokens + rows)
            self.engine.advance(request, rows)

    def read(self, request: str) -> Sequence[int]:
        """Tokens of the committed rows, as a step queued now reads them; the host waits for it.

        -1 where nothing whole was written, -2 for a draft that was accepted and not named yet.
        """
        return self.look(self.read_later(request))

    def look(self, reading: Reading) -> Sequence[int]:
        """The tokens of a reading; the host waits for it."""
        return self.worker.look(reading)

    def bad_rows(self) -> int:
        """How many rows some step found different from what they must hold; the host waits for all work."""
        return self.worker.bad_rows()

    def read_later(self, request: str) -> Reading:
        """The same without waiting: :meth:`look` tells the tokens at any later time.

        A read that waits hides the very errors that one looks for.
        """
        with self._operation("read", request):
            owner = self.engine.request(request)
            return self.worker.read_later(self.contents[request], self._flat_rows(owner, owner.num_tokens))

    # Other owners -------------------------------------------------------------------------------------

    def pin(self, request: str, name: str) -> Reply:
        """One more owner by name."""
        self.engine.pin(request, name)
        return self._reply()

    def unpin(self, name: str) -> None:
        """The pin is given up."""
        with self._operation("unpin", name):
            self.engine.unpin(name)
            self._follow_pool()

    def hold(self, request: str, holder: str) -> Reply:
        """An external reader starts: the transfer of the settled rows is queued; they stay until it acknowledges."""
        with self._operation("hold", f"{request} {holder}"):
            self.engine.pin(request, holder)
            self._submit_copies()
            owner = self.engine.request(request)
            self.worker.store(holder, self.contents[request], self._flat_rows(owner, owner.settled))
            return self._reply()

    def ack(self, holder: str) -> None:
        """The external reader is done: the host has seen the end of its transfer."""
        with self._operation("ack", holder):
            if holder in self.worker.stores:
                self.worker.stored(holder)
            self.engine.unpin(holder)
            self._follow_pool()

    def evict(self, blocks: int) -> int:
        """Drop cached contents, longest unused first."""
        with self._operation("evict", ""):
            dropped = len(self.engine.evict(blocks))
            self._follow_pool()
            return dropped

    # Records ------------------------------------------------------------------------------------------

    def take(self, request: str, value: Any) -> int:
        """Build an output record."""
        handle = self.records.take(value)
        self.handles[handle.address] = request, handle
        return handle.address

    def clone(self, address: int) -> Any:
        """An independent copy of a record's value."""
        if address not in self.handles:
            raise StaleRecord(address)
        return self.records.clone(self.handles[address][1])

    def recycle(self) -> None:
        """All records handed out so far may be reused."""
        self.records.recycle([handle for _, handle in self.handles.values()])
        self.handles.clear()

    # Misuse and the end -------------------------------------------------------------------------------

    def probe(self, request: str, misuse: str) -> bool:
        """Try one misuse against the pool; True when it was refused."""
        pool = self.engine.blocks
        block = next(iter(self.engine.request(request).table), 0)
        attempts = {
            "release_twice": (pool.release, [block] * (pool.count(block) + 1)),
            "pin_free_block": (pool.pin, pool.free[:1] or (0,)),
            "release_foreign_block": (pool.release, (pool.usable + 1,)),
            "release_reserved_block": (pool.release, (0,)),
        }
        if misuse not in attempts:
            raise ValueError(f"misuse {misuse!r} is unknown: choose one of {', '.join(MISUSES)}")
        attempt, blocks = attempts[misuse]
        try:
            attempt(blocks)
        except Misuse:
            return True
        return False

    def close(self) -> None:
        """The host waits for everything that is queued."""
        self.device.drain()

    # Private ------------------------------------------------------------------------------------------

    def _reply(self, hit_rows: int = 0, copies: Sequence[QueuedCopy] = ()) -> Reply:
        evicted = tuple(self.engine.evicted)
        self.engine.evicted.clear()
        seen = tuple(observed(copy) for copy in copies)
        return Reply(Answer.OK, hit_rows, seen, evicted)

    def _run_step(self, request: str, rows: int) -> None:
        """Queue the step that writes the rows up to ``rows``, and all drafts, unless that is queued already."""
        owner, contents = self.engine.requests[request], self.contents[request]
        self._submit_copies()
        upto = owner.reserved if owner.drafts else rows
        if upto > contents.filled:
            self.worker.step(owner, contents, upto)

    def _flat_rows(self, owner: Request, rows: int) -> list[int]:
        """Where the first ``rows`` rows are now: a copy that is not submitted yet has left its rows at the source."""
        size = self.configuration.block_size
        waiting = [copy for ticket, copy in self.engine.copies.items() if ticket in self._recorded]
        sources = {copy.destination: copy for copy in waiting if copy.pool == BLOCKS and copy.destination}
        flat = []
        for position in range(rows):
            block, row = owner.row(position, size)
            while block in sources and row < sources[block].rows:
                block = sources[block].source
            flat.append(block * size + row)
        return flat

    def _submit_copies(self) -> None:
        """Hand recorded copies to the device, one batch for each child."""
        waiting = {ticket: contents for ticket, contents in self._recorded.items() if ticket in self.engine.copies}
        self._recorded.clear()
        for contents in dict.fromkeys(waiting.values()):
            tickets = [ticket for ticket, child in waiting.items() if child is contents]
            for ticket in tickets:
                self.engine.submit(ticket)
            self.worker.submit([self.engine.copies[ticket] for ticket in tickets], contents)
            if self.contents.get(contents.name) is not contents:
                self.worker.leave(contents)
            self.submitted(tickets, contents)

    def submitted(self, tickets: Sequence[int], child: Contents) -> None:
        """These copies are in the queue.  In stream order their sources may go at once."""
        if self.policy.release_rule == "stream":
            self.worker.use(child)
            self.collected |= set(tickets)
            self.worker.forget(tickets)
            self.collect(tickets)

    def _follow_pool(self) -> None:
        """Tell whoever watches which blocks the last change issued and freed."""
        sanitizer, poisoner = self.device.sanitizer, self.poisoner
        if sanitizer is None and poisoner is None:
            return
        owned_before, free_before = self._pool_seen
        owned, free = set(self.engine.blocks.counts), set(self.engine.blocks.free)
        self._pool_seen = owned, free
        cached = self.engine.cache.keys if self.engine.cache is not None else {}
        issued = sorted(block for block in owned - owned_before if block not in cached)
        if sanitizer is not None:
            for block in issued:
                sanitizer.issued(BLOCKS, block, self.configuration.block_size)
        if poisoner is not None:
            poisoner.issued(issued)
            poisoner.freed(sorted(free - free_before))

    @contextmanager
    def _operation(self, verb: str, who: str) -> Iterator[None]:
        """Label what follows for reports, and raise if the sanitizer objects and the policy is strict."""
        self._operations += 1
        sanitizer = self.device.sanitizer
        if sanitizer is None:
            yield
            return
        known = len(sanitizer.reports)
        sanitizer.during(f"operation {self._operations}, {verb} {who}".rstrip())
        yield
        if self.policy.strict and len(sanitizer.reports) > known:
            raise OrderingError(sanitizer.reports[known:])

    def _publish(self, request: str) -> None:
        if self.engine.cache is None:
            return
        contents, settled = self.contents[request], self.engine.requests[request].settled
        if settled // self.configuration.block_size > contents.published:
            contents.keys = content_keys(contents.tokens, self.configuration.block_size, contents.keys)
            contents.published = self.engine.publish(request, contents.keys, contents.published)


def make_gpu_on(device: Device, configuration: Configuration, policy: Policy | None = None) -> GpuAllocator:
    """The backend on a device of your choice."""
    return GpuAllocator(configuration, device, policy)


def make_gpu(configuration: Configuration) -> GpuAllocator:
    """The target ``gpu``: simulated streams in a random order, watched by the sanitizer."""
    return make_gpu_on(SimDevice(Random(configuration.seed), Sanitizer()), configuration)
