"""The shares of entities, set in Python, over HTTP and from the command line; and each of them in PostgreSQL."""

import json
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from each import each_case
from http_client import client_of
from modelyard import Example, Message, Platform, Role, open_platform
from modelyard.cli import main
from modelyard.domain.job import TENANT, Demand, Job, JobProgress, QueueState, Tenant
from modelyard.domain.schema import RECORDS
from modelyard.errors import Forbidden, InvalidInput
from modelyard.parts.postgres.round_trips_fast import PipelinedConnection
from modelyard.parts.postgres.store import PostgresStore
from modelyard.parts.shares.service import EntityShare
from modelyard.platform.jobs.claims import Claimant, claim
from modelyard.platform.jobs.shares import STRIDE, anything, asks_of_turn, choose, take_turn
from modelyard.protocols import DomainStep
from modelyard.stores.pending_steps import PendingStep
from share_simulation import Queue, check_shares
from yard_fixtures import Yard

ROWS = [Example((Message(Role.USER, "q"), Message(Role.ASSISTANT, "a")))] * 2


def submitted(platform: Platform, entity: str, name: str, **options: Any) -> str:
    model = platform.models.create(name, project="p", base_model="tabular-mini", entity=entity)
    return platform.training.sft(model.id, ROWS, **options).id


def test_a_share_is_what_was_set_and_is_replaced_as_a_whole() -> None:
    with open_platform() as platform:
        assert platform.shares.get("acme") == EntityShare("acme")
        share = platform.shares.set("acme", weight=3, running=8, running_of={"sft": 2})
        assert share == platform.shares.get("acme") == EntityShare("acme", 3, 8, {"sft": 2})
        platform.shares.set("beta")
        assert [one.entity for one in platform.shares.list()] == ["acme", "beta"]
        assert platform.shares.set("acme", weight=2) == EntityShare("acme", 2)


@each_case(
    ("options", "place"),
    [
        ({"weight": 0}, ("weight",)),
        ({"weight": 1001}, ("weight",)),
        ({"weight": True}, ("weight",)),
        ({"running": 0}, ("running",)),
        ({"running_of": {"sft": -1}}, ("running_of", "sft")),
        ({"running_of": {"sfx": 1}}, ("running_of", "sfx")),
        ({"running": 5, "running_of": {"": 3}}, ("running_of",)),
    ],
)
def test_what_cannot_be_a_share_is_refused_at_its_place(options: dict[str, Any], place: tuple[str, ...]) -> None:
    with open_platform() as platform, pytest.raises(InvalidInput) as refused:
        platform.shares.set("acme", **options)
    assert [problem.loc for problem in refused.value.problems] == [place]


@each_case("entity", ["", " ", "a\0b", "\ud800", "a" * 129, 5])
def test_what_cannot_be_an_entity_has_no_share(entity: Any) -> None:
    with open_platform() as platform, pytest.raises(InvalidInput, match=r"entity: must be 1 to 128"):
        platform.shares.set(entity)


def test_it_is_set_and_shown_over_http_by_the_host_alone() -> None:
    with open_platform() as platform:
        path, host = "/v1/admin/shares/acme", platform.keys.create("acme", host=True).secret
        client = client_of(platform)
        body = {"weight": 3, "running": None, "running_of": {"rl": 1}}
        assert client.send("PUT", path, body, key=host).json == {"entity": "acme", **body}
        assert client.send("GET", path, key=host).json == {"entity": "acme", **body}
        assert client.send("PUT", path, {"wieght": 3}, key=host).status == 422
        assert client.send("PUT", path, {"weight": "3"}, key=host).status == 422
        assert (client.send("GET", path).status, client.send("PUT", path, body).status) == (403, 403)
        principal = platform.keys.create("acme").key.principal()
        with pytest.raises(Forbidden):
            platform.acting_as(principal).shares.get("acme")


