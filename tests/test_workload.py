"""Claims about reading and scaling public workloads (kvproof.checks.certification.workload)."""

from __future__ import annotations

import importlib.resources
import io
import json
from pathlib import Path

import pytest

from kvproof.checks.certification import workload_rows
from kvproof.checks.certification.synthetic import synthetic_text
from kvproof.checks.certification.workload import WorkloadError, WorkRequest, load_workload
from kvproof.checks.certification.workload_rows import read_rows

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
POOLS = [(1, 4), (2, 4), (3, 1), (7, 4), (16, 16), (40, 16), (200, 16)]


def mooncake(tmp_path: Path, *rows: tuple[int, int, int, list[int]]) -> Path:
    """A Mooncake file with rows (timestamp, input length, output length, ids)."""
    names = ("timestamp", "input_length", "output_length", "hash_ids")
    path = tmp_path / "work.jsonl"
    path.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))
    return path


def azure(tmp_path: Path, *rows: str) -> Path:
    path = tmp_path / "work.csv"
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    return path


def common(a: WorkRequest, b: WorkRequest) -> int:
    """Length of the longest common prefix of two prompts."""
    return next(
        (i for i, (x, y) in enumerate(zip(a.prompt, b.prompt, strict=False)) if x != y),
        min(len(a.prompt), len(b.prompt)),
    )


# -- reading ---------------------------------------------------------------------------------------


def test_mooncake_rows_are_read_with_their_ids() -> None:
    text = b'{"timestamp": 27, "input_length": 1025, "output_length": 5, "hash_ids": [4, 8, 15], "note": "ignored"}\n'
    found = read_rows(io.BytesIO(text), "f")
    assert (found.format, found.truncated) == ("mooncake", False)
    (row,) = found.rows
    assert (row.line, row.arrival, row.prompt, row.output, list(row.ids)) == (1, 27, 1025, 5, [4, 8, 15])


def test_azure_rows_are_read_whatever_the_file_is_called(tmp_path: Path) -> None:
    path = tmp_path / "misnamed.jsonl"
    text = f"\ufeff{HEADER}\r\n2023-11-16 18:15:46.6805900,374,44\r\n2023-11-16T18:15:47.68+00:00,1,0\r\n\r\n"
    path.write_bytes(text.encode())
    requests = list(load_workload(path, block_size=4, blocks=7, seed=0))
    assert [request.arrival for request in requests] == [0, 999]
    assert [request.name for request in requests] == ["r2", "r3"]


def test_requests_come_in_arrival_order_and_ties_keep_the_file_order(tmp_path: Path) -> None:
    path = mooncake(tmp_path, (900, 600, 1, []), (500, 600, 1, []), (900, 600, 1, []), (500, 600, 1, []))
    requests = list(load_workload(path, block_size=4, blocks=7, seed=0))
    assert [(request.name, request.arrival) for request in requests] == [("r2", 0), ("r4", 0), ("r1", 400), ("r3", 400)]


def test_a_limit_stops_reading_before_the_next_malformed_row(tmp_path: Path) -> None:
    path = azure(tmp_path, "2023-11-16 18:15:46,374,44", "2023-11-16 18:15:47,374,44", "broken")
    workload = load_workload(path, block_size=4, blocks=7, seed=0, limit=2)
    assert (workload.rows, workload.truncated) == (2, True)
    with pytest.raises(WorkloadError, match="line 4"):
        load_workload(path, block_size=4, blocks=7, seed=0, limit=3)


