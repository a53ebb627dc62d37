"""Exhaustive exploration of the spec: every state that the text allows, for a small pool.

The scope is the ownership part of the text (rows are left out, which only adds behaviour), one
in-order stream, the declared destination discipline.  ``engine`` is ``numba`` (compiled loops, when
that package is there), ``numpy``, or ``torch`` (with ``--device cuda``); all three read the same
circuit and give the same counts.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from kvproof.checks.exploring.engine import NumpyArrays, PlaneEngine, TorchArrays
from kvproof.checks.exploring.exploration import Checkpoint, ExploreResult, Progress, Report
from kvproof.checks.exploring.explore_model import RULE_OF, Limits
from kvproof.checks.exploring.layout import Layout
from kvproof.checks.proof.refute import ONE_STREAM, ROW_RELATIONS
from kvproof.checks.proof.spec_finding import SpecFinding, length_of
from kvproof.checks.proof.spec_trace import write_run
from kvproof.checks.proof.states_in_words import told
from kvproof.checks.proof.unroll import Happened
from kvproof.checks.readings.machine import ALL, NONE, Goal, Machine, Scope
from kvproof.checks.readings.spec_errors import UsageError
from kvproof.model.interface import Destination
from kvproof.spec.modules import STORAGE_MODULE
from kvproof.spec.mutants import MUTANTS

POOL: tuple[str, ...] = ("admit", "grow", "fork", "complete", "release_pins", "finish")
"""The actions of the configuration ``pool``."""
DECLARED: dict[str, frozenset[str]] = {
    "ordered": frozenset(),
    "pinned": frozenset({"destination_pinned"}),
    "cancelled": frozenset({"destination_cancelled"}),
}
ENGINES = ("auto", "numba", "numpy", "torch")
CHECKPOINT_SECONDS = 20.0


class Engine(Protocol):
    """What explores: states are numbered in the order in which they are found."""

    count: int
    edges: int

    def expand(self, first: int, last: int) -> None:
        """Expand some states; new ones get the next numbers."""

    def first_broken(self, goals: Sequence[int], first: int, last: int) -> tuple[int, int] | None:
        """The first of some states in which a goal is false, and which goal."""

    def all_keys(self) -> Any:
        """The keys of all states by number."""

    def history(self) -> tuple[Any, Any]:
        """The parent and the move of every state by number."""

    def resume(self, keys: Any, parents: Any, moves: Any, edges: int) -> None:
        """Go on from what was found before."""

    def bytes_used(self) -> int:
        """Memory of everything that grows with the number of states."""


def machine_for(limits: Limits, mutant: str | None = None, destination: Destination = "ordered") -> Machine:
    """The spec's machine for a pool of this size."""
    sizes = {
        "request": limits.requests,
        "index": limits.table,
        "block": limits.blocks,
        "offset": 1,
        "work": limits.copies,
        "holder": 0,
        "key": 0,
        "record": 0,
    }
    module, actions, declared = STORAGE_MODULE, POOL, DECLARED[destination]
    if destination == "cancelled":
        actions = (*actions, "submit_copy")
    if mutant is not None:
        broken = MUTANTS[mutant]
        stage = broken.stage
        if broken.module != "storage" or not stage.coarse:
            raise UsageError(
                f"mutant {mutant!r} shows in rows, numbers or records, which exploration leaves out: use refute"
            )
        module = module.with_action(broken.replaces, broken.by)
        actions = tuple(dict.fromkeys((*actions, *stage.actions, broken.replaces)))
        declared |= stage.declared
        sizes["holder"] = stage.sizes.get("holder", 0)
    scope = Scope(
        sizes,
        declared=declared,
        choices=ONE_STREAM | {"reserved": ALL, "in_order": NONE, "held_back": NONE},
        without=ROW_RELATIONS,
        actions=actions,
    )
    return Machine(module, scope)


def engine_for(machine: Machine, layout: Layout, symmetry: str, device: str, engine: str) -> tuple[Engine, str]:
    """The engine that was asked for, and its name."""
    if engine not in ENGINES:
        raise UsageError(f"engine {engine!r} is unknown: choose one of {', '.join(ENGINES)}")
    if engine == "auto":
        compiled = importlib.util.find_spec("numba") is not None
        engine = "torch" if device != "cpu" else "numba" if compiled else "numpy"
    if engine == "numba" and importlib.util.find_spec("numba") is None:
        raise UsageError("numba is not installed (pip install 'kvproof[numba]'): choose --engine numpy")
    if engine == "numba":
        from kvproof.checks.exploring.engine_numba import CompiledEngine

        return CompiledEngine(machine, layout, symmetry), "numba"
    arrays = _torch(device) if engine == "torch" else NumpyArrays()
    return PlaneEngine(machine, layout, symmetry, arrays), arrays.name


def _torch(device: str) -> TorchArrays:
    if importlib.util.find_spec("torch") is None:
        raise UsageError("torch is not installed (pip install 'kvproof[gpu]'): choose --device cpu")
    arrays = TorchArrays(device)
    if device == "cuda" and not arrays.torch.cuda.is_available():
        raise UsageError("torch sees no CUDA device: choose --device cpu")
    return arrays


