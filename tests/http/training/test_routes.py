"""The training interface as its clients meet it, recorded exchanges among them."""

import json
import tracemalloc
from collections.abc import Callable, Collection, Iterable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs
import pytest

from http_client import Answer, Client, client_of
from modelyard.compose import open_platform
from modelyard.domain.completion import Message, Role
from modelyard.domain.training import Example
from modelyard.engines.tabular.trainer import TabularTrainer
from modelyard.http.message import Request
from modelyard.platform.jobs.runner import Runner
from modelyard.platform.platform import Platform
from modelyard.protocols import Step, TrainContext, TrainItem

CAPTURES = Path(__file__).parents[2] / "captures" / "training"
BASE = "tabular-mini"
MODELS = "/v1/preview/models"
JOBS = "/v1/preview/training-jobs"
SFT_JOBS = "/v1/preview/sft-training-jobs"
DPO_JOBS = "/v1/preview/dpo-training-jobs"
DATASETS = "/v1/preview/datasets"
NO_ID = "01a1fdba-3701-7000-9bbe-63a17706fc6b"
PAIR = {"messages": [{"role": "user", "content": "hi"}], "chosen": "hello there", "rejected": "go away"}
ROW = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello there"}]}


class Trainee(Client):
    """Speaks the training interface; keywords are the query."""

    def send(self, method: str, path: str, body: Any = None, *, raw: bytes | None = None, **query: Any) -> Answer:
        pieces = None if raw is None else [raw[at : at + 1000] for at in range(0, len(raw), 1000)]
        return super().send(method, path, body, raw=pieces, query=query)

    def model(self, name: str = "m", **fields: Any) -> Any:
        return self.ok("POST", MODELS, {"project": "bots", "name": name, "base_model": BASE, **fields})

    def dataset(self, *rows: Any) -> str:
        lines = b"\n".join(json.dumps(row).encode() for row in rows or (ROW, ROW, ROW))
        answer = self.send("POST", DATASETS, raw=lines, project="bots", name="greetings")
        assert answer.status == 200, answer.raw
        return str(answer.json["url"])

    def run_jobs(self) -> None:
        self.platform.worker().run_until_idle()


@pytest.fixture
def platform() -> Iterator[Platform]:
    with open_platform() as opened:
        yield opened


@pytest.fixture
def client(platform: Platform) -> Trainee:
    return client_of(platform, kind=Trainee)


@pytest.fixture
def worked(client: Trainee) -> Trainee:
    """A client of a platform where a worker has announced itself; jobs run when the test runs them."""
    client.platform.worker().beat()
    return client


def kept(client: Trainee) -> list[str]:
    return sorted(client.platform._runtime.artifacts.names())


def captured(name: str) -> list[dict[str, Any]]:
    (path,) = CAPTURES.glob(f"{name}-*.json")
    exchanges: list[dict[str, Any]] = json.loads(path.read_text())["exchanges"]
    return exchanges


def shape(value: Any) -> Any:
    """The members of an answer, without what they hold."""
    return {name: shape(member) for name, member in value.items()} if isinstance(value, dict) else None


def trajectory(content: str, reward: float, **fields: Any) -> dict[str, Any]:
    logprobs = {"content": [{"token": content, "logprob": -1.0, "bytes": None, "top_logprobs": []}]}
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": content}}
    return {"messages_and_choices": [ROW["messages"][0], {**choice, "logprobs": logprobs}], "reward": reward, **fields}


GROUP = {"trajectories": [trajectory("hello", 1.0), trajectory("bye", 0.0)]}


# ---- the recorded exchanges --------------------------------------------------------------------------------------


def test_a_public_client_registers_its_model_as_recorded(client: Trainee) -> None:
    client = client.another("my-team")
    first, again, conflict, unknown, unauthenticated = captured("02")
    for exchange in (first, again):
        body = exchange["request"]["body"] | {"base_model": BASE}
        answer = client.send("POST", exchange["request"]["path"], body)
        assert answer.status == exchange["response"]["status"]
        assert shape(exchange["response"]["body"]).items() <= shape(answer.json).items()
        assert answer.json["entity"] == "my-team"
    refused = client.send("POST", MODELS, conflict["request"]["body"] | {"base_model": BASE})
    assert (refused.status, refused.headers["x-should-retry"]) == (409, "false")
    assert "exists already" in refused.json["detail"]
    answer = client.send("POST", MODELS, unknown["request"]["body"])
    assert (answer.status, answer.locs) == (422, [["body", "base_model"]])
    assert BASE in answer.json["detail"][0]["msg"]
    wrong = attrs.evolve(client, key="my_wrong")
    assert wrong.send("POST", MODELS, unauthenticated["request"]["body"]).status == 401


@pytest.mark.parametrize("name", ["10", "11"])
def test_a_recorded_rl_job_trains_and_its_events_are_polled_as_recorded(worked: Trainee, name: str) -> None:
    model = worked.model()
    (exchange,) = captured(name)
    body = exchange["request"]["body"] | {"model_id": model["id"]}
    if body.get("experimental_config", {}).get("kl_penalty_reference_step"):
        body["experimental_config"]["kl_penalty_reference_step"] = 0
    job = worked.ok("POST", exchange["request"]["path"], body)
    assert shape(exchange["response"]["body"]).items() <= shape(job).items()
    assert worked.ok("GET", f"{JOBS}/{job['id']}/events")["data"] == []
    worked.run_jobs()
    events = poll(worked, job["id"])
    steps = events[0]["data"]["num_sequences"]
    assert [event["type"] for event in events] == [
        "training_started",
        *["gradient_step"] * steps,
        "training_ended",
    ]
    assert steps >= 1
    for event in events[1:-1]:
        assert all(type(value) in (int, float) for value in event["data"].values())
        assert {"loss", "grad_norm", "learning_rate", "num_trainable_tokens", "entropy", "kl_div"} <= event[
            "data"
        ].keys()
        assert {"reward", "reward_std_dev"} <= event["data"].keys()
    (latest,) = worked.ok("GET", f"{MODELS}/{model['id']}/checkpoints", limit=1, order="desc")["data"]
    assert latest["step"] == 1
    shown = worked.ok("GET", f"{JOBS}/{job['id']}")
    assert (shown["status"], shown["step"], shown["kind"]) == ("succeeded", 1, "rl")


