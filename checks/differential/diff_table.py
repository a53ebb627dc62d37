"""The table of ``gpu/README.md``: which detector catches which broken backend, under which schedule.

Run ``python -m kvproof.checks.differential.diff_table gpu/README.md`` in the source tree to write it anew.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from kvproof.checks.differential.diff import ALL_SCHEDULES, Detector, programs, side

PROGRAMS = 60
SEED = 1
CORRECT = "(none)"
"""The row of the backend without a fault."""
BEGIN, END = "<!-- generated: detectors -->", "<!-- end of generated -->"
ASYNCHRONOUS = "lazy"
"""The schedule under which the columns that do not depend on one are filled."""


def fired(mutant: str, schedule: str, count: int = PROGRAMS) -> Counter[Detector]:
    """In how many programs each detector fired; a kernel that crashed counts as wrong bytes."""
    name = "gpu" if mutant == CORRECT else f"gpu:{mutant}"
    total: Counter[Detector] = Counter()
    for program in programs(side("reference"), side(name), count, SEED, schedule):
        found = set(program.detectors)
        if "raises" in found:
            found = found - {"raises"} | {"bytes"}
        total.update(found)
    return total


def rows(mutants: Iterable[str], count: int = PROGRAMS) -> Mapping[str, Mapping[str, int]]:
    """Percentages by mutant and column."""
    table: dict[str, dict[str, int]] = {}
    for mutant in mutants:
        counts = {schedule: fired(mutant, schedule, count) for schedule in ALL_SCHEDULES}
        row = {f"bytes {schedule}": 100 * counts[schedule]["bytes"] // count for schedule in ALL_SCHEDULES}
        usual = counts[ASYNCHRONOUS]
        table[mutant] = row | {
            "state": 100 * usual["state"] // count,
            "race": 100 * usual["race"] // count,
            "ticket": 100 * usual["ticket"] // count,
        }
    return table


def markdown(table: Mapping[str, Mapping[str, int]]) -> str:
    """The table as Markdown."""
    columns = list(next(iter(table.values())))
    lines = [f"| mutant | {' | '.join(columns)} |", "| --- |" + " ---: |" * len(columns)]
    lines += [f"| `{name}` | {' | '.join(str(row[column]) for column in columns)} |" for name, row in table.items()]
    return "\n".join(lines)


def parse(text: str) -> Mapping[str, Mapping[str, int]]:
    """The table back from a document that holds it; raises ``ValueError`` where it does not."""
    lines = text[text.index(BEGIN) : text.index(END)].strip().splitlines()[1:]
    cells = [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines if line.strip()]
    header, _, *body = cells
    return {row[0]: dict(zip(header[1:], map(int, row[1:]), strict=True)) for row in body}


def write(document: Path) -> None:
    """Replace the table in the document."""
    from kvproof.gpu.mutants import MUTANTS

    text = document.read_text()
    table = markdown(rows((CORRECT, *MUTANTS)))
    before, after = text[: text.index(BEGIN)], text[text.index(END) :]
    document.write_text(f"{before}{BEGIN}\n{table}\n{after}")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
