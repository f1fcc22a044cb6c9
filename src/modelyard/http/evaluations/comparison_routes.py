"""The routes that compare runs and export their rows (specification 4.5)."""

from collections.abc import Iterator
from itertools import chain
from typing import cast, get_args

from modelyard import flow
from modelyard.errors import InvalidInput
from modelyard.flow import Flow
from modelyard.formats.converter import structure
from modelyard.http.evaluations.comparison_schemas import (
    ComparisonObject,
    ComparisonRequest,
    ExportedPrediction,
    show_comparison,
)
from modelyard.http.evaluations.route import evaluation_route, namespace_of, problems_in_request
from modelyard.http.message import Response, json_response
from modelyard.http.route import Body, Parameter, RouteCall
from modelyard.report.evaluations.export import Format

_MEDIA = {"jsonl": "application/jsonl", "csv": "text/csv; charset=utf-8"}


def compare_runs(call: RouteCall) -> Flow[Response]:
    """Compare two runs, row by row."""
    namespace = namespace_of(call)
    body = structure(ComparisonRequest, call.body, "body")

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
        return json_response(show_comparison(report.comparison))

    return cast(Response, (yield flow.Call(answer, threads=call.threads)))


def export_run(call: RouteCall) -> Flow[Response]:
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
        compare_runs,
        body=Body.CONTROL,
        request=ComparisonRequest,
        response=ComparisonObject,
    ),
    evaluation_route(
        "GET",
        "/evaluation_runs/{run_id}/export",
        export_run,
        query=(_FORMAT,),
        response=ExportedPrediction,
        media="application/jsonl",
    ),
)
