"""The public probes: whether the process answers, and whether it can serve requests."""

from pathlib import Path
from typing import Any

import pytest

from modelyard import open_platform
from modelyard.errors import StoreError
from modelyard.http.interface import Interface


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/health"])
def test_a_platform_that_works_is_alive_and_ready_for_anyone(client: Any, path: str) -> None:
    answer = client.send("GET", path, key="")
    assert (answer.status, answer.json) == (200, {"status": "ok"})
    assert client.send("HEAD", path, key="", check=False).status == 200


@pytest.mark.parametrize("part", ["store", "artifacts"])
def test_a_platform_without_its_store_or_artifacts_is_alive_and_not_ready(
    client_for: Any, yard_file: Path, part: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with open_platform(yard_file) as platform:
        client = client_for(platform)

        def fail() -> None:
            raise StoreError("the disk is gone")

        monkeypatch.setattr(getattr(platform._runtime, part), "check", fail)
        for path in ("/readyz", "/health"):
            answer = client.send("GET", path, key="")
            assert (answer.status, answer.json) == (503, {"status": "unavailable"})
            assert answer.headers["retry-after"] == "1"
        assert client.send("GET", "/livez", key="").status == 200
    assert [record.getMessage() for record in caplog.records] == ["this platform is not ready: the disk is gone"] * 2
    assert not any(record.exc_info for record in caplog.records)


def test_the_health_of_the_training_interface_keeps_its_key(client: Any, client_for: Any, platform: Any) -> None:
    assert client.send("GET", "/v1/health", key="").status == 401
    alone = client_for(platform, interfaces=[Interface.INFERENCE])
    assert alone.send("GET", "/livez", key="", check=False).status == 404
