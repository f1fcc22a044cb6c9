"""The pages on which people label by keyboard, and see what their labels show."""

import re
from collections.abc import Iterator

import pytest

from modelyard import Platform, open_platform
from page_reader import Reader

ROWS = [{"prompt": f"say <b>{at}</b>", "expected": f"say <b>{at}</b>" if at % 3 else "no"} for at in range(12)]


@pytest.fixture
def platform() -> Iterator[Platform]:
    with open_platform(entity="acme") as platform:
        platform.evaluations.run("quiz", "echo", ROWS)
        yield platform


def test_rows_are_labelled_one_key_each(platform: Platform) -> None:
    reader = Reader(platform)
    assert "No review yet" in reader.page("reviews")
    (run,) = platform.evaluations.runs.list_all()
    path = reader.post("reviews", run=run.id, rows="3", seed="1")
    assert "3 of 12, drawn by the seed 1" in reader.page(path)
    at = f"{path}/label?person=ann"
    for row, value in enumerate(("yes", "no", "?")):
        page = reader.page(at)
        assert f"row {row + 1} of 3" in page
        assert "say &lt;b&gt;" in page
        assert page.index("<h2>prompt</h2>") < page.index("<h2>Answer</h2>") < page.index("data-key")
        assert [*re.findall(r'data-key="(.)"', page)] == ["y", "n", "?"]
        if row:
            assert 'aria-pressed="true"' in reader.page(f"{path}/label?person=ann&row={row - 1}")
        at = reader.post(f"{path}/label", person="ann", row=str(row), value=value, note=" why " if row else "")
    assert "You have labelled every row" in reader.page(at)
    rows = platform.review.rows(path.removeprefix("reviews/"), "ann")
    assert [(row.value, row.note) for row in rows] == [(1.0, ""), (0.0, "why"), (None, "why")]
    page = reader.page(f"{path}/label?person=ann&row=1")
    assert "<dt>your label</dt><dd>no</dd><dt>note</dt><dd>why</dd>" in page
    assert "data-key" not in page, "what cannot be changed has no button"
    assert "their labels stay" in reader.post(f"{path}/label", person="ann", row="0", value="no")


def test_results_are_shown_to_who_has_labelled_every_row(platform: Platform) -> None:
    reader = Reader(platform)
    (run,) = platform.evaluations.runs.list_all()
    review = platform.review.start(run.id, rows=4)
    path = f"reviews/{review.id}"
    for row in range(4):
        platform.review.label(review.id, "ann", row, True)
    platform.review.label(review.id, "bob", 0, False)
    for asked in ("", "?person=bob", "?person=eve"):
        page = reader.page(f"{path}/results{asked}")
        assert "labelled every row" in page
        assert not {"Disagreements", "as judged", "Agreement"} & {
            *re.findall("Disagreements|as judged|Agreement", page)
        }
    assert "Disagreements" in reader.page(f"{path}/results?person=ann")
    page = reader.page(f"{path}/label?person=bob&row=0")
    assert "judge" not in re.sub(r"<nav.*?</nav>", "", page)
    for row in range(4):
        platform.review.label(review.id, "bob", row, False)
    page = reader.page(f"{path}/results?person=bob")
    assert "Fleiss" in page
    assert "<td>bob" in page or ">bob<" in page
    assert "person=bob" in reader.page(f"{path}/label?person=bob")


def test_results_are_of_the_labels_of_their_review(platform: Platform) -> None:
    (run,) = platform.evaluations.runs.list_all()
    small, large = (platform.review.start(run.id, rows=size) for size in (4, 9))
    for review in (small, large):
        for row in range(review.size):
            platform.review.label(review.id, "ann", row, True)
    page = Reader(platform).page(f"reviews/{small.id}/results?person=ann")
    assert "from 4 labels here" in page


def test_numbers_have_a_key_or_a_field(platform: Platform) -> None:
    def stars(output: object, row: object) -> int:
        return 1 + len(str(output)) % 3

    reader, run = Reader(platform), platform.evaluations.run("stars", "echo", ROWS, stars)
    few = platform.review.start(run, rows=2, choices=(1, 2, 3))
    assert re.findall(r'data-key="(.)"', reader.page(f"reviews/{few.id}/label?person=ann")) == ["1", "2", "3", "?"]
    free = platform.review.start(run, rows=2, choices=())
    assert 'name="number"' in reader.page(f"reviews/{free.id}/label?person=ann")
    reader.post(f"reviews/{free.id}/label", person="ann", row="0", value="", number="2.5")
    reader.post(f"reviews/{free.id}/label", person="ann", row="1", value="?", number="")
    assert [row.value for row in platform.review.rows(free.id, "ann")] == [2.5, None]
    assert "must be a number" in reader.post(f"reviews/{free.id}/label", person="bob", row="0", number="many")


def test_who_may_not_write_is_offered_no_label(platform: Platform) -> None:
    (run,) = platform.evaluations.runs.list_all()
    review = platform.review.start(run.id, rows=2)
    assert Reader(platform).send("POST", f"reviews/{review.id}/label", person="ann", row="0", value="yes").status == 403
    assert not platform.review.progress(review.id).people


def test_reviews_are_named_by_what_they_are_of(platform: Platform) -> None:
    (run,) = platform.evaluations.runs.list_all()
    review = platform.review.start(run.id, rows=2)
    platform.review.label(review.id, "ann", 0, True)
    reader, path = Reader(platform), f"reviews/{review.id}"
    listed = reader.page("reviews")
    assert ">exact_match on quiz <small>" in listed
    assert ">2 of 12</td>" in listed
    for at, title in (
        ("", "Review of exact_match on quiz"),
        ("/label?person=ann", "Label exact_match as ann"),
        ("/results", "What the labels of exact_match on quiz show"),
    ):
        assert f"<h1>{title}</h1>" in reader.page(path + at)
    assert ">echo on quiz</a>" in reader.page(path)
    assert "Does the answer pass exact_match?" in reader.page(f"{path}/label?person=ann")


def test_numbers_and_rows_of_results_are_those_that_people_read(platform: Platform) -> None:
    def third(output: object, row: object) -> float:
        return len(str(output)) / 3e5

    run = platform.evaluations.run("thirds", "echo", ROWS, third)
    review = platform.review.start(run, rows=3)
    for row in range(3):
        platform.review.label(review.id, "ann", row, 0.5)
    reader, path = Reader(platform), f"reviews/{review.id}"
    page = reader.page(f"{path}/results?person=ann")
    assert "Disagreements" in page
    assert not re.search("[0-9][.][0-9]{9}", page)
    assert re.findall('row=([0-9])">([0-9])<', page) == [("0", "1"), ("1", "2"), ("2", "3")]
    assert "row 1 of 3" in reader.page(f"{path}/label?person=ann&row=0")


def test_results_of_yes_and_no_are_in_percent(platform: Platform) -> None:
    (run,) = platform.evaluations.runs.list_all()
    review = platform.review.start(run.id, rows=8)
    for row in range(8):
        platform.review.label(review.id, "ann", row, row != 3)
    headline = re.findall('class="headline">([^<]*)<', Reader(platform).page(f"reviews/{review.id}/results?person=ann"))
    assert re.match(r"[0-9.]+ % by what people say \(95 % interval [0-9.]+ to [0-9.]+ %\)", headline[0])
    assert "66.7 % as judged on 12 rows" in headline[0]
