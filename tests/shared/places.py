"""Whether the place that a refusal names is one in the body that was sent."""

import re
from typing import Any

from hypothesis import strategies as st

MALFORMED = st.sampled_from([{"type": "strng"}, {"minLength": "a"}, {"enum": 1}])
UNDECIDED = st.sampled_from([{"pattern": "("}, {"$ref": "elsewhere"}])


def nested(schemas: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Schemas that hold one of these, at any depth."""
    return st.recursive(
        schemas,
        lambda inner: st.one_of(
            st.builds(lambda one: {"type": "object", "properties": {"b": one}, "required": ["b"]}, inner),
            st.builds(lambda one: {"type": "array", "items": one, "minItems": 1}, inner),
            st.builds(lambda one: {"anyOf": [one]}, inner),
        ),
        max_leaves=4,
    )


WRONG_SCHEMAS = nested(st.one_of(MALFORMED, UNDECIDED))
"""Schemas that are refused."""


def within(schema: Any) -> dict[str, Any]:
    """Return the schema of arguments with such a member."""
    return {"type": "object", "properties": {"a": schema}, "required": ["a"]}


def stands_in(body: Any, place: str) -> bool:
    """Return whether each step of a place, such as `tools[0].name`, exists in the body."""
    for step in re.findall(r"[^.\[\]]+", place):
        try:
            body = body[int(step) if isinstance(body, list) else step]
        except (KeyError, IndexError, TypeError, ValueError):
            return False
    return True
