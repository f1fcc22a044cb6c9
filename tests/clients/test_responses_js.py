"""Unmodified JavaScript clients of responses, with their defaults, against a served platform."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from node_packages import node_modules

pytest.importorskip("agents", reason="these clients have a lane of their own: tests/clients/lanes.py responses")

HERE = Path(__file__).parent / "responses_js"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("base", ["/v1", "/inference/v1"])
def test_javascript_clients_answer_stream_and_call(served: Any, tmp_path: Path, base: str) -> None:
    shutil.copy(HERE / "client.mjs", tmp_path)
    (tmp_path / "node_modules").symlink_to(node_modules(HERE / "package.json"))
    command = ["node", "client.mjs", served.root + base, served.key]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout) == ["openai", "openai streams", "ai", "ai streams", "LangChain"]
