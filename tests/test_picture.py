"""Claims about the HTML picture of a trace: what is in it, that nothing gets out of it, and that it stays small."""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
import json
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.checks.certification.finding import Finding, Step
from kvproof.checks.lockstep.operations import Operation as Asked
from kvproof.checks.picture.blame import blame
from kvproof.checks.picture.grid import lay_out, queued_copies
from kvproof.checks.picture.page import MOST_CELLS, WINDOW, picture
from kvproof.checks.picture.shapes import draw
from kvproof.checks.picture.words import call, clean
from kvproof.model.interface import Answer, Configuration
from kvproof.model.mutants import make_mutant
from kvproof.model.reference import make_reference
from kvproof.model.trace import Operation, Recorder, Trace, dumps, loads
from kvproof.spec import RULES

# ------------------------------------------------------------------------------------------------ a page, read


@dataclass
class Element:
    """One element of a page; void elements have no text."""

    tag: str
    attrs: dict[str, str]
    text: str = ""
    inside: tuple[str, ...] = ()
    """Classes and tags of the elements around it."""

    @property
    def classes(self) -> set[str]:
        return set(self.attrs.get("class", "").split())


@dataclass
class Page(HTMLParser):
    """All elements of a page in order, as a browser's parser sees them."""

    elements: list[Element] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._open: list[Element] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        around = tuple(name for e in self._open for name in (e.tag, *e.classes))
        element = Element(tag, {name: value or "" for name, value in attrs}, inside=around)
        self.elements.append(element)
        if tag not in ("meta", "br"):
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        for element in self._open:
            element.text += data

    def closed(self) -> bool:
        return not self._open

    def all(self, tag: str, *classes: str) -> list[Element]:
        return [e for e in self.elements if e.tag == tag and set(classes) <= e.classes]

    def one(self, tag: str, *classes: str) -> Element:
        (found,) = self.all(tag, *classes)
        return found


def read(page: str) -> Page:
    """Parse a page; every element must be closed."""
    parser = Page()
    parser.feed(page)
    parser.close()
    assert parser.closed()
    return parser


# ------------------------------------------------------------------------------------------------ sample traces

EARLY: Mapping[str, Any] = {
    "rule": "reads_keep_their_source",
    "kind": "rule",
    "length": 3,
    "message": "block 3 may be issued again while queued copy 3 to 4 still reads it (ticket 1, for B); what then "
    "happens: C is given block 3, B reads 900 and 901 where 108 and 109 were expected",
    "also": [],
    "history": ["block 3: admit A: given to A", "block 3: release A: given up by A, now free"],
}


def early() -> Trace:
    """The chapter's first run: the source of a queued copy is released at once."""
    configuration = Configuration(blocks=4, block_size=4, max_requests=4)
    run: Any = Recorder(make_mutant("early_release")(configuration), configuration, "reference:early_release")
    run.admit("A", range(100, 110))
    run.commit("A", 10)
    run.fork("A", "B", 10)
    run.release("A", "finish")
    return run.trace()  # type: ignore[no-any-return]


def busy(operations: int, blocks: int = 24, seed: int = 1) -> Trace:
    """A long run of the reference: arrivals with shared prefixes, growth, forks, late copies, holders, preemption."""
    configuration = Configuration(blocks=blocks, block_size=4, max_requests=5, state_slots=7)
    run: Any = Recorder(make_reference(configuration), configuration, "reference", seed)
    dice = random.Random(seed)
    live: dict[str, int] = {}
    tickets: list[int] = []
    held: list[str] = []
    named = 0
    while len(run.operations) < operations:
        roll = dice.random()
        name = dice.choice(list(live)) if live else ""
        if len(live) < 4 and roll < 0.3:
            named += 1
            tokens = [*range(100, 108), *range(1000 * named, 1000 * named + dice.randint(1, 14))]
            if run.admit(f"r{named}", tokens).answer is Answer.OK:
                live[f"r{named}"] = len(tokens)
                run.commit(f"r{named}", len(tokens))
        elif live and roll < 0.75:
            if run.extend(name, [dice.randint(1, 99)]).answer is Answer.OK:
                live[name] += 1
                run.commit(name, live[name])
            else:
                run.release(name, "preempt")
                del live[name]
        elif live and roll < 0.82 and len(live) < 5:
            named += 1
            reply = run.fork(name, f"r{named}", live[name])
            if reply.answer is Answer.OK:
                live[f"r{named}"] = live[name]
                tickets += [copy.ticket for copy in reply.copies]
        elif live and roll < 0.86 and len(held) < 2:
            named += 1
            held.append(f"holder{named}")
            run.hold(name, held[-1])
        elif held and roll < 0.89:
            run.ack(held.pop(0))
        elif tickets and roll < 0.95:
            run.complete([tickets.pop(0)])
        elif live and roll > 0.96:
            run.release(name, "finish")
            del live[name]
    return run.trace()  # type: ignore[no-any-return]