GOOD = {"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [1, 2]}


@pytest.mark.parametrize(
    ("change", "field", "expected"),
    [
        ({"timestamp": -1}, "timestamp", "milliseconds from 0"),
        ({"timestamp": "0"}, "timestamp", "milliseconds from 0"),
        ({"timestamp": True}, "timestamp", "milliseconds from 0"),
        ({"timestamp": 10**16}, "timestamp", "milliseconds from 0"),
        ({"input_length": 0}, "input_length", "a whole number from 1 to 100000000"),
        ({"input_length": 600.0}, "input_length", "a whole number from 1"),
        ({"input_length": 10**9}, "input_length", "a whole number from 1"),
        ({"output_length": -1}, "output_length", "a whole number from 0"),
        ({"output_length": None}, "output_length", "a whole number from 0"),
        ({"output_length": False}, "output_length", "a whole number from 0"),
        ({"hash_ids": "1"}, "hash_ids", "a list of whole numbers"),
        ({"hash_ids": [1, 2, 3]}, "hash_ids", "at most 2 ids"),
        ({"hash_ids": [1, "2"]}, "hash_ids[1]", "a whole number from 0"),
        ({"hash_ids": [-1]}, "hash_ids[0]", "a whole number from 0"),
        ({"hash_ids": [2**64]}, "hash_ids[0]", "a whole number from 0"),
        ({"hash_ids": [[]]}, "hash_ids[0]", "a whole number from 0"),
    ],
)
def test_a_wrong_mooncake_field_is_named_with_its_line(
    tmp_path: Path, change: dict[str, object], field: str, expected: str
) -> None:
    path = tmp_path / "work.jsonl"
    path.write_text(json.dumps(GOOD) + "\n" + json.dumps(GOOD | change) + "\n")
    with pytest.raises(WorkloadError) as caught:
        load_workload(path, block_size=4, blocks=7, seed=0)
    error = caught.value
    assert (error.file, error.line, error.field) == (str(path), 2, field)
    assert error.expected.startswith(expected)
    assert str(error).startswith(f"{path}, line 2, field {field}: expected {expected}")
    assert "\n" not in str(error)


@pytest.mark.parametrize("field", sorted(GOOD))
def test_a_missing_mooncake_field_is_named(tmp_path: Path, field: str) -> None:
    path = tmp_path / "work.jsonl"
    path.write_text(json.dumps({name: value for name, value in GOOD.items() if name != field}) + "\n")
    with pytest.raises(WorkloadError, match=f"line 1, field {field}: expected .*, found nothing"):
        load_workload(path, block_size=4, blocks=7, seed=0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "found no line at all"),
        ("\n\n", "found no line at all"),
        (HEADER + "\n", "found none behind the header"),
        ("hello\n", "line 1: expected a JSON object"),
        ("[1]\n", "line 1: expected a JSON object"),
        ('{"timestamp": 0,\n', "line 1: expected one JSON object"),
        ('{"timestamp": NaN}\n', "line 1: expected finite numbers, found NaN"),
        ('{"a": 1, "a": 2}\n', "line 1, field a: expected each field once"),
        ('{"a": ' + "[" * 100_000 + "\n", "nesting too deep"),
        ('{"timestamp": ' + "9" * 5000 + "}\n", "line 1: expected one JSON object"),
        (HEADER + "\n2023-11-16 18:15:46,1\n", "line 2: expected three cells"),
        (HEADER + "\n2023-11-16 18:15:46,1,2,3\n", "line 2: expected three cells"),
        (HEADER + "\nyesterday,1,2\n", "line 2, field TIMESTAMP: expected a date and time"),
        (HEADER + "\n2023-13-16 18:15:46,1,2\n", "line 2, field TIMESTAMP: expected a date and time"),
        (HEADER + "\n2023-11-16 18:15:46,0,2\n", "line 2, field ContextTokens: expected a whole number from 1"),
        (HEADER + "\n2023-11-16 18:15:46,1,1e3\n", "line 2, field GeneratedTokens: expected a whole number from 0"),
        (HEADER + "\n2023-11-16 18:15:46,1,-3\n", "line 2, field GeneratedTokens: expected a whole number from 0"),
        (HEADER + "\n2023-11-16 18:15:46,\u0661,3\n", "line 2, field ContextTokens: expected a whole number from 1"),
    ],
)
def test_a_malformed_file_gives_one_clear_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "work"
    path.write_text(text)
    with pytest.raises(WorkloadError) as caught:
        load_workload(path, block_size=4, blocks=7, seed=0)
    assert words in str(caught.value)
    assert len(str(caught.value)) < len(str(path)) + 400


def test_bytes_that_are_not_text_and_endless_lines_are_refused() -> None:
    with pytest.raises(WorkloadError, match="line 1: expected UTF-8 text"):
        read_rows(io.BytesIO(b"\xff\xfe\n"), "f")
    with pytest.raises(WorkloadError, match="line 1: expected at most 1048576 bytes in a line"):
        read_rows(io.BytesIO(b"{" * (workload_rows.MAX_LINE_BYTES + 1)), "f")


def test_endless_blank_lines_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workload_rows, "MAX_LINES", 10)
    with pytest.raises(WorkloadError, match="expected at most 10 lines"):
        read_rows(io.BytesIO(b"\n" * 20), "f")


def test_more_rows_or_ids_than_the_limits_are_cut_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (json.dumps(GOOD) + "\n").encode() * 10
    monkeypatch.setattr(workload_rows, "MAX_ROWS", 6)
    assert (len(read_rows(io.BytesIO(text), "f").rows), read_rows(io.BytesIO(text), "f").truncated) == (6, True)
    monkeypatch.setattr(workload_rows, "MAX_IDS", 7)
    assert (len(read_rows(io.BytesIO(text), "f").rows), read_rows(io.BytesIO(text), "f").truncated) == (4, True)


