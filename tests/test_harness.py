"""Lockstep: what each operation on a target shows, rule by rule, and what must never be flagged."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kvproof.checks.lockstep.harness import IllegalOperation, Lockstep, TargetError, Violation
from kvproof.checks.lockstep.operations import Operation
from kvproof.model import ReferenceAllocator, make_reference
from kvproof.model.interface import BLOCKS, Answer, Configuration, Declaration, Factory, Pool, Reason, Reply, Snapshot
from kvproof.model.mutants import make_mutant

SEVEN = Configuration(blocks=7, block_size=4, max_requests=4)
SLOTS = Configuration(blocks=7, block_size=4, max_requests=4, state_slots=4)


def admit(name: str, first: int, count: int) -> Operation:
    return Operation("admit", name, {"tokens": list(range(first, first + count))})


def extend(name: str, tokens: Sequence[int], drafts: int = 0) -> Operation:
    return Operation("extend", name, {"tokens": list(tokens), "drafts": drafts})


def commit(name: str, rows: int) -> Operation:
    return Operation("commit", name, {"rows": rows})


def fork(parent: str, child: str, rows: int) -> Operation:
    return Operation("fork", parent, {"child": child, "rows": rows})


def finish(name: str) -> Operation:
    return Operation("release", name, {"reason": "finish"})


def complete(*tickets: int) -> Operation:
    return Operation("complete", None, {"tickets": list(tickets)})


def run(factory: Factory, configuration: Configuration, *operations: Operation) -> Lockstep:
    lockstep = Lockstep(factory, configuration)
    for operation in operations:
        lockstep.perform(operation)
    return lockstep


def first_breach(factory: Factory, configuration: Configuration, *operations: Operation) -> tuple[str | None, int]:
    """The rule that breaks, and the length of the run up to there."""
    lockstep = Lockstep(factory, configuration)
    with pytest.raises(Violation) as caught:
        for operation in operations:
            lockstep.perform(operation)
    return caught.value.breach.rule, lockstep.length


CHAPTER = (admit("A", 100, 10), commit("A", 10), fork("A", "B", 10), finish("A"))


def test_the_chapter_s_second_run_is_clean_and_the_child_reads_its_rows() -> None:
    lockstep = run(
        make_reference,
        Configuration(blocks=4, block_size=4),
        *CHAPTER,
        complete(1),
        admit("C", 900, 4),
        commit("C", 4),
    )
    assert lockstep.allocator.read("B") == list(range(100, 110))
    lockstep.perform(finish("C"))
    lockstep.perform(finish("B"))
    lockstep.drain()


def test_an_early_release_breaks_its_rule_after_three_operations() -> None:
    assert first_breach(make_mutant("early_release"), SEVEN, *CHAPTER) == ("reads_keep_their_source", 3)


def test_an_unpinned_destination_breaks_its_rule_after_four_operations() -> None:
    operations = (admit("A", 100, 6), commit("A", 6), fork("A", "B", 6), finish("B"), admit("C", 900, 20))
    assert first_breach(make_mutant("destination_unpinned"), SEVEN, *operations) == ("writes_stay_home", 4)


def test_an_ordered_destination_may_be_reissued_under_a_queued_copy() -> None:
    lockstep = run(
        make_reference,
        SEVEN,
        admit("A", 100, 6),
        commit("A", 6),
        fork("A", "B", 6),
        finish("B"),
        admit("C", 900, 18),
        commit("C", 18),
        complete(1),
        extend("C", [918]),
        commit("C", 19),
    )
    lockstep.drain()


def test_a_shared_partial_tail_is_a_write_into_another_owner_s_rows() -> None:
    operations = (
        admit("A", 100, 6),
        commit("A", 6),
        fork("A", "B", 6),
        extend("B", [206]),
        extend("A", [106]),
    )
    assert first_breach(make_mutant("share_partial_tail"), SEVEN, *operations) == ("writes_stay_home", 4)


def test_a_shared_slot_has_two_writers_at_the_fork() -> None:
    operations = (admit("A", 100, 4), commit("A", 4), fork("A", "B", 4))
    assert first_breach(make_mutant("fork_shares_slot"), SLOTS, *operations) == ("slot_has_one_writer", 2)


class Rewritten(ReferenceAllocator):
    """A reference allocator in which one answer is replaced by a test."""


def rewritten(**methods: Callable[..., Any]) -> Factory:
    return type("Rewritten", (Rewritten,), methods)


def kind_of(factory: Factory, *operations: Operation, call_limit: float = 0.2) -> str:
    with pytest.raises(Violation) as caught:
        lockstep = Lockstep(factory, SEVEN, call_limit=call_limit)
        for operation in operations:
            lockstep.perform(operation)
    return caught.value.breach.kind


def test_a_call_that_hangs_is_interrupted_and_found() -> None:
    def spin(self: Any, request: str, tokens: Sequence[int]) -> Reply:
        while True:
            try:
                time.sleep(0.001)
            except Exception:  # a target that swallows everything is interrupted all the same
                continue

    assert kind_of(rewritten(admit=spin), admit("A", 100, 4)) == "hangs"


def test_a_target_that_swallows_even_the_interruption_is_found() -> None:
    def stubborn(self: Any, request: str, tokens: Sequence[int]) -> Reply:
        for _ in range(3):
            try:
                time.sleep(60)
            except BaseException:
                continue
        return ReferenceAllocator.admit(self, request, tokens)

    assert kind_of(rewritten(admit=stubborn), admit("A", 100, 4)) == "hangs"


def test_a_snapshot_that_hangs_is_found() -> None:
    def spin(self: Any) -> Snapshot:
        while True:
            pass

    assert kind_of(rewritten(snapshot=spin)) == "hangs"


def test_an_exception_that_was_not_translated_is_a_finding() -> None:
    def full(self: Any, request: str, tokens: Sequence[int]) -> Reply:
        raise MemoryError("no free block")

    assert kind_of(rewritten(admit=full), admit("A", 100, 4)) == "raises"


@pytest.mark.parametrize("answer", [None, True, "ok", Reply("ok"), Reply(Answer.OK, hit_rows=-1), Reply(Answer.OK, 9)])
def test_an_answer_that_is_none_is_a_finding(answer: Any) -> None:
    assert kind_of(rewritten(admit=lambda self, request, tokens: answer), admit("A", 100, 4)) == "contract"


@pytest.mark.parametrize("snapshot", [None, {}, {BLOCKS: {}}, {BLOCKS: Pool(frozenset({1}), ("one",), {})}])  # type: ignore[arg-type]
def test_a_snapshot_that_is_none_is_a_finding(snapshot: Any) -> None:
    assert kind_of(rewritten(snapshot=lambda self: snapshot)) == "contract"


def test_an_answer_that_changes_at_once_is_found() -> None:
    def fickle(self: Any, request: str, tokens: Sequence[int]) -> Reply:
        self.asked = getattr(self, "asked", 0) + 1
        if self.asked == 2:
            return Reply(Answer.LATER)
        return ReferenceAllocator.admit(self, request, tokens)

    assert kind_of(rewritten(admit=fickle), admit("A", 100, 8), admit("B", 900, 8)) == "changes_answer"


def test_never_followed_by_ok_for_no_less_is_a_changed_answer() -> None:
    operations = (admit("A", 100, 40), admit("B", 100, 40))

    class Changes(ReferenceAllocator):
        asked = 0

        def admit(self, request: str, tokens: Sequence[int]) -> Reply:
            self.asked += 1
            return super().admit(request, list(tokens) if self.asked < 3 else list(tokens)[:28])

    assert kind_of(Changes, *operations) == "changes_answer"


def test_a_refusal_that_keeps_a_block_breaks_only_owners_release() -> None:
    operations = (admit("A", 100, 20), admit("B", 900, 20))
    rule, _ = first_breach(make_mutant("refusal_keeps_block"), SEVEN, *operations)
    assert rule == "only_owners_release"


def test_what_is_left_owned_at_the_end_is_found_by_the_drain() -> None:
    class Hoards(ReferenceAllocator):
        """Keeps one block of every finished request, and says so."""

        def __init__(self, configuration: Configuration) -> None:
            super().__init__(configuration, cache=False)

        def release(self, request: str, reason: Reason) -> None:
            self.pin(request, f"souvenir of {request}")
            super().release(request, reason)

    lockstep = run(Hoards, SEVEN, admit("A", 100, 4), commit("A", 4), finish("A"))
    with pytest.raises(Violation, match="still owned") as caught:
        lockstep.drain()
    assert caught.value.breach.rule == "nothing_lost"


def test_an_allocator_that_never_grants_the_whole_pool_makes_no_progress() -> None:
    class Watermark(ReferenceAllocator):
        """Always keeps one block back: the last request waits for ever."""

        def admit(self, request: str, tokens: Sequence[int]) -> Reply:
            if len(tokens) > 24:
                return Reply(Answer.LATER)
            return super().admit(request, tokens)

    lockstep = run(Watermark, SEVEN, admit("A", 100, 4), commit("A", 4))
    with pytest.raises(Violation) as caught:
        lockstep.drain()
    assert caught.value.breach.rule == "progress"


def test_a_call_that_the_contract_forbids_is_never_made() -> None:
    lockstep = run(make_reference, SEVEN, admit("A", 100, 6))
    for operation in (
        admit("A", 100, 6),
        fork("A", "B", 6),
        commit("A", 7),
        finish("Z"),
        complete(1),
        extend("A", []),
        Operation("clone", None, {"address": 1}),
        Operation("move", "A", {"tier": "host"}),
    ):
        with pytest.raises(IllegalOperation):
            lockstep.perform(operation)
    assert len(lockstep.operations) == 1


def test_a_factory_that_fails_or_makes_no_allocator_is_a_target_error() -> None:
    def fails(configuration: Configuration) -> Any:
        raise RuntimeError("no device")

    for factory in (fails, lambda configuration: object()):
        with pytest.raises(TargetError):
            Lockstep(factory, SEVEN)


def test_the_finding_tells_what_happened_to_the_block_before() -> None:
    lockstep = Lockstep(make_mutant("early_release"), SEVEN)
    with pytest.raises(Violation) as caught:
        for operation in CHAPTER:
            lockstep.perform(operation)
    breach = caught.value.breach
    assert breach.block == "3"
    assert breach.history == (
        "admit A: given to A",
        "copy 3 -> 4 queued for B (ticket 1)",
        "release A: given up by A, now free",
    )
    assert breach.message == "block 3 may be issued again while queued copy 3 to 4 still reads it (ticket 1, for B)"


def test_an_undeclared_capability_is_not_used_and_a_hollow_one_is_refused() -> None:
    class Plain(ReferenceAllocator):
        def __init__(self, configuration: Configuration) -> None:
            super().__init__(configuration)
            self.declaration = Declaration(never=True, capabilities=frozenset({"forks", "copies"}))

    class Hollow(ReferenceAllocator):
        def __init__(self, configuration: Configuration) -> None:
            super().__init__(configuration)
            self.declaration = Declaration(capabilities=frozenset({"tiers"}))

    assert Lockstep(Plain, SEVEN).capabilities == {"forks", "copies"}
    with pytest.raises(TargetError, match="tiers"):
        Lockstep(Hollow, SEVEN)


def test_an_owned_block_that_is_called_evictable_is_owned_and_issuable() -> None:
    operations = (admit("A", 100, 6), commit("A", 6), fork("A", "B", 6), finish("A"))
    assert first_breach(make_mutant("finish_frees_shared"), SEVEN, *operations) == ("owned_xor_free", 3)
