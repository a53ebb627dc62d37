"""Claims about the adapter over the real ``transformers`` cache: it observes honestly and it drives the engine."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="pip install 'kvproof[transformers]'")
pytest.importorskip("transformers", reason="pip install 'kvproof[transformers]'")

from kvproof.checks.adapters.transformers import (
    FOREIGN,
    TransformersAllocator,
    geometry,
    lineage_after,
    make_transformers,
)
from kvproof.model.interface import BLOCKS, Answer, Configuration, Factory, Pool, capabilities_of, declaration_of


def pool_of(target: TransformersAllocator) -> Pool:
    return target.snapshot()[BLOCKS]


def partition_faults(pool: Pool) -> list[str]:
    """What is wrong with one observation, as sentences: the state rules that need no history."""
    faults = []
    free, owners = Counter(pool.free), Counter(block for table in pool.tables.values() for block in set(table))
    for table in pool.tables.values():
        if len(set(table)) != len(table):
            faults.append(f"a table names a block twice: {table}")
    if doubled := [block for block, n in free.items() if n > 1]:
        faults.append(f"free twice: {doubled}")
    if both := set(owners) & set(free):
        faults.append(f"owned and free: {sorted(both)}")
    if both := set(owners) & pool.evictable:
        faults.append(f"owned and evictable: {sorted(both)}")
    if both := set(free) & pool.evictable:
        faults.append(f"free and evictable: {sorted(both)}")
    everything = set(owners) | set(free) | pool.evictable
    if lost := pool.usable - everything:
        faults.append(f"lost: {sorted(lost)}")
    if alien := everything - pool.usable:
        faults.append(f"not usable: {sorted(alien)}")
    assert pool.counts is not None
    assert pool.keys is not None
    if wrong := {block: n for block, n in pool.counts.items() if owners[block] != n}:
        faults.append(f"counts that are not the number of owners: {wrong}")
    if stale := set(pool.keys) & set(free):
        faults.append(f"free with a key: {sorted(stale)}")
    if bare := pool.evictable - set(pool.keys):
        faults.append(f"evictable without a key: {sorted(bare)}")
    return faults


class Driver:
    """Drives a target at random, keeps the history of every request, and checks after each operation."""

    def __init__(self, configuration: Configuration, seed: int, factory: Factory = make_transformers) -> None:
        self.target: Any = factory(configuration)
        self.size = configuration.block_size
        self.random = random.Random(seed)
        self.history: dict[str, list[int]] = {}
        self.committed: dict[str, int] = {}
        self.queued: list[int] = []
        self.most = configuration.blocks * configuration.block_size // 3
        self.names = 0
        self.seen: Counter[str] = Counter()

    def name(self) -> str:
        self.names += 1
        return f"r{self.names}"

    def run(self, operations: int) -> None:
        for _ in range(operations):
            self.step()

    def step(self) -> None:
        before = pool_of(self.target)
        verb, refused, asker = self.operation()
        self.seen[verb] += 1
        after = pool_of(self.target)
        assert partition_faults(after) == [], (verb, asker)
        need = {request: -(-len(tokens) // self.size) for request, tokens in self.history.items()}
        assert {request: len(table) for request, table in after.tables.items()} == need, (verb, asker)
        if refused:
            self.seen[f"{verb} later"] += 1
            assert after.tables == before.tables, (verb, asker)

    def operation(self) -> tuple[str, bool, str]:
        draw = self.random.random()
        live = sorted(self.history)
        if draw < 0.25 or not live:
            return self.admit()
        request = self.random.choice(live)
        if draw < 0.47:
            return self.extend(request)
        if draw < 0.57:
            return self.fork(request)
        if draw < 0.65 and self.queued:
            self.target.complete([self.queued.pop(self.random.randrange(len(self.queued)))])
            return "complete", False, request
        if draw < 0.67:
            self.seen["evicted on demand"] += self.target.evict(1)
            return "evict", False, request
        if draw < 0.75:
            self.check_rows(request)
            return "read", False, request
        self.target.release(request, self.random.choice(("finish", "preempt", "abort")))
        del self.history[request], self.committed[request]
        return "release", False, request

    def admit(self) -> tuple[str, bool, str]:
        request, draw = self.name(), self.random
        tokens = [draw.randrange(2)] * (draw.randrange(self.most) + 1)
        if draw.random() < 0.3:
            tokens = tokens[: self.size] + [draw.randrange(3) for _ in range(draw.randrange(12))] + tokens[self.size :]
        reply = self.target.admit(request, tokens)
        self.seen["evicted for room"] += len(reply.evicted or ())
        if reply.answer is not Answer.OK:
            return "admit", True, request
        self.seen["hits"] += bool(reply.hit_rows)
        assert reply.hit_rows < len(tokens)
        assert reply.hit_rows % self.size == 0
        self.history[request], self.committed[request] = tokens, reply.hit_rows
        self.check_rows(request)
        self.commit(request, draw.randrange(reply.hit_rows, len(tokens) + 1))
        return "admit", False, request

    def extend(self, request: str) -> tuple[str, bool, str]:
        tokens = [self.random.randrange(2)] * self.random.randrange(1, 2 * self.size)
        reply = self.target.extend(request, tokens)
        self.seen["evicted for room"] += len(reply.evicted or ())
        if reply.answer is not Answer.OK:
            return "extend", True, request
        self.history[request] = self.history[request] + tokens
        self.commit(request, len(self.history[request]))
        return "extend", False, request

    def commit(self, request: str, rows: int) -> None:
        before = pool_of(self.target).tables[request]
        self.target.commit(request, rows)
        self.committed[request] = max(self.committed[request], rows)
        self.seen["swapped to a known block"] += pool_of(self.target).tables[request] != before
        self.check_rows(request)

    def fork(self, parent: str) -> tuple[str, bool, str]:
        child = self.name()
        rows = self.committed[parent]
        if self.random.random() < 0.3:
            rows = self.random.randrange(rows + 1)
        reply = self.target.fork(parent, child, rows)
        if reply.answer is not Answer.OK:
            return "fork", True, parent
        self.queued += [copy.ticket for copy in reply.copies]
        self.seen["copies"] += len(reply.copies)
        self.history[child], self.committed[child] = self.history[parent][:rows], rows
        if self.random.random() < 0.5:
            self.target.complete([copy.ticket for copy in reply.copies])
            self.check_rows(child)
        return "fork", False, parent

    def check_rows(self, request: str) -> None:
        assert self.target.read(request) == self.history[request][: self.committed[request]], request

    def drain(self) -> None:
        for request in sorted(self.history):
            self.target.release(request, "finish")
        self.target.evict(10**6)
        pool = pool_of(self.target)
        assert sorted(pool.free) == sorted(pool.usable)
        assert pool.keys == {}


@pytest.mark.parametrize(("blocks", "block_size"), [(24, 8), (40, 4), (11, 4), (30, 16)])
def test_the_real_cache_keeps_every_state_rule_and_its_rows_under_random_operations(
    blocks: int, block_size: int
) -> None:
    driver = Driver(Configuration(blocks=blocks, block_size=block_size), seed=5)
    driver.run(500)
    driver.drain()
    for wanted in ("hits", "fork", "copies", "evicted for room", "admit later", "extend later", "fork later"):
        assert driver.seen[wanted] > 0, driver.seen
    assert driver.seen["swapped to a known block"] > 0, driver.seen


def test_two_runs_with_one_seed_are_equal_and_instances_share_nothing() -> None:
    first, second = (Driver(Configuration(blocks=24, block_size=4), seed=11) for _ in range(2))
    first.run(120)
    second.run(120)
    assert pool_of(first.target) == pool_of(second.target)
    assert first.seen == second.seen


@pytest.mark.parametrize("block_size", [1, 3, 4, 8, 16])
def test_usable_blocks_are_exactly_those_asked_for(block_size: int) -> None:
    for blocks in range(1, 25):
        pool = pool_of(make_transformers(Configuration(blocks=blocks, block_size=block_size)))
        assert len(pool.usable) == blocks
        assert sorted(pool.free) == sorted(pool.usable)
        assert not pool.usable & pool.reserved


def test_sectors_of_several_blocks_are_used_where_they_divide_the_pool() -> None:
    assert geometry(40, 4).blocks_per_sector == 4
    assert geometry(6, 4).blocks_per_sector == 2
    assert geometry(7, 4).blocks_per_sector == 1


def test_what_is_declared_is_there() -> None:
    target = make_transformers(Configuration())
    assert capabilities_of(target) == {"forks", "copies", "cache", "rows"}
    declared = declaration_of(target)
    assert (declared.release_rule, declared.destination, declared.publish) == ("stream", "ordered", "after_step")
    assert declared.surplus == "exact"
    assert declared.never is False


def test_a_fork_shares_complete_blocks_and_copies_the_tail() -> None:
    target = make_transformers(Configuration(blocks=7, block_size=4))
    target.admit("parent", range(100, 110))
    target.commit("parent", 10)
    reply = target.fork("parent", "child", 10)
    tables = pool_of(target).tables
    assert tables["parent"][:2] == tables["child"][:2]
    assert [(c.source, c.destination, c.rows) for c in reply.copies] == [(tables["parent"][2], tables["child"][2], 2)]
    target.complete([reply.copies[0].ticket])
    assert target.read("child") == list(range(100, 110))


def test_the_stream_orders_a_copy_before_the_next_owner_of_its_source_writes() -> None:
    """The parent finishes and its tail is reissued and written while the copy is queued: legal on one stream."""
    target = make_transformers(Configuration(blocks=4, block_size=4))
    target.admit("parent", range(100, 110))
    target.commit("parent", 10)
    copy = target.fork("parent", "child", 10).copies[0]
    target.release("parent", "finish")
    target.admit("writer", [900, 901, 902])
    assert pool_of(target).tables["writer"] == (copy.source,)
    target.commit("writer", 3)
    target.complete([copy.ticket])
    assert target.read("child") == list(range(100, 110))
    assert target.read("writer") == [900, 901, 902]


def test_a_copy_that_is_never_run_shows_in_the_rows() -> None:
    target = make_transformers(Configuration(blocks=7, block_size=4))
    target.cache.perform_cache_copy = lambda _pairs: None
    target.admit("parent", range(100, 110))
    target.commit("parent", 10)
    target.fork("parent", "child", 10)
    assert target.read("child") == [*range(100, 108), 0, 0]


def test_the_right_token_on_the_wrong_prefix_shows_as_foreign() -> None:
    target = make_transformers(Configuration(blocks=7, block_size=4))
    target.admit("a", [1, 1, 1, 1, 5, 5])
    target.commit("a", 6)
    target.admit("b", [2, 2, 2, 2, 5, 5])
    target.commit("b", 6)
    group = target.cache.cache_allocators["full_attention"]
    group.block_table["b"][1] = group.block_table["a"][1]
    assert target.read("a") == [1, 1, 1, 1, 5, 5]
    assert target.read("b") == [2, 2, 2, 2, FOREIGN, FOREIGN]
    assert lineage_after(lineage_after(0, 1), 5) != lineage_after(lineage_after(0, 2), 5)


def test_a_whole_prompt_hit_leaves_at_least_one_token_to_compute() -> None:
    target = make_transformers(Configuration(blocks=9, block_size=4))
    target.admit("first", [3] * 8)
    target.commit("first", 8)
    reply = target.admit("second", [3] * 8)
    assert reply.hit_rows == 4
    first, second = (pool_of(target).tables[r] for r in ("first", "second"))
    assert second[0] == first[0]
    assert second[1] != first[1]
    target.commit("second", 8)
    assert pool_of(target).tables["second"] == first, "the recomputed block is swapped for the known one"
    assert second[1] in pool_of(target).free
    assert target.read("second") == [3] * 8


def test_contents_can_be_hit_only_after_the_step_that_fills_them() -> None:
    target = make_transformers(Configuration(blocks=9, block_size=4))
    target.admit("first", [3] * 9)
    assert target.admit("early", [3] * 9).hit_rows == 0
    target.commit("first", 9)
    assert target.admit("late", [3] * 9).hit_rows == 8


def test_a_refused_admission_owns_nothing_even_when_it_had_hit() -> None:
    target = make_transformers(Configuration(blocks=6, block_size=4))
    target.admit("first", [3] * 9)
    target.commit("first", 9)
    target.release("first", "finish")
    before = pool_of(target)
    assert len(before.evictable) == 2
    reply = target.admit("second", [3] * 8 + [4] * 20)
    after = pool_of(target)
    assert reply.answer is Answer.LATER
    assert reply.evicted == (), "the only cached blocks were hit, so there was nothing left to evict"
    assert after.tables == {}
    assert after.evictable == frozenset(), "put back without being cached again"
    assert sorted(after.free) == sorted(after.usable)


def test_a_refused_extension_leaves_the_table_and_evicts_all_cached_blocks() -> None:
    target = make_transformers(Configuration(blocks=6, block_size=4))
    target.admit("done", [3] * 8)
    target.commit("done", 8)
    target.release("done", "finish")
    target.admit("live", [5] * 4)
    before = pool_of(target)
    reply = target.extend("live", [6] * 40)
    after = pool_of(target)
    assert reply.answer is Answer.LATER
    assert set(reply.evicted or ()) == before.evictable
    assert len(before.evictable) == 2
    assert after.tables == before.tables


def test_a_fork_out_of_memory_is_refused_without_eviction() -> None:
    target = make_transformers(Configuration(blocks=4, block_size=4))
    target.admit("done", [3] * 4)
    target.commit("done", 4)
    target.release("done", "finish")
    target.admit("parent", [5] * 10)
    target.commit("parent", 10)
    before = pool_of(target)
    assert target.fork("parent", "child", 10).answer is Answer.LATER
    assert pool_of(target) == before
    assert target.evict(1) == 1
    assert target.fork("parent", "child", 10).answer is Answer.OK


def test_a_fork_below_what_the_parent_has_reserved_shares_and_copies_only_up_to_there() -> None:
    target = make_transformers(Configuration(blocks=8, block_size=4))
    target.admit("parent", range(100, 114))
    target.commit("parent", 14)
    table = pool_of(target).tables["parent"]
    (copy,) = target.fork("parent", "child", 5).copies
    assert (copy.source, copy.rows) == (table[1], 1)
    assert pool_of(target).tables == {"parent": table, "child": (table[0], copy.destination)}
    assert target.read("child") == list(range(100, 105))
    target.extend("child", [9, 9, 9])
    target.commit("child", 8)
    assert target.read("child") == [*range(100, 105), 9, 9, 9]
    assert target.read("parent") == list(range(100, 114))
    assert target.fork("parent", "at a boundary", 8).copies == ()


@pytest.mark.parametrize(("reason", "kept"), [("finish", 2), ("abort", 2), ("preempt", 0)])
def test_a_preempted_request_leaves_nothing_in_the_cache(reason: str, kept: int) -> None:
    target = make_transformers(Configuration(blocks=6, block_size=4))
    target.admit("first", [3] * 9)
    target.commit("first", 9)
    target.release("first", reason)  # type: ignore[arg-type]
    assert len(pool_of(target).evictable) == kept


def test_misuse_of_the_adapter_is_named() -> None:
    target = make_transformers(Configuration())
    target.admit("a", [1, 2, 3])
    target.commit("a", 2)
    with pytest.raises(ValueError, match="no drafts"):
        target.extend("a", [4], drafts=1)
    with pytest.raises(ValueError, match="only 3 positions are reserved"):
        target.commit("a", 4)
    with pytest.raises(ValueError, match="only 2 rows are committed"):
        target.fork("a", "b", 3)
    with pytest.raises(ValueError, match="not live"):
        target.release("ghost", "finish")
    with pytest.raises(ValueError, match="no copy was queued with ticket 3"):
        target.complete([3])


@pytest.mark.parametrize("missing", ["torch", "transformers"])
def test_without_its_packages_the_import_says_what_to_install(missing: str) -> None:
    program = f"import sys; sys.modules[{missing!r}] = None; import kvproof.checks.adapters.transformers"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: ")
    assert "pip install 'kvproof[transformers]'" in last


# The engine's own scheduler does the same


class RealScheduler:
    """The engine's scheduler and offloading manager on a cache of the same shape, one batch a verb."""

    def __init__(self, configuration: Configuration) -> None:
        engine = "transformers.generation.continuous_batching"
        requests, scheduling = import_module(f"{engine}.requests"), import_module(f"{engine}.scheduler")
        helper = import_module(f"{engine}.distributed").DistributedHelper(None, None)
        self.target = make_transformers(configuration)
        self.cache = self.target.cache
        self.state_type, self.status = requests.RequestState, requests.RequestStatus
        self.scheduler = scheduling.PrefillFirstScheduler(self.cache, None, 99)
        offloading = import_module(f"{engine}.offloading_manager").OffloadingManager
        self.offloading = offloading(self.cache, self.scheduler, 0.0, 0.5, None, helper)
        self.states: dict[str, Any] = {}

    def admit(self, request: str, tokens: list[int]) -> bool:
        state = self.state_type(request_id=request, initial_tokens=list(tokens), max_new_tokens=None)
        self.scheduler.add_waiting_request(state)
        scheduled = self._batch(request)
        if scheduled is None and self.offloading.offload_requests() and not self.scheduler.block_new_requests:
            scheduled = self._batch(request)  # something was evicted and the request was not put back
        if not scheduled:
            self.scheduler.reset()
            return False
        self.states[request] = state
        self._update(state, scheduled)
        return True

    def extend(self, request: str, tokens: list[int]) -> bool:
        state = self.states[request]
        state.tokens_to_process = list(tokens)
        scheduled = self._batch(request)
        if scheduled is None and self.cache.evict_cached_blocks():  # the first thing that offloading does
            scheduled = self._batch(request)
        if not scheduled:
            return False
        state.generated_tokens.extend(tokens)
        self._update(state, scheduled)
        return True

    def release(self, request: str, reason: str) -> None:
        self.states.pop(request)
        if reason == "preempt":
            self.cache.free_blocks(request, no_cache=True)
        if reason == "abort":
            self.scheduler.set_request_cancellation(request)
            self.scheduler.clear_cancelled_requests()
        else:
            self.scheduler.finish_request(request)

    def _batch(self, request: str) -> Any:
        """One batch for this request: the others are there, but have nothing to do."""
        for name, state in self.states.items():
            state._status = self.status.DECODING if name == request else self.status.PENDING
        self.scheduler.active_requests.update(self.states)
        self.scheduler.block_new_requests = False
        return self.scheduler.schedule_batch(10**6, 10**6)[0]

    def _update(self, state: Any, scheduled: list[Any]) -> None:
        (future,) = scheduled
        state.position_offset += future.query_length
        state._status = self.status.DECODING
        self.cache.mark_complete_blocks(state, future.complete_blocks)
        self.scheduler.active_requests.pop(state.request_id, None)


