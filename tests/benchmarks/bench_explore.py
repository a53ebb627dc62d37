"""How fast is ``explore --subject spec``?  Against SPIN and against a plain Python search, in one run.

    python tests/benchmarks/bench_explore.py [--blocks 5] [--skip-spin] [--skip-python]

The system is the spec's pool: unordered free blocks, three requests, tables of at most three blocks,
two names for queued copies, destinations ordered.  The Promela model and the Python search below are
written by hand, independently of the spec; all must count the same states and transitions.  SPIN is
compiled with ``-O2 -DSAFETY -DNOREDUCE`` and does its depth-first search; compiling is not timed.
Needs ``spin`` and ``gcc`` (apt-get install spin gcc), and numba for the compiled engine.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from kvproof.checks.exploring.explore import explore

REQUESTS, TABLE, WORK = 3, 3, 2


def promela(blocks: int) -> str:
    """The same system in Promela: one process, one option for each action and choice of things."""
    cell = {(r, i): f"t[{r * TABLE + i}]" for r in range(REQUESTS) for i in range(TABLE)}
    lines = [
        f"byte t[{REQUESTS * TABLE}];  /* block tables, 0: no entry */",
        f"byte pin[{WORK}];  /* source of a copy, until it is released */",
        f"byte dst[{WORK}];  /* destination of a queued copy */",
        f"bit pend[{WORK}];",
        f"bit ob[{WORK * REQUESTS}];  /* the copy is done for the request */",
        f"bit bef[{WORK * WORK}];  /* the first copy comes before the second */",
    ]
    owned = [*cell.values(), *(f"pin[{w}]" for w in range(WORK))]
    lines.append("#define FREE(b) (" + " && ".join(f"{place} != b" for place in owned) + ")")
    lines.append("active proctype pool() {\ndo")
    numbers = range(1, blocks + 1)
    for r in range(REQUESTS):
        for b in numbers:
            lines.append(f":: d_step {{ {cell[r, 0]} == 0 && FREE({b}) -> {cell[r, 0]} = {b} }}")
            for i in range(1, TABLE):
                guard = f"{cell[r, i - 1]} != 0 && {cell[r, i]} == 0 && FREE({b})"
                lines.append(f":: d_step {{ {guard} -> {cell[r, i]} = {b} }}")
        cleared = "; ".join(
            [f"{cell[r, i]} = 0" for i in range(TABLE)] + [f"ob[{w * REQUESTS + r}] = 0" for w in range(WORK)]
        )
        lines.append(f":: d_step {{ {cell[r, 0]} != 0 -> {cleared} }}")
        for c in (c for c in range(REQUESTS) if c != r):
            for i in range(TABLE):
                for b in numbers:
                    for w in range(WORK):
                        guard = f"{cell[r, i]} != 0 && {cell[c, 0]} == 0 && FREE({b}) && pin[{w}] == 0"
                        does = [f"pin[{w}] = {cell[r, i]}", f"dst[{w}] = {b}"]
                        does += [f"{cell[c, j]} = {cell[r, j]}" for j in range(i)] + [f"{cell[c, i]} = {b}"]
                        for other in (other for other in range(WORK) if other != w):
                            does.append(f"bef[{other * WORK + w}] = pend[{other}]")
                            does.append(f"ob[{other * REQUESTS + c}] = ob[{other * REQUESTS + r}]")
                        does += [f"ob[{w * REQUESTS + c}] = 1", f"pend[{w}] = 1"]
                        lines.append(f":: d_step {{ {guard} -> {'; '.join(does)} }}")
    for w in range(WORK):
        waits = " && ".join(f"!bef[{o * WORK + w}]" for o in range(WORK) if o != w)
        does = [f"pend[{w}] = 0", f"dst[{w}] = 0"]
        does += [f"ob[{w * REQUESTS + r}] = 0" for r in range(REQUESTS)]
        does += [f"bef[{w * WORK + o}] = 0; bef[{o * WORK + w}] = 0" for o in range(WORK) if o != w]
        lines.append(f":: d_step {{ pend[{w}] && {waits} -> {'; '.join(does)} }}")
        lines.append(f":: d_step {{ !pend[{w}] && pin[{w}] != 0 -> pin[{w}] = 0 }}")
    lines.append("od\n}")
    return "\n".join(lines) + "\n"


def run_spin(blocks: int) -> dict[str, float]:
    """States, transitions and seconds of SPIN's search."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        (here / "pool.pml").write_text(promela(blocks), encoding="utf-8")
        # -o2: keep variables that no guard reads (they are part of the spec's state too)
        subprocess.run(["spin", "-o2", "-a", "pool.pml"], cwd=here, check=True, stdout=subprocess.DEVNULL)
        flags = ["-O2", "-w", "-DSAFETY", "-DNOREDUCE", "-DMEMLIM=8000"]
        subprocess.run(["gcc", *flags, "-o", "pan", "pan.c"], cwd=here, check=True)
        began = time.perf_counter()
        answer = subprocess.run(
            ["./pan", "-m2000000", "-w24", "-E"], cwd=here, check=True, capture_output=True, text=True
        ).stdout
        seconds = time.perf_counter() - began
    states = int(re.search(r"(\d+) states, stored", answer).group(1))  # type: ignore[union-attr]
    edges = int(re.search(r"(\d+) transitions", answer).group(1)) - 1  # type: ignore[union-attr]  # entering the loop
    return {"states": states, "edges": edges, "seconds": seconds}


