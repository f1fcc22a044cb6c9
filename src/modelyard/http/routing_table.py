"""Every route of every interface, and the tables that find them.

A capability of HTTP declares its own routes; this is the one module that knows all of them.
"""

from functools import cache

from modelyard.http.catalogue import routes as catalogue
from modelyard.http.chat import routes as completion
from modelyard.http.chat import stored_routes as stored
from modelyard.http.evaluations import comparison, predictions, results, runs
from modelyard.http.evaluations import jobs as evaluation_jobs
from modelyard.http.evaluations import object_routes as objects
from modelyard.http.health import routes as health
from modelyard.http.keys import routes as keys
from modelyard.http.models import routes as models
from modelyard.http.openapi import document_route
from modelyard.http.route import Interface, Route
from modelyard.http.router import HttpRouter
from modelyard.http.training import routes as training
from modelyard.http.uploads import routes as upload
from modelyard.http.usage import routes as usage


def routes() -> tuple[Route, ...]:
    """Return the routes of all interfaces."""
    trained = (*models.ROUTES, *training.ROUTES)
    judged = (*runs.ROUTES, *results.ROUTES, *comparison.ROUTES)
    judging = (*judged, *evaluation_jobs.ROUTES, *predictions.ROUTES, *objects.ROUTES)
    base = (*catalogue.ROUTES, *completion.ROUTES, *stored.ROUTES, *trained, *judging, *health.ROUTES)
    operations = (*keys.ROUTES, *usage.ROUTES)
    return (*base, *upload.ROUTES, *operations)


@cache
def routing_table(interfaces: frozenset[Interface]) -> HttpRouter:
    """Return the table of these interfaces.

    It is never changed, so that all endpoints of a process may share it: a test opens many.
    """
    mounted = [route for route in routes() if route.interface in interfaces]
    return HttpRouter([*mounted, document_route(mounted)])
