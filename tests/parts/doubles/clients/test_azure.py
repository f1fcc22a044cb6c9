"""The unmodified `AzureOpenAI` client: its paths, its `api-version` and its `api-key`, served and intercepted."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
from openai import AsyncAzureOpenAI, AuthenticationError, AzureOpenAI, BadRequestError, NotFoundError, OpenAI

from modelyard import EchoBackend, Platform, open_platform
from modelyard.testing import Httpx2Transport, intercept

pytestmark = pytest.mark.usefixtures("loopback_only")

ENDPOINT = "https://mine.openai.azure.com"
HELLO: Any = [{"role": "user", "content": "one two three"}]
Made = Callable[..., Any]


@pytest.fixture
def platform() -> Iterator[Platform]:
    with open_platform(backend=EchoBackend(["gpt", "acme/other"])) as opened:
        yield opened


@pytest.fixture(params=["served", "intercepted"])
def azure(request: pytest.FixtureRequest, platform: Platform) -> Iterator[Made]:
    served = request.param == "served"
    key = platform.keys.create().secret if served else "0123456789abcdef"

    def made(kind: Any = AzureOpenAI, **options: Any) -> Any:
        library = httpx2.AsyncClient if kind is AsyncAzureOpenAI else httpx2.Client
        http: Any = {"http_client": library(transport=Httpx2Transport(platform))} if served else {}
        given = {"azure_endpoint": ENDPOINT, "api_version": "2024-10-21", "api_key": key, "max_retries": 0, **http}
        return kind(**{**given, **options})

    if served:
        yield made
    else:
        with intercept(platform, hosts=["mine.openai.azure.com"]):
            yield made


def said(answer: Any) -> str:
    return str(answer.choices[0].message.content)


def test_each_endpoint_of_the_client_is_answered(azure: Made, platform: Platform) -> None:
    with azure() as client:
        assert said(client.chat.completions.create(model="gpt", messages=HELLO)) == "one two three"
        assert said(client.chat.completions.create(model="acme/other", messages=HELLO)) == "one two three"
        chunks = client.chat.completions.create(model="gpt", messages=HELLO, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "one two three"
        assert client.completions.create(model="gpt", prompt="one").choices[0].text == "one"
        assert len(client.embeddings.create(model="gpt", input="one").data) == 1
        assert client.responses.create(model="gpt", input="one").output_text == "one"
        assert {model.id for model in client.models.list()} == {"gpt", "acme/other"}
    assert {entry.model for entry in platform.usage.list()} == {"gpt", "acme/other"}


def test_the_deployment_of_the_client_is_the_model_whatever_a_request_says(azure: Made, platform: Platform) -> None:
    with azure(azure_deployment="gpt") as client:
        answer = client.chat.completions.create(model="gpt-of-the-vendor", messages=HELLO)
        assert client.embeddings.create(model="text-embedding", input="one").model == "gpt"
    assert (said(answer), answer.model) == ("one two three", "gpt")
    assert {entry.model for entry in platform.usage.list()} == {"gpt"}


def test_an_asynchronous_client_is_answered(azure: Made) -> None:
    async def ask() -> Any:
        async with azure(AsyncAzureOpenAI) as client:
            return await client.chat.completions.create(model="gpt", messages=HELLO)

    assert said(asyncio.run(ask())) == "one two three"


def test_the_newer_path_is_answered_with_either_header(azure: Made, platform: Platform) -> None:
    with azure(base_url=f"{ENDPOINT}/openai/v1/", azure_endpoint=None, api_version="preview") as client:
        assert client.responses.create(model="gpt", input="one").output_text == "one"
    with intercept(platform, hosts=["newer.example"]):
        with OpenAI(base_url="https://newer.example/openai/v1/", api_key="sk") as client:
            assert said(client.chat.completions.create(model="gpt", messages=HELLO)) == "one two three"


def test_a_token_of_the_directory_is_a_key(azure: Made, platform: Platform) -> None:
    token = platform.keys.create().secret
    with azure(api_key=None, azure_ad_token=token) as client:
        assert said(client.chat.completions.create(model="gpt", messages=HELLO)) == "one two three"


def test_what_is_wrong_is_told_as_elsewhere(azure: Made) -> None:
    with azure() as client:
        with pytest.raises(NotFoundError, match="unknown"):
            client.chat.completions.create(model="unknown", messages=HELLO)
        with pytest.raises(NotFoundError, match="lists the routes"):
            client.images.generate(model="gpt", prompt="x")
        with pytest.raises(BadRequestError, match="temperature"):
            client.chat.completions.create(model="gpt", messages=HELLO, temperature=9)
    with azure(api_key="my_wrong") as client, pytest.raises(AuthenticationError):
        client.chat.completions.create(model="gpt", messages=HELLO)
