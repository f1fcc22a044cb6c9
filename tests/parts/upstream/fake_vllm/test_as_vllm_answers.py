"""What a real vLLM 0.32.0 answered to these requests, the double answers too (the numbers are those of the findings).

The bodies of errors were recorded from the server; names of models and lengths are those of the double.
"""

import asyncio
import json
from contextlib import closing
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from modelyard.backends.echo import CERTAIN, EchoBackend
from modelyard.domain.completion import Delta, FinishReason, TokenLogprob, Usage
from modelyard.formats.safetensors import Tensor, write_tensors
from modelyard.parts.upstream.fake_vllm.misbehaviour import Abort, FallSilent
from modelyard.parts.upstream.fake_vllm.server import CHAT, LOAD_ADAPTER, MODELS, UNLOAD_ADAPTER, FakeVllm
from polling import until

HELLO = [{"role": "user", "content": "one two three"}]
LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    },
}
NAMED = {"type": "function", "function": {"name": "look"}}


@pytest.fixture
def fake() -> FakeVllm:
    return FakeVllm(EchoBackend(("tiny",), context_length=8))


def call(fake: FakeVllm, method: str, path: str, **options: Any) -> httpx.Response:
    async def requested() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(fake), base_url="http://fake") as client:
            return await client.request(method, path, **options)

    return asyncio.run(requested())


def chat(fake: FakeVllm, **fields: Any) -> httpx.Response:
    return call(fake, "POST", CHAT, json={"model": "tiny", "messages": HELLO, **fields})


