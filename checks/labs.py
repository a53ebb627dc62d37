"""The chapter's two labs, run on the model: their output is the chapter's, byte for byte.

``lab_blocks`` is section 4.1 (hand out memory in blocks), ``lab_share`` section 4.2 (two owners, one
block).  The options are the exercises of section 4.6.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvproof.model.engine import Engine
from kvproof.model.interface import Answer
from kvproof.model.pool import ReleaseOrder
from kvproof.model.worker import Contents, Worker

BLOCK_SIZE = 4
WORDS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
MOST_DRAFTS = len(WORDS) - 1
MOST_PROCESSED = 12
"""Longest prefix of the second lab: its pool has four blocks, and a partial tail needs one of them."""


def lab_blocks(drafts: int = 2, release_order: ReleaseOrder = "reverse") -> str:
    """Section 4.1: seven usable blocks of four positions, two requests, ``drafts`` reserved at length 11."""
    if not 0 <= drafts <= MOST_DRAFTS:
        raise ValueError(f"drafts is {drafts}: choose 0 to {MOST_DRAFTS}")
    return "".join(line + "\n" for line in _blocks(drafts, release_order))


def _blocks(drafts: int, release_order: ReleaseOrder) -> Iterator[str]:
    engine = Engine(7, BLOCK_SIZE, release_order=release_order)
    engine.admit("A", 6)
    engine.admit("B", 9)
    yield _show(engine, "admit A(6), B(9)")
    engine.extend("A", 2)
    yield _show(engine, "A reaches 8 tokens")
    engine.extend("A", 1)
    yield _show(engine, "A reaches 9 tokens")
    if engine.extend("A", 2, drafts) is Answer.OK:
        yield _show(engine, f"A at 11, {WORDS[drafts]} drafts reserved")
    else:
        engine.extend("A", 2)
        yield _show(engine, f"A at 11, {WORDS[drafts]} drafts: LATER")
    engine.extend("A", 1)
    yield _show(engine, "drafts rejected; A at 12")
    yield f"admission check for 4 blocks: {engine.blocks.answer(4).name}"
    engine.release("B")
    yield _show(engine, "B finishes")
    yield f"admission check for 4 blocks: {engine.blocks.answer(4).name}"
    yield f"admission check for 8 blocks: {engine.blocks.answer(8).name}"


def _show(engine: Engine, what: str) -> str:
    """One line; checks that every usable block is owned or free, never both and never neither."""
    pool = engine.blocks
    owned = [block for request in engine.requests.values() for block in request.table]
    assert sorted([*pool.free, *set(owned)]) == list(range(1, pool.usable + 1))
    tables = " ".join(f"{name}={request.table}" for name, request in engine.requests.items())
    return f"{what:<30} {tables:<28} free={list(pool.free)}"


def lab_share(processed: int = 10, release_order: ReleaseOrder = "reverse") -> str:
    """Section 4.2: a child shares ``processed`` tokens; its pin on the tail goes too early, then in time."""
    if not 1 <= processed <= MOST_PROCESSED:
        raise ValueError(f"processed is {processed}: choose 1 to {MOST_PROCESSED}")
    runs = (_share(processed, release_order, early) for early in (True, False))
    return "\n".join("".join(line + "\n" for line in run) for run in runs)


def _share(processed: int, release_order: ReleaseOrder, early: bool) -> Iterator[str]:
    yield f"Release the tail pin {'before' if early else 'after'} the queued copy"
    engine, worker = Engine(4, BLOCK_SIZE, release_order=release_order), Worker(BLOCK_SIZE, ring=1)
    prompt = Contents(range(100, 100 + processed))
    _admit(engine, worker, "parent", prompt)

    engine.fork("parent", "child", processed)
    child = engine.requests["child"]
    shared = child.table[: processed // BLOCK_SIZE]
    copies = list(engine.copies.values())
    for copy in copies:
        worker.submit(copy)
    counts = " ".join(f"{block}:{count}" for block, count in sorted(engine.blocks.counts.items()))
    pairs = [(copy.source, copy.destination) for copy in copies]
    yield f"  fork: parent={engine.requests['parent'].table} child={child.table} refs {counts} copy={pairs}"

    def release_pins() -> None:
        """The host believes that the copies are done.  Only in the second run has it waited for them."""
        for copy in copies:
            engine.complete(copy.ticket)
        engine.collect([copy.ticket for copy in copies])

    engine.release("parent")
    assert all(engine.blocks.count(block) == 1 for block in shared)  # the data outlives its first owner
    yield f"  parent finishes: free={list(engine.blocks.free)}; shared {shared} kept"

    if early:
        release_pins()

    # The writer wants every block that the child does not own, the copy's source among them.
    writer = Contents(range(900, 900 + (engine.blocks.usable - len(child.table)) * BLOCK_SIZE))
    if _admit(engine, worker, "writer", writer):
        moment = "before the copy runs" if copies else "and no copy was queued"
        yield f"  writer receives {_named(engine.requests['writer'].table)} {moment}"
    for copy in copies:
        worker.observe(copy.ticket)
    if "writer" not in engine.requests:
        release_pins()
        _admit(engine, worker, "writer", writer)
        yield f"  writer waits; receives {_named(engine.requests['writer'].table)} after the copy"

    rows = [stamp.token for stamp in worker.read(child, processed)]
    yield f"  child reads {rows[:2]}...{rows[-2:]}: correct={rows == prompt.tokens}"


def _admit(engine: Engine, worker: Worker, name: str, contents: Contents) -> bool:
    """Admit a request, run the step that writes all its rows, and commit them."""
    length = len(contents.tokens)
    if engine.admit(name, length) is not Answer.OK:
        return False
    worker.step(engine.requests[name], contents, length)
    worker.finish_steps()
    engine.commit(name, length)
    return True


def _named(blocks: list[int]) -> str:
    return f"block {blocks[0]}" if len(blocks) == 1 else f"blocks {blocks}"
