"""The state that the rules speak of: its sorts, and every relation with one sentence of meaning.

Read this first, then ``rules.py``.  One state holds both pools: a *state slot* is a block that is
``exclusive`` and has one row.  Lengths count token positions; every other number counts blocks.

Relations marked *ghost* are not kept by any allocator: a reading derives them (the model does, and
the harness does from the tokens that it sent).  ``fixed`` ones are chosen once: facts about ids and
what the implementation declares.
"""

from __future__ import annotations

from .language import Vocabulary, measure, relation, sort

REQUEST = sort("request", "a sequence of tokens that owns storage")
INDEX = sort("index", "a position in a block table, in blocks", ordered=True)
BLOCK = sort("block", "a block of rows, or a state slot")
OFFSET = sort("offset", "a row within a block", ordered=True)
WORK = sort("work", "a copy or a step on a device stream")
HOLDER = sort("holder", "an owner that is no request: pin, cache node, deferred release, connector")
KEY = sort("key", "the name of some contents in the prefix cache")
RECORD = sort("record", "an output record")

STATE = Vocabulary(
    sorts=(REQUEST, INDEX, BLOCK, OFFSET, WORK, HOLDER, KEY, RECORD),
    relations=(
        # -- facts about ids, and declarations
        relation("usable", BLOCK, fixed=True, doc="the id may be owned; all others are reserved"),
        relation("exclusive", BLOCK, fixed=True, doc="it is a state slot: it holds mutable state of one request"),
        relation("promises_never", fixed=True, doc="declared: a request that can never fit is answered NEVER"),
        relation("surplus_exact", fixed=True, doc="declared: a table holds no block beyond its reservation"),
        measure("block_size", fixed=True, doc="positions in a block"),
        measure("usable_blocks", fixed=True, doc="how many blocks can be owned at once"),
        measure("usable_slots", fixed=True, doc="how many state slots can be owned at once"),
        # -- who owns what
        relation("live", REQUEST, doc="it was admitted or forked and has not been released"),
        relation("table", REQUEST, INDEX, BLOCK, doc="the block table: at this index stands this block"),
        relation("slot", REQUEST, BLOCK, doc="this is its state slot"),
        relation("borrows", REQUEST, doc="a fork not yet admitted: it reads what it owns and writes nothing"),
        relation("held", HOLDER, BLOCK, doc="an owner that is no request has the block"),
        relation("external", HOLDER, doc="the holder was named by an operation, which alone may end it"),
        relation("free", BLOCK, doc="it stands in the free list"),
        measure("listed", BLOCK, doc="how many times it stands in the free list"),
        relation("cached", BLOCK, doc="declared evictable: nobody owns it and its contents can still be hit"),
        relation("counted", BLOCK, doc="the implementation keeps an owner count for it"),
        measure("count", BLOCK, doc="that count"),
        # -- queued work
        relation("pending", WORK, doc="queued, and the host has not observed that it is done"),
        relation("on_behalf", WORK, REQUEST, doc="the work belongs to this request"),
        relation("pinned", WORK, BLOCK, doc="the block has one more owner until the work is released"),
        relation("reads", WORK, BLOCK, OFFSET, doc="it reads this row"),
        relation("writes", WORK, BLOCK, OFFSET, doc="it writes this row"),
        relation("before", WORK, WORK, doc="streams and events order the first before the second"),
        relation("reads_in_order", WORK, doc="declared: every later write of what it reads is ordered behind it"),
        relation("writes_in_order", WORK, doc="declared: every later use of what it writes is ordered behind it"),
        # -- rows and their meaning
        relation("uses", REQUEST, BLOCK, OFFSET, doc="a row of a position that it reserved: it may read or write it"),
        relation("may_write", REQUEST, BLOCK, OFFSET, doc="a row that it reserved and that is not committed"),
        relation("committed", REQUEST, BLOCK, OFFSET, doc="a row of a position below the committed count"),
        relation("filled", REQUEST, BLOCK, OFFSET, doc="ghost: the row holds what this request must find there"),
        # -- the prefix cache
        relation("key", BLOCK, KEY, doc="a request that asks for this key can be given the block"),
        relation("matches", BLOCK, KEY, doc="ghost: its contents, or what its owner will write, are those of the key"),
        # -- lengths, in positions
        measure("history", REQUEST, doc="tokens whose rows are or will be in the table"),
        measure("in_flight", REQUEST, doc="positions of steps scheduled whose result is not seen"),
        measure("drafts", REQUEST, doc="guessed tokens awaiting verification"),
        measure("reserved", REQUEST, doc="history + in-flight + drafts as of its last reservation"),
        measure("entries", REQUEST, doc="the number of entries of its table, in blocks"),
        relation("reports_count", REQUEST, doc="the implementation tells its committed count"),
        measure("num_tokens", REQUEST, doc="that committed count"),
        measure("settled", REQUEST, doc="ghost: positions that the steps' results made valid"),
        measure("optimistic", REQUEST, doc="ghost: positions advanced and not settled"),
        # -- output records
        relation("awaited", RECORD, doc="ghost: built, not cloned, and no synchronisation point has passed since"),
        relation("recycled", RECORD, doc="it may be issued again"),
        relation("intact", RECORD, doc="ghost: it still holds the value it was built with"),
        # -- the end of a run
        relation("quiescent", doc="every request, pin, holder and copy was ended and the cache emptied"),
    ),
)
"""A state of the system."""

EVENT = Vocabulary(
    sorts=tuple(STATE.sorts.values()),
    relations=(
        relation("names", REQUEST, doc="the operation speaks of this request"),
        relation("names_holder", HOLDER, doc="the operation speaks of this holder"),
        relation("admits", doc="it admits a request that owned nothing"),
        relation("pins", HOLDER, doc="it makes the holder an owner of blocks that are in use"),
        relation("refused", doc="the answer was LATER or NEVER"),
        relation("later", doc="the answer was LATER"),
        relation("never", doc="the answer was NEVER"),
        measure("asks_blocks", doc="distinct blocks that would be in use for the asker had it been granted"),
        measure("asks_slots", doc="state slots likewise"),
        relation("advances", REQUEST, doc="it advances the request's committed count optimistically"),
        relation("synchronises", doc="it is a synchronisation point of the output records"),
        relation("misused", doc="it was a misuse: a second release, a pin of a free block, ..."),
    ),
)
"""What happened between two states."""
