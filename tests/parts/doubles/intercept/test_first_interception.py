"""The first interception of a process loads what its request needs."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

PROGRAM = """
import sys
import {client}
from modelyard import ScriptedBackend, open_platform
from modelyard.testing import intercept

with open_platform(backend=ScriptedBackend(["hello"], models=["m"])) as platform, intercept(platform):
    answer = {client}.post(
        "https://api.openai.com/v1/chat/completions",
        json={{"model": "m", "messages": [{{"role": "user", "content": "x"}}]}},
        headers={{"authorization": "Bearer sk-any"}},
    )
    assert answer.json()["choices"][0]["message"]["content"] == "hello"
loaded = [name for name in sys.modules if name.startswith("modelyard.")]
print(*(name for name in loaded if name.startswith({unneeded!r}) or name.endswith("routes")))
"""
UNNEEDED = ("modelyard.parts.doubles.faults", "modelyard.platform.job_types", "modelyard.parts.contracts")
NEEDED = {"modelyard.http.catalogue.routes", "modelyard.http.chat.routes", "modelyard.http.core_routes"}


@pytest.mark.parametrize("client", ["httpx", "httpx2", "requests"])
def test_faults_jobs_and_other_routes_are_not_loaded(client: str) -> None:
    program = PROGRAM.format(client=client, unneeded=UNNEEDED)
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert set(ran.stdout.split()) <= NEEDED


UNUSED = """
import sys
from modelyard import ScriptedBackend, open_platform
from modelyard.testing import intercept

with open_platform(backend=ScriptedBackend(["hello"], models=["m"])) as platform, intercept(platform):
    assert not {{"httpx", "httpx2", "urllib3", "aiohttp"}} & sys.modules.keys()
    import {client}
    answer = {client}.post(
        "https://api.openai.com/v1/chat/completions",
        json={{"model": "m", "messages": [{{"role": "user", "content": "x"}}]}},
        headers={{"authorization": "Bearer sk-any"}},
    )
    assert answer.json()["choices"][0]["message"]["content"] == "hello"
    others = {{"httpx", "httpx2", "aiohttp"}} - {{"{client}"}}
    assert not others & sys.modules.keys()
assert not [finder for finder in sys.meta_path if type(finder).__module__.startswith("modelyard")]
"""


@pytest.mark.parametrize("client", ["httpx", "httpx2", "requests"])
def test_libraries_are_intercepted_when_they_are_imported_and_not_loaded_before(client: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", UNUSED.format(client=client)], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")


AIOHTTP = """
import asyncio, sys, threading
from modelyard import ScriptedBackend, open_platform
from modelyard.testing import intercept

async def ask():
    import aiohttp
    async with aiohttp.ClientSession() as session:
        body = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
        headers = {"authorization": "Bearer sk-any"}
        async with session.post("http://api.openai.com/v1/chat/completions", json=body, headers=headers) as answer:
            return (await answer.json())["choices"][0]["message"]["content"]

for _ in range(2):
    with open_platform(backend=ScriptedBackend(["hello"], models=["m"])) as platform, intercept(platform):
        assert asyncio.run(ask()) == "hello"
"""


def test_a_library_that_was_imported_in_one_block_is_intercepted_in_the_next() -> None:
    ran = subprocess.run([sys.executable, "-c", AIOHTTP], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")


MESSAGES = """
import sys
import httpx
from modelyard import ScriptedBackend, open_platform
from modelyard.testing import intercept

script = ScriptedBackend(["hello"], models=["m"])
with open_platform(backend=script) as platform, intercept(platform, ["api.anthropic.com"]):
    body = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "x"}]}
    url = "https://api.anthropic.com/v1/messages"
    assert httpx.post(url, json=body).status_code == 401
    assert httpx.post(url, json=body, headers={"x-api-key": "sk"}).json()["content"][0]["text"] == "hello"
    print(*(name for name in sys.modules if name.startswith("modelyard.") and name.endswith("routes")))
    del body["max_tokens"]
    assert httpx.post(url + "/count_tokens", json=body, headers={"x-api-key": "sk"}).status_code == 200
"""


def test_a_request_for_messages_loads_its_own_routes() -> None:
    ran = subprocess.run([sys.executable, "-c", MESSAGES], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert set(ran.stdout.split()) == NEEDED - {"modelyard.http.core_routes"} | {"modelyard.parts.messages.routes"}
