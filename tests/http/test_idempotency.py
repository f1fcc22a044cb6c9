"""The header `Idempotency-Key` of every route that creates something, on a store in memory and on one in a file."""

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs
import pytest

from every_route import routes
from http_client import Answer, Client
from modelyard import open_platform
from modelyard.domain.identity import LIFETIME, AnsweredRequest
from modelyard.domain.models import TrajectoryLog
from modelyard.domain.schema import RECORDS
from modelyard.domain.training import Dataset
from modelyard.http.interface import Interface
from modelyard.platform.platform import Platform
from modelyard.stores.memory import MemoryStore
from modelyard.testing import ManualClock
from modelyard.testing.run_twice_store import RunTwiceStore
from part_tests import in_common

V1, PLACE = "/v1/preview", "/v2/acme/bots"
OBJECT = "weave:///acme/bots/object/"
USER = {"role": "user", "content": "hi"}
CHOICE = {
    "finish_reason": "stop",
    "index": 0,
    "message": {"role": "assistant", "content": "ho"},
    "logprobs": {"content": [{"token": "ho", "logprob": -1.0, "bytes": None, "top_logprobs": []}]},
}
GROUP = {"trajectories": [{"messages_and_choices": [USER, CHOICE], "reward": reward} for reward in (0.0, 1.0)]}


ANOTHER_ALIAS = object()


@attrs.frozen
class Creation:
    """A request that creates something: where, what is sent, another body, and how much there is of it."""

    path: str
    body: Any
    other: Any
    count: Callable[[Platform], int]
    query: str = ""


def objects(kind: str) -> Callable[[Platform], int]:
    return lambda platform: len(list(platform.evaluations.objects.list(kind, entity="acme", project="bots")))


def listed(name: str) -> Callable[[Platform], int]:
    return lambda platform: len(list(getattr(platform.evaluations, name).list(entity="acme", project="bots")))


def stored(platform: Platform, cls: type[Any], index: str, *where: str) -> int:
    return platform._runtime.store.read(lambda snapshot: snapshot.count(cls, index, *where))


def logged(platform: Platform) -> int:
    return stored(platform, TrajectoryLog, "by_model", model_id(platform))


def uploaded(platform: Platform) -> int:
    return stored(platform, Dataset, "by_name", "acme", "bots", "rows")


def model_id(platform: Platform) -> str:
    model = platform.models.create("m", project="bots", entity="acme", base_model="tabular-mini", return_existing=True)
    return model.id


def row(answer: str) -> str:
    """Return one line of training data."""
    return json.dumps({"messages": [USER, {"role": "assistant", "content": answer}]}) + "\n"


RUN = {"evaluation": f"{OBJECT}quiz", "model": f"{OBJECT}bot"}
PREDICTION = {"model": f"{OBJECT}bot", "inputs": {"q": 1}, "output": "a"}
MODEL = {"project": "bots", "name": "new", "base_model": "tabular-mini"}
LOG = {"trajectory_groups": [GROUP], "split": "val"}

CREATIONS: dict[str, Creation] = {
    "model": Creation(f"{V1}/models", MODEL, {**MODEL, "name": "newer"}, lambda p: len(list(p.models.list()))),
    "log": Creation(f"{V1}/models/<model>/log", LOG, {**LOG, "split": "test"}, logged),
    "run": Creation(f"{PLACE}/evaluation_runs", RUN, {**RUN, "model": f"{OBJECT}other"}, listed("runs")),
    "prediction": Creation(f"{PLACE}/predictions", PREDICTION, {**PREDICTION, "output": "b"}, listed("predictions")),
    "score": Creation(
        f"{PLACE}/scores",
        {"prediction_id": "<prediction>", "scorer": f"{OBJECT}same", "value": 1},
        {"prediction_id": "<prediction>", "scorer": f"{OBJECT}same", "value": 2},
        listed("scores"),
    ),
    **{
        kind: Creation(f"{PLACE}/{kind}s", {"name": "o", **one}, {"name": "o", **other}, objects(kind))
        for kind, one, other in (
            ("dataset", {"rows": [{"a": 1}]}, {"rows": [{"a": 2}]}),
            ("scorer", {"op_source_code": "x"}, {"op_source_code": "y"}),
            ("evaluation", {"dataset": f"{OBJECT}d"}, {"dataset": f"{OBJECT}e"}),
            ("op", {"source_code": "x"}, {"source_code": "y"}),
        )
    },
    "published model": Creation(
        f"{PLACE}/models", {"name": "o", "source_code": "x"}, {"name": "o", "source_code": "y"}, objects("model")
    ),
    "training data": Creation(f"{V1}/datasets", row("ho"), row("ha"), uploaded, "project=bots&name=rows"),
    "rollback": Creation(
        f"{V1}/models/<model>/aliases/prod/rollback",
        None,
        ANOTHER_ALIAS,
        lambda p: len(list(p.models.promotions(model_id(p), "prod"))),
    ),
}
BY_CONTENT = {"training data", "dataset", "scorer", "evaluation", "op", "published model"}
"""What is created once for its content, with a key or without one."""


