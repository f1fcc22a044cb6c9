"""No operation stores texts of an entity that was deleted while its request came, whoever sends it."""

import copy
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from random import Random
from typing import Any

import attrs
import pytest

from http_client import Client, client_of
from modelyard import Platform, open_platform
from modelyard.domain.identity import Principal, Scope
from modelyard.domain.record import Record
from modelyard.domain.schema import RECORDS
from modelyard.errors import Unauthenticated
from modelyard.http.message import Request, Response
from modelyard.parts import submit_job
from modelyard.stores.memory import MemoryStore
from modelyard.testing import ManualClock
from openapi_calls import Recorder, call_all

OF_ENTITIES = [record for record in RECORDS if record.texts and "by_entity" in record.indexes]
OF_WORKERS = {"asked_rows", "earlier_answers", "kept_calls", "prompt_proposals"}
"""Tables that no operation writes, but the jobs that it queues, in transactions that find what these are of."""
ENTITY = "acme"
CHAT = {"model": "echo", "messages": [{"role": "user", "content": "my name is Ada"}]}


class Outside:
    """Remembers for ever whom the platform's keys name, as another system does."""

    blocking, longest = False, 128

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._known: dict[str, Principal] = {}

    def authenticate(self, secret: str) -> Principal:
        if secret not in self._known:
            self._known[secret] = self._platform.keys.authenticate(secret)
        return self._known[secret]


@attrs.define
class Deleting(Client):
    """Sends each request that may write twice: once so that its entity is deleted in the middle of the body, which is
    undone afterwards, and then in peace. `written` are the tables that got texts in peace."""

    sent: int = 0
    tried: set[Any] = attrs.field(factory=set)
    left: list[str] = attrs.field(factory=list)
    written: set[str] = attrs.field(factory=set)

    def _exchange(self, method: str, path: str, query: str, headers: Any, chunks: list[bytes]) -> Any:
        self.sent += 1
        headers = [*headers, ("idempotency-key", f"request-{self.sent}")]
        if method not in ("POST", "PUT", "PATCH", "DELETE"):
            return super()._exchange(method, path, query, headers, chunks)
        what = method, self.endpoint.table.match(path).route(method).handler, b"".join(chunks)
        if what not in self.tried:  # under another base, or with a slash at the end
            self.tried.add(what)
            self._with_deletion(method, path, query, headers, chunks)
        self.platform.worker().beat()
        before = texts(self.platform)
        answer = super()._exchange(method, path, query, headers, chunks)
        self.written |= {table for table, count in texts(self.platform).items() if count > before.get(table, 0)}
        return answer

    def _with_deletion(self, method: str, path: str, query: str, headers: Any, chunks: list[bytes]) -> None:
        world, whole = World(self.platform), b"".join(chunks)
        delete = OnFirstCall(self.platform)

        def pieces() -> Iterator[bytes]:
            yield whole[:10]
            delete()
            yield whole[10:]

        with delete.at_a_write():
            response = self.endpoint.handle(Request(method, path, query, headers, pieces()))
            read(response)
        if delete.done and (left := texts(self.platform)):
            self.left.append(f"{method} {path} ({response.status}) left {left}")
        world.restore()


@attrs.define
class OnFirstCall:
    """Deletes the entity, once."""

    platform: Platform
    done: bool = False

    def __call__(self) -> None:
        if not self.done:
            self.done = True
            self.platform.clock.advance(0.1)  # type: ignore[attr-defined]
            self.platform.delete_entity(ENTITY)
            self.platform.clock.advance(0.1)  # type: ignore[attr-defined]

    @contextmanager
    def at_a_write(self) -> Iterator[None]:
        """Do it before the first transaction, if it was not done before."""
        store: Any = self.platform._runtime.store
        transact = store.transact

        def after_deletion(step: Any, durable: bool = True) -> Any:
            self()
            return transact(step, durable)

        store.transact = after_deletion
        try:
            yield
        finally:
            del store.transact


class World:
    """What is stored now, in memory."""

    def __init__(self, platform: Platform) -> None:
        store, files = platform._runtime.store, platform._runtime.artifacts
        assert isinstance(store, MemoryStore)
        self._store, self._files = store, files
        rows = store.read(lambda seen: [row for one in RECORDS for row in seen.scan(one.cls, None, 10**6)])
        owners = [one for table in store._tables.values() for one in (table, *table.unique.values())]
        fixed = [value for one in owners for value in vars(one).values() if not isinstance(value, dict)]
        self._tables = copy.deepcopy(store._tables, {id(one): one for one in (*rows, *fixed)})
        self._rows, self._kept = rows, dict(files._kept)

    def restore(self) -> None:
        self._store._tables, self._files._kept = self._tables, self._kept


def read(response: Response) -> None:
    if not isinstance(response.body, bytes):
        for _ in response.body:  # type: ignore[union-attr]
            pass


def texts(platform: Platform) -> dict[str, int]:
    """How many records of texts the entity has, by table."""

    def count(record: Record) -> int:
        return platform._runtime.store.read(lambda seen: seen.count(record.cls, "by_entity", ENTITY))

    return {record.table: n for record in OF_ENTITIES if (n := count(record))}


@pytest.mark.slow
def test_no_operation_stores_texts_of_an_entity_that_is_deleted_while_it_comes() -> None:
    clock = ManualClock(datetime(2026, 3, 2, 9, 30, tzinfo=UTC))
    with open_platform(clock=clock, randomness=Random(7).randbytes) as platform:
        client = client_of(platform, kind=Deleting, authenticator=Outside(platform))
        call_all(Recorder(client), platform)
        model = platform.models.create("driven", base_model="tabular-mini", entity=ENTITY, project="support")
        (episode,) = platform.episodes.group("theirs", model=model, size=1)
        client.ok("POST", "/inference/v1/chat/completions", CHAT, key=episode.key)
        assert client.left == [], "\n".join(client.left)
        assert client.written >= {record.table for record in OF_ENTITIES} - OF_WORKERS


ROWS = [{"prompt": "my name is Ada", "expected": "Ada"}]
LINE = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "echo", "messages": []}}


def queue_own(platform: Platform) -> object:
    return submit_job(platform._runtime, Principal("mine", ENTITY, Scope(None)), "mine", {"text": "my name is Ada"})


WRITERS: dict[str, Callable[[Platform], object]] = {
    "a queued evaluation": lambda platform: platform.evaluations.submit("quiz", "echo", ROWS, entity=ENTITY),
    "an evaluation": lambda platform: platform.evaluations.run("quiz", "echo", ROWS, entity=ENTITY),
    "collected traffic": lambda platform: platform.traffic.submit("asked", entity=ENTITY),
    "asked traffic": lambda platform: platform.traffic.what_if.submit(model="echo", entity=ENTITY),
    "a response that waits": lambda platform: platform.compat.responses.create(
        model="echo", input="my name is Ada", background=True, entity=ENTITY
    ),
    "a job of one's own": queue_own,
    "a batch of another entity's file": lambda platform: platform.compat.batches.create(
        next(iter(platform.compat.files.list(entity="other"))), endpoint="/v1/chat/completions", entity=ENTITY
    ),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_no_call_in_python_stores_them_either(writer: str) -> None:
    write = WRITERS[writer]
    with open_platform(clock=ManualClock()) as platform:
        platform.compat.files.create("asked.jsonl", json.dumps(LINE).encode(), purpose="batch", entity="other")
        with OnFirstCall(platform).at_a_write(), pytest.raises(Unauthenticated, match="was deleted"):
            write(platform)
        assert texts(platform) == {}
        write(platform)
        assert texts(platform) != {}
