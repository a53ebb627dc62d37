"""The engine: who owns which block, and when it may be reused.  One method for each operation.

Nothing here touches contents: the engine decides and *records* the copies a device must run (see
``worker.py`` for the device's side).  Lengths are token positions; the only thing the engine needs
to know about tokens is the content keys of full blocks, and only if it has a prefix cache.

A refusal (LATER, NEVER) and a misuse both leave everything as it was.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Literal

from .cache import CachingPool
from .errors import (
    AdvanceBeyondReserve,
    CommitOutOfRange,
    EventNotObserved,
    ForkBeyondCommitted,
    NameTaken,
    NoPrefixCache,
    UnknownOwner,
    UnknownRequest,
    UnknownTicket,
    UnsettledAdvance,
    WrongAmount,
)
from .interface import BLOCKS, SLOTS, Answer, Destination, Reason
from .pool import OK, BlockPool, ReleaseOrder
from .request import NO_SLOT, Request

ForkPath = Literal["chapter", "decode", "prompt"]
"""Which rule separates a forked child from its parent.

``chapter``: share the complete blocks, copy a partial tail, give the other pins back at once.
``prompt``: DeepInfer's prompt path: the same, but later parent blocks stay pinned until the copies are done.
``decode``: DeepInfer's decode path: the last processed block is copied even when it is full.
"""

NO_BLOCK = 0
"""Destination of a copy that copies nothing: only its source is released later (chapter, 4.3.6)."""


class QueuedCopy:
    """One recorded copy, and how far it has come.

    ``rows`` counts from the start of the block; 0 for a state slot, which is copied whole.
    ``submitted``: it is in a device queue.  ``done``: its event was observed.  The source is pinned
    from the record until it is collected after that.
    """

    __slots__ = ("destination", "done", "pool", "rows", "source", "submitted", "ticket")

    def __init__(self, ticket: int, pool: str, source: int, destination: int, rows: int) -> None:
        self.ticket = ticket
        self.pool = pool
        self.source = source
        self.destination = destination
        self.rows = rows
        self.submitted = False
        self.done = False


class Engine:
    """The state machine over two pools: blocks, and state slots when ``slots`` is not 0.

    ``destination`` is the discipline that protects the destination of a queued copy: ``pinned``
    (one more owner until the copy is done), ``cancelled`` (the copy is dropped when nobody owns its
    destination any more; once it is submitted, its destination is pinned) or ``ordered`` (the device orders every
    later writer behind the copy; nothing to do here).  ``source_order`` is the order in which a
    batch of sources is released.
    """

    pool_type: type[BlockPool] = BlockPool
    cache_type: type[CachingPool] = CachingPool

    def __init__(
        self,
        blocks: int,
        block_size: int,
        slots: int = 0,
        *,
        fork_path: ForkPath = "chapter",
        destination: Destination = "ordered",
        release_order: ReleaseOrder = "reverse",
        source_order: ReleaseOrder = "reverse",
        cache: bool = False,
    ) -> None:
        self.block_size = block_size
        self.fork_path: ForkPath = fork_path
        self.destination: Destination = destination
        self.source_order: ReleaseOrder = source_order
        self.cache = self.cache_type(blocks, release_order) if cache else None
        self.blocks: BlockPool = self.pool_type(blocks, release_order) if self.cache is None else self.cache
        self.slots = BlockPool(slots, release_order) if slots else None
        self.requests: dict[str, Request] = {}
        self.copies: dict[int, QueuedCopy] = {}
        self.pins: dict[Hashable, list[int]] = {}
        """Owners besides requests and copies, by name: pins and external holders."""
        self.evicted: list[int] = []
        """Cached blocks whose contents were dropped to make room; whoever reports them clears the list."""
        self.cancelled: set[int] = set()
        """Tickets of copies that were dropped because nobody owned their destination any more."""
        self.tickets = 0

    def request(self, name: str) -> Request:
        """A live request by name."""
        try:
            return self.requests[name]
        except KeyError:
            raise UnknownRequest(name) from None

    # Admission and growth -------------------------------------------------------------------------

    def admit(self, name: str, length: int, keys: Sequence[Hashable] = ()) -> Answer:
        """Reserve the whole prompt at once: its blocks and one state slot.  Needs both pools.

        ``keys`` are the content keys of leading full blocks that may be shared through the cache.
        """
        if name in self.requests:
            raise NameTaken("request", name)
        if length < 0:
            raise WrongAmount("length", length)
        need = -(-length // self.block_size)
        hits = self.cache.lookup(keys) if self.cache is not None else []
        answer = self._joint(self.blocks.answer(need - len(hits), 0, hits))
        if answer is not OK:
            return answer
        if self.cache is not None:
            self.cache.share(hits)
        table = hits + self._allocate(need - len(hits))
        slot = self.slots.allocate(1)[0] if self.slots is not None else NO_SLOT
        self.requests[name] = Request(name, length, table, slot, len(hits) * self.block_size)
        return OK

    def extend(self, name: str, added: int, drafts: int = 0) -> Answer:
        """``added`` tokens join the history, ``drafts`` positions are reserved behind them.

        The table grows or shrinks to exactly its need.
        """
        request = self.request(name)
        if added < 0 or drafts < 0:
            raise WrongAmount("added tokens or drafts", min(added, drafts))
        before = request.length, request.drafts
        request.length += added
        # Rows that are committed already stay covered, even when the history does not name them yet.
        request.drafts = max(drafts, request.num_tokens - request.length)
        answer = self.resize(name)
        if answer is not OK:
            request.length, request.drafts = before
        return answer

    def resize(self, name: str) -> Answer:
        """Bring the table to its need: grow it, or release the surplus at once (chapter, 4.3.4)."""
        request = self.request(name)
        need = request.need(self.block_size)
        missing = need - len(request.table)
        if missing > 0:
            answer = self.blocks.answer(missing, len(request.table))
            if answer is not OK:
                return answer
            request.grow(self._allocate(missing))
        elif missing < 0:
            self._shrink(request, need)
        return OK

    # Fork -----------------------------------------------------------------------------------------

    def fork(self, parent: str, child: str, rows: int, length: int | None = None) -> Answer:
        """Start ``child`` with the first ``rows`` committed rows of ``parent``, or refuse.

        ``length`` is the child's history; by default it is ``rows``.
        """
        owner = self.request(parent)
        if child in self.requests:
            raise NameTaken("request", child)
        if not 0 < rows <= owner.settled:
            raise ForkBeyondCommitted(parent, rows, owner.settled)
        length = rows if length is None else length
        if length < rows:
            raise WrongAmount("length beyond the shared rows", length - rows)
        _, fresh, _ = self._cut(self.fork_path, rows, length)
        answer = self._joint(self.blocks.answer(fresh, len(owner.table)), kept_slots=1)
        if answer is OK:
            self.share(parent, child, rows, length)
            self.separate(child, self.fork_path)
        return answer

    def share(self, parent: str, child: str, rows: int, length: int) -> None:
        """First half of a fork: the child pins everything, the parent's state slot included.

        It must not run yet: :meth:`separate` comes first, when one slot and one block are free.
        """
        owner = self.requests[parent]
        table = owner.table[:]
        self.blocks.pin(table)
        if self.slots is not None:
            self.slots.pin((owner.slot,))
        self.requests[child] = Request(child, length, table, owner.slot, rows)

    def separate(self, child: str, path: ForkPath) -> None:
        """Second half: a private slot and private blocks for all that the child will write.

        The caller has asked for them: one slot, and on the decode path one block.

        The pins on what it does not keep become the sources of queued copies.
        """
        request = self.requests[child]
        table = request.table
        keep, fresh, copied_rows = self._cut(path, request.num_tokens, request.length)
        self._clone_slot(request)
        private = self._allocate(fresh)
        later = keep
        if copied_rows:
            self._record(BLOCKS, table[keep], private[0], copied_rows)
            later += 1
        if path == "chapter":
            self.blocks.release(table[later:])
        else:
            for block in table[later:]:
                self._record(BLOCKS, block, NO_BLOCK, 0)
        table[keep:] = private

    def _clone_slot(self, request: Request) -> None:
        """A private slot; the old one keeps the child's pin until its copy is collected."""
        if self.slots is not None:
            slot = self.slots.allocate(1)[0]
            self._record(SLOTS, request.slot, slot, 0)
            request.slot = slot

    def _cut(self, path: ForkPath, rows: int, length: int) -> tuple[int, int, int]:
        """(blocks shared, blocks taken fresh, rows copied into the first fresh one) of a fork at ``rows``."""
        size = self.block_size
        if path == "decode":
            keep = -(-rows // size) - 1
            return keep, 1, rows - keep * size
        keep = rows // size
        return keep, -(-length // size) - keep, rows % size

    def _record(self, pool: str, source: int, destination: int, rows: int) -> QueuedCopy:
        """Record one copy.  Its source is pinned already: by the child, which does not keep it."""
        self.tickets += 1
        copy = QueuedCopy(self.tickets, pool, source, destination, rows)
        self.copies[copy.ticket] = copy
        if self._pins_destination(copy):
            self._pin_destination(copy)
        return copy

    def _pins_destination(self, copy: QueuedCopy) -> bool:
        """``pinned``: always; ``cancelled``: from the moment when the copy can no longer be dropped."""
        kept = self.destination == "pinned" or (self.destination == "cancelled" and copy.submitted)
        return kept and copy.destination != NO_BLOCK

    def _pin_destination(self, copy: QueuedCopy) -> None:
        self._pool(copy.pool).pin((copy.destination,))

    def held(self, copy: QueuedCopy) -> dict[str, int]:
        """What a copy owns until it is collected: its source, and its destination if that is pinned."""
        if self._pins_destination(copy):
            return {"source": copy.source, "destination": copy.destination}
        return {"source": copy.source}

    # Copies and deferred release ------------------------------------------------------------------

    def submit(self, ticket: int) -> None:
        """The copy is put on a device stream.  Under ``cancelled`` its destination is pinned from now on."""
        copy = self._copy(ticket)
        if not copy.submitted:
            copy.submitted = True
            if self.destination == "cancelled" and self._pins_destination(copy):
                self._pin_destination(copy)

    def complete(self, ticket: int) -> None:
        """The host observed the copy's event.  The source is released later, by :meth:`collect`."""
        self._copy(ticket).done = True

    def collect(self, tickets: Sequence[int]) -> None:
        """Deferred release: drop the source pins of completed copies, slots first, then blocks."""
        copies = [self._copy(ticket) for ticket in tickets]
        for copy in copies:
            if not copy.done:
                raise EventNotObserved(copy.ticket)
        if len(set(tickets)) < len(copies):
            raise UnknownTicket(tickets)
        for copy in copies:
            del self.copies[copy.ticket]
        if self.slots is not None:
            self._collect(self.slots, [copy for copy in copies if copy.pool == SLOTS])
            copies = [copy for copy in copies if copy.pool == BLOCKS]
        self._collect(self.blocks, copies)

    def _collect(self, pool: BlockPool, copies: list[QueuedCopy]) -> None:
        sources = [block for copy in copies for block in self.held(copy).values()]
        if (self.source_order == "reverse") != pool.reverses:
            sources.reverse()
        pool.release(sources)

    # Counting rows --------------------------------------------------------------------------------

    def advance(self, name: str, rows: int) -> None:
        """A step evaluated ``rows`` more positions; count them all until :meth:`commit` corrects it."""
        self.check_advance(name, rows)
        self.requests[name].advance(rows)

    def check_advance(self, name: str, rows: int) -> None:
        """Raise what :meth:`advance` would raise, change nothing."""
        request = self.request(name)
        if request.unsettled:
            raise UnsettledAdvance(name)
        if rows < 0:
            raise WrongAmount("evaluated rows", rows)
        if request.num_tokens + rows > request.reserved:
            raise AdvanceBeyondReserve(name, request.num_tokens + rows, request.reserved)

    def commit(self, name: str, rows: int) -> None:
        """Rows below ``rows`` count for good; drafts above are dropped and their blocks go back."""
        self.check_commit(name, rows)
        request = self.requests[name]
        if not request.unsettled:
            request.advance(rows - request.num_tokens)
        request.commit(rows - request.previous)
        request.drafts = max(0, rows - request.length)
        self.resize(name)

    def check_commit(self, name: str, rows: int) -> None:
        """Raise what :meth:`commit` would raise, change nothing."""
        request = self.request(name)
        most = request.num_tokens if request.unsettled else request.reserved
        if not request.settled <= rows <= most:
            raise CommitOutOfRange(name, rows, request.settled, most)

    # Giving up, and other owners ------------------------------------------------------------------

    def release(self, name: str, reason: Reason = "finish") -> None:
        """Finish, preempt or abort: all the same, the slot and every block lose one owner, last block first."""
        del reason
        request = self.request(name)
        del self.requests[name]
        if self.slots is not None:
            self.slots.release((request.slot,))
        self._give_back(request.table)

    def pin(self, request: str, name: Hashable) -> None:
        """``name`` becomes one more owner of every block in the request's table."""
        if name in self.pins:
            raise NameTaken("pin", name)
        table = self.request(request).table[:]
        self.blocks.pin(table)
        self.pins[name] = table

    def unpin(self, name: Hashable) -> None:
        """``name`` gives up all that it pinned."""
        blocks = self.pins.pop(name, None)
        if blocks is None:
            raise UnknownOwner(name)
        self._give_back(blocks)

    # Prefix cache ---------------------------------------------------------------------------------

    def publish(self, name: str, keys: Sequence[Hashable], first: int = 0) -> int:
        """Publish the request's full committed blocks from index ``first`` on, under their keys.

        Stops at a block that a queued copy still fills.  Returns the index reached.
        """
        if self.cache is None:
            raise NoPrefixCache
        request = self.request(name)
        filling = {copy.destination for copy in self.copies.values() if copy.pool == BLOCKS and not copy.done}
        full = min(request.settled // self.block_size, len(keys))
        for index in range(first, full):
            block = request.table[index]
            if block in filling:
                return index
            self.cache.publish(block, keys[index])
        return max(first, full)

    def evict(self, most: int) -> list[int]:
        """Drop the contents of up to ``most`` cached blocks that nobody owns."""
        if self.cache is None:
            raise NoPrefixCache
        return self.cache.evict(most)

    # Private --------------------------------------------------------------------------------------

    def _copy(self, ticket: int) -> QueuedCopy:
        try:
            return self.copies[ticket]
        except KeyError:
            raise UnknownTicket(ticket) from None

    def _pool(self, name: str) -> BlockPool:
        return self.slots if name == SLOTS and self.slots is not None else self.blocks

    def _joint(self, blocks: Answer, kept_slots: int = 0) -> Answer:
        """The answer of two pools: a request needs blocks and one slot (chapter, 4.3.2)."""
        if blocks is not OK or self.slots is None:
            return blocks
        return self.slots.answer(1, kept_slots)

    def _allocate(self, wanted: int) -> list[int]:
        if self.cache is not None:
            self.evicted += self.cache.make_room(wanted)
        return self.blocks.allocate(wanted)

    def _shrink(self, request: Request, need: int) -> None:
        """Surplus blocks go back at once (chapter, 4.3.4)."""
        self._give_back(request.shrink(need))

    def _give_back(self, blocks: Sequence[int]) -> None:
        self.blocks.release(blocks)
        if self.destination == "cancelled":
            self._cancel_orphans()

    def _cancel_orphans(self) -> None:
        """Drop unsubmitted copies whose destination nobody owns; that can free further destinations."""
        orphans = [
            copy
            for copy in self.copies.values()
            if copy.destination and not copy.submitted and not self._pool(copy.pool).count(copy.destination)
        ]
        for copy in orphans:
            del self.copies[copy.ticket]
            self.cancelled.add(copy.ticket)
            self._pool(copy.pool).release((copy.source,))
        if orphans:
            self._cancel_orphans()
