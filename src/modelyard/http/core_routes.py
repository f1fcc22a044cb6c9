"""The routes of the core's interfaces, but for those of chat and the catalogue, which most processes need alone."""

from modelyard.http.evaluations import comparison, predictions, results, runs
from modelyard.http.evaluations import jobs as evaluation_jobs
from modelyard.http.evaluations import object_routes as objects
from modelyard.http.health import routes as health
from modelyard.http.keys import routes as keys
from modelyard.http.models import routes as models
from modelyard.http.route import Route
from modelyard.http.training import routes as training
from modelyard.http.usage import routes as usage

ROUTES: tuple[Route, ...] = (
    *models.ROUTES,
    *training.ROUTES,
    *runs.ROUTES,
    *results.ROUTES,
    *comparison.ROUTES,
    *evaluation_jobs.ROUTES,
    *predictions.ROUTES,
    *objects.ROUTES,
    *health.ROUTES,
    *keys.ROUTES,
    *usage.ROUTES,
)