def chunks(response: httpx.Response) -> list[Any]:
    lines = [line.removeprefix("data: ") for line in response.text.split("\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def error_of(response: httpx.Response, status: int = 400) -> tuple[str, str, str | None]:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["code"] == status
    return error["message"], error["type"], error["param"]


# ---- 1: a server that shuts down ---------------------------------------------------------------------------------


class TestShutdown:
    def test_a_stream_is_aborted(self, fake: FakeVllm) -> None:
        fake.plan(Abort(after=2))
        *_, generated, last = chunks(chat(fake, stream=True, n=1))
        assert generated["choices"][0]["delta"] == {"content": "one"}
        assert (last["choices"][0]["delta"], last["choices"][0]["finish_reason"]) == ({}, "abort")

    def test_a_whole_answer_is_aborted(self, fake: FakeVllm) -> None:
        fake.plan(Abort())
        (choice,) = chat(fake).json()["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("", "abort")

    @pytest.mark.parametrize("streamed", [True, False])
    def test_or_it_is_silent_until_the_client_leaves(self, fake: FakeVllm, streamed: bool) -> None:
        fake.plan(FallSilent(after=2))
        body = json.dumps({"model": "tiny", "messages": HELLO, "stream": streamed})
        with fake.serve() as url:
            with closing(HTTPConnection(urlsplit(url).netloc, timeout=60)) as connection:
                connection.request("POST", CHAT, body, {"Content-Type": "application/json"})
                until(lambda: fake.chats)
                connection.sock.settimeout(0.2)
                with pytest.raises(TimeoutError):
                    connection.getresponse().read()
            fake.chats[0].ended()
        assert fake.chats[0].disconnected


# ---- 2 and 3: log-probabilities ----------------------------------------------------------------------------------


class Spelling:
    """A backend that says "é!" in three tokens, the first two of which are half of a character each."""

    blocking = False

    def entries(self) -> Any:
        return EchoBackend(("tiny",)).entries()

    def capabilities(self, model: str) -> Any:
        return CERTAIN

    def prompt_tokens(self, request: Any, model: Any) -> int:
        return 1

    def stream(self, request: Any, model: Any) -> Any:
        raws = [b"\xc3", b"\xa9", b"!"]
        best = tuple(TokenLogprob(text, -0.1 * at, tuple(text.encode())) for at, text in enumerate("abc"))
        tokens = [TokenLogprob(raw.decode(errors="replace"), -3.0, tuple(raw), top=best[:2]) for raw in raws]
        texts = ["", "é", "!"] if request.streamed else None
        if texts is None:
            yield Delta("é!", 3, logprobs=tuple(tokens), token_ids=(1, 2, 3))
        else:
            for at, text in enumerate(texts):
                yield Delta(text, 1, logprobs=(tokens[at],), token_ids=(at + 1,))
        yield Delta(finish_reason=FinishReason.STOP, usage=Usage(1, 3))


class TestLogprobs:
    @pytest.mark.parametrize("streamed", [True, False])
    def test_a_part_of_a_character_has_no_text_and_no_bytes_before_the_character_is_complete(
        self, streamed: bool
    ) -> None:
        response = chat(FakeVllm(Spelling()), logprobs=True, top_logprobs=2, stream=streamed)
        parts = chunks(response) if streamed else [response.json()]
        entries = [
            entry
            for part in parts
            for choice in part["choices"]
            for entry in (choice["logprobs"] or {}).get("content", ())
        ]
        assert [(entry["token"], entry["bytes"]) for entry in entries] == [("", []), ("é", [195, 169]), ("!", [33])]

    def test_its_chunk_is_empty_and_left_out_where_nothing_else_is_to_be_shown(self) -> None:
        fake = FakeVllm(Spelling())
        shown = [chunk["choices"][0] for chunk in chunks(chat(fake, stream=True, return_token_ids=True))]
        assert [(one["delta"], one["token_ids"]) for one in shown[1:3]] == [({}, [1]), ({"content": "é"}, [2])]
        shown = [chunk["choices"][0] for chunk in chunks(chat(fake, stream=True))]
        assert [one["delta"] for one in shown[1:]] == [{"content": "é"}, {"content": "!"}, {}]

    def test_alternatives_begin_with_the_sampled_token_and_the_last_of_the_best_makes_room(self) -> None:
        entry = chat(FakeVllm(Spelling()), logprobs=True, top_logprobs=2).json()["choices"][0]["logprobs"]["content"][2]
        assert [(other["token"], other["logprob"]) for other in entry["top_logprobs"]] == [("!", -3.0), ("a", 0.0)]

    def test_without_alternatives_there_is_an_empty_list(self, fake: FakeVllm) -> None:
        entries = chat(fake, logprobs=True).json()["choices"][0]["logprobs"]["content"]
        assert [entry["top_logprobs"] for entry in entries] == [[], [], []]


# ---- 5 to 16: what is refused, and what is not -------------------------------------------------------------------


class TestRequests:
    def test_the_answer_is_limited_to_the_room_that_there_is(self, fake: FakeVllm) -> None:
        fake = FakeVllm(EchoBackend(("tiny",), context_length=5))
        assert chat(fake, max_tokens=5).json()["usage"]["completion_tokens"] == 2

    def test_a_prompt_without_room_is_too_long(self, fake: FakeVllm) -> None:
        long = [{"role": "user", "content": "word " * 9}]
        assert error_of(chat(fake, messages=long)) == (
            "This model's maximum context length is 8 tokens. However, your prompt contains at least 9 input tokens, "
            "which exceeds this limit even without any output tokens. Please reduce the length of the input prompt. "
            "(parameter=input_tokens, value=9)",
            "BadRequestError",
            "input_tokens",
        )

    @pytest.mark.parametrize(
        ("fields", "message", "param"),
        [
            ({"n": 2, "temperature": 0}, "n must be 1 when using greedy sampling, got 2.", None),
            ({"n": 0}, "n must be at least 1, got 0.", None),
            ({"max_tokens": 0}, "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)", "max_tokens"),
            (
                {"max_tokens": 5000},
                "max_tokens=5000 cannot be greater than max_model_len=8. Please request fewer output tokens. "
                "(parameter=max_tokens, value=5000)",
                "max_tokens",
            ),
            (
                {"temperature": 3},
                "temperature must be in [0, 2], got 3.0. (parameter=temperature, value=3.0)",
                "temperature",
            ),
            (
                {"temperature": -1},
                "temperature must be non-negative, got -1.0. (parameter=temperature, value=-1.0)",
                "temperature",
            ),
            ({"top_p": 2}, "top_p must be in (0, 1], got 2.0. (parameter=top_p, value=2.0)", "top_p"),
            ({"top_p": 0}, "top_p must be in (0, 1], got 0.0. (parameter=top_p, value=0.0)", "top_p"),
            ({"top_k": -2}, "top_k must be 0 (disable), or at least 1, got -2.", None),
            ({"min_p": 2}, "min_p must be in [0, 1], got 2.0.", None),
            ({"repetition_penalty": 0}, "repetition_penalty must be greater than zero, got 0.0.", None),
            ({"frequency_penalty": 3}, "frequency_penalty must be in [-2, 2], got 3.0.", None),
            ({"presence_penalty": -3}, "presence_penalty must be in [-2, 2], got -3.0.", None),
            ({"min_tokens": -1}, "min_tokens must be greater than or equal to 0, got -1.", None),
            (
                {"min_tokens": 9, "max_tokens": 4},
                "min_tokens must be less than or equal to max_tokens=4, got 9.",
                None,
            ),
            ({"structured_outputs": {"choice": []}}, "Choice '[]' cannot be an empty list", None),
            (
                {"structured_outputs": {"choice": ["a"], "regex": "b"}},
                "You can only use one kind of constraints for structured outputs ('json', 'regex' or 'choice').",
                None,
            ),
            ({"stop": ""}, "stop cannot contain an empty string.", None),
            (
                {"messages": []},
                "Cannot apply chat template to an empty conversation. Provide at least one message.",
                None,
            ),
            (
                {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}]}]},
                "tiny is not a multimodal model",
                None,
            ),
            (
                {"logit_bias": {"x": 1}},
                "logit_bias contains key(s) that cannot be converted to integer token IDs: ['x'] "
                "(parameter=logit_bias, value=['x'])",
                "logit_bias",
            ),
            (
                {"logprobs": True, "top_logprobs": 30},
                "Requested sample logprobs of 30, which is greater than max allowed: 20 (parameter=logprobs, value=30)",
                "logprobs",
            ),
            (
                {"top_logprobs": 2},
                "when using `top_logprobs`, `logprobs` must be set to true. (parameter=top_logprobs)",
                "top_logprobs",
            ),
            (
                {"stream_options": {"include_usage": True}},
                "Stream options can only be defined when `stream=True`. (parameter=stream_options)",
                "stream_options",
            ),
            (
                {"response_format": {"type": "json_schema"}},
                "When response_format type is 'json_schema', the 'json_schema' field must be provided. "
                "(parameter=response_format)",
                "response_format",
            ),
            (
                {"tools": []},
                "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely. "
                "(parameter=tools)",
                "tools",
            ),
            (
                {"tool_choice": "required"},
                "When using `tool_choice`, `tools` must be set. (parameter=tool_choice)",
                "tool_choice",
            ),
            (
                {"tools": [LOOK], "tool_choice": {"type": "function", "function": {"name": "no"}}},
                "The tool specified in `tool_choice` does not match any of the specified `tools` "
                "(parameter=tool_choice)",
                "tool_choice",
            ),
            (
                {"tools": [LOOK], "tool_choice": "sometimes"},
                'Invalid value for `tool_choice`: sometimes! Only named tools, "none", "auto" or "required" are '
                "supported. (parameter=tool_choice)",
                "tool_choice",
            ),
        ],
    )
    def test_what_it_refuses_and_in_which_words(
        self, fake: FakeVllm, fields: dict[str, Any], message: str, param: str | None
    ) -> None:
        assert error_of(chat(fake, **fields)) == (message, "BadRequestError", param)

    @pytest.mark.parametrize(
        ("fields", "lines", "param"),
        [
            (
                {"seed": 2**64},
                [
                    "{'type': 'less_than_equal', 'loc': 'body.seed', 'msg': 'Input should be less than or equal to "
                    "9223372036854775807', 'input': '18446744073709551616', 'ctx': {'le': 9223372036854775807}}"
                ],
                "body.seed",
            ),
            (
                {"max_tokens": "x"},
                [
                    "{'type': 'int_parsing', 'loc': 'body.max_tokens', 'msg': 'Input should be a valid "
                    "integer, unable to "
                    "parse string as an integer', 'input': 'x'}"
                ],
                "body.max_tokens",
            ),
            (
                {"stop": ["a", "b", "c", "d", "e"]},
                [
                    "{'type': 'string_type', 'loc': 'body.stop', 'msg': 'Input should be a valid string', "
                    "'input': '<list "
                    "of 5 items>'}",
                    "{'type': 'too_long', 'loc': 'body.stop', 'msg': 'List should have at most 4 items after "
                    "validation, "
                    "not 5', 'input': '<list of 5 items>', 'ctx': {'field_type': 'List', 'max_length': 4, "
                    "'actual_length': 5}}",
                ],
                "body.stop",
            ),
            (
                {"messages": "x"},
                ["{'type': 'list_type', 'loc': 'body.messages', 'msg': 'Input should be a valid list', 'input': 'x'}"],
                "body.messages",
            ),
            (
                {"model": 5},
                ["{'type': 'string_type', 'loc': 'body.model', 'msg': 'Input should be a valid string', 'input': '5'}"],
                "body.model",
            ),
            (
                {"tools": [{"type": "function", "function": {}}]},
                [
                    "{'type': 'missing', 'loc': 'body.tools.0.function.name', 'msg': 'Field required', "
                    "'input': '<dict of "
                    "0 items>'}"
                ],
                "body.tools.0.function.name",
            ),
            (
                {"seed": 2**64, "top_k": "x"},
                [
                    "{'type': 'less_than_equal', 'loc': 'body.seed', 'msg': 'Input should be less than or equal to "
                    "9223372036854775807', 'input': '18446744073709551616', 'ctx': {'le': 9223372036854775807}}",
                    "{'type': 'int_parsing', 'loc': 'body.top_k', 'msg': 'Input should be a valid integer, "
                    "unable to parse "
                    "string as an integer', 'input': 'x'}",
                ],
                "body.seed",
            ),
        ],
    )
    def test_what_has_the_wrong_shape(
        self, fake: FakeVllm, fields: dict[str, Any], lines: list[str], param: str
    ) -> None:
        count = f"{len(lines)} validation error{'s' if len(lines) > 1 else ''}:"
        assert error_of(chat(fake, **fields)) == ("\n  ".join([count, *lines]), "Bad Request", param)

    @pytest.mark.parametrize(
        ("raw", "message", "param"),
        [
            (
                "{",
                "{'type': 'json_invalid', 'loc': 'body.1', 'msg': 'JSON decode error', 'input': '<dict of 0 items>', "
                "'ctx': {'error': 'Expecting property name enclosed in double quotes'}}",
                "body.1",
            ),
            ("", "{'type': 'missing', 'loc': 'body', 'msg': 'Field required', 'input': 'None'}", "body"),
            ("null", "{'type': 'missing', 'loc': 'body', 'msg': 'Field required', 'input': 'None'}", "body"),
            (
                "[]",
                "{'type': 'model_attributes_type', 'loc': 'body', 'msg': 'Input should be a valid dictionary "
                "or object to "
                "extract fields from', 'input': '<list of 0 items>'}",
                "body",
            ),
        ],
    )
    @pytest.mark.parametrize("path", [CHAT, LOAD_ADAPTER, UNLOAD_ADAPTER])
    def test_a_body_that_is_not_an_object(self, fake: FakeVllm, path: str, raw: str, message: str, param: str) -> None:
        response = call(fake, "POST", path, content=raw, headers={"content-type": "application/json; charset=utf-8"})
        assert error_of(response) == (f"1 validation error:\n  {message}", "Bad Request", param)

    def test_a_body_that_is_not_called_json(self, fake: FakeVllm) -> None:
        words = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
        assert error_of(call(fake, "POST", CHAT, content="{}")) == (words, "Bad Request", None)

    @pytest.mark.parametrize(
        "fields",
        [
            {"messages": [{"role": "wizard", "content": "x"}]},
            {"messages": [{"role": "user"}]},
            {"logit_bias": {"5": 200}},
            {"model": None},
            {"seed": "5"},
            {"nonsense": 1},
            {"guided_choice": ["a"]},
            {"top_k": -1},
        ],
        ids=repr,
    )
    def test_what_it_takes(self, fake: FakeVllm, fields: dict[str, Any]) -> None:
        assert chat(fake, **fields).status_code == 200

    def test_a_form_is_kept_under_the_name_that_it_has_now(self, fake: FakeVllm) -> None:
        form = chat(fake, structured_outputs={"choice": ["yes", "no"]}).json()
        assert form["choices"][0]["message"]["content"] == "yes"
        old = chat(fake, guided_choice=["yes", "no"]).json()
        assert old["choices"][0]["message"]["content"] == "one two three"

    def test_an_unknown_model_is_refused_with_the_known_ones(self, fake: FakeVllm) -> None:
        words = "The model `nope` does not exist. Valid aliases: tiny."
        assert error_of(chat(fake, model="nope"), 404) == (words, "NotFoundError", "model")


