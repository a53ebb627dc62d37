"""The reference allocator: what it declares, what it shows, and that rows read back are always right."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest

from kvproof.model.errors import Misuse, NameTaken, StaleRecord, UnknownTicket
from kvproof.model.interface import (
    MISUSES,
    Answer,
    Configuration,
    Declaration,
    Pool,
    capabilities_of,
    declaration_of,
)
from kvproof.model.mutants import make_mutant
from kvproof.model.reference import ReferenceAllocator, make_reference

SMALL = Configuration(blocks=7, block_size=4)


def blocks(allocator: ReferenceAllocator) -> Pool:
    return allocator.snapshot()["blocks"]


def with_parent(allocator: ReferenceAllocator, tokens: int = 10) -> ReferenceAllocator:
    allocator.admit("A", range(100, 100 + tokens))
    allocator.commit("A", tokens)
    return allocator


# What it declares ---------------------------------------------------------------------------------


def test_the_reference_has_every_capability_but_tiers_and_steps() -> None:
    assert capabilities_of(make_reference(Configuration(state_slots=2))) == {
        "forks", "copies", "drafts", "advances", "pins", "rows", "slots", "cache", "holders", "records", "strict",
    }  # fmt: skip


def test_capabilities_follow_the_configuration() -> None:
    assert "slots" not in capabilities_of(make_reference(SMALL))
    assert "cache" not in capabilities_of(ReferenceAllocator(SMALL, cache=False))
    assert "steps" in capabilities_of(ReferenceAllocator(SMALL, steps=True))


def test_the_declaration_says_what_is_promised() -> None:
    assert declaration_of(make_reference(SMALL)) == Declaration(
        release_rule="event",
        destination="ordered",
        publish="after_step",
        surplus="exact",
        never=True,
        order="fifo",
        capabilities=capabilities_of(make_reference(SMALL)),
    )


# What it shows ------------------------------------------------------------------------------------


def test_every_owner_has_a_name() -> None:
    a = with_parent(ReferenceAllocator(Configuration(blocks=9, state_slots=3), destination="pinned"))
    a.fork("A", "B", 10)
    a.pin("A", "debugger")
    a.hold("B", "storage")
    pool = blocks(a)
    assert pool.holds == {
        "copy 2 source": (3,),
        "copy 2 destination": (4,),
        "debugger": (1, 2, 3),
        "storage": (1, 2, 4),
    }
    assert a.snapshot()["slots"].holds == {"copy 1 source": (1,), "copy 1 destination": (2,)}
    assert pool.counts == {1: 4, 2: 4, 3: 3, 4: 3}
    a.unpin("debugger")
    a.ack("storage")
    a.complete([1, 2])
    assert blocks(a).holds == {}
    assert blocks(a).counts == {1: 2, 2: 2, 3: 1, 4: 1}


def test_a_name_is_one_owner_at_a_time() -> None:
    a = with_parent(make_reference(SMALL))
    a.pin("A", "x")
    with pytest.raises(NameTaken):
        a.hold("A", "x")


def test_a_snapshot_changes_nothing_and_is_not_changed_later() -> None:
    a = with_parent(make_reference(SMALL))
    before = a.snapshot()
    assert a.snapshot() == before
    a.release("A", "finish")
    assert before["blocks"].tables == {"A": (1, 2, 3)}


@pytest.mark.parametrize("misuse", MISUSES)
def test_misuse_is_refused_and_changes_nothing(misuse: str) -> None:
    a = with_parent(make_reference(SMALL))
    before = a.snapshot()
    assert a.probe("A", misuse)
    assert a.snapshot() == before


def test_an_unknown_misuse_is_refused_with_the_list() -> None:
    with pytest.raises(ValueError, match="release_twice"):
        with_parent(make_reference(SMALL)).probe("A", "anything")


# Rows ---------------------------------------------------------------------------------------------


def test_rejected_drafts_leave_bytes_and_no_meaning() -> None:
    a = with_parent(make_reference(SMALL))
    a.extend("A", [110], drafts=1)
    a.advance("A", 2)
    assert list(a.read("A")) == [*range(100, 111), -2]  # optimistic: the draft is among them
    a.commit("A", 11)
    assert list(a.read("A")) == list(range(100, 111))
    leftover = [stamp for row, stamp in a.worker.device.rows.items() if row[1:] == (3, 3)]
    assert [stamp.token for stamp in leftover] == [-2]


def test_accepted_drafts_get_their_tokens_when_the_history_names_them() -> None:
    a = with_parent(make_reference(SMALL))
    a.extend("A", [110], drafts=3)
    a.commit("A", 13)
    assert list(a.read("A")) == [*range(100, 111), -2, -2]
    a.extend("A", [111, 112, 113])
    assert list(a.read("A")) == list(range(100, 113))
    a.commit("A", 14)
    assert list(a.read("A")) == list(range(100, 114))


def test_a_child_reads_through_copies_that_have_not_run() -> None:
    a = with_parent(make_reference(SMALL))
    (first,) = a.fork("A", "B", 10).copies
    (second,) = a.fork("B", "C", 10).copies
    assert list(a.read("C")) == list(range(100, 110))
    assert not a.worker.device.passed(a.worker.copies[second.ticket][1])
    a.complete([second.ticket])
    assert list(a.read("C")) == list(range(100, 110))
    assert 3 in blocks(a).holds["copy 1 source"]
    a.complete([first.ticket])


@pytest.mark.parametrize("destination", ["ordered", "pinned", "cancelled"])
def test_a_late_copy_never_overwrites_the_next_owner_of_its_destination(destination) -> None:  # type: ignore[no-untyped-def]
    a = with_parent(ReferenceAllocator(Configuration(blocks=4, block_size=4), destination=destination))
    (copy,) = a.fork("A", "B", 10).copies
    a.release("B", "finish")
    if a.admit("C", [900, 901]).answer is not Answer.OK:
        assert destination == "pinned"
        a.complete([copy.ticket])
        a.admit("C", [900, 901])
    assert blocks(a).tables["C"] == (4,)
    a.commit("C", 2)
    if destination != "pinned":
        a.complete([copy.ticket])  # a cancelled one is passed over in silence
    assert list(a.read("C")) == [900, 901]


def test_a_copy_is_completed_once() -> None:
    a = with_parent(make_reference(SMALL))
    (copy,) = a.fork("A", "B", 10).copies
    for tickets in ([copy.ticket, copy.ticket], [99]):
        with pytest.raises(UnknownTicket):
            a.complete(tickets)
    a.complete([copy.ticket])
    with pytest.raises(UnknownTicket):
        a.complete([copy.ticket])


def test_a_submitted_step_is_in_flight_until_it_is_waited_for() -> None:
    a = ReferenceAllocator(SMALL, steps=True)
    a.admit("A", range(100, 110))
    ticket = a.submit("A")
    assert not a.worker.device.passed(a.steps[ticket][1])
    a.complete([ticket])
    a.commit("A", 10)
    assert list(a.read("A")) == list(range(100, 110))


def test_a_step_left_in_flight_by_an_ended_request_does_not_reach_the_next_owner() -> None:
    a = ReferenceAllocator(Configuration(blocks=4, block_size=4), steps=True)
    a.admit("A", range(100, 106))
    a.commit("A", 6)
    a.admit("X", range(500, 508))
    a.submit("X")
    a.release("X", "abort")
    (copy,) = a.fork("A", "B", 6).copies
    a.complete([copy.ticket])
    assert copy.destination == 4
    assert list(a.read("B")) == list(range(100, 106))


# State slots --------------------------------------------------------------------------------------


def ring(a: ReferenceAllocator, name: str) -> list[int]:
    request = a.engine.requests[name]
    return [stamp.token for stamp in a.worker.read_slot(request, request.num_tokens)]


def test_parent_and_child_advance_their_own_rings() -> None:
    a = with_parent(make_reference(Configuration(blocks=9, state_slots=3)))
    a.fork("A", "B", 10)
    assert ring(a, "B") == ring(a, "A") == list(range(102, 110))  # read through the queued clone
    for name, token in (("A", 500), ("B", 600)):
        a.extend(name, [token])
        a.commit(name, 11)
    assert ring(a, "A") == [*range(103, 110), 500]
    assert ring(a, "B") == [*range(103, 110), 600]


def test_a_hit_brings_rows_and_the_first_step_brings_the_ring() -> None:
    a = with_parent(make_reference(Configuration(blocks=9, state_slots=3)))
    a.release("A", "finish")
    assert a.admit("B", range(100, 110)).hit_rows == 8
    a.commit("B", 10)
    assert ring(a, "B") == list(range(102, 110))


def test_a_shared_slot_shows_the_other_requests_rows() -> None:
    a: Any = make_mutant("fork_shares_slot")(Configuration(blocks=9, state_slots=3))
    with_parent(a).fork("A", "B", 10)
    a.extend("A", [500])
    a.commit("A", 11)
    assert ring(a, "B") != list(range(102, 110))


# Prefix cache -------------------------------------------------------------------------------------


def test_contents_outlive_their_owner_and_are_hit() -> None:
    a = with_parent(make_reference(SMALL))
    a.release("A", "finish")
    pool = blocks(a)
    assert pool.evictable == {1, 2}
    assert pool.free == (4, 5, 6, 7, 3)
    reply = a.admit("B", range(100, 110))
    assert (reply.answer, reply.hit_rows) == (Answer.OK, 8)
    assert blocks(a).tables["B"] == (1, 2, 4)
    assert list(a.read("B")) == list(range(100, 108))


def test_a_live_block_is_shared_by_a_hit() -> None:
    a = with_parent(make_reference(SMALL))
    a.admit("B", range(100, 109))
    assert blocks(a).tables["B"][:2] == (1, 2)
    assert (blocks(a).counts or {})[1] == 2


def test_the_last_token_of_a_prompt_is_never_hit() -> None:
    a = with_parent(make_reference(SMALL), tokens=8)
    assert a.admit("B", range(100, 108)).hit_rows == 4


def test_a_prefix_is_hit_only_behind_the_same_prefix() -> None:
    a = with_parent(make_reference(SMALL))
    assert a.admit("B", [7, *range(101, 110)]).hit_rows == 0


def test_uncommitted_rows_are_not_hit() -> None:
    a = make_reference(SMALL)
    a.admit("A", range(100, 110))
    a.commit("A", 5)
    assert a.admit("B", range(100, 110)).hit_rows == 4


def test_what_was_cached_longest_ago_is_evicted_first_and_named() -> None:
    a = with_parent(make_reference(SMALL), tokens=12)
    a.release("A", "finish")
    assert blocks(a).evictable == {1, 2, 3}
    reply = a.admit("B", range(20))
    assert reply.evicted == (3,)  # the end of the prefix goes first: released last block first
    assert blocks(a).tables["B"] == (4, 5, 6, 7, 3)
    assert set(blocks(a).keys or {}) == {1, 2}


def test_eviction_on_demand_says_how_much_it_dropped() -> None:
    a = with_parent(make_reference(SMALL))
    a.release("A", "finish")
    assert [a.evict(1), a.evict(5), a.evict(5)] == [1, 1, 0]
    assert blocks(a).evictable == frozenset()
    assert a.admit("B", range(100, 110)).hit_rows == 0


def test_hits_that_an_admission_needs_are_not_evicted_for_it() -> None:
    a = with_parent(make_reference(Configuration(blocks=4, block_size=4)))
    a.release("A", "finish")
    assert a.admit("B", range(100, 117)).answer is Answer.NEVER
    reply = a.admit("B", range(100, 116))
    assert (reply.answer, reply.hit_rows, reply.evicted) == (Answer.OK, 8, ())


def test_a_copy_that_has_not_run_is_not_published() -> None:
    a = with_parent(ReferenceAllocator(SMALL))
    (copy,) = a.fork("A", "B", 10).copies
    a.extend("B", [110, 111])
    a.commit("B", 12)
    assert set(blocks(a).keys or {}) == {1, 2}
    a.complete([copy.ticket])
    a.extend("B", [112])
    a.commit("B", 13)
    assert set(blocks(a).keys or {}) == {1, 2, 4}


# Records ------------------------------------------------------------------------------------------


def test_a_record_is_cloned_before_the_sync_point_or_lost() -> None:
    a = with_parent(make_reference(SMALL))
    at = a.take("A", {"tokens": [1, 2]})
    mine = a.clone(at)
    mine["tokens"].append(3)
    assert a.clone(at) == {"tokens": [1, 2]}
    a.recycle()
    with pytest.raises(StaleRecord):
        a.clone(at)


def test_records_are_observed_as_a_pool() -> None:
    a = with_parent(make_reference(SMALL))
    at = a.take("A", "x")
    pool = a.snapshot()["records"]
    assert pool.holds == {f"record of A at {at}": (at,)}
    assert at not in pool.free
    a.recycle()
    assert a.snapshot()["records"].free[0] == at


# Random runs --------------------------------------------------------------------------------------

VARIANTS: list[Mapping[str, Any]] = [
    {"destination": destination, "fork_path": path, "cache": cache}
    for destination in ("ordered", "pinned", "cancelled")
    for path in ("chapter", "decode", "prompt")
    for cache in (True, False)
]


def owners(pool: Pool) -> dict[int, int]:
    count: dict[int, int] = {}
    for held in (*map(set, pool.tables.values()), *pool.holds.values()):
        for block in held:
            count[block] = count.get(block, 0) + 1
    return count


def check(a: ReferenceAllocator, histories: Mapping[str, list[int]]) -> None:
    for pool in a.snapshot().values():
        owned = owners(pool)
        assert len(set(pool.free)) == len(pool.free)
        assert {*pool.free, *owned, *pool.evictable} == pool.usable
        assert len(pool.free) + len(owned) + len(pool.evictable) == len(pool.usable)
        if pool.counts is not None:
            assert pool.counts == owned
    for name, history in histories.items():
        assert list(a.read(name)) == history[: a.engine.requests[name].num_tokens]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: "-".join(map(str, v.values())))
def test_under_random_operations_rows_are_right_and_nothing_is_lost(variant: Mapping[str, Any]) -> None:
    seen: dict[str, int] = {}
    for seed in range(3):
        random_run(ReferenceAllocator(Configuration(11, 4, 4, 4), **variant), random.Random(seed), seen)
    expected = {"ok", "later", "never", "copies", "ended"} | ({"hits", "evicted"} if variant["cache"] else set())
    assert expected <= seen.keys()


def random_run(a: ReferenceAllocator, rng: random.Random, seen: dict[str, int]) -> None:
    histories: dict[str, list[int]] = {}
    pending: list[int] = []
    pins: list[str] = []

    def note(what: str) -> None:
        seen[what] = seen.get(what, 0) + 1

    for number in range(250):
        live = list(histories)
        name = rng.choice(live) if live else None
        kind = rng.choice(["admit", "admit", "extend", "extend", "commit", "fork", "complete", "end", "pin", "unpin"])
        reply = None
        if kind == "admit":
            stem = rng.choice([0, 100, 200])
            tokens = [*range(stem, stem + rng.randint(1, 50) % 24), number]
            if rng.random() < 0.1:
                tokens *= 12
            reply = a.admit(f"r{number}", tokens)
            if reply.answer is Answer.OK:
                histories[f"r{number}"] = tokens
        elif kind == "extend" and name:
            tokens = [rng.randint(0, 9) for _ in range(rng.randint(0, 6))]
            reply = a.extend(name, tokens, rng.choice([0, 0, 3]))
            if reply.answer is Answer.OK:
                histories[name] += tokens
        elif kind == "commit" and name:
            owner = a.engine.requests[name]
            rows = rng.randint(owner.settled, owner.length)
            if rng.random() < 0.5 and not owner.unsettled:
                a.advance(name, owner.length - owner.num_tokens)
            a.commit(name, rows)
        elif kind == "fork" and name and a.engine.requests[name].settled:
            rows = rng.randint(1, a.engine.requests[name].settled)
            reply = a.fork(name, f"r{number}", rows)
            if reply.answer is Answer.OK:
                histories[f"r{number}"] = histories[name][:rows]
        elif kind == "complete" and pending:
            tickets = rng.sample(pending, rng.randint(1, len(pending)))
            pending = [ticket for ticket in pending if ticket not in tickets]
            a.complete(tickets)
        elif kind == "end" and name:
            a.release(name, rng.choice(["finish", "preempt", "abort"]))
            del histories[name]
            note("ended")
        elif kind == "pin" and name and len(pins) < 2:
            a.pin(name, f"p{number}")
            pins.append(f"p{number}")
        elif kind == "unpin" and pins:
            a.unpin(pins.pop())
        if reply is not None:
            note(reply.answer.value)
            pending += [copy.ticket for copy in reply.copies]
            for what, happened in (("hits", reply.hit_rows), ("evicted", reply.evicted), ("copies", reply.copies)):
                if happened and kind == ("fork" if what == "copies" else "admit"):
                    note(what)
        check(a, histories)
    for name in list(histories):
        a.release(name, "finish")
    for pin in pins:
        a.unpin(pin)
    a.complete(pending)
    if a.engine.cache is not None:
        a.evict(99)
    assert sorted(blocks(a).free) == list(range(1, 12))
    assert sorted(a.snapshot()["slots"].free) == [1, 2, 3, 4]


def test_a_misuse_changes_nothing_through_the_interface_either() -> None:
    a = with_parent(make_reference(Configuration(blocks=7, state_slots=2)))
    before = a.snapshot(), dict(a.worker.device.rows)
    for call in (
        lambda: a.admit("A", [1]),
        lambda: a.extend("X", [1]),
        lambda: a.commit("A", 99),
        lambda: a.commit("A", 3),
        lambda: a.advance("A", 1),
        lambda: a.fork("A", "B", 11),
        lambda: a.release("X", "finish"),
        lambda: a.unpin("x"),
        lambda: a.complete([1]),
        lambda: a.read("X"),
        lambda: a.clone(1),
    ):
        with pytest.raises(Misuse):
            call()
        assert (a.snapshot(), dict(a.worker.device.rows)) == before
