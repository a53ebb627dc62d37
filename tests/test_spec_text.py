"""The text itself: its tables are up to date, its words are right, and mistakes in it are named."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import kvproof.spec
from kvproof.checks.proof.spec_tables import written
from kvproof.model.interface import CAPABILITIES
from kvproof.spec import RULES
from kvproof.spec.language import SpecError, State, Variable, forall
from kvproof.spec.modules import MODULES, NUMBER_THEOREMS
from kvproof.spec.operations import OPERATIONS
from kvproof.spec.steps import FALSE_STATEMENTS, action, happens, nothing, require, theorem
from kvproof.spec.storage import GIVEN, HAPPENING, MACHINE

FOLDER = Path(kvproof.spec.__file__).parent


def test_the_generated_tables_of_the_readme_are_up_to_date() -> None:
    text = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert written(text) == text, "run: python -m kvproof.checks.proof.spec_tables spec/README.md"
    with pytest.raises(ValueError, match="no place for the table"):
        written("nothing here")


def test_every_action_of_storage_belongs_to_an_operation() -> None:
    words = {
        word.strip("()*?,").removeprefix("lengths.").removeprefix("records.")
        for operation in OPERATIONS
        for word in f"{operation.storage} {operation.other}".replace("|", " ").split()
    }
    for module in MODULES.values():
        missing = set(module.actions) - words
        assert missing == set(), f"{module.name}: {missing}"


def test_every_operation_of_the_interface_is_in_the_table() -> None:
    named = {operation.name.split("(")[0] for operation in OPERATIONS}
    wanted = {
        "admit",
        "extend",
        "fork",
        "submit",
        "complete",
        "advance",
        "commit",
        "release",
        "pin",
        "unpin",
        "publish",
    }
    wanted |= {"hit", "evict", "hold", "ack", "move", "take", "clone", "recycle"}
    assert wanted <= named
    assert CAPABILITIES


def test_the_spec_imports_only_the_standard_library_and_itself() -> None:
    import sys

    for file in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            for name in names:
                assert name.split(".")[0] in sys.stdlib_module_names, f"{file.name} imports {name}"


def test_names_of_rules_theorems_and_statements_are_all_different() -> None:
    names = [*RULES, *(t.name for m in MODULES.values() for t in m.theorems)]
    names += [t.name for t in NUMBER_THEOREMS] + [*FALSE_STATEMENTS]
    assert len(names) == len(set(names))


def test_an_action_says_in_english_what_it_does() -> None:
    with pytest.raises(SpecError, match="no docstring"):

        @action
        def silent(s: State) -> State:
            return s

    with pytest.raises(SpecError, match="no docstring"):

        @theorem
        def nothing_said(s: State) -> object:  # type: ignore[return-value]
            return s

    for module in MODULES.values():
        for made in module.actions.values():
            assert made.sentence.endswith(".")
            assert len(made.sentence) > 20


def test_an_action_takes_the_state_first_and_things_by_their_names() -> None:
    with pytest.raises(SpecError, match="first parameter"):

        @action
        def wrong(request: Variable) -> State:  # type: ignore[return-value]
            """Takes no state."""

    with pytest.raises(SpecError, match="has no sort"):

        @action
        def unknown(s: State, thing: Variable) -> State:
            """Takes a thing of no sort."""
            return s


def test_require_and_happens_belong_into_an_action() -> None:
    with pytest.raises(SpecError, match="body of an action"):
        require()
    with pytest.raises(SpecError, match="body of an action"):
        happens(refused=True)


def test_a_guard_is_a_formula_and_an_action_returns_a_state() -> None:
    @action
    def guarded(s: State) -> State:
        """Has a guard that is no formula."""
        require(True)  # type: ignore[arg-type]
        return s

    @action
    def aimless(s: State) -> State:
        """Returns nothing."""
        return None  # type: ignore[return-value]

    s, given, event = MACHINE.state(), GIVEN.state("given"), nothing("event", HAPPENING)
    with pytest.raises(SpecError, match="a guard is a formula"):
        guarded.step(s, given, event)
    with pytest.raises(SpecError, match="must return the next state"):
        aimless.step(s, given, event)


def test_a_fixed_relation_cannot_be_changed_and_a_formula_has_no_truth() -> None:
    s = MACHINE.state()
    with pytest.raises(SpecError, match="fixed"):
        s.but(usable=s.usable)
    with pytest.raises(SpecError, match="no truth value"):
        bool(forall(lambda block: s.free(block)))


def test_a_module_refuses_to_replace_an_action_that_it_does_not_have() -> None:
    with pytest.raises(SpecError, match="no action"):
        MODULES["storage"].with_action("no_such", MODULES["storage"].actions["admit"])
