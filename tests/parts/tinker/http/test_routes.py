"""Tinker's interface over HTTP: what its client sends, and what strangers may."""

from array import array
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import attrs
import pytest

from driven_runs import BASE, opened, rows_of
from http_client import Answer, Client, client_of
from modelyard.parts.tinker.formats.wire import varint
from tinker_messages import datum, forward_backward, request, tensor

API = "/api/v1"
PROTOBUF = [("content-type", "application/x-protobuf")]


@attrs.define
class Tinker:
    """A client's session and run."""

    client: Client
    session: str = ""
    run: str = ""

    def post(self, path: str, body: Any = None, **more: Any) -> Answer:
        return self.client.send("POST", f"{API}/{path}", body, **more)

    def ok(self, to: str, **body: Any) -> Any:
        answer = self.post(to, body)
        assert answer.status == 200, answer.raw
        return answer.json

    def begin(self) -> None:
        self.session = self.ok("create_session", tags=[], sdk_version="0.38.0")["session_id"]
        made = self.ok(
            "create_model", session_id=self.session, model_seq_id=0, base_model=BASE, lora_config={"rank": 4, "seed": 1}
        )
        self.run = self.retrieved(made["request_id"]).json["model_id"]

    def retrieved(self, request_id: str) -> Answer:
        return self.post("retrieve_future", {"request_id": request_id})

    def send(self, raw: bytes, headers: Any = PROTOBUF) -> Answer:
        return self.post("forward_backward", raw=raw, headers=headers)

    def failure(self, raw: bytes) -> str:
        """Why a request fails in its turn."""
        answer = self.send(raw)
        assert answer.status == 200, answer.raw
        found = self.retrieved(answer.json["request_id"])
        assert found.json["category"] == "user"
        return str(found.json["error"])


@pytest.fixture
def tinker() -> Iterator[Tinker]:
    with opened() as platform:
        made = Tinker(client_of(platform))
        made.begin()
        yield made


def teaching(run: str, number: int, **changes: bytes) -> bytes:
    inputs, targets, weights = rows_of("hello")[0]
    tensors = {"target_tokens": tensor("q", targets), "weights": tensor("f", weights)}
    tensors |= changes
    return request(run, number, [datum(inputs, {name: raw for name, raw in tensors.items() if raw})])


def test_a_run_is_trained_and_its_answers_are_retrieved(tinker: Tinker) -> None:
    answer = tinker.send(forward_backward(tinker.run, 1, rows_of("hello")))
    assert answer.json == {
        "request_id": f"{tinker.run}:1",
        "model_id": tinker.run,
    }
    found = tinker.retrieved(f"{tinker.run}:1")
    assert found.headers["content-type"] == "application/x-protobuf"
    assert b"loss:sum" in found.raw
    assert tinker.retrieved(f"{tinker.run}:1").raw == found.raw
    step = tinker.ok("optim_step", model_id=tinker.run, seq_id=2, adam_params={"learning_rate": 0.001})
    assert tinker.retrieved(step["request_id"]).json["metrics"]["grad_norm"] > 0


def test_an_answer_that_is_not_there_yet_is_to_be_asked_for_again(tinker: Tinker) -> None:
    step = tinker.ok("optim_step", model_id=tinker.run, seq_id=2, adam_params={})
    answer = tinker.retrieved(step["request_id"])
    assert answer.status == 408
    assert answer.json == {"request_id": f"{tinker.run}:2", "queue_state": "active", "type": "try_again"}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"target_tokens": b""}, "target_tokens: is missing"),
        ({"target_tokens": tensor("q", [1, 2])}, "must be 4 token ids"),
        ({"target_tokens": tensor("f", [1.0] * 4)}, "must be integers"),
        ({"target_tokens": tensor("q", [10**6] * 4)}, "the model has the tokens 0 to"),
        ({"weights": tensor("f", [1.0])}, "has 1 numbers for 4 target tokens"),
        ({"weights": tensor("f", [1.0] * 4, [2, 3])}, "is not its shape"),
        ({"weights": tensor("f", [float("nan")] * 4)}, "not a finite number"),
        ({"other": tensor("f", [1.0] * 4)}, "other: is not read"),
    ],
)
def test_rows_that_are_wrong_fail_with_their_place(tinker: Tinker, changes: dict[str, bytes], says: str) -> None:
    assert says in tinker.failure(teaching(tinker.run, 1, **changes))


