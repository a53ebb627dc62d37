"""The rule book: fourteen rules, each stated once.

State rules speak of a state ``s``; step rules of a state ``s``, an ``event`` and the next state
``t``.  A rule is a list of clauses; a clause gives the sentence that is true when it is broken.
Where a rule has two disciplines (host-observed or stream-ordered), the declared one is a relation
of the state, so that one text serves both.
"""

from __future__ import annotations

from collections.abc import Iterator

from .language import (
    Clause,
    Formula,
    Number,
    State,
    Variable,
    ceil_div,
    either,
    every,
    exists,
    forall,
    how_many,
    implies,
    rule,
)

# --------------------------------------------------------------------------------------- definitions


def in_table(s: State, request: Variable, block: Variable) -> Formula:
    """The block stands somewhere in the request's table.  An owner counts once, however often."""
    return exists(lambda index: s.table(request, index, block))


def has(s: State, request: Variable, block: Variable) -> Formula:
    """The request owns the block, through its table or as its state slot."""
    return either(in_table(s, request, block), s.slot(request, block))


def owned(s: State, block: Variable) -> Formula:
    """Somebody owns the block: a request, queued work through its pin, or a holder."""
    return either(
        exists(lambda request: has(s, request, block)),
        exists(lambda work: s.pinned(work, block)),
        exists(lambda holder: s.held(holder, block)),
    )


def issuable(s: State, block: Variable) -> Formula:
    """The block may be issued next: it is free, or cached with nobody owning it."""
    return either(s.free(block), s.cached(block))


def owners(s: State, block: Variable) -> Number:
    """How many owners the block has."""
    return (
        how_many(lambda request: has(s, request, block))
        + how_many(lambda work: s.pinned(work, block))
        + how_many(lambda holder: s.held(holder, block))
    )


def need(s: State, request: Variable) -> Number:
    """Blocks that cover history, in-flight and draft positions (chapter, listing 4.4)."""
    return ceil_div(s.history(request) + s.in_flight(request) + s.drafts(request), s.block_size())


def readable(s: State, work: Variable, request: Variable, block: Variable, offset: Variable) -> Formula:
    """The row holds what the reader must find, or work ordered before the reader (or the reader
    itself, earlier in one step) fills it."""
    return either(
        s.filled(request, block, offset),
        s.writes(work, block, offset),
        exists(
            lambda other_work: every(
                s.pending(other_work), s.writes(other_work, block, offset), s.before(other_work, work)
            )
        ),
    )


def kept_for_the_reader(s: State, work: Variable, block: Variable) -> Formula:
    """The block cannot be issued, or its next writer is ordered behind this work's read."""
    return either(~issuable(s, block), s.reads_in_order(work))


# --------------------------------------------------------------------------------------- the rule book


@rule(1, chapter="4.1, 4.3.2")
def owned_xor_free(s: State) -> Iterator[Clause]:
    """No owned block is free or issuable, every unowned block is; the free list has no duplicates."""
    yield Clause(
        "block {block} is owned and may be issued again",
        forall(lambda block: implies(owned(s, block), ~issuable(s, block))),
    )
    yield Clause(
        "block {block} has no owner, yet it cannot be issued",
        forall(lambda block: implies(s.usable(block) & ~owned(s, block), issuable(s, block))),
    )
    yield Clause(
        "block {block} stands in the free list more than once",
        forall(lambda block: implies(s.free(block), s.listed(block) <= 1)),
    )


@rule(2, chapter="4.3.2")
def counts_match_owners(s: State) -> Iterator[Clause]:
    """Where an implementation keeps counts, a block's count is the number of its owners."""
    yield Clause(
        "the owner count of block {block} is not the number of its owners",
        forall(lambda block: implies(s.counted(block), s.count(block) == owners(s, block))),
    )