def test_the_real_scheduler_leaves_the_cache_in_the_same_state_after_every_operation() -> None:
    draw, seen = random.Random(2), Counter[str]()
    configuration = Configuration(blocks=12, block_size=4)
    ours, real = make_transformers(configuration), RealScheduler(configuration)
    history: dict[str, list[int]] = {}
    for number in range(400):
        verb = draw.choice(("admit", "extend", "release") if history else ("admit",))
        request = draw.choice(sorted(history)) if verb != "admit" else f"r{number}"
        if verb == "release":
            reason = draw.choice(("finish", "preempt", "abort"))
            ours.release(request, reason)
            real.release(request, reason)
            del history[request]
        else:
            tokens = [draw.randrange(2)] * draw.randrange(1, 24 if verb == "admit" else 9)
            reply = ours.admit(request, tokens) if verb == "admit" else ours.extend(request, tokens)
            accepted = real.admit(request, tokens) if verb == "admit" else real.extend(request, tokens)
            assert accepted == (reply.answer is Answer.OK), (number, verb)
            seen["evicted"] += bool(reply.evicted)
            seen[f"{verb} {reply.answer.value}"] += 1
            seen["hit"] += bool(reply.hit_rows)
            if accepted:
                history[request] = history.get(request, []) + tokens
                ours.commit(request, len(history[request]))
        assert pool_of(ours) == pool_of(real.target), (number, verb)
    assert min(seen[k] for k in ("admit ok", "admit later", "extend ok", "extend later", "hit", "evicted")) > 5, seen


