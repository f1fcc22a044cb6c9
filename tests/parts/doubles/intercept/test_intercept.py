"""Applications that make their own clients, with the real libraries, answered by a platform in process."""

import asyncio
import contextlib
import http.client
import json
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import httpx2
import openai
import pytest
import requests
import urllib3

from modelyard import Platform, ScriptedBackend, open_platform
from modelyard.backends import pause, say
from modelyard.errors import InvalidInput, Overloaded, RateLimited
from modelyard.testing import Disconnect, Faults, ManualClock, intercept, watch_requests

pytestmark = pytest.mark.usefixtures("loopback_only")

URL = "https://api.openai.com/v1/chat/completions"
KEY = {"Authorization": "Bearer sk-of-another-service"}
HELLO: Any = [{"role": "user", "content": "one two three"}]
BODY: Any = {"model": "echo", "messages": HELLO}

Post = Callable[..., tuple[int, Any]]


def by_httpx(library: Any) -> Post:
    def post(url: str, body: Any, headers: Any) -> tuple[int, Any]:
        answer = library.post(url, json=body, headers=headers)
        return answer.status_code, answer.json()

    return post


def by_asyncio(library: Any) -> Post:
    async def ask(url: str, body: Any, headers: Any) -> tuple[int, Any]:
        async with library.AsyncClient() as client:
            answer = await client.post(url, json=body, headers=headers)
            return answer.status_code, answer.json()

    return lambda *asked: asyncio.run(ask(*asked))


def by_requests(url: str, body: Any, headers: Any) -> tuple[int, Any]:
    answer = requests.post(url, json=body, headers=headers, timeout=5)
    return answer.status_code, answer.json()


def by_urllib3(url: str, body: Any, headers: Any) -> tuple[int, Any]:
    answer = urllib3.request("POST", url, json=body, headers=headers)
    return answer.status, answer.json()


def by_urllib(url: str, body: Any, headers: Any) -> tuple[int, Any]:
    sent = {**headers, "Content-Type": "application/json"}
    asked = urllib.request.Request(url, json.dumps(body).encode(), sent, method="POST")
    try:
        with urllib.request.urlopen(asked, timeout=5) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, json.load(refused)


def by_http_client(url: str, body: Any, headers: Any) -> tuple[int, Any]:
    """Chunked, and piece by piece."""
    at = urllib.parse.urlsplit(url)
    kind = http.client.HTTPSConnection if at.scheme == "https" else http.client.HTTPConnection
    with contextlib.closing(kind(at.netloc, timeout=5)) as connection:
        connection.putrequest("POST", f"{at.path}?{at.query}")
        for name, value in {**headers, "Transfer-Encoding": "chunked"}.items():
            connection.putheader(name, value)
        pieces = iter([json.dumps(body).encode()[:5], json.dumps(body).encode()[5:]])
        connection.endheaders(pieces, encode_chunked=True)
        answer = connection.getresponse()
        return answer.status, json.load(answer)


def by_aiohttp(url: str, body: Any, headers: Any) -> tuple[int, Any]:
    async def ask() -> tuple[int, Any]:
        async with aiohttp.ClientSession() as session, session.post(url, json=body, headers=headers) as answer:
            return answer.status, await answer.json()

    aiohttp = pytest.importorskip("aiohttp")
    return asyncio.run(ask())


LIBRARIES = [
    pytest.param(by_httpx(httpx), id="httpx"),
    pytest.param(by_httpx(httpx2), id="httpx2"),
    pytest.param(by_asyncio(httpx), id="httpx on a loop"),
    pytest.param(by_asyncio(httpx2), id="httpx2 on a loop"),
    pytest.param(by_requests, id="requests"),
    pytest.param(by_urllib3, id="urllib3"),
    pytest.param(by_urllib, id="urllib.request"),
    pytest.param(by_http_client, id="http.client"),
    pytest.param(by_aiohttp, id="aiohttp"),
]
each_library = pytest.mark.parametrize("post", LIBRARIES)


def said(answer: Any) -> str:
    return str(answer["choices"][0]["message"]["content"])


@pytest.fixture
def platform() -> Iterator[Platform]:
    with open_platform() as opened:
        yield opened


