"""Environments of the public package `verifiers`, unmodified, in which a loop trains."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verifiers.v1", reason="it has a lane of its own: tests/clients/lanes.py verifiers")

from modelyard import Platform, open_platform
from modelyard.errors import InvalidInput, JobFailed
from modelyard.parts.episodes.environments import processes
from warm_python import WarmPython

DESK = '''
"""A taskset with a harness of its own, which asks twice in this process, as a program that verifiers starts would."""

import verifiers.v1 as vf
from openai import AsyncOpenAI

__all__ = ["Desk", "AsksTwice"]


class DeskConfig(vf.TasksetConfig):
    questions: list[str] = ["Where is my refund?", "Where is my parcel?", "And now?"]
    unscored: bool = False
    endless: bool = False
    unread: str = ""


class Question(vf.TaskData):
    unscored: bool = False


class Short(vf.Task[Question]):
    @vf.reward(weight=2.0)
    async def short(self, trace: vf.Trace) -> float:
        if self.data.unscored:
            raise ValueError("the rubric\\nis broken")
        return -len(" ".join(message.content or "" for message in trace.assistant_messages)) / 200

    @vf.metric
    async def turns(self, trace: vf.Trace) -> float:
        return trace.num_turns


class Desk(vf.Taskset[Short, DeskConfig]):
    @property
    def INFINITE(self):
        return self.config.endless

    def load(self):
        if self.config.unread:
            raise {"os": OSError("no\\nfile"), "key": KeyError("column"), "exit": SystemExit(3)}[self.config.unread]
        for question in self.config.questions:
            yield Short(Question(prompt=question, unscored=self.config.unscored), self.config.task)


class TwiceConfig(vf.HarnessConfig):
    max_tokens: int = 8
    broken: bool = False


class AsksTwice(vf.Harness[TwiceConfig]):
    NEEDS_CONTAINER = False
    EXECUTES_CODE = False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        if self.config.broken:
            raise RuntimeError("the harness is broken")
        messages = [{"role": "user", "content": data.prompt}]
        async with AsyncOpenAI(base_url=endpoint, api_key=secret) as client:
            for _ in range(2):
                answer = await client.chat.completions.create(
                    model=ctx.model, messages=messages, max_tokens=self.config.max_tokens
                )
                messages.append({"role": "assistant", "content": answer.choices[0].message.content})
                messages.append({"role": "user", "content": "And how long does it take?"})
        return vf.ProgramResult(exit_code=0, stdout="", stderr="")
'''
UNREWARDED = DESK.replace("    @vf.reward(weight=2.0)\n", "")
HERE = {"runtime": {"type": "subprocess"}}
SMALL: dict[str, Any] = {"rounds": 1, "samples": 2, "tasks_per_round": 1, "concurrency": 2, "learning_rate": 1e-5}

pytestmark = pytest.mark.timeout(900)  # an attempt imports the package


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name in [name for name in os.environ if name.startswith(("OPENAI_", "ANTHROPIC_", "PRIME_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "short_desk.py").write_text(DESK)
    (tmp_path / "no_reward.py").write_text(UNREWARDED)
    (tmp_path / "no_syntax.py").write_text("def (")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in ("short_desk", "no_reward"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def warm_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmPython]:
    home = {"HOME": str(tmp_path_factory.mktemp("home"))}
    with WarmPython("verifiers.v1", "modelyard", environment={**os.environ, **home}) as python:
        yield python


@pytest.fixture
def _warm(warm_python: WarmPython, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes.sys, "executable", warm_python.executable)


@pytest.fixture
def platform() -> Iterator[Platform]:
    with open_platform() as opened:
        opened.models.create("m", project="p", base_model="tabular-mini")
        yield opened


def desk(*, agent: dict[str, Any] | None = None, **taskset: Any) -> dict[str, Any]:
    return {"taskset": {"id": "short_desk", **taskset}, "agent": {**HERE, **(agent or {})}}


@pytest.mark.usefixtures("_warm")
def test_a_model_learns_what_the_rubric_of_the_environment_rewards(platform: Platform) -> None:
    environment = platform.episodes.verifiers(desk(agent={"harness": {"id": "short_desk", "max_tokens": 40}}))
    assert environment["tasks"] == [
        {"idx": 0, "prompt": "Where is my refund?"},
        {"idx": 1, "prompt": "Where is my parcel?"},
        {"idx": 2, "prompt": "And now?"},
    ]
    *tasks, held_out = environment["tasks"]
    job = platform.training.loop(
        "p/m",
        tasks,
        agent=environment["agent"],
        held_out=[held_out] * 3,
        rounds=4,
        samples=4,
        tasks_per_round=1,
        concurrency=4,
        evaluate_every=4,
        learning_rate=1e-4,
        seed=1,
    )
    job.wait()
    held = [row.values["held_out"] for row in job.metrics() if "held_out" in row.values]
    assert held[-1] > held[0], held
    for group in platform.episodes.list():
        for episode in platform.episodes.get(group.id):
            first, second = episode.turns()
            assert second.parent is first
            said = " ".join(turn.choice.message.text for turn in (first, second))
            assert episode.refresh().reward == pytest.approx(-len(said) / 100)


@pytest.mark.usefixtures("_warm")
@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        (desk(agent={"harness": {"id": "short_desk", "broken": True}}), "the harness is broken"),
        (desk(unscored=True), "the rubric is broken"),
    ],
)
def test_an_episode_that_fails_is_a_failed_attempt_with_the_reason(
    platform: Platform, environment: Any, reason: str
) -> None:
    with pytest.raises(JobFailed, match=reason):
        platform.training.loop("p/m", **platform.episodes.verifiers(environment), **SMALL).wait()


def test_an_attempt_is_a_process_as_anybody_starts_it(platform: Platform) -> None:
    made = platform.episodes.verifiers(desk(agent={"harness": {"id": "short_desk", "broken": True}}))
    with pytest.raises(RuntimeError, match="the harness is broken"):
        made["agent"](base_url="http://127.0.0.1:9/v1", api_key="none", task=made["tasks"][0])


def test_tasks_are_chosen_as_verifiers_chooses_them(platform: Platform) -> None:
    made = platform.episodes.verifiers(desk(endless=True), select={"include": {"idx": ["1:3"]}})
    assert [one["idx"] for one in made["tasks"]] == [1, 2]


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        (3, "environment: must be an object, such as .*, not int"),
        (["short_desk"], "environment: must be an object, such as .*, not list"),
        ("no_syntax", "SyntaxError: "),
        ({"taskset": {"id": "short_desk", "unread": "os"}}, "OSError: no file"),
        ({"taskset": {"id": "short_desk", "unread": "key"}}, "KeyError: 'column'"),
        ({"taskset": {"id": "short_desk", "unread": "exit"}}, "SystemExit: 3"),
        ("no-such-taskset", "taskset 'no-such-taskset' not found"),
        ({"taskset": {"id": "short_desk", "colour": "red"}}, "colour"),
        ({"taskset": {"id": "short_desk", "questions": []}}, "has no task that is selected"),
        ("no_reward", "has no reward; give its task a method"),
        (desk(endless=True), "or no end of them; choose with select="),
        ({"id": "user-sim", "taskset": {"id": "short_desk"}}, "has agents assistant, user; give all but the one"),
    ],
)
def test_what_gives_no_tasks_with_a_reward_is_refused(platform: Platform, environment: Any, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        platform.episodes.verifiers(environment)


@pytest.mark.parametrize("select", [3, [1], {"colour": 1}])
def test_a_choice_that_is_none_is_refused(platform: Platform, select: Any) -> None:
    with pytest.raises(InvalidInput, match=r"^select: "):
        platform.episodes.verifiers("short_desk", select=select)
