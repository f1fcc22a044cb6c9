"""The catalogue: what is listed is what answers, and a name means one model or is refused."""

import hashlib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelyard import Example, Message, Role, open_platform
from modelyard.artifacts.memory import MemoryArtifacts
from modelyard.backends import ScriptedBackend
from modelyard.backends.echo import EchoBackend
from modelyard.clock import SystemClock
from modelyard.domain.catalogue import CatalogueEntry, Pricing
from modelyard.domain.identity import Principal, Scope, host
from modelyard.domain.models import Checkpoint, Model
from modelyard.domain.schema import RECORDS
from modelyard.errors import ArtifactMissing, Forbidden, InvalidInput, JobFailed, ModelNotFound
from modelyard.platform.catalogue.service import Catalogue, resolve
from modelyard.platform.chat.service import Chat
from modelyard.protocols import Store
from modelyard.stores.memory import MemoryStore
from modelyard.stores.sqlite import SqliteStore
from modelyard.testing.run_twice_store import RunTwiceStore

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOST = host("acme")
READER = Principal("reader", "acme", Scope("acme"), "key-1")


def make(backend: Any = None, store: Store | None = None) -> Any:
    """What a platform with this backend runs on."""
    ids = count(1)
    platform = open_platform(
        entity="acme",
        store=store or RunTwiceStore(MemoryStore(RECORDS)),
        artifacts=MemoryArtifacts(lambda size: hashlib.shake_128(str(next(ids)).encode()).digest(size)),
        backend=backend or EchoBackend(("echo", "base")),
        trainers=(),
        clock=SystemClock(),
        ids=lambda: f"id-{next(ids):06}",
        randomness=bytes,
    )
    return platform._runtime


@pytest.fixture
def runtime() -> Any:
    return make()


@pytest.fixture
def sqlite(yard_file: Path) -> Iterator[Store]:
    store = SqliteStore(yard_file, RECORDS)
    yield store
    store.close()


@pytest.fixture
def catalogue(runtime: Any) -> Catalogue:
    return Catalogue(runtime, HOST)


def like(entry: CatalogueEntry, **changes: Any) -> CatalogueEntry:
    return attrs.evolve(entry, **changes)


class Changing(EchoBackend):
    """A backend whose offer changes."""

    def __init__(self, models: Sequence[str]) -> None:
        super().__init__(("echo",))
        self.models = list(models)

    def entries(self) -> list[CatalogueEntry]:
        (echo,) = super().entries()
        return [attrs.evolve(echo, id=model) for model in self.models]


# ---- the list ----------------------------------------------------------------------------------------------------


def test_what_the_backend_offers_is_listed_by_id(catalogue: Catalogue) -> None:
    assert [entry.id for entry in catalogue.list()] == ["base", "echo"]
    assert catalogue.get("echo") == EchoBackend().entries()[0]


def test_a_registered_entry_is_listed_sorted_and_found(catalogue: Catalogue) -> None:
    parrot = like(catalogue.get("echo"), id="lab/a-parrot", pricing=Pricing(prompt=Decimal("0.1")))
    catalogue.register(parrot, answers_as="echo")
    catalogue.register(like(parrot, id="Zebra"), answers_as="echo")
    assert [entry.id for entry in catalogue.list()] == ["Zebra", "base", "echo", "lab/a-parrot"]
    assert catalogue.get("lab/a-parrot") == parrot


def test_a_registered_entry_takes_the_place_of_the_backend_s_and_of_an_earlier_one(catalogue: Catalogue) -> None:
    dear = like(catalogue.get("echo"), pricing=Pricing(prompt=Decimal(1)))
    catalogue.register(dear)
    catalogue.register(like(dear, name="Second"))
    assert catalogue.get("echo").name == "Second"
    assert [entry.id for entry in catalogue.list()] == ["base", "echo"]
    catalogue.unregister("echo")
    assert catalogue.get("echo") == EchoBackend().entries()[0]


def test_an_entry_whose_model_is_offered_no_more_is_neither_listed_nor_answered() -> None:
    backend = Changing(["one", "two"])
    catalogue = Catalogue(make(backend), HOST)
    catalogue.register(like(catalogue.get("one"), id="alias"), answers_as="two")
    backend.models.remove("two")
    assert [entry.id for entry in catalogue.list()] == ["one"]
    with pytest.raises(ModelNotFound, match=r"that can be used: one$"):
        catalogue.get("alias")


def test_what_is_listed_always_answers(runtime: Any) -> None:
    catalogue = Catalogue(runtime, HOST)
    catalogue.register(like(catalogue.get("echo"), id="acme/books/m:step1"), answers_as="echo")
    catalogue.register(like(catalogue.get("echo"), id="a" * 255), answers_as="echo")
    for entry in catalogue.list():
        assert Chat(runtime, READER).complete(model=entry.id, messages="hi").text == "hi"


