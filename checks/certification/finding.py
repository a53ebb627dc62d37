"""A finding: which rule broke, by which shortest run, and what that run leads to.

The same object is printed for people, written as JSON, saved as a trace, exported as a Python program
and as a regression test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kvproof.checks.lockstep.operations import Operation
from kvproof.model.interface import Answer, Configuration, Reply
from kvproof.model.trace import Trace


@dataclass(frozen=True)
class Step:
    """One line of the story: an operation, what was answered, and what the pool looked like afterwards."""

    operation: Operation
    answer: str
    tables: str = ""
    free: str = ""


@dataclass(frozen=True)
class Finding:
    """One broken rule, or another kind of fault (``kind``), with its shortest known run.

    ``kind``: ``rule`` for a broken rule; ``raises``, ``hangs``, ``nondeterministic``,
    ``changes_answer``, ``reserved_block``, ``contract`` or ``wrong_rows`` otherwise.  ``length`` counts
    the operations up to the breach; ``consequence`` says what happens when the run goes on.
    """

    rule: str | None
    kind: str
    message: str
    length: int
    target: str
    configuration: Configuration
    steps: tuple[Step, ...] = ()
    draining: bool = False
    """The rule broke only when everything was given back after the last operation."""
    also: tuple[str, ...] = ()
    consequence: tuple[Step, ...] = ()
    what_then: str = ""
    history: tuple[str, ...] = ()
    """What happened to the guilty block, one line an event."""
    block: str | None = None
    """The guilty block or state slot."""
    pool: str | None = None
    """Its pool: ``blocks`` or ``slots``."""
    phase: str = ""
    trace: str | None = None
    """File that the run was saved to."""
    recorded: Trace | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """What broke: the rule, or the kind of misbehaviour."""
        return self.rule or self.kind

    @property
    def operations(self) -> tuple[Operation, ...]:
        """The operations up to the breach."""
        return tuple(step.operation for step in self.steps)

    def saved(self, file: str) -> Finding:
        """The same finding, knowing the file that its run was saved to."""
        return replace(self, trace=file)

    def full_message(self) -> str:
        """The breach in one sentence, and what it leads to."""
        return self.message + (f"; what then happens: {self.what_then}" if self.what_then else "")

    def as_json(self) -> dict[str, Any]:
        """The finding as it appears in every JSON output."""
        return {
            "rule": self.rule,
            "kind": self.kind,
            "length": self.length,
            "trace": self.trace,
            "message": self.full_message(),
            "also": list(self.also),
            "phase": self.phase,
            "at_the_end": self.draining,
            "configuration": configuration_json(self.configuration),
            "operations": [f"{step.operation} -> {step.answer}" for step in self.steps],
            "block": self.block,
            "pool": self.pool,
            "history": list(self.history),
            "program": program(self),
        }


def configuration_json(configuration: Configuration) -> dict[str, int]:
    """A configuration as plain data."""
    return {
        "blocks": configuration.blocks,
        "block_size": configuration.block_size,
        "max_requests": configuration.max_requests,
        "state_slots": configuration.state_slots,
        "seed": configuration.seed,
    }


def answer_text(reply: object) -> str:
    """What the target answered, in a few words."""
    if not isinstance(reply, Reply):
        return "done" if reply is None else repr(reply)
    if reply.answer is not Answer.OK:
        return reply.answer.name
    parts = ["OK"]
    if reply.hit_rows:
        parts.append(f"{reply.hit_rows} rows hit")
    for copy in reply.copies:
        where = f"{copy.source} to {copy.destination}" if copy.destination else f"nothing, releases {copy.source}"
        pool = "" if copy.pool == "blocks" else f" ({copy.pool})"
        parts.append(f"copy {copy.ticket}: {where}{pool}")
    if reply.evicted:
        parts.append(f"evicted {list(reply.evicted)}")
    return ", ".join(parts)


def literal(value: Any) -> str:
    """A Python literal; runs of consecutive numbers become ranges."""
    if isinstance(value, tuple | list):
        numbers = list(value)
        if len(numbers) > 3 and numbers == list(range(numbers[0], numbers[0] + len(numbers))):
            return f"range({numbers[0]}, {numbers[-1] + 1})"
        return _runs(numbers) if len(numbers) > 8 else repr(numbers)
    return repr(value)


def _runs(numbers: Sequence[int]) -> str:
    """A long list as a concatenation of ranges where that is shorter."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    if len(parts) * 3 > len(numbers):
        return repr(list(numbers))
    return "[" + ", ".join(f"*range({part[0]}, {part[-1] + 1})" for part in parts) + "]"


