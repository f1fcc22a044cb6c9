"""Evaluation runs on the wire: queries in, objects out, problems at the places where a client put the values."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from each import each_case
from modelyard.domain.evaluation.run import EvaluationRun, RunState
from modelyard.errors import InvalidInput, Problem
from modelyard.formats.converter import structure, unstructure
from modelyard.http.evaluations.object_schemas import dataset_request, dataset_rows
from modelyard.http.evaluations.route import ListingQuery, problems_in_request
from modelyard.http.evaluations.runs import (
    EvaluationRunCreate,
    EvaluationRunFinish,
    EvaluationRunObject,
    run_filters,
    show_run,
)
from modelyard.http.message import dump

CAPTURES = Path(__file__).parents[2] / "captures" / "evaluation"
STARTED = datetime(2026, 11, 20, 9, 13, 22, 414959, tzinfo=UTC)
EVALUATION = "weave:///acme/capture/object/sample_eval:" + "E" * 43
MODEL = "weave:///acme/capture/object/sample_model:" + "M" * 43
RUN = EvaluationRun("01a1f83b-5cee-76b3-a1bf-b3e469fd7a9d", "acme", "capture", EVALUATION, MODEL, STARTED)


def recorded(name: str) -> Any:
    return json.loads((CAPTURES / name).read_text(encoding="utf-8"))["response"]["body"]


def test_a_run_has_every_member_that_the_public_client_was_recorded_to_read() -> None:
    theirs, ours = recorded("get-evaluation_runs-id-200.json"), unstructure(show_run(RUN))
    assert theirs.keys() <= ours.keys()
    del theirs["summary"]  # the recorded server keeps words of its own in it
    assert {name: ours[name] for name in theirs} == theirs


def test_the_members_of_a_run_are_those_that_the_api_description_declares() -> None:
    assert list(unstructure(show_run(RUN))) == [field.name for field in attrs.fields(EvaluationRunObject)]


def test_a_finished_run_is_plain_json_to_its_depth() -> None:
    summary = MappingProxyType({"per": MappingProxyType({"class": (1, MappingProxyType({"a": None}))})})
    run = attrs.evolve(RUN, state=RunState.COMPLETED, finished_at=STARTED.replace(microsecond=0), summary=summary)
    shown = json.loads(dump(show_run(run)))
    assert shown["summary"] == {"per": {"class": [1, {"a": None}]}}
    assert (shown["status"], shown["finished_at"]) == ("completed", "2026-11-20T09:13:22.000000Z")


def test_a_cancelled_run_reads_as_failed_and_says_more_to_who_asks() -> None:
    shown = unstructure(show_run(attrs.evolve(RUN, state=RunState.CANCELLED, reason="not needed")))
    assert (shown["status"], shown["state"], shown["reason"]) == ("failed", "cancelled", "not needed")


# ---- queries ----


def requested(parameters: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """What a listing of runs takes from its query. Raises `InvalidInput`."""
    query = ListingQuery(parameters)
    filters = run_filters(query)
    query.check()
    return {**filters, "limit": query.limit, "offset": query.offset, "after": query.after}


def test_a_listing_without_a_query_keeps_all() -> None:
    empty = dict.fromkeys(("evaluations", "models", "ids", "sources"), ())
    assert requested({}) == {**empty, "limit": None, "offset": 0, "after": None}


def test_array_parameters_repeat_are_joined_or_carry_their_older_names() -> None:
    query = {
        "evaluations": ("a", "b,c"),
        "evaluation_refs": ("c,d",),
        "model_refs": ("m",),
        "evaluation_run_ids": ("1,,2", ""),
        "source_evaluation_run_ids": ("s", "s"),
        "limit": ("10",),
        "offset": ("0020",),
        "after": ("7",),
        "unknown": ("x",),
    }
    filters = {"evaluations": ("a", "b", "c", "d"), "models": ("m",), "ids": ("1", "2"), "sources": ("s",)}
    assert requested(query) == {**filters, "limit": 10, "offset": 20, "after": "7"}


@each_case("text", ["", "x", "1.0", "1e3", "+1", " 1", "٣", "1_000", "9" * 16, "0x1", "-"])
def test_a_number_that_is_none_is_named(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        requested({"limit": (text,)})
    assert [(p.loc, p.type) for p in refused.value.problems] == [(("query", "limit"), "int_parsing")]


def test_every_wrong_parameter_is_named_at_once() -> None:
    ids = tuple(str(number) for number in range(1001))
    with pytest.raises(InvalidInput) as refused:
        requested({"limit": ("-1",), "offset": ("1", "2"), "evaluation_run_ids": (",".join(ids),)})
    assert [(p.loc[1], p.type) for p in refused.value.problems] == [
        ("limit", "greater_than_equal"),
        ("offset", "int_parsing"),
        ("evaluation_run_ids", "too_long"),
    ]


def test_no_limit_is_not_the_limit_zero() -> None:
    assert requested({"limit": ("0",)})["limit"] == 0
    assert requested({})["limit"] is None


@given(st.dictionaries(st.sampled_from(["limit", "offset", "evaluations"]), st.lists(st.text()).map(tuple)))
def test_no_query_is_worse_than_refused(query: dict[str, tuple[str, ...]]) -> None:
    with suppress(InvalidInput):
        assert requested(query)["offset"] >= 0


# ---- bodies ----


@pytest.mark.parametrize("name", ["", "-2", "-3"])
def test_the_recorded_refusals_are_ours_place_by_place_without_the_input(name: str) -> None:
    capture = json.loads((CAPTURES / f"post-evaluation_runs-422{name}.json").read_text(encoding="utf-8"))
    with pytest.raises(InvalidInput) as refused:
        structure(EvaluationRunCreate, capture["request"]["body"], "body")
    theirs = [(tuple(problem["loc"]), problem["type"]) for problem in capture["response"]["body"]["detail"]]
    assert [(problem.loc, problem.type) for problem in refused.value.problems] == theirs


def test_null_is_absent_and_unknown_members_are_ignored() -> None:
    body = {"evaluation": "e", "model": "m", "source_evaluation_run_id": None, "entity": "acme", "project": 7}
    assert structure(EvaluationRunCreate, body, "body") == EvaluationRunCreate("e", "m")
    assert structure(EvaluationRunFinish, {"summary": None}, "body").summary is None


@each_case("summary", [[], "text", 5, True])
def test_a_summary_is_an_object(summary: Any) -> None:
    with pytest.raises(InvalidInput) as refused:
        structure(EvaluationRunFinish, {"summary": summary}, "body")
    assert refused.value.problems[0].loc == ("body", "summary")


def test_problems_are_reported_where_the_client_put_the_values() -> None:
    with pytest.raises(InvalidInput) as refused, problems_in_request():
        raise InvalidInput([Problem(("project",), "no"), Problem(("model",), "no", "reference"), Problem((), "no")])
    assert [(problem.loc, problem.type) for problem in refused.value.problems] == [
        (("path", "project"), "value_error"),
        (("body", "model"), "reference"),
        (("body",), "value_error"),
    ]


def test_the_rows_of_a_dataset_are_read_one_at_a_time() -> None:
    pieces = [b'{"name": "x", "rows": [', *(b'{"n": %d}, ' % number for number in range(500)), b'{"n": 500}], "z": 1}']
    taken = 0

    def chunks() -> Iterator[bytes]:
        nonlocal taken
        for piece in pieces:
            taken += 1
            yield piece

    for number, row in enumerate(dataset_rows(chunks())):
        assert row == {"n": number}
        assert taken <= number + 4
    request = dataset_request(iter(pieces))
    assert (request.name, request.rows, request.description) == ("x", (), None)
