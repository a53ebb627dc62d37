"""The same operations on two fresh instances must get the same answers and lead to the same pools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kvproof.checks.certification.finding import answer_text
from kvproof.checks.certification.generate import SeededChoices
from kvproof.checks.certification.script import Line, Run, Seen, Stage, as_address, record
from kvproof.checks.certification.stateful import Outcome, one_run
from kvproof.checks.lockstep.harness import Breach
from kvproof.model.interface import Configuration, Factory, Reply

TRIES = 4
"""How often a shorter run may be compared before it counts as alike."""


def compare(
    factory: Factory, configuration: Configuration, *, seed: int, most: int, call_limit: float, outcome: Outcome
) -> Run | None:
    """One seeded run, performed again on a second instance; a run with a breach, or None."""
    seen: list[Seen] = []
    first = one_run(
        factory, configuration, SeededChoices(seed), most, call_limit=call_limit, outcome=outcome, seen=seen
    )
    if first is not None:
        return first
    lines = list(record([one.operation for one in seen], [_made(one) for one in seen]))
    second = _perform(factory, configuration, lines, call_limit)
    if second.run.breach is None:
        outcome.add(second.lockstep)
    at = _first_difference(seen, second.seen)
    if at is None:
        return None
    return _shortened(factory, configuration, lines[: at + 1], call_limit) or _run(
        configuration, lines, seen, second.seen, at
    )


def _made(seen: Seen) -> list[int]:
    """Tickets and addresses that the operation made."""
    if isinstance(seen.outcome, Reply):
        return list(dict.fromkeys(copy.ticket for copy in seen.outcome.copies))
    if not isinstance(seen.outcome, int):
        return []
    return {"submit": [seen.outcome], "take": [as_address(seen.outcome)]}.get(seen.operation.op, [])


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


def _first_difference(one: Sequence[Seen], two: Sequence[Seen]) -> int | None:
    for at, (a, b) in enumerate(zip(one, two, strict=False)):
        if _told(a) != _told(b):
            return at
    return None if len(one) == len(two) else min(len(one), len(two))


def _told(seen: Seen) -> tuple[Any, ...]:
    outcome = repr(seen.outcome) if isinstance(seen.outcome, BaseException) else seen.outcome
    return seen.operation.op, outcome, seen.snapshot


def _shortened(factory: Factory, configuration: Configuration, lines: list[Line], call_limit: float) -> Run | None:
    """Drop lines as long as two instances still differ now and then; None when they do not differ again."""
    best = _differs(factory, configuration, lines, call_limit)
    if best is None:
        return None
    index = len(best.lines) - 1
    while index >= 0:
        shorter = _differs(factory, configuration, best.lines[:index] + best.lines[index + 1 :], call_limit)
        if shorter is not None:
            best = shorter
        index = min(index, len(best.lines)) - 1
    return best


def _differs(factory: Factory, configuration: Configuration, lines: list[Line], call_limit: float) -> Run | None:
    for _ in range(TRIES):
        one, two = (_perform(factory, configuration, lines, call_limit) for _ in range(2))
        at = _first_difference(one.seen, two.seen)
        if at is not None:
            return _run(configuration, one.run.lines, one.seen, two.seen, at)
    return None


def _run(configuration: Configuration, lines: list[Line], one: list[Seen], two: list[Seen], at: int) -> Run:
    a, b = (seen[at] if at < len(seen) else None for seen in (one, two))
    what = a or b
    assert what is not None
    if a is not None and b is not None and a.outcome == b.outcome:
        message = f"two fresh instances differ: after {what.operation} their pools are not the same"
    else:
        message = (
            f"two fresh instances differ: {what.operation} was answered {_short(a)} by one and {_short(b)} by the other"
        )
    return Run(
        configuration,
        lines=lines[: at + 1],
        operations=[seen.operation for seen in one[: at + 1]],
        replies=[seen.outcome for seen in one[: at + 1]],
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