@pytest.mark.parametrize(
    ("loss", "config", "says"),
    [
        ("gspo", {}, "is 'gspo'; there are cross_entropy"),
        ("cross_entropy", {"beta": 1.0}, "is not a setting of cross_entropy"),
    ],
)
def test_losses_that_are_not_offered_are_refused_by_name(
    tinker: Tinker, loss: str, config: dict[str, float], says: str
) -> None:
    inputs, targets, weights = rows_of("hello")[0]
    row = datum(inputs, {"target_tokens": tensor("q", targets), "weights": tensor("f", weights)})
    assert says in tinker.failure(request(tinker.run, 1, [row], loss, config))


def test_images_are_refused_by_name(tinker: Tinker) -> None:
    image = b"\x0a\x04\x12\x02\x0a\x00"  # a chunk with an image
    assert "has an image, which is not supported" in tinker.failure(request(tinker.run, 1, [image]))


def test_a_field_that_is_not_known_fails_with_its_place(tinker: Tinker) -> None:
    """In its turn, as the head tells which that is, so that those after it have theirs."""
    row = datum([1], {"target_tokens": tensor("q", [1]), "weights": tensor("f", [1.0])})
    assert "data[0]: field 9 is not known" in tinker.failure(request(tinker.run, 1, [row + varint(9, 1)]))
    assert "field 9 is not known" in tinker.failure(request(tinker.run, 2, [row]) + varint(9, 1))
    after = tinker.ok("optim_step", model_id=tinker.run, seq_id=3, adam_params={})
    assert "metrics" in tinker.retrieved(after["request_id"]).json


@pytest.mark.parametrize("raw", [b"", b"\xff", b"\x0a\xff", b"\x08\x01", b"\x0a\x01a", b"\x12\x01", b"\x80" * 20])
def test_what_is_no_message_is_refused(tinker: Tinker, raw: bytes) -> None:
    answer = tinker.send(raw)
    assert answer.status == 422
    assert answer.locs[0][0] == "body"


def test_every_prefix_of_a_message_is_refused_or_fails(tinker: Tinker) -> None:
    whole = forward_backward(tinker.run, 1, rows_of("hello"))
    for end in range(len(whole)):
        assert tinker.send(whole[:end]).status in (200, 422), end


def test_only_plain_protobuf_is_taken(tinker: Tinker) -> None:
    raw = forward_backward(tinker.run, 1, rows_of("hello"))
    assert tinker.send(raw, [("content-type", "application/json")]).status == 415
    assert tinker.send(raw, [*PROTOBUF, ("content-encoding", "zstd")]).status == 415


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("optim_step", {"optimizer_params": {"type": "dimuon"}}, "dimuon"),
        ("optim_step", {"adam_params": {"learning_rate": -1}}, "learning_rate: is -1; it is at least 0"),
        ("optim_step", {"adam_params": {"beta1": "x"}}, "beta1"),
        ("save_weights", {"path": "a/b"}, "must be 1 to 128 letters"),
        ("save_weights_external", {}, "is not supported"),
        ("save_weights_for_sampler", {}, "path: is needed, or sampling_session_seq_id"),
        ("save_weights_for_sampler", {"path": "a", "sampling_session_seq_id": 1}, "and not both"),
        ("save_weights_for_sampler", {"path": "a", "kind": "inflight"}, "kind: is inflight"),
        ("load_weights", {"path": "p", "optimizer": True, "base_model": BASE}, "base_model: is of a new run"),
        ("load_weights", {"path": "p", "optimizer": True, "user_metadata": {}}, "user_metadata: is of a new run"),
        ("load_weights", {"path": "p", "optimizer": True, "optimizer_config": {}}, "optimizer_config: is of a new run"),
    ],
)
def test_commands_that_are_refused_fail_in_their_turn(
    tinker: Tinker, path: str, body: dict[str, Any], says: str
) -> None:
    made = tinker.ok(path, model_id=tinker.run, seq_id=1, **body)
    found = tinker.retrieved(made["request_id"])
    assert says in found.json["error"]
    after = tinker.ok("optim_step", model_id=tinker.run, seq_id=2, adam_params={})
    assert "metrics" in tinker.retrieved(after["request_id"]).json


@pytest.mark.parametrize("path", ["optim_step", "save_weights", "get_info", "unload_model", "load_weights", "asample"])
@pytest.mark.parametrize("body", [[], {}, {"model_id": 1}, {"model_id": "x", "seq_id": 0}, {"seq_id": None}])
def test_bodies_of_another_shape_are_refused(tinker: Tinker, path: str, body: Any) -> None:
    assert tinker.post(path, body).status in (404, 422)


