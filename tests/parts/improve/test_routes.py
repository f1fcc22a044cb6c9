"""Prompt jobs and improvements over HTTP, with the key of a tenant."""

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pytest

from http_client import Answer, Client, client_of
from modelyard import Pricing, ScriptedBackend, open_platform
from modelyard.domain.identity import Principal, Scope
from prompt_tasks import BEGIN, MANY, MODELS, TASKS, script

PROMPTS, IMPROVEMENTS = "/v1/preview/prompt-jobs", "/v1/improvements"
PRICES = Pricing(prompt=Decimal("0.0001"), completion=Decimal("0.001"))
PROMPT: dict[str, Any] = {
    "variant": "desk/support",
    "tasks": TASKS,
    "reward": "contains",
    "reflection": "thinker",
    "config": {"calls": 100, "seed": 3, "budget": "5.00", "max_tokens": 20, "reflection_max_tokens": 200},
}
LITTLE = {"calls": 300, "minibatch": 4, "max_tokens": 20, "reflection_max_tokens": 200}
ROADS = [{"road": "prompt", "reflection": one, **LITTLE} for one in ("fool", "thinker")]
IMPROVE: dict[str, Any] = {
    "target": "desk/support@1",
    "tasks": MANY,
    "reward": {"type": "contains"},
    "roads": ROADS,
    "seed": 3,
    "name": "better",
    "budget": "5.00",
}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """A client of a platform on SQLite where a worker has announced itself; jobs run when the test runs them."""
    backend = ScriptedBackend(script, MODELS, pricing=PRICES)
    store = tmp_path / "yard.db"
    with open_platform(store, backend=backend, entity="acme", randomness=Random(1).randbytes) as platform:
        platform.variants.publish("desk/support", model="scripted", system=BEGIN)
        platform.worker().beat()
        yield client_of(platform)


def work(client: Client) -> None:
    client.platform.worker().run_until_idle()


def keyed(client: Client, path: str, body: Any, key: str = "once") -> Answer:
    return client.send("POST", path, body, headers=[("idempotency-key", key)])


# ---- prompt jobs


def test_a_prompt_job_is_started_followed_and_shown(client: Client) -> None:
    made = client.ok("POST", PROMPTS, PROMPT)
    assert (made["status"], made["version"], made["made"], made["spent"]) == ("queued", 1, None, None)
    work(client)
    path = f"{PROMPTS}/{made['id']}"
    found = client.ok("GET", path)
    assert (found["status"], found["variant"], found["reflection"]) == ("succeeded", "support", "thinker")
    assert (found["version"], found["made"], found["start_held_out"]) == (1, 2, 0.0)
    assert found["best_held_out"] > 0.5
    assert 0 < Decimal(found["spent"]) <= Decimal("5.00")
    assert "answers were scored" in found["stop_reason"]
    proposals = client.ok("GET", f"{path}/proposals", query={"limit": "2"})
    assert (proposals["data"][0]["text"], proposals["data"][0]["parent"], proposals["has_more"]) == (BEGIN, None, True)
    rest = client.ok("GET", f"{path}/proposals", query={"after": proposals["last_id"], "limit": "100"})
    assert [one["id"] for one in rest["data"]] == [str(at) for at in range(2, 2 + len(rest["data"]))]
    for unknown in ("x", "-1", "99", "9" * 30):
        assert client.send("GET", f"{path}/proposals", query={"after": unknown}).status == 404
    events = client.ok("GET", f"/v1/preview/training-jobs/{made['id']}/events", query={"limit": "100"})["data"]
    assert [events[0]["type"], events[-1]["type"]] == ["training_started", "training_ended"]
    assert client.ok("GET", "/v1/preview/training-jobs")["data"][0]["id"] == made["id"]


def test_prompt_jobs_are_listed_by_pages_and_cancelled_as_training_jobs_are(client: Client) -> None:
    ids = [client.ok("POST", PROMPTS, {**PROMPT, "config": {"calls": 9 + at}})["id"] for at in range(3)]
    page = client.ok("GET", PROMPTS, query={"limit": "2"})
    more = client.ok("GET", PROMPTS, query={"limit": "2", "after": page["last_id"]})
    assert [one["id"] for one in (*page["data"], *more["data"])] == ids[::-1]
    oldest = client.ok("GET", PROMPTS, query={"order": "asc", "project": "desk", "limit": "1"})
    assert oldest["data"][0]["id"] == ids[0]
    client.ok("POST", IMPROVEMENTS, IMPROVE)
    assert len(client.ok("GET", PROMPTS)["data"]) == 3
    client.ok("POST", f"/v1/preview/training-jobs/{ids[0]}/cancel")
    assert client.ok("GET", f"{PROMPTS}/{ids[0]}")["status"] == "cancelled"


