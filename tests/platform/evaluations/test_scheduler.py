"""The engine: what is stored before it counts, what is never asked twice, and how a run ends."""

import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_counts import examples
from modelyard import Platform, open_platform
from modelyard.artifacts.memory import MemoryArtifacts
from modelyard.backends.echo import EchoBackend
from modelyard.domain.catalogue import Pricing
from modelyard.domain.completion import CompletionRequest, Delta
from modelyard.domain.evaluation.run import EvaluationRun, Outcome, Prediction, RunState, Score, Source
from modelyard.domain.evaluation.scorer_rules import Combined
from modelyard.domain.evaluation.scorers import ExactMatch, LlmJudge
from modelyard.domain.identity import Limits as KeyLimits
from modelyard.domain.identity import Principal, Scope, host
from modelyard.domain.job import Job, JobEvent, JobProgress, JobStatus
from modelyard.domain.models import Checkpoint, Model
from modelyard.domain.schema import RECORDS
from modelyard.errors import (
    BackendError,
    Conflict,
    Forbidden,
    InvalidInput,
    JobFailed,
    LeaseLost,
    ModelNotFound,
    NotFound,
    Overloaded,
    RunAlreadyFinished,
    StoreError,
    UnsupportedParameter,
)
from modelyard.executors.inline import InlineExecutor
from modelyard.parts.scripted.backend import ScriptedBackend
from modelyard.platform.evaluations.objects import Objects
from modelyard.platform.evaluations.result import EvaluationResult
from modelyard.platform.evaluations.scorers import name_scorers
from modelyard.platform.evaluations.service import Evaluations
from modelyard.platform.evaluations.spec import limits_of
from modelyard.platform.jobs.claims import requester_principal
from modelyard.platform.jobs.worker import Worker
from modelyard.protocols import Capabilities, ServedModel, Store
from modelyard.stores.memory import MemoryStore
from modelyard.stores.sqlite import SqliteStore
from modelyard.testing.clock import ManualClock
from modelyard.testing.run_twice_store import RunTwiceStore

START = datetime(2026, 11, 20, 9, 0, tzinfo=UTC)
EVALUATION = "weave:///acme/red/object/sample_eval:EEEE"
RED = Principal("red", "acme", Scope("acme", frozenset({"red"})))
ROWS: list[dict[str, Any]] = [
    {"prompt": "one", "expected": "one"},
    {"messages": [{"role": "user", "content": "two"}], "expected": "2"},
    {"messages": [{"role": "system", "content": "Echo."}, {"role": "user", "content": "three"}], "expected": "three"},
]


class HurriedClock(ManualClock):
    """A caller that waits has waited: time passes at once."""

    waited: list[float]

    def __init__(self) -> None:
        super().__init__(START)
        self.waited = []

    def wait(self, event: threading.Event, seconds: float) -> bool:
        if not event.wait(0.001):
            self.waited.append(seconds)
            self.advance(seconds)
        return event.is_set()

    def sleep(self, seconds: float) -> None:
        self.waited.append(seconds)
        self.advance(seconds)


@attrs.define
class World:
    """A platform's parts, and what was kept in its store."""

    platform: Platform

    @property
    def runtime(self) -> Any:
        """What the platform runs on: its store, and what functions of the package are called with."""
        return self.platform._runtime

    def evaluations(self, principal: Principal | None = None) -> Evaluations:
        return (self.platform.acting_as(principal) if principal else self.platform).evaluations

    def run(self, rows: Any, model: Any = "echo", scorers: Any = "exact_match", **options: Any) -> EvaluationResult:
        result = self.evaluations().run("e", model, rows, scorers, project="red", **options)
        assert isinstance(result, EvaluationResult)
        return result

    def listed(self) -> list[EvaluationRun]:
        return list(self.evaluations().runs.list(project="red"))

    def predictions(self, run_id: str) -> list[Prediction]:
        return self.runtime.store.read(lambda s: s.page(Prediction, "by_run", run_id, limit=10_000))

    def scores(self, run_id: str) -> list[Score]:
        return self.runtime.store.read(lambda s: s.page(Score, "by_run", run_id, limit=10_000))

    def jobs(self, run_id: str) -> list[Job]:
        return self.runtime.store.read(lambda s: s.page(Job, "of_lane", run_id))

    def worker(self) -> Worker:
        return self.platform.worker(executor=InlineExecutor())

    def files(self) -> list[str]:
        return list(self.runtime.artifacts.names())


def world_on(store: Store | None = None, backend: Any = None, clock: ManualClock | None = None) -> World:
    return World(
        open_platform(
            entity="acme",
            store=store or MemoryStore(RECORDS),
            artifacts=MemoryArtifacts(_numbered_bytes()),
            backend=backend or EchoBackend(),
            trainers=(),
            clock=clock or HurriedClock(),
            randomness=bytes,
        )
    )


def _numbered_bytes() -> Callable[[int], bytes]:
    numbers = iter(range(10**9))
    return lambda size: next(numbers).to_bytes(size, "big")


@pytest.fixture(params=["memory", "sqlite", "run twice"])
def world(request: pytest.FixtureRequest, yard_file: Path) -> Iterator[World]:
    store: Store = MemoryStore(RECORDS)
    if request.param == "sqlite":
        store = SqliteStore(yard_file, RECORDS, durability="process")
    yield world_on(RunTwiceStore(store) if request.param == "run twice" else store)
    store.close()


@pytest.fixture
def row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Finished rows wait for no others before they are committed."""
    monkeypatch.setattr("modelyard.platform.evaluations.row_evaluation.COMMITTED_TOGETHER", 1)


def numbered(count: int) -> list[dict[str, Any]]:
    return [{"prompt": f"question {at}", "number": at, "expected": f"question {at}"} for at in range(count)]


class BreaksOff:
    """Rows that break off after the first."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        yield {"prompt": "x"}
        raise KeyError("row 2")


BREAKS_OFF = BreaksOff()


def half(output: str, row: Mapping[str, Any]) -> float:
    return 0.5


# ---- asking and scoring ----


def test_a_model_answers_every_row_and_is_scored_by_exact_match(world: World) -> None:
    result = world.run(ROWS)
    assert result.score == pytest.approx(2 / 3)
    assert [(row.output, row.score) for row in result.rows] == [("one", 1.0), ("two", 0.0), ("three", 1.0)]
    assert list(result.errors) == []
    run = world.evaluations().runs.get(result.run.id)
    assert run == result.run
    assert run.state is RunState.COMPLETED
    assert run.evaluation == "weave:///acme/red/object/e"
    assert run.model == "weave:///acme/red/object/echo"
    counts = {
        "trials": 3,
        "scored": 3,
        "unscored": 0,
        "scorer_errors": 0,
        "model_errors": 0,
        "mean": 2 / 3,
        "kind": "binary",
    }
    assert run.summary == {
        "scorer": "exact_match",
        **counts,
        "scorers": {"exact_match": counts},
        "usage": {
            "model": {"prompt_tokens": 4, "completion_tokens": 3, "cost": "0"},
            "judge": {"prompt_tokens": None, "completion_tokens": None, "cost": None},
        },
        "possibly_repeated": 0,
    }


