"""Runs of the spec as traces: the same operations, asked of the model, written down as it answers.

The spec speaks of blocks and rows, an allocator of requests and tokens, so a run is told again on a
pool with blocks of two positions: a table of ``n`` blocks is a request of ``2 n - 1`` tokens, whose last
block is partly filled and therefore copied by a fork.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from kvproof.checks.proof.unroll import Happened
from kvproof.model.interface import Configuration, Reply
from kvproof.model.mutants import MUTANTS, make_mutant
from kvproof.model.reference import make_reference
from kvproof.model.trace import Recorder, write_trace

BLOCK_SIZE = 2
TELLABLE = frozenset({"admit", "grow", "fork", "complete", "release_pins", "finish", "preempt", "pin", "unpin"})
"""Spec actions that are operations of an allocator, one for one (pins are released with ``complete``)."""


def write_run(name: str | None, steps: Sequence[Happened], folder: Path) -> str | None:
    """Write the run as a trace of ``reference:NAME`` (of ``reference`` without a name); None where the run has no
    such form."""
    if (name is not None and name not in MUTANTS) or not {step.action for step in steps} <= TELLABLE:
        return None
    blocks = 1 + max((n for step in steps for thing, n in step.things if thing.endswith("block")), default=0)
    configuration = Configuration(blocks=blocks, block_size=BLOCK_SIZE, max_requests=4)
    factory, target = (make_reference, "reference") if name is None else (make_mutant(name), f"reference:{name}")
    allocator = Recorder(factory(configuration), configuration, target)
    tell(steps, allocator)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name or 'reference'}.jsonl"
    write_trace(path, allocator.trace())
    return str(path)


def tell(steps: Sequence[Happened], allocator: Recorder) -> None:
    """Ask the allocator for the operations that a run of the spec consists of."""
    teller = _Teller(allocator)
    for step in steps:
        teller.tell(step.action, dict(step.things))


class _Teller:
    """Keeps what a run needs to know: how long each request is, and the ticket of each copy."""

    def __init__(self, allocator: Recorder) -> None:
        self.ask: Callable[[str], Callable[..., object]] = lambda op: getattr(allocator, op)
        self.blocks: dict[int, int] = {}
        self.tickets: dict[int, int] = {}

    def tell(self, action: str, things: dict[str, int]) -> None:
        request = things.get("request", 0)
        name = f"r{request}"
        if action == "admit":
            self.blocks[request] = 1
            self.ask("admit")(name, [100 * request])
            self.ask("commit")(name, 1)
        elif action == "grow":
            length = BLOCK_SIZE * self.blocks[request] - 1
            self.blocks[request] += 1
            self.ask("extend")(name, [100 * request + length, 100 * request + length + 1], 0)
            self.ask("commit")(name, length + BLOCK_SIZE)
        elif action == "fork":
            parent, child = things["parent_request"], things["child_request"]
            rows = BLOCK_SIZE * things["index"] + 1
            reply = self.ask("fork")(f"r{parent}", f"r{child}", rows)
            self.blocks[child] = things["index"] + 1
            assert isinstance(reply, Reply)
            self.tickets[things["work"]] = reply.copies[0].ticket
        elif action == "complete":
            self.ask("complete")([self.tickets[things["work"]]])
        elif action in ("finish", "preempt"):
            self.ask("release")(name, action)
        elif action == "pin":
            self.ask("pin")(name, f"h{things['holder']}")
        elif action == "unpin":
            self.ask("unpin")(f"h{things['holder']}")
