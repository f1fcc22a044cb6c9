"""Asking for training jobs, waiting for them, watching and reading them."""

import asyncio
import errno
import json
import os
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modelyard import open_platform
from modelyard.clock import SystemClock
from modelyard.domain.job import Job, JobKind, JobProgress, JobStatus
from modelyard.domain.training import estimated_end
from modelyard.errors import Conflict, Forbidden, InvalidInput, JobFailed, NotFound, RateLimited
from modelyard.platform.jobs.announced import MAX_WORKERS
from modelyard.platform.training.handle import MAX_AHEAD, JobHandle

UNKNOWN = "00000000-0000-7000-8000-ffffffffffff"
STORY = ["training_started", "gradient_step", "gradient_step", "training_ended"]


def plain(number: int) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": f"a {number}"}]}


def types(events: Any) -> list[str]:
    return [event.type for event in events]


# ---- asking ------------------------------------------------------------------------------------------------------


def test_a_job_waits_in_the_queue_until_a_worker_runs_it(yard: Any) -> None:
    job = yard.sft(4)
    read = job.refresh()
    assert (read.status, read.step, read.attempts, read.training_start) == (JobStatus.QUEUED, None, 0, None)
    assert read == yard.training.get(job.id)


def test_examples_in_every_form_are_the_same_training(yard: Any, tmp_path: Path) -> None:
    rows = [plain(number) for number in range(4)]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows))
    forms: list[Callable[[], Any]] = [
        lambda: rows,
        lambda: iter(rows),
        lambda: yard.training.upload("rows", rows, project="p").url,
        lambda: str(file),
        lambda: file,
    ]
    digests = {yard.training.sft(yard.model(f"m{number}"), form()).result().digest for number, form in enumerate(forms)}
    assert len(digests) == 1


@pytest.mark.parametrize("name", ["rooms", "p/rooms", "rooms:v0", "{entity}/p/rooms:latest", Path("rooms")], ids=str)
def test_the_name_of_a_dataset_is_refused_with_its_url(yard: Any, name: str | Path) -> None:
    dataset = yard.training.upload("rooms", [plain(1)], project="p")
    named = name if isinstance(name, Path) else name.format(entity=dataset.entity)
    with pytest.raises(FileNotFoundError) as refused:
        yard.training.sft(yard.model("m"), named)
    assert (refused.value.errno, refused.value.filename) == (errno.ENOENT, str(named))
    assert refused.value.strerror == f"{os.strerror(errno.ENOENT)}; the data set of that name is {dataset.url}"


@pytest.mark.parametrize("name", ["missing.jsonl", "missing", "rooms:v1", "data/rows of today.jsonl"])
def test_a_missing_file_says_how_a_dataset_is_named(yard: Any, name: str) -> None:
    yard.training.upload("rooms", [plain(1)], project="p")
    with pytest.raises(FileNotFoundError, match=r"a data set is named by its URL, modelyard:///<entity>/.*<name>: "):
        yard.training.sft(yard.model("m"), name)


def test_a_file_that_the_rows_of_a_caller_miss_is_the_callers(yard: Any) -> None:
    def rows() -> Iterator[Any]:
        raise FileNotFoundError(errno.ENOENT, "mine", "rooms")
        yield

    with pytest.raises(FileNotFoundError, match="mine: 'rooms'"):
        yard.training.sft(yard.model("m"), rows())


def test_a_model_is_named_by_value_id_or_name(yard: Any) -> None:
    model = yard.model()
    for named in (model, model.id, "p/m", "acme/p/m", "modelyard:///acme/p/m"):
        assert yard.training.sft(named, yard.examples(1)).refresh().model_id == model.id
    for unknown in (UNKNOWN, "p/other", "p/m/", "p/ m"):
        with pytest.raises(NotFound):
            yard.training.sft(unknown, yard.examples(1))


def test_the_configuration_in_force_is_kept_with_every_default(yard: Any) -> None:
    sft = yard.training.sft(yard.model(), yard.examples(4), learning_rate=[0.1, 0.2], assistant_turns="last")
    assert dict(sft.refresh().config) == {
        "learning_rate": (0.1, 0.2),
        "batch_size": 2,
        "epochs": 1,
        "assistant_turns": "last",
    }
    rl = yard.training.rl(yard.model(), yard.groups(1.0), loss_fn="ppo", learning_rate=None)
    assert rl.refresh().config["ppo"] is True
    assert rl.refresh().config["epsilon"] == 0.2
    assert rl.refresh().config["learning_rate"] == 5e-6


