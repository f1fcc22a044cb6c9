"""An agent that a loop trains: a function that other processes import, and calls with an address, a key and a task."""

import inspect
from collections.abc import Callable, Mapping
from datetime import timedelta
from decimal import Decimal
from functools import partial
from typing import Any, TypedDict

from modelyard.errors import InvalidInput
from modelyard.formats.json import as_json
from modelyard.lazy import asyncio
from modelyard.platform.evaluations.scorers import import_path, load

AgentFunction = Callable[..., Any]
ARGUMENTS = ("base_url", "api_key", "task")


AGENT = "agent"
"""The member of a loop's spec by which it is one of an agent."""


class AgentOptions(TypedDict, total=False):
    """The options of a loop that trains an agent (docs/how-to/train-your-agent.md)."""

    agent: AgentFunction
    max_steps_off_policy: int
    url: str | None
    deadline: timedelta
    budget: Decimal | int | str | None


def returned(output: Any, row: Mapping[str, Any]) -> Any:
    """Return what the agent has returned: the reward of a loop that was given none."""
    return output


def agent_spec(agent: object) -> Mapping[str, Any]:
    """Return an agent as a job stores it: the path from which it is imported, and arguments that a `partial` gives it.
    Raises `InvalidInput`."""
    function, given = (agent.func, agent.keywords) if isinstance(agent, partial) else (agent, {})
    if not callable(function) or (isinstance(agent, partial) and agent.args):
        raise InvalidInput.at("agent", msg=f"must be a function of {', '.join(ARGUMENTS)}, or a partial by keywords")
    try:
        inspect.signature(agent).bind(**dict.fromkeys(ARGUMENTS))  # type: ignore[arg-type]  # it is callable
    except TypeError as wrong:
        raise InvalidInput.at("agent", msg=f"must be a function of {', '.join(ARGUMENTS)}: {wrong}") from None
    path = import_path(function)
    if path is None:
        name = getattr(function, "__qualname__", repr(function))
        msg = (
            f"{name} cannot be imported by another process, in which the loop may be resumed; define it at the top of "
            "a module that workers have (not in __main__, a notebook or another function)"
        )
        raise InvalidInput.at("agent", msg=msg)
    return {"path": path, "with": as_json(dict(given), at=("agent",))}


def loaded(spec: Mapping[str, Any]) -> AgentFunction:
    """Return the agent that a job stores. Raises `EvaluationError` where it cannot be imported."""
    function: AgentFunction = load(spec["path"])
    return partial(function, **spec["with"]) if spec["with"] else function


def run_agent(agent: AgentFunction, base_url: str, api_key: str, task: Mapping[str, Any]) -> Any:
    """Call an agent, and wait for one that is a coroutine. Returns what it returns; raises what it raises."""
    found = agent(base_url=base_url, api_key=api_key, task=task)
    return asyncio.run(_awaited(found)) if inspect.isawaitable(found) else found


async def _awaited(found: Any) -> Any:
    return await found
