"""Environments of verifiers (`verifiers` 0.4, unmodified): tasks of a taskset, played by its harness, with its rewards.

An attempt is one of its episodes, in a process of its own: its locks and clients belong to one event loop. Where the
harness runs, such as a container, is what the environment's own configuration says.
"""

import asyncio
from collections.abc import Mapping
from functools import partial
from itertools import islice
from typing import Any

from modelyard.errors import InvalidInput
from modelyard.parts.episodes.environments import processes
from modelyard.parts.episodes.environments.processes import API_KEY, MODEL, object_of, package, refused, result_of

MOST_TASKS = 100_000


def environment_of(environment: str | Mapping[str, Any], select: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `tasks` of an environment and the `agent` that plays them. Raises `InvalidInput`, `MissingExtra`."""
    vf = package("verifiers.v1", "verifiers")
    named = {"taskset": {"id": environment}} if isinstance(environment, str) else environment
    given = object_of(named, "environment", '{"taskset": {"id": "desk-tasks"}}, or the id of a taskset')
    with refused("select", "is none that verifiers takes"):
        chosen = vf.SelectConfig(**object_of(select, "select", '{"limit": 100}'))
    with refused("environment", "is none that verifiers can load"):
        loaded = vf.load_environment(vf.resolve_env_config(given))
        taskset = loaded.taskset.select(chosen)
        found = [*islice(taskset, MOST_TASKS + 1)] if taskset.bounded else []
    if not taskset.bounded or len(found) > MOST_TASKS:
        msg = f'has more than {MOST_TASKS} tasks, or no end of them; choose with select={{"limit": 100}}'
        raise InvalidInput.at("environment", msg=msg)
    if not found:
        raise InvalidInput.at("environment", msg="has no task that is selected")
    _player(loaded.config)
    task = found[0]
    if type(loaded).finalize is vf.Env.finalize and not task.hooks("reward") and not task.plugged_judges():
        raise InvalidInput.at("environment", msg="has no reward; give its task a method with @vf.reward, or a judge")
    return {
        "tasks": [{"idx": one.data.idx, "prompt": one.data.prompt_text} for one in found],
        "agent": partial(attempt, environment=given),
    }


def attempt(*, base_url: str, api_key: str, task: Mapping[str, Any], environment: Mapping[str, Any]) -> float:
    """Run an episode of one task, and return the reward of its rubric. Raises RuntimeError with what has failed."""
    return float(
        result_of(__name__, base_url, api_key, {"base_url": base_url, "idx": task["idx"], "environment": environment})
    )


def rewarded(base_url: str, idx: int, environment: Mapping[str, Any]) -> float:
    """Run the episode in this process, whose environment has the key."""
    vf = package("verifiers.v1", "verifiers")
    loaded = vf.load_environment(vf.resolve_env_config(dict(environment)))
    (task,) = loaded.taskset.include(idx=[idx])
    episode = asyncio.run(_episode(vf, loaded, task, base_url))
    player = _player(loaded.config)
    traces = [trace for trace in episode.traces if trace.agent.name == player]
    if not episode.ok:
        errors = [error for one in (episode, *episode.traces) for error in one.errors]
        raise RuntimeError(f"{errors[-1].type}: {errors[-1].message}" if errors else "the episode was not completed")
    if len(traces) != 1:
        raise RuntimeError(f"the environment ran {player} {len(traces)} times, and an attempt has one reward")
    rewards = traces[0].rewards
    if not rewards or None in rewards.values():
        raise RuntimeError(f"the environment gave no reward of {', '.join(rewards) or 'any name'}")
    return float(traces[0].reward)


async def _episode(vf: Any, loaded: Any, task: Any, base_url: str) -> Any:
    client = vf.EvalClientConfig(base_url=base_url, api_key_var=API_KEY)
    async with loaded.serving():
        return await loaded.run_episode(task, vf.ModelContext(model=MODEL, client=client))


def _player(config: Any) -> str:
    """Return the name of the agent that calls the trained model: the one without a client of its own."""
    vf = package("verifiers.v1", "verifiers")
    agents = {name: value for name, value in config if isinstance(value, vf.AgentConfig)}
    own = [name for name, agent in agents.items() if agent.client is None]
    if len(own) != 1:
        msg = f"has agents {', '.join(agents)}; give all but the one that is trained a client of its own"
        raise InvalidInput.at("environment", msg=msg)
    return str(own[0])


if __name__ == "__main__":
    processes.answer(rewarded)
