"""Every page and action of the dashboard, and what answers it."""

from collections.abc import Iterable, Mapping

from modelyard.part import Part
from modelyard.parts.dashboard.pages import catalogue, home, jobs, keys, lineage, models, rows, runs, usage
from modelyard.parts.dashboard.view import Handler

ROUTES: tuple[tuple[str, tuple[str, ...], Handler], ...] = (
    ("GET", ("",), home.home),
    ("GET", ("jobs",), jobs.listed),
    ("GET", ("jobs", "{job}"), jobs.job),
    ("POST", ("jobs", "{job}", "cancel"), jobs.cancel),
    ("GET", ("models",), models.listed),
    ("GET", ("models", "{model}"), models.model),
    ("GET", ("models", "{model}", "{step}"), lineage.checkpoint),
    ("GET", ("models", "{model}", "{step}", "{file}"), models.download),
    ("POST", ("models", "{model}", "promote"), models.promote),
    ("POST", ("models", "{model}", "rollback"), models.roll_back),
    ("GET", ("runs",), runs.listed),
    ("GET", ("runs", "{run}"), runs.run),
    ("GET", ("runs", "{run}", "rows"), rows.rows),
    ("GET", ("compare",), runs.compared),
    ("GET", ("usage",), usage.usage),
    ("GET", ("keys",), keys.listed),
    ("POST", ("keys",), keys.create),
    ("POST", ("keys", "{key}", "revoke"), keys.revoke),
    ("GET", ("catalogue",), catalogue.listed),
    ("GET", ("catalogue", "{model}"), catalogue.entry),
    ("POST", ("catalogue", "{model}", "try"), catalogue.ask),
    ("GET", ("api",), catalogue.operations),
)
"""Every page and action: its method, its path below the prefix, and what answers it."""


class PageTable:
    """Finds what answers a request: the dashboard's own pages, and those of parts."""

    def __init__(self, parts: Iterable[Part]) -> None:
        added = [(page.method, page.path, page.answer) for part in parts for page in part.pages()]
        self._routes = (*ROUTES, *added)

    def find(self, method: str, path: tuple[str, ...]) -> tuple[Handler | None, Mapping[str, str]]:
        """Return what answers a request, None for nothing, and the values of the names in the path."""
        for other, pattern, handler in self._routes:
            params = _matches(pattern, path)
            if other == method and params is not None:
                return handler, params
        return None, {}


def _matches(pattern: tuple[str, ...], path: tuple[str, ...]) -> Mapping[str, str] | None:
    """Return the values of the names in a pattern; None if the path is not of this pattern."""
    if len(pattern) != len(path):
        return None
    params = {}
    for expected, segment in zip(pattern, path, strict=True):
        if expected.startswith("{"):
            params[expected[1:-1]] = segment
        elif expected != segment:
            return None
    return params