def by_hand(*states: Mapping[str, Any], blocks: int = 3) -> Trace:
    """A trace with one ``extend`` a state; what a state leaves out is empty."""
    empty = {"free": [], "tables": {}, "evictable": [], "holds": {}, "counts": None, "keys": None, "committed": None}
    pools = {"blocks": {"usable": [[1, blocks]], "reserved": [[0, 0]], **empty, "free": [*range(1, blocks + 1)]}}
    operations = [
        Operation("extend", "A", {"tokens": [1], "drafts": 0}, "ok", {"pools": {"blocks": {**empty, **state}}})
        for state in states
    ]
    return loads(dumps(Trace(Configuration(blocks=blocks), "x", 0, {}, operations, pools)))


def renamed(trace: Trace, old: str, new: str) -> Trace:
    """The same run with a request called otherwise."""
    lines = [json.dumps(vars(operation)).replace(json.dumps(old), json.dumps(new)) for operation in trace.operations]
    return replace(trace, operations=[Operation(**json.loads(line)) for line in lines])


def kinds(trace: Trace, block: int) -> list[str]:
    """What a block is after each operation, the start first."""
    grid = lay_out(trace, 0, len(trace.operations), None)
    return [cell.kind for cell in grid.cells["blocks", block]]


# -------------------------------------------------------------------------------------------------- what is there


def test_the_verdict_stands_first() -> None:
    page = read(picture(early(), EARLY))
    assert page.one("h1").text == "reads_keep_their_source"
    rule = RULES["reads_keep_their_source"]
    assert page.one("p", "statement").text == rule.statement
    assert "rule 4, chapter 4.2, 4.3.7" in page.one("p", "kicker").text
    assert page.one("p", "message").text.strip().endswith("still reads it (ticket 1, for B)")
    assert page.one("p", "then").text.endswith("B reads 900 and 901 where 108 and 109 were expected")


def test_every_operation_and_every_block_is_there() -> None:
    trace = early()
    page = read(picture(trace, EARLY))
    titles = [e.attrs["data-title"] for e in page.all("g", "column")]
    assert titles[0] == "at the start"
    assert titles[1:] == [f"operation {n}: {call(operation)}" for n, operation in enumerate(trace.operations, 1)]
    names = [e.text for e in page.all("text", "name") if "grid" in e.inside]
    assert names == ["block 1", "block 2", "block 3", "block 4"]
    heads = [e.text for e in page.all("th") if e.attrs["scope"] == "col"]
    assert heads == ["After", *names]
    assert len(page.all("td")) == 5 * 4


def test_the_guilty_cell_is_marked_in_the_picture_and_in_the_table() -> None:
    page = read(picture(early(), EARLY))
    column, row = page.one("g", "column", "guilty"), [e for e in page.all("g", "row", "guilty") if "grid" in e.inside]
    assert column.attrs["data-title"] == "operation 4: release('A', 'finish')"
    assert row[0].text.strip() == "block 3"
    ring, spots = page.one("rect", "ring"), page.all("rect", "spot")
    (under,) = [
        e for e in spots if e.attrs["data-row"] == "2" and int(e.attrs["data-first"]) <= 4 <= int(e.attrs["data-last"])
    ]
    assert float(ring.attrs["x"]) == float(column.attrs["data-x"]) + 0.5
    assert float(ring.attrs["y"]) == float(under.attrs["y"]) + 1
    cell = page.one("td", "guilty")
    assert (cell.text, cell.attrs["aria-label"]) == ("free", "free: breaks here")
    assert [e.attrs.get("data-moment") for e in page.all("span", "line", "guilty")] == ["4"]


