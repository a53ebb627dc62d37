"""The operations on ownership: forks on all paths, deferred release, the three destination disciplines, refusals."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kvproof.model.engine import Engine, ForkPath
from kvproof.model.errors import (
    AdvanceBeyondReserve,
    CommitOutOfRange,
    EventNotObserved,
    ForkBeyondCommitted,
    Misuse,
    NameTaken,
    NoPrefixCache,
    UnknownOwner,
    UnknownRequest,
    UnknownTicket,
    UnsettledAdvance,
    WrongAmount,
)
from kvproof.model.interface import Answer


def observed(engine: Engine) -> object:
    """Everything that an operation could change."""
    return (
        engine.blocks.free,
        engine.blocks.counts,
        engine.slots and (engine.slots.free, engine.slots.counts),
        {n: (r.table[:], r.slot, r.length, r.drafts, r.num_tokens, r.unsettled) for n, r in engine.requests.items()},
        {ticket: (copy.source, copy.destination, copy.done) for ticket, copy in engine.copies.items()},
        {name: blocks[:] for name, blocks in engine.pins.items()},
    )


def parent(engine: Engine, length: int, committed: int | None = None, name: str = "A") -> Engine:
    assert engine.admit(name, length) is Answer.OK
    engine.commit(name, length if committed is None else committed)
    return engine


def queued(engine: Engine, pool: str = "blocks") -> list[tuple[int, int, int]]:
    return [(copy.source, copy.destination, copy.rows) for copy in engine.copies.values() if copy.pool == pool]


# Admission, growth, the joint answer --------------------------------------------------------------


def test_a_request_needs_blocks_and_a_slot() -> None:
    engine = Engine(7, 4, slots=1)
    assert engine.admit("A", 4) is Answer.OK
    assert engine.admit("B", 4) is Answer.LATER  # blocks are there, a slot is not
    assert engine.admit("B", 32) is Answer.NEVER  # the blocks decide first
    engine.release("A")
    assert engine.admit("B", 4) is Answer.OK


@pytest.mark.parametrize(("length", "answer"), [(24, Answer.OK), (28, Answer.LATER), (29, Answer.NEVER)])
def test_an_admission_is_never_only_beyond_the_whole_pool(length: int, answer: Answer) -> None:
    engine = parent(Engine(7, 4), 4, name="other")
    assert engine.admit("A", length) is answer


def test_growth_says_never_where_the_chapters_rule_would_wait_for_ever() -> None:
    """The chapter compares only the growth with the pool; the asker keeps what it has."""
    engine = parent(Engine(7, 4), 12)
    parent(engine, 12, name="other")
    assert engine.extend("A", 16) is Answer.LATER
    assert engine.extend("A", 17) is Answer.NEVER
    assert engine.blocks.answer(5) is Answer.LATER  # five more blocks: the chapter's answer, for ever
    engine.release("other")
    assert engine.extend("A", 16) is Answer.OK


def test_a_fork_says_never_when_the_parent_itself_is_in_the_way() -> None:
    engine = parent(Engine(3, 4), 10)
    assert engine.fork("A", "B", 10) is Answer.NEVER
    assert engine.blocks.answer(1) is Answer.LATER
    assert parent(Engine(4, 4), 10).fork("A", "B", 10) is Answer.OK
    assert parent(Engine(9, 4, slots=1), 10).fork("A", "B", 10) is Answer.NEVER  # the parent keeps the only slot


def test_blocks_needed_count_history_flight_and_drafts() -> None:
    engine = parent(Engine(9, 4), 11)
    request = engine.requests["A"]
    assert len(request.table) == 3
    engine.extend("A", 0, drafts=2)
    assert len(request.table) == 4
    request.inflight = 4
    engine.resize("A")
    assert (request.reserved, len(request.table)) == (17, 5)


def test_a_rejection_gives_the_surplus_back_at_once() -> None:
    engine = parent(Engine(7, 4), 11)
    engine.extend("A", 0, drafts=2)
    engine.advance("A", 0)
    engine.commit("A", 11)
    assert engine.requests["A"].table == [1, 2, 3]
    assert engine.blocks.free == (5, 6, 7, 4)


# Fork paths ---------------------------------------------------------------------------------------


def test_a_fork_shares_complete_blocks_and_copies_a_partial_tail() -> None:
    engine = parent(Engine(7, 4), 10)
    assert engine.fork("A", "B", 10) is Answer.OK
    assert engine.requests["B"].table == [1, 2, 4]
    assert engine.blocks.counts == {1: 2, 2: 2, 3: 2, 4: 1}
    assert queued(engine) == [(3, 4, 2)]


def test_a_fork_at_a_block_boundary_copies_nothing() -> None:
    engine = parent(Engine(7, 4), 10)
    engine.fork("A", "B", 8)
    assert engine.requests["B"].table == [1, 2]
    assert engine.blocks.counts == {1: 2, 2: 2, 3: 1}
    assert queued(engine) == []


def test_a_fork_inside_the_prefix_copies_only_the_rows_it_continues() -> None:
    engine = parent(Engine(7, 4), 10)
    engine.fork("A", "B", 5)
    assert engine.requests["B"].table == [1, 4]
    assert queued(engine) == [(2, 4, 1)]


def test_the_decode_path_copies_the_last_block_even_when_it_is_full() -> None:
    engine = parent(Engine(7, 4, fork_path="decode"), 8)
    engine.fork("A", "B", 8)
    assert engine.requests["B"].table == [1, 3]
    assert queued(engine) == [(2, 3, 4)]


@pytest.mark.parametrize(("path", "kept", "copy"), [("decode", [1], (2, 5, 2)), ("prompt", [1], (2, 5, 2))])
def test_later_parent_blocks_are_released_without_copying(
    path: ForkPath, kept: list[int], copy: tuple[int, int, int]
) -> None:
    engine = parent(Engine(7, 4, fork_path=path), 14, committed=6)
    engine.fork("A", "B", 6)
    assert engine.requests["B"].table == [*kept, 5]
    assert queued(engine) == [copy, (3, 0, 0), (4, 0, 0)]
    assert engine.blocks.counts == {1: 2, 2: 2, 3: 2, 4: 2, 5: 1}  # pinned until they are collected
    tickets = list(engine.copies)
    for ticket in tickets:
        engine.complete(ticket)
    engine.collect(tickets)
    assert engine.blocks.counts == {1: 2, 2: 1, 3: 1, 4: 1, 5: 1}


def test_the_prompt_path_takes_blocks_for_the_rest_of_the_prompt() -> None:
    engine = parent(Engine(9, 4, fork_path="prompt"), 14, committed=6)
    engine.fork("A", "B", 6, length=14)
    assert engine.requests["B"].table == [1, 5, 6, 7]
    assert queued(engine) == [(2, 5, 2), (3, 0, 0), (4, 0, 0)]


def test_the_prompt_path_at_a_boundary_copies_nothing() -> None:
    engine = parent(Engine(9, 4, fork_path="prompt"), 14, committed=8)
    engine.fork("A", "B", 8, length=14)
    assert engine.requests["B"].table == [1, 2, 5, 6]
    assert queued(engine) == [(3, 0, 0), (4, 0, 0)]


@pytest.mark.parametrize("path", ["chapter", "decode", "prompt"])
def test_every_fork_clones_the_state_slot(path: ForkPath) -> None:
    engine = parent(Engine(7, 4, slots=3, fork_path=path), 8)
    engine.fork("A", "B", 8)
    assert (engine.requests["A"].slot, engine.requests["B"].slot) == (1, 2)
    assert queued(engine, "slots") == [(1, 2, 0)]
    assert engine.slots is not None
    assert engine.slots.counts == {1: 2, 2: 1}
    engine.release("A")
    assert engine.slots.free == (3,)  # the clone may still read slot 1
    for ticket in list(engine.copies):
        engine.complete(ticket)
    engine.collect(list(engine.copies))
    assert engine.slots.free == (3, 1)


def test_a_fork_waits_for_a_slot_and_a_block() -> None:
    engine = parent(Engine(7, 4, slots=2), 10)
    parent(engine, 4, name="other")
    assert engine.fork("A", "B", 10) is Answer.LATER  # no slot
    engine.release("other")
    parent(engine, 4, name="wide")
    engine.extend("wide", 12)
    before = observed(engine)
    assert engine.fork("A", "B", 10) is Answer.LATER  # no block, no slot
    assert observed(engine) == before


def test_a_fork_of_a_fork_reads_a_block_that_is_not_filled_yet() -> None:
    engine = parent(Engine(7, 4), 10)
    engine.fork("A", "B", 10)
    engine.fork("B", "C", 10)
    assert queued(engine) == [(3, 4, 2), (4, 5, 2)]
    engine.release("A")
    engine.release("B")
    assert engine.blocks.counts == {1: 1, 2: 1, 3: 1, 4: 1, 5: 1}  # block 4: source of the second copy
    first, second = engine.copies
    engine.complete(first)
    engine.complete(second)
    engine.collect([first, second])
    assert engine.blocks.free == (6, 7, 4, 3)


# Deferred release ---------------------------------------------------------------------------------


def test_a_source_is_released_only_after_its_event_was_observed() -> None:
    engine = parent(Engine(7, 4), 10)
    engine.fork("A", "B", 10)
    engine.release("A")
    before = observed(engine)
    with pytest.raises(EventNotObserved):
        engine.collect([1])
    assert observed(engine) == before
    engine.complete(1)
    assert 3 not in engine.blocks.free
    engine.collect([1])
    assert engine.blocks.free == (5, 6, 7, 3)


@pytest.mark.parametrize(("order", "free"), [("reverse", (8, 9, 3, 2, 1)), ("forward", (8, 9, 1, 2, 3))])
def test_a_batch_of_sources_is_released_in_the_stated_order(order, free) -> None:  # type: ignore[no-untyped-def]
    engine = Engine(9, 4, source_order=order)
    for name in "ABC":
        parent(engine, 2, name=name)
    for name in "ABC":
        engine.fork(name, name + "2", 2)
        engine.release(name)
    parent(engine, 4, name="D")
    for ticket in engine.copies:
        engine.complete(ticket)
    engine.collect(list(engine.copies))
    assert engine.blocks.free == free


# The destination hazard ---------------------------------------------------------------------------


def hazard(engine: Engine) -> Engine:
    """Admit A; fork A to B; finish B: the copy is still queued and its destination has lost its owner."""
    parent(engine, 10)
    engine.fork("A", "B", 10)
    engine.release("B")
    return engine


def test_ordered_destinations_are_reissued_while_the_copy_is_queued() -> None:
    engine = hazard(Engine(4, 4))
    assert engine.admit("C", 4) is Answer.OK
    assert engine.requests["C"].table == [4]
    assert queued(engine) == [(3, 4, 2)]


def test_pinned_destinations_stay_until_the_copy_is_collected() -> None:
    engine = hazard(Engine(4, 4, destination="pinned"))
    assert engine.admit("C", 4) is Answer.LATER
    engine.complete(1)
    engine.collect([1])
    assert engine.admit("C", 4) is Answer.OK


def test_a_cancelled_copy_gives_its_source_back_with_its_destination() -> None:
    engine = hazard(Engine(4, 4, destination="cancelled"))
    assert queued(engine) == []
    assert engine.blocks.counts == {1: 1, 2: 1, 3: 1}
    assert engine.cancelled == {1}


def test_a_submitted_copy_can_not_be_cancelled() -> None:
    engine = parent(Engine(4, 4, destination="cancelled"), 10)
    engine.fork("A", "B", 10)
    engine.copies[1].submitted = True
    engine.release("B")
    assert queued(engine) == [(3, 4, 2)]


def test_cancelling_runs_down_a_chain_of_forks() -> None:
    engine = parent(Engine(7, 4, destination="cancelled"), 10)
    engine.fork("A", "B", 10)
    engine.fork("B", "C", 10)
    engine.release("B")
    assert queued(engine) == [(3, 4, 2), (4, 5, 2)]  # C still needs both
    engine.release("C")
    assert queued(engine) == []
    assert engine.blocks.counts == {1: 1, 2: 1, 3: 1}


# Counting rows ------------------------------------------------------------------------------------


def test_an_advance_is_corrected_once_and_before_the_next() -> None:
    engine = parent(Engine(7, 4), 8)
    engine.extend("A", 1, drafts=3)
    engine.advance("A", 4)
    request = engine.requests["A"]
    assert (request.num_tokens, request.settled) == (12, 8)
    with pytest.raises(UnsettledAdvance):
        engine.advance("A", 1)
    engine.commit("A", 10)
    assert (request.num_tokens, request.settled, request.unsettled) == (10, 10, False)


def test_a_fork_uses_the_settled_count_only() -> None:
    engine = parent(Engine(9, 4), 8)
    engine.extend("A", 1, drafts=3)
    engine.advance("A", 4)
    with pytest.raises(ForkBeyondCommitted):
        engine.fork("A", "B", 9)
    assert engine.fork("A", "B", 8) is Answer.OK


def test_accepted_drafts_stay_covered_until_the_history_names_them() -> None:
    engine = parent(Engine(7, 4), 8)
    engine.extend("A", 0, drafts=4)
    engine.commit("A", 10)
    assert (engine.requests["A"].drafts, len(engine.requests["A"].table)) == (2, 3)
    engine.extend("A", 1)
    assert (engine.requests["A"].length, engine.requests["A"].drafts) == (9, 1)


# Ends, and other owners ---------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["finish", "preempt", "abort"])
@pytest.mark.parametrize("phase", ["admitted", "partly committed", "drafts", "advanced", "forked", "a fork", "pinned"])
def test_a_request_can_end_at_every_phase_and_nothing_is_lost(phase: str, reason) -> None:  # type: ignore[no-untyped-def]
    engine = Engine(9, 4, slots=4)
    engine.admit("A", 10)
    if phase != "admitted":
        engine.commit("A", 6)
    if phase in ("drafts", "advanced"):
        engine.extend("A", 1, drafts=5)
    if phase == "advanced":
        engine.advance("A", 9)
    if phase in ("forked", "a fork"):
        engine.fork("A", "B", 6)
    if phase == "pinned":
        engine.pin("A", "p")
    first, second = ("B", "A") if phase == "a fork" else ("A", "B")
    engine.release(first, reason)
    assert first not in engine.requests
    if second in engine.requests:
        engine.release(second)
    for ticket in engine.copies:
        engine.complete(ticket)
    engine.collect(list(engine.copies))
    for name in list(engine.pins):
        engine.unpin(name)
    assert sorted(engine.blocks.free) == list(range(1, 10))
    assert engine.slots is not None
    assert sorted(engine.slots.free) == [1, 2, 3, 4]


def test_a_pinned_block_outlives_its_request() -> None:
    engine = parent(Engine(4, 4), 6)
    engine.pin("A", "storage")
    engine.release("A")
    assert engine.blocks.free == (3, 4)
    engine.unpin("storage")
    assert engine.blocks.free == (3, 4, 2, 1)


# Misuse -------------------------------------------------------------------------------------------

MISUSES: dict[str, tuple[Callable[[Engine], object], type[Misuse]]] = {
    "admit twice": (lambda e: e.admit("A", 1), NameTaken),
    "admit a negative length": (lambda e: e.admit("X", -1), WrongAmount),
    "extend nobody": (lambda e: e.extend("X", 1), UnknownRequest),
    "extend by less than nothing": (lambda e: e.extend("A", -1), WrongAmount),
    "extend with negative drafts": (lambda e: e.extend("A", 1, -1), WrongAmount),
    "fork nobody": (lambda e: e.fork("X", "C", 1), UnknownRequest),
    "fork onto a live name": (lambda e: e.fork("A", "B", 1), NameTaken),
    "fork no rows": (lambda e: e.fork("A", "C", 0), ForkBeyondCommitted),
    "fork uncommitted rows": (lambda e: e.fork("A", "C", 9), ForkBeyondCommitted),
    "fork with a shorter history": (lambda e: e.fork("A", "C", 4, 3), WrongAmount),
    "advance nobody": (lambda e: e.advance("X", 1), UnknownRequest),
    "advance backwards": (lambda e: e.advance("A", -1), WrongAmount),
    "advance beyond what is reserved": (lambda e: e.advance("A", 3), AdvanceBeyondReserve),
    "commit nobody": (lambda e: e.commit("X", 1), UnknownRequest),
    "commit backwards": (lambda e: e.commit("A", 7), CommitOutOfRange),
    "commit beyond what is reserved": (lambda e: e.commit("A", 11), CommitOutOfRange),
    "release nobody": (lambda e: e.release("X"), UnknownRequest),
    "pin nobody": (lambda e: e.pin("X", "q"), UnknownRequest),
    "pin under a name in use": (lambda e: e.pin("B", "p"), NameTaken),
    "unpin nothing": (lambda e: e.unpin("q"), UnknownOwner),
    "complete an unknown copy": (lambda e: e.complete(99), UnknownTicket),
    "collect an unknown copy": (lambda e: e.collect([99]), UnknownTicket),
    "collect too early": (lambda e: e.collect([2]), EventNotObserved),
    "collect twice": (lambda e: e.collect([1, 1]), UnknownTicket),
    "publish without a cache": (lambda e: e.publish("A", ["k"]), NoPrefixCache),
    "evict without a cache": (lambda e: e.evict(1), NoPrefixCache),
}


@pytest.mark.parametrize("name", MISUSES)
def test_a_misuse_is_named_and_changes_nothing(name: str) -> None:
    engine = parent(Engine(9, 4, slots=4), 10, committed=8)
    engine.fork("A", "B", 6)
    engine.pin("A", "p")
    engine.complete(1)
    before = observed(engine)
    misuse, error = MISUSES[name]
    with pytest.raises(error):
        misuse(engine)
    assert observed(engine) == before