def test_every_prediction_names_its_model_and_price_and_every_score_its_scorer() -> None:
    pricing = Pricing(Decimal("0.5"), Decimal("0.25"))
    world = world_on(backend=EchoBackend(pricing=pricing))
    result = world.run(ROWS, scorers=[half, "exact_match"])
    for prediction in world.predictions(result.run.id):
        assert prediction.model == "weave:///acme/red/object/echo"
        assert prediction.source is Source.ENGINE
        assert prediction.price == {"prompt": "0.5", "completion": "0.25"}
        assert prediction.prompt_tokens is not None
        assert prediction.completion_tokens is not None
        assert (
            prediction.cost
            == prediction.prompt_tokens * pricing.prompt + prediction.completion_tokens * pricing.completion
        )
        assert (prediction.attempts, prediction.possibly_repeated, prediction.checkpoint_step) == (1, 0, None)
    scorers = Counter(score.scorer.rsplit(":", 1)[0] for score in world.scores(result.run.id))
    assert scorers == {"weave:///acme/red/object/half": 3, "weave:///acme/red/object/exact_match": 3}
    assert {len(score.scorer.rsplit(":", 1)[1]) for score in world.scores(result.run.id)} == {43}


def test_another_version_of_a_scorer_has_another_reference(world: World) -> None:
    def references(**fields: Any) -> set[str]:
        result = world.run(ROWS, scorers={"type": "contains", **fields})
        return {score.scorer for score in world.scores(result.run.id)}

    assert references() == references(ignore_case=False)
    assert references() != references(ignore_case=True)


def test_rows_that_go_wrong_are_kept_counted_and_in_no_mean() -> None:
    def answer(request: CompletionRequest) -> str:
        if request.messages[-1].text == "fail":
            raise BackendError("out of order")
        return request.messages[-1].text

    def scorer(output: str, row: Mapping[str, Any]) -> Any:
        return {"good": 1, "bad": 0, "odd": [1], "none": None, "nan": float("nan")}[output]

    world = world_on(backend=ScriptedBackend(answer))
    rows: list[dict[str, Any]] = [{"prompt": word} for word in ("good", "fail", "missing", "odd", "none", "bad", "nan")]
    result = world.run([*rows, {"question": "no prompt"}], "scripted", scorer)
    assert [row.outcome for row in result.rows] == [
        Outcome.SCORED,
        Outcome.MODEL_ERROR,
        Outcome.SCORER_ERROR,
        Outcome.SCORER_ERROR,
        Outcome.UNSCORED,
        Outcome.SCORED,
        Outcome.UNSCORED,
        Outcome.MODEL_ERROR,
    ]
    assert result.score == 0.5
    assert [row.index for row in result.errors] == [1, 2, 3, 7]
    assert "out of order" in result.rows[1].detail
    assert "KeyError" in result.rows[2].detail
    assert "list" in result.rows[3].detail
    assert result.rows[6].detail == "the score is nan"
    assert "messages" in result.rows[-1].detail
    assert result.rows[1].row == {"prompt": "fail"}
    assert len(world.scores(result.run.id)) == 6


@pytest.mark.parametrize("output", ["\ud800", {"a": float("nan")}, 2**70, object()])
def test_an_output_that_no_store_can_keep_is_the_models_error(world: World, output: Any) -> None:
    result = world.run([{"prompt": "x"}], lambda row: output, half)
    assert [row.outcome for row in result.rows] == [Outcome.MODEL_ERROR]


def test_without_rows_no_run_is_created(world: World) -> None:
    read = iter(ROWS)
    list(read)
    empty = world.evaluations().objects.publish("dataset", "empty", {}, [], project="red")
    for rows in (read, [], empty, str(empty.ref)):
        with pytest.raises(InvalidInput, match="rows: there are none; an iterator that was read before has none left"):
            world.run(rows)
    assert (world.listed(), len(world.files())) == ([], 1)


def trained(world: World) -> Model:
    """A trained model with a checkpoint at steps 0 and 1."""
    model = Model("model-id", "acme", "red", "support", "echo", START, last_step=1)

    def step(tx: Any) -> None:
        tx.add(model)
        for number in (0, 1):
            tx.add(Checkpoint(f"{model.id}-{number}", model.id, "acme", "red", number, START, "digest"))

    world.runtime.store.transact(step)
    return model


def test_a_trained_model_is_held_at_its_checkpoint_and_run_and_predictions_say_which(world: World) -> None:
    model = trained(world)
    checkpoint = world.runtime.store.read(lambda s: s.get(Checkpoint, "model-id-0"))
    latest = "weave:///acme/red/object/support:step1"
    rows = [{"prompt": "x", "expected": "x"}]
    for name in ("acme/red/support", "acme/red/support:latest", "weave:///acme/red/object/support", model):
        result = world.run(rows, name)
        assert result.run.model == latest
        assert [p.checkpoint_step for p in world.predictions(result.run.id)] == [1]
    for name in (latest.replace("step1", "step0"), checkpoint):
        assert [p.checkpoint_step for p in world.predictions(world.run(rows, name).run.id)] == [0]


def test_an_entry_of_the_catalogue_is_named_by_its_reference_unless_that_stands_for_another_thing(world: World) -> None:
    catalogue = world.platform.catalogue
    for name in ("Lab/Parrot", "lab_twin", "Lab/twin"):
        catalogue.register(attrs.evolve(catalogue.get("echo"), id=name), answers_as="echo")
    own = world.run(ROWS, "Lab/Parrot").run.model
    assert own == "weave:///acme/red/object/lab_parrot"
    assert (world.run(ROWS, own).run.model, world.run(ROWS, f"{own}:latest").run.model) == (own, own)
    for ref in (f"{own}:v0", own.replace("object", "op"), own.replace("parrot", "cat")):
        with pytest.raises(ModelNotFound):
            world.run(ROWS, ref)
    with pytest.raises(InvalidInput, match="Lab/twin and lab_twin"):
        world.run(ROWS, "weave:///acme/red/object/lab_twin")
    with pytest.raises(InvalidInput, match="reference of a model"):
        world.run(ROWS, own.replace("object", "call"))
    with pytest.raises(Forbidden):
        world.evaluations(RED).run("e", own.replace("/red/", "/blue/"), ROWS, project="red")


def test_a_model_that_was_published_as_source_code_is_never_run(world: World) -> None:
    trained(world)
    code = world.evaluations().objects.publish("model", "support", {"source_code": "raise SystemExit"}, project="red")
    with pytest.raises(InvalidInput, match="never run"):
        world.run(ROWS, str(code.ref))
    latest = "weave:///acme/red/object/support"
    assert {world.run(ROWS, ref).run.model for ref in (latest, f"{latest}:latest", f"{latest}:step1")} == {
        f"{latest}:step1"
    }
    other = world.evaluations().objects.publish("model", "echo", {"source_code": "raise SystemExit"}, project="red")
    with pytest.raises(InvalidInput, match="never run"):
        world.run(ROWS, str(other.ref).rpartition(":")[0])


