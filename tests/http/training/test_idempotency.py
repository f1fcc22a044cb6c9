"""The header `Idempotency-Key` of the routes that create training jobs."""

import json
from collections.abc import Iterator
from typing import Any

import attrs
import pytest

from http_client import Answer, Client
from modelyard.compose import open_platform

HI = {"role": "user", "content": "hi"}
LOGPROBS = {"content": [{"token": "ho", "logprob": -1.0, "bytes": None, "top_logprobs": []}]}
ANSWER = {"role": "assistant", "content": "ho"}
CHOICE = {"finish_reason": "stop", "index": 0, "message": ANSWER, "logprobs": LOGPROBS}
GROUP = {"trajectories": [{"messages_and_choices": [HI, CHOICE], "reward": reward} for reward in (0.0, 1.0)]}
ROWS = {
    "sft": {"messages": [HI, ANSWER]},
    "dpo": {"messages": [HI], "chosen": "ho", "rejected": "no"},
}


@attrs.frozen
class Requester:
    """Requests jobs of one kind, of a model and with data that are there."""

    client: Client
    kind: str

    @property
    def path(self) -> str:
        return "/v1/preview/" + ("training-jobs" if self.kind == "rl" else f"{self.kind}-training-jobs")

    def body(self) -> dict[str, Any]:
        fields = {"project": "bots", "name": "m", "base_model": "tabular-mini"}
        model = self.client.ok("POST", "/v1/preview/models", fields)["id"]
        if self.kind == "rl":
            return {"model_id": model, "trajectory_groups": [GROUP]}
        place = {"project": "bots", "name": "rows"}
        row = json.dumps(ROWS[self.kind]).encode()
        url = self.client.send("POST", "/v1/preview/datasets", raw=row, query=place).json["url"]
        return {"model_id": model, "training_data_url": url}

    def ask(self, body: Any, *keys: str) -> Answer:
        return self.client.send("POST", self.path, body, headers=[("idempotency-key", key) for key in keys])

    def finish(self) -> None:
        self.client.platform.worker().run_until_idle()

    def jobs(self) -> int:
        return len(list(self.client.platform.jobs.list()))


@pytest.fixture(params=["sft", "dpo", "rl"])
def requester(request: pytest.FixtureRequest, client_for: Any) -> Iterator[Requester]:
    with open_platform() as platform:
        platform.worker().beat()
        yield Requester(client_for(platform), request.param)


def test_the_same_request_is_the_same_job_also_after_its_end(requester: Requester) -> None:
    body = requester.body()
    first = requester.ask(body, "nightly-7")
    assert first.status == 200, first.raw
    requester.finish()
    again = requester.ask(body, "nightly-7")
    assert (again.status, again.json["id"], again.json["status"]) == (200, first.json["id"], "succeeded")
    other = requester.ask(body, "nightly-8")
    assert (other.status, requester.jobs()) == (200, 2)


def test_another_request_with_the_key_is_409_and_not_to_be_repeated(requester: Requester) -> None:
    body = requester.body()
    assert requester.ask(body, "nightly-7").status == 200
    config = "experimental_config" if requester.kind == "rl" else "config"
    refused = requester.ask({**body, config: {"learning_rate": 0.125}}, "nightly-7")
    assert (refused.status, refused.headers["x-should-retry"], requester.jobs()) == (409, "false", 1)
    assert "idempotency key 'nightly-7' was used for another request" in refused.json["detail"]


@pytest.mark.parametrize("key", ["", "a b", "é", "x" * 256])
def test_what_is_not_a_key_is_refused_at_the_header(requester: Requester, key: str) -> None:
    refused = requester.ask(requester.body(), key)
    assert (refused.status, refused.locs, requester.jobs()) == (422, [["header", "Idempotency-Key"]], 0)


def test_two_keys_are_refused(requester: Requester) -> None:
    assert (requester.ask(requester.body(), "a", "b").status, requester.jobs()) == (400, 0)


@pytest.mark.slow
def test_the_header_is_described(requester: Requester) -> None:
    operation = requester.client.send("GET", "/openapi.json", key="").json["paths"][requester.path]["post"]
    (described,) = [one for one in operation["parameters"] if one["in"] == "header"]
    assert (described["name"], described["required"]) == ("Idempotency-Key", False)
