"""What the engine is given and says of it: evaluations by any of their names, errors that tell what to do."""

import csv
import io
import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_counts import examples
from modelyard import Platform, open_platform
from modelyard.domain.evaluation.objects import ObjectVersion
from modelyard.domain.evaluation.run import RunState
from modelyard.domain.identity import Principal, Scope
from modelyard.errors import InvalidInput, JobFailed, NotFound
from modelyard.platform.evaluations.input_rows import csv_rows

ROWS = [{"prompt": "yes", "expected": "yes"}]


@pytest.fixture
def platform() -> Iterator[Platform]:
    with open_platform() as platform:
        yield platform


@pytest.fixture
def quiz(platform: Platform) -> ObjectVersion:
    """The first of two versions of an evaluation."""
    objects = platform.evaluations.objects
    dataset = objects.publish("dataset", "questions", {}, ROWS, project="p")
    content = {"dataset": str(dataset.ref)}
    first = objects.publish("evaluation", "The Quiz", content, project="p")
    objects.alias("evaluation", "the_quiz", "v0", "golden", project="p")
    objects.publish("evaluation", "The Quiz", {**content, "trials": 2}, project="p")
    return first


def test_every_way_to_name_a_version_runs_the_same(platform: Platform, quiz: ObjectVersion) -> None:
    names = ["the_quiz:v0", "The Quiz:golden", f"the_quiz:{quiz.digest}", str(quiz.ref), quiz.ref, quiz]
    for name in names:
        result = platform.evaluations.run(name, "echo", project="p")
        assert (result.run.evaluation, len(result.rows)) == (str(quiz.ref), 1)
    assert len(platform.evaluations.run("The Quiz", "echo", project="p").rows) == 2


def test_what_is_not_an_evaluation_is_refused_with_what_to_pass(platform: Platform, quiz: ObjectVersion) -> None:
    (dataset,) = platform.evaluations.objects.list("dataset", project="p")
    for wrong in (None, 5, ["the_quiz"], "", "a:b:c", "weave:///x", "weave:///e/p/op/x", dataset):
        with pytest.raises(
            InvalidInput, match="must be a name such as quiz or quiz:v0, a reference such as"
        ) as reported:
            platform.evaluations.run(wrong, "echo", project="p")  # type: ignore[call-overload]
        assert reported.value.problems[0].loc == ("evaluation",)


def test_an_evaluation_that_was_never_published_needs_rows(platform: Platform) -> None:
    with pytest.raises(NotFound, match="not found; publish it, or give rows and scorers"):
        platform.evaluations.run("unknown", "echo", project="p")
    assert platform.evaluations.run("unknown", "echo", ROWS, project="p").score == 1.0


@pytest.mark.parametrize("wrong", [None, 5, [], [5], {"a": 1}, b"echo"])
def test_what_is_not_a_model_is_refused_with_what_to_pass(platform: Platform, wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="model: must be a name, a reference"):
        platform.evaluations.run("e", wrong, ROWS, project="p")


def test_values_that_are_not_rows_are_refused(platform: Platform) -> None:
    for wrong in (5, object()):
        with pytest.raises(InvalidInput, match="rows: must be mappings, one for each row; a version of a dataset, or"):
            platform.evaluations.run("e", "echo", wrong, project="p")  # type: ignore[call-overload]


@pytest.mark.parametrize("kind", [str, Path])
def test_rows_may_lie_in_a_file_of_json_lines(platform: Platform, tmp_path: Path, kind: Any) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, ROWS * 2)))
    assert len(platform.evaluations.run("e", "echo", kind(path), project="p").rows) == 2
    path.write_text('{"prompt": "a"}\n5\n')
    with pytest.raises(InvalidInput, match=r"rows\.jsonl\.line\.2: must be a JSON object"):
        platform.evaluations.run("e", "echo", kind(path), project="p")
    with pytest.raises(
        InvalidInput, match=r"'questions' is not a file, and a published .* its reference; rows must be"
    ):
        platform.evaluations.run("e", "echo", kind("questions"), project="p")


