"""A host's own authenticator says who calls; everything else is as with the platform's own keys."""

import base64
import logging
import threading
from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from http_client import Client, client_of
from modelyard.compose import open_platform
from modelyard.domain.identity import Limits, Principal, Scope
from modelyard.errors import Unauthenticated
from modelyard.http.auth import CallerCache
from modelyard.http.interface import Auth
from modelyard.platform.platform import Platform
from modelyard.testing.clock import ManualClock

HEALTH = "/v1/health"
ANN = Principal("ann", "acme", Scope("acme", frozenset({"books"})), "user-ann")


@attrs.define(eq=False)
class Sessions:
    """Callers by the secret of their session; counts how often, and on which threads, it is asked."""

    known: dict[str, Any]
    blocking: bool = False
    longest: int = 2000
    threads: list[int] = attrs.field(factory=list)

    def authenticate(self, secret: str) -> Principal:
        self.threads.append(threading.get_ident())
        if secret not in self.known:
            raise Unauthenticated("this session has ended; log in again")
        found: Principal = self.known[secret]
        return found


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def platform(clock: ManualClock) -> Iterator[Platform]:
    with open_platform(clock=clock) as opened:
        yield opened


@pytest.fixture
def sessions() -> Sessions:
    return Sessions({"s.1": ANN, "x" * 2000: ANN})


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def client(request: pytest.FixtureRequest, platform: Platform, sessions: Sessions) -> Client:
    made: Client = client_of(platform, request.param, authenticator=sessions)
    return made


def test_a_known_caller_acts_as_the_principal_that_is_returned(client: Client, platform: Platform) -> None:
    assert client.chat(key="s.1").status == 200
    (total,) = platform.usage.total(by=("entity", "project", "key"))
    assert (total.entity, total.project, total.key) == ("acme", "books", "user-ann")
    foreign = client.chat(key="s.1", headers=[("openai-project", "rival/books")])
    assert foreign.status == 403


def test_an_authenticator_replaces_the_keys_of_the_platform(client: Client) -> None:
    answer = client.send("GET", HEALTH)
    assert answer.status == 401
    assert answer.json["detail"] == "this session has ended; log in again"
    assert answer.headers["www-authenticate"] == "Bearer"


def test_basic_credentials_carry_its_secrets_too(client: Client) -> None:
    assert client.send("GET", "/v2/acme/books/evaluation_runs", key="s.1", auth="Basic").status == 200
    assert client.send("GET", "/v2/acme/other/evaluation_runs", key="s.1", auth="Basic").status == 403


def test_it_says_how_long_a_secret_may_be_and_sees_no_longer_one(client: Client, sessions: Sessions) -> None:
    for auth, path in (("Bearer", HEALTH), ("Basic", "/v2/acme/books/evaluation_runs")):
        assert client.send("GET", path, key="x" * 2000, auth=auth).status == 200
        requested = len(sessions.threads)
        for length in (4001, 70_000):
            assert client.send("GET", path, key="x" * length, auth=auth).status == 401
        assert len(sessions.threads) == requested
    assert client.send("GET", HEALTH, key="x" * 2001).status == 401


def test_a_caller_is_remembered_for_a_second_and_an_end_is_heard_of_then(
    client: Client, sessions: Sessions, clock: ManualClock
) -> None:
    for _ in range(3):
        assert client.send("GET", HEALTH, key="s.1").status == 200
    assert len(sessions.threads) == 1
    del sessions.known["s.1"]
    clock.advance(1)
    assert client.send("GET", HEALTH, key="s.1").status == 401