def test_training_that_ends_meanwhile_does_not_change_the_model_under_test() -> None:
    requested: list[int] = []

    class Witness(EchoBackend):
        """Notes the checkpoints that it is asked for."""

        def stream(self, request: CompletionRequest, model: ServedModel) -> Iterator[Delta]:
            requested.append(-1 if model.checkpoint is None else model.checkpoint.step)
            return super().stream(request, model)

    world = world_on(backend=Witness())
    model = trained(world)

    def learned(done: int, total: int | None, numbers: Mapping[str, float]) -> None:
        if done == 1:
            newer = Checkpoint("newer", model.id, model.entity, model.project, 2, START, "digest")
            world.runtime.store.transact(lambda tx: tx.add(newer))

    result = world.run(numbered(2), "acme/red/support", concurrency=1, progress=learned)
    assert (result.score, requested) == (1.0, [1, 1])


def test_several_models_in_one_call_make_several_runs(world: World) -> None:
    results = world.evaluations().run_each("e", ["echo", lambda row: "no"], iter(numbered(3)), project="red")
    assert [result.score for result in results] == [1.0, 0.0]
    echo, function = (run.model for run in world.listed())
    assert echo == "weave:///acme/red/object/echo"
    assert re.fullmatch("weave:///acme/red/op/lambda-[a-z0-9]{6}", function)
    assert world.files() == []


def test_lambdas_that_do_different_things_have_different_names(world: World) -> None:
    """And those that do the same have one: it is of their code, and of what they close over."""

    def saying(word: str) -> Any:
        return lambda row: word

    functions = [saying("a"), saying("b"), saying("a"), lambda row, word="b": word, lambda row: row["prompt"]]
    for one in functions:
        world.run(numbered(1), one)
    names = [run.model for run in world.listed()]
    assert names[0] == names[2]
    assert len(set(names)) == 4


@pytest.mark.parametrize(
    ("refusal", "arguments"),
    [
        (ModelNotFound, {"model": "unknown"}),
        (InvalidInput, {"model": ["echo"]}),
        (InvalidInput, {"model": None}),
        (InvalidInput, {"evaluation": "two:words:here"}),
        (InvalidInput, {"evaluation": "weave:///acme/red/op/x"}),
        (InvalidInput, {"scorers": "unknown"}),
        (InvalidInput, {"scorers": [half, half]}),
        (InvalidInput, {"scorers": 5}),
        (InvalidInput, {"scorers": {"type": "regular_expression", "pattern": "("}}),
        (ModelNotFound, {"scorers": {"type": "llm_judge", "model": "unknown", "prompt": "?"}}),
        (TypeError, {"temprature": 0}),
        (InvalidInput, {"temperature": 3}),
        (InvalidInput, {"model": lambda row: "x", "temperature": 0}),
        (InvalidInput, {"trials": 0}),
        (InvalidInput, {"concurrency": True}),
        (InvalidInput, {"timeout": 0}),
        (InvalidInput, {"retries": -1}),
        (InvalidInput, {"error_budget": 1.5}),
        (InvalidInput, {"rows": [{"prompt": "x"}, "no object"]}),
        (InvalidInput, {"rows": [{"prompt": float("nan")}]}),
        (KeyError, {"rows": BREAKS_OFF}),
    ],
)
def test_what_is_wrong_before_the_first_row_makes_no_run(
    world: World, refusal: type[Exception], arguments: dict[str, Any]
) -> None:
    given = {"evaluation": "e", "model": "echo", "rows": ROWS, "project": "red", **arguments}
    with pytest.raises(refusal):
        world.evaluations().run(**given)
    assert world.listed() == []
    assert world.files() == []


@pytest.mark.parametrize(
    ("refusal", "models"), [(ModelNotFound, ["echo", "unknown"]), (InvalidInput, []), (InvalidInput, "echo")]
)
def test_every_model_of_several_is_checked_before_the_first_row(
    world: World, refusal: type[Exception], models: Any
) -> None:
    with pytest.raises(refusal):
        world.evaluations().run_each("e", models, ROWS, project="red")
    assert world.listed() == []
    assert world.files() == []


@pytest.mark.parametrize(
    ("option", "hint"),
    [("trails", "; did you mean 'trials'?"), ("temprature", "; did you mean 'temperature'?"), ("zzz", "")],
)
def test_an_unknown_option_is_a_type_error_that_names_the_nearest(world: World, option: str, hint: str) -> None:
    message = f"run() got an unexpected keyword argument '{option}'{hint}"
    given: Any = {option: 3, "project": "red"}
    for act in (world.evaluations().run, world.evaluations().submit):
        with pytest.raises(TypeError) as refused:
            act("e", "echo", ROWS, **given)
        assert str(refused.value) == message


def test_an_option_that_the_model_cannot_honour_is_refused_before_the_first_row() -> None:
    class Plain(EchoBackend):
        """An echo that declares nothing."""

        def capabilities(self, model: str) -> Capabilities:
            return Capabilities()

    world = world_on(backend=Plain())
    for option in ({"temperature": 0.5}, {"seed": 1}):
        with pytest.raises(UnsupportedParameter, match=next(iter(option))):
            world.run(ROWS, **option)
    assert world.listed() == []
    assert world.run(ROWS).score == pytest.approx(2 / 3)


# ---- trials, retries, time-outs ----


def test_each_trial_of_each_row_has_its_own_reproducible_seed() -> None:
    def seeds(**options: Any) -> list[int | None]:
        backend = ScriptedBackend(lambda request: "x")
        world = world_on(backend=backend)
        result = world.run(numbered(2), "scripted", half, trials=3, **options)
        places = [(p.index, p.trial) for p in world.predictions(result.run.id)]
        assert places == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
        return [request.sampling.seed for request in backend.requests]

    assert len(set(seeds(seed=5))) == 6
    assert seeds(seed=5) == seeds(seed=5)
    assert set(seeds(seed=5)).isdisjoint(seeds(seed=6))


def test_a_failure_that_may_pass_is_tried_again_after_a_pause_and_counted() -> None:
    failures = iter([BackendError("once"), Overloaded("twice", 7.0)])

    def answer(request: CompletionRequest) -> str:
        for failure in failures:
            raise failure
        return "well"

    clock = HurriedClock()
    world = world_on(backend=ScriptedBackend(answer), clock=clock)
    result = world.run([{"prompt": "x"}], "scripted", half, retries=2, concurrency=1)
    (prediction,) = world.predictions(result.run.id)
    assert (prediction.attempts, prediction.error, prediction.output["value"]) == (3, None, "well")
    assert [seconds for seconds in clock.waited if seconds in (0.5, 7.0)] == [0.5, 7.0]