def test_the_same_prompt_job_under_a_key_is_one(client: Client) -> None:
    first, again = (keyed(client, PROMPTS, PROMPT).json["id"] for _ in range(2))
    assert first == again
    work(client)
    assert keyed(client, PROMPTS, PROMPT).json["status"] == "succeeded"
    assert keyed(client, PROMPTS, {**PROMPT, "reward": "exact_match"}).status == 409
    assert len(client.ok("GET", PROMPTS)["data"]) == 1


@pytest.mark.parametrize(
    ("changes", "place", "says"),
    [
        ({"variant": "desk"}, ["body", "variant"], "must be such as"),
        ({"variant": None}, ["body", "variant"], ""),
        ({"reward": "os:system"}, ["body", "reward"], ""),
        ({"reward": "contians"}, ["body", "reward", "type"], "contains"),
        ({"reward": {"rule": None, "imported": "os:system"}}, ["body", "reward"], ""),
        ({"reward": ["contains", "exact_match"]}, ["body", "reward"], ""),
        ({"tasks": "/etc/passwd"}, ["body", "tasks"], ""),
        ({"tasks": []}, ["body", "tasks"], "must not be empty"),
        ({"tasks": [TASKS[0], {"question": "x"}]}, ["body", "tasks", "1", "messages"], ""),
        ({"held_out": [{"question": "x"}]}, ["body", "held_out", "0", "messages"], ""),
        ({"config": {"calls": 0}}, ["body", "config", "calls"], "1 to"),
        ({"config": {"calls": 10**9}}, ["body", "config", "calls"], "1 to"),
        ({"config": {"calls": 1.5}}, ["body", "config", "calls"], ""),
        ({"config": {"budget": "much"}}, ["body", "config", "budget"], "must be an amount in USD"),
        ({"config": {"budget": "-1"}}, ["body", "config", "budget"], "must be an amount in USD"),
        ({"config": {"seed": -1}}, ["body", "config", "seed"], ""),
        ({"config": {"call": 9}}, ["body", "config", "call"], "'calls'"),
        ({"needs": {"accelerators": -1}}, ["body", "needs", "accelerators"], ""),
        ({"heldout": []}, ["body", "heldout"], "'held_out'"),
    ],
)
def test_what_a_prompt_job_cannot_do_is_refused_at_its_place(
    client: Client, changes: dict[str, Any], place: list[str], says: str
) -> None:
    answer = client.send("POST", PROMPTS, {**PROMPT, **changes}, check=False)
    assert answer.status == 422, answer.raw
    assert [one[: len(place)] for one in answer.locs] == [place]
    assert says in answer.json["detail"][0]["msg"]
    assert client.ok("GET", PROMPTS)["data"] == []


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"variant": "desk/nothing"}, "nothing"),
        ({"variant": "desk/support@9"}, "the newest is 1"),
        ({"reflection": "nobody"}, "nobody"),
    ],
)
def test_what_a_prompt_job_names_must_exist(client: Client, changes: dict[str, Any], names: str) -> None:
    answer = client.send("POST", PROMPTS, {**PROMPT, **changes})
    assert answer.status == 404
    assert names in answer.raw.decode()


# ---- improvements


def test_an_improvement_is_started_followed_and_recommends(client: Client) -> None:
    made = client.ok("POST", IMPROVEMENTS, IMPROVE)
    assert (made["name"], made["roads"], made["status"]) == ("better", ["prompt", "prompt"], "queued")
    path = f"{IMPROVEMENTS}/{made['id']}"
    before = client.ok("GET", path)
    assert [one["job"] for one in before["roads"]] == [None, None]
    assert (before["rows"], before["recommendation"]) == (round(len(MANY) * 0.3), None)
    work(client)
    found = client.ok("GET", path)
    fool, thinker = found["roads"]
    assert (found["status"], found["baseline"], found["best"]) == ("succeeded", 0.0, 2)
    assert "Take acme/desk/support@2, by the road prompt" in found["recommendation"]
    assert (fool["version"], fool["verdict"], fool["score"]) == (None, None, None)
    assert (thinker["version"], thinker["verdict"]) == (2, "better")
    assert thinker["interval"]["low"] < thinker["difference"] < thinker["interval"]["high"]
    assert thinker["p"] < 0.05
    assert 0 < Decimal(thinker["spent"]) <= Decimal("2.50")
    assert thinker["per_usd"] == pytest.approx(thinker["difference"] / float(thinker["spent"]))
    assert client.ok("GET", f"{PROMPTS}/{thinker['job']}")["made"] == 2
    events = client.ok("GET", f"{path}/events")
    assert [one["type"] for one in events["data"]] == ["improvement_ended"]
    assert client.ok("GET", f"{path}/events", query={"after": events["last_id"]})["data"] == []
    assert client.ok("POST", f"{path}/cancel")["status"] == "succeeded"


