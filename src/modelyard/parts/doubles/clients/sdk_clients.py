"""The real clients of OpenAI and Anthropic, in any version in use, connected to a platform in process."""

from types import ModuleType
from typing import TYPE_CHECKING, Any

from modelyard.errors import MissingExtra
from modelyard.parts.doubles.clients import httpx, httpx2
from modelyard.parts.doubles.clients.retries import without_sleep
from modelyard.platform.platform import Platform

if TYPE_CHECKING:
    from anthropic import Anthropic, AsyncAnthropic
    from openai import AsyncOpenAI, OpenAI

    from modelyard.parts.doubles.faults.faults import Faults

ROOT_URL = "http://modelyard.invalid"
BASE_URL = f"{ROOT_URL}/inference/v1"
"""The base URL of the clients, with a host name that can never be resolved."""


def openai_client(
    platform: Platform, *, base_url: str = BASE_URL, faults: "Faults | None" = None, **options: Any
) -> "OpenAI":
    """Create an `openai` client that sends every request to `platform`.

    The path of `base_url` selects the interface; its host does not matter. `options` are the client's own. An `api_key`
    among them is used, otherwise a key is created for the platform's entity, so that every request is authenticated,
    limited and recorded as usual. The client still reads its environment variables, such as `OPENAI_PROJECT_ID`.
    `faults` disturb its connection. Its retries take no real time: a `ManualClock` of the platform passes instead.
    Raises `MissingExtra`.

        with openai_client(platform) as client:
            client.chat.completions.create(model="echo", messages=[{"role": "user", "content": "hello"}])
    """
    openai = _openai()
    http_client = openai.DefaultHttpxClient(transport=_transport(openai, platform, faults))
    client = openai.OpenAI(base_url=base_url, http_client=http_client, **_with_key(platform, options))
    return without_sleep(client, platform)  # type: ignore[no-any-return]


def async_openai_client(
    platform: Platform, *, base_url: str = BASE_URL, faults: "Faults | None" = None, **options: Any
) -> "AsyncOpenAI":
    """Create an asynchronous client as `openai_client` does. It holds no socket and may be used on one event loop after
    another."""
    openai = _openai()
    http_client = openai.DefaultAsyncHttpxClient(transport=_transport(openai, platform, faults))
    client = openai.AsyncOpenAI(base_url=base_url, http_client=http_client, **_with_key(platform, options))
    return without_sleep(client, platform)  # type: ignore[no-any-return]


def anthropic_client(
    platform: Platform, *, base_url: str = ROOT_URL, faults: "Faults | None" = None, **options: Any
) -> "Anthropic":
    """Create an `anthropic` client that sends every request to `platform`, as `openai_client` does for its vendor's.

    Raises `MissingExtra`.

        with anthropic_client(platform) as client:
            client.messages.create(model="echo", max_tokens=99, messages=[{"role": "user", "content": "hello"}])
    """
    anthropic = _anthropic()
    http_client = anthropic.DefaultHttpxClient(transport=_transport(anthropic, platform, faults))
    client: Any = anthropic.Anthropic(base_url=base_url, http_client=http_client, **_with_key(platform, options))
    return without_sleep(client, platform)


def async_anthropic_client(
    platform: Platform, *, base_url: str = ROOT_URL, faults: "Faults | None" = None, **options: Any
) -> "AsyncAnthropic":
    """Create an asynchronous client in the same way. It holds no socket, and works on one event loop after another."""
    anthropic = _anthropic()
    http_client = anthropic.DefaultAsyncHttpxClient(transport=_transport(anthropic, platform, faults))
    client: Any = anthropic.AsyncAnthropic(base_url=base_url, http_client=http_client, **_with_key(platform, options))
    return without_sleep(client, platform)


def _openai() -> ModuleType:
    try:
        import openai  # noqa: PLC0415 - the user's own, in any version
    except ImportError as error:
        raise MissingExtra("openai") from error
    return openai


def _anthropic() -> Any:
    try:
        import anthropic  # noqa: PLC0415 - the user's own, in any version
    except ImportError as error:
        raise MissingExtra("anthropic") from error
    return anthropic


def _transport(vendor: ModuleType, platform: Platform, faults: "Faults | None") -> object:
    library = vendor.DefaultHttpxClient.__base__.__module__.partition(".")[0]
    transport = httpx.HttpxTransport(platform) if library == "httpx" else httpx2.Httpx2Transport(platform)
    return transport if faults is None else faults.transport(transport)


def _with_key(platform: Platform, options: dict[str, Any]) -> dict[str, Any]:
    return options if "api_key" in options else {**options, "api_key": platform.keys.create(name="in process").secret}
