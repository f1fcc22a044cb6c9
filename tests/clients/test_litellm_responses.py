"""LiteLLM answers responses, unmodified."""

import asyncio
from typing import Any

import pytest

litellm: Any = pytest.importorskip("litellm", reason="it has a lane of its own: tests/clients/lanes.py embeddings")

# What the client itself warns of.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("base", ["/v1", "/inference/v1"])
def test_responses_are_answered_continued_streamed_shown_and_deleted(served: Any, base: str) -> None:
    options = {"api_base": served.root + base, "api_key": served.key, "custom_llm_provider": "openai"}
    first = litellm.responses(model="echo", input="first", instructions="Be brief.", **options)
    assert first.output[0].content[0].text == "first"
    assert first.usage.total_tokens > 0
    then = litellm.responses(model="echo", input="then", previous_response_id=first.id, **options)
    messages = served.platform.compat.responses.messages(litellm_id(then.id))
    assert [message.text for message in messages] == ["first", "first", "then", "then"]
    events = list(litellm.responses(model="echo", input="one two", stream=True, **options))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "one two"
    assert litellm.get_responses(then.id, **options).output[0].content[0].text == "then"
    assert litellm.delete_responses(then.id, **options).deleted
    gone = (litellm.BadRequestError, litellm.NotFoundError)  # as 1.106 and 1.110 have it
    with pytest.raises(gone, match="not found"):
        litellm.get_responses(then.id, num_retries=0, **options)


def test_responses_are_answered_on_an_event_loop(served: Any) -> None:
    async def main() -> Any:
        options = {"api_base": f"{served.root}/v1", "api_key": served.key, "custom_llm_provider": "openai"}
        return await asyncio.gather(
            *(litellm.aresponses(model="echo", input=text, **options) for text in ("one", "two"))
        )

    assert [found.output[0].content[0].text for found in asyncio.run(main())] == ["one", "two"]


def litellm_id(id: str) -> str:
    """Return our id of a response, which the client wraps into its own."""
    from litellm.responses.utils import ResponsesAPIRequestUtils

    return str(ResponsesAPIRequestUtils._decode_responses_api_response_id(id)["response_id"])
