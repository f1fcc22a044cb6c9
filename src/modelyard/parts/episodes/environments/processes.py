"""Attempts in processes of their own, for packages that do not share one."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from modelyard.errors import InvalidInput, MissingExtra, ModelyardError
from modelyard.formats.json import as_json

MODEL = "episode/model"
"""A name that no model has, which is the trained one."""

BASE_URL, API_KEY = "EPISODE_BASE_URL", "EPISODE_API_KEY"
MOST_SAID = 900

ASK_SECONDS = 2.0
"""How often an attempt asks whether its key has ended: it ends then, too."""

AWAY = 150
"""After how many questions without an answer the server is gone for good, and the attempt ends."""


def package(name: str, distribution: str) -> Any:
    """Return a module of an optional package. Raises `MissingExtra` if the package is not installed."""
    try:
        return import_module(name)
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] != name.partition(".")[0]:
            raise
        raise MissingExtra(distribution) from None


# ---- what is given


def object_of(given: object, at: str, example: str) -> dict[str, Any]:
    """Return a mapping as the JSON object that a job stores. Raises `InvalidInput`."""
    if not isinstance(given, Mapping):
        raise InvalidInput.at(at, msg=f"must be an object, such as {example}, not {type(given).__name__}")
    found: dict[str, Any] = as_json(dict(given), at=(at,))
    return found


@contextmanager
def refused(at: str, why: str) -> Iterator[None]:
    """Raise `InvalidInput` with a line for whatever a package or a user's module raises while it is loaded."""
    try:
        yield
    except ModelyardError:
        raise
    except (Exception, SystemExit) as error:
        raise InvalidInput.at(at, msg=f"{why}: {line_of(error)}") from error


def line_of(error: BaseException) -> str:
    """Return what an error says as a line, with its kind if that says more."""
    said = " ".join(str(error).split())
    plain = said and type(error) in (ValueError, RuntimeError, ImportError, ModuleNotFoundError)
    return (said if plain else f"{type(error).__name__}: {said}".rstrip(": "))[:MOST_SAID]


# ---- a process


def result_of(module: str, base_url: str, api_key: str, given: Mapping[str, Any], folder: str | None = None) -> Any:
    """Run a module that calls `answer`, and return what its function returns; it imports what this process can, and
    has the address and the key in its environment. Raises RuntimeError with what it has said at last, as a line."""
    with TemporaryDirectory() as made:
        kept, said = Path(made) / "result.json", Path(made) / "said.txt"
        paths = os.pathsep.join(os.path.abspath(path) for path in sys.path)
        with said.open("wb") as output:  # and no pipe, which what it leaves behind would keep open
            done = subprocess.run(  # noqa: S603 - the command is a module of this package
                [sys.executable, "-m", module, str(kept)],
                env={**os.environ, "PYTHONPATH": paths, BASE_URL: base_url, API_KEY: api_key},
                input=json.dumps(given, default=dict).encode(),  # stored values are frozen
                check=False,
                stdout=output,
                stderr=output,
                cwd=folder,
            )
        if not kept.exists():
            lines = said.read_text(errors="replace").split("\n")
            last = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
            raise RuntimeError(f"the process of the attempt ended with {done.returncode}: {last[-MOST_SAID:]}")
        result = json.loads(kept.read_text())
    if "error" in result:
        raise RuntimeError(result["error"])
    return result["value"]


def answer(function: Callable[..., Any]) -> None:
    """Call a function with what `result_of` was given, in the process that it has started, and keep the result."""
    given = json.load(sys.stdin)
    _end_with_the_key()
    try:
        result = {"value": function(**given)}
    except (Exception, SystemExit) as error:  # noqa: BLE001 - it is raised again where the result is read
        result = {"error": line_of(error)}
    kept = Path(sys.argv[-1])
    whole = kept.with_suffix(".part")
    whole.write_text(json.dumps(result))
    whole.replace(kept)


def _end_with_the_key() -> None:
    """Kill this process, with those that it has started, when its key ends or who started it is gone."""
    if os.name == "posix" and os.getpgid(0) != os.getpid():
        os.setsid()
    threading.Thread(target=_watch, args=(os.getppid(),), name="episode-key", daemon=True).start()


def _watch(parent: int) -> None:
    address = f"{os.environ[BASE_URL]}/models/{MODEL}"  # 404 as long as the key is one
    headers = {"Authorization": f"Bearer {os.environ[API_KEY]}"}
    away, wait = 0, threading.Event()
    while os.getppid() == parent and away < AWAY:
        wait.wait(ASK_SECONDS)
        asked = Request(address, headers=headers)  # noqa: S310 - the loop's own
        try:
            with urlopen(asked, timeout=ASK_SECONDS * 5):  # noqa: S310
                away = 0
        except HTTPError as error:
            if error.code == 401:
                break
            away = 0
        except (OSError, ValueError):
            away += 1
    if os.name == "posix":
        os.killpg(0, signal.SIGKILL)
    os._exit(1)
