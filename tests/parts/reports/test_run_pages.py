"""What people look at: text, notebook and one HTML page of runs and comparisons."""

import shutil
import subprocess
import zlib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import attrs
import pytest

from modelyard import Platform, open_platform
from modelyard.domain.evaluation.aggregate import KEEP
from modelyard.domain.evaluation.statistics import Distribution
from modelyard.errors import InvalidInput
from modelyard.parts.reports.histogram import Histogram
from modelyard.parts.reports.html import html, table, tag

EVIL = "</td><script>document.title='broken'</script><img src=http://127.0.0.1/x onerror=alert(1)>"
VOID = {"meta", "link", "img", "br", "input"}


class Outline(HTMLParser):
    """The elements of a page; refuses what is not closed in its order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return "".join(self.texts)


def test_the_failures_of_a_scorer_are_no_failures_of_another_one() -> None:
    rows = [{"prompt": str(number), "expected": str(number)} for number in range(4)]

    def judge(output: str, row: Any) -> bool:
        if output != "1":
            raise ValueError("no opinion")
        return True

    def model(row: Any) -> str:
        if row["prompt"] == "3":
            raise ValueError("lost")
        return str(row["prompt"])

    with open_platform() as platform:
        run = platform.evaluations.run("e", model, rows, {"right": "exact_match", "judge": judge}, project="p")
        text = platform.evaluations.report(run)._repr_html_()
    assert "3 of 3 on right" in text
    assert "The model failed on 1 of 4 rows. The scorer judge failed on 2 of 4 rows." in text
    assert "rows failed" not in text


def test_the_text_says_why_a_scorer_gave_no_score() -> None:
    judge = {"type": "llm_judge", "model": "echo", "prompt": "Yes or no: is {output} right?"}
    with open_platform() as platform:
        scorers = {"right": "exact_match", "judge": judge}
        run = platform.evaluations.run("e", "echo", [{"prompt": "a", "expected": "a"}] * 2, scorers, project="p")
        text = str(platform.evaluations.report(run))
    assert "\n2 unscored by judge: the judge gave no yes or no" in text
    assert "unscored by right" not in text


@pytest.fixture
def platform() -> Iterator[Platform]:
    with open_platform() as opened:
        yield opened


@pytest.fixture
def reports(platform: Platform, scored_runs: Any) -> tuple[Any, Any]:
    """The report of a run, and of a comparison, in which everything that is shown is hostile."""

    def run(shift: float) -> Any:
        answers = [
            scored_runs.answer(
                f"{EVIL} {n}", EVIL, {"exact": n % 3 > shift, EVIL: {EVIL: n / 20 + shift, "label": EVIL}}, trial=0
            )
            for n in range(20)
        ]
        answers += [scored_runs.answer("failed", scores={}, error=f"{EVIL} timed out")]
        answers += [scored_runs.answer("broke", EVIL, {"exact": ValueError(EVIL), EVIL: None})]
        return scored_runs.add(platform, answers)

    one, other = run(0), run(1)
    return platform.evaluations.report(one), platform.evaluations.compare(baseline=one, candidate=other)


@pytest.mark.parametrize("which", [0, 1])
def test_a_page_is_well_formed_and_holds_nothing_that_runs_or_is_fetched(reports: Any, which: int) -> None:
    text = reports[which].html
    outline = Outline(text)
    assert {"script", "img", "link", "iframe"}.isdisjoint(outline.tags)
    assert not {name for name, _ in outline.attributes} & {"src", "href", "onerror", "onload", "style"}
    assert "url(" not in text
    assert "@import" not in text
    assert "Content-Security-Policy" in text
    assert EVIL in outline.text


@pytest.mark.parametrize("which", [0, 1])
def test_a_notebook_shows_a_piece_that_is_well_formed_and_keeps_to_itself(reports: Any, which: int) -> None:
    piece = reports[which]._repr_html_()
    outline = Outline(piece)
    assert {"html", "body", "script"}.isdisjoint(outline.tags)
    lines = outline.texts[0].strip().splitlines()
    rules = [line for line in lines if not line.startswith(("@media", "}"))]
    selectors = [one for rule in rules for one in rule.partition("{")[0].split(",")]
    assert all(one.startswith(".modelyard.modelyard.modelyard") for one in selectors)


def test_ids_and_digests_are_short_and_in_full_where_a_reader_looks_for_them(
    platform: Platform, scored_runs: Any
) -> None:
    model = "support:SwXOY4Xn8VZbq2dYfJ1c0aLr7mKtGhPe3uWsNiEoQvB"
    run = scored_runs.add(platform, scored_runs.questions([True]), model)
    kept = platform.evaluations.report(run).run
    shown = Outline(platform.evaluations.report(run)._repr_html_())
    assert shown.texts.count("support:SwXOY4Xn…") == 3  # the facts, the costs, and in full
    assert shown.texts.count(kept.id) == shown.texts.count(kept.model) == 1
    assert {("title", kept.id), ("title", kept.model)} <= set(shown.attributes)
    both = Outline(platform.evaluations.compare(baseline=run, candidate=run).html)
    assert both.texts.count(kept.id) == both.texts.count(kept.model) == 1


def test_a_page_shows_numbers_plots_errors_and_rows(reports: Any) -> None:
    run, comparison = (Outline(report.html) for report in reports)
    for heading in ("Metrics", "How the scores spread", "Time and cost", "Errors", "Rows, the worst first"):
        assert heading in run.text
    assert "timed out" in run.text
    assert run.tags.count("figure") == 1  # of the numbers: what is true or false is one bar
    assert f"{sum(n % 3 > 0 for n in range(20))} of 20" in run.text
    for heading in ("Metrics", "How the rows differ", "Errors", "Rows on which the candidate loses most"):
        assert heading in comparison.text
    assert "not compared" in str(reports[1])


def test_a_report_opens_with_a_sentence_on_its_primary_metric(platform: Platform) -> None:
    rows = [{"prompt": f"{n}", "expected": f"{n}" if n % 4 else "no"} for n in range(40)]
    scorers = {"right": "exact_match", "alike": "fuzzy"}
    runs = [platform.evaluations.run("quiz", model, rows, scorers) for model in ("echo", lambda row: "no")]
    said = Outline(platform.evaluations.report(runs[0]).html).texts
    assert "echo scores 30 of 40 on right (75.0 %); 95 % interval 59.8 to 85.8 %." in said
    assert said.index("right") < said.index("alike")
    both = Outline(platform.evaluations.compare(baseline=runs[0], candidate=runs[1]).html).text
    assert "is worse than echo on right: -50.0 pp (95 % interval " in both
    assert "Worse on alike." in both


def test_a_judge_s_words_are_stored_and_shown(platform: Platform) -> None:
    judge = {"type": "llm_judge", "model": "echo", "prompt": "Yes, since it says {output}"}
    run = platform.evaluations.run("quiz", "echo", [{"prompt": "hello"}], {"kind": judge})
    (row,) = run.rows
    assert (row.score, row.comments) == (1.0, {"kind": "Yes, since it says hello"})
    assert "Yes, since it says hello" in Outline(platform.evaluations.report(run).html).text
    assert b"Yes, since it says hello" in b"".join(platform.evaluations.export(run, "jsonl"))


def test_on_a_narrow_screen_the_rows_of_a_wide_table_are_cards_with_its_headings() -> None:
    wide = table([("metric", ""), ("mean", "number"), ("<b>", ""), ("p", "")], [("right", 1, 2, 3)])
    assert '<td class="number" data-label="mean">1</td>' in wide
    assert 'data-label="&lt;b&gt;"' in wide
    assert "data-label" not in table([("metric", ""), ("mean", "number")], [("right", 1)])


def test_text_is_a_table_that_cannot_steer_a_terminal(platform: Platform, scored_runs: Any) -> None:
    run = scored_runs.add(platform, scored_runs.questions([True, False, None], "exact"), "support:step1")
    text = str(platform.evaluations.report(run))
    (line,) = (line for line in text.splitlines() if line.startswith("exact"))
    assert line.split() == ["exact", "50.0", "%", "9.5", "to", "90.5", "%", "33.3", "%", "2", "1", "0", "0"]
    assert "cost" not in text
    assert "30 + 15 tokens, $0.003" in text
    evil = scored_runs.add(platform, [scored_runs.answer("q", scores={"\x1b[2J": 1.0})])
    both = str(platform.evaluations.report(evil)) + str(platform.evaluations.compare(baseline=run, candidate=evil))
    assert "\x1b" not in both


def test_the_text_of_a_run_names_the_first_errors_and_how_trials_and_rows_were_put_together(
    platform: Platform, scored_runs: Any
) -> None:
    answers = [scored_runs.answer(f"q{n}", error=f"timed out {n}", more={"text": n % 2}) for n in range(5)]
    again = scored_runs.answer("q9", scores={"exact": True}, more={"text": 0})
    run = scored_runs.add(platform, [*answers, again, attrs.evolve(again, trial=1)])
    text = str(platform.evaluations.report(run, reducer="min", cluster_by="text"))
    assert text.count("model: timed out") == 3
    assert "trials of a row reduced by min" in text
    assert "intervals, with rows of one 'text' taken together" in text
    page = Outline(platform.evaluations.report(run, cluster_by="text").html).text
    assert "The mean is over what is scored, with rows of one 'text' taken together; over all trials" in page


def test_a_comparison_accounts_for_every_row(platform: Platform, scored_runs: Any) -> None:
    before = scored_runs.add(platform, scored_runs.questions([True, True, None, None, True]))
    after = scored_runs.add(platform, scored_runs.questions([True, None, True, None, False]))
    found = platform.evaluations.compare(baseline=before, candidate=after)
    lacking = "rows without a value: 1 in the baseline, 1 in the candidate, 1 in both"
    (line,) = (line for line in str(found).splitlines() if line.startswith("exact, rows"))
    assert line == f"exact, {lacking}; over all 5, these as worst: -20.0 pp (-78.6 to +57.6 pp)"
    assert lacking in Outline(found.html).text


def test_a_comparison_says_how_many_rows_would_be_enough(platform: Platform, scored_runs: Any) -> None:
    before = scored_runs.add(platform, scored_runs.questions([True] * 5 + [False] * 5))
    after = scored_runs.add(platform, scored_runs.questions([False] * 2 + [True] * 4 + [False] * 4))
    found = platform.evaluations.compare(baseline=before, candidate=after)
    needed = found.metric("exact").rows_needed
    assert f"exact, about {needed} rows would show a difference of this size" in str(found)
    assert "would show" not in str(platform.evaluations.compare(baseline=before, candidate=before))


def test_what_the_engine_returns_shows_its_report(platform: Platform) -> None:
    result = platform.evaluations.run("e", lambda row: "x", [{"expected": "x"}], project="p", progress=False)
    assert str(result) == str(platform.evaluations.report(result))
    assert result._repr_html_() == platform.evaluations.report(result)._repr_html_()


def test_an_empty_run_has_a_page_too(platform: Platform, scored_runs: Any) -> None:
    run = scored_runs.add(platform, [])
    assert "Nothing was scored" in Outline(platform.evaluations.report(run).html).text
    assert "nothing to compare" in Outline(platform.evaluations.compare(baseline=run, candidate=run).html).text
    assert "0 rows" in str(platform.evaluations.report(run))


def test_runs_over_other_rows_say_on_their_page_why_they_have_none_in_common(
    platform: Platform, scored_runs: Any
) -> None:
    one = scored_runs.add(platform, scored_runs.questions([True]))
    other = scored_runs.add(platform, [scored_runs.answer("another question", scores={"exact": True})])
    page = Outline(platform.evaluations.compare(baseline=one, candidate=other).html).text
    assert "no row is in both: rows are paired by all that they hold" in page


def test_a_page_of_many_rows_shows_the_worst_and_says_how_many_there_are(platform: Platform, scored_runs: Any) -> None:
    rows = 3 * KEEP
    run = scored_runs.add(platform, scored_runs.questions([n / rows for n in range(rows)]))
    few = scored_runs.add(platform, scored_runs.questions([n / KEEP for n in range(KEEP)]))
    outline = Outline(platform.evaluations.report(run).html)
    assert f"exact: {KEEP} of {rows} rows" in outline.text
    assert outline.tags.count("tr") == Outline(platform.evaluations.report(few).html).tags.count("tr")
    glance = Outline(platform.evaluations.report(run)._repr_html_())
    assert "exact: 10 of 300 rows" in glance.text


def test_reports_are_saved_by_the_ending_of_the_file(reports: Any, tmp_path: Path) -> None:
    for name, report in zip(("run", "comparison"), reports, strict=True):
        for ending, begin in ((".html", b"<!DOCTYPE html>"), (".jsonl", b'{"row_digest"'), (".csv", b"row_digest,")):
            report.save(tmp_path / f"{name}{ending}")
            assert (tmp_path / f"{name}{ending}").read_bytes().startswith(begin)
        with pytest.raises(InvalidInput, match=r"must end in \.html, \.md, \.xml"):
            report.save(tmp_path / "run.xlsx")
    assert not (tmp_path / "run.xlsx").exists()


def test_what_is_html_already_is_not_escaped_again() -> None:
    assert tag("p", "<", html("<"), tag("b", "&"), kind="quiet") == '<p class="quiet">&lt;&lt;<b>&amp;</b></p>'


# ---- plots


def colours_of(drawn: str) -> list[str]:
    return [part[:6] for part in drawn.split('fill="#')[1:]]


def test_a_histogram_has_a_bar_for_each_count_and_colours_losses_and_gains() -> None:
    drawn = Histogram("<exact>", Distribution(-1, 1.0, (2, 5, 3)), differences=True).svg
    assert drawn.count("<rect") == 3
    assert len(set(colours_of(drawn))) == 3
    assert len(set(colours_of(Histogram("exact", Distribution(-1, 1.0, (2, 5, 3))).svg))) == 1
    assert "&lt;exact&gt;" in drawn
    assert "2 around -1; 5 around 0; 3 around 1" in drawn


# ---- in a browser

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")


def browse(folder: Path, *options: str) -> str:
    """Open the page in headless Chromium; what it says on standard output."""
    quiet = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1200,900")
    command = [str(CHROMIUM), *quiet, f"--user-data-dir={folder / 'profile'}", *options]
    page = (folder / "comparison.html").as_uri()
    return subprocess.run([*command, page], check=True, capture_output=True, text=True, timeout=300).stdout


@in_a_browser
@pytest.mark.servers
def test_a_browser_opens_the_page_and_nothing_hostile_runs(reports: Any, tmp_path: Path) -> None:
    reports[1].save(tmp_path / "comparison.html")
    dom = browse(tmp_path, "--dump-dom")
    assert "<title>support:step1 compared with support:step1</title>" in dom
    assert dom.count("<figure>") == 1, "of true and false there is nothing to draw"


NOTEBOOK = """<!DOCTYPE html><style>
.jp-RenderedHTMLCommon table{table-layout:fixed;font-size:12px}
.jp-RenderedHTMLCommon:not(.jp-RenderedMarkdown) td,.jp-RenderedHTMLCommon:not(.jp-RenderedMarkdown) th{
text-align:right;vertical-align:middle;max-width:none}
</style><div class="jp-RenderedHTMLCommon" style="width:%dpx">%s</div><script>
const cells = [...document.querySelectorAll("tr")].map(row => [...row.cells].map(cell => {
  const text = document.createRange(); text.selectNodeContents(cell); return [cell, text.getBoundingClientRect()]}));
