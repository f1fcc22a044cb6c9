"""Unmodified JavaScript clients of responses, of fine-tuning and batches, against a served platform."""

import json
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from modelyard import ScriptedBackend, open_platform
from modelyard.backends import on
from modelyard.errors import Overloaded, RateLimited
from modelyard.testing import ManualClock
from modelyard.testing import served as serve
from node_packages import node_modules

pytest.importorskip("agents", reason="these clients have a lane of their own: tests/clients/lanes.py responses")

HERE = Path(__file__).parent / "responses_js"


def run(program: str, served: Any, base: str, folder: Path) -> str:
    shutil.copy(HERE / program, folder)
    (folder / "node_modules").symlink_to(node_modules(HERE / "package.json"))
    command = ["node", program, served.root + base, served.key]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("base", ["/v1", "/inference/v1"])
def test_javascript_clients_answer_stream_and_call(served: Any, tmp_path: Path, base: str) -> None:
    found = json.loads(run("client.mjs", served, base, tmp_path))
    reasoning = ["openai reasoning", "ai reasoning", "LangChain reasoning"]
    assert sorted(found) == sorted(["openai", "openai streams", "ai", "ai streams", "LangChain", *reasoning])


@pytest.mark.parametrize("base", ["/v1", "/inference/v1"])
def test_the_openai_client_tunes_a_model_and_answers_batches(served: Any, tmp_path: Path, base: str) -> None:
    with served.platform.worker():
        assert run("tuning.mjs", served, base, tmp_path) == "done\n"


def test_clients_wait_before_a_retry_on_the_clock_of_the_platform(tmp_path: Path) -> None:
    clock, failures = ManualClock(), (RateLimited("slow", retry_after=20), Overloaded("busy", retry_after=30))
    rules = [on(client).answer(*failures, f"{client} is answered") for client in ("openai", "the AI SDK")]
    with (
        open_platform(backend=ScriptedBackend(rules, models=["m"]), clock=clock) as platform,
        serve(platform) as url,
    ):
        asked = SimpleNamespace(root=url, key=platform.keys.create().secret)
        found = json.loads(run("retries.mjs", asked, "/inference/v1", tmp_path))
    assert found == ["openai is answered", "the AI SDK is answered"]
    assert clock.monotonic() == 100
