"""What the double costs a test: its fixtures, and a call of the real `openai` client in process.

    python benchmarks/testing.py [calls]

Prints JSON: microseconds to set a fixture up, in pytest itself; then microseconds of CPU of one call in process, over a
socket to a server in a thread of the same process (client and server are counted together, as in process), and with the
client library's own mock transport that returns a constant, which is the floor. Calls are measured in turns.
"""

import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import openai
import pytest

from modelyard import Platform, open_platform
from modelyard.testing import async_openai_client, openai_client, served

FIXTURES = ("yard", "yard_openai", "yard_async_openai", "yard_url", "loopback_only")
HELLO: Any = [{"role": "user", "content": "hello there"}]
ROUNDS = 7
LIBRARY = import_module(openai.DefaultHttpxClient.__mro__[1].__module__.partition(".")[0])


# ---- fixtures ----------------------------------------------------------------------------------------------------


class Stopwatch:
    """A plugin that times each set-up of a fixture, without those that it asks for."""

    def __init__(self) -> None:
        self.spent: dict[str, list[float]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, object, object]:
        """Time one."""
        started = time.perf_counter()
        value = yield
        self.spent.setdefault(fixturedef.argname, []).append(time.perf_counter() - started)
        return value


def fixtures(folder: Path) -> dict[str, float]:
    """The median of each, when it is set up again and again."""
    requested = "\n".join(f"def test_{name}({name}, turn): pass" for name in FIXTURES)
    module = folder / "test_fixtures.py"
    module.write_text(f"import pytest\npytestmark = pytest.mark.parametrize('turn', range(30))\n{requested}\n")
    watch, reply = Stopwatch(), sys.stdout
    sys.stdout = sys.stderr
    try:
        options = ["-q", "-p", "pytest_modelyard", "-p", "no:cacheprovider", "--rootdir", str(folder), str(module)]
        assert pytest.main(options, plugins=[watch]) == 0
    finally:
        sys.stdout = reply
    return {name: round(statistics.median(watch.spent[name]) * 1e6, 1) for name in FIXTURES}


# ---- calls -------------------------------------------------------------------------------------------------------


def constant(platform: Platform, streamed: bool) -> Callable[[Any], Any]:
    """What the mock transport answers with: the bytes of a real answer."""
    with openai_client(platform) as client:
        create = client.chat.completions.with_raw_response.create
        raw: Any = create(model="echo", messages=HELLO, stream=streamed)
        body = b"".join(raw.http_response.iter_bytes()) if streamed else raw.content
        headers = {"content-type": raw.headers["content-type"]}
    return lambda request: LIBRARY.Response(200, content=body, headers=headers)


@contextmanager
def clients(platform: Platform, streamed: bool) -> Iterator[dict[str, Any]]:
    """The three kinds of client."""
    with ExitStack() as stack:
        url = stack.enter_context(served(platform))
        mock = openai.DefaultHttpxClient(transport=LIBRARY.MockTransport(constant(platform, streamed)))
        made = {
            "mock": openai.OpenAI(api_key="x", base_url="http://mock.invalid/v1", http_client=mock),
            "in process": openai_client(platform),
            "socket": openai.OpenAI(api_key=platform.keys.create().secret, base_url=f"{url}/inference/v1"),
        }
        yield {kind: stack.enter_context(client) for kind, client in made.items()}


def call(client: Any, streamed: bool) -> None:
    answer = client.chat.completions.create(model="echo", messages=HELLO, stream=streamed)
    if streamed:
        for _ in answer:
            pass


def cpu(action: Callable[[], object], calls: int) -> float:
    """Microseconds of CPU of a call."""
    started = time.process_time()
    for _ in range(calls):
        action()
    return (time.process_time() - started) / calls * 1e6


def compared(platform: Platform, streamed: bool, calls: int) -> dict[str, float]:
    """The best round of each kind."""
    with clients(platform, streamed) as kinds:
        rounds = [
            {kind: cpu(partial(call, client, streamed), calls) for kind, client in kinds.items()} for _ in range(ROUNDS)
        ]
    return reported({kind: min(one[kind] for one in rounds) for kind in kinds})


def reported(best: dict[str, float]) -> dict[str, float]:
    return {
        **{f"{kind}, us of CPU": round(value, 1) for kind, value in best.items()},
        "in process / mock": round(best["in process"] / best["mock"], 2),
        "socket / in process": round(best["socket"] / best["in process"], 2),
    }


async def acompared(platform: Platform, calls: int) -> dict[str, float]:
    """The same for asynchronous clients."""
    with served(platform) as url:
        mock = openai.DefaultAsyncHttpxClient(transport=LIBRARY.MockTransport(constant(platform, False)))
        key = platform.keys.create().secret
        kinds = {
            "mock": openai.AsyncOpenAI(api_key="x", base_url="http://mock.invalid/v1", http_client=mock),
            "in process": async_openai_client(platform),
            "socket": openai.AsyncOpenAI(api_key=key, base_url=f"{url}/inference/v1"),
        }
        rounds = [{kind: await acpu(client, calls) for kind, client in kinds.items()} for _ in range(ROUNDS)]
        for client in kinds.values():
            await client.close()
    return reported({kind: min(one[kind] for one in rounds) for kind in kinds})


async def acpu(client: Any, calls: int) -> float:
    started = time.process_time()
    for _ in range(calls):
        await client.chat.completions.create(model="echo", messages=HELLO)
    return (time.process_time() - started) / calls * 1e6


def main() -> None:
    calls = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    with tempfile.TemporaryDirectory() as folder:
        figures: dict[str, Any] = {"fixture set-up, us": fixtures(Path(folder))}
    with open_platform() as platform:
        figures["openai"] = openai.__version__
        figures["call"] = compared(platform, False, calls)
        figures["call, streamed"] = compared(platform, True, calls)
        figures["call, asynchronous"] = asyncio.run(acompared(platform, calls))
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
