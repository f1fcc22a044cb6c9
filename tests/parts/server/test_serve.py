"""`modelyard serve`, as a person uses it."""

import asyncio
import gc
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import uvicorn
from click.testing import CliRunner, Result

from free_ports import free_ports
from modelyard import open_platform
from modelyard.cli import main
from modelyard.domain.identity import anonymous
from modelyard.executors.isolating import IsolatingExecutor
from modelyard.executors.subprocess import SubprocessExecutor
from modelyard.http.interface import Interface
from modelyard.http.interfaces import STANDARD
from modelyard.parts import STANDARD as PARTS
from modelyard.parts.server import commands, uvicorn_server
from modelyard.parts.server.uvicorn_server import STREAM_SECONDS, GracefulServer
from modelyard.platform.jobs.worker import Worker
from modelyard.worker import platform_of
from polling import until


def not_run(server: uvicorn.Server) -> None:
    server.started = True


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "yard.db"


def call(*words: object, status: int = 0) -> Result:
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exit_code == status, (result.output, result.exception)
    return result


@pytest.mark.parametrize("word", ["serve", "ui"])
def test_cycles_are_looked_for_rarely_while_requests_are_served(
    word: str, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[object, bool]] = []

    def noted(server: uvicorn.Server) -> None:
        seen.append((gc.get_threshold(), gc.get_freeze_count() > 0))
        not_run(server)

    monkeypatch.setattr(GracefulServer, "run", noted)
    before = gc.get_threshold()
    open_platform(store).close()
    call(word, "--store", store, "--port", 0)
    assert seen == [((uvicorn_server.COLLECT_AFTER, *before[1:]), True)]
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)


@pytest.mark.parametrize(
    "words", [("serve",), ("serve", "--worker"), ("serve", "--host", "localhost"), ("ui",)], ids=" ".join
)
def test_an_address_that_another_process_has_is_one_line_and_nothing_begins(
    words: tuple[str, ...], store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Worker] = []
    monkeypatch.setattr(Worker, "start", begun.append)
    open_platform(store).close()
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        shown = call(*words, "--store", store, "--port", port, status=1).output
    assert [line for line in shown.splitlines() if "cannot be listened at" in line] == [shown.splitlines()[-1]]
    assert f":{port} cannot be listened at (Address already in use); name another --host or --port" in shown
    assert begun == []


@pytest.mark.parametrize(
    ("host", "says"), [("203.0.113.1", "203.0.113.1:0 cannot be listened at"), ("a..b", "there is no host a..b")]
)
def test_a_host_that_is_not_this_machine_is_one_line(host: str, says: str, store: Path) -> None:
    assert says in call("serve", "--store", store, "--host", host, "--port", 0, status=1).output.splitlines()[-1]


@pytest.mark.parametrize("host", ["", " "])
def test_a_host_without_a_name_is_not_every_address_of_this_machine(host: str, store: Path) -> None:
    assert "is empty" in call("serve", "--store", store, "--host", host, "--port", 0, status=2).output
    assert not store.exists()


def test_it_gets_either_a_store_or_a_factory() -> None:
    assert "give either --store or --factory" in call("serve", "--store", "a", "--factory", "a:b", status=2).output


def test_callers_without_a_key_are_served_on_a_loopback_host_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[object] = []
    monkeypatch.setattr(uvicorn.Server, "run", not_run)
    monkeypatch.setattr(commands, "asgi_app", lambda *_, anonymous, **__: served.append(anonymous))
    words = ("serve", "--store", tmp_path / "yard.db", "--anonymous", "acme")
    for host in ("127.0.0.1", "::1", "localhost"):
        call(*words, "--host", host)
    assert served == [anonymous("acme")] * 3
    for host in ("0.0.0.0", "::", "yard.example"):
        assert "only this machine reaches" in call(*words, "--host", host, status=2).output
    assert len(served) == 3


def test_the_interfaces_that_are_served_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[set[str]] = []
    monkeypatch.setattr(uvicorn.Server, "run", not_run)
    monkeypatch.setattr(commands, "asgi_app", lambda _, interfaces, *__, **___: served.append({*map(str, interfaces)}))
    for words in ((), ("--interfaces", "inference, base"), ("--interfaces", "base", "--uploads")):
        call("serve", "--store", tmp_path / "yard.db", *words)
    assert served == [{*map(str, STANDARD)}, {"inference", "base"}, {"base", "uploads"}]
    refused = call("serve", "--store", tmp_path / "yard.db", "--interfaces", "base,talk", status=2).output
    assert "there is no interface 'talk'" in refused
    assert all(interface.name in refused for interface in Interface)


