"""A run that one process steers and another works on, whose worker is killed: nothing is asked twice but what was under
way, and what was asked again."""

import json
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from modelyard import Platform, Pricing, Settings, open_platform
from modelyard.backends import VLLM, UpstreamBackend, offer
from modelyard.platform.evaluations.row_evaluation import RunLimits
from polling import until

pytestmark = [pytest.mark.crash, pytest.mark.parts]

ROWS = [{"prompt": f"say {at}", "expected": f"say {at}"} for at in range(40)]
MORE = [{"prompt": f"more {at}", "expected": "no"} for at in range(5)]
UNDER_WAY = RunLimits(concurrency=2).uncommitted

WORKER = """
import sys
from modelyard import Pricing, Settings, open_platform
from modelyard.backends import VLLM, UpstreamBackend, offer

models = [offer("echoes", context_length=1000, pricing=Pricing(), capabilities=VLLM)]
settings = Settings(lease=0.5, poll=0.02)
with (
    UpstreamBackend(sys.argv[2], models=models) as backend,
    open_platform(sys.argv[1], backend=backend, artifacts=sys.argv[3], settings=settings) as platform,
    platform.worker(),
):
    print("works", flush=True)
    sys.stdin.read()
"""

STEERER = """
import sys
from modelyard import open_platform

with open_platform(sys.argv[1], artifacts=sys.argv[3]) as platform:
    steering, (run,) = platform.evaluations.steering, platform.evaluations.runs.list(project="p")
    {"requeue": lambda: steering.requeue(run.id, [0, 1]),
     "rows": lambda: steering.add_rows(run.id, [{"prompt": f"more {at}", "expected": "no"} for at in range(5)]),
     "limits": lambda: steering.change(run.id, concurrency=1),
     "pause": lambda: steering.pause(run.id),
     "resume": lambda: steering.resume(run.id)}[sys.argv[2]]()
"""


class Echoes:
    """A server of a model, which counts what it is asked and answers only so many requests as it is let."""

    def __init__(self) -> None:
        self.asked, self._lock = Counter[str](), threading.Lock()
        self.room = threading.Semaphore(0)
        self.open = False
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                outer.answer(self, body)

            def log_message(self, format: str, *values: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"

    def let(self, number: int) -> None:
        """Let so many more requests be answered."""
        self.room.release(number)

    def let_all(self) -> None:
        """Let all be answered from now on."""
        self.open = True
        self.room.release(1000)

    def count(self) -> int:
        with self._lock:
            return self.asked.total()

    def answer(self, handler: Any, body: Any) -> None:
        text = body["messages"][-1]["content"]
        with self._lock:
            self.asked[text] += 1
        if not self.open:
            self.room.acquire()
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        said = {"index": 0, "finish_reason": "stop"}
        head = {"id": "1", "object": "chat.completion", "created": 1, "model": "echoes"}
        if body.get("stream"):
            first = {**head, "object": "chat.completion.chunk", "choices": [{**said, "delta": {"content": text}}]}
            last = {**head, "object": "chat.completion.chunk", "choices": [], "usage": usage}
            sent = "".join(f"data: {json.dumps(one)}\n\n" for one in (first, last)) + "data: [DONE]\n\n"
            kind = "text/event-stream"
        else:
            message = {"role": "assistant", "content": text}
            sent, kind = (
                json.dumps({**head, "choices": [{**said, "message": message}], "usage": usage}),
                "application/json",
            )
        raw = sent.encode()
        try:
            handler.send_response(200)
            handler.send_header("content-type", kind)
            handler.send_header("content-length", str(len(raw)))
            handler.end_headers()
            handler.wfile.write(raw)
        except OSError:  # who has asked was killed
            handler.close_connection = True


@pytest.fixture
def echoes() -> Iterator[Echoes]:
    made = Echoes()
    yield made
    made.let_all()
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "yard.db")
    found: str = request.getfixturevalue("yard_address")
    return found


@pytest.fixture
def files(tmp_path: Path) -> str:
    folder = tmp_path / "files"
    folder.mkdir()
    return str(folder)


@pytest.fixture
def platform(address: str, files: str, echoes: Echoes) -> Iterator[Platform]:
    settings = Settings(lease=0.5, poll=0.02)
    with (
        UpstreamBackend(
            echoes.url, models=[offer("echoes", context_length=1000, pricing=Pricing(), capabilities=VLLM)]
        ) as backend,
        open_platform(address, backend=backend, artifacts=files, settings=settings) as opened,
    ):
        yield opened


@pytest.fixture
def workers() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for one in started:
        one.kill()
        one.communicate()


def work(workers: list[subprocess.Popen[str]], address: str, echoes: Echoes, files: str) -> subprocess.Popen[str]:
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    made = subprocess.Popen([sys.executable, "-c", WORKER, address, echoes.url, files], **pipes)
    workers.append(made)
    assert made.stdout is not None
    assert made.stdout.readline() == "works\n"
    return made


def steer(address: str, action: str, files: str) -> None:
    subprocess.run([sys.executable, "-c", STEERER, address, action, files], check=True, timeout=100)


@pytest.mark.parametrize("killed", ["never", "before it is steered", "before it is done", "after it is done"])
@pytest.mark.parametrize("action", ["requeue", "rows", "limits", "pause"])
def test_nothing_is_asked_twice_but_what_was_under_way(
    platform: Platform,
    address: str,
    files: str,
    echoes: Echoes,
    workers: list[subprocess.Popen[str]],
    action: str,
    killed: str,
) -> None:
    run = platform.evaluations.submit("e", "echoes", ROWS, "exact_match", project="p", concurrency=2, retries=0)
    steering, worker = platform.evaluations.steering, work(workers, address, echoes, files)
    echoes.let(10)
    until(lambda: echoes.count() == 12)  # ten answered, two under way

    def kill() -> None:
        worker.send_signal(signal.SIGKILL)
        worker.wait()

    def done() -> bool:
        return steering.audit(run.id)[0].applied_at is not None

    if killed == "before it is steered":
        kill()
    steer(address, action, files)
    if killed == "before it is done":
        kill()
    if killed in ("before it is steered", "before it is done"):
        work(workers, address, echoes, files)
        echoes.let(8)
    elif action == "pause":
        echoes.let(2)
    else:
        echoes.let(4)
    if killed in ("never", "after it is done"):
        until(done)
    if killed == "after it is done":
        kill()
        work(workers, address, echoes, files)
    if action == "pause":
        until(lambda: platform.jobs.get(run.id).waiting_for == "its resumption: it is paused")
        steer(address, "resume", files)
    echoes.let_all()
    rows = 45 if action == "rows" else 40
    until(lambda: platform.evaluations.runs.get(run.id).state != "running")
    ended = platform.evaluations.runs.get(run.id)
    assert ended.state == "completed", ended.reason
    result = platform.evaluations.result(run.id)
    assert sorted(one.index for one in result.rows) == list(range(rows))
    assert result.run.summary is not None
    assert result.run.summary["trials"] == rows
    assert done()
    again = {"say 0", "say 1"} if action == "requeue" else set()
    repeated = Counter({text: times - 1 for text, times in echoes.asked.items() if times > 1})
    beyond = sum((repeated - Counter(dict.fromkeys(again, 1))).values())
    assert len(echoes.asked) == rows
    assert set(again) <= set(repeated)
    assert beyond <= (0 if killed == "never" else UNDER_WAY)
    assert [one.index for one in steering.earlier(run.id)] == ([0, 1] if action == "requeue" else [])
    assert platform.health.check_files() == []