def poll(client: Trainee, job_id: str, limit: int = 1) -> list[Any]:
    """The events as the public client pages through them."""
    events: list[Any] = []
    more = True
    while more:
        after = {"after": events[-1]["id"]} if events else {}
        page = client.ok("GET", f"{JOBS}/{job_id}/events", limit=limit, **after)
        events += page["data"]
        more = page["has_more"]
    assert client.ok("GET", f"{JOBS}/{job_id}/events", after=events[-1]["id"])["data"] == []
    return events


def test_a_recorded_job_without_logprobs_fails_and_says_why(worked: Trainee) -> None:
    body = captured("12")[0]["request"]["body"] | {"model_id": worked.model()["id"]}
    job = worked.ok("POST", JOBS, body)
    worked.run_jobs()
    (event,) = poll(worked, job["id"])
    assert event["type"] == "training_failed"
    assert "logprobs" in event["data"]["error_message"]
    assert worked.ok("GET", f"{JOBS}/{job['id']}")["error_message"] == event["data"]["error_message"]


def test_a_recorded_log_is_kept_and_readable(client: Trainee) -> None:
    model = client.model()
    (exchange,) = captured("17")
    assert (
        client.ok("POST", f"{MODELS}/{model['id']}/log", exchange["request"]["body"] | {"model_id": model["id"]}) == {}
    )
    (log,) = client.platform.models.trajectory_logs(model["id"])
    assert (log.split, log.groups, log.trajectories, log.reward) == ("val", 1, 2, 0.5)
    (group,) = client.platform.models.logged_trajectories(log.id)
    assert [one.reward for one in group.trajectories] == [1.0, 0.0]
    assert kept(client) == [log.artifact]


def test_recorded_sft_jobs_train_on_an_uploaded_dataset(worked: Trainee) -> None:
    model, url = worked.model(), worked.dataset(*[ROW] * 5)
    for exchange in captured("18"):
        body = exchange["request"]["body"] | {"model_id": model["id"]}
        body["training_data_url"] = url.replace("modelyard", "wandb-artifact")
        job = worked.ok("POST", exchange["request"]["path"], body)
        assert shape(exchange["response"]["body"]).items() <= shape(job).items()
        worked.run_jobs()
        events = poll(worked, job["id"])
        assert [event["type"] for event in events][1:] == [*["gradient_step"] * 3, "training_ended"]
        rates = body["config"]["learning_rate"]
        expected = rates if isinstance(rates, list) else [rates] * 3
        assert [event["data"]["learning_rate"] for event in events[1:-1]] == expected
    assert [one["step"] for one in worked.ok("GET", f"{MODELS}/{model['id']}/checkpoints")["data"]] == [0, 1, 2, 3]


def test_checkpoints_are_deleted_as_recorded(client: Trainee) -> None:
    _, path = with_steps(client, 6)
    _, delete, missing = captured("20")
    assert client.ok("DELETE", path, delete["request"]["body"]) == delete["response"]["body"]
    assert client.ok("DELETE", path, missing["request"]["body"]) == missing["response"]["body"]
    assert [one["step"] for one in client.ok("GET", path)["data"]] == [0, 1, 6]


def with_steps(client: Trainee, count: int) -> tuple[Any, str]:
    """A model with so many trained checkpoints, and the path of its checkpoints."""
    model = client.model()
    example = Example((Message(Role.USER, "hi"), Message(Role.ASSISTANT, "hello")))
    for _ in range(count):
        client.platform.training.sft(model["id"], [example]).wait()
    return model, f"{MODELS}/{model['id']}/checkpoints"


def test_a_model_is_deleted_as_recorded(client: Trainee) -> None:
    model, path = with_steps(client, 1)
    delete, after = captured("21")
    gone = client.ok("DELETE", f"{MODELS}/{model['id']}")
    assert gone.keys() == delete["response"]["body"].keys()
    assert (gone["model_id"], gone["deleted_checkpoints"]) == (model["id"], 2)
    assert client.send("GET", path).status == after["response"]["status"]
    assert kept(client) == []


# ---- models ----------------------------------------------------------------------------------------------------------


def test_every_wrong_field_of_a_model_is_named(client: Trainee) -> None:
    answer = client.send("POST", MODELS, {"project": 5, "name": "a/b", "return_existing": 1, "entity": []})
    assert answer.status == 422
    assert sorted(answer.locs) == [
        ["body", name] for name in ("base_model", "entity", "name", "project", "return_existing")
    ]


def test_null_asks_for_the_key_s_own_entity(client: Trainee) -> None:
    assert client.model(entity=None)["entity"] == "acme"


def test_another_base_model_under_a_taken_name_is_a_conflict(client: Trainee) -> None:
    client.model()
    client.platform.models.create("x", project="p", base_model=BASE)
    taken = client.send("POST", MODELS, {"project": "bots", "name": "m", "base_model": BASE})
    assert taken.status == 409


