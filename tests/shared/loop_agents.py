"""Agents of loops: programs that know an address, a key and a task, and use a client that no one here wrote."""

import json
import threading
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4


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


TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


def post(base_url: str, api_key: str, path: str, body: Mapping[str, Any]) -> bytes:
    """Return what a route answers, under the name of another service's model."""
    headers = {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"}
    data = json.dumps({"model": "gpt-4o", **body}).encode()
    with urllib.request.urlopen(urllib.request.Request(base_url + path, data, headers)) as answered:
        return bytes(answered.read())


def message(base_url: str, api_key: str, messages: list[Any], **options: Any) -> Any:
    """Return the message that a chat completion answers."""
    body = {"messages": messages, "max_tokens": 6, **options}
    return json.loads(post(base_url, api_key, "/chat/completions", body))["choices"][0]["message"]


def uses_a_tool(base_url: str, api_key: str, task: Mapping[str, Any]) -> str:
    """Take an answer for a call of a tool, under an id of its own, as frameworks do, and ask on."""
    messages: list[Any] = [{"role": "user", "content": task["question"]}]
    first, id_ = message(base_url, api_key, messages, tools=[TOOL])["content"], f"call-{uuid4()}"
    called = {"id": id_, "type": "function", "function": {"name": "look", "arguments": json.dumps({"at": first})}}
    messages += [{"role": "assistant", "content": None, "tool_calls": [called]}]
    messages += [{"role": "tool", "tool_call_id": id_, "content": "a box"}]
    return f"{first} {message(base_url, api_key, messages, tools=[TOOL])['content']}"


def asks_at_once(base_url: str, api_key: str, task: Mapping[str, Any]) -> str:
    """Ask four questions at a time, and one of them twice."""
    asked = [[{"role": "user", "content": f"{task['question']} {place}"}] for place in range(4)]
    with ThreadPoolExecutor(4) as threads:
        said = list(threads.map(lambda messages: str(message(base_url, api_key, messages)["content"]), asked))
    return " ".join([*said, str(message(base_url, api_key, asked[0])["content"])])


def asks_every_route(base_url: str, api_key: str, task: Mapping[str, Any]) -> str:
    """Ask on each route, whole and streamed, and for several choices."""
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": task["question"]}], "max_tokens": 6}
    text: dict[str, Any] = {"prompt": task["question"], "max_tokens": 6}
    for streamed in (False, True):
        post(base_url, api_key, "/chat/completions", {**chat, "stream": streamed, "n": 3})
        post(base_url, api_key, "/completions", {**text, "stream": streamed})
        post(base_url, api_key, "/responses", {"input": "Hello", "max_output_tokens": 16, "stream": streamed})
        post(base_url.replace("/inference", ""), api_key, "/messages", {**chat, "stream": streamed})
    return str(message(base_url, api_key, chat["messages"])["content"])


def names_a_seed(base_url: str, api_key: str, task: Mapping[str, Any]) -> str:
    return str(message(base_url, api_key, [{"role": "user", "content": task["question"]}], seed=5)["content"])
