"""The route of results joined by row (specification 4.5)."""

from collections.abc import Iterator
from itertools import islice

from modelyard.formats.converter import structure
from modelyard.http.evaluations.result_schemas import (
    EvalResults,
    EvalResultsQuery,
    EvalResultsRow,
    EvalResultsSummary,
    query_options,
    show_row,
    show_summary,
)
from modelyard.http.evaluations.route import FIRST_LINES, evaluation_route, namespace_of, problems_in_request
from modelyard.http.message import JSON_HEADER, Response, dump, json_response
from modelyard.http.route import Body, Route, RouteCall
from modelyard.platform.evaluations.query import Results


def query_results(call: RouteCall) -> Response:
    """Show the rows of runs, joined by their digests: filtered, sorted, in pages and summed up."""
    namespace = namespace_of(call)
    body = structure(EvalResultsQuery, call.body, "body")
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
    """Write `whole`, which has no rows, piece by piece with these."""
    begin, _, end = whole.partition(b"[]")
    yield begin + b"[" + b",".join(map(dump, first))
    while some := list(islice(others, FIRST_LINES)):
        yield b"," + b",".join(map(dump, some))
    yield b"]" + end


ROUTES: tuple[Route, ...] = (
    evaluation_route(
        "POST", "/eval_results/query", query_results, body=Body.CONTROL, request=EvalResultsQuery, response=EvalResults
    ),
)
