"""The unmodified `openai` client makes embeddings, on both bases and on an event loop."""

import asyncio
from typing import Any

import openai
import pytest

pytestmark = pytest.mark.parts

TEXTS = ["a cat sat", "the cat sat", "stocks fell"]


def own(served: Any, text: str) -> list[float]:
    (vector,) = served.platform.embeddings.create(model="echo", input=text).vectors
    return [*vector]


def near(one: list[float], other: list[float]) -> bool:
    return len(one) == len(other) and all(abs(a - b) < 1e-6 for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("base", ["/v1", "/inference/v1"])
def test_embeddings_are_those_of_the_platform(served: Any, base: str) -> None:
    with openai.OpenAI(base_url=served.root + base, api_key=served.key) as client:
        made = client.embeddings.create(model="echo", input=TEXTS)  # asks for base64 by itself
        assert all(near(one.embedding, own(served, text)) for one, text in zip(made.data, TEXTS, strict=True))
        assert made.usage.total_tokens == 8
        plain = client.embeddings.create(model="echo", input=[[5, 6], [7]], encoding_format="float", dimensions=16)
        assert [len(one.embedding) for one in plain.data] == [16, 16]
        with pytest.raises(openai.BadRequestError, match="tabular-mini makes no embeddings; these do: echo"):
            client.embeddings.create(model="tabular-mini", input="a")
        with pytest.raises(openai.NotFoundError):
            client.embeddings.create(model="nothing", input="a")


def test_embeddings_are_made_on_an_event_loop(served: Any) -> None:
    async def main() -> Any:
        async with openai.AsyncOpenAI(base_url=f"{served.root}/v1", api_key=served.key) as client:
            return await asyncio.gather(*(client.embeddings.create(model="echo", input=text) for text in TEXTS))

    for made, text in zip(asyncio.run(main()), TEXTS, strict=True):
        assert near(made.data[0].embedding, own(served, text))
