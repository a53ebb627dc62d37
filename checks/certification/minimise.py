"""Make a counterexample short, then make it look like the chapter's.

Hypothesis shrinks choices; this shrinks operations: it drops whatever the breach does not need (an
operation that is not legal any more is skipped), shortens prompts, and takes blocks away from the
pool.  A smaller script may break another rule than the first one did (one fault often breaks several,
and the shortest run names it best); once it is shortest, its looks are changed only as far as it keeps
breaking the same rule.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from kvproof.checks.certification.generate import name_of, token_stream
from kvproof.checks.certification.script import CALL_LIMIT, Line, Run, Script, play
from kvproof.checks.lockstep.operations import Operation
from kvproof.model.interface import Configuration, Factory

CHAPTER_BLOCK = 4
CHAPTER_POOL = 7
CHAPTER_PROMPT = 10
"""The experiments of the chapter: seven usable blocks of four positions, ten prompt tokens."""
SHORT = 10
"""Lines of a script that is short enough for changes of two lines at once."""
MEDIUM = 24
"""Lines of a script that is short enough for trying every pair of requests."""


class Minimiser:
    """Searches for smaller scripts that end in a breach, until ``seconds`` are over."""

    def __init__(self, factory: Factory, found: Run, *, seconds: float = 20.0, call_limit: float = CALL_LIMIT) -> None:
        self.factory = factory
        self.best = found
        self.call_limit = call_limit
        self.room = found.configuration.blocks
        """Blocks of the pool in which the breach was found; fewer may do."""
        self.runs = 0
        self._harmless: set[tuple[object, ...]] = set()
        """Scripts that broke nothing: not worth a second try."""
        self._drain = found.draining
        self._end = time.monotonic() + seconds

    def minimise(self) -> Run:
        """The smallest run found."""
        self._undrain()
        self._tail()
        self._drop_wholesale()
        before = None
        while before != self.best.size and not self._over():
            before = self.best.size
            self._drop()
            self._simplify()
            self._fewer_blocks()
            self._merge()
            self._join_extensions()
            self._commit_instead_of_hits()
            self._drop_and_grow()
            self._whole_blocks()
        self._renumber()
        self._like_the_chapter()
        self._fewer_blocks()
        return self.best

    # Searching ----------------------------------------------------------------------------------------

    def _over(self) -> bool:
        return time.monotonic() > self._end

    def _try(
        self, lines: Sequence[Line], configuration: Configuration | None = None, *, relative: bool = False
    ) -> Run | None:
        """The run of these lines if it ends in a breach."""
        configuration = configuration or self.best.configuration
        script = (configuration, relative, self._drain, tuple(f"{line.key} {line.operation}" for line in lines))
        if self._over() or script in self._harmless:
            return None
        self.runs += 1
        run = play(self.factory, configuration, lines, drain=self._drain, call_limit=self.call_limit, relative=relative)
        if run.breach is None:
            self._harmless.add(script)
            return None
        return run

    def _undrain(self) -> None:
        """A breach while everything was given back may need some of those operations only: make them lines."""
        if not self._drain or len(self.best.lines) == self.best.before_drain:
            return
        self._drain = False
        run = self._try(self.best.lines)
        if run is not None:
            self.best = run
            return
        self._drain = True
        run = self._try(self.best.lines[: self.best.before_drain])
        if run is not None:
            self.best = run

    def _accept(self, lines: Sequence[Line], configuration: Configuration | None = None) -> bool:
        """Keep these lines if they break a rule and are smaller."""
        for relative in (False, True) if len(lines) <= MEDIUM else (False,):
            run = self._try(lines, configuration, relative=relative)
            if run is not None and run.size < self.best.size:
                self.best = run
                return True
        return False

    def _tail(self) -> None:
        """A long run: often its last operations break the rule without the ones before."""
        count = 8
        while count < len(self.best.lines) // 2:
            if self._accept(self.best.lines[-count:]):
                return
            count *= 2

    def _drop_wholesale(self) -> None:
        """A long run: drop all operations of one kind, shorten all prompts, drop whole requests."""
        if len(self.best.lines) <= MEDIUM:
            return
        for op in sorted({line.operation.op for line in self.best.lines}):
            self._accept([line for line in self.best.lines if line.operation.op != op])
        self._accept(with_prompts(self.best.lines, 1, every=True))
        share = 2
        while share <= 64 and not self._over():
            names = list(dict.fromkeys(name for line in self.best.lines if (name := _born(line.operation))))
            size = -(-len(names) // share)
            for start in range(0, len(names), max(1, size)):
                dropped = set(names[start : start + size])
                self._accept([x for x in self.best.lines if not {x.operation.request, _born(x.operation)} & dropped])
            share *= 2

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

    def _merge(self) -> None:
        """Let one request play the part of another: the other's admission or fork falls away."""
        if len(self.best.lines) > MEDIUM:
            return
        lines = self.best.lines
        for at, line in enumerate(lines):
            born = _born(line.operation)
            if born is None:
                continue
            earlier = {name for other in lines[:at] if (name := _born(other.operation)) is not None}
            for other in sorted(earlier - {born}):
                merged = [*lines[:at], *(_as(later, born, other) for later in lines[at + 1 :])]
                if self._accept_in_some_pool(merged) or self._accept_in_some_pool(list(map(_short_fork, merged))):
                    return

    def _join_extensions(self) -> None:
        """Reserve at once what was reserved in two operations."""
        index = len(self.best.lines) - 1
        while 0 < index < len(self.best.lines) <= MEDIUM and not self._over():
            lines = self.best.lines
            operation = lines[index].operation
            before = _reserving(lines[:index], operation.request) if operation.op == "extend" else None
            if before is not None:
                joined = _with_tokens(lines[before], operation.args["tokens"])
                self._accept([*lines[:before], joined, *lines[before + 1 : index], *lines[index + 1 :]])
            index = min(index, len(self.best.lines)) - 1

    def _commit_instead_of_hits(self) -> None:
        """Drop a request whose only use was that others hit its rows: they commit their own."""
        if len(self.best.lines) > MEDIUM:
            return
        for name in dict.fromkeys(_born(line.operation) for line in self.best.lines):
            lines: list[Line] = []
            for line in self.best.lines:
                if name in (line.operation.request, _born(line.operation)):
                    continue
                lines.append(line)
                if line.operation.op == "admit":
                    rows = {"rows": len(line.operation.args["tokens"])}
                    lines.append(Line(-1 - line.key, Operation("commit", line.operation.request, rows), 0))
            if self._accept_in_some_pool(lines):
                return

    def _accept_in_some_pool(self, lines: Sequence[Line]) -> bool:
        """Keep these lines if they break a rule and are smaller, in this pool or in one with fewer blocks or slots."""
        pools = self._smaller_pools() if len(lines) <= SHORT else iter(())
        return self._accept(lines) or any(self._accept(lines, pool) for pool in pools)

    def _smaller_pools(self) -> Iterator[Configuration]:
        """Pools with fewer state slots, then pools with fewer blocks, the largest first."""
        configuration = self.best.configuration
        for slots in range(configuration.state_slots - 1, 0, -1):
            yield replace(configuration, state_slots=slots)
        for blocks in range(configuration.blocks - 1, 0, -1):
            yield replace(configuration, blocks=blocks)

    def _drop_and_grow(self) -> None:
        """Drop one line of a short script; a smaller pool, or a larger prompt, may take its place."""
        if len(self.best.lines) > SHORT:
            return
        size = self.best.configuration.block_size
        for dropped in reversed(range(len(self.best.lines))):
            lines = self.best.lines[:dropped] + self.best.lines[dropped + 1 :]
            if self._accept_in_some_pool(lines):
                return
            for at, line in enumerate(lines):
                if line.operation.op != "admit":
                    continue
                for blocks in range(1, self.best.configuration.blocks + 1):
                    grown = replace(line, operation=_with_prompt(line.operation, blocks * size))
                    if self._accept([*lines[:at], grown, *lines[at + 1 :]]):
                        return

    def _whole_blocks(self) -> None:
        """Prompts of whole blocks may break one rule only where a partial block breaks several."""
        if self.best.breach is None or not self.best.breach.also or len(self.best.lines) > SHORT:
            return
        roomy = replace(self.best.configuration, blocks=self.room)
        for blocks in (1, 2):
            for every in (True, False):
                if self._accept(with_prompts(self.best.lines, blocks * roomy.block_size, every=every), roomy):
                    return

    # Looks --------------------------------------------------------------------------------------------

    def _same(self, lines: Sequence[Line], configuration: Configuration | None = None) -> bool:
        """Keep these lines if they break the same rule with as many operations."""
        run = self._try(lines, configuration)
        if run is None or not run.breaks(self.best.breach) or run.size[:3] > self.best.size[:3]:
            return False
        self.best = run
        return True

    def _renumber(self) -> None:
        """Requests are A, B, C in the order of appearance, fresh prompts count from 100, 900, ..."""
        self._same(renamed(self.best.lines))

    def _like_the_chapter(self) -> None:
        """Requests finish, blocks have four positions, prompts ten, where that breaks the same rule as shortly."""
        self._same([_finishing(line) for line in self.best.lines])
        chapter = replace(self.best.configuration, block_size=CHAPTER_BLOCK)
        for prompt in (CHAPTER_PROMPT, 9, 8, 6, 5):
            for every in (True, False):
                for blocks in dict.fromkeys((max(self.room, CHAPTER_POOL), 6, 5, 4)):
                    lines = with_prompts(self.best.lines, prompt, every=every)
                    if self._same(lines, replace(chapter, blocks=blocks)):
                        return

    def _fewer_blocks(self) -> None:
        """The smallest pool in which the same lines break the same rule."""
        if self.best.configuration.state_slots:
            for slots in range(self.best.configuration.state_slots):
                if self._same(self.best.lines, replace(self.best.configuration, state_slots=slots)):
                    break
        for blocks in range(1, self.best.configuration.blocks):
            if self._same(self.best.lines, replace(self.best.configuration, blocks=blocks)):
                break


