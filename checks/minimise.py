"""Make a counterexample short, then make it look like the chapter's.

Hypothesis shrinks choices; this shrinks operations: it drops whatever the breach does not need (an
operation that is not legal any more is skipped), shortens prompts, and takes blocks away from the
pool.  A shorter script must end in the same breach: same kind, same rule.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from kvproof.checks.generate import FIRST_TOKEN, STREAM, name_of
from kvproof.checks.harness import Breach
from kvproof.checks.operations import Operation
from kvproof.checks.script import CALL_LIMIT, Line, Run, Script, play
from kvproof.model.interface import Configuration, Factory

CHAPTER_BLOCK = 4
CHAPTER_PROMPT = 10
"""The sharing experiment of the chapter: blocks of four positions, ten prompt tokens."""


class Minimiser:
    """Searches for smaller scripts that end in the same breach, until ``seconds`` are over."""

    def __init__(
        self, factory: Factory, found: Run, breach: Breach, *, seconds: float = 20.0, call_limit: float = CALL_LIMIT
    ) -> None:
        self.factory = factory
        self.breach = breach
        self.best = found
        self.call_limit = call_limit
        self.runs = 0
        self._drain = found.draining
        self._end = time.monotonic() + seconds

    def minimise(self) -> Run:
        """The smallest run found."""
        self._tail()
        before = None
        while before != self.best.size and not self._over():
            before = self.best.size
            self._drop()
            self._simplify()
        self._renumber()
        self._like_the_chapter()
        self._fewer_blocks()
        return self.best

    # Searching ----------------------------------------------------------------------------------------

    def _over(self) -> bool:
        return time.monotonic() > self._end

    def _try(self, lines: Sequence[Line], configuration: Configuration | None = None) -> Run | None:
        """The run of these lines if it ends in the same breach."""
        if self._over():
            return None
        self.runs += 1
        run = play(
            self.factory,
            configuration or self.best.configuration,
            lines,
            drain=self._drain,
            call_limit=self.call_limit,
        )
        return run if run.breaks(self.breach) and run.draining <= self._drain else None

    def _accept(self, lines: Sequence[Line]) -> bool:
        """Keep these lines if they break the same rule and are smaller."""
        run = self._try(lines)
        if run is None or run.size >= self.best.size:
            return False
        self.best = run
        return True

    def _tail(self) -> None:
        """A long run: often its last operations break the rule without the ones before."""
        count = 8
        while count < len(self.best.lines) // 2:
            if self._accept(self.best.lines[-count:]):
                return
            count *= 2

    def _drop(self) -> None:
        """Drop lines: large chunks first, from the end to the start."""
        chunk = max(1, len(self.best.lines) // 2)
        while True:
            start = len(self.best.lines)
            while start > 0 and not self._over():
                start = max(0, start - chunk)
                self._accept(self.best.lines[:start] + self.best.lines[start + chunk :])
                start = min(start, len(self.best.lines))
            if chunk == 1 or self._over():
                return
            chunk //= 2

    def _simplify(self) -> None:
        """Replace single operations by simpler ones."""
        index = 0
        while index < len(self.best.lines) and not self._over():
            for simpler in _simpler(self.best.lines[index].operation, self.best.configuration.block_size):
                lines = list(self.best.lines)
                lines[index] = replace(lines[index], operation=simpler)
                if self._accept(lines):
                    break
            else:
                index += 1
                continue
            if index < len(self.best.lines):
                continue

    # Looks --------------------------------------------------------------------------------------------

    def _same(self, lines: Sequence[Line], configuration: Configuration | None = None) -> bool:
        """Keep these lines if they break the same rule with as many operations."""
        run = self._try(lines, configuration)
        if run is None or run.size[:2] > self.best.size[:2]:
            return False
        self.best = run
        return True

    def _renumber(self) -> None:
        """Requests are A, B, C in the order of appearance, fresh prompts count from 100, 900, ..."""
        self._same(renamed(self.best.lines))

    def _like_the_chapter(self) -> None:
        """Blocks of four and a prompt of ten tokens, where that breaks the same rule as shortly."""
        configuration = self.best.configuration
        sizes = [configuration]
        if configuration.block_size != CHAPTER_BLOCK:
            sizes.insert(0, replace(configuration, block_size=CHAPTER_BLOCK))
        for candidate in sizes:
            for prompt in (CHAPTER_PROMPT, 9, 8, 6, 5):
                for every in (True, False):
                    if self._same(with_prompts(self.best.lines, prompt, every=every), candidate):
                        return

    def _fewer_blocks(self) -> None:
        configuration = self.best.configuration
        for blocks in range(1, configuration.blocks):
            if self._same(self.best.lines, replace(configuration, blocks=blocks)):
                break
        configuration = self.best.configuration
        if configuration.state_slots:
            self._same(self.best.lines, replace(configuration, state_slots=0))


def _simpler(operation: Operation, block_size: int) -> Iterator[Operation]:
    args = operation.args
    if "tokens" in args:
        tokens = tuple(args["tokens"])
        least = 1 if operation.op == "admit" else 0
        for count in sorted({least, 1, block_size, block_size + 1, len(tokens) // 2, len(tokens) - 1}):
            if least <= count < len(tokens):
                yield replace(operation, args={**args, "tokens": tokens[:count]})
    if args.get("drafts"):
        for drafts in sorted({0, 1, args["drafts"] // 2} - {args["drafts"]}):
            yield replace(operation, args={**args, "drafts": drafts})
    if operation.op == "complete" and len(args["tickets"]) > 1:
        yield replace(operation, args={"tickets": args["tickets"][:1]})
    if operation.op == "evict" and args["blocks"] > 1:
        yield replace(operation, args={"blocks": 1})


def renamed(lines: Sequence[Line]) -> Script:
    """The same script with requests named A, B, C and token streams numbered in the order of appearance."""
    names: dict[str, str] = {}
    streams: dict[int, int] = {}

    def name(old: str) -> str:
        return names.setdefault(old, name_of(len(names)))

    def token(old: int) -> int:
        stream, offset = divmod(old - FIRST_TOKEN, STREAM)
        return FIRST_TOKEN + STREAM * streams.setdefault(stream, len(streams)) + offset

    script = []
    for line in lines:
        operation = line.operation
        args = dict(operation.args)
        request = name(operation.request) if operation.request is not None else None
        if "child" in args:
            args["child"] = name(args["child"])
        if "tokens" in args:
            args["tokens"] = tuple(map(token, args["tokens"]))
        script.append(replace(line, operation=Operation(operation.op, request, args)))
    return tuple(script)


def with_prompts(lines: Sequence[Line], prompt: int, *, every: bool) -> Script:
    """The same script with prompts of ``prompt`` tokens: of the first request only, or of every one.

    Rows that were the whole prompt stay the whole prompt, in forks of the request too.
    """
    changed: dict[str, tuple[int, int]] = {}
    script = []
    for line in lines:
        operation = line.operation
        args = dict(operation.args)
        request = operation.request
        if operation.op == "admit" and request is not None and (every or not changed):
            tokens = tuple(args["tokens"])
            changed[request] = (len(tokens), prompt)
            fresh = range(tokens[-1] + 1, tokens[-1] + 1 + max(0, prompt - len(tokens)))
            args["tokens"] = (*tokens[:prompt], *fresh)
        elif request in changed and "rows" in args:
            before, now = changed[request]
            if args["rows"] == before:
                args["rows"] = now
            if operation.op == "fork":
                changed[args["child"]] = changed[request]
        elif request in changed and operation.op == "extend" and args["tokens"]:
            before, now = changed[request]
            shift = now - before
            args["tokens"] = tuple(token + shift for token in args["tokens"])
        script.append(replace(line, operation=Operation(operation.op, request, args)))
    return tuple(script)
