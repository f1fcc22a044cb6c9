"""Every code block of the README and the docs runs as it stands.

Python blocks of a page run in order in one namespace, shell blocks in one scratch folder. A block with a file's name
after its language is written there. A server or worker that a shell block starts is ended with its page. The README's
two installing commands are run by `.ci/run`, and a page that needs what the dev extras leave out by a lane of its own
(`tests/clients`).
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from modelyard import Platform
from warm_python import WarmPython

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(\w+)(?: ([\w.]+))?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
DATA = {"text", "json", "mermaid", "yaml"}
CLIENTS = {
    "use-the-rl-client.md": "art",
    "use-the-trace-client.md": "weave",
    "train-a-command-line.md": "llm",
    "serve-a-local-model.md": "torch",
    "train-a-local-model.md": "torch",
    "take-a-model-elsewhere.md": "torch",
    "training.md": "torch",
    "keep-artifacts-in-an-object-store.md": "moto",
}
BY_HAND = {"fine-tune-a-real-model.md"}
"""Pages that need the folder of a pretrained model, and minutes: run one with `run_page` where that is."""

ON_POSTGRES = "keep-records-in-postgresql.md"
LONG_RUNNING = ("modelyard serve", "modelyard work")
READY = ("Uvicorn running on", "waits for jobs")
"""What they say once they serve or work."""


INSTALLED = Path(sys.executable).parent
PARTS = ROOT / "src" / "modelyard" / "parts"
WARM = (
    *("pytest", "_pytest.pytester", "_pytest.unittest", "_pytest.pastebin", "pdb", "hypothesis.strategies", "openai"),
    *(
        "modelyard.__main__",
        "modelyard.cli.jobs",
        "modelyard.parts.operating.key_commands",
        "modelyard.compose",
        "modelyard.asgi",
    ),
    *("modelyard.platform.platform", "modelyard.stores.sqlite", "modelyard.parts.torch.engine", "uvicorn"),
    *(f"modelyard.parts.{one.parent.name}.{one.stem}" for one in sorted(PARTS.glob("*/records.py"))),
    *(f"modelyard.parts.{one.parent.name}.{one.stem}" for one in sorted(PARTS.glob("*/changes.py"))),
)
"""What the commands of the docs import."""


@pytest.fixture(scope="module")
def commands() -> Iterator[Path]:
    """A folder of commands for the path, which cost a tenth of those that are started anew."""
    with WarmPython(*WARM) as python:
        yield python.commands


def blocks(page: Path) -> list[tuple[str, str | None, str, int]]:
    text = page.read_text(encoding="utf-8")
    return [(found[1], found[2], found[3], text[: found.start(3)].count("\n")) for found in BLOCK.finditer(text)]


def test_every_fence_says_its_language() -> None:
    for page in PAGES:
        fences = re.findall(r"^```(\w*)[^\n]*$", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert all(fences[::2]), f"{page.name}: a code block without a language"


def test_no_two_pages_serve_on_one_port() -> None:
    """They may run at the same time."""
    runtime = [
        port for page in PAGES for port in re.findall(r"modelyard serve.* --port (\d+)", page.read_text("utf-8"))
    ]
    assert len(runtime) > 5
    assert len(set(runtime)) == len(runtime)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_code_of_a_page_runs(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, commands: Path
) -> None:
    if page.name == ON_POSTGRES:
        server = request.getfixturevalue("postgres")
        monkeypatch.setenv("PGHOST", str(server.folder))
        monkeypatch.setenv("PGUSER", "yard")
        for database in ("yard", "yard_moved"):
            server.execute(f"CREATE DATABASE {database}")
    if page.name in BY_HAND:
        pytest.skip("it trains a pretrained model for minutes")
    if page.name in CLIENTS:
        pytest.importorskip(CLIENTS[page.name], reason="the lane of its own runs this page")
    run_page(page, tmp_path, monkeypatch, commands)


def run_page(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commands: Path = INSTALLED) -> None:
    """Run every block of a page in order, with these commands. The lanes do it too, for pages of their own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # as of a program in that folder
    monkeypatch.setenv("PATH", os.pathsep.join([str(commands), str(INSTALLED), os.environ["PATH"]]))
    monkeypatch.setenv("PYTEST_PLUGINS", "pytest_modelyard")
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    namespace: dict[str, object] = {"__name__": "docs"}
    with ended_with_the_page() as started, closed_with_the_page(namespace):
        for language, name, code, line in blocks(page):
            if name is not None:
                (tmp_path / name).write_text(code, encoding="utf-8")
            elif language == "python":
                exec(compile("\n" * line + code, str(page), "exec"), namespace)
            elif language == "sh":
                run_shell(code, started)
            else:
                assert language in DATA, f"{page.name}:{line}: no way to run {language}"


def run_shell(code: str, started: list[subprocess.Popen[str]]) -> None:
    for command in code.replace("\\\n", " ").splitlines():
        if not command.strip() or "pip install" in command:
            continue
        if command.startswith(LONG_RUNNING):
            started.append(begun(command))
        else:
            done = subprocess.run(["bash", "-c", command], check=False, capture_output=True, text=True)
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def begun(command: str) -> subprocess.Popen[str]:
    """A server or worker, once it says that it is ready."""
    process = subprocess.Popen(
        ["bash", "-c", f"exec {command}"], start_new_session=True, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    reply = []
    for line in process.stderr:
        reply.append(line)
        if any(word in line for word in READY):
            return process
    process.wait()
    raise AssertionError(f"{command} ended:\n{''.join(reply)}")


WITHIN = 300
"""Seconds within which a worker ends that waits for its lease of 30 seconds, on a machine that is busy."""


@contextlib.contextmanager
def closed_with_the_page(namespace: Mapping[str, object]) -> Iterator[None]:
    """Close the platforms that a page leaves open: Python from 3.13 on warns of their files when they are collected."""
    try:
        yield
    finally:
        for value in namespace.values():
            if isinstance(value, Platform):
                value.close()


@contextlib.contextmanager
def ended_with_the_page() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    try:
        yield started
    finally:
        for process in started:
            os.killpg(process.pid, signal.SIGTERM)  # what runs in the background may ignore SIGINT
            sys.stderr.write(process.communicate(timeout=WITHIN)[1])


OF_LANES = {*(ROOT / "examples").glob("*_local.py"), *(ROOT / "examples").glob("*_on_ray.py")}
"""Examples that need torch or Ray: lanes of their own run them."""

EXAMPLES = sorted(set((ROOT / "examples").glob("*.py")) - OF_LANES)
"""Those of local models run where torch is, in `tests/parts/torch`."""


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs(example: Path, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, example], cwd=tmp_path, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout
