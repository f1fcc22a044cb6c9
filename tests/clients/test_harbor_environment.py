"""Task folders of the public package `harbor`, unmodified, in which a loop trains."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("harbor", reason="it has a lane of its own: tests/clients/lanes.py harbor")

from modelyard import Platform, open_platform
from modelyard.errors import InvalidInput, JobFailed
from modelyard.parts.episodes.environments import processes
from warm_python import WarmPython

DESK = '''
"""A place for trials that is a folder of this machine, and an agent that writes the answer of the model there."""

import asyncio
import json
import os
import shutil
import tempfile
from pathlib import Path
from urllib.request import Request, urlopen

from harbor.agents.base import BaseAgent
from harbor.environments.base import BaseEnvironment, ExecResult


class Folder(BaseEnvironment):
    @staticmethod
    def type():
        return "folder"

    def _validate_definition(self):
        pass

    def _at(self, path):
        return Path(f"{self.root}{path}")

    async def start(self, force_build):
        self.root = tempfile.mkdtemp()
        for name in ("/app", "/logs/agent", "/logs/verifier", "/logs/artifacts", "/tests"):
            self._at(name).mkdir(parents=True, exist_ok=True)

    async def stop(self, delete):
        shutil.rmtree(self.root)

    async def upload_file(self, source_path, target_path):
        shutil.copy(source_path, self._at(target_path))

    async def upload_dir(self, source_dir, target_dir):
        shutil.copytree(source_dir, self._at(target_dir), dirs_exist_ok=True)

    async def download_file(self, source_path, target_path):
        shutil.copy(self._at(source_path), target_path)

    async def download_dir(self, source_dir, target_dir):
        shutil.copytree(self._at(source_dir), target_dir, dirs_exist_ok=True)

    async def exec(self, command, cwd=None, env=None, timeout_sec=None, user=None):
        for name in ("/app", "/logs", "/tests"):
            command = command.replace(name, f"{self.root}{name}")
        process = await asyncio.create_subprocess_shell(
            command, env={**os.environ, **(env or {}), "ROOT": self.root}, stdout=-1, stderr=-1
        )
        out, err = await process.communicate()
        return ExecResult(stdout=out.decode(), stderr=err.decode(), return_code=process.returncode)


class Writer(BaseAgent):
    def __init__(self, *args, max_tokens=40, broken=False, **kwargs):
        super().__init__(*args, **kwargs)
        self.max_tokens, self.broken = max_tokens, broken

    @staticmethod
    def name():
        return "writer"

    def version(self):
        return "1"

    async def setup(self, environment):
        pass

    async def run(self, instruction, environment, context):
        if self.broken:
            raise RuntimeError("the agent is broken")
        messages = [{"role": "user", "content": instruction}]
        body = {"model": self.model_name, "messages": messages, "max_tokens": self.max_tokens}
        key = self._extra_env["OPENAI_API_KEY"]
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
        answered = await asyncio.to_thread(urlopen, Request(url, json.dumps(body).encode(), headers))
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(json.load(answered)["choices"][0]["message"]["content"])
            file.flush()
            await environment.upload_file(file.name, "/app/answer.txt")
'''
TOML = 'version = "1.0"\n\n[verifier]\ntimeout_sec = 60.0\n\n[agent]\ntimeout_sec = 60.0\n'
TEST = """#!/bin/bash
size=$(wc -c < "$ROOT/app/answer.txt")
{reward}
"""
ONE = 'echo "-$size" > "$ROOT/logs/verifier/reward.txt"'
TWO = 'echo "{\\"short\\": -$size, \\"there\\": 1}" > "$ROOT/logs/verifier/reward.json"'
AGENT = {"import_path": "desk_harbor:Writer"}
PLACE = {"import_path": "desk_harbor:Folder"}
SMALL: dict[str, Any] = {"rounds": 1, "samples": 2, "tasks_per_round": 1, "concurrency": 2, "learning_rate": 1e-5}

pytestmark = pytest.mark.timeout(900)  # an attempt imports the package


def write_task(folder: Path, question: str, reward: str = ONE) -> None:
    (folder / "tests").mkdir(parents=True)
    (folder / "environment").mkdir()
    (folder / "instruction.md").write_text(question)
    (folder / "task.toml").write_text(TOML)
    (folder / "environment" / "Dockerfile").write_text("FROM scratch\n")
    (folder / "tests" / "test.sh").write_text(TEST.format(reward=reward))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name in [name for name in os.environ if name.startswith(("OPENAI_", "ANTHROPIC_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "desk_harbor.py").write_text(DESK)
    monkeypatch.syspath_prepend(tmp_path)
    for place, question in enumerate(("Where is my refund?", "Where is my parcel?", "And now?")):
        write_task(tmp_path / "tasks" / f"task-{place}", question)
    yield tmp_path / "tasks"
    sys.modules.pop("desk_harbor", None)


@pytest.fixture(scope="module")
def warm_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmPython]:
    home = {"HOME": str(tmp_path_factory.mktemp("home"))}
    modules = (
        "litellm",
        "harbor.llms.litellm_config",
        "harbor.trial.trial",
        "harbor.trial.single_step",
        "harbor.models.trial.config",
        "modelyard",
    )
    with WarmPython(*modules, environment={**os.environ, **home}) as python:
        yield python


@pytest.fixture
def _warm(warm_python: WarmPython, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes.sys, "executable", warm_python.executable)


@pytest.fixture
def platform() -> Iterator[Platform]:
    with open_platform() as opened:
        opened.models.create("m", project="p", base_model="tabular-mini")
        yield opened


@pytest.mark.usefixtures("_warm")
def test_a_model_learns_what_the_tests_of_the_tasks_reward(platform: Platform, folder: Path) -> None:
    made = platform.episodes.harbor(folder, agent=AGENT, environment=PLACE)
    assert [one["instruction"] for one in made["tasks"]] == ["Where is my refund?", "Where is my parcel?", "And now?"]
    *tasks, held_out = made["tasks"]
    job = platform.training.loop(
        "p/m",
        tasks,
        agent=made["agent"],
        held_out=[held_out] * 3,
        rounds=4,
        samples=4,
        tasks_per_round=1,
        concurrency=4,
        learning_rate=1e-4,
        seed=1,
    )
    job.wait()
    held = [row.values["held_out"] for row in job.metrics()]
    assert held[-1] > held[0], held
    for group in platform.episodes.list():
        for episode in platform.episodes.get(group.id):
            (turn,) = episode.turns()
            assert episode.refresh().reward == -len(turn.choice.message.text.encode())


@pytest.mark.usefixtures("_warm")
def test_one_of_several_rewards_is_named(platform: Platform, folder: Path) -> None:
    write_task(folder / "two", "Where?", TWO)
    named = platform.episodes.harbor(folder / "two", agent=AGENT, environment=PLACE, reward="there")
    job = platform.training.loop("p/m", named["tasks"], agent=named["agent"], held_out=named["tasks"], **SMALL)
    job.wait()
    assert [row.values["held_out"] for row in job.metrics()] == [1.0, 1.0]
    unnamed = platform.episodes.harbor(folder / "two", agent=AGENT, environment=PLACE)
    with pytest.raises(JobFailed, match="there is no reward None but short, there; name one with reward="):
        platform.training.loop("p/m", **unnamed, **SMALL, held_out=unnamed["tasks"]).wait()


def test_a_trial_that_fails_is_a_failed_attempt_with_the_reason(platform: Platform, folder: Path) -> None:
    made = platform.episodes.harbor(folder / "task-0", agent={**AGENT, "kwargs": {"broken": True}}, environment=PLACE)
    with pytest.raises(RuntimeError, match="the agent is broken"):
        made["agent"](base_url="http://127.0.0.1:9/v1", api_key="none", task=made["tasks"][0])


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("none", {}, "holds no task of Harbor"),
        ("a\0b", {}, "folder: is no path: "),
        (".", {"agent": "terminus-2"}, "agent: must be an object, such as .*, not str"),
        (".", {"agent": None}, "agent: must be an object, such as .*, not NoneType"),
        (".", {"environment": "docker"}, "environment: must be an object, such as .*, not str"),
        (".", {"reward": 3}, "reward: must be the name of one of"),
        (".", {"agent": {}}, "names none; give"),
        (".", {"agent": {"name": 1}}, "agent: is none that Harbor takes"),
        (".", {"environment": {"type": "moon"}}, "environment: is none that Harbor takes"),
        ("broken", {}, "holds broken, which Harbor does not read"),
    ],
)
def test_what_is_no_task_is_refused(platform: Platform, folder: Path, name: str, options: Any, reason: str) -> None:
    write_task(folder / "broken", "?")
    (folder / "broken" / "tests" / "test.sh").unlink()
    with pytest.raises(InvalidInput, match=reason):
        platform.episodes.harbor(folder / name, **{"agent": AGENT, **options})


@pytest.mark.parametrize("folder_", [3, None])
def test_what_is_no_folder_is_refused(platform: Platform, folder_: Any) -> None:
    with pytest.raises(InvalidInput, match=r"^folder: is no path: TypeError"):
        platform.episodes.harbor(folder_, agent=AGENT)
