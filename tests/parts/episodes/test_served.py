"""A program in another thread or process, with the client of its vendor, that has an address and a key alone."""

import json
import threading
import urllib.request
from pathlib import Path

import pytest

from modelyard import open_platform
from modelyard.testing import served

openai = pytest.importorskip("openai")
pytestmark = pytest.mark.slow


def test_an_unmodified_client_is_captured_over_a_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_platform(tmp_path / "yard.db") as platform, served(platform) as url:
        platform.models.create("support", project="desk", base_model="tabular-mini")
        group = platform.episodes.group("refunds", model="desk/support", size=1, url=url)
        for name, value in group[0].environment.items():
            monkeypatch.setenv(name, value)
        with openai.OpenAI() as client:
            first = client.responses.create(model="gpt-5", input="Where is it?", max_output_tokens=8)
            client.responses.create(
                model="gpt-5", input="and then?", previous_response_id=first.id, max_output_tokens=8
            )
            asked = [{"role": "user", "content": "hi"}]
            stream = client.chat.completions.create(model="gpt-4o", messages=asked, stream=True, max_tokens=8)
            text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)

            def ask(number: int) -> None:
                more = [{"role": "assistant", "content": text}, {"role": "user", "content": f"more {number}"}]
                client.chat.completions.create(model="gpt-4o", messages=[*asked, *more], max_tokens=8)

            threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        turns = group[0].turns()
        roots = [one for one in turns if one.parent is None]
        assert [one.turn.route for one in roots] == ["/inference/v1/responses", "/inference/v1/chat/completions"]
        assert [sum(one.parent is root for one in turns) for root in roots] == [1, 4]
        assert not any(one.untrained for one in turns)
        sent = urllib.request.Request(
            f"{url}/v1/episodes/{group[0].id}/reward",
            b'{"reward": 0.5}',
            {"Authorization": f"Bearer {group[0].key}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(sent) as answer:
            assert json.load(answer)["state"] == "rewarded"