@each_library
def test_clients_of_the_application_are_answered(post: Post, platform: Platform) -> None:
    mine = {"Authorization": f"Bearer {platform.keys.create(entity='acme').secret}"}
    with intercept(platform, hosts=["api.openai.com", "models.example"]):
        status, answer = post(URL, BODY, KEY)
        assert (status, said(answer)) == (200, "one two three")
        assert post("http://models.example/openai/v1/chat/completions?version=1", BODY, mine)[0] == 200
        assert post(URL, BODY, {})[0] == 401
        status, answer = post("https://api.openai.com/v1/moderations", BODY, KEY)
    assert (status, "modelyard has no moderations" in str(answer)) == (404, True)
    assert {entry.entity for entry in platform.usage.list()} == {platform._principal.entity, "acme"}


@pytest.mark.parametrize(
    "headers",
    [{"authorization": "Bearer "}, {"authorization": "Bearer"}, {"authorization": ""}, {"authorization": "Bearer \t"}]
    + [{name: value} for name in ("x-api-key", "api-key") for value in ("", "  ")],
    ids=str,
)
@pytest.mark.parametrize("path", ["chat/completions", "responses", "messages", "embeddings", "files"])
def test_an_empty_key_is_none(headers: dict[str, str], path: str, platform: Platform) -> None:
    hosts = ["api.openai.com", "api.anthropic.com", "models.example"]
    with intercept(platform, hosts=hosts):
        for host in hosts:
            assert by_http_client(f"https://{host}/v1/{path}", BODY, headers)[0] == 401, host


@each_library
def test_a_path_that_the_vendor_lacks_is_refused(post: Post, platform: Platform) -> None:
    """As of a base URL without /v1, or with two of them; other hosts have their paths where they like."""
    with intercept(platform, hosts=["api.openai.com", "API.anthropic.com", "models.example"]):
        for host in ("api.openai.com", "api.anthropic.com"):
            for path in ("/chat/completions", "/v1/v1/chat/completions", "/openai/v1x/chat/completions"):
                status, answer = post(f"https://{host}{path}", BODY, KEY)
                assert (status, f"the path {path} has no route" in str(answer)) == (404, True), (host, path)
            assert post(f"https://{host}/v1/chat/completions", BODY, KEY)[0] == 200
        for path in ("/chat/completions", "/api/v1/chat/completions"):
            assert post(f"https://models.example{path}", BODY, KEY)[0] == 200


def test_a_base_url_without_v1_fails_the_test(platform: Platform) -> None:
    sent = watch_requests(platform, profile="openai")
    with intercept(platform), openai.OpenAI(api_key="k", base_url="https://api.openai.com") as client:
        with pytest.raises(openai.NotFoundError, match=r"did you mean /v1/chat/completions\?"):
            client.chat.completions.create(**BODY)
    with pytest.raises(AssertionError, match="404"):
        sent.check()


@each_library
def test_other_hosts_are_left_alone(post: Post, platform: Platform) -> None:
    with intercept(platform, hosts=["elsewhere.example"]):
        with pytest.raises(Exception, match=r"127\.0\.0\.1|refused|[Cc]onnect"):
            post("http://127.0.0.1:9/v1/chat/completions", BODY, KEY)


def test_nothing_stays_replaced(platform: Platform) -> None:
    with intercept(platform), pytest.raises(InvalidInput, match=r"api\.openai\.com is intercepted already"):
        with intercept(platform):
            pass
    assert "modelyard" not in httpx.HTTPTransport.handle_request.__module__
    assert "modelyard" not in urllib3.connection.HTTPSConnection.connect.__module__
    assert "modelyard" not in openai.OpenAI._sleep_for_retry.__module__
    assert "modelyard" not in http.client.HTTPSConnection.connect.__module__
    assert "modelyard" not in http.client.HTTPConnection.putrequest.__module__


NO_HOSTS: list[Any] = ["https://api.openai.com/v1", "api.openai.com:443", "*.openai.com", "", ".", "a b", None, 3, b"a"]


