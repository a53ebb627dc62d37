"""Public bug reports: the mechanism of each is caught and named in a small allocator; what only looks alike is not."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from kvproof.checks.certification.certify import Plan, certify
from kvproof.checks.lockstep.harness import Lockstep, Violation
from kvproof.checks.lockstep.operations import Operation
from kvproof.model import make_reference
from kvproof.model.interface import BLOCKS, Configuration, Factory


def _load(name: str) -> ModuleType:
    """A module beside the tests, which are not a package."""
    full = f"kvproof_test_{name}"
    if full not in sys.modules:
        spec = importlib.util.spec_from_file_location(full, Path(__file__).parent / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[full] = module
        spec.loader.exec_module(module)
    return sys.modules[full]


cases = _load("cases")

SEVEN = Configuration(blocks=7, block_size=4, max_requests=4)
SLOTTED = Configuration(blocks=7, block_size=4, max_requests=4, state_slots=4)


def small(blocks: int) -> Configuration:
    return Configuration(blocks=blocks, block_size=4, max_requests=4)


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


def preempt(name: str) -> Operation:
    return Operation("release", name, {"reason": "preempt"})


def abort(name: str) -> Operation:
    return Operation("release", name, {"reason": "abort"})


def complete(*tickets: int) -> Operation:
    return Operation("complete", None, {"tickets": list(tickets)})


def hold(name: str, holder: str) -> Operation:
    return Operation("hold", name, {"holder": holder})


def ack(holder: str) -> Operation:
    return Operation("ack", None, {"holder": holder})


def pin(name: str, by: str) -> Operation:
    return Operation("pin", name, {"name": by})


def unpin(by: str) -> Operation:
    return Operation("unpin", None, {"name": by})


def evict(blocks: int) -> Operation:
    return Operation("evict", None, {"blocks": blocks})


def take(name: str, value: int) -> Operation:
    return Operation("take", name, {"value": value})


def broken(factory: Factory, configuration: Configuration, *operations: Operation) -> tuple[str | None, str, int, bool]:
    """The broken rule, the kind of finding, the length, and whether it took giving everything back.

    Every operation but the last must pass.
    """
    lockstep = Lockstep(factory, configuration)
    for operation in operations[:-1]:
        lockstep.perform(operation)
    try:
        lockstep.perform(operations[-1])
    except Violation as violation:
        return violation.breach.rule, violation.breach.kind, lockstep.length, False
    length = lockstep.length
    with pytest.raises(Violation) as caught:
        lockstep.drain()
    return caught.value.breach.rule, caught.value.breach.kind, length, True


def faulty(name: str) -> Factory:
    """A case by name."""
    return cases.CASES[name].factory


def rule(name: str, length: int) -> tuple[str, str, int, bool]:
    """A rule that broke at the last operation."""
    return name, "rule", length, False


def declared(factory: Factory, **promises: Any) -> Factory:
    """The same allocator with other promises."""

    def build(configuration: Configuration) -> Any:
        allocator: Any = factory(configuration)
        allocator.declaration = replace(allocator.declaration, **promises)
        return allocator

    return build


ROWS = (admit("A", 100, 6), commit("A", 6))
FORKED = (*ROWS, fork("A", "B", 6))
CACHED = (admit("A", 100, 5), commit("A", 5), finish("A"))


# ------------------------------------------------------------------------- double release, duplicate entries


def test_vllm_1556_an_old_table_entry_is_released_once_more() -> None:
    operations = (*ROWS, fork("A", "C", 6), extend("C", [206]), complete(1), finish("C"))
    assert broken(faulty("OwnerIsATablePosition"), SEVEN, *operations) == rule("owned_xor_free", 5)


def test_vllm_42571_a_list_that_names_a_block_twice_frees_it_twice() -> None:
    operations = (*FORKED, fork("A", "C", 6), finish("A"), complete(1, 2))
    assert broken(faulty("ReleasesThenLooks"), SEVEN, *operations) == rule("owned_xor_free", 6)


def test_sglang_12224_two_paths_free_the_slot_of_the_step_in_flight() -> None:
    rows = Configuration(blocks=7, block_size=1)
    operations = (admit("A", 100, 3), commit("A", 3), extend("A", [103]), finish("A"))
    assert broken(faulty("TwoPathsFreeTheLastSlot"), rows, *operations) == rule("owned_xor_free", 3)


def test_sglang_omni_1607_a_cached_block_is_freed_again_and_issued() -> None:
    operations = (*ROWS, finish("A"), admit("B", 900, 5))
    assert broken(faulty("CompensatesWhatIsCached"), small(2), *operations) == rule("owned_xor_free", 3)


def test_sglang_25805_a_stale_map_frees_somebody_else_s_slot() -> None:
    pool = Configuration(blocks=2, block_size=4, max_requests=4, state_slots=3)
    reused = (admit("A", 100, 4), finish("A"), admit("C", 900, 4), admit("B", 1700, 4), finish("C"))
    operations = (*reused, admit("D", 2500, 4), finish("B"))
    assert broken(faulty("StaleMapToTheSecondPool"), pool, *operations) == rule("nothing_lost", 7)


def test_sglang_38840_two_parts_of_a_request_free_their_boundary_twice() -> None:
    operations = (*ROWS, extend("A", [106, 107, 108]), finish("A"))
    assert broken(faulty("TwoPartsShareABoundary"), SEVEN, *operations) == rule("owned_xor_free", 3)


def test_tensorrt_llm_14937_two_entries_are_backed_by_one_count() -> None:
    operations = (*FORKED, fork("A", "C", 6))
    assert broken(faulty("OneCountForTwoEntries"), SEVEN, *operations) == rule("counts_match_owners", 3)


def test_tensorrt_llm_14937_without_counts_the_block_is_freed_under_the_second_copy() -> None:
    operations = (*FORKED, fork("A", "C", 6), finish("A"), complete(1))
    hidden = cases.uncounted(faulty("OneCountForTwoEntries"))
    assert broken(hidden, SEVEN, *operations) == rule("owned_xor_free", 5)


# ------------------------------------------------------------------------------------------------- leaks


def test_sglang_13826_blocks_of_drafts_are_lost_at_the_end() -> None:
    operations = (admit("A", 100, 8), commit("A", 8), extend("A", [], 5), finish("A"))
    assert broken(faulty("DraftsAreNotRecorded"), SEVEN, *operations) == rule("nothing_lost", 3)


def test_sglang_22862_the_next_turn_overwrites_ids_that_are_still_allocated() -> None:
    operations = (admit("A", 100, 4), commit("A", 4), extend("A", [], 4), commit("A", 4), extend("A", [104]))
    assert broken(faulty("NextTurnOverwritesTheTail"), SEVEN, *operations) == rule("nothing_lost", 3)


def test_sglang_16067_a_refused_admission_keeps_a_state_slot() -> None:
    operations = (admit("A", 100, 20), admit("B", 900, 12))
    assert broken(faulty("RefusalKeepsASlot"), SLOTTED, *operations) == rule("nothing_lost", 2)


def test_vllm_46283_blocks_of_an_aborted_load_never_come_back() -> None:
    operations = (admit("A", 100, 8), hold("A", "nic"), abort("A"), ack("nic"))
    at_the_end = ("nothing_lost", "rule", 4, True)
    assert broken(faulty("AcknowledgementOfTheAborted"), SEVEN, *operations) == at_the_end


LIVES = (admit("A", 100, 8), hold("A", "j1"), preempt("A"), admit("A", 100, 8), hold("A", "j2"), ack("j1"))


def test_vllm_51637_a_job_of_the_first_life_is_charged_to_the_second() -> None:
    assert broken(faulty("JobsByRequestName"), SEVEN, *LIVES) == rule("counts_match_owners", 6)


def test_vllm_51637_without_counts_blocks_are_freed_under_the_second_job() -> None:
    hidden = cases.uncounted(faulty("JobsByRequestName"))
    assert broken(hidden, SEVEN, *LIVES, finish("A")) == rule("owned_xor_free", 7)


def test_lmcache_3884_a_retrieve_takes_two_counts() -> None:
    operations = (admit("A", 100, 8), hold("A", "retrieve"))
    assert broken(faulty("CountAndPin"), SEVEN, *operations) == rule("counts_match_owners", 2)


def test_lmcache_3884_without_counts_the_block_is_lost_when_all_are_done() -> None:
    operations = (admit("A", 100, 8), hold("A", "retrieve"), finish("A"), ack("retrieve"))
    assert broken(cases.uncounted(faulty("CountAndPin")), SEVEN, *operations) == rule("nothing_lost", 4)


def test_xllm_828_a_counter_beside_the_sets_refuses_everybody() -> None:
    operations = (admit("A", 100, 8), commit("A", 8), finish("A"), evict(7), admit("B", 900, 28))
    assert broken(faulty("CounterSkipsPublished"), SEVEN, *operations) == rule("progress", 4)


# -------------------------------------------------------------- released while somebody else still reads


STORED = (admit("A", 100, 8), commit("A", 8), hold("A", "store"))


def test_vllm_52360_a_store_job_that_owns_nothing_is_seen_when_it_starts() -> None:
    assert broken(faulty("StoreIsNoOwner"), SEVEN, *STORED) == rule("counts_match_owners", 2)


def test_vllm_52360_a_storage_reads_a_block_that_may_be_reissued() -> None:
    hidden = cases.uncounted(faulty("StoreIsNoOwner"))
    assert broken(hidden, SEVEN, *STORED, preempt("A")) == rule("owned_xor_free", 3)


def test_tensorrt_llm_9056_the_source_of_a_partial_match_may_be_reissued() -> None:
    partly = Operation("admit", "B", {"tokens": [100, 101, 999, 998, 997]})
    assert broken(faulty("PartialMatchUnprotected"), SEVEN, *CACHED, partly) == rule("reads_keep_their_source", 3)


def test_pytorch_27366_an_order_that_is_not_there_shows_in_the_rows() -> None:
    operations = (*FORKED, finish("A"), admit("C", 900, 4), commit("C", 4), complete(1))
    wrong = ("no_read_before_fill", "wrong_rows", 5, False)
    assert broken(faulty("TrustsAnOrderThatIsNotThere"), small(3), *operations) == wrong


# ------------------------------------------------------------- a queued write into a block that was reissued


def test_vllm_45357_work_in_flight_writes_a_block_that_a_finish_freed() -> None:
    operations = (*FORKED, finish("B"), admit("C", 900, 20))
    assert broken(faulty("FinishFreesTargets"), SEVEN, *operations) == rule("writes_stay_home", 4)


def test_vllm_45357_a_stale_step_overwrites_what_a_transfer_brought() -> None:
    late = (admit("R", 900, 4), Operation("submit", "R"), finish("R"), fork("A", "Q", 6), complete(2))
    wrong = ("no_read_before_fill", "wrong_rows", 6, False)
    operations = (*ROWS, *late, extend("A", [106]), commit("A", 7))
    assert broken(faulty("StaleStepLands"), small(3), *operations) == wrong


def test_sglang_24527_a_remote_writer_outlives_the_abort() -> None:
    operations = (*FORKED, abort("B"), admit("C", 900, 20))
    assert broken(faulty("AbortFreesTargets"), SEVEN, *operations) == rule("writes_stay_home", 4)


def test_sglang_28468_a_destination_looks_idle_and_is_used_again() -> None:
    both = (*ROWS, admit("D", 900, 6), commit("D", 6))
    operations = (*both, fork("A", "B", 6), preempt("B"), fork("D", "C", 6))
    assert broken(faulty("TargetLooksIdle"), small(5), *operations) == rule("writes_stay_home", 5)


def test_sglang_35769_removing_a_duplicate_frees_what_a_copy_will_write() -> None:
    same = (*FORKED, extend("A", [106, 107]), commit("A", 8), extend("B", [106, 107]), commit("B", 8))
    assert broken(faulty("InsertFreesTargets"), SEVEN, *same, admit("C", 900, 20)) == rule("writes_stay_home", 5)


# -------------------------------------------------------------------------- keys that do not tell the truth


def test_vllm_4764_a_block_being_written_can_still_be_hit() -> None:
    operations = (*CACHED, admit("B", 900, 8))
    assert broken(faulty("MapKeepsTheHash"), small(2), *operations) == rule("cache_tells_the_truth", 3)


def test_vllm_56525_a_key_is_published_before_anything_was_written() -> None:
    operations = (admit("A", 100, 8),)
    assert broken(faulty("PublishesWhenScheduled"), SEVEN, *operations) == rule("cache_tells_the_truth", 1)


ABORTED = (admit("A", 100, 8), abort("A"), admit("B", 100, 9), commit("B", 9))


def test_vllm_56525_a_retry_after_an_abort_reads_rows_that_nobody_wrote() -> None:
    early = declared(faulty("PublishesWhenScheduled"), publish="at_allocation")
    assert broken(early, SEVEN, *ABORTED) == ("no_read_before_fill", "wrong_rows", 3, False)


def test_vllm_56525_a_key_of_a_step_that_was_never_submitted_is_a_lie_at_the_abort() -> None:
    steps = frozenset({"cache", "drafts", "forks", "copies", "steps"})
    early = declared(faulty("PublishesWhenScheduled"), publish="at_allocation", capabilities=steps)
    assert broken(early, SEVEN, *ABORTED[:2]) == rule("cache_tells_the_truth", 2)


def test_vllm_34587_a_block_is_full_by_arithmetic_only() -> None:
    operations = (admit("A", 100, 8), commit("A", 6))
    assert broken(faulty("FullByArithmetic"), SEVEN, *operations) == rule("cache_tells_the_truth", 1)


def test_omlx_3087_a_remembered_lookup_leads_to_a_reissued_block() -> None:
    retried = (*CACHED, admit("B", 900, 12), admit("C", 100, 9), admit("D", 1700, 4), finish("B"), admit("C", 100, 9))
    assert broken(faulty("RemembersTheLookup"), small(4), *retried) == rule("writes_stay_home", 7)


# ----------------------------------------------------------------------------- shared and missing rows


def test_atlas_692_a_partly_filled_block_gets_a_second_writer() -> None:
    operations = (*ROWS, admit("C", 100, 6))
    assert broken(faulty("HandsOutThePartialTail"), SEVEN, *operations) == rule("writes_stay_home", 2)


def test_xllm_1984_a_copy_that_is_missing_leaves_unwritten_rows() -> None:
    assert broken(faulty("CopyIsMissing"), SEVEN, *FORKED) == ("no_read_before_fill", "wrong_rows", 2, False)


# ----------------------------------------------------------------------------- drafts, order of removal


def test_vllm_46899_settled_drafts_come_back() -> None:
    operations = (admit("A", 100, 4), commit("A", 4), extend("A", [104], 3), commit("A", 5), extend("A", [105]))
    assert broken(faulty("DraftsOutliveTheirWindow"), SEVEN, *operations) == rule("table_covers_need", 3)


@pytest.mark.xfail(strict=True, reason="no declaration says how far a window looks back")
def test_vllm_47728_blocks_are_pruned_by_an_optimistic_count() -> None:
    advance = Operation("advance", "A", {"rows": 4})
    rejected = (admit("A", 100, 8), commit("A", 8), extend("A", [], 4), advance, commit("A", 8), extend("A", [108]))
    assert broken(faulty("PrunesTheOptimisticCount"), SEVEN, *rejected)[0] == "no_read_before_fill"


def test_vllm_47728_blocks_with_unsettled_rows_are_pruned() -> None:
    operations = (admit("A", 100, 10), commit("A", 2), Operation("advance", "A", {"rows": 6}))
    reserved = ("reserved_ids_untouched", "reserved_block", 1, False)
    assert broken(faulty("PrunesTheOptimisticCount"), SEVEN, *operations) == reserved


@pytest.mark.xfail(strict=True, reason="no declaration says how far a window looks back")
def test_vllm_33997_blocks_are_pruned_as_if_all_drafts_were_accepted() -> None:
    rejected = (admit("A", 100, 8), commit("A", 8), extend("A", [], 4), commit("A", 8), extend("A", [108]))
    assert broken(faulty("PrunesWithDrafts"), SEVEN, *rejected)[0] == "no_read_before_fill"


def test_tvm_17045_removing_a_parent_frees_what_an_earlier_child_shares() -> None:
    operations = (admit("P", 100, 8), commit("P", 8), fork("P", "C1", 8), fork("P", "C2", 4), finish("P"))
    assert broken(faulty("RemovalInReverseOnly"), SEVEN, *operations) == rule("owned_xor_free", 4)


# ------------------------------------------------------------------------------------- admission, atomicity


def test_vllm_39734_a_request_that_never_fits_waits_for_ever() -> None:
    assert broken(faulty("WaitsForEver"), SEVEN, admit("A", 100, 32)) == rule("progress", 1)


LONG = (admit("A", 100, 9), commit("A", 9), finish("A"))


def test_vllm_11565_a_refusal_keeps_the_hits() -> None:
    operations = (*LONG, admit("B", 900, 12), admit("C", 100, 20))
    assert broken(faulty("TouchesBeforeItTests"), small(5), *operations) == rule("nothing_lost", 4)


def test_vllm_11565_hits_counted_as_room_end_in_an_exception() -> None:
    operations = (*LONG, admit("B", 900, 4), admit("C", 100, 20))
    assert broken(faulty("CountsHitsAsRoom"), small(5), *operations) == (None, "raises", 4, False)


def test_vllm_8824_a_test_without_lookahead_ends_in_an_exception() -> None:
    operations = (admit("A", 100, 8), commit("A", 8), extend("A", [], 2))
    assert broken(faulty("TestsWithoutLookahead"), small(2), *operations) == (None, "raises", 2, False)


def test_transformers_46117_a_fork_that_runs_out_orphans_a_block() -> None:
    operations = (admit("P", 100, 8), commit("P", 8), fork("P", "C", 8))
    assert broken(faulty("ForkWithoutUndo"), small(3), *operations) == rule("nothing_lost", 2)


# --------------------------------------------------------------------------------- counts, eviction, pins


SHARED = (admit("P", 100, 8), commit("P", 8), fork("P", "C", 8))


def test_tvm_16666_a_fork_is_not_counted() -> None:
    assert broken(faulty("ForkIsNotCounted"), SEVEN, *SHARED) == rule("counts_match_owners", 2)


def test_tvm_16666_without_counts_the_child_takes_the_parent_s_blocks_away() -> None:
    hidden = cases.uncounted(faulty("ForkIsNotCounted"))
    assert broken(hidden, SEVEN, *SHARED, finish("C")) == rule("owned_xor_free", 3)


def test_atlas_373_an_eviction_ignores_live_owners() -> None:
    operations = (admit("A", 100, 5), commit("A", 5), evict(1))
    assert broken(faulty("EvictionIgnoresOwners"), SEVEN, *operations) == rule("owned_xor_free", 2)


TWINS = (admit("D", 100, 5), admit("A", 100, 5))


def test_atlas_373_the_tree_counts_a_block_that_its_node_does_not_lead_to() -> None:
    operations = (*TWINS, commit("A", 5), commit("D", 5), finish("D"))
    assert broken(faulty("NodeCountsTheWrongBlock"), SEVEN, *operations) == rule("nothing_lost", 3)


def test_tensorrt_llm_12648_a_transfer_pins_a_block_without_owner() -> None:
    operations = (*TWINS, commit("D", 5), commit("A", 5), finish("D"), hold("A", "send"))
    assert broken(faulty("PinsTheTreesBlock"), SEVEN, *operations) == rule("only_owners_release", 4)


def test_vllm_44409_an_allocation_takes_the_block_that_was_hit() -> None:
    operations = (*CACHED, admit("B", 900, 4), admit("C", 100, 12))
    assert broken(faulty("AllocatesBeforeItTouches"), small(3), *operations) == rule("counts_match_owners", 4)


def test_tensorrt_llm_12834_a_counter_above_the_free_list_ends_in_an_exception() -> None:
    operations = (admit("A", 100, 8), commit("A", 8), fork("A", "B", 8), finish("B"), admit("C", 900, 8))
    assert broken(faulty("CounterOfTheWrongLevel"), small(3), *operations) == (None, "raises", 4, False)


# ------------------------------------------------------------------------------------------- state slots


def test_vllm_32118_a_step_continues_from_a_slot_that_nothing_filled() -> None:
    operations = (admit("A", 100, 4), commit("A", 4), fork("A", "B", 4), extend("B", [104]))
    assert broken(faulty("SlotIsNotInitialised"), SLOTTED, *operations) == rule("slot_has_one_writer", 3)


def test_vllm_backport_63_state_is_copied_through_an_old_table() -> None:
    operations = (admit("A", 100, 4), finish("A"), admit("A", 100, 4), commit("A", 4), fork("A", "B", 4))
    assert broken(faulty("CopiesThroughAnOldTable"), SLOTTED, *operations) == rule("slot_has_one_writer", 4)


# ------------------------------------------------------------------------------- widths, records, rows


def test_vllm_10730_a_spare_block_is_allocated_beyond_the_need() -> None:
    assert broken(faulty("AllocatesBeyondTheRow"), SEVEN, admit("A", 100, 8)) == rule("table_covers_need", 1)


def test_sglang_13713_a_ring_wraps_onto_results_not_yet_read() -> None:
    operations = (admit("A", 100, 4), *(take("A", value) for value in range(7)))
    assert broken(faulty("RingOfResults"), SEVEN, *operations) == rule("records_outlive_readers", 1)


def test_sglang_18803_a_row_goes_to_the_next_request_before_its_reader_came() -> None:
    operations = (admit("A", 100, 4), take("A", 7), finish("A"))
    assert broken(faulty("RowGoesWithItsRequest"), SEVEN, *operations) == rule("records_outlive_readers", 2)


def test_sglang_34067_a_deferred_release_is_a_view_of_a_row_that_is_rewritten() -> None:
    operations = (admit("A", 100, 4), commit("A", 4), pin("A", "late"), extend("A", [104]))
    assert broken(faulty("DefersAView"), SEVEN, *operations) == rule("counts_match_owners", 3)


def test_sglang_34067_without_counts_the_replacement_is_freed() -> None:
    operations = (admit("A", 100, 4), commit("A", 4), pin("A", "late"), extend("A", [104]), unpin("late"))
    assert broken(cases.uncounted(faulty("DefersAView")), SEVEN, *operations) == rule("owned_xor_free", 4)


# --------------------------------------------------------------------------------------- without being told

UNAIDED = {
    "TwoPathsFreeTheLastSlot": {"owned_xor_free"},
    "CompensatesWhatIsCached": {"owned_xor_free"},
    "TwoPartsShareABoundary": {"owned_xor_free"},
    "OneCountForTwoEntries": {"counts_match_owners"},
    "DraftsAreNotRecorded": {"nothing_lost"},
    "AcknowledgementOfTheAborted": {"nothing_lost"},
    "CountAndPin": {"counts_match_owners"},
    "StoreIsNoOwner": {"counts_match_owners"},
    "PublishesWhenScheduled": {"cache_tells_the_truth"},
    "FullByArithmetic": {"cache_tells_the_truth"},
    "CopyIsMissing": {"no_read_before_fill"},
    "WaitsForEver": {"progress"},
    "ForkWithoutUndo": {"nothing_lost"},
    "ForkIsNotCounted": {"counts_match_owners"},
    "EvictionIgnoresOwners": {"owned_xor_free"},
    "AllocatesBeyondTheRow": {"table_covers_need"},
    "RowGoesWithItsRequest": {"records_outlive_readers"},
    "PrunesTheOptimisticCount": {"reserved_ids_untouched"},
    "PrunesWithDrafts": {"reserved_ids_untouched"},
}
"""What certify names when nobody tells it the sequence.  Those found within a second or two; others take longer."""
QUICK = Plan(examples=1, pairs=1, rows=1, operations=1_000)
SHORT = replace(QUICK, operations=400)


@pytest.mark.parametrize("name", UNAIDED)
def test_certify_finds_a_public_case_by_itself(name: str) -> None:
    results = (certify(faulty(name), name, plan=QUICK, seed=seed) for seed in range(8))
    finding = next(result.findings[0] for result in results if result.findings)
    assert finding.rule in UNAIDED[name]
    assert finding.length <= 6


# --------------------------------------------------------------------------- what looks like a fault and is none


@pytest.mark.parametrize("name", cases.CORRECT)
def test_an_unusual_but_correct_allocator_is_never_flagged(name: str) -> None:
    result = certify(cases.CORRECT[name], name, plan=SHORT)
    assert result.findings == []
    assert result.operations >= SHORT.operations


def test_addresses_and_tickets_may_be_the_same_numbers() -> None:
    result = certify(cases.built(cases.LowestAddressFirst), "lowest address first", plan=SHORT, seed=1)
    assert result.findings == []


def clean(factory: Factory, configuration: Configuration, *operations: Operation) -> Lockstep:
    """Nothing breaks, and nothing is left at the end."""
    lockstep = Lockstep(factory, configuration)
    for operation in operations:
        lockstep.perform(operation)
    lockstep.drain()
    return lockstep


def test_imp_1120_a_cache_that_fills_is_no_leak() -> None:
    lockstep = Lockstep(make_reference, small(4))
    for number in range(4):
        lockstep.perform(admit("A", 100 + 800 * number, 4))
        lockstep.perform(commit("A", 4))
        lockstep.perform(finish("A"))
    pool = lockstep.snapshot[BLOCKS]
    assert (len(pool.free), len(pool.evictable)) == (0, 4)
    lockstep.perform(admit("B", 5000, 16))
    lockstep.drain()


def test_nano_vllm_163_a_stale_map_entry_is_no_fault_while_hits_are_checked() -> None:
    lockstep = Lockstep(cases.CORRECT["StaleMapEntries"], small(2))
    for operation in (*CACHED, admit("B", 900, 8)):
        lockstep.perform(operation)
    cache = lockstep.allocator.engine.cache
    assert set(cache._block_of.values()) - set(cache.keys) == {1}
    lockstep.drain()


def test_sglang_19024_a_slot_of_a_request_that_waits_is_owned() -> None:
    waiting = (admit("A", 100, 4), admit("B", 900, 4), preempt("A"), admit("A", 100, 4))
    clean(make_reference, SLOTTED, *waiting)


def test_vllm_55092_one_key_may_lead_to_several_blocks() -> None:
    lockstep = clean(
        cases.CORRECT["SeveralBlocksOneKey"],
        SEVEN,
        *TWINS,
        commit("A", 5),
        commit("D", 5),
        finish("A"),
        evict(1),
        admit("C", 100, 6),
        commit("C", 6),
    )
    assert lockstep.statistics["hits"] == 1


def test_sglang_35270_an_excess_is_not_reported_as_a_leak() -> None:
    lockstep = Lockstep(faulty("TwoPartsShareABoundary"), SEVEN)
    with pytest.raises(Violation, match="block 2 stands in the free list more than once"):
        for operation in (*ROWS, extend("A", [106, 107, 108]), finish("A")):
            lockstep.perform(operation)


def test_vllm_45357_a_request_that_ends_under_its_own_step_may_free_at_once() -> None:
    reference = cases.CORRECT["ReleasesUnderItsOwnStep"]
    clean(reference, small(2), admit("A", 100, 8), Operation("submit", "A"), finish("A"), admit("B", 900, 8))


def test_vllm_45096_on_one_stream_a_block_is_reissued_under_queued_work() -> None:
    operations = (*FORKED, finish("A"), admit("C", 900, 4), commit("C", 4), complete(1))
    clean(cases.CORRECT["SameStream"], small(3), *operations)


def test_every_faulty_case_has_a_report() -> None:
    assert len(cases.CASES) == 49
    assert all(case.reports and all("#" in report for report in case.reports) for case in cases.CASES.values())
