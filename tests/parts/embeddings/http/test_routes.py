"""Embeddings over HTTP: the format of its clients, bookings by key, tenancy, and precise refusals."""

import base64
from array import array
from decimal import Decimal
from typing import Any

import attrs
import pytest

from http_client import Client
from modelyard import Pricing, open_platform
from modelyard.http.interface import Interface

PATHS = ["/v1/embeddings", "/v1/embeddings/", "/inference/v1/embeddings", "/inference/v1/embeddings/"]


def asked(client: Client, given: Any = "a cat", path: str = PATHS[0], **members: Any) -> Any:
    sent = {key: members.pop(key) for key in ("headers", "key") if key in members}
    return client.send("POST", path, {"model": "echo", "input": given, **members}, **sent)


@pytest.mark.parametrize("path", PATHS)
def test_each_path_answers_in_the_format_of_its_clients(client: Client, path: str) -> None:
    answer = asked(client, ["a cat", "two small words"], path).json
    own = client.platform.embeddings.create(model="echo", input=["a cat", "two small words"])
    assert {name: value for name, value in answer.items() if name != "data"} == {
        "object": "list",
        "model": "echo",
        "usage": {"prompt_tokens": 5, "total_tokens": 5},
    }
    assert [(one["object"], one["index"]) for one in answer["data"]] == [("embedding", 0), ("embedding", 1)]
    assert [array("f", one["embedding"]) for one in answer["data"]] == list(own.vectors)


def test_base64_is_the_same_numbers(client: Client) -> None:
    plain = asked(client, dimensions=8, encoding_format="float").json["data"][0]["embedding"]
    encoded = asked(client, dimensions=8, encoding_format="base64").json["data"][0]["embedding"]
    assert array("f", base64.b64decode(encoded)) == array("f", plain)
    assert len(plain) == 8


@pytest.mark.slow
def test_long_requests_and_answers_are_the_same(client: Client) -> None:
    answer = asked(client, [f"text {at}" for at in range(200)]).json
    assert [one["index"] for one in answer["data"]] == [*range(200)]
    assert answer["data"][7]["embedding"] == asked(client, "text 7").json["data"][0]["embedding"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": "a"}, "model"),
        ({"model": "echo"}, "input"),
        ({"model": "echo", "input": ""}, "input"),
        ({"model": "echo", "input": ["a", ""]}, "input[1]"),
        ({"model": "echo", "input": [[1], [True]]}, "input[1][0]"),
        ({"model": "echo", "input": "a", "dimensions": 257}, "dimensions"),
        ({"model": "echo", "input": "a", "dimensions": 0}, "dimensions"),
        ({"model": "echo", "input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"model": "echo", "input": "a", "input_type": "query"}, "input_type"),
        ({"model": "tabular-mini", "input": "a"}, "model"),
        ({"model": "echo", "input": [[5] * 131_073]}, "input"),
    ],
)
def test_what_is_wrong_is_named(client: Client, body: Any, param: str) -> None:
    answer = client.send("POST", PATHS[2], body, check=False)
    assert (answer.status, answer.json["error"]["param"]) == (400, param), answer.json


def test_a_model_that_makes_none_is_answered_with_those_that_do(client: Client) -> None:
    error = client.send("POST", PATHS[0], {"model": "tabular-mini", "input": "a"}).json["error"]
    assert error["message"] == "model: tabular-mini makes no embeddings; these do: echo"
    missing = client.send("POST", PATHS[0], {"model": "nothing", "input": "a"})
    assert (missing.status, missing.json["error"]["code"]) == (404, "model_not_found")


def test_a_caller_needs_a_key_and_a_project_of_its_own(client: Client) -> None:
    assert asked(client, key="").status == 401
    assert asked(client, headers=[("openai-project", "rival/all")]).status == 403
    assert asked(client, headers=[("openai-project", "acme/search")]).status == 200
    assert client.send("GET", PATHS[0]).status == 405


def test_usage_is_booked_on_the_key_and_budgets_hold(client_for: Any) -> None:
    with open_platform() as platform:
        echo = platform.catalogue.get("echo")
        platform.catalogue.register(attrs.evolve(echo, pricing=Pricing(prompt="0.01")))
        client = client_for(platform)
        assert asked(client, headers=[("openai-project", "acme/search")]).status == 200
        (entry,) = platform.usage.list(entity="acme")
        assert (entry.project, entry.prompt_tokens, entry.cost) == ("search", 2, Decimal("0.02"))
        assert entry.key_id
        platform.usage.set_budget("0.05", entity="acme")
        refused = asked(client)
        assert (refused.status, refused.json["error"]["code"]) == (402, "insufficient_quota")


def test_it_can_be_left_out(client_for: Any) -> None:
    with open_platform() as platform:
        client = client_for(platform, interfaces=[Interface.INFERENCE])
        assert asked(client).status == 404
