"""The model behind the common interface: the reference allocator.

:class:`ReferenceAllocator` is an :class:`~kvproof.model.engine.Engine` (who owns what), a
:class:`~kvproof.model.worker.Worker` (what the rows hold) and a pool of output records, spoken to in
the verbs of :mod:`kvproof.model.interface`.  It is also the test double for people who write a
scheduler and want a correct allocator to test it against.

    >>> allocator = make_reference(Configuration(blocks=7, block_size=4))
    >>> allocator.admit("A", range(100, 110)).answer
    <Answer.OK: 'ok'>
    >>> allocator.commit("A", 10)
    >>> allocator.fork("A", "B", 10).copies
    (Copy(source=3, destination=4, rows=2, ticket=1, pool='blocks'),)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .cache import content_keys
from .engine import Engine, ForkPath, QueuedCopy
from .errors import Misuse, StaleRecord, UnknownTicket
from .interface import (
    MISUSES,
    Answer,
    Configuration,
    Declaration,
    Destination,
    Pool,
    Reason,
    Reply,
)
from .observe import observe, observed
from .pool import ReleaseOrder
from .records import Handle, Records
from .worker import Contents, Worker

RECORD_COUNT = 64
"""Output records that can be live at once; ``recycle`` gives them back."""
RING = 8
"""Rows of a state slot's ring here; the real lengths are in ``slots.py``."""


ALWAYS = frozenset({"forks", "copies", "drafts", "advances", "pins", "rows", "holders", "records", "strict"})
"""Capabilities that do not depend on how the allocator is built."""