# Planted faults


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    return import_module("tests.planted")


FAULTS = [
    "drops_a_release",
    "issues_a_block_twice",
    "frees_and_rewrites_the_source_before_the_copy",
    "keeps_a_key_after_the_block_is_reissued",
    "keeps_a_block_when_it_refuses",
    "forgets_to_count_a_sharer",
    "skips_the_copy",
    "publishes_before_the_step",
    "hands_out_a_trash_block",
]


def test_every_planted_fault_is_tried_here(planted: Any) -> None:
    assert list(planted.PLANTED) == FAULTS


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize(("blocks", "block_size"), [(7, 4), (24, 4), (40, 4)])
def test_a_planted_fault_is_visible_under_random_operations(
    planted: Any, fault: str, blocks: int, block_size: int
) -> None:
    driver = Driver(Configuration(blocks=blocks, block_size=block_size), seed=3, factory=planted.make_planted(fault))
    with pytest.raises(AssertionError):
        driver.run(300)


def test_a_dropped_release_loses_the_block(planted: Any) -> None:
    target = planted.drops_a_release(Configuration(blocks=7, block_size=4))
    target.admit("a", range(5))
    target.release("a", "finish")
    assert partition_faults(pool_of(target)) == ["lost: [7]"]


def test_a_block_issued_twice_is_owned_and_free(planted: Any) -> None:
    target = planted.issues_a_block_twice(Configuration(blocks=7, block_size=4))
    target.admit("a", [1])
    assert partition_faults(pool_of(target)) == ["owned and free: [8]"]