def test_a_served_platform_runs_jobs_in_threads_or_in_processes_or_not_at_all(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested: list[tuple[bool, object]] = []
    monkeypatch.setattr(uvicorn.Server, "run", not_run)
    monkeypatch.setattr(
        commands,
        "asgi_app",
        lambda _, __, worker, executor, **___: requested.append((worker, executor)),
    )
    for words in ((), ("--worker",), ("--isolate",), ("--worker", "--isolate")):
        call("serve", "--store", store, *words)
    assert [worker for worker, _ in requested[:2]] == [False, True]
    assert all(isinstance(executor, IsolatingExecutor) for _, executor in requested[:2])
    for worker, executor in requested[2:]:
        assert worker
        assert isinstance(executor, SubprocessExecutor)
        assert executor._arguments == (str(store),)
        assert (executor._preload, executor._fork) == ((), False)


def test_a_served_platform_ends_though_a_client_has_stopped_reading(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested: list[uvicorn.Config] = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda server: (not_run(server), requested.append(server.config)))
    call("serve", "--store", store)
    assert requested[0].timeout_graceful_shutdown == STREAM_SECONDS


def test_isolated_jobs_have_the_same_artifacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[SubprocessExecutor] = []
    monkeypatch.setattr(uvicorn.Server, "run", not_run)
    monkeypatch.setattr(commands, "asgi_app", lambda *_, executor, **__: requested.append(executor))
    store, kept = tmp_path / "yard.db", tmp_path / "elsewhere"
    call("serve", "--store", store, "--artifacts", kept, "--isolate")
    (executor,) = requested
    assert executor._arguments == (str(store), str(kept))
    kept.rmdir()
    with platform_of(executor._first[-1], executor._arguments):
        assert kept.is_dir()


@pytest.mark.servers
def test_after_sigterm_requests_are_taken_for_the_grace_and_nobody_is_sent_more(store: Path) -> None:
    (free_port,) = free_ports(1)
    words = ["serve", "--store", str(store), "--port", str(free_port), "--grace", "600", "--anonymous", "acme"]
    running = subprocess.Popen([sys.executable, "-m", "modelyard.cli", *words], stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{free_port}"

    def status(path: str = "/readyz") -> int | None:
        try:
            return httpx.get(url + path, timeout=60).status_code
        except httpx.ConnectError:
            return None

    try:
        until(lambda: status() == 200)
        running.send_signal(signal.SIGTERM)
        until(lambda: status() == 503)
        assert status("/livez") == 200
        body = {"model": "echo", "messages": [{"role": "user", "content": "hi"}]}
        answer = httpx.post(f"{url}/inference/v1/chat/completions", json=body, timeout=60).json()
        assert answer["choices"][0]["message"]["content"] == "hi"
    finally:
        running.send_signal(signal.SIGTERM)
        running.wait(60)
    assert status() is None


def test_the_grace_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    now, left = [100.0], []
    monkeypatch.setattr(uvicorn_server, "monotonic", lambda: now[0])
    server = GracefulServer(uvicorn.Config("none"), 5, lambda: left.append(1))
    server.handle_exit(signal.SIGTERM, None)
    assert left == [1]
    for seconds, ends in ((104.9, False), (105.0, True)):
        now[0] = seconds
        assert asyncio.run(server.on_tick(1)) is ends


@pytest.mark.parametrize(("grace", "sent"), [(0, signal.SIGTERM), (600, signal.SIGINT)])
def test_without_a_grace_and_at_an_interrupt_it_ends_at_once(grace: float, sent: int) -> None:
    server = GracefulServer(uvicorn.Config("none"), grace, lambda: None)
    server.handle_exit(sent, None)
    assert asyncio.run(server.on_tick(1))


def test_memory_for_local_models_needs_their_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others = [part for part in PARTS if "base_models" not in part.resources]
    monkeypatch.setattr("modelyard.parts.server.commands.opened", lambda *_, **__: open_platform(parts=others))
    refused = CliRunner().invoke(main, ["serve", "--store", str(tmp_path / "yard.db"), "--cache-memory", "1GiB"])
    assert refused.exit_code == 2
    assert "opened without their part" in refused.output


@pytest.mark.slow
@pytest.mark.parametrize("command", ["serve", "ui"])
def test_without_uvicorn_the_extra_is_named_and_nothing_is_made(command: str, tmp_path: Path) -> None:
    program = "import sys\nsys.modules['uvicorn'] = None\nfrom modelyard.cli import main\nmain([sys.argv[1]])"
    ended = subprocess.run(
        [sys.executable, "-c", program, command], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == "Error: uvicorn is not installed; run: pip install 'modelyard[serve]'\n"
    assert not list(tmp_path.iterdir())
