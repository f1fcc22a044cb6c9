"""Four servers and four workers over one PostgreSQL: one platform, whichever of them is asked."""

import base64
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from html import unescape
from urllib.parse import quote, urlencode

import attrs
import pytest

from fleet_site import SIZE, Fleet
from modelyard import Pricing
from modelyard.domain.job import JobStatus
from polling import until
from postgres_server import PostgresServer

pytestmark = [pytest.mark.servers, pytest.mark.timeout(600)]

PRICE = Decimal("0.01")
ROWS = [{"prompt": f"row {n}", "expected": f"row {n}"} for n in range(40)]


@pytest.fixture(scope="module")
def fleet(postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with Fleet(postgres.create_database(), tmp_path_factory.mktemp("artifacts")) as running:
        echo = running.platform.catalogue.get("echo")
        running.platform.catalogue.register(
            attrs.evolve(echo, id="priced", pricing=Pricing(request=PRICE)), answers_as="echo"
        )
        yield running


def test_a_budget_is_spent_to_the_last_request_and_not_overrun(fleet: Fleet) -> None:
    secret = fleet.platform.keys.create("spender").secret
    fleet.platform.usage.set_budget(20 * PRICE, entity="spender")
    with ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(lambda number: fleet.complete(number, secret, "priced").status, range(60)))
    for _ in range(30):  # what was reserved while others were refused can be spent now
        statuses += [fleet.complete(number, secret, "priced").status for number in range(SIZE)]
        if statuses[-SIZE:] == [402] * SIZE:
            break
    assert (statuses.count(200), set(statuses)) == (20, {200, 402})
    budget = fleet.platform.usage.get_budget(entity="spender")
    assert budget is not None
    assert budget.spent == 20 * PRICE
    (total,) = fleet.platform.usage.total(entity="spender")
    assert (total.requests, total.cost) == (20, 20 * PRICE)


def test_a_rate_limit_holds_over_all_servers_also_where_a_clock_is_an_hour_off(fleet: Fleet) -> None:
    secret = fleet.platform.keys.create("eager", requests_per_minute=30).secret
    begun = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(lambda number: fleet.complete(number, secret).status, range(60)))
    refilled = 1 + int((time.monotonic() - begun) * 30 / 60)
    assert set(statuses) <= {200, 429}
    assert 30 <= statuses.count(200) <= 30 + refilled


def test_a_revoked_key_is_refused_by_every_server_within_a_second(fleet: Fleet) -> None:
    key = fleet.platform.keys.create("leaver")
    assert [fleet.complete(number, key.secret).status for number in range(SIZE)] == [200] * SIZE
    fleet.platform.keys.revoke(key.key.id)
    revoked, accepted = time.monotonic(), [0.0]

    def refused(number: int) -> bool:
        begun = time.monotonic()
        if fleet.complete(number, key.secret).status == 401:
            return True
        accepted.append(begun - revoked)
        return False

    for number in range(SIZE):
        until(lambda number=number: refused(number))
    assert max(accepted) <= 1.0


def test_a_change_of_the_catalogue_is_in_the_next_answer_of_each_server(fleet: Fleet) -> None:
    key = {"Authorization": f"Bearer {fleet.platform.keys.create('reader').secret}"}
    echo = fleet.platform.catalogue.get("echo")
    fleet.platform.catalogue.register(attrs.evolve(echo, id="fresh"), answers_as="echo")
    answers = [fleet.send(number, "GET", "/v1/models", **key) for number in range(SIZE)]
    assert all("fresh" in {one["id"] for one in answer.json["data"]} for answer in answers)
    assert len({answer.headers.get("etag") for answer in answers}) == 1
    fleet.platform.catalogue.unregister("fresh")
    assert {
        fleet.complete(number, fleet.platform.keys.create("reader").secret, "fresh").status for number in range(SIZE)
    } == {404}