def test_a_cell_tells_who_owns_it_since_when_and_what_was_written() -> None:
    page = read(picture(early(), EARLY))
    told = page.one("p", "told-text").text.split("\n")
    assert told == [
        "free since operation 4: release A",
        "it last held A: positions 8 to 9, tokens 108, 109, committed",
        "queued copy 1 (3 to 4) still reads it",
    ]
    shared = next(e.text for e in page.all("title") if "shared by" in e.text).split("\n")
    assert shared[:4] == [
        "shared by A and B since operation 3: fork A → B",
        "owner count 2",
        "A: positions 0 to 3, tokens 100 to 103, committed",
        "B: positions 0 to 3, tokens 100 to 103, committed",
    ]


def test_the_guilty_block_has_a_history_in_sentences() -> None:
    page = read(picture(early(), EARLY))
    told = [e.text for e in page.all("li") if "ol" in e.inside]
    assert told == [
        "start it is free",
        "operation 1 given to A: positions 8 to 9, tokens 108, 109, not yet committed",
        "operation 3 copy 1 (3 to 4) is queued and will read it",
        "operation 4 given up by A; now free; queued copy 1 (3 to 4) still reads it",
    ]
    assert "block 3: admit A: given to A" in [e.text for e in page.all("li")]


def test_a_queued_copy_is_an_arrow_and_two_lines_until_it_is_complete() -> None:
    trace = early()
    drawing = draw(trace, lay_out(trace, 0, 4, None), blame(trace, EARLY), "k")
    (arrow,) = drawing.arrows
    assert arrow.guilty
    assert drawing.columns[3].x < arrow.x < drawing.columns[4].x
    source, destination = drawing.rows[2].y, drawing.rows[3].y
    assert source < arrow.y1 < destination < (arrow.y2 or 0) + drawing.row_height
    assert [(line.writes, line.done) for line in drawing.lines] == [(False, False), (True, False)]
    assert all(line.x2 == drawing.columns[4].x + drawing.column_width for line in drawing.lines)

    done = Operation("complete", None, {"tickets": [1]}, "done", trace.operations[3].effects)
    longer = replace(trace, operations=[*trace.operations, done])
    (copy,) = queued_copies(longer)
    assert (copy.queued, copy.completed, copy.source, copy.destination) == (3, 5, 3, 4)
    finished = draw(longer, lay_out(longer, 0, 5, None), None, "k")
    assert [line.done for line in finished.lines] == [True, True]
    assert read(picture(longer)).all("g", "done")


def test_every_state_of_a_block_looks_different() -> None:
    trace = by_hand(
        {"tables": {"A": [1]}, "free": [2, 3], "counts": [[1, 1]]},
        {"tables": {"A": [1], "B": [1]}, "free": [2, 3]},
        {"holds": {"pin P": [1]}, "free": [2, 3]},
        {"evictable": [1], "free": [2, 3], "keys": [[1, "77ab"]]},
        {"free": [2, 3]},
        {"free": [1, 1, 2, 3]},
        {"tables": {"A": [1]}, "free": [1, 2, 3], "counts": [[1, 5]]},
    )
    assert kinds(trace, 1) == ["free", "owned", "shared", "held", "cached", "lost", "twice", "clash"]
    page = read(picture(trace))
    assert {e.attrs["class"].split()[1] for e in page.all("rect", "bar") if "grid" in e.inside} == {
        "owned", "shared", "held", "cached", "lost", "twice", "clash", "over",
    }  # fmt: skip
    told = [e.text for e in page.all("title")]
    assert any("owner count 5, though it has 1 owner" in text and "and yet it may be issued" in text for text in told)
    assert any("can be hit under key 77ab" in text for text in told)


def test_a_reserved_block_has_a_row_only_when_something_happens_to_it() -> None:
    assert "block 0" not in picture(by_hand({"free": [1, 2, 3]}))
    trace = by_hand({"tables": {"A": [0]}, "free": [1, 2, 3]})
    assert kinds(trace, 0) == ["reserved", "owned"]
    assert "though its id is reserved" in picture(trace)


