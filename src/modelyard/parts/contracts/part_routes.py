"""The laws of what a part answers over HTTP: described, and refused in the format of its interface."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from modelyard.http.body_schemas import Schemas
from modelyard.http.interface import Auth, ErrorFormat
from modelyard.http.message import PROTOBUF
from modelyard.http.route import Body, Route
from modelyard.part import ALWAYS
from modelyard.parts.contracts.part_trial import ONE, HttpAnswer, HttpCaller, PartHooks, PartTrial, addresses

NONSENSE = (b"{", b"[]", b'"text"', b"null", b"7", b"{}", b"\xff")
"""Bodies that no route takes, and `{}`, which some do."""

_ANY = {"": ["nothing-of-this-name"]}


class PartRouteLaws(PartHooks):
    """Its routes are described, and what they refuse they refuse in the format of their interface."""

    def test_its_routes_are_in_the_openapi_document(self, trial: PartTrial) -> None:
        if not trial.routes:
            return
        with trial.opened() as platform:
            caller = HttpCaller(platform, ONE)
            names = {route.interface.name for route in trial.routes}
            asked = {name: caller.ask("GET", f"/openapi.json?interface={name}", Auth.PUBLIC).text for name in names}
        documents = {name: json.loads(text) for name, text in asked.items()}
        for route in trial.routes:
            document = documents[route.interface.name]
            operation = document["paths"].get(route.path.replace("...}", "}"), {}).get(route.method.lower())
            assert operation, f"{route.method} {route.path} is not in the document"
            assert operation["summary"], f"{route.method} {route.path} has no summary"
            assert operation["tags"] == [route.interface.name]

    def test_each_route_is_listed_under_its_interface(self, trial: PartTrial) -> None:
        for name, routes in trial.part.routes.items():
            listed = routes()
            if name == ALWAYS:
                assert {route.auth for route in listed} <= {Auth.PUBLIC}
            else:
                assert {route.interface.name for route in listed} <= {name}

    def test_no_key_is_refused_in_its_format(self, trial: PartTrial) -> None:
        with trial.opened() as platform:
            caller = HttpCaller(platform, ONE)
            for route in trial.routes:
                if route.auth in (Auth.PUBLIC, Auth.ADDRESS):
                    continue
                answer = caller.ask(route.method, _path(route), route.auth, known=False)
                assert answer.status == 401, f"{route.method} {route.path} needs no key"
                _assert_format(answer, route.error_format)

    def test_an_unknown_path_is_refused_in_its_format(self, trial: PartTrial) -> None:
        with trial.opened() as platform:
            caller = HttpCaller(platform, ONE)
            for interface in trial.part.interfaces():
                for prefix, (auth, error_format) in interface.guards.items():
                    path = f"/{'/'.join(prefix)}/no/route/has/this/path"
                    answer = caller.ask("GET", path, auth)
                    assert answer.status == 404, path
                    _assert_format(answer, error_format)
                    if auth is not Auth.PUBLIC:
                        assert caller.ask("GET", path, auth, known=False).status == 401, path

    def test_an_invalid_body_is_refused_in_its_format(self, trial: PartTrial) -> None:
        with trial.opened() as platform:
            caller = HttpCaller(platform, ONE)
            for route in trial.routes:
                if route.body is Body.NONE:
                    continue
                for body in NONSENSE:
                    answer = caller.ask(route.method, _path(route), route.auth, body)
                    assert answer.status < 500, f"{route.method} {route.path} answers {answer.status} to {body!r}"
                    if answer.status >= 400:
                        _assert_format(answer, route.error_format)

    def test_what_is_not_there_is_refused_in_its_format(self, trial: PartTrial) -> None:
        with trial.opened() as platform:
            caller = HttpCaller(platform, ONE)
            for route in trial.routes:
                if "{" not in route.path or route.body is not Body.NONE:
                    continue
                answer = caller.ask(route.method, _path(route), route.auth)
                assert answer.status < 500, f"{route.method} {route.path} answers {answer.status}: {answer.text}"
                if answer.status >= 400:
                    _assert_format(answer, route.error_format)


def _path(route: Route) -> str:
    return next(addresses(route.path, _ANY))


def _assert_format(answer: HttpAnswer, error_format: ErrorFormat) -> None:
    """Check that an error has the members that the format describes."""
    if answer.headers.get("content-type") == PROTOBUF:
        return
    schemas = Schemas()
    described = schemas.of(error_format.described)
    body = json.loads(answer.text)
    fitting = any(_fits(body, one) for one in _objects(described, schemas.components))
    assert fitting, f"{answer.text[:200]} is no error of the format {error_format.name!r}"


def _objects(schema: Mapping[str, Any], components: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the schemas of the objects that may stand for a schema."""
    if "$ref" in schema:
        yield from _objects(components[schema["$ref"].rpartition("/")[2]], components)
    elif "anyOf" in schema or "oneOf" in schema:
        for one in schema.get("anyOf") or schema["oneOf"]:
            yield from _objects(one, components)
    else:
        yield schema


def _fits(body: object, schema: Mapping[str, Any]) -> bool:
    if not isinstance(body, dict):
        return False
    required, known = {*schema.get("required", ())}, {*schema.get("properties", body)}
    return required <= body.keys() <= known
