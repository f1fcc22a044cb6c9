"""The double of a vLLM server: what it answers, what it refuses, and what can be made to go wrong."""

import asyncio
import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest

from modelyard.backends.echo import EchoBackend
from modelyard.errors import MissingExtra
from modelyard.formats.safetensors import Tensor, write_tensors
from modelyard.parts.upstream.fake_vllm.adapters import mark_of
from modelyard.parts.upstream.fake_vllm.misbehaviour import Abort, Break, CutConnection, Garble, Gate, Hold, Refuse
from modelyard.parts.upstream.fake_vllm.server import CHAT, COMPLETIONS, LOAD_ADAPTER, MODELS, UNLOAD_ADAPTER, FakeVllm
from polling import until

BASE = "Qwen/Qwen3-8B"
HELLO = {"model": BASE, "messages": [{"role": "user", "content": "hello there you"}]}


@pytest.fixture
def fake() -> FakeVllm:
    return FakeVllm(EchoBackend((BASE,)))


def call(fake: FakeVllm, method: str, path: str, **options) -> httpx.Response:
    """One request, in process."""

    async def requested() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(fake), base_url="http://fake") as client:
            return await client.request(method, path, **options)

    return asyncio.run(requested())


def chat(fake: FakeVllm, **fields) -> httpx.Response:
    return call(fake, "POST", CHAT, json={**HELLO, **fields})


def complete(fake: FakeVllm, prompt: object = "hello there you", **fields) -> httpx.Response:
    return call(fake, "POST", COMPLETIONS, json={"model": BASE, "prompt": prompt, **fields})


def events(response: httpx.Response) -> list:
    """The data of a stream's events; what is no JSON as text."""
    found = []
    for line in filter(None, response.text.split("\n")):
        data = line.removeprefix("data: ")
        try:
            found.append(json.loads(data))
        except ValueError:
            found.append(data)
    return found


def adapter_folder(folder: Path, weights: int = 1, **config) -> Path:
    """A PEFT folder."""
    folder.mkdir()
    generated = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"], **config}
    (folder / "adapter_config.json").write_text(json.dumps(generated))
    half = Tensor("F32", (1,), weights.to_bytes(4, "little"))
    tensors = {f"base_model.model.q_proj.lora_{side}.weight": half for side in "AB"}
    (folder / "adapter_model.safetensors").write_bytes(b"".join(write_tensors(tensors)))
    return folder


def load(fake: FakeVllm, name: str, path: object) -> httpx.Response:
    return call(fake, "POST", LOAD_ADAPTER, json={"lora_name": name, "lora_path": str(path)})


def unload(fake: FakeVllm, name: str) -> httpx.Response:
    return call(fake, "POST", UNLOAD_ADAPTER, json={"lora_name": name})


