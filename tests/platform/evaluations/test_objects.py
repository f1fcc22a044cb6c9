"""Named objects: versions by content, what names them, rows kept apart, and what is left when they are deleted."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from modelyard.artifacts.memory import MemoryArtifacts
from modelyard.compose import open_platform
from modelyard.domain.canonical import digest
from modelyard.domain.evaluation.objects import ObjectAlias, ObjectKind, ObjectRef, ObjectVersion
from modelyard.domain.identity import Principal, Scope
from modelyard.errors import Forbidden, InvalidInput, NotFound, ObjectDeleted, StorageFull
from modelyard.platform.evaluations.objects import Objects
from modelyard.platform.platform import Platform
from modelyard.platform.runtime import Settings
from modelyard.protocols import StoredArtifact
from modelyard.testing.clock import ManualClock

RED = {"project": "red"}
ROWS = [{"question": "q0", "expected": "0"}, {"question": "q1", "expected": "1"}]
TABLE = "14e85c7d56c9fe17c4617af54dd78d1b301ebd7ae504773709aec2664c53ebab"
DATA = "weave:///local/red/object/rows"


@pytest.fixture
def objects(platform: Platform) -> Objects:
    return platform.evaluations.objects


def artifacts_of(platform: Platform) -> set[str]:
    return set(platform._runtime.artifacts.names())


# ---- versions


def test_a_version_reads_back_as_it_was_published(objects: Objects) -> None:
    content = {"source_code": "class M: ...", "attributes": {"layers": [1, 2], "t": 0.5}, "description": None}
    made = objects.publish("model", "My Model/v2!", content, **RED)
    assert (made.object_id, made.index, made.kind) == ("my_model_v2", 0, ObjectKind.MODEL)
    assert made.digest == digest(
        {"name": "My Model/v2!", "source_code": "class M: ...", "attributes": {"layers": [1, 2], "t": 0.5}}
    )
    assert "description" not in made.content
    for version in ("latest", "v0", made.digest):
        assert objects.get("model", "my_model_v2", version, **RED) == made
    assert objects.resolve("model", str(made.ref)) == made


def test_equal_content_is_the_same_version(objects: Objects) -> None:
    first, second = (objects.publish("op", "f", {"source_code": code}, **RED) for code in ("a", "b"))
    assert objects.publish("op", "f", {"source_code": "a", "note": None}, **RED) == first
    assert (first.index, second.index) == (0, 1)
    assert objects.get("op", "f", **RED) == second
    elsewhere = objects.publish("op", "f", {"source_code": "a"}, project="blue")
    assert (elsewhere.digest, elsewhere.index) == (first.digest, 0)
    assert objects.publish("model", "f", {"source_code": "a"}, **RED).index == 0


def test_unknown_names_and_versions_are_not_found(objects: Objects) -> None:
    objects.publish("op", "f", {"source_code": "a"}, **RED)
    for kind, name, version in (
        ("op", "g", "latest"),
        ("model", "f", "latest"),
        ("op", "f", "v1"),
        ("op", "f", "x" * 43),
    ):
        with pytest.raises(NotFound):
            objects.get(kind, name, version, **RED)
    with pytest.raises(InvalidInput, match="reference"):
        objects.resolve("op", "f")


@pytest.mark.parametrize("name", ["", "!!!", "..", "x" * 513])
def test_a_name_must_name_something(objects: Objects, name: str) -> None:
    with pytest.raises(InvalidInput, match="name"):
        objects.publish("op", name, {}, **RED)


def test_the_references_of_an_evaluation_are_looked_at_all_at_once(objects: Objects) -> None:
    with pytest.raises(InvalidInput) as refused:
        objects.publish("evaluation", "e", {"dataset": "rows", "scorers": [DATA, "", "x"]}, **RED)
    assert [problem.loc for problem in refused.value.problems] == [("dataset",), ("scorers", 1), ("scorers", 2)]
    with pytest.raises(InvalidInput) as refused:
        objects.publish("evaluation", "e", {"dataset": 5, "scorers": "x", "trials": 0}, **RED)
    assert [problem.loc for problem in refused.value.problems] == [("dataset",), ("scorers",), ("trials",)]
    assert not list(objects.list("evaluation", **RED))


def test_the_strict_mode_wants_the_dataset_and_the_scorers_of_an_evaluation_here() -> None:
    with open_platform(settings=Settings(reference_mode="resolve")) as platform:
        objects = platform.evaluations.objects
        scorer = objects.publish("scorer", "s", {"op_source_code": "x"}, **RED)
        content = {"dataset": DATA, "scorers": [str(scorer.ref), DATA]}
        with pytest.raises(InvalidInput) as refused:
            objects.publish("evaluation", "e", content, **RED)
        assert [problem.loc for problem in refused.value.problems] == [("dataset",), ("scorers", 1)]
        objects.publish("dataset", "rows", {}, ROWS, **RED)
        made = objects.publish("evaluation", "e", {**content, "scorers": [str(scorer.ref)]}, **RED)
        assert objects.get("evaluation", "e", **RED) == made


@pytest.mark.parametrize(
    ("scorer", "loc"), [("exact_match", ("scorer",)), ({"type": "x"}, ("scorer", "type")), ({}, ("scorer", "type"))]
)
def test_a_declarative_scorer_that_cannot_be_read_is_not_published(objects: Objects, scorer: Any, loc: Any) -> None:
    with pytest.raises(InvalidInput) as refused:
        objects.publish("scorer", "s", {"scorer": scorer}, **RED)
    assert [problem.loc for problem in refused.value.problems] == [loc]
    assert not list(objects.list("scorer", **RED))


def test_a_scorers_source_code_is_published_as_an_op(objects: Objects) -> None:
    scorer = objects.publish("scorer", "s", {"op_source_code": "def score(): ..."}, **RED)
    op = objects.resolve("op", scorer.content["score_op"])
    assert op.content["source_code"] == "def score(): ..."
    assert objects.publish("scorer", "s", {"op_source_code": "def score(): ..."}, **RED) == scorer
    assert len(list(objects.list("op", **RED))) == 1
    assert "score_op" not in objects.publish("scorer", "ready", {"type": "exact_match"}, **RED).content


def test_an_alias_names_one_version_after_another(objects: Objects) -> None:
    first, second = (objects.publish("op", "f", {"source_code": code}, **RED) for code in "ab")
    assert objects.alias("op", "f", "v0", "golden", **RED) == first
    assert objects.get("op", "f", "golden", **RED) == first
    objects.alias("op", "f", "latest", "golden", **RED)
    assert objects.resolve("op", "weave:///local/red/op/f:golden") == second
    objects.delete("op", "f", ["golden"], **RED)
    with pytest.raises(ObjectDeleted):
        objects.get("op", "f", "golden", **RED)
    with pytest.raises(NotFound):
        objects.alias("op", "f", "v7", "golden", **RED)
    with pytest.raises(NotFound):
        objects.get("model", "f", "golden", **RED)


@pytest.mark.parametrize("alias", ["latest", "v1", "step2", "", "Big", "1st", "a" * 65, "a b"])
def test_some_words_cannot_be_aliases(objects: Objects, alias: str) -> None:
    objects.publish("op", "f", {}, **RED)
    with pytest.raises(InvalidInput, match="alias"):
        objects.alias("op", "f", "v0", alias, **RED)


# ---- rows


def test_a_datasets_rows_are_kept_apart_under_the_digest_of_their_table(platform: Platform, objects: Objects) -> None:
    made = objects.publish("dataset", "rows", {"description": "two"}, iter(ROWS), **RED)
    assert (made.rows, made.table_digest) == (2, TABLE)
    assert str(made.rows_ref) == f"weave:///local/red/table/{TABLE}"
    assert made.digest == digest({"name": "rows", "description": "two", "rows": TABLE})
    assert "rows" not in made.content
    assert list(objects.rows(made)) == ROWS
    assert artifacts_of(platform) == {made.rows_artifact}


def test_equal_rows_leave_no_second_artifact(platform: Platform, objects: Objects) -> None:
    first = objects.publish("dataset", "rows", {}, ROWS, **RED)
    assert objects.publish("dataset", "rows", {}, ROWS, **RED) == first
    assert artifacts_of(platform) == {first.rows_artifact}
    assert objects.publish("dataset", "rows", {}, ROWS[::-1], **RED).index == 1
    assert len(artifacts_of(platform)) == 2


def test_an_empty_dataset_has_the_empty_table(objects: Objects) -> None:
    empty = objects.publish("dataset", "none", {}, [], **RED)
    assert empty.table_digest == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert list(objects.rows(empty)) == []


@pytest.mark.parametrize("rows", [[{"a": 1}, 5], [{"a": float("nan")}], [{"a": object()}], [["a"]]])
def test_a_row_that_is_none_is_named_and_nothing_stays(platform: Platform, objects: Objects, rows: Any) -> None:
    with pytest.raises(InvalidInput) as refused:
        objects.publish("dataset", "rows", {}, rows, **RED)
    assert refused.value.problems[0].loc[:2] == ("rows", len(rows) - 1)
    assert not artifacts_of(platform)
    assert not list(objects.list("dataset", **RED))


def test_only_a_dataset_has_rows(objects: Objects) -> None:
    for kind, rows in (("dataset", None), ("model", ROWS)):
        with pytest.raises(InvalidInput, match="rows"):
            objects.publish(kind, "x", {}, rows, **RED)
    with pytest.raises(InvalidInput, match="version"):
        next(objects.rows(objects.publish("op", "f", {}, **RED)))


def test_rows_that_could_not_be_named_leave_no_artifact(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(step: object, durable: bool = True) -> None:
        raise StorageFull("full")

    monkeypatch.setattr(platform._runtime.store, "transact", full)
    with pytest.raises(StorageFull):
        platform.evaluations.objects.publish("dataset", "rows", {}, ROWS, **RED)
    assert not artifacts_of(platform)


def test_rows_are_stored_as_they_come() -> None:
    given = 0

    def rows() -> Iterator[Mapping[str, Any]]:
        nonlocal given
        for given in range(1, 501):
            yield {"n": given}

    class Watching(MemoryArtifacts):
        def put(self, chunks: Iterable[bytes]) -> StoredArtifact:
            def watched() -> Iterator[bytes]:
                for taken, chunk in enumerate(chunks, start=1):
                    assert given == taken, "rows are read ahead"
                    yield chunk

            return super().put(watched())

    with open_platform(artifacts=Watching(bytes)) as platform:
        made = platform.evaluations.objects.publish("dataset", "rows", {}, rows(), **RED)
        assert (made.rows, given) == (500, 500)


# ---- deleting


def test_a_deleted_version_keeps_its_place_and_loses_its_content(platform: Platform, objects: Objects) -> None:
    first, second = (objects.publish("dataset", "rows", {"description": text}, ROWS, **RED) for text in "ab")
    assert objects.delete("dataset", "rows", [second.digest, "v1", "unknown"], **RED) == 1
    assert objects.get("dataset", "rows", **RED) == first
    for version in ("v1", second.digest):
        with pytest.raises(ObjectDeleted) as gone:
            objects.get("dataset", "rows", version, **RED)
        assert gone.value.deleted_at == platform._runtime.clock.now()
    assert artifacts_of(platform) == {first.rows_artifact}
    assert list(objects.list("dataset", **RED)) == [first]
    again = objects.publish("dataset", "rows", {"description": "b"}, ROWS, **RED)
    assert (again.index, again.digest) == (2, second.digest)
    assert objects.get("dataset", "rows", second.digest, **RED) == again
    kept = platform._runtime.store.read(lambda found: found.get(ObjectVersion, second.id))
    assert (kept.content, kept.rows, kept.rows_artifact, kept.table_digest) == ({}, None, None, None)


def test_without_a_version_all_are_deleted(platform: Platform, objects: Objects) -> None:
    for number in range(3):
        objects.publish("dataset", "rows", {}, [{"n": number}], **RED)
    other = objects.publish("dataset", "others", {}, ROWS, **RED)
    assert objects.delete("dataset", "rows", **RED) == 3
    assert objects.delete("dataset", "rows", **RED) == 0
    with pytest.raises(ObjectDeleted):
        objects.get("dataset", "rows", **RED)
    assert artifacts_of(platform) == {other.rows_artifact}


def test_a_deleted_entity_leaves_no_object_and_no_rows(platform: Platform, objects: Objects) -> None:
    objects.publish("dataset", "rows", {}, ROWS, **RED)
    objects.publish("scorer", "s", {"op_source_code": "x"}, **RED)
    objects.alias("scorer", "s", "v0", "golden", **RED)
    other = objects.publish("dataset", "rows", {}, ROWS, project="red", entity="rival")
    platform.delete_entity("local")
    for cls in (ObjectVersion, ObjectAlias):
        assert platform._runtime.store.read(lambda found, cls=cls: found.count(cls, "by_entity", "local")) == 0
    assert artifacts_of(platform) == {other.rows_artifact}


# ---- seeing


def test_lists_are_in_order_and_continue_after_any_item(platform: Platform, objects: Objects) -> None:
    made = []
    for number in range(5):
        platform._runtime.clock.advance(1)  # type: ignore[attr-defined]
        made.append(objects.publish("op", f"f{number % 2}", {"source_code": str(number)}, **RED))
    objects.delete("op", "f1", ["v0"], **RED)
    assert list(objects.list("op", **RED)) == [made[0], *made[2:]]
    page = objects.list("op", **RED).page(2)
    assert (list(page), page.has_more) == ([made[0], made[2]], True)
    assert list(objects.list("op", **RED).after(made[2].id)) == made[3:]
    assert not objects.list("op", project="blue")
    with pytest.raises(NotFound):
        objects.list("op", project="blue").page(after=made[0].id)


def test_another_scope_is_forbidden_in_every_use(platform: Platform, objects: Objects) -> None:
    made = objects.publish("dataset", "rows", {}, ROWS, project="blue")
    red = platform.acting_as(Principal("red", "local", Scope("local", frozenset({"red"})))).evaluations.objects
    for act in (
        lambda: red.publish("op", "f", {}, project="blue"),
        lambda: red.get("dataset", "rows", project="blue"),
        lambda: red.resolve("dataset", made.ref),
        lambda: red.list("dataset", project="blue"),
        lambda: red.delete("dataset", "rows", project="blue"),
        lambda: next(red.rows(made)),
    ):
        with pytest.raises(Forbidden):
            act()
    assert ObjectRef.parse(str(made.ref)) == made.ref


class Versions(RuleBasedStateMachine):
    """Publishing and deleting in any order: numbers only grow, and names mean what a plain list says."""

    def __init__(self) -> None:
        super().__init__()
        self.platform = open_platform(clock=ManualClock())
        self.objects = self.platform.evaluations.objects
        self.model: list[tuple[str, bool]] = []  # the content of each version, and whether it is there

    @rule(text=st.sampled_from("abc"))
    def publish(self, text: str) -> None:
        made = self.objects.publish("op", "f", {"source_code": text}, **RED)
        if (text, True) not in self.model:
            self.model.append((text, True))
        assert made.index == self.model.index((text, True))

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.model) - 1))
        text, there = self.model[index]
        assert self.objects.delete("op", "f", [f"v{index}"], **RED) == there
        self.model[index] = (text, False)

    @invariant()
    def names_agree(self) -> None:
        there = [index for index, (_, alive) in enumerate(self.model) if alive]
        assert [found.index for found in self.objects.list("op", **RED)] == there
        if there:
            assert self.objects.get("op", "f", **RED).index == there[-1]
        elif self.model:
            with pytest.raises(ObjectDeleted):
                self.objects.get("op", "f", **RED)

    def teardown(self) -> None:
        self.platform.close()


TestVersions = Versions.TestCase
TestVersions.settings = settings(max_examples=25, stateful_step_count=12, deadline=None)
