"""Scripts in JSON, for people and programs that do not write Python."""

import os
from codecs import BOM_UTF8
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from modelyard.errors import BackendError, InvalidInput, Overloaded, RateLimited
from modelyard.formats.json import loads
from modelyard.parts.scripted.answers import call, reasoning, say
from modelyard.parts.scripted.rules import Rule, on

CONDITIONS = {"text", "model", "tool", "called", "format"}
"""What a rule may ask of a request: those conditions of `on` that are strings."""

ERRORS: Mapping[str, type[Any]] = {error.code: error for error in (RateLimited, Overloaded, BackendError)}
"""The failures that a script may answer with, by their codes."""


def load_script(path: str | os.PathLike[str]) -> list[Rule]:
    """Return the rules of a JSON file, for a `ScriptedBackend`.

    The file is a list of objects with `on`, conditions as those of the function `on` (all requests without it), and
    `answer`, or a list of `answers` to give one after the other. An answer is a string, or an object with one of `json`
    (a structured value), `call` (the name of a tool, with its `arguments`), `say` (a list of strings, calls and objects
    with `reasoning`) and `error` ("rate_limit_exceeded", "overloaded" or "backend_error", with a `message` and
    `retry_after` in seconds).

    Raises `InvalidInput` at the place in the file, and OSError.
    """
    rules = loads(Path(path).read_bytes().removeprefix(BOM_UTF8), at=(os.fspath(path),))
    if not isinstance(rules, list):
        raise InvalidInput.at(os.fspath(path), msg="must be a list of rules")
    return [_rule(rule, (os.fspath(path), at)) for at, rule in enumerate(rules)]


Place = tuple[str | int, ...]


def _rule(rule: Any, at: Place) -> Rule:
    given = _fields(rule, {"on", "answer", "answers"}, at)
    conditions = _fields(given.get("on", {}), CONDITIONS, (*at, "on"))
    for name, value in conditions.items():
        if not isinstance(value, str):
            raise InvalidInput.at(*at, "on", name, msg="must be a string")
    if ("answer" in given) is ("answers" in given):
        raise InvalidInput.at(*at, msg="needs either an answer or a list of answers")
    answers = given.get("answers", [given.get("answer")])
    if not isinstance(answers, list) or not answers:
        raise InvalidInput.at(*at, "answers", msg="must be a list with at least one answer")
    place = "answers" if "answers" in given else "answer"
    return on(**conditions).answer(*(_answer(answer, (*at, place, number)) for number, answer in enumerate(answers)))


def _answer(answer: Any, at: Place) -> Any:
    if isinstance(answer, str):
        return answer
    given = _fields(answer, {"json", "call", "arguments", "say", "error", "message", "retry_after"}, at)
    kinds = {"json": _json, "call": _call, "say": _say, "error": _error}
    chosen = [kind for kind in kinds if kind in given]
    if len(chosen) != 1:
        raise InvalidInput.at(*at, msg=f"must be a string, or an object with one of {', '.join(kinds)}")
    return kinds[chosen[0]](given, at)


def _json(given: Mapping[str, Any], at: Place) -> Any:
    if not isinstance(given["json"], dict):
        raise InvalidInput.at(*at, "json", msg="must be an object")
    return given["json"]


def _call(given: Mapping[str, Any], at: Place) -> Any:
    arguments = given.get("arguments", {})
    if not isinstance(given["call"], str) or not isinstance(arguments, dict):
        raise InvalidInput.at(*at, msg="call must be the name of a tool, and arguments an object")
    return call(given["call"], **arguments)


def _say(given: Mapping[str, Any], at: Place) -> Any:
    if not isinstance(given["say"], list):
        raise InvalidInput.at(*at, "say", msg="must be a list of strings, calls and reasoning")
    return say(*(_part(part, (*at, "say", number)) for number, part in enumerate(given["say"])))


def _part(part: Any, at: Place) -> Any:
    if isinstance(part, str):
        return part
    given = _fields(part, {"call", "arguments", "reasoning"}, at)
    if isinstance(given.get("reasoning"), str) and len(given) == 1:
        return reasoning(given["reasoning"])
    return _call({"call": None, **given}, at)


def _error(given: Mapping[str, Any], at: Place) -> Any:
    error = ERRORS.get(str(given["error"]))
    if error is None:
        raise InvalidInput.at(*at, "error", msg=f"must be one of {', '.join(sorted(ERRORS))}")
    message = str(given.get("message", error.code))
    if error is BackendError:
        return BackendError(message)
    seconds = given.get("retry_after", 1.0)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds < 0:
        raise InvalidInput.at(*at, "retry_after", msg="must be a number of seconds, 0 or more")
    return error(message, retry_after=seconds)


def _fields(value: Any, known: set[str], at: Place) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInput.at(*at, msg="must be an object")
    if unknown := value.keys() - known:
        raise InvalidInput.at(*at, min(unknown), msg=f"is not known here; there are {', '.join(sorted(known))}")
    return value
