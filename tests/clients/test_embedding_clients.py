"""Unmodified clients make embeddings: LangChain, Haystack, LiteLLM, and the AI SDK of JavaScript."""

import asyncio
import json
import shutil
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from node_packages import node_modules

pytest.importorskip("litellm", reason="it has a lane of its own: tests/clients/lanes.py embeddings")

# What these clients themselves warn of.
pytestmark = pytest.mark.filterwarnings("ignore")

TEXTS = ["a cat sat", "the cat sat", "stocks fell"]
REFUSED = "tabular-mini makes no embeddings; these do: echo"
HERE = Path(__file__).parent / "embeddings"


def own(served: Any, text: str, dimensions: int | None = None) -> list[float]:
    (vector,) = served.platform.embeddings.create(model="echo", input=text, dimensions=dimensions).vectors
    return [*vector]


def near(one: list[float], other: list[float]) -> bool:
    return len(one) == len(other) and all(abs(a - b) < 1e-6 for a, b in zip(one, other, strict=True))


def test_langchain(served: Any) -> None:
    from langchain_openai import OpenAIEmbeddings

    # By default it cuts texts itself, with the tokenizer of another service's models, which it downloads.
    client = OpenAIEmbeddings(
        model="echo", base_url=f"{served.root}/v1", api_key=served.key, check_embedding_ctx_length=False
    )
    assert all(near(one, own(served, text)) for one, text in zip(client.embed_documents(TEXTS), TEXTS, strict=True))
    assert near(client.embed_query(TEXTS[0]), own(served, TEXTS[0]))
    assert near(asyncio.run(client.aembed_query(TEXTS[1])), own(served, TEXTS[1]))


def test_haystack(served: Any) -> None:
    from haystack import Document
    from haystack.components.embedders import OpenAIDocumentEmbedder, OpenAITextEmbedder
    from haystack.utils import Secret

    options = {"model": "echo", "api_base_url": f"{served.root}/v1", "api_key": Secret.from_token(served.key)}
    with closing(OpenAITextEmbedder(**options)) as one, closing(OpenAIDocumentEmbedder(**options)) as many:
        assert near(one.run(text=TEXTS[0])["embedding"], own(served, TEXTS[0]))
        found = many.run(documents=[Document(content=text) for text in TEXTS])
    assert all(near(one.embedding, own(served, one.content)) for one in found["documents"])


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm", "litellm_proxy"])
def test_litellm(served: Any, provider: str) -> None:
    import litellm

    options = {"model": f"{provider}/echo", "api_base": f"{served.root}/v1", "api_key": served.key}
    made = litellm.embedding(input=TEXTS, **options)
    assert all(near(one["embedding"], own(served, text)) for one, text in zip(made.data, TEXTS, strict=True))
    assert made.usage.prompt_tokens == 8
    again = asyncio.run(litellm.aembedding(input=TEXTS[:1], **options))
    assert near(again.data[0]["embedding"], own(served, TEXTS[0]))
    with pytest.raises(litellm.BadRequestError, match=REFUSED):
        litellm.embedding(input="a", num_retries=0, **{**options, "model": f"{provider}/tabular-mini"})


def test_the_ai_sdk(served: Any, tmp_path: Path) -> None:
    shutil.copy(HERE / "embed.mjs", tmp_path)
    (tmp_path / "node_modules").symlink_to(node_modules(HERE / "package.json"))
    command = ["node", "embed.mjs", served.root, served.key]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for found in json.loads(done.stdout).values():
        assert found["refused"] == f"400 model: {REFUSED}"
        assert (found["size"], found["tokens"]) == (256, 3)
        assert (found["alike"][0] > 0.6, abs(found["alike"][1]) < 0.3, found["alike"][2]) == (True, True, 1)
