"""The command line: exit codes, one JSON object on standard output, one clear line for an error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kvproof.checks import cli
from kvproof.spec import RULES

FAST = ("--operations", "1500", "--examples", "2", "--rows", "40")
ROOT = Path(__file__).parent.parent

BLOCKS = """\
admit A(6), B(9)               A=[1, 2] B=[3, 4, 5]         free=[6, 7]
A reaches 8 tokens             A=[1, 2] B=[3, 4, 5]         free=[6, 7]
A reaches 9 tokens             A=[1, 2, 6] B=[3, 4, 5]      free=[7]
A at 11, two drafts reserved   A=[1, 2, 6, 7] B=[3, 4, 5]   free=[]
drafts rejected; A at 12       A=[1, 2, 6] B=[3, 4, 5]      free=[7]
admission check for 4 blocks: LATER
B finishes                     A=[1, 2, 6]                  free=[7, 5, 4, 3]
admission check for 4 blocks: OK
admission check for 8 blocks: NEVER
"""
SHARE = """\
Release the tail pin before the queued copy
  fork: parent=[1, 2, 3] child=[1, 2, 4] refs 1:2 2:2 3:2 4:1 copy=[(3, 4)]
  parent finishes: free=[]; shared [1, 2] kept
  writer receives block 3 before the copy runs
  child reads [100, 101]...[900, 901]: correct=False

