"""Tags and notes: what they are given to, who sees them, and that they go with it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from modelyard import Principal, Scope, open_platform
from modelyard.errors import Forbidden, InvalidInput, NotFound
from modelyard.parts.annotations.records import MAX_NOTE, MAX_TAGS
from modelyard.platform.platform import Platform

ROWS = [{"prompt": "say yes", "expected": "say yes"}]


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    with open_platform() as platform:
        platform.models.create("desk", project="bots", base_model="tabular-mini")
        platform.models.promote("bots/desk", 0)
        yield platform


def test_tags_and_a_note_are_set_added_to_removed_and_found(platform: Platform) -> None:
    notes = platform.annotations
    assert notes.get("bots/desk").updated_at is None
    assert notes.add_tags("bots/desk", "b", "a", "a").tags == ("a", "b")
    assert notes.set("bots/desk", note="It answers short.").tags == ("a", "b")
    assert notes.get(platform.models.get("bots/desk").id) == notes.get("local/bots/desk")
    for wanted in ({"tag": "a"}, {"text": "SHORT"}, {"text": "b"}, {"project": "bots"}, {"entity": "local"}):
        assert [one.subject for one in notes.list(kind="model", **wanted)] == [platform.models.get("bots/desk").id]
    for other in ({"tag": "A"}, {"text": "long"}, {"project": "other"}):
        assert not notes.list(kind="model", **other)
    assert not notes.list(kind="job")
    assert notes.remove_tags("bots/desk", "a", "z").tags == ("b",)
    assert notes.set("bots/desk", tags=(), note="").updated_at is None
    assert not notes.list(kind="model")


def test_a_checkpoint_is_named_by_its_step_or_an_alias(platform: Platform) -> None:
    first = platform.annotations.add_tags("bots/desk:step0", "untrained")
    assert first.kind == "checkpoint"
    assert platform.annotations.get("bots/desk:prod") == first == platform.annotations.get("bots/desk:latest")
    for name in ("bots/desk:step7", "bots/desk:nothing", "bots/none", "none"):
        with pytest.raises(NotFound):
            platform.annotations.add_tags(name, "x")


def test_the_job_of_an_evaluation_stands_for_its_run(platform: Platform) -> None:
    run = platform.evaluations.run("quiz", "echo", ROWS, project="bots").run
    (job,) = platform.jobs.list()
    assert platform.annotations.add_tags(job.id, "nightly").subject == run.id
    assert [one.subject for one in platform.annotations.list(tag="nightly")] == [run.id]
    platform.evaluations.runs.delete([run.id], project="bots")
    assert not platform.annotations.list()


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"tags": ["a,b"]}, "tags.0"),
        ({"tags": ["ok", " a"]}, "tags.1"),
        ({"tags": [""]}, "tags.0"),
        ({"tags": ["a\nb"]}, "tags.0"),
        ({"tags": ["x" * 65]}, "tags.0"),
        ({"tags": ["\ud800"]}, "tags.0"),
        ({"tags": "word"}, "tags"),
        ({"tags": [str(n) for n in range(MAX_TAGS + 1)]}, "tags"),
        ({"note": "n" * (MAX_NOTE + 1)}, "note"),
        ({"note": "a\0b"}, "note"),
        ({"note": "\udfff"}, "note"),
    ],
)
def test_what_cannot_be_a_tag_or_a_note_is_refused_at_its_place(
    platform: Platform, changes: dict[str, Any], place: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        platform.annotations.set("bots/desk", **changes)
    assert [".".join(map(str, problem.loc)) for problem in refused.value.problems] == [place]


def test_the_longest_are_kept(platform: Platform) -> None:
    tags = sorted(f"{n:02}" + "\U0001f600" * 62 for n in range(MAX_TAGS))
    kept = platform.annotations.set("bots/desk", tags=tags, note="\U0001f600" * MAX_NOTE)
    assert platform.annotations.get("bots/desk") == kept
    with pytest.raises(InvalidInput, match="50 at most"):
        platform.annotations.add_tags("bots/desk", "one more")


def test_an_unknown_kind_is_refused(platform: Platform) -> None:
    with pytest.raises(InvalidInput, match="kind: must be one of job, run, model, checkpoint"):
        platform.annotations.list(kind="dataset")


def test_another_entity_or_project_sees_none_of_it(platform: Platform) -> None:
    platform.annotations.set("bots/desk", tags=["secret"], note="")
    subject = platform.models.get("bots/desk").id
    stranger = platform.acting_as(Principal("s", "acme", Scope("acme")))
    narrow = platform.acting_as(Principal("n", "local", Scope("local", frozenset({"other"}))))
    for view in (stranger, narrow):
        assert not view.annotations.list(kind="model")
        assert not view.annotations.of([subject])
        for call in (view.annotations.get, lambda id, view=view: view.annotations.add_tags(id, "x")):
            with pytest.raises(NotFound):
                call(subject)
        with pytest.raises(Forbidden):
            view.annotations.get("local/bots/desk")
    assert platform.annotations.get(subject).tags == ("secret",)


def test_they_go_with_what_they_are_given_to_and_with_its_entity(tmp_path: Path) -> None:
    with open_platform(tmp_path / "yard.db") as platform:
        for name in ("one", "two"):
            platform.models.create(name, project="bots", base_model="tabular-mini")
            platform.annotations.add_tags(f"bots/{name}", "x")
            platform.annotations.add_tags(f"bots/{name}:step0", "x")
        platform.models.delete("bots/one")
        kinds = ("model", "checkpoint")
        assert [len([*platform.annotations.list(kind=kind)]) for kind in kinds] == [1, 1]
        platform.delete_entity("local")
        assert [len([*platform.annotations.list(kind=kind)]) for kind in kinds] == [0, 0]
