"""What serves and what works waits for a store that is away when it starts, and begins without artifacts that are."""

import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from modelyard import Platform, open_platform
from modelyard.cli import main
from modelyard.errors import ArtifactsUnavailable, StoreBusy, StoreError
from modelyard.platform.jobs.worker import Worker

AWAY = 3


class Came(Exception):
    """The command has got as far as to serve or to work."""


def after_an_outage(do: Callable[..., Any], fault: StoreError) -> Callable[..., Any]:
    calls = itertools.count()

    def first_away(*given: Any) -> Any:
        if next(calls) < AWAY:
            raise fault
        return do(*given)

    return first_away


def come(*_: Any) -> None:
    raise Came


FACTORIES: dict[str, Callable[[], Platform]] = {}


def factory() -> Platform:
    return FACTORIES["made"]()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modelyard.cli.terminal.time.sleep", lambda seconds: None)
    monkeypatch.setattr("modelyard.parts.server.uvicorn_server.run", come)
    monkeypatch.setattr(Worker, "start", come)


def ran(command: str) -> Any:
    return CliRunner().invoke(main, [command, "--factory", f"{__name__}:factory"])


@pytest.mark.parametrize("command", ["serve", "work"])
def test_a_store_that_is_away_at_the_start_is_waited_for(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FACTORIES, "made", after_an_outage(open_platform, StoreBusy("PostgreSQL cannot be reached")))
    result = ran(command)
    assert isinstance(result.exception, Came), result.output
    assert result.output.count("waiting for the store, until Ctrl-C: PostgreSQL cannot be reached") == AWAY


@pytest.mark.parametrize("command", ["serve", "work"])
def test_another_fault_of_the_store_ends_it(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FACTORIES, "made", after_an_outage(open_platform, StoreError("the address is malformed")))
    result = ran(command)
    assert (result.exit_code, "the address is malformed" in result.output) == (1, True)


def test_a_worker_whose_store_goes_away_before_it_is_announced_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FACTORIES, "made", open_platform)
    monkeypatch.setattr(Worker, "start", after_an_outage(come, StoreBusy("PostgreSQL cannot be reached")))
    result = ran("work")
    assert isinstance(result.exception, Came), result.output
    assert result.output.count("waiting for the store") == AWAY


@pytest.fixture
def with_a_bucket(tmp_path: Path) -> list[str]:
    pytest.importorskip("obstore")
    open_platform(tmp_path / "yard.db").close()
    return ["--store", str(tmp_path / "yard.db"), "--artifacts", "s3://modles"]


def checking(monkeypatch: pytest.MonkeyPatch, check: Callable[[], None]) -> None:
    monkeypatch.setattr("modelyard.parts.objects.store.ObjectArtifacts.check", lambda self: check())


@pytest.mark.parametrize("command", ["serve", "work"])
def test_an_object_store_that_is_away_at_the_start_is_said_and_stops_nothing(
    command: str, with_a_bucket: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def away() -> None:
        raise ArtifactsUnavailable("the object store of bucket 'modles' is too busy")

    checking(monkeypatch, away)
    result = CliRunner().invoke(main, [command, *with_a_bucket])
    assert isinstance(result.exception, Came), result.output
    assert result.output.count("begins without the artifacts: the object store of bucket 'modles' is too busy") == 1


@pytest.mark.parametrize("command", ["serve", "work", "doctor"])
def test_an_object_store_that_does_not_answer_holds_up_nothing(
    command: str, with_a_bucket: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    answered = threading.Event()
    checking(monkeypatch, lambda: answered.wait(60) and None)
    monkeypatch.setattr("modelyard.platform.operations.readiness.ANSWER", 0.01)
    try:
        result = CliRunner().invoke(main, [command, *with_a_bucket])
    finally:
        answered.set()
    assert "have not answered in 0.01 seconds" in result.output
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit if command == "doctor" else Came)


@pytest.mark.parametrize("command", ["serve", "work"])
@pytest.mark.parametrize(
    ("fault", "says"),
    [("NoSuchBucket", "there is no bucket"), ("AccessDenied", "refuses the credentials"), ("InvalidToken", "refuses")],
)
def test_an_address_or_credentials_that_are_wrong_end_it(
    command: str, fault: str, says: str, with_a_bucket: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> None:
        from modelyard.parts.objects.faults import to_store_error

        raise to_store_error(RuntimeError(f"<Code>{fault}</Code>"), "bucket 'modles'")

    checking(monkeypatch, refused)
    result = CliRunner().invoke(main, [command, *with_a_bucket])
    assert (result.exit_code, says in result.output, len(result.output.splitlines())) == (1, True, 1)
    assert isinstance(result.exception, SystemExit)