def test_a_failure_that_does_not_pass_is_not_tried_again(world: World) -> None:
    result = world.run([{"prompt": [], "expected": ""}], retries=5)
    (prediction,) = world.predictions(result.run.id)
    assert prediction.attempts == 1
    assert prediction.error is not None


def test_retries_end_with_the_last_error(world: World) -> None:
    def broken(row: Mapping[str, Any]) -> str:
        raise ValueError("always")

    result = world.run([{"prompt": "x"}], broken, half, retries=3)
    (prediction,) = world.predictions(result.run.id)
    assert (prediction.attempts, prediction.error) == (4, "ValueError: always")


JUDGE = LlmJudge(model="scripted", prompt="Is {output} good?")
AS_DATA = {"type": "llm_judge", "model": "scripted", "prompt": "Is {output} good?"}
BESIDE = Combined({"judge": AS_DATA, "same": {"type": "exact_match"}}, "judge + same")


@pytest.mark.parametrize(
    ("scorers", "options", "wide", "tries"),
    [
        ({"judge": JUDGE}, {}, 8, 3),
        ({"judge": JUDGE}, {"concurrency": 3}, 3, 3),
        ({"both": BESIDE, "same": ExactMatch()}, {}, 8, 3),
        ({"judge": JUDGE}, {"scorer_concurrency": 2, "retries": 0}, 2, 0),
        ({"judge": JUDGE, "own": lambda output, row: 1}, {}, 1, 3),
        ({"same": ExactMatch()}, {}, 1, 3),
    ],
)
def test_judges_work_as_wide_as_the_model_and_try_again(
    scorers: Any, options: Any, wide: int, tries: int, world: World
) -> None:
    """Beside a function, which may be unsafe in threads, one at a time; what is asked for holds."""
    limits = limits_of(options, name_scorers(scorers, Objects(world.runtime, host())))
    assert (limits.scorer_concurrency, limits.judge_retries) == (wide, tries)
    assert limits.retries == options.get("retries", 0)


def test_a_judge_that_is_overloaded_is_asked_again() -> None:
    failures = iter([Overloaded("once", 1.0), BackendError("twice"), Overloaded("thrice", 1.0)])

    def answer(request: CompletionRequest) -> str:
        if "good" not in request.messages[-1].text:
            return "an answer"
        for failure in failures:
            raise failure
        return "yes"

    world = world_on(backend=ScriptedBackend(answer), clock=HurriedClock())
    result = world.run([{"prompt": "x"}], "scripted", {"judge": JUDGE})
    assert next(failures, None) is None
    assert (result.run.summary or {})["scored"] == 1


@pytest.mark.usefixtures("row_by_row")
def test_a_row_whose_time_is_up_is_an_error_and_the_others_continue() -> None:
    release, others_done, both_under_way = threading.Event(), threading.Event(), threading.Barrier(3)

    def stuck() -> None:
        both_under_way.wait(60)
        release.wait(60)

    def slow(row: Mapping[str, Any]) -> str:
        if row["number"] == 1:
            stuck()
        return str(row["prompt"])

    def scorer(output: str, row: Mapping[str, Any]) -> bool:
        if row["number"] == 2:
            stuck()
        return True

    def shown(done: int, total: int | None, numbers: Mapping[str, float]) -> None:
        if done == 2:
            others_done.set()

    def pass_time() -> None:
        both_under_way.wait(60)
        others_done.wait(60)
        clock.advance(60)

    clock = ManualClock(START)
    world = world_on(clock=clock)
    time = threading.Thread(target=pass_time)
    time.start()
    result = world.run(numbered(4), slow, scorer, timeout=60.0, scorer_concurrency=4, progress=shown)
    release.set()
    time.join()
    outcomes = {row.index: (row.outcome, row.detail) for row in result.rows}
    assert outcomes == {
        0: (Outcome.SCORED, ""),
        1: (Outcome.MODEL_ERROR, "timed out after 60 s"),
        2: (Outcome.SCORER_ERROR, "timed out after 60 s"),
        3: (Outcome.SCORED, ""),
    }


def test_the_concurrency_is_reached_and_never_exceeded() -> None:
    together, most, now, lock = threading.Barrier(3), 0, 0, threading.Lock()

    def model(row: Mapping[str, Any]) -> str:
        nonlocal most, now
        with lock:
            now += 1
            most = max(most, now)
        together.wait(60)
        with lock:
            now -= 1
        return "x"

    assert world_on().run(numbered(9), model, half, concurrency=3).score == 0.5
    assert most == 3


# ---- durable before it counts, and counted right ----


def test_rows_reported_as_done_are_stored(world: World) -> None:
    reported: list[tuple[int, int]] = []

    def shown(done: int, total: int | None, numbers: Mapping[str, float]) -> None:
        (run,) = world.listed()
        assert total == 20
        reported.append((done, len(world.predictions(run.id))))

    result = world.run(numbered(20), progress=shown, concurrency=3)
    assert reported[-1] == (20, 20)
    assert all(done == stored for done, stored in reported)
    (job,) = world.jobs(result.run.id)
    events = world.runtime.store.read(lambda s: s.page(JobEvent, "by_job", job.id, limit=1000))
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert [event.type for event in events] == [
        "evaluation_started",
        *["evaluation_progress"] * (len(events) - 2),
        "evaluation_ended",
    ]
    assert [event.step for event in events[1:-1]] == sorted({event.step for event in events[1:-1]})
    assert {event.step for event in events[1:-1]} <= {done for done, _ in reported}
    reported = {"done": 20, "total": 20, "score": 1.0, "scored": 20, "failed": 0, "cost": "0", "begun": 20, "open": ()}
    assert {**events[-2].data, "open": tuple(events[-2].data["open"])} == reported


answers = st.sampled_from([True, False, 0.25, 3, None, float("nan"), "text", [1], KeyError("x"), {"a": 1}])


@pytest.mark.slow
@examples(30)
@given(
    st.lists(st.tuples(st.booleans(), answers, answers), min_size=1, max_size=12), st.integers(1, 5), st.integers(1, 3)
)
def test_the_counts_of_every_scorer_always_add_up(
    rows: list[tuple[bool, Any, Any]], concurrency: int, trials: int
) -> None:
    def model(row: Mapping[str, Any]) -> str:
        if rows[row["at"]][0]:
            raise ValueError("fails")
        return "x"

    def scorer(which: int) -> Callable[[str, Mapping[str, Any]], Any]:
        def score(output: str, row: Mapping[str, Any]) -> Any:
            answer = rows[row["at"]][which]
            if isinstance(answer, Exception):
                raise answer
            return answer

        return score

    world = world_on()
    named = {"one": scorer(1), "two": scorer(2)}
    result = world.run([{"at": at} for at in range(len(rows))], model, named, concurrency=concurrency, trials=trials)
    assert result.run.summary is not None
    for summary in result.run.summary["scorers"].values():
        assert summary["trials"] == len(rows) * trials == sum(summary[outcome.value] for outcome in Outcome)
    assert len(result.rows) == len(rows) * trials


