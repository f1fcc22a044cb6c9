"""The page of a data set: what it has, and its first rows."""

from itertools import islice

from modelyard.parts.dashboard.view import HtmlPage, View, json_text, name_text, when
from modelyard.parts.reports.html import facts, joined, section, tag
from modelyard.report.numbers import count_text

SHOWN = 10
"""How many rows are shown."""

LONGEST = 2000
"""How many characters of a row are shown."""


def shown(view: View) -> HtmlPage:
    """Show a version of a data set. Raises `NotFound`, `Forbidden`, `InvalidInput`."""
    entity, project, name = (view.params[part] for part in ("entity", "project", "dataset"))
    found = view.platform.datasets.get(f"modelyard:///{entity}/{project}/{name}")
    pairs = [
        ("trained on as", tag("code", found.url)),
        ("project", name_text(f"{found.entity}/{found.project}")),
        ("rows", count_text(found.rows)),
        ("size", f"{count_text(found.size)} B"),
        ("made", when(found.created_at)),
        ("digest", tag("code", found.digest)),
    ]
    rows = [_row(json_text(row)) for row in islice(view.platform.datasets.rows(found), SHOWN)] if found.rows else []
    title = f"{found.project}/{found.name}:v{found.version}"
    return HtmlPage(title, joined([facts(pairs), section("First rows", *rows)]), lead="Rows that models train on.")


def _row(text: str) -> object:
    return tag("p", tag("pre", text if len(text) <= LONGEST else f"{text[:LONGEST]}…"))
