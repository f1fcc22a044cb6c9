"""A call with the key of an episode, next to the same call with another key, as JSON: python benchmarks/episodes.py.

Conversations of eight turns over HTTP without a socket, in turns: microseconds of CPU time a call, the least of three,
and their ratio. A call of an episode is stored with its tokens and log-probabilities before it is answered; `stored`
is a plain call whose answer is stored on request. The echo model costs nothing: its ratio is that of the platform.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "shared"))

from http_client import Client, client_of
from modelyard import open_platform

TURNS, ROUNDS = 8, 3
PATH = "/inference/v1/chat/completions"
WORKLOADS = {"echo": ("echo", "word " * 20, 100, 30), "tabular": ("desk/support", "Where is my refund?", 60, 4)}
"""The model, what is asked, how many tokens an answer has at most, and how many conversations are measured."""


def talk(client: Client, key: str, model: str, asked: str, tokens: int, **more: Any) -> None:
    """Hold a conversation."""
    told: list[dict[str, Any]] = [{"role": "user", "content": asked}]
    for seed in range(TURNS):
        body = {"model": model, "messages": told, "max_tokens": tokens, "seed": seed, **more}
        answer = client.send("POST", PATH, body, key=key, check=False)
        assert answer.status == 200, answer.raw
        said = answer.json["choices"][0]["message"]["content"]
        told += [{"role": "assistant", "content": said}, {"role": "user", "content": asked}]


def measured(store: str | None, model: str, asked: str, tokens: int, count: int) -> dict[str, float]:
    """Return what a call costs, of each kind."""
    least: dict[str, float] = {}
    with open_platform(store) as platform:
        platform.models.create("support", project="desk", entity="acme", base_model="tabular-mini")
        client = client_of(platform)
        owner = platform.acting_as(platform.keys.authenticate(client.key))
        keys = iter(owner.episodes.group("measured", model="desk/support", size=ROUNDS * count))
        for _ in range(ROUNDS):
            own = [next(keys).key for _ in range(count)]
            for kind, used in (("plain", [client.key] * count), ("stored", [client.key] * count), ("episode", own)):
                began = time.process_time()
                for key in used:
                    talk(client, key, model, asked, tokens, **({"store": True} if kind == "stored" else {}))
                cost = (time.process_time() - began) / count / TURNS * 1e6
                least[kind] = min(cost, least.get(kind, cost))
    return {**{kind: round(cost) for kind, cost in least.items()}, "ratio": round(least["episode"] / least["plain"], 2)}


def main() -> None:
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, workload in WORKLOADS.items():
            found[f"{name} in memory"] = measured(None, *workload)
            found[f"{name} in SQLite"] = measured(str(Path(folder, f"{name}.db")), *workload)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
