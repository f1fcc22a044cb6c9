"""An OpenAPI document as a page that people read: every operation, folded, by the first segment of its path."""

import re
from collections.abc import Mapping
from typing import Any

from modelyard.parts.reports.html import Html, folded, joined, page, section, table, tag

_CODE = re.compile("`([^`]+)`")
_METHODS = ("get", "post", "put", "patch", "delete")


def operations_page(described: Mapping[str, Any]) -> Html:
    link = tag("p", tag("a", "OpenAPI document", href="openapi.json"))
    return page("API", tag("h1", "API"), link, operations(described))


def operations(described: Mapping[str, Any]) -> Html:
    groups: dict[str, list[Html]] = {}
    for path, item in described["paths"].items():
        group = groups.setdefault(path.split("/")[1], [])
        group += [_operation(method.upper(), path, item[method]) for method in _METHODS if method in item]
    return joined(section(f"/{name}", *found) for name, found in groups.items())


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> Html:
    said = _CODE.split(operation.get("summary", ""))
    words = (tag("code", part) if at % 2 else part for at, part in enumerate(said))
    title = joined([tag("code", f"{method} {path}"), " ", *words])
    return folded(title, _parameters(operation), _statuses(operation))


def _parameters(operation: Mapping[str, Any]) -> Html:
    lines = [
        (one.get("name", ""), one.get("in", ""), "required" if one.get("required") else "", one.get("description", ""))
        for one in operation.get("parameters", ())
    ]
    return table([("parameter", ""), ("in", ""), ("", ""), ("", "text")], lines) if lines else Html("")


def _statuses(operation: Mapping[str, Any]) -> Html:
    lines = [(status, answer.get("description", "")) for status, answer in operation.get("responses", {}).items()]
    return table([("status", "number"), ("", "text")], lines, "narrow")