@pytest.mark.slow
def test_ten_thousand_entries_are_listed() -> None:
    runtime = make(store=MemoryStore(RECORDS))
    catalogue = Catalogue(runtime, HOST)
    echo = catalogue.get("echo")
    for number in range(2_500):
        catalogue.register(like(echo, id=f"m{number:05}"), answers_as="echo")
    entries = [like(echo, id=f"b{number:05}") for number in range(7_500)]
    many = Catalogue(attrs.evolve(runtime, backend=_Offering([echo, *entries])), HOST)
    listed = [entry.id for entry in many.list()]
    assert len(listed) == 10_001
    assert listed == sorted(listed)


@attrs.define(eq=False)
class _Offering:
    offer: list[CatalogueEntry]

    def entries(self) -> list[CatalogueEntry]:
        return self.offer


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(["echo", "base", None])), max_size=12))
def test_the_list_is_what_registering_and_removing_left(steps: list[tuple[str, str | None]]) -> None:
    runtime = make(store=MemoryStore(RECORDS))
    catalogue, expected = Catalogue(runtime, HOST), {"base": "base", "echo": "echo"}
    for name, model in steps:
        before = catalogue.version
        if model is not None:
            catalogue.register(like(catalogue.get("echo"), id=name), answers_as=model)
            expected[name] = model
        elif name in expected:
            catalogue.unregister(name)
            del expected[name]
        else:
            with pytest.raises(ModelNotFound):
                catalogue.unregister(name)
            assert catalogue.version == before
            continue
        assert catalogue.version != before
    assert [entry.id for entry in catalogue.list()] == sorted(expected)
    assert {name: resolve(runtime, name, READER).base_model for name in expected} == expected


# ---- its version -------------------------------------------------------------------------------------------------


def test_the_version_stays_while_nothing_changes_and_changes_with_the_list(catalogue: Catalogue) -> None:
    seen = [catalogue.version, catalogue.version]
    catalogue.register(like(catalogue.get("echo"), id="a"), answers_as="echo")
    seen.append(catalogue.version)
    catalogue.register(like(catalogue.get("echo"), id="a", name="Renamed"), answers_as="echo")
    seen.append(catalogue.version)
    catalogue.unregister("a")
    seen.append(catalogue.version)
    assert seen[0] == seen[1]
    assert len(set(seen)) == 4


def test_the_version_changes_when_another_process_registers() -> None:
    store = MemoryStore(RECORDS)
    here, there = Catalogue(make(store=store), HOST), Catalogue(make(store=store), HOST)
    before = here.version
    there.register(like(there.get("echo"), id="a"), answers_as="echo")
    assert here.version != before


def test_the_version_changes_when_the_backend_offers_something_else() -> None:
    backend = Changing(["one"])
    catalogue = Catalogue(make(backend), HOST)
    before = catalogue.version
    assert catalogue.version == before
    backend.models.append("two")
    assert catalogue.version != before
    assert [entry.id for entry in catalogue.list()] == ["one", "two"]


# ---- who may change it -------------------------------------------------------------------------------------------


def test_only_the_host_changes_the_catalogue(runtime: Any) -> None:
    reader = Catalogue(runtime, READER)
    with pytest.raises(Forbidden):
        reader.register(reader.get("echo"))
    with pytest.raises(Forbidden):
        reader.unregister("echo")
    assert len(list(reader.list())) == 2


def test_an_entry_out_of_bounds_is_refused_and_nothing_is_kept(catalogue: Catalogue) -> None:
    before = catalogue.version
    with pytest.raises(InvalidInput, match="context_length"):
        catalogue.register(like(catalogue.get("echo"), context_length=0))
    assert catalogue.version == before


@pytest.mark.parametrize("answers_as", [None, "nothing"])
def test_an_entry_that_no_model_answers_is_refused(catalogue: Catalogue, answers_as: str | None) -> None:
    with pytest.raises(InvalidInput, match="answers_as"):
        catalogue.register(like(catalogue.get("echo"), id="new"), answers_as)


@pytest.mark.parametrize("name", ["nothing", "", "a/b", "\ud800", "é", "x" * 100_000, "../etc", "a\0b"])
@pytest.mark.parametrize("on_disk", [False, True])
def test_an_unknown_name_is_not_found_and_never_a_fault(
    name: str, on_disk: bool, request: pytest.FixtureRequest
) -> None:
    runtime = make(store=request.getfixturevalue("sqlite") if on_disk else None)
    for ask in (lambda: Catalogue(runtime, HOST).get(name), lambda: resolve(runtime, name, READER)):
        with pytest.raises(ModelNotFound) as missing:
            ask()
        assert len(str(missing.value)) < 2_000


# ---- names of trained models -------------------------------------------------------------------------------------


