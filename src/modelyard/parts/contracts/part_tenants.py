"""The laws of a part for many tenants: to another one it is as if nothing were there."""

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from operator import attrgetter
from typing import Any

import attrs

from modelyard.domain.evaluation.run import EvaluationRun
from modelyard.domain.job import Job
from modelyard.domain.models import Checkpoint, Model
from modelyard.errors import ModelyardError
from modelyard.http.body_schemas import Schemas
from modelyard.http.interface import Auth
from modelyard.http.route import Body, Route
from modelyard.part import Part
from modelyard.parts.contracts.part_trial import (
    ONE,
    OTHER,
    HttpAnswer,
    HttpCaller,
    PartHooks,
    PartTrial,
    addresses,
    rows_of,
    strings_in,
    tenant,
    watched,
)
from modelyard.platform.platform import Platform

_SUBJECTS = (Job, Model, Checkpoint, EvaluationRun)


class TenantLaws(PartHooks):
    """What one tenant keeps is compared with a platform that has nothing of it: the other tenant sees no difference."""

    def test_the_listings_of_its_resources_show_another_tenant_nothing(self, trial: PartTrial) -> None:
        with trial.filled(self.fill) as (platform, twin):
            hidden = hidden_strings(platform, trial.part)
            for name in trial.part.resources:
                shown = _listings(platform.acting_as(tenant(OTHER)), name)
                empty = _listings(twin.acting_as(tenant(OTHER)), name)
                leak = {text for text in hidden if text in shown and text not in empty}
                assert not leak, f"platform.{name} shows another tenant {sorted(leak)[:3]}"

    def test_its_routes_show_another_tenant_nothing_and_let_it_change_nothing(self, trial: PartTrial) -> None:
        with trial.filled(self.fill) as (platform, twin):
            before = rows_of(platform, watched(platform, trial.part))
            hidden, known = hidden_strings(platform, trial.part), known_values(platform, trial.part)
            here, there = HttpCaller(platform, OTHER), HttpCaller(twin, OTHER)
            for route in trial.routes:
                if route.auth in (Auth.PUBLIC, Auth.ADDRESS):
                    continue
                for path, body in _requests(route, known):
                    asked = [caller.ask(route.method, path, route.auth, body) for caller in (here, there)]
                    problem = _difference(hidden, f"{path} {body.decode()}", *asked)
                    assert not problem, f"{route.method} {path} {body.decode()}: {problem}"
            after = rows_of(platform, watched(platform, trial.part))
            for table, rows in before.items():
                changed = [key for key, row in rows.items() if after[table].get(key) != row]
                assert not changed, f"another tenant has changed {changed} of {table}"

    def test_its_pages_show_another_tenant_nothing(self, trial: PartTrial) -> None:
        with trial.filled(self.fill) as (platform, twin):
            hidden, known = hidden_strings(platform, trial.part), known_values(platform, trial.part)
            here, there = (trial.pages(one, tenant(OTHER)) for one in (platform, twin))
            for page in trial.part.pages():
                if page.method != "GET":
                    continue
                for path in addresses(f"/dashboard/{'/'.join(page.path)}", known):
                    problem = _difference(hidden, path, here(path), there(path))
                    assert not problem, f"{path}: {problem}"


def hidden_strings(platform: Platform, part: Part) -> frozenset[str]:
    """Return the strings in the records of a part."""
    rows = rows_of(platform, part.records())
    return frozenset(text for table in rows.values() for row in table.values() for text in strings_in(row))


def known_values(platform: Platform, part: Part) -> Mapping[str, Sequence[str]]:
    """Return what the parameters of paths may be: the values of the fields of this name, and under "" every id."""
    found: dict[str, dict[str, None]] = {"": {}, "entity": {ONE: None}, "project": {"default": None}}
    subjects = [record for record in platform._runtime.records if record.cls in _SUBJECTS]
    for record in [*part.records(), *subjects]:
        names = [field.name for field in attrs.fields(record.cls)]
        for key, row in rows_of(platform, [record])[record.table].items():
            found[""].update(dict.fromkeys(str(value) for value in key))
            for name, value in zip(names, row, strict=True):
                if isinstance(value, str) and value and name != "id":
                    found.setdefault(name, {})[value] = None
    found[""].setdefault("unknown")
    return {name: [*values][:20] for name, values in found.items()}


def _requests(route: Route, known: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, bytes]]:
    """Yield requests of a route that name what is not the caller's."""
    queries = ["", *(f"?{name.name}={ONE}" for name in route.query if name.name == "entity")]
    for path in addresses(route.path, known):
        for query in queries:
            yield f"{path}{query}", b"" if route.body is Body.NONE else b"{}"
    if route.body in (Body.CONTROL, Body.CHAT) and route.request is not None:
        first = next(addresses(route.path, known))
        for named in known[""]:
            yield first, json.dumps(_body(route.request, named)).encode()


def _body(cls: type, id: str) -> Mapping[str, Any]:
    """Return a body that names an id wherever a string is required."""
    schemas = Schemas()
    schemas.of(cls)
    described = schemas.components.get(cls.__name__, {})
    members = described.get("properties", {})
    return {
        name: members[name].get("enum", [id])[0]
        for name in described.get("required", [])
        if members[name].get("type") == "string" or "enum" in members[name]
    }


def _difference(hidden: frozenset[str], asked: str, here: HttpAnswer, there: HttpAnswer) -> str:
    """Return what another tenant learns from an answer that it does not learn from the twin; "" for nothing."""
    if here.status == 500:
        return f"it is answered {here.status}: {here.text[:200]}"
    if here.status < 400 <= there.status:
        return f"it is answered {here.status}, and {there.status} where it is not there"
    leak = {text for text in hidden if text in here.text and text not in asked and text not in there.text}
    return f"the answer {here.status} has {sorted(leak)[:3]}" if leak else ""


def _listings(platform: Platform, name: str) -> str:
    """Return everything that a resource lists without being asked for more."""
    shown = []
    try:
        resource = attrgetter(name)(platform)
    except ModelyardError as refused:
        return str(refused)
    for listing in _listing_methods(resource):
        for options in ({}, {"entity": ONE}):
            try:
                inspect.signature(listing).bind(**options)
                shown += [repr(one) for one in islice(listing(**options), 1000)]
            except (TypeError, ModelyardError) as refused:
                shown.append(str(refused))
    return "\n".join(shown)


def _listing_methods(resource: Any) -> Iterator[Any]:
    """Yield the methods that list, those of the resources within it too."""
    within = [value for key, value in inspect.getmembers_static(type(resource)) if isinstance(value, property)]
    for one in [resource, *(value.fget(resource) for value in within if value.fget is not None)]:
        if callable(one):
            yield one
        yield from (getattr(one, key) for key in dir(type(one)) if key == "list" or key.startswith("list_"))
