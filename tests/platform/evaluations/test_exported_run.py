"""A run that was exported from one store is the baseline of a comparison in another."""

from pathlib import Path
from typing import Any

import pytest

from modelyard import open_platform
from modelyard.errors import InvalidInput

ROWS = [{"prompt": f"word {number}", "expected": f"word {number}"} for number in range(24)]


def half(row: Any) -> str:
    if row["prompt"].endswith("23"):
        raise ValueError("no answer")
    return str(row["prompt"]) if int(row["prompt"].split()[1]) % 2 else "?"


def whole(row: Any) -> str:
    return str(row["prompt"])


@pytest.fixture(params=["memory", "sqlite"])
def store_path(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return tmp_path / "yard.db" if request.param == "sqlite" else None


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    with open_platform(project="p") as platform:
        run = platform.evaluations.run("quiz", half, ROWS, ["exact_match", "token_f1"], trials=2)
        platform.evaluations.report(run).save(tmp_path / "baseline.jsonl")
    return tmp_path / "baseline.jsonl"


def test_it_says_what_the_run_itself_says(exported: Path) -> None:
    with open_platform(project="p") as platform:
        again = platform.evaluations.run("quiz", half, ROWS, ["exact_match", "token_f1"], trials=2)
        candidate = platform.evaluations.run("quiz", whole, ROWS, ["exact_match", "token_f1"], trials=2)
        by_file = platform.evaluations.compare(baseline=exported, candidate=candidate)
        by_run = platform.evaluations.compare(baseline=again, candidate=candidate)
        assert list(by_file.export()) == list(by_run.export())
    assert by_file.comparison == by_run.comparison
    assert by_file.metric("exact_match").verdict == "better"
    assert (by_file.baseline.id, by_file.baseline.model) == ("baseline.jsonl", by_run.baseline.model)


def test_rows_of_one_number_each_are_those_of_the_run_itself(store_path: Path | None, tmp_path: Path) -> None:
    with open_platform(store_path, project="p") as platform:
        run, candidate = (platform.evaluations.run("quiz", model, ROWS, ["exact_match"]) for model in (half, whole))
        platform.evaluations.report(run).save(tmp_path / "baseline.jsonl")
        by_file = platform.evaluations.compare(baseline=tmp_path / "baseline.jsonl", candidate=candidate)
        by_run = platform.evaluations.compare(baseline=run, candidate=candidate)
        assert by_file.comparison == by_run.comparison
        assert by_file.comparison.rows == len(ROWS)


def test_it_serves_an_assertion_as_a_string_too(exported: Path) -> None:
    with open_platform(project="p") as platform:
        worse = platform.evaluations.run("quiz", lambda row: "?", ROWS, ["exact_match", "token_f1"])
        with pytest.raises(AssertionError, match=r"baseline\.jsonl"):
            platform.evaluations.assert_not_worse(baseline=str(exported), candidate=worse)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda lines: [], "holds no rows"),
        (lambda lines: [lines[0], b"{}\n"], "line 2 of .* is not a prediction of an exported run"),
        (lambda lines: [b"not JSON\n"], "line 1 of .* is not valid JSON"),
        (lambda lines: ["{}".encode("utf-16")], "line 1 of .* is not UTF-8"),
        (lambda lines: [lines[0], b"\xef\xbb\xbf" + lines[1]], "line 2 of .* byte order mark"),
        (lambda lines: lines[::-1], "row_digest is out of order"),
    ],
    ids=["empty", "no prediction", "no JSON", "UTF-16", "a mark within", "reversed"],
)
def test_a_file_that_cannot_be_read_is_named_with_its_line(exported: Path, change: Any, said: str) -> None:
    exported.write_bytes(b"".join(change(exported.read_bytes().splitlines(keepends=True))))
    with open_platform(project="p") as platform:
        candidate = platform.evaluations.run("quiz", whole, ROWS)
        with pytest.raises(InvalidInput, match=said):
            platform.evaluations.compare(baseline=exported, candidate=candidate)


def test_a_file_that_was_saved_with_a_byte_order_mark_is_read(exported: Path) -> None:
    with open_platform(project="p") as platform:
        candidate = platform.evaluations.run("quiz", whole, ROWS)
        wanted = platform.evaluations.compare(baseline=exported, candidate=candidate).comparison
        exported.write_bytes(b"\xef\xbb\xbf" + exported.read_bytes())
        assert platform.evaluations.compare(baseline=exported, candidate=candidate).comparison == wanted


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with open_platform(project="p") as platform, pytest.raises(InvalidInput, match="cannot be read: No such file"):
        platform.evaluations.compare(baseline=tmp_path / "none.jsonl", candidate=tmp_path / "none.jsonl")
