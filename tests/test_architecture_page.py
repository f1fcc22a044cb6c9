"""The page of the architecture is true: its walks enter as many files as it says, and what it names is there."""

import asyncio
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import modelyard
from modelyard import open_platform
from modelyard.asgi import Endpoint, Request, asgi_app

ROOT = Path(__file__).parents[1]
SOURCE = Path(modelyard.__file__).parent
PAGE = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")

pytestmark = pytest.mark.parts  # the page is about the whole

WARM = 4
"""Calls after which a walk enters no file for the first time."""


def said(words: str) -> int:
    (number,) = re.findall(rf"{words} (\d+) files", PAGE)
    return int(number)


def entered(call: Callable[[], object]) -> int:
    """How many files of ours this thread enters in a call, when the process is warm."""
    for _ in range(WARM):
        call()
    files: set[str] = set()
    sys.setprofile(lambda frame, event, _: files.add(frame.f_code.co_filename) if event == "call" else None)
    try:
        call()
    finally:
        sys.setprofile(None)
    return sum(Path(name).is_relative_to(SOURCE) for name in files)


def ask_over_asgi(runner: asyncio.Runner, app: Any, path: str, body: object, key: str) -> Callable[[], None]:
    raw = json.dumps(body).encode()
    headers = [(b"authorization", f"Bearer {key}".encode()), (b"content-length", str(len(raw)).encode())]
    place = {"path": path, "raw_path": path.encode(), "query_string": b"", "root_path": ""}
    scope = {"type": "http", "method": "POST", **place, "headers": headers}

    async def asked() -> None:
        waiting = [{"type": "http.request", "body": raw, "more_body": False}]
        sent: list[Any] = []

        async def receive() -> Any:
            return waiting.pop() if waiting else await asyncio.Event().wait()

        async def send(message: Any) -> None:
            sent.append(message)

        await app(scope, receive, send)
        assert sent[0]["status"] == 200, sent

    return lambda: runner.run(asked())


def test_a_chat_completion_enters_as_many_files_as_the_page_says() -> None:
    with open_platform() as platform, asyncio.Runner() as runner:
        body = {"model": "echo", "messages": [{"role": "user", "content": "hi there"}]}
        key = platform.keys.create("acme").secret
        call = ask_over_asgi(runner, asgi_app(platform), "/inference/v1/chat/completions", body, key)
        assert entered(call) == said("over ASGI enters")


def test_the_creation_of_a_job_enters_as_many_files_as_the_page_says() -> None:
    with open_platform() as platform, platform.worker():
        model = platform.models.create("support", project="desk", base_model="tabular-mini")
        row = {"messages": [{"role": "user", "content": "ping"}, {"role": "assistant", "content": "pong"}]}
        uploaded = [platform.training.upload("rows", [row] * rows, project="desk").url for rows in range(1, WARM + 2)]
        urls, endpoint = iter(uploaded), Endpoint(platform)
        headers = [
            ("authorization", f"Bearer {platform.keys.create(platform.principal.entity).secret}"),
            ("content-type", "application/json"),
        ]

        def create() -> None:
            body = {"model_id": model.id, "training_data_url": next(urls)}
            asked = Request("POST", "/v1/preview/sft-training-jobs", "", headers, iter([json.dumps(body).encode()]))
            answer = endpoint.handle(asked)
            assert answer.status == 200, answer.body

        assert entered(create) == said("is created in")


def test_an_evaluation_enters_as_many_files_as_the_page_says() -> None:
    rows = [{"prompt": "a", "expected": "a"}, {"prompt": "b", "expected": "c"}]
    with open_platform() as platform:
        found = entered(lambda: platform.evaluations.run("politeness", "echo", rows, "exact_match", project="demo"))
        assert found == said("two rows.. enters")


def test_what_the_page_names_is_there() -> None:
    """Files and folders in backquotes, from the root or from the package."""
    named = {name.rstrip("/") for name in re.findall(r"`((?:[a-z_]+/)+(?:[a-z_]+\.(?:py|md))?)`", PAGE)}
    assert len(named) > 30
    assert sorted(name for name in named if not ((ROOT / name).exists() or (SOURCE / name).exists())) == []


def test_the_files_of_the_tree_are_there() -> None:
    tree = PAGE.partition("```text\nsrc/modelyard/\n")[2].partition("```")[0]
    names = re.findall(r"[a-z_]+\.py", tree)
    assert len(names) > 15
    assert [name for name in names if not [*SOURCE.rglob(name)]] == []
