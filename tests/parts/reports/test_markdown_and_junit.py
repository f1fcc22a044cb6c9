"""Reports for other programs: Markdown that shows what was said as it was said, and XML that CI services read."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from modelyard import Platform, open_platform
from modelyard.parts.reports import junit, markdown

EVIL = "a|b `c` ``d`` <script>x</script> @team #1 *e* ]]> & \x1b[2J ![i](http://x) "


def rendered(text: str) -> str:
    return str(MarkdownIt("gfm-like", {"linkify": False}).render(text))


def cells_of(text: str) -> list[str]:
    """The texts of the body of a table, as a browser shows them."""
    page = ElementTree.fromstring(f"<div>{rendered(text)}</div>")
    return ["".join(cell.itertext()) for cell in page.iter("td")]


@pytest.fixture
def platform() -> Iterator[Platform]:
    with open_platform() as opened:
        yield opened


# ---- Markdown ------------------------------------------------------------------------------------------------------


@given(st.text(max_size=30), st.text(max_size=30))
def test_a_cell_shows_what_was_said_and_interprets_nothing(one: str, other: str) -> None:
    shown = cells_of(markdown.table(("a", "b"), [[markdown.code(one), markdown.code(other)]]))
    assert [" ".join(cell.split()) for cell in shown] == [as_shown(one), as_shown(other)]


def as_shown(text: str) -> str:
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


@given(st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), min_size=1, max_size=20))
def test_a_heading_is_the_text(text: str) -> None:
    page = ElementTree.fromstring(f"<div>{rendered('### x ' + markdown.plain(text))}</div>")
    (heading,) = page.iter("h3")
    assert "".join(heading.itertext()) == " ".join(f"x {text}".split())


def test_a_long_text_is_cut() -> None:
    assert markdown.code("x" * 1000) == f"`{'x' * (markdown.LONGEST - 1)}…`"


def test_errors_of_scorers_alone_are_said_to_be_theirs(platform: Platform, tmp_path: Path) -> None:
    def broken(output: str, row: object) -> bool:
        raise ValueError("no verdict")

    run = platform.evaluations.run("quiz", "echo", [{"prompt": "a"}, {"prompt": "b"}], [broken])
    report = platform.evaluations.report(run)
    assert "2 rows, 2 trials, 2 rows with errors of scorers alone" in str(report)
    for name in ("run.md", "run.html"):
        report.save(tmp_path / name)
        assert "2 with errors of scorers alone" in (tmp_path / name).read_text()


def test_a_run_and_a_comparison_as_a_comment(platform: Platform, scored_runs: Any, tmp_path: Path) -> None:
    before = scored_runs.add(platform, scored_runs.questions([True] * 10))
    failed = scored_runs.answer(EVIL, scores={}, error=EVIL)
    after = scored_runs.add(platform, [*scored_runs.questions([False] * 9 + [True]), failed], "support:step2")
    platform.evaluations.report(after).save(tmp_path / "run.md")
    text = (tmp_path / "run.md").read_text()
    heading, counts, table, *_ = text.split("\n\n")
    assert heading == "### support:step2 on replies:v0"
    assert counts == "completed, 11 rows, 11 trials, 1 with errors"
    assert table.startswith("| metric | mean |")
    assert "| exact | 10.0 % |" in text
    assert "<summary>rows with errors</summary>" in text
    assert "<script>" not in rendered(text)
    platform.evaluations.compare(baseline=before, candidate=after).save(tmp_path / "comparison.md")
    text = (tmp_path / "comparison.md").read_text()
    assert text.split("\n\n")[1] == "exact: **worse**"
    assert "| exact | 100.0 % | 10.0 % | -90.0 pp |" in text
    assert "<summary>rows that lose most by exact</summary>" in text


# ---- JUnit ---------------------------------------------------------------------------------------------------------


def test_a_row_is_a_case_that_fails_with_a_false_score(platform: Platform, scored_runs: Any, tmp_path: Path) -> None:
    answers = [
        scored_runs.answer("good", scores={"exact": True, "length": 3}),
        scored_runs.answer("bad", EVIL, scores={"exact": False, "polite": False}),
        scored_runs.answer("broke", scores={"exact": ValueError("no such field")}),
        scored_runs.answer("failed", scores={}, error="timed out"),
    ]
    platform.evaluations.report(scored_runs.add(platform, answers)).save(tmp_path / "run.xml")
    suite = ElementTree.parse(tmp_path / "run.xml").getroot().find("testsuite")
    assert suite is not None
    assert suite.attrib == {"name": "support:step1 on replies:v0", "tests": "4", "failures": "1", "errors": "2"}
    messages = sorted(found.attrib["message"] for case in suite for found in case)
    assert messages == ["exact: no such field", "false: exact, polite", "timed out"]
    (failure,) = suite.iter("failure")
    assert failure.text is not None
    assert '"question":"bad"' in failure.text
    assert "<script>x</script>" in failure.text


@pytest.mark.parametrize(
    ("values", "failures"),
    [
        ([True, False], 1),
        ([True, 0], 1),
        ([1, False], 1),
        ([False, 0, 0.0, 1, 0.5], 3),
        ([True, 0.0, None, "no"], 1),
        ([1, 0, 0.5], 0),
        (["no", 0], 0),
    ],
)
def test_a_zero_is_false_in_a_metric_that_has_bools(
    platform: Platform, scored_runs: Any, values: list[Any], failures: int
) -> None:
    once = scored_runs.add(platform, scored_runs.questions(values))
    trials = [scored_runs.answer("one row", scores={"exact": value}, trial=at) for at, value in enumerate(values)]
    for run, expected in ((once, failures), (scored_runs.add(platform, trials, "support:step2"), failures > 0)):
        root = ElementTree.fromstring(platform.evaluations.report(run).junit.encode())
        assert root.attrib["failures"] == str(int(expected))


def test_a_metric_of_a_comparison_is_a_case_that_fails_where_it_is_worse(
    platform: Platform, scored_runs: Any, tmp_path: Path
) -> None:
    before = scored_runs.add(platform, scored_runs.questions([True] * 10))
    after = scored_runs.add(platform, scored_runs.questions([False] * 9 + [True]))
    for baseline, candidate, failures in ((before, after, 1), (after, before, 0), (before, before, 0)):
        platform.evaluations.compare(baseline=baseline, candidate=candidate).save(tmp_path / "comparison.xml")
        (suite,) = ElementTree.parse(tmp_path / "comparison.xml").getroot()
        assert [case.attrib["name"] for case in suite] == ["exact"]
        assert len([*suite.iter("failure")]) == failures
    assert "-90.0 pp" in platform.evaluations.compare(baseline=before, candidate=after).junit


@given(st.text(max_size=20), st.text(max_size=20))
def test_any_text_is_valid_xml(name: str, details: str) -> None:
    root = ElementTree.fromstring(junit.suite(name, [junit.Case(name, failure=f"x{name}", details=details)]).encode())
    (failure,) = root.iter("failure")
    kept = details.replace("\r\n", "\n").replace("\r", "\n")
    assert all(found in ("\ufffd", wanted) for found, wanted in zip(failure.text or "", kept, strict=True))
