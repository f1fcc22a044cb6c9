"""What a rollout with a shadow adds to a call, next to LiteLLM's mirror (`silent_model` of its router), in one process.

    python -m venv /tmp/mirror && /tmp/mirror/bin/pip install litellm==1.99.4 -e .
    /tmp/mirror/bin/python benchmarks/rollouts.py [TURNS]

Prints JSON: milliseconds of a call, of each kind, each the median of so many turns: at the median and at p99, and at
p99 of the caller's own CPU time, which nothing else on the machine changes. The kinds alternate call by call, so what
else the machine does falls on all of them alike. `plain` names an alias without a
rollout, `rollout` one of which half of the users have the new step, `shadow` one of which a tenth of the requests is
mirrored in the background. LiteLLM answers by itself (`mock_response`); its silent model gets the same share.
"""

import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))

CALLS, TURNS, SHARE = 300, 5, 0.1
PAUSE = 0.002
"""Seconds between calls: what is mirrored is asked meanwhile, as on a server that is not full."""

Call = Callable[[int], object]


def ours(path: str) -> tuple[Any, Mapping[str, Call]]:
    """Return a platform, and calls of an alias without a rollout, with one, and with one that is mirrored."""
    from modelyard import open_platform

    platform = open_platform(path or None)
    rows = [{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]}]
    for name in ("plain", "rollout", "shadow"):
        platform.models.create(name, project="desk", base_model="tabular-mini")
        platform.training.sft(f"desk/{name}", rows, epochs=1)
        platform.worker().run_until_idle()
        platform.models.promote(f"desk/{name}", 0)
    platform.models.roll_out("desk/rollout", 1, canary=[0.5, 1.0])
    shadow = {"answers": 100_000, "share": SHARE, "purse": "1000"}
    platform.models.roll_out("desk/shadow", 1, shadow=shadow)

    def call(name: str) -> Call:
        asked = {"model": f"desk/{name}:prod", "messages": "hello", "max_tokens": 8}
        return lambda at: platform.chat.complete(**asked, user=f"user {at % 100}")

    return platform, {name: call(name) for name in ("plain", "rollout", "shadow")}


def theirs() -> Mapping[str, Call]:
    """Return calls of LiteLLM's router, without and with its silent model."""
    import litellm
    from litellm import Router

    litellm.suppress_debug_info = True
    told = {"model": "openai/m", "api_key": "none", "mock_response": "yes"}
    silent = {**told, "silent_model": "candidate"}
    names = {"plain": told, "mirrored": silent, "candidate": told}
    router = Router([{"model_name": name, "litellm_params": params} for name, params in names.items()])
    said: Any = [{"role": "user", "content": "hello"}]
    chance = random.Random(0)

    def mirrored(_: int) -> object:
        return router.completion(model="mirrored" if chance.random() < SHARE else "plain", messages=said)

    return {"litellm": lambda _: router.completion(model="plain", messages=said), "litellm mirror": mirrored}


def turn(kinds: Mapping[str, Call]) -> Mapping[str, tuple[float, ...]]:
    """Return the median, the 99th percentile, and that of CPU time, of each kind in milliseconds."""
    took: dict[str, list[float]] = {name: [] for name in kinds}
    used: dict[str, list[float]] = {name: [] for name in kinds}
    order = [*kinds]
    for at in range(CALLS):
        random.shuffle(order)
        for name in order:
            time.sleep(PAUSE)
            began, worked = time.perf_counter(), time.thread_time()
            kinds[name](at)
            used[name].append((time.thread_time() - worked) * 1000)
            took[name].append((time.perf_counter() - began) * 1000)
    return {name: (statistics.median(took[name]), _p99(took[name]), _p99(used[name])) for name in kinds}


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


def main(turns: int) -> None:
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for store in ("", str(Path(folder) / "yard.db")):
            platform, kinds = ours(store)
            if not store:
                kinds = {**kinds, **theirs()}
            with platform, platform.upkeep():
                turn({name: lambda at, call=call: call(at) for name, call in kinds.items()})
                seen = [turn(kinds) for _ in range(turns)]
            found["file" if store else "memory"] = {
                name: [round(statistics.median(one[name][at] for one in seen), 4) for at in range(3)] for name in kinds
            }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else TURNS)
