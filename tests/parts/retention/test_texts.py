"""What is kept can be forgotten: after a deletion no byte of a text is in the file, its log or the artifacts."""

import json
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from types import UnionType
from typing import Any, get_args, get_origin

import attrs
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from each import each_case
from example_counts import examples
from http_client import Client, client_of
from modelyard import Platform, open_platform
from modelyard.cli import main
from modelyard.domain.completion import StoredCompletion
from modelyard.domain.record import KEPT, Record
from modelyard.domain.schema import RECORDS
from modelyard.domain.usage import LedgerEntry
from modelyard.errors import Forbidden, InvalidInput
from modelyard.parts.responses.records import ModelResponse
from modelyard.protocols import Store
from modelyard.stores.sqlite import SqliteStore
from modelyard.testing import ManualClock

NO_TEXTS = {
    "BaseModel": "the digests of a folder's files",
    "Checkpoint": "weights",
    "JobProgress": "numbers, and the names of files",
    "Model": "what its owner noted, which goes with the model",
    "Promotion": "the numbers of a gate",
    "RouterListing": "of the host's catalogue",
    "StagedRollout": "settings, and the numbers of a gate",
    "RegisteredEntry": "of the host's catalogue",
    "RunSession": "what a client says of itself",
    "RunWeights": "weights",
    "Sweep": "options of trainings, and which of them go on",
    "TrainingRun": "settings of a training",
    "VariantMove": "the numbers of a gate",
    "WorkerRecord": "of the host's workers",
}
"""Classes with JSON or files that hold nothing that people wrote or models answered."""
WRITTEN = {
    "answer",
    "body",
    "content",
    "error_message",
    "exception",
    "failure",
    "instruction",
    "note",
    "output",
    "prompt",
    "text",
}


def has_json(kind: object) -> bool:
    if get_origin(kind) in (Mapping, dict):
        return get_args(kind)[1] is Any
    return get_origin(kind) in (tuple, Sequence, UnionType) and any(map(has_json, get_args(kind)))


@each_case("record", RECORDS, ids=lambda record: record.table)
def test_each_class_that_can_hold_texts_says_so(record: Record) -> None:
    attrs.resolve_types(record.cls)
    fields = attrs.fields(record.cls)
    can = record.artifacts is not None or any(has_json(field.type) or field.name in WRITTEN for field in fields)
    says = record.texts is not None
    assert says == (can and record.cls.__name__ not in NO_TEXTS)
    if says and record.texts != KEPT:
        assert next(field.type for field in fields if field.name == record.texts) is datetime
        assert {"entity", "project"} <= {field.name for field in fields}


def test_a_class_may_name_no_field_that_it_lacks() -> None:
    with pytest.raises(TypeError, match="no field 'made_at' by which its texts age"):
        Record(StoredCompletion, "stored", ("id",), texts="made_at")


INFERENCE = "/inference/v1"
MARK = "Zwetschgenknoedel"
ASKED = [{"role": "user", "content": f"{MARK} "}]


def leave_texts(platform: Platform, client: Client, size: int) -> None:
    """Have an entity leave its texts in each way that it can."""
    text = f"{MARK} " * size
    asked = [{"role": "user", "content": text}]
    once = [("Idempotency-Key", "once")]
    stored = {"model": "echo", "messages": asked, "store": True}
    assert client.send("POST", f"{INFERENCE}/chat/completions", stored).status == 200
    assert client.send("POST", f"{INFERENCE}/responses", {"model": "echo", "input": text}, headers=once).status == 200
    platform.compat.responses.create(model="echo", input=text, background=True)
    call = platform.compat.traces.calls.start("answer", {"question": text})
    platform.compat.traces.calls.end(call.id, text)
    platform.compat.traces.tables.create([{"row": text}])
    platform.compat.traces.tables.put_file("theirs.txt", text.encode())
    platform.compat.traces.feedback.add(call.id, "note", {"text": text[:900]})
    line = {
        "custom_id": "1",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "echo", "messages": asked},
    }
    platform.clock.sleep(0.001)
    platform.traffic.what_if.submit(model="echo")
    file = platform.compat.files.create("asked.jsonl", json.dumps(line).encode(), purpose="batch")
    platform.compat.batches.create(file.id, endpoint="/v1/chat/completions")
    model = platform.models.create("bot", base_model="tabular-mini")
    example = {"messages": [*asked, {"role": "assistant", "content": "yes"}]}
    platform.training.upload("theirs", [example])
    job = platform.training.sft(model.id, [example])
    trajectory = {"messages_and_choices": [*asked, {"role": "assistant", "content": "yes"}], "reward": 1.0}
    platform.models.log_trajectories(model, [{"trajectories": [trajectory]}])
    platform.evaluations.submit("quiz", "echo", [{"prompt": text, "expected": "x"}])
    platform.annotations.set(job.id, note=text[:900])
    (episode,) = platform.episodes.group("theirs", model=model, size=1)
    assert (
        client.send(
            "POST", f"{INFERENCE}/chat/completions", {"model": "echo", "messages": asked}, key=episode.key
        ).status
        == 200
    )
    episode.fail(text[:900])
    platform.variants.publish("default/theirs", model="echo", system="Begin.")
    rows = [{"prompt": text, "expected": "x"}]
    platform.training.prompt("default/theirs", rows, "token_f1", reflection="echo", calls=3)


