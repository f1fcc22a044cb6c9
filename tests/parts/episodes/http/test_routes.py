"""Episodes over HTTP: with the key of a tenant, and with that of an episode."""

from collections.abc import Iterator

import pytest

from http_client import Client, client_of
from modelyard import open_platform

PATH = "/v1/episode-groups"
ASKED = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Where is my refund?"}], "max_tokens": 4}


@pytest.fixture
def client() -> Iterator[Client]:
    """A client with a key of acme, which has the model desk/support."""
    with open_platform() as platform:
        platform.models.create("support", project="desk", entity="acme", base_model="tabular-mini")
        yield client_of(platform)


def test_a_program_that_only_has_an_address_and_a_key(client: Client) -> None:
    made = client.ok("POST", PATH, {"name": "refunds", "model": "desk/support", "size": 2, "budget": "0.5"})
    group, episodes = made["group"], made["episodes"]
    for place, episode in enumerate(episodes):
        for path in ("/inference/v1/chat/completions", "/v1/chat/completions"):
            assert client.send("POST", path, ASKED, key=episode["key"]).status == 200
        answer = client.send("POST", f"/v1/episodes/{episode['id']}/reward", {"reward": place}, key=episode["key"])
        assert (answer.status, answer.json["state"]) == (200, "rewarded")
        other = episodes[1 - place]["id"]
        assert client.send("POST", f"/v1/episodes/{other}/reward", {"reward": 1}, key=episode["key"]).status == 404
    shown = client.ok("GET", f"/v1/episodes/{episodes[1]['id']}")
    assert [one["sequence"] for one in shown["turns"]] == [None, 0]
    assert shown["turns"][1]["messages"] == [{"role": "user", "content": "Where is my refund?"}]
    assert 0 < len(shown["turns"][1]["token_ids"]) == len(shown["turns"][1]["logprobs"]) <= 4  # fewer, if it ends early
    assert len(shown["turns"][1]["injected_token_ids"]) == shown["turns"][1]["prompt_tokens"]
    assert client.ok("POST", f"{PATH}/{group['id']}/close")["group"]["closed_at"]
    assert [one["id"] for one in client.ok("GET", PATH)["data"]] == [group["id"]]
    client.ok("DELETE", f"{PATH}/{group['id']}")
    assert client.send("GET", f"{PATH}/{group['id']}").status == 404


@pytest.mark.parametrize("body", [{}, {"reward": 1, "failure": "no"}, {"failure": ""}, {"reward": 1e101}])
def test_a_reward_or_a_failure_is_given(client: Client, body: dict[str, object]) -> None:
    made = client.ok("POST", PATH, {"name": "refunds", "model": "desk/support", "size": 1})
    refused = client.send("POST", f"/v1/episodes/{made['episodes'][0]['id']}/reward", body)
    assert refused.status == 422


def test_groups_of_one_seed_are_answered_the_same_on_each_route(client: Client) -> None:
    asked = {"name": "refunds", "model": "desk/support", "size": 1, "seed": 7}
    made = [client.ok("POST", PATH, asked) for _ in range(2)]
    assert [one["group"]["seed"] for one in made] == [7, 7]
    said = []
    for one in made:
        key = one["episodes"][0]["key"]
        answer = client.send("POST", "/inference/v1/chat/completions", ASKED, key=key).json
        again = client.send("POST", "/v1/messages", ASKED, key=key).json
        said.append((answer["choices"][0]["message"]["content"], again["content"][0]["text"]))
    assert said[0] == said[1]
    assert said[0][0] != said[0][1]


@pytest.mark.parametrize("seed", [-1, 2**63, "7"])
def test_a_seed_that_no_store_keeps_is_refused_at_its_place(client: Client, seed: object) -> None:
    asked = {"name": "refunds", "model": "desk/support", "size": 1, "seed": seed}
    refused = client.send("POST", PATH, asked, check=False)
    assert refused.status == 422
    assert [one["loc"] for one in refused.json["detail"]] == [["body", "seed"]]


def test_the_key_of_an_episode_makes_and_closes_no_group(client: Client) -> None:
    asked = {"name": "refunds", "model": "desk/support", "size": 1}
    made = client.ok("POST", PATH, asked)
    key = made["episodes"][0]["key"]
    assert client.send("POST", PATH, asked, key=key).status == 403
    assert client.send("POST", f"{PATH}/{made['group']['id']}/close", key=key).status == 403
    assert client.send("DELETE", f"{PATH}/{made['group']['id']}", key=key).status == 403