ONCE = {"model", "rollback"}
"""What cannot be created twice."""


@attrs.frozen
class Creator:
    """Sends one of the creations to a platform that has what they are about."""

    client: Client
    creation: Creation
    names: dict[str, str]

    def send(self, key: str | None, other: bool = False, client: Client | None = None) -> Answer:
        path, body = self.creation.path, self.creation.other if other else self.creation.body
        if body is ANOTHER_ALIAS:
            path, body = path.replace("prod", "beta"), None
        for name, value in self.names.items():
            path = path.replace(f"<{name}>", value)
            body = body if isinstance(body, str) else json.loads(json.dumps(body).replace(f"<{name}>", value))
        headers = [] if key is None else [("idempotency-key", key)]
        auth = "Basic" if path.startswith("/v2") else "Bearer"
        sent: dict[str, Any] = {"raw": body.encode()} if isinstance(body, str) else {"body": body}
        query = self.creation.query
        return (client or self.client).send("POST", path, **sent, query=query, headers=headers, auth=auth)

    def ok(self, key: str | None, **more: Any) -> Any:
        answer = self.send(key, **more)
        assert answer.status == 200, answer.raw
        return answer.json

    @property
    def count(self) -> int:
        return self.creation.count(self.client.platform)


@pytest.fixture(params=["memory", "file", "steps run twice"])
def platform(request: pytest.FixtureRequest, yard_file: Path) -> Iterator[Platform]:
    clock = ManualClock(datetime(2026, 3, 2, tzinfo=UTC))
    if request.param == "file":
        opened = open_platform(yard_file, clock=clock)
    elif request.param == "memory":
        opened = open_platform(clock=clock)
    else:
        opened = open_platform(store=RunTwiceStore(MemoryStore(RECORDS, clock)), clock=clock)
    with opened:
        yield opened


@pytest.fixture
def make(platform: Platform, client_for: Any) -> Callable[[str], Creator]:
    def creator(name: str) -> Creator:
        client = client_for(platform)
        model = model_id(platform)
        if name == "rollback":
            for alias in ("prod", "beta"):
                promote_twice(platform, model, alias)
        prediction = client.ok("POST", f"{PLACE}/predictions", PREDICTION, auth="Basic")["prediction_id"]
        return Creator(client, CREATIONS[name], {"model": model, "prediction": prediction})

    return creator


def promote_twice(platform: Platform, model: str, alias: str) -> None:
    """Give an alias a step to go back to."""
    if platform.models.get(model).last_step == 0:
        platform.training.sft(model, [json.loads(row("ho"))]).wait()
    for step in (0, 1):
        platform.models.promote(model, step, alias)


@pytest.mark.parametrize("name", CREATIONS)
def test_the_same_request_under_a_key_creates_once_and_is_answered_the_same(
    make: Callable[[str], Creator], name: str
) -> None:
    creator = make(name)
    before = creator.count
    first = creator.send("k1")
    assert (first.status, creator.count) == (200, before + 1), first.raw
    assert (creator.send("k1").raw, creator.count) == (first.raw, before + 1)
    if name not in ONCE:
        assert set(creator.ok(None)) == set(first.json)
        assert creator.count == before + (1 if name in BY_CONTENT else 2)


@pytest.mark.parametrize("name", CREATIONS)
def test_another_request_under_the_key_is_a_409_that_is_not_to_be_repeated(
    make: Callable[[str], Creator], name: str
) -> None:
    creator = make(name)
    creator.ok("k")
    before = creator.count
    refused = creator.send("k", other=True)
    assert (refused.status, refused.headers["x-should-retry"], creator.count) == (409, "false", before)
    assert b"the idempotency key 'k' was used for another request" in refused.raw


@pytest.mark.parametrize("name", CREATIONS)
def test_duplicates_at_the_same_time_create_once(make: Callable[[str], Creator], name: str) -> None:
    creator = make(name)
    before, together = creator.count, threading.Barrier(4)

    def send(_: int) -> bytes:
        together.wait()
        return creator.send("k").raw

    with ThreadPoolExecutor(4) as pool:
        answers = set(pool.map(send, range(4)))
    assert (len(answers), creator.count) == (1, before + 1), answers
    artifacts = creator.client.platform._runtime.artifacts
    assert creator.client.platform.remove_orphans(grace=0).removed == 0, list(artifacts.names())


def test_a_request_that_overtakes_another_is_answered_and_the_other_creates_nothing(
    make: Callable[[str], Creator], monkeypatch: pytest.MonkeyPatch
) -> None:
    creator = make("run")
    before, runs = creator.count, creator.client.platform.evaluations.runs
    create, overtaking = type(runs).create, []

    def slow(self: Any, *arguments: Any, **options: Any) -> Any:
        if not overtaking:
            overtaking.append(None)
            overtaking[0] = creator.send("k").raw
        return create(self, *arguments, **options)

    monkeypatch.setattr(type(runs), "create", slow)
    assert (creator.send("k").raw, creator.count) == (overtaking[0], before + 1)


