"""A job trains on what a rollout asked in each of the four formats, as it was asked and answered."""

from typing import Any

import pytest

from modelyard.domain.job import JobStatus

PROMPT = {"role": "user", "content": "Where is my order?"}


def registered(client: Any, name: str) -> str:
    client.platform.worker().beat()
    body = {"project": "desk", "name": name, "base_model": "tabular-mini"}
    model: str = client.send("POST", "/v1/preview/models", body).json["id"]
    return model


KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat_completions": ("/v1/chat/completions", {"messages": [PROMPT], "logprobs": True, "max_tokens": 8}),
    "completions": (
        "/v1/completions",
        {"prompt": "Where is", "max_tokens": 8, "logprobs": 0, "return_token_ids": True},
    ),
    "messages": ("/v1/messages", {"messages": [PROMPT], "max_tokens": 8}),
    "responses": (
        "/v1/responses",
        {"input": PROMPT["content"], "max_output_tokens": 16, "include": ["message.output_text.logprobs"]},
    ),
}


def group(client: Any, kind: str) -> dict[str, Any]:
    path, members = KINDS[kind]
    trajectories = []
    for at in range(2):
        request = {"model": "tabular-mini", "temperature": 1, **members}
        response = client.send("POST", path, request).json
        trajectories.append({"exchanges": {kind: [{"request": request, "response": response}]}, "reward": float(at)})
    return {"trajectories": trajectories}


@pytest.mark.parametrize("kind", [*KINDS])
def test_what_was_rolled_out_is_trained(client: Any, kind: str) -> None:
    model = registered(client, f"{kind}{client.asynchronous}".replace("_", "-").lower())
    given = group(client, kind)
    if kind == "messages":  # the format has no log-probabilities; servers for training add them
        exchanges = [one["exchanges"]["messages"][0]["response"] for one in given["trajectories"]]
        place = ["body", "trajectory_groups", "0", "trajectories", "0", "exchanges", "messages", "0", "response"]
        for name, value in (("token_ids", [65, 66]), ("logprobs", [-1.0, -1.0])):
            body = {"model_id": model, "trajectory_groups": [given]}
            refused = client.send("POST", "/v1/preview/training-jobs", body, check=False)
            assert (refused.status, refused.locs) == (422, [[*place, name]])
            for response in exchanges:
                response[name] = value
    body = {"model_id": model, "trajectory_groups": [given]}
    job = client.send("POST", "/v1/preview/training-jobs", body).json["id"]
    client.platform.worker().run_until_idle()
    assert client.platform.jobs.get(job).status is JobStatus.SUCCEEDED


def test_a_log_takes_them_too_and_refusals_name_the_place(client: Any) -> None:
    model = registered(client, f"log{client.asynchronous}".lower())
    groups = [group(client, "chat_completions"), group(client, "messages")]
    body = {"trajectory_groups": groups, "split": "val"}
    assert client.send("POST", f"/v1/preview/models/{model}/log", body).status == 200
    groups[0]["trajectories"][1]["exchanges"]["chat_completions"][0]["request"]["messages"] = [{"role": "nobody"}]
    asked = {"model_id": model, "trajectory_groups": groups}
    refused = client.send("POST", "/v1/preview/training-jobs", asked, check=False)
    place = ["exchanges", "chat_completions", "0", "request", "messages", "0", "role"]
    assert (refused.status, refused.locs) == (422, [["body", "trajectory_groups", "0", "trajectories", "1", *place]])