def test_a_source_rewritten_before_its_copy_shows_in_the_childs_rows(planted: Any) -> None:
    target = planted.frees_and_rewrites_the_source_before_the_copy(Configuration(blocks=7, block_size=4))
    target.admit("parent", range(100, 110))
    target.commit("parent", 10)
    reply = target.fork("parent", "child", 10)
    target.complete([copy.ticket for copy in reply.copies])
    assert target.read("child") == [*range(100, 108), 900, 900]
    assert "parent" not in pool_of(target).tables


def test_a_key_kept_after_eviction_shows_on_the_free_and_on_the_reissued_block(planted: Any) -> None:
    target = planted.keeps_a_key_after_the_block_is_reissued(Configuration(blocks=2, block_size=4))
    target.admit("a", [1] * 4)
    target.commit("a", 4)
    (block,) = pool_of(target).tables["a"]
    key = pool_of(target).keys[block]
    target.release("a", "finish")
    assert target.evict(1) == 1
    assert block in pool_of(target).free
    target.admit("b", [2] * 8)
    target.commit("b", 8)
    assert block in pool_of(target).tables["b"]
    assert pool_of(target).keys[block] == key
    target.release("b", "finish")
    assert target.admit("c", [1] * 5).hit_rows == 4
    assert target.read("c") == [2, 2, 2, 2]


def test_a_block_kept_by_a_refusal_shows_in_a_table(planted: Any) -> None:
    target = planted.keeps_a_block_when_it_refuses(Configuration(blocks=3, block_size=4))
    assert target.admit("a", [1] * 20).answer is Answer.LATER
    assert [len(table) for table in pool_of(target).tables.values()] == [1]


def test_an_uncounted_sharer_shows_in_the_counts(planted: Any) -> None:
    target = planted.forgets_to_count_a_sharer(Configuration(blocks=7, block_size=4))
    target.admit("a", [1] * 4)
    target.commit("a", 4)
    target.fork("a", "b", 4)
    assert partition_faults(pool_of(target)) == ["counts that are not the number of owners: {8: 1}"]


def test_contents_published_too_early_are_hit_before_they_are_there(planted: Any) -> None:
    target = planted.publishes_before_the_step(Configuration(blocks=7, block_size=4))
    target.admit("a", [5] * 8)
    assert target.admit("b", [5] * 6).hit_rows == 4
    assert target.read("b") == [0, 0, 0, 0]
