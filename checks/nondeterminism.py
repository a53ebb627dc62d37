"""The same operations on two fresh instances must get the same answers and lead to the same pools."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kvproof.checks.finding import answer_text
from kvproof.checks.generate import SeededChoices
from kvproof.checks.harness import Breach
from kvproof.checks.script import Line, Run, Seen, Stage
from kvproof.checks.stateful import Outcome, one_run
from kvproof.model.interface import Configuration, Factory, Pool, Snapshot

TRIES = 4
"""How often a shorter run may be compared before it counts as alike."""


def compare(
    factory: Factory, configuration: Configuration, *, seed: int, most: int, call_limit: float, outcome: Outcome
) -> Run | None:
    """One seeded run, performed again on a second instance; a run with a breach, or None."""
    lines: list[Line] = []
    first = one_run(
        factory,
        configuration,
        SeededChoices(seed),
        most,
        call_limit=call_limit,
        outcome=outcome,
        keep=lines,
    )
    if first is not None:
        return first
    one, two = _perform(factory, configuration, lines, call_limit), _perform(factory, configuration, lines, call_limit)
    at = _first_difference(one.seen, two.seen)
    if at is None and one.run.breach is None:
        return None
    if at is None:
        return difference_run(Run(configuration, lines=lines), one.run)[0]
    return _shortened(factory, configuration, one, two, at, call_limit)


def _perform(factory: Factory, configuration: Configuration, lines: list[Line], call_limit: float) -> Stage:
    stage = Stage(factory, configuration, call_limit)
    try:
        for line in lines:
            if stage.run.breach is not None:
                break
            stage.perform(line)
    finally:
        stage.close()
    return stage


def _first_difference(one: list[Seen], two: list[Seen]) -> int | None:
    for at, (a, b) in enumerate(zip(one, two, strict=False)):
        if _told(a) != _told(b):
            return at
    return None if len(one) == len(two) else min(len(one), len(two))


def _told(seen: Seen) -> tuple[Any, ...]:
    outcome = repr(seen.outcome) if isinstance(seen.outcome, BaseException) else seen.outcome
    return seen.operation, outcome, None if seen.snapshot is None else _compared(seen.snapshot)


def _compared(snapshot: Snapshot) -> dict[str, Pool]:
    return dict(snapshot)


def _shortened(
    factory: Factory, configuration: Configuration, one: Stage, two: Stage, at: int, call_limit: float
) -> Run:
    """Drop lines as long as two instances still differ now and then."""
    best, lines = (one, two, at), one.run.lines[: at + 1]
    index = len(lines) - 1
    while index >= 0:
        shorter = lines[:index] + lines[index + 1 :]
        for _ in range(TRIES):
            a, b = (_perform(factory, configuration, shorter, call_limit) for _ in range(2))
            differs = _first_difference(a.seen, b.seen)
            if differs is not None:
                best, lines = (a, b, differs), a.run.lines[: differs + 1]
                break
        index = min(index, len(lines)) - 1
    return _run(configuration, *best)


def _run(configuration: Configuration, one: Stage, two: Stage, at: int) -> Run:
    a, b = one.seen[at] if at < len(one.seen) else None, two.seen[at] if at < len(two.seen) else None
    operations = one.run.operations[: at + 1]
    what = a or b
    assert what is not None
    message = (
        f"two fresh instances differ: {what.operation} was answered {_short(a)} by one and {_short(b)} by the other"
    )
    if a is not None and b is not None and a.outcome == b.outcome:
        message = f"two fresh instances differ: after {what.operation} their pools are not the same"
    return Run(
        configuration,
        lines=one.run.lines[: at + 1],
        operations=operations,
        replies=one.run.replies[: at + 1],
        breach=Breach(None, "nondeterministic", message),
    )


def _short(seen: Seen | None) -> str:
    if seen is None:
        return "nothing"
    return repr(seen.outcome) if isinstance(seen.outcome, BaseException) else answer_text(seen.outcome)


def difference_run(run: Run, again: Run) -> tuple[Run, Breach]:
    """A run that broke a rule once and not again: the target is not deterministic."""
    was = run.breach.message if run.breach is not None else "nothing broke"
    now = again.breach.message if again.breach is not None else "nothing broke"
    breach = Breach(
        None, "nondeterministic", f"the same operations end differently on a fresh instance: once {was}; then {now}"
    )
    return replace(run, breach=breach), breach