def test_it_is_shown_without_scores_when_a_run_was_deleted(client: Client) -> None:
    made = client.ok("POST", IMPROVEMENTS, IMPROVE)["id"]
    work(client)
    for run in [*client.platform.evaluations.runs.list(project="desk")]:
        client.platform.evaluations.runs.delete([run.id], project="desk")
    found = client.ok("GET", f"{IMPROVEMENTS}/{made}")
    assert (found["status"], found["recommendation"]) == ("succeeded", None)
    assert [(one["version"], one["score"]) for one in found["roads"]] == [(None, None), (2, None)]


def test_improvements_are_listed_by_pages_and_cancelled(client: Client) -> None:
    ids = [client.ok("POST", IMPROVEMENTS, {**IMPROVE, "name": f"n{at}"})["id"] for at in range(3)]
    client.ok("POST", PROMPTS, PROMPT)
    page = client.ok("GET", IMPROVEMENTS, query={"limit": "2"})
    more = client.ok("GET", IMPROVEMENTS, query={"limit": "2", "after": page["last_id"], "project": "desk"})
    assert [one["id"] for one in (*page["data"], *more["data"])] == ids[::-1]
    assert client.send("GET", IMPROVEMENTS, query={"after": "nobody"}).status == 404
    assert client.ok("GET", IMPROVEMENTS, query={"project": "other"})["data"] == []
    path = f"{IMPROVEMENTS}/{ids[0]}"
    assert [client.ok("POST", f"{path}/cancel")["status"] for _ in range(2)] == ["cancelled"] * 2
    assert client.ok("GET", path)["status"] == "cancelled"
    assert [one["type"] for one in client.ok("GET", f"{path}/events")["data"]] == ["improvement_failed"]


def test_the_same_improvement_under_a_key_is_one(client: Client) -> None:
    first, again = (keyed(client, IMPROVEMENTS, IMPROVE).json["id"] for _ in range(2))
    assert first == again
    work(client)
    assert keyed(client, IMPROVEMENTS, IMPROVE).json["status"] == "succeeded"
    assert keyed(client, IMPROVEMENTS, {**IMPROVE, "unseen": 0.4}).status == 409
    assert "already" in client.send("POST", IMPROVEMENTS, IMPROVE).raw.decode()
    assert len(client.ok("GET", IMPROVEMENTS)["data"]) == 1


@pytest.mark.parametrize(
    ("changes", "place", "says"),
    [
        ({"target": "desk"}, ["body", "target"], "must be such as"),
        ({"target": 5}, ["body", "target"], ""),
        ({"tasks": [*MANY, {"question": "x"}]}, ["body", "tasks", str(len(MANY)), "messages"], ""),
        ({"reward": "os:system"}, ["body", "reward"], ""),
        ({"roads": []}, ["body", "roads"], "must not be empty"),
        ({"roads": ["sft"] * 9}, ["body", "roads"], "at most 8"),
        ({"roads": "sft"}, ["body", "roads"], ""),
        ({"roads": [None]}, ["body", "roads", "0"], ""),
        ({"roads": [*ROADS, "fly"]}, ["body", "roads", "2", "road"], "must be one of prompt, sft, rl, distil"),
        ({"roads": [{"road": 5}]}, ["body", "roads", "0", "road"], "must be one of"),
        ({"roads": [{"road": []}]}, ["body", "roads", "0", "road"], "must be one of"),
        ({"roads": [{"road": "prompt"}]}, ["body", "roads", "0", "reflection"], "is required"),
        ({"roads": [{**ROADS[0], "reflection": 5}]}, ["body", "roads", "0", "reflection"], ""),
        ({"roads": [{**ROADS[0], "call": 3}]}, ["body", "roads", "0", "call"], ""),
        ({"roads": [{**ROADS[0], "calls": 10**300}]}, ["body", "roads", "0", "calls"], ""),
        ({"roads": [{**ROADS[0], "budget": 1.5}]}, ["body", "roads", "0", "budget"], "amount in USD"),
        ({"roads": [{"road": "sft", "data": "x"}]}, ["body", "roads", "0", "data"], "must be rows"),
        ({"roads": [{"road": "sft", "data": [5]}]}, ["body", "roads", "0", "data", "0"], "must be a mapping"),
        ({"roads": ["sft"]}, ["body", "roads", "0"], "cannot be trained here"),
        ({"budget": "much"}, ["body", "budget"], "must be an amount in USD"),
        ({"budget": 5}, ["body", "budget"], ""),
        ({"budget": "1e999999"}, ["body", "budget"], "must be an amount in USD"),
        ({"unseen": 1e308}, ["body", "unseen"], "between 0 and 1"),
        ({"unseen": True}, ["body", "unseen"], ""),
        ({"max_tokens": 0}, ["body", "max_tokens"], "1 to"),
        ({"seed": -1}, ["body", "seed"], "0 to"),
        ({"seed": 2**63}, ["body", "seed"], "64 bits"),
        ({"name": "a/b"}, ["body", "name"], ""),
        ({"road": []}, ["body", "road"], "'roads'"),
    ],
)
def test_what_an_improvement_cannot_do_is_refused_at_its_place(
    client: Client, changes: dict[str, Any], place: list[str], says: str
) -> None:
    answer = client.send("POST", IMPROVEMENTS, {**IMPROVE, **changes}, check=False)
    assert answer.status == 422, answer.raw
    assert [one[: len(place)] for one in answer.locs] == [place], answer.raw
    assert says in answer.json["detail"][0]["msg"]
    assert client.ok("GET", IMPROVEMENTS)["data"] == []