def test_models_and_base_models_are_listed(client: Trainee) -> None:
    ids = [client.model(name)["id"] for name in "abc"]
    assert client.ok("GET", "/v1/preview/base-models") == [BASE]
    page = client.ok("GET", MODELS, limit=2)
    assert ([one["id"] for one in page["data"]], page["has_more"]) == (ids[:2], True)
    assert [one["id"] for one in client.ok("GET", MODELS, after=page["last_id"])["data"]] == ids[2:]
    assert [one["id"] for one in client.ok("GET", MODELS, order="desc", project="bots")["data"]] == ids[::-1]
    assert client.ok("GET", f"{MODELS}/{ids[0]}")["name"] == "a"


def test_what_belongs_to_another_tenant_looks_like_what_does_not_exist(worked: Trainee) -> None:
    model, url = worked.model(), worked.dataset()
    job = worked.ok("POST", JOBS, {"model_id": model["id"], "trajectory_groups": [GROUP]})
    stranger = worked.another("other")
    for real, absent in (
        (f"{MODELS}/{model['id']}", f"{MODELS}/{NO_ID}"),
        (f"{MODELS}/{model['id']}/checkpoints", f"{MODELS}/{NO_ID}/checkpoints"),
        (f"{MODELS}/{model['id']}/checkpoints/0/files", f"{MODELS}/{NO_ID}/checkpoints/0/files"),
        (f"{JOBS}/{job['id']}", f"{JOBS}/{NO_ID}"),
        (f"{JOBS}/{job['id']}/events", f"{JOBS}/{NO_ID}/events"),
    ):
        answers = [stranger.send("GET", path) for path in (real, absent)]
        assert [one.status for one in answers] == [404, 404]
        assert answers[0].raw.replace(model["id"].encode(), b"").replace(job["id"].encode(), b"") == answers[
            1
        ].raw.replace(NO_ID.encode(), b"")
    for path in (f"{MODELS}/{model['id']}", f"{MODELS}/{model['id']}/checkpoints"):
        assert stranger.send("DELETE", path, {"steps": [0]}).status == 404
    assert stranger.send("POST", f"{MODELS}/{model['id']}/log", {"trajectory_groups": [], "split": "val"}).status == 404
    assert stranger.send("POST", f"{JOBS}/{job['id']}/cancel").status == 404
    assert stranger.send("POST", JOBS, {"model_id": model["id"], "trajectory_groups": [GROUP]}).status == 404
    assert stranger.send("GET", JOBS, model_id=model["id"]).json["data"] == []
    assert stranger.send("GET", MODELS, entity="acme").status == 403
    assert stranger.send("POST", DATASETS, raw=b"{}", entity="acme", project="bots", name="x").status == 403
    own = stranger.model()
    assert stranger.send("POST", SFT_JOBS, {"model_id": own["id"], "training_data_url": url}).status == 403


# ---- pages -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "loc"),
    [
        ({"limit": 0}, ["query", "limit"]),
        ({"limit": 101}, ["query", "limit"]),
        ({"limit": "ten"}, ["query", "limit"]),
        ({"limit": "9" * 5000}, ["query", "limit"]),
        ({"order": "up"}, ["query", "order"]),
    ],
)
def test_a_bad_page_is_refused_by_name(client: Trainee, query: dict[str, Any], loc: list[str]) -> None:
    for path in (MODELS, f"{MODELS}/{client.model(return_existing=True)['id']}/checkpoints", JOBS):
        answer = client.send("GET", path, **query)
        assert (answer.status, answer.locs) == (422, [loc])


def test_a_cursor_that_never_was_is_404_and_one_that_was_deleted_continues(client: Trainee) -> None:
    _, path = with_steps(client, 3)
    page = client.ok("GET", path, limit=2)
    assert client.send("GET", path, after=NO_ID).status == 404
    assert client.send("GET", path, after="no-id").status == 404
    client.ok("DELETE", path, {"steps": [1]})
    assert [one["step"] for one in client.ok("GET", path, after=page["last_id"])["data"]] == [2, 3]


def test_an_unknown_status_is_refused(client: Trainee) -> None:
    assert client.send("GET", JOBS, status="tired").locs == [["query", "status"]]
    assert client.send("GET", JOBS, entity="a", status="queued").status == 403


# ---- checkpoints -----------------------------------------------------------------------------------------------------


def test_a_checkpoint_s_files_are_listed_and_downloaded(client: Trainee) -> None:
    model, path = with_steps(client, 1)
    (file,) = client.ok("GET", f"{path}/1/files")["files"]
    answer = client.send("GET", f"{path}/1/files/{file['name']}")
    assert (answer.status, answer.headers["content-length"]) == (200, str(file["size"]))
    with client.platform.models.open_file(model["id"], 1, file["name"]) as opened:
        assert answer.raw == opened.read()
    assert client.ok("GET", f"{path}/0/files")["files"] == []


@pytest.mark.parametrize("tail", ["9/files", "x/files", "-1/files", "01/files", f"{'9' * 30}/files", "1/files/nothing"])
def test_a_file_that_does_not_exist_is_404(client: Trainee, tail: str) -> None:
    _, path = with_steps(client, 1)
    assert client.send("GET", f"{path}/{tail}").status == 404


def test_a_client_that_goes_away_leaves_no_file_open(client: Trainee) -> None:
    _, path = with_steps(client, 1)
    (file,) = client.ok("GET", f"{path}/1/files")["files"]
    headers = client.credentials()
    for method, broken_off in (("GET", True), ("HEAD", False)):
        response = client.endpoint.handle(Request(method, f"{path}/1/files/{file['name']}", "", headers, iter(())))
        assert dict(response.headers)["content-length"] == str(file["size"])
        if broken_off:
            response.body.close()  # type: ignore[union-attr]
            assert list(response.body) == []  # type: ignore[arg-type]
        else:
            assert response.body == b""


class Watched(TabularTrainer):
    """Calls `during` when training has begun."""

    during: Callable[[], None]

    def train(self, method: str, config: Any, data: Iterable[Any], context: TrainContext) -> Iterator[TrainItem]:
        for item in super().train(method, config, data, context):
            if method == "rl" and isinstance(item, Step):
                self.during()
            yield item