def test_an_operation_without_a_snapshot_is_drawn_as_not_seen() -> None:
    trace = by_hand({"free": [1, 2, 3]})
    blind = replace(trace, operations=[*trace.operations, replace(trace.operations[0], effects={}, answer="raised")])
    assert kinds(blind, 1) == ["free", "free", "unseen"]
    assert "not observed" in picture(blind)


def test_a_trace_without_snapshots_is_a_list_of_operations() -> None:
    trace = replace(early(), pools=None)
    page = read(picture(trace, EARLY))
    assert not page.all("svg")
    assert [e.attrs["data-moment"] for e in page.all("span", "asked")] == ["1", "2", "3", "4"]
    assert "no snapshots" in page.one("p", "note").text
    assert "block 3: admit A: given to A" in [e.text for e in page.all("li")]


def test_without_a_finding_nothing_is_called_guilty() -> None:
    page = read(picture(early()))
    assert page.one("span", "stamp").text == "no finding"
    assert not [e for e in page.elements if "guilty" in e.classes]


def test_living_requests_have_different_colours() -> None:
    trace = busy(300)
    grid = lay_out(trace, 0, 300, None)
    legend = {owner.name: owner.fill for owner in draw(trace, grid, None, "k").legend}
    assert len(legend) > 8
    for moment in range(301):
        living = {owner for where in grid.rows for owner in grid.cell(where, moment).owners}
        assert len({legend[name] for name in living}) == len(living)


# -------------------------------------------------------------------------------------------- where it points to


def test_a_finding_can_be_an_object_or_a_mapping() -> None:
    trace, message = early(), str(EARLY["message"])
    steps = tuple(Step(Asked(o.op, o.request, o.args), o.answer) for o in trace.operations)
    sentence, _, then = message.partition("; what then happens: ")
    finding = Finding(
        rule="reads_keep_their_source",
        kind="rule",
        message=sentence,
        length=3,
        target=trace.target,
        configuration=trace.configuration,
        steps=steps,
        what_then=then,
        history=tuple(EARLY["history"]),
    )
    bare = SimpleNamespace(**{name: EARLY[name] for name in ("rule", "kind", "length", "message", "history")})
    assert picture(trace, finding) == picture(trace, finding.as_json()) == picture(trace, EARLY) == picture(trace, bare)


@pytest.mark.parametrize(("length", "moment"), [(1, 1), (2, 3), (3, 4), (4, 5), (99, 5)])
def test_a_length_leads_to_its_operation(length: int, moment: int) -> None:
    trace = early()
    last = Operation("complete", None, {"tickets": [1]}, "done", {})
    longer = replace(trace, operations=[*trace.operations, last])
    assert blame(longer, {"rule": None, "kind": "rule", "length": length, "message": ""}).moment == moment


@pytest.mark.parametrize(
    ("finding", "where"),
    [
        ({"message": "queued copy 4 to 5 will write row 0 of block 5, which belongs to C"}, ("blocks", 5)),
        ({"message": "A and B both write state slot 2"}, ("slots", 2)),
        ({"message": "record 7 was recycled"}, ("records", 7)),
        ({"message": "nothing is named"}, ("blocks", None)),
        ({"message": "block 1", "block": "3"}, ("blocks", 3)),
        ({"message": "", "block": 2, "pool": "slots"}, ("slots", 2)),
    ],
)
def test_the_guilty_block_is_the_one_that_is_named(finding: dict[str, Any], where: tuple[str, int | None]) -> None:
    found = blame(early(), {"rule": None, "kind": "rule", "length": 1, **finding})
    assert (found.pool, found.block) == where


def test_a_kind_without_a_rule_has_its_sentence() -> None:
    page = read(picture(early(), {"rule": None, "kind": "hangs", "length": 3, "message": "release took 10 s"}))
    assert page.one("h1").text == "hangs"
    assert page.one("p", "statement").text == "A call did not come back within its time limit."
    assert not page.all("rect", "ring")
    assert page.one("g", "column", "guilty")


