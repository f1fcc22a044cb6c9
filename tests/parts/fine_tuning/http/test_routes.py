"""Fine-tuning over HTTP: a job's whole course, the methods, and what is refused of them by name."""

import json
from typing import Any

import pytest

from file_begins import BEGINS
from modelyard import open_platform
from modelyard.engines.tabular.tokenizer import encode

PATH = "/v1/fine_tuning/jobs"
USER = {"role": "user", "content": "hi"}
EXAMPLE = {"messages": [USER, {"role": "assistant", "content": "ho"}]}
IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}]}
PAIR = {
    "input": {"messages": [USER]},
    "preferred_output": [{"role": "assistant", "content": "ho"}],
    "non_preferred_output": [{"role": "assistant", "content": "no"}],
}
TASK = {"messages": [USER], "answer": "ho"}
GRADER = {
    "type": "string_check",
    "name": "same",
    "operation": "eq",
    "input": "{{sample.output_text}}",
    "reference": "{{ item.answer }}",
}


@pytest.fixture(autouse=True)
def a_worker_is_alive(client: Any) -> None:
    client.platform.worker().beat()


def uploaded(client: Any, *rows: Any, purpose: str = "fine-tune") -> str:
    lines = [json.dumps(row).encode() + b"\n" for row in rows or [EXAMPLE] * 4]
    return str(client.platform.compat.files.create("train.jsonl", lines, purpose=purpose, entity="acme").id)


def create(client: Any, *rows: Any, headers: Any = (), path: str = PATH, **members: Any) -> Any:
    body = {"model": "tabular-mini", "training_file": uploaded(client, *rows), **members}
    return client.send("POST", path, body, headers=headers)


def by(method: str, **hyperparameters: Any) -> dict[str, Any]:
    grader = {"grader": GRADER} if method == "reinforcement" else {}
    return {"method": {"type": method, method: {"hyperparameters": hyperparameters, **grader}}}


JUDGE = {
    "type": "score_model",
    "name": "judge",
    "model": "echo",
    "input": [{"role": "user", "content": "{{sample.output_text}} 7"}],
}
LABEL = {**JUDGE, "type": "label_model", "labels": ["good", "bad"], "passing_labels": ["good"]}
MULTI: dict[str, Any] = {
    "type": "multi",
    "name": "both",
    "graders": {
        "same": GRADER,
        "other": {**GRADER, "operation": "ne"},
        "judge": {**JUDGE, "range": [0, 5]},
        "label": LABEL,
    },
    "calculate_output": "0.1 * same + other + judge + 10 * label",
}


def graded(grader: Any) -> dict[str, Any]:
    return {"method": {"type": "reinforcement", "reinforcement": {"grader": grader}}}


def labelled(**members: Any) -> dict[str, Any]:
    return graded(MULTI | {"graders": {"label": LABEL | members}, "calculate_output": "label"})


def ended(client: Any, made: Any) -> Any:
    assert made.status == 200, made.raw
    client.platform.worker().run_until_idle()
    return client.ok("GET", f"{PATH}/{made.json['id']}")


@pytest.mark.parametrize("path", [PATH, "/inference/v1/fine_tuning/jobs"])
def test_a_job_goes_its_course(client: Any, path: str) -> None:
    made = create(client, path=path, suffix="mine", seed=7, metadata={"k": "v"}, **by("supervised", n_epochs=2))
    job = made.json
    assert (job["object"], job["status"], job["fine_tuned_model"]) == ("fine_tuning.job", "queued", None)
    job = ended(client, made)
    assert (job["status"], job["seed"], job["metadata"], job["error"]) == ("succeeded", 7, {"k": "v"}, None)
    assert job["hyperparameters"] == {"n_epochs": 2, "batch_size": 2, "learning_rate_multiplier": 1.0}
    assert job["fine_tuned_model"].startswith("acme/default/ft-tabular-mini-mine-")
    events = client.ok("GET", f"{path}/{job['id']}/events")["data"]
    assert [event["type"] for event in events] == ["message", *["metrics"] * 4, "message"]
    assert events[0]["message"] == "The job has successfully completed"
    assert [event["data"].get("step") for event in events] == [None, 4, 3, 2, 1, None]
    (checkpoint,) = client.ok("GET", f"{path}/{job['id']}/checkpoints")["data"]
    assert checkpoint["fine_tuned_model_checkpoint"] == job["fine_tuned_model"]
    body = {"model": job["fine_tuned_model"], "messages": [USER], "max_tokens": 4}
    assert client.ok("POST", "/v1/chat/completions", body)["model"] == job["fine_tuned_model"]
    shown = client.ok("GET", f"/v1/preview/training-jobs/{job['id']}")
    assert (shown["kind"], shown["status"], shown["config"]["epochs"]) == ("sft", "succeeded", 2)
    assert client.ok("GET", path, query="limit=1")["data"] == [job]
    assert client.ok("GET", path, query="metadata%5Bk%5D=v&limit=1")["data"] == [job]
    assert client.ok("GET", path, query="metadata%5Bk%5D=w")["data"] == []
    base = path.removesuffix("/fine_tuning/jobs")
    name = job["fine_tuned_model"]
    assert client.ok("DELETE", f"{base}/models/{name}") == {"id": name, "object": "model", "deleted": True}
    assert client.send("POST", "/v1/chat/completions", body).status == 404
    assert client.send("DELETE", f"{base}/models/{name}").status == 404
    whole = name.rpartition(":")[0]
    client.ok("DELETE", f"{base}/models/{whole}")
    assert client.send("GET", f"{base}/models/{whole}").status == 404
    assert client.ok("GET", f"{path}/{job['id']}")["fine_tuned_model"] is None