def test_a_checkpoint_in_use_is_not_deleted_and_neither_is_any_other_of_the_call() -> None:
    trainer, answers = Watched(), []
    with open_platform(trainers=[trainer]) as platform:
        client = client_of(platform, kind=Trainee)
        model, path = with_steps(client, 1)
        platform.worker().beat()
        client.ok("POST", JOBS, {"model_id": model["id"], "trajectory_groups": [GROUP]})
        trainer.during = lambda: answers.append(client.send("DELETE", path, {"steps": [0, 1]}))
        client.run_jobs()
        assert [(one.status, one.headers["x-should-retry"]) for one in answers] == [(409, "false")]
        assert [one["step"] for one in client.ok("GET", path)["data"]] == [0, 1, 2]


@pytest.mark.parametrize("body", [None, {}, {"steps": None}, {"steps": ["1"]}, {"steps": [True]}, {"steps": 1}, []])
def test_bad_steps_are_refused(client: Trainee, body: Any) -> None:
    assert client.send("DELETE", f"{MODELS}/{client.model()['id']}/checkpoints", body).status == 422


# ---- jobs ------------------------------------------------------------------------------------------------------------


def test_without_a_worker_a_job_is_refused_and_nothing_is_kept(client: Trainee) -> None:
    model, url = client.model(), client.dataset()
    before = kept(client)
    for path, body in (
        (JOBS, {"model_id": model["id"], "trajectory_groups": [GROUP]}),
        (SFT_JOBS, {"model_id": model["id"], "training_data_url": url}),
    ):
        answer = client.send("POST", path, body)
        assert answer.status == 503
        assert "modelyard work" in answer.json["detail"]
    assert kept(client) == before
    assert client.ok("GET", JOBS)["data"] == []


def test_bad_input_is_reported_before_the_lack_of_a_worker(client: Trainee) -> None:
    assert client.send("POST", JOBS, {"model_id": NO_ID, "trajectory_groups": [GROUP]}).status == 404
    assert client.send("POST", JOBS, {"model_id": 5, "trajectory_groups": [GROUP]}).locs == [["body", "model_id"]]
    assert client.send("POST", SFT_JOBS, {"model_id": NO_ID, "training_data_url": "modelyard:///a/b/c"}).status == 404
    assert client.send("POST", SFT_JOBS, {}).locs == [["body", "model_id"], ["body", "training_data_url"]]


def test_a_refused_rl_body_names_its_place_and_leaves_nothing(worked: Trainee) -> None:
    model = worked.model()
    bad = {"trajectories": [trajectory("a", 1.0), trajectory("b", "high")]}  # type: ignore[arg-type]
    answer = worked.send("POST", JOBS, {"model_id": model["id"], "trajectory_groups": [GROUP, bad]})
    assert (answer.status, answer.locs) == (422, [["body", "trajectory_groups", "1", "trajectories", "1", "reward"]])
    refused = ("future_option", 1), ("kl_penalty_reference_step", 7), ("kl_ref_adapter_path", "/etc"), ("epsilon", -1)
    for config in ({name: value} for name, value in refused):
        body = {"model_id": model["id"], "trajectory_groups": [GROUP], "experimental_config": config}
        answer = worked.send("POST", JOBS, body)
        assert (answer.status, answer.locs) == (422, [["body", "experimental_config", next(iter(config))]])
    assert kept(worked) == []
    assert worked.ok("GET", JOBS)["data"] == []


IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}]}
SAMPLED = {"logprobs": {"content": [{"token": "x", "logprob": -1.0}]}}


@pytest.mark.parametrize("first", ["trajectory_groups", "experimental_config"])
@pytest.mark.parametrize(
    ("items", "by_text", "place"),
    [
        ([IMAGE, {"message": {"content": "x"}, **SAMPLED}], False, ["0", "content", "0"]),
        ([IMAGE, {"message": {"content": "x"}}], True, ["0", "content", "0"]),
        ([{"message": {"content": "x", "reasoning": "so"}, **SAMPLED}], False, ["0", "message", "reasoning_content"]),
        ([{"role": "assistant", "content": None}], True, ["0", "content"]),
        ([{"message": {"content": None}}], True, ["0", "message", "content"]),
        ([{"message": {"content": None}, **SAMPLED}], True, None),
        ([{"message": {"content": "x"}, **SAMPLED}, IMAGE], False, None),
    ],
)
def test_trajectories_that_the_base_model_cannot_read_are_refused_before_a_job_is_made(
    worked: Trainee, items: list[Any], by_text: bool, place: list[str] | None, first: str
) -> None:
    groups = [GROUP, {"trajectories": [trajectory("a", 0.0), {"messages_and_choices": items, "reward": 1}]}]
    config = {"allow_training_without_logprobs": by_text}
    members = {"trajectory_groups": groups, "experimental_config": config}
    ordered = {first: members[first], **members}
    answer = worked.send("POST", JOBS, {"model_id": worked.model()["id"], **ordered})
    if place is None:
        assert answer.status == 200, answer.raw
        return
    below = ["body", "trajectory_groups", "1", "trajectories", "1", "messages_and_choices"]
    assert (answer.status, answer.locs) == (422, [[*below, *place]])
    assert (kept(worked), list(worked.platform.training.list())) == ([], [])


