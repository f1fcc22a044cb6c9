"""Many statements in one round trip: prepared once, answered in order, whatever their size and whatever fails."""

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime

import psycopg
import pytest
from psycopg import errors as pg

from modelyard.domain.job import Job, JobKind, JobProgress, QueueState
from modelyard.domain.schema import RECORDS
from modelyard.parts.postgres import round_trips_fast as round_trips
from modelyard.parts.postgres.connections import Connector
from modelyard.parts.postgres.round_trips_fast import PipelinedConnection
from modelyard.parts.postgres.store import PostgresStore
from modelyard.parts.postgres.wire import Wire
from modelyard.platform.jobs.claims import Claimant, claim
from modelyard.platform.jobs.shares import take_ready
from modelyard.protocols import DomainStep, Tx

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def connection(yard_address: str) -> Iterator[PipelinedConnection]:
    with Connector(yard_address, patience=10.0).connect() as connection:
        yield connection


def answers(connection: PipelinedConnection, *statements: tuple[str, tuple[object, ...]]) -> list[object]:
    return [connection.rows_of(result) for result in connection.round_trip(statements)]


def prepared(connection: PipelinedConnection) -> int:
    return int(
        connection.execute("SELECT count(*) FROM pg_prepared_statements WHERE name ~ '^modelyard'").fetchone()[0]
    )


def test_answers_come_in_the_order_of_the_statements_and_each_is_prepared_once(connection: PipelinedConnection) -> None:
    one, two = ("SELECT $1 || 'a'", ("x",)), ("SELECT $1 + 1, now() IS NULL", (1,))
    for _ in range(3):
        assert answers(connection, one, two, one) == [[("xa",)], [(2, False)], [("xa",)]]
    assert prepared(connection) == 2


def test_a_statement_that_fails_is_named_and_those_after_it_are_not_done_nor_taken_for_prepared(
    connection: PipelinedConnection,
) -> None:
    connection.execute("CREATE TEMPORARY TABLE t (a bigint PRIMARY KEY)")
    add = "INSERT INTO t VALUES ($1)"
    with pytest.raises(pg.DivisionByZero):
        connection.round_trip([(add, (1,)), ("SELECT 1 / $1", (0,)), ("DELETE FROM t", ())])
    assert answers(connection, ("DELETE FROM t", ()), (add, (2,)), ("SELECT a FROM t", ())) == [[], [], [(2,)]]


def test_what_was_prepared_may_be_discarded_under_the_connection(connection: PipelinedConnection) -> None:
    statement = ("SELECT $1 + 1", (1,))
    answers(connection, statement)
    connection.execute("DEALLOCATE ALL")
    with pytest.raises(pg.InvalidSqlStatementName):
        answers(connection, statement)
    assert answers(connection, statement) == [[(2,)]]


def test_no_more_is_prepared_than_a_connection_keeps(
    connection: PipelinedConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(round_trips, "_ENOUGH", 2)
    for number in range(4):
        assert answers(connection, (f"SELECT {number}", ())) == [[(number,)]]
    assert prepared(connection) == 2


def test_more_than_the_buffers_hold_travels_both_ways_at_once(connection: PipelinedConnection) -> None:
    text = "x" * 3_000_000
    assert answers(connection, *[("SELECT $1", (text,))] * 8) == [[(text,)]] * 8


def test_a_connection_that_is_lost_or_interrupted_is_closed(
    connection: PipelinedConnection, yard_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psycopg.connect(yard_address, autocommit=True) as other:
        other.execute("SELECT pg_terminate_backend(%s, 5000)", [connection.info.backend_pid])
    with pytest.raises(psycopg.OperationalError):
        answers(connection, ("SELECT 1", ()))
    assert connection.closed
    with Connector(yard_address, patience=10.0).connect() as second:
        monkeypatch.setattr(PipelinedConnection, "_results", interrupted)
        with pytest.raises(KeyboardInterrupt):
            second.round_trip([("SELECT 1", ())])
        assert second.closed


def interrupted(connection: PipelinedConnection) -> list[object]:
    raise KeyboardInterrupt


def test_a_claim_takes_two_round_trips_and_reads_what_goes_with_the_job(
    yard_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trips: list[int] = []
    many = Wire.many
    with closing(PostgresStore(yard_address, RECORDS)) as store:
        for number in (1, 2):
            job = Job(f"job-{number}", JobKind.RL, "t", "p", f"lane-{number}", NOW, place=QueueState.READY)
            store.transact(lambda tx, job=job: (tx.add(job), tx.add(JobProgress(job.id, NOW, crashes=2))))  # type: ignore[misc]

        def step(tx: Tx) -> tuple[Job, JobProgress] | None:
            return claim(tx, Claimant("w"), NOW, take_ready(tx, "t", [job.needs]))

        monkeypatch.setattr(Wire, "many", lambda self, *given: (trips.append(1), many(self, *given))[1])
        found = store.transact(DomainStep(step, ()))
        assert found is not None
        assert (found[0].id, found[1].crashes, found[1].epoch, len(trips)) == ("job-1", 2, 1, 2)
        with psycopg.connect(yard_address) as other:  # which has what goes with the second job
            other.execute("SELECT FROM modelyard.job_progress WHERE job_id = 'job-2' FOR UPDATE")
            assert store.transact(DomainStep(lambda tx: take_ready(tx, "t", [job.needs]).id, ())) == "job-2"  # type: ignore[union-attr]
        assert store.read(lambda s: s.get(JobProgress, "job-1")) == found[1]
