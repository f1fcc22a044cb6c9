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
from modelyard.parts.episodes.environments import processes
from modelyard.parts.loops.loopback import LoopbackServer
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


@scorer(metrics=[mean()])
def fixed(value):
    async def score(state, target):
        return None if value == "nothing" else Score(value=value)

    return score


@task(name="odd ones")
def odd(value=0.5, first="a,b", arguments=""):
    samples = [Sample(id=one, input=f"{one} {arguments}") for one in (first, "*", "-n", "a", "ünï 🎉")]
    config = GenerateConfig(max_tokens=5)
    task = Task(dataset=samples, solver=generate(), scorer=fixed(value), config=config, epochs=3, model="mockllm/model")
    return task


@task
def unmade(error="column"):
    raise KeyError(error) if error else SystemExit(3)


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
    monkeypatch.setattr(processes.sys, "executable", warm_python.executable)


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


@pytest.mark.usefixtures("_warm")
def test_a_sample_is_played_once_by_the_trained_model_whatever_its_id_and_the_arguments(
    platform: Platform, tasks: Any
) -> None:
    said = 'Where, now: "there"? 🎉'
    environment = platform.episodes.inspect(tasks.odd, arguments=said)
    assert [one["sample"] for one in environment["tasks"]] == ["a,b", "*", "-n", "a", "ünï 🎉"]
    platform.training.loop("p/m", **environment, **{**SMALL, "tasks_per_round": 5}).wait()
    asked = []
    for group in platform.episodes.list():
        for episode in platform.episodes.get(group.id):
            (turn,) = episode.turns()
            asked.append(turn.messages[0].text)
            assert episode.refresh().reward == 0.5
    assert sorted(asked) == sorted(2 * [f"{one} {said}" for one in ("a,b", "*", "-n", "a", "ünï 🎉")])


@pytest.mark.usefixtures("_warm")
@pytest.mark.parametrize(
    ("value", "reward"),
    [
        ("C", 1.0),
        ("I", 0.0),
        ("no", 0.0),
        ("0.0", 0.0),
        (True, 1.0),
        ("hello", "the score 'fixed' is 'hello', and no number"),
        ({"a": 1}, "the score 'fixed' is {'a': 1}, and no number"),
        ("nothing", "the scorer gave no score"),
    ],
)
def test_a_score_is_a_number_or_fails_the_attempt(platform: Platform, tasks: Any, value: Any, reward: Any) -> None:
    environment = platform.episodes.inspect(tasks.odd, value=value)
    server = LoopbackServer(platform._runtime)
    with platform.episodes.group("g", model="p/m", size=1, url=server.url) as (episode,):
        given = {"base_url": episode.base_url, "api_key": episode.key, "task": environment["tasks"][0]}
        if isinstance(reward, float):
            assert environment["agent"](**given) == reward
        else:
            with pytest.raises(RuntimeError) as raised:
                environment["agent"](**given)
            assert str(raised.value) == reward
    server.close()


def test_the_framework_is_started_as_anybody_starts_it(platform: Platform, tasks: Any) -> None:
    environment = platform.episodes.inspect(tasks.broken)
    (task,) = environment["tasks"]
    with pytest.raises(RuntimeError, match="the tool is broken"):
        environment["agent"](base_url="http://127.0.0.1:9/v1", api_key="none", task=task)


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("unscored", {}, "task: has no scorer, so that nothing is a reward; give it one"),
        ("no task", {}, "task: must be a function that returns a task of Inspect"),
        ("a text", {}, "task: must be a function that makes a task of Inspect, no str"),
        ("a lambda", {}, "task: cannot be imported by another process; define it at the top of a module"),
        ("unmade", {}, "task: is none that Inspect can make: KeyError: 'column'"),
        ("unmade", {"error": ""}, "task: is none that Inspect can make: SystemExit: 3"),
        ("refunds", {"colour": 1}, "task: is none that Inspect can make: TypeError: .* unexpected keyword"),
        ("refunds", {"scorer": 3}, "scorer: must be the name of one of the task's scorers"),
        ("odd", {"first": "a"}, "task: has several samples with the id 'a'; give each its own"),
    ],
)
def test_what_is_no_task_with_a_scorer_is_refused(
    platform: Platform, tasks: Any, name: str, options: dict[str, Any], reason: str
) -> None:
    others = {"no task": lambda: "no task", "a text": "refunds", "a lambda": lambda: tasks.refunds()}
    with pytest.raises(InvalidInput, match=f"^{reason}"):
        platform.episodes.inspect(others[name] if name in others else getattr(tasks, name), **options)
