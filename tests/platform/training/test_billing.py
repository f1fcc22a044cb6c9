"""Training is booked at its price, each step once however often it runs, and never beyond a budget."""

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import attrs
import pytest

from modelyard.backends.echo import EchoBackend
from modelyard.domain.catalogue import Pricing
from modelyard.domain.events import BudgetWarning
from modelyard.domain.job import JobStatus
from modelyard.domain.models import Checkpoint
from modelyard.errors import BudgetExceeded, Conflict, NotFound, TrainingError
from modelyard.platform.jobs.service import Jobs
from modelyard.platform.training.billing import TOKENS
from modelyard.platform.usage.service import Ledger

PRICE = Decimal("0.5")


@pytest.fixture
def priced(yard: Any) -> Any:
    backend = EchoBackend(("base-model", "echo"), pricing=Pricing(training=PRICE))
    return attrs.evolve(yard, runtime=attrs.evolve(yard.runtime, backend=backend))


def ledger(yard: Any) -> Ledger:
    return Ledger(yard.runtime, yard.principal)


def trained(yard: Any, *jobs: str) -> int:
    """The tokens of all steps of jobs, each step once, by their events."""
    steps = {event.step: event.data[TOKENS] for job in jobs for event in yard.events(job) if event.step}
    return sum(steps.values())


def booked(yard: Any) -> tuple[int, Decimal]:
    rows = list(ledger(yard).list())
    (total,) = ledger(yard).total()
    assert (total.requests, total.prompt_tokens, total.completion_tokens) == (0, 0, 0)
    assert total.trained_tokens == sum(row.trained_tokens for row in rows)
    assert total.cost == sum(row.cost for row in rows) == total.trained_tokens * PRICE
    return total.trained_tokens, total.cost


def spent(yard: Any) -> Decimal:
    budget = ledger(yard).get_budget()
    assert budget is not None
    assert budget.reserved == 0
    assert budget.spent <= budget.limit
    return budget.spent


def test_free_training_books_nothing(yard: Any) -> None:
    yard.sft()
    yard.worker().run_until_idle()
    assert list(ledger(yard).list()) == []


def test_training_is_booked_as_it_goes_at_the_price_of_its_base_model(priced: Any) -> None:
    ledger(priced).set_budget(10**6)
    job = priced.sft(rows=10)
    priced.worker().run_until_idle()
    assert booked(priced) == (trained(priced, job.id), trained(priced, job.id) * PRICE)
    assert [row.model for row in ledger(priced).list()] == ["acme/p/m"] * 3
    assert spent(priced) == booked(priced)[1]


def test_the_key_that_asked_pays(priced: Any) -> None:
    priced.model()
    tenant = priced.as_tenant("acme")
    tenant.sft()
    priced.worker().run_until_idle()
    assert {row.key_id for row in ledger(priced).list()} == {"key-id"}


@pytest.mark.parametrize("stored", range(1, 15))
def test_a_step_is_booked_once_however_often_its_worker_dies(priced: Any, stored: int) -> None:
    job = priced.sft(rows=18)
    priced.abandon(stored)
    priced.lose_worker()
    priced.worker().run_until_idle()
    assert priced.job(job.id).status is JobStatus.SUCCEEDED
    assert booked(priced)[0] == trained(priced, job.id)


@pytest.mark.parametrize("stored", [2, 5, 9])
def test_a_job_that_is_cancelled_is_booked_for_what_it_trained_on(priced: Any, stored: int) -> None:
    job = priced.sft(rows=18)
    steps = priced.abandon(stored)
    job.cancel()
    for _ in steps:
        pass
    assert priced.job(job.id).status is JobStatus.CANCELLED
    assert booked(priced)[0] == trained(priced, job.id) > 0


@pytest.mark.parametrize("limit", [0, "used up"])
def test_a_budget_of_nothing_does_not_train(priced: Any, limit: Any) -> None:
    model = priced.model()
    if limit:
        ledger(priced).set_budget(10**6)
        priced.sft(rows=6)
        priced.worker().run_until_idle()
    ledger(priced).set_budget(spent(priced) if limit else 0)
    before, files = len(list(Jobs(priced.runtime, priced.principal).list())), priced.files()
    with pytest.raises(BudgetExceeded, match=r"the budget of acme \(.* USD\) has 0(\.0)? USD left; raise it"):
        priced.sft()
    assert len(list(Jobs(priced.runtime, priced.principal).list())) == before
    assert priced.files() == files
    assert model.last_step == 0


def test_free_training_passes_a_budget_of_nothing(yard: Any) -> None:
    ledger(yard).set_budget(0)
    job = yard.sft()
    yard.worker().run_until_idle()
    assert yard.job(job.id).status is JobStatus.SUCCEEDED


