"""The words of a picture: short labels, pasteable calls, answers.  All text of a trace passes through here.

A trace is untrusted: names are cut to a bounded length, and characters that are invisible or that turn the
reading direction are written as escapes, so that what is seen is what is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from kvproof.checks.adapters.registry import builtin_targets
from kvproof.checks.certification.finding import literal
from kvproof.model.interface import BLOCKS, RECORDS, SLOTS
from kvproof.model.trace import ARGUMENTS, NAMELESS, Operation, Trace

MOST_ITEMS = 200
"""Numbers of one list that a pasteable call spells out."""
MOST_TEXT = 600
"""Characters of one message."""

_SINGULAR = {BLOCKS: "block", SLOTS: "slot", RECORDS: "record"}


def clean(text: object, most: int = MOST_TEXT) -> str:
    """One line of visible characters, at most ``most`` of them."""
    line = str(text)[: most + 1]
    seen = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in line)
    return seen if len(seen) <= most else seen[: most - 1] + "…"


def listed(parts: Iterable[object], most: int = 6) -> str:
    """``A, B and C``; what is beyond ``most`` is counted."""
    words = [clean(part, 160) for part in parts]
    if len(words) > most:
        words[most - 1 :] = [f"{len(words) - most + 1} more"]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}" if words else ""


def span(first: int, last: int) -> str:
    """``position 3`` or ``positions 3 to 7``."""
    return f"position {first}" if first == last else f"positions {first} to {last}"


def numbers(values: Sequence[int], most: int = 8) -> str:
    """Token ids: a run as ``100 to 109``, otherwise the first few."""
    if len(values) > 2 and all(b - a == 1 for a, b in pairwise(values)):
        return f"{values[0]} to {values[-1]}"
    return ", ".join(map(str, values[:most])) + (" …" if len(values) > most else "")


def place(pool: str, block: int) -> str:
    """``block 3``, ``slot 1``, ``record 7``, or the pool's own name and the id."""
    return f"{_SINGULAR.get(pool, clean(pool, 20))} {block}"


def subject(operation: Operation, copies: frozenset[int] = frozenset()) -> str:
    """Whom an operation is about, in a few characters; ``copies`` are the tickets known to be copies."""
    args = operation.args
    match operation.op:
        case "fork":
            return f"{clean(operation.request, 20)} → {clean(args.get('child'), 20)}"
        case "complete":
            tickets = args.get("tickets", ())
            word = "copy" if copies.issuperset(tickets) else "ticket"
            return f"{word} {', '.join(map(str, tickets[:3]))}{' …' if len(tickets) > 3 else ''}"
        case "release":
            reason = args.get("reason")
            return clean(operation.request, 20) + ("" if reason == "finish" else f" ({clean(reason, 10)})")
        case "evict":
            return f"{args.get('blocks')} blocks"
    named = operation.request or args.get("name") or args.get("holder") or args.get("address")
    return "" if named is None else clean(named, 24)


def answer(operation: Operation) -> str:
    """What was answered: the word, what was hit, which copies were queued, the error."""
    effects = operation.effects
    if operation.answer in ("later", "never"):
        return operation.answer.upper()
    if error := effects.get("error"):
        return f"raised {clean(error.get('type'), 60)}: {clean(error.get('message'), 200)}"
    if "reply" not in effects:
        return operation.answer + (f", {clean(effects['result'], 80)}" if effects.get("result") is not None else "")
    reply = effects["reply"]
    parts = ["OK" if operation.answer == "ok" else operation.answer]
    if reply.get("hit_rows"):
        parts.append(f"{reply['hit_rows']} rows hit")
    parts += [_copy(copy) for copy in reply.get("copies", ())[:4]]
    if len(reply.get("copies", ())) > 4:
        parts.append(f"{len(reply['copies']) - 4} more copies")
    if reply.get("evicted"):
        parts.append(f"evicted {listed(reply['evicted'])}")
    return ", ".join(parts)


def _copy(copy: Mapping[str, Any]) -> str:
    to = copy["destination"]
    pool = "" if copy.get("pool", BLOCKS) == BLOCKS else f" ({clean(copy['pool'], 20)})"
    return f"copy {copy['ticket']}: {copy['source']} to {to or 'nothing'}{pool}"


# ------------------------------------------------------------------------------------------- pasteable text


def call(operation: Operation) -> str:
    """The operation as a call: ``admit('A', range(100, 110))``."""
    arguments = [_literal(operation.args.get(name)) for name in ARGUMENTS.get(operation.op, operation.args)]
    if operation.op == "extend" and not operation.args.get("drafts"):
        arguments.pop()
    if operation.op not in NAMELESS:
        arguments.insert(0, repr(operation.request))
    return f"{operation.op}({', '.join(arguments)})"


def _literal(value: Any) -> str:
    """The value as Python; what is too long to paste is cut, and ``...`` stands for the rest."""
    text = literal(value)
    if len(text) <= 4 * MOST_ITEMS:
        return text
    return f"[*{literal(value[: MOST_ITEMS // 2])}, ...]" if isinstance(value, list | tuple) else "..."


def opening(trace: Trace) -> list[str]:
    """The lines of a program before the first operation.  Code that a file names is never imported by it."""
    c = trace.configuration
    fields = [f"{name}={getattr(c, name)}" for name in ("blocks", "block_size", "max_requests")]
    fields += [f"{name}={value}" for name in ("state_slots", "seed") if (value := getattr(c, name))]
    if trace.target in builtin_targets():
        how = f"resolve_builtin({trace.target!r})(configuration)"
        imports = ["from kvproof.checks.adapters.registry import resolve_builtin"]
    else:
        how = f"make_allocator(configuration)  # your factory; the trace names {clean(repr(trace.target), 80)}"
        imports = []
    return [
        *imports,
        "from kvproof.model.interface import Configuration",
        "",
        f"configuration = Configuration({', '.join(fields)})",
        f"allocator = {how}",
    ]