def test_a_tuned_model_is_trained_further(client: Any) -> None:
    first = ended(client, create(client))["fine_tuned_model"]
    again = ended(client, create(client, model=first))
    assert again["fine_tuned_model"] == first.replace(":step1", ":step2")
    answer = create(client, model=first)
    assert (answer.status, answer.json["error"]["param"]) == (400, "model")
    assert create(client, model=again["fine_tuned_model"], suffix="x").json["error"]["param"] == "suffix"


def test_preferences_are_trained_by_dpo(client: Any) -> None:
    own = {"messages": [USER], "chosen": "ho", "rejected": "no"}
    job = ended(client, create(client, PAIR, own, **by("dpo", beta=0.2, learning_rate_multiplier=2)))
    assert (job["status"], job["hyperparameters"], job["method"]["type"]) == ("succeeded", {}, "dpo")
    assert job["method"]["dpo"]["hyperparameters"] == {
        "n_epochs": 1,
        "batch_size": 2,
        "learning_rate_multiplier": 2,
        "beta": 0.2,
    }


@pytest.mark.parametrize(("method", "row"), [("supervised", EXAMPLE), ("dpo", PAIR)])
def test_held_out_rows_are_measured_while_it_trains(client: Any, method: str, row: Any) -> None:
    before = set(client.platform._runtime.artifacts.names())
    held_out = uploaded(client, row, row)
    made = create(client, *[row] * 6, validation_file=held_out, **by(method, n_epochs=2, batch_size=2))
    job = ended(client, made)
    assert (job["status"], job["validation_file"]) == ("succeeded", held_out), job["error"]
    steps = client.ok("GET", f"{PATH}/{job['id']}/events")["data"][1:-1][::-1]
    assert all(step["data"]["valid_loss"] > 0 for step in steps)
    assert [step["data"]["step"] for step in steps if "full_valid_loss" in step["data"]] == [3, 6]
    assert "valid_loss=" in steps[0]["message"]
    (checkpoint,) = client.ok("GET", f"{PATH}/{job['id']}/checkpoints")["data"]
    assert checkpoint["metrics"]["full_valid_loss"] == steps[-1]["data"]["full_valid_loss"]
    (results,) = job["result_files"]
    assert client.ok("GET", "/v1/files", query="purpose=fine-tune-results&limit=1")["data"][0]["id"] == results
    lines = client.send("GET", f"/v1/files/{results}/content").raw.decode().splitlines()
    assert lines[0] == "step,train_loss,train_accuracy,valid_loss,valid_mean_token_accuracy,full_valid_loss"
    first = steps[0]["data"]
    assert lines[1].split(",")[:4] == [
        "1",
        str(first["train_loss"]),
        str(first.get("accuracy", "")),
        str(first["valid_loss"]),
    ]
    assert [line.split(",")[0] for line in lines[1:]] == list("123456")
    assert job["trained_tokens"] == sum(step["data"]["num_trainable_tokens"] for step in steps)
    left = len(set(client.platform._runtime.artifacts.names()) - before)
    assert left == 4  # two uploads, the result file and the checkpoint


def test_rows_that_are_held_out_are_checked(client: Any) -> None:
    before = set(client.platform._runtime.artifacts.names())
    answer = create(client, validation_file=uploaded(client, EXAMPLE, {"messages": [USER]}))
    assert (answer.status, answer.json["error"]["param"]) == (400, "validation_file.row[1].messages")
    assert create(client, validation_file="nothing").status == 404
    assert len(set(client.platform._runtime.artifacts.names()) - before) == 3  # three uploads