@pytest.fixture
def yard(tmp_path: Path) -> Path:
    return tmp_path / "yard.db"


@pytest.fixture
def opened(yard: Path) -> Iterator[Platform]:
    with open_platform(yard, clock=ManualClock(datetime.now(UTC))) as platform:
        yield platform


@pytest.fixture
def acting(opened: Platform) -> Callable[[str], tuple[Platform, Client]]:
    def acting(entity: str) -> tuple[Platform, Client]:
        key = opened.keys.create(entity)
        return opened.acting_as(key.key.principal()), attrs.evolve(client_of(opened), key=key.secret)

    return acting


def places_with(mark: str, folder: Path) -> list[str]:
    """The files in which the bytes are, of the store, its log and its artifacts."""
    wanted = [mark.encode(), mark.encode("utf-16-le"), json.dumps(mark).strip('"').encode()]
    return [
        str(path.relative_to(folder))
        for path in sorted(folder.rglob("*"))
        if path.is_file() and any(one in path.read_bytes() for one in wanted)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 900, 20_000])
@pytest.mark.parametrize("keep_ledger", [False, True])
def test_nothing_that_an_entity_wrote_is_left_when_it_is_deleted(
    opened: Platform, acting: Any, yard: Path, size: int, keep_ledger: bool
) -> None:
    view, client = acting("acme")
    leave_texts(view, client, size)
    opened.worker().run_until_idle()
    other, _ = acting("other")
    kept = other.chat.complete(model="echo", messages="something else", store=True)
    assert {"yard.db", "yard.db-wal"} & {*places_with(MARK, yard.parent)}
    booked = [*opened.usage.list(entity="acme")]
    assert booked
    totals = opened.usage.total(entity="acme")
    assert opened.delete_entity("acme", keep_ledger=keep_ledger) > 10
    assert places_with(MARK, yard.parent) == []  # while the store is open
    assert [*opened.usage.list(entity="acme")] == (booked if keep_ledger else [])
    assert opened.usage.total(entity="acme") == (totals if keep_ledger else opened.usage.total(entity="nobody"))
    assert other.chat.get(kept.id).id == kept.id
    with closing(sqlite3.connect(yard)) as file:
        assert file.execute("PRAGMA integrity_check").fetchone() == ("ok",)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 20_000])
def test_old_texts_go_and_the_young_stay(opened: Platform, acting: Any, yard: Path, size: int) -> None:
    view, client = acting("acme")
    leave_texts(view, client, size)
    opened.worker().run_until_idle()
    aged = [record for record in RECORDS if record.texts not in (None, KEPT)]
    before = {record.cls: _all(opened, record) for record in aged}
    assert all(before.values()), "each class that ages has records here"
    opened.clock.advance(days=31)  # type: ignore[attr-defined]
    young = view.chat.complete(model="echo", messages="a young question", store=True)
    removed = opened.keep.texts(30)
    assert removed.records == sum(map(len, before.values()))
    assert removed.files >= 3
    assert {record.cls: _all(opened, record) for record in aged if _all(opened, record)} == {
        StoredCompletion: [view.chat.get(young.id)]
    }
    assert opened.health.check_files() == []
    assert opened.keep.texts(30).records == 0
    assert len([*opened.usage.list(entity="acme")]) > 1
    with pytest.raises(InvalidInput):
        opened.keep.texts(0)
    with pytest.raises(Forbidden):
        view.keep.texts(30)