# ------------------------------------------------------------------------------------------------ untrusted text

NASTY = """<script>alert(1)</script>"'`><img src=x onerror=alert(2)>&lt;{{ 7*7 }}{% raw %}]]>--></title></pre></svg>"""


def nasty() -> Trace:
    """The early release with markup wherever a file can have text."""
    trace = replace(loads(dumps(renamed(early(), "A", NASTY))), target=NASTY)
    pools = json.loads(json.dumps(trace.operations[3].effects["pools"]))
    pools["blocks"]["holds"] = {NASTY: [1]}
    pools["blocks"]["keys"] = [[1, NASTY]]
    failed = Operation("take", NASTY, {"value": NASTY}, "raised", {"error": {"type": NASTY, "message": NASTY}})
    operations = [*trace.operations[:3], replace(trace.operations[3], effects={"pools": pools}), failed]
    return replace(trace, operations=operations, packages={NASTY: NASTY})


def test_text_of_a_trace_stays_text() -> None:
    names = ("rule", "kind", "message", "what_then", "trace")
    finding = {**dict.fromkeys(names, NASTY), "length": 9, "also": [NASTY], "history": [NASTY], "block": 1}
    page, plain = read(picture(nasty(), finding)), read(picture(early(), EARLY))
    tags = {e.tag for e in page.elements}
    assert tags <= {e.tag for e in plain.elements}
    assert "img" not in tags
    assert len(page.all("script")) == len(page.all("style")) == 1
    attributes = {name for e in page.elements for name in e.attrs}
    assert not [name for name in attributes if name.startswith("on") or name in ("src", "href", "style")]
    assert page.one("h1").text[:20] == NASTY[:20]
    assert page.one("p", "message").text == NASTY
    assert page.all("li")[-1].text == NASTY
    assert NASTY in [e.text for e in page.all("dd")]
    assert "49" not in page.one("p", "message").text


@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(st.text(min_size=1, max_size=40))
def test_no_name_changes_the_structure(name: str) -> None:
    """Whatever a request is called, the page has the same elements in the same order."""
    trace = renamed(early(), "A", name if name != "B" else "A")
    shape = [(e.tag, e.attrs.get("class")) for e in read(picture(trace, EARLY)).elements if e.tag != "text"]
    same = [(e.tag, e.attrs.get("class")) for e in read(picture(early(), EARLY)).elements if e.tag != "text"]
    assert shape == same


def test_characters_that_hide_are_shown_as_escapes() -> None:
    assert clean("a\u202eb\u200b\x00\n") == "a\\u202eb\\u200b\\x00\\n"
    trace = renamed(early(), "A", "A\u202e")
    page = picture(trace, {**EARLY, "message": "A\u202e did it"})
    assert "\u202e" not in page
    assert "A\\u202e did it" in page


