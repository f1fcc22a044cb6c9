"""A caller that needs no more of a whole answer gets, and pays for, what was made until then."""

import asyncio
import contextlib
import threading
from pathlib import Path
from typing import Any

import pytest
from local_models import END, base_model

from modelyard import open_platform
from modelyard.parts.torch.serving.backend import LocalBackend
from modelyard.parts.torch.serving.sequence import MAX_UNREAD
from modelyard.protocols import ServedModel

ENDLESS: Any = {"model": "tiny", "messages": "hello", "max_tokens": 900, "seed": 3, "logit_bias": {END: -100}}
ENOUGH = 60.0
"""Seconds after which a wait is taken for endless."""


@pytest.fixture
def backend(folder: Path) -> LocalBackend:
    return LocalBackend([base_model(folder, "tiny")])


@pytest.mark.parametrize("streamed", [False, True])
def test_an_answer_that_a_stop_string_ends_is_not_computed_to_its_limit(backend: LocalBackend, streamed: bool) -> None:
    with open_platform(backend=backend) as platform:
        text = platform.chat.complete(**{**ENDLESS, "max_tokens": 40}).text
        at = text.index(stop := text[20:22])
        if streamed:
            with platform.chat.stream(**ENDLESS, stop=[stop]) as stream:
                list(stream)
            answer = stream.completion
        else:
            answer = platform.chat.complete(**ENDLESS, stop=[stop])
        assert answer.text == text[:at]
        assert answer.usage.completion_tokens < 40


def test_a_task_that_is_cancelled_while_it_waits_for_a_whole_answer_is_booked_for_what_was_said(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = ServedModel("tiny", backend.entries()[0])
    with backend._model(model)._networks.serving(model) as (engine, _):
        pass
    gone, step, cancel = threading.Event(), engine._step, engine.cancel

    def cancelling(*given: Any) -> None:
        cancel(*given)
        gone.set()

    async def given_up(asking: Any) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.ensure_future(asking)

        def stepping() -> None:
            if engine.rows.running and len(engine.rows.running[0].sampled) == 2 * MAX_UNREAD + 5:
                loop.call_soon_threadsafe(task.cancel)
                assert gone.wait(ENOUGH), "nobody noticed"
            step()

        monkeypatch.setattr(engine, "_step", stepping)
        with contextlib.suppress(asyncio.CancelledError):
            await task

    monkeypatch.setattr(engine, "cancel", cancelling)
    with open_platform(backend=backend) as platform:
        asyncio.run(given_up(platform.chat.acomplete(**ENDLESS)))
        (entry,) = platform.usage.list().page().items
    assert entry.completion_tokens == 2 * MAX_UNREAD
