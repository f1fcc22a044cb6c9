"""A local model on a real server, called by the public `openai` client as it is."""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from local_models import END, TOKEN_BYTES, base_model
from openai import OpenAI, RateLimitError

from modelyard import open_platform
from modelyard.parts.doubles.clients.server import served
from modelyard.parts.torch.serving.backend import LocalBackend
from modelyard.parts.torch.serving.batching_engine import Engine
from modelyard.parts.torch.serving.room import Room
from modelyard.parts.torch.serving.sequence import SequenceState
from modelyard.protocols import ServedModel

HELLO: Any = [{"role": "user", "content": "hello"}]
ENOUGH = 60.0
"""Seconds after which a wait is taken for endless."""


@pytest.fixture
def backend(folder: Path) -> LocalBackend:
    return LocalBackend([base_model(folder, "tiny")], room=Room(rows=1, waiting=1))


@pytest.fixture
def engine(backend: LocalBackend) -> Engine:
    with backend._model(model := ServedModel("tiny", backend.entries()[0]))._networks.serving(model) as (engine, _):
        return engine


@pytest.fixture
def client(backend: LocalBackend) -> Iterator[OpenAI]:
    with open_platform(backend=backend) as platform, served(platform) as url:
        key = platform.keys.create("local").secret
        with OpenAI(base_url=f"{url}/inference/v1", api_key=key, max_retries=0) as client:
            yield client


def test_whole_and_streamed_answers_are_the_same_and_sampled_by_their_seed(client: OpenAI) -> None:
    def ask(**options: Any) -> Any:
        return client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=24, seed=3, **options)

    whole = ask(logprobs=True, top_logprobs=2)
    with ask(stream=True) as chunks:
        reported = [chunk.choices[0] for chunk in chunks if chunk.choices]
    assert "".join(choice.delta.content or "" for choice in reported) == whole.choices[0].message.content
    assert reported[-1].finish_reason == whole.choices[0].finish_reason
    assert len(whole.choices[0].logprobs.content) == whole.usage.completion_tokens
    assert {model.id for model in client.models.list()} == {"tiny"}


def test_a_schema_is_kept_by_a_model_that_knows_nothing(client: OpenAI) -> None:
    pytest.importorskip("llguidance")
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    form: Any = {
        "type": "json_schema",
        "json_schema": {"name": "s", "schema": {**schema, "additionalProperties": False}},
    }
    answer = client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=40, response_format=form)
    assert set(json.loads(answer.choices[0].message.content or "")) == {"ok"}


def test_a_caller_without_room_gets_retry_after_and_the_others_are_answered(
    client: OpenAI, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One runs, one waits; no thread steps before the third has its answer."""
    taken, go_on = threading.Semaphore(0), threading.Event()
    submit, step = engine.submit, engine._step

    def submitting(*given: Any) -> None:
        submit(*given)
        taken.release()

    def stepping() -> None:
        assert go_on.wait(ENOUGH)
        step()

    monkeypatch.setattr(engine, "submit", submitting)
    monkeypatch.setattr(engine, "_step", stepping)

    def ask(_: int = 0) -> Any:
        return client.chat.completions.create(model="tiny", messages=HELLO, max_tokens=5, seed=3)

    with ThreadPoolExecutor(2) as threads:
        requested = [threads.submit(ask) for _ in range(2)]
        assert all(taken.acquire(timeout=ENOUGH) for _ in requested)
        with pytest.raises(RateLimitError) as refused:
            ask()
        go_on.set()
        assert [one.result().usage.completion_tokens for one in requested] == [5, 5]
    assert (refused.value.status_code, refused.value.code, refused.value.type) == (
        429,
        "queue_full",
        "rate_limit_error",
    )
    assert int(refused.value.response.headers["retry-after"]) >= 1
    assert ask().usage.completion_tokens == 5


def test_eight_who_name_no_limit_are_answered_side_by_side_by_a_model_of_32_thousand_tokens(
    folders: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In memory for 4,681 tokens of them, as 1 GiB is for a model of 0.6 billion weights in 32 bits. The end
    of an answer comes after about a hundred tokens.
    """
    folder, running = folders(context_length=32768), []
    backend = LocalBackend([base_model(folder, "tiny")], room=Room(memory=TOKEN_BYTES * 4681))
    decode = Engine._decode

    def watching(engine: Engine) -> None:
        running.append(len(engine.rows.running))
        decode(engine)

    monkeypatch.setattr(Engine, "_decode", watching)
    with open_platform(backend=backend) as platform, served(platform) as url, ThreadPoolExecutor(8) as threads:
        key = platform.keys.create("local").secret
        with OpenAI(base_url=f"{url}/inference/v1", api_key=key, max_retries=0) as client:
            ready = threading.Barrier(8)

            def ask(seed: int) -> Any:
                ready.wait(ENOUGH)
                return client.chat.completions.create(
                    model="tiny", messages=HELLO, seed=seed, logit_bias={"2": 4}, timeout=60
                )

            reasons = {one.choices[0].finish_reason for one in threads.map(ask, range(8))}
        assert reasons <= {"stop", "length"}
        assert max(running) > 4
        assert platform.catalogue.list().page(1).items[0].context_length == 4681


def test_the_answer_to_a_client_who_has_gone_ends_with_the_step_under_way(
    client: OpenAI, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, ended, answers, had = threading.Event(), threading.Event(), [], []
    submit, step, cancel, end = engine.submit, engine._step, engine.cancel, engine._end

    def stepping() -> None:
        if answers and len(answers[0].sampled) >= 4:
            assert gone.wait(ENOUGH), "nobody noticed"
        step()

    def cancelling(*given: Any) -> None:
        had.append(len(answers[0].sampled))
        cancel(*given)
        gone.set()

    def ending(*given: Any, **more: Any) -> None:
        end(*given, **more)
        ended.set()

    monkeypatch.setattr(engine, "submit", lambda one: (answers.append(one), submit(one)))
    monkeypatch.setattr(engine, "_step", stepping)
    monkeypatch.setattr(engine, "cancel", cancelling)
    monkeypatch.setattr(engine, "_end", ending)
    endless: Any = {"logit_bias": {str(END): -100}, "max_tokens": 900}
    stream = client.chat.completions.create(model="tiny", messages=HELLO, stream=True, **endless)
    next(iter(stream))
    stream.close()
    assert ended.wait(ENOUGH)
    (left,) = answers
    assert (left.state, left.reason) == (SequenceState.ENDED, None)
    assert len(left.sampled) <= min(had[0] + 1, 5)
    assert engine.rows.running == []
