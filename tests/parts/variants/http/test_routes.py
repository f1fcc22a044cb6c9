"""Variants over HTTP, with the key of a tenant."""

from collections.abc import Iterator
from typing import Any

import pytest

from each import each_case
from http_client import Client, client_of
from modelyard import open_platform

OF = "/v1/variants/desk/support"
FIRST = {"model": "echo", "system": "Be brief.", "template": "Q: {question}", "parameters": {"max_tokens": 9}}


@pytest.fixture
def client() -> Iterator[Client]:
    with open_platform(entity="acme") as platform:
        client = client_of(platform)
        assert client.send("POST", f"{OF}/versions", FIRST).status == 200
        yield client


def test_versions_are_published_shown_listed_and_compared(client: Client) -> None:
    example = {"inputs": {"question": "a"}, "assistant": "b"}
    answer = client.send("POST", f"{OF}/versions", {**FIRST, "examples": [example], "note": "n", "parent": 1})
    assert answer.status == 200
    made = answer.json
    assert (made["number"], made["parent"], made["note"], made["examples"]) == (2, 1, "n", [example])
    assert client.ok("GET", f"{OF}/versions/2") == client.ok("GET", f"{OF}/versions/latest") == made
    assert client.ok("GET", OF)["last_number"] == 2
    page = client.ok("GET", f"{OF}/versions", query={"limit": 1, "order": "desc"})
    assert ([one["number"] for one in page["data"]], page["has_more"]) == ([2], True)
    rest = client.ok("GET", f"{OF}/versions", query={"order": "desc", "after": page["last_id"]})
    assert [one["number"] for one in rest["data"]] == [1]
    differs = client.ok("GET", f"{OF}/diff", query={"before": "1"})
    assert (differs["before"], differs["after"], differs["changed"]) == (1, 2, ["examples"])
    assert '+assistant = "b"\n' in differs["diff"]
    assert client.ok("GET", f"{OF}/versions/2/lineage")["parents"] == [1]


def test_a_file_goes_out_and_comes_in(client: Client) -> None:
    text = client.ok("GET", f"{OF}/versions/1/file")["file"]
    again = client.send("POST", "/v1/variants", {"file": text})
    assert (again.status, again.json["number"]) == (200, 1)
    other = client.send("POST", "/v1/variants", {"file": text, "name": "lab/other"}).json
    assert (other["project"], other["digest"]) == ("lab", again.json["digest"])
    listed = client.ok("GET", "/v1/variants", query={"project": "lab"})["data"]
    assert [one["name"] for one in listed] == ["other"]


def test_an_alias_moves_and_goes_back_once_for_a_key(client: Client) -> None:
    for number in (2, 3):
        client.send("POST", f"{OF}/versions", {"model": "echo", "system": str(number)})
    for number in (1, 2, 3):
        moved = client.ok("PUT", f"{OF}/aliases/prod", {"number": number})
    assert (moved["number"], moved["before"], moved["change"], moved["verdict"]) == (3, 2, "promoted", None)
    key = [("idempotency-key", "once")]
    answers = [client.send("POST", f"{OF}/aliases/prod/rollback", headers=key) for _ in range(3)]
    assert [answer.json["number"] for answer in answers] == [2, 2, 2]
    assert client.ok("POST", f"{OF}/aliases/prod/rollback")["number"] == 1
    assert [one["number"] for one in client.ok("GET", f"{OF}/aliases")["data"]] == [1]
    moves = client.ok("GET", f"{OF}/aliases/prod/moves", query={"order": "desc", "limit": 2})
    assert [one["change"] for one in moves["data"]] == ["rolled_back"] * 2
    assert client.send("DELETE", OF).status == 409
    assert client.ok("DELETE", f"{OF}/aliases/prod")["number"] is None
    assert client.ok("DELETE", OF)["name"] == "support"
    assert client.send("GET", OF).status == 404


def test_a_promotion_may_have_a_requirement(client: Client) -> None:
    client.send("POST", f"{OF}/versions", {"model": "echo"})
    require = {"evaluation": "quiz"}
    for number in (1, 2):
        refused = client.send("PUT", f"{OF}/aliases/prod", {"number": number, "require": require})
        assert (refused.status, b"no completed run of 'quiz' on version %d" % number in refused.raw) == (409, True)


WRONG: list[tuple[str, Any, list[object]]] = [
    (f"{OF}/versions", {}, ["body", "model"]),
    (f"{OF}/versions", {"model": "echo", "seed": 1}, ["body", "seed"]),
    (f"{OF}/versions", {"model": "echo", "template": "{a.b}"}, ["body", "template"]),
    (f"{OF}/versions", {"model": "echo", "template": "none"}, ["body", "template"]),
    (f"{OF}/versions", {"model": "echo", "parameters": {"n": 2}}, ["body", "parameters", "n"]),
    (f"{OF}/versions", {"model": "echo", "examples": [{"user": "a"}]}, ["body", "examples", "0", "assistant"]),
    (f"{OF}/versions", {"model": "echo", "examples": [{"assistant": "a"}]}, ["body", "examples", "0"]),
    (f"{OF}/versions", {"model": "echo", "parent": 0}, ["body", "parent"]),
    ("/v1/variants/desk/..%20/versions", {"model": "echo"}, ["body", "name"]),
    ("/v1/variants", {"file": "not toml"}, ["body", "file"]),
    ("/v1/variants", {"file": 'name = "a/b"\nmodel = "echo"\nx = 1'}, ["body", "file", "x"]),
    ("/v1/variants", {"file": 'name = "a/b"\nmodel = "echo"', "name": "b"}, ["body", "name"]),
]


@each_case(("path", "body", "loc"), WRONG)
def test_a_body_that_does_not_fit_is_refused_at_its_place(client: Client, path: str, body: Any, loc: Any) -> None:
    answer = client.send("POST", path, body)
    assert (answer.status, answer.locs) == (422, [loc])


def test_what_is_not_there_or_not_the_caller_s_is_not_found(client: Client) -> None:
    client.platform.variants.publish("globex/desk/theirs", model="echo")
    for path in ("/v1/variants/desk/theirs", f"{OF}/versions/9", f"{OF}/versions/beta", f"{OF}/versions/latest/x"):
        assert client.send("GET", path).status == 404
    assert client.send("GET", "/v1/variants/desk/theirs", query={"entity": "globex"}).status == 403
