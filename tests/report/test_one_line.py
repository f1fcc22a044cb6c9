"""A fault of our own is one line of the operator's log; its traceback is there at level DEBUG."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from modelyard import open_platform
from modelyard.errors import ArtifactsUnavailable, ModelyardError, OutcomeUnknown, StorageFull, StoreBusy
from modelyard.executors.inline import InlineExecutor
from modelyard.http.error_responses import report
from modelyard.lazy import log
from modelyard.platform.jobs.runner import Runner
from modelyard.report.terminal import PlainFormatter

FAULTS = [StoreBusy, StorageFull, OutcomeUnknown, ArtifactsUnavailable]


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """The lines that a terminal shows of the log, of level INFO and above."""
    shown: list[str] = []

    class Keeps(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            shown.extend(PlainFormatter().format(record).splitlines())

    logger, handler = logging.getLogger("modelyard"), Keeps()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield shown
    logger.removeHandler(handler)
    logger.setLevel(before)


def caused(fault: type[ModelyardError]) -> ModelyardError:
    try:
        raise fault("the disk is full: 100 %") from OSError(28, "No space left on device")
    except ModelyardError as raised:
        return raised


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("level", [logging.INFO, logging.DEBUG])
def test_a_fault_that_is_logged_as_an_exception_is_one_line(
    lines: list[str], fault: type[ModelyardError], level: int
) -> None:
    log.setLevel(level)
    try:
        raise caused(fault)
    except ModelyardError:
        log.exception("job %s failed", "j")
    assert (len(lines) == 1) is (level == logging.INFO)
    assert lines[0].endswith("job j failed: the disk is full: 100 %" if level == logging.INFO else "job j failed")
    assert any("No space left" in line for line in lines) is (level == logging.DEBUG)


def test_what_nobody_has_foreseen_keeps_its_traceback(lines: list[str]) -> None:
    def run(_: Any) -> None:
        raise ZeroDivisionError("odd")

    InlineExecutor().submit(type("Claim", (), {"job_id": "j"})(), run, None)  # type: ignore[arg-type]
    assert any("ZeroDivisionError: odd" in line for line in lines[1:])


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("level", [logging.INFO, logging.DEBUG])
def test_a_request_that_it_refuses_is_one_line(lines: list[str], fault: type[ModelyardError], level: int) -> None:
    log.setLevel(level)
    report(caused(fault), "r1")
    assert (len(lines) == 1) is (level == logging.INFO), lines
    assert "the disk is full" in lines[0]


def test_the_end_of_a_job_that_cannot_be_written_is_one_line(lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with open_platform() as platform:
        platform.training.sft(
            platform.models.create("m", base_model="tabular-mini"),
            [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}],
        )
        runner = Runner(platform._runtime)
        claimed = runner.claim()
        assert claimed is not None

        def busy(*_: object, **__: object) -> None:
            raise caused(StoreBusy)

        monkeypatch.setattr(platform._runtime.store, "transact", busy)
        runner.give_back(claimed)
    assert [line for line in lines if "could not be written" in line or "Traceback" in line] == lines[-1:]
    assert lines[-1].endswith("it is tried again: the disk is full: 100 %")