@pytest.mark.slow
def test_rows_may_be_a_table_in_a_file_that_ends_in_csv(platform: Platform, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text('\ufeffprompt,expected\n"say, ""yes""","say, ""yes"""\n\nsay no,5\n', encoding="utf-8")
    result = platform.evaluations.run("e", "echo", path, project="p")
    assert [row.row for row in result.rows] == [
        {"prompt": 'say, "yes"', "expected": 'say, "yes"'},
        {"prompt": "say no", "expected": "5"},
    ]
    assert result.score == 0.5
    for wrong, reply in (
        (
            b"prompt;expected\na;b\n",
            r"rows\.csv\.line\.1: names one column, 'prompt;expected'; separate columns by commas",
        ),
        (b"\xef\xbb\xbfprompt;expected\r\n1,5;2,5\r\n", r"rows\.csv\.line\.1: .* and not by ';'"),
        (b"prompt\texpected\na\tb\n", r"rows\.csv\.line\.1: .* and not by '\\t'"),
        (b"prompt|expected\na|b\n", r"rows\.csv\.line\.1: .* and not by '\|'"),
        (b"prompt,b\n1,2\n1,2,3\n", r"rows\.csv\.line\.3: has 3 cells, and the first line has 2"),
        (b"a,a\n1,2\n", r"line\.1: must name each column once"),
        (b'prompt,b\n1,"2\n', r"is not valid CSV: unexpected end of data"),
        (b"prompt,b\n" + b"1,2\n" * 5000 + b"1,caf\xe9\n1,2\n", r"line\.5002: is not UTF-8"),
        (b'prompt,b\n1,2\n1,"2"3\n1,2\n', r"line\.3: is not valid CSV"),
        (b"a\n" + b"x" * (2**24 + 1), r"line\.2: is not valid CSV: field larger than field limit \(16777216\)"),
        (b"", r"rows\.csv: has no rows"),
        (b"a,b\n", r"rows\.csv: has no rows"),
    ):
        path.write_bytes(wrong)
        with pytest.raises(InvalidInput, match=reply):
            platform.evaluations.run("e", "echo", str(path), project="p")


def test_a_cell_of_a_table_may_be_a_document_and_the_limit_of_the_process_stays(
    platform: Platform, tmp_path: Path
) -> None:
    path = tmp_path / "ROWS.CSV"
    path.write_text(f"prompt,expected\n{'x' * 200_000},b\n")
    (row,) = platform.evaluations.run("e", "echo", path, project="p").rows
    assert row.row == {"prompt": "x" * 200_000, "expected": "b"}
    assert csv.field_size_limit() == 131_072


def test_a_file_of_lines_without_rows_is_named(platform: Platform, tmp_path: Path) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_text("\n\n")
    with pytest.raises(InvalidInput, match=r"empty\.jsonl: has no rows; give at least one$"):
        platform.evaluations.run("e", "echo", path, project="p")


def test_a_table_of_another_name_is_told_what_it_was_read_as(platform: Platform, tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text("prompt\texpected\na\tb\n")
    with pytest.raises(InvalidInput, match=r"read as JSON Lines, as its name does not end in \.csv"):
        platform.evaluations.run("e", "echo", path, project="p")


@examples(30)
@given(
    st.lists(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=2, max_size=2), max_size=5),
    st.sampled_from(["\n", "\r\n"]),
    st.data(),
)
def test_a_table_is_read_cell_by_cell_and_a_wrong_byte_is_in_its_line(
    cells: list[list[str]], ending: str, data: st.DataObject
) -> None:
    text = io.StringIO()
    csv.writer(text, lineterminator=ending, quoting=csv.QUOTE_ALL).writerows([["a", "b"], *cells])
    raw = text.getvalue().encode()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.csv"
        path.write_bytes(raw)
        assert [[*row.values()] for _, row in csv_rows(path)] == cells
        at = data.draw(st.integers(0, len(raw)))
        path.write_bytes(raw[:at] + b"\xff" + raw[at:])
        with pytest.raises(InvalidInput) as wrong:
            list(csv_rows(path))
    assert wrong.value.problems[0].loc == ("line", 1 + len(re.findall(rb"\r\n|\r|\n", raw[:at])))


def test_only_the_host_may_name_a_file(platform: Platform, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(json.dumps(ROWS[0]))
    tenant = platform.acting_as(Principal("key", "local", Scope("local")))
    with pytest.raises(InvalidInput, match="only the host may name a file"):
        tenant.evaluations.run("e", "echo", tmp_path / "rows.jsonl", project="p")


@pytest.mark.parametrize("name", ["project", "entity"])
@pytest.mark.parametrize("wrong", [5, b"p", ""])
def test_an_invalid_entity_or_project_name_is_refused(platform: Platform, name: str, wrong: Any) -> None:
    with pytest.raises(InvalidInput, match=f"{name}: must be 1 to 128 characters"):
        platform.evaluations.run("e", "echo", ROWS, **{"project": "p", name: wrong})


def test_a_function_with_a_wrong_signature_is_refused_before_the_first_row(platform: Platform) -> None:
    with pytest.raises(
        InvalidInput, match=r"scorers\.short: must be a function of output and row: too many positional"
    ):
        platform.evaluations.run("e", "echo", ROWS, {"short": lambda output: True}, project="p")
    with pytest.raises(InvalidInput, match="model: must be a function of row: missing a required argument: 'seed'"):
        platform.evaluations.run("e", lambda row, seed: "x", ROWS, project="p")
    assert list(platform.evaluations.runs.list(project="p")) == []
    assert platform.evaluations.run("e", str, ROWS, {"most": max}, project="p").run.state is RunState.COMPLETED


@pytest.mark.parametrize("seed", ["7", 7.0, True, 2**63])
def test_what_is_not_a_seed_is_refused_also_for_functions(platform: Platform, seed: Any) -> None:
    for model in ("echo", lambda row: "yes"):
        with pytest.raises(InvalidInput, match="seed: must be a whole number from -"):
            platform.evaluations.run("e", model, ROWS, project="p", seed=seed)


def test_a_rescoring_takes_no_other_option(platform: Platform) -> None:
    run = platform.evaluations.run("e", "echo", ROWS, project="p").run
    with pytest.raises(TypeError, match=r"rescore\(\) got an unexpected keyword argument 'temperature'"):
        platform.evaluations.rescore(run.id, "contains", temperature=1)  # type: ignore[call-arg]


def test_a_run_that_names_its_model_continues_with_no_other(platform: Platform) -> None:
    def interrupted(output: str, row: object) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        platform.evaluations.run("e", "echo", ROWS, {"s": interrupted}, project="p")
    (run,) = platform.evaluations.runs.list(project="p")
    with pytest.raises(InvalidInput, match="model: the run needs no function"):
        platform.evaluations.resume(run.id, model=lambda row: "x", scorers={"s": interrupted})


def test_a_scorer_that_was_published_may_be_given_itself(platform: Platform) -> None:
    scorer = platform.evaluations.objects.publish("scorer", "right", {"scorer": {"type": "exact_match"}}, project="p")
    assert platform.evaluations.run("e", "echo", ROWS, scorer, project="p").score == 1.0


@pytest.mark.parametrize(
    "scorer",
    [
        "exact_match",
        "numeric",
        "json_equal",
        {"type": "llm_judge", "model": "echo", "prompt": "Is {expected} {output}?"},
    ],
)
def test_a_row_without_the_field_that_a_scorer_reads_is_an_error_of_that_row(platform: Platform, scorer: Any) -> None:
    rows = [{"prompt": "1"}, {"prompt": "2", "expected": 2}]
    result = platform.evaluations.run("e", "echo", rows, scorer, project="p")
    assert [row.detail for row in result.errors] == ["invalid_input: row.expected: is missing, and the scorer reads it"]


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("kind", ["rows", "file", "dataset"])
def test_a_judge_that_is_asked_about_a_field_of_no_row_is_refused_before_the_model_is_asked(
    platform: Platform, tmp_path: Path, kind: str, whole: bool
) -> None:
    judge = {"type": "llm_judge", "model": "echo", "prompt": "Is {outptu} {expected}?"}
    scorers: Any = {"sure": judge if whole else {"type": "combined", "scorers": {"a": judge}, "formula": "a"}}
    rows: Any = [{"prompt": "1"}, {"prompt": "2", "expected": "2"}]
    if kind == "file":
        (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
        rows = tmp_path / "rows.jsonl"
    if kind == "dataset":
        rows = platform.evaluations.objects.publish("dataset", "quest", {}, rows, project="p")
    with pytest.raises(InvalidInput, match=r"scorers\.sure\.prompt: asks for \{outptu\}.* did you mean 'output'\?"):
        platform.evaluations.run("e", "echo", rows, scorers, project="p")
    assert [*platform.usage.list()] == [*platform.evaluations.runs.list(project="p")] == []


def test_where_every_row_fails_the_report_says_why(platform: Platform) -> None:
    result = platform.evaluations.run("e", "echo", [{"prompt": [], "expected": "1"}], project="p")
    assert "model: invalid_input: messages: must not be empty" in str(result)


def test_a_run_that_failed_is_called_a_run(platform: Platform) -> None:
    with pytest.raises(JobFailed, match=r"^evaluation run \S+ failed: 1 of 1 rows failed, more than the error budget"):
        platform.evaluations.run("e", "echo", [{"prompt": [], "expected": "1"}], project="p", error_budget=0)