def test_a_missing_file_and_a_folder_are_workload_errors(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path, "a\0b"):
        with pytest.raises(WorkloadError, match="expected a readable file"):
            load_workload(path, block_size=4, blocks=7, seed=0)


@pytest.mark.parametrize("wrong", [{"block_size": 0}, {"blocks": 0}, {"limit": 0}])
def test_a_pool_of_nothing_is_refused(wrong: dict[str, int]) -> None:
    arguments: dict[str, int] = {"block_size": 4, "blocks": 7, "seed": 0} | wrong
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} is 0"):
        load_workload(None, **arguments)


# -- scaling ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("blocks", "block_size"), POOLS)
def test_the_bundled_workload_shows_giants_and_requests_that_fit(blocks: int, block_size: int) -> None:
    workload = load_workload(None, block_size=block_size, blocks=blocks, seed=0)
    requests = list(workload)
    sizes = [-(-len(request.prompt) // block_size) for request in requests]
    giants = sum(size > blocks for size in sizes)
    assert (workload.name, workload.rows, len(workload), len(requests)) == ("synthetic", 300, 300, 300)
    assert workload.giants == giants
    assert 6 <= giants <= 75, "one in fifty at least, one in four at most"
    assert max(sizes) <= 2 * blocks
    assert min(sizes) >= 1
    assert all(1 <= request.output <= blocks * block_size for request in requests)
    assert [request.arrival for request in requests] == sorted(request.arrival for request in requests)
    assert len({request.name for request in requests}) == 300
    assert all(1 <= token < 2**31 for request in requests for token in request.prompt)


def test_prefixes_of_the_file_can_be_hit_in_whole_blocks() -> None:
    workload = load_workload(None, block_size=16, blocks=40, seed=0)
    seen: set[tuple[int, ...]] = set()
    hits = []
    for request in workload:
        prefixes = [request.prompt[:end] for end in range(16, len(request.prompt) + 1, 16)]
        hits.append(sum(prefix in seen for prefix in prefixes))
        seen.update(prefixes)
    assert sum(hit >= 1 for hit in hits) == 298
    assert sum(hit >= 3 for hit in hits) == 181


def test_two_prompts_agree_exactly_as_far_as_their_ids(tmp_path: Path) -> None:
    rows = [
        (0, 2048, 9, [1, 2, 3, 4]),
        (0, 2048, 9, [1, 2, 5, 4]),
        (0, 2048, 9, [6, 2, 3, 4]),
        (0, 2048, 9, [1, 2]),
        (0, 1024, 9, [1, 2]),
        (0, 2048, 9, [1, 2, 3, 4]),
    ]
    workload = load_workload(mooncake(tmp_path, *rows), block_size=4, blocks=100, seed=0)
    requests, chunk = list(workload), workload.map.width
    assert (workload.map.lead, workload.map.span, chunk % 4) == (512, 512, 0)
    # One of the six is stretched beyond the pool; its own rows still come first.
    assert sorted(len(request.prompt) // chunk for request in requests)[:-1] == [2, 4, 4, 4, 4]
    shares = {(0, 1): 2, (0, 2): 0, (0, 3): 2, (0, 4): 2, (0, 5): 4, (1, 3): 2, (3, 4): 2, (2, 3): 0}
    for (i, j), chunks in shares.items():
        assert common(requests[i], requests[j]) == chunks * chunk, (i, j)


def test_a_coarse_segment_differs_when_any_chunk_in_it_differs(tmp_path: Path) -> None:
    # Twenty chunks a row, few blocks: a segment stands for several chunks, and position by position
    # the prompts must part at the first position that stands for a differing chunk.
    base = list(range(20))
    rows = [(0, 20 * 512, 1, base)] + [(0, 20 * 512, 1, [*base[:k], 100 + k, *base[k + 1 :]]) for k in range(20)]
    workload = load_workload(mooncake(tmp_path, *rows), block_size=4, blocks=7, seed=0)
    requests = list(workload)
    scale = workload.map
    assert scale.span > 512
    for k in range(20):
        parts = next(p for p in range(100) if scale.last_token(p) // 512 >= k)
        assert common(requests[0], requests[k + 1]) == min(parts, len(requests[0].prompt)), k


def test_a_scale_never_skips_or_repeats_a_source_token() -> None:
    for blocks, block_size in POOLS:
        scale = load_workload(None, block_size=block_size, blocks=blocks, seed=0).map
        assert scale.width % block_size == 0
        assert scale.width <= scale.lead <= scale.span
        ends = [scale.last_token(position) for position in range(5 * scale.width)]
        assert ends == sorted(set(ends)), "positions stand for runs, one behind the other"
        for tokens in {1, 2, scale.lead - 1, scale.lead, scale.lead + 1, scale.lead + scale.span, 12_345}:
            positions = scale.positions(tokens)
            assert positions == 1 or scale.last_token(positions - 2) < tokens - 1
            assert scale.last_token(positions - 1) >= tokens - 1


def test_rows_of_one_length_get_stretched_giants(tmp_path: Path) -> None:
    path = mooncake(tmp_path, *[(i, 4096, 4, [7]) for i in range(100)])
    workload = load_workload(path, block_size=4, blocks=8, seed=3)
    sizes = sorted(-(-len(request.prompt) // 4) for request in workload)
    assert workload.giants == 2
    assert sizes[-2:] == [9, 9]
    assert set(sizes[:-2]) == {4}, "the others take half of the pool"
    assert "2 prompts larger than the pool (stretched)" in workload.scale


def test_a_pool_larger_than_any_row_is_not_filled_by_inventing_tokens(tmp_path: Path) -> None:
    path = mooncake(tmp_path, *[(i, 100 + i, 4, []) for i in range(60)])
    workload = load_workload(path, block_size=16, blocks=1000, seed=3)
    plain = [len(request.prompt) for i, request in enumerate(workload) if i not in workload.stretched]
    assert all(length <= 160 for length in plain)
    assert workload.giants == 1
    huge = load_workload(path, block_size=16, blocks=10**7, seed=3)
    assert (huge.giants, max(len(request.prompt) for request in huge)) == (0, 159)
    assert "0 prompts larger than the pool;" in huge.scale


def test_a_giant_of_a_hundred_million_tokens_stays_small(tmp_path: Path) -> None:
    rows = [(i, 600, 4, []) for i in range(100)] + [(100, 100_000_000, 100_000_000, [])]
    workload = load_workload(mooncake(tmp_path, *rows), block_size=4, blocks=7, seed=0)
    giant = list(workload)[-1]
    assert len(giant.prompt) <= 2 * 7 * 4
    assert giant.output == 7 * 4


def test_azure_rows_share_made_up_prefixes(tmp_path: Path) -> None:
    rows = [f"2023-11-16 18:15:{i % 60:02}.{i},{200 + 37 * i},{i}" for i in range(100)]
    workload = load_workload(azure(tmp_path, *rows), block_size=4, blocks=16, seed=0)
    firsts = [request.prompt[:4] for request in workload]
    shared = sum(firsts.count(first) > 1 for first in firsts)
    assert 30 <= shared <= 70, "about half of the rows"
    assert len({first for first in firsts if firsts.count(first) > 1}) == 6
    assert "made up, the file has none" in workload.scale
    assert 2 <= workload.giants <= 25


def test_the_same_arguments_give_the_same_requests_and_another_seed_gives_others() -> None:
    one = load_workload(None, block_size=4, blocks=7, seed=1)
    assert list(one) == list(one) == list(load_workload(None, block_size=4, blocks=7, seed=1))
    other = list(load_workload(None, block_size=4, blocks=7, seed=2))
    assert [len(r.prompt) for r in one] == [len(r.prompt) for r in other]
    assert all(a.prompt[0] != b.prompt[0] for a, b in zip(one, other, strict=True))


def test_the_first_request_of_the_bundled_workload_is_pinned() -> None:
    first = next(iter(load_workload(None, block_size=4, blocks=7, seed=0)))
    assert (first.name, first.arrival, first.output) == ("r1", 0, 1)
    assert first.prompt == (1460263324, 1982438104, 373627195, 1664334957, 885691587)


def test_the_bundled_file_is_what_its_generator_prints() -> None:
    bundled = importlib.resources.files("kvproof.checks").joinpath("data", "synthetic.jsonl").read_text()
    assert bundled == synthetic_text()
    assert 10_000 < len(bundled) < 100_000


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5])
def test_a_handful_of_rows_is_enough(tmp_path: Path, rows: int) -> None:
    path = mooncake(tmp_path, *[(i, 5000, 0, []) for i in range(rows)])
    workload = load_workload(path, block_size=4, blocks=7, seed=0)
    assert [request.output for request in workload] == [0] * rows
    assert workload.giants == (1 if rows >= 4 else 0)
