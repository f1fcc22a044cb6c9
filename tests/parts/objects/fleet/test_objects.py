"""Two servers and two workers over one PostgreSQL and one bucket of an S3-compatible server, moto's."""

import hashlib
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from disturbed_server import Server, uploads
from fleet_node import LARGE
from fleet_site import Fleet
from modelyard import open_platform
from modelyard.domain.job import JobProgress, JobStatus
from modelyard.platform.operations.orphans import OrphanReport
from modelyard.process_identity import ProcessName
from modelyard.testing import ManualClock
from polling import until

pytestmark = [pytest.mark.servers, pytest.mark.timeout(600)]

SIZE = 2
LENGTH = 20 * 2**20
"""Bytes of a file that is uploaded in two parts."""

ROW = {"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "green"}]}


@pytest.fixture
def fleet(yard_address: str, address: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    monkeypatch.setenv("FLEET_LARGE", str(LENGTH))
    with Fleet(yard_address, address, size=SIZE) as running:
        yield running


def test_a_checkpoint_of_one_worker_is_served_and_downloaded_by_each_server_though_another_was_killed_in_its_upload(
    fleet: Fleet, server: Server, bucket: str, yard_address: str, address: str
) -> None:
    second_part, killed = threading.Event(), threading.Event()

    def held(environ: dict[str, Any]) -> str | None:
        if "partNumber=2" not in environ["QUERY_STRING"] or second_part.is_set():
            return None
        second_part.set()
        killed.wait(120)
        return "cut"

    server.fault = held
    model = fleet.platform.models.create("pupil", project="desk", base_model="tabular-mini")
    job = fleet.platform.training.sft(model, [ROW] * 40)
    until(second_part.is_set)
    progress = fleet.platform._runtime.store.read(lambda snapshot: snapshot.get(JobProgress, job.id))
    name = ProcessName.parse(progress.process.rpartition("/")[2])
    assert name is not None
    fleet.replace_worker([worker.pid for worker in fleet.workers].index(name.pid))
    killed.set()

    done = job.wait(timeout=120).refresh()
    assert (done.status, done.attempts) == (JobStatus.SUCCEEDED, 2)
    (left,) = uploads(server, bucket)
    with open_platform(yard_address, artifacts=address, clock=ManualClock()) as janitor:  # which waits for nothing
        assert janitor.remove_orphans(grace=0).unfinished == 0
        server.age = timedelta(days=2)
        assert janitor.remove_orphans(grace=0) == OrphanReport(0, unfinished=1)
    assert uploads(server, bucket) == []

    checkpoint = list(fleet.platform.models.checkpoints(model))[-1]
    fleet.platform.models.promote(model, checkpoint.step)
    secret = fleet.platform.keys.create().secret
    answers = [fleet.complete(number, secret, "local/desk/pupil:prod").json for number in range(SIZE)]
    assert {answer["choices"][0]["message"]["content"] for answer in answers} == {"green"}
    path = f"/v1/preview/models/{model.id}/checkpoints/{checkpoint.step}/files/{LARGE}"
    files = [fleet.send(number, "GET", path, Authorization=f"Bearer {secret}").raw for number in range(SIZE)]
    assert {hashlib.sha256(raw).hexdigest() for raw in files} == {hashlib.sha256(bytes(LENGTH)).hexdigest()}
    assert left.rpartition("/")[2] != checkpoint.files[LARGE]["artifact"]
