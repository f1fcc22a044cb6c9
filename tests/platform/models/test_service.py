"""Trainable models: their names, checkpoints, logs and deletion."""

import json
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_counts import examples
from modelyard.domain.job import JobStatus
from modelyard.domain.models import Checkpoint, Tombstone
from modelyard.errors import Conflict, Forbidden, InvalidInput, NotFound

UNKNOWN = "00000000-0000-7000-8000-ffffffffffff"


def trained(yard: Any, jobs: int, name: str = "m") -> str:
    """Make a model with so many checkpoints besides that of step 0, and return its id."""
    for number in range(jobs):
        yard.sft(2, name, tag=str(number))
    yard.worker().run_until_idle()
    model_id: str = yard.model(name).id
    return model_id


def steps(page: Any) -> list[int]:
    return [checkpoint.step for checkpoint in page]


# ---- names -------------------------------------------------------------------------------------------------------


def test_a_new_model_has_a_checkpoint_of_step_0_without_files(yard: Any) -> None:
    model = yard.model()
    (checkpoint,) = yard.models.checkpoints(model.id)
    assert (model.entity, model.project, model.name, model.last_step) == ("acme", "p", "m", 0)
    assert (checkpoint.step, dict(checkpoint.files), checkpoint.parent_id) == (0, {}, None)
    assert yard.models.get(model.id) == model == yard.models.find("m", project="p")


def test_a_name_is_unique_within_its_project_alone(yard: Any) -> None:
    first = yard.models.create("m", project="p", base_model="base-model")
    others = [
        yard.models.create("m", project="other", base_model="base-model"),
        yard.models.create("m", project="p", base_model="base-model", entity="umbrella"),
    ]
    assert len({first.id, *(model.id for model in others)}) == 3
    with pytest.raises(Conflict, match="acme/p/m exists already with the base model 'base-model'"):
        yard.models.create("m", project="p", base_model="base-model")


def test_an_existing_model_is_returned_on_request_if_its_base_agrees(yard: Any) -> None:
    first = yard.model()
    assert yard.models.create("m", project="p", base_model="base-model", return_existing=True) == first
    yard.runtime = attrs.evolve(yard.runtime, trainers=(type("Any", (), {"methods": lambda *_: ("sft",)})(),))
    for return_existing in (True, False):
        with pytest.raises(Conflict, match="base model 'base-model', not 'echo'"):
            yard.models.create("m", project="p", base_model="echo", return_existing=return_existing)


@pytest.mark.parametrize("base_model", ["nonsense", "echo", ""])
def test_an_unknown_base_model_or_one_that_nothing_trains_is_refused_naming_known_ones(
    yard: Any, base_model: str
) -> None:
    with pytest.raises(InvalidInput, match="known ones are: base-model") as refused:
        yard.models.create("m", project="p", base_model=base_model)
    assert refused.value.problems[0].loc == ("base_model",)
    assert yard.models.find("m", project="p") is None


@pytest.mark.parametrize("bad", ["", ".", "..", "a b", "a/b", "é", "x" * 129, "a\0"])
def test_a_name_that_is_none_is_refused(yard: Any, bad: str) -> None:
    for names in ({"name": bad, "project": "p"}, {"name": "m", "project": bad}):
        with pytest.raises(InvalidInput):
            yard.models.create(base_model="base-model", **names)


# ---- who may see them --------------------------------------------------------------------------------------------


def test_what_belongs_to_another_looks_as_if_it_did_not_exist(yard: Any) -> None:
    model_id = trained(yard, 1)
    log = yard.models.log_trajectories(model_id, yard.groups(1.0))
    for stranger in (yard.as_tenant("umbrella").models, yard.as_tenant("acme", "other").models):
        for call in (
            lambda one: one.get(model_id),
            lambda one: one.delete(model_id),
            lambda one: one.checkpoints(model_id),
            lambda one: one.checkpoint(model_id, 1),
            lambda one: one.delete_checkpoints(model_id, [1]),
            lambda one: one.log_trajectories(model_id, []),
            lambda one: one.trajectory_logs(model_id),
            lambda one: list(one.logged_trajectories(log.id)),
            lambda one: one.open_file(model_id, 1, "weights.bin"),
        ):
            with pytest.raises(NotFound):
                call(stranger)
    assert steps(yard.models.checkpoints(model_id)) == [0, 1]


