"""The shape of a body, checked by a vLLM double as vLLM does: member by member, one error for all that is wrong."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from modelyard.parts.upstream.fake_vllm.schemas import Json

INT64 = 2**63 - 1


@attrs.frozen
class Refused(Exception):
    """A request that vLLM refuses: with its words, its type, and the parameter that it reports."""

    message: str
    param: str | None = None
    type: str = "BadRequestError"
    status: int = 400


def bad_shape(*faults: Json) -> Refused:
    """Return the error for the faults of a body, as `fault` makes them. It reports the place of the first."""
    lines = "".join(f"\n  {fault}" for fault in faults)
    count = f"{len(faults)} validation error{'s' if len(faults) > 1 else ''}"
    return Refused(f"{count}:{lines}", faults[0]["loc"], "Bad Request")


def fault(kind: str, loc: str, msg: str, value: object, **context: object) -> Json:
    """Return one fault. Of a list or an object, only the kind is shown."""
    shown = f"<{type(value).__name__} of {len(value)} items>" if isinstance(value, dict | list) else str(value)
    found = {"type": kind, "loc": f"body.{loc}" if loc else "body", "msg": msg, "input": shown}
    return found | ({"ctx": context} if context else {})


def parse_body(raw: bytes, content_type: str) -> Json:
    """Return the object that a body holds. Raises `Refused`."""
    if content_type.partition(";")[0].strip().lower() != "application/json":
        words = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
        raise Refused(words, None, "Bad Request")
    try:
        body = json.loads(raw) if raw else None
    except ValueError as error:
        at = getattr(error, "pos", 0)
        words = getattr(error, "msg", str(error))
        raise bad_shape(fault("json_invalid", str(at), "JSON decode error", {}, error=words)) from None
    if body is None:
        raise bad_shape(fault("missing", "", "Field required", None))
    if not isinstance(body, dict):
        words = "Input should be a valid dictionary or object to extract fields from"
        raise bad_shape(fault("model_attributes_type", "", words, body))
    return body


# ---- one member ----------------------------------------------------------------------------------------------------

Check = Callable[[str, Any], Any]
"""Takes a place and a value, and returns the value as vLLM understands it. Raises `Refused`."""


def integer(loc: str, value: Any) -> int:
    """Take an integer, also one that is written as a string or as a number without a fraction."""
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            words = "Input should be a valid integer, unable to parse string as an integer"
            raise bad_shape(fault("int_parsing", loc, words, value)) from None
    if isinstance(value, float):
        if value.is_integer():
            return int(value)
        words = "Input should be a valid integer, got a number with a fractional part"
        raise bad_shape(fault("int_from_float", loc, words, value))
    if not isinstance(value, int):
        raise bad_shape(fault("int_type", loc, "Input should be a valid integer", value))
    return int(value)


def int64(loc: str, value: Any) -> int:
    found = integer(loc, value)
    if found > INT64:
        words = f"Input should be less than or equal to {INT64}"
        raise bad_shape(fault("less_than_equal", loc, words, value, le=INT64))
    if found < -INT64 - 1:
        words = f"Input should be greater than or equal to {-INT64 - 1}"
        raise bad_shape(fault("greater_than_equal", loc, words, value, ge=-INT64 - 1))
    return found


def number(loc: str, value: Any) -> float:
    """Take a number, also one that is written as a string."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            words = "Input should be a valid number, unable to parse string as a number"
            raise bad_shape(fault("float_parsing", loc, words, value)) from None
    if not isinstance(value, int | float):
        raise bad_shape(fault("float_type", loc, "Input should be a valid number", value))
    return float(value)


def flag(loc: str, value: Any) -> bool:
    if not isinstance(value, bool):
        words = "Input should be a valid boolean, unable to interpret input"
        raise bad_shape(fault("bool_parsing", loc, words, value))
    return value


def _of(type_: type, kind: str, noun: str) -> Check:
    def check(loc: str, value: Any) -> Any:
        if not isinstance(value, type_):
            raise bad_shape(fault(kind, loc, f"Input should be a valid {noun}", value))
        return value

    return check


text = _of(str, "string_type", "string")
array = _of(list, "list_type", "list")
mapping = _of(dict, "dict_type", "dictionary")


def stop(loc: str, value: Any) -> Any:
    """Take a string or up to four."""
    if isinstance(value, str):
        return value
    not_text = fault("string_type", loc, "Input should be a valid string", value)
    if not isinstance(value, list):
        raise bad_shape(not_text, fault("list_type", loc, "Input should be a valid list", value))
    if len(value) > 4:
        words = f"List should have at most 4 items after validation, not {len(value)}"
        context = {"field_type": "List", "max_length": 4, "actual_length": len(value)}
        raise bad_shape(not_text, fault("too_long", loc, words, value, **context))
    for at, one in enumerate(value):
        text(f"{loc}.{at}", one)
    return value


def missing(loc: str, owner: object) -> Refused:
    return bad_shape(fault("missing", loc, "Field required", owner))


def members(body: Json, checks: Mapping[str, Check]) -> Json:
    """Return the body with its members as vLLM understands them; null and unknown members are left out."""
    known = {name: (body[name], check) for name, check in checks.items() if body.get(name) is not None}
    found, faults = {}, []
    for name, (value, check) in known.items():
        try:
            found[name] = check(name, value)
        except Refused as wrong:
            faults.append(wrong)
    if len(faults) == 1:
        raise faults[0]
    if faults:
        lines = [wrong.message.partition("\n")[2] for wrong in faults]
        count = sum(line.count("\n") + 1 for line in lines)
        raise Refused("\n".join([f"{count} validation errors:", *lines]), faults[0].param, "Bad Request")
    return found