def test_it_is_set_and_listed_from_the_command_line(tmp_path: Path) -> None:
    store = ["--store", str(tmp_path / "yard.db")]
    open_platform(str(tmp_path / "yard.db")).close()
    run = CliRunner().invoke
    done = run(main, ["shares", "set", "acme", "--weight", "3", "--running-of", "sft=2", *store])
    assert done.exit_code == 0, done.output
    listed = json.loads(run(main, ["shares", "list", "--json", *store]).output)
    assert listed == [{"entity": "acme", "weight": 3, "running": None, "running_of": {"sft": 2}}]
    assert "is not like sft=2" in run(main, ["shares", "set", "acme", "--running-of", "sft", *store]).output
    twice = ["--running-of", "sft=1", "--running-of", "sft=2"]
    assert "sft has more than one value" in run(main, ["shares", "set", "acme", *twice, *store]).output


def test_a_priority_is_named_with_the_needs_and_kept_by_the_job() -> None:
    with open_platform() as platform:
        late = submitted(platform, "acme", "late", needs={"priority": -5})
        early = submitted(platform, "acme", "early", needs={"priority": 5})
        order: list[str] = []
        worker = platform.worker()
        while worker.run_next():
            order += [id for id in (late, early) if platform.jobs.get(id).ended_at and id not in order]
        assert order == [early, late]


@each_case("priority", [1001, -1001, 1.5, True, "high"])
def test_what_is_no_priority_is_refused(priority: Any) -> None:
    with open_platform() as platform, pytest.raises(InvalidInput, match="from -1000 to 1000"):
        submitted(platform, "acme", "m", needs={"priority": priority})


def test_a_priority_comes_over_http() -> None:
    with open_platform() as platform:
        client = client_of(platform)
        model = platform.models.create("m", project="p", base_model="tabular-mini", entity="acme")
        groups = [{"trajectories": [{"messages_and_choices": [{"role": "user", "content": "q"}], "reward": 1.0}]}]
        body = {"model_id": model.id, "trajectory_groups": groups, "needs": {"priority": 7, "accelerators": 1}}
        with platform.worker():
            made = client.send("POST", "/v1/preview/training-jobs", body)
        assert made.status < 300, made.raw
        job = platform._runtime.store.read(lambda snapshot: snapshot.get(Job, made.json["id"]))
        assert job.rank == -7


def test_a_job_says_that_its_entity_has_as_many_as_it_may() -> None:
    with open_platform() as platform:
        first, second = (submitted(platform, "acme", name) for name in ("a", "b"))
        platform.shares.set("acme", running_of={"sft": 1})
        worker = platform.worker()
        worker.beat()
        assert platform.jobs.get(first).waiting_for is None
        claimed = worker._runner.claim()
        assert claimed is not None
        assert claimed.job.id == first
        reason = "a running job of 'acme' to end: it has as many as its share allows"
        assert platform.jobs.get(second).waiting_for == platform.training.get(second).waiting_for == reason
        worker._runner.give_back(claimed)
        assert platform.jobs.get(second).waiting_for is None


def test_shares_hold_in_postgresql(yard_address: str) -> None:
    with closing(PostgresStore(yard_address, RECORDS)) as store:
        queue, weights = Queue(Yard.build(store)), {"a": 1, "b": 3, "c": 2}
        for entity, weight in weights.items():
            queue.weigh(entity, weight)
            queue.submit(entity, 12)
        check_shares(queue.serve(20), weights)


def test_a_newcomer_waits_for_one_job_in_postgresql(yard_address: str) -> None:
    with closing(PostgresStore(yard_address, RECORDS)) as store:
        queue = Queue(Yard.build(store))
        queue.submit("crowd", 40)
        assert queue.serve(10) == ["crowd"] * 10
        queue.submit("guest")
        assert queue.serve(2).index("guest") <= 1