@pytest.mark.parametrize("name", NO_HOSTS, ids=repr)
def test_a_name_that_is_not_a_host_is_refused(name: Any, platform: Platform) -> None:
    with pytest.raises(InvalidInput, match="name of a host alone"), intercept(platform, [name]):
        pass


@pytest.mark.parametrize("hosts", ["api.openai.com", "API.openai.com.", ["api.openai.com."]], ids=repr)
def test_a_string_is_one_host_however_it_is_written(hosts: Any, platform: Platform) -> None:
    with intercept(platform, hosts):
        assert httpx.post(URL, json=BODY, headers=KEY).status_code == 200


@pytest.mark.parametrize("headers", [KEY, {"x-api-key": "sk-any"}, {"api-key": "any"}], ids=lambda each: min(each))
def test_an_unknown_path_is_named_whatever_header_has_the_key(headers: Any, platform: Platform) -> None:
    with intercept(platform):
        answer = httpx.post("https://api.openai.com/v1/complete", json=BODY, headers=headers)
    assert answer.status_code == 404
    assert "/v1/complete has no route" in answer.json()["detail"]


# ---- streams -----------------------------------------------------------------------------------------------------


@pytest.fixture
def slow() -> Iterator[Platform]:
    """A platform whose model takes its time over each word, so that each is a piece of its own."""
    clock = ManualClock()
    words = say("one", pause(1), " two", pause(1), " three")
    with open_platform(clock=clock, backend=ScriptedBackend([words], ["echo"], clock)) as opened:
        yield opened


@pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])
def test_a_stream_comes_piece_by_piece_and_ends_when_it_is_closed(library: Any, slow: Platform) -> None:
    with intercept(slow), library.Client() as client:
        with client.stream("POST", URL, json={**BODY, "stream": True}, headers=KEY) as answer:
            first = next(answer.iter_text())
    assert ("one" in first, booked(slow)) == (True, 1)


def test_a_stream_of_requests_comes_piece_by_piece_and_ends_when_it_is_closed(slow: Platform) -> None:
    with intercept(slow):
        answer = requests.post(URL, json={**BODY, "stream": True}, headers=KEY, timeout=5, stream=True)
        first = next(answer.iter_content(None))
        answer.close()
    assert (b"one" in first, booked(slow)) == (True, 1)


def booked(platform: Platform) -> int:
    return sum(entry.completion_tokens for entry in platform.usage.list())


def test_a_stream_of_urllib3_is_read_in_any_amount(platform: Platform) -> None:
    with intercept(platform):
        answer = urllib3.request("POST", URL, json={**BODY, "stream": True}, headers=KEY, preload_content=False)
        assert answer.read(5) == b"data:"
        lines = (answer.read(3) + answer.read()).split(b"\n\n")
    assert lines[-2:] == [b"data: [DONE]", b""]
    assert next(json.loads(line.partition(b": ")[2])["object"] for line in lines[1:-2]) == "chat.completion.chunk"


async def streams_of_aiohttp(aiohttp: Any) -> tuple[bytes, bytes]:
    """The first piece of a stream, which is then left, and the end of another one."""
    asked: Any = {"json": {**BODY, "stream": True}, "headers": KEY}
    async with aiohttp.ClientSession(read_bufsize=16) as session:
        async with session.post(URL, **asked) as answer:
            first = await answer.content.readany()
        async with session.post(URL, **asked, expect100=True) as answer:
            last = (await answer.read())[-14:]
        async with session.head("https://api.openai.com/inference/v1/models", headers=KEY) as answer:
            assert (answer.status, await answer.read()) == (200, b"")
    return first, last


def test_a_stream_of_aiohttp_comes_piece_by_piece_and_ends_when_it_is_closed() -> None:
    aiohttp, clock = pytest.importorskip("aiohttp"), ManualClock()
    words = say("one", pause(1), " two", pause(1), " three")
    with open_platform(clock=clock, backend=ScriptedBackend([words, "four"], ["echo"], clock)) as platform:
        with intercept(platform):
            first, last = asyncio.run(streams_of_aiohttp(aiohttp))
        assert ((b"one" in first, b"three" in first), last) == ((True, False), b"data: [DONE]\n\n")
        assert booked(platform) == 2


