"""Evaluation runs: provenance, states, listings and scope."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from modelyard import Platform, open_platform
from modelyard.backends.echo import EchoBackend
from modelyard.domain.evaluation.run import EvaluationRun, RunState
from modelyard.domain.identity import Principal, Scope
from modelyard.domain.models import Checkpoint, Model
from modelyard.domain.schema import RECORDS
from modelyard.errors import Forbidden, InvalidInput, NotFound, RunAlreadyFinished
from modelyard.platform.evaluations.runs import Runs
from modelyard.platform.evaluations.service import Evaluations
from modelyard.platform.listing import Listing
from modelyard.platform.runtime import Settings
from modelyard.protocols import Backend, Store
from modelyard.stores.memory import MemoryStore
from modelyard.stores.sqlite import SqliteStore
from modelyard.testing.clock import ManualClock
from modelyard.testing.run_twice_store import RunTwiceStore

START = datetime(2026, 11, 20, 9, 0, tzinfo=UTC)
EVALUATION = "weave:///acme/red/object/sample_eval:EEEE"
MODEL = "weave:///acme/red/object/sample_model:MMMM"
RED = Principal("red", "acme", Scope("acme", frozenset({"red"})))


@attrs.define
class World:
    """A store, a clock, and the evaluations as a principal sees them."""

    platform: Platform
    clock: ManualClock

    def evaluations(self, principal: Principal | None = None, mode: str | None = None) -> Evaluations:
        platform = self.platform if mode is None else opened(self.store, self.clock, reference_mode=mode)
        return (platform.acting_as(principal) if principal else platform).evaluations

    @property
    def store(self) -> Store:
        return self.platform._runtime.store

    def runs(self, principal: Principal | None = None, mode: str | None = None) -> Runs:
        return self.evaluations(principal, mode).runs

    def create(self, project: str = "red", **arguments: Any) -> EvaluationRun:
        """A run that starts a second after the one before."""
        self.clock.advance(1)
        given = {"evaluation": EVALUATION, "model": MODEL, **arguments}
        return self.runs().create(project=project, **given)


def opened(store: Store, clock: ManualClock, backend: Backend | None = None, **settings: Any) -> Platform:
    backend = backend or EchoBackend()
    return open_platform(store=store, entity="acme", backend=backend, clock=clock, settings=Settings(**settings))


def world_on(store: Store, backend: Backend | None = None) -> World:
    clock = ManualClock(START)
    return World(opened(store, clock, backend), clock)


@pytest.fixture(params=["memory", "sqlite", "run twice"])
def world(request: pytest.FixtureRequest, yard_file: Path) -> Iterator[World]:
    store: Store = MemoryStore(RECORDS)
    if request.param == "sqlite":
        store = SqliteStore(yard_file, RECORDS, durability="process")
    yield world_on(RunTwiceStore(store) if request.param == "run twice" else store)
    store.close()


def locations(error: InvalidInput) -> list[tuple[str | int, ...]]:
    return [problem.loc for problem in error.problems]


# ---- creating ----


def test_a_new_run_is_running_and_reads_back_as_it_was_made(world: World) -> None:
    run = world.create()
    assert (run.entity, run.project, run.evaluation, run.model) == ("acme", "red", EVALUATION, MODEL)
    assert (run.state, run.started_at, run.finished_at) == (RunState.RUNNING, world.clock.now(), None)
    assert (run.summary, run.source_evaluation_run_id, run.source_known) == (None, None, None)
    assert run.id[14] == "7"
    assert world.runs().get(run.id) == run


def test_provenance_is_kept_and_an_empty_source_is_none(world: World) -> None:
    first = world.create()
    assert world.create(source_evaluation_run_id=first.id).source_evaluation_run_id == first.id
    assert world.create(source_evaluation_run_id=first.id).source_known is True
    assert world.create(source_evaluation_run_id="").source_evaluation_run_id is None


def test_an_unknown_source_is_accepted_and_marked_as_is_one_that_the_caller_may_not_see(world: World) -> None:
    blue = world.create("blue")
    runs = world.runs(RED)
    for source in (blue.id, "unknown", "weave:///what/ever"):
        run = runs.create(EVALUATION, MODEL, source, project="red")
        assert (run.source_evaluation_run_id, run.source_known) == (source, False)


@pytest.mark.parametrize("source", ["x" * 129, "a\0b", "line\nbreak"])
def test_a_source_that_can_be_no_id_is_refused(world: World, source: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        world.create(source_evaluation_run_id=source)
    assert locations(refused.value) == [("source_evaluation_run_id",)]


def test_every_wrong_field_is_named_at_once_and_nothing_is_kept(world: World) -> None:
    with pytest.raises(InvalidInput) as refused:
        world.create(evaluation="", model="weave:///a/b/call/c", source_evaluation_run_id="\0")
    assert locations(refused.value) == [("evaluation",), ("model",), ("source_evaluation_run_id",)]
    assert list(world.runs().list(project="red")) == []


def test_a_model_may_be_an_op_and_our_own_scheme_is_accepted(world: World) -> None:
    run = world.create(evaluation=EVALUATION.replace("weave", "modelyard"), model="weave:///acme/red/op/predict:v1")
    assert run.evaluation.startswith("modelyard:///")


@pytest.mark.parametrize("project", ["", "..", "a/b", "x" * 129])
def test_an_invalid_project_name_is_refused(world: World, project: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        world.create(project)
    assert locations(refused.value) == [("project",)]


def test_the_lenient_mode_takes_any_text(world: World) -> None:
    run = world.runs(mode="lenient").create("my evaluation", "", project="red")
    assert (run.evaluation, run.model) == ("my evaluation", "")


# ---- strict references ----

PUBLISHED = "weave:///acme/red/object/published"


def trained(world: World, entity: str = "acme", project: str = "red", name: str = "support") -> Model:
    """A trained model with a checkpoint at steps 0 and 1, and an evaluation."""
    world.evaluations().objects.publish("evaluation", "published", {"dataset": EVALUATION}, project="red")
    model = Model(f"model-{entity}-{project}", entity, project, name, "echo", START, last_step=1)

    def step(tx: Any) -> None:
        tx.add(model)
        for number in (0, 1):
            tx.add(Checkpoint(f"{model.id}-{number}", model.id, entity, project, number, START, "digest"))

    world.store.transact(step)
    return model


def test_the_strict_mode_takes_models_and_checkpoints_that_exist(world: World) -> None:
    trained(world)
    runs = world.runs(mode="resolve")
    for version in ("", ":latest", ":step0", ":step1"):
        run = runs.create(PUBLISHED, f"weave:///acme/red/object/support{version}", project="red")
        assert runs.get(run.id) == run


@pytest.mark.parametrize(
    "model",
    [
        "object/unknown",
        "object/support:step2",
        "object/support:prod",
        "object/support:EEEE",
        "op/support",
        "object/été",
    ],
)
def test_the_strict_mode_refuses_what_is_not_here(world: World, model: str) -> None:
    trained(world)
    with pytest.raises(InvalidInput) as refused:
        world.runs(mode="resolve").create(PUBLISHED, f"weave:///acme/red/{model}", project="red")
    assert locations(refused.value) == [("model",)]


def test_the_strict_mode_refuses_a_foreign_model_as_it_does_a_missing_one(world: World) -> None:
    trained(world, project="blue")
    errors = []
    for name in ("support", "unknown"):
        with pytest.raises(InvalidInput) as refused:
            world.runs(RED, "resolve").create(PUBLISHED, f"weave:///acme/blue/object/{name}", project="red")
        errors.append(str(refused.value))
    assert errors[0] == errors[1]


def test_the_strict_mode_refuses_an_unknown_source(world: World) -> None:
    trained(world)
    runs = world.runs(mode="resolve")
    model = "weave:///acme/red/object/support"
    source = runs.create(PUBLISHED, model, project="red")
    assert runs.create(PUBLISHED, model, source.id, project="red").source_known is True
    with pytest.raises(InvalidInput) as refused:
        runs.create(PUBLISHED, model, "unknown", project="red")
    assert locations(refused.value) == [("source_evaluation_run_id",)]


def test_the_strict_mode_takes_objects_that_were_published_until_they_are_deleted(world: World) -> None:
    trained(world)
    runs, objects = world.runs(mode="resolve"), world.evaluations().objects
    model = objects.publish("model", "coded", {"source_code": "pass"}, project="red")
    op = objects.publish("op", "predict", {"source_code": "pass"}, project="red")
    for ref in (model.ref, op.ref, attrs.evolve(model.ref, version="v0"), attrs.evolve(model.ref, version=None)):
        assert runs.create(PUBLISHED, str(ref), project="red").model == str(ref)
    objects.delete("evaluation", "published", project="red")
    objects.delete("op", "predict", project="red")
    with pytest.raises(InvalidInput) as refused:
        runs.create(PUBLISHED, str(op.ref), project="red")
    assert locations(refused.value) == [("evaluation",), ("model",)]


# ---- listings and projects ----


def test_runs_are_listed_to_the_end_and_continue_after_any_of_them(world: World) -> None:
    made = [world.create().id for _ in range(5)]
    runs = world.runs()
    assert [run.id for run in runs.list(project="red")] == made
    assert [run.id for run in runs.list(project="red").page(2, after=made[1])] == made[2:4]
    assert [run.id for run in runs.list(project="red", ids=[made[4], made[0], made[3]]).after(made[0])] == made[3:]
    assert [run.id for run in runs.list(project="red", models=["weave:///e/p/object/other"])] == []
    with pytest.raises(NotFound):
        runs.list(project="blue").page(after=made[0])


def test_without_a_project_everything_is_in_the_default_one() -> None:
    with open_platform(project="support") as platform:
        evaluations, rows = platform.evaluations, [{"prompt": "a", "expected": "a"}]
        dataset = evaluations.objects.publish("dataset", "questions", {}, rows)
        result = evaluations.run("quiz", "echo", dataset)
        again = evaluations.rescore(result.run.id, "contains")
        run = evaluations.runs.create(EVALUATION, MODEL)
        answer = evaluations.predictions.create(MODEL, {}, "x", run_id=run.id)
        evaluations.scores.create(answer.id, "weave:///local/support/object/judge", 1)
        assert [one.id for one in evaluations.runs.list()] == [result.run.id, again.run.id, run.id]
        assert {one.project for one in evaluations.runs.list()} == {"support"}
        assert len(list(evaluations.predictions.list())) == 3
        assert len(list(evaluations.scores.list(run_id=run.id))) == 1
        assert [one.id for one in evaluations.objects.list("dataset")] == [dataset.id]
        assert evaluations.objects.get("dataset", "questions") == dataset
        assert evaluations.results([result, again.run, run.id]).total_rows == 2
        assert evaluations.submit("quiz", "echo", rows).project == "support"
        assert evaluations.scores.delete([]) == evaluations.runs.delete([run.id]) - 1 == 0


# ---- scope ----


def test_a_scope_that_the_caller_lacks_is_forbidden_in_every_use(world: World) -> None:
    blue, runs = world.create("blue"), world.runs(RED)
    evaluations = world.evaluations(RED)
    for place in ({"project": "blue"}, {"project": "red", "entity": "other"}):
        for act in (
            lambda place: runs.create(EVALUATION, MODEL, **place),
            lambda place: runs.list(**place),
            lambda place: runs.get(blue.id, **place),
            lambda place: runs.delete([blue.id], **place),
            lambda place: runs.finish(blue.id, **place),
            lambda place: runs.cancel(blue.id, **place),
            lambda place: evaluations.run("e", "echo", [], **place),
        ):
            with pytest.raises(Forbidden):
                act(place)
    assert world.runs().get(blue.id) == blue


def test_what_lies_outside_the_scope_looks_as_if_it_did_not_exist(world: World) -> None:
    blue, runs = world.create("blue"), world.runs(RED)
    for run_id in (blue.id, "unknown"):
        for act in (runs.get, runs.finish, runs.cancel, runs.fail):
            with pytest.raises(NotFound, match=f"^Evaluation run '{run_id}' not found$"):
                act(run_id)
        assert runs.delete([run_id], project="red") == runs.delete(run_id, project="red") == 0
        assert list(runs.list(project="red", ids=[run_id])) == []
    assert world.runs().get(blue.id) == blue


def test_a_run_is_not_found_in_another_project_than_its_own(world: World) -> None:
    run = world.create()
    assert world.runs().get(run.id, project="red") == run
    with pytest.raises(NotFound):
        world.runs().get(run.id, project="blue")
    with pytest.raises(NotFound):
        world.runs().get(run.id, project="red", entity="other")


# ---- listing ----


def test_runs_are_listed_in_the_order_in_which_they_came_also_when_the_clock_goes_back(world: World) -> None:
    first = world.create()
    same_moment = [world.runs().create(EVALUATION, MODEL, project="red") for _ in range(3)]
    world.clock.jump(-86_400)
    earlier = world.runs().create(EVALUATION, MODEL, project="red")
    world.create("blue")
    assert list(world.runs().list(project="red")) == [first, *same_moment, earlier]


def test_filters_keep_what_has_one_of_the_given_values_in_each(world: World) -> None:
    other = "weave:///acme/red/object/other"
    first = world.create()
    second = world.create(evaluation=other, source_evaluation_run_id=first.id)
    third = world.create(model=other.replace("weave", "modelyard"), source_evaluation_run_id=first.id)

    def listing(**filters: Any) -> Listing[EvaluationRun]:
        return world.runs().list(project="red", **filters)

    def found(**filters: Any) -> list[EvaluationRun]:
        return list(listing(**filters))

    assert found(evaluations=[EVALUATION]) == [first, third]
    assert found(evaluations=[EVALUATION.replace("weave", "modelyard"), other]) == [first, second, third]
    assert found(models=[other]) == found(models=[other.replace("weave", "modelyard")]) == [third]
    assert found(sources=[first.id]) == [second, third]
    assert found(sources=[first.id], models=[MODEL]) == [second]
    assert found(ids=[third.id, first.id, third.id, "unknown"]) == [first, third]
    page = listing(ids=[third.id, first.id]).page(1)
    assert (list(page), page.has_more) == ([first], True)
    assert list(listing(ids=[third.id, first.id]).page(1, after=first.id)) == [third]
    assert found(ids=[first.id], sources=[first.id]) == []


def test_a_long_listing_is_read_a_batch_at_a_time_and_misses_nothing_that_is_added_meanwhile() -> None:
    world = world_on(MemoryStore(RECORDS))
    made = [world.create() for _ in range(450)]
    pages = 0
    read = world.store.read

    def counted(query: Any) -> Any:
        nonlocal pages
        pages += 1
        return read(query)

    world.store.read = counted  # type: ignore[method-assign]
    listing = iter(world.runs().list(project="red"))
    assert pages == 0
    seen = [next(listing) for _ in range(10)]
    assert pages == 1
    late = world.create()
    seen += listing
    assert seen == [*made, late]
    assert pages == 3


def test_more_ids_than_the_bound_are_refused(world: World) -> None:
    with pytest.raises(InvalidInput):
        world.runs().delete([str(n) for n in range(1001)], project="red")


# ---- ending and deleting ----


def test_a_finished_run_keeps_its_summary_and_its_first_moment(world: World) -> None:
    run = world.create()
    world.clock.advance(60)
    summary: Mapping[str, Any] = {"accuracy": 0.5, "per": {"class": [1, 2.0, None, True]}}
    done = world.runs().finish(run.id, summary)
    assert (done.state, done.finished_at) == (RunState.COMPLETED, START + timedelta(seconds=61))
    world.clock.advance(60)
    for again in (world.runs().finish(run.id), world.runs().finish(run.id, summary), world.runs().get(run.id)):
        assert again == done
    with pytest.raises(RunAlreadyFinished):
        world.runs().finish(run.id, {"accuracy": 0.6})
    with pytest.raises(RunAlreadyFinished):
        world.runs().cancel(run.id)
    assert world.runs().get(run.id) == done


@pytest.mark.parametrize("summary", [{"x": float("nan")}, {"x": {1, 2}}, {"x": START}])
def test_a_summary_that_is_not_json_is_refused_and_the_run_continues(world: World, summary: Any) -> None:
    run = world.create()
    with pytest.raises(InvalidInput) as refused:
        world.runs().finish(run.id, summary)
    assert locations(refused.value) == [("summary", "x")]
    assert world.runs().get(run.id) == run


def test_a_summary_that_holds_itself_is_refused(world: World) -> None:
    run = world.create()
    endless: dict[str, Any] = {}
    endless["self"] = endless
    with pytest.raises(InvalidInput):
        world.runs().finish(run.id, endless)


def test_a_cancelled_and_a_failed_run_say_why(world: World) -> None:
    cancelled, failed = world.create(), world.create()
    assert world.runs().cancel(cancelled.id, "not needed").reason == "not needed"
    assert world.runs().fail(failed.id, "no room").reason == "no room"
    assert (world.runs().get(cancelled.id).status, world.runs().get(cancelled.id).state) == ("failed", "cancelled")
    assert world.runs().get(failed.id).state is RunState.FAILED
    assert world.runs().cancel(cancelled.id, "again").reason == "not needed"
    for reason in ("", "x" * 2001):
        with pytest.raises(InvalidInput):
            world.runs().fail(failed.id, reason)


def test_deleting_counts_the_runs_that_there_were(world: World) -> None:
    first, second, blue = world.create(), world.create(), world.create("blue")
    assert world.runs().delete([first.id, first.id, blue.id, "unknown"], project="red") == 1
    with pytest.raises(NotFound):
        world.runs().get(first.id)
    assert list(world.runs().list(project="red")) == [second]
    assert world.runs().get(blue.id) == blue


class Machine(RuleBasedStateMachine):
    """Runs against a plain dict of what each should be."""

    runs = Bundle("runs")

    def __init__(self) -> None:
        super().__init__()
        self.world = world_on(RunTwiceStore(MemoryStore(RECORDS)))
        self.expected: dict[str, EvaluationRun] = {}

    @rule(target=runs, source=st.none() | st.just("unknown"))
    def create(self, source: str | None) -> str:
        run = self.world.create(source_evaluation_run_id=source)
        self.expected[run.id] = run
        return run.id

    @rule(run_id=runs, summary=st.none() | st.sampled_from([{}, {"n": 1}, {"n": True}]))
    def finish(self, run_id: str, summary: dict[str, Any] | None) -> None:
        before = self.expected[run_id]
        same = summary is None or (before.summary is not None and repr(dict(before.summary)) == repr(summary))
        if before.state is RunState.RUNNING:
            changes: dict[str, Any] = {
                "state": RunState.COMPLETED,
                "finished_at": self.world.clock.now(),
                "summary": summary,
            }
            self.expected[run_id] = attrs.evolve(before, **changes)
            self.world.runs().finish(run_id, summary)
        elif before.state is RunState.COMPLETED and same:
            self.world.runs().finish(run_id, summary)
        else:
            with pytest.raises(RunAlreadyFinished):
                self.world.runs().finish(run_id, summary)

    @rule(run_id=runs, state=st.sampled_from([RunState.FAILED, RunState.CANCELLED]), reason=st.sampled_from("ab"))
    def stop(self, run_id: str, state: RunState, reason: str) -> None:
        stop = self.world.runs().fail if state is RunState.FAILED else self.world.runs().cancel
        before = self.expected[run_id]
        if before.state is RunState.RUNNING:
            changes: dict[str, Any] = {"state": state, "finished_at": self.world.clock.now(), "reason": reason}
            self.expected[run_id] = attrs.evolve(before, **changes)
        if before.state in (RunState.RUNNING, state):
            stop(run_id, reason)
        else:
            with pytest.raises(RunAlreadyFinished):
                stop(run_id, reason)

    @rule(target=runs, run_id=consumes(runs))
    def delete(self, run_id: str) -> Any:
        del self.expected[run_id]
        assert self.world.runs().delete([run_id], project="red") == 1
        return multiple()

    @rule()
    def time_passes(self) -> None:
        self.world.clock.advance(3600)

    @invariant()
    def the_listing_is_what_is_expected(self) -> None:
        assert list(self.world.runs().list(project="red")) == list(self.expected.values())


Machine.TestCase.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
TestMachine = Machine.TestCase
