"""Several choices of a request are bounded together, before they are all made."""

import gc
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from modelyard import open_platform
from modelyard.backends.echo import EchoBackend
from modelyard.errors import InvalidInput
from modelyard.platform.chat import assembly

MOST = 2**16


class Counting(EchoBackend):
    """Counts the characters that it makes; with `choices` it makes all choices of a request at once."""

    made = 0

    def stream(self, request: Any, model: Any) -> Iterator[Any]:
        for found in super().stream(request, model):
            for delta in found if isinstance(found, list | tuple) else (found,):
                self.made += len(delta.text)
                yield delta


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly, "MAX_TEXT", MOST)


@pytest.mark.slow
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("options", [{}, {"logprobs": True}, {"return_token_ids": True}], ids=str)
def test_no_more_is_made_than_may_be_answered(options: dict[str, bool], streamed: bool) -> None:
    backend, most = Counting(), MOST // assembly.DETAILED if options else MOST
    text = "word " * (most // 5 // 2)
    with open_platform(backend=backend) as platform:
        asked: dict[str, Any] = {"model": "echo", "messages": text, **options}
        make = platform.chat.stream if streamed else platform.chat.complete
        list(make(**asked, n=2)) if streamed else make(**asked, n=2)
        backend.made = 0
        with pytest.raises(InvalidInput, match=f"more than {most} characters"):
            list(make(**asked, n=100)) if streamed else make(**asked, n=100)
    assert backend.made <= most + len(text)


@pytest.mark.parametrize("details", [False, True])
def test_a_refused_request_takes_little_memory_and_keeps_none(details: bool) -> None:
    with open_platform() as platform:
        asked: dict[str, Any] = {"model": "echo", "messages": "x" * (MOST // 2), "n": 100, "logprobs": details}

        def refused() -> None:
            with pytest.raises(InvalidInput, match="ask for fewer"):
                platform.chat.complete(**asked)

        refused()
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        refused()
        _, peak = tracemalloc.get_traced_memory()
        gc.collect()  # frames of the error refer to each other
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak - before < 100 * MOST
    assert after - before < 2 * MOST


def test_one_choice_may_have_them_all() -> None:
    with open_platform() as platform:
        text = "x" * MOST
        assert platform.chat.complete(model="echo", messages=text, logprobs=True).text == text