@pytest.mark.parametrize(
    ("options", "loc"),
    [
        ({"learning_rate": -1.0}, ("learning_rate",)),
        ({"learning_rate": [0.1, 0.2, 0.3]}, ("learning_rate",)),
        ({"learning_rate": []}, ("learning_rate",)),
        ({"batch_size": 0}, ("batch_size",)),
        ({"assistant_turns": "first"}, ("assistant_turns",)),
    ],
)
def test_a_wrong_sft_configuration_is_refused_and_nothing_is_kept(
    yard: Any, options: dict[str, Any], loc: tuple[str, ...]
) -> None:
    with pytest.raises(InvalidInput) as refused:
        yard.training.sft(yard.model(), yard.examples(4), **options)
    assert refused.value.problems[0].loc == loc
    assert yard.files() == set()
    assert yard.training.list().page().items == ()


@pytest.mark.parametrize(
    ("options", "loc"),
    [
        ({"epsilon": -1.0}, "epsilon"),
        ({"ppo": True, "loss_fn": "cispo"}, "loss_fn"),
        ({"kl_penalty_reference_step": 7}, "kl_penalty_reference_step"),
    ],
)
def test_a_wrong_rl_configuration_is_refused_and_nothing_is_kept(yard: Any, options: dict[str, Any], loc: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        yard.training.rl(yard.model(), yard.groups(1.0), **options)
    assert refused.value.problems[0].loc == (loc,)
    assert yard.files() == set()


@pytest.mark.parametrize("method", ["sft", "rl", "dpo"])
def test_an_option_that_a_method_does_not_have_is_refused_with_a_hint_and_nothing_is_kept(
    yard: Any, method: str
) -> None:
    with pytest.raises(TypeError, match=rf"{method}\(\) has no option 'learning_rat'; did you mean 'learning_rate'\?"):
        getattr(yard.training, method)(yard.model(), [], learning_rat=1)
    assert yard.files() == set()


@pytest.mark.parametrize(
    ("method", "name", "said"),
    [
        (
            "sft",
            "schedule",
            "; for this base model it has learning_rate, batch_size, epochs, assistant_turns (model",
        ),
        (
            "dpo",
            "schedule",
            "; for this base model it has batch_size, epochs, learning_rate, beta, label_smoothing (",
        ),
        ("rl", "schedule", "; for this base model it has learning_rate, ppo, "),
        ("sft", "priority", "; give needs={'priority': ...}"),
        ("rl", "accelerators", "; give needs={'accelerators': ...}"),
        ("sft", "priorty", "; give needs={'priority': ...}"),
        ("dpo", "idempotncy_key", "; did you mean 'idempotency_key'?"),
        ("sft", "num_train_epochs", "; did you mean 'epochs'?"),
        ("sft", "per_device_train_batch_size", "; did you mean 'batch_size'?"),
    ],
)
def test_an_option_that_resembles_none_is_refused_with_those_that_there_are(
    yard: Any, method: str, name: str, said: str
) -> None:
    with pytest.raises(TypeError) as refused:
        getattr(yard.training, method)(yard.model(), [], **{name: 1})
    assert str(refused.value).startswith(f"{method}() has no option {name!r}{said}")
    assert len(str(refused.value)) < 300


def test_a_bad_row_is_refused_with_its_place_and_nothing_is_kept(yard: Any, tmp_path: Path) -> None:
    bad = {"messages": [{"role": "nobody", "content": "?"}]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(plain(1)) + "\n" + json.dumps(bad))
    for data, place in (([plain(1), bad], ("data", 1)), (tmp_path / "rows.jsonl", ("line", 2))):
        for ask in (
            lambda data=data: yard.training.sft(yard.model(), data),
            lambda data=data: yard.training.upload("rows", data, project="p"),
        ):
            with pytest.raises(InvalidInput) as refused:
                ask()
            assert refused.value.problems[0].loc[:2] == place
    for ask in (lambda: yard.training.sft(yard.model(), []), lambda: yard.training.upload("rows", [], project="p")):
        with pytest.raises(InvalidInput, match="no rows"):
            ask()
    assert yard.files() == set()


def test_only_the_host_may_name_a_file(yard: Any, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(plain(1)))
    yard.model()
    tenant = yard.as_tenant("acme").training
    for data in (file, str(file), "/etc/passwd"):
        for ask in (
            lambda data=data: tenant.sft("p/m", data),
            lambda data=data: tenant.upload("rows", data, project="p"),
        ):
            with pytest.raises(InvalidInput, match="only the host may name a file"):
                ask()


def test_a_full_queue_refuses_a_job_and_its_data(build: Any) -> None:
    yard = build.build(max_queued_jobs=2)
    kept = [yard.sft(1), yard.sft(1)]
    files = yard.files()
    with pytest.raises(RateLimited):
        yard.sft(1)
    assert yard.files() == files
    assert [job.id for job in yard.training.list()] == [job.id for job in kept]


def test_the_same_history_gives_the_same_checkpoints(build: Any) -> None:
    def history() -> list[str]:
        yard = build.build()
        return [yard.sft(4).result().digest, yard.training.rl("p/m", yard.groups(1.0, 0.5)).result().digest]

    assert history() == history()


# ---- idempotency keys --------------------------------------------------------------------------------------------


def test_a_request_with_the_same_key_is_the_same_job_for_ever(yard: Any) -> None:
    def sft() -> Any:
        return yard.training.sft(yard.model(), yard.examples(4), batch_size=4, idempotency_key="monday-1")

    def rl() -> Any:
        return yard.training.rl(yard.model(), yard.groups(1.0), ppo=True, idempotency_key="monday-2")

    for ask in (sft, rl):
        first, before = ask(), yard.files()
        assert ask().id == first.id
        assert yard.files() == before
        first.wait()
        assert ask().id == first.id
    assert len(yard.training.list().page().items) == 2
    assert [type(event).__name__ for event in yard.seen].count("JobChanged") == 2 * 3


def test_a_key_holds_when_the_queue_is_full_and_when_what_the_request_named_is_gone(build: Any) -> None:
    yard = build.build(max_queued_jobs=1)
    yard.sft(2).wait()
    options = {"kl_penalty_reference_step": 0, "idempotency_key": "key"}
    job = yard.training.rl(yard.model(), yard.groups(1.0), **options)
    assert yard.training.rl(yard.model(), yard.groups(1.0), **options).id == job.id
    job.wait()
    yard.models.delete_checkpoints(yard.model().id, [0])
    assert yard.training.rl(yard.model(), yard.groups(1.0), **options).id == job.id


def test_an_idempotency_key_of_another_request_is_refused(yard: Any) -> None:
    url = yard.training.upload("rows", [plain(1)], project="p").url
    ask = yard.training.sft
    job = ask(yard.model(), yard.examples(4), idempotency_key="key")
    files = yard.files()
    others: list[Callable[[], Any]] = [
        lambda: ask(yard.model(), yard.examples(3), idempotency_key="key"),
        lambda: ask(yard.model(), yard.examples(4), batch_size=1, idempotency_key="key"),
        lambda: ask(yard.model("other"), yard.examples(4), idempotency_key="key"),
        lambda: ask(yard.model(), url, idempotency_key="key"),
        lambda: yard.training.rl(yard.model(), yard.groups(1.0), idempotency_key="key"),
    ]
    for other in others:
        with pytest.raises(Conflict, match=f"'key' was used for another request, which made job {job.id}"):
            other()
    assert (yard.files(), len(yard.training.list().page().items)) == (files, 1)


def test_another_key_is_another_job_even_for_an_equal_request_on_a_dataset(yard: Any) -> None:
    url = yard.training.upload("rows", [plain(1)], project="p").url
    jobs = [yard.training.sft(yard.model(), url, idempotency_key=key).id for key in ("a", "b", "a")]
    assert jobs[0] == jobs[2] != jobs[1]


def test_a_key_means_nothing_to_another_project_or_entity(yard: Any) -> None:
    job = yard.training.sft(yard.model(), yard.examples(1), idempotency_key="key")
    for elsewhere, project in ((yard, "q"), (yard.as_tenant("umbrella"), "p")):
        other = elsewhere.training.sft(elsewhere.model("m", project), yard.examples(1), idempotency_key="key")
        assert other.id != job.id


@pytest.mark.parametrize("key", ["", "k" * 256, "two words", "line\nbreak", "\0", "schlüssel"])
def test_what_is_not_an_idempotency_key_is_refused_before_any_data_are_read(yard: Any, key: str) -> None:
    for ask in (yard.training.sft, yard.training.rl):
        with pytest.raises(InvalidInput) as refused:
            ask(yard.model(), iter(lambda: 1 / 0, None), idempotency_key=key)
        assert refused.value.problems[0].loc == ("idempotency_key",)
    assert yard.training.sft(yard.model(), yard.examples(1), idempotency_key="!~" + "k" * 253).refresh()


# ---- what its owner sees -----------------------------------------------------------------------------------------


def test_a_waiting_job_shows_how_many_are_ahead_of_it(yard: Any) -> None:
    jobs = [yard.sft(2, model) for model in ("a", "b", "a", "c")]

    def positions() -> list[int | None]:
        each = [job.refresh().queue_position for job in jobs]
        assert [job.queue_position for job in yard.training.list()] == each
        return each

    assert positions() == [0, 1, 2, 3]
    yard.abandon(1)
    assert positions() == [None, 0, 1, 2]
    jobs[1].cancel()
    assert positions() == [None, None, 0, 1]
    yard.lose_worker()
    assert positions() == [0, None, 1, 2]


@settings(max_examples=10)
@given(asked=st.lists(st.tuples(st.sampled_from("abc"), st.integers(-2, 2)), min_size=1, max_size=6))
def test_who_is_ahead_by_priority_runs_before(asked: list[tuple[str, int]]) -> None:
    with open_platform(project="d") as platform:
        for name in "abc":
            platform.models.create(name, base_model="tabular-mini")
        needs: list[Any] = [{"priority": priority} for _, priority in asked]
        rows = [plain(1)]
        jobs = [
            platform.training.sft(f"d/{name}", rows, needs=need) for (name, _), need in zip(asked, needs, strict=True)
        ]
        worker = platform.worker()
        while waiting := [job for job in jobs if job.refresh().queue_position is not None]:
            positions = {job.refresh().queue_position: job for job in waiting}
            assert sorted(positions) == list(range(len(waiting)))
            assert worker.run_next()
            assert positions[0].refresh().status is JobStatus.SUCCEEDED


def test_counting_who_is_ahead_ends_at_a_hundred_and_reads_no_more_than_that(yard_on_disk: Any) -> None:
    yard = yard_on_disk
    jobs = [yard.sft(1, f"m{number % 60}") for number in range(MAX_AHEAD + 3)]
    assert [job.refresh().queue_position for job in jobs[-5:]] == [98, 99, 100, 100, 100]
    reads = Counting(yard.runtime.store)
    yard.runtime = attrs.evolve(yard.runtime, store=reads)
    assert yard.training.get(jobs[-1].id).queue_position == MAX_AHEAD
    assert reads.limits
    assert sorted(reads.limits) == [MAX_AHEAD, MAX_AHEAD, MAX_AHEAD, MAX_WORKERS, MAX_WORKERS]


@attrs.define
class Counting:
    """A store that notes how many records each page asks for."""

    inner: Any
    limits: list[int] = attrs.field(factory=list)

    def read(self, query: Callable[[Any], Any]) -> Any:
        return self.inner.read(lambda snapshot: query(Noting(snapshot, self.limits)))


@attrs.frozen
class Noting:
    snapshot: Any
    limits: list[int]

    def __getattr__(self, verb: str) -> Any:
        return getattr(self.snapshot, verb)

    def page(self, *args: Any, limit: int, **more: Any) -> Any:
        self.limits.append(limit)
        return self.snapshot.page(*args, limit=limit, **more)


def test_a_running_job_shows_the_last_heartbeat_of_its_worker(yard: Any) -> None:
    job = yard.sft(10)
    assert job.refresh().last_heartbeat is None
    runner = yard.runner()
    steps = runner.steps(yard.claim(runner))
    next(steps)
    assert job.refresh().last_heartbeat == yard.clock.now()
    yard.clock.advance(5)
    assert job.refresh().last_heartbeat < yard.clock.now()
    runner.beat()
    assert job.refresh().last_heartbeat == yard.clock.now()
    steps.close()
    assert job.refresh().last_heartbeat is None


def test_a_running_job_estimates_its_end_from_its_rate_so_far(yard: Any) -> None:
    job = yard.sft(10)
    started = yard.clock.now()
    estimates = []

    def before(item: str) -> None:
        estimates.append(job.refresh().estimated_end)
        yard.clock.advance(10)

    yard.trainer.before = before
    job.wait()
    seconds = [None if estimate is None else (estimate - started).total_seconds() for estimate in estimates]
    # started | steps 1 and 2, state, 3 and 4, state, 5 | the result; each has taken ten seconds.
    assert seconds == [None, None, 100, 75, 100, pytest.approx(250 / 3), 75, 87.5, 80]
    assert job.refresh().estimated_end is None


@given(
    step=st.integers(0, 2**62),
    total=st.none() | st.integers(0, 2**62),
    elapsed=st.timedeltas(min_value=-timedelta(days=400), max_value=timedelta(days=400)),
)
def test_an_estimate_is_never_in_the_past_and_never_an_error(step: int, total: int | None, elapsed: timedelta) -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    job = Job("j", JobKind.RL, "e", "p", "m", start, status=JobStatus.RUNNING, started_at=start)
    progress = JobProgress("j", start, step=step, total=total)
    estimate = estimated_end(job, progress, start + elapsed)
    assert estimate is None or estimate >= progress.time(start + elapsed)
    if step and total and total <= step:
        assert estimate == progress.time(start + elapsed)


# ---- datasets ----------------------------------------------------------------------------------------------------


def test_uploads_are_versions_and_equal_rows_are_the_version_that_has_them(yard: Any) -> None:
    first = yard.training.upload("rows", [plain(1)], project="p")
    second = yard.training.upload("rows", [plain(2)], project="p")
    again = yard.training.upload("rows", [plain(1)], project="p")
    assert (first.url, second.version, again) == ("modelyard:///acme/p/rows:v0", 1, first)
    assert (first.rows, len(yard.files())) == (1, 2)


def test_the_same_model_url_and_config_are_one_job_until_it_has_ended(yard: Any) -> None:
    url = yard.training.upload("rows", [plain(1), plain(2)], project="p").url
    ask = yard.training.sft
    first = ask(yard.model(), url)
    assert ask(yard.model(), url, batch_size=2).id == first.id
    assert ask(yard.model(), url, batch_size=1).id != first.id
    assert ask(yard.model("other"), url).id != first.id
    yard.abandon(2)
    assert ask(yard.model(), url).id == first.id
    yard.lose_worker()
    yard.worker().run_until_idle()
    assert ask(yard.model(), url).id != first.id


def test_a_url_without_version_means_the_latest_one_of_now(yard: Any) -> None:
    yard.training.upload("rows", [plain(1)], project="p")
    url = "wandb-artifact:///acme/p/rows"
    first = yard.training.sft(yard.model(), url)
    assert yard.training.sft(yard.model(), url + ":latest").id == first.id
    yard.training.upload("rows", [plain(2)], project="p")
    assert yard.training.sft(yard.model(), url).id != first.id


def test_a_dataset_outlives_the_jobs_that_read_it(yard: Any) -> None:
    dataset = yard.training.upload("rows", [plain(1)], project="p")
    yard.training.sft(yard.model(), dataset).wait()
    yard.training.sft(yard.model(), dataset.url).cancel()
    assert dataset.artifact in yard.files()


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("https://example.com/rows.jsonl", InvalidInput),
        ("file:///etc/passwd", InvalidInput),
        ("modelyard:///acme/p/rows:step1", InvalidInput),
        ("modelyard:///acme/p/rows:v1", NotFound),
        ("modelyard:///acme/p/none", NotFound),
        ("modelyard:///umbrella/p/rows:v0", Forbidden),
        ("modelyard:///acme/other/rows:v0", Forbidden),
    ],
)
def test_a_url_is_looked_up_under_the_caller_s_own_scope_and_never_fetched(
    yard: Any, url: str, error: type[Exception]
) -> None:
    yard.training.upload("rows", [plain(1)], project="p")
    yard.model()
    with pytest.raises(error):
        yard.as_tenant("acme", "p").training.sft("p/m", url)


