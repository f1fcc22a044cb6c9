"""All that a platform does in time is done by one `advance`: no thread waits, and nothing happens too early."""

from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import attrs
import pytest

from modelyard.backends.echo import EchoBackend
from modelyard.backends.router import Router
from modelyard.domain.catalogue import Pricing
from modelyard.domain.job import JobStatus
from modelyard.engines.tabular.backend import TabularBackend
from modelyard.errors import BudgetExceeded, Overloaded, RateLimited, Unauthenticated
from modelyard.executors.inline import InlineExecutor
from modelyard.http.endpoint import Endpoint
from modelyard.http.message import Request
from modelyard.parts.doubles.faults.faults import Faults, Killed
from modelyard.testing.clock import ManualClock

ROWS = [
    {"messages": [{"role": "user", "content": f"question {n}"}, {"role": "assistant", "content": f"answer {n}"}]}
    for n in range(3)
]


@pytest.fixture
def platform(faults: Faults) -> Any:
    backend = Router([EchoBackend(pricing=Pricing(request=Decimal(1))), TabularBackend()])
    with faults.open_platform(backend=backend) as platform:
        platform.models.create("m", project="p", base_model="tabular-mini")
        yield platform


def ask(platform: Any) -> str:
    return str(platform.chat.complete(model="echo", messages="ok", max_tokens=1).text)


def test_the_lease_of_a_dead_worker_ends_and_that_of_a_living_one_is_extended(
    clock: ManualClock, faults: Faults, platform: Any
) -> None:
    faults.step(Killed(), at=2)
    job = platform.training.sft("p/m", ROWS, batch_size=1)
    platform.worker().run_next()
    lease = platform._runtime.settings.lease
    with platform.worker(executor=InlineExecutor()):
        clock.advance(lease - 1)
        assert (job.status, job.refresh().attempts) == (JobStatus.RUNNING, 1)
        clock.advance(2)
        assert (job.status, job.refresh().attempts) == (JobStatus.SUCCEEDED, 2)


@pytest.mark.slow
def test_a_worker_beats_while_time_goes_by_and_is_missed_when_it_is_gone(clock: ManualClock, platform: Any) -> None:
    worker = platform.worker()
    with worker:
        clock.advance(minutes=10)
        assert platform.health.system_check().worker.success
    assert not platform.health.system_check().worker.success


def test_checkpoints_are_kept_for_their_time(clock: ManualClock, platform: Any) -> None:
    for _ in range(2):
        platform.training.sft("p/m", ROWS).result()
    model = platform.models.list(project="p").page().items[0]
    platform.models.set_retention(model, ttl=timedelta(days=7))
    clock.advance(days=6, hours=23)
    assert platform.models.apply_retention(model) == ()
    clock.advance(hours=1)
    assert platform.models.apply_retention(model) == (1,)


def test_a_key_is_refused_after_its_time(clock: ManualClock, platform: Any) -> None:
    secret = platform.keys.create(expires_in=timedelta(hours=3)).secret
    clock.advance(hours=2, minutes=59)
    assert platform.keys.authenticate(secret)
    clock.advance(minutes=1)
    with pytest.raises(Unauthenticated):
        platform.keys.authenticate(secret)


def test_a_key_may_ask_again_when_its_window_has_refilled(clock: ManualClock, platform: Any) -> None:
    key = platform.keys.create(requests_per_minute=2)
    caller = platform.acting_as(platform.keys.authenticate(key.secret))
    assert [ask(caller), ask(caller)] == ["ok", "ok"]
    with pytest.raises(RateLimited) as refused:
        ask(caller)
    assert refused.value.retry_after == pytest.approx(30)
    clock.advance(30)
    assert ask(caller) == "ok"
    with pytest.raises(RateLimited):
        ask(caller)


def test_a_budget_that_the_host_renews_each_day_is_renewed(clock: ManualClock, platform: Any) -> None:
    def renew() -> None:
        spent = sum(total.cost for total in platform.usage.total())
        platform.usage.set_budget(spent + 2)
        clock.after(86_400, renew)

    renew()
    for _ in range(3):
        assert [ask(platform), ask(platform)] == ["ok", "ok"]
        with pytest.raises(BudgetExceeded):
            ask(platform)
        clock.advance(days=1)


def test_usage_is_of_its_day(clock: ManualClock, platform: Any) -> None:
    for _ in range(2):
        ask(platform)
        clock.advance(days=1)
    assert [(total.day, total.requests) for total in platform.usage.total(by=("day",))] == [
        ("2026-01-01", 1),
        ("2026-01-02", 1),
    ]


def test_an_entry_is_marked_deprecated_from_its_date_on(clock: ManualClock, platform: Any) -> None:
    old = attrs.evolve(platform.catalogue.get("echo"), id="old", deprecation_date=date(2026, 1, 3))
    platform.catalogue.register(old, answers_as="echo")
    secret = platform.keys.create().secret
    endpoint = Endpoint(platform)

    def header() -> str | None:
        headers = [("authorization", f"Bearer {secret}"), ("content-type", "application/json")]
        body = iter([b'{"model": "old", "messages": [{"role": "user", "content": "hello"}]}'])
        answer = endpoint.handle(Request("POST", "/inference/v1/chat/completions", "", headers, body))
        assert answer.status == 200
        return dict(answer.headers).get("deprecation")

    clock.advance(days=1, hours=23, minutes=59)
    assert header() is None
    clock.advance(minutes=1)
    assert header() == "@1767398400"


def test_orphans_are_swept_after_their_grace_period_without_blocking(clock: ManualClock, platform: Any) -> None:
    platform._runtime.artifacts.put([b"lost"])
    assert (platform.remove_orphans().removed, clock.monotonic()) == (1, 15 * 60)


def test_an_evaluation_repeats_what_failed_after_a_pause(clock: ManualClock, faults: Faults, platform: Any) -> None:
    faults.completion(Overloaded("full", retry_after=40), times=2)
    rows = [{"prompt": "one", "expected": "one"}]
    result = platform.evaluations.run("e", "echo", rows, project="p", retries=2)
    assert (result.score, clock.monotonic()) == (1.0, 80)


def test_what_is_scheduled_comes_in_the_order_of_time(clock: ManualClock, faults: Faults, platform: Any) -> None:
    """A fault, the job that meets it, its lease, and who takes over: all within one advance."""
    jobs: list[Any] = []
    clock.after(60, lambda: faults.step(Killed(), at=2))
    clock.after(70, lambda: jobs.append(platform.training.sft("p/m", ROWS, batch_size=1)))
    with platform.worker(executor=InlineExecutor()):
        clock.advance(minutes=3)
    (killed,), (job,) = faults.happened, jobs
    began = (killed.moment - clock.now()).total_seconds() + 180
    ended = (job.refresh().training_end - clock.now()).total_seconds() + 180
    assert 70 <= began <= 71
    assert 30 <= ended - began <= 31
