"""Servers of other libraries that are measured next to ours, each with all of its processes."""

import atexit
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from _uvicorn_load import Clients, request_of

HERE = Path(__file__).parent
WARM = 3000
"""Requests before those that are counted, so that what a runtime compiles is compiled."""

HEADERS = [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"authorization", b"Bearer sk-any")]
STARTS_WITHIN = 300


class Server:
    """A server in a process of its own and its clients in another; a call is so many requests."""

    def __init__(self, command: Sequence[str], port: int, path: str, body: bytes, warm: int, **environ: str) -> None:
        self._process = subprocess.Popen(command, env={**os.environ, **environ}, stdout=sys.stderr)
        atexit.register(self._process.terminate)
        until_answering(self._process, port)
        headers = [*HEADERS, (b"content-length", b"%d" % len(body))]
        self._clients = Clients(port, request_of(path, headers, body))
        self(warm)

    def __call__(self, calls: int) -> None:
        self._clients.send(calls)
        self._clients.wait()

    def spent(self) -> int:
        """Nanoseconds of CPU of the server's process and of those that it has started."""
        return sum(time.clock_gettime_ns(clock_of(pid)) for pid in family(self._process.pid))


def clock_of(pid: int) -> int:
    """The CPU clock of another process, as Linux numbers them (clock_getcpuclockid)."""
    return (~pid << 3) | 2


def family(pid: int) -> list[int]:
    """A process and all that it has started and that still run."""
    children = [
        int(child) for file in Path(f"/proc/{pid}/task").glob("*/children") for child in file.read_text().split()
    ]
    return [pid, *(one for child in children for one in family(child))]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def until_answering(process: "subprocess.Popen[bytes]", port: int) -> None:
    """Wait until a server takes connections."""
    for _ in range(STARTS_WITHIN * 10):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            assert process.poll() is None, f"the server ended with {process.returncode}"
            time.sleep(0.1)
        else:
            return
    raise TimeoutError(f"no server within {STARTS_WITHIN} s")


# ---- which are measured ------------------------------------------------------------------------------------------


def aimock(body: bytes, prompt: str) -> Server:
    """aimock with a fixture that answers the prompt by itself."""
    port, fixtures = free_port(), Path(tempfile.mkdtemp()) / "fixtures.json"
    fixture = {"match": {"userMessage": prompt}, "response": {"content": prompt}}
    fixtures.write_text(json.dumps({"fixtures": [fixture]}), encoding="utf-8")
    cli = Path(os.environ["PEER_HOME"], "node_modules", "@copilotkit", "aimock", "dist", "cli.js")
    options = ["--port", str(port), "--fixtures", str(fixtures), "--log-level", "silent"]
    return Server(["node", str(cli), *options], port, "/v1/chat/completions", body, WARM)


def litellm_proxy(streamed: bool) -> Server:
    """LiteLLM's proxy in front of a constant server."""
    upstream = subprocess.Popen([sys.executable, HERE / "_constant_server.py"], stdout=subprocess.PIPE, text=True)
    atexit.register(upstream.terminate)
    assert upstream.stdout is not None
    model = {"model": "openai/m", "api_base": upstream.stdout.readline().strip(), "api_key": "k"}
    config = Path(tempfile.mkdtemp()) / "config.yaml"  # JSON is YAML
    config.write_text(json.dumps({"model_list": [{"model_name": "m", "litellm_params": model}]}), encoding="utf-8")
    port, messages = free_port(), [{"role": "user", "content": "hello there"}]
    command = [str(Path(sys.executable).with_name("litellm")), "--config", str(config), "--host", "127.0.0.1"]
    return Server(
        [*command, "--port", str(port), "--telemetry", "False"],
        port,
        "/v1/chat/completions",
        json.dumps({"model": "m", "messages": messages, "stream": streamed}).encode(),
        WARM // 100,
        LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY="true",
        LITELLM_LOCAL_MODEL_COST_MAP="True",
        LITELLM_LOG="ERROR",
    )
