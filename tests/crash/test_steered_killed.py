"""A run that one process steers and another works on, whose worker is killed: nothing is asked twice but what was under
way, and what was asked again."""

import json
import os
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import attrs
import pytest

from modelyard import Platform, Pricing, Settings, open_platform
from modelyard.backends import VLLM, UpstreamBackend, offer
from modelyard.platform.evaluations.row_evaluation import RunLimits
from polling import until
from sampled import in_campaign
from warm_python import WarmPython

pytestmark = [pytest.mark.crash, pytest.mark.parts]

ROWS = [{"prompt": f"say {at}", "expected": f"say {at}"} for at in range(40)]
MORE = [{"prompt": f"more {at}", "expected": "no"} for at in range(5)]
KILLS = ("never", "before it is steered", "before it is done", "after it is done")
ACTIONS = ("requeue", "rows", "limits", "pause")
EVERY = [
    (store, action, KILLS[(place + shift) % 4])
    for place, action in enumerate(ACTIONS)
    for shift in range(4)
    for store in ("sqlite", "postgres")
]
TRIED = {one for place, one in enumerate(EVERY) if place % 8 in (0, 5)}
"""On either store each action with another kill: on SQLite the first, on PostgreSQL the next but one."""
UNDER_WAY = RunLimits(concurrency=2).uncommitted

WORKER = """
import os
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
    print("works", os.getpid(), flush=True)
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


@pytest.fixture
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


@attrs.frozen
class Programs:
    """Starts workers, each of which is killed in the end, and programs that steer."""

    python: str
    address: str
    files: str
    echoes: Echoes
    started: list[subprocess.Popen[str]] = attrs.field(factory=list)

    def work(self) -> Callable[[], None]:
        """Start a worker. Returns what kills it."""
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        command = [self.python, "-c", WORKER, self.address, self.echoes.url, self.files]
        made = subprocess.Popen(command, **pipes)
        self.started.append(made)
        assert made.stdout is not None
        word, pid = made.stdout.readline().split()
        assert word == "works"

        def kill() -> None:
            os.kill(int(pid), signal.SIGKILL)
            assert made.wait() == -signal.SIGKILL

        return kill

    def steer(self, action: str) -> None:
        subprocess.run([self.python, "-c", STEERER, self.address, action, self.files], check=True, timeout=100)


@pytest.fixture
def programs(warm_python: WarmPython, address: str, files: str, echoes: Echoes) -> Iterator[Programs]:
    made = Programs(warm_python.executable, address, files, echoes)
    yield made
    for one in made.started:
        one.kill()
        one.communicate()


@pytest.mark.parametrize(
    ("address", "action", "killed"),
    [one if one in TRIED else in_campaign(one) for one in EVERY],
    indirect=["address"],
)
def test_nothing_is_asked_twice_but_what_was_under_way(
    platform: Platform, programs: Programs, echoes: Echoes, action: str, killed: str
) -> None:
    run = platform.evaluations.submit("e", "echoes", ROWS, "exact_match", project="p", concurrency=2, retries=0)
    steering, kill = platform.evaluations.steering, programs.work()
    echoes.let(10)
    until(lambda: echoes.count() == 12)  # ten answered, two under way

    def done() -> bool:
        return steering.audit(run.id)[0].applied_at is not None

    if killed == "before it is steered":
        kill()
    programs.steer(action)
    if killed == "before it is done":
        kill()
    if killed in ("before it is steered", "before it is done"):
        programs.work()
        echoes.let(8)
    elif action == "pause":
        echoes.let(2)
    else:
        echoes.let(4)
    if killed in ("never", "after it is done"):
        until(done)
    if killed == "after it is done":
        kill()
        programs.work()
    if action == "pause":
        until(lambda: platform.jobs.get(run.id).waiting_for == "its resumption: it is paused")
        programs.steer("resume")
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
