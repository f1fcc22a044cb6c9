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