@pytest.mark.parametrize(
    ("path", "row", "place"),
    [
        (SFT_JOBS, {"messages": [IMAGE, ROW["messages"][1]]}, ["messages", "0", "content", "0"]),
        (SFT_JOBS, {"messages": [{"role": "assistant", "content": "x", "reasoning": "so"}]}, ["messages", "0"]),
        (DPO_JOBS, PAIR | {"messages": [IMAGE]}, ["messages", "0", "content", "0"]),
        (DPO_JOBS, PAIR | {"chosen": {"content": "x", "reasoning_content": "so"}}, ["chosen", "reasoning_content"]),
    ],
)
def test_so_are_rows_of_a_dataset(worked: Trainee, path: str, row: Any, place: list[str]) -> None:
    good = PAIR if path == DPO_JOBS else ROW
    body = {"model_id": worked.model()["id"], "training_data_url": worked.dataset(good, row)}
    answer = worked.send("POST", path, body)
    below = ["body", "training_data_url", "line", "2", *place]
    assert (answer.status, [loc[: len(below)] for loc in answer.locs]) == (422, [below])
    assert list(worked.platform.training.list()) == []


@pytest.mark.parametrize(
    ("row", "place"),
    [
        ({"messages": [ROW["messages"][0], {"role": "assistant", "content": None}]}, ["messages", "1", "content"]),
        (PAIR | {"rejected": {"role": "assistant"}}, ["rejected", "content"]),
    ],
)
def test_an_uploaded_answer_says_something(client: Trainee, row: Any, place: list[str]) -> None:
    lines = b"\n".join(json.dumps(one).encode() for one in (PAIR if "chosen" in row else ROW, row))
    answer = client.send("POST", DATASETS, raw=lines, project="bots", name="greetings")
    assert (answer.status, answer.locs) == (422, [["body", "line", "2", *place]])


def test_options_of_sft_and_dpo_are_checked_at_their_place(client: Trainee) -> None:
    model, url = client.model(), client.dataset()
    for path, option, value in ((SFT_JOBS, "batch_size", 0), (DPO_JOBS, "beta", 0.0)):
        answer = client.send(
            "POST", path, {"model_id": model["id"], "training_data_url": url, "config": {option: value}}
        )
        assert (answer.status, answer.locs) == (422, [["body", "config", option]])


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"null",
        b"[]",
        b'"text"',
        b"{",
        b'{"model_id": NaN}',
        b'{"trajectory_groups": [' + b"[" * 100_000,
        b'{"trajectory_groups": [{"trajectories": [{"messages_and_choices": [1e400]}]}]}',
        b'{"trajectory_groups": [{"trajectories": [{"messages_and_choices": ["\\ud800"]}]}]}',
        b"\xff\xfe{\x00}\x00",
        b"\xef\xbb\xbf{}",
    ],
)
def test_hostile_bodies_are_refused_and_nothing_is_kept(worked: Trainee, raw: bytes) -> None:
    model = worked.model()
    for path in (JOBS, f"{MODELS}/{model['id']}/log"):
        assert worked.send("POST", path, raw=raw).status == 422
    assert worked.send("POST", DATASETS, raw=raw, project="bots", name="x").status == 422
    assert kept(worked) == []


def test_the_job_shows_the_configuration_in_force(worked: Trainee) -> None:
    body = {"model_id": worked.model()["id"], "trajectory_groups": [GROUP]}
    job = worked.ok("POST", JOBS, body | {"experimental_config": {"loss_fn": "ppo", "epsilon": None}})
    assert job["config"]["ppo"] is True
    assert job["config"]["epsilon"] == 0.2
    assert (job["status"], job["step"], job["training_start"]) == ("queued", None, None)


def test_equal_rewards_train_nothing_but_the_step_advances(worked: Trainee) -> None:
    model = worked.model()
    group = {"trajectories": [trajectory("a", 1.0), trajectory("b", 1.0)]}
    failed = {"trajectories": [], "exceptions": [{"type": "E", "message": "m", "traceback": "t"}]}
    job = worked.ok("POST", JOBS, {"model_id": model["id"], "trajectory_groups": [group, failed]})
    worked.run_jobs()
    assert [event["type"] for event in poll(worked, job["id"])] == ["training_started", "training_ended"]
    assert poll(worked, job["id"])[0]["data"] == {"num_sequences": 0}
    assert worked.ok("GET", f"{JOBS}/{job['id']}")["step"] == 1


def test_a_job_of_which_all_attempts_crashed_fails(worked: Trainee) -> None:
    failed = {"trajectories": [], "exceptions": [{"type": "E", "message": "m", "traceback": "t"}]}
    job = worked.ok("POST", JOBS, {"model_id": worked.model()["id"], "trajectory_groups": [failed, failed]})
    worked.run_jobs()
    assert poll(worked, job["id"])[-1]["type"] == "training_failed"
    assert "2 of 2 attempts failed, the first with E: m" in poll(worked, job["id"])[-1]["data"]["error_message"]


def test_null_counts_as_absent_and_what_servers_add_to_answers_is_dropped(worked: Trainee) -> None:
    new: dict[str, Any] = {"novel": None}
    model = worked.model(entity=None, return_existing=None, **new)
    bare = trajectory("hello", 1.0)
    choice = bare["messages_and_choices"][1] | {"stop_reason": None, "token_ids": None, "served_by": {"a": [1]}}
    items = [ROW["messages"][0] | {"name": None, **new}, choice]
    nulls = dict.fromkeys(("tools", "additional_histories", "metrics", "metadata", "logs", "initial_policy_version"))
    group = {"trajectories": [{"messages_and_choices": items, "reward": 1.0, **nulls, **new}, trajectory("bye", 0.0)]}
    around = dict.fromkeys(("exceptions", "metadata", "metrics", "logs"))
    body = {"model_id": model["id"], "trajectory_groups": [group | around | new], "experimental_config": None, **new}
    job = worked.ok("POST", JOBS, body)
    worked.run_jobs()
    assert [event["type"] for event in poll(worked, job["id"])].count("gradient_step") == 1
    assert worked.ok("POST", f"{MODELS}/{model['id']}/log", {"trajectory_groups": [group], "split": None, **new}) == {}