def _reserving(lines: Sequence[Line], request: str | None) -> int | None:
    """Where the request reserved positions last."""
    found = [at for at, x in enumerate(lines) if x.operation.request == request and "tokens" in x.operation.args]
    return found[-1] if found else None


def _with_tokens(line: Line, more: Sequence[int]) -> Line:
    """The line with more tokens."""
    args = line.operation.args
    return replace(line, operation=replace(line.operation, args={**args, "tokens": (*args["tokens"], *more)}))


def _born(operation: Operation) -> str | None:
    """The request that an operation starts."""
    return operation.request if operation.op == "admit" else operation.args.get("child")


def _as(line: Line, old: str, new: str) -> Line:
    """The line with one request in the part of another."""
    operation = line.operation
    args = {name: new if name == "child" and value == old else value for name, value in operation.args.items()}
    request = new if operation.request == old else operation.request
    return replace(line, operation=Operation(operation.op, request, args))


def _short_fork(line: Line) -> Line:
    """The line with one row only, if it is a fork."""
    if line.operation.op != "fork":
        return line
    return replace(line, operation=replace(line.operation, args={**line.operation.args, "rows": 1}))


def _finishing(line: Line) -> Line:
    """The line with the plainest reason, if it is a release."""
    if line.operation.op != "release":
        return line
    return replace(line, operation=replace(line.operation, args={"reason": "finish"}))


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
    """The same script with requests A, B, C, ... and fresh tokens from 100, 900, ... in the order of appearance."""
    names: dict[str, str] = {}
    tokens: dict[int, int] = {}
    following: dict[str, int] = {}
    """The next fresh token of each request."""
    streams = 0

    def name(old: str) -> str:
        return names.setdefault(old, name_of(len(names)))

    def fresh(request: str, position: int) -> int:
        nonlocal streams
        if request not in following:
            following[request] = token_stream(streams) + position
            streams += 1
        following[request] += 1
        return following[request] - 1

    script = []
    for line in lines:
        operation = line.operation
        args = dict(operation.args)
        request = name(operation.request) if operation.request is not None else None
        if "child" in args:
            args["child"] = name(args["child"])
            following.pop(args["child"], None)
        if "tokens" in args and request is not None:
            if operation.op == "admit":
                following.pop(request, None)
            for position, old in enumerate(args["tokens"]):
                if old not in tokens:
                    tokens[old] = fresh(request, position if operation.op == "admit" else 0)
            args["tokens"] = tuple(tokens[old] for old in args["tokens"])
        script.append(replace(line, operation=Operation(operation.op, request, args)))
    return tuple(script)


def _with_prompt(operation: Operation, length: int) -> Operation:
    """The admission with a prompt of this length: cut, or counted on."""
    tokens = tuple(operation.args["tokens"])
    fresh = range(tokens[-1] + 1, tokens[-1] + 1 + max(0, length - len(tokens)))
    return replace(operation, args={**operation.args, "tokens": (*tokens[:length], *fresh)})


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
            changed[request] = (len(args["tokens"]), prompt)
            args = dict(_with_prompt(operation, prompt).args)
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
