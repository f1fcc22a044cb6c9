"""One call of every operation on a real platform, from which the examples of the OpenAPI document are made.

`python tests/shared/openapi_calls.py` records them again, after a change of what is sent or answered.
"""

import base64
import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import attrs

from forms import HEADER, form
from http_client import Answer, Client, client_of
from modelyard import open_platform
from modelyard.domain.catalogue import Pricing
from modelyard.http import openapi
from modelyard.http.interface import Auth
from modelyard.http.message import PROTOBUF
from modelyard.http.route import Body, Parameter, Route, function_of
from modelyard.platform.platform import Platform
from modelyard.testing import ManualClock
from part_tests import in_common
from tinker_messages import forward_backward

SOURCE = Path(openapi.__file__).parents[1]
JSON, LINES = "application/json", "application/jsonl"

USER = {"role": "user", "content": "Where is my order?"}
GOOD = {"role": "assistant", "content": "It arrives on Friday."}
ASKED = {"model": "echo", "messages": [USER]}
EXAMPLES = b"".join(json.dumps({"messages": [USER, GOOD]}).encode() + b"\n" for _ in range(2))
PAIR = json.dumps({"messages": [USER], "chosen": GOOD["content"], "rejected": "No idea."}).encode() + b"\n"
TOKENS = {"content": [{"token": "Friday", "logprob": -0.5, "bytes": None, "top_logprobs": []}]}
CHOICE = {
    "finish_reason": "stop",
    "index": 0,
    "message": {"role": "assistant", "content": "Friday"},
    "logprobs": TOKENS,
}
GROUP = {"trajectories": [{"messages_and_choices": [USER, CHOICE], "reward": reward} for reward in (0.0, 1.0)]}
ROWS = [{"prompt": "say yes", "expected": "say yes"}, {"prompt": "say no", "expected": "say yes"}]
LINES_SHOWN = 12
"""How many lines of a string an example has."""
PLACE, V1 = "/v2/acme/support", "/v1/preview"
BASES = ("/v1", "/inference/v1")
OBJECT = "weave:///acme/support/object/"


SPAN = {
    "traceId": "0af7651916cd43dd8448eb211c80319c",
    "spanId": "b7ad6b7169203331",
    "name": "chat echo",
    "startTimeUnixNano": "1772443800000000000",
    "endTimeUnixNano": "1772443801000000000",
    "attributes": [
        {"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}},
        {"key": "gen_ai.request.model", "value": {"stringValue": "echo"}},
        {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "4"}},
    ],
}
EXPORT = {"resourceSpans": [{"scopeSpans": [{"spans": [SPAN, {**SPAN, "spanId": ""}]}]}]}


@attrs.define
class Recorder:
    """Sends requests that must succeed, and keeps the first exchange of each operation as its example.

    `examples` are those of each file, by the names of their operations.
    """

    client: Client
    examples: dict[Path, dict[str, Any]] = attrs.field(factory=dict)

    def send(self, method: str, path: str, body: Any = None, *, raw: bytes | None = None, **query: Any) -> Any:
        """Send a request. Returns the JSON of its answer, or the first line of it.

        The body of a route that takes a form are its fields, with `file` among them.
        """
        route = self.client.endpoint.table.match(path).route(method)
        text = urlencode(query, doseq=True)
        auth = "Basic" if route.auth is Auth.BASIC else "Bearer"
        headers = [("host", "yard.example")]
        coded = route.body is Body.MESSAGE
        headers += [("content-type", PROTOBUF)] * coded
        shown = body if raw is None or coded else raw.decode()
        if route.body is Body.FORM:
            raw = form({name: value for name, value in body.items() if name != "file"}, body["file"].encode())
            headers.append(HEADER)
        answer = self.client.send(method, path, body, raw=raw, query=text, auth=auth, headers=headers)
        assert answer.status == 200, (method, path, answer.raw)
        example = self._example(route, path, shown, text, answer)
        self.examples.setdefault(file_of(route), {}).setdefault(route.operation, example)
        return example.get("response")

    def _example(self, route: Route, path: str, body: Any, query: str, answer: Answer) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if body is not None:
            found["request"] = body
        if answer.headers.get("content-type") in (JSON, LINES):
            first = answer.raw.splitlines()[0].replace(str(SOURCE).encode(), b"/srv/modelyard")
            found["response"] = json.loads(first)
        elif answer.headers.get("content-type", "").startswith("text/plain"):
            found["response"] = b"".join(answer.raw.splitlines(keepends=True)[:LINES_SHOWN]).decode()
        params = self.client.endpoint.table.match(path).params
        if params and route.auth is not Auth.ADDRESS:
            found["path"] = {name: int(value) if name == "step" else value for name, value in params.items()}
        given = parse_qs(query)
        if given:
            found["query"] = {one.name: _value(one, given[one.name]) for one in route.query if one.name in given}
        return found


