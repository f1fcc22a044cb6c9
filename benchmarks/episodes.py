"""A call with the key of an episode, next to one with another key: python benchmarks/episodes.py [CONVERSATIONS].

It prints JSON. Conversations of eight turns over HTTP without a socket, in turns: microseconds of CPU time a call, the
least of three, and their ratio. With a number of conversations, instructions a call, counted by valgrind: neighbours
change nothing in them. A call of an episode is kept with its tokens and log-probabilities before it is answered.
`stored` is a plain call whose answer is stored on request, and `detailed` one that asks for tokens and
log-probabilities. The echo model costs nothing: its ratio is that of the platform, and of saying its tokens.
"""

import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "shared"))

import _instructions

from http_client import Client, client_of
from modelyard import open_platform

TURNS, ROUNDS, WARM = 8, 3, 2
PATH = "/inference/v1/chat/completions"
WORKLOADS = {"echo": ("echo", "word " * 20, 100, 30), "tabular": ("desk/support", "Where is my refund?", 60, 4)}
"""The model, what is asked, how many tokens an answer has at most, and how many conversations are measured."""
KINDS: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "stored": {"store": True},
    "detailed": {"logprobs": True, "return_token_ids": True},
    "episode": {},
}


def talk(client: Client, key: str, model: str, asked: str, tokens: int, more: Mapping[str, Any]) -> None:
    """Hold a conversation."""
    told: list[dict[str, Any]] = [{"role": "user", "content": asked}]
    for seed in range(TURNS):
        body = {"model": model, "messages": told, "max_tokens": tokens, "seed": seed, **more}
        answer = client.send("POST", PATH, body, key=key, check=False)
        assert answer.status == 200, answer.raw
        said = answer.json["choices"][0]["message"]["content"]
        told += [{"role": "assistant", "content": said}, {"role": "user", "content": asked}]


@contextmanager
def opened(store: str | None, episodes: int) -> Iterator[tuple[Client, list[str]]]:
    """A client, and the keys of so many episodes."""
    with open_platform(store) as platform:
        platform.models.create("support", project="desk", entity="acme", base_model="tabular-mini")
        client = client_of(platform)
        owner = platform.acting_as(platform.keys.authenticate(client.key))
        yield client, [one.key for one in owner.episodes.group("measured", model="desk/support", size=episodes)]


def measured(store: str | None, model: str, asked: str, tokens: int, count: int) -> dict[str, float]:
    """Return what a call costs, of each kind."""
    least: dict[str, float] = {}
    with opened(store, ROUNDS * count) as (client, keys):
        for _ in range(ROUNDS):
            for kind, more in KINDS.items():
                used = [keys.pop() if kind == "episode" else client.key for _ in range(count)]
                began = time.process_time()
                for key in used:
                    talk(client, key, model, asked, tokens, more)
                cost = (time.process_time() - began) / count / TURNS * 1e6
                least[kind] = min(cost, least.get(kind, cost))
    return least


def counted(store: str | None, name: str, count: int) -> dict[str, float]:
    """Return how many instructions a call takes, of each kind."""
    command = [sys.executable, __file__, str(count), name, store or ""]
    return {
        kind: cost / TURNS
        for kind, cost in _instructions.counted(command, Path(__file__).parents[1] / "src", count).items()
    }


def run_in_forks(count: int, name: str, store: str) -> None:
    """Print for each kind the processes that hold no conversations, and so many."""
    store = store and f"{store}-{os.getpid()}"
    _run(name, store and f"{store}-first", "episode", 1)
    gc.collect()
    gc.freeze()
    for kind in KINDS:
        pids = []
        for number in (0, count):
            if not (pid := os.fork()):
                _run(name, store and f"{store}-{kind}-{number}", kind, number)
                os._exit(0)
            assert os.waitpid(pid, 0)[1] == 0, kind
            pids.append(pid)
        print(kind, *pids, flush=True)


def _run(name: str, store: str, kind: str, count: int) -> None:
    *asked, _ = WORKLOADS[name]
    with opened(store or None, WARM + count) as (client, keys):
        for key in keys:
            talk(client, key if kind == "episode" else client.key, *asked, KINDS[kind])


def main() -> None:
    if len(sys.argv) > 2:
        run_in_forks(int(sys.argv[1]), *sys.argv[2:])
        return
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, workload in WORKLOADS.items():
            for place, store in (("memory", None), ("SQLite", str(Path(folder, f"{name}.db")))):
                cost = counted(store, name, int(sys.argv[1])) if len(sys.argv) > 1 else measured(store, *workload)
                ratios = {f"to {kind}": round(cost["episode"] / cost[kind], 2) for kind in ("plain", "detailed")}
                found[f"{name} in {place}"] = {**{kind: round(value) for kind, value in cost.items()}, **ratios}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