def test_an_entity_or_project_that_a_key_lacks_is_forbidden(yard: Any) -> None:
    tenant = yard.as_tenant("acme", "p").models
    for names in ({"entity": "umbrella", "project": "p"}, {"project": "other"}):
        with pytest.raises(Forbidden):
            tenant.create("m", base_model="base-model", **names)
        with pytest.raises(Forbidden):
            tenant.find("m", **names)
        with pytest.raises(Forbidden):
            tenant.list(**names)


def test_a_listing_shows_the_projects_of_the_key_alone(yard: Any) -> None:
    for project in ("p", "q", "p", "r"):
        yard.model(f"m-{len(yard.models.list().page().items)}", project)
    assert [model.project for model in yard.models.list()] == ["p", "q", "p", "r"]
    assert [model.project for model in yard.as_tenant("acme", "p", "r").models.list()] == ["p", "p", "r"]
    assert [model.project for model in yard.models.list(project="q")] == ["q"]
    assert yard.as_tenant("umbrella").models.list().page().items == ()
    hidden = yard.models.list().page().items[1]
    with pytest.raises(NotFound):
        yard.as_tenant("acme", "p").models.list().page(after=hidden.id)


def test_the_host_lists_every_entity_s_models_unless_one_is_named(yard: Any) -> None:
    for entity in ("acme", "umbrella", "acme"):
        name = f"m-{len(yard.models.list().page().items)}"
        yard.models.create(name, project="p", base_model="base-model", entity=entity)
    first, second, third = yard.models.list().page().items
    assert [model.entity for model in (first, second, third)] == ["acme", "umbrella", "acme"]
    assert yard.models.list().page(after=first.id).items == (second, third)
    assert yard.models.list(order="desc").page(limit=1).items == (third,)
    assert yard.models.list(entity="umbrella").page().items == (second,)
    assert yard.models.list(project="p").page().items == (first, third)


def test_a_listing_continues_past_any_number_of_hidden_models(build: Any) -> None:
    yard = build.build()
    for number in range(450):
        yard.model(f"m{number}", "p" if number % 200 == 0 else "q")
    tenant = yard.as_tenant("acme", "p", "r").models
    first = tenant.list().page(limit=2)
    assert ([model.name for model in first], first.has_more) == (["m0", "m200"], True)
    rest = tenant.list().page(limit=2, after=first.items[-1].id)
    assert ([model.name for model in rest], rest.has_more) == (["m400"], False)


# ---- pages -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_pages_show_each_checkpoint_once_in_order(yard: Any, order: str, limit: int) -> None:
    model_id = trained(yard, 4)
    seen, after = [], None
    while True:
        page = yard.models.checkpoints(model_id, order=order).page(after=after, limit=limit)
        seen += steps(page)
        assert len(page.items) <= limit
        if not page.has_more:
            break
        after = page.items[-1].id
    assert seen == ([0, 1, 2, 3, 4] if order == "asc" else [4, 3, 2, 1, 0])


def test_the_latest_checkpoint_is_one_item_in_descending_order(yard: Any) -> None:
    model_id = trained(yard, 2)
    page = yard.models.checkpoints(model_id, order="desc").page(limit=1)
    assert (steps(page), page.has_more) == ([2], True)