def file_of(route: Route) -> Path:
    """The file with the example of a route: in the folder of the part that brings it, or with those of the core."""
    _, first, second = function_of(route.handler).__module__.split(".")[:3]
    return SOURCE / (f"parts/{second}" if first == "parts" else "http") / openapi.EXAMPLES


def kept() -> dict[Path, dict[str, Any]]:
    """The examples of each file as they are now."""
    return {file: json.loads(file.read_bytes()) for file in SOURCE.rglob(openapi.EXAMPLES)}


def _value(parameter: Parameter, texts: list[str]) -> Any:
    kind = parameter.schema.get("type", "string")
    if kind == "array":
        return texts
    return int(texts[0]) if kind == "integer" else texts[0]


def record() -> dict[Path, dict[str, Any]]:
    """Return the example of every operation, by its file and its name."""
    clock = ManualClock(datetime(2026, 3, 2, 9, 30, tzinfo=UTC))
    with open_platform(clock=clock, randomness=Random(7).randbytes) as platform:
        platform.worker().beat()
        recorder = Recorder(client_of(platform))
        call_all(recorder, platform)
    return {file: dict(sorted(found.items())) for file, found in recorder.examples.items()}


def call_all(recorder: Recorder, platform: Platform) -> None:
    """Call every operation, while a worker is alive."""
    _catalogue_and_chat(recorder)
    _tokens(recorder)
    _training(recorder, platform)
    _objects(recorder)
    _runs(recorder, platform)
    _uploads(recorder)
    _files(recorder)
    _batches(recorder)
    _fine_tuning(recorder, platform)
    for path in ("/v1/health", "/v1/system-check", "/livez", "/readyz", "/health"):
        recorder.send("GET", path)
    _administration(recorder, platform)
    _traces(recorder)
    _responses(recorder)
    traffic = {"name": "asked", "model": "echo", "redact": ["email"], "train": "support/replies"}
    collection = recorder.send("POST", f"{V1}/traffic-datasets", traffic)["id"]
    recorder.send("GET", f"{V1}/traffic-datasets/{collection}")
    recorder.send("POST", f"{V1}/traffic-datasets/{collection}/cancel")
    recorder.send("GET", f"{V1}/traffic-datasets")
    _commands(recorder, platform)
    for record_part in in_common("record").values():
        record_part(recorder, platform)