# ---- broken off, and resumed ----


class Witness:
    """A model that notes what it was asked, and is broken off at its nth call."""

    def __init__(self, breaks_at: int | None = None) -> None:
        self.requested: list[int] = []
        self.breaks_at = breaks_at
        self._lock = threading.Lock()

    def __call__(self, row: Mapping[str, Any]) -> str:
        with self._lock:
            self.requested.append(row["number"])
            breaks = len(self.requested) == self.breaks_at
        if breaks:
            raise KeyboardInterrupt
        return "x" * (row["number"] % 3)


def length(output: str, row: Mapping[str, Any]) -> float:
    return len(output) / 7


def scored(world: World, run_id: str) -> list[tuple[Any, ...]]:
    """What a run says of its rows, whenever and by whichever attempt it was said."""
    rows = [(p.index, p.trial, dict(p.output), p.error) for p in world.predictions(run_id)]
    scores = {s.prediction_id: dict(s.value) for s in world.scores(run_id)}
    values = [scores.get(p.id) for p in world.predictions(run_id)]
    return sorted(((*row, value) for row, value in zip(rows, values, strict=True)), key=lambda row: row[:2])


@pytest.mark.slow
@examples(20)
@given(st.integers(1, 25), st.integers(1, 6), st.integers(1, 25), st.sampled_from([1, 4, 64]))
def test_resuming_repeats_no_row_that_was_stored_and_ends_as_if_nothing_had_happened(
    count: int, concurrency: int, breaks_at: int, together: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("modelyard.platform.evaluations.row_evaluation.COMMITTED_TOGETHER", together)
        check_resuming(count, concurrency, breaks_at, concurrency + together - 1)


def check_resuming(count: int, concurrency: int, breaks_at: int, uncommitted: int) -> None:
    world, model = world_on(), Witness(breaks_at)
    rows = numbered(count)
    undisturbed = world.run(rows, Witness(), length, concurrency=concurrency)
    try:
        result = world.run(rows, model, length, concurrency=concurrency)
        assert breaks_at > count
        stored: set[int | None] = set()
    except KeyboardInterrupt:
        run = world.listed()[-1]
        assert (run.state, run.reason) == (RunState.FAILED, "interrupted")
        stored = {p.index for p in world.predictions(run.id)}
        before = list(model.requested)
        result = world.evaluations().resume(run.id, model=model, scorers=length, progress=False)
        assert result.run.id == run.id
        again = Counter(model.requested[len(before) :])
        assert stored.isdisjoint(again)
        assert max(Counter(model.requested).values()) <= 2
        repeated = set(before) & set(again)
        marked = {p.index for p in world.predictions(run.id) if p.possibly_repeated}
        assert repeated <= marked
        assert len(marked) == min(uncommitted, count - len(stored))
        assert result.run.summary is not None
        assert result.run.summary["possibly_repeated"] == len(marked)
    assert scored(world, result.run.id) == scored(world, undisturbed.run.id)
    assert result.score == undisturbed.score
    assert world.files() == []


def test_a_run_that_is_broken_off_keeps_its_rows_for_resuming_and_drops_them_then(world: World) -> None:
    with pytest.raises(KeyboardInterrupt):
        world.run(numbered(9), Witness(5), length, concurrency=1)
    (run,) = world.listed()
    assert len(world.files()) == 1
    assert len(world.predictions(run.id)) == 4
    result = world.evaluations().resume(run.id, model=Witness(), scorers=[length])
    assert [row.index for row in result.rows] == list(range(9))
    assert world.files() == []
    assert [job.status for job in world.jobs(run.id)] == [JobStatus.FAILED, JobStatus.SUCCEEDED]
    with pytest.raises(RunAlreadyFinished):
        world.evaluations().resume(run.id, model=Witness(), scorers=[length])


@pytest.mark.usefixtures("row_by_row")
def test_what_the_callers_progress_raises_breaks_the_run_off(world: World) -> None:
    def shown(done: int, total: int | None, numbers: Mapping[str, float]) -> None:
        if done == 2:
            raise LookupError("in the display")

    with pytest.raises(LookupError, match="in the display"):
        world.run(numbered(5), progress=shown, concurrency=1)
    (run,) = world.listed()
    assert (run.state, run.reason, len(world.predictions(run.id))) == (RunState.FAILED, "interrupted", 2)


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({"scorers": length}, ("model",)),
        ({"model": Witness()}, ("scorers", "length")),
        ({"model": Witness(), "scorers": {"length": half}}, ("scorers", "length")),
    ],
)
def test_resuming_needs_the_functions_that_the_run_was_begun_with(
    world: World, given: dict[str, Any], place: tuple[str, ...]
) -> None:
    with pytest.raises(KeyboardInterrupt):
        world.run(numbered(3), Witness(1), length)
    (run,) = world.listed()
    with pytest.raises(InvalidInput) as refused:
        world.evaluations().resume(run.id, **given)
    assert [problem.loc for problem in refused.value.problems] == [place]
    assert world.evaluations().runs.get(run.id).state is RunState.FAILED


def test_only_a_run_of_the_engine_in_the_callers_scope_can_be_resumed(world: World) -> None:
    made = world.evaluations().runs.create(EVALUATION, EVALUATION, project="blue")
    with pytest.raises(Conflict, match="not made by the engine"):
        world.evaluations().resume(made.id)
    with pytest.raises(NotFound):
        world.evaluations(RED).resume(made.id)


def test_a_run_that_a_worker_holds_is_not_taken_from_it() -> None:
    world = world_on()
    refused: list[str] = []

    def shown(done: int, total: int | None, numbers: Mapping[str, float]) -> None:
        (run,) = world.listed()
        if not refused:
            clock = world.platform.clock
            assert isinstance(clock, HurriedClock)
            beating = attrs.evolve(world.runtime, clock=_Beating(world))
            with pytest.raises(Conflict) as error:
                Evaluations(beating, host("acme")).resume(run.id)
            refused.append(str(error.value))

    world.run(numbered(3), progress=shown, concurrency=1)
    assert "works on" in refused[0]


class _Beating(ManualClock):
    """While a caller waits by it, the owner of the one job that is held gives a sign of life."""

    def __init__(self, world: World) -> None:
        super().__init__(START)
        self._store = world.runtime.store

    def sleep(self, seconds: float) -> None:
        def beat(tx: Any) -> None:
            (progress,) = tx.page(JobProgress, "by_held", True)
            tx.replace(attrs.evolve(progress, beat=progress.beat + 1))

        self._store.transact(beat)
        self.advance(seconds)


# ---- what is published ----