def test_each_caller_has_keys_of_its_own(make: Callable[[str], Creator]) -> None:
    creator = make("run")
    mine = creator.ok("k")
    others = [creator.client.another("acme"), creator.client.another("acme", ["bots"])]
    assert len({str(creator.ok("k", client=other)) for other in others} | {str(mine)}) == 3


def test_what_was_refused_leaves_the_key_free(make: Callable[[str], Creator]) -> None:
    creator = make("score")
    creator.names["prediction"] = "unknown"
    assert creator.send("k").status == 404
    creator.names["prediction"] = str(
        creator.client.ok("POST", f"{PLACE}/predictions", PREDICTION, auth="Basic")["prediction_id"]
    )
    assert creator.send("k").status == 200


def test_an_answer_is_kept_for_a_day_and_then_removed(make: Callable[[str], Creator]) -> None:
    creator = make("run")
    platform = creator.client.platform
    first, clock = creator.ok("k"), platform.clock
    assert isinstance(clock, ManualClock)
    for number in range(12):
        creator.ok(f"other-{number}")
    clock.advance(LIFETIME - 1)
    assert creator.ok("k") == first
    clock.advance(1)
    again = creator.ok("k")
    assert again != first
    creator.ok("last")

    def kept(snapshot: Any) -> list[Any]:
        return snapshot.page(AnsweredRequest, "by_age")

    assert len(platform._runtime.store.read(kept)) == 2
    assert creator.ok("k") == again


@pytest.mark.parametrize("key", ["", "a b", "é", "x" * 256])
def test_what_is_not_a_key_is_refused_at_the_header(make: Callable[[str], Creator], key: str) -> None:
    creator = make("run")
    before, refused = creator.count, creator.send(key)
    assert (refused.status, refused.locs, creator.count) == (422, [["header", "Idempotency-Key"]], before)


def test_a_deleted_entity_leaves_no_answers(make: Callable[[str], Creator]) -> None:
    creator = make("run")
    creator.ok("k")
    creator.client.platform.delete_entity("acme")
    assert creator.client.platform._runtime.store.read(lambda snapshot: snapshot.page(AnsweredRequest, "by_age")) == []


JOB_ROUTES = (
    *("training-jobs", "sft-training-jobs", "dpo-training-jobs", "distill-training-jobs", "evaluate_model", "rescore"),
    "traffic-datasets",
    *("/v1/batches", "/inference/v1/batches"),
    *("/v1/fine_tuning/jobs", "/inference/v1/fine_tuning/jobs"),
)
"""Jobs keep their keys themselves; `test_idempotency` of training and of evaluations has their tests."""

FORMS = ("/v1/files", "/inference/v1/files")
"""Routes that take a form, whose bytes differ each time that it is sent; `tests/parts/batches/files` tests them."""

NOT_CREATING = {
    "/completions": "the answer of a model is another one each time",
    "/generate": "the answer of a model is another one each time",
    "tokenize": "nothing is kept",
    "/embeddings": "nothing is kept",
    "/v1/messages": "the answer of a model is another one each time",
    "/cancel": "again, it changes nothing",
    "/close": "again, it changes nothing",
    "/reward": "again, it changes nothing",
    "/episode-groups": "its answer has the keys' secrets, which are never stored",
    "/fail": "again, it changes nothing",
    "/revoke": "again, it changes nothing",
    "/admin/keys": "its answer has the key's secret, which is never stored",
    "/finish": "again, it changes nothing",
    "/pause": "again, it changes nothing",
    "/resume": "what is resumed cannot be resumed again",
    "eval_results": "it only reads",
    "evaluations/status": "it only reads",
    "/graphql": "its protocol has no such header",
    "file_stream": "nothing is kept",
    "/call": "its client chooses the ids of calls: again, it changes nothing",
    "/feedback/": "its protocol has no such header",
    "/obj": "equal content is the version that is there",
    "/table/": "equal rows are the table that is there",
    "/file/": "equal bytes are the file that is there",
    "/refs/read_batch": "it only reads",
    "/api/v1/": "its client numbers what it creates: the same number again is the same thing",
}


@pytest.mark.parts
def test_every_post_that_creates_takes_a_key() -> None:
    traces = Interface.TRACES  # its clients choose the ids, or name things by their digests
    posts = [route for route in routes() if route.method == "POST" and route.interface is not traces]
    keyed = {route.path for route in posts if "Idempotency-Key" in [one.name for one in route.headers]}
    responses = {path for path in keyed if path.rstrip("/").endswith("/responses")}  # http/responses/test_routes.py
    of_parts = {path for own in in_common("KEYED").values() for path in own}
    assert of_parts <= keyed
    assert len(keyed - responses - of_parts) == len(CREATIONS) + len(JOB_ROUTES) + len(FORMS)
    others = {route.path for route in posts} - keyed
    words = [*NOT_CREATING, *(word for own in in_common("NOT_CREATING").values() for word in own)]
    assert [path for path in others if not any(word in path for word in words)] == []