def _administration(yard: Recorder, platform: Platform) -> None:
    yard.client = attrs.evolve(yard.client, key=platform.keys.create("acme", host=True).secret)
    yard.send("GET", "/metrics")
    yard.send("GET", "/llms.txt")
    yard.send("GET", "/llms-full.txt")
    limits = {"projects": ["support"], "name": "helpdesk", "expires_in_days": 90, "requests_per_minute": 60}
    made = yard.send("POST", "/v1/admin/keys", {"entity": "acme", **limits})["key"]
    yard.send("GET", "/v1/admin/keys", entity="acme", limit=1)
    yard.send("GET", f"/v1/admin/keys/{made['id']}")
    monthly = {"limit": "25.00", "period": "month", "warn_at": "0.8"}
    yard.send("PUT", "/v1/admin/budgets/acme", monthly, key_id=made["id"])
    yard.send("PUT", "/v1/admin/budgets/acme", {"limit": "100"})
    yard.send("GET", "/v1/admin/budgets/acme")
    yard.send("GET", "/v1/admin/budgets", entity="acme", limit=1)
    yard.send("DELETE", "/v1/admin/budgets/acme")
    yard.send("POST", f"/v1/admin/keys/{made['id']}/revoke")


def _catalogue_and_chat(yard: Recorder) -> None:
    yard.send("GET", "/inference/analysis/partner/models")
    yard.send("POST", "/v1/messages", {**ASKED, "max_tokens": 100})
    yard.send("POST", "/v1/messages/count_tokens", ASKED)
    for base in BASES:
        yard.send("GET", f"{base}/models")
        yard.send("GET", f"{base}/models/echo")
        for end in ("", "/"):
            stored = yard.send("POST", f"{base}/chat/completions{end}", {**ASKED, "store": True})
            yard.send("POST", f"{base}/embeddings{end}", {"model": "echo", "input": ["Where?"], "dimensions": 4})
            yard.send("POST", f"{base}/completions{end}", {"model": "echo", "prompt": USER["content"], "max_tokens": 2})
        yard.send("GET", f"{base}/chat/completions", limit=1)
        one = f"{base}/chat/completions/{stored['id']}"
        yard.send("GET", one)
        yard.send("GET", f"{one}/messages", limit=1)
        yard.send("POST", one, {"metadata": {"topic": "orders"}})
        yard.send("DELETE", one)


def _tokens(yard: Recorder) -> None:
    sampled = {"token_ids": [65, 66], "sampling_params": {"max_tokens": 2, "temperature": 0, "logprobs": 0}}
    for end in ("", "/"):
        yard.send("POST", f"/inference/v1/generate{end}", {"model": "tabular-mini", **sampled})
        yard.send("POST", f"/tokenize{end}", {"model": "tabular-mini", "prompt": "ab"})
        yard.send("POST", f"/detokenize{end}", {"model": "tabular-mini", "tokens": [97, 98]})
    at = "/models/tabular-mini"
    yard.send("GET", "/tokenizer_info", model="tabular-mini")
    yard.send("GET", f"{at}/tokenizer_info")
    yard.send("POST", f"{at}/tokenize", {"model": "tabular-mini", "prompt": "ab"})
    yard.send("POST", f"{at}/detokenize", {"model": "tabular-mini", "tokens": [97, 98]})
    yard.send("POST", f"{at}/v1/completions", {"model": "tabular-mini", "prompt": "ab", "max_tokens": 2})


def _responses(yard: Recorder) -> None:
    asked = {"model": "echo", "input": USER["content"], "instructions": "Answer in one sentence."}
    for base in ("/v1", "/inference/v1"):
        for end in ("", "/"):
            made = yard.send("POST", f"{base}/responses{end}", asked)["id"]
        yard.send("POST", f"{base}/responses/input_tokens", asked)
        yard.send("GET", f"{base}/responses/{made}")
        yard.send("GET", f"{base}/responses/{made}/input_items", limit=1)
        yard.send("DELETE", f"{base}/responses/{made}")
        later = yard.send("POST", f"{base}/responses", {**asked, "background": True})["id"]
        yard.send("POST", f"{base}/responses/{later}/cancel")


