"""Secrets: made of a key of the host, so that nothing that is stored or told has one."""

import logging
import os
import stat
import threading
from base64 import b64decode, b64encode, urlsafe_b64encode
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from example_counts import examples
from modelyard import Platform, open_platform
from modelyard.cli import main
from modelyard.compose import open_store
from modelyard.disk import lock
from modelyard.domain.schema import RECORDS
from modelyard.errors import Conflict, ModelyardError, StoreError
from modelyard.parts.copying import copy_store
from modelyard.parts.webhooks import host_key
from modelyard.parts.webhooks.delivery import Deliveries
from modelyard.parts.webhooks.host_key import SUFFIX, VARIABLE
from modelyard.parts.webhooks.service import NewWebhook
from modelyard.parts.webhooks.signing import signature
from modelyard.stores.sqlite import SqliteStore
from modelyard.testing import ManualClock, RunTwiceStore
from webhook_receiver import Received, Receiver, answering, receiving

KEY, OTHER_KEY = "the key of a host, which is random", "another key of the host, random too"


def is_signed(received: Received, *secrets: str) -> bool:
    asked = received.headers["webhook-id"], int(received.headers["webhook-timestamp"]), received.body
    return received.headers["webhook-signature"].split() == [signature(secret, *asked) for secret in secrets]


# ---- nothing that is stored or told has a secret ---------------------------------------------------------------------


def written(secret: bytes) -> set[bytes]:
    """Return each way in which somebody might write bytes down."""
    ways = {secret, secret.hex().encode(), secret.hex().upper().encode(), secret[::-1]}
    ways |= {b64encode(secret).rstrip(b"="), urlsafe_b64encode(secret).rstrip(b"=")}
    ways |= {b64encode(b64encode(secret))[:40], repr(secret)[2:-1].encode(), str(secret).encode("utf-16-le")}
    return ways | {way[at : at + 24] for way in ways for at in (0, len(way) - 24)}


def found_in(folder: Path, secrets: set[bytes]) -> list[str]:
    """Return the files of a folder, but for the key's own, that have one of these."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(SUFFIX)]
    return [path.name for path in files if any(secret in path.read_bytes() for secret in secrets)]


STEPS = st.lists(st.sampled_from(["add", "rotate", "test", "fail", "run", "redeliver", "remove", "lose"]), max_size=8)


@pytest.mark.slow
@given(STEPS)
@examples(4)
def test_no_secret_lies_in_a_file_a_log_or_an_error(steps: list[str]) -> None:
    told: list[str] = []
    log, handler = logging.getLogger("modelyard"), logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    try:
        with TemporaryDirectory() as folder, receiving() as receiver:
            see_secrets(Path(folder), receiver, ["add", "rotate", "test", *steps], told)
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


def see_secrets(folder: Path, receiver: Receiver, steps: list[str], told: list[str]) -> None:
    path, clock, made = folder / "yard.db", ManualClock(), list[NewWebhook]()
    with open_platform(path, clock=clock, durability="process") as platform:
        for step in steps:
            try:
                act(platform, receiver, step, made)
            except ModelyardError as error:
                told.append(f"{error!r} {error}")
            clock.advance(3600)
        told += map(repr, [*made, *platform.webhooks.list(), *platform.webhooks.waiting(), *platform.webhooks.dead()])
        platform.backup(folder / "backup.db")
        host = host_key.host_key(platform._runtime)
        assert host.fingerprint in {one.key for one in platform.webhooks.list()} or not [*platform.webhooks.list()]
        secrets = {way for one in made for way in written(b64decode(one.secret.removeprefix("whsec_")))}
        secrets |= {way for key in (host._key, bytes.fromhex(host._key.decode())) for way in written(key)}
        assert found_in(folder, secrets) == [], "while it is open: its log of writes, too"
    parts = (open_store(path), open_store(folder / "copy.db"))
    with closing(parts[0]) as source, closing(parts[1]) as copy:
        copy_store(source, copy, RECORDS, lambda _: None)
    assert found_in(folder, secrets) == []
    assert not [one for one in told if any(secret in one.encode() for secret in secrets)]


def act(platform: Platform, receiver: Receiver, step: str, made: list[NewWebhook]) -> None:
    webhooks, receiver.answer = platform.webhooks, answering(500 if step == "fail" else 200)
    match step:
        case "add":
            made.append(webhooks.add(receiver.url, trusted=True))
        case "rotate":
            made.append(webhooks.rotate(made[0].endpoint.id))
        case "run":
            platform.evaluations.run("quiz", "echo", [{"prompt": "yes", "expected": "yes"}], project="p")
        case "redeliver":
            webhooks.redeliver(next((one.id for one in webhooks.waiting()), "none"))
        case "remove":
            webhooks.remove(made[-1].endpoint.id)
        case "lose":
            webhooks.rotate("none")
        case _:
            webhooks.test(made[0].endpoint.id)
    webhooks.deliver()


# ---- which key -------------------------------------------------------------------------------------------------------


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A key that the host gives."""
    monkeypatch.setenv(VARIABLE, KEY)
    return monkeypatch