@rule(3, chapter="4.3.2")
def only_owners_release(s: State, event: State, t: State) -> Iterator[Clause]:
    """A pin starts from a live block; only an owner gives up ownership; no count goes below zero;
    a refused call changes nothing."""
    yield Clause(
        "{request} lost block {block} by an operation that does not speak of it",
        forall(lambda request, block: implies(has(s, request, block) & ~has(t, request, block), event.names(request))),
    )
    yield Clause(
        "{holder} lost block {block} by an operation that does not speak of it",
        forall(
            lambda holder, block: implies(
                every(s.held(holder, block), s.external(holder), ~t.held(holder, block)), event.names_holder(holder)
            )
        ),
    )
    yield Clause(
        "{holder} pinned block {block}, which nobody owned",
        forall(
            lambda holder, block: implies(
                every(event.pins(holder), t.held(holder, block), ~s.held(holder, block)), owned(s, block)
            )
        ),
    )
    yield Clause(
        "the owner count of block {block} fell below zero",
        forall(lambda block: implies(t.counted(block), t.count(block) >= 0)),
    )
    yield Clause(
        "the call was refused, yet {request} now has or lost block {block}",
        forall(lambda request, block: implies(event.refused(), has(s, request, block) == has(t, request, block))),
    )
    yield Clause(
        "the call was refused, yet {holder} now has block {block}",
        forall(lambda holder, block: implies(event.refused() & t.held(holder, block), s.held(holder, block))),
    )
    yield Clause(
        "the call was refused, yet the owner count of block {block} changed",
        forall(
            lambda block: implies(
                every(event.refused(), s.counted(block), t.counted(block)),
                either(
                    s.count(block) == t.count(block),
                    exists(lambda holder: s.held(holder, block) & ~t.held(holder, block)),
                ),
            )
        ),
    )
    yield Clause("a misuse was accepted", implies(event.misused(), event.refused()))


@rule(4, chapter="4.2, 4.3.7")
def reads_keep_their_source(s: State) -> Iterator[Clause]:
    """A block that queued work still reads is not free (host-observed), or every later write to it is
    ordered behind that read (stream-ordered)."""
    yield Clause(
        "block {block} may be issued again while queued {work} still reads it",
        forall(
            lambda work, block, offset: implies(
                every(s.pending(work), s.reads(work, block, offset), ~s.exclusive(block)),
                kept_for_the_reader(s, work, block),
            )
        ),
    )
    yield Clause(
        "{request} may write row {offset} of block {block}, which queued {work} of another owner still reads",
        forall(
            lambda work, request, block, offset: implies(
                every(
                    s.pending(work),
                    s.reads(work, block, offset),
                    s.may_write(request, block, offset),
                    ~s.on_behalf(work, request),
                    ~s.exclusive(block),
                ),
                s.reads_in_order(work),
            )
        ),
    )
    yield Clause(
        "queued {other_work} writes row {offset} of block {block}, which {work} reads, and nothing orders the two",
        forall(
            lambda work, other_work, block, offset: implies(
                every(
                    s.pending(work),
                    s.reads(work, block, offset),
                    s.pending(other_work),
                    s.writes(other_work, block, offset),
                    ~(work == other_work),
                    ~s.exclusive(block),
                ),
                s.before(work, other_work) | s.before(other_work, work),
            )
        ),
    )


@rule(5, chapter="4.2, 4.3.6")
def writes_stay_home(s: State) -> Iterator[Clause]:
    """Queued work never writes a row that another owner may read or write, unless it is ordered before
    that owner's use."""
    yield Clause(
        "queued {work} will write row {offset} of block {block}, which now belongs to {request}",
        forall(
            lambda work, request, block, offset: implies(
                every(
                    s.pending(work),
                    s.writes(work, block, offset),
                    s.uses(request, block, offset),
                    ~s.on_behalf(work, request),
                ),
                s.writes_in_order(work),
            )
        ),
    )
    yield Clause(
        "{request} may write row {offset} of block {block}, which {other_request} uses too",
        forall(
            lambda request, other_request, block, offset: implies(
                every(s.may_write(request, block, offset), s.uses(other_request, block, offset), ~s.exclusive(block)),
                request == other_request,
            )
        ),
    )
    yield Clause(
        "queued {work} and {other_work} both write row {offset} of block {block}, and nothing orders the two",
        forall(
            lambda work, other_work, block, offset: implies(
                every(
                    s.pending(work),
                    s.writes(work, block, offset),
                    s.pending(other_work),
                    s.writes(other_work, block, offset),
                    ~(work == other_work),
                ),
                s.before(work, other_work) | s.before(other_work, work),
            )
        ),
    )


