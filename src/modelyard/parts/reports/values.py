"""One value, such as a model, a completion or a lineage, for notebooks."""

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from modelyard.domain.completion import Completion
from modelyard.parts.reports.html import Html, facts, fragment, section, tag
from modelyard.parts.reports.line_plot import short_number
from modelyard.parts.reports.records import MOST_ROWS, cell, columns_of, lines_of

_UNSAID = {"seq"}
"""Members that tell a reader nothing."""


def value_notebook(value: object) -> Html:
    """Return the members of a value, and those of its values; or of a list of values a table."""
    if isinstance(value, list):
        return fragment(lines_of(value[:MOST_ROWS]), _more(len(value)))
    if isinstance(value, Completion):
        ends = ", ".join(one.finish_reason for one in value.choices)
        answers = [tag("pre", one.message.text) for one in value.choices if one.message.text]
        calls = [
            tag("pre", f"{one.name}({one.arguments})") for choice in value.choices for one in choice.message.tool_calls
        ]
        return fragment(
            facts([*_facts(value), ("ended by", ends)]), *answers, *calls, section("usage", facts(_facts(value.usage)))
        )
    return fragment(facts(_facts(value)), *_sections(value))


def _facts(value: Any) -> Iterator[tuple[str, object]]:
    if isinstance(url := getattr(value, "url", None), str):
        yield "url", url
    for name in columns_of([value]):
        if name not in _UNSAID and getattr(value, name) is not False:
            yield _words(name), cell(name, getattr(value, name))
    for name, inner in _members(value):
        if isinstance(inner, tuple) and inner and all(isinstance(one, str) for one in inner):
            yield _words(name), ", ".join(inner)
        elif isinstance(inner, Mapping) and inner and all(isinstance(one, str | int | float) for one in inner.values()):
            yield _words(name), ", ".join(f"{key} {_short(one)}" for key, one in inner.items())


def _short(value: object) -> object:
    return short_number(value) if isinstance(value, float) else value


def _sections(value: Any) -> Iterator[Html]:
    """Yield what a value has values in: their members, or of several a table."""
    for name, inner in _members(value):
        if attrs.has(type(inner)):
            yield section(_words(name), facts(_facts(inner)))
        elif isinstance(inner, tuple) and inner and attrs.has(type(inner[0])):
            yield section(_words(name), lines_of(inner[:MOST_ROWS]), _more(len(inner)))


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    return ((field.name, getattr(value, field.name)) for field in attrs.fields(type(value)))


def _words(name: str) -> str:
    return name.replace("_", " ")


def _more(count: int) -> object:
    return tag("p", f"and {count - MOST_ROWS:,} more", kind="quiet") if count > MOST_ROWS else ""