const overlaps = cells.flatMap(row => row.slice(1).filter(([_, box], at) => box.width && row[at][1].right > box.left));
const align = name => getComputedStyle(cells.flat().find(([cell]) => cell.textContent == name)[0]).textAlign;
document.title = `overlaps ${overlaps.length}, role ${align("role")}, calls ${align("calls")}`;
</script>"""
"""What notebooks have for tables, and a look at how they come out in it."""


@in_a_browser
@pytest.mark.servers
@pytest.mark.parametrize("width", [640, 1100])
def test_in_a_notebook_text_is_left_aligned_and_nothing_overlaps(
    platform: Platform, scored_runs: Any, tmp_path: Path, width: int
) -> None:
    run = scored_runs.add(platform, scored_runs.questions([True, None, False]), "a-long-name-of-a-model" * 2)
    piece = platform.evaluations.report(run)._repr_html_()
    (tmp_path / "comparison.html").write_text(NOTEBOOK % (width, piece))
    assert "<title>overlaps 0, role left, calls right</title>" in browse(tmp_path, "--dump-dom")


@in_a_browser
@pytest.mark.servers
@pytest.mark.parametrize(("preference", "dark"), [(0, True), (1, False)])
def test_a_browser_shows_the_page_as_dark_or_as_light_as_its_reader_likes(
    reports: Any, tmp_path: Path, preference: int, dark: bool
) -> None:
    reports[1].save(tmp_path / "comparison.html")
    image = tmp_path / "page.png"
    browse(tmp_path, f"--blink-settings=preferredColorScheme={preference}", f"--screenshot={image}")
    assert (max(first_pixel(image.read_bytes())) < 64) is dark


PRINTED = """<!DOCTYPE html><body style="margin:0"><div style="width:680px">%s</div><script>
const cut = [...document.querySelectorAll(".wide")].filter(one => one.scrollWidth > one.clientWidth + 1);
const over = [...document.querySelectorAll("table")].filter(one => one.getBoundingClientRect().right > 681);
const hidden = [...document.querySelectorAll("details td")].filter(one => !one.checkVisibility());
document.title = `cut ${cut.length}, over ${over.length}, hidden ${hidden.length}`;
</script>"""
"""A page as wide as A4 has room for, with the styles of print, and a look at what would be lost on paper."""


@in_a_browser
@pytest.mark.servers
@pytest.mark.parametrize("compared", [False, True])
def test_on_paper_nothing_is_cut_or_folded(
    platform: Platform, scored_runs: Any, tmp_path: Path, compared: bool
) -> None:
    answers = scored_runs.questions([*[True, None, False] * 10, ValueError("no")])
    runs = [scored_runs.add(platform, answers, "a-long-name-of-a-model" * 2) for _ in range(2)]
    of = platform.evaluations
    piece = (of.compare(*runs) if compared else of.report(runs[0]))._repr_html_()
    assert ("<details>" in piece, "@media print" in piece) == (True, True)
    for styles, wanted in ((piece.replace("@media print", "@media all"), True), (piece, False)):
        (tmp_path / "comparison.html").write_text(PRINTED % styles)
        found = "<title>cut 0, over 0, hidden 0</title>" in browse(tmp_path, "--dump-dom")
        assert found is wanted, "printed" if wanted else "on a screen, where lines are folded"


def first_pixel(png: bytes) -> bytes:
    """Red, green and blue of the upper left pixel, which no filter of a PNG changes."""
    at, packed = 8, b""
    while at < len(png):
        length, kind = int.from_bytes(png[at : at + 4]), png[at + 4 : at + 8]
        packed += png[at + 8 : at + 8 + length] if kind == b"IDAT" else b""
        at += 12 + length
    return zlib.decompress(packed)[1:4]


def test_equal_errors_are_one_line_with_their_count() -> None:
    """On the page, as text and as Markdown; the rows of each are named."""
    rows = [{"prompt": str(number), "expected": "b"} for number in range(6)]

    def answer(row: Any) -> str:
        raise ValueError("alone" if row["prompt"] == "3" else "again and again")

    with open_platform() as platform:
        report = platform.evaluations.report(platform.evaluations.run("quiz", answer, rows, "exact_match"))
        notes, shown = report.aggregate.failures, report.html
        text, comment = str(report), report.markdown
    errors = shown.partition("6 of 6 rows on which")[2].partition("</section>")[0]
    assert [errors.count(words) for words in ("again and again", "alone", "4 more")] == [1, 1, 1]
    assert errors.index("again and again") < errors.index("alone")
    assert all(note.digest[:10] in errors for note in notes)
    assert [text.count(words) for words in (" and 4 more: ", "again and again", "alone")] == [1, 1, 1]
    assert [comment.count(words) for words in ("again and again", "alone", "such as")] == [1, 1, 1]
