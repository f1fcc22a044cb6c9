"""The public evaluation framework `inspect-ai`, unmodified, asks models served here, by three of its providers."""

import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("inspect_ai", reason="it has a lane of its own: tests/clients/lanes.py inspect")

from inspect_ai import Task
from inspect_ai import eval as evaluate
from inspect_ai.dataset import Sample
from inspect_ai.model import GenerateConfig, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import tool

from modelyard import ScriptedBackend, open_platform
from modelyard.asgi import asgi_app
from modelyard.backends import call, say
from modelyard.parts.doubles.clients.server import asgi_server

pytestmark = pytest.mark.filterwarnings("ignore")

PROVIDERS = pytest.mark.parametrize("name", ["openai", "openai-responses", "openai-api/yard", "anthropic"])


def model(name: str, served_as: str, root: str, key: str, **config: Any) -> Any:
    provider, _, api = name.partition("-responses")
    base = root if provider == "anthropic" else f"{root}/v1"
    more = {"responses_api": True} if name.endswith("-responses") else {}
    return get_model(
        f"{provider}/{served_as}",
        base_url=base,
        api_key=key,
        config=GenerateConfig(max_connections=2, max_tokens=100, **config),
        memoize=False,
        **more,
    )


@pytest.fixture(autouse=True)
def _quietly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("OPENAI_", "ANTHROPIC_", "INSPECT_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("INSPECT_LOG_DIR", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))


def run(task: Task, asked: Any, tmp_path: Path) -> Any:
    (log,) = evaluate(task, model=asked, log_dir=str(tmp_path), display="none")
    assert log.status == "success", log.error
    return log


@PROVIDERS
def test_an_evaluation_asks_and_scores(served: Any, tmp_path: Path, name: str) -> None:
    samples = [Sample(input=f"say word{at}", target=f"word{at}") for at in range(4)]
    task = Task(dataset=samples, solver=generate(), scorer=includes())
    log = run(task, model(name, "echo", served.root, served.key), tmp_path)
    assert log.results.scores[0].metrics["accuracy"].value == 1.0
    (usage,) = log.stats.model_usage.values()
    assert usage.output_tokens > 0


@tool
def look() -> Any:
    async def execute(x: int) -> str:
        """Look something up.

        Args:
            x: What to look up.
        """
        return f"found {x}"

    return execute


@PROVIDERS
def test_tools_are_called_and_answered(tmp_path: Path, name: str) -> None:
    backend = ScriptedBackend([call("look", x=7), say("It is found.")], models=("scripted",))
    with open_platform(backend=backend) as platform:
        key = platform.keys.create("acme").secret
        with asgi_server(asgi_app(platform), log_level="warning") as server:
            task = Task(
                dataset=[Sample(input="look", target="found")],
                solver=[use_tools(look()), generate()],
                scorer=includes(),
            )
            log = run(task, model(name, "scripted", server.url, key), tmp_path)
    assert log.results.scores[0].metrics["accuracy"].value == 1.0


def test_log_probabilities_come_with_an_answer(served: Any, tmp_path: Path) -> None:
    asked = model("openai-api/yard", "tabular-mini", served.root, served.key, logprobs=True, top_logprobs=2, seed=1)
    log = run(Task(dataset=[Sample(input="hi", target="x")], solver=generate(), scorer=includes()), asked, tmp_path)
    assert log.samples[0].output.choices[0].logprobs.content