class ReferenceAllocator:
    """Every capability but ``tiers``, correct by construction; refusals are answers and change nothing."""

    engine_type: type[Engine] = Engine
    worker_type: type[Worker] = Worker
    records_type: type[Records] = Records

    def __init__(
        self,
        configuration: Configuration,
        *,
        fork_path: ForkPath = "chapter",
        destination: Destination = "ordered",
        release_order: ReleaseOrder = "reverse",
        cache: bool = True,
        steps: bool = False,
    ) -> None:
        self.configuration = configuration
        self.engine = self.engine_type(
            configuration.blocks,
            configuration.block_size,
            configuration.state_slots,
            fork_path=fork_path,
            destination=destination,
            release_order=release_order,
            cache=cache,
        )
        self.worker = self.worker_type(configuration.block_size, RING)
        self.records = self.records_type(RECORD_COUNT)
        self.contents: dict[str, Contents] = {}
        self.handles: dict[int, tuple[str, Handle]] = {}
        self.steps: dict[int, tuple[str, Any]] = {}
        self.supports_drafts = True
        self.supports_slots = configuration.state_slots > 0
        self.declaration = Declaration(
            release_rule="event",
            destination=destination,
            publish="after_step" if cache else "never",
            surplus="exact",
            never=True,
            order="fifo",
            capabilities=ALWAYS
            | ({"slots"} if self.supports_slots else set())
            | ({"cache"} if cache else set())
            | ({"steps"} if steps else set()),
        )

    # The minimum ----------------------------------------------------------------------------------

    def admit(self, request: str, tokens: Sequence[int]) -> Reply:
        """Reserve the whole prompt.  A full hit still leaves the last token to compute, as a step needs one."""
        tokens = list(tokens)
        keys = content_keys(tokens[:-1], self.configuration.block_size) if self.engine.cache is not None else []
        answer = self.engine.admit(request, len(tokens), keys)
        if answer is not Answer.OK:
            return Reply(answer)
        hit_rows = self.engine.requests[request].num_tokens
        self.contents[request] = Contents(tokens, hit_rows, keys, hit_rows // self.configuration.block_size)
        return self._reply(hit_rows=hit_rows)

    def extend(self, request: str, tokens: Sequence[int], drafts: int = 0) -> Reply:
        """Append tokens and reserve drafts; tokens of drafts that were accepted before are named first."""
        answer = self.engine.extend(request, len(tokens), drafts)
        if answer is not Answer.OK:
            return Reply(answer)
        contents = self.contents[request]
        first = len(contents.tokens)
        contents.append(tokens)
        owner = self.engine.requests[request]
        self.worker.rename(owner, contents, first, min(owner.settled, len(contents.tokens)))
        return self._reply()

    def commit(self, request: str, rows: int) -> None:
        """The step that wrote the rows is done; full blocks may be hit from now on."""
        self.engine.check_commit(request, rows)
        self._run_step(request, rows)
        self.engine.commit(request, rows)
        if self.engine.cache is not None:
            self._publish(request)

    def release(self, request: str, reason: Reason) -> None:
        """Finish, preempt and abort give back the same; a preempted request is admitted again later."""
        self.engine.release(request, reason)
        del self.contents[request]

    def snapshot(self) -> Mapping[str, Pool]:
        """Observe all pools."""
        return observe(self.engine, self.records, self.handles)

    # Forks and copies -----------------------------------------------------------------------------

    def fork(self, parent: str, child: str, rows: int) -> Reply:
        """The child shares complete blocks; what it will write is copied."""
        before = self.engine.tickets
        answer = self.engine.fork(parent, child, rows)
        if answer is not Answer.OK:
            return Reply(answer)
        shared, full = self.contents[parent], rows // self.configuration.block_size
        self.contents[child] = Contents(shared.tokens[:rows], rows, shared.keys[:full], full)
        self.contents[child].in_slot = rows
        if self.engine.destination != "cancelled":
            self._submit_copies()
        copies = [copy for ticket, copy in self.engine.copies.items() if ticket > before]
        return self._reply(hit_rows=rows, copies=copies)

    def complete(self, tickets: Sequence[int]) -> None:
        """The host observed these copies or steps; the sources of the copies are released."""
        tickets = [ticket for ticket in tickets if ticket not in self.engine.cancelled]
        for ticket in tickets:
            if (ticket not in self.engine.copies and ticket not in self.steps) or tickets.count(ticket) > 1:
                raise UnknownTicket(ticket)
        self._submit_copies()
        copies = [ticket for ticket in tickets if ticket in self.engine.copies]
        for ticket in copies:
            self.worker.observe(ticket)
            self.engine.complete(ticket)
        self.engine.collect(copies)
        for ticket in tickets:
            if ticket in self.steps:
                self.worker.device.finish(self.steps.pop(ticket)[1])

    def submit(self, request: str) -> int:
        """Queue the step that writes the reserved rows not yet written."""
        owner = self.engine.request(request)
        self._submit_copies()
        self.engine.tickets += 1
        self.steps[self.engine.tickets] = request, self.worker.step(owner, self.contents[request], owner.reserved)
        return self.engine.tickets

    # Counting and reading rows --------------------------------------------------------------------

    def advance(self, request: str, rows: int) -> None:
        """A step evaluated ``rows`` more positions, drafts among them."""
        self.engine.check_advance(request, rows)
        self._run_step(request, self.engine.requests[request].num_tokens + rows)
        self.engine.advance(request, rows)

    def read(self, request: str) -> Sequence[int]:
        """Tokens of the committed rows; -1 where nothing was written, -2 for an unnamed draft."""
        owner = self.engine.request(request)
        recorded = [copy for copy in self.engine.copies.values() if not copy.submitted]
        return [stamp.token for stamp in self.worker.read(owner, owner.num_tokens, recorded)]

    # Other owners ---------------------------------------------------------------------------------

    def pin(self, request: str, name: str) -> Reply:
        """One more owner by name."""
        self.engine.pin(request, name)
        return self._reply()

    def unpin(self, name: str) -> None:
        """The pin is given up."""
        self.engine.unpin(name)

    def hold(self, request: str, holder: str) -> Reply:
        """An external reader starts; its blocks stay until it acknowledges."""
        self.engine.pin(request, holder)
        return self._reply()

    def ack(self, holder: str) -> None:
        """The external reader is done."""
        self.engine.unpin(holder)

    def evict(self, blocks: int) -> int:
        """Drop cached contents, longest unused first."""
        return len(self.engine.evict(blocks))

    # Records --------------------------------------------------------------------------------------

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

    # Misuse ---------------------------------------------------------------------------------------

    def probe(self, request: str, misuse: str) -> bool:
        """Try one misuse against the pool; True when it was refused."""
        pool = self.engine.blocks
        block = next(iter(self.engine.request(request).table), 0)
        attempts = {
            "release_twice": lambda: pool.release([block] * (pool.count(block) + 1)),
            "pin_free_block": lambda: pool.pin(pool.free[:1] or (0,)),
            "release_foreign_block": lambda: pool.release((pool.usable + 1,)),
            "release_reserved_block": lambda: pool.release((0,)),
        }
        if misuse not in attempts:
            raise ValueError(f"misuse {misuse!r} is unknown: choose one of {', '.join(MISUSES)}")
        try:
            attempts[misuse]()
        except Misuse:
            return True
        return False

    # Private --------------------------------------------------------------------------------------

    def _reply(self, hit_rows: int = 0, copies: Sequence[QueuedCopy] = ()) -> Reply:
        evicted = tuple(self.engine.evicted)
        self.engine.evicted.clear()
        return Reply(Answer.OK, hit_rows, tuple(map(observed, copies)), evicted)

    def _run_step(self, request: str, rows: int) -> None:
        """The step that wrote the rows up to ``rows``, and all drafts, is queued and waited for."""
        owner, contents = self.engine.requests[request], self.contents[request]
        self._submit_copies()
        upto = owner.reserved if owner.drafts else rows
        if upto > contents.written:
            self.worker.step(owner, contents, upto)
        self.worker.finish_steps()

    def _submit_copies(self) -> None:
        for copy in self.engine.copies.values():
            if not copy.submitted:
                self.engine.submit(copy.ticket)
                self.worker.submit(copy)

    def _publish(self, request: str) -> None:
        contents = self.contents[request]
        settled = self.engine.requests[request].settled
        if settled // self.configuration.block_size > contents.published:
            contents.keys = content_keys(contents.tokens, self.configuration.block_size, contents.keys)
            contents.published = self.engine.publish(request, contents.keys, contents.published)


def make_reference(configuration: Configuration) -> ReferenceAllocator:
    """The target ``reference``."""
    return ReferenceAllocator(configuration)
