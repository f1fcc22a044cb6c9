"""Tasks of Inspect (`inspect_ai`, unmodified): each sample is a task, and its solver and its scorer are the agent.

An attempt is `inspect eval` on one sample, in a process of its own: the package allows one evaluation in a process at a
time. What a task needs besides, such as a sandbox, is the user's, as ever.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from inspect import getfile, unwrap
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from modelyard.errors import InvalidInput, MissingExtra
from modelyard.formats.json import as_json

MODEL = "openai-api/episode/model"
"""What the evaluation calls: a server like OpenAI's, and a name that no model has, which is the trained one."""

MOST_SAID = 2000


def environment_of(task: Callable[..., Any], scorer: str | None, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return `tasks` and `agent` for `training.loop` from a function with the decorator of Inspect's tasks. Raises
    `InvalidInput`, `MissingExtra`."""
    _package()
    arguments = as_json(dict(arguments), at=("arguments",))
    made, name = task(**arguments), getattr(task, "__name__", "")
    if not hasattr(made, "dataset") or not hasattr(made, "scorer"):
        raise InvalidInput.at("task", msg="must be a function that returns a task of Inspect")
    if not made.scorer:
        raise InvalidInput.at("task", msg="has no scorer, so that nothing is a reward; give it one")
    file = str(Path(getfile(unwrap(task))).resolve())
    samples = [
        {"sample": one.id if one.id is not None else place, "input": _text(one.input)}
        for place, one in enumerate(made.dataset, 1)
    ]
    agent = partial(attempt, file=file, name=name, scorer=scorer, arguments=arguments)
    return {"tasks": samples, "agent": agent}


def attempt(
    *,
    base_url: str,
    api_key: str,
    task: Mapping[str, Any],
    file: str,
    name: str,
    scorer: str | None,
    arguments: Mapping[str, Any],
) -> float:
    """Evaluate one sample, and return its score. Raises RuntimeError with the end of what Inspect has said."""
    with TemporaryDirectory() as folder:
        given = [part for key, value in arguments.items() for part in ("-T", f"{key}={json.dumps(value)}")]
        options = ["--model", MODEL, "--sample-id", str(task["sample"]), "--display", "plain"]
        kept = ["--log-dir", folder, "--log-format", "json", "--no-score-display"]
        done = subprocess.run(  # noqa: S603 - the command is Inspect's own
            [sys.executable, "-m", "inspect_ai", "eval", f"{Path(file).name}@{name}", *options, *kept, *given],
            cwd=Path(file).parent,
            env={**os.environ, "EPISODE_BASE_URL": base_url, "EPISODE_API_KEY": api_key},
            check=False,
            capture_output=True,
            text=True,
        )
        logs = sorted(Path(folder).glob("*.json"))
        if not logs:
            raise RuntimeError(f"inspect eval wrote no log: {(done.stdout + done.stderr)[-MOST_SAID:]}")
        return _score(str(logs[0]), scorer)


def _score(path: str, scorer: str | None) -> float:
    """Return the score of the only sample of a log, as Inspect makes a number of it."""
    log = _package("log").read_eval_log(path)
    samples = log.samples or []
    if log.status != "success" or len(samples) != 1 or samples[0].error is not None:
        error = (samples[0].error if samples else None) or log.error
        raise RuntimeError(f"the sample was not evaluated: {log.status}: {getattr(error, 'message', 'no error')}")
    scores = samples[0].scores or {}
    if scorer is None and len(scores) == 1:
        (scorer,) = scores
    if scorer not in scores:
        raise RuntimeError(f"there is no score {scorer!r} but {', '.join(scores) or 'none'}; name one with scorer=")
    return float(_package("scorer").value_to_float()(scores[scorer].value))


def _text(given: Any) -> str:
    return given if isinstance(given, str) else "\n".join(str(message.text) for message in given)


def _package(name: str = "") -> Any:
    try:
        return import_module(f"inspect_ai.{name}" if name else "inspect_ai")
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != "inspect_ai":
            raise
        raise MissingExtra("inspect-ai") from None