def test_every_scorer_of_a_score_is_a_version_that_can_be_read(world: World) -> None:
    result = world.run(ROWS, scorers=[half, {"type": "contains", "name": "found"}])
    objects = world.evaluations().objects
    kept = {ref: objects.resolve("scorer", ref).content for ref in {s.scorer for s in world.scores(result.run.id)}}
    by_name = {content["name"]: content for content in kept.values()}
    assert by_name["found"]["scorer"]["type"] == "contains"
    assert "return 0.5" in by_name["half"]["op_source_code"]
    world.run(ROWS, scorers=[half, {"type": "contains", "name": "found"}])
    assert len(list(objects.list("scorer", project="red"))) == 2


def published(world: World) -> str:
    """An evaluation with a dataset of three rows, a declarative scorer, and two trials."""
    objects = world.evaluations().objects
    dataset = objects.publish("dataset", "questions", {}, numbered(3), project="red")
    scorer = objects.publish("scorer", "found", {"scorer": {"type": "contains"}, "description": "x"}, project="red")
    content = {"dataset": str(dataset.ref), "scorers": [str(scorer.ref)], "trials": 2}
    return str(objects.publish("evaluation", "quiz", content, project="red").ref)


def test_a_published_evaluation_says_rows_scorers_and_trials(world: World) -> None:
    evaluation = published(world)
    result = world.evaluations().run(evaluation, "echo", project="red")
    assert (len(result.rows), result.score, result.run.evaluation) == (6, 1.0, evaluation)
    content = world.evaluations().objects.resolve("evaluation", evaluation).content
    assert {score.scorer for score in world.scores(result.run.id)} == set(content["scorers"])
    run = world.evaluations().submit(evaluation, "echo", project="red")
    assert world.evaluations().wait(run.id).score == 1.0
    assert len(world.files()) == 1  # the dataset's own rows stay
    for name in ("quiz", "weave:///acme/red/object/quiz", "weave:///acme/red/object/quiz:v0"):
        assert world.evaluations().run(name, "echo", project="red").run.evaluation == evaluation
    with pytest.raises(NotFound, match="unheard"):
        world.evaluations().run("unheard", "echo", project="red")


def test_a_dataset_may_be_named_by_its_reference_and_a_scorer_too(world: World) -> None:
    content = world.evaluations().objects.resolve("evaluation", published(world)).content
    result = world.run(content["dataset"], scorers=content["scorers"][0])
    assert (len(result.rows), result.score) == (3, 1.0)


def test_rescoring_a_run_of_a_published_evaluation_makes_a_version_with_the_new_scorers(world: World) -> None:
    evaluation = published(world)
    source = world.evaluations().run(evaluation, "echo", project="red")
    result = world.evaluations().rescore(source.run.id, "exact_match")
    new = world.evaluations().objects.resolve("evaluation", result.run.evaluation).content
    assert result.run.evaluation != evaluation
    assert set(new["scorers"]) == {score.scorer for score in world.scores(result.run.id)}
    assert new["dataset"] == world.evaluations().objects.resolve("evaluation", evaluation).content["dataset"]


def test_source_code_that_was_published_is_never_run(world: World) -> None:
    code = "def score(output): raise SystemExit"
    scorer = world.evaluations().objects.publish("scorer", "evil", {"op_source_code": code}, project="red")
    with pytest.raises(InvalidInput, match="never run"):
        world.run(ROWS, scorers=str(scorer.ref))


# ---- owners that are gone ----


def abandon(world: World, rows: int, model: Any = "echo", scorers: Any = "exact_match") -> EvaluationRun:
    """A run whose owner is never heard of again, after so many rows of ten."""

    class Gone(BaseException):
        """Stands for the death of the process: nothing of the owner's runs any more."""

    def shown(done: int, total: int | None, numbers: Mapping[str, float]) -> None:
        if done == rows:
            raise Gone

    dead = attrs.evolve(world.runtime, store=_DeafTo(world.runtime.store, Gone))
    with pytest.raises(Gone):
        Evaluations(dead, host("acme")).run(
            "e", model, numbered(10), scorers, project="red", concurrency=2, progress=_then_deaf(shown, dead.store)
        )
    (run,) = world.listed()
    assert run.state is RunState.RUNNING
    return run


class _DeafTo:
    """A store that hears nothing more once it is deaf."""

    def __init__(self, store: Store, silence: type[BaseException]) -> None:
        self._store, self.deaf = store, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def transact(self, step: Any, durable: bool = True) -> Any:
        if self.deaf:
            raise StoreError("not heard")
        return self._store.transact(step, durable)


def _then_deaf(shown: Any, store: Any) -> Any:
    def reported(done: int, total: int | None, numbers: Mapping[str, float]) -> None:
        try:
            shown(done, total, numbers)
        except BaseException:
            store.deaf = True
            raise

    return reported


def lose_owner(world: World) -> None:
    worker = world.worker()
    worker.run_next()
    clock = world.platform.clock
    assert isinstance(clock, ManualClock)
    clock.advance(world.platform.settings.lease)
    worker.run_until_idle()


@pytest.mark.usefixtures("row_by_row")
def test_a_worker_finishes_what_a_dead_owner_left_where_it_needs_no_functions(world: World) -> None:
    run = abandon(world, 4)
    before = {p.id for p in world.predictions(run.id)}
    lose_owner(world)
    done = world.evaluations().runs.get(run.id)
    assert done.state is RunState.COMPLETED
    assert len(world.predictions(run.id)) == 10
    assert before <= {p.id for p in world.predictions(run.id)}
    assert done.summary is not None
    assert (done.summary["possibly_repeated"], done.summary["mean"]) == (2, 1.0)


@pytest.mark.usefixtures("row_by_row")
def test_a_run_that_needs_functions_fails_as_interrupted_when_its_owner_is_gone_and_can_be_resumed(
    world: World,
) -> None:
    run = abandon(world, 4, scorers=half)
    lose_owner(world)
    failed = world.evaluations().runs.get(run.id)
    assert (failed.state, failed.reason) == (RunState.FAILED, "interrupted")
    result = world.evaluations().resume(run.id, scorers=half)
    assert (len(result.rows), result.score) == (10, 0.5)


