"""A public workload, scaled down so that a small pool shows everything: hits, eviction, LATER, NEVER.

:func:`load_workload` reads a file (formats: :mod:`kvproof.checks.certification.workload_rows`) and gives
requests in arrival order.  The scaling is one rule for all rows, fixed by the rows read and the
pool:

- **Prompts.**  The prompt's first chunk of source tokens becomes one *segment*, and so does every
  group of chunks behind it.  A segment is a whole number of blocks, so a prefix that rows share in
  the file is one that a prefix cache can hit.  The first segment is one chunk only, because that is
  where system prompts are shared.  Position p stands for a run of source tokens; its token value is
  made from the ids of all chunks up to the last of them, so two scaled prompts are equal up to a
  position exactly when the rows are.  A chunk without an id belongs to its row alone.
- **Giants.**  The groups are as large as possible while at least one row in fifty exceeds the
  pool.  Where the lengths do not allow that (all rows alike, or a pool larger than any row), the
  longest row is scaled to half the pool and one row in fifty is stretched beyond it.  No prompt is
  longer than two pools: a longer one would get the same answer.
- **Outputs.**  Nine rows in ten decode at most two blocks (at least four positions).
- **Azure files** say nothing about contents.  Half of the rows, drawn from the seed, start with
  one of six made-up texts for half of their prompt.

Everything is a function of the file, the arguments and the seed.  Nothing here imports an engine.
"""

from __future__ import annotations

import importlib.resources
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from typing import IO

from kvproof.checks.certification.workload_rows import MOONCAKE_CHUNK, Row, Rows, WorkloadError, read_rows

__all__ = ["Scale", "WorkRequest", "Workload", "WorkloadError", "load_workload"]

AZURE_CHUNK = 128
"""Tokens in a chunk of an Azure row; the file has none, so this is ours."""
AZURE_TEXTS = 6
"""Made-up shared texts for Azure rows."""
GIANT_EVERY = 50
"""One row in this many exceeds the pool, at least."""
GIANTS_AT_MOST = 4
"""If more than one row in this many would exceed the pool, giants are stretched instead."""
MAX_PROMPT = 1 << 20
"""Longest scaled prompt, in positions."""
BUNDLED = "synthetic.jsonl"
"""The workload used when no file is given; ``python -m kvproof.checks.certification.synthetic`` prints it."""

_MASK = 2**64 - 1
_STEP = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class WorkRequest:
    """One request of the workload.

    ``name``: ``"r"`` and the line of the file.  ``arrival``: milliseconds after the first request.
    ``prompt``: token values, at least one.  ``output``: tokens to decode, may be 0.
    """

    name: str
    arrival: int
    prompt: tuple[int, ...]
    output: int


@dataclass(frozen=True, slots=True)
class Scale:
    """How source tokens become positions: one piecewise linear map for all rows of a workload.

    The first ``lead`` source tokens are ``width`` positions, and so is every ``span`` behind them.
    ``width`` is a whole number of blocks and never more than ``lead`` or ``span``: nothing grows.
    """

    block_size: int
    chunk: int
    lead: int
    span: int
    width: int

    def positions(self, tokens: int) -> int:
        """How many positions a prompt of ``tokens`` source tokens takes."""
        if tokens <= self.lead:
            return _up(tokens * self.width, self.lead)
        return self.width + _up((tokens - self.lead) * self.width, self.span)

    def blocks(self, tokens: int) -> int:
        """How many blocks a prompt of ``tokens`` source tokens takes."""
        return _up(self.positions(tokens), self.block_size)

    def last_token(self, position: int) -> int:
        """Index of the last source token that ``position`` stands for (it may lie behind a row's end)."""
        if position < self.width:
            return _up((position + 1) * self.lead, self.width) - 1
        return self.lead + _up((position + 1 - self.width) * self.span, self.width) - 1


