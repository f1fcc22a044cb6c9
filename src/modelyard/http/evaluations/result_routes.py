"""The route of results joined by row (specification 4.5)."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from modelyard.formats.converter import structure
from modelyard.http.evaluations.common import FIRST_LINES, evaluation_route, place_of
from modelyard.http.evaluations.result_schemas import (
    EvalResults,
    EvalResultsQuery,
    result_query,
    row_object,
    summary_object,
)
from modelyard.http.evaluations.run_schemas import wire_places
from modelyard.http.message import JSON_HEADER, Response, dump, json_response
from modelyard.http.route import Body, Call, Route
from modelyard.platform.evaluations.query import Results


def query_results(call: Call) -> Response:
    """Show the rows of runs, joined by their digests: filtered, sorted, in pages and in short."""
    place = place_of(call)
    body = structure(EvalResultsQuery, call.body, "body")
    query = result_query(body)
    with wire_places():
        results = call.platform.evaluations.results(query, **place)
    rest = _rest(results, body)
    if not body.include_rows:
        return json_response({"rows": [], **rest})
    shown = (row_object(row, results.names, body) for row in results.rows)
    first = list(islice(shown, FIRST_LINES))
    if len(first) < FIRST_LINES:
        return json_response({"rows": first, **rest})
    return Response(200, [JSON_HEADER], _stream(first, shown, rest))


def _rest(results: Results, body: EvalResultsQuery) -> Mapping[str, Any]:
    summary = None
    if body.include_summary:
        summary = summary_object(results.summary, results.summary_rows, results.runs, body)
    warnings = [f"there is no evaluation run {run_id!r} here" for run_id in results.missing]
    return {"total_rows": results.total_rows, "summary": summary, "warnings": warnings}


def _stream(
    first: list[Mapping[str, Any]], others: Iterator[Mapping[str, Any]], rest: Mapping[str, Any]
) -> Iterator[bytes]:
    """The same object piece by piece."""
    yield b'{"rows":[' + b",".join(map(dump, first))
    while some := list(islice(others, FIRST_LINES)):
        yield b"," + b",".join(map(dump, some))
    yield b"]," + dump(rest)[1:]


ROUTES: tuple[Route, ...] = (
    evaluation_route(
        "POST", "/eval_results/query", query_results, body=Body.CONTROL, request=EvalResultsQuery, response=EvalResults
    ),
)
