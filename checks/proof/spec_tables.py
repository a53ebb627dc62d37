"""The generated tables of ``spec/README.md``: ``python -m kvproof.checks.proof.spec_tables FILE`` writes them anew.

They are made from the text itself (operations, rules, mutants) and from what each tool says that it
reads; a test compares the file with what would be written.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from kvproof.checks.proof.prove import STANDS_FOR, scope_of
from kvproof.spec.language import RULES
from kvproof.spec.modules import MODULES, NUMBER_THEOREMS
from kvproof.spec.mutants import MUTANTS
from kvproof.spec.operations import OPERATIONS
from kvproof.spec.steps import FALSE_STATEMENTS

MODEL_SEES = ("finish_frees_shared", "early_release", "destination_unpinned")
"""Mutants of the model that its exploration in the configuration ``pool`` catches."""
SANITIZED = ("reads_keep_their_source", "writes_stay_home", "no_read_before_fill")
"""Rules that the GPU backend's sanitizer judges by itself."""


def operations() -> Iterator[str]:
    """Operation x actions."""
    yield "| operation | actions of storage | of lengths and records |"
    yield "| --- | --- | --- |"
    for operation in OPERATIONS:
        yield f"| `{operation.name}` | {_cell(operation.storage)} | {_cell(operation.other)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def rules() -> Iterator[str]:
    """Rule x tool x mutant x shortest length."""
    yield "| rule | statement | proved | other tools | mutant | caught by | shortest |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for rule in RULES.values():
        module = next(m for m in MODULES.values() if rule.name in m.rules)
        own = [mutant for mutant in MUTANTS.values() if mutant.rule == rule.name]
        tools = ["refute"]
        tools += ["explore spec"] if any(mutant.stage.coarse for mutant in own) else []
        tools += ["explore model"] if any(mutant.name in MODEL_SEES for mutant in own) else []
        tools += ["monitor", "certify", *(["sanitizer"] if rule.name in SANITIZED else [])]
        proof = "any size, " + ("first-order form" if rule.name in STANDS_FOR else module.name)
        for number, mutant in enumerate(own):
            caught = ["prove", "refute", *(["explore spec"] if mutant.stage.coarse else [])]
            caught += [*(["explore model"] if mutant.name in MODEL_SEES else []), "monitor", "certify"]
            first = (
                f"| {rule.number} `{rule.name}` | {rule.statement} | {proof} | {', '.join(tools)} |"
                if number == 0
                else "| | | | |"
            )
            yield f"{first} `{mutant.name}`: {mutant.what.rstrip('.')} | {', '.join(caught)} | {mutant.shortest} |"


def actions() -> Iterator[str]:
    """Every action with its sentence."""
    yield "| module | action | what it does |"
    yield "| --- | --- | --- |"
    for module in MODULES.values():
        for action in module.actions.values():
            yield f"| {module.name} | `{action.name}` | {action.sentence} |"


def theorems() -> Iterator[str]:
    """Every theorem with its sentence and how far it reaches."""
    yield "| theorem | sentence | proved for |"
    yield "| --- | --- | --- |"
    for module in MODULES.values():
        for theorem in module.theorems:
            yield f"| `{theorem.name}` | {theorem.sentence} | {scope_of(module, theorem.name)} |"
    for theorem in NUMBER_THEOREMS:
        yield f"| `{theorem.name}` | {theorem.sentence} | all whole numbers |"


def false_statements() -> Iterator[str]:
    """Statements that do not hold."""
    yield "| statement | why it does not hold |"
    yield "| --- | --- |"
    for theorem in FALSE_STATEMENTS.values():
        yield f"| `{theorem.name}` | {theorem.sentence} |"


def not_carried() -> Iterator[str]:
    """Clauses that first-order logic does not carry."""
    s = {name: module.states.state("s") for name, module in MODULES.items()}
    from kvproof.spec.steps import nothing

    yield "| rule | clause | checked instead |"
    yield "| --- | --- | --- |"
    for module in MODULES.values():
        for (rule, place), reason in module.not_carried.items():
            state = s[module.name]
            states = (state, nothing("event", module.events), state) if RULES[rule].step else (state,)
            yield f"| `{rule}` | {RULES[rule].clauses(*states)[place].broken} | {reason} |"


TABLES = {
    "rules": rules,
    "operations": operations,
    "actions": actions,
    "theorems": theorems,
    "false": false_statements,
    "not-carried": not_carried,
}


def written(text: str) -> str:
    """The text with every table between its markers made anew.  Raises ``ValueError`` if a marker is missing."""
    for name, lines in TABLES.items():
        begin, end = f"<!-- {name}: generated -->\n", f"<!-- end of {name} -->"
        if begin not in text or end not in text:
            raise ValueError(f"the file has no place for the table {name}: {begin.strip()} ... {end}")
        head, rest = text.split(begin, 1)
        tail = rest.split(end, 1)[1]
        text = head + begin + "\n".join(lines()) + "\n" + end + tail
    return text


def main(arguments: list[str]) -> int:
    """Write the tables into a file."""
    if len(arguments) != 1:
        print("usage: python -m kvproof.checks.proof.spec_tables spec/README.md", file=sys.stderr)
        return 2
    path = Path(arguments[0])
    path.write_text(written(path.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