@pytest.mark.parametrize(("entities", "trips"), [(1, 3), (2000, 4)])
def test_a_claim_in_postgresql_takes_few_round_trips_and_scans_no_table(
    yard_address: str, monkeypatch: pytest.MonkeyPatch, entities: int, trips: int
) -> None:
    """However many entities wait."""
    sent: list[list[tuple[str, Any]]] = []
    real = PipelinedConnection.round_trip

    def kept(connection: Any, statements: Any) -> Any:
        sent.append([*statements])
        return real(connection, statements)

    with closing(PostgresStore(yard_address, RECORDS)) as store:
        queue = Queue(Yard.build(store))
        names = [f"e{number:04}" for number in range(entities)]
        now = queue.yard.clock.now()
        store.transact(lambda tx: tx.add_all([Tenant(name) for name in names]))
        store.transact(lambda tx: tx.add_all([Demand(name, "sft", "base-model", 0, 0) for name in names]))
        jobs = [
            Job(name, "sft", name, "p", name, now, base_model="base-model", place=QueueState.READY) for name in names
        ]
        store.transact(lambda tx: tx.add_all(jobs))
        store.transact(lambda tx: tx.add_all([JobProgress(name, now) for name in names]))
        with psycopg.connect(yard_address, autocommit=True, cursor_factory=psycopg.RawCursor) as other:
            other.execute("ANALYZE")
            monkeypatch.setattr(PipelinedConnection, "round_trip", kept)
            assert queue.claim() is not None
            monkeypatch.undo()
            other.execute("SET search_path TO modelyard")
            tables = [pair for trip in sent for pair in trip if " FROM " in pair[0] and "LIMIT" in pair[0]]
            plans = "\n".join(line for sql, values in tables for (line,) in other.execute(f"EXPLAIN {sql}", values))
    assert len(sent) == trips, sent
    assert entities == 1 or ("Index" in plans and "Seq Scan" not in plans)


def test_a_worker_that_serves_one_entity_claims_in_a_round_trip(
    yard_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a claim it takes for granted that the entity is next, and the server checks whether it is."""
    trips: list[int] = []
    real = PipelinedConnection.round_trip
    monkeypatch.setattr(PipelinedConnection, "round_trip", lambda *given: (trips.append(1), real(*given))[1])
    with closing(PostgresStore(yard_address, RECORDS)) as store:
        queue = Queue(Yard.build(store))
        queue.submit("crowd", 6)
        runner = queue.yard.runner()
        assert [queue.claim(runner) is not None for _ in range(2)] == [True, True]
        for _ in range(3):
            trips.clear()
            assert queue.claim(runner) is not None
            assert len(trips) == 1
        queue.submit("guest")
        job = queue.claim(runner)
        assert job is not None
        assert job.entity == "guest"


def test_claims_that_share_a_transaction_take_a_round_trip_each(
    yard_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one more; each sees what those before it have done."""
    trips: list[int] = []
    with closing(PostgresStore(yard_address, RECORDS)) as store:
        queue = Queue(Yard.build(store))
        jobs = queue.submit("a", 3)
        chosen, _ = choose(store.read, anything)
        assert chosen is not None
        claim_it = partial(claim, claimant=Claimant("w"), now=queue.yard.clock.now())
        step = partial(take_turn, entity="a", fits=anything, claim=claim_it)
        group = [PendingStep(DomainStep(step, [(TENANT, "a")], asks_of_turn(chosen)), False) for _ in jobs]
        real = PipelinedConnection.round_trip
        monkeypatch.setattr(PipelinedConnection, "round_trip", lambda *given: (trips.append(1), real(*given))[1])
        store._writer.run(group)
        monkeypatch.undo()
        claimed = [call.outcome()[0] for call in group]
        assert [found[0].id for found in claimed if found] == [job.id for job in jobs]
        assert len(trips) == 4
        tenant = store.read(lambda snapshot: snapshot.get(Tenant, "a"))
        assert (tenant.turn, tenant.taken) == (3 * STRIDE, 2 * STRIDE)


def test_a_misspelt_need_is_told_which_was_meant() -> None:
    with open_platform() as platform, pytest.raises(InvalidInput, match=r"needs.priorty: .*did you mean 'priority'"):
        submitted(platform, "acme", "m", needs={"priorty": 1})