def _commands(yard: Recorder, platform: Platform) -> None:
    """A run that its client drives, as Tinker's client does."""
    base = "/api/v1"
    for path in ("healthz", "get_server_capabilities"):
        yard.send("GET", f"{base}/{path}")
    for path in ("client/config", "client/dynamic_config"):
        yard.send("POST", f"{base}/{path}", {"sdk_version": "0.38.0"})
    session = yard.send("POST", f"{base}/create_session", {"tags": ["demo"], "sdk_version": "0.38.0"})["session_id"]
    yard.send("POST", f"{base}/session_heartbeat", {"session_id": session})
    yard.send("POST", f"{base}/telemetry", {"events": []})

    def send(to: str, **body: Any) -> Any:
        promise = yard.send("POST", f"{base}/{to}", body)
        platform.worker().run_until_idle()
        return yard.send("POST", f"{base}/retrieve_future", {"request_id": promise["request_id"]})

    place = {"session_id": session, "model_seq_id": 0, "base_model": "tabular-mini"}
    run = send("create_model", **place, lora_config={"rank": 8, "seed": 1})["model_id"]
    named = {"model_id": run}
    yard.send("POST", f"{base}/get_info", named)
    yard.send("POST", f"{base}/forward_backward", raw=forward_backward(run, 1, [([65, 66], [66, 67], [1.0, 1.0])]))
    send("optim_step", **named, seq_id=2, adam_params={"learning_rate": 0.0001})
    path = send("save_weights", **named, seq_id=3, path="first")["path"]
    sampler = send("save_weights_for_sampler", **named, seq_id=4, sampling_session_seq_id=0)["sampling_session_id"]
    send("save_weights_for_sampler", **named, seq_id=5, path="good")
    send("save_weights_external", **named, seq_id=6)
    send("load_weights", session_id=session, model_seq_id=1, path=path, optimizer=True)
    asked = {"session_id": session, "sampling_session_seq_id": 1, "base_model": "tabular-mini"}
    yard.send("POST", f"{base}/create_sampling_session", asked)
    yard.send("POST", f"{base}/join_sampling_session", {"sampling_session_id": sampler})
    yard.send("GET", f"{base}/samplers/{sampler}")
    prompt = {"chunks": [{"type": "encoded_text", "tokens": [65, 66]}]}
    sampled = {"prompt": prompt, "sampling_params": {"max_tokens": 2, "seed": 1}}
    sample = yard.send("POST", f"{base}/asample", {"sampling_session_id": sampler, "seq_id": 0, **sampled})
    yard.send("POST", f"{base}/cancel_future", {"request_id": sample["request_id"]})
    yard.send("POST", f"{base}/weights_info", {"tinker_path": path})
    for where in ("sessions", f"sessions/{session}", "training_runs", f"training_runs/{run}", "checkpoints"):
        yard.send("GET", f"{base}/{where}")
    yard.send("GET", f"{base}/training_runs/{run}/checkpoints")
    yard.send("PUT", f"{base}/training_runs/{run}/checkpoints/weights/first/ttl", {"ttl_seconds": 7200})
    yard.send("DELETE", f"{base}/training_runs/{run}/checkpoints/weights/first")
    send("unload_model", **named)
    yard.send("POST", f"{base}/sessions/{session}/finish", {"reason": {"type": "success"}})


