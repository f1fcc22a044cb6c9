"""The comparison with other libraries: its tables, what is left out, and whose CPU counts."""

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PAGE = "text\n<!-- peers: begin -->\nintro\n\n**{}**\n\nold\n\n**gone**\n\nold\n<!-- peers: end -->\nmore\n"


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module


@pytest.fixture
def peers(modules: Any) -> ModuleType:
    return modules("peers")


def test_every_peer_has_a_workload_and_an_environment(peers: ModuleType, modules: Any) -> None:
    everyone = [peer for one in peers.COMPARED.values() for peer in (one.ours, *one.peers)]
    here, theirs = modules("_workloads").WORKLOADS, modules("_peer_workloads").WORKLOADS
    assert [peer for peer in everyone if peer.environment not in {*modules("_peer_environments").PINS, "torch"}] == []
    assert [peer for peer in everyone if peer.workload not in {**here, **theirs}] == []


def test_a_table_takes_its_place_on_the_page_and_leaves_the_others(peers: ModuleType) -> None:
    first, second = list(peers.COMPARED)[:2]
    titles = [peers.COMPARED[name].title for name in (first, second)]
    page = peers.written(PAGE.format(titles[1]), first, f"**{titles[0]}**\n\nnew")
    kept = f"intro\n\n**{titles[0]}**\n\nnew\n\n**{titles[1]}**\n\nold\n"
    assert page == f"text\n<!-- peers: begin -->\n{kept}<!-- peers: end -->\nmore\n"


def test_who_is_ahead_is_said(peers: ModuleType) -> None:
    row = peers.row_of(peers.figures("fast", [1.0, 1.0], [2.0, 2.0]))
    assert row == "| fast | 1.0 | 1.0 | 2 (ahead of us) | 2 to 2 |"
    assert "ahead" not in peers.row_of(peers.figures("slow", [4.0, 4.0], [2.0, 2.0]))


def test_what_cannot_be_installed_is_left_out_and_why_is_printed(
    peers: ModuleType, modules: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environments = modules("_peer_environments")

    def refused(name: str) -> None:
        environments.installed([sys.executable, "-c", "print('ERROR: no such version'); raise SystemExit(1)"])

    monkeypatch.setattr(peers, "environment", refused)
    one = peers.Compared("title", peers.our("completion"), ())
    assert peers.measured(one, 1) == [{"name": peers.OURS, "left out": "ERROR: no such version"}]
    assert "modelyard is left out: ERROR: no such version" in capsys.readouterr().err
    assert "could not be run here" in peers.row_of(peers.measured(one, 1)[0])


@pytest.mark.slow
def test_a_workload_that_ends_is_left_out_with_what_it_wrote(peers: ModuleType) -> None:
    one = peers.Compared("title", peers.our("completion"), (peers.Peer("unknown", "theirs", "here"),))
    ours, theirs = peers.measured(one, 1)
    assert ours["minimum"] > 0
    assert "KeyError: 'unknown'" in theirs["left out"]


@pytest.fixture
def parent() -> Iterator[int]:
    """A process that has started another, which waits."""
    child = "print('ready', flush=True); input()"
    started = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", started], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process.pid
        process.stdin.write("\n")


@pytest.mark.skipif(sys.platform != "linux", reason="CPU of other processes is read as Linux tells it")
def test_all_processes_of_a_server_count(modules: Any, parent: int) -> None:
    servers = modules("_peer_servers")
    found = servers.family(parent)
    assert found[0] == parent
    assert len(found) == 2
    clocks = [servers.time.clock_gettime_ns(servers.clock_of(pid)) for pid in found]
    assert min(clocks) > 0
    assert servers.time.clock_gettime_ns(servers.clock_of(os.getpid())) <= servers.time.process_time_ns()
