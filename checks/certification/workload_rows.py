"""Read a public workload file: strict, bounded, one line at a time.

Two formats are known, told apart by the first line:

- **Mooncake JSONL**: one object a line with ``timestamp`` (milliseconds), ``input_length`` and
  ``output_length`` (tokens) and ``hash_ids``, one id for each 512 tokens of the prompt.  Equal ids
  mean an equal prefix up to there.  Further fields are ignored.
- **Azure CSV**: the header ``TIMESTAMP,ContextTokens,GeneratedTokens``, then one row a line.
  Nothing is said about contents.

The file is untrusted input.  Every limit below is checked before the memory is spent, and every
error is a :class:`WorkloadError` that names file, line, field and what was expected.
"""

from __future__ import annotations

import json
import math
import re
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import IO, Literal, NoReturn

Format = Literal["mooncake", "azure"]

MOONCAKE_CHUNK = 512
"""Tokens that one entry of ``hash_ids`` stands for."""
AZURE_HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"

MAX_LINE_BYTES = 1 << 20
"""Longest line: room for a prompt of some fifty million tokens."""
MAX_LINES = 2_000_000
"""Most lines read, blank ones included."""
MAX_ROWS = 500_000
"""Most rows kept.  A longer file is cut there, and the result says so."""
MAX_IDS = 10_000_000
"""Most hash ids kept over all rows, for the same reason (80 MB).  A longer file is cut there."""
MAX_TOKENS = 100_000_000
"""Largest prompt or output length of one row."""
MAX_MILLISECONDS = 10**15
"""Largest timestamp, about thirty thousand years."""
MAX_ID = 2**64 - 1


class WorkloadError(ValueError):
    """A workload file cannot be used.

    ``file``, ``line`` (from 1; ``None`` when it is not about one line), ``field`` (``None`` when it
    is not about one field) and ``expected`` hold the parts of the message.
    """

    def __init__(self, file: str, line: int | None, field: str | None, expected: str, found: object) -> None:
        self.file, self.line, self.field, self.expected = file, line, field, expected
        place = file
        if line is not None:
            place += f", line {line}"
        if field is not None:
            place += f", field {field}"
        super().__init__(f"{place}: expected {expected}, found {_short(found)}")


class Found(str):
    """Words for what was found; printed as they are, where other values are printed quoted."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the file: lengths in tokens, arrival in milliseconds on the file's own clock."""

    line: int
    """Line of the file, from 1."""
    arrival: int
    prompt: int
    """Prompt length, at least 1."""
    output: int
    """Output length, at least 0."""
    ids: Sequence[int]
    """One id a chunk, from the first chunk on; chunks without one belong to this row alone."""


@dataclass(frozen=True, slots=True)
class Rows:
    """What a file holds: its format and its rows in file order."""

    format: Format
    rows: tuple[Row, ...]
    truncated: bool
    """True when the file goes on behind the last row kept."""


Parse = Callable[[str, int, str], Row]
"""file, line number, text of the line -> row."""


def read_rows(source: IO[bytes], file: str, limit: int | None = None) -> Rows:
    """The first ``limit`` rows of an open workload file, or raise :class:`WorkloadError`.

    ``file`` is the name to print.  Without ``limit``, :data:`MAX_ROWS` and :data:`MAX_IDS` bound
    what is kept.  Lines behind the last row kept are not read, so they are not checked either.
    """
    lines = _lines(source, file)
    first = next(lines, None)
    if first is None:
        raise WorkloadError(file, None, None, "Mooncake JSON lines or an Azure CSV file", Found("no line at all"))
    number, text = first
    kind = _format(file, number, text)
    parse: Parse = _mooncake_row if kind == "mooncake" else _azure_row
    pending = _chain(first, lines) if kind == "mooncake" else lines
    most = MAX_ROWS if limit is None else min(limit, MAX_ROWS)
    rows: list[Row] = []
    ids = 0
    for number, text in pending:
        if len(rows) == most or ids >= MAX_IDS:
            return Rows(kind, tuple(rows), truncated=True)
        row = parse(file, number, text)
        ids += len(row.ids)
        rows.append(row)
    if not rows:
        raise WorkloadError(file, None, None, "at least one row", Found("none behind the header"))
    return Rows(kind, tuple(rows), truncated=False)


def _lines(source: IO[bytes], file: str) -> Iterator[tuple[int, str]]:
    """Numbered lines that are not blank, decoded, each bounded in length."""
    for number in range(1, MAX_LINES + 1):
        raw = source.readline(MAX_LINE_BYTES + 1)
        if not raw:
            return
        if len(raw) > MAX_LINE_BYTES:
            raise WorkloadError(file, number, None, f"at most {MAX_LINE_BYTES} bytes in a line", Found("a longer one"))
        try:
            text = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
        except UnicodeDecodeError as error:
            found = Found(f"bytes that are not ({error.reason})")
            raise WorkloadError(file, number, None, "UTF-8 text", found) from None
        if text:
            yield number, text
    raise WorkloadError(file, MAX_LINES, None, f"at most {MAX_LINES} lines", Found("more"))


