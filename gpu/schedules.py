"""Schedules: who decides what a simulated device does next.

Streams promise very little about time, so the simulated device asks a *schedule* at every point
where hardware could go either way.  No single schedule is the worst: ``lazy`` finds missing
read-after-write waits but not an early release with a writer on a third stream; starving the copy
stream finds that one.  Run them all (:func:`every_name`); the sanitizer needs only one of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Moment:
    """One decision.

    ``ready``: streams whose next task may run, never empty.  ``needed``: those of them that bring
    the awaited event nearer; empty when the host does not wait.  ``forced``: the host waits, so
    the schedule must name a stream; otherwise it may answer ``None``, "nothing runs now".
    """

    ready: tuple[str, ...]
    needed: tuple[str, ...]
    forced: bool


Piece = tuple[int, int]
"""Items ``first .. stop - 1`` of a launch, done without a break."""


class Schedule(Protocol):
    """Picks the next stream, and how a launch of independent items is broken up."""

    def choose(self, moment: Moment) -> str | None:
        """One of ``moment.ready``, or ``None`` where the moment is not forced."""

    def pieces(self, items: int) -> Sequence[Piece]:
        """``range(items)`` cut into pieces, in any order; other streams may run between them."""


def _shuffled_pieces(source: random.Random, items: int) -> Sequence[Piece]:
    """At most four pieces, in random order."""
    cuts = sorted(source.sample(range(1, items), source.randint(0, min(3, items - 1))))
    pieces = list(zip([0, *cuts], [*cuts, items], strict=True))
    source.shuffle(pieces)
    return pieces


class Eager:
    """Everything runs as soon as it is launched: what torch does on a CPU.  Hides every ordering bug."""

    def choose(self, moment: Moment) -> str | None:
        """The first stream that can run."""
        return moment.ready[0]

    def pieces(self, items: int) -> Sequence[Piece]:
        """All at once."""
        return ((0, items),)


class Lazy:
    """Nothing runs until the host waits, and then only what the awaited event needs."""

    def choose(self, moment: Moment) -> str | None:
        """The last stream on the way to the event."""
        return (moment.needed or moment.ready)[-1] if moment.forced else None

    def pieces(self, items: int) -> Sequence[Piece]:
        """All at once."""
        return ((0, items),)


class Random:
    """Any stream may run at any moment; the seed decides."""

    def __init__(self, seed: int, idle: float = 0.5) -> None:
        self._random = random.Random(seed)
        self._idle = idle

    def choose(self, moment: Moment) -> str | None:
        """A ready stream, or with probability ``idle`` none."""
        if not moment.forced and self._random.random() < self._idle:
            return None
        return self._random.choice(moment.ready)

    def pieces(self, items: int) -> Sequence[Piece]:
        """Cut anywhere, shuffled."""
        return _shuffled_pieces(self._random, items)


class Starve:
    """One stream, the victim, runs only when the host waits and nothing else can run."""

    def __init__(self, victim: str, seed: int = 0) -> None:
        self.victim = victim
        self._random = random.Random(seed)

    def choose(self, moment: Moment) -> str | None:
        """Any other stream first."""
        if others := [name for name in moment.ready if name != self.victim]:
            return self._random.choice(others)
        return self.victim if moment.forced else None

    def pieces(self, items: int) -> Sequence[Piece]:
        """Cut anywhere, shuffled."""
        return _shuffled_pieces(self._random, items)


class Diverged(RuntimeError):
    """A recorded schedule does not fit the program that it is replayed on."""


@dataclass(slots=True)
class Recording:
    """Passes every question to ``inner`` and keeps the answers, for :class:`Recorded`."""

    inner: Schedule
    choices: list[str | None] = field(default_factory=list)
    cuts: list[tuple[Piece, ...]] = field(default_factory=list)

    def choose(self, moment: Moment) -> str | None:
        """What ``inner`` chooses."""
        self.choices.append(self.inner.choose(moment))
        return self.choices[-1]

    def pieces(self, items: int) -> Sequence[Piece]:
        """What ``inner`` chooses."""
        self.cuts.append(tuple(self.inner.pieces(items)))
        return self.cuts[-1]


class Recorded:
    """Replays what a :class:`Recording` kept."""

    def __init__(self, choices: Sequence[str | None], cuts: Sequence[Sequence[Piece]] = ()) -> None:
        self._choices = iter(choices)
        self._cuts = iter(cuts)

    def choose(self, moment: Moment) -> str | None:
        """The next recorded choice; :class:`Diverged` when it is impossible here."""
        choice = next(self._choices, None)
        if choice not in moment.ready and (choice is not None or moment.forced):
            raise Diverged(
                f"the recorded schedule wants {choice!r}, but only {list(moment.ready)} can run: "
                "the program is not the one that was recorded"
            )
        return choice

    def pieces(self, items: int) -> Sequence[Piece]:
        """The next recorded cut; all at once when the record is used up."""
        pieces = next(self._cuts, None) or ((0, items),)
        if sum(stop - first for first, stop in pieces) != items:
            raise Diverged(f"the recorded schedule cuts another launch than this one of {items} items")
        return pieces


class Drawn:
    """Asks a callback, ``draw(n)`` for a number below n; made for Hypothesis.

    ``Drawn(lambda n: data.draw(integers(0, n - 1)))``: 0 is the laziest choice, so a failing
    example shrinks towards a device that does nothing.
    """

    def __init__(self, draw: Callable[[int], int]) -> None:
        self._draw = draw

    def choose(self, moment: Moment) -> str | None:
        """0 means "nothing runs", where that is allowed."""
        options: tuple[str | None, ...] = moment.ready if moment.forced else (None, *moment.ready)
        return options[self._draw(len(options))] if len(options) > 1 else options[0]

    def pieces(self, items: int) -> Sequence[Piece]:
        """One cut, the second part first: enough to show that items have no order, and cheap to draw."""
        cut = self._draw(items)
        return ((cut, items), (0, cut)) if cut else ((0, items),)


def every_name(streams: Sequence[str]) -> tuple[str, ...]:
    """The names of all schedules for a device with these streams."""
    return ("eager", "lazy", "random", *(f"starve:{name}" for name in streams))


def by_name(name: str, seed: int = 0) -> Schedule:
    """``eager``, ``lazy``, ``random`` or ``starve:STREAM``; anything else is a :class:`ValueError`."""
    kind, _, victim = name.partition(":")
    if kind == "starve" and victim:
        return Starve(victim, seed)
    if name == "random":
        return Random(seed)
    if name in ("eager", "lazy"):
        return Eager() if name == "eager" else Lazy()
    raise ValueError(f"unknown schedule {name!r}: use eager, lazy, random or starve:STREAM")