def test_weights_are_loaded_into_a_run_or_make_one(tinker: Tinker) -> None:
    new, old = {"session_id": tinker.session, "model_seq_id": 1}, {"model_id": tinker.run, "seq_id": 1}
    for given in range(16):
        names = [name for at, name in enumerate({**new, **old}) if given >> at & 1]
        if names in ([*new], [*old]):
            continue
        body = {name: {**new, **old}[name] for name in names}
        answer = tinker.post("load_weights", {"path": "p", "optimizer": True, **body})
        assert (answer.status, answer.locs) == (422, [["body", "model_id"]]), names


@pytest.mark.parametrize(
    ("asked", "seconds"), [({}, 86400), ({"ttl_seconds": 60}, 60), ({"ttl_seconds": 10**6}, 10**6)]
)
def test_weights_of_a_sampling_session_are_kept_for_as_long_as_was_asked(
    tinker: Tinker, asked: dict[str, int], seconds: int
) -> None:
    body = {"model_id": tinker.run, "seq_id": 1, "sampling_session_seq_id": 0, **asked}
    tinker.retrieved(tinker.ok("save_weights_for_sampler", **body)["request_id"])
    (saved,) = tinker.client.ok("GET", f"{API}/checkpoints")["checkpoints"]
    kept = datetime.fromisoformat(saved["expires_at"]) - datetime.fromisoformat(saved["time"])
    assert kept.total_seconds() == seconds


def test_a_number_is_one_request(tinker: Tinker) -> None:
    first = tinker.ok("optim_step", model_id=tinker.run, seq_id=1, adam_params={"learning_rate": 0.1})
    assert tinker.ok("optim_step", model_id=tinker.run, seq_id=1, adam_params={"learning_rate": 0.1}) == first
    other = tinker.post("optim_step", {"model_id": tinker.run, "seq_id": 1, "adam_params": {"learning_rate": 0.2}})
    assert other.status == 422
    assert other.locs == [["body", "seq_id"]]


def test_samples_have_seeds_stops_and_log_probabilities(tinker: Tinker) -> None:
    asked = {"session_id": tinker.session, "sampling_session_seq_id": 0, "base_model": BASE}
    sampler = tinker.ok("create_sampling_session", **asked)["sampling_session_id"]
    assert tinker.ok("create_sampling_session", **asked)["sampling_session_id"] == sampler
    body = {
        "sampling_session_id": sampler,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [65, 66]}]},
        "sampling_params": {"max_tokens": 5, "seed": 3},
        "num_samples": 2,
        "prompt_logprobs": True,
        "topk_prompt_logprobs": 2,
    }
    first = tinker.ok("asample", seq_id=0, **body)
    assert len(first["sample_sequence_ids"]) == 2
    assert tinker.ok("asample", seq_id=0, **body) == first
    again = tinker.ok("asample", seq_id=1, **body)
    one, two = (tinker.retrieved(found["request_id"]).raw for found in (first, again))
    assert one == two
    booked = [entry.completion_tokens for entry in tinker.client.platform.usage.list()]
    assert len(booked) == 2  # the request that was sent twice is booked once
    other = tinker.post("asample", {"seq_id": 0, **body, "num_samples": 3})
    assert other.locs == [["body", "seq_id"]]
    tinker.ok("cancel_future", request_id=first["request_id"])


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"prompt": {"chunks": [{"type": "image", "data": ""}]}}, "type"),
        ({"prompt": {"chunks": []}}, "prompt"),
        ({"target_prompt_logprobs": {}}, "target_prompt_logprobs"),
        ({"prompt_alt_tokens_k": 1}, "prompt_alt_tokens_k"),
        ({"topk_prompt_logprobs": 21}, "topk_prompt_logprobs"),
        ({"prompt_logprobs_last_n": 2, "prompt_logprobs": True}, "prompt_logprobs_last_n"),
        ({"num_samples": 0}, "num_samples"),
        ({"sampling_params": {"max_tokens": 0}}, "max_tokens"),
    ],
)
def test_samples_that_are_not_offered_are_refused_by_name(tinker: Tinker, change: Any, place: str) -> None:
    asked = {"session_id": tinker.session, "sampling_session_seq_id": 0, "base_model": BASE}
    body = {
        "sampling_session_id": tinker.ok("create_sampling_session", **asked)["sampling_session_id"],
        "seq_id": 0,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [65, 66]}]},
        "sampling_params": {"max_tokens": 1},
    }
    answer = tinker.post("asample", {**body, **change}, check=False)
    assert answer.status == 422
    assert any(place in loc for loc in answer.locs)


