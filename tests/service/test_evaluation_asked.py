"""What the engine is given and says of it: evaluations by any of their names, errors that tell what to do."""

from collections.abc import Iterator
from typing import Any

import pytest

from modelyard import Platform, open_platform
from modelyard.domain.versioned import ObjectVersion
from modelyard.errors import InvalidInput, JobFailed, NotFound

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


def test_what_is_no_evaluation_is_refused_in_words_that_say_what_to_pass(
    platform: Platform, quiz: ObjectVersion
) -> None:
    (dataset,) = platform.evaluations.objects.list("dataset", project="p")
    for wrong in (None, 5, ["the_quiz"], "", "a:b:c", "weave:///x", "weave:///e/p/op/x", dataset):
        with pytest.raises(InvalidInput, match="must be a name such as quiz or quiz:v0, a reference such as") as told:
            platform.evaluations.run(wrong, "echo", project="p")  # type: ignore[call-overload]
        assert told.value.problems[0].loc == ("evaluation",)


def test_an_evaluation_that_was_never_published_needs_rows(platform: Platform) -> None:
    with pytest.raises(NotFound, match="not found; publish it, or give rows and scorers"):
        platform.evaluations.run("unknown", "echo", project="p")
    assert platform.evaluations.run("unknown", "echo", ROWS, project="p").score == 1.0


@pytest.mark.parametrize("wrong", [None, 5, [], [5], {"a": 1}, b"echo"])
def test_what_is_no_model_is_refused_in_words_that_say_what_to_pass(platform: Platform, wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="model: must be a name, a reference"):
        platform.evaluations.run("e", wrong, ROWS, project="p")


def test_what_are_no_rows_is_refused(platform: Platform) -> None:
    with pytest.raises(InvalidInput, match="rows: must be mappings"):
        platform.evaluations.run("e", "echo", 5, project="p")  # type: ignore[call-overload]


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
def test_a_row_without_the_field_that_a_scorer_reads_is_told_so(platform: Platform, scorer: Any) -> None:
    result = platform.evaluations.run("e", "echo", [{"prompt": "1"}], scorer, project="p")
    assert [row.detail for row in result.errors] == [
        "invalid_input: row.expected: is not there, and the scorer reads it"
    ]


def test_where_every_row_fails_the_report_says_why(platform: Platform) -> None:
    result = platform.evaluations.run("e", "echo", [{"question": "1"}], project="p")
    assert "model: invalid_input: messages: a row needs messages, or a prompt" in str(result)


def test_a_run_that_failed_is_called_a_run(platform: Platform) -> None:
    with pytest.raises(JobFailed, match=r"^evaluation run \S+ failed: 1 of 1 rows failed, more than the error budget"):
        platform.evaluations.run("e", "echo", [{"question": "1"}], project="p", error_budget=0)
