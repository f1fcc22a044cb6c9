"""Unmodified JavaScript clients of responses, with their defaults, against a served platform."""

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent / "responses_js"


@pytest.fixture(scope="module")
def program() -> Path:
    """The program next to its pinned packages, which are cached next to the lane's environment."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    pins = HERE / "package.json"
    home = Path(sys.prefix).parent / f"npm-{hashlib.sha256(pins.read_bytes()).hexdigest()[:16]}"
    if not (home / "complete").exists():
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(parents=True)
        shutil.copy(pins, home)
        subprocess.run([npm, "install", "--silent", "--no-audit", "--no-fund"], cwd=home, check=True)
        (home / "complete").touch()
    return Path(shutil.copy(HERE / "client.js", home))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("base", ["/v1", "/inference/v1"])
def test_javascript_clients_answer_stream_and_call(served: Any, program: Path, base: str) -> None:
    command = ["node", str(program), served.root + base, served.key]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout) == ["openai", "openai streams", "ai", "ai streams", "LangChain"]
