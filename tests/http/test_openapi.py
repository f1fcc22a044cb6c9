"""The OpenAPI document: whole, precise, and public."""

import json
import re
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
from jsonschema import Draft202012Validator

from every_route import routes
from modelyard.formats.chat.request import ChatRequest
from modelyard.formats.constraints import Length, Matching, Unsupported, Within
from modelyard.http.error_responses import DETAIL
from modelyard.http.interface import Auth, Interface
from modelyard.http.message import Response
from modelyard.http.openapi import Schemas, document
from modelyard.http.route import Route, RouteCall


def schemas_in(value: Any) -> Iterator[Any]:
    """Every schema below `value`."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in ("schema", "items", "additionalProperties") and isinstance(inner, dict):
                yield inner
            if key == "properties":
                yield from inner.values()
            yield from schemas_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from schemas_in(inner)


@pytest.fixture(scope="module")
def shown(platform: Any, client_for: Any) -> Any:
    return client_for(platform).send("GET", "/openapi.json", key="").json


@pytest.mark.slow
def test_the_document_is_public_and_describes_every_route(shown: Any) -> None:
    assert shown["openapi"] == "3.1.0"
    assert shown["info"]["version"] == "0.1.0"
    described = {(method.upper(), path) for path, methods in shown["paths"].items() for method in methods}
    assert described == {(route.method, route.path.replace("...", "")) for route in routes()} | {
        ("GET", "/openapi.json"),
        ("GET", "/docs"),
    }


@pytest.mark.slow
def test_no_schema_is_empty_and_each_is_valid(shown: Any) -> None:
    found = list(schemas_in(shown))
    assert len(found) > 100
    assert all(found)
    for schema in shown["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
        assert schema["description"]


def test_every_reference_leads_somewhere(shown: Any) -> None:
    named = {schema["$ref"] for schema in schemas_in(shown) if "$ref" in schema}
    assert {name.removeprefix("#/components/schemas/") for name in named} <= set(shown["components"]["schemas"])


@pytest.mark.parts
def test_operations_have_names_of_their_own_and_say_who_may_call(shown: Any) -> None:
    operations = [operation for methods in shown["paths"].values() for operation in methods.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    assert all(operation["summary"] for operation in operations)
    public = [operation["operationId"] for operation in operations if not operation["security"]]
    assert sorted(public) == [
        "check_health",
        "check_liveness",
        "check_readiness",
        "list_router_models",
        "put_upload_file",
        "put_upload_manifest",
        "show_catalogue",
        "show_docs",
        "show_docs_index",
        "show_openapi_document",
        "show_operations_page",
    ]


def test_operations_are_named_in_words_and_introduced_by_sentences(shown: Any) -> None:
    """The names are kept in docs/reference/http.md."""
    tags = {tag["name"]: tag["description"] for tag in shown["tags"]}
    assert all(re.fullmatch(r"[A-Z].*\.", description) for description in tags.values())
    assert tags.keys() == {interface.name for interface in Interface}
    assert not any(description.startswith("The interface ") for description in tags.values())
    for methods in shown["paths"].values():
        for operation in methods.values():
            name = operation["operationId"]
            assert re.fullmatch(r"[a-z]+(_[a-z]+)+", name), name
            assert re.fullmatch(r"[A-Z].*\.", operation["summary"]), name
            assert re.fullmatch(r"[A-Z].*\.", operation["description"]), name
            assert len(operation["tags"]) == 1, name
            assert operation["tags"][0] in tags, name


def test_of_an_operation_with_several_paths_each_is_named_after_its_path(shown: Any) -> None:
    named = {path: methods["post"]["operationId"] for path, methods in shown["paths"].items() if "post" in methods}
    assert named["/v1/chat/completions"] == "create_chat_completion"
    assert named["/v1/chat/completions/"] == "create_chat_completion_with_slash"
    assert named["/inference/v1/chat/completions"] == "create_inference_chat_completion"
    assert named["/v1/preview/models/{model_id}/log"] == "log_trajectories"


def test_the_document_says_where_it_holds_and_who_to_ask(shown: Any) -> None:
    assert shown["servers"] == [{"url": "/"}]
    assert shown["info"]["license"]["identifier"] == "Apache-2.0"
    assert shown["info"]["contact"]["url"] == "https://modelyard.readthedocs.io/"
    assert shown["info"]["description"].endswith(".")


def answer(call: RouteCall) -> Response:
    return Response(200, [], b"")


def test_two_operations_of_one_name_are_the_programmer_s_fault() -> None:
    route = Route("GET", "/one", Interface("extra", DETAIL), Auth.PUBLIC, answer)
    assert document([route])["tags"] == [{"name": "extra", "description": "The interface extra."}]
    with pytest.raises(TypeError, match="two operations are called answer: /one, /other"):
        document([route, attrs.evolve(route, path="/other")])


def test_each_interface_has_its_own_document(platform: Any, client_for: Any) -> None:
    client = client_for(platform)
    base = client.send("GET", "/openapi.json", query="interface=base", key="").json
    assert "/inference/analysis/partner/models" in base["paths"]
    assert base["info"]["version"] == "0.1.0"
    assert not any(path.startswith(("/v1", "/inference/v1")) for path in base["paths"])
    training = client.send("GET", "/openapi.json", query="interface=training", key="").json
    assert set(training["paths"]) >= {"/v1/health", "/v1/chat/completions/"}
    assert all(path.startswith("/v1/") for path in training["paths"])
    assert [tag["name"] for tag in training["tags"]] == ["training"]
    assert client.send("GET", "/openapi.json", query="interface=none", key="").status == 422


def referred(value: Any) -> set[str]:
    return set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(value)))


@pytest.mark.slow
def test_a_tag_shows_its_operations_with_their_schemas_and_no_others(platform: Any, client_for: Any) -> None:
    client = client_for(platform)
    whole = client.send("GET", "/openapi.json", key="").json
    (parameter,) = (one for one in whole["paths"]["/openapi.json"]["get"]["parameters"] if one["name"] == "tag")
    tags = re.findall(r"\b[a-z_]+\b", parameter["description"].partition("one of ")[2].partition(", with")[0])
    assert {*tags} >= {tag["name"] for tag in whole["tags"]} | {"chat", "keys", "evaluations", "training"}
    every = [one for methods in whole["paths"].values() for one in methods.values()]
    shown: set[str] = set()
    for tag in tags:
        part = client.send("GET", "/openapi.json", query=f"tag={tag}", key="").json
        operations = [one for methods in part["paths"].values() for one in methods.values()]
        names = {one["operationId"] for one in operations}
        assert names >= {one["operationId"] for one in every if one["tags"] == [tag]}
        assert 0 < len(names) < len(every) / 2
        shown |= names
        assert {one["tags"][0] for one in operations} == {one["name"] for one in part["tags"]}
        assert referred(part) == part["components"]["schemas"].keys(), tag
        linked = {to["operationId"] for one in operations for to in one["responses"]["200"].get("links", {}).values()}
        assert linked <= names
        used = {scheme for one in operations for way in one["security"] for scheme in way}
        assert used == part["components"]["securitySchemes"].keys()
        for path, methods in part["paths"].items():
            for method, operation in methods.items():
                kept = {**operation["responses"]["200"], "links": 0}
                assert kept == {**whole["paths"][path][method]["responses"]["200"], "links": 0}
    assert shown == {one["operationId"] for one in every}


def test_a_capability_is_shown_on_its_own(platform: Any, client_for: Any) -> None:
    keys = client_for(platform).send("GET", "/openapi.json", query="tag=keys", key="").json
    below = "/v1/admin/keys"
    assert {*keys["paths"]} == {below, f"{below}/{{key_id}}", f"{below}/{{key_id}}/revoke"}


def test_chat_is_a_tag_however_it_is_written(platform: Any, client_for: Any) -> None:
    client = client_for(platform)
    found = [client.send("GET", "/openapi.json", query=f"tag={tag}", key="") for tag in ("Chat", "chat", "CHAT")]
    assert {answer.status for answer in found} == {200}
    assert len({answer.raw for answer in found}) == 1
    assert "/v1/chat/completions" in found[0].json["paths"]
    assert len(found[0].raw) < 100_000
    assert client.send("GET", "/openapi.json", query="tag=Evaluations", key="").status == 200


@pytest.mark.parametrize(("tag", "nearest"), [("cat", "chat"), ("usages", "usage"), ("", None), ("x" * 9000, None)])
def test_a_tag_that_is_unknown_is_refused_with_the_nearest(
    tag: str, nearest: str | None, platform: Any, client_for: Any
) -> None:
    refused = client_for(platform).send("GET", "/openapi.json", query=f"tag={tag}", key="")
    assert refused.status == 400
    assert b"must be one of" in refused.raw
    assert nearest is None or f"did you mean '{nearest}'" in refused.raw.decode()


def test_constraints_are_checked() -> None:
    @attrs.frozen
    class Constrained:
        """An example."""

        name: str = attrs.field(validator=[Length(1, 5), Matching("[a-z]+", "letters")])
        share: float = attrs.field(default=0.5, validator=Within(0, 1, above=True))
        items: tuple[int, ...] | None = attrs.field(default=None, validator=Length(1, 3))
        never: object = attrs.field(default=None, validator=Unsupported("no"))

    schemas = Schemas()
    schemas.of(Constrained)
    assert schemas.components["Constrained"]["properties"] == {
        "name": {"type": "string", "minLength": 1, "maxLength": 5, "pattern": "^(?:[a-z]+)$"},
        "share": {"anyOf": [{"type": "number", "exclusiveMinimum": 0, "maximum": 1}, {"type": "null"}]},
        "items": {
            "anyOf": [{"type": "array", "items": {"type": "integer", "format": "int64"}}, {"type": "null"}],
            "minItems": 1,
            "maxItems": 3,
        },
        "never": {"type": "null"},
    }
    assert schemas.components["Constrained"]["required"] == ["name"]


def test_two_classes_of_one_name_are_the_programmer_s_fault() -> None:
    one, other = (attrs.make_class("Same", {"x": attrs.field(type=int)}) for _ in range(2))
    schemas = Schemas()
    schemas.of(one)
    with pytest.raises(TypeError):
        schemas.of(other)
    with pytest.raises(TypeError):
        schemas.of(complex)


def test_a_chat_request_is_described_as_strictly_as_it_is_read() -> None:
    schemas = Schemas()
    schema = {**schemas.of(ChatRequest), "components": {"schemas": schemas.components}}
    validator = Draft202012Validator(schema)
    fit = {"model": "m", "messages": [{"role": "user", "content": "x"}], "temperature": 1, "stop": None}
    assert validator.is_valid(fit)
    for wrong in ({"temperature": 3}, {"n": True}, {"messages": []}, {"tools": []}, {"functions": []}, {"model": 5}):
        assert not validator.is_valid({**fit, **wrong})


def test_a_document_of_no_routes_is_still_one() -> None:
    assert document([])["paths"] == {}


def test_a_route_lists_the_statuses_with_which_it_refuses(shown: Any) -> None:
    chat = shown["paths"]["/inference/v1/chat/completions"]["post"]["responses"]
    assert {"400", "401", "402", "403", "404", "413", "415", "429", "503", "default"} <= set(chat)
    model = shown["paths"]["/v1/preview/models/{model_id}"]["get"]["responses"]
    assert {"401", "404", "422"} <= set(model)
    assert not {"409", "413"} & set(model)
    assert not {"401", "403"} & set(shown["paths"]["/openapi.json"]["get"]["responses"])