# ---- 17 to 20: what an answer looks like -------------------------------------------------------------------------


class TestAnswers:
    @pytest.mark.parametrize("choice", [NAMED, "required"])
    def test_only_a_strict_tool_keeps_to_its_schema(self, fake: FakeVllm, choice: Any) -> None:
        strict = {**LOOK, "function": {**LOOK["function"], "strict": True}}  # type: ignore[dict-item]
        for tool, wanted in ((LOOK, {}), (strict, {"a": 0})):
            message = chat(fake, tools=[tool], tool_choice=choice).json()["choices"][0]["message"]
            assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == wanted
            assert message["content"] == ""

    def test_members_of_a_whole_answer(self, fake: FakeVllm) -> None:
        body = chat(fake).json()
        assert list(body) == [
            *("id", "object", "created", "model", "choices", "service_tier", "system_fingerprint", "usage"),
            *(
                "prompt_logprobs",
                "prompt_token_ids",
                "prompt_text",
                "kv_transfer_params",
                "ec_transfer_params",
                "metrics",
            ),
        ]
        assert list(body["choices"][0]["message"]) == [
            *("role", "content", "refusal", "annotations", "audio", "function_call", "reasoning"),
        ]
        assert body["system_fingerprint"].startswith("vllm-0.32.0-")
        assert body["choices"][0]["routed_experts"] is None
        assert list(body["usage"])[3:] == ["prompt_tokens_details", "completion_tokens_details"]

    def test_members_of_chunks(self, fake: FakeVllm) -> None:
        first, *_, last = chunks(chat(fake, stream=True))
        assert first["prompt_text"] is None
        assert last["system_fingerprint"].startswith("vllm-0.32.0-")
        *_, generated, usage = chunks(chat(fake, stream=True, stream_options={"include_usage": True}))
        assert "system_fingerprint" not in generated
        assert usage["system_fingerprint"].startswith("vllm-0.32.0-")

    def test_a_model_has_a_permission(self, fake: FakeVllm) -> None:
        (card,) = call(fake, "GET", MODELS).json()["data"]
        (permission,) = card["permission"]
        assert len(permission) == 12
        assert (permission["object"], permission["allow_sampling"]) == ("model_permission", True)