def test_a_cursor_continues_from_its_place_after_its_item_was_deleted(yard: Any) -> None:
    model_id = trained(yard, 4)
    third = yard.models.checkpoint(model_id, 2)
    yard.models.delete_checkpoints(model_id, [2])
    assert steps(yard.models.checkpoints(model_id).page(after=third.id)) == [3, 4]
    assert steps(yard.models.checkpoints(model_id, order="desc").page(after=third.id)) == [1, 0]
    models = [yard.model(name) for name in ("a", "b", "c")]
    yard.models.delete(models[1].id)
    assert [model.name for model in yard.models.list().page(after=models[1].id)] == ["c"]


def test_a_cursor_that_never_was_one_of_this_listing_is_not_found(yard: Any) -> None:
    model_id, other_id = trained(yard, 1), trained(yard, 1, "other")
    foreign = yard.models.checkpoint(other_id, 1)
    deleted = yard.models.checkpoint(other_id, 0)
    yard.models.delete_checkpoints(other_id, [0])
    for after in (UNKNOWN, foreign.id, deleted.id, model_id):
        with pytest.raises(NotFound):
            yard.models.checkpoints(model_id).page(after=after)
        with pytest.raises(NotFound):
            yard.models.trajectory_logs(model_id).page(after=after)
    for after in (UNKNOWN, foreign.id, deleted.id):
        with pytest.raises(NotFound):
            yard.models.list().page(after=after)


@pytest.mark.parametrize("limit", [0, -1, 10_000])
def test_a_page_of_nonsense_is_refused(yard: Any, limit: int) -> None:
    with pytest.raises(InvalidInput):
        yard.models.list().page(limit)


def test_an_order_of_nonsense_is_refused(yard: Any) -> None:
    with pytest.raises(InvalidInput):
        yard.models.list(order="sideways")


@pytest.mark.slow
@examples(20)
@given(data=st.data())
def test_a_reader_misses_and_repeats_no_model_while_others_come_and_go(data: st.DataObject, build: Any) -> None:
    yard = build.build()
    alive = {yard.model(f"m{number}").id for number in range(6)}
    always, seen, after = set(alive), [], None
    for number in range(6, 40):
        page = yard.models.list().page(after=after, limit=data.draw(st.integers(1, 3)))
        seen += [model.id for model in page]
        if not page.has_more:
            break
        after = page.items[-1].id
        if data.draw(st.booleans()):
            yard.clock.jump(-5)
            yard.model(f"m{number}")
        gone = data.draw(st.sampled_from([None, *sorted(alive)]))
        if gone is not None:
            yard.models.delete(gone)
            alive.discard(gone)
            always.discard(gone)
    assert len(seen) == len(set(seen))
    assert always <= set(seen)


# ---- checkpoints -------------------------------------------------------------------------------------------------


def test_checkpoints_are_deleted_with_their_files_all_or_none_and_again_without_harm(yard: Any) -> None:
    model_id = trained(yard, 3)
    kept = {file["artifact"] for file in yard.models.checkpoint(model_id, 2).files.values()}
    done = yard.models.delete_checkpoints(model_id, [1, 3, 3, 9])
    assert (done.deleted_count, done.not_found_steps) == (2, (9,))
    assert steps(yard.models.checkpoints(model_id)) == [0, 2]
    assert yard.files() == kept
    again = yard.models.delete_checkpoints(model_id, [1, 3])
    assert (again.deleted_count, again.not_found_steps) == (0, (1, 3))
    assert yard.models.delete_checkpoints(model_id, []).deleted_count == 0


def test_a_step_number_is_never_used_twice_and_the_parent_is_the_highest_that_remains(yard: Any) -> None:
    model_id = trained(yard, 3)
    first = yard.models.checkpoint(model_id, 1)
    yard.models.delete_checkpoints(model_id, [2, 3])
    trained(yard, 1)
    latest = yard.models.checkpoint(model_id, 4)
    assert latest.parent_id == first.id
    yard.models.delete_checkpoints(model_id, [0, 1, 4])
    trained(yard, 1)
    assert yard.models.checkpoint(model_id, 5).parent_id is None