def _training(yard: Recorder, platform: Platform) -> None:
    yard.send("GET", f"{V1}/base-models")
    fields = {"project": "support", "name": "replies", "base_model": "tabular-mini"}
    model = f"{V1}/models/{yard.send('POST', f'{V1}/models', fields)['id']}"
    named = {"model_id": model.rpartition("/")[2]}
    data = yard.send("POST", f"{V1}/datasets", raw=EXAMPLES, project="support", name="answers")["url"]
    pairs = yard.send("POST", f"{V1}/datasets", raw=PAIR, project="support", name="pairs")["url"]
    yard.send("POST", f"{V1}/sft-training-jobs", {**named, "training_data_url": data, "config": {"batch_size": 2}})
    rl = {**named, "trajectory_groups": [GROUP], "experimental_config": {"learning_rate": 0.001}}
    job = yard.send("POST", f"{V1}/training-jobs", rl)["id"]
    platform.worker().run_until_idle()
    yard.send("POST", f"{V1}/dpo-training-jobs", {**named, "training_data_url": pairs, "config": {"beta": 0.1}})
    scored = json.dumps({"messages_and_choices": [USER, CHOICE]}).encode()
    taught = yard.send("POST", f"{V1}/datasets", raw=scored, project="support", name="scored")["url"]
    yard.send("POST", f"{V1}/distill-training-jobs", {**named, "training_data_url": taught, "config": {"beta": 0.5}})
    yard.send("GET", f"{V1}/training-jobs", project="support", limit=1)
    yard.send("GET", f"{V1}/training-jobs/{job}")
    yard.send("GET", f"{V1}/training-jobs/{job}/events", limit=2)
    last = yard.send("GET", f"{V1}/training-jobs", status="queued")["data"][0]["id"]
    yard.send("POST", f"{V1}/training-jobs/{last}/cancel")
    yard.send("POST", f"{model}/log", {"trajectory_groups": [GROUP], "split": "val"})
    yard.send("GET", f"{V1}/models", project="support")
    yard.send("GET", model)
    yard.send("GET", f"{model}/checkpoints")
    file = yard.send("GET", f"{model}/checkpoints/1/files")["files"][0]["name"]
    yard.send("GET", f"{model}/checkpoints/1/files/{file}")
    for step in (1, 2):
        yard.send("PUT", f"{model}/aliases/prod", {"step": step})
    yard.send("GET", f"{model}/aliases")
    yard.send("POST", f"{model}/aliases/prod/rollback")
    yard.send("GET", f"{model}/aliases/prod/promotions")
    yard.send("DELETE", f"{model}/aliases/prod")
    noted = {"tags": ["baseline", "lr sweep"], "note": "The rate of the paper."}
    model_id = yard.send("GET", model)["id"]
    yard.send("PUT", f"/v1/annotations/{model_id}", noted)
    yard.send("GET", f"/v1/annotations/{model_id}")
    yard.send("GET", "/v1/annotations", kind="model", tag="baseline", limit=1)
    yard.send("DELETE", f"{model}/checkpoints", {"steps": [1, 9]})
    yard.send("DELETE", model)
    mini = platform.catalogue.get("tabular-mini")
    platform.catalogue.register(attrs.evolve(mini, pricing=Pricing(training=1)))
    platform.usage.set_budget(12, entity="acme")
    bought = {"model_id": yard.send("POST", f"{V1}/models", fields)["id"], "training_data_url": data}
    ended = yard.send("POST", f"{V1}/sft-training-jobs", {**bought, "config": {"batch_size": 1}})["id"]
    platform.worker().run_until_idle()
    platform.usage.set_budget(1000, entity="acme")
    yard.send("POST", f"{V1}/training-jobs/{ended}/resume")
    platform.worker().run_until_idle()


def _objects(yard: Recorder) -> None:
    for word, body in (
        ("dataset", {"name": "orders", "rows": ROWS}),
        ("scorer", {"name": "same", "scorer": {"type": "exact_match", "ignore_case": True}}),
        ("model", {"name": "replies", "source_code": "def predict(prompt): ..."}),
        ("op", {"name": "clean", "source_code": "def clean(text): ..."}),
        ("evaluation", {"name": "quiz", "dataset": f"{OBJECT}orders:v0", "scorers": [f"{OBJECT}same:v0"]}),
    ):
        yard.send("POST", f"{PLACE}/{word}s", body)
        yard.send("GET", f"{PLACE}/{word}s", limit=1)
        yard.send("GET", f"{PLACE}/{word}s/{body['name']}/versions/latest")
        spare = yard.send("POST", f"{PLACE}/{word}s", {**body, "name": "spare"})
        yard.send("DELETE", f"{PLACE}/{word}s/spare", digests=[spare["digest"]])


