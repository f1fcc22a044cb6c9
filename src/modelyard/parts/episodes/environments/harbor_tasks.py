"""Task folders of Harbor (`harbor`, unmodified): an attempt is one of its trials, with its agent and its verifier.

Where a trial runs, such as a container, is what the environment's configuration says: Harbor starts it, not we.
"""

import asyncio
import logging
import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from modelyard.errors import InvalidInput
from modelyard.parts.episodes.environments.processes import (
    API_KEY,
    BASE_URL,
    answer,
    object_of,
    package,
    refused,
    result_of,
)
from modelyard.parts.episodes.handle import client_variables

MODEL = "openai/episode"
"""A name with a provider, as Harbor's agents want it, that no model has: the trained one."""

TASK_FILE = "task.toml"


def environment_of(
    folder: str | Path, agent: Mapping[str, Any], environment: Mapping[str, Any], reward: str | None
) -> dict[str, Any]:
    """Return task folders as `tasks`, and the `agent` that runs trials. Raises `InvalidInput`, `MissingExtra`."""
    kind, trial = package("harbor.models.task.task", "harbor").Task, package("harbor.models.trial.config", "harbor")
    with refused("folder", "is no path"):
        place = Path(folder).resolve()
        found = [place] if (place / TASK_FILE).is_file() else sorted(one.parent for one in place.glob(f"*/{TASK_FILE}"))
    if not found:
        raise InvalidInput.at("folder", msg=f"holds no task of Harbor: neither {TASK_FILE} nor folders with one")
    how = {
        "agent": object_of(agent, "agent", '{"name": "terminus-2"}'),
        "environment": object_of(environment, "environment", '{"type": "docker"}'),
    }
    if not how["agent"].get("name") and not how["agent"].get("import_path"):
        raise InvalidInput.at("agent", msg='names none; give {"name": ...} or {"import_path": ...}, as Harbor takes it')
    for name, config in (("agent", trial.AgentConfig), ("environment", trial.EnvironmentConfig)):
        with refused(name, "is none that Harbor takes"):
            config.model_validate(how[name])
    if reward is not None and not isinstance(reward, str):
        raise InvalidInput.at("reward", msg="must be the name of one of the verifier's rewards")
    tasks = []
    for one in found:
        with refused("folder", f"holds {one.name}, which Harbor does not read"):
            task = kind(one)
        tasks.append({"task": task.name, "path": str(one), "instruction": task.instruction})
    return {"tasks": tasks, "agent": partial(attempt, trial=how, reward=reward)}


def attempt(
    *, base_url: str, api_key: str, task: Mapping[str, Any], trial: Mapping[str, Any], reward: str | None
) -> float:
    """Run a trial, and return the reward of its verifier. Raises RuntimeError with what has failed."""
    return float(result_of(__name__, base_url, api_key, {"path": task["path"], "reward": reward, **trial}))


def rewarded(path: str, reward: str | None, agent: Mapping[str, Any], environment: Mapping[str, Any]) -> float:
    """Run the trial in this process, whose environment has the address and the key."""
    logging.disable(logging.INFO)  # it prints each command
    variables = client_variables(os.environ[BASE_URL].removesuffix("/inference/v1"), os.environ[API_KEY])
    os.environ.update(variables)  # for what calls from here; what is in a container gets those of its agent
    asked = {"model_name": MODEL, **agent, "env": {**variables, **agent.get("env", {})}}
    with TemporaryDirectory() as folder:
        config = {"task": {"path": path}, "trials_dir": folder, "agent": asked, "environment": environment}
        result = asyncio.run(_run(config))
    if not result.reward_valid:
        errors = result.recorded_exceptions()
        raise RuntimeError(
            f"{errors[0].exception_type}: {errors[0].exception_message}" if errors else "the verifier gave no reward"
        )
    rewards = result.verifier_result.rewards
    if reward is None and len(rewards) == 1:
        (reward,) = rewards
    if reward not in rewards:
        raise RuntimeError(f"there is no reward {reward!r} but {', '.join(rewards)}; name one with reward=")
    return float(rewards[reward])


async def _run(config: Mapping[str, Any]) -> Any:
    trial = package("harbor.trial.trial", "harbor").Trial
    wanted = package("harbor.models.trial.config", "harbor").TrialConfig
    made = await trial.create(wanted.model_validate(config))
    return await made.run()


if __name__ == "__main__":
    answer(rewarded)
