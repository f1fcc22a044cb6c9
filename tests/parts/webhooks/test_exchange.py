"""One post over real sockets: it ends in time, whatever its receiver does, and leaves no thread."""

import itertools
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from modelyard import Platform
from modelyard.parts.webhooks import exchange
from modelyard.parts.webhooks.delivery import Deliveries, deliver_due
from modelyard.parts.webhooks.service import NewWebhook
from modelyard.parts.webhooks.target import Address
from modelyard.testing import ManualClock
from polling import until
from server_pem import SERVER_PEM
from webhook_receiver import Receiver, receiving

Answer = Callable[[Callable[[bytes], None]], None]

POSTS = "modelyard-webhook"
CERTIFICATE = SERVER_PEM[SERVER_PEM.index("-----BEGIN CERTIFICATE") :]


@contextmanager
def answered_by(answer: Answer) -> Iterator[tuple[int, threading.Event]]:
    """Answer one connection by hand; the event is set when it was accepted."""
    accepted = threading.Event()

    def serve() -> None:
        with suppress(OSError), listener, listener.accept()[0] as made:
            accepted.set()
            with suppress(OSError):
                answer(made.sendall)
                while made.recv(2**16):
                    pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1], accepted
        thread.join()


def endless(first: bytes, piece: bytes) -> Answer:
    def answer(send: Callable[[bytes], None]) -> None:
        send(first)
        for number in itertools.count():
            send(piece % number)

    return answer


LATE = "within 15 seconds"
UNREACHABLE = "could not be reached"

MISBEHAVING: dict[str, tuple[Answer, str]] = {
    "nothing": (lambda _: None, LATE),
    "half a status": (lambda send: send(b"HTTP/1.1 20"), LATE),
    "half of its headers": (lambda send: send(b"HTTP/1.1 200 OK\r\nx: y\r\n"), LATE),
    "endlessly that it continues": (endless(b"", b"HTTP/1.1 100 Continue\r\nx: %d\r\n\r\n"), UNREACHABLE),
    "an endless status": (endless(b"HTTP/1.1 200 ", b"%0100d"), UNREACHABLE),
    "endless headers": (endless(b"HTTP/1.1 200 OK\r\n", b"x: %d\r\n"), UNREACHABLE),
    "an endless header": (endless(b"HTTP/1.1 200 OK\r\nx: ", b"%0100d"), UNREACHABLE),
}


def deliver_until_late(platform: Platform, clock: ManualClock, accepted: threading.Event) -> Deliveries:
    """Deliver while the time of a post passes."""
    found: list[Deliveries] = []
    thread = threading.Thread(target=lambda: found.append(platform.webhooks.deliver()))
    thread.start()
    until(accepted.is_set)
    clock.advance(exchange.LONGEST)
    thread.join()
    until(lambda: not any(one.name == POSTS for one in threading.enumerate()))
    return found[0]


@pytest.mark.parametrize("what", MISBEHAVING)
def test_whatever_a_receiver_sends_the_post_ends(what: str, platform: Platform, clock: ManualClock) -> None:
    answer, problem = MISBEHAVING[what]
    with answered_by(answer) as (port, accepted):
        hook = platform.webhooks.add(f"http://127.0.0.1:{port}/", trusted=True)
        platform.webhooks.test(hook.endpoint.id)
        late = problem == LATE
        found = deliver_until_late(platform, clock, accepted) if late else platform.webhooks.deliver()
        assert found == Deliveries(failed=1)
    assert problem in next(iter(platform.webhooks.waiting())).problem


