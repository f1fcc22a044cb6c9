"""A platform that is opened without a part, on a store with what the part has kept: nothing is lost."""

from pathlib import Path

import pytest

from modelyard import Platform, open_platform
from modelyard.domain.job import JobStatus
from modelyard.errors import StoreError
from modelyard.parts import STANDARD


def without(path: Path, name: str) -> Platform:
    return open_platform(path, parts=[part for part in STANDARD if part.name != name])


def test_its_artifacts_are_not_swept_as_orphans(tmp_path: Path) -> None:
    with open_platform(tmp_path / "yard.db") as platform:
        file = platform.compat.files.create("rows.jsonl", b"{}\n", purpose="user_data")
    with without(tmp_path / "yard.db", "batches") as platform, pytest.raises(StoreError, match=r"\['files'\]"):
        platform.remove_orphans()
    with open_platform(tmp_path / "yard.db") as platform, platform.compat.files.open(file.id) as kept:
        assert kept.read() == b"{}\n"


@pytest.mark.slow
def test_an_entity_is_not_erased_in_part(tmp_path: Path) -> None:
    with open_platform(tmp_path / "yard.db") as platform:
        platform.compat.files.create("rows.jsonl", b"{}\n", purpose="user_data")
    with without(tmp_path / "yard.db", "batches") as platform:
        key = platform.keys.create("local")
        with pytest.raises(StoreError, match="open it with the parts"):
            platform.delete_entity("local")
        assert platform.keys.authenticate(key.secret).entity == "local", "nothing was deleted"
    with open_platform(tmp_path / "yard.db") as platform:
        assert platform.delete_entity("local") == 2


def test_its_jobs_wait_for_it(tmp_path: Path) -> None:
    with open_platform(tmp_path / "yard.db") as platform:
        job_id = platform.traffic.submit("answers").id
    with without(tmp_path / "yard.db", "traffic") as platform:
        assert [job.id for job in platform.jobs.list()] == [job_id]
        platform.worker().run_until_idle()
        assert platform.jobs.get(job_id).status is JobStatus.QUEUED
        assert "collect" not in platform.job_types
    with open_platform(tmp_path / "yard.db") as platform:
        platform.worker().run_until_idle()
        assert platform.jobs.get(job_id).status is not JobStatus.QUEUED


def test_its_jobs_can_be_cancelled(tmp_path: Path) -> None:
    with open_platform(tmp_path / "yard.db") as platform:
        job_id = platform.traffic.submit("answers").id
    with without(tmp_path / "yard.db", "traffic") as platform:
        platform.jobs.cancel(job_id)
        assert platform.jobs.get(job_id).status is JobStatus.CANCELLED
        platform.remove_orphans()
