"""A server is recorded by its address, and replayed without it."""

from pathlib import Path
from typing import Any

import pytest

from modelyard import EchoBackend, open_platform
from modelyard.errors import NoAnswerPrepared, NotFound
from modelyard.testing import FakeVllm, record

SCHEMA: Any = {"type": "json_schema", "json_schema": {"name": "any", "schema": {"type": "object"}}}


def ask(backend: Any, question: str, **options: Any) -> str:
    with open_platform(backend=backend) as platform:
        return platform.chat.complete(model="small", messages=question, **options).text


def test_what_is_missing_is_asked_once_and_replayed_without_a_key(tmp_path: Path) -> None:
    fake, path = FakeVllm(EchoBackend(["small"]), api_key="sk-mine"), tmp_path / "desk.jsonl"
    with fake.serve() as root:
        for _ in range(2):
            with record(f"{root}/v1", "sk-mine", path, models=["small"]) as backend:
                assert ask(backend, "hello") == "hello"
                assert ask(backend, "an object", response_format=SCHEMA) == "{}"
        with pytest.raises(NotFound), record(f"{root}/v1", None, tmp_path / "none.jsonl", models=["small"]):
            pass
    assert len(path.read_text(encoding="utf-8").splitlines()) == 4
    assert "sk-mine" not in path.read_text(encoding="utf-8")
    with record("http://gone.invalid/v1", None, path, models=["small"]) as backend:
        assert ask(backend, "hello") == "hello"
        with pytest.raises(NoAnswerPrepared):
            ask(backend, "something else")
