"""Environments of OpenEnv (`openenv`, or `openenv-core`, unmodified), at the address of their server.

An attempt is one session: the model reads what is observed, and what it answers is the action, until the environment is
done. Of an environment with MCP tools, the model calls these. The reward is what its steps add up to.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from http.client import HTTPException
from typing import Any
from urllib.request import urlopen

from modelyard.errors import InvalidInput
from modelyard.parts.episodes.environments.asking import asked, in_time
from modelyard.parts.episodes.environments.processes import MODEL, line_of, object_of, package, refused

CONNECT_SECONDS = 10
OURS = {"messages", "stream", "tools", "n"}  # of the options of a chat, what an attempt gives itself
NO_ARGUMENTS = "The arguments are no JSON object."
TOOL_FIELDS = {"tool_name", "arguments"}


def environment_of(
    url: str,
    resets: Sequence[Mapping[str, Any]],
    action: str | None,
    observation: str | None,
    turns: int,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """Return `resets` as `tasks`, and the `agent` that plays sessions. Raises `InvalidInput`, `MissingExtra`."""
    package("openenv.core", "openenv")
    if type(turns) is not int or turns < 1:
        raise InvalidInput.at("turns", msg="must be a whole number from 1")
    listed = isinstance(resets, Iterable) and not isinstance(resets, str | Mapping)
    tasks = [object_of(one, "resets", '{"seed": 1}') for one in resets] if listed else []
    if not tasks:
        msg = 'must list one or more; each is what the environment is reset with, such as [{"seed": 1}]'
        raise InvalidInput.at("resets", msg=msg)
    if taken := sorted(OURS & set(options)):
        raise InvalidInput.at(taken[0], msg="is no option here, as each attempt gives its own")
    schema = _schema(url)
    with refused("url", "has a schema that cannot be read"):
        field, observed = _action_field(schema["action"], action), schema["observation"].get("properties", {})
        known = observation is None or observation in observed or field is None
    if not known:
        raise InvalidInput.at("observation", msg=f"is none of the observation's fields: {', '.join(observed)}")
    given = object_of(options, "options", '{"max_tokens": 40}')
    how: Any = {"url": url, "field": field, "observation": observation, "turns": turns, "options": given}
    return {"tasks": tasks, "agent": partial(attempt, **how)}


def attempt(
    *,
    base_url: str,
    api_key: str,
    task: Mapping[str, Any],
    url: str,
    field: str | None,
    observation: str | None,
    turns: int,
    options: Mapping[str, Any],
) -> float:
    """Play one session, and return the sum of its rewards. Raises RuntimeError if there is none."""
    with in_time("the environment"), package("openenv.core", "openenv").GenericEnvClient(url).sync() as env:
        began = env.reset(**task)
        messages = [{"role": "user", "content": _text(began.observation, observation)}]
        body: dict[str, Any] = {"model": MODEL, **options}
        if field is None:
            body["tools"] = [_tool(one) for one in env.step({"type": "list_tools"}).observation["tools"]]
        rewards, done = [began.reward], began.done
        for _ in range(turns):
            if done:
                break
            said = asked(base_url, api_key, {**body, "messages": messages})
            messages.append(said)
            steps = [*_steps(said, field)]
            if not steps:
                break
            for call, action in steps:
                if action is None:
                    messages.append({"role": "tool", "tool_call_id": call, "content": NO_ARGUMENTS})
                    continue
                result = env.step(action)
                rewards.append(result.reward)
                done = done or result.done
                answered = _text(result.observation, observation if field else "result")
                to = {"role": "tool", "tool_call_id": call} if call else {"role": "user"}
                messages.append({**to, "content": answered})
    given = [float(reward) for reward in rewards if reward is not None]
    if not given:
        raise RuntimeError(f"the environment gave no reward in {len(rewards) - 1} steps")
    return sum(given)


def _steps(said: Mapping[str, Any], field: str | None) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Yield the actions of an answer, each with the id of its tool call; None for one whose arguments are no object."""
    if field is not None:
        yield "", {field: said.get("content") or ""}
        return
    for call in said.get("tool_calls") or ():
        function = call["function"]
        try:
            arguments = json.loads(function["arguments"] or "{}")
        except ValueError:
            arguments = None
        action = {"type": "call_tool", "tool_name": function["name"], "arguments": arguments}
        yield call["id"], action if isinstance(arguments, dict) else None


def _text(observed: Mapping[str, Any], field: str | None) -> str:
    """Return what the model reads of an observation: a field, or else all that is in it, as JSON."""
    found: Any = None if field is None else observed.get(field)
    if found is None:  # such as the result of a tool that failed
        found = {name: value for name, value in observed.items() if name != "metadata" and value not in (None, "")}
    return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    parameters = tool.get("input_schema") or tool.get("inputSchema") or {"type": "object", "properties": {}}
    described = {"name": tool["name"], "description": tool.get("description") or "", "parameters": parameters}
    return {"type": "function", "function": described}


def _schema(url: str) -> Mapping[str, Any]:
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        raise InvalidInput.at("url", msg='must be the address of the server, such as "http://localhost:8000"')
    try:
        with urlopen(f"{url.rstrip('/')}/schema", timeout=CONNECT_SECONDS) as answered:  # noqa: S310
            schema: Mapping[str, Any] = json.load(answered)
            return {"action": schema["action"], "observation": schema["observation"]}
    except (OSError, ValueError, KeyError, TypeError, HTTPException) as error:
        msg = f"is no server of an OpenEnv environment that answers ({line_of(error)}); start it, and give its address"
        raise InvalidInput.at("url", msg=msg) from error


def _action_field(schema: Mapping[str, Any], named: str | None) -> str | None:
    """Return the field of an action that is the model's answer; None of actions that call tools."""
    fields = {name: value for name, value in schema.get("properties", {}).items() if name != "metadata"}
    if set(fields) >= TOOL_FIELDS and named is None:
        return None
    needed = [name for name in schema.get("required", ()) if name in fields]
    texts = [name for name in needed or fields if fields[name].get("type") == "string"]
    field = named if named is not None else (texts[0] if len(texts) == 1 else None)
    if field not in fields or set(needed) - {field}:
        msg = f"must name the only field that an action needs, a text; this one has {', '.join(fields)}"
        raise InvalidInput.at("action", msg=f"{msg} and needs {', '.join(needed) or 'none'}")
    return field
