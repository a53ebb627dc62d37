"""The block pool: what it answers, what it changes, and that a misuse changes nothing."""

from __future__ import annotations

import random

import pytest

from kvproof.model.cache import CachingPool
from kvproof.model.errors import (
    DoubleRelease,
    ForeignBlock,
    Misuse,
    PinOfFreeBlock,
    PoolExhausted,
    ReservedBlock,
    WrongAmount,
)
from kvproof.model.interface import Answer
from kvproof.model.pool import BlockPool

POOLS = pytest.mark.parametrize("make", [BlockPool, CachingPool])


@POOLS
def test_block_zero_is_never_issued(make: type[BlockPool]) -> None:
    pool = make(7)
    assert pool.allocate(7) == [1, 2, 3, 4, 5, 6, 7]
    assert pool.free == ()


@POOLS
def test_a_list_is_released_last_block_first(make: type[BlockPool]) -> None:
    pool = make(7)
    pool.allocate(2)
    pool.release(pool.allocate(3))
    assert pool.free == (6, 7, 5, 4, 3)


def test_forward_order_is_selectable() -> None:
    pool = BlockPool(7, "forward")
    pool.allocate(2)
    pool.release(pool.allocate(3))
    assert pool.free == (6, 7, 3, 4, 5)


def test_the_three_answers_are_those_of_deepinfer() -> None:
    pool = BlockPool(7)  # can_allocate of a pool of size 8, after five allocations
    pool.allocate(5)
    answers = [pool.answer(k) for k in range(9)]
    assert answers == [Answer.OK] * 3 + [Answer.LATER] * 5 + [Answer.NEVER]


def test_blocks_that_the_asker_keeps_turn_later_into_never() -> None:
    pool = BlockPool(7)
    pool.allocate(7)
    assert pool.answer(4) is Answer.LATER
    assert pool.answer(4, kept=3) is Answer.LATER
    assert pool.answer(4, kept=4) is Answer.NEVER


def test_a_block_is_free_again_only_after_its_last_owner() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(2)
    pool.pin(blocks)
    pool.release(blocks)
    assert pool.free == (3,)
    assert pool.counts == {1: 1, 2: 1}
    pool.release(blocks)
    assert pool.free == (3, 2, 1)


MISUSES = [
    pytest.param(lambda pool: pool.release([1, 2, 2]), DoubleRelease, id="release more often than owned"),
    pytest.param(lambda pool: pool.release([4, 1]), DoubleRelease, id="release of a free block, at the end"),
    pytest.param(lambda pool: pool.release([1, 4, 2]), DoubleRelease, id="release of a free block, in the middle"),
    pytest.param(lambda pool: pool.release([1, 99, 2]), ForeignBlock, id="release of a foreign id"),
    pytest.param(lambda pool: pool.release([1, -1]), ForeignBlock, id="release of a negative id"),
    pytest.param(lambda pool: pool.release([1, "2", 2]), ForeignBlock, id="release of something else"),
    pytest.param(lambda pool: pool.release([1, [], 2]), ForeignBlock, id="release of something unhashable"),
    pytest.param(lambda pool: pool.release([1, 0]), ReservedBlock, id="release of block 0"),
    pytest.param(lambda pool: pool.pin([1, 4]), PinOfFreeBlock, id="pin of a free block"),
    pytest.param(lambda pool: pool.pin([1, 2, 0]), ReservedBlock, id="pin of block 0"),
    pytest.param(lambda pool: pool.pin([1, 8, 2]), ForeignBlock, id="pin of a foreign id"),
    pytest.param(lambda pool: pool.allocate(5), PoolExhausted, id="allocation beyond free"),
    pytest.param(lambda pool: pool.allocate(-1), WrongAmount, id="allocation of a negative number"),
]


@POOLS
@pytest.mark.parametrize(("misuse", "error"), MISUSES)
def test_a_misuse_raises_by_name_and_changes_nothing(make, misuse, error) -> None:  # type: ignore[no-untyped-def]
    pool = make(7)
    pool.allocate(3)
    pool.pin([1])
    pool.publish(2, "key") if isinstance(pool, CachingPool) else None
    before = pool.free, pool.counts, getattr(pool, "evictable", None)
    with pytest.raises(error) as caught:
        misuse(pool)
    assert isinstance(caught.value, Misuse)
    assert "rule " + caught.value.rule in str(caught.value)
    assert (pool.free, pool.counts, getattr(pool, "evictable", None)) == before


def test_random_use_never_loses_or_duplicates_a_block() -> None:
    rng = random.Random(1)
    pool, owned = BlockPool(9), []
    for _ in range(5000):
        if rng.random() < 0.5 and pool.free:
            owned.append(pool.allocate(1)[0])
        elif owned and rng.random() < 0.3:
            block = rng.choice(owned)
            pool.pin([block])
            owned.append(block)
        elif owned:
            rng.shuffle(owned)
            pool.release([owned.pop()])
        assert sorted([*pool.free, *set(owned)]) == list(range(1, 10))
        assert pool.counts == {block: owned.count(block) for block in owned}
