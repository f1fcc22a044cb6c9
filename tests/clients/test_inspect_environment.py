"""Tasks of the public evaluation framework `inspect-ai`, unmodified, as the environment in which a loop trains."""

import os
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("inspect_ai", reason="it has a lane of its own: tests/clients/lanes.py inspect")

from modelyard import Platform, open_platform
from modelyard.errors import InvalidInput, JobFailed
from modelyard.parts.episodes.environments import inspect_tasks
from warm_python import WarmPython

TASKS = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig
from inspect_ai.scorer import Score, includes, mean, scorer
from inspect_ai.solver import generate, solver


@scorer(metrics=[mean()])
def length():
    async def score(state, target):
        return Score(value=len(state.output.completion) / 100)

    return score


@solver
def asks_again():
    async def solve(state, generate):
        state = await generate(state)
        state.messages.append(__import__("inspect_ai.model").model.ChatMessageUser(content="And then?"))
        return await generate(state)

    return solve


@task
def refunds(question="Where is it?", scorers=1):
    samples = [Sample(input=question, target="refund"), Sample(id="second", input="And now?", target="now")]
    config = GenerateConfig(max_tokens=5)
    return Task(dataset=samples, solver=asks_again(), scorer=[length(), includes()][:scorers], config=config)


@task
def broken():
    @solver
    def fails():
        async def solve(state, generate):
            raise ValueError("the tool is broken")

        return solve

    return Task(dataset=[Sample(input="x")], solver=fails(), scorer=length())


@task
def unscored():
    return Task(dataset=[Sample(input="x")], solver=generate())
"""
SMALL: dict[str, Any] = {"rounds": 1, "samples": 2, "tasks_per_round": 1, "concurrency": 2, "learning_rate": 1e-5}

pytestmark = pytest.mark.timeout(900)  # an attempt imports the framework


@pytest.fixture
def tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in [name for name in os.environ if name.startswith(("OPENAI_", "ANTHROPIC_", "INSPECT_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "desk_tasks.py").write_text(TASKS)
    monkeypatch.syspath_prepend(tmp_path)
    yield import_module("desk_tasks")
    del sys.modules["desk_tasks"]


WARM = (
    *(
        "inspect_ai._cli.main",
        "inspect_ai._eval.run",
        "inspect_ai._control.server",
        "fastapi",
        "uvicorn",
        "markdown_it",
    ),
    *(f"inspect_ai.model._providers.{name}" for name in ("openai_compatible", "anthropic")),
    *("inspect_ai.agent._acp.server", "inspect_ai.agent._acp.transport_live"),
)


@pytest.fixture(scope="module")
def warm_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmPython]:
    """A Python that has imported the framework, which takes each attempt longer than all the rest."""
    home = {"HOME": str(tmp_path_factory.mktemp("home"))}
    with WarmPython(*WARM, environment={**os.environ, **home}) as python:
        yield python


@pytest.fixture
def _warm(warm_python: WarmPython, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect_tasks.sys, "executable", warm_python.executable)


@pytest.fixture
def platform() -> Iterator[Platform]:
    with open_platform() as opened:
        opened.models.create("m", project="p", base_model="tabular-mini")
        yield opened


@pytest.mark.usefixtures("_warm")
def test_each_sample_is_a_task_and_its_score_the_reward(platform: Platform, tasks: Any) -> None:
    environment = platform.episodes.inspect(tasks.refunds, question="Where is my refund?")
    assert environment["tasks"] == [
        {"sample": 1, "input": "Where is my refund?"},
        {"sample": "second", "input": "And now?"},
    ]
    job = platform.training.loop("p/m", **environment, **SMALL)
    assert job.result().step == 1
    questions = []
    for group in platform.episodes.list():
        for episode in platform.episodes.get(group.id):
            first, second = episode.turns()
            questions.append(first.messages[0].text)
            assert second.parent is first
            assert episode.refresh().reward == pytest.approx(len(second.choice.message.text) / 100)
    assert questions in (["And now?"] * 2, ["Where is my refund?"] * 2)


@pytest.mark.usefixtures("_warm")
def test_one_of_several_scorers_is_named(platform: Platform, tasks: Any) -> None:
    environment = platform.episodes.inspect(tasks.refunds, scorer="includes", scorers=2)
    platform.training.loop("p/m", **environment, **SMALL).wait()
    rewards = {one.reward for group in platform.episodes.list() for one in platform.episodes.episodes(group.id)}
    assert rewards <= {0.0, 1.0}
    unnamed = platform.episodes.inspect(tasks.refunds, scorers=2)
    with pytest.raises(JobFailed, match=r"there is no score None but length, includes; name one with scorer="):
        platform.training.loop("p/m", **unnamed, **SMALL).wait()


@pytest.mark.usefixtures("_warm")
def test_a_sample_that_fails_is_a_failed_attempt_with_the_reason(platform: Platform, tasks: Any) -> None:
    with pytest.raises(JobFailed, match="the tool is broken"):
        platform.training.loop("p/m", **platform.episodes.inspect(tasks.broken), **SMALL).wait()


def test_the_framework_is_started_as_anybody_starts_it(platform: Platform, tasks: Any) -> None:
    environment = platform.episodes.inspect(tasks.broken)
    (task,) = environment["tasks"]
    with pytest.raises(RuntimeError, match="the tool is broken"):
        environment["agent"](base_url="http://127.0.0.1:9/v1", api_key="none", task=task)


@pytest.mark.parametrize(("name", "reason"), [("unscored", "has no scorer"), ("TASKS", "must be a function")])
def test_what_is_no_task_with_a_scorer_is_refused(platform: Platform, tasks: Any, name: str, reason: str) -> None:
    task = getattr(tasks, name, lambda: "no task")
    with pytest.raises(InvalidInput, match=reason):
        platform.episodes.inspect(task)