def test_another_entity_finds_nothing(tinker: Tinker) -> None:
    other = attrs.evolve(tinker, client=tinker.client.another("other"))
    named = {"model_id": tinker.run}
    for path, body in (
        ("get_info", named),
        ("optim_step", {**named, "seq_id": 1, "adam_params": {}}),
        ("save_weights", {**named, "seq_id": 1, "path": "a"}),
        ("unload_model", named),
        ("retrieve_future", {"request_id": f"{tinker.run}:0"}),
        ("session_heartbeat", {"session_id": tinker.session}),
        ("weights_info", {"tinker_path": f"tinker://{tinker.run}/weights/a"}),
        (f"sessions/{tinker.session}/finish", {"reason": {"type": "success"}}),
    ):
        assert other.post(path, body).status == 404, path
    assert other.send(forward_backward(tinker.run, 1, rows_of("hello"))).status == 404
    for path in (
        f"training_runs/{tinker.run}",
        f"training_runs/{tinker.run}/checkpoints",
        f"sessions/{tinker.session}",
    ):
        assert other.client.send("GET", f"{API}/{path}").status == 404
    assert other.client.ok("GET", f"{API}/training_runs")["training_runs"] == []


def test_a_session_that_has_finished_stops_its_heartbeat(tinker: Tinker) -> None:
    assert tinker.post("session_heartbeat", {"session_id": tinker.session}).status == 200
    tinker.ok(f"sessions/{tinker.session}/finish", reason={"type": "success"})
    assert tinker.post("session_heartbeat", {"session_id": tinker.session}, check=False).status == 410


@pytest.mark.parametrize(
    ("path", "says"), [("copy_weights", "weights are not copied"), ("create_custom_loss", "forward_backward_custom")]
)
def test_routes_that_are_not_offered_name_what_to_use(tinker: Tinker, path: str, says: str) -> None:
    answer = tinker.post(path, {}, check=False)
    assert answer.status == 404
    assert says in answer.json["detail"]


def test_a_key_is_needed(tinker: Tinker) -> None:
    assert tinker.post("get_info", {"model_id": tinker.run}, key="").status == 401
    key = tinker.client.key
    found = tinker.post("get_info", {"model_id": tinker.run}, key="", headers=[("x-api-key", key)])
    assert found.status == 200


def test_the_connection_of_the_first_question_is_closed_where_that_can_be_asked_for(tinker: Tinker) -> None:
    """The client uses it for nothing else. A request of HTTP/2 has no such header, and no answer may have it."""
    kept = tinker.post("client/config", {}, headers=[("connection", "keep-alive")])
    assert kept.headers["connection"] == "close"
    assert "connection" not in tinker.post("client/config", {}).headers


def test_what_is_sampled_with_the_key_of_an_episode_is_its_turns(tinker: Tinker) -> None:
    """With the tokens, log-probabilities and checkpoint that the client gets, and joined by their tokens."""
    saved = tinker.ok("save_weights_for_sampler", model_id=tinker.run, seq_id=1, path="one")
    path = tinker.retrieved(saved["request_id"]).json["path"]
    platform = tinker.client.platform
    (model,) = platform.models.list()
    owner = platform.acting_as(platform.keys.authenticate(tinker.client.key))
    group = owner.episodes.group("sampled", model=model, size=2)
    for reward, episode in enumerate(group):
        theirs = Tinker(attrs.evolve(tinker.client, key=episode.key))
        session = theirs.ok("create_session", tags=[], sdk_version="0.38.0")["session_id"]
        asked = {"session_id": session, "sampling_session_seq_id": 0, "model_path": path}
        sampler = theirs.ok("create_sampling_session", **asked)["sampling_session_id"]
        prompt = [65, 66]
        for number in range(2):
            given = {"chunks": [{"type": "encoded_text", "tokens": prompt}]}
            params = {"max_tokens": 5, "seed": 3 + reward}
            sampled = theirs.ok(
                "asample", sampling_session_id=sampler, prompt=given, sampling_params=params, seq_id=number
            )
            raw = theirs.retrieved(sampled["request_id"]).raw
            turn = episode.turns()[-1]
            assert turn.prompt_ids == tuple(prompt)
            assert tensor_bytes("i", turn.ids) in raw
            assert tensor_bytes("f", [one.logprob for one in turn.logprobs or ()]) in raw
            prompt = [*prompt, *turn.ids, 67]
        first, second = episode.turns()
        assert (second.parent, second.why, second.untrained) == (first, "", "")
        weights = platform.models.checkpoint(model.id, 1)
        assert {(one.turn.checkpoint_id, one.turn.step) for one in (first, second)} == {(weights.id, 1)}
        episode.reward(float(reward))
    metrics = [one.metrics["sampled_tokens"] for one in group.trajectories().trajectories]
    assert metrics == [10, 10]


def tensor_bytes(kind: str, numbers: Any) -> bytes:
    """Numbers as the client's messages have them."""
    return array(kind, numbers).tobytes()