@rule(6, chapter="4.3.5, 4.5")
def no_read_before_fill(s: State) -> Iterator[Clause]:
    """A row is read only when the copy, transfer or step that fills it is complete or ordered before the
    read (within one step: written before it is read)."""
    yield Clause(
        "queued {work} reads row {offset} of block {block} for {request} before anything has filled it",
        forall(
            lambda work, request, block, offset: implies(
                every(s.pending(work), s.reads(work, block, offset), s.on_behalf(work, request), ~s.exclusive(block)),
                readable(s, work, request, block, offset),
            )
        ),
    )
    yield Clause(
        "row {offset} of block {block} counts as committed for {request} but does not hold its data",
        forall(
            lambda request, block, offset: implies(
                s.committed(request, block, offset) & ~s.exclusive(block),
                s.filled(request, block, offset)
                | exists(
                    lambda work: every(s.pending(work), s.writes(work, block, offset), s.on_behalf(work, request))
                ),
            )
        ),
    )


@rule(7, chapter="4.5")
def cache_tells_the_truth(s: State) -> Iterator[Clause]:
    """A key can be hit only where the block's contents match it; it is withdrawn before the block is
    reissued."""
    yield Clause(
        "block {block} can be hit under key {key}, but its contents are not those of the key",
        forall(lambda block, key: implies(s.key(block, key), s.matches(block, key))),
    )


@rule(8, chapter="4.3.3, 4.3.4")
def table_covers_need(s: State) -> Iterator[Clause]:
    """The table covers every position that scheduled work may write; committed never exceeds what it
    covers; surplus follows the declared policy."""
    yield Clause(
        "the table of {request} is shorter than its need",
        forall(lambda request: implies(s.live(request) & ~s.borrows(request), need(s, request) <= s.entries(request))),
    )
    yield Clause(
        "{request} counts more positions as committed than its table covers",
        forall(
            lambda request: implies(
                s.live(request) & s.reports_count(request),
                s.num_tokens(request) <= s.entries(request) * s.block_size(),
            )
        ),
    )
    yield Clause(
        "{request} keeps blocks beyond its reservation, though the surplus is declared exact",
        forall(
            lambda request: implies(
                every(s.surplus_exact(), s.live(request), ~s.borrows(request)),
                s.entries(request) <= ceil_div(s.reserved(request), s.block_size()),
            )
        ),
    )


@rule(9, chapter="4.3.5")
def advance_settles_once(s: State, event: State, t: State) -> Iterator[Clause]:
    """An advance happens when a step's output is processed; a decode advance is settled exactly once
    before the next, a prompt advance is final; irreversible decisions use the settled count."""
    yield Clause(
        "{request} advances again before its last advance was settled",
        forall(lambda request: implies(event.advances(request), s.optimistic(request) == 0)),
    )
    yield Clause(
        "the committed count of {request} is not the settled count plus what is advanced",
        forall(
            lambda request: implies(
                t.live(request) & t.reports_count(request),
                t.num_tokens(request) == t.settled(request) + t.optimistic(request),
            )
        ),
    )