class TestChat:
    def test_a_whole_answer_has_vllms_members(self, fake):
        body = chat(fake).json()
        (choice,) = body["choices"]
        assert choice["message"]["content"] == "hello there you"
        assert (choice["stop_reason"], choice["token_ids"], choice["routed_experts"]) == (None, None, None)
        assert "tool_calls" not in choice["message"]
        assert body["usage"] == {
            "prompt_tokens": 3,
            "total_tokens": 6,
            "completion_tokens": 3,
            "prompt_tokens_details": None,
            "completion_tokens_details": None,
        }

    def test_a_stream_opens_with_the_roles_and_ends_with_reason_and_text_together(self, fake):
        *chunks, done = events(chat(fake, stream=True, n=2))
        generated = [choice for chunk in chunks for choice in chunk["choices"]]
        assert [choice["index"] for choice in generated] == [0, 1, 0, 0, 0, 1, 1, 1]
        assert [choice["delta"].get("role") for choice in generated[:3]] == ["assistant", "assistant", None]
        assert generated[4] == {
            "index": 0,
            "delta": {"content": " you"},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
            "token_ids": None,
        }
        assert not any("usage" in chunk for chunk in chunks)
        assert done == "[DONE]"

    def test_usage_comes_last_and_only_on_request(self, fake):
        *_, last, _ = events(chat(fake, stream=True, stream_options={"include_usage": True}))
        assert last["choices"] == []
        assert last["usage"] == {"prompt_tokens": 3, "total_tokens": 6, "completion_tokens": 3}

    def test_token_ids_stand_in_the_choice_and_those_of_the_prompt_next_to_the_choices(self, fake):
        whole = chat(fake, return_token_ids=True).json()
        assert whole["prompt_token_ids"] == whole["choices"][0]["token_ids"]
        first, second, *_ = events(chat(fake, return_token_ids=True, stream=True))
        assert first["prompt_token_ids"] == whole["prompt_token_ids"]
        assert second["choices"][0]["token_ids"] == whole["choices"][0]["token_ids"][:1]

    def test_logprobs_come_token_by_token(self, fake):
        content = chat(fake, logprobs=True, top_logprobs=1).json()["choices"][0]["logprobs"]["content"]
        assert [entry["token"] for entry in content] == ["hello", " there", " you"]
        assert content[0]["top_logprobs"][0]["bytes"] == list(b"hello")

    def test_stop_strings_and_limits_are_kept(self, fake):
        (choice,) = chat(fake, stop=" you").json()["choices"]
        assert (choice["message"]["content"], choice["stop_reason"]) == ("hello there", " you")
        assert chat(fake, max_tokens=1).json()["choices"][0]["finish_reason"] == "length"

    def test_a_named_tool_that_was_called_ends_with_stop_and_a_required_one_with_tool_calls(self, fake):
        tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
        named = chat(fake, tools=[tool], tool_choice={"type": "function", "function": {"name": "look"}}).json()
        assert named["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "look"
        assert named["choices"][0]["finish_reason"] == "stop"
        required = chat(fake, tools=[tool], tool_choice="required").json()
        assert required["choices"][0]["finish_reason"] == "tool_calls"

    def test_the_openai_client_is_content(self, fake):
        with fake.serve() as url, openai.OpenAI(base_url=f"{url}/v1", api_key="-") as client:
            whole = client.chat.completions.create(**HELLO)
            pieces = [chunk.choices[0].delta.content for chunk in client.chat.completions.create(**HELLO, stream=True)]
        assert whole.choices[0].message.content == "".join(pieces) == "hello there you"


class TestRefusals:
    def test_an_unknown_model_is_not_found(self, fake):
        response = chat(fake, model="other")
        assert response.status_code == 404
        assert response.json()["error"] == {
            "message": f"The model `other` does not exist. Valid aliases: {BASE}.",
            "type": "NotFoundError",
            "param": "model",
            "code": 404,
        }

    def test_older_releases_answer_errors_bare(self):
        body = chat(FakeVllm(EchoBackend((BASE,)), old_errors=True), model="other").json()
        assert (body["object"], body["code"], body["type"]) == ("error", 404, "NotFoundError")

    @pytest.mark.parametrize("body", [{}, [], "x", {**HELLO, "temperature": -1}, {"model": BASE}])
    def test_a_wrong_body_is_a_bad_request(self, fake, body):
        response = call(fake, "POST", CHAT, json=body)
        assert response.status_code == 400
        assert response.json()["error"]["code"] == 400

    def test_a_key_is_needed_below_v1_only(self):
        fake = FakeVllm(EchoBackend((BASE,)), api_key="secret")
        assert call(fake, "GET", "/health").status_code == 200
        assert call(fake, "GET", MODELS).json() == {"error": "Unauthorized"}
        assert call(fake, "GET", MODELS, headers={"authorization": "Bearer wrong"}).status_code == 401
        assert call(fake, "GET", MODELS, headers={"authorization": "Bearer secret"}).status_code == 200

    def test_other_paths_are_not_found(self, fake):
        assert call(fake, "GET", "/v1/nothing").json() == {"detail": "Not Found"}
        assert call(fake, "GET", "/version").json() == {"version": "0.32.0"}


class TestAdapters:
    def test_an_adapter_is_listed_below_its_base_and_answers_by_its_weights(self, fake, tmp_path):
        one, two = adapter_folder(tmp_path / "one", 1), adapter_folder(tmp_path / "two", 2)
        assert load(fake, "first", one).text == "Success: LoRA adapter 'first' added successfully."
        assert load(fake, "second", two).status_code == 200
        base, first, second = call(fake, "GET", MODELS).json()["data"]
        assert (base["parent"], base["max_model_len"]) == (None, 131_072)
        assert (first["id"], first["root"], first["parent"]) == ("first", str(one), BASE)
        assert second["id"] == "second"
        generated = {name: chat(fake, model=name).json() for name in ("first", "second")}
        assert generated["first"]["model"] == "first"
        texts = {name: body["choices"][0]["message"]["content"] for name, body in generated.items()}
        marks = {path: mark_of((path / "adapter_model.safetensors").read_bytes()) for path in (one, two)}
        assert texts == {"first": f"{marks[one]} hello there you", "second": f"{marks[two]} hello there you"}
        assert marks[one] != marks[two]

    def test_a_name_is_loaded_once_and_unloaded_once(self, fake, tmp_path):
        folder = adapter_folder(tmp_path / "one")
        load(fake, "first", folder)
        again = load(fake, "first", folder)
        assert (again.status_code, again.json()["error"]["type"]) == (400, "InvalidUserInput")
        assert "has already been loaded" in again.json()["error"]["message"]
        assert unload(fake, "first").text == "Success: LoRA adapter 'first' removed successfully."
        gone = unload(fake, "first")
        assert (gone.status_code, gone.json()["error"]["message"]) == (404, "The lora adapter 'first' cannot be found.")
        assert chat(fake, model="first").status_code == 404

    def test_a_folder_that_holds_none_is_not_found(self, fake, tmp_path):
        assert load(fake, "first", tmp_path).status_code == 404
        assert fake.adapters == {}

    @pytest.mark.parametrize(
        ("config", "words"),
        [
            ({"r": 64}, "LoRA rank 64 is greater than max_lora_rank 16."),
            ({"use_dora": True}, "does not yet support DoRA"),
            ({"modules_to_save": ["lm_head"]}, "Unsupported modules_to_save: ['lm_head']"),
            ({"bias": "all"}, "bias"),
        ],
    )
    def test_what_vllm_cannot_serve_is_refused(self, fake, tmp_path, config, words):
        response = load(fake, "first", adapter_folder(tmp_path / "one", **config))
        assert response.status_code == 500
        assert words in response.json()["error"]["message"]

    def test_broken_weights_are_refused(self, fake, tmp_path):
        folder = adapter_folder(tmp_path / "one")
        weights = folder / "adapter_model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1])
        assert load(fake, "first", folder).status_code == 500
        weights.unlink()
        assert load(fake, "first", folder).status_code == 500
        weights.write_bytes(b"".join(write_tensors({"weights": Tensor("F32", (), b"\0\0\0\0")})))
        assert "unsupported LoRA weight" in load(fake, "first", folder).json()["error"]["message"]

    def test_a_folder_that_is_removed_too_early_is_noticed(self, fake, tmp_path):
        folder = adapter_folder(tmp_path / "one")
        load(fake, "first", folder)
        (folder / "adapter_model.safetensors").unlink()
        assert chat(fake, model="first").status_code == 500

    def test_without_runtime_updating_the_routes_of_adapters_are_missing(self, tmp_path):
        fake = FakeVllm(EchoBackend((BASE,)), lora=False)
        assert load(fake, "first", adapter_folder(tmp_path / "one")).json() == {"detail": "Not Found"}

    def test_names_and_paths_are_needed(self, fake):
        assert load(fake, "", "").status_code == 400
        assert unload(fake, "").status_code == 400

    def test_one_that_is_unloaded_while_it_answers_is_remembered(self, fake, tmp_path):
        load(fake, "first", adapter_folder(tmp_path / "one"))
        gate = Gate()
        fake.plan(Hold(gate, after=1))
        with ThreadPoolExecutor(1) as pool:
            answering = pool.submit(chat, fake, model="first", stream=True)
            gate.reached()
            unload(fake, "first")
            gate.open()
            assert events(answering.result())[-1] == "[DONE]"
        assert fake.unloaded_in_use == ["first"]


class TestMisbehaviour:
    def test_requests_are_refused_as_planned_and_then_go_well(self, fake):
        fake.plan(Refuse(429, retry_after=3), None, Refuse())
        answers = [chat(fake) for _ in range(4)]
        assert [answer.status_code for answer in answers] == [429, 200, 503, 200]
        assert [answer.headers.get("retry-after") for answer in answers] == ["3", None, None, None]
        assert [requested.status for requested in fake.chats] == [429, 200, 503, 200]

    def test_a_plan_is_for_its_path(self, fake):
        fake.plan(Refuse(), path=MODELS)
        assert chat(fake).status_code == 200
        assert call(fake, "GET", MODELS).status_code == 503

    def test_a_stream_may_break_off_with_an_error_and_still_say_that_it_is_done(self, fake):
        fake.plan(Break(after=2))
        *_, generated, error, done = events(chat(fake, stream=True))
        assert generated["choices"][0]["delta"] == {"content": "hello"}
        assert (error["error"]["code"], done) == (500, "[DONE]")

    def test_a_chunk_may_be_no_json(self, fake):
        fake.plan(Garble(after=2))
        reported = events(chat(fake, stream=True))
        assert [type(event) for event in reported] == [dict, dict, str, dict, dict, str]

    def test_an_answer_that_is_whole_breaks_and_is_garbled_too(self, fake):
        fake.plan(Break(after=2), Garble(after=2))
        assert chat(fake).status_code == 500
        with pytest.raises(json.JSONDecodeError):
            chat(fake).json()

    def test_a_connection_is_cut_before_the_status_and_in_the_stream(self, fake):
        fake.plan(CutConnection(), CutConnection(after=0), CutConnection(after=2))
        with fake.serve() as url, httpx.Client(base_url=url, timeout=60) as client:
            with pytest.raises(httpx.RemoteProtocolError, match="without sending a response"):
                client.post(CHAT, json=HELLO)
            for wanted in (0, 2):
                received = []
                with client.stream("POST", CHAT, json={**HELLO, "stream": True}) as response:
                    with pytest.raises(httpx.RemoteProtocolError, match="incomplete"):
                        received.extend(filter(None, response.iter_lines()))
                assert (response.status_code, len(received)) == (200, wanted)
        assert [requested.status for requested in fake.chats] == [None, 200, 200]

    def test_in_process_a_cut_is_an_error_of_the_connection(self, fake):
        fake.plan(CutConnection())
        with pytest.raises(ConnectionResetError):
            chat(fake)

    def test_a_client_that_goes_away_is_noticed_and_its_answer_given_up(self, fake):
        gate = Gate()
        fake.plan(Hold(gate, after=2))
        with fake.serve() as url, httpx.Client(base_url=url, timeout=60) as client:
            with client.stream("POST", CHAT, json={**HELLO, "stream": True}):
                gate.reached()
            fake.chats[0].ended()
        assert fake.chats[0].disconnected

    def test_a_server_ends_in_bounded_time_though_a_request_is_held(self, fake):
        gate = Gate()
        fake.plan(Hold(gate))
        before = set(threading.enumerate())
        with ThreadPoolExecutor(1) as pool:
            with fake.serve() as url:
                held = pool.submit(httpx.post, url + CHAT, json=HELLO, timeout=60)
                gate.reached()
            with pytest.raises(httpx.TransportError):
                held.result()
        until(lambda: set(threading.enumerate()) <= before)

    def test_a_server_ends_in_bounded_time_though_a_client_reads_no_further(self, fake):
        body = {**HELLO, "messages": [{"role": "user", "content": "word " * 100_000}], "stream": True}
        gate = Gate()
        fake.plan(Hold(gate, after=1000))
        with httpx.Client(timeout=60) as client:
            with fake.serve() as url:
                response = client.send(client.build_request("POST", url + CHAT, json=body), stream=True)
                gate.reached()
                gate.open()
            with pytest.raises(httpx.TransportError):
                response.read()

    def test_without_uvicorn_it_says_what_to_install(self, fake, monkeypatch):
        monkeypatch.setitem(sys.modules, "uvicorn", None)
        with pytest.raises(MissingExtra, match=r"pip install 'modelyard\[serve\]'"):
            fake.serve().__enter__()

    def test_a_restart_forgets_adapters_and_cuts_what_is_under_way(self, fake, tmp_path):
        load(fake, "first", adapter_folder(tmp_path / "one"))
        gate = Gate()
        fake.plan(Hold(gate, after=1))
        with fake.serve() as url, ThreadPoolExecutor(1) as pool, httpx.Client(base_url=url, timeout=60) as client:
            held = pool.submit(client.post, CHAT, json={**HELLO, "stream": True})
            gate.reached()
            fake.restart()
            with pytest.raises(httpx.TransportError):
                held.result()
            assert client.post(CHAT, json={**HELLO, "model": "first"}).status_code == 404
            assert client.post(CHAT, json=HELLO).status_code == 200
        assert not fake.chats[0].disconnected


def test_requests_are_kept(fake):
    chat(fake, seed=7, temperature=0)
    (requested,) = fake.requests
    assert (requested.method, requested.path, requested.body["seed"]) == ("POST", CHAT, 7)
    assert requested.headers["content-type"] == "application/json"


class TestPrompts:
    def test_a_whole_answer(self, fake):
        answer = complete(fake, stop="you").json()
        (choice,) = answer.pop("choices")
        assert choice == {
            "index": 0,
            "text": "hello there ",
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": "you",
            "token_ids": None,
            "prompt_logprobs": None,
            "prompt_token_ids": None,
            "routed_experts": None,
        }
        assert answer["id"].startswith("cmpl-")
        assert (answer["object"], answer["usage"]["prompt_tokens"]) == ("text_completion", 3)

    def test_a_stream_has_usage_in_its_last_chunk_alone(self, fake):
        *chunks, usage, done = events(
            complete(fake, stream=True, stream_options={"include_usage": True}, return_token_ids=True)
        )
        assert done == "[DONE]"
        assert not any("usage" in chunk for chunk in chunks)
        assert (usage["choices"], usage["usage"]["completion_tokens"]) == ([], 3)
        choices = [chunk["choices"][0] for chunk in chunks]
        assert "".join(choice["text"] for choice in choices) == "hello there you"
        assert [bool(choice["prompt_token_ids"]) for choice in choices] == [True, *[False] * (len(choices) - 1)]
        assert choices[-1]["finish_reason"] == "stop"

    def test_several_prompts_are_answered_in_turn(self, fake):
        choices = complete(fake, ["a b", "c"], n=2, echo=True).json()["choices"]
        assert [(choice["index"], choice["text"]) for choice in choices] == [
            (0, "a ba b"),
            (1, "a ba b"),
            (2, "cc"),
            (3, "cc"),
        ]
        streamed = dict.fromkeys(range(4), "")
        for chunk in events(complete(fake, ["a b", "c"], n=2, echo=True, stream=True))[:-1]:
            streamed[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
        assert list(streamed.values()) == [choice["text"] for choice in choices]

    def test_a_prompt_is_scored_and_its_ids_are_a_prompt(self, fake):
        scored = complete(fake, prompt_logprobs=0, return_token_ids=True, max_tokens=1).json()["choices"][0]
        first, *others = scored["prompt_logprobs"]
        ids = scored["prompt_token_ids"]
        assert (first, [list(other) for other in others]) == (None, [[str(one)] for one in ids[1:]])
        assert complete(fake, ids, return_token_ids=True).json()["choices"][0]["prompt_token_ids"] == ids

    def test_an_adapter_answers_differently(self, fake, tmp_path):
        folder = adapter_folder(tmp_path / "a")
        load(fake, "a", folder)
        mark = mark_of((folder / "adapter_model.safetensors").read_bytes())
        assert complete(fake, model="a").json()["choices"][0]["text"] == f"{mark} hello there you"

    @pytest.mark.parametrize("streamed", [True, False])
    def test_it_may_break_off_or_shut_down(self, fake, streamed):
        fake.plan(Break(after=1), Abort(after=1), path=COMPLETIONS)
        broken, aborted = (complete(fake, stream=streamed) for _ in range(2))
        error = events(broken)[-2] if streamed else broken.json()
        assert error["error"]["code"] == 500
        last = events(aborted)[-2] if streamed else aborted.json()
        assert last["choices"][0]["finish_reason"] == "abort"

    @pytest.mark.parametrize(
        ("fields", "status", "said"),
        [
            ({"prompt": ""}, 400, "Either prompt or prompt_embeds must be provided"),
            ({"stream": True, "prompt_logprobs": 1}, 400, "`prompt_logprobs` are not available"),
            ({"stream_options": {}}, 200, None),
            ({"stream_options": {"include_usage": True}}, 400, "Stream options can only be defined"),
            ({"max_tokens": 0}, 400, "max_tokens must be at least 1"),
            ({"max_tokens": 0, "echo": True}, 200, None),
            ({"model": "other"}, 404, "The model `other` does not exist"),
            ({"model": ["other"]}, 400, "Input should be a valid string"),
            ({"prompt": [-1]}, 400, "prompt"),
            ({"unheard_of": 1}, 200, None),
        ],
    )
    def test_what_is_wrong_is_refused(self, fake, fields, status, said):
        answer = complete(fake, **fields)
        assert answer.status_code == status, answer.text
        assert said is None or said in answer.json()["error"]["message"]
