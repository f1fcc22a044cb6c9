"""A call within an episode over HTTP, next to the same call through the interception server of verifiers.

    python tests/clients/lanes.py verifiers     makes the environment, once
    ~/.cache/modelyard/envs/lane-verifiers-*/bin/python benchmarks/interception.py [TURNS]

Prints JSON: microseconds of CPU a call of all server processes (the client's is not counted), the least of so many
turns of each kind, and what each is to a plain call. Conversations of eight answers of the echo model, whole, over one
connection: `plain` with a key of ours, `episode` with that of an episode, `detailed` with a key and the tokens and
log-probabilities that an episode keeps, `interception` through the unmodified server of verifiers before ours, a
rollout for each conversation, as its evaluations run it. It keeps messages in memory, and no tokens.
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))
os.environ["PYTHONPATH"] = sys.path[0]

from _peer_servers import clock_of, free_port
from _served import serve, served

ANSWERS, CONVERSATIONS, TURNS = 8, 30, 5
ASKED = "word " * 20
PATHS = {"interception": "/v1/chat/completions"}
DETAILS = {"logprobs": True, "return_token_ids": True}
KEY = "MEASURED_KEY"


def serve_ours(store: str, port: int, episodes: int) -> None:
    """Serve a platform; prints the port, a key, and the keys of so many episodes."""
    from modelyard import open_platform
    from modelyard.asgi import asgi_app
    from modelyard.parts.server.uvicorn_server import OPTIONS

    platform = open_platform(store or None)
    platform.models.create("support", project="desk", entity="acme", base_model="tabular-mini")
    key = platform.keys.create("acme").secret
    owner = platform.acting_as(platform.keys.authenticate(key))
    group = owner.episodes.group("measured", model="desk/support", size=episodes)
    serve(asgi_app(platform), json.dumps([port, key, [one.key for one in group]]), port, **OPTIONS)


def serve_theirs(upstream: int, rollouts: int) -> None:
    """Run the interception server; prints its port and the secrets of so many rollouts."""
    from verifiers.v1.clients import EvalClientConfig, ModelContext
    from verifiers.v1.configs.agent import AgentConfig
    from verifiers.v1.interception.server import InterceptionServer
    from verifiers.v1.session import RolloutSession
    from verifiers.v1.task import TaskData
    from verifiers.v1.trace import AgentInfo, Trace, TraceTask

    context = ModelContext(
        "echo", EvalClientConfig(base_url=f"http://127.0.0.1:{upstream}/inference/v1", api_key_var=KEY)
    )

    def rollout() -> RolloutSession:
        task = TraceTask(type="Task", data=TaskData(prompt=ASKED))
        return RolloutSession(context, Trace(task=task, agent=AgentInfo(config=AgentConfig())))

    async def run() -> None:
        async with InterceptionServer() as server:
            secrets = [server.register(rollout())[0] for _ in range(rollouts)]
            print(json.dumps([urlsplit(server.base_url).port, "", secrets]), flush=True)
            await asyncio.Event().wait()

    asyncio.run(run())


def talk(connection: HTTPConnection, path: str, key: str, more: Mapping[str, Any]) -> None:
    """Hold a conversation."""
    told: list[dict[str, Any]] = [{"role": "user", "content": ASKED}]
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    for seed in range(ANSWERS):
        body = json.dumps({"model": "echo", "messages": told, "max_tokens": 100, "seed": seed, **more})
        connection.request("POST", path, body, headers)
        answer = connection.getresponse()
        raw = answer.read()
        assert answer.status == 200, raw
        said = json.loads(raw)["choices"][0]["message"]["content"]
        told += [{"role": "assistant", "content": said}, {"role": "user", "content": ASKED}]


def measured(store: str, turns: int) -> dict[str, float]:
    """Return what a call costs, of each kind, in microseconds of CPU."""
    wanted = (turns + 1) * CONVERSATIONS
    with ExitStack() as stack:
        ours, line = stack.enter_context(served(__file__, "ours", store, free_port(), wanted))
        port, key, episodes = json.loads(line)
        os.environ[KEY] = key
        theirs, line = stack.enter_context(served(__file__, "theirs", port, wanted))
        their_port, _, rollouts = json.loads(line)
        here, there = HTTPConnection("127.0.0.1", port), HTTPConnection("127.0.0.1", their_port)
        kinds: dict[str, tuple[HTTPConnection, list[str], Mapping[str, Any]]] = {
            "plain": (here, [key] * wanted, {}),
            "episode": (here, episodes, {}),
            "detailed": (here, [key] * wanted, DETAILS),
            "interception": (there, rollouts, {}),
        }
        least: dict[str, float] = {}
        for turn in range(turns + 1):
            for kind, (connection, keys, more) in kinds.items():
                connection.close()  # or the server has closed what was idle; it is opened by the first call
                before = [time.clock_gettime(clock_of(pid)) for pid in (ours, theirs)]
                for _ in range(CONVERSATIONS):
                    path = PATHS.get(kind, "/inference/v1/chat/completions")
                    talk(connection, path, keys.pop(), more)
                after = [time.clock_gettime(clock_of(pid)) for pid in (ours, theirs)]
                cost = (sum(after) - sum(before)) / CONVERSATIONS / ANSWERS * 1e6
                if turn:  # the first one warms up
                    least[kind] = min(cost, least.get(kind, cost))
        return least


def main() -> None:
    if sys.argv[1:2] == ["serve"]:
        which, *given = sys.argv[2:]
        if which == "ours":
            serve_ours(given[0], int(given[1]), int(given[2]))
        else:
            serve_theirs(int(given[0]), int(given[1]))
        return
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else TURNS
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for place, store in (("memory", ""), ("SQLite", str(Path(folder, "yard.db")))):
            cost = measured(store, turns)
            ratios = {f"{kind} to plain": round(value / cost["plain"], 2) for kind, value in cost.items()}
            del ratios["plain to plain"]
            found[place] = {**{kind: round(value) for kind, value in cost.items()}, **ratios}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