def call(operation: Operation) -> str:
    """The operation as a call of a method."""
    arguments = [literal(argument) for argument in operation.arguments()]
    if operation.op == "extend" and not operation.args["drafts"]:
        arguments.pop()
    return f"{operation.op}({', '.join(arguments)})"


# ---------------------------------------------------------------------------------------------- program


def program(finding: Finding) -> str:
    """A Python program that shows the finding: paste it into a file and run it."""
    return "\n".join([*_opening(finding), *_body(finding), *_ending(finding)]) + "\n"


def _opening(finding: Finding) -> list[str]:
    c = finding.configuration
    slots = f", state_slots={c.state_slots}" if c.state_slots else ""
    seed = f", seed={c.seed}" if c.seed else ""
    return [
        f"# {finding.name}: {finding.message}",
        "from kvproof.checks.adapters.registry import resolve",
        "from kvproof.model.interface import Configuration",
        "",
        f"configuration = Configuration(blocks={c.blocks}, block_size={c.block_size}, "
        f"max_requests={c.max_requests}{slots}{seed})",
        f"allocator = resolve({finding.target!r})(configuration)",
        "",
    ]


def _body(finding: Finding) -> list[str]:
    lines = [f"allocator.{call(step.operation)}  # {step.answer}" for step in finding.steps]
    if lines and finding.draining:
        lines.append("# Here everything was given back: " + finding.message)
    elif lines:
        lines.append(f"# Here {finding.name} breaks: {finding.message}")
    return lines


def _ending(finding: Finding) -> list[str]:
    lines = ["for name, pool in allocator.snapshot().items():"]
    lines.append("    print(name, 'tables', dict(pool.tables), 'free', list(pool.free), 'holds', dict(pool.holds))")
    if finding.consequence:
        lines += ["", "# What then happens:"]
        for step in finding.consequence:
            text = f"allocator.{call(step.operation)}" if step.operation.op != "read" else _read(step.operation)
            lines.append(f"{text}  # {step.answer}")
    return lines


def _read(operation: Operation) -> str:
    return f"print(list(allocator.read({operation.request!r})))"


# ---------------------------------------------------------------------------------------------- for people


def story(finding: Finding) -> list[str]:
    """The run as one line an event, then the breach, then the history of the guilty block."""
    width = max((len(call(step.operation)) for step in finding.steps), default=0)
    width = min(width, 60)
    lines = [
        f"{number:>3}  {call(step.operation):<{width}}  {step.answer}"
        + (f"  {step.tables}  free={step.free}" if step.tables or step.free else "")
        for number, step in enumerate(finding.steps, 1)
    ]
    where = "when everything was given back" if finding.draining else "here"
    lines.append(f"     {where}: {finding.message}")
    lines += [f"     {event}" for event in finding.history]
    if finding.what_then:
        lines.append(f"     what then happens: {finding.what_then}")
    return lines


def regression_test(finding: Finding) -> str:
    """A pytest file that fails as long as the fault is there."""
    name = "".join(c if c.isalnum() else "_" for c in f"{finding.name}_{finding.target}").lower()
    c = finding.configuration
    operations = "\n".join(f"        {_constructed(step.operation)}," for step in finding.steps)
    return f'''"""Regression test written by kvproof: {finding.name} in {finding.target}."""

from kvproof.checks.adapters.registry import resolve
from kvproof.checks.lockstep.harness import Lockstep
from kvproof.checks.lockstep.operations import Operation
from kvproof.model.interface import Configuration


def test_{name}():
    """{finding.message.replace(chr(34), chr(39)).replace(chr(92), "/")}"""
    configuration = Configuration(
        blocks={c.blocks}, block_size={c.block_size}, max_requests={c.max_requests},
        state_slots={c.state_slots}, seed={c.seed},
    )
    lockstep = Lockstep(resolve({finding.target!r}), configuration)
    for operation in (
{operations}
    ):
        lockstep.perform(operation)  # raises Violation when a rule breaks
    lockstep.drain()
'''


def _constructed(operation: Operation) -> str:
    args = ", ".join(
        f"{name!r}: {'tuple(' + literal(value) + ')' if isinstance(value, tuple | list) else literal(value)}"
        for name, value in operation.args.items()
    )
    return f"Operation({operation.op!r}, {operation.request!r}, {{{args}}})"