def train(runtime: Any, *steps: int, entity: str = "acme", project: str = "p", base: str = "base") -> Model:
    """A model with checkpoints of these steps."""
    model = Model(runtime.ids(), entity, project, "m", base, NOW)
    stored = runtime.artifacts.put([b"weights"])
    files = {"w.bin": {"artifact": stored.name, "size": stored.size, "digest": stored.digest}}
    made = [
        Checkpoint(runtime.ids(), model.id, entity, project, step, NOW, "digest", files=files if step else {})
        for step in steps
    ]
    runtime.store.transact(lambda tx: [tx.add(record) for record in (model, *made)])
    return model


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("acme/p/m", 12),
        ("acme/p/m:latest", 12),
        ("acme/p/m:step2", 2),
        ("wandb-artifact:///acme/p/m", 12),
        ("wandb-artifact://acme/p/m:step0", 0),
        ("modelyard:///acme/p/m:step12", 12),
    ],
)
def test_a_name_means_the_latest_checkpoint_or_the_step_that_it_names(runtime: Any, name: str, step: int) -> None:
    train(runtime, 0, 2, 12)
    found = resolve(runtime, name, READER)
    assert found.base_model == "base"
    assert found.entry.id == "base"
    assert found.checkpoint is not None
    assert found.checkpoint.step == step


@pytest.mark.parametrize("name", ["acme/p/m:step3", "acme/p/m:best", "acme/p/other", "acme/q/m"])
def test_an_unknown_step_alias_or_model_is_not_found(runtime: Any, name: str) -> None:
    train(runtime, 0, 2)
    with pytest.raises(ModelNotFound):
        resolve(runtime, name, READER)


@pytest.mark.parametrize("steps", [(), (0,)])
@pytest.mark.parametrize("name", ["acme/p/m", "acme/p/m:step0"])
def test_before_the_first_job_the_base_model_answers(runtime: Any, steps: tuple[int, ...], name: str) -> None:
    train(runtime, *steps)
    found = resolve(runtime, name, READER)
    assert found.base_model == "base"
    assert found.checkpoint is None or not found.checkpoint.files


def test_a_checkpoint_s_files_are_opened_by_their_names_alone(runtime: Any) -> None:
    train(runtime, 1)
    open_file = resolve(runtime, "acme/p/m", READER).open_file
    assert open_file is not None
    with open_file("w.bin") as file:
        assert file.read() == b"weights"
    with pytest.raises(ArtifactMissing):
        open_file("../w.bin")


def test_a_model_whose_base_is_offered_no_more_is_not_found(runtime: Any) -> None:
    train(runtime, 1, base="gone")
    with pytest.raises(ModelNotFound):
        resolve(runtime, "acme/p/m", READER)


def test_a_registered_base_prices_its_checkpoints(runtime: Any) -> None:
    catalogue = Catalogue(runtime, HOST)
    catalogue.register(like(catalogue.get("base"), id="dear", pricing=Pricing(prompt=Decimal(1))), answers_as="base")
    train(runtime, 1, base="dear")
    found = resolve(runtime, "acme/p/m", READER)
    assert (found.base_model, found.entry.id) == ("base", "dear")


def test_a_catalogue_id_comes_before_a_trained_model_of_that_name(runtime: Any) -> None:
    train(runtime, 1)
    catalogue = Catalogue(runtime, HOST)
    catalogue.register(like(catalogue.get("echo"), id="acme/p/m"), answers_as="echo")
    assert resolve(runtime, "acme/p/m", READER).checkpoint is None
    assert resolve(runtime, "acme/p/m:step1", READER).checkpoint is not None


def test_a_scope_that_is_lacking_is_refused_in_the_same_words_whether_anything_is_there(runtime: Any) -> None:
    train(runtime, 1, entity="rival")
    held = Principal("held", "acme", Scope("acme", frozenset({"q"})), "key-2")
    train(runtime, 1)
    reported = set()
    for principal, name in [
        (READER, "rival/p/m"),
        (READER, "rival/p/nothing"),
        (READER, "rival/p/m:step99"),
        (READER, "rival/p/m:best"),
    ]:
        with pytest.raises(Forbidden) as refused:
            resolve(runtime, name, principal)
        reported.add(str(refused.value))
    assert len(reported) == 1
    with pytest.raises(Forbidden):
        resolve(runtime, "acme/p/m", held)
    assert resolve(runtime, "rival/p/m", HOST).checkpoint is not None


def test_a_checkpoint_whose_bytes_were_altered_neither_answers_nor_is_trained_on() -> None:
    rows = [Example((Message(Role.USER, "ping"), Message(Role.ASSISTANT, "pong")))] * 4
    with open_platform(artifacts=(artifacts := MemoryArtifacts())) as platform:
        model = platform.models.create("m", project="p", base_model="tabular-mini")
        (file,) = platform.training.sft(model.id, rows).result().files.values()
        data = artifacts._kept[file["artifact"]]
        artifacts._kept[file["artifact"]] = data[:-1] + bytes([data[-1] ^ 1])
        with pytest.raises(ArtifactMissing, match="altered"):
            platform.chat.complete(model="local/p/m", messages="ping")
        with pytest.raises(JobFailed, match="altered"):
            platform.training.sft(model.id, rows).wait()


def test_a_name_like_none_is_answered_with_the_few_models_that_there_are() -> None:
    with open_platform(backend=ScriptedBackend(["ok"])) as platform:
        with pytest.raises(ModelNotFound, match=r"the models that can be used: scripted$"):
            platform.chat.complete(model="gpt-5", messages="hi")
