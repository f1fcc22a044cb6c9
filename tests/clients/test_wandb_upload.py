"""The public `wandb` client, unmodified, uploads training data to a served platform, and jobs train on them."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

wandb = pytest.importorskip("wandb")

ANSWERS = ("yes", "no", "perhaps", "certainly not")


def rows(count: int) -> list[dict[str, Any]]:
    return [
        {"messages": [{"role": "user", "content": f"q{at % 4}"}, {"role": "assistant", "content": ANSWERS[at % 4]}]}
        for at in range(count)
    ]


@pytest.fixture(scope="module", autouse=True)
def pointed_here(served: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The client's environment: the served platform, and folders of its own."""
    home = str(tmp_path_factory.mktemp("home"))
    folders = dict.fromkeys(("HOME", "WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"), home)
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("WANDB_")]:
            patch.delenv(name)
        for name, value in {**folders, "WANDB_BASE_URL": served.root, "WANDB_API_KEY": served.key}.items():
            patch.setenv(name, value)
        yield
        wandb.teardown()


@pytest.fixture
def run() -> Iterator[Any]:
    with wandb.init(name="agent", id="agent", entity="acme", project="proj", resume="allow") as run:
        yield run


@pytest.fixture(scope="module")
def yard(served: Any) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {served.key}"}
    with httpx.Client(base_url=f"{served.root}/v1/preview", headers=headers, timeout=60) as client:
        yield client


def artifact(path: Path, name: str, data: bytes | list[dict[str, Any]], type: str = "dataset") -> Any:
    file = path / "train.jsonl"
    file.write_bytes(data if isinstance(data, bytes) else "".join(json.dumps(row) + "\n" for row in data).encode())
    made = wandb.Artifact(name, type=type, metadata={"format": "jsonl"})
    made.add_file(str(file), name="train.jsonl")
    return made


def ask(yard: httpx.Client, name: str, artifact: str, **config: Any) -> httpx.Response:
    model = {"project": "proj", "name": name, "base_model": "tabular-mini", "return_existing": True}
    model_id = yard.post("/models", json=model).json()["id"]
    url = f"wandb-artifact:///acme/proj/{artifact}"
    body = {"model_id": model_id, "training_data_url": url, "config": config or None}
    return yard.post("/sft-training-jobs", json=body)


def test_an_uploaded_artifact_is_what_a_job_learns_from(
    run: Any, yard: httpx.Client, served: Any, tmp_path: Path
) -> None:
    logged = run.log_artifact(artifact(tmp_path, "lessons", rows(64))).wait()
    assert (logged.qualified_name, logged.version, logged.state) == ("acme/proj/lessons:v0", "v0", "COMMITTED")
    run.log({"metrics": "are taken, and not kept"})
    run.finish()
    job = ask(yard, "pupil", "lessons:v0", learning_rate=1e-3, batch_size=4).json()
    served.platform.training.job(job["id"]).wait(timeout=60)
    events = yard.get(f"/training-jobs/{job['id']}/events", params={"limit": 100}).json()["data"]
    assert [events[0]["type"], events[-1]["type"]] == ["training_started", "training_ended"]
    losses = [event["data"]["loss"] for event in events if event["type"] == "gradient_step"]
    assert len(losses) == 16
    assert losses[-1] < losses[0] / 2


def test_versions_count_up_and_the_same_rows_make_no_new_one(run: Any, tmp_path: Path) -> None:
    versions = [
        run.log_artifact(artifact(tmp_path, "versions", rows(count))).wait().version for count in (1, 2, 1, 2, 3)
    ]
    assert versions == ["v0", "v1", "v0", "v1", "v2"]
    api = wandb.Api()
    assert api.default_entity == "acme"
    assert [api.artifact(f"acme/proj/versions:{name}").version for name in ("v1", "latest")] == ["v1", "v2"]


def test_a_large_file_arrives_whole(run: Any, served: Any, tmp_path: Path) -> None:
    data = rows(10_000)
    logged = run.log_artifact(artifact(tmp_path, "large", data)).wait()
    assert logged.size > 800_000
    again = served.platform.training.upload("large", data, project="proj", entity="acme")
    assert (again.version, again.rows, again.digest) == (0, 10_000, logged.digest)


def test_an_unreadable_row_is_reported_with_its_line_when_a_job_is_created(
    run: Any, yard: httpx.Client, tmp_path: Path
) -> None:
    bad = "".join(json.dumps(row) + "\n" for row in rows(2)) + '{"messages": [{"role": "user"}]}\n'
    assert run.log_artifact(artifact(tmp_path, "bad", bad.encode())).wait().version == "v0"
    refused = ask(yard, "victim", "bad:v0")
    assert refused.status_code == 422
    assert refused.json()["detail"][0]["loc"][:4] == ["body", "training_data_url", "line", "3"]


def test_an_artifact_that_is_not_a_dataset_is_refused_in_words_that_the_client_shows(run: Any, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="artifactTypeName: must be 'dataset'"):
        run.log_artifact(artifact(tmp_path, "weights", b"x", type="model")).wait()


def test_another_s_project_is_closed(served: Any) -> None:
    served.platform.keys.create("rival")
    with pytest.raises(wandb.errors.CommError, match="this key may not use rival"):
        wandb.init(entity="rival", project="proj", settings=wandb.Settings(init_timeout=30))


def test_a_wrong_key_is_reported(served: Any) -> None:
    wrong = wandb.Settings(api_key="x" * 40, init_timeout=30)
    with pytest.raises(wandb.errors.Error, match=r"401|API key|permission"):
        wandb.init(entity="acme", project="proj", settings=wrong)
