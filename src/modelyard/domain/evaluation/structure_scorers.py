"""Declarative scorers that look into an output: at one place of its JSON, or at the tools that it calls."""

import json
import re
from collections.abc import Mapping
from typing import Any

import attrs

from modelyard.domain.evaluation.scorers import OwnRule, same_json
from modelyard.errors import InvalidInput

_STEP = re.compile(r"""\.?([A-Za-z_][\w-]*)|\[(-?[0-9]{1,9})\]|\[(?:'([^']*)'|"([^"]*)")\]""")
_NOTHING = object()


@attrs.frozen
class JsonPath(OwnRule):
    """Whether the output is JSON that has the row's field `expected` at `path`, such as `$.items[0].name`.

    A path names members (`.name` or `['any name']`) and places of a list (`[0]`; `[-1]` is the last). An output that is
    not JSON, or has nothing there, scores False. Raises `InvalidInput` for another path.
    """

    type = "json_path"
    path: str
    expected: str = "expected"

    def __attrs_post_init__(self) -> None:
        _steps(self.path)

    def score(self, output: Any, row: Mapping[str, Any]) -> bool:
        wanted = row[self.expected]
        try:
            value = json.loads(output) if isinstance(output, str) else output
        except (ValueError, RecursionError):
            return False
        for step in _steps(self.path):
            value = _at(value, step)
        return value is not _NOTHING and same_json(value, wanted)


def _steps(path: str) -> list[str | int]:
    steps: list[str | int] = []
    at = 1 if path.startswith("$") else 0
    while at < len(path):
        found = _STEP.match(path, at)
        if found is None:
            raise InvalidInput.at("path", msg=f"cannot be read from {path[at:][:40]!r} on; write it as $.items[0].name")
        name, place, quoted, other = found.groups()
        steps.append(int(place) if place is not None else next(one for one in (name, quoted, other) if one is not None))
        at = found.end()
    return steps


def _at(value: Any, step: str | int) -> Any:
    if isinstance(step, str):
        return value.get(step, _NOTHING) if isinstance(value, Mapping) else _NOTHING
    there = isinstance(value, list | tuple) and -len(value) <= step < len(value)
    return value[step] if there else _NOTHING


@attrs.frozen
class ToolCalls(OwnRule):
    """Whether the output calls the tools in the row's field `expected`, in any order, and no others.

    A call is an object with `name` and `arguments`, and the field holds one or a list of them; without `arguments` only
    the name counts, as it does for all calls with `names_only`. An empty list expects that no tool is called.
    """

    type = "tool_calls"
    expected: str = "expected"
    names_only: bool = False

    def score(self, output: Any, row: Mapping[str, Any]) -> bool:
        wanted = row[self.expected]
        given = _calls(output.get("tool_calls")) if isinstance(output, Mapping) else []
        for call in _calls(wanted if isinstance(wanted, list | tuple) else [wanted]):
            found = next((one for one in given if self._is(one, call)), None)
            if found is None:
                return False
            given.remove(found)
        return not given

    def _is(self, given: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
        if given["name"] != wanted["name"]:
            return False
        return self.names_only or wanted["arguments"] is None or same_json(given["arguments"], wanted["arguments"])


def _calls(value: Any) -> list[Mapping[str, Any]]:
    """Return the calls; names and arguments may also lie below `function`, or be written as text."""
    found: list[Mapping[str, Any]] = []
    for one in value if isinstance(value, list | tuple) else ():
        call = one.get("function", one) if isinstance(one, Mapping) else {"name": one}
        found.append({"name": call.get("name"), "arguments": _arguments(call.get("arguments"))})
    return found


def _arguments(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value
