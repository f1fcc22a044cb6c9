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
    body = {"model_id": model, "trajectory_groups": [group(client, kind)]}
    job = client.send("POST", "/v1/preview/training-jobs", body).json["id"]
    client.platform.worker().run_until_idle()
    done = client.platform.jobs.get(job)
    if kind == "messages":  # its answers have no log-probabilities, without which nothing is trained
        assert (done.status, "with logprobs" in str(done.error_message)) == (JobStatus.FAILED, True), done
    else:
        assert done.status is JobStatus.SUCCEEDED, done


def test_a_log_takes_them_too_and_refusals_name_the_place(client: Any) -> None:
    model = registered(client, f"log{client.asynchronous}".lower())
    groups = [group(client, "chat_completions")]
    body = {"trajectory_groups": groups, "split": "val"}
    assert client.send("POST", f"/v1/preview/models/{model}/log", body).status == 200
    groups[0]["trajectories"][1]["exchanges"]["chat_completions"][0]["request"]["messages"] = [{"role": "nobody"}]
    asked = {"model_id": model, "trajectory_groups": groups}
    refused = client.send("POST", "/v1/preview/training-jobs", asked, check=False)
    place = ["exchanges", "chat_completions", "0", "request", "messages", "0", "role"]
    assert (refused.status, refused.locs) == (422, [["body", "trajectory_groups", "0", "trajectories", "1", *place]])
