"""What this part brings to the tests of all parts."""

from typing import Any

from modelyard import Platform

TABLES = {
    "episode_groups": "b178a24540be42d0",
    "episodes": "de4cdfc1048a404e",
    "episode_turns": "c6091bb8cc7e5145",
}


def fill(platform: Platform) -> None:
    platform.models.create("agent", project="desk", base_model="tabular-mini")
    group = platform.episodes.group("refunds-of-theirs", model="desk/agent", size=1)
    program = platform.acting_as(platform.keys.authenticate(group[0].key))
    program.chat.complete(model="desk/agent", messages="a question of theirs", max_tokens=2)
    group[0].fail("it went wrong for them")


def clear(platform: Platform) -> None:
    for one in [*platform.episodes.list()]:
        platform.episodes.delete(one.id)


def record(yard: Any, platform: Platform) -> None:
    platform.models.create("agent", project="desk", entity="acme", base_model="tabular-mini")
    asked = {"name": "refunds", "model": "desk/agent", "size": 2, "deadline": 600, "budget": "0.50", "seed": 7}
    made = yard.send("POST", "/v1/episode-groups", asked)
    group, first = made["group"]["id"], made["episodes"][0]
    program = platform.acting_as(platform.keys.authenticate(first["key"]))
    program.chat.complete(model="desk/agent", messages="Where is my refund?", max_tokens=2, seed=1)
    yard.send("GET", "/v1/episode-groups", limit=1)
    yard.send("POST", f"/v1/episodes/{first['id']}/reward", {"reward": 1.0})
    yard.send("GET", f"/v1/episodes/{first['id']}")
    yard.send("POST", f"/v1/episode-groups/{group}/close")
    yard.send("GET", f"/v1/episode-groups/{group}")
    yard.send("DELETE", f"/v1/episode-groups/{group}")