@pytest.mark.parametrize(
    ("path", "members", "loc", "hint"),
    [
        (JOBS, {"epochs": 9}, ["epochs"], ""),
        (JOBS, {"experimental_confg": {}}, ["experimental_confg"], "'experimental_config'"),
        (JOBS, {"needs": {"acelerators": 1}}, ["needs", "acelerators"], "'accelerators'"),
        (JOBS, {"trajectory_groups": [{**GROUP, "metric": {}}]}, ["trajectory_groups", "0", "metric"], "'metrics'"),
        (
            JOBS,
            {"trajectory_groups": [{"trajectories": [{**trajectory("a", 1.0), "rewrad": 1}]}]},
            ["trajectory_groups", "0", "trajectories", "0", "rewrad"],
            "'reward'",
        ),
        (SFT_JOBS, {"epochs": 9}, ["epochs"], ""),
        (SFT_JOBS, {"training_data_ulr": "x"}, ["training_data_ulr"], "'training_data_url'"),
        (DPO_JOBS, {"beta": 0.5}, ["beta"], ""),
        (MODELS, {"retrun_existing": True}, ["retrun_existing"], "'return_existing'"),
        (f"{MODELS}/{{}}/log", {"splt": "val"}, ["splt"], "'split'"),
    ],
)
def test_an_unknown_member_is_refused_at_its_place_with_the_nearest_name(
    worked: Trainee, path: str, members: dict[str, Any], loc: list[str], hint: str
) -> None:
    model = worked.model("another")["id"]
    bodies: dict[str, Any] = {
        JOBS: {"model_id": model, "trajectory_groups": [GROUP]},
        SFT_JOBS: {"model_id": model, "training_data_url": "modelyard:///a/b/c"},
        DPO_JOBS: {"model_id": model, "training_data_url": "modelyard:///a/b/c"},
        MODELS: {"project": "p", "name": "n", "base_model": "tabular-mini"},
    }
    body = bodies.get(path, {"trajectory_groups": [GROUP]}) | members
    answer = worked.send("POST", path.format(model), body, check=False)
    assert (answer.status, answer.locs[:1]) == (422, [["body", *loc]]), answer.raw
    assert hint in answer.json["detail"][0]["msg"]
    assert worked.ok("GET", JOBS, model_id=model)["data"] == []


def test_a_job_of_no_groups_at_all_advances_the_step(worked: Trainee) -> None:
    job = worked.ok("POST", JOBS, {"model_id": worked.model()["id"], "trajectory_groups": []})
    worked.run_jobs()
    assert [event["type"] for event in poll(worked, job["id"])] == ["training_started", "training_ended"]
    assert worked.ok("GET", f"{JOBS}/{job['id']}")["step"] == 1


def test_a_job_outlives_its_model_and_shows_why_it_ended(worked: Trainee) -> None:
    model = worked.model()
    jobs = [worked.ok("POST", JOBS, {"model_id": model["id"], "trajectory_groups": [GROUP]}) for _ in range(2)]
    runner = Runner(worked.platform._runtime)
    claimed = runner.claim()
    assert claimed is not None
    steps = runner.steps(claimed)
    next(steps)
    assert worked.ok("DELETE", f"{MODELS}/{model['id']}")["deleted_checkpoints"] == 1
    assert list(steps) == []
    for job in jobs:
        shown = worked.ok("GET", f"{JOBS}/{job['id']}")
        assert (shown["status"], shown["error_message"]) == ("cancelled", "cancelled by the deletion of its model")
        assert poll(worked, job["id"])[-1]["data"] == {"error_message": shown["error_message"]}
    assert [job["id"] for job in worked.ok("GET", JOBS, model_id=model["id"])["data"]] == [job["id"] for job in jobs]
    assert worked.model()["id"] != model["id"]
    assert kept(worked) == []


def test_a_job_shows_its_state_its_last_heartbeat_and_its_end(worked: Trainee) -> None:
    first, second = (
        worked.ok("POST", JOBS, {"model_id": worked.model(name)["id"], "trajectory_groups": [GROUP]})
        for name in ("a", "b")
    )
    assert (first["queue_position"], second["queue_position"]) == (0, 1)
    assert (second["last_heartbeat"], second["estimated_end"]) == (None, None)
    runner = Runner(worked.platform._runtime)
    claimed = runner.claim()
    assert claimed is not None
    steps = runner.steps(claimed)
    for _ in range(2):
        next(steps)
    running = worked.ok("GET", f"{JOBS}/{first['id']}")
    assert (running["queue_position"], running["progress"], running["total"]) == (None, 1, 1)
    assert running["training_start"] <= running["last_heartbeat"] <= running["estimated_end"]
    assert worked.ok("GET", JOBS)["data"][1]["queue_position"] == 0
    steps.close()


def test_jobs_are_listed_by_model_and_status_and_cancelled(worked: Trainee) -> None:
    first, second = worked.model("a"), worked.model("b")
    jobs = [
        worked.ok("POST", JOBS, {"model_id": model["id"], "trajectory_groups": [GROUP]}) for model in (first, second)
    ]
    assert [job["id"] for job in worked.ok("GET", JOBS)["data"]] == [job["id"] for job in jobs]
    assert [job["id"] for job in worked.ok("GET", JOBS, model_id=second["id"])["data"]] == [jobs[1]["id"]]
    for _ in range(2):
        assert worked.ok("POST", f"{JOBS}/{jobs[0]['id']}/cancel")["status"] == "cancelled"
    assert [job["id"] for job in worked.ok("GET", JOBS, status="queued")["data"]] == [jobs[1]["id"]]
    (event,) = poll(worked, jobs[0]["id"])
    assert event["type"] == "training_failed"
    assert "cancelled by" in event["data"]["error_message"]


