"""Stored completions over HTTP: listed, filtered and shown as they were answered, within the caller's scope."""

from typing import Any

import pytest

from modelyard import open_platform


@pytest.fixture
def client(client_for: Any) -> Any:
    with open_platform() as platform:
        yield client_for(platform)


def stored(client: Any, text: str, **members: Any) -> Any:
    return client.chat(text, store=True, **members).json


@pytest.mark.parametrize("base", ["/v1", "/inference/v1"])
def test_a_stored_completion_is_shown_as_it_was_answered(client: Any, base: str) -> None:
    answered = stored(client, "one two", model="tabular-mini", max_tokens=3, logprobs=True, top_logprobs=2, n=2)
    shown = client.send("GET", f"{base}/chat/completions/{answered['id']}").json
    assert shown == answered | {"metadata": {}}


def test_tool_calls_and_ids_are_kept(client: Any) -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    answered = stored(client, "hi", tools=tools, tool_choice="required", return_token_ids=True, metadata={"k": "v"})
    shown = client.send("GET", f"/v1/chat/completions/{answered['id']}").json
    assert shown == answered | {"metadata": {"k": "v"}}


def test_what_is_kept_may_be_larger_than_what_a_client_may_send(client: Any) -> None:
    """Log-probabilities have more structure than a body is allowed."""
    answered = stored(client, "a " * 8_000, logprobs=True, top_logprobs=2, metadata={"k": "v"})
    shown = client.send("GET", f"/v1/chat/completions/{answered['id']}")
    assert (shown.status, shown.json) == (200, answered | {"metadata": {"k": "v"}})


def test_a_listing_is_paged_and_filtered(client: Any) -> None:
    made = [stored(client, f"word{at}", metadata={"part": str(at % 2)})["id"] for at in range(5)]
    stored(client, "other", model="tabular-mini", max_tokens=1)
    client.chat("not kept")

    def ids(query: str) -> list[str]:
        return [one["id"] for one in client.send("GET", "/v1/chat/completions", query=query).json["data"]]

    assert ids("model=echo") == made
    assert ids("model=echo&order=desc&limit=2") == [made[4], made[3]]
    assert ids(f"model=echo&after={made[2]}") == made[3:]
    assert ids("metadata[part]=1") == [made[1], made[3]]
    page = client.send("GET", "/v1/chat/completions", query="limit=2").json
    assert (page["has_more"], page["first_id"], page["last_id"]) == (True, made[0], made[1])


def test_completions_of_others_are_not_there(client: Any) -> None:
    answered = stored(client, "secret")
    other = client.another("rival")
    missing = other.send("GET", "/v1/chat/completions/nothing")
    foreign = other.send("GET", f"/v1/chat/completions/{answered['id']}")
    assert (missing.status, foreign.status) == (404, 404)
    assert foreign.json["error"]["message"].replace(answered["id"], "nothing") == missing.json["error"]["message"]
    assert other.send("GET", "/v1/chat/completions").json["data"] == []


@pytest.mark.parametrize("base", ["/v1", "/inference/v1"])
def test_the_messages_of_a_request_are_listed(client: Any, base: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    said = [
        {"role": "system", "content": "be short"},
        {"role": "user", "content": [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}], "name": "u"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "found", "tool_call_id": "c"},
    ]
    made = client.send("POST", "/v1/chat/completions", {"model": "echo", "messages": said, "store": True}).json["id"]
    path = f"{base}/chat/completions/{made}/messages"
    page = client.send("GET", path).json
    assert [{name: one for name, one in message.items() if name != "id"} for message in page["data"]] == [
        said[0],
        {**said[1], "content": "a b", "content_parts": said[1]["content"]},
        *said[2:],
    ]
    ids = [message["id"] for message in page["data"]]
    assert (page["has_more"], page["first_id"], page["last_id"]) == (False, ids[0], ids[-1])
    first = client.send("GET", path, query="limit=2&order=desc").json
    assert ([one["id"] for one in first["data"]], first["has_more"]) == (ids[:1:-1], True)
    rest = client.send("GET", path, query=f"order=desc&after={first['last_id']}").json
    assert [one["id"] for one in rest["data"]] == ids[1::-1]
    assert client.send("GET", path, query="after=nothing", check=False).status == 400


def test_metadata_is_replaced_and_found_by(client: Any) -> None:
    answered = stored(client, "hi", metadata={"a": "1", "b": "2"})
    path = f"/v1/chat/completions/{answered['id']}"
    changed = client.send("POST", path, {"metadata": {"c": "3"}}).json
    assert changed == answered | {"metadata": {"c": "3"}} == client.send("GET", path).json
    found = client.send("GET", "/v1/chat/completions", query="metadata[c]=3").json["data"]
    assert [one["id"] for one in found] == [answered["id"]]
    assert client.send("POST", path, {"metadata": None}).json["metadata"] == {}
    for wrong in ({}, {"metadata": {"a": 1}}, {"metadata": {}, "metadta": {}}, {"metadata": {"k" * 65: "v"}}):
        assert client.send("POST", path, wrong, check=False).status == 400
    assert client.send("GET", path).json["metadata"] == {}


@pytest.mark.parametrize("base", ["/v1", "/inference/v1"])
def test_a_deleted_completion_is_gone_and_stays_booked(client: Any, base: str) -> None:
    answered = stored(client, "hi")
    path = f"{base}/chat/completions/{answered['id']}"
    gone = {"id": answered["id"], "object": "chat.completion.deleted", "deleted": True}
    assert client.send("DELETE", path).json == gone
    for method, end, body in (("GET", "", None), ("DELETE", "", None), ("GET", "/messages", None)):
        assert client.send(method, path + end, body, check=False).status == 404
    assert client.send("POST", path, {"metadata": {}}, check=False).status == 404
    assert answered["id"] in {entry.id for entry in client.platform.usage.list()}


def test_others_change_and_delete_nothing(client: Any) -> None:
    path = f"/v1/chat/completions/{stored(client, 'secret')['id']}"
    other = client.another("rival")
    for method, end, body in (("POST", "", {"metadata": {}}), ("DELETE", "", None), ("GET", "/messages", None)):
        assert other.send(method, path + end, body).status == 404
    assert client.send("GET", path).status == 200


def test_the_first_request_of_a_server_may_be_for_a_listing(client_for: Any) -> None:
    for method, status in (("GET", 200), ("OPTIONS", 204), ("PUT", 405)):
        with open_platform() as platform:
            answer = client_for(platform).send(method, "/v1/chat/completions", check=False)
            assert (answer.status, "GET" in answer.headers.get("allow", "GET")) == (status, True)