def test_uploads_go_where_the_key_may_write(yard: Any) -> None:
    tenant = yard.as_tenant("acme", "p").training
    assert tenant.upload("rows", [plain(1)], project="p").entity == "acme"
    with pytest.raises(Forbidden):
        tenant.upload("rows", [plain(1)], project="other")
    with pytest.raises(InvalidInput):
        tenant.upload("ro ws", [plain(1)], project="p")


# ---- waiting -----------------------------------------------------------------------------------------------------


def test_without_any_worker_waiting_runs_what_is_ahead_of_the_job_and_the_job(yard: Any) -> None:
    ahead, other, job, behind = (yard.sft(2, model) for model in ("a", "b", "a", "a"))
    assert job.wait().status is JobStatus.SUCCEEDED
    assert [one.status.value for one in (ahead, other, behind)] == ["succeeded", "queued", "queued"]
    assert (job.step, job.result().step) == (2, 2)
    assert job.wait() is job


def test_waiting_raises_what_became_of_a_job_that_did_not_succeed(yard: Any) -> None:
    failed, cancelled = yard.sft(2), yard.sft(2)
    yard.trainer.before = lambda item: 1 / 0
    with pytest.raises(JobFailed, match="ZeroDivisionError") as reported:
        failed.wait()
    assert (reported.value.job_id, reported.value.job_status) == (failed.id, "failed")
    cancelled.cancel()
    with pytest.raises(JobFailed, match="cancelled by host"):
        cancelled.result()


