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
