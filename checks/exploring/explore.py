"""``kvproof explore``: visit every reachable state of a small pool and check the rules in each.

``model`` explores the executable model's own transitions, ``spec`` the text's.  Levels are finished
before anything is reported, so a run to a broken rule is a shortest one.
"""

from __future__ import annotations

import resource
import time
from pathlib import Path
from typing import Any

from kvproof.checks.exploring.exploration import Checkpoint, ExploreResult, Progress, Report
from kvproof.checks.exploring.explore_model import CHECKED, Limits, ModelRun, ModelSubject, told_as, words
from kvproof.checks.exploring.waits import waits_of
from kvproof.checks.proof.spec_finding import SpecFinding
from kvproof.checks.proof.spec_trace import write_run
from kvproof.checks.readings.spec_errors import UsageError
from kvproof.model.interface import Destination
from kvproof.model.mutants import MUTANTS as MODEL_MUTANTS
from kvproof.spec.mutants import MUTANTS as SPEC_MUTANTS

SYMMETRIES = ("none", "blocks", "full")
DISCIPLINES = ("ordered", "pinned", "cancelled")
SUBJECTS = ("spec", "model")
CHECKPOINT_SECONDS = 20.0
"""A checkpoint is written after a level, at most this often."""


def explore(
    subject: str = "model",
    blocks: int = 4,
    requests: int = 3,
    table: int = 3,
    copies: int = 2,
    symmetry: str = "none",
    mutant: str | None = None,
    device: str = "cpu",
    *,
    destination: Destination = "ordered",
    max_states: int | None = None,
    checkpoint: str | Path | None = None,
    progress: Report | None = None,
    engine: str = "auto",
    out: str | Path | None = None,
) -> ExploreResult:
    """Explore and check; see :class:`~kvproof.checks.exploring.exploration.ExploreResult`.

    ``copies`` bounds queued copies and pins still held.  ``destination`` is the discipline that is
    demanded.  With ``checkpoint``, an existing file is resumed.  ``out`` is a folder for the trace of a
    finding.  Raises :class:`UsageError`.
    """
    _check(subject, symmetry, mutant, device, destination)
    limits = Limits(blocks, requests, table, copies)
    if subject == "spec":
        from kvproof.checks.exploring.explore_spec import explore_spec

        return explore_spec(
            limits,
            symmetry,
            mutant,
            destination,
            device,
            engine,
            max_states,
            checkpoint,
            progress or _silent,
            None if out is None else Path(out),
        )
    if blocks > 255 or requests > 8:
        raise UsageError("the model is explored for at most 255 blocks and 8 requests")
    what = f"model {limits} {symmetry} {mutant} {destination}"
    return _explore_model(
        ModelSubject(limits, symmetry, mutant, destination),
        what,
        max_states,
        None if checkpoint is None else Path(checkpoint),
        progress or _silent,
        None if out is None else Path(out),
        mutant,
    )


def _silent(_progress: Progress) -> None:
    return None


def _check(subject: str, symmetry: str, mutant: str | None, device: str, destination: str) -> None:
    if subject not in SUBJECTS:
        raise UsageError(f"subject {subject!r} is unknown: choose one of {', '.join(SUBJECTS)}")
    if symmetry not in SYMMETRIES:
        raise UsageError(f"symmetry {symmetry!r} is unknown: choose one of {', '.join(SYMMETRIES)}")
    if destination not in DISCIPLINES:
        raise UsageError(f"destination {destination!r} is unknown: choose one of {', '.join(DISCIPLINES)}")
    if device not in ("cpu", "cuda"):
        raise UsageError(f"device {device!r} is unknown: choose cpu or cuda")
    if subject == "model" and destination == "cancelled":
        raise UsageError("the model's pool is judged under ordered or pinned destinations: choose one of them")
    if subject == "model" and device != "cpu":
        raise UsageError("the model is Python: explore it with --device cpu (--subject spec runs on cuda)")
    known = MODEL_MUTANTS if subject == "model" else SPEC_MUTANTS
    if mutant is not None and mutant not in known:
        raise UsageError(f"mutant {mutant!r} is unknown: choose one of {', '.join(known)}")


def _explore_model(
    subject: ModelSubject,
    what: str,
    max_states: int | None,
    checkpoint: Path | None,
    progress: Report,
    out: Path | None,
    mutant: str | None,
) -> ExploreResult:
    began = time.perf_counter()
    base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if checkpoint is not None and checkpoint.exists():
        run = ModelRun.resume(subject, Checkpoint.load(checkpoint, what))
        finding = None
    else:
        run = ModelRun.begin(subject)
        finding = _judge(run, out, mutant)
    saved = began
    complete = True
    while run.level and finding is None:
        if not run.next_level(max_states):
            complete = False
            break
        now = time.perf_counter()
        progress(Progress(len(run.levels) - 1, len(run.number_of), run.edges, now - began))
        finding = _judge(run, out, mutant)
        if checkpoint is not None and (now - saved > CHECKPOINT_SECONDS or not run.level):
            run.checkpoint().save(checkpoint, what)
            saved = time.perf_counter()
    count = len(run.number_of)
    grown = max(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - base, count * subject.key_bytes())
    plain = subject.symmetry == "none"
    finished = complete and finding is None
    waits = waits_of(run).as_json() if finished and not plain else None
    depth = sum(1 for a, b in zip(run.levels, [*run.levels[1:], count], strict=True) if b > a) - 1
    return ExploreResult(
        subject="model",
        symmetry=subject.symmetry,
        states=count if plain else None,
        edges=run.edges if plain else None,
        depth=depth,
        classes=count,
        class_edges=run.edges,
        finding=finding,
        complete=finished,
        seconds=time.perf_counter() - began,
        orbit_sum=count * subject.orbit() if subject.symmetry == "blocks" and finished else count if plain else None,
        peak_bytes=base + grown,
        bytes_per_state=grown / count,
        engine="model",
        checked=CHECKED,
        skipped=tuple(subject.spec.skipped),
        waits=waits,
    )


def _judge(run: ModelRun, out: Path | None, mutant: str | None) -> SpecFinding | None:
    """The first state of the last level that breaks a rule, with the shortest run to it."""
    found = run.subject.broken(run.level)
    if found is None:
        return None
    row, rule, sentence = found
    steps = run.path(run.levels[-1] + row)
    trace = None
    if out is not None:
        trace = write_run(mutant, told_as(steps, run.subject.start()[0], run.subject.machine), out)
    return SpecFinding(rule, sentence, len(steps), tuple(words(move) for move in steps), trace=trace)


def memory_needed(subject: str, blocks: int) -> str:
    """What an exploration takes, said before it starts: the number of states is not known, their size is."""
    each = 300 if subject == "model" else 60 + 8 * blocks
    return f"a state takes about {each} bytes: 1,000,000 states take {each} MB; --max-states bounds the run"


def run(json_output: bool = False, **asked: Any) -> int:
    """The command ``kvproof explore``: prints, and returns the exit code.  ``asked`` as in :func:`explore`."""
    from kvproof.checks.proof import present

    present.log_to_stderr()(memory_needed(asked["subject"], asked["blocks"]))
    result = explore(**asked, progress=present.progress_to_stderr())
    if json_output:
        present.show_json(result.to_json())
    else:
        present.show_exploration(result)
    return result.exit_code()
