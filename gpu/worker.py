"""The device's side of the allocator: what the engine decided, as kernels on three streams.

==========  ========================================================================
stream      what runs there
==========  ========================================================================
``compute``  forward passes: read the rows of a request, write its new ones
``copy``     tail copies and slot clones of forks
``load``     transfers: prompts whose rows come from elsewhere, and rows that a holder stores elsewhere
==========  ========================================================================

Order between the streams, and nothing else orders them:

* a copy, a load and a store start behind everything that ``compute`` has been given so far;
* ``compute`` uses a request only behind the copies and loads that fill it, and so it does when the
  request leaves: whoever gets its blocks next is ordered behind ``compute`` (stream-ordered release);
* a row or ring that a queued copy or store still reads is rewritten only behind it;
* the source of a copy or store is owned until the host has observed its event (host-observed release).

Each of these lines is one small method, so that a mutant can break exactly one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kvproof.model.engine import NO_BLOCK, QueuedCopy
from kvproof.model.interface import BLOCKS, SLOTS
from kvproof.model.request import NO_SLOT, Request

from .contents import Contents
from .device import Device, Event, Stream
from .kernels import Pair, batches, clean_result, copy_pages, download, gather, scatter_stamps, verify
from .memory import HostBuffer, HostMemory, Layout, Pages, Snapshot, flat_row, ring_row
from .order import Ticket
from .staging import Staging
from .stamps import tokens_in

COMPUTE, COPY, LOAD = "compute", "copy", "load"
STREAMS = (COMPUTE, COPY, LOAD)
"""The streams that every backend uses (poisoning adds one)."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes and placement of the memory: see :class:`kvproof.gpu.memory.Pages`."""

    layers: int = 2
    words: int = 2
    ring: int = 8
    layout: Layout = "block-major"


@dataclass(slots=True)
class Submitted:
    """A queued copy: the launches that read its source, and the event recorded after them."""

    copy: QueuedCopy
    tickets: list[Ticket] = field(default_factory=list)
    done: Event = field(default_factory=Event)


@dataclass(frozen=True, slots=True)
class Reading:
    """A gather on its way: look at it with :meth:`Worker.look` at any later time."""

    snapshot: Snapshot
    target: HostBuffer
    done: Event
    tickets: tuple[Ticket, ...] = ()
    """The launches that read the rows."""


