"""What cannot be done is refused in words of whoever asked for it."""

from collections.abc import Mapping
from typing import Any

import pytest

from modelyard.backends.local.backend import LocalBackend
from modelyard.backends.local.networks import Room
from modelyard.domain.completion import ResponseFormat, ResponseType, Tool, ToolChoice, ToolMode
from modelyard.errors import InvalidInput
from modelyard.testing.backend import deltas_of, request_for

FAULTS: list[tuple[Mapping[str, Any], str]] = [
    ({"not": {}}, 'Unimplemented keys: ["not"]'),
    ({"type": "frob"}, "Invalid type: frob"),
    ({"type": "string", "pattern": "(?=a)b"}, "look-ahead and look-behind, is not supported"),
]


@pytest.mark.parametrize(("schema", "told"), FAULTS)
def test_what_is_wrong_with_a_schema_is_told_without_the_grammar_around_it(
    shared_backend: LocalBackend, schema: Mapping[str, Any], told: str
) -> None:
    wanted = ResponseFormat(ResponseType.JSON_SCHEMA, "", schema)
    tools, forced = (Tool("send", "", schema),), ToolChoice(ToolMode.REQUIRED)
    for name, fields in (
        ("response_format", {"response_format": wanted}),
        ("tools", {"tools": tools, "tool_choice": forced}),
    ):
        with pytest.raises(InvalidInput) as refused:
            deltas_of(shared_backend, request_for("tiny", **fields))
        (problem,) = refused.value.problems
        assert problem.loc == (name,)
        assert problem.msg.startswith("holds a schema that cannot be kept: ")
        assert problem.msg.endswith(told)


@pytest.mark.parametrize("name", ["rows", "memory", "adapters", "rank", "tuned", "waiting"])
def test_a_room_that_could_hold_nothing_is_none(name: str) -> None:
    """Without rows, a request would wait for ever."""
    least = 0 if name == "waiting" else 1
    assert Room(**{name: least})
    with pytest.raises(InvalidInput, match=f"{name}: must be {least} or more"):
        Room(**{name: least - 1})