def test_the_parent_of_a_running_job_is_not_deleted_nor_anything_else_with_it(yard: Any) -> None:
    model_id = trained(yard, 2)
    job = yard.sft(4)
    yard.abandon(1)
    with pytest.raises(Conflict, match="training from step 2"):
        yard.models.delete_checkpoints(model_id, [1, 2])
    assert steps(yard.models.checkpoints(model_id)) == [0, 1, 2]
    yard.lose_worker()
    assert job.status is JobStatus.QUEUED
    with pytest.raises(Conflict, match="training from step 2"):
        yard.models.delete_checkpoints(model_id, [2])
    assert yard.models.delete_checkpoints(model_id, [1]).deleted_count == 1
    yard.worker().run_until_idle()
    assert yard.models.delete_checkpoints(model_id, [2]).deleted_count == 1


def test_the_reference_of_a_running_job_is_in_use_too_and_reaches_the_trainer(yard: Any) -> None:
    model_id = trained(yard, 3)
    plain = yard.training.rl(model_id, yard.groups(1.0)).result()
    job = yard.training.rl(model_id, yard.groups(1.0), kl_penalty_reference_step=1, kl_penalty_coef=0.1)
    yard.abandon(1)
    with pytest.raises(Conflict, match="training from step 1"):
        yard.models.delete_checkpoints(model_id, [1])
    yard.lose_worker()
    assert job.result().digest != plain.digest


def test_too_many_steps_at_once_are_refused(yard: Any) -> None:
    with pytest.raises(InvalidInput, match="at most 1000"):
        yard.models.delete_checkpoints(yard.model().id, range(1001))


def test_a_file_of_a_checkpoint_is_opened_by_its_name(yard: Any) -> None:
    model_id = trained(yard, 1)
    with yard.models.open_file(model_id, 1, "weights.bin") as file:
        assert len(file.read()) == 64
    for step, name in ((1, "other"), (0, "weights.bin"), (7, "weights.bin")):
        with pytest.raises(NotFound):
            yard.models.open_file(model_id, step, name)


# ---- deletion ----------------------------------------------------------------------------------------------------


def test_deleting_a_model_ends_its_jobs_drops_its_files_and_frees_its_name(yard: Any) -> None:
    model_id = trained(yard, 2)
    yard.models.log_trajectories(model_id, yard.groups(1.0))
    jobs = [yard.sft(4) for _ in range(3)]
    zombie = yard.abandon(3)
    gone = yard.models.delete(model_id)
    assert (gone.model_id, gone.deleted_checkpoints, gone.deleted_run) == (model_id, 3, False)
    assert list(zombie) == []
    for job in jobs:
        assert job.status is JobStatus.CANCELLED
        assert job.refresh().error_message == "cancelled by the deletion of its model"
        assert yard.story(job.id)[-1] == ("training_failed", 0)
    assert yard.files() == set()
    with pytest.raises(NotFound):
        yard.models.get(model_id)
    with pytest.raises(NotFound):
        yard.models.delete(model_id)
    assert [one.status for one in yard.training.list(model=model_id)][:2] == [JobStatus.SUCCEEDED] * 2
    assert yard.model().id != model_id
    assert yard.model().last_step == 0


def test_a_model_with_more_jobs_logs_and_checkpoints_than_one_step_takes_goes_as_a_whole(build: Any) -> None:
    yard = build.build()
    model_id = yard.model().id
    jobs = [yard.sft(1, tag=str(number)) for number in range(130)]
    for number in range(205):
        yard.models.log_trajectories(model_id, yard.groups(float(number)))
        checkpoint = Checkpoint(f"checkpoint-{number}", model_id, "acme", "p", number + 1, yard.clock.now(), "")
        yard.runtime.store.transact(lambda tx, one=checkpoint: tx.add(one))
    yard.models.delete_checkpoints(model_id, range(100, 104))
    assert yard.models.delete(model_id).deleted_checkpoints == 202
    assert {job.status for job in jobs} == {JobStatus.CANCELLED}
    assert yard.files() == set()
    left = yard.runtime.store.read(lambda s: s.page(Tombstone, "by_entity", "acme"))
    assert [tombstone.id for tombstone in left] == [model_id]