def test_one_of_many_requests_asks_again_for_all_before_the_second_is_over(
    platform: Platform, sessions: Sessions, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = client_of(platform, authenticator=sessions)
    answers, authenticate = list[int](), sessions.authenticate

    def amid_others(secret: str) -> Principal:
        answers.extend(client.send("GET", HEALTH, key="s.1").status for _ in range(3))
        return authenticate(secret)

    def asked_again(after: float) -> int:
        clock.advance(after)
        before = len(sessions.threads)
        answers.extend(client.send("GET", HEALTH, key="s.1").status for _ in range(3))
        return len(sessions.threads) - before

    assert asked_again(0) == 1
    monkeypatch.setattr(Sessions, "authenticate", lambda sessions, secret: amid_others(secret))
    assert [asked_again(after) for after in (0.4, 0.2, 0.3, 0.2)] == [0, 1, 0, 1]
    assert answers == [200] * len(answers)
    del sessions.known["s.1"]
    clock.advance(0.5)
    assert client.send("GET", HEALTH, key="s.1").status == 401
    assert client.send("GET", HEALTH, key="s.1").status == 200
    clock.advance(0.5)
    monkeypatch.undo()
    assert client.send("GET", HEALTH, key="s.1").status == 401


def test_who_another_request_has_found_since_one_began_is_not_asked_for_again(
    platform: Platform, sessions: Sessions, clock: ManualClock
) -> None:
    cache, header = CallerCache(platform, sessions), b"Bearer s.1"
    clock.advance(1)
    found = cache.find(Auth.BEARER, header, began=clock.monotonic())
    assert cache.find(Auth.BEARER, header, began=clock.monotonic() - 0.1) is found
    assert len(sessions.threads) == 1
    assert cache.find(Auth.BEARER, header, began=clock.monotonic()) is not found
    clock.advance(0.1)
    cache.find(Auth.BEARER, header, began=clock.monotonic())
    assert len(sessions.threads) == 3
    del sessions.known["s.1"]
    with pytest.raises(Unauthenticated):
        cache.find(Auth.BEARER, header, began=clock.monotonic())


@pytest.mark.parametrize("blocking", [False, True])
def test_one_that_may_wait_is_kept_off_the_event_loop(platform: Platform, blocking: bool) -> None:
    sessions = Sessions({"s.1": ANN}, blocking)
    client = client_of(platform, True, authenticator=sessions)
    assert client.send("GET", HEALTH, key="s.1").status == 200
    assert (sessions.threads == [threading.get_ident()]) is not blocking


def test_limits_are_counted_for_each_caller(platform: Platform) -> None:
    principals = [attrs.evolve(ANN, key_id=f"user-{n}", limits=Limits(requests_per_minute=1)) for n in range(2)]
    client = client_of(platform, authenticator=Sessions({f"s.{n}": one for n, one in enumerate(principals)}))
    assert [client.chat(key=key).status for key in ("s.0", "s.1", "s.0", "s.1")] == [200, 200, 429, 429]


@pytest.mark.parametrize("wrong", [None, True, {"entity": "acme"}, "ann"])
def test_an_authenticator_that_returns_no_principal_lets_no_caller_in(
    platform: Platform, wrong: Any, caplog: pytest.LogCaptureFixture
) -> None:
    client = client_of(platform, authenticator=Sessions({"s.1": wrong}))
    with caplog.at_level(logging.ERROR, logger="modelyard.http"):
        assert client.send("GET", HEALTH, key="s.1").status == 500
    assert "not a Principal" in caplog.text
    assert "s.1" not in caplog.text


def test_an_error_of_the_authenticator_is_a_server_error_and_lets_no_caller_in(
    platform: Platform, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Sessions):
        def authenticate(self, secret: str) -> Principal:
            raise LookupError("the session server is down")

    client = client_of(platform, authenticator=Broken({}))
    answer = client.send("GET", HEALTH, key="s.1")
    assert answer.status == 500
    assert b"session server" not in answer.raw


def test_credentials_that_cannot_be_read_never_reach_it(client: Client, sessions: Sessions) -> None:
    pair = base64.b64encode(b"a\0b:s.1").decode()
    for path, header in (
        (HEALTH, "Bearer  s.1"),
        (HEALTH, "Bearer s.1, Bearer s.1"),
        (HEALTH, f"Basic {base64.b64encode(b'api:s.1').decode()}"),
        ("/v2/acme/books/evaluation_runs", f"Basic {pair}"),
    ):
        answer = client.send("GET", path, key="", headers=[("authorization", header)])
        assert answer.status == 401
    doubled = [("authorization", "Bearer s.1")] * 2
    assert client.send("GET", HEALTH, key="", headers=doubled).status == 400
    assert sessions.threads == []