@dataclass(frozen=True)
class Workload:
    """Requests in arrival order, made as they are asked for; may be iterated again and again."""

    name: str
    """The file, or ``synthetic`` for the bundled one."""
    source: Rows
    """Format and rows, in arrival order."""
    map: Scale
    blocks: int
    """Usable blocks of the pool this was scaled for."""
    seed: int
    output_most: int
    """Positions that an output of ``output_unit`` source tokens becomes."""
    output_unit: int
    stretched: frozenset[int]
    """Indexes of the rows made longer so that they exceed the pool."""

    @property
    def rows(self) -> int:
        """How many requests there are."""
        return len(self.source.rows)

    @property
    def truncated(self) -> bool:
        """True when the file has rows behind the last one used."""
        return self.source.truncated

    @property
    def giants(self) -> int:
        """How many prompts exceed the pool: admission answers NEVER."""
        pool = self.blocks * self.map.block_size
        return sum(self._length(index) > pool for index in range(self.rows))

    @property
    def scale(self) -> str:
        """In words: what was scaled how."""
        scale = self.map
        segment = _count(scale.width // scale.block_size, "block")
        giants = f"{_count(self.giants, 'prompt')} larger than the pool"
        if self.giants:
            giants += " (stretched)" if self.stretched else " (by their own length)"
        contents = "from the file" if self.source.format == "mooncake" else "made up, the file has none"
        return (
            f"{_count(self.rows, 'row')} ({self.source.format}{', file cut there' if self.truncated else ''}) for "
            f"{_count(self.blocks, 'block')} of {_count(scale.block_size, 'position')}: the first {scale.lead} tokens "
            f"of a prompt become {segment}, so does every {scale.span} tokens behind them; {self.output_unit} output "
            f"tokens become {self.output_most}; {giants}; "
            f"shared prefixes {contents}"
        )

    def __len__(self) -> int:
        return self.rows

    def __iter__(self) -> Iterator[WorkRequest]:
        """The requests, in arrival order."""
        start = self.source.rows[0].arrival
        for index, row in enumerate(self.source.rows):
            yield WorkRequest(f"r{row.line}", row.arrival - start, self._prompt(index), self._output(row))

    def _length(self, index: int) -> int:
        pool = self.blocks * self.map.block_size
        if index in self.stretched:
            return pool + self.map.block_size
        return min(self.map.positions(self.source.rows[index].prompt), 2 * pool, MAX_PROMPT)

    def _prompt(self, index: int) -> tuple[int, ...]:
        row, scale = self.source.rows[index], self.map
        ids = row.ids if self.source.format == "mooncake" else _made_up_ids(row, self.seed)
        own = _mix(self.seed, -1 - row.line)
        last = row.prompt - 1
        key, done = _mix(self.seed, 0), 0
        prompt = []
        for position in range(self._length(index)):
            chunk = min(scale.last_token(position), last) // scale.chunk
            while done <= chunk:
                key = _mix(key, ids[done] if done < len(ids) else own)
                done += 1
            prompt.append(_token(key, position))
        return tuple(prompt)

    def _output(self, row: Row) -> int:
        pool = self.blocks * self.map.block_size
        return min(_up(row.output * self.output_most, self.output_unit), pool)


def load_workload(
    path: str | PathLike[str] | None, *, block_size: int, blocks: int, seed: int, limit: int | None = None
) -> Workload:
    """The workload in ``path`` (the bundled one for ``None``), scaled to a pool.

    ``block_size``: positions in a block.  ``blocks``: usable blocks.  ``seed``: fixes token values
    and every choice.  ``limit``: use the first ``limit`` rows of the file only; the scale is then
    that of these rows.  Raises :class:`WorkloadError` for a file that cannot be used and
    ``ValueError`` for other arguments.
    """
    for what, value in (("block_size", block_size), ("blocks", blocks), ("limit", 1 if limit is None else limit)):
        if value < 1:
            raise ValueError(f"load_workload: {what} is {value}, at least 1 is needed")
    if path is None:
        with importlib.resources.files("kvproof.checks").joinpath("data", BUNDLED).open("rb") as stream:
            return _scaled("synthetic", read_rows(stream, BUNDLED, limit), block_size, blocks, seed)
    file = fspath(path)
    with _opened(file) as stream:
        try:
            rows = read_rows(stream, file, limit)
        except OSError as error:
            raise WorkloadError(file, None, None, "a readable file", error.strerror) from None
    return _scaled(file, rows, block_size, blocks, seed)


def _opened(file: str) -> IO[bytes]:
    try:
        return open(file, "rb")
    except (OSError, ValueError) as error:
        found = error.strerror if isinstance(error, OSError) else str(error)
        raise WorkloadError(file, None, None, "a readable file", found) from None


def _scaled(name: str, source: Rows, block_size: int, blocks: int, seed: int) -> Workload:
    chunk = MOONCAKE_CHUNK if source.format == "mooncake" else AZURE_CHUNK
    lengths = sorted(row.prompt for row in source.rows)
    scale = _with_giants(lengths, chunk, block_size, blocks)
    stretched: frozenset[int] = frozenset()
    if scale is None:
        scale = _without_giants(lengths[-1], chunk, block_size, blocks)
        # A pool larger than the longest prompt allowed has no giants, and `giants` says 0.
        stretched = _stretched(len(lengths), seed) if (blocks + 1) * block_size <= MAX_PROMPT else frozenset()
    outputs = sorted(row.output for row in source.rows)
    most = max(2 * block_size, 4)
    unit = max(outputs[len(outputs) * 9 // 10], most)
    ordered = tuple(sorted(source.rows, key=lambda row: row.arrival))
    source = Rows(source.format, ordered, source.truncated)
    return Workload(name, source, scale, blocks, seed, most, unit, stretched)


def _scale(groups: int, segment: int, chunk: int, block_size: int, blocks: int) -> Scale:
    """The scale with ``groups`` chunks in a segment of ``segment`` blocks."""
    # With fewer than three blocks a first segment of its own would leave no room for the rest.
    lead = _up(block_size, chunk) if blocks >= 3 else groups
    return Scale(block_size, chunk, lead * chunk, groups * chunk, segment * block_size)


def _with_giants(lengths: Sequence[int], chunk: int, block_size: int, blocks: int) -> Scale | None:
    """The coarsest scale at which one row in :data:`GIANT_EVERY` exceeds the pool, if there is a fair one."""
    enough = lengths[-max(1, len(lengths) // GIANT_EVERY)]
    least = _up(block_size, chunk)
    most_groups = max(least, _up(lengths[-1], chunk))

    def exceeds(groups: int, segment: int) -> bool:
        return _scale(groups, segment, chunk, block_size, blocks).blocks(enough) > blocks

    if exceeds(least, 1):
        # A coarser scale never makes a prompt longer, so the answers are True, then False.
        segment = 1
        groups = least - 1 + bisect_left(range(least, most_groups + 1), True, key=lambda g: not exceeds(g, 1))
    else:
        finest = least * chunk // block_size
        groups, segment = least, 1 + bisect_left(range(1, finest + 1), True, key=lambda s: exceeds(least, s))
        if segment > finest:
            return None
    scale = _scale(groups, segment, chunk, block_size, blocks)
    giants = len(lengths) - bisect_right(lengths, blocks, key=scale.blocks)
    return scale if giants * GIANTS_AT_MOST <= len(lengths) else None


def _without_giants(longest: int, chunk: int, block_size: int, blocks: int) -> Scale:
    """The finest scale at which the longest row takes at most half of the pool."""
    least = _up(block_size, chunk)
    most_groups = max(least, _up(longest, chunk))
    room = max(blocks // 2, min(blocks, 2) if blocks >= 3 else 1)

    def fits(groups: int, segment: int) -> bool:
        return _scale(groups, segment, chunk, block_size, blocks).blocks(longest) <= room

    if not fits(least, 1):
        groups = least + bisect_left(range(least, most_groups + 1), True, key=lambda g: fits(g, 1))
        return _scale(groups, 1, chunk, block_size, blocks)
    finest = least * chunk // block_size
    segment = bisect_left(range(1, finest + 1), True, key=lambda s: not fits(least, s))
    return _scale(least, segment, chunk, block_size, blocks)


def _stretched(rows: int, seed: int) -> frozenset[int]:
    """Which rows are made to exceed the pool: one in every :data:`GIANT_EVERY`, at least one of four."""
    if rows < GIANTS_AT_MOST:
        return frozenset()
    order = sorted(range(rows), key=lambda index: _mix(seed, index))
    return frozenset(order[: max(1, rows // GIANT_EVERY)])


def _made_up_ids(row: Row, seed: int) -> Sequence[int]:
    """Chunk ids for a row that has none: half of the rows share their first half with others."""
    draw = _mix(_mix(seed, 1), row.line)
    if draw % 2:
        return ()
    text = draw // 2 % AZURE_TEXTS
    shared = max(1, row.prompt // AZURE_CHUNK // 2)
    return range(text * 2**32, text * 2**32 + shared)


def _token(key: int, position: int) -> int:
    """A token value from 1 to 2**31 - 1."""
    return 1 + _mix(key, position) % (2**31 - 1)


def _mix(key: int, value: int) -> int:
    """64 well-mixed bits of two numbers (the finaliser of the SplitMix64 generator)."""
    bits = (key ^ (value * _STEP + _STEP)) & _MASK
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _MASK
    return bits ^ (bits >> 31)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _up(a: int, b: int) -> int:
    """a / b, rounded up."""
    return -(-a // b)
