"""What a certification leaves behind: the JSON object, the report for people, and the files of ``--out``."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvproof.checks.certification.certify import Result, not_applicable
from kvproof.checks.certification.explain import packages
from kvproof.checks.certification.finding import Finding, configuration_json, program, regression_test, story
from kvproof.checks.certification.generate import WEIGHTS, offered
from kvproof.checks.picture.page import picture
from kvproof.model.trace import write_trace
from kvproof.spec import RULES

DEFAULT_DIRECTORY = "kvproof-out"
"""Where a counterexample is saved when no ``--out`` is given."""
MEANING = {
    "certified": "every rule held after every operation, and everything promised was reached",
    "violated": "a rule is broken; the shortest run found is below",
    "undetermined": "nothing broke, but not everything promised was reached: this is not a pass",
}
COLOURS = {"certified": "green", "violated": "red", "undetermined": "yellow"}


def as_json(result: Result) -> dict[str, Any]:
    """The result as the one JSON object that ``certify --json`` prints."""
    return {
        "verdict": result.verdict,
        "target": result.target,
        "rules": {name: result.checked.get(name, 0) for name in RULES},
        "coverage": {
            "promised": dict(result.promised),
            "reached": {what: result.reached.get(what, 0) for what in result.promised},
            "missing": list(result.missing),
            "not_applicable": not_applicable(result.checked, result.capabilities),
            "complete": not result.missing,
            "workload": result.workload,
            "workload_events": dict(sorted(result.driven.items())),
            "pools": [configuration_json(pool) for pool in (*result.plan.pools, result.plan.workload_pool)],
        },
        "operations": result.operations,
        "operation_counts": dict(sorted(result.statistics.items())),
        "findings": [finding.as_json() for finding in result.findings],
        "seconds": round(result.seconds, 3),
        "phases": result.phases,
        "seed": result.seed,
        "capabilities": sorted(result.capabilities),
        "declaration": _declaration(result),
        "notes": list(result.notes),
    }


def _declaration(result: Result) -> dict[str, Any]:
    declared = asdict(result.declaration)
    declared["capabilities"] = sorted(result.capabilities)
    return declared


def certificate(result: Result) -> dict[str, Any]:
    """The certificate: what was checked, with which versions, seed and bounds.  It names no machine."""
    return {
        "format": "kvproof-certificate",
        "version": 1,
        "packages": packages(),
        **as_json(result),
    }


def save(result: Result, directory: Path) -> list[Path]:
    """Write certificate, report and, after a violation, trace, picture, program and regression test."""
    directory.mkdir(parents=True, exist_ok=True)
    written = [*save_findings(result, directory)]
    path = directory / "certificate.json"
    path.write_text(json.dumps(certificate(result), indent=2, default=str) + "\n", encoding="utf-8")
    written.append(path)
    path = directory / "report.txt"
    with path.open("w", encoding="utf-8") as file:
        Console(file=file, width=120, no_color=True, highlight=False).print(report(result))
    written.append(path)
    return written


def save_findings(result: Result, directory: Path) -> list[Path]:
    """Write each finding's trace, picture, program and regression test; the findings then know their trace."""
    written = []
    for index, finding in enumerate(result.findings):
        directory.mkdir(parents=True, exist_ok=True)
        stem = finding.name if len(result.findings) == 1 else f"{finding.name}-{index + 1}"
        if finding.recorded is not None:
            path = directory / f"{stem}.jsonl"
            write_trace(path, finding.recorded)
            finding = result.findings[index] = finding.saved(str(path))
            written.append(path)
        texts = {f"{stem}.py": program(finding), f"test_{stem}.py": regression_test(finding)}
        if finding.recorded is not None:
            texts[f"{stem}.html"] = picture(finding.recorded, finding)
        for name, text in texts.items():
            path = directory / name
            path.write_text(text, encoding="utf-8")
            written.append(path)
    return written


# ---------------------------------------------------------------------------------------------- for people


def report(result: Result) -> RenderableType:
    """The report: verdict, findings, rules, operations, coverage."""
    parts: list[RenderableType] = [_headline(result), ""]
    for finding in result.findings:
        parts += [*finding_report(finding), ""]
    parts += [_rules(result), _operations(result), _coverage(result), *_workload_events(result)]
    parts += [Text(f"note: {note}") for note in result.notes]
    return Group(*parts)


def _headline(result: Result) -> Text:
    text = Text(f"{result.target}: ", style="bold")
    text.append(result.verdict, style=f"bold {COLOURS[result.verdict]}")
    text.append(f"   {MEANING[result.verdict]}")
    text.append(f"\n{result.operations} operations checked in {result.seconds:.1f} s, seed {result.seed}")
    if result.workload:
        text.append(f"\nworkload: {result.workload}")
    return text


def finding_report(finding: Finding) -> Iterable[RenderableType]:
    """One finding: the story, the program, and where it was saved."""
    yield Text(f"{finding.name} ({finding.kind}), {finding.length} operations", style="bold red")
    yield Text("\n".join(story(finding)))
    if finding.also:
        yield Text(f"     the same operation breaks: {', '.join(finding.also)}")
    yield Text("\nThe same as a program:\n", style="bold")
    yield Text(program(finding), style="cyan")
    if finding.trace:
        yield Text(f"saved as {finding.trace}; run it again with: kvproof replay {finding.trace}")
        if finding.recorded is not None:
            yield Text(f"a picture of it: {finding.trace.removesuffix('.jsonl')}.html")


def _rules(result: Result) -> Table:
    table = Table(title="Rules", title_justify="left", box=None, padding=(0, 2))
    table.add_column("rule")
    table.add_column("tested", justify="right")
    table.add_column("statement", style="dim")
    broken = {finding.rule for finding in result.findings}
    idle = not_applicable(result.checked, result.capabilities)
    for name, rule in RULES.items():
        style = "red" if name in broken else ""
        count = "n/a" if name in idle else f"{result.checked.get(name, 0):,}"
        table.add_row(Text(name, style=style), count, idle.get(name, rule.statement))
    return table


def _operations(result: Result) -> Table:
    table = Table(title="Operations", title_justify="left", box=None, padding=(0, 2))
    for column in ("operation", "performed", "OK", "LATER", "NEVER"):
        table.add_column(column, justify="left" if column == "operation" else "right")
    counts = result.statistics
    for op in WEIGHTS:
        if offered(op, result.capabilities):
            answers = (f"{counts[f'{op}:{answer}']:,}" if counts[f"{op}:{answer}"] else "" for answer in _ANSWERS)
            table.add_row(op, f"{counts[op]:,}", *answers)
    for what in ("hits", "evicted", "copies", "rows read"):
        if counts[what]:
            table.add_row(what, f"{counts[what]:,}", "", "", "")
    return table


_ANSWERS = ("ok", "later", "never")


def _coverage(result: Result) -> Table:
    table = Table(title="Coverage", title_justify="left", box=None, padding=(0, 2))
    for column in ("what", "promised", "reached"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for what, count in result.promised.items():
        table.add_row(what, f"{count:,}", f"{result.reached.get(what, 0):,}")
    for line in () if result.findings else result.missing:
        table.add_row(Text(f"missing: {line}", style="yellow"), "", "")
    return table


def _workload_events(result: Result) -> list[RenderableType]:
    events = ", ".join(f"{what} {count}" for what, count in sorted(result.driven.items()))
    return [Text(f"in the workload: {events}", style="dim")] if events else []
