"""Tasks of Inspect (`inspect_ai`, unmodified): each sample is a task, and its solver and its scorer are the agent.

An attempt evaluates one sample once, in a process of its own: the package allows one evaluation in a process at a time.
What a task needs besides, such as a sandbox, is the user's, as ever.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from inspect import getfile, unwrap
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from modelyard.errors import InvalidInput
from modelyard.parts.episodes.environments.processes import answer, object_of, package, refused, result_of
from modelyard.platform.evaluations.scorers import import_path, load

MODEL = "openai-api/episode/model"
"""What the evaluation calls: a server like OpenAI's, and a name that no model has, which is the trained one."""

ZERO = ("i", "n", "no", "false")
"""The texts that are 0 for Inspect, besides numbers. It takes any other that it does not know for 0, too."""


def environment_of(task: Callable[..., Any], scorer: str | None, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return `tasks` and `agent` for `training.loop` from a function with the decorator of Inspect's tasks. Raises
    `InvalidInput`, `MissingExtra`."""
    package("inspect_ai", "inspect-ai")
    arguments = object_of(arguments, "arguments", "{}")
    if not callable(task):
        raise InvalidInput.at("task", msg=f"must be a function that makes a task of Inspect, no {type(task).__name__}")
    if scorer is not None and not isinstance(scorer, str):
        raise InvalidInput.at("scorer", msg="must be the name of one of the task's scorers")
    with refused("task", "is none that Inspect can make"):
        made = task(**arguments)
    if not hasattr(made, "dataset") or not hasattr(made, "scorer"):
        raise InvalidInput.at("task", msg="must be a function that returns a task of Inspect")
    if not made.scorer:
        raise InvalidInput.at("task", msg="has no scorer, so that nothing is a reward; give it one")
    path = import_path(task)
    if path is None:
        msg = "cannot be imported by another process; define it at the top of a module (not in __main__, a notebook or"
        raise InvalidInput.at("task", msg=f"{msg} another function)")
    samples = [{"sample": name, "input": _text(one.input)} for name, one in _named(made.dataset)]
    twice = [name for name, count in Counter(one["sample"] for one in samples).items() if count > 1]
    if twice:
        raise InvalidInput.at("task", msg=f"has several samples with the id {twice[0]!r}; give each its own")
    folder = str(Path(getfile(unwrap(task))).resolve().parent)
    return {
        "tasks": samples,
        "agent": partial(attempt, path=path, folder=folder, scorer=scorer, arguments=arguments),
    }


def attempt(
    *,
    base_url: str,
    api_key: str,
    task: Mapping[str, Any],
    path: str,
    folder: str,
    scorer: str | None,
    arguments: Mapping[str, Any],
) -> float:
    """Evaluate one sample, and return its score. Raises RuntimeError with what has failed."""
    given = {"path": path, "sample": task["sample"], "scorer": scorer, "arguments": arguments}
    return float(result_of(__name__, base_url, api_key, given, folder))


def rewarded(path: str, sample: str | int, scorer: str | None, arguments: Mapping[str, Any]) -> float:
    """Evaluate the sample in this process, whose environment has the address and the key."""
    inspect = package("inspect_ai", "inspect-ai")
    function: Callable[..., Any] = load(path)
    made = function(**arguments)
    found = [one for name, one in _named(made.dataset) if name == sample]
    if len(found) != 1:
        raise RuntimeError(f"the task has {len(found)} samples with the id {sample!r}, and had one")
    data = package("inspect_ai.dataset", "inspect-ai").MemoryDataset(found)
    one = inspect.task_with(made, dataset=data, epochs=1, model=None)  # a task's own model would not be trained
    with TemporaryDirectory() as logs:
        shown = {"display": "none", "score_display": False, "log_dir": logs, "log_format": "json"}
        (log,) = inspect.eval(one, model=MODEL, **shown)
    samples = log.samples or []
    if log.status != "success" or len(samples) != 1 or samples[0].error is not None:
        error = (samples[0].error if samples else None) or log.error
        raise RuntimeError(f"the sample was not evaluated: {log.status}: {getattr(error, 'message', 'no error')}")
    scores = samples[0].scores or {}
    if not scores:
        raise RuntimeError("the scorer gave no score")
    if scorer is None and len(scores) == 1:
        (scorer,) = scores
    if scorer is None or scorer not in scores:
        raise RuntimeError(f"there is no score {scorer!r} but {', '.join(scores)}; name one with scorer=")
    return _number(scorer, scores[scorer].value)


def _number(name: str, value: Any) -> float:
    """Return a score as Inspect makes a number of it. Raises RuntimeError for one of which it makes none."""
    if isinstance(value, int | float | str):
        found = float(package("inspect_ai.scorer", "inspect-ai").value_to_float()(value))
        if found or not isinstance(value, str) or value.lower() in ZERO or _is_zero(value):
            return found
    raise RuntimeError(f"the score {name!r} is {value!r}, and no number")


def _is_zero(value: str) -> bool:
    try:
        return float(value) == 0
    except ValueError:
        return False


def _named(dataset: Any) -> list[tuple[Any, Any]]:
    """Return samples, each with its id, or else its place from 1, as Inspect counts."""
    return [(place if one.id is None else one.id, one) for place, one in enumerate(dataset, 1)]


def _text(given: Any) -> str:
    return given if isinstance(given, str) else "\n".join(str(message.text) for message in given)


if __name__ == "__main__":
    answer(rewarded)