def cost_of_steps(priced: Any, job_id: str, steps: int) -> Decimal:
    tokens = [event.data[TOKENS] for event in priced.events(job_id) if event.step]
    return sum(tokens[:steps]) * PRICE


@pytest.fixture
def undisturbed_cost(build: Any, yard: Any) -> Callable[[int], Decimal]:
    """What the first of the five steps of a job of ten rows cost."""
    other = build.build()
    job = other.sft(rows=10)
    other.worker().run_until_idle()
    return lambda steps: cost_of_steps(other, job.id, steps)


@pytest.mark.parametrize("steps", [1, 3, 4])
def test_a_job_that_would_overrun_fails_names_the_budget_and_leaves_the_model_alone(
    priced: Any, undisturbed_cost: Callable[[int], Decimal], steps: int
) -> None:
    ledger(priced).set_budget(undisturbed_cost(steps) + PRICE)
    job = priced.sft(rows=10)
    priced.worker().run_until_idle()
    ended = priced.job(job.id)
    assert ended.status is JobStatus.FAILED
    assert "the budget of acme" in str(ended.error_message)
    assert spent(priced) == undisturbed_cost(steps)
    assert ended.resume_step == steps // 2 * 2
    assert {file["artifact"] for file in ended.resume.values()} <= priced.files()
    made = priced.runtime.store.read(lambda snapshot: snapshot.page(Checkpoint, "by_model", ended.lane))
    assert [one.step for one in made] == [0]
    priced.training.resume(job.id)
    priced.worker().run_until_idle()
    assert spent(priced) == undisturbed_cost(steps)


def test_a_job_that_a_budget_has_ended_is_resumed_as_if_nothing_had_happened(
    priced: Any, undisturbed_cost: Callable[[int], Decimal], undisturbed: str
) -> None:
    ledger(priced).set_budget(undisturbed_cost(3) + PRICE)
    job = priced.sft(rows=10)
    priced.worker().run_until_idle()
    ledger(priced).set_budget(10**6)
    again = priced.training.resume(job.id)
    with pytest.raises(Conflict, match="once"):
        priced.training.resume(job.id)
    priced.worker().run_until_idle()
    assert priced.job(again.id).status is JobStatus.SUCCEEDED
    assert priced.digest(again.id) == undisturbed
    assert [step for _, step in priced.story(again.id) if step] == [3, 4, 5]
    assert booked(priced) == (trained(priced, job.id, again.id), spent(priced))
    assert spent(priced) == undisturbed_cost(5)
    with pytest.raises(NotFound):
        priced.as_tenant("rival").training.resume(job.id)


def test_no_checkpoint_is_made_where_its_last_steps_cannot_be_paid(priced: Any) -> None:
    ledger(priced).set_budget(10**6)
    job = priced.sft(rows=18)

    def take(item: str) -> None:
        if item == "trained":
            ledger(priced).set_budget(spent(priced))

    priced.trainer.before = take
    priced.worker().run_until_idle()
    ended = priced.job(job.id)
    assert (ended.status, ended.resume_step) == (JobStatus.FAILED, 8)
    assert spent(priced) == cost_of_steps(priced, job.id, 8)


def test_a_job_that_fails_warns_of_the_budget_that_its_last_steps_have_passed(priced: Any) -> None:
    seen: list[Any] = []
    yard = attrs.evolve(priced, runtime=attrs.evolve(priced.runtime, observer=seen.append))
    ledger(yard).set_budget(1000, entity=yard.principal.entity, warn_at="0.001")
    job = yard.sft()

    def fail(item: str) -> None:
        if item == "step 2":
            raise TrainingError("the data are bad")

    yard.trainer.before = fail
    yard.worker().run_until_idle()
    assert yard.job(job.id).status is JobStatus.FAILED
    (warning,) = [event for event in seen if isinstance(event, BudgetWarning)]
    assert (warning.entity, warning.spent) == (yard.principal.entity, spent(yard))


def test_the_job_that_passes_the_threshold_of_a_budget_warns_of_it_once(priced: Any) -> None:
    seen: list[Any] = []
    yard = attrs.evolve(priced, runtime=attrs.evolve(priced.runtime, observer=seen.append))
    ledger(yard).set_budget(1000, entity=yard.principal.entity, warn_at="0.001")
    yard.sft()
    yard.worker().run_until_idle()
    (warning,) = [event for event in seen if isinstance(event, BudgetWarning)]
    assert (warning.entity, warning.limit) == (yard.principal.entity, 1000)
    assert 1 <= warning.spent <= spent(yard)
