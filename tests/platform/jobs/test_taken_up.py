"""Who takes up a job that another worker had says so, whoever gave it back: that one's log may have ended."""

import logging
from pathlib import Path

import pytest

from modelyard import open_platform
from modelyard.platform.jobs.runner import Runner

ROWS = [{"messages": [{"role": "user", "content": "ask"}, {"role": "assistant", "content": "answer"}]}] * 4


def test_the_next_worker_says_that_it_goes_on(yard_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    with open_platform(yard_file) as platform, caplog.at_level(logging.INFO):
        model = platform.models.create("m", base_model="tabular-mini")
        job = platform.training.sft(model, ROWS, batch_size=1)
        first, second = Runner(platform._runtime), Runner(platform._runtime)
        claimed = first.claim()
        assert claimed is not None
        stops = iter((False, False, True))
        first.run(claimed, lambda: next(stops))
        reached = platform.jobs.get(job.id).progress
        caplog.clear()
        again = second.claim()
        assert again is not None
        second.run(again)
        assert job.refresh().status == "succeeded"
    said = [record.getMessage() for record in caplog.records if job.id in record.getMessage()]
    assert "(sft of local/default/m, attempt 2) begins" in said[0]
    assert said[1] == f"job {job.id} was taken up after step {reached}: its last worker gave it back, or died"
