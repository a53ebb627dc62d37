"""Operations per second: the model's pool and engine against a bare dictionary and deque.

Run it with ``python tests/benchmarks/bench_model.py``.  Everything is measured in one run, in turns, and
reported as a ratio, so that a busy machine disturbs both sides alike.  The bare version does the
same work without owner counts, without answers and without any check.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable

from kvproof.model.engine import Engine
from kvproof.model.interface import Configuration
from kvproof.model.pool import BlockPool
from kvproof.model.reference import ReferenceAllocator
from kvproof.model.transitions import PoolMachine

BLOCKS, SIZE, ROUNDS = 1000, 16, 5
Program = list[tuple[str, str, int]]


def program(operations: int) -> Program:
    """Admissions, growth by a token and ends, never beyond the pool."""
    rng = random.Random(1)
    lengths: dict[str, int] = {}
    written: Program = []
    for number in range(operations):
        used = sum(-(-length // SIZE) for length in lengths.values())
        kind = rng.random()
        if kind < 0.05 and used < BLOCKS * 0.8:
            name, length = f"r{number}", rng.randint(1, 400)
            lengths[name] = length
            written.append(("admit", name, length))
        elif kind < 0.1 and lengths:
            name = rng.choice(list(lengths))
            del lengths[name]
            written.append(("finish", name, 0))
        elif lengths and used < BLOCKS * 0.95:
            name = rng.choice(list(lengths))
            lengths[name] += 1
            written.append(("grow", name, 1))
    return written


def bare(work: Program) -> None:
    """A dictionary of tables and a deque of free blocks."""
    free = deque(range(1, BLOCKS + 1))
    tables: dict[str, list[int]] = {}
    lengths: dict[str, int] = {}
    for operation, name, amount in work:
        if operation == "admit":
            lengths[name] = amount
            tables[name] = [free.popleft() for _ in range(-(-amount // SIZE))]
        elif operation == "grow":
            lengths[name] += amount
            if -(-lengths[name] // SIZE) > len(tables[name]):
                tables[name].append(free.popleft())
        else:
            free.extend(reversed(tables.pop(name)))
            del lengths[name]


def pool(work: Program) -> None:
    """The same with :class:`BlockPool`: counts, and a check of every block released."""
    blocks = BlockPool(BLOCKS)
    tables: dict[str, list[int]] = {}
    lengths: dict[str, int] = {}
    for operation, name, amount in work:
        if operation == "admit":
            lengths[name] = amount
            tables[name] = blocks.allocate(-(-amount // SIZE))
        elif operation == "grow":
            lengths[name] += amount
            if -(-lengths[name] // SIZE) > len(tables[name]):
                tables[name] += blocks.allocate(1)
        else:
            blocks.release(tables.pop(name))
            del lengths[name]


def engine(work: Program) -> None:
    """The same with :class:`Engine`: answers, requests, every check."""
    model = Engine(BLOCKS, SIZE)
    for operation, name, amount in work:
        if operation == "admit":
            model.admit(name, amount)
        elif operation == "grow":
            model.extend(name, amount)
        else:
            model.release(name)


def reference(work: Program) -> None:
    """The same with :class:`ReferenceAllocator`: prefix cache, row contents, commits."""
    model = ReferenceAllocator(Configuration(BLOCKS, SIZE, 10**6))
    for operation, name, amount in work:
        if operation == "admit":
            model.admit(name, range(amount))
            model.commit(name, amount)
        elif operation == "grow":
            model.extend(name, [1])
            model.commit(name, model.engine.requests[name].length)
        else:
            model.release(name, "finish")


def best(run: Callable[[], object]) -> float:
    """Seconds of the fastest of several runs."""
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def transitions(edges: int = 20_000) -> float:
    """Seconds for each restore, move and state of the explored engine."""
    machine = PoolMachine(4)
    rng = random.Random(1)
    work = []
    for _ in range(edges):
        move = rng.choice(machine.moves())
        work.append((machine.state(), move))
        machine.apply(move)

    def run() -> None:
        for state, move in work:
            machine.restore(state)
            machine.apply(move)
            machine.state()

    return best(run) / edges


def main() -> None:
    """Print the table."""
    work = program(40_000)
    seconds = {run.__name__: best(lambda run=run: run(work)) for run in (bare, pool, engine, reference)}  # type: ignore[misc]
    print(f"{len(work):,} operations: admit, grow by one token, finish; {BLOCKS} blocks of {SIZE}")
    for name, taken in seconds.items():
        print(f"  {name:<10} {len(work) / taken:>12,.0f} operations/s   {taken / seconds['bare']:>6.1f} x bare")
    print(f"  restore, move and state of the explored engine: {transitions() * 1e6:.1f} microseconds")


if __name__ == "__main__":
    main()