State = tuple[
    tuple[tuple[int, ...], ...], tuple[tuple[int, int, frozenset[int], bool], ...], frozenset[tuple[int, int]]
]
"""Tables; for each name of work (pinned source, destination, who it is for, queued); the order."""
NO_WORK = (0, 0, frozenset[int](), False)


def successors(state: State, blocks: int) -> list[State]:
    """Every state after one action: the system once more, in plain Python."""
    tables, work, before = state
    owned = {b for table in tables for b in table} | {w[0] for w in work}
    free = [b for b in range(1, blocks + 1) if b not in owned]
    found: list[State] = []

    def with_table(r: int, table: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
        return (*tables[:r], table, *tables[r + 1 :])

    for r, table in enumerate(tables):
        if not table:
            found += [(with_table(r, (b,)), work, before) for b in free]
            continue
        if len(table) < TABLE:
            found += [(with_table(r, (*table, b)), work, before) for b in free]
        left = tuple((s, t, who - {r}, queued) for s, t, who, queued in work)
        found.append((with_table(r, ()), left, before))
        for c, other in enumerate(tables):
            if other:
                continue
            for w, (pinned, _, _, _) in enumerate(work):
                if pinned:
                    continue
                for i, source in enumerate(table):
                    for b in free:
                        queue = [(s, t, who | {c} if r in who else who, queued) for s, t, who, queued in work]
                        queue[w] = (source, b, frozenset({c}), True)
                        order = before | {(o, w) for o, item in enumerate(work) if item[3]}
                        found.append((with_table(c, (*table[:i], b)), tuple(queue), order))
    for w, (source, _, _, queued) in enumerate(work):
        if queued and not any(second == w for _, second in before):
            rest = frozenset(pair for pair in before if w not in pair)
            found.append((tables, (*work[:w], (source, 0, frozenset[int](), False), *work[w + 1 :]), rest))
        elif source and not queued:
            found.append((tables, (*work[:w], NO_WORK, *work[w + 1 :]), before))
    return found


def run_python(blocks: int) -> dict[str, float]:
    """States, transitions and seconds of a plain breadth-first search."""
    began = time.perf_counter()
    start: State = (((),) * REQUESTS, (NO_WORK,) * WORK, frozenset())
    seen, level, edges = {start}, [start], 0
    while level:
        following = []
        for state in level:
            for after in successors(state, blocks):
                edges += 1
                if after not in seen:
                    seen.add(after)
                    following.append(after)
        level = following
    return {"states": len(seen), "edges": edges, "seconds": time.perf_counter() - began}


def run_explore(blocks: int, engine: str, symmetry: str = "none") -> dict[str, float]:
    """States (or classes), transitions and seconds of ``kvproof explore``, building included."""
    result = explore(subject="spec", blocks=blocks, engine=engine, symmetry=symmetry)
    assert result.complete
    return {
        "states": result.classes,
        "edges": result.class_edges,
        "seconds": result.seconds,
        "bytes_per_state": result.bytes_per_state,
    }


def main() -> None:
    """Run everything, compare counts, print rates and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--skip-spin", action="store_true")
    parser.add_argument("--skip-python", action="store_true")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    rows: dict[str, dict[str, float]] = {}
    run_explore(2, "numba")  # compile the loops (they are cached on disk)
    rows["explore, numba"] = run_explore(asked.blocks, "numba")
    rows["explore, numpy"] = run_explore(asked.blocks, "numpy")
    if not asked.skip_spin:
        if shutil.which("spin") is None:
            raise SystemExit("spin is not installed: apt-get install spin, or --skip-spin")
        rows["SPIN, DFS"] = run_spin(asked.blocks)
    if not asked.skip_python:
        rows["plain Python"] = run_python(asked.blocks)
    counts = {(row["states"], row["edges"]) for row in rows.values()}
    base = rows.get("SPIN, DFS", {"states": 1.0, "seconds": 1.0})
    for row in rows.values():
        row["states_per_second"] = row["states"] / row["seconds"]
        row["ratio_to_spin"] = row["states_per_second"] / (base["states"] / base["seconds"])
    for blocks in (4, 6, 8):
        rows[f"explore, numba, {blocks} blocks, full symmetry"] = run_explore(blocks, "numba", "full")
    if asked.json:
        print(json.dumps(rows))
    else:
        for name, row in rows.items():
            rate = (
                f"{row['states_per_second']:>12,.0f}/s {row['ratio_to_spin']:6.2f} x SPIN"
                if "ratio_to_spin" in row
                else ""
            )
            print(
                f"{name:44s}{row['states']:>12,.0f} states {row['edges']:>12,.0f} moves {row['seconds']:8.2f} s {rate}"
            )
    if len(counts) != 1:
        raise SystemExit(f"the counts differ: {counts}")


if __name__ == "__main__":
    main()