def _runs(yard: Recorder, platform: Platform) -> None:
    about = {"evaluation": f"{OBJECT}quiz:v0", "model": f"{OBJECT}replies:v0"}

    def run() -> tuple[str, str]:
        id = yard.send("POST", f"{PLACE}/evaluation_runs", about)["evaluation_run_id"]
        return id, f"{PLACE}/evaluation_runs/{id}"

    first, path = run()
    requested = {"model": about["model"], "inputs": {"prompt": "say yes"}, "evaluation_run_id": first}
    prediction = yard.send("POST", f"{PLACE}/predictions", requested)["prediction_id"]
    yard.send("POST", f"{PLACE}/predictions/{prediction}/finish", {"output": "say yes"})
    scored = {"prediction_id": prediction, "scorer": f"{OBJECT}same:v0", "value": True}
    score = yard.send("POST", f"{PLACE}/scores", scored)["score_id"]
    for word, id in (("prediction", prediction), ("score", score)):
        yard.send("GET", f"{PLACE}/{word}s", evaluation_run_id=first)
        yard.send("GET", f"{PLACE}/{word}s/{id}")
    yard.send("POST", f"{path}/finish", {"summary": {"same": 1.0}})
    yard.send("GET", path)
    yard.send("GET", f"{PLACE}/evaluation_runs", limit=1)
    for word, reason in (("cancel", "no longer needed"), ("fail", "the model is down")):
        yard.send("POST", f"{run()[1]}/{word}", {"reason": reason})
    place = {"project_id": "acme/support"}
    wanted = {"evaluation_ref": f"{OBJECT}quiz:v0", "model_ref": f"{OBJECT}echo"}
    queued = yard.send("POST", "/evaluations/evaluate_model", {**place, **wanted})["call_id"]
    platform.worker().run_until_idle()
    yard.send("POST", "/evaluations/status", {**place, "call_id": queued})
    again = {"source_evaluation_run_id": queued, "scorer_refs": [f"{OBJECT}same:v0"]}
    rescored = yard.send("POST", "/evaluations/rescore", {**place, **again})["call_id"]
    platform.worker().run_until_idle()
    key = platform.keys.create("acme")
    gone = attrs.evolve(yard, client=attrs.evolve(yard.client, key=key.secret))
    broken = gone.send("POST", "/evaluations/evaluate_model", {**place, **wanted})["call_id"]
    platform.keys.revoke(key.key.id)  # its job fails
    platform.worker().run_until_idle()
    yard.send("POST", f"{PLACE}/evaluation_runs/{broken}/resume")
    ran = f"{PLACE}/evaluation_runs/{queued}"
    yard.send("GET", f"{ran}/events", limit=1)
    yard.send("GET", f"{ran}/lineage")
    yard.send("GET", f"{ran}/export", format="jsonl")
    yard.send(
        "POST", f"{PLACE}/eval_results/query", {"evaluation_run_ids": [queued], "include_summary": True, "limit": 1}
    )
    yard.send("POST", f"{PLACE}/eval_results/compare", {"baseline": queued, "candidate": rescored})
    loose = yard.send("POST", f"{PLACE}/predictions", {**requested, "evaluation_run_id": None})["prediction_id"]
    other = yard.send("POST", f"{PLACE}/scores", {**scored, "prediction_id": loose})["score_id"]
    yard.send("DELETE", f"{PLACE}/scores", score_ids=[other])
    yard.send("DELETE", f"{PLACE}/predictions", prediction_ids=[loose])
    yard.send("DELETE", f"{PLACE}/evaluation_runs", evaluation_run_ids=[first])