def _all(platform: Platform, record: Record) -> list[Any]:
    found: list[Any] = platform._runtime.store.read(lambda snapshot: snapshot.scan(record.cls, None, 1000))
    return found


@pytest.mark.slow
def test_texts_go_by_entity_and_project_on_every_store(store: Store, tmp_path: Path) -> None:
    clock = ManualClock(datetime.now(UTC))
    with open_platform(store=store, artifacts=tmp_path / "artifacts", clock=clock) as platform:
        places = [("acme", "a"), ("acme", "b"), ("other", "a")]
        for entity, project in places * 90:  # more than a page
            view = platform.acting_as(platform.keys.create(entity).key.principal()) if entity == "never" else platform
            view.chat.complete(model="echo", messages="hello", store=True, entity=entity, project=project)
        clock.advance(days=10)

        def left() -> list[tuple[str, str]]:
            record = next(record for record in RECORDS if record.cls is StoredCompletion)
            return sorted({(one.entity, one.project) for one in _all(platform, record)})

        assert platform.keep.texts(11).records == 0
        assert platform.keep.texts(9, entity="acme", project="a").records == 90
        assert left() == [("acme", "b"), ("other", "a")]
        assert platform.keep.texts(9, project="a").records == 90
        assert left() == [("acme", "b")]
        assert platform.keep.texts(9).records == 90
        assert left() == []


def test_a_response_that_still_runs_stays(opened: Platform) -> None:
    waiting = opened.compat.responses.create(model="echo", input="in a while", background=True)
    opened.clock.advance(days=2)  # type: ignore[attr-defined]
    assert opened.keep.texts(1).records == 0
    opened.worker().run_until_idle()
    assert opened.compat.responses.get(waiting.id).ended
    assert opened.keep.texts(1).records == 1
    assert _all(opened, next(record for record in RECORDS if record.cls is ModelResponse)) == []


@pytest.mark.parametrize("size", [2, 3000])
def test_a_single_deletion_leaves_the_log_with_the_next_sync(
    opened: Platform, acting: Any, yard: Path, size: int
) -> None:
    view, client = acting("acme")
    text = f"{MARK} " * size
    body = {"model": "echo", "messages": [{"role": "user", "content": text}], "store": True}
    answer = client.send("POST", f"{INFERENCE}/chat/completions", body).json
    response = client.send("POST", f"{INFERENCE}/responses", {"model": "echo", "input": text}).json
    call = view.compat.traces.calls.start("answer", {"question": text})
    file = view.compat.files.create("theirs.txt", text.encode(), purpose="user_data")
    assert places_with(MARK, yard.parent)
    assert client.send("DELETE", f"{INFERENCE}/chat/completions/{answer['id']}").json["deleted"]
    assert client.send("DELETE", f"{INFERENCE}/responses/{response['id']}").json["deleted"]
    assert client.send("DELETE", f"{INFERENCE}/files/{file.id}").json["deleted"]
    view.compat.traces.calls.delete([call.id])
    opened.sync()
    assert places_with(MARK, yard.parent) == []


@pytest.mark.slow
@examples(20)
@given(
    rounds=st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(0, 99), st.sampled_from([1, 4, 30, 300, 1500])), max_size=30),
            st.sets(st.integers(0, 99)),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_no_history_of_additions_and_removals_leaves_a_text(
    rounds: list[tuple[list[tuple[int, int]], set[int]]],
) -> None:
    """Pages are split and merged, and records that stay are moved, on the way."""
    alive: dict[int, str] = {}
    written = 0
    with TemporaryDirectory() as folder, closing(SqliteStore(f"{folder}/yard.db", RECORDS, "process")) as store:
        for added, removed in rounds:
            for key, size in added:
                if key not in alive:
                    written += 1
                    alive[key] = f"<{written:06}>"
                    stored = StoredCompletion(
                        str(key), "e", "p", "echo", datetime.now(UTC), {"text": alive[key] * size}, {}
                    )
                    store.transact(lambda tx, stored=stored: tx.add(stored))
            for key in sorted(removed & alive.keys()):
                store.transact(lambda tx, key=key: tx.remove(StoredCompletion, str(key)))
                del alive[key]
            store.sync()
        found = {word for path in Path(folder).iterdir() for word in re.findall(rb"<\d{6}>", path.read_bytes())}
    assert {word.decode() for word in found} == {*alive.values()}