def test_another_key_is_noticed_and_signs_nothing(
    given: pytest.MonkeyPatch, platform: Platform, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    hook = platform.webhooks.add(receiver.url, trusted=True)
    platform.webhooks.test(hook.endpoint.id)
    given.setenv(VARIABLE, OTHER_KEY)
    assert platform.webhooks.deliver() == Deliveries(failed=1)
    (message,) = platform.webhooks.waiting()
    for told in (message.problem, caplog.text):
        assert "another key" in told
        assert VARIABLE in told
        assert not {KEY, OTHER_KEY, hook.secret} & {*told.split()}
    assert receiver.received == []
    given.setenv(VARIABLE, f" {KEY}\n")
    platform.webhooks.redeliver(message.id)
    assert platform.webhooks.deliver() == Deliveries(delivered=1)
    assert is_signed(receiver.received[0], hook.secret)


def test_a_secret_is_rotated_to_another_key(
    given: pytest.MonkeyPatch, platform: Platform, clock: ManualClock, receiver: Receiver
) -> None:
    """The old secret signs no more: nothing can make it."""
    hook = platform.webhooks.add(receiver.url, trusted=True)
    given.setenv(VARIABLE, OTHER_KEY)
    rotated = platform.webhooks.rotate(hook.endpoint.id)
    platform.webhooks.test(hook.endpoint.id)
    assert platform.webhooks.deliver() == Deliveries(delivered=1)
    assert is_signed(receiver.received[0], rotated.secret)
    again = platform.webhooks.rotate(hook.endpoint.id)
    platform.webhooks.test(hook.endpoint.id)
    platform.webhooks.deliver()
    assert is_signed(receiver.received[1], again.secret, rotated.secret)


def test_each_endpoint_and_each_rotation_has_a_secret_of_its_own(platform: Platform, receiver: Receiver) -> None:
    made = [platform.webhooks.add(receiver.url, trusted=True) for _ in range(3)]
    made += [platform.webhooks.rotate(one.endpoint.id) for one in made]
    assert len({one.secret for one in made}) == 6


@pytest.mark.parametrize("short", ["", " ", "x" * 31, "x" * 31 + "\n  "])
def test_a_key_that_is_too_short_is_refused(platform: Platform, short: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, short)
    with pytest.raises(Conflict, match=f"{VARIABLE} has fewer than 32 characters"):
        platform.webhooks.add("https://example.org/hook")
    assert [*platform.webhooks.list()] == []


@pytest.fixture
def shared(yard_address: str, tmp_path: Path) -> Iterator[Platform]:
    """A platform whose processes share no file."""
    with open_platform(yard_address, artifacts=tmp_path) as platform:
        yield platform


def test_a_database_needs_a_key_that_is_given(shared: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(Conflict, match=f"set {VARIABLE} to a random string of at least 32 characters"):
        shared.webhooks.add("https://example.org/hook")
    assert [*shared.webhooks.list()] == []
    monkeypatch.setenv(VARIABLE, KEY)
    made = shared.webhooks.add("https://example.org/hook")
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(Conflict, match=VARIABLE):
        shared.webhooks.rotate(made.endpoint.id)
    shared.webhooks.test(made.endpoint.id)
    assert shared.webhooks.deliver() == Deliveries(failed=1)
    assert VARIABLE in next(iter(shared.webhooks.waiting())).problem


def test_so_does_a_store_of_which_no_file_is_known(yard_file: Path) -> None:
    store = SqliteStore(yard_file, RECORDS)
    with closing(store), open_platform(store=RunTwiceStore(store)) as platform:
        with pytest.raises(Conflict, match=VARIABLE):
            platform.webhooks.add("https://example.org/hook")


# ---- the file of a key -----------------------------------------------------------------------------------------------


@pytest.fixture
def key_file(yard_file: Path) -> Path:
    return yard_file.with_name(f"{yard_file.name}{SUFFIX}")


def add(path: Path) -> NewWebhook:
    with open_platform(path) as platform:
        return platform.webhooks.add("https://example.org/hook")


def fingerprint(path: Path) -> str:
    with open_platform(path) as platform:
        return host_key.host_key(platform._runtime).fingerprint


def test_a_file_is_made_for_its_owner_alone(yard_file: Path, key_file: Path) -> None:
    with open_platform(yard_file) as platform:
        assert [*platform.webhooks.list()] == []
        platform.webhooks.deliver()
        assert not key_file.exists(), "who has no webhook has no key"
    old = os.umask(0)
    try:
        made = add(yard_file)
    finally:
        os.umask(old)
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    assert len(bytes.fromhex(key_file.read_text())) == 32
    kept = key_file.read_bytes()
    assert add(yard_file).endpoint.key == made.endpoint.key
    assert key_file.read_bytes() == kept


def test_a_link_to_a_store_has_the_same_key(yard_file: Path, key_file: Path, tmp_path: Path) -> None:
    made = add(yard_file)
    (tmp_path / "link.db").symlink_to(yard_file)
    assert fingerprint(tmp_path / "link.db") == made.endpoint.key


def test_the_key_of_a_file_can_be_given_instead(
    yard_file: Path, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As who moves to a database does."""
    made = add(yard_file)
    monkeypatch.setenv(VARIABLE, key_file.read_text())
    key_file.unlink()
    assert fingerprint(yard_file) == made.endpoint.key


def test_those_who_make_a_key_at_once_agree(yard_file: Path) -> None:
    together, made = threading.Barrier(4), list[str]()

    def work() -> None:
        with open_platform(yard_file) as platform:
            together.wait(60)
            made.append(platform.webhooks.add("https://example.org/hook").endpoint.key)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 4
    assert {*made} == {fingerprint(yard_file)}


def test_a_key_is_used_only_once_it_is_on_the_disk(
    yard_file: Path, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[object] = []

    def sync(file: int) -> None:
        synced.append(os.pread(file, 100, 0).decode())
        with key_file.open() as another:
            assert not lock(another.fileno()), "others wait"

    with monkeypatch.context() as patch:
        patch.setattr(host_key, "sync", sync)
        patch.setattr(host_key, "sync_folder", synced.append)
        with open_platform(yard_file) as platform:
            platform.webhooks.add("https://example.org/hook")
            assert synced == [key_file.read_text(), str(yard_file.parent)]
    key_file.unlink()

    def fail(file: int) -> None:
        raise OSError(5, "Input/output error")

    with open_platform(yard_file) as platform:
        before = [*platform.webhooks.list()]
        with monkeypatch.context() as patch:
            patch.setattr(host_key, "sync", fail)
            with pytest.raises(StoreError, match=r"key of webhooks .* Input/output error"):
                platform.webhooks.add("https://example.org/hook")
        assert [*platform.webhooks.list()] == before


@pytest.mark.parametrize("left", [b"", b"0123abc"])
def test_what_a_killed_writer_left_is_no_key(yard_file: Path, key_file: Path, left: bytes) -> None:
    key_file.write_bytes(left)
    with open_platform(yard_file) as platform, pytest.raises(Conflict, match="is gone"):
        host_key.host_key(platform._runtime)
    made = add(yard_file)
    assert len(key_file.read_bytes()) == 64
    assert fingerprint(yard_file) == made.endpoint.key


def test_a_copy_without_the_key_says_so(yard_file: Path, key_file: Path, tmp_path: Path, receiver: Receiver) -> None:
    with open_platform(yard_file) as platform:
        hook = platform.webhooks.add(receiver.url, trusted=True)
        platform.webhooks.test(hook.endpoint.id)
        platform.backup(tmp_path / "backup.db")
    restored = tmp_path / "restored.db"
    assert CliRunner().invoke(main, ["restore", str(tmp_path / "backup.db"), str(restored)]).exit_code == 0
    with open_platform(restored) as platform:
        assert platform.webhooks.deliver() == Deliveries(failed=1)
        (message,) = platform.webhooks.waiting()
        assert "is gone: put back the file" in message.problem
        assert str(tmp_path) not in message.problem, "a tenant reads it"
        assert receiver.received == []
        restored.with_name(f"{restored.name}{SUFFIX}").write_bytes(key_file.read_bytes())
        platform.webhooks.redeliver(message.id)
        assert platform.webhooks.deliver() == Deliveries(delivered=1)
    assert is_signed(receiver.received[0], hook.secret)


def test_in_memory_a_platform_has_a_key_of_its_own() -> None:
    keys = set()
    for _ in range(2):
        with open_platform() as platform:
            made = [platform.webhooks.add("https://example.org/hook") for _ in range(2)]
            keys |= {one.endpoint.key for one in made}
    assert len(keys) == 2
