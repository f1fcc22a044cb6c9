"""Two runs compared, and the rows of a run: what clients send and receive, and the routes (specification 4.5)."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Literal, cast, get_args

import attrs

from modelyard import flow
from modelyard.domain.evaluation.metrics import EXPECTED, PATTERN, MetricKind
from modelyard.domain.evaluation.run import Source
from modelyard.errors import InvalidInput
from modelyard.flow import Flow
from modelyard.formats.constraints import Length, Matching
from modelyard.http.evaluations.route import body_of, evaluation_route, namespace_of, problems_in_request
from modelyard.http.message import Response, answering, constant, each, json_response
from modelyard.http.route import Body, Parameter, RouteCall
from modelyard.report.evaluations.export import Format


@attrs.frozen
class ComparisonRequest:
    """The body that compares two runs, by their ids.

    `reducer` makes one value of the trials of a row, `cluster_by` names an input that rows which go together have in
    common, `confidence` is that of the intervals, and `lower_is_better` names metrics of which lower values are better.
    """

    baseline: str
    candidate: str
    reducer: str = attrs.field(default="mean", validator=Matching(PATTERN, EXPECTED))
    cluster_by: str | None = None
    confidence: float = 0.95
    lower_is_better: tuple[str, ...] = attrs.field(default=(), validator=Length(0, 200))


@attrs.frozen
class PairedObject:
    """Paired values, candidate minus baseline. `interval` is its two ends; null for fewer than two rows."""

    count: int
    wins: int
    ties: int
    losses: int
    difference: float | None
    interval: Sequence[float] | None
    p: float | None


@attrs.frozen
class MetricComparisonObject:
    """One metric: over the rows that have a value in both runs, and over all rows, a missing value counted as worst.

    `corrected_p` is corrected for the number of metrics (Holm).
    """

    scorer: str
    path: Sequence[str]
    name: str
    value_type: MetricKind
    verdict: Literal["better", "worse", "no difference shown", "nothing to compare"]
    baseline: float | None
    candidate: float | None
    paired: PairedObject
    corrected_p: float | None
    all_rows: PairedObject
    only_baseline: int
    only_candidate: int
    neither: int
    rows_needed: int | None
    lower_is_better: bool


@attrs.frozen
class ComparisonObject:
    """A candidate compared with a baseline. `not_compared` gives the reason for each metric that cannot be compared;
    `remarks` are such as a difference that is corrected by what people say."""

    rows: int
    only_baseline: int
    only_candidate: int
    baseline_failed: int
    candidate_failed: int
    reducer: str
    confidence: float
    metrics: Sequence[MetricComparisonObject]
    not_compared: Mapping[str, str]
    remarks: Sequence[str]


_show_paired = answering(
    PairedObject, interval=lambda found: None if found.interval is None else (found.interval.low, found.interval.high)
)
_show_metric = answering(
    MetricComparisonObject,
    scorer="metric.scorer",
    path="metric.path",
    value_type="kind",
    paired=lambda one: _show_paired(one.paired),
    corrected_p="corrected",
    all_rows=lambda one: _show_paired(one.all_rows),
)
show_comparison = answering(
    ComparisonObject,
    reducer="options.reducer",
    confidence="options.confidence",
    metrics=each(_show_metric, "metrics"),
    not_compared="uncompared",
    remarks=constant(()),
)


@attrs.frozen
class ExportedPrediction:
    """A prediction with its scores. `scores` are objects with `scorer`, `outcome` (scored, unscored, scorer_errors or
    model_errors), `value`, `error`, `prompt_tokens`, `completion_tokens` and `judge_cost`.
    """

    row_digest: str
    index: int | None
    trial: int
    prediction_id: str
    model: str
    inputs: Mapping[str, Any]
    output: Any
    error: str | None
    latency: float | None
    prompt_tokens: int | None
    completion_tokens: int | None
    cost: str | None
    price: Mapping[str, Any]
    checkpoint_step: int | None
    source: Source
    copied_from: str | None
    possibly_repeated: int
    scores: Sequence[Mapping[str, Any]]


# ---- routes


_MEDIA = {"jsonl": "application/jsonl", "csv": "text/csv; charset=utf-8"}


def compare_evaluation_runs(call: RouteCall) -> Flow[Response]:
    """Compare two runs, row by row."""
    namespace = namespace_of(call)
    body = body_of(ComparisonRequest, call)

    def answer() -> Response:
        with problems_in_request():
            report = call.platform.evaluations.compare(
                baseline=body.baseline,
                candidate=body.candidate,
                reducer=body.reducer,
                cluster_by=body.cluster_by,
                confidence=body.confidence,
                lower_is_better=body.lower_is_better,
                **namespace,
            )
        return json_response(attrs.evolve(show_comparison(report.comparison), remarks=report.remarks))

    return cast(Response, (yield flow.Call(answer, threads=call.threads)))


def export_evaluation_run(call: RouteCall) -> Flow[Response]:
    """Read every prediction of a run with its scores, as JSON Lines or CSV."""
    namespace = namespace_of(call)
    wanted = _format(call)

    def answer() -> Response:
        pieces = call.platform.evaluations.export(call.params["run_id"], wanted, **namespace)
        name = f'attachment; filename="evaluation-run.{wanted}"'
        return Response(200, [("content-type", _MEDIA[wanted]), ("content-disposition", name)], _started(pieces))

    return cast(Response, (yield flow.Call(answer, threads=call.threads)))


def _started(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Read the first piece, so that an error in it fails the request."""
    return chain([next(pieces, b"")], pieces)


def _format(call: RouteCall) -> Format:
    named = call.one("format") or "jsonl"
    for known in get_args(Format):
        if named == known:
            return cast(Format, known)
    raise InvalidInput.at("query", "format", msg="must be jsonl or csv", type="literal_error")


_FORMAT = Parameter("format", {"enum": list(get_args(Format))}, "The format of the rows; jsonl when absent.")

ROUTES = (
    evaluation_route(
        "POST",
        "/eval_results/compare",
        compare_evaluation_runs,
        body=Body.CONTROL,
        request=ComparisonRequest,
        response=ComparisonObject,
    ),
    evaluation_route(
        "GET",
        "/evaluation_runs/{run_id}/export",
        export_evaluation_run,
        query=(_FORMAT,),
        response=ExportedPrediction,
        media="application/jsonl",
    ),
)
