"""Several prompts, several choices, and prompts that are repeated are bounded together, before all are made."""

from typing import Any

import pytest

from modelyard.platform.chat import assembly

PATH = "/inference/v1/completions"
MOST = 8000


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly, "MAX_TEXT", MOST)


@pytest.mark.parametrize(
    ("members", "status"),
    [
        ({"prompt": ["x" * 1000] * 7, "max_tokens": 50}, 200),
        ({"prompt": ["x" * 1000] * 9, "max_tokens": 50}, 400),
        ({"prompt": ["x" * 1000] * 9, "max_tokens": 50, "logprobs": 1}, 400),
        ({"prompt": ["x " * 50] * 9, "max_tokens": 50, "logprobs": 1}, 200),
        ({"prompt": ["x " * 100] * 9, "max_tokens": 200, "logprobs": 1}, 400),
        ({"prompt": "x" * 1000, "n": 7, "max_tokens": 50}, 200),
        ({"prompt": "x" * 1000, "n": 9, "max_tokens": 50}, 400),
        ({"prompt": "x" * 1000, "n": 9, "max_tokens": 0, "echo": True}, 400),
        ({"prompt": "x " * 300, "n": 9, "max_tokens": 1, "prompt_logprobs": 1}, 400),
        ({"prompt": ["x" * 1000] * 9, "max_tokens": 0, "echo": True}, 400),
        ({"prompt": "x" * 7000, "max_tokens": 50, "logprobs": 1, "echo": True}, 200),
    ],
)
def test_answers_are_bounded_together(client: Any, members: dict[str, Any], status: int) -> None:
    answer = client.send("POST", PATH, {"model": "echo", **members}, check=False)
    assert answer.status == status, answer.json
    if status == 400:
        assert "ask for fewer" in answer.json["error"]["message"]