def test_the_page_may_use_its_own_style_and_script_and_nothing_else() -> None:
    text = picture(early(), EARLY)
    page = read(text)
    policy = next(e.attrs["content"] for e in page.all("meta") if "http-equiv" in e.attrs)
    for tag in ("style", "script"):
        written = re.search(f"<{tag}>(.*?)</{tag}>", text, re.S)
        assert written
        digest = base64.b64encode(hashlib.sha256(written[1].encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert not re.search(r"https?:|url\((?!#)|@import|\bfetch\(|innerHTML|\beval\b", text)


# --------------------------------------------------------------------------------------------------- the program


def test_the_list_of_operations_is_a_program_that_repeats_the_run() -> None:
    configuration = Configuration(blocks=4, block_size=4, max_requests=4)
    trace = early()
    code = read(picture(trace, EARLY)).one("pre").text
    assert "# Here reads_keep_their_source breaks." in code
    space: dict[str, Any] = {}
    exec(compile(code, "<pasted>", "exec"), space)
    assert space["configuration"] == configuration
    pool = space["allocator"].snapshot()["blocks"]
    after = trace.after(trace.operations[-1])
    assert after is not None
    assert (pool.tables, list(pool.free)) == (after["blocks"].tables, list(after["blocks"].free))


def test_a_program_never_imports_what_a_file_names() -> None:
    trace = replace(early(), target="os:system")
    code = read(picture(trace)).one("pre").text
    compile(code, "<pasted>", "exec")
    assert not re.search(r"^[^#]*os:system", code, re.M)
    assert "make_allocator(configuration)  # your factory; the trace names 'os:system'" in code
    compile(read(picture(nasty())).one("pre").text, "<pasted>", "exec")


def test_long_lists_are_cut_where_they_cannot_be_pasted() -> None:
    tokens = [n * n for n in range(5_000)]
    text = call(Operation("admit", "A", {"tokens": tokens}, "ok"))
    assert len(text) < 1_000
    assert text.endswith(", ...])")
    assert call(Operation("admit", "A", {"tokens": list(range(5_000))}, "ok")) == "admit('A', range(0, 5000))"


# ---------------------------------------------------------------------------------------------------------- sizes


def test_a_long_run_shows_the_operations_before_the_breach_and_offers_the_rest() -> None:
    trace = busy(200)
    finding = {**EARLY, "length": 10**6, "message": "block 7 is wrong"}
    page = read(picture(trace, finding))
    last = len(trace.operations)
    titles: dict[bool, list[str]] = {True: [], False: []}
    for column in page.all("g", "column"):
        titles["details" in column.inside].append(column.attrs["data-title"].partition(":")[0])
    assert titles[False] == [f"operation {n}" for n in range(last - WINDOW, last + 1)]
    assert titles[True] == ["at the start", *(f"operation {n}" for n in range(1, last + 1))]
    assert f"Show all: operations 1 to {last} of {last}" in [e.text for e in page.all("summary")]


def test_both_figures_use_the_same_colours() -> None:
    trace = busy(200)
    longer = lay_out(trace, 0, 200, None)
    near = draw(trace, lay_out(trace, 140, 200, None), None, "near", longer).legend
    assert near
    assert {(o.name, o.fill) for o in near} <= {(o.name, o.fill) for o in draw(trace, longer, None, "all").legend}


def test_the_size_of_a_page_is_bounded() -> None:
    trace = busy(1_500)
    text = picture(trace, {**EARLY, "length": 10**6, "message": "block 7 is wrong"})
    assert len(text) < 1_500_000
    page = read(text)
    assert len(page.all("td")) <= MOST_CELLS + 200 * 62
    assert "A page cannot hold more of this run" in page.all("p", "note")[-1].text


def test_a_large_pool_shows_what_something_happened_to() -> None:
    trace = busy(150, blocks=5_000)
    finding = {**EARLY, "length": 10**6, "message": "block 4321 is lost"}
    text = picture(trace, finding)
    assert len(text) < 1_500_000
    page = read(text)
    names = {e.text for e in page.all("text", "name") if "grid" in e.inside and "details" not in e.inside}
    assert "block 4321" in names
    assert len(names) < 80
    assert f"{5_000 + 7 - len(names):,} more blocks and slots have no row" in page.all("p", "note")[0].text


def test_a_crowd_of_owners_and_copies_stays_small() -> None:
    crowd = {f"request number {n}": [1] for n in range(3_000)}
    trace = by_hand(*({"tables": crowd, "free": [2, 3]} for _ in range(5)))
    copies = [{"source": 2, "destination": 3, "rows": 1, "ticket": t, "pool": "blocks"} for t in range(20_000)]
    first = trace.operations[0]
    reply = {"hit_rows": 0, "copies": copies, "evicted": None}
    many = replace(trace, operations=[replace(first, effects={**first.effects, "reply": reply}), *trace.operations[1:]])
    assert len(picture(many)) < 2_000_000


def test_the_same_trace_gives_the_same_page() -> None:
    trace = busy(120)
    finding = {**EARLY, "message": "block 7 is wrong"}
    page = picture(trace, finding)
    assert page == picture(trace, finding)
    assert page == picture(loads(dumps(trace)), json.loads(json.dumps(finding)))


def test_the_templates_are_installed() -> None:
    folder = importlib.resources.files("kvproof.checks.picture").joinpath("templates")
    assert {"picture.html", "picture.css", "picture.js"} <= {entry.name for entry in folder.iterdir()}
