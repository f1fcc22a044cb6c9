"""Reviews on the command line: rows are drawn, labelled, and judges corrected."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from modelyard import open_platform
from modelyard.cli import main

ROWS = [{"prompt": f"say {at}", "expected": f"say {at}" if at % 3 else "no"} for at in range(30)]


@pytest.fixture
def store(tmp_path: Path) -> str:
    path = str(tmp_path / "yard.db")
    with open_platform(path) as platform:
        for _ in range(2):
            platform.evaluations.run("quiz", "echo", ROWS)
    return path


def say(store: str, *words: str, typed: str = "", code: int = 0) -> str:
    found = CliRunner().invoke(main, ["review", *words, "--store", store], input=typed)
    assert found.exit_code == code, found.output
    return found.output


def test_rows_are_drawn_labelled_and_a_judge_is_corrected(store: str, tmp_path: Path) -> None:
    review = say(store, "start", "quiz", "--rows", "8").strip()
    said = say(store, "label", review, "ann", typed="yes\nmaybe\nno\n?\nq\n")
    assert "prompt: say " in said
    assert "must be yes, no or" in said
    assert "yes, no, ? if you cannot say, q to stop:" in said
    lines = say(store, "export", review, "ann").splitlines()
    assert [line.rpartition(",")[0].rpartition(",")[2] for line in lines[1:5]] == ["yes", "no", "?", ""]
    file = tmp_path / "labels.csv"
    file.write_text("row,label\n" + "".join(f"{at},{'no' if at == 5 else 'yes'}\n" for at in range(8)))
    assert say(store, "import", review, "ann", str(file)) == "8 labels\n"
    assert "every row is labelled" in say(store, "label", review, "ann")
    shown = json.loads(say(store, "list", "--json"))
    assert [(one["id"], one["size"], one["population"]) for one in shown] == [(review, 8, 30)]
    assert {*json.loads(say(store, "disagreements", review, "--person", "ann", "--json"))[0]} == {"row", "judge", "ann"}
    assert "bob has not labelled every row" in say(store, "disagreements", review, "--person", "bob", code=1)
    assert "--person" in say(store, "disagreements", review, code=2)
    said = say(store, "estimate", "quiz")
    assert "from 8 labels here" in said
    assert "specificity" in said
    found = json.loads(say(store, "estimate", "quiz", "--json"))
    assert (found["checked"], found["corrected"]["labelled"]) == (True, 8)
    assert say(store, "delete", review).strip() == review


def test_a_comparison_that_cannot_tell_fails_where_it_must_not_be_worse(store: str) -> None:
    with open_platform(store) as platform:
        runs = [run.id for run in platform.evaluations.runs.list_all()]
        for run in runs:
            review = platform.review.start(run, rows=10)
            for row in platform.review.rows(review.id, "ann"):
                platform.review.label(review.id, "ann", row.place, row.output == row.inputs["expected"])
    said = say(store, "compare", *runs)
    assert said.startswith("the judge cannot tell a difference of this size (margin 0.05): 0.000 (-0.")
    assert "cannot tell" in say(store, "compare", *runs, "--not-worse", code=1)
    assert say(store, "compare", *runs, "--margin", "0.5", "--not-worse").startswith("not worse (margin 0.5)")


@pytest.mark.parametrize("margin", ["nan", "-1", "inf"])
def test_a_margin_that_is_none_is_refused(store: str, margin: str) -> None:
    with open_platform(store) as platform:
        runs = [run.id for run in platform.evaluations.runs.list_all()]
    assert "must be a number from 0" in say(store, "compare", *runs, "--margin", margin, code=1)