@rule(10, chapter="4.1, 4.3.1")
def progress(s: State, event: State, t: State) -> Iterator[Clause]:  # noqa: ARG001
    """NEVER exactly when no amount of waiting helps; LATER becomes OK once others finish."""
    yield Clause(
        "the answer is NEVER, though the request fits into the pool",
        implies(event.never(), (event.asks_blocks() > s.usable_blocks()) | (event.asks_slots() > s.usable_slots())),
    )
    yield Clause(
        "the answer is LATER, though the request can never fit",
        implies(
            every(event.later(), event.admits(), s.promises_never()),
            (event.asks_blocks() <= s.usable_blocks()) & (event.asks_slots() <= s.usable_slots()),
        ),
    )
    yield Clause(
        "the answer is LATER, but nobody is left to wait for",
        implies(
            every(
                event.later(),
                event.asks_blocks() <= s.usable_blocks(),
                event.asks_slots() <= s.usable_slots(),
            ),
            either(
                exists(lambda request: s.live(request) & ~event.names(request)),
                exists(lambda work: s.pending(work)),
                exists(lambda holder, block: s.held(holder, block)),
                exists(lambda block: s.cached(block)),
            ),
        ),
    )


@rule(11, chapter="4.3.1, 4.3.6, 4.4")
def slot_has_one_writer(s: State) -> Iterator[Clause]:
    """A state slot has one writer, is filled before it is read, and survives until copies from it are
    done."""
    yield Clause(
        "{request} and {other_request} both write state slot {block}",
        forall(
            lambda request, other_request, block: implies(
                s.slot(request, block) & s.slot(other_request, block),
                either(request == other_request, s.borrows(request), s.borrows(other_request)),
            )
        ),
    )
    yield Clause(
        "queued {work} reads state slot {block} for {request} before anything has filled it",
        forall(
            lambda work, request, block, offset: implies(
                every(s.pending(work), s.reads(work, block, offset), s.on_behalf(work, request), s.exclusive(block)),
                readable(s, work, request, block, offset),
            )
        ),
    )
    yield Clause(
        "state slot {block} may be issued again while queued {work} still reads it",
        forall(
            lambda work, block, offset: implies(
                every(s.pending(work), s.reads(work, block, offset), s.exclusive(block)),
                kept_for_the_reader(s, work, block),
            )
        ),
    )


@rule(12, chapter="4.3.9")
def records_outlive_readers(s: State, event: State, t: State) -> Iterator[Clause]:
    """A record is not recycled or overwritten before its consumer took it."""
    yield Clause(
        "record {record} was recycled before its consumer took it",
        forall(
            lambda record: implies(s.awaited(record) & ~event.synchronises(), t.intact(record) & ~t.recycled(record))
        ),
    )


@rule(13, chapter="4.3.8")
def nothing_lost(s: State) -> Iterator[Clause]:
    """Every usable id is in exactly one class after every operation; at quiescence nothing is owned."""
    yield Clause(
        "block {block} is lost: nobody owns it and it can never be issued again",
        forall(lambda block: implies(s.usable(block), owned(s, block) | issuable(s, block))),
    )
    yield Clause(
        "block {block} is still owned, although everything was given back",
        forall(lambda block: implies(s.quiescent(), ~owned(s, block))),
    )


@rule(14, chapter="4.1, 4.3.2")
def reserved_ids_untouched(s: State) -> Iterator[Clause]:
    """A reserved id is never issued, owned, published, or read as data."""
    yield Clause(
        "reserved id {block} stands in the free list",
        forall(lambda block: implies(issuable(s, block), s.usable(block))),
    )
    yield Clause(
        "reserved id {block} is used as data by {request}",
        forall(lambda request, block, offset: implies(s.uses(request, block, offset), s.usable(block))),
    )
    yield Clause(
        "reserved id {block} is owned by {holder}",
        forall(lambda holder, block: implies(s.held(holder, block), s.usable(block))),
    )
    yield Clause(
        "reserved id {block} is the state slot of {request}",
        forall(lambda request, block: implies(s.slot(request, block), s.usable(block))),
    )
    yield Clause(
        "reserved id {block} was published under key {key}",
        forall(lambda block, key: implies(s.key(block, key), s.usable(block))),
    )