@pytest.mark.parametrize(("times", "delivered"), [(exchange.MOST_INTERIM, True), (exchange.MOST_INTERIM + 1, False)])
def test_a_receiver_may_say_some_times_that_it_continues(times: int, delivered: bool, platform: Platform) -> None:
    answer = b"HTTP/1.1 100 Continue\r\n\r\n" * times + b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
    with answered_by(lambda send: send(answer)) as (port, _):
        hook = platform.webhooks.add(f"http://127.0.0.1:{port}/", trusted=True)
        platform.webhooks.test(hook.endpoint.id)
        assert platform.webhooks.deliver() == Deliveries(delivered=int(delivered), failed=int(not delivered))


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x03\x40\x00"], ids=["nothing", "half a record"])
def test_a_handshake_that_does_not_end_is_cut(sent: bytes, platform: Platform, clock: ManualClock) -> None:
    with answered_by(lambda send: send(sent)) as (port, accepted):
        hook = platform.webhooks.add(f"https://127.0.0.1:{port}/", trusted=True)
        platform.webhooks.test(hook.endpoint.id)
        assert deliver_until_late(platform, clock, accepted) == Deliveries(failed=1)
    assert LATE in next(iter(platform.webhooks.waiting())).problem


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> list[exchange.PostOutcome]:
    """What posts have noted of their end."""
    found: list[exchange.PostOutcome] = []
    note = exchange.Post._note

    def noting(post: exchange.Post, outcome: exchange.PostOutcome) -> None:
        note(post, outcome)
        found.append(outcome)

    monkeypatch.setattr(exchange.Post, "_note", noting)
    return found


@pytest.mark.parametrize("length", ["", "content-length: 1000000\r\n", "transfer-encoding: chunked\r\n"])
@pytest.mark.parametrize("goes_on", [False, True], ids=["hangs", "goes on"])
def test_a_status_counts_whatever_becomes_of_the_body(
    length: str, goes_on: bool, platform: Platform, clock: ManualClock, noted: list[exchange.PostOutcome]
) -> None:
    def answer(send: Callable[[bytes], None]) -> None:
        send(f"HTTP/1.1 200 OK\r\n{length}\r\n".encode())
        while goes_on:
            send(b"ffff\r\n" + b"x" * 0xFFFF + b"\r\n")

    with answered_by(answer) as (port, _):
        hook = platform.webhooks.add(f"http://127.0.0.1:{port}/", trusted=True)
        platform.webhooks.test(hook.endpoint.id)
        found: list[Deliveries] = []
        thread = threading.Thread(target=lambda: found.append(platform.webhooks.deliver()))
        thread.start()
        until(lambda: noted)
        clock.advance(exchange.LONGEST)
        thread.join()
    assert found == [Deliveries(delivered=1)]
    assert noted[0].status == 200


# ---- over TLS --------------------------------------------------------------------------------------------------------


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[Receiver]:
    """A receiver with a certificate for localhost."""
    (tmp_path / "server.pem").write_text(SERVER_PEM)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem")
    with receiving(context) as one:
        yield one


@pytest.mark.parametrize(
    ("host", "trusts", "arrives"),
    [("localhost", True, True), ("hooks.example", True, False), ("localhost", False, False)],
    ids=["its own", "of another name", "of a stranger"],
)
def test_the_certificate_is_checked(
    host: str, trusts: bool, arrives: bool, platform: Platform, secure: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    if trusts:
        monkeypatch.setattr(exchange, "_tls", lambda: ssl.create_default_context(cadata=CERTIFICATE))
    hook = platform.webhooks.add(f"https://{host}:{secure.port}/hook", trusted=True)
    platform.webhooks.test(hook.endpoint.id)
    here: list[Address] = [(socket.AF_INET, ("127.0.0.1", secure.port))]
    found = deliver_due(platform._runtime, lambda *_: here)
    assert found == (Deliveries(delivered=1) if arrives else Deliveries(failed=1))
    assert len(secure.received) == arrives
    if not arrives:
        assert "SSLCertVerificationError" in next(iter(platform.webhooks.waiting())).problem


# ---- this machine ----------------------------------------------------------------------------------------------------


def test_an_untrusted_endpoint_is_not_this_machine_even_by_a_public_address(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a firewall keeps away from outside, this machine could reach by its own public address."""
    monkeypatch.setattr(exchange, "allowed", lambda addresses, trusted: addresses)  # as if loopback were public
    received: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        hook: NewWebhook = platform.webhooks.add(f"https://hooks.example:{port}/")
        platform.webhooks.test(hook.endpoint.id)
        here: list[Address] = [(socket.AF_INET, ("127.0.0.1", port))]
        assert deliver_due(platform._runtime, lambda *_: here) == Deliveries(failed=1)
        with listener.accept()[0] as made:
            received.append(made.recv(100))
    assert received == [b""], "nothing is sent, and no handshake is begun"
    assert "this machine" in next(iter(platform.webhooks.waiting())).problem