def explore_spec(
    limits: Limits,
    symmetry: str,
    mutant: str | None,
    destination: Destination,
    device: str,
    engine: str,
    max_states: int | None,
    checkpoint: str | Path | None,
    progress: Report,
    out: Path | None = None,
) -> ExploreResult:
    """See :func:`kvproof.checks.exploring.explore.explore`."""
    began = time.perf_counter()
    machine = machine_for(limits, mutant, destination)
    layout = Layout(machine)
    explorer, engine_name = engine_for(machine, layout, symmetry, device, engine)
    goals = _goals(machine, mutant)
    nodes = [goal.node for goal in goals]
    built = time.perf_counter()
    file = None if checkpoint is None else Path(checkpoint)
    what = f"spec {limits} {symmetry} {mutant} {destination}"
    levels = [0]
    if file is not None and file.exists():
        saved = Checkpoint.load(file, what)
        explorer.resume(saved.keys, saved.parents, saved.moves, saved.edges)
        levels = saved.levels
    broken = explorer.first_broken(nodes, levels[-1], explorer.count)
    last_save = built
    complete = True
    while broken is None and levels[-1] < explorer.count:
        first, last = levels[-1], explorer.count
        if max_states is not None and last > max_states:
            complete = False
            break
        explorer.expand(first, last)
        levels.append(last)
        now = time.perf_counter()
        progress(Progress(len(levels) - 1, explorer.count, explorer.edges, now - began))
        broken = explorer.first_broken(nodes, last, explorer.count)
        if file is not None and (now - last_save > CHECKPOINT_SECONDS or last == explorer.count):
            parents, moves = explorer.history()
            keys = np.asarray(explorer.all_keys())
            Checkpoint(keys, parents, moves, levels, explorer.edges).save(file, what)
            last_save = time.perf_counter()
    finding = None
    if broken is not None:
        finding, steps = _finding(machine, layout, symmetry, explorer, broken[0], goals[broken[1]])
        if out is not None:
            finding = replace(finding, trace=write_run(mutant, steps, out))
    plain = symmetry == "none"
    finished = complete and finding is None
    keys = explorer.all_keys()
    orbit_sum = explorer.count if plain else None
    if symmetry == "blocks" and finished:
        orbit_sum = layout.orbit_sizes(np.asarray(keys if isinstance(keys, np.ndarray) else keys.cpu()))
    grown = [b - a for a, b in zip(levels, [*levels[1:], explorer.count], strict=True)]
    return ExploreResult(
        subject="spec",
        symmetry=symmetry,
        states=explorer.count if plain else None,
        edges=explorer.edges if plain else None,
        depth=sum(1 for size in grown if size) - 1,
        classes=explorer.count,
        class_edges=explorer.edges,
        finding=finding,
        complete=finished,
        seconds=time.perf_counter() - began,
        orbit_sum=orbit_sum,
        bytes_per_state=explorer.bytes_used() / explorer.count,
        peak_bytes=explorer.bytes_used(),
        engine=engine_name,
        checked=tuple(dict.fromkeys(goal.name for goal in goals)),
        skipped=tuple(machine.skipped),
        notes=(
            f"{len(machine.cells)} cells in {layout.words} words, {len(machine.instances)} moves, "
            f"built in {built - began:.2f} s",
            *(
                f"{count} guards of {name} are dropped: they speak of rows"
                for name, count in machine.dropped_guards.items()
            ),
        ),
    )


def _goals(machine: Machine, mutant: str | None) -> list[Goal]:
    """All rules and theorems; of a mutant the rules, its own first (its theorems are broken by design)."""
    if mutant is None:
        return machine.goals()
    own = [MUTANTS[mutant].rule, MUTANTS[mutant].seen_as]
    names = [*own, *machine.module.rules]
    return sorted(machine.goals([name for name in names if name]), key=lambda goal: names.index(goal.name))


def _finding(
    machine: Machine, layout: Layout, symmetry: str, explorer: Engine, state: int, goal: Goal
) -> tuple[SpecFinding, list[Happened]]:
    parents, _ = explorer.history()
    chain = []
    while state > 0:
        chain.append(state)
        state = int(parents[state])
    keys = explorer.all_keys()
    path = [[int(word) for word in keys[number]] for number in reversed(chain)]
    steps, last = retell(machine, layout, symmetry, path)
    sentence = told(machine, goal.sentence, goal.formula, layout.unpack(last))
    rule = RULE_OF.get(goal.name, goal.name)
    return SpecFinding(rule, sentence, length_of(steps), tuple(str(step) for step in steps)), steps


def retell(
    machine: Machine, layout: Layout, symmetry: str, path: Sequence[Sequence[int]]
) -> tuple[list[Happened], list[int]]:
    """A run of concrete states whose classes are the given ones, and its last state."""
    plain = PlaneEngine(machine, layout, "none", NumpyArrays())
    classes = PlaneEngine(machine, layout, symmetry, NumpyArrays())
    here = np.array([layout.pack(machine.initial)])
    steps = []
    for wanted in path:
        for after, _, moves in plain.successors(here, 0):
            if classes.canonical(after)[0].tolist() == list(wanted):
                instance = machine.instances[int(moves[0])]
                steps.append(Happened(instance.action, instance.things))
                here = after
                break
    return steps, here[0].tolist()
