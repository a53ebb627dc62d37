"""Strict checks of untrusted JSON values, as small composable functions.

A *check* takes a value and where it was found, and raises :class:`Mismatch` naming that place and
what was expected.  Nothing is converted and nothing is executed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Check = Callable[[Any, str], None]

LARGEST = 2**63
"""Whole numbers of a file lie strictly between -LARGEST and LARGEST."""


class Mismatch(ValueError):
    """A value is not what the format asks for; ``field`` says where, in dots and brackets."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"field {field}: {problem}" if field else problem)
        self.field = field


def shown(value: object) -> str:
    """A value in an error message: short, whatever it is."""
    text = repr(value) if isinstance(value, str | int | float | bool | None) else f"a {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


def whole(least: int = 1 - LARGEST, most: int = LARGEST - 1) -> Check:
    """A whole number in a range; true and false are none."""

    def check(value: Any, field: str) -> None:
        if type(value) is not int:
            raise Mismatch(field, f"{shown(value)} is not a whole number")
        if not least <= value <= most:
            raise Mismatch(field, f"{shown(value)} is not between {least} and {most}")

    return check


def text(most: int = 256) -> Check:
    """A string of bounded length."""

    def check(value: Any, field: str) -> None:
        if not isinstance(value, str):
            raise Mismatch(field, f"{shown(value)} is not a string")
        if len(value) > most:
            raise Mismatch(field, f"the string has {len(value)} characters, at most {most} are allowed")

    return check


def label(most: int = 256) -> Check:
    """A string that can be shown anywhere: bounded and printable."""
    bounded = text(most)

    def check(value: Any, field: str) -> None:
        bounded(value, field)
        if not value.isprintable():
            raise Mismatch(field, f"{shown(value)} has characters that cannot be printed")

    return check


def one_of(choices: Iterable[str]) -> Check:
    """One of a few strings."""
    allowed = tuple(choices)

    def check(value: Any, field: str) -> None:
        if value not in allowed or not isinstance(value, str):
            raise Mismatch(field, f"{shown(value)} is not one of {', '.join(allowed)}")

    return check


def optional(inner: Check) -> Check:
    """The same, or null."""

    def check(value: Any, field: str) -> None:
        if value is not None:
            inner(value, field)

    return check


def items(inner: Check) -> Check:
    """A list of such values."""

    def check(value: Any, field: str) -> None:
        if not isinstance(value, list):
            raise Mismatch(field, f"{shown(value)} is not a list")
        for index, item in enumerate(value):
            inner(item, f"{field}[{index}]")

    return check


def pair(first: Check, second: Check) -> Check:
    """A list of exactly two values."""

    def check(value: Any, field: str) -> None:
        if not isinstance(value, list) or len(value) != 2:
            raise Mismatch(field, f"{shown(value)} is not a list of two values")
        first(value[0], f"{field}[0]")
        second(value[1], f"{field}[1]")

    return check


def mapping(inner: Check, key: Check | None = None) -> Check:
    """An object with any names, all of whose values pass."""
    name_check = key or label()

    def check(value: Any, field: str) -> None:
        if not isinstance(value, dict):
            raise Mismatch(field, f"{shown(value)} is not an object")
        for name, item in value.items():
            name_check(name, f"{field} (a name)")
            inner(item, f"{field}.{name}")

    return check


def record(required: Mapping[str, Check], more: Mapping[str, Check] | None = None) -> Check:
    """An object with exactly these names; those of ``more`` may be left out."""
    allowed = {**required, **(more or {})}

    def check(value: Any, field: str) -> None:
        if not isinstance(value, dict):
            raise Mismatch(field, f"{shown(value)} is not an object")
        for name in required:
            if name not in value:
                raise Mismatch(_inside(field, name), "is missing")
        for name, item in value.items():
            if name not in allowed:
                raise Mismatch(_inside(field, shown(name)), f"is unknown; known are {', '.join(allowed) or 'none'}")
            allowed[name](item, _inside(field, name))

    return check


def plain(depth: int = 4) -> Check:
    """Any JSON value with at most ``depth`` levels of lists and objects."""

    def check(value: Any, field: str) -> None:
        if isinstance(value, list | dict):
            if depth == 0:
                raise Mismatch(field, "is nested too deeply")
            (items if isinstance(value, list) else mapping)(plain(depth - 1))(value, field)
        elif isinstance(value, str):
            text(10_000)(value, field)
        elif isinstance(value, int) and not isinstance(value, bool):
            whole()(value, field)

    return check


def parse(line: str) -> Any:
    """One line of JSON as a value: no duplicate names, no NaN, no deep nesting, no giant numbers."""
    try:
        return json.loads(line, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except Mismatch:
        raise
    except RecursionError:
        raise Mismatch("", "the JSON is nested too deeply") from None
    except ValueError as error:  # JSONDecodeError, and whole numbers with thousands of digits
        reason = error.msg if isinstance(error, json.JSONDecodeError) else "a number has too many digits"
        raise Mismatch("", f"the line is not complete JSON ({reason}); it may be truncated") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise Mismatch(shown(twice), "appears twice in one object")
    return found


def _refuse_constant(name: str) -> None:
    raise Mismatch("", f"{name} is not a JSON number")


def _inside(field: str, name: str) -> str:
    return f"{field}.{name}" if field else name