# ---- who may


def test_another_tenant_starts_and_sees_nothing(client: Client) -> None:
    job, made = client.ok("POST", PROMPTS, PROMPT)["id"], client.ok("POST", IMPROVEMENTS, IMPROVE)["id"]
    other = client.another("globex")
    for path in (f"{PROMPTS}/{job}", f"{PROMPTS}/{job}/proposals", f"{IMPROVEMENTS}/{made}"):
        assert other.send("GET", path).status == 404
    assert other.send("GET", f"{IMPROVEMENTS}/{made}/events").status == 404
    assert other.send("POST", f"{IMPROVEMENTS}/{made}/cancel").status == 404
    assert other.ok("GET", PROMPTS)["data"] == other.ok("GET", IMPROVEMENTS)["data"] == []
    for path, body in ((PROMPTS, {"variant": "acme/desk/support"}), (IMPROVEMENTS, {"target": "acme/desk/support"})):
        assert other.send("POST", path, {**(PROMPT if path == PROMPTS else IMPROVE), **body}).status == 403
        assert other.send("GET", path, query={"entity": "acme"}).status == 403
        assert other.send("GET", path, key="").status == 401
        assert other.send("GET", path, query={"after": job if path == PROMPTS else made}).status == 404
    assert client.ok("GET", f"{IMPROVEMENTS}/{made}")["status"] == "queued"


def test_a_key_of_one_project_has_those_of_its_project(client: Client) -> None:
    made = client.ok("POST", IMPROVEMENTS, IMPROVE)["id"]
    own, other = client.another("acme", ["desk"]), client.another("acme", ["lab"])
    assert [one["id"] for one in own.ok("GET", IMPROVEMENTS)["data"]] == [made]
    assert other.ok("GET", IMPROVEMENTS)["data"] == []
    assert other.send("POST", IMPROVEMENTS, {**IMPROVE, "name": "mine"}).status == 403
    assert other.send("POST", PROMPTS, PROMPT).status == 403


def test_the_budget_of_the_key_holds_on_every_road(client: Client) -> None:
    key = client.platform.keys.create("acme")
    client.platform.usage.set_budget(Decimal("0.30"), entity="acme", key_id=key.key.id)
    poor = Client(client.platform, client.endpoint, key.secret)
    made = poor.ok("POST", IMPROVEMENTS, IMPROVE)["id"]
    job = poor.ok("POST", PROMPTS, PROMPT)["id"]
    work(client)
    roads = poor.ok("GET", f"{IMPROVEMENTS}/{made}")["roads"]
    assert any("budget" in one["why"] for one in roads)
    assert "budget" in poor.ok("GET", f"{PROMPTS}/{job}")["error_message"]
    ann = client.platform.acting_as(Principal("ann", "acme", Scope("acme")))
    assert sum(one.cost for one in ann.usage.total(by=("model",))) <= Decimal("0.30")


def test_without_a_worker_nothing_is_queued() -> None:
    backend = ScriptedBackend(script, MODELS)
    with open_platform(backend=backend, entity="acme") as platform:
        platform.variants.publish("desk/support", model="scripted", system=BEGIN)
        client = client_of(platform)
        for path, body in ((PROMPTS, PROMPT), (IMPROVEMENTS, IMPROVE)):
            assert client.send("POST", path, body).status == 503
            assert client.ok("GET", path)["data"] == []
