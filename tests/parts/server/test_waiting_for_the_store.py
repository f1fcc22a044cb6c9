"""What serves and what works waits for a store that is away when it starts, and says so."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner

from modelyard import Platform, open_platform
from modelyard.cli import main
from modelyard.errors import StoreBusy, StoreError
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