# ---- logs --------------------------------------------------------------------------------------------------------


def test_what_is_logged_is_read_back_with_its_means_by_split(yard: Any) -> None:
    model_id = trained(yard, 1)
    plain = [
        {
            "trajectories": [
                {"messages_and_choices": [], "reward": 1.0, "metrics": {"turns": 2, "ok": True, "note": "text"}},
                {"messages_and_choices": [], "reward": 0.0, "metrics": {"turns": 4}},
            ]
        }
    ]
    log = yard.models.log_trajectories(model_id, plain, "val")
    assert (log.split, log.step, log.groups, log.trajectories, log.reward) == ("val", 1, 1, 2, 0.5)
    assert log.metrics == {"turns": 3.0, "ok": 1.0}
    other = yard.models.log_trajectories(model_id, yard.groups(1.0, 2.0))
    assert [one.id for one in yard.models.trajectory_logs(model_id)] == [log.id, other.id]
    assert [one.id for one in yard.models.trajectory_logs(model_id, split="train")] == [other.id]
    assert [one.id for one in yard.models.trajectory_logs(model_id).page(after=log.id)] == [other.id]
    (group,) = yard.models.logged_trajectories(log.id)
    assert [trajectory.reward for trajectory in group.trajectories] == [1.0, 0.0]


def test_a_log_without_trajectories_has_no_mean(yard: Any) -> None:
    log = yard.models.log_trajectories(yard.model().id, [])
    assert (log.groups, log.trajectories, log.reward, dict(log.metrics)) == (0, 0, None, {})


def test_an_artifact_of_groups_can_be_logged_as_it_is(yard: Any) -> None:
    lines = [json.dumps({"messages_and_choices": [], "reward": 3.0}), json.dumps({"trajectories": []})]
    stored = yard.runtime.artifacts.put(["\n".join(lines).encode()])
    log = yard.models.log_trajectories(yard.model().id, stored)
    assert (log.artifact, log.groups, log.trajectories, log.reward) == (stored.name, 1, 1, 3.0)


@pytest.mark.parametrize("bad", [[{"trajectories": [{"reward": "much"}]}], [{}], [[]]])
def test_a_log_of_the_wrong_shape_names_the_place_and_keeps_nothing(yard: Any, bad: list[Any]) -> None:
    with pytest.raises(InvalidInput) as refused:
        yard.models.log_trajectories(yard.model().id, [*yard.groups(1.0), *bad])
    assert refused.value.problems[0].loc[:2] == ("data", 1)
    assert yard.files() == set()


def test_a_name_without_its_project_is_told_the_whole_one(yard: Any) -> None:
    yard.models.create("bot", project="very-long-desk", base_model="base-model")
    with pytest.raises(NotFound, match=r"^Model 'bot' not found; did you mean 'very-long-desk/bot'"):
        yard.models.get("bot")


def test_every_operation_takes_a_model_by_value_by_id_and_by_name(yard: Any) -> None:
    model = yard.models.create("named", project="p", base_model="base-model")
    name = f"{model.entity}/p/named"
    for way in (model, model.id, "p/named", name):
        assert yard.models.get(way) == model
        assert [checkpoint.step for checkpoint in yard.models.checkpoints(way)] == [0]
        assert yard.models.checkpoint(way, 0).model_id == model.id
        assert yard.models.set_retention(way, keep_last=3).model_id == model.id
        assert yard.models.pin(way, 0).pinned
        assert list(yard.models.trajectory_logs(way)) == []
    with pytest.raises(NotFound):
        yard.models.get("p/other")
    assert yard.models.delete("p/named").model_id == model.id