def test_tasks_are_trained_by_reinforcement(client: Any) -> None:
    held_out = uploaded(client, TASK)
    made = create(client, TASK, TASK, validation_file=held_out, **by("reinforcement", n_epochs=2, batch_size=2))
    job = ended(client, made)
    assert (job["status"], job["method"]["reinforcement"]["grader"]) == ("succeeded", GRADER), job["error"]
    assert len(client.ok("GET", f"{PATH}/{job['id']}/checkpoints")["data"]) == 2
    assert [each["id"] for each in client.ok("GET", PATH, query="limit=1")["data"]] == [job["id"]]
    assert client.ok("GET", f"{PATH}/{job['id']}/events")["data"][1]["data"]["step"] == 2
    assert "held_out" in client.ok("GET", f"{PATH}/{job['id']}/events")["data"][1]["data"]
    results = client.send("GET", f"/v1/files/{job['result_files'][0]}/content").raw.decode().splitlines()
    assert [line.split(",")[0] for line in results] == ["step", "1", "2"]
    assert results[0] == "step,train_reward,valid_reward,train_loss"


@pytest.mark.parametrize(
    ("grader", "reward"),
    [
        ({**GRADER, "operation": "ne"}, 1.0),
        ({**JUDGE, "range": [0, 5]}, 5.0),
        (MULTI, 6.0),  # not the same (1), at most 5, and the judge that repeats its question ends with "bad"
    ],
)
def test_graders_are_the_reward(client: Any, grader: Any, reward: float) -> None:
    job = ended(client, create(client, TASK, **graded(grader)))
    assert (job["status"], job["method"]["reinforcement"]["grader"]) == ("succeeded", grader), job["error"]
    assert client.ok("GET", f"{PATH}/{job['id']}/events")["data"][1]["data"]["reward"] == pytest.approx(reward)


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"model": "gpt-4o-mini"}, "model"),
        ({"integrations": [{"type": "wandb", "wandb": {"project": "p"}}]}, "integrations"),
        ({"suffix": "a b"}, "suffix"),
        ({"seed": "x"}, "seed"),
        ({"colour": "red"}, "colour"),
        ({"hyperparameters": {"n_epochs": 0}}, "hyperparameters.n_epochs"),
        ({"hyperparameters": {"n_epochs": "many"}}, "hyperparameters.n_epochs"),
        ({"hyperparameters": {"n_epochs": 1000}}, "hyperparameters.n_epochs"),
        ({"hyperparameters": {"beta": 1}}, "hyperparameters.beta"),
        ({"hyperparameters": {}, **by("supervised")}, "hyperparameters"),
        ({"method": {"type": "magic"}}, "method.type"),
        ({"method": {"type": "dpo", "supervised": {}}}, "supervised"),
        ({"method": {"type": "reinforcement"}}, "grader"),
        (by("reinforcement", eval_samples=3), "hyperparameters.eval_samples"),
        (graded({"type": "python", "source": "def grade(sample, item): return 1"}), "grader.type"),
        (graded({"type": "label_model"}), "grader.type"),
        (graded({"type": "multi", "graders": [GRADER], "calculate_output": "a"}), "grader.graders"),
        (graded(MULTI | {"calculate_output": "same"}), "grader.calculate_output"),
        (graded(MULTI | {"calculate_output": "same +"}), "grader.calculate_output"),
        (labelled(labels="good"), "grader.graders.label.labels"),
        (labelled(labels=["good", "{bad}"]), "grader.graders.label.labels"),
        (labelled(passing_labels=None), "grader.graders.label.passing_labels"),
        (labelled(passing_labels="good"), "grader.graders.label.passing_labels"),
        (labelled(passing_labels=["good", 5]), "grader.graders.label.passing_labels"),
        (labelled(passing_labels=["great"]), "grader.graders.label.passing_labels"),
        (graded(MULTI | {"graders": {"a": {"type": "python"}}}), "grader.graders.a.type"),
        (graded(JUDGE | {"range": [0]}), "grader.range"),
        (graded(JUDGE | {"sampling_params": {"seed": 1}}), "grader.sampling_params"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(client: Any, members: dict[str, Any], param: str) -> None:
    before = len(list(client.platform.models.list())), set(client.platform._runtime.artifacts.names())
    answer = create(client, **members)
    assert (answer.status, answer.json["error"]["param"]) == (400, param)
    assert len(list(client.platform.models.list())) == before[0]
    assert len(set(client.platform._runtime.artifacts.names()) - before[1]) == 1  # the training file


@pytest.mark.parametrize(
    ("row", "param"),
    [
        ({"messages": [USER, {"role": "assistant", "content": "ho", "weight": 0}]}, "row[1].messages[1].weight"),
        ({"messages": [USER]}, "row[1].messages"),
        ({"messages": [USER, {"role": "assistant", "content": "ho", "wieght": 0}]}, "row[1].messages[1].wieght"),
        ({"messages": [USER, {"role": "assistant", "content": "ho", "weight": 2}]}, "row[1].messages[1].weight"),
        ({**EXAMPLE, "wieght": 0}, "row[1].wieght"),
        ({"messages": [IMAGE, EXAMPLE["messages"][1]]}, "row[1].messages[0].content[0]"),
        ({"messages": [USER], "functions": []}, "row[1].functions"),
        ({"prompt": "a", "completion": "b"}, "row[1].prompt"),
        (5, "line[2]"),
    ],
)
def test_a_row_at_fault_is_named(client: Any, row: Any, param: str) -> None:
    answer = create(client, {**EXAMPLE, "parallel_tool_calls": True}, row)
    assert (answer.status, answer.json["error"]["param"]) == (400, f"training_file.{param}")


@pytest.mark.parametrize(
    ("method", "row", "says"),
    [
        (
            "supervised",
            PAIR,
            "'a preference for fine-tuning services', and this method takes rows in the form 'messages'",
        ),
        ("supervised", {"instruction": "a", "output": "b"}, "'Alpaca'"),
        ("supervised", {"conversations": [{"from": "human", "value": "a"}]}, "'ShareGPT'"),
        ("supervised", {"prompt": "a", "completion": "b"}, "'prompt and completion'"),
        ("dpo", EXAMPLE, "'messages', and this method takes rows in the form 'a preference for fine-tuning services'"),
        ("dpo", {"prompt": "a", "chosen": "b", "rejected": "c"}, "'a preference with its prompt'"),
    ],
)
def test_rows_in_the_form_of_another_method_are_called_what_they_are(
    client: Any, method: str, row: Any, says: str
) -> None:
    answer = create(client, row, **by(method))
    assert answer.status == 400
    assert f"the row is in the form {says}" in answer.json["error"]["message"]


@pytest.mark.parametrize(("begin", "says"), BEGINS)
@pytest.mark.parametrize("method", ["supervised", "dpo", "reinforcement"])
def test_files_that_are_not_read_are_called_what_they_are(client: Any, method: str, begin: bytes, says: str) -> None:
    file = client.platform.compat.files.create("t.jsonl", [begin + b"rest"], purpose="fine-tune", entity="acme").id
    answer = client.send("POST", "/v1/fine_tuning/jobs", {"model": "tabular-mini", "training_file": file, **by(method)})
    assert answer.status == 400
    assert answer.json["error"]["param"] == "training_file"
    assert f"is {says}, which is not read; " in answer.json["error"]["message"]


@pytest.mark.parametrize(
    ("row", "param"),
    [
        ({**PAIR, "input": {"messages": [IMAGE]}}, "row[1].input.messages[0].content[0]"),
        ({**PAIR, "input": {"messages": [USER], "tols": []}}, "row[1].input.tols"),
        ({**PAIR, "input": {"messages": [{**USER, "x": 1}]}}, "row[1].input.messages[0].x"),
        ({**PAIR, "input": {"messages": [{**USER, "weight": 1}]}}, "row[1].input.messages[0].weight"),
        (
            {**PAIR, "preferred_output": [{"role": "assistant", "content": "a", "weight": 0}]},
            "row[1].preferred_output[0].weight",
        ),
        ({**PAIR, "non_preferred_output": [{"role": "user", "content": "a"}]}, "row[1].non_preferred_output[0].role"),
        ({**PAIR, "margin": 1}, "row[1].margin"),
    ],
)
def test_a_pair_at_fault_is_named_where_it_stands(client: Any, row: Any, param: str) -> None:
    answer = create(client, PAIR, row, **by("dpo"))
    assert (answer.status, answer.json["error"]["param"]) == (400, f"training_file.{param}")


def test_an_answer_of_weight_0_is_read_and_not_trained(client: Any) -> None:
    twice: list[dict[str, Any]] = [*EXAMPLE["messages"], USER, {"role": "assistant", "content": "hum"}]
    weighed = [twice[0], {**twice[1], "weight": 0}, twice[2], {**twice[3], "weight": 1}]
    trained = [
        ended(client, create(client, {"messages": one}, integrations=[]))["trained_tokens"] for one in (twice, weighed)
    ]
    assert trained[0] - trained[1] == 3 * (len(encode("ho")) + 1)  # in three epochs


def test_a_file_of_another_purpose_is_refused(client: Any) -> None:
    body = {"model": "tabular-mini", "training_file": uploaded(client, EXAMPLE, purpose="batch")}
    answer = client.send("POST", PATH, body)
    assert (answer.status, answer.json["error"]["param"]) == (400, "training_file")
    assert client.send("POST", PATH, {**body, "training_file": "nothing"}).status == 404


def test_a_job_is_paused_and_resumed(client: Any) -> None:
    job = create(client).json["id"]
    for _ in range(2):
        assert client.ok("POST", f"{PATH}/{job}/pause")["status"] == "paused"
    client.platform.worker().run_until_idle()
    assert client.ok("GET", f"{PATH}/{job}")["status"] == "paused"
    shown = client.ok("GET", f"/v1/preview/training-jobs/{job}")
    assert (shown["status"], shown["waiting_for"]) == ("queued", "its resumption: it is paused")
    assert client.ok("POST", f"{PATH}/{job}/resume")["id"] == job
    client.platform.worker().run_until_idle()
    assert client.ok("GET", f"{PATH}/{job}")["status"] == "succeeded"
    for action in ("pause", "resume"):
        assert client.send("POST", f"{PATH}/{job}/{action}").status == 409


def test_a_job_is_cancelled(client: Any) -> None:
    job = create(client).json["id"]
    assert client.ok("POST", f"{PATH}/{job}/cancel")["status"] == "cancelled"
    assert client.ok("GET", f"{PATH}/{job}/events")["data"][0]["level"] == "error"
    assert client.send("POST", f"{PATH}/{job}/resume").status == 409


def test_the_same_request_under_a_key_is_one_job(client: Any) -> None:
    body = {"model": "tabular-mini", "training_file": uploaded(client)}
    headers = [("idempotency-key", f"tune-{client.asynchronous}")]
    before = len(list(client.platform.models.list()))
    first = client.send("POST", PATH, body, headers=headers)
    assert client.send("POST", PATH, body, headers=headers).json["id"] == first.json["id"]
    assert client.send("POST", PATH, {**body, "seed": 1}, headers=headers).status == 409
    assert len(list(client.platform.models.list())) == before + 1


def test_each_tenant_sees_its_own(client: Any) -> None:
    job = ended(client, create(client))
    other = client.another("globex")
    assert other.ok("GET", PATH)["data"] == []
    for method, path in (
        ("GET", ""),
        ("GET", "/events"),
        ("GET", "/checkpoints"),
        ("POST", "/cancel"),
        ("POST", "/pause"),
        ("POST", "/resume"),
    ):
        assert other.send(method, f"{PATH}/{job['id']}{path}").status == 404
    assert other.send("DELETE", f"/v1/models/{job['fine_tuned_model']}").status == 403
    body = {"model": "tabular-mini", "training_file": job["training_file"]}
    assert other.send("POST", PATH, body).status == 404


def test_a_record_of_another_service_is_repeated(client: Any) -> None:
    record = {
        "id": "ftjob-abc",
        "fine_tuned_model": "ft:gpt-4o-mini-2024-07-18:acme:greeter:7p4lURel",
        "hyperparameters": {"n_epochs": 2, "batch_size": 1, "learning_rate_multiplier": 1.8},
        "method": {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": 2, "batch_size": 1}}},
        "seed": 42,
        "metadata": None,
    }
    options = {"model": "tabular-mini", "training_file": uploaded(client), "entity": "acme"}
    made = client.platform.compat.fine_tuning.repeat(record, **options)
    client.platform.worker().run_until_idle()
    job = client.ok("GET", f"{PATH}/{made.id}")
    assert (job["status"], job["seed"]) == ("succeeded", 42)
    assert "-greeter-" in job["fine_tuned_model"]
    assert client.platform.training.get(made.id).total == 8
    assert job["user_provided_suffix"] == "greeter"
    again = client.platform.compat.fine_tuning.repeat(job, **options)
    assert client.ok("GET", f"{PATH}/{again.id}")["user_provided_suffix"] == "greeter"
    client.platform.compat.fine_tuning.cancel(again.id)


def test_without_a_worker_no_job_is_taken(client_for: Any) -> None:
    with open_platform() as platform:
        assert create(client_for(platform)).status == 503
        assert list(platform.models.list()) == []