# ---- 21 to 27: adapters ------------------------------------------------------------------------------------------


def folder_of(path: Any, module: str = "model.layers.0.self_attn.q_proj", **config: Any) -> str:
    path.mkdir()
    settings = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"], **config}
    (path / "adapter_config.json").write_text(json.dumps(settings))
    half = Tensor("F32", (1,), b"\0\0\0\1")
    tensors = {f"base_model.model.{module}.lora_{side}.weight": half for side in "AB"}
    (path / "adapter_model.safetensors").write_bytes(b"".join(write_tensors(tensors)))
    return str(path)


def load(fake: FakeVllm, **body: Any) -> httpx.Response:
    return call(fake, "POST", LOAD_ADAPTER, json=body)


def unload(fake: FakeVllm, **body: Any) -> httpx.Response:
    return call(fake, "POST", UNLOAD_ADAPTER, json=body)


class TestAdapters:
    @pytest.mark.parametrize(
        ("config", "module", "words"),
        [
            ({"r": 64}, "model.q_proj", "LoRA rank 64 is greater than max_lora_rank 16."),
            (
                {"modules_to_save": ["lm_head"]},
                "model.q_proj",
                'vLLM only supports modules_to_save being either None or ["classifier", "score"] for classification '
                "models. Unsupported modules_to_save: ['lm_head']",
            ),
        ],
    )
    def test_what_the_worker_refuses(self, fake: FakeVllm, tmp_path: Any, config: Any, module: str, words: str) -> None:
        answered = error_of(load(fake, lora_name="a", lora_path=folder_of(tmp_path / "a", module, **config)), 500)
        worker = f"Worker failed with error '{words}', please check the stack trace above for the root cause"
        assert answered == (f"Call to add_lora method failed: {worker}", "InternalServerError", None)

    def test_modules_that_the_base_lacks(self, fake: FakeVllm, tmp_path: Any) -> None:
        folder = folder_of(tmp_path / "a", "transformer.h.0.c_attn")
        message, _, _ = error_of(load(fake, lora_name="a", lora_path=folder), 500)
        assert "While loading <path>, expected target modules in {" in message
        assert (
            "but received ['transformer.h.0.c_attn']. Please verify that the loaded LoRA module is correct" in message
        )
        gpt = FakeVllm(EchoBackend(("tiny",)), lora_modules=["c_attn"])
        assert load(gpt, lora_name="a", lora_path=folder).status_code == 200

    @pytest.mark.parametrize(
        ("path", "shown"), [("/nope", "/nope"), ("/tmp/some/where", "<path>"), ("/a/b/c.bin", "<path>")]
    )
    def test_paths_are_masked(self, fake: FakeVllm, path: str, shown: str) -> None:
        words = f"Loading lora a failed: No adapter found for {shown}"
        assert error_of(load(fake, lora_name="a", lora_path=path), 404) == (words, "NotFoundError", None)

    def test_the_bases_name_is_taken(self, fake: FakeVllm) -> None:
        words = "The lora adapter 'tiny' conflicts with a served base model."
        assert error_of(load(fake, lora_name="tiny", lora_path="/x")) == (words, "InvalidUserInput", None)
        words = "The lora adapter 'tiny' cannot be found."
        assert error_of(unload(fake, lora_name="tiny"), 404) == (words, "NotFoundError", None)

    def test_a_name_is_loaded_again_in_place_only(self, fake: FakeVllm, tmp_path: Any) -> None:
        one, two = folder_of(tmp_path / "one"), folder_of(tmp_path / "two")
        loaded = load(fake, lora_name="a", lora_path=one)
        assert (loaded.status_code, loaded.headers.get("content-type")) == (200, None)
        words = (
            "The lora adapter 'a' has already been loaded. If you want to load the adapter in place, set "
            "'load_inplace' to True."
        )
        assert error_of(load(fake, lora_name="a", lora_path=two)) == (words, "InvalidUserInput", None)
        assert load(fake, lora_name="a", lora_path=two, load_inplace=True).status_code == 200
        assert fake.adapters["a"].path == two

    @pytest.mark.parametrize(
        ("send", "body", "name", "count"),
        [
            (load, {"lora_path": "/x"}, "lora_name", 1),
            (load, {"lora_name": "a"}, "lora_path", 1),
            (unload, {}, "lora_name", 0),
        ],
    )
    def test_what_is_missing(self, fake: FakeVllm, send: Any, body: Any, name: str, count: int) -> None:
        line = (
            f"{{'type': 'missing', 'loc': 'body.{name}', 'msg': 'Field required', 'input': '<dict of {count} items>'}}"
        )
        assert error_of(send(fake, **body)) == (f"1 validation error:\n  {line}", "Bad Request", f"body.{name}")


# ---- 28 and 29: the rest -----------------------------------------------------------------------------------------


def test_a_method_that_a_path_has_not(fake: FakeVllm) -> None:
    for method, path, allowed in (("GET", CHAT, "POST"), ("POST", MODELS, "GET"), ("POST", "/health", "GET")):
        response = call(fake, method, path)
        assert (response.status_code, response.headers["allow"]) == (405, allowed)
        assert response.json() == {"detail": "Method Not Allowed"}


def test_the_scheme_of_a_key_is_written_in_any_case() -> None:
    fake = FakeVllm(EchoBackend(("tiny",)), api_key="secret")
    for scheme, status in (("bearer", 200), ("BEARER", 200), ("Basic", 401)):
        assert call(fake, "GET", MODELS, headers={"authorization": f"{scheme} secret"}).status_code == status


@pytest.mark.parametrize("path", ["/health", "/ping"])
def test_what_has_no_content_has_no_type_of_content(fake: FakeVllm, path: str) -> None:
    response = call(fake, "GET", path)
    assert (response.status_code, response.text, response.headers.get("content-type")) == (200, "", None)
