"""The public `openai` client in process: files, fine-tuning, batches and tuned models, unmodified."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from modelyard import Platform
from modelyard.parts.doubles.clients import in_process
from modelyard.testing import openai_client
from openapi_check import CheckedEndpoint

HELLO: Any = [{"role": "user", "content": "hello"}]
EXAMPLE = {"messages": [*HELLO, {"role": "assistant", "content": "hello there"}]}
pytestmark = [pytest.mark.usefixtures("loopback_only"), pytest.mark.parts]


@pytest.fixture(autouse=True)
def faults(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Every exchange with the client is held against the OpenAPI document; what was not as it says."""
    monkeypatch.setattr(in_process, "Endpoint", CheckedEndpoint)
    monkeypatch.setattr(CheckedEndpoint, "faults", found := [])
    yield found
    assert found == []


@pytest.fixture(params=["https://yard.invalid/v1", "https://yard.invalid/inference/v1"])
def client(request: pytest.FixtureRequest, yard: Platform, yard_requests: Any) -> Iterator[Any]:
    yard_requests.allow_refusals()
    yard.worker().beat()
    with openai_client(yard, base_url=request.param) as client:
        yield client


def lines(*rows: Any) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


@pytest.mark.slow
def test_a_model_is_tuned_used_and_deleted(yard: Platform, client: Any) -> None:
    file = client.files.create(file=("train.jsonl", lines(*[EXAMPLE] * 4)), purpose="fine-tune")
    assert client.files.wait_for_processing(file.id).status == "processed"
    assert [each.id for each in client.files.list(purpose="fine-tune")] == [file.id]
    assert client.files.content(file.id).content == lines(*[EXAMPLE] * 4)
    held_out = client.files.create(file=("valid.jsonl", lines(EXAMPLE)), purpose="fine-tune")
    job = client.fine_tuning.jobs.create(
        model="tabular-mini",
        training_file=file.id,
        validation_file=held_out.id,
        suffix="mine",
        seed=7,
        metadata={"k": "v"},
        method={"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 2, "batch_size": "auto"}}},
    )
    assert job.status == "queued"
    client.files.delete(file.id)  # the job has its own copy
    yard.worker().run_until_idle()
    job = client.fine_tuning.jobs.retrieve(job.id)
    assert (job.status, job.hyperparameters.n_epochs, job.metadata) == ("succeeded", 2, {"k": "v"})
    assert [each.id for each in client.fine_tuning.jobs.list(limit=1)] == [job.id]
    events = list(client.fine_tuning.jobs.list_events(job.id, limit=2))
    assert [event.type for event in events] == ["message", *["metrics"] * 4, "message"]
    (checkpoint,) = client.fine_tuning.jobs.checkpoints.list(job.id)
    assert checkpoint.fine_tuned_model_checkpoint == job.fine_tuned_model
    assert checkpoint.metrics.full_valid_loss == events[1].data["full_valid_loss"] > 0
    assert client.files.content(job.result_files[0]).text.startswith("step,train_loss,train_accuracy,valid_loss")
    answer = client.chat.completions.create(model=job.fine_tuned_model, messages=HELLO, max_tokens=4)
    assert answer.model == job.fine_tuned_model
    assert client.models.retrieve(job.fine_tuned_model).id == job.fine_tuned_model
    assert client.models.delete(job.fine_tuned_model).deleted
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model=job.fine_tuned_model, messages=HELLO)


def test_a_job_is_cancelled_and_what_is_not_there_is_refused(client: Any) -> None:
    file = client.files.create(file=("train.jsonl", lines(*[EXAMPLE] * 4)), purpose="fine-tune")
    job = client.fine_tuning.jobs.create(model="tabular-mini", training_file=file.id)
    assert client.fine_tuning.jobs.pause(job.id).status == "paused"
    assert client.fine_tuning.jobs.resume(job.id).status == "queued"
    assert client.fine_tuning.jobs.cancel(job.id).status == "cancelled"
    with pytest.raises(openai.ConflictError):
        client.fine_tuning.jobs.resume(job.id)
    with pytest.raises(openai.BadRequestError, match="integrations"):
        client.fine_tuning.jobs.create(
            model="tabular-mini",
            training_file=file.id,
            integrations=[{"type": "wandb", "wandb": {"project": "p"}}],
        )


def test_a_batch_is_answered(yard: Platform, client: Any) -> None:
    requests = [
        {
            "custom_id": str(number),
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": "echo", "messages": HELLO},
        }
        for number in range(3)
    ]
    file = client.files.create(file=("requests.jsonl", lines(*requests)), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"k": "v"}
    )
    assert batch.status == "validating"
    yard.worker().run_until_idle()
    batch = client.batches.retrieve(batch.id)
    assert (batch.status, batch.request_counts.completed, batch.metadata) == ("completed", 3, {"k": "v"})
    answers = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
    assert [answer["custom_id"] for answer in answers] == ["0", "1", "2"]
    assert answers[0]["response"]["body"]["choices"][0]["message"]["content"] == "hello"
    assert [each.id for each in client.batches.list(limit=1)] == [batch.id]
    assert client.batches.cancel(batch.id).status == "completed"
