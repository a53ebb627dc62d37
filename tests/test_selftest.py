"""The self-test for a machine with a GPU, on one without: the same checks on the simulated device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from kvproof.checks.adapters.registry import TargetError  # noqa: E402
from kvproof.checks.differential.selftest import Line, early_release, machine_for, run, verdict_of  # noqa: E402


def test_everything_passes_on_the_simulated_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(device="cpu", out=tmp_path, json_output=True) == 0
    result = json.loads(capsys.readouterr().out)
    assert result == json.loads((tmp_path / "selftest.json").read_text())
    assert result["verdict"] == "certified"
    by_name = {line["name"]: line for line in result["lines"]}
    assert by_name["early release shows"]["detail"] == "the child reads [900, 901] where [108, 109] was expected"
    assert {line["verdict"] for line in result["lines"]} == {"passed", "measured"}
    assert "% of a plain copy" in by_name["block copy bandwidth"]["detail"]


def test_an_early_release_that_does_not_show_fails_the_check() -> None:
    machine = machine_for("cpu")
    verdict, _ = early_release(machine.single(), machine.hold, early=True, shows=True)
    assert verdict == "failed", "on one stream the order hides it"


def test_a_machine_without_a_gpu_says_so() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(TargetError, match="no CUDA device is available"):
        run(device="cuda")
    with pytest.raises(TargetError, match="use cpu or cuda"):
        run(device="tpu")


def test_what_could_not_be_shown_is_never_a_pass() -> None:
    passed, failed, open_ = (Line("x", verdict, "", 0.0) for verdict in ("passed", "failed", "undetermined"))
    assert verdict_of([passed]) == "certified"
    assert verdict_of([passed, open_]) == "undetermined"
    assert verdict_of([passed, open_, failed]) == "violated"
