"""A request with a member that is not known, for each object in it."""

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Literal, get_args, get_origin

import attrs
import pytest

from modelyard.errors import InvalidInput

Place = tuple[str | int, ...]


def objects_in(value: Any, free: Collection[str], at: Place = ()) -> Iterator[tuple[Place, dict[str, Any]]]:
    """Yield every object of JSON data with its place, but for what lies below members of the `free` names, which may
    have any members."""
    if isinstance(value, dict):
        yield at, value
        for name, one in value.items():
            if name not in free:
                yield from objects_in(one, free, (*at, name))
    elif isinstance(value, list):
        for place, one in enumerate(value):
            yield from objects_in(one, free, (*at, place))


def misspelt(body: Any, free: Collection[str]) -> Iterator[tuple[str, str, Any]]:
    """Yield, for every member of every object, its name, its misspelt place, and the body to which a member of the
    misspelt name is added."""
    for place, found in objects_in(body, free):
        for name in found:
            changed = json.loads(json.dumps(body))
            owner = changed
            for step in place:
                owner = owner[step]
            owner[f"{name}x"] = 1
            yield name, written((*place, f"{name}x")), changed


def refuses_each_unknown_member(read: Callable[..., Any], body: Any, free: Collection[str]) -> None:
    """Assert that a reader takes a body, and refuses it with a misspelt member more: at its place, with the nearest
    name."""
    read(body, "body")
    for name, place, changed in misspelt(body, free):
        with pytest.raises(InvalidInput) as caught:
            read(changed, "body")
        (problem,) = caught.value.problems
        assert str(problem).startswith(f"body.{place}".replace("[", ".").replace("]", "") + ": "), problem
        assert f"'{name}'" in problem.msg


def has_reasons(listed: Mapping[str, str], *names: str) -> None:
    """Assert that each member without effect has a reason, and that these are among them."""
    assert listed.keys() >= {*names}
    assert all(len(reason) > 10 for reason in listed.values())


def written(place: Place) -> str:
    """Return a place as messages have it: `tools[0].function.name`."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place).removeprefix(".")


def without_effect(cls: Any) -> dict[str, str]:
    """Return what is accepted in an object of this class and changes nothing, by its place, with the reason."""
    found: dict[str, str] = {}
    _collect(cls, "", found, ())
    return found


def _collect(kind: Any, at: str, found: dict[str, str], above: tuple[Any, ...]) -> None:
    origin = get_origin(kind)
    if origin is not None and origin is not Literal:
        more = "[]" if origin in (list, tuple) else ""
        for one in get_args(kind):
            _collect(one, f"{at}{more}", found, above)
    elif attrs.has(kind) and kind not in above:
        reasons = dict(getattr(kind, "IGNORED", {}))
        for field in attrs.fields(attrs.resolve_types(kind)):
            _collect(field.metadata.get("described_as", field.type), f"{at}.{field.name}", found, (*above, kind))
            if "without_effect" in field.metadata:
                reasons[field.name] = field.metadata["without_effect"]
        found |= {f"{at}.{name}".removeprefix("."): reason for name, reason in reasons.items()}
