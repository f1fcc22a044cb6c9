"""The workflow of the how-to for CI: its own commands run, with the files of the page, and do what the page says."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.docs

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "gate-changes-in-ci.md"
FILE = re.compile(r"^```\w+ ([\w.]+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ELSEWHERE = ("pip install", "gh pr comment")
"""What needs a network: the package is installed here, and there is no pull request."""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """The files of the page, and its first baseline."""
    for name, text in FILE.findall(PAGE.read_text(encoding="utf-8")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert "there is no baseline yet" in run(tmp_path, "python evaluate.py").stderr
    (tmp_path / "candidate.jsonl").rename(tmp_path / "baseline.jsonl")
    return tmp_path


def run(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    variables = {**os.environ, "PATH": path, "GITHUB_STEP_SUMMARY": str(folder / "summary.md")}
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, env=variables, capture_output=True, text=True, check=False
    )


def steps(folder: Path) -> list[dict[str, Any]]:
    read: dict[str, Any] = yaml.safe_load((folder / "evaluate.yml").read_text(encoding="utf-8"))
    return list(read["jobs"]["evaluate"]["steps"])


def workflow(folder: Path) -> list[subprocess.CompletedProcess[str]]:
    """Run the steps that need no network, as a runner does: after a failure, only those that always run."""
    found: list[subprocess.CompletedProcess[str]] = []
    for step in steps(folder):
        failed = any(done.returncode for done in found)
        if "run" in step and not step["run"].startswith(ELSEWHERE) and (not failed or step.get("if") == "always()"):
            found.append(run(folder, step["run"]))
    return found


def test_a_change_that_alters_nothing_passes(repository: Path) -> None:
    assert [done.returncode for done in workflow(repository)] == [0, 0]
    assert "no difference shown" in (repository / "summary.md").read_text(encoding="utf-8")
    *_, upload = steps(repository)
    assert all((repository / name).exists() for name in upload["with"]["path"].split())


def test_a_change_that_makes_it_worse_fails_and_is_still_shown(repository: Path) -> None:
    more = "".join(f'{{"prompt": "city {at}", "expected": "City {at}"}}\n' for at in range(20))
    (repository / "questions.jsonl").write_text(more, encoding="utf-8")
    run(repository, "python evaluate.py")
    (repository / "candidate.jsonl").rename(repository / "baseline.jsonl")
    (repository / "desk.py").write_text("def reply(row):\n    return 'I do not know'\n", encoding="utf-8")
    evaluated, shown = workflow(repository)
    assert evaluated.returncode != 0
    assert "the candidate is worse" in evaluated.stderr
    assert (shown.returncode, "worse" in (repository / "summary.md").read_text(encoding="utf-8")) == (0, True)