def test_an_alias_that_moves_is_answered_from_its_new_checkpoint_by_each_server_within_a_second(fleet: Fleet) -> None:
    key = fleet.platform.keys.create().secret
    model = fleet.platform.models.create("pupil", project="desk", base_model="tabular-mini")
    for word in ("red", "green"):
        row = {"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": word}]}
        job = fleet.platform.training.sft(model, [row] * 40)
        assert job.wait(timeout=120).status is JobStatus.SUCCEEDED
    name = "local/desk/pupil:prod"

    assert {fleet.complete(number, key, name).status for number in range(SIZE)} == {404}
    first, last = (checkpoint.step for checkpoint in list(fleet.platform.models.checkpoints(model))[-2:])
    fleet.platform.models.promote(model, last)
    late = [0.0]

    def answers(number: int, word: str, moved: float) -> bool:
        begun, reply = time.monotonic(), fleet.complete(number, key, name)
        if reply.status == 200 and reply.json["choices"][0]["message"]["content"] == word:
            return True
        late.append(begun - moved)
        return False

    for number, (step, word) in enumerate([(first, "red"), (last, "green")] * (SIZE // 2)):
        fleet.complete(number, key, name)  # so that it knows what the alias was just now
        fleet.platform.models.promote(model, step)
        moved = time.monotonic()
        until(lambda number=number, word=word, moved=moved: answers(number, word, moved))
    fleet.platform.models.rollback(model)
    moved = time.monotonic()
    for number in range(SIZE):
        until(lambda number=number: answers(number, "red", moved))
    assert max(late) <= 1.0


def test_a_run_in_shards_is_worked_on_by_the_fleet_and_followed_on_any_server(fleet: Fleet) -> None:
    evaluations = fleet.platform.evaluations
    alone = evaluations.run("quiz", "echo", ROWS, seed=5)
    run = evaluations.submit("quiz", "echo", ROWS, seed=5, shards=SIZE)
    assert evaluations.wait(run.id, timeout=120).run.summary == alone.run.summary
    secret = fleet.platform.keys.create().secret
    key = {"Authorization": "Basic " + base64.b64encode(f"api:{secret}".encode()).decode()}
    path = f"/v2/{run.entity}/{run.project}/evaluation_runs/{run.id}/events"
    streams = [fleet.send(number, "GET", path, **key).raw for number in range(SIZE)]
    assert len(set(streams)) == 1
    lines = streams[0].splitlines()
    first = evaluations.events(run.id, follow=False)
    half = [event.id for event in first][len(lines) // 2]
    rest = [fleet.send(number, "GET", f"{path}?after={quote(half)}", **key).raw for number in range(SIZE)]
    assert {tuple(answer.splitlines()) for answer in rest} == {tuple(lines[len(lines) // 2 + 1 :])}


def text_of(page: bytes) -> str:
    """The words of a page, but for the token of its forms."""
    without = re.sub(rb'name="token" value="[0-9a-f]+"', b"", page).decode()
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", without)).split())


def test_the_dashboard_and_the_metrics_of_every_server_show_the_whole_fleet(fleet: Fleet) -> None:
    host = fleet.platform.keys.create("ops", host=True).secret
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    login = fleet.send(0, "POST", "/dashboard/login", urlencode({"key": host}).encode(), **form)
    session = {"Cookie": login.headers["set-cookie"].partition(";")[0]}  # one log-in is for all servers

    def pages(path: str) -> set[str]:
        answers = [fleet.send(number, "GET", f"/dashboard/{path}", **session) for number in range(SIZE)]
        assert [answer.status for answer in answers] == [200] * SIZE
        return {text_of(answer.raw) for answer in answers}

    visitor = fleet.platform.keys.create("visitor").secret
    assert [fleet.complete(number, visitor, "priced").status for number in range(SIZE)] == [200] * SIZE
    model = fleet.platform.models.create("shown", project="desk", base_model="tabular-mini")
    row = {"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]}
    job = fleet.platform.training.sft(model, [row] * 8).wait(timeout=120)
    held, release = threading.Event(), threading.Event()

    def held_up(row: dict[str, str]) -> str:
        held.set()
        assert release.wait(60)
        return row["prompt"]

    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(fleet.platform.evaluations.run, "held up", held_up, ROWS[:1], progress=False)
        try:
            assert held.wait(60)
            (running,) = fleet.platform.jobs.list(status=JobStatus.RUNNING)
            seen = {path: pages(path) for path in ("", f"jobs/{running.id}", f"jobs/{job.id}", "usage?by=entity")}
            metrics = [fleet.send(n, "GET", "/metrics", Authorization=f"Bearer {host}").raw for n in range(SIZE)]
        finally:
            release.set()
        assert run.result(60).score is not None
    assert all(f"evaluate …{running.id[-8:]}" in page and f"workers alive {SIZE}" in page for page in seen[""])
    assert [page.partition("status running")[2] != "" for page in seen[f"jobs/{running.id}"]] == [True]
    steps = sum(event.type == "gradient_step" for event in fleet.platform.training.events(job.id))
    assert [page.count("gradient_step ") for page in seen[f"jobs/{job.id}"]] == [steps]
    assert all(f"visitor ${SIZE * PRICE} {SIZE} " in page for page in seen["usage?by=entity"])
    assert all(f"modelyard_workers {SIZE}.0\n".encode() in answer for answer in metrics)
    assert all(b'modelyard_jobs{status="running"} 1.0\n' in answer for answer in metrics)


def test_a_rolling_restart_under_load_loses_nothing(fleet: Fleet) -> None:
    secret = fleet.platform.keys.create("steady").secret
    rows = [{"prompt": f"row {n}", "expected": f"row {n}"} for n in range(2000)]
    runs = [fleet.platform.evaluations.submit("quiz", "echo", rows, shards=2) for _ in range(4)]
    ended, statuses = threading.Event(), list[int]()

    def load(first: int) -> None:
        number = first
        while not ended.is_set():
            try:
                statuses.append(fleet.complete(number, secret, "priced").status)
            except ConnectionError:  # closed before its request was read: a load balancer sends it to another server
                number += 1
            number += 1

    with ThreadPoolExecutor(4) as pool:
        callers = [pool.submit(load, number) for number in range(4)]
        try:
            for number in range(SIZE):
                fleet.restart(number)
        finally:
            ended.set()
        for caller in callers:
            caller.result()
    assert set(statuses) == {200}
    (total,) = fleet.platform.usage.total(entity="steady")
    assert (total.requests, total.cost) == (len(statuses), len(statuses) * PRICE)
    for run in runs:
        result = fleet.platform.evaluations.wait(run.id, timeout=120)
        assert (result.score, len(result.rows)) == (1.0, len(rows))
        assert result.run.summary is not None
        assert result.run.summary["possibly_repeated"] == 0
    assert {job.status for job in fleet.platform.jobs.list()} == {JobStatus.SUCCEEDED}
