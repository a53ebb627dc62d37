"""How results of the spec's readings are shown: tables for people, one JSON object for programs.

Standard output has the result; the proof log and progress go to standard error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from rich.table import Table

from kvproof.checks.console import stderr_console, stdout_console
from kvproof.checks.exploring.exploration import ExploreResult, Progress
from kvproof.checks.monitoring.monitor import MonitorResult
from kvproof.checks.proof.prove import PROVED, ProveResult
from kvproof.checks.proof.refute import RefuteResult
from kvproof.checks.proof.spec_finding import SpecFinding


def show_json(value: dict[str, Any]) -> None:
    """One JSON object on standard output and nothing else there."""
    sys.stdout.write(json.dumps(value) + "\n")


def log_to_stderr() -> Callable[[str], None]:
    """A proof log on standard error."""
    console = stderr_console()
    return lambda line: console.print(line, markup=False)


def progress_to_stderr() -> Callable[[Progress], None]:
    """One line a level on standard error, when that is a terminal."""
    console = stderr_console()
    if not console.is_terminal:
        return lambda _progress: None

    def show(at: Progress) -> None:
        rate = at.states / at.seconds if at.seconds else 0.0
        console.print(f"depth {at.depth}: {at.states:,} states, {at.edges:,} moves, {rate:,.0f} states/s", markup=False)

    return show


def show_proof(result: ProveResult) -> None:
    """Theorems, statements that do not hold, mutants, and the verdict."""
    out = stdout_console()
    if result.theorems:
        table = Table(box=None, padding=(0, 2))
        for column in ("theorem", "verdict", "seconds", "how far"):
            table.add_column(column)
        for theorem in result.theorems:
            table.add_row(theorem.name, theorem.verdict, f"{theorem.seconds:.2f}", theorem.scope)
        out.print(table)
        for theorem in result.theorems:
            if theorem.verdict != PROVED:
                out.print(f"\n{theorem.name} is {theorem.verdict}:\n{theorem.counterexample}", markup=False)
    if result.does_not_hold:
        out.print("\nDoes not hold, as the spec says:")
        for theorem in result.does_not_hold:
            out.print(f"  {theorem.name}: {theorem.verdict}, e.g. {theorem.counterexample}", markup=False)
    for mutant in result.mutants:
        out.print(f"{mutant.name}: {mutant.verdict}; {mutant.obligation}", markup=False)
        if mutant.counterexample:
            out.print(mutant.counterexample, markup=False)
    empty = [vacuity.name for vacuity in result.vacuity if vacuity.vacuous]
    if result.vacuity:
        said = f"never met: {', '.join(empty)}" if empty else "every action happens, every premise is met"
        out.print(f"\n{len(result.vacuity)} actions and premises: {said}", markup=False)
    out.print(f"\n{result.verdict} in {result.seconds:.1f} s", markup=False)


def show_finding(finding: SpecFinding) -> None:
    """A broken rule and the run to it."""
    out = stdout_console()
    out.print(f"{finding.rule} is broken after {finding.length} operations: {finding.message}", markup=False)
    for number, step in enumerate(finding.steps, start=1):
        out.print(f"  {number}. {step}", markup=False)
    if finding.trace:
        out.print(f"trace: {finding.trace} (kvproof replay {finding.trace})", markup=False)


def show_refutation(result: RefuteResult) -> None:
    """The shortest run, or that there is none within the bound."""
    if result.finding is not None:
        show_finding(result.finding)
    stdout_console().print(
        f"{result.mutant}: {result.verdict} (bound: {result.bound}) in {result.seconds:.1f} s", markup=False
    )


def show_exploration(result: ExploreResult) -> None:
    """Counts, what was checked, and the finding."""
    out = stdout_console()
    if result.finding is not None:
        show_finding(result.finding)
    counts = f"{result.classes:,} classes, {result.class_edges:,} moves out of them"
    if result.states is not None:
        counts = f"{result.states:,} states, {result.edges:,} transitions"
    elif result.orbit_sum is not None:
        counts += f", standing for {result.orbit_sum:,} states"
    complete = "everything reachable" if result.complete else "not everything reachable"
    out.print(
        f"{result.subject} ({result.engine}), symmetry {result.symmetry}: {counts}, depth {result.depth}", markup=False
    )
    out.print(f"{complete}; checked in each: {', '.join(result.checked)}", markup=False)
    for note in result.notes:
        out.print(note, markup=False)
    out.print(f"{result.bytes_per_state:,.0f} bytes a state; {result.seconds:.1f} s", markup=False)


def show_monitoring(result: MonitorResult) -> None:
    """The verdict and the first step that is not allowed."""
    out = stdout_console()
    if result.finding is not None:
        what = result.finding.rule if result.finding.kind == "rule" else "a step is not allowed"
        out.print(f"step {result.steps}: {what}: {result.finding.message}", markup=False)
        for step in result.finding.steps[-6:]:
            out.print(f"  {step}", markup=False)
    for note in result.notes:
        out.print(note, markup=False)
    out.print(f"{result.verdict}: {result.steps} steps in {result.seconds:.1f} s", markup=False)
