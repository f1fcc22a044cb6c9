"""Agents of loops: programs that know an address, a key and a task, and use a client that no one here wrote."""

import json
import threading
import urllib.request
from collections.abc import Mapping
from typing import Any


def ask(base_url: str, api_key: str, messages: list[dict[str, str]], path: str = "/chat/completions") -> str:
    """Ask for an answer of up to six tokens, under the name of another service's model."""
    body = json.dumps({"model": "gpt-4o", "messages": messages, "max_tokens": 6}).encode()
    headers = {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(base_url + path, body, headers)) as answered:
        return str(json.load(answered)["choices"][0]["message"]["content"])


def talks(base_url: str, api_key: str, task: Mapping[str, Any]) -> str:
    """Ask twice; the second question has the first answer before it."""
    messages = [{"role": "user", "content": task["question"]}]
    first = ask(base_url, api_key, messages)
    messages += [{"role": "assistant", "content": first}, {"role": "user", "content": "And then?"}]
    return f"{first} {ask(base_url, api_key, messages)}"


async def talks_later(base_url: str, api_key: str, task: Mapping[str, Any]) -> str:
    return talks(base_url, api_key, task)


def says_nothing(base_url: str, api_key: str, task: Mapping[str, Any]) -> None:
    talks(base_url, api_key, task)


def rates_itself(base_url: str, api_key: str, task: Mapping[str, Any], scale: float = 1.0) -> float:
    return scale * len(talks(base_url, api_key, task))


def fails_in_lines(base_url: str, api_key: str, task: Any) -> None:
    raise RuntimeError("Command failed:\n  docker compose\n\nUsage: docker")


def times_out(base_url: str, api_key: str, task: Any) -> None:
    raise TimeoutError


def rates_itself_nan(base_url: str, api_key: str, task: Any) -> float:
    return float("nan")


def fails(base_url: str, api_key: str, task: Mapping[str, Any]) -> str:
    raise RuntimeError("the agent is broken\0")


def leaves(base_url: str, api_key: str, task: Mapping[str, Any]) -> str:
    raise SystemExit(2)


def fails_at_times(base_url: str, api_key: str, task: Mapping[str, Any]) -> str:
    """Fail where the answer has an odd length, as an agent does that cannot read it."""
    said = talks(base_url, api_key, task)
    if len(said) % 2:
        raise ValueError("cannot read that")
    return said


WAITS = threading.Event()
"""Set when the agents that hang may go on."""


def hangs(base_url: str, api_key: str, task: Mapping[str, Any]) -> str:
    ask(base_url, api_key, [{"role": "user", "content": task["question"]}])
    WAITS.wait(60)
    return "late"


def length(output: str, row: Mapping[str, Any]) -> float:
    return len(output) / 100


def one(output: str, row: Mapping[str, Any]) -> float:
    return 1.0
