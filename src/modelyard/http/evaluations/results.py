"""Results of evaluation runs joined by row: what clients send and receive, and the route."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from itertools import islice
from typing import Any, Literal

import attrs

from modelyard.domain.evaluation.filters import Expression
from modelyard.domain.evaluation.metrics import FullScoredPrediction
from modelyard.domain.evaluation.results import LeafStats, QueryOptions, ResultRow, RunSummary, Sort, tokens_of
from modelyard.domain.evaluation.run import EvaluationRun
from modelyard.errors import InvalidInput, Problem
from modelyard.formats.constraints import Length, Within
from modelyard.formats.filter_expressions import parse_query
from modelyard.http.evaluations.route import GenaiSpanRef, body_of, evaluation_route, namespace_of, problems_in_request
from modelyard.http.message import JSON_HEADER, Response, dump, json_response
from modelyard.http.response_bodies import FIRST_LINES
from modelyard.http.route import Body, Route, RouteCall
from modelyard.platform.evaluations.query import Results

# ---- what comes in -----------------------------------------------------------------------------------------------


@attrs.frozen
class EvalResultsFilter:
    """A condition, `{"$expr": ...}`, on the trials of one run or of any."""

    query: Mapping[str, Any]
    evaluation_call_id: str | None = None


@attrs.frozen
class EvalResultsSortBy:
    """An order by a field, or by how much the runs differ in it."""

    field: str = attrs.field(validator=Length(1, 1000))
    direction: Literal["asc", "desc"]
    evaluation_call_id: str | None = None
    mode: Literal["value", "difference"] = "value"


@attrs.frozen
class EvalResultsQuery:
    """Which rows of which runs to show; a run may be named in either list of ids."""

    evaluation_call_ids: tuple[str, ...] = attrs.field(default=(), validator=Length(0, 1000))
    evaluation_run_ids: tuple[str, ...] = attrs.field(default=(), validator=Length(0, 1000))
    require_intersection: bool = False
    summary_require_intersection: bool | None = None
    include_rows: bool = True
    include_raw_data_rows: bool = False
    resolve_row_refs: bool = False
    include_summary: bool = False
    include_costs: bool = False
    include_predict_and_score_children: bool = True
    sort_by: tuple[EvalResultsSortBy, ...] = attrs.field(default=(), validator=Length(0, 20))
    filters: tuple[EvalResultsFilter, ...] = attrs.field(default=(), validator=Length(0, 100))
    filter_logic_operator: Literal["and", "or"] = "or"
    limit: int | None = attrs.field(default=None, validator=Within(0))
    offset: int = attrs.field(default=0, validator=Within(0))

    def __attrs_post_init__(self) -> None:
        if not self.evaluation_call_ids and not self.evaluation_run_ids:
            raise ValueError("must name at least one run in evaluation_run_ids or evaluation_call_ids")


def query_options(body: EvalResultsQuery) -> QueryOptions:
    return {
        "where": _conditions(body.filters),
        "match": "all" if body.filter_logic_operator == "and" else "any",
        "sort": [
            Sort(sort.field, sort.direction == "desc", sort.evaluation_call_id, sort.mode == "difference")
            for sort in body.sort_by
        ],
        "in_all_runs": body.require_intersection,
        "summary_in_all_runs": body.summary_require_intersection,
        "limit": body.limit,
        "offset": body.offset,
        "summarise": body.include_summary,
    }


def _conditions(given: Sequence[EvalResultsFilter]) -> dict[str | None, Expression]:
    found: dict[str | None, Expression] = {}
    problems: list[Problem] = []
    for at, one in enumerate(given):
        run_id = one.evaluation_call_id
        try:
            condition = parse_query(one.query)
            found[run_id] = found[run_id] & condition if run_id in found else condition
        except InvalidInput as wrong:
            problems += wrong.below("body", "filters", at, "query").problems
    if problems:
        raise InvalidInput(problems)
    return found


# ---- what goes out -----------------------------------------------------------------------------------------------


@attrs.define
class EvalResultsTrial:
    """One trial. `scores` and `scorer_call_ids` are by the name of the scorer.

    `error` and `scorer_errors` are our additions: why there is no output, or no score.
    """

    predict_and_score_call_id: str
    predict_call_id: str | None
    model_output: object
    scores: Mapping[str, object]
    model_latency_seconds: float | None
    total_tokens: int | None
    total_cost: float | None
    scorer_call_ids: Mapping[str, str]
    genai_span_ref: tuple[GenaiSpanRef, ...] | None
    error: str | None
    scorer_errors: Mapping[str, str]


@attrs.define
class EvalResultsRowEvaluation:
    """A row in one run."""

    evaluation_call_id: str
    trials: tuple[EvalResultsTrial, ...]


@attrs.define
class EvalResultsRow:
    """A row in the runs that have it."""

    row_digest: str
    raw_data_row: object
    evaluations: tuple[EvalResultsRowEvaluation, ...]


@attrs.frozen
class EvalResultsEvaluation:
    """The summary of a run."""

    evaluation_call_id: str
    trial_count: int
    scorer_stats: tuple[LeafStats, ...]
    predict_total_tokens: int | None
    predict_total_cost: float | None
    evaluation_ref: str
    model_ref: str
    display_name: None
    trace_id: str
    started_at: datetime


@attrs.frozen
class EvalResultsSummary:
    """The summaries of the runs, over the rows that were counted."""

    row_count: int
    evaluations: tuple[EvalResultsEvaluation, ...]


@attrs.frozen
class EvalResults:
    """A page of rows; `total_rows` is how many there are in all. `warnings` name runs that do not exist."""

    rows: tuple[EvalResultsRow, ...]
    total_rows: int
    summary: EvalResultsSummary | None
    warnings: tuple[str, ...]


# ---- how it is made ----------------------------------------------------------------------------------------------

Names = Mapping[str, Mapping[str, str]]


def show_row(row: ResultRow[FullScoredPrediction], names: Names, body: EvalResultsQuery) -> EvalResultsRow:
    evaluations = (
        EvalResultsRowEvaluation(run_id, tuple(_show_trial(trial, names[run_id], body) for trial in trials))
        for run_id, trials in row.runs.items()
    )
    return EvalResultsRow(row.digest, row.inputs if body.include_raw_data_rows else None, tuple(evaluations))


def _show_trial(trial: FullScoredPrediction, names: Mapping[str, str], body: EvalResultsQuery) -> EvalResultsTrial:
    prediction, scores = trial
    children = body.include_predict_and_score_children
    # The scorer of a score that came after the names were read goes by its reference.
    named = [(names.get(score.scorer, score.scorer), score) for score in scores]
    return EvalResultsTrial(
        predict_and_score_call_id=prediction.id,
        predict_call_id=prediction.id if children else None,
        model_output=prediction.output.get("value"),
        scores={name: score.value["value"] for name, score in named if score.value},
        model_latency_seconds=prediction.latency,
        total_tokens=tokens_of(trial),
        total_cost=_usd(prediction.cost) if body.include_costs else None,
        scorer_call_ids={name: score.id for name, score in named} if children else {},
        genai_span_ref=prediction.span.get("genai_span_ref"),
        error=prediction.error,
        scorer_errors={name: score.error for name, score in named if score.error is not None},
    )


def show_summary(summary: RunSummary, run: EvaluationRun, include_costs: bool) -> EvalResultsEvaluation:
    return EvalResultsEvaluation(
        evaluation_call_id=run.id,
        trial_count=summary.trial_count,
        scorer_stats=summary.stats,
        predict_total_tokens=summary.tokens,
        predict_total_cost=_usd(summary.cost) if include_costs else None,
        evaluation_ref=run.evaluation,
        model_ref=run.model,
        display_name=None,
        trace_id=run.id,
        started_at=run.started_at,
    )


def _usd(cost: Decimal | None) -> float | None:
    return None if cost is None else float(cost)


# ---- routes


def query_evaluation_results(call: RouteCall) -> Response:
    """Show the rows of runs, joined by their digests: filtered, sorted, in pages and summed up."""
    namespace = namespace_of(call)
    body = body_of(EvalResultsQuery, call)
    runs, options = (*body.evaluation_call_ids, *body.evaluation_run_ids), query_options(body)
    with problems_in_request():
        results = call.platform.evaluations.results(runs, check_names=False, **namespace, **options)
    shown = (show_row(row, results.names, body) for row in (results.rows if body.include_rows else ()))
    first = tuple(islice(shown, FIRST_LINES))
    whole = _whole(results, first if len(first) < FIRST_LINES else (), body)
    if len(first) < FIRST_LINES:
        return json_response(whole)
    return Response(200, [JSON_HEADER], _stream(first, shown, dump(whole)))


def _whole(results: Results, rows: tuple[EvalResultsRow, ...], body: EvalResultsQuery) -> EvalResults:
    summary = None
    if body.include_summary:
        summaries = (show_summary(one, results.runs[one.run_id], body.include_costs) for one in results.summary)
        summary = EvalResultsSummary(results.summary_rows, tuple(summaries))
    missing = (f"there is no evaluation run {run_id!r} here" for run_id in results.missing)
    return EvalResults(rows, results.total_rows, summary, (*missing, *map(str, results.unknown)))


def _stream(first: tuple[EvalResultsRow, ...], others: Iterator[EvalResultsRow], whole: bytes) -> Iterator[bytes]:
    begin, _, end = whole.partition(b"[]")
    yield begin + b"[" + b",".join(map(dump, first))
    while some := list(islice(others, FIRST_LINES)):
        yield b"," + b",".join(map(dump, some))
    yield b"]" + end


ROUTES: tuple[Route, ...] = (
    evaluation_route(
        "POST",
        "/eval_results/query",
        query_evaluation_results,
        body=Body.CONTROL,
        request=EvalResultsQuery,
        response=EvalResults,
    ),
)
