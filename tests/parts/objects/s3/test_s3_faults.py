"""S3 that is busy, cuts connections, refuses keys or clocks, lacks the bucket or is away."""

import socket
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from moto.core import set_initial_no_auth_action_count

from disturbed_server import KEY, RETRIES, SECRET, Server, artifacts_in
from modelyard.errors import ArtifactMissing, ArtifactsUnavailable
from modelyard.parts.objects.store import ObjectArtifacts

MIB = 2**20


@pytest.fixture
def artifacts(server: Server, bucket: str, tmp_path: Path) -> ObjectArtifacts:
    return artifacts_in(server, bucket, tmp_path)


def first(count: int, kind: str, of: Callable[[dict[str, Any]], bool]) -> Callable[[dict[str, Any]], str | None]:
    """Disturb the first `count` of the requests that `of` names."""
    left = [kind] * count

    def fault(environ: dict[str, Any]) -> str | None:
        return left.pop() if left and of(environ) else None

    return fault


def every(environ: dict[str, Any]) -> bool:
    return True


def is_part(environ: dict[str, Any]) -> bool:
    return environ["REQUEST_METHOD"] == "PUT" and "partNumber=2" in environ["QUERY_STRING"]


def is_get(environ: dict[str, Any]) -> bool:
    return environ["REQUEST_METHOD"] == "GET"


def large() -> Iterator[bytes]:
    return (bytes([number]) * MIB for number in range(12))


LARGE = b"".join(large())

CALLS: dict[str, Callable[[ObjectArtifacts], object]] = {
    "put": lambda artifacts: artifacts.put([b"x"]),
    "put in parts": lambda artifacts: artifacts.put(large()),
    "open": lambda artifacts: artifacts.open("0" * 32),
    "remove": lambda artifacts: artifacts.remove("0" * 32),
    "names": lambda artifacts: list(artifacts.names()),
    "begin": lambda artifacts: artifacts.begin(9),
    "remove_unfinished": lambda artifacts: artifacts.remove_unfinished(0),
    "check": lambda artifacts: artifacts.check(),
}


def test_a_short_storm_of_busy_answers_is_sat_out(artifacts: ObjectArtifacts, server: Server) -> None:
    server.fault = first(3, "busy", every)
    stored = artifacts.put(large())
    server.fault = first(3, "busy", every)
    with artifacts.open(stored.name, stored.digest) as file:
        assert file.read() == LARGE
    server.fault = first(3, "busy", every)
    assert list(artifacts.names()) == [stored.name]


@pytest.mark.parametrize("call", CALLS)
def test_a_storm_without_end_is_said_to_be_one(artifacts: ObjectArtifacts, server: Server, call: str) -> None:
    server.fault = lambda environ: "busy"
    with pytest.raises(ArtifactsUnavailable, match="too busy"):
        CALLS[call](artifacts)


def test_a_part_whose_connection_was_cut_is_sent_again(artifacts: ObjectArtifacts, server: Server) -> None:
    server.fault = first(1, "cut", is_part)
    stored = artifacts.put(large())
    with artifacts.open(stored.name, stored.digest) as file:
        assert file.read() == LARGE


def test_a_part_that_never_comes_through_leaves_nothing(
    artifacts: ObjectArtifacts, server: Server, bucket: str
) -> None:
    server.fault = lambda environ: "cut" if is_part(environ) else None
    with pytest.raises(ArtifactsUnavailable, match="cannot be reached"):
        artifacts.put(large())
    assert list(artifacts.names()) == []
    assert server.client().list_multipart_uploads(Bucket=bucket).get("Uploads") is None


def test_a_download_that_is_cut_continues(artifacts: ObjectArtifacts, server: Server, tmp_path: Path) -> None:
    stored = artifacts.put(large())
    server.fault = first(1, "half", is_get)
    with artifacts.open(stored.name, stored.digest) as file:
        assert file.read() == LARGE


def test_a_download_that_never_ends_leaves_no_copy(artifacts: ObjectArtifacts, server: Server, tmp_path: Path) -> None:
    stored = artifacts.put(large())
    server.fault = lambda environ: "half" if is_get(environ) else None
    with pytest.raises(ArtifactsUnavailable, match="cannot be reached"):
        artifacts.open(stored.name)
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.parametrize("call", CALLS)
def test_a_missing_bucket_is_named(server: Server, tmp_path: Path, call: str) -> None:
    with pytest.raises(ArtifactsUnavailable, match="there is no bucket 'no-such'; create it") as raised:
        CALLS[call](artifacts_in(server, "no-such", tmp_path))
    assert not isinstance(raised.value, ArtifactMissing)


@pytest.mark.parametrize("call", CALLS)
def test_a_clock_that_differs_is_said_to_be_at_fault(artifacts: ObjectArtifacts, server: Server, call: str) -> None:
    server.ahead = timedelta(hours=1)
    with pytest.raises(ArtifactsUnavailable, match="refuses the time of this machine"):
        CALLS[call](artifacts)


@pytest.mark.parametrize("call", CALLS)
def test_wrong_credentials_are_refused_and_never_shown(server: Server, bucket: str, tmp_path: Path, call: str) -> None:
    guarded = set_initial_no_auth_action_count(0)(CALLS[call])
    with pytest.raises(ArtifactsUnavailable, match="refuses the credentials") as raised:
        guarded(artifacts_in(server, bucket, tmp_path))
    shown = f"{raised.value!r} {raised.value.__cause__!r}"
    assert KEY not in shown
    assert SECRET not in shown


@pytest.mark.parametrize("call", CALLS)
def test_a_server_that_is_away_is_said_to_be(server: Server, bucket: str, tmp_path: Path, call: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closing:
        port = closing.getsockname()[1]
    away = artifacts_in(server, bucket, tmp_path, endpoint=f"http://127.0.0.1:{port}", retry_config=RETRIES)
    with pytest.raises(ArtifactsUnavailable, match="cannot be reached; check the network, the endpoint"):
        CALLS[call](away)


def test_a_store_that_cannot_list_uploads_is_swept_of_the_rest(
    artifacts: ObjectArtifacts, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.fault = lambda environ: "none" if "uploads" in environ["QUERY_STRING"] else None
    assert artifacts.remove_unfinished(0) == 0
    assert "lifecycle rules" in caplog.text