@pytest.mark.usefixtures("row_by_row")
def test_resuming_waits_until_a_dead_owner_has_stood_still_for_the_lease_and_says_so(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    run = abandon(world, 4, scorers=half)
    begun = world.platform.clock.monotonic()
    result = world.evaluations().resume(run.id, scorers=half)
    assert world.platform.clock.monotonic() - begun >= world.platform.settings.lease
    assert (len(result.rows), result.score) == (10, 0.5)
    waits = "waiting up to 30 s for the lease of a worker that may have stopped responding"
    assert sum(message.endswith(waits) for message in caplog.messages) == 1


@pytest.mark.usefixtures("row_by_row")
def test_an_owner_that_was_replaced_writes_nothing_more(world: World) -> None:
    def replaced(done: int, total: int | None, numbers: Mapping[str, float]) -> None:
        def newer(tx: Any) -> None:
            (progress,) = tx.page(JobProgress, "by_held", True)
            tx.replace(attrs.evolve(progress, epoch=progress.epoch + 1, worker_id="another"))

        if done == 4:
            world.runtime.store.transact(newer)

    with pytest.raises(LeaseLost):
        world.run(numbered(20), progress=replaced, concurrency=2)
    (run,) = world.listed()
    assert (run.state, len(world.predictions(run.id))) == (RunState.RUNNING, 4)


# ---- error budgets ----


def failing(row: Mapping[str, Any]) -> str:
    if row["number"] % 2:
        raise ValueError("odd")
    return "x"


@pytest.mark.parametrize(("budget", "failed"), [(2, 3), (0, 1), (0.2, 5), (0.0, 1)])
def test_more_failed_rows_than_the_budget_end_the_run_as_failed_and_what_is_done_stays(
    world: World, budget: float, failed: int
) -> None:
    with pytest.raises(JobFailed, match="error budget"):
        world.run(numbered(20), failing, half, error_budget=budget, concurrency=1)
    (run,) = world.listed()
    assert run.state is RunState.FAILED
    assert sum(p.error is not None for p in world.predictions(run.id)) == failed
    assert run.reason is not None
    assert f"{failed} of {failed * 2} rows failed" in run.reason


def test_a_run_within_its_budget_completes_and_a_stopped_one_continues(world: World) -> None:
    assert world.run(numbered(20), failing, half, error_budget=0.5).run.state is RunState.COMPLETED
    with pytest.raises(JobFailed):
        world.run(numbered(20), failing, half, error_budget=2, concurrency=1)
    run = world.listed()[-1]
    with pytest.raises(JobFailed):
        world.evaluations().resume(run.id, model=failing, scorers=half)
    assert all(p.possibly_repeated == 0 for p in world.predictions(run.id))


def test_a_run_that_failed_by_its_budget_completes_when_the_cause_is_gone(world: World) -> None:
    with pytest.raises(JobFailed, match="then resume the run: these rows stay as they are, and as many more may fail"):
        world.run(numbered(20), failing, half, error_budget=2, concurrency=1)
    (run,) = world.listed()
    result = world.evaluations().resume(run.id, model=lambda row: "x", scorers=half)
    assert (result.run.state, len(result.rows), len(result.errors)) == (RunState.COMPLETED, 20, 3)


@pytest.mark.usefixtures("row_by_row")
def test_what_was_forgiven_stays_so_when_the_run_is_broken_off_again(world: World) -> None:
    def broken(row: Mapping[str, Any]) -> str:
        if row["number"] == 10:
            raise KeyboardInterrupt
        return "x"

    with pytest.raises(JobFailed):
        world.run(numbered(20), failing, half, error_budget=2, concurrency=1)
    (run,) = world.listed()
    with pytest.raises(KeyboardInterrupt):
        world.evaluations().resume(run.id, model=broken, scorers=half)
    result = world.evaluations().resume(run.id, model=lambda row: "x", scorers=half)
    assert (result.run.state, len(result.errors)) == (RunState.COMPLETED, 3)
    assert [p.index for p in world.predictions(run.id) if p.possibly_repeated] == [10]


# ---- cancelling ----


@pytest.mark.usefixtures("row_by_row")
def test_cancelling_keeps_what_is_done_and_ends_the_run(world: World) -> None:
    def shown(done: int, total: int | None, numbers: Mapping[str, float]) -> None:
        if done == 4:
            (run,) = world.listed()
            assert world.evaluations().runs.cancel(run.id, "enough").state is RunState.RUNNING

    with pytest.raises(JobFailed, match="enough"):
        world.run(numbered(20), progress=shown, concurrency=2)
    (run,) = world.listed()
    assert (run.state, run.reason) == (RunState.CANCELLED, "enough")
    assert 4 <= len(world.predictions(run.id)) <= 6
    assert [row.index for row in world.evaluations().result(run.id).rows][:4] == [0, 1, 2, 3]
    assert world.files() == []
    with pytest.raises(RunAlreadyFinished):
        world.evaluations().resume(run.id)


@pytest.mark.usefixtures("row_by_row")
def test_to_a_run_that_is_deleted_meanwhile_nothing_is_added(world: World) -> None:
    def shown(done: int, total: int | None, numbers: Mapping[str, float]) -> None:
        if done == 4:
            (run,) = world.listed()
            deleted.append(run.id)
            assert world.evaluations().runs.delete([run.id], project="red") == 1

    deleted: list[str] = []
    with pytest.raises(NotFound):
        world.run(numbered(20), progress=shown, concurrency=2)
    assert (world.listed(), world.predictions(deleted[0]), world.scores(deleted[0])) == ([], [], [])
    assert world.jobs(deleted[0])[-1].status is JobStatus.CANCELLED
    assert world.files() == []


def test_a_queued_run_is_cancelled_at_once(world: World) -> None:
    run = world.evaluations().submit("e", "echo", numbered(3), project="red")
    assert world.evaluations().runs.cancel(run.id).state is RunState.CANCELLED
    assert world.files() == []
    world.worker().run_until_idle()
    assert world.predictions(run.id) == []


def test_what_the_engine_works_on_is_not_finished_or_failed_by_others_and_can_be_deleted(world: World) -> None:
    run = world.evaluations().submit("e", "echo", numbered(3), project="red")
    for end in (world.evaluations().runs.finish, world.evaluations().runs.fail):
        with pytest.raises(Conflict, match="the engine works on"):
            end(run.id)
    assert world.evaluations().runs.delete([run.id], project="red") == 1
    world.worker().run_until_idle()
    assert world.predictions(run.id) == []
    assert world.files() == []


# ---- workers ----


def test_a_submitted_run_is_done_by_a_worker(world: World) -> None:
    run = world.evaluations().submit("e", "echo", ROWS, ["exact_match", {"type": "contains"}], project="red", trials=2)
    assert (run.state, world.predictions(run.id)) == (RunState.RUNNING, [])
    world.worker().run_until_idle()
    result = world.evaluations().result(run.id)
    assert (result.run.state, result.score, len(result.rows)) == (RunState.COMPLETED, pytest.approx(2 / 3), 6)


def test_waiting_without_a_worker_runs_the_job_here_and_records_its_events(world: World) -> None:
    run = world.evaluations().submit("e", "echo", ROWS, project="red")
    events = list(world.evaluations().events(run.id))
    assert [event.type for event in events] == ["evaluation_started", "evaluation_progress", "evaluation_ended"]
    assert list(world.evaluations().events(run.id, after=events[0].id)) == events[1:]
    assert world.evaluations().wait(run.id).score == pytest.approx(2 / 3)


def test_functions_cannot_be_submitted_to_workers(world: World) -> None:
    with pytest.raises(InvalidInput, match="worker"):
        world.evaluations().submit("e", "echo", ROWS, half, project="red")
    assert (world.listed(), world.files()) == ([], [])


def test_a_job_of_a_key_that_was_revoked_is_not_done(world: World) -> None:
    key = world.platform.keys.create("acme", ["red"]).key
    run = world.evaluations(key.principal()).submit("e", "echo", ROWS, project="red")
    world.platform.keys.revoke(key.id)
    world.worker().run_until_idle()
    failed = world.evaluations().runs.get(run.id)
    assert failed.state is RunState.FAILED
    assert "no longer valid" in str(failed.reason)
    assert world.evaluations().submit_resume(run.id).state is RunState.RUNNING
    world.worker().run_until_idle()
    assert world.evaluations().runs.get(run.id).state is RunState.COMPLETED


@pytest.mark.parametrize("key_id", ["", "session-7"])
def test_a_job_acts_for_its_requester_with_the_same_rights(world: World, key_id: str) -> None:
    """No caller but the host may see all, with any authenticator; their job sees what they may see."""
    asker = attrs.evolve(RED, key_id=key_id, limits=KeyLimits(5, 2))
    run = world.evaluations(asker).submit("e", "echo", ROWS, project="red")
    (job,) = world.runtime.store.read(lambda snapshot: snapshot.page(Job, "of_lane", run.id))
    assert requester_principal(world.runtime, job) == asker
    world.worker().run_until_idle()
    assert world.evaluations().runs.get(run.id).state is RunState.COMPLETED
    everyone = world.evaluations().submit("e", "echo", ROWS, project="red")
    (job,) = world.runtime.store.read(lambda snapshot: snapshot.page(Job, "of_lane", everyone.id))
    assert requester_principal(world.runtime, job) == host("acme")


# ---- rescoring ----


def test_rescoring_makes_a_new_run_that_shares_outputs_and_never_touches_the_source() -> None:
    requested: list[str] = []

    def answer(request: CompletionRequest) -> str:
        requested.append(request.messages[-1].text)
        if request.messages[-1].text == "question 1":
            raise BackendError("out of order")
        return request.messages[-1].text

    world = world_on(backend=ScriptedBackend(answer))
    source = world.run(numbered(3), "scripted")
    before = (source.run, world.predictions(source.run.id), world.scores(source.run.id))
    result = world.evaluations().rescore(source.run.id, [half, {"type": "contains"}])
    assert (source.run, world.predictions(source.run.id), world.scores(source.run.id)) == before
    assert world.evaluations().runs.get(source.run.id) == source.run
    assert len(requested) == 3
    assert result.run.id != source.run.id
    assert (result.run.source_evaluation_run_id, result.run.source_known) == (source.run.id, True)
    assert result.run.model == source.run.model
    for copy, original in zip(world.predictions(result.run.id), before[1], strict=True):
        assert (copy.source, copy.copied_from, copy.run_id) == (Source.COPIED, original.id, result.run.id)
        shared = ("output", "error", "latency", "prompt_tokens", "cost", "row_digest", "index", "trial", "attempts")
        assert all(getattr(copy, name) == getattr(original, name) for name in shared)
    assert [row.outcome for row in result.rows] == [Outcome.SCORED, Outcome.MODEL_ERROR, Outcome.SCORED]
    assert len(world.scores(result.run.id)) == 4
    assert result.run.summary is not None
    assert result.run.summary["scorers"]["contains"]["mean"] == 1.0
    assert result.run.summary["usage"]["model"]["cost"] is None


def test_a_rescoring_can_be_rescored_submitted_and_resumed(world: World) -> None:
    source = world.run(numbered(6))
    run = world.evaluations().submit_rescore(source.run.id, {"type": "contains"})
    world.worker().run_until_idle()

    calls = 0

    def breaks(output: str, row: Mapping[str, Any]) -> float:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise KeyboardInterrupt
        return 0.25

    with pytest.raises(KeyboardInterrupt):
        world.evaluations().rescore(run.id, breaks, concurrency=1)
    broken = world.listed()[-1]
    assert broken.source_evaluation_run_id == run.id
    assert len(world.predictions(broken.id)) == 3
    result = world.evaluations().resume(broken.id, scorers=breaks)
    assert (result.score, len(result.rows), calls) == (0.25, 6, 7)


def test_a_run_of_a_clients_own_predictions_can_be_rescored(world: World) -> None:
    made = world.evaluations().runs.create(EVALUATION, EVALUATION, project="red")

    def add(tx: Any) -> None:
        for at in range(3):
            row = {"expected": "x", "at": at}
            tx.add(
                Prediction(f"p{at}", "acme", "red", EVALUATION, row, f"d{at}", START, made.id, output={"value": "x"})
            )

    world.runtime.store.transact(add)
    with pytest.raises(Conflict, match="still running"):
        world.evaluations().rescore(made.id, "exact_match")
    world.evaluations().runs.finish(made.id)
    assert world.evaluations().rescore(made.id, "exact_match").score == 1.0


# ---- judges ----


def test_what_a_judge_uses_is_booked_apart() -> None:
    def answer(request: CompletionRequest) -> str:
        question = request.messages[-1].text
        return "No, it is wrong." if "question 1" in question else "Yes."

    backend = ScriptedBackend(answer)
    world = world_on(backend=backend)
    judge = {"type": "llm_judge", "model": "scripted", "prompt": "Is {output} good for {prompt}?"}
    result = world.run(numbered(2), lambda row: row["prompt"], judge)
    assert [row.score for row in result.rows] == [1.0, 0.0]
    assert sorted(request.messages[-1].text for request in backend.requests) == [
        "Is question 0 good for question 0?",
        "Is question 1 good for question 1?",
    ]
    assert result.run.summary is not None
    usage = result.run.summary["usage"]
    assert usage["model"]["prompt_tokens"] is None
    assert usage["judge"]["prompt_tokens"] == sum(s.prompt_tokens or 0 for s in world.scores(result.run.id)) > 0


def test_a_judge_that_gives_no_verdict_scores_nothing_and_its_usage_is_booked_all_the_same() -> None:
    world = world_on(backend=ScriptedBackend(lambda request: "Perhaps."))
    judge = {"type": "llm_judge", "model": "scripted", "prompt": "{output}?", "name": "grader"}
    result = world.run(numbered(1), lambda row: "x", judge)
    (score,) = world.scores(result.run.id)
    assert [row.outcome for row in result.rows] == [Outcome.UNSCORED]
    assert (score.prompt_tokens, score.judge_cost) == (1, Decimal(0))
    assert score.error is not None
    assert "no yes or no" in score.error


def test_a_judge_that_fails_is_a_scorer_error() -> None:
    def answer(request: CompletionRequest) -> str:
        raise BackendError("out of order")

    world = world_on(backend=ScriptedBackend(answer))
    judge = {"type": "llm_judge", "model": "scripted", "prompt": "{output}?"}
    assert [row.outcome for row in world.run(numbered(1), lambda row: "x", judge).rows] == [Outcome.SCORER_ERROR]