def test_the_same_sft_job_posted_again_is_the_first_one(worked: Trainee) -> None:
    body = {"model_id": worked.model()["id"], "training_data_url": worked.dataset()}
    first, again = (worked.ok("POST", SFT_JOBS, body)["id"] for _ in range(2))
    other = worked.ok("POST", SFT_JOBS, body | {"config": {"batch_size": 1}})["id"]
    assert first == again != other


@pytest.mark.parametrize(
    ("change", "status", "loc"),
    [
        ({"training_data_url": "/etc/passwd"}, 422, ["body", "training_data_url"]),
        ({"training_data_url": "file:///etc/passwd"}, 422, ["body", "training_data_url"]),
        ({"training_data_url": "https://example.com/x.jsonl"}, 422, ["body", "training_data_url"]),
        ({"training_data_url": "modelyard:///acme/bots/nothing:v0"}, 404, None),
        ({"config": {"learning_rate": [1e-4]}}, 422, ["body", "config", "learning_rate"]),
        ({"config": {"custom_lr_schedule": [1]}}, 422, ["body", "config", "custom_lr_schedule"]),
    ],
)
def test_an_sft_job_that_cannot_be_is_refused(
    worked: Trainee, change: dict[str, Any], status: int, loc: list[str] | None
) -> None:
    body = {"model_id": worked.model()["id"], "training_data_url": worked.dataset(), **change}
    answer = worked.send("POST", SFT_JOBS, body)
    assert answer.status == status
    assert loc is None or answer.locs == [loc]


def test_needs_are_stored_with_the_job_and_checked(worked: Trainee) -> None:
    body = {"model_id": worked.model()["id"], "training_data_url": worked.dataset()}
    job = worked.ok("POST", SFT_JOBS, body | {"needs": {"accelerators": 1}})
    worked.run_jobs()
    assert worked.ok("GET", f"{JOBS}/{job['id']}")["status"] == "queued"
    answer = worked.send("POST", SFT_JOBS, body | {"needs": {"memory": -1}})
    assert (answer.status, answer.locs) == (422, [["body", "needs", "memory"]])


def test_a_path_is_never_read_for_any_caller(worked: Trainee) -> None:
    body = {"model_id": worked.model()["id"], "training_data_url": "/etc/passwd"}
    answer = worked.send("POST", SFT_JOBS, body)
    assert answer.json["detail"][0]["msg"] == "must be the URL that the upload of a dataset returned"


# ---- logs and datasets -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "loc"),
    [
        ({"split": "a/b"}, ["body", "split"]),
        ({"split": 5}, ["body", "split"]),
        ({"model_id": NO_ID}, ["body", "model_id"]),
        ({"trajectory_groups": None}, ["body", "trajectory_groups"]),
        ({"trajectory_groups": [{"trajectories": [{}]}]}, ["body", "trajectory_groups", "0", "trajectories", "0"]),
    ],
)
def test_a_bad_log_is_refused_and_nothing_is_kept(client: Trainee, change: dict[str, Any], loc: list[str]) -> None:
    body = {"trajectory_groups": [GROUP], "split": "val", **change}
    answer = client.send("POST", f"{MODELS}/{client.model()['id']}/log", body)
    assert answer.status == 422
    assert [found[: len(loc)] for found in answer.locs] == [loc]
    assert kept(client) == []


def test_a_dataset_is_uploaded_once_and_versioned(client: Trainee) -> None:
    first = client.dataset(ROW)
    assert first == client.dataset(ROW) == "modelyard:///acme/bots/greetings:v0"
    assert client.dataset(ROW, ROW) == "modelyard:///acme/bots/greetings:v1"
    assert len(kept(client)) == 2


@pytest.mark.parametrize(
    ("raw", "query", "loc"),
    [
        (b"", {}, ["body"]),
        (b"{}", {}, ["body", "line", "1", "messages"]),
        (json.dumps(ROW).encode() + b"\nnot json", {}, ["body", "line", "2"]),
        (b"{}", {"name": "a/b"}, ["query", "name"]),
        (b"{}", {"project": ""}, ["query", "project"]),
    ],
)
def test_a_bad_dataset_is_refused_by_line_and_field(
    client: Trainee, raw: bytes, query: dict[str, Any], loc: list[str]
) -> None:
    answer = client.send("POST", DATASETS, raw=raw, **{"project": "bots", "name": "x", **query})
    assert answer.status == 422
    assert answer.locs[0][: len(loc)] == loc
    assert kept(client) == []


def test_a_dataset_needs_a_name_and_a_project(client: Trainee) -> None:
    assert client.send("POST", DATASETS, raw=b"{}", name="x").locs == [["query", "project"]]
    assert client.send("POST", DATASETS, raw=b"{}", project="x").locs == [["query", "name"]]
    assert kept(client) == []


@pytest.mark.slow
def test_a_large_rl_body_needs_the_memory_of_a_trajectory_only(worked: Trainee, tmp_path: Path) -> None:
    with open_platform(tmp_path / "yard.db", durability="process") as platform:
        client = client_of(platform, kind=Trainee)
        platform.worker().beat()
        model = client.model()
        one = json.dumps({"trajectories": [trajectory("word " * 10_000, reward) for reward in (0.0, 1.0)]}).encode()

        def chunks() -> Iterator[bytes]:
            yield b'{"model_id": "' + model["id"].encode() + b'", "trajectory_groups": ['
            for _ in range(60):
                yield one + b","
            yield one + b"]}"

        tracemalloc.start()
        try:
            headers = client.credentials()
            response = client.endpoint.handle(Request("POST", JOBS, "", headers, chunks()))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert response.status == 200, response.body
        assert peak < 15 * len(one) < 61 * len(one) / 4