def _uploads(yard: Recorder) -> None:
    def graphql(operation: str, **variables: Any) -> Any:
        query = f"mutation {operation} {{ x }}"
        return yard.send("POST", "/graphql", {"query": query, "operationName": operation, "variables": variables})

    yard.send("POST", "/graphql", {"query": "query Viewer { viewer { entity } }", "operationName": "Viewer"})
    names = {"artifactTypeName": "dataset", "artifactCollectionName": "uploaded", "projectName": "support"}
    begun = graphql("CreateArtifact", input={**names, "entityName": "acme"})
    artifact = begun["data"]["createArtifact"]["artifact"]["id"]
    md5 = base64.b64encode(hashlib.md5(EXAMPLES, usedforsecurity=False).digest()).decode()
    file = {"artifactID": artifact, "name": "train.jsonl", "md5": md5}
    made = graphql("CreateArtifactFiles", artifactFiles=[file], storageLayout="V2")
    edges = made["data"]["createArtifactFiles"]["files"]["edges"]
    yard.send("PUT", urlsplit(edges[0]["node"]["uploadUrl"]).path, raw=EXAMPLES)
    manifest = graphql("CreateArtifactManifest", artifactID=artifact, includeUpload=True)
    address = manifest["data"]["createArtifactManifest"]["artifactManifest"]["file"]["uploadUrl"]
    yard.send("PUT", urlsplit(address).path, {"contents": {"train.jsonl": {"digest": md5}}})
    yard.send("POST", "/files/acme/support/run1/file_stream", {"files": {}})


def _files(yard: Recorder) -> None:
    for base in BASES:
        fields = {"purpose": "fine-tune", "file": EXAMPLES.decode()}
        file = f"{base}/files/{yard.send('POST', f'{base}/files', fields)['id']}"
        yard.send("GET", f"{base}/files", purpose="fine-tune", limit=1)
        yard.send("GET", file)
        yard.send("GET", f"{file}/content")
        yard.send("DELETE", file)


