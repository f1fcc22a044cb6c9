"""A whole answer with log-probabilities, however long, keeps no other request waiting."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest

from modelyard import open_platform
from modelyard.http.chat import routes
from modelyard.http.endpoint import Endpoint
from modelyard.http.message import Request

WORDS = 20_000


async def body(sent: Any) -> AsyncIterator[bytes]:
    yield json.dumps(sent).encode()


@pytest.mark.slow
def test_others_have_their_turn_while_a_long_answer_is_made_and_written(monkeypatch: pytest.MonkeyPatch) -> None:
    turns, turns_before, written_in = 0, 0, set[int]()
    write = routes.completion_json

    def watched(*arguments: Any) -> bytes:
        nonlocal turns_before
        turns_before = turns
        written_in.add(threading.get_ident())
        return write(*arguments)

    monkeypatch.setattr(routes, "completion_json", watched)

    async def main() -> Any:
        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        with open_platform() as platform:
            endpoint, key = Endpoint(platform), platform.keys.create("acme").secret

            async def ask(words: int) -> Any:
                sent = {"model": "echo", "messages": [{"role": "user", "content": "word " * words}], "logprobs": True}
                headers = [("authorization", f"Bearer {key}")]
                path = "/inference/v1/chat/completions"
                response = await endpoint.ahandle(Request("POST", path, "", headers, body(sent)))
                assert isinstance(response.body, bytes)
                return json.loads(response.body)["choices"][0]

            assert len((await ask(10))["logprobs"]["content"]) == 11
            assert written_in == {threading.get_ident()}, "a short answer needs no thread"
            written_in.clear()
            waiting = asyncio.create_task(others())
            choice = await ask(WORDS)
            waiting.cancel()
            return choice

    choice = asyncio.run(main())
    assert len(choice["logprobs"]["content"]) == WORDS + 1
    assert choice["message"]["content"] == "word " * WORDS
    assert turns_before > WORDS // 256 // 2, "while it was made"
    assert threading.get_ident() not in written_in
