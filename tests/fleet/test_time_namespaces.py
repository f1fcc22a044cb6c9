"""A fleet one of whose machines booted a day before: no decision compares monotonic clocks of two machines."""

import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from fleet_site import Fleet
from modelyard.domain.job import JobStatus
from modelyard.platform.jobs.announced import live_workers
from polling import until
from postgres_server import PostgresServer

pytestmark = [pytest.mark.servers, pytest.mark.timeout(600)]

AHEAD = 100_000
SIZE = 2
IN_TIME_NAMESPACE = ["unshare", "--time", "--monotonic", str(AHEAD), "--boottime", str(AHEAD)]


def uptime(*before: str) -> float:
    """Return for how long the machine has run, as a command with these words before it sees it."""
    found = subprocess.run([*before, "cat", "/proc/uptime"], capture_output=True, text=True, check=True)
    return float(found.stdout.split()[0])


@pytest.fixture(scope="module")
def fleet(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    try:
        ahead = uptime(*IN_TIME_NAMESPACE) - uptime()
    except (OSError, subprocess.CalledProcessError) as refused:
        pytest.skip(f"no time namespace can be made here (it takes root and Linux 6.1): {refused}")
    if ahead < AHEAD - 60:
        pytest.skip("a command does not enter the time namespace that was made for it: Linux before 6.1")
    with Fleet(postgres.create_database(), tmp_path_factory.mktemp("artifacts"), IN_TIME_NAMESPACE, SIZE) as running:
        yield running


def test_a_rate_limit_holds_over_machines_that_booted_at_different_times(fleet: Fleet) -> None:
    secret = fleet.platform.keys.create("eager", requests_per_minute=20).secret
    begun = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(lambda number: fleet.complete(number, secret).status, range(80)))
    refilled = 1 + int((time.monotonic() - begun) * 20 / 60)
    assert set(statuses) <= {200, 429}
    assert 20 <= statuses.count(200) <= 20 + refilled


def test_jobs_run_once_whichever_machine_takes_them(fleet: Fleet) -> None:
    model = fleet.platform.models.create("namesake", base_model="tabular-mini")
    row = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
    models = [model, *(fleet.platform.models.create(f"m{n}", base_model="tabular-mini") for n in range(2 * SIZE))]
    jobs = [fleet.platform.training.sft(one, [row] * 200) for one in models]
    assert [job.wait(timeout=200).status for job in jobs] == [JobStatus.SUCCEEDED] * len(jobs)
    assert {job.refresh().attempts for job in jobs} == {1}


def test_workers_of_all_machines_count_as_alive(fleet: Fleet) -> None:
    until(lambda: fleet.platform.health.system_check().worker.success)
    assert len(alive(fleet)) == SIZE


def alive(fleet: Fleet) -> list[object]:
    runtime = fleet.platform._runtime
    return [*runtime.store.read(lambda snapshot: live_workers(runtime, snapshot))]