@pytest.mark.slow
def test_commands_keep_texts_and_delete_an_entity(opened: Platform, acting: Any, yard: Path) -> None:
    view, _ = acting("acme")
    view.chat.complete(model="echo", messages=MARK, store=True, project="desk")
    opened.close()

    def call(*words: str, status: int = 0) -> str:
        result = CliRunner().invoke(main, [*words, "--store", str(yard)])
        assert result.exit_code == status, result.output
        return result.output if status else result.stdout

    assert json.loads(call("keep", "texts", "4w", "--json")) == {"records": 0, "files": 0}
    assert json.loads(call("keep", "texts", "720h", "--json")) == {"records": 0, "files": 0}
    assert "is not in the range" in call("keep", "texts", "999999999w", status=2)
    assert json.loads(call("keep", "texts", "30d", "--json")) == {"records": 0, "files": 0}
    assert json.loads(call("keep", "texts", "0.0000001", "--entity", "nobody", "--json"))["records"] == 0
    assert json.loads(call("keep", "texts", "0.0000001", "--project", "desk", "--json"))["records"] == 1
    assert "go nowhere" in call("keep", "texts", "30d", "--export", "x.jsonl", status=2)
    assert "go with texts" in call("keep", "runs", "30", "--project", "p", status=2)
    assert "Aborted" in call("delete-entity", "acme", status=1)
    assert "and kept its ledger" in call("delete-entity", "acme", "--keep-ledger", "--yes")
    with open_platform(yard) as again:
        assert [entry.entity for entry in again.usage.list(entity="acme")] == ["acme"]
        assert not [key for key in again.keys.list() if key.entity == "acme"]
    assert "deleted 2 records of acme" in call("delete-entity", "acme", "--yes")
    assert places_with(MARK, yard.parent) == []


def test_the_host_deletes_an_entity_over_http(opened: Platform, acting: Any) -> None:
    view, theirs = acting("acme")
    view.chat.complete(model="echo", messages=MARK, store=True)
    host = attrs.evolve(client_of(opened), key=opened.keys.create("ops", host=True).secret)
    path = "/v1/admin/entities/acme"
    assert theirs.send("DELETE", path).status == 403
    refused = host.send("DELETE", path, query="ledger=maybe")
    assert (refused.status, b"ledger" in refused.raw) == (422, True)
    done = host.send("DELETE", path, query="ledger=keep").json
    assert done == {"entity": "acme", "object": "entity.deleted", "deleted": True, "records": done["records"]}
    assert done["records"] >= 2
    assert [type(entry) for entry in opened.usage.list(entity="acme")] == [LedgerEntry]
    opened.clock.advance(seconds=2)  # type: ignore[attr-defined]
    assert theirs.send("DELETE", path).status == 401
    assert host.send("DELETE", path).json["records"] == 2
    assert host.send("DELETE", path).json["records"] == 0


@each_case("days", [0, -1, float("inf"), float("nan"), 1e300, "3", None, True])
def test_an_age_is_a_number_of_days_that_there_may_have_been(days: Any) -> None:
    with open_platform() as platform, pytest.raises(InvalidInput, match="days: must be a number above 0"):
        platform.keep.texts(days)


@pytest.mark.parametrize("days", ["0", "-1", "inf", "nan", "1e300", "1e9d", "x"])
def test_an_age_that_cannot_be_is_refused_in_a_line(tmp_path: Path, days: str) -> None:
    open_platform(tmp_path / "yard.db").close()
    said = CliRunner().invoke(main, ["keep", "texts", "--store", str(tmp_path / "yard.db"), "--", days])
    assert said.exit_code in (1, 2), said.output
    assert "days" in said.output.lower()
    assert "Traceback" not in said.output
