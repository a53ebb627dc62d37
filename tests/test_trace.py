"""Traces: what is recorded reads back the same, replays the same, and bad files give one clear line."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvproof.model.interface import CAPABILITIES, Answer, Configuration, capabilities_of, declaration_of
from kvproof.model.mutants import make_mutant
from kvproof.model.reference import ReferenceAllocator, make_reference
from kvproof.model.trace import Recorder, Trace, TraceError, dumps, loads, read_trace, replay, write_trace

SMALL = Configuration(blocks=7, block_size=4, state_slots=4)


def run(a: Any) -> None:
    """One of everything."""
    a.admit("A", range(100, 110))
    a.commit("A", 10)
    copies = a.fork("A", "B", 10).copies
    a.pin("A", "p")
    a.hold("B", "storage")
    a.release("A", "finish")
    a.extend("B", [7], drafts=2)
    a.advance("B", 3)
    a.commit("B", 11)
    a.complete([copy.ticket for copy in copies])
    a.read("B")
    at = a.take("B", {"text": "hello", "logprobs": [-0.5]})
    a.clone(at)
    a.recycle()
    a.probe("B", "release_twice")
    a.unpin("p")
    a.ack("storage")
    a.evict(1)
    a.admit("C", range(40))
    a.release("B", "abort")


def recorded(allocator: Any = None, configuration: Configuration = SMALL) -> Trace:
    recorder: Any = Recorder(allocator or make_reference(configuration), configuration, "reference", 3, {"x": "1"})
    run(recorder)
    trace: Trace = recorder.trace()
    return trace


def test_what_is_written_reads_back_the_same(tmp_path: Path) -> None:
    trace = recorded()
    write_trace(tmp_path / "run.jsonl", trace)
    again = read_trace(tmp_path / "run.jsonl")
    assert dumps(again) == dumps(trace)
    assert again.configuration == SMALL
    assert (again.target, again.seed, again.packages) == ("reference", 3, {"x": "1"})
    assert len(again.operations) == 20


def test_snapshots_come_back_as_they_were() -> None:
    a = make_reference(SMALL)
    before = a.snapshot()
    trace = loads(dumps(recorded(a)))
    assert trace.start() == before
    assert trace.after(trace.operations[-1]) == a.snapshot()


def test_a_replay_on_the_same_target_is_identical() -> None:
    trace = loads(dumps(recorded()))
    played = list(replay(trace, make_reference(SMALL)))
    assert len(played) == 20
    assert all(step.identical for step in played)


def test_a_replay_on_a_mutant_diverges() -> None:
    played = list(replay(recorded(), make_mutant("early_release")(SMALL)))
    assert next(step.recorded.op for step in played if not step.identical) == "fork"


def test_tickets_are_translated_when_another_target_numbers_them_differently() -> None:
    other = ReferenceAllocator(SMALL)
    other.engine.tickets = 500
    played = list(replay(recorded(), other))
    assert all(step.same_answer for step in played)
    assert not other.engine.copies


def test_an_operation_that_the_target_lacks_is_unsupported() -> None:
    class Minimal:
        def __init__(self) -> None:
            inner = make_reference(SMALL)
            self.admit, self.extend, self.commit = inner.admit, inner.extend, inner.commit
            self.release, self.snapshot = inner.release, inner.snapshot

    played = list(replay(recorded(), Minimal()))
    assert next(step.actual.answer for step in played if step.recorded.op == "fork") == "unsupported"


def test_a_recorder_has_the_capabilities_of_what_it_wraps() -> None:
    plain = ReferenceAllocator(Configuration(), cache=False)
    recorder: Any = Recorder(plain, Configuration())
    assert capabilities_of(recorder) == capabilities_of(plain)
    assert declaration_of(recorder) == plain.declaration
    assert capabilities_of(plain) < CAPABILITIES.keys()


def test_an_exception_is_recorded_and_raised_again() -> None:
    recorder: Any = Recorder(make_reference(SMALL), SMALL)
    with pytest.raises(ValueError, match="not live"):
        recorder.commit("nobody", 1)
    (operation,) = recorder.operations
    assert operation.answer == "raised"
    assert operation.effects["error"]["type"] == "UnknownRequest"


def test_keyword_arguments_are_recorded_too() -> None:
    recorder: Any = Recorder(make_reference(SMALL), SMALL)
    recorder.admit("A", tokens=[1, 2])
    recorder.extend("A", [3], drafts=1)
    recorder.extend("A", [4])
    assert [operation.args for operation in recorder.operations] == [
        {"tokens": [1, 2]},
        {"tokens": [3], "drafts": 1},
        {"tokens": [4], "drafts": 0},
    ]
    assert recorder.operations[0].answer == Answer.OK.value


# Bad input ----------------------------------------------------------------------------------------

GOOD = dumps(recorded())
HEADER, *OPERATIONS = GOOD.splitlines()


def changed(line: str, *path: Any, to: Any) -> str:
    value = json.loads(line)
    inside = value
    for step in path[:-1]:
        inside = inside[step]
    inside[path[-1]] = to
    return json.dumps(value)


def without(line: str, name: str) -> str:
    value = json.loads(line)
    del value[name]
    return json.dumps(value)


BLOCKS_STATE = json.loads(OPERATIONS[0])["effects"]["pools"]["blocks"]

BAD = {
    "empty": ("", "line 1: the file is empty"),
    "not json": ("hello\n", "line 1: the line is not complete JSON"),
    "another format": ('{"format": "itf"}\n', "line 1: field format"),
    "a list": ("[1]\n", "line 1: field format"),
    "no header": (OPERATIONS[0] + "\n", "line 1: field format"),
    "newer version": (changed(HEADER, "version", to=2) + "\n", "line 1: field version: version 2 is newer"),
    "version is text": (changed(HEADER, "version", to="1") + "\n", "line 1: field version: '1' is not a whole"),
    "version is true": (changed(HEADER, "version", to=True) + "\n", "line 1: field version: True is not a whole"),
    "no seed": (without(HEADER, "seed") + "\n", "line 1: field seed: is missing"),
    "extra field": (changed(HEADER, "run", to="rm") + "\n", "line 1: field 'run': is unknown"),
    "billion blocks": (changed(HEADER, "config", "blocks", to=10**9) + "\n", "line 1: field config.blocks: 1000000000"),
    "no blocks": (changed(HEADER, "config", "blocks", to=0) + "\n", "line 1: field config.blocks: 0 is not between"),
    "billion usable": (
        changed(HEADER, "pools", "blocks", "usable", to=[[1, 10**9]]) + "\n",
        "line 1: field pools.blocks.usable: more than",
    ),
    "huge number": (HEADER.replace('"seed": 3', '"seed": 3' + "0" * 5000) + "\n", "line 1: .* too many digits"),
    "nan": (HEADER.replace('"seed": 3', '"seed": NaN') + "\n", "line 1: NaN is not a JSON number"),
    "deep nesting": (HEADER + "\n" + "[" * 200_000 + "\n", "line 2: the JSON is nested too deeply"),
    "deep value": (
        HEADER + "\n" + changed(OPERATIONS[0], "args", "tokens", to=[[[[[[1]]]]]]) + "\n",
        "line 2: field args.tokens.* nested too deeply",
    ),
    "unknown operation": (HEADER + "\n" + changed(OPERATIONS[0], "op", to="exec") + "\n", "line 2: field op: 'exec'"),
    "operation is a list": (HEADER + "\n" + changed(OPERATIONS[0], "op", to=["admit"]) + "\n", "line 2: field op"),
    "wrong token": (
        HEADER + "\n" + changed(OPERATIONS[0], "args", "tokens", 2, to="x") + "\n",
        r"line 2: field args.tokens\[2\]: 'x' is not a whole number",
    ),
    "missing argument": (HEADER + "\n" + changed(OPERATIONS[1], "args", to={}) + "\n", "line 2: field args.rows: is m"),
    "wrong reason": (
        HEADER + "\n" + changed(OPERATIONS[5], "args", "reason", to="bored") + "\n",
        "line 2: field args.reason: 'bored' is not one of finish, preempt, abort",
    ),
    "unprintable name": (
        HEADER + "\n" + changed(OPERATIONS[0], "request", to="A\x1b[2J") + "\n",
        r"line 2: field request: 'A\\x1b\[2J' has characters that cannot be printed",
    ),
    "no name": (HEADER + "\n" + changed(OPERATIONS[0], "request", to=None) + "\n", "line 2: field request: None"),
    "unknown pool": (
        HEADER + "\n" + changed(OPERATIONS[0], "effects", "pools", "disk", to=BLOCKS_STATE) + "\n",
        "line 2: field effects.pools.disk",
    ),
    "truncated": (GOOD[:-40], r"line 21: the line has no end: the file is truncated"),
    "cut inside": (GOOD[:-40] + "\n", "line 21: the line is not complete JSON"),
    "a name twice": (HEADER + '\n{"op": "admit", "op": "evict"}\n', "line 2: field 'op': appears twice"),
    "long name": (HEADER + "\n" + changed(OPERATIONS[0], "request", to="A" * 300) + "\n", "line 2: field request: the"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_gives_one_line_that_names_line_and_field(name: str, tmp_path: Path) -> None:
    content, message = BAD[name]
    path = tmp_path / "bad.jsonl"
    path.write_text(content)
    with pytest.raises(TraceError, match=message) as caught:
        read_trace(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_bytes(HEADER.encode() + b"\n\xff\xfe\n")
    with pytest.raises(TraceError, match="line 2: not UTF-8"):
        read_trace(tmp_path / "bad.jsonl")


def test_a_line_without_end_is_not_read_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvproof.model.trace.MAX_LINE", 1000)
    (tmp_path / "bad.jsonl").write_text(" " * 5000)
    with pytest.raises(TraceError, match="line 1: longer than 1000 bytes"):
        read_trace(tmp_path / "bad.jsonl")


def test_every_field_of_every_line_is_checked() -> None:
    """Replace each value in turn by something of another kind: every one is refused."""
    refused = 0
    for number, line in enumerate(GOOD.splitlines()):
        for path in _paths(json.loads(line)):
            # Values that a record may hold, content keys and null-able fields accept more than one kind.
            if "value" in path or "result" in path or "keys" in path or any(isinstance(i, int) and i > 1 for i in path):
                continue
            lines = GOOD.splitlines()
            lines[number] = changed(line, *path, to={"surprise": [{}]})
            with pytest.raises(TraceError, match=f"line {number + 1}: "):
                loads("\n".join(lines) + "\n")
            refused += 1
    assert refused > 1000


def _paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path for key, item in inside for path in [(*at, key), *_paths(item, (*at, key))]]


def test_a_damaged_file_gives_a_trace_error_and_nothing_else() -> None:
    """Cut, repeat, swap and change bytes at random: read, or refused by name; never another exception."""
    rng = random.Random(1)
    good = GOOD.encode()
    outcomes = {"read": 0, "refused": 0}
    for _ in range(400):
        damaged = bytearray(good)
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(damaged))
            kind = rng.randrange(4)
            if kind == 0:
                damaged[at] = rng.randrange(256)
            elif kind == 1:
                del damaged[at : at + rng.randint(1, 50)]
            elif kind == 2:
                damaged[at:at] = damaged[at : at + rng.randint(1, 50)]
            else:
                damaged[at:at] = rng.choice([b"{", b"}", b"[", b"]", b",", b'"', b"\n", b"-", b"9" * 30, b"null"])
        try:
            loads(bytes(damaged).decode("utf-8", "surrogateescape"))
            outcomes["read"] += 1
        except TraceError:
            outcomes["refused"] += 1
    assert outcomes["refused"] > 300
    assert outcomes["read"] > 0


def test_owners_of_other_engines_are_written_down_whatever_they_are_called() -> None:
    class Odd(ReferenceAllocator):
        def snapshot(self) -> Any:
            pools = dict(super().snapshot())
            pools["blocks"] = replace(pools["blocks"], holds={("node", 7): (1,), "a\nb": (2,)})
            return pools

    recorder: Any = Recorder(Odd(SMALL), SMALL)
    recorder.admit("A", [1])
    trace = loads(dumps(recorder.trace()))
    assert trace.operations[0].effects["pools"]["blocks"]["holds"] == {"('node', 7)": [1], "'a\\nb'": [2]}