def _chain(first: tuple[int, str], rest: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    yield first
    yield from rest


def _format(file: str, number: int, text: str) -> Format:
    if text.startswith("{"):
        return "mooncake"
    if text == AZURE_HEADER:
        return "azure"
    raise WorkloadError(file, number, None, f"a JSON object (Mooncake) or the header {AZURE_HEADER} (Azure)", text)


def _mooncake_row(file: str, line: int, text: str) -> Row:
    row = _json_object(file, line, text)

    def whole(field: str, least: int) -> int:
        expected = f"a whole number from {least} to {MAX_TOKENS}"
        value = row.get(field, Found("nothing"))
        if type(value) is not int or not least <= value <= MAX_TOKENS:
            raise WorkloadError(file, line, field, expected, value)
        return value

    arrival = _milliseconds(file, line, row.get("timestamp", Found("nothing")))
    prompt, output = whole("input_length", 1), whole("output_length", 0)
    chunks = -(-prompt // MOONCAKE_CHUNK)
    found = row.get("hash_ids", Found("nothing"))
    if not isinstance(found, list):
        raise WorkloadError(file, line, "hash_ids", "a list of whole numbers", found)
    if len(found) > chunks:
        expected = f"at most {chunks} ids, one for each {MOONCAKE_CHUNK} of the {prompt} tokens"
        raise WorkloadError(file, line, "hash_ids", expected, Found(f"{len(found)} ids"))
    for index, value in enumerate(found):
        if type(value) is not int or not 0 <= value <= MAX_ID:
            raise WorkloadError(file, line, f"hash_ids[{index}]", f"a whole number from 0 to {MAX_ID}", value)
    return Row(line, arrival, prompt, output, array("Q", found))


def _json_object(file: str, line: int, text: str) -> dict[str, object]:
    """The one JSON object on a line; a key given twice is refused."""

    def pairs(items: list[tuple[str, object]]) -> dict[str, object]:
        result = dict(items)
        if len(result) < len(items):
            names = [name for name, _ in items]
            twice = next(name for name in names if names.count(name) > 1)
            raise WorkloadError(file, line, twice, "each field once", Found("it twice"))
        return result

    def constant(name: str) -> NoReturn:
        raise WorkloadError(file, line, None, "finite numbers", Found(name))

    expected = "one JSON object"
    try:
        value = json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except WorkloadError:
        raise
    except RecursionError:
        raise WorkloadError(file, line, None, expected, Found("nesting too deep to read")) from None
    except ValueError as error:
        # Both a syntax error and a number of thousands of digits arrive here.
        raise WorkloadError(file, line, None, expected, Found(f"something else ({error})")) from None
    if not isinstance(value, dict):
        raise WorkloadError(file, line, None, expected, value)
    return value


def _milliseconds(file: str, line: int, value: object) -> int:
    number = value if type(value) is int or (type(value) is float and math.isfinite(value)) else None
    if number is None or not 0 <= number <= MAX_MILLISECONDS:
        raise WorkloadError(file, line, "timestamp", f"milliseconds from 0 to {MAX_MILLISECONDS}", value)
    return round(number)


_TIME = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?", re.ASCII)


def _azure_row(file: str, line: int, text: str) -> Row:
    cells = text.split(",")
    if len(cells) != 3:
        raise WorkloadError(file, line, None, f"three cells ({AZURE_HEADER})", Found(f"{len(cells)} cells"))

    def whole(field: str, cell: str, least: int) -> int:
        # Nine digits are enough for MAX_TOKENS, and keep the conversion cheap.
        if not re.fullmatch(r"\d{1,9}", cell, re.ASCII) or not least <= int(cell) <= MAX_TOKENS:
            raise WorkloadError(file, line, field, f"a whole number from {least} to {MAX_TOKENS}", cell)
        return int(cell)

    arrival = _clock(file, line, cells[0])
    return Row(line, arrival, whole("ContextTokens", cells[1], 1), whole("GeneratedTokens", cells[2], 0), ())


def _clock(file: str, line: int, cell: str) -> int:
    """Milliseconds since 1970 of a date and time; one without a zone is taken as UTC."""
    expected = "a date and time such as 2023-11-16 18:15:46.680"
    match = _TIME.fullmatch(cell)
    if match is None:
        raise WorkloadError(file, line, "TIMESTAMP", expected, cell)
    day, time, fraction, zone = match.groups()
    try:
        moment = datetime.fromisoformat(f"{day}T{time}.{(fraction or '0')[:6]:0<6}{zone or '+00:00'}")
        seconds = (moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds()
    except (ValueError, OverflowError):
        raise WorkloadError(file, line, "TIMESTAMP", expected, cell) from None
    return round(seconds * 1000)


def _short(value: object) -> str:
    if isinstance(value, Found):
        return str(value)[:200]
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
