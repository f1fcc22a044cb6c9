"""Attempts in processes of their own, for packages that do not share one."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from modelyard.errors import MissingExtra

MODEL = "episode/model"
"""A name that no model has, which is the trained one."""

BASE_URL, API_KEY = "EPISODE_BASE_URL", "EPISODE_API_KEY"
MOST_SAID = 2000


def package(name: str, distribution: str) -> Any:
    """Return a module of an optional package. Raises `MissingExtra` if the package is not installed."""
    try:
        return import_module(name)
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != name.partition(".")[0]:
            raise
        raise MissingExtra(distribution) from None


def result_of(module: str, base_url: str, api_key: str, given: Mapping[str, Any]) -> Any:
    """Run a module that calls `answer`, and return what its function returns; it imports what this process can, and
    has the address and the key in its environment. Raises RuntimeError with the end of what it has said."""
    with TemporaryDirectory() as folder:
        kept = Path(folder) / "result.json"
        paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
        done = subprocess.run(  # noqa: S603 - the command is a module of this package
            [sys.executable, "-m", module, str(kept)],
            env={**os.environ, "PYTHONPATH": paths, BASE_URL: base_url, API_KEY: api_key},
            input=json.dumps(given, default=dict),  # stored values are frozen
            check=False,
            capture_output=True,
            text=True,
        )
        if not kept.exists():
            raise RuntimeError((done.stdout + done.stderr).strip()[-MOST_SAID:] or f"it ended with {done.returncode}")
        result = json.loads(kept.read_text())
    if "error" in result:
        raise RuntimeError(result["error"])
    return result["value"]


def answer(function: Callable[..., Any]) -> None:
    """Call a function with what `result_of` was given, in the process that it has started, and keep the result."""
    try:
        result = {"value": function(**json.load(sys.stdin))}
    except Exception as error:  # noqa: BLE001 - it is raised again where the result is read
        kind = "" if isinstance(error, RuntimeError) else f"{type(error).__name__}: "
        result = {"error": f"{kind}{error}"[-MOST_SAID:]}
    Path(sys.argv[-1]).write_text(json.dumps(result))
