"""Claims about target names: what is built in, what is imported, and what a mistake says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kvproof.checks.adapters import registry
from kvproof.checks.adapters.registry import TARGETS, Target, TargetError, list_targets, resolve, resolve_builtin
from kvproof.model.interface import Answer, Configuration
from kvproof.model.mutants import MUTANTS


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory of the user's own, and a search path that is restored afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    return tmp_path


def message_of(target: str) -> str:
    with pytest.raises(TargetError) as caught:
        resolve(target)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_the_model_is_the_target_reference() -> None:
    assert resolve("reference")(Configuration(blocks=3)).admit("a", [1]).answer is Answer.OK


def test_a_factory_is_found_in_the_working_directory(workplace: Path) -> None:
    (workplace / "toy_engine.py").write_text(
        "from kvproof.model.reference import make_reference\nclass Family:\n    make = staticmethod(make_reference)\n"
    )
    assert resolve("toy_engine:make_reference")(Configuration(blocks=3)).admit("a", [1]).answer is Answer.OK
    assert callable(resolve("toy_engine:Family.make"))


@pytest.mark.parametrize(
    ("target", "wanted"),
    [
        ("no_such_engine:make", "there is no module 'no_such_engine'; install it"),
        ("kvproof.model.nothing:make", "there is no module 'kvproof.model.nothing'"),
        ("kvproof.model.interface:make", "has no 'make'; name a factory(configuration) there (callables: "),
        ("kvproof.model.interface:BLOCKS", "is a str, not callable: name a function"),
        ("kvproof.model.interface:", "is not a name: write it as package.module:factory"),
        ("os.system('true'):make", "is not a name: write it as package.module:factory"),
        ("nonsense", "is not built in; choose one of reference, transformers, gpu, reference:MUTANT"),
        ("reference:nonsense", "the model has no such mutant; choose one of "),
        ("", "is not built in"),
    ],
)
def test_a_mistaken_name_says_what_is_wrong_and_what_to_write(target: str, wanted: str) -> None:
    assert wanted in message_of(target)


def test_a_module_that_needs_something_else_says_what(workplace: Path) -> None:
    (workplace / "needy_engine.py").write_text("import absent_thing\n")
    assert message_of("needy_engine:make").endswith(
        "its module needs 'absent_thing', which is not installed; install it first"
    )


@pytest.mark.parametrize("body", ["1 / 0", "raise SystemExit('no')", "def broken(:"])
def test_a_module_that_fails_on_import_is_a_target_error(workplace: Path, body: str) -> None:
    name = f"failing_engine_{abs(hash(body))}"
    (workplace / f"{name}.py").write_text(body + "\n")
    assert f"importing {name!r} raised" in message_of(f"{name}:make")


def test_a_name_from_a_file_is_never_imported(workplace: Path) -> None:
    (workplace / "trap_engine.py").write_text("raise RuntimeError('imported')\n")
    with pytest.raises(TargetError, match="is not built in"):
        resolve_builtin("trap_engine:make")
    assert "trap_engine" not in sys.modules


def test_a_missing_package_makes_a_target_unavailable_and_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    far = Target("far", "far away", "absent_thing:make", needs=("absent_thing",), install="pip install absent-thing")
    monkeypatch.setattr(registry, "TARGETS", {**TARGETS, "far": far})
    assert message_of("far") == "target 'far' needs absent_thing: pip install absent-thing"
    (row,) = [row for row in list_targets() if row.name == "far"]
    assert (row.available, row.capabilities, row.install) == (False, (), "pip install absent-thing")


def test_every_target_is_listed_with_a_line_and_mutants_with_their_rule() -> None:
    rows = {row.name: row for row in list_targets()}
    assert list(rows)[:3] == ["reference", "transformers", "gpu"]
    assert rows["reference"].available
    assert {"forks", "copies", "rows"} <= set(rows["reference"].capabilities)
    mutants = [row for row in rows.values() if row.name.startswith("reference:")]
    assert [row.name for row in mutants] == [f"reference:{name}" for name in MUTANTS]
    for row in mutants:
        assert row.available
        assert row.rule is not None
        assert resolve_builtin(row.name) == resolve(row.name)
    assert all(row.rule is None for name, row in rows.items() if ":" not in name)
    assert "reference:early_release" in rows


def test_listing_needs_no_engine_package() -> None:
    """Neither torch nor transformers is imported to say that transformers is there."""
    program = (
        "import sys\n"
        "sys.modules['torch'] = None\n"
        "from kvproof.checks.adapters.registry import list_targets\n"
        "names = [row.name for row in list_targets()]\n"
        "assert names[:2] == ['reference', 'transformers'], names\n"
        "assert 'transformers' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_capabilities_written_down_for_transformers_are_those_it_has() -> None:
    pytest.importorskip("transformers", reason="pip install 'kvproof[transformers]'")
    pytest.importorskip("torch", reason="pip install 'kvproof[transformers]'")
    from kvproof.model.interface import capabilities_of

    target = resolve("transformers")(Configuration())
    assert tuple(sorted(capabilities_of(target))) == TARGETS["transformers"].capabilities