class Worker:
    """Queues work on a device; it decides nothing about ownership."""

    staging_type: type[Staging] = Staging

    def __init__(self, device: Device, blocks: int, block_size: int, slots: int, shape: Shape) -> None:
        self.device = device
        self.block_size = block_size
        self.ring = shape.ring
        self.compute, self.copy, self.load = (device.stream(name) for name in STREAMS)
        self.kv = Pages(BLOCKS, blocks, block_size, shape.layers, shape.words, shape.layout, device.memory)
        self.state = (
            Pages(SLOTS, slots, shape.ring, shape.layers, shape.words, shape.layout, device.memory) if slots else None
        )
        self.memory = HostMemory(device.memory)
        self.staging = self.staging_type(device, self.memory)
        self.copies: dict[int, Submitted] = {}
        self.stores: dict[str, tuple[Reading, list[int]]] = {}
        self.bad_stores = 0
        self._result = self.memory.list(1, 2)
        self._result.values[0] = clean_result(device.memory)
        self._snapshots = 0
        device.settle()

    # Order ------------------------------------------------------------------------------------------

    def use(self, contents: Contents) -> None:
        """From here on, ``compute`` is behind whatever fills the request."""
        for event in contents.ready:
            self.device.wait(self.compute, event)
        contents.ready.clear()

    def leave(self, contents: Contents) -> None:
        """The request gives up its blocks: whoever is ordered behind ``compute`` may have them."""
        self.use(contents)

    def order_copy(self) -> None:
        """A copy reads what ``compute`` has written."""
        self.device.wait(self.copy, self.device.record(self.compute))

    def order_load(self) -> None:
        """A load overwrites blocks that ``compute`` may still use for their last owner; a store reads what it wrote."""
        self.device.wait(self.load, self.device.record(self.compute))

    def order_rewrite(self, stream: Stream, pool: str, pages: Iterable[int]) -> None:
        """The stream is about to rewrite rows that queued copies and stores may still read."""
        pages = set(pages)
        for submitted in self.copies.values():
            if submitted.copy.pool == pool and submitted.copy.source in pages:
                self.device.wait(stream, submitted.done)
        if pool == BLOCKS:
            for reading, _ in self.stores.values():
                self.device.wait(stream, reading.done)

    # Copies -----------------------------------------------------------------------------------------

    def submit(self, copies: Sequence[QueuedCopy], child: Contents) -> None:
        """Queue copies that separate ``child``: slots first, then blocks, one event after them all."""
        self.order_copy()
        submitted = [Submitted(copy) for copy in copies]
        done = self.launch_and_record(submitted, child.name)
        if any(copy.destination != NO_BLOCK for copy in copies):
            child.ready.append(done)
        for each in submitted:
            each.done = done
            self.copies[each.copy.ticket] = each

    def launch_and_record(self, submitted: Sequence[Submitted], who: str) -> Event:
        """One event after the last read, on the stream that reads."""
        self.launch_copies(submitted, who)
        return self.device.record(self.copy)

    def launch_copies(self, submitted: Sequence[Submitted], who: str) -> None:
        """Launch the copies on the copy stream; each of them learns its launch."""
        for pages, pool, name in ((self.state, SLOTS, "slot clone"), (self.kv, BLOCKS, "tail copy")):
            if pages is None:
                continue
            mine = [each for each in submitted if each.copy.pool == pool and each.copy.destination != NO_BLOCK]
            pairs = [Pair(each.copy.source, each.copy.destination, each.copy.rows or pages.page_rows) for each in mine]
            for batch in batches(pairs):
                listed = self.staging.upload(self.copy, batch, who)
                ticket = self.device.launch(self.copy, copy_pages(pages, batch, listed, name, who))
                for each, pair in zip(mine, pairs, strict=True):
                    if pair in batch:
                        each.tickets.append(ticket)

    def observe(self, tickets: Sequence[int]) -> None:
        """The host waits for the events of these copies; then their sources may be released."""
        for ticket in tickets:
            self.synchronize(self.copies[ticket].done)
        self.announce_release(tickets)
        self.forget(tickets)

    def announce_release(self, tickets: Sequence[int]) -> None:
        """Tell the sanitizer that what these copies read is given up now."""
        for ticket in tickets:
            self.device.host_releases(self.copies[ticket].tickets, "release of copy source", f"copy {ticket}")

    def forget(self, tickets: Sequence[int]) -> None:
        """These copies are no longer of interest: observed, or left to stream order."""
        for ticket in tickets:
            del self.copies[ticket]

    def synchronize(self, event: Event) -> None:
        """The host waits."""
        self.device.synchronize(event)

    # Steps ------------------------------------------------------------------------------------------

    def step(self, request: Request, contents: Contents, upto: int) -> Event:
        """Queue the step that reads the request's rows and writes those up to position ``upto``."""
        first, ring_first = contents.filled, max(contents.in_slot, upto - self.ring)
        contents.filled = max(first, upto)
        contents.in_slot = max(contents.in_slot, upto)
        loads, contents.loads = contents.loads, False
        stream, name = (self.load, "load") if loads else (self.compute, "step")
        self.use(contents)
        if loads:
            self.order_load()
        else:
            self._attend(request, contents, first)
        self._write(stream, name, request, contents, range(first, upto))
        self._write_ring(stream, name, request, contents, range(ring_first, upto))
        done = self.device.record(stream)
        if loads:
            contents.ready.append(done)
        return done

    def rename(self, request: Request, contents: Contents, first: int, upto: int) -> None:
        """Give rows ``first`` to ``upto - 1`` their stamps: they held accepted drafts, whose tokens are known now."""
        self.use(contents)
        self.order_rewrite(self.compute, BLOCKS, request.table)
        self._write(self.compute, "name drafts", request, contents, range(first, upto))
        still_there = range(max(first, contents.in_slot - self.ring), upto)
        self._write_ring(self.compute, "name drafts", request, contents, still_there)

    def _attend(self, request: Request, contents: Contents, rows: int) -> None:
        """Read the first ``rows`` rows, and all filled rows of the ring, as a forward pass would."""
        entries = [
            (flat_row(request.table, position, self.block_size), contents.stamp(position)) for position in range(rows)
        ]
        self._verify(self.kv, entries, contents.name)
        if self.state is not None and request.slot != NO_SLOT:
            entries = [(ring_row(request.slot, row, self.ring), stamp) for row, stamp in contents.ring.items()]
            self._verify(self.state, entries, contents.name)

    def _verify(self, pages: Pages, entries: Sequence[tuple[int, int]], who: str) -> None:
        if entries:
            listed = self.staging.upload(self.compute, entries, who)
            flat = [row for row, _ in entries]
            self.device.launch(self.compute, verify(pages, flat, listed, self._result, who))

    def _write(self, stream: Stream, name: str, request: Request, contents: Contents, positions: range) -> None:
        """Write the rows of some positions in the request's blocks."""
        entries = [(flat_row(request.table, p, self.block_size), contents.stamp(p)) for p in positions]
        self._scatter(stream, name, self.kv, entries, contents.name)

    def _write_ring(self, stream: Stream, name: str, request: Request, contents: Contents, positions: range) -> None:
        """Write the rows of some positions, at most a ring full, in the request's state slot."""
        if self.state is None or request.slot == NO_SLOT or not positions:
            return
        self.order_rewrite(stream, SLOTS, (request.slot,))
        contents.ring |= {p % self.ring: contents.stamp(p) for p in positions}
        entries = [(ring_row(request.slot, p, self.ring), contents.stamp(p)) for p in positions]
        self._scatter(stream, name, self.state, entries, contents.name)

    def _scatter(self, stream: Stream, name: str, pages: Pages, entries: Sequence[tuple[int, int]], who: str) -> None:
        if not entries:
            return
        listed = self.staging.upload(stream, entries, who)
        flat = [row for row, _ in entries]
        self.device.launch(stream, scatter_stamps(pages, flat, listed, name, who))

    # Reading back -----------------------------------------------------------------------------------

    def read_later(self, contents: Contents, flat: Sequence[int]) -> Reading:
        """Queue a gather of some flat rows of the request, as a step queued now would read them."""
        self.use(contents)
        return self._gather(self.compute, "gather", contents, flat)

    def _gather(self, stream: Stream, name: str, contents: Contents, flat: Sequence[int]) -> Reading:
        self._snapshots += 1
        snapshot = Snapshot(self._snapshots, self.kv.empty(len(flat)))
        target = self.memory.rows_buffer(self.kv, len(flat))
        tickets: tuple[Ticket, ...] = ()
        if flat:
            listed = self.staging.upload(stream, [(row, 0) for row in flat], contents.name)
            kernel = gather(self.kv, flat, listed, snapshot, name, contents.name)
            tickets = (self.device.launch(stream, kernel),)
            self.device.launch(stream, download(snapshot, target, contents.name))
        return Reading(snapshot, target, self.device.record(stream), tickets)

    def look(self, reading: Reading) -> list[int]:
        """The tokens of a reading; the host waits for it."""
        self.device.synchronize(reading.done)
        found = reading.target.cells(reading.snapshot.length)
        self.device.host_reads(found, "look at rows")
        self.device.forget((*found, *reading.snapshot.cells()))
        return tokens_in(reading.target.values)

    def bad_rows(self) -> int:
        """How many rows a step or a store has found different from what they must hold; the host waits for all work."""
        self.device.drain()
        return int(self._result.values[0, 0]) + self.bad_stores

    # Stores -----------------------------------------------------------------------------------------

    def store(self, holder: str, contents: Contents, flat: Sequence[int]) -> None:
        """Queue the transfer of the request's leading rows, given as flat rows, to an external holder."""
        self.use(contents)
        self.order_load()
        self.stores[holder] = self._gather(self.load, "store", contents, flat), contents.expected(len(flat))

    def stored(self, holder: str) -> None:
        """The holder acknowledges: the host knows that the transfer is done, so what it read may go."""
        reading, wanted = self.stores.pop(holder)
        found = self.look(reading)
        self.bad_stores += sum(one != other for one, other in zip(found, wanted, strict=True))
        self.device.host_releases(reading.tickets, "release of stored blocks", holder)