def _batches(yard: Recorder) -> None:
    """None is run: its threads would draw ids in another order each time."""
    asks = {"custom_id": "order-1", "method": "POST", "url": "/v1/chat/completions", "body": ASKED}
    fields = {"purpose": "batch", "file": json.dumps(asks) + "\n"}
    for base in BASES:
        file = yard.send("POST", f"{base}/files", fields)["id"]
        asked = {"input_file_id": file, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
        batch = f"{base}/batches/{yard.send('POST', f'{base}/batches', asked)['id']}"
        yard.send("GET", batch)
        yard.send("GET", f"{base}/batches", limit=1)
        yard.send("POST", f"{batch}/cancel")


def _fine_tuning(yard: Recorder, platform: Platform) -> None:
    fields = {"purpose": "fine-tune", "file": EXAMPLES.decode()}
    for base in BASES:
        file = yard.send("POST", f"{base}/files", fields)["id"]
        asked = {"model": "tabular-mini", "training_file": file, "suffix": "helpdesk", "seed": 7}
        made = yard.send("POST", f"{base}/fine_tuning/jobs", asked)["id"]
        job = f"{base}/fine_tuning/jobs/{made}"
        yard.send("POST", f"{job}/pause")
        yard.send("POST", f"{job}/resume")
        platform.worker().run_until_idle()
        tuned = yard.send("GET", job)["fine_tuned_model"]
        yard.send("GET", f"{base}/fine_tuning/jobs", limit=1)
        yard.send("GET", f"{job}/events", limit=2)
        yard.send("GET", f"{job}/checkpoints", limit=1)
        yard.send("POST", f"{job}/cancel")
        yard.send("DELETE", f"{base}/models/{tuned}")
        budget = platform.usage.get_budget(entity="acme")
        assert budget is not None
        platform.usage.set_budget(budget.spent + 12, entity="acme")
        asked["method"] = {"type": "supervised", "supervised": {"hyperparameters": {"batch_size": 1}}}
        ended = yard.send("POST", f"{base}/fine_tuning/jobs", asked)["id"]
        platform.worker().run_until_idle()
        platform.usage.set_budget(1000, entity="acme")
        yard.send("POST", f"{base}/fine_tuning/jobs/{ended}/resume")
        platform.worker().run_until_idle()


def _traces(yard: Recorder) -> None:
    place = {"project_id": "acme/support"}
    yard.send("GET", "/server_info")
    times = {"started_at": "2026-03-02T09:30:00Z", "trace_id": "trace-1"}
    for base in ("", PLACE):
        start = {**place, **times, "id": "call-1", "op_name": "answer", "inputs": {"text": "hi"}, "attributes": {}}
        yard.send("POST", f"{base}/call/start", {"start": start})
        end = {**place, "id": "call-1", "ended_at": "2026-03-02T09:30:01Z", "output": "hello", "summary": {}}
        yard.send("POST", f"{base}/call/end", {"end": end})
    whole = {**start, "id": "call-2", "ended_at": "2026-03-02T09:30:02Z", "output": "hello", "summary": {}}
    yard.send("POST", f"{PLACE}/calls/complete", {"batch": [whole]})
    both = [{"mode": "start", "req": {"start": start}}, {"mode": "end", "req": {"end": end}}]
    yard.send("POST", "/call/upsert_batch", {"batch": both})
    yard.send("POST", "/call/update", {**place, "call_id": "call-1", "display_name": "greeting"})
    yard.send("POST", "/call/read", {**place, "id": "call-1"})
    wanted = {"$expr": {"$eq": [{"$getField": "output"}, {"$literal": "hello"}]}}
    yard.send("POST", "/calls/query_stats", {**place, "query": wanted})
    yard.send("POST", "/calls/stream_query", {**place, "query": wanted, "limit": 1})
    ref = "weave:///acme/support/call/call-1"
    said = {**place, "weave_ref": ref, "feedback_type": "thumbs", "payload": {"up": True}}
    given = yard.send("POST", "/feedback/create", {**said, "id": "said-1"})
    yard.send("POST", "/feedback/batch/create", {"batch": [{**said, "id": "said-2"}]})
    yard.send(
        "POST", "/feedback/replace", {**said, "id": "said-3", "feedback_id": given["id"], "payload": {"up": False}}
    )
    about = {"$expr": {"$eq": [{"$getField": "weave_ref"}, {"$literal": ref}]}}
    yard.send("POST", "/feedback/query", {**place, "query": about})
    yard.send("POST", "/feedback/purge", {**place, "query": about})
    yard.send("POST", "/calls/delete", {**place, "call_ids": ["call-2"]})
    made = yard.send("POST", "/obj/create", {"obj": {**place, "object_id": "prompt", "val": {"text": "Be brief."}}})
    yard.send("POST", "/obj/read", {**place, "object_id": "prompt", "digest": made["digest"]})
    yard.send("POST", "/objs/query", {**place, "filter": {"is_op": False}, "limit": 1})
    yard.send("POST", "/refs/read_batch", {"refs": [f"{OBJECT}prompt:v0/attr/text"]})
    yard.send("POST", "/obj/delete", {**place, "object_id": "prompt", "digests": [made["digest"]]})
    table = yard.send("POST", "/table/create", {"table": {**place, "rows": ROWS}})
    yard.send("POST", "/table/create_from_digests", {**place, "row_digests": table["row_digests"]})
    yard.send("POST", "/table/update", {**place, "base_digest": table["digest"], "updates": [{"pop": {"index": 0}}]})
    yard.send("POST", "/table/query", {**place, "digest": table["digest"], "limit": 1})
    yard.send("POST", "/table/query_stats", {**place, "digest": table["digest"]})
    for path in ("/v1/traces", "/agents/otel/v1/traces"):
        yard.send("POST", path, EXPORT)
    file = yard.send("POST", "/file/create", {**place, "file": "def answer(text): ..."})
    yard.send("POST", "/file/content", {**place, "digest": file["digest"]})


if __name__ == "__main__":
    for file, examples in record().items():
        file.write_text(json.dumps(examples, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