def test_a_wait_that_is_over_gives_the_job_back(yard: Any) -> None:
    job = yard.sft(10)
    yard.trainer.before = lambda item: yard.clock.advance(1)
    with pytest.raises(TimeoutError):
        job.wait(timeout=3)
    left = yard.progress(job.id)
    assert (job.status, left.crashes) == (JobStatus.QUEUED, 0)
    assert left.step >= 1
    assert job.result().step == 1


def test_a_wait_with_a_worker_elsewhere_leaves_the_work_to_it(yard: Any) -> None:
    yard.worker().beat()
    job = yard.sft(2)
    with pytest.raises(TimeoutError):
        JobHandle(yard.runtime, yard.principal, job.id).wait(timeout=5)
    assert yard.job(job.id).attempts == 0


def test_a_wait_takes_over_when_the_worker_elsewhere_dies(yard: Any) -> None:
    yard.worker().beat()
    job = yard.sft(10)
    yard.abandon(3)
    watched = JobHandle(yard.runtime, yard.principal, job.id)
    lease, poll, before = yard.runtime.settings.lease, yard.runtime.settings.poll, yard.clock.monotonic()
    assert watched.wait().refresh().attempts == 2
    assert lease <= yard.clock.monotonic() - before <= lease + 2 * poll


def test_two_who_wait_for_one_job_run_it_once(build: Any) -> None:
    yard = build.build(poll=0.002)
    yard.runtime = attrs.evolve(yard.runtime, clock=SystemClock())
    job = yard.sft(6)
    both = threading.Barrier(2)

    def wait() -> None:
        both.wait()
        job.wait()

    threads = [threading.Thread(target=wait) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (job.refresh().attempts, job.step) == (1, 1)


# ---- watching ----------------------------------------------------------------------------------------------------


def test_events_come_live_while_the_calling_thread_runs_the_job(yard: Any) -> None:
    job = yard.sft(4)
    seen = []
    for event in job.events():
        seen.append(event)
        assert [one.id for one in yard.training.events(job.id)] == [one.id for one in seen]
    assert types(seen) == STORY
    assert [event.seq for event in seen] == [1, 2, 3, 4]
    assert [event.data.get("num_sequences") for event in seen] == [2, None, None, None]
    assert types(job.events()) == STORY
    assert types(job.events(after=seen[1].id)) == STORY[2:]


def test_who_stops_watching_gives_the_job_back(yard: Any) -> None:
    job = yard.sft(10)
    for event in job.events():
        if event.type == "gradient_step":
            break
    assert yard.job(job.id).status is JobStatus.QUEUED
    assert types(job.events()).count("gradient_step") == 5


def test_events_of_a_failed_job_end_with_its_reason(yard: Any) -> None:
    job = yard.sft(2)
    yard.trainer.before = lambda item: 1 / 0 if item == "step 1" else None
    *_, last = job.events()
    assert last.type == "training_failed"
    assert last.data["error_message"] == job.refresh().error_message


def test_events_come_on_an_event_loop_too_and_never_block_it(yard: Any) -> None:
    job, ticks, loop_threads = yard.sft(4), 0, set()
    yard.trainer.before = lambda item: loop_threads.add(threading.current_thread())

    async def main() -> list[str]:
        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        seen = [event.type async for event in job.aevents()]
        ticking.cancel()
        return seen

    assert asyncio.run(main()) == STORY
    assert ticks > 1
    assert threading.current_thread() not in loop_threads


def test_a_task_that_is_cancelled_while_it_watches_gives_the_job_back(yard: Any) -> None:
    job = yard.sft(10)
    begun, go_on = threading.Event(), threading.Event()

    def before(item: str) -> None:
        if item == "step 3":
            begun.set()
            assert go_on.wait(60)

    yard.trainer.before = before

    async def watch() -> None:
        async for _ in job.aevents():
            pass

    async def main() -> None:
        task = asyncio.create_task(watch())
        await asyncio.to_thread(begun.wait, 60)
        task.cancel()
        asyncio.get_running_loop().call_later(0, go_on.set)
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert yard.job(job.id).status is JobStatus.QUEUED
    yard.trainer.before = lambda _: None
    assert job.result().step == 1


def test_a_task_that_stops_watching_a_job_which_runs_elsewhere_is_let_go(yard: Any) -> None:
    yard.worker().beat()
    yard.runtime = attrs.evolve(
        yard.runtime, clock=SystemClock(), settings=attrs.evolve(yard.runtime.settings, poll=0.005)
    )
    job = yard.sft(4)

    async def watch() -> None:
        async with asyncio.timeout(0.05):
            async for _ in job.aevents():
                pass

    with pytest.raises(TimeoutError):
        asyncio.run(watch())
    assert yard.job(job.id).attempts == 0


# ---- reading -----------------------------------------------------------------------------------------------------


def test_events_are_read_in_pages_with_a_cursor(yard: Any) -> None:
    job, other = yard.sft(4), yard.sft(4)
    other.wait()
    first = yard.training.events(job.id).page(limit=3)
    rest = yard.training.events(job.id).page(after=first.items[-1].id, limit=3)
    assert (types(first), first.has_more, types(rest), rest.has_more) == (STORY[:3], True, STORY[3:], False)
    assert types(yard.training.events(job.id, order="desc")) == STORY[::-1]
    for after in (UNKNOWN, yard.training.events(other.id).page().items[0].id):
        with pytest.raises(NotFound):
            yard.training.events(job.id).page(after=after)


def test_jobs_are_listed_by_model_status_and_project(yard: Any) -> None:
    one, two, three = yard.sft(1, "a"), yard.sft(1, "b"), yard.sft(1, "a")
    two.cancel()
    one.wait()
    far = yard.training.sft(yard.model("m", "far"), yard.examples(1))

    def ids(**filters: Any) -> list[str]:
        return [job.id for job in yard.training.list(**filters)]

    assert ids() == [one.id, two.id, three.id, far.id]
    assert ids(order="desc") == [far.id, three.id, two.id, one.id]
    assert ids(model="p/a") == ids(model=yard.model("a")) == ids(model=yard.model("a").id) == [one.id, three.id]
    assert ids(status=JobStatus.QUEUED) == [three.id, far.id]
    assert ids(status=JobStatus.QUEUED, project="p") == ids(model="p/a", status=JobStatus.QUEUED) == [three.id]
    assert ids(project="far") == [far.id]
    assert [job.id for job in yard.training.list().page(1, after=two.id)] == [three.id]
    assert yard.training.list().page(limit=2).has_more
    assert not yard.training.list().page(after=two.id, limit=2).has_more
    with pytest.raises(NotFound):
        yard.training.list().page(after=UNKNOWN)


def test_jobs_of_another_look_as_if_they_did_not_exist(yard: Any) -> None:
    job = yard.sft(2)
    job.wait()
    for stranger in (yard.as_tenant("umbrella"), yard.as_tenant("acme", "other")):
        for call in (
            lambda one: one.get(job.id),
            lambda one: one.job(job.id),
            lambda one: one.events(job.id),
            lambda one: one.cancel(job.id),
            lambda one: one.sft(yard.model().id, yard.examples(1)),
            lambda one: one.rl(yard.model(), yard.groups(1.0)),
            lambda one: one.list().page(after=job.id),
        ):
            with pytest.raises(NotFound):
                call(stranger.training)
        assert stranger.training.list().page().items == ()
    assert [one.id for one in yard.as_tenant("acme", "p").training.list()] == [job.id]
    with pytest.raises(Forbidden):
        yard.as_tenant("acme").training.list(entity="umbrella")


def test_the_host_lists_every_entity_s_jobs_unless_one_is_named(yard: Any) -> None:
    job = yard.sft(2)
    other = yard.models.create("m", project="p", base_model="base-model", entity="umbrella")
    theirs = yard.training.sft(other, yard.examples(1))
    assert [one.id for one in yard.training.list()] == [job.id, theirs.id]
    assert [one.id for one in yard.training.list().page(after=job.id)] == [theirs.id]
    assert [one.id for one in yard.training.list(status=JobStatus.QUEUED)] == [job.id, theirs.id]
    assert [one.id for one in yard.training.list(entity="umbrella")] == [theirs.id]
    assert [one.id for one in yard.training.list(project="p")] == [job.id]


def test_a_key_s_holder_is_named_in_what_it_cancels(yard: Any) -> None:
    job = yard.sft(2)
    yard.as_tenant("acme").training.cancel(job.id)
    assert job.refresh().error_message == "cancelled by key"
    assert job.cancel().status is JobStatus.CANCELLED


def test_other_kinds_of_jobs_are_not_training_jobs(yard: Any) -> None:
    job = yard.new_job("lane", JobKind.EVALUATE)
    yard.runtime.store.transact(lambda tx: tx.add(job))
    assert yard.training.list().page().items == ()
    with pytest.raises(NotFound):
        yard.training.get(job.id)


def test_an_artifact_of_groups_can_be_trained_on_as_it_is_and_goes_with_the_job(yard: Any) -> None:
    stored = yard.runtime.artifacts.put([b'{"messages_and_choices": [], "reward": 1.0}\n{"trajectories": []}\n'])
    with pytest.raises(InvalidInput):
        yard.training.rl(yard.model(), stored, epsilon=-1.0)
    assert stored.name in yard.files()
    assert yard.training.rl(yard.model(), stored).result().step == 1
    assert stored.name not in yard.files()


# ---- methods -----------------------------------------------------------------------------------------------------


def test_a_method_that_no_trainer_lists_is_refused_with_its_name_and_the_base_model(yard: Any) -> None:
    model = yard.model()
    trainer = type("SFTOnly", (), {"methods": lambda self, base: ("sft",) if base == model.base_model else ()})()
    yard.runtime = attrs.evolve(yard.runtime, trainers=(trainer,))
    with pytest.raises(InvalidInput) as refused:
        yard.training.rl(model, yard.groups(1.0))
    (problem,) = refused.value.problems
    assert problem.loc == ("model",)
    assert problem.msg == f"its base model {model.base_model!r} is trained here by sft, not by rl"
    assert yard.files() == set()
    assert yard.training.sft(model, yard.examples(1)).status is JobStatus.QUEUED


def test_a_job_for_a_worker_elsewhere_is_taken_where_nothing_trains_the_base_model(yard: Any) -> None:
    model = yard.model()
    yard.runtime = attrs.evolve(yard.runtime, trainers=())
    assert yard.training.rl(model, yard.groups(1.0)).status is JobStatus.QUEUED


def test_rows_are_trained_on_as_often_as_is_requested(yard: Any) -> None:
    rows, model = [plain(number) for number in range(4)], yard.model("repeated")
    assert yard.training.sft(model, rows, epochs=3, batch_size=2).wait().refresh().total == 6
    for options, says in (
        ({"epochs": 0}, "epochs"),
        ({"epochs": 3, "batch_size": 2, "learning_rate": [1e-4] * 5}, "12 rows make 6 batches"),
    ):
        with pytest.raises(InvalidInput, match=says):
            yard.training.sft(model, rows, **options)
