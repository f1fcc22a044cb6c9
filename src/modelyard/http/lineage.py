"""The route of an evaluation run's lineage."""

from modelyard.http.evaluation import RUNS
from modelyard.http.evaluation_route import evaluation_route, place_of
from modelyard.http.message import Response, json_response
from modelyard.http.route import Call, Route
from modelyard.wire.lineage import RunLineageObject, lineage_object


def read_lineage(call: Call) -> Response:
    """Show what a run was made from, what was made of it, and the checkpoint that it judged."""
    return json_response(lineage_object(call.platform.evaluations.lineage(call.params["run_id"], **place_of(call))))


ROUTES: tuple[Route, ...] = (
    evaluation_route("GET", RUNS + "/{run_id}/lineage", read_lineage, response=RunLineageObject),
)