# ---- retries ------------------------------------------------------------------------------------------------------


@pytest.fixture
def no_real_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(seconds: float) -> None:
        raise AssertionError(f"slept for {seconds} s")

    monkeypatch.setattr(time, "sleep", refuse)


@pytest.fixture
def busy() -> Iterator[Platform]:
    """A platform on a manual clock that refuses twice before it answers."""
    script = ScriptedBackend(
        [RateLimited("slow down", retry_after=7), Overloaded("busy", retry_after=7), "done"], ["m"]
    )
    with open_platform(clock=ManualClock(), backend=script) as opened:
        yield opened


@pytest.mark.usefixtures("no_real_sleep")
def test_retries_of_the_openai_client_pass_on_the_clock(busy: Platform) -> None:
    with openai.OpenAI(api_key="sk-mine") as client:  # made before, as applications do
        with intercept(busy):
            answer = client.chat.completions.create(model="m", messages=HELLO)
    assert (answer.choices[0].message.content, busy.clock.monotonic()) == ("done", 14)


def test_retries_of_the_asynchronous_openai_client_pass_on_the_clock(
    busy: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask() -> Any:
        async with openai.AsyncOpenAI(api_key="sk-mine") as client:
            return await client.chat.completions.create(model="m", messages=HELLO)

    async def refuse(seconds: float) -> None:
        raise AssertionError(f"slept for {seconds} s")

    monkeypatch.setattr("anyio.sleep", refuse)
    with intercept(busy):
        answer = asyncio.run(ask())
    assert (answer.choices[0].message.content, busy.clock.monotonic()) == ("done", 14)


@pytest.mark.usefixtures("no_real_sleep")
def test_retries_of_requests_pass_on_the_clock(busy: Platform) -> None:
    retries = urllib3.Retry(total=3, status_forcelist=[429, 503], allowed_methods=None, backoff_factor=1)
    with requests.Session() as session, intercept(busy):
        session.mount("https://", requests.adapters.HTTPAdapter(max_retries=retries))
        answer = session.post(URL, json={"model": "m", "messages": HELLO}, headers=KEY)
    assert (said(answer.json()), busy.clock.monotonic()) == ("done", 14)


@pytest.mark.usefixtures("no_real_sleep")
def test_on_a_real_clock_a_retry_does_not_wait() -> None:
    with open_platform(backend=ScriptedBackend([RateLimited("slow", retry_after=60), "done"], ["m"])) as platform:
        with intercept(platform), openai.OpenAI(api_key="sk-mine") as client:
            assert client.chat.completions.create(model="m", messages=HELLO).choices[0].message.content == "done"


@pytest.mark.usefixtures("no_real_sleep")
def test_faults_disturb_the_connection() -> None:
    faults = Faults()
    faults.connection(Disconnect())
    with faults.open_platform() as platform, intercept(platform, faults=faults), openai.OpenAI(api_key="sk") as client:
        assert client.chat.completions.create(**BODY).choices[0].message.content == "one two three"
    faults.check()


# ---- several at a time -------------------------------------------------------------------------------------------


def test_each_of_two_platforms_answers_for_its_hosts(platform: Platform) -> None:
    with open_platform(backend=ScriptedBackend(["from the other"], ["echo"])) as other:
        with intercept(platform, ["one.example"]), intercept(other, ["two.example"]):
            answers = [
                said(by_requests(f"http://{host}.example/v1/chat/completions", BODY, KEY)[1]) for host in ("one", "two")
            ]
    assert answers == ["one two three", "from the other"]


def test_blocks_may_end_in_another_order_than_they_began(platform: Platform) -> None:
    entered, leave = threading.Event(), threading.Event()

    def first() -> None:
        with intercept(platform, ["first.example"]):
            entered.set()
            leave.wait()

    thread = threading.Thread(target=first)
    thread.start()
    entered.wait()
    try:
        with intercept(platform, ["second.example"]):
            leave.set()
            thread.join()
            assert by_requests("http://second.example/v1/chat/completions", BODY, KEY)[0] == 200
    finally:
        leave.set()
        thread.join()
    assert "modelyard" not in httpx.HTTPTransport.handle_request.__module__