# ---- DPO ---------------------------------------------------------------------------------------------------------


def test_a_dpo_job_trains_on_a_dataset_of_preferences(worked: Trainee) -> None:
    model, url = worked.model(), worked.dataset(PAIR, PAIR, PAIR)
    config = {"learning_rate": 1e-4, "batch_size": 1, "beta": 0.2, "label_smoothing": None}
    body = {"model_id": model["id"], "training_data_url": url, "config": config}
    job, again = (worked.ok("POST", DPO_JOBS, body) for _ in range(2))
    assert (job["kind"], job["status"], again["id"]) == ("dpo", "queued", job["id"])
    assert job["config"] == {**config, "epochs": 1, "label_smoothing": 0.0}
    worked.run_jobs()
    done = worked.ok("GET", f"{JOBS}/{job['id']}")
    assert (done["status"], done["step"], done["metrics"]["accuracy"]) == ("succeeded", 1, 1.0)
    events = worked.ok("GET", f"{JOBS}/{job['id']}/events")["data"]
    assert [event["type"] for event in events] == [
        *("training_started", "gradient_step", "gradient_step", "gradient_step"),
        "training_ended",
    ]


@pytest.mark.parametrize(
    ("change", "loc"),
    [
        ({"config": {"beta": 0}}, ["body", "config", "beta"]),
        ({"config": {"label_smoothing": 0.5}}, ["body", "config", "label_smoothing"]),
        ({"config": {"loss_type": "ipo"}}, ["body", "config", "loss_type"]),
        ({"training_data_url": "pairs.jsonl"}, ["body", "training_data_url"]),
    ],
)
def test_a_dpo_job_that_cannot_be_made_is_refused_where_it_is_wrong(worked: Trainee, change: Any, loc: Any) -> None:
    body = {"model_id": worked.model()["id"], "training_data_url": worked.dataset(PAIR)}
    answer = worked.send("POST", DPO_JOBS, body | change)
    assert (answer.status, answer.locs) == (422, [loc])


def test_datasets_of_the_other_format_are_refused_by_line_and_field(worked: Trainee) -> None:
    model, examples, pairs = worked.model(), worked.dataset(), worked.dataset(PAIR)
    for path, url in ((DPO_JOBS, examples), (SFT_JOBS, pairs)):
        answer = worked.send("POST", path, {"model_id": model["id"], "training_data_url": url})
        assert (answer.status, answer.locs) == (
            422,
            [["body", "training_data_url", "line", "1", one] for one in ("chosen", "rejected")],
        )


def test_equal_answers_are_refused_when_the_dataset_comes(client: Trainee) -> None:
    lines = b"\n".join(json.dumps(row).encode() for row in (PAIR, {**PAIR, "rejected": PAIR["chosen"]}))
    answer = client.send("POST", DATASETS, raw=lines, project="bots", name="greetings")
    assert (answer.status, answer.locs) == (422, [["body", "line", "2", "rejected"]])


def test_a_method_that_no_trainer_lists_is_a_problem_of_the_model() -> None:
    class WithoutDPO(TabularTrainer):
        def methods(self, base_model: str) -> Collection[str]:
            return [method for method in super().methods(base_model) if method != "dpo"]

    with open_platform(trainers=[WithoutDPO()]) as platform:
        platform.worker().beat()
        client = client_of(platform, kind=Trainee)
        body = {"model_id": client.model()["id"], "training_data_url": client.dataset(PAIR)}
        answer = client.send("POST", DPO_JOBS, body)
        assert (answer.status, answer.locs) == (422, [["body", "model_id"]])
        assert "'tabular-mini' is trained here by distill, rl, sft, not by dpo" in answer.json["detail"][0]["msg"]


# ---- resuming


def test_a_job_that_a_budget_has_ended_is_resumed_once_by_whom_it_belongs_to(worked: Trainee) -> None:
    platform = worked.platform
    mini = platform.catalogue.get(BASE)
    platform.catalogue.register(attrs.evolve(mini, pricing=attrs.evolve(mini.pricing, training=Decimal(1))))
    platform.usage.set_budget(15, entity="acme")
    body = {"model_id": worked.model()["id"], "training_data_url": worked.dataset(), "config": {"batch_size": 1}}
    ended = worked.ok("POST", SFT_JOBS, body)["id"]
    worked.run_jobs()
    assert "the budget of acme" in worked.ok("GET", f"{JOBS}/{ended}")["error_message"]

    def resume(by: Trainee = worked) -> Answer:
        return by.send("POST", f"{JOBS}/{ended}/resume")

    spent = platform.usage.get_budget(entity="acme")
    assert spent is not None
    platform.usage.set_budget(spent.spent, entity="acme")
    assert (resume().status, resume(worked.another("rival")).status) == (402, 404)
    platform.usage.set_budget(1000, entity="acme")
    again = resume()
    assert (again.status, again.json["status"]) == (200, "queued")
    refused = resume()
    assert (refused.status, refused.headers["x-should-retry"]) == (409, "false")
    worked.run_jobs()
    shown = worked.ok("GET", f"{JOBS}/{again.json['id']}")
    assert (shown["status"], shown["step"]) == ("succeeded", 1)
    (total,) = platform.usage.total()
    assert total.trained_tokens == 3 * 6


def test_a_job_is_not_resumed_where_no_worker_would_take_it(client: Trainee) -> None:
    client.platform.worker().beat()
    body = {"model_id": client.model()["id"], "training_data_url": client.dataset()}
    job = client.ok("POST", SFT_JOBS, body)["id"]
    assert client.send("POST", f"{JOBS}/{job}/resume").status == 409
    assert client.send("POST", f"{JOBS}/{NO_ID}/resume").status == 404