Release the tail pin after the queued copy
  fork: parent=[1, 2, 3] child=[1, 2, 4] refs 1:2 2:2 3:2 4:1 copy=[(3, 4)]
  parent finishes: free=[]; shared [1, 2] kept
  writer waits; receives block 3 after the copy
  child reads [100, 101]...[108, 109]: correct=True
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs ``kvproof ARGUMENTS`` in an empty directory; returns the result."""
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()

    def call(*arguments: str) -> Any:
        result = runner.invoke(cli.app, list(arguments), prog_name="kvproof")
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return call


# ---------------------------------------------------------------------------------------------------- labs


def test_the_labs_print_the_chapter_byte_for_byte(run: Any) -> None:
    assert run("lab", "blocks").stdout == BLOCKS
    assert run("lab", "share").stdout == SHARE


def test_the_exercises_are_options(run: Any) -> None:
    assert "five drafts" in run("lab", "blocks", "--drafts", "5").stdout
    assert "copy=[]" in run("lab", "share", "--processed", "8").stdout
    assert "free=[7, 3, 4, 5]" in run("lab", "blocks", "--release-order", "forward").stdout


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("lab", "blocks", "--drafts", "99"), "drafts is 99"),
        (("lab", "share", "--processed", "0"), "processed is 0"),
        (("lab", "blocks", "--release-order", "sideways"), "--release-order sideways: choose reverse or forward"),
        (("certify", "nothing_here:make"), "there is no module 'nothing_here'"),
        (("certify", "json:nothing"), "'json' has no 'nothing'"),
        (("certify", "unknown"), "target 'unknown' is not built in"),
        (("certify", "reference:unknown"), "the model has no such mutant"),
        (("certify", "--workload", "no-such-file.jsonl"), "no-such-file.jsonl"),
        (("replay", "no-such-file.jsonl"), "no-such-file.jsonl: No such file or directory"),
    ],
)
def test_a_user_s_error_is_one_line_and_exit_code_2(run: Any, arguments: tuple[str, ...], problem: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert problem in result.stderr
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


@pytest.mark.parametrize("arguments", [("certify", "--seed", "-1"), ("certify", "--nonsense"), ("nonsense",)])
def test_a_usage_error_is_exit_code_2(run: Any, arguments: tuple[str, ...]) -> None:
    assert run(*arguments).exit_code == 2


# ------------------------------------------------------------------------------------------------- certify


def test_certify_prints_exactly_one_json_object(run: Any) -> None:
    result = run("certify", "--json", *FAST)
    assert result.exit_code == 0
    value = json.loads(result.stdout)
    assert result.stdout.count("\n") == 1
    assert value["verdict"] == "certified"
    assert value["target"] == "reference"
    assert list(value["rules"]) == list(RULES)
    assert value["operations"] >= 1500
    assert value["findings"] == []
    assert value["coverage"]["missing"] == []
    assert {"promised", "reached"} <= value["coverage"].keys()
    assert value["seconds"] > 0


def test_a_violation_is_exit_code_1_with_a_finding_and_a_trace(run: Any, tmp_path: Path) -> None:
    result = run("certify", "reference:early_release", "--seed", "1", "--json")
    assert result.exit_code == 1
    value = json.loads(result.stdout)
    (finding,) = value["findings"]
    assert {"rule", "kind", "length", "trace", "message"} <= finding.keys()
    assert (finding["rule"], finding["kind"], finding["length"]) == ("reads_keep_their_source", "rule", 3)
    assert "900 and 901 where 108 and 109" in finding["message"]
    assert (tmp_path / finding["trace"]).exists()
    again = run("replay", finding["trace"], "--json")
    assert again.exit_code == 1
    assert json.loads(again.stdout)["finding"]["rule"] == "reads_keep_their_source"
    assert run("replay", finding["trace"], "--on", "reference").exit_code == 0


def test_what_a_target_prints_stays_out_of_the_json(run: Any, tmp_path: Path) -> None:
    (tmp_path / "chatty.py").write_text(
        "from kvproof.model import make_reference\n"
        "print('imported')\n"
        "def make(configuration):\n"
        "    print('built')\n"
        "    return make_reference(configuration)\n"
    )
    result = run("certify", "chatty:make", "--json", *FAST)
    assert result.exit_code == 0
    assert json.loads(result.stdout)["verdict"] == "certified"
    assert "imported" in result.stderr
    assert "built" in result.stderr


def test_a_budget_that_ends_is_exit_code_3(run: Any) -> None:
    result = run("certify", "--budget", "0.2", "--json")
    assert result.exit_code == 3
    assert json.loads(result.stdout)["verdict"] == "undetermined"


def test_out_holds_certificate_report_trace_program_and_regression_test(run: Any, tmp_path: Path) -> None:
    result = run("certify", "reference:issue_twice", "--out", "report")
    assert result.exit_code == 1
    written = sorted(path.name for path in (tmp_path / "report").iterdir())
    assert written == [
        "certificate.json",
        "owned_xor_free.html",
        "owned_xor_free.jsonl",
        "owned_xor_free.py",
        "report.txt",
        "test_owned_xor_free.py",
    ]
    certificate = json.loads((tmp_path / "report" / "certificate.json").read_text())
    assert (certificate["format"], certificate["version"]) == ("kvproof-certificate", 1)
    assert {"packages", "seed", "coverage", "seconds", "rules"} <= certificate.keys()
    assert str(tmp_path) not in (tmp_path / "report" / "certificate.json").read_text()
    assert "owned_xor_free" in (tmp_path / "report" / "report.txt").read_text()


def test_the_report_for_people_names_rule_story_and_program(run: Any) -> None:
    result = run("certify", "reference:early_release", "--seed", "1")
    assert "reference:early_release: violated" in result.stdout
    assert "what then happens" in result.stdout
    assert "allocator.fork('A', 'B', 10)  # OK, 10 rows hit, copy 1: 3 to 4" in result.stdout
    assert "kvproof replay" in result.stdout


# ------------------------------------------------------------------------------------- targets, replay, help


def test_targets_lists_every_mutant_with_its_rule(run: Any) -> None:
    result = run("targets", "--json")
    assert result.exit_code == 0
    targets = {row["name"]: row for row in json.loads(result.stdout)["targets"]}
    assert {"reference", "transformers"} <= targets.keys()
    assert targets["reference:early_release"]["rule"] == "reads_keep_their_source"
    assert targets["reference"]["rule"] is None
    for row in targets.values():
        assert {"name", "capabilities", "available", "install"} <= row.keys()
    assert "reference:early_release" in run("targets").stdout


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "line 1: the file is empty"),
        ("{}\n", "line 1: field format"),
        ("[" * 100_000 + "\n", "line 1: "),
        ('{"format": "kvproof-trace", "version": 2}\n', "version 2 is newer"),
        ('{"format": "kvproof-trace", "version": 1, "config"', "line 1: the line has no end"),
    ],
)
def test_a_malformed_trace_is_one_line_and_exit_code_2(run: Any, tmp_path: Path, content: str, problem: str) -> None:
    (tmp_path / "bad.jsonl").write_text(content)
    result = run("replay", "bad.jsonl")
    assert result.exit_code == 2
    assert problem in result.stderr
    assert result.stderr.count("\n") == 1


def test_help_teaches_the_exit_codes_and_every_command(run: Any) -> None:
    text = run("--help").stdout
    assert "0 holds, 1 violated, 2 usage or target error, 3 undetermined" in " ".join(text.split())
    for command in ("certify", "targets", "replay", "prove", "refute", "explore", "monitor", "diff", "lab"):
        assert command in text
        assert run(command, "--help").exit_code == 0


def test_nothing_goes_to_standard_output_but_the_json_in_a_real_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from kvproof.checks.cli import main; main()", "certify", "--json", *FAST]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env={**os.environ}, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verdict"] == "certified"
    assert done.stderr == ""
