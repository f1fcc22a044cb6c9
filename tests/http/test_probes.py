"""The public probes: whether the process answers, and whether it can serve requests."""

import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from disk_room import files_of
from modelyard import open_platform
from modelyard.clock import SystemClock
from modelyard.errors import StoreError
from modelyard.http.interface import Interface
from modelyard.platform.operations import readiness

OK = {"status": "ok", "artifacts": "ok"}


class LaterClock(SystemClock):
    """The clock of the system, and as many seconds more as somebody says."""

    more = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.more


@pytest.fixture
def clock() -> LaterClock:
    return LaterClock()


@pytest.mark.parametrize(("path", "answer"), [("/livez", {"status": "ok"}), ("/readyz", OK), ("/health", OK)])
def test_a_platform_that_works_is_alive_and_ready_for_anyone(client: Any, path: str, answer: object) -> None:
    found = client.send("GET", path, key="")
    assert (found.status, found.json) == (200, answer)
    assert client.send("HEAD", path, key="", check=False).status == 200


def test_a_platform_without_its_store_is_alive_and_not_ready(
    client_for: Any, yard_file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with open_platform(yard_file) as platform:
        client = client_for(platform)
        monkeypatch.setattr(platform._runtime.store, "check", failing)
        for path in ("/readyz", "/health"):
            answer = client.send("GET", path, key="")
            assert (answer.status, answer.json) == (503, {"status": "unavailable", "artifacts": "ok"})
            assert answer.headers["retry-after"] == "1"
        assert client.send("GET", "/livez", key="").status == 200
    assert [record.getMessage() for record in caplog.records] == ["the store cannot be used: the disk is gone"]
    assert not any(record.exc_info for record in caplog.records)


def failing() -> None:
    raise StoreError("the disk is gone")


def test_a_platform_without_its_artifacts_is_ready_and_says_so(
    client_for: Any, yard_file: Path, clock: LaterClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_platform(yard_file, clock=clock) as platform:
        client = client_for(platform)
        with monkeypatch.context() as away:
            away.setattr(platform._runtime.artifacts, "check", failing)
            answer = client.send("GET", "/readyz", key="")
            assert (answer.status, answer.json) == (200, {"status": "ok", "artifacts": "unavailable"})
        clock.more += 10 * readiness.FRESH
        assert client.send("GET", "/readyz", key="").json == OK


def test_a_platform_whose_store_has_no_room_is_not_ready_until_it_has(
    client_for: Any, yard_file: Path, clock: LaterClock, caplog: pytest.LogCaptureFixture
) -> None:
    with open_platform(yard_file, clock=clock) as platform:
        client = client_for(platform)
        assert client.send("GET", "/readyz", key="").status == 200
        with files_of(Path(f"{yard_file}-wal").stat().st_size):
            for _ in range(3):
                clock.more += readiness.FRESH
                assert client.send("GET", "/readyz", key="").json["status"] == "unavailable"
            store = platform.health.system_check().store
        assert not store.success
        assert "no room" in str(store.error)
        clock.more += readiness.FRESH
        assert client.send("GET", "/readyz", key="").status == 200
    words = [record.getMessage() for record in caplog.records]
    assert [word[:28] for word in words if "cannot be used" in word] == ["the store cannot be used: no"]


def test_a_platform_is_ready_while_another_process_writes(client_for: Any, yard_file: Path, clock: LaterClock) -> None:
    with open_platform(yard_file, clock=clock) as platform, closing(sqlite3.connect(yard_file)) as other:
        client = client_for(platform)
        other.execute("BEGIN IMMEDIATE")
        for _ in range(3):
            clock.more += 10 * readiness.FRESH
            assert client.send("GET", "/readyz", key="").status == 200


@pytest.mark.slow
@pytest.mark.parametrize("part", ["store", "artifacts"])
def test_what_hangs_is_away_and_keeps_no_probe_waiting(
    client_for: Any, yard_file: Path, clock: LaterClock, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, looks = threading.Event(), []

    def hang() -> None:
        looks.append(1)
        assert go_on.wait(60)

    with open_platform(yard_file, clock=clock) as platform:
        client = client_for(platform)
        assert client.send("GET", "/readyz", key="").json == OK
        monkeypatch.setattr(readiness, "PATIENCE", 0.0)
        monkeypatch.setattr(getattr(platform._runtime, part), "check", hang)
        clock.more += 10 * readiness.FRESH - readiness.VALID + 0.1
        assert client.send("GET", "/readyz", key="").json == OK  # as it was when it was last looked at
        clock.more += 2 * readiness.VALID
        for _ in range(3):
            answer = client.send("GET", "/readyz", key="")
            assert answer.json[{"store": "status"}.get(part, part)] == "unavailable"
        assert looks == [1]
        go_on.set()
        monkeypatch.setattr(readiness, "PATIENCE", 60)
        clock.more += 10 * readiness.FRESH
        assert client.send("GET", "/readyz", key="").status == 200


def test_a_process_that_is_about_to_end_is_not_ready_and_answers_all_the_same(client_for: Any) -> None:
    with open_platform() as platform:
        client = client_for(platform)
        platform.health.leave()
        assert client.send("GET", "/readyz", key="").status == 503
        assert client.send("GET", "/v1/health").status == 200


def test_the_health_of_the_training_interface_keeps_its_key(client: Any, client_for: Any, platform: Any) -> None:
    assert client.send("GET", "/v1/health", key="").status == 401
    alone = client_for(platform, interfaces=[Interface.INFERENCE])
    assert alone.send("GET", "/livez", key="", check=False).status == 404


def test_a_look_that_cannot_begin_is_made_when_it_can(clock: LaterClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without room for another thread is not ready, and is again once there is room."""
    look = readiness.Look("store", readiness.FRESH)

    class Full(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        full.setattr(readiness, "Thread", Full)
        assert not look.is_well(lambda: None, clock)
    assert look.is_well(lambda: None, clock)


def test_the_log_has_the_traceback_of_an_unforeseen_fault(clock: LaterClock, caplog: pytest.LogCaptureFixture) -> None:
    def check() -> None:
        raise KeyError("odd")

    assert not readiness.Look("store", readiness.FRESH).is_well(check, clock)
    (record,) = caplog.records
    assert record.exc_info is not None
