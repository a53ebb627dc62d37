"""What an exploration returns, how it reports progress, and how it is kept in a file.

A checkpoint holds everything that was found up to the last finished level, so a run that is killed and
resumed ends with the same counts.  It is a NumPy archive without pickled objects.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvproof.checks.proof.spec_finding import SpecFinding
from kvproof.checks.readings.spec_errors import CheckpointError

FORMAT = 1


@dataclass(frozen=True)
class Progress:
    """How far an exploration has come."""

    depth: int
    states: int
    edges: int
    seconds: float


Report = Callable[[Progress], None]


@dataclass
class ExploreResult:
    """``states`` and ``edges`` are concrete counts (None where symmetry was used and they are not known);
    ``classes`` is the number explored, ``class_edges`` the moves out of them; ``depth`` the operations to the last
    new state; ``complete`` says whether everything reachable was visited.

    ``orbit_sum`` is the number of states that the explored classes stand for, where it is known.
    ``waits`` are the counts of :class:`~kvproof.checks.exploring.waits.Waits`, where they were taken: when
    all classes of the model were explored and no rule is broken.
    """

    subject: str
    symmetry: str
    states: int | None
    edges: int | None
    depth: int
    classes: int
    class_edges: int
    finding: SpecFinding | None
    complete: bool
    seconds: float
    orbit_sum: int | None = None
    bytes_per_state: float = 0.0
    peak_bytes: int = 0
    engine: str = ""
    checked: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default_factory=tuple)
    waits: dict[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """The object that ``kvproof explore --json`` prints."""
        return {**vars(self), "finding": None if self.finding is None else self.finding.as_json()}

    def exit_code(self) -> int:
        """0 nothing found and complete, 1 a rule is broken, 3 not complete."""
        return 1 if self.finding is not None else 0 if self.complete else 3


@dataclass
class Checkpoint:
    """Everything that was found: keys, parents and moves by number, where each level starts, and the edges."""

    keys: NDArray[Any]
    parents: NDArray[np.int64]
    moves: NDArray[np.int64]
    levels: list[int]
    edges: int

    def save(self, path: Path, what: str) -> None:
        """Write the file in one go: a kill in the middle leaves the old one."""
        temporary = path.with_name(path.name + ".part")
        with open(temporary, "wb") as file:
            np.savez(
                file,
                format=np.int64(FORMAT),
                what=np.array(what),
                keys=self.keys,
                parents=self.parents,
                moves=self.moves,
                levels=np.array(self.levels, dtype=np.int64),
                edges=np.int64(self.edges),
            )
        os.replace(temporary, path)

    @classmethod
    def load(cls, path: Path, what: str) -> Checkpoint:
        """Read the file; it must be of the same exploration.  Raises :class:`CheckpointError`."""
        try:
            with np.load(path, allow_pickle=False) as data:
                if int(data["format"]) != FORMAT or str(data["what"]) != what:
                    raise CheckpointError(
                        f"{path} is a checkpoint of {str(data['what'])!r}, not of {what!r}: "
                        "remove it or name another file"
                    )
                return cls(
                    data["keys"],
                    data["parents"],
                    data["moves"],
                    [int(level) for level in data["levels"]],
                    int(data["edges"]),
                )
        except (OSError, KeyError, ValueError) as error:
            if isinstance(error, CheckpointError):
                raise
            raise CheckpointError(f"{path} is not a checkpoint: {error}") from None
