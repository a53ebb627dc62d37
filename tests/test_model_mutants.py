"""Every mutant breaks what it says, in few operations, and nothing before that."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from kvproof.model.interface import Answer, Configuration, Pool
from kvproof.model.mutants import MUTANTS, make_mutant
from kvproof.model.reference import ReferenceAllocator, make_reference

SMALL = Configuration(blocks=7, block_size=4, max_requests=4, state_slots=4)

RULES = {
    "owned_xor_free",
    "counts_match_owners",
    "only_owners_release",
    "reads_keep_their_source",
    "writes_stay_home",
    "no_read_before_fill",
    "cache_tells_the_truth",
    "table_covers_need",
    "advance_settles_once",
    "progress",
    "slot_has_one_writer",
    "records_outlive_readers",
    "nothing_lost",
    "reserved_ids_untouched",
}


def blocks(allocator: Any) -> Pool:
    pool: Pool = allocator.snapshot()["blocks"]
    return pool


def owners(pool: Pool) -> Mapping[int, int]:
    count: dict[int, int] = {}
    for held in (*map(set, pool.tables.values()), *pool.holds.values()):
        for block in held:
            count[block] = count.get(block, 0) + 1
    return count


def issue_twice(a: Any) -> bool:
    a.admit("A", range(4))
    return 1 in blocks(a).free and 1 in owners(blocks(a))


def finish_frees_shared(a: Any) -> bool:
    a.admit("A", range(10))
    a.commit("A", 10)
    a.fork("A", "B", 10)
    a.release("A", "finish")
    return bool({*blocks(a).free, *blocks(a).evictable} & set(owners(blocks(a))))


def pin_uncounted(a: Any) -> bool:
    a.admit("A", range(4))
    a.pin("A", "p")
    return (blocks(a).counts or {}).get(1) != owners(blocks(a))[1]


def refusal_keeps_block(a: Any) -> bool:
    a.admit("A", range(20))
    before = blocks(a).free
    return a.admit("B", range(20)).answer is Answer.LATER and blocks(a).free != before


def double_release(a: Any) -> bool:
    a.admit("A", range(4))
    return not a.probe("A", "release_twice")


def early_release(a: Any) -> bool:
    a.admit("A", range(10))
    a.commit("A", 10)
    copies = [copy for copy in a.fork("A", "B", 10).copies if copy.pool == "blocks"]
    a.release("A", "finish")
    return copies[0].source in blocks(a).free


def destination_unpinned(a: Any) -> bool:
    a.admit("A", range(10))
    a.commit("A", 10)
    copies = [copy for copy in a.fork("A", "B", 10).copies if copy.pool == "blocks"]
    a.release("B", "finish")
    return copies[0].destination in blocks(a).free


def share_partial_tail(a: Any) -> bool:
    a.admit("A", range(10))
    a.commit("A", 10)
    a.fork("A", "B", 10)
    return blocks(a).tables["A"][2] == blocks(a).tables["B"][2]


def copy_dropped(a: Any) -> bool:
    a.admit("A", range(10))
    a.commit("A", 10)
    a.complete([copy.ticket for copy in a.fork("A", "B", 10).copies])
    return list(a.read("B")) != list(range(10))


def stale_key(a: Any) -> bool:
    a.admit("A", range(9))
    a.commit("A", 9)
    a.release("A", "finish")
    a.admit("B", range(100, 128))
    a.commit("B", 28)
    a.release("B", "finish")
    return a.admit("C", range(9)).hit_rows == 8 and list(a.read("C")) != list(range(8))


def table_too_short(a: Any) -> bool:
    a.admit("A", range(8))
    a.extend("A", [8], drafts=4)
    return len(blocks(a).tables["A"]) < 4


def surplus_kept(a: Any) -> bool:
    a.admit("A", range(8))
    a.extend("A", [], drafts=4)
    a.commit("A", 8)
    return len(blocks(a).tables["A"]) == 3


def commit_adds(a: Any) -> bool:
    a.admit("A", range(10))
    a.advance("A", 5)
    a.commit("A", 5)
    return (blocks(a).committed or {})["A"] != 5


def later_for_never(a: Any) -> bool:
    return a.admit("A", range(40)).answer is Answer.LATER


def never_for_later(a: Any) -> bool:
    a.admit("A", range(20))
    return a.admit("B", range(20)).answer is Answer.NEVER


def fork_shares_slot(a: Any) -> bool:
    a.admit("A", range(8))
    a.commit("A", 8)
    a.fork("A", "B", 8)
    slots = a.snapshot()["slots"]
    return bool(slots.tables["A"] == slots.tables["B"])


def recycle_early(a: Any) -> bool:
    a.admit("A", range(4))
    first = a.take("A", "first")
    a.take("A", "second")
    return bool(a.clone(first) != "first")


def abort_leaks(a: Any) -> bool:
    a.admit("A", range(4))
    a.release("A", "abort")
    return 1 not in blocks(a).free and 1 not in owners(blocks(a)) and 1 not in blocks(a).evictable


def shrink_forgets(a: Any) -> bool:
    a.admit("A", range(8))
    a.extend("A", [], drafts=4)
    a.commit("A", 8)
    return 3 not in blocks(a).free and 3 not in owners(blocks(a))


def issue_block_zero(a: Any) -> bool:
    a.admit("A", range(4))
    return 0 in blocks(a).tables["A"]


SHOWS: dict[str, Callable[[Any], bool]] = {
    function.__name__: function
    for function in (
        issue_twice, finish_frees_shared, pin_uncounted, refusal_keeps_block, double_release, early_release,
        destination_unpinned, share_partial_tail, copy_dropped, stale_key, table_too_short, surplus_kept, commit_adds,
        later_for_never, never_for_later, fork_shares_slot, recycle_early, abort_leaks, shrink_forgets,
        issue_block_zero,
    )
}  # fmt: skip


def test_every_rule_has_a_mutant() -> None:
    assert {mutant.rule for mutant in MUTANTS.values()} == RULES
    assert set(MUTANTS) == set(SHOWS)
    assert len(MUTANTS) == 20


@pytest.mark.parametrize("name", MUTANTS)
def test_the_break_shows_through_the_interface(name: str) -> None:
    assert SHOWS[name](make_mutant(name)(SMALL))


@pytest.mark.parametrize("name", MUTANTS)
def test_the_same_operations_are_fine_on_the_reference(name: str) -> None:
    assert not SHOWS[name](ReferenceAllocator(SMALL, destination=MUTANTS[name].destination))


def test_early_release_is_read_back_as_in_the_chapter() -> None:
    """Section 4.2: the child reads 900 and 901 where 108 and 109 were expected."""
    for factory, wrong in ((make_mutant("early_release"), True), (make_reference, False)):
        a: Any = factory(Configuration(blocks=4, block_size=4))
        a.admit("A", range(100, 110))
        a.commit("A", 10)
        (copy,) = a.fork("A", "B", 10).copies
        assert (copy.source, copy.destination, copy.rows) == (3, 4, 2)
        a.release("A", "finish")
        answer = a.admit("writer", [900, 901]).answer
        assert answer is (Answer.OK if wrong else Answer.LATER)
        if wrong:
            assert blocks(a).tables["writer"] == (3,)
            a.commit("writer", 2)
        a.complete([copy.ticket])
        assert list(a.read("B")) == [*range(100, 108), *([900, 901] if wrong else [108, 109])]


def test_an_unknown_mutant_is_refused_with_the_list() -> None:
    with pytest.raises(ValueError, match="early_release"):
        make_mutant("nonsense")
