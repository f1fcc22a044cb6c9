"""The public evaluation framework `inspect-ai`, unmodified: by its providers of completions, responses and messages."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

pytest.importorskip("inspect_ai", reason="it has a lane of its own: tests/clients/lanes.py inspect")

from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.log import EvalLog, read_eval_log
from inspect_ai.model import ContentReasoning, GenerateConfig, ResponseSchema, get_model
from inspect_ai.scorer import includes, match
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import Tool, tool
from inspect_ai.util import json_schema
from pydantic import BaseModel

from modelyard import open_platform
from modelyard.asgi import asgi_app
from modelyard.http.interface import Interface
from modelyard.parts.doubles.clients.server import asgi_server
from modelyard.parts.scripted.backend import ScriptedBackend, call, on
from openapi_check import Checked

RULES = [on("refund", tool=None).answer(call("look_up", order=17)), on(tool="look_up").answer("It is paid.")]
KINDS = ("openai-api/yard", "openai-api/yard-responses", "openai", "openai-responses", "anthropic")


class Number(BaseModel):
    n: int


@tool
def look_up() -> Tool:
    async def execute(order: int) -> str:
        """Look an order up.

        Args:
            order: Its number.
        """
        return f"order {order}: refunded"

    return execute


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No key, address or folder of the person who runs this."""
    for name in [name for name in os.environ if name.startswith(("OPENAI_", "ANTHROPIC_", "INSPECT_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("INSPECT_LOG_DIR", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture(scope="module")
def scripted() -> Iterator[Any]:
    """A served platform whose model calls a tool: where it answers, and a key."""
    with open_platform(backend=ScriptedBackend(RULES)) as platform:
        application = Checked(asgi_app(platform, list(Interface)))
        with asgi_server(application, log_level="warning") as server:
            yield server.url, platform.keys.create("acme").secret
        assert application.faults == []


def model(kind: str, name: str, root: str, key: str, **config: Any) -> Any:
    """A model by one of the providers, which neither caches nor tries again."""
    settings = GenerateConfig(max_retries=0, **config)
    provider = kind.removesuffix("-responses")
    options: dict[str, Any] = {} if provider == "anthropic" else {"responses_api": provider != kind}
    base = root if provider == "anthropic" else f"{root}/v1"
    return get_model(f"{provider}/{name}", base_url=base, api_key=key, config=settings, memoize=False, **options)


def asked(model: Any, prompt: str, **options: Any) -> Any:
    """The output of one generation."""

    async def main() -> Any:
        async with model:
            return await model.generate(prompt, **options)

    return asyncio.run(main())


def evaluated(task: Task, model: Any, folder: Path, form: Literal["json", "eval"] = "json") -> EvalLog:
    (log,) = eval(task, model=model, display="none", log_dir=str(folder), log_format=form, fail_on_error=True)
    return log


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_and_its_usage(served: Any, kind: str) -> None:
    output = asked(model(kind, "echo", served.root, served.key, max_tokens=20), "hello there friend")
    assert (output.completion, output.stop_reason) == ("hello there friend", "stop")
    assert (output.usage.input_tokens, output.usage.output_tokens, output.usage.total_tokens) == (3, 3, 6)


@pytest.mark.parametrize("kind", KINDS)
def test_an_answer_that_its_limit_cuts(served: Any, kind: str) -> None:
    output = asked(model(kind, "echo", served.root, served.key, max_tokens=2), "hello there friend")
    assert (output.completion, output.stop_reason) == ("hello there", "max_tokens")


def test_logprobs(served: Any) -> None:
    config = {"logprobs": True, "top_logprobs": 2, "max_tokens": 4, "seed": 1, "temperature": 0.5, "top_p": 0.9}
    output = asked(model("openai-api/yard", "tabular-mini", served.root, served.key, **config), "hello")
    tokens = output.choices[0].logprobs.content
    assert "".join(one.token for one in tokens) == output.completion
    assert all(one.logprob <= 0 and len(one.top_logprobs) == 2 for one in tokens)
    assert len(tokens) == output.usage.output_tokens == 4


@pytest.mark.parametrize("kind", KINDS)
def test_reasoning(served: Any, kind: str) -> None:
    output = asked(model(kind, "echo", served.root, served.key, max_tokens=2048, reasoning_effort="low"), "think hard")
    thought = [part for part in output.message.content if isinstance(part, ContentReasoning)]
    assert output.completion.strip() == "think hard"
    assert [part.reasoning or part.summary for part in thought] == ["think hard"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_schema(served: Any, kind: str) -> None:
    schema = ResponseSchema(name="number", json_schema=json_schema(Number), strict=True)
    output = asked(model(kind, "echo", served.root, served.key, max_tokens=50, response_schema=schema), "a number")
    assert Number.model_validate_json(output.completion).n == 0


@pytest.mark.parametrize("kind", KINDS)
def test_an_evaluation_with_a_tool(scripted: Any, tmp_path: Path, kind: str) -> None:
    samples = [Sample(input="Was my refund paid?", target="paid"), Sample(input="My refund?", target="denied")]
    task = Task(dataset=samples, solver=[use_tools(look_up()), generate()], scorer=includes())
    log = evaluated(task, model(kind, "scripted", *scripted, max_tokens=100), tmp_path)
    assert (log.status, log.error) == ("success", None)
    assert log.results is not None
    assert log.results.scores[0].metrics["accuracy"].value == 0.5
    assert log.samples is not None
    for sample in log.samples:
        assert [message.role for message in sample.messages] == ["user", "assistant", "tool", "assistant"]
        assert sample.messages[2].text == "order 17: refunded"
        assert sample.output.completion == "It is paid."


@pytest.mark.parametrize("kind", KINDS)
def test_an_evaluation_of_epochs_at_once(served: Any, tmp_path: Path, kind: str) -> None:
    samples = [Sample(input=f"the sum is {n}", target=str(n if n % 4 else -1)) for n in range(1, 9)]
    task = Task(dataset=samples, solver=generate(), scorer=match(numeric=True), epochs=3)
    log = evaluated(task, model(kind, "echo", served.root, served.key, max_tokens=20, max_connections=8), tmp_path)
    assert log.status == "success"
    assert log.results is not None
    assert log.samples is not None
    assert log.results.scores[0].metrics["accuracy"].value == 0.75
    assert len(log.samples) == 24
    (usage,) = log.stats.model_usage.values()
    assert (usage.input_tokens, usage.output_tokens) == (96, 96)


@pytest.fixture
def _plain_tracebacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The framework colours the source of each frame, which takes seconds."""
    monkeypatch.setattr("rich.traceback.Traceback.__rich_console__", lambda *_: iter(["a traceback"]))


@pytest.mark.usefixtures("_plain_tracebacks")
@pytest.mark.parametrize("kind", KINDS)
def test_a_refusal_ends_the_evaluation_with_its_words(served: Any, tmp_path: Path, kind: str) -> None:
    task = Task(dataset=[Sample(input="hi", target="hi")], solver=generate(), scorer=match())
    wrong = evaluated(task, model(kind, "echo", served.root, "wrong", max_tokens=9), tmp_path)
    assert wrong.status == "error"
    assert wrong.error is not None
    assert "API key" in wrong.error.message
    missing = evaluated(task, model(kind, "nothing", served.root, served.key, max_tokens=9), tmp_path)
    assert missing.status == "error"
    assert missing.error is not None
    assert "nothing" in missing.error.message


@pytest.mark.parametrize("form", ["json", "eval"])
def test_a_log_is_kept_as_a_run(served: Any, tmp_path: Path, form: Literal["json", "eval"]) -> None:
    samples = [Sample(input=f"the sum is {n}", target=str(n if n % 4 else -1)) for n in range(1, 9)]
    task = Task(dataset=samples, solver=generate(), scorer=[match(numeric=True), includes()], epochs=2, name="sums")
    log = evaluated(task, model("openai", "echo", served.root, served.key, max_tokens=20), tmp_path, form)
    run = served.platform.evaluations.inspect.read(log.location, project="p")
    assert log.results is not None
    means = {score.name: score.metrics["accuracy"].value for score in log.results.scores}
    assert (
        {name: one["mean"] for name, one in run.summary["scorers"].items()}
        == means
        == {"match": 0.75, "includes": 0.75}
    )
    rows = served.platform.evaluations.result(run.id).rows
    assert len(rows) == 16
    assert sum(row.prompt_tokens for row in rows) == sum(used.input_tokens for used in log.stats.model_usage.values())
    assert served.platform.evaluations.inspect.read(log.location, project="p").id == run.id


@pytest.mark.parametrize("ending", ["json", "eval"])
def test_a_run_is_written_as_a_log(served: Any, tmp_path: Path, ending: str) -> None:
    rows = [{"prompt": f"say {n}", "expected": f"say {n % 3}"} for n in range(6)]
    run = served.platform.evaluations.run("quiz", "echo", rows, ["exact_match", "fuzzy"], trials=2, project="p")
    path = tmp_path / f"quiz.{ending}"
    served.platform.evaluations.inspect.write(run, path)
    log = read_eval_log(str(path))
    assert (log.status, log.eval.task, log.eval.model, log.eval.config.epochs) == ("success", "quiz", "echo", 2)
    assert log.samples is not None
    assert log.results is not None
    assert len(log.samples) == 12
    assert {sample.output.completion for sample in log.samples} == {row["prompt"] for row in rows}
    graded = [sample.scores["exact_match"].value for sample in log.samples if sample.scores]
    assert (graded.count("C"), graded.count("I")) == (6, 6)
    assert {one.name: one.metrics["mean"].value for one in log.results.scores}["exact_match"] == run.score == 0.5
    assert len(read_eval_log(str(path), header_only=True).eval.dataset.sample_ids or []) == 6
    assert read_eval_log(str(path), header_only=True).samples is None
