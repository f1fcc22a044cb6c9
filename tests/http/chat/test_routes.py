"""Chat completions over HTTP: whole, streamed, broken off, and in the shapes that clients rely on."""

import asyncio
import itertools
import logging
import threading
from collections.abc import AsyncIterator, Iterator
from datetime import date
from typing import Any

import attrs
import pytest

from each import each_case
from modelyard.compose import open_platform
from modelyard.domain.catalogue import CatalogueEntry, Quantization
from modelyard.domain.completion import Delta, FinishReason, TokenLogprob
from modelyard.errors import BackendError, Overloaded, QueueFull
from modelyard.formats.chat.request import WITHOUT_EFFECT
from modelyard.http.answer_stream import JOINED
from modelyard.http.endpoint import Endpoint
from modelyard.http.message import Request
from modelyard.protocols import Capabilities

TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    },
}


def contents(events: list[Any]) -> str:
    return "".join(
        choice["delta"].get("content") or ""
        for event in events
        if isinstance(event, dict)
        for choice in event["choices"]
    )


# ---- whole answers -----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("base", ["/inference/v1", "/v1"])
@pytest.mark.parametrize("end", ["", "/"])
def test_a_chat_is_answered_with_and_without_the_slash(client: Any, base: str, end: str) -> None:
    answer = client.chat("hello there", path=f"{base}/chat/completions{end}")
    assert answer.status == 200
    body = answer.json
    assert body["object"] == "chat.completion"
    assert body["model"] == "echo"
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "hello there"}
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + body["usage"]["completion_tokens"]


def test_several_choices_are_numbered_and_counted_together(client: Any) -> None:
    body = client.chat("one two", n=3).json
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    single = client.chat("one two").json
    assert body["usage"]["completion_tokens"] == 3 * single["usage"]["completion_tokens"]


def test_the_training_interface_returns_logprobs_and_token_ids_by_default(client: Any) -> None:
    (choice,) = client.chat(path="/v1/chat/completions").json["choices"]
    entries = choice["logprobs"]["content"]
    assert len(entries) == len(choice["token_ids"]) > 0
    assert "".join(entry["token"] for entry in entries) == "hello there"
    assert choice["prompt_token_ids"]


def test_on_the_training_interface_logprobs_can_be_declined(client: Any) -> None:
    for stream in (False, True):
        answer = client.chat(path="/v1/chat/completions", logprobs=False, stream=stream)
        choices = [c for event in answer.events[:-1] for c in event["choices"]] if stream else answer.json["choices"]
        assert all(choice["logprobs"] is None for choice in choices)
        assert any(choice.get("token_ids") for choice in choices)


def test_the_inference_interface_returns_both_on_request(client: Any) -> None:
    (plain,) = client.chat().json["choices"]
    assert plain["logprobs"] is None
    assert "token_ids" not in plain
    (requested,) = client.chat(logprobs=True, top_logprobs=1, return_token_ids=True).json["choices"]
    assert len(requested["logprobs"]["content"][0]["top_logprobs"]) == 1
    assert requested["token_ids"]


def test_a_backend_without_logprobs_answers_null_and_refuses_a_request_for_them(client_for: Any) -> None:
    with open_platform(backend=Saying(["a ", "b"])) as platform:
        client = client_for(platform)
        (choice,) = client.chat(model="sayer", path="/v1/chat/completions").json["choices"]
        assert choice["logprobs"] is None
        assert choice["token_ids"] is None
        for path in ("/v1/chat/completions", "/inference/v1/chat/completions"):
            refused = client.chat(model="sayer", path=path, logprobs=True)
            assert refused.status == 400
            assert refused.json["error"]["param"] == "logprobs"


def test_a_forced_tool_call_is_the_same_whole_and_in_pieces(client: Any) -> None:
    requested = {"tools": [TOOL], "tool_choice": "required"}
    (choice,) = client.chat(**requested).json["choices"]
    assert choice["finish_reason"] == "tool_calls"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "look_up"
    pieces = [
        piece
        for event in client.chat(**requested, stream=True).events[:-1]
        for choice in event["choices"]
        for piece in choice["delta"].get("tool_calls", [])
    ]
    assert pieces[0]["type"] == "function"
    assert all(piece["index"] == 0 for piece in pieces)
    assert all("id" not in piece and "name" not in piece["function"] for piece in pieces[1:])


# ---- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("members", "status", "code", "param"),
    [
        ({"model": "nobody"}, 404, "model_not_found", "model"),
        ({"model": "rival/p/m"}, 403, "forbidden", None),
        ({"model": "acme/p/m"}, 404, "model_not_found", "model"),
        ({"temperature": 9}, 400, "invalid_input", "temperature"),
        ({"messages": [{"role": "user"}]}, 400, "invalid_input", "messages[0].content"),
        ({"top_logprobs": 2}, 400, "invalid_input", "top_logprobs"),
        ({"max_tokens": 10**9}, 400, "invalid_input", "max_tokens"),
    ],
)
def test_a_refusal_is_a_plain_answer_streamed_or_not(
    client: Any, stream: bool, members: dict[str, Any], status: int, code: str, param: str | None
) -> None:
    answer = client.chat(**members, stream=stream)
    assert answer.status == status
    assert answer.headers["content-type"] == "application/json"
    assert (answer.json["error"]["code"], answer.json["error"]["param"]) == (code, param)


def test_a_prompt_that_does_not_fit_is_refused_in_the_words_that_clients_look_for(client: Any) -> None:
    refused = client.chat("word " * 20_000, model="tabular-mini").json["error"]
    assert refused["code"] == "context_length_exceeded"
    assert refused["message"].startswith("This model's maximum context length is ")
    assert "context_length_exceeded" in refused["message"]


def test_every_wrong_field_is_in_the_message(client: Any) -> None:
    message = client.chat(temperature=9, n=0, stream="yes").json["error"]["message"]
    assert all(
        word in message for word in ("temperature: must be at most 2", "n: must be at least 1", "stream: must be")
    )


def test_an_unknown_parameter_is_refused_with_the_nearest_known_ones(client: Any) -> None:
    refused = client.chat(temprature=1)
    assert refused.status == 400
    assert refused.json["error"]["param"] == "temprature"
    assert refused.json["error"]["message"].endswith(
        "temprature: is not a parameter of a chat completion; did you mean 'temperature'?"
    )


def test_parameters_without_effect_are_accepted(client: Any) -> None:
    given: dict[str, Any] = dict.fromkeys(WITHOUT_EFFECT, "auto")
    given["prediction"] = {"type": "content", "content": "one two"}
    given["prompt_cache_options"] = {"mode": "explicit", "ttl": "30m"}
    given["prompt_cache_retention"] = "24h"
    assert client.chat("one two", **given).json["choices"][0]["message"]["content"] == "one two"


@pytest.mark.parametrize("name", ["reasoning_effort", "verbosity"])
def test_a_parameter_that_a_model_cannot_honour_is_refused_by_name(client: Any, name: str) -> None:
    refused = client.chat("hi", model="tabular-mini", **{name: "low"})
    assert (refused.status, refused.json["error"]["code"]) == (400, "unsupported_parameter")
    assert refused.json["error"]["param"] == name
    assert client.chat("hi", **{name: "low"}).status == 200


@pytest.mark.parametrize(
    ("form", "answer"),
    [
        ({"structured_outputs": {"choice": ["yes", "no"]}}, "yes"),
        ({"structured_outputs": {"regex": "[a-c]{2}"}}, "aa"),
        ({"structured_outputs": {"json_object": True}}, "{}"),
        ({"structured_outputs": {"json": {"type": "boolean"}}}, "false"),
        ({"structured_outputs": {"json": '{"type": "boolean"}'}}, "false"),
        ({"guided_json": {"type": "boolean"}}, "false"),
        ({"guided_choice": ["no"]}, "no"),
        ({"guided_regex": "ab?"}, "a"),
    ],
    ids=str,
)
def test_the_form_of_an_answer_in_the_words_of_vllm(client: Any, form: dict[str, Any], answer: str) -> None:
    assert client.chat("hi", **form).json["choices"][0]["message"]["content"] == answer


@pytest.mark.parametrize(
    ("members", "param", "words"),
    [
        ({"structured_outputs": {}}, "structured_outputs", "must have exactly one of json"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "must have exactly one of"),
        ({"structured_outputs": {"grammar": "x"}}, "structured_outputs.grammar", "is not supported: send json"),
        ({"structured_outputs": {"json": "["}}, "structured_outputs.json", "is not valid JSON"),
        ({"guided_json": {}, "guided_regex": "a"}, "guided_regex", "cannot be combined with guided_json"),
        ({"min_tokens": 3, "max_tokens": 2}, "min_tokens", "must be at most 2"),
        ({"best_of": 2}, "best_of", "is not a parameter of a chat completion"),
        ({"prompt_logprobs": 2}, "prompt_logprobs", "is not a parameter of a chat completion"),
        ({"chat_template_kwargs": {"a": 1}}, "chat_template_kwargs", "echo does not support this"),
    ],
    ids=str,
)
def test_what_cannot_be_honoured_is_refused_at_its_place(
    client: Any, members: dict[str, Any], param: str, words: str
) -> None:
    error = client.chat("hi", **members).json["error"]
    assert error["param"] == param
    assert words in error["message"]


def test_a_choice_among_allowed_tools_leaves_the_others_out(client: Any) -> None:
    tools = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("look", "book")]
    named = [{"type": "function", "function": {"name": "book"}}]
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": named}}
    answer = client.chat("hi", tools=tools, tool_choice=choice).json["choices"][0]
    assert [call["function"]["name"] for call in answer["message"]["tool_calls"]] == ["book"]
    choice["allowed_tools"]["tools"][0]["function"]["name"] = "cook"  # type: ignore[index]
    refused = client.chat("hi", tools=tools, tool_choice=choice).json["error"]
    assert refused["param"] == "tool_choice.allowed_tools.tools[0].function.name"


def test_a_spent_budget_is_402_and_nothing_is_booked(client_for: Any) -> None:
    with open_platform() as platform:
        client = client_for(platform)
        platform.usage.set_budget("0.0000000001", entity="acme")
        refused = client.chat(model="tabular-mini")
        assert refused.status == 402
        assert refused.json["error"]["code"] == "insufficient_quota"
        assert refused.json["error"]["param"] is None
        assert platform.usage.total(by=("entity",)) == []


def test_the_402_of_an_answer_that_may_be_too_long_names_max_tokens(client_for: Any) -> None:
    with open_platform() as platform:
        client = client_for(platform)
        platform.usage.set_budget("0.00001", entity="acme")
        refused = client.chat(model="tabular-mini")
        assert (refused.status, refused.json["error"]["param"]) == (402, "max_tokens")
        assert refused.json["error"]["message"].startswith("max_tokens: ")
        assert client.chat(model="tabular-mini", max_tokens=5).status == 200


def test_a_foreign_team_in_the_header_is_403_and_nothing_is_booked(client_for: Any) -> None:
    with open_platform() as platform:
        client = client_for(platform)
        for name in ("openai-project", "compat-project"):
            assert client.chat(headers=[(name, "rival/books")]).status == 403
        assert platform.usage.total(by=("entity",)) == []
        assert client.chat(headers=[("compat-project", "acme/books")]).status == 200
        (total,) = platform.usage.total(by=("entity", "project"))
        assert (total.entity, total.project) == ("acme", "books")


# ---- streams -----------------------------------------------------------------------------------------------------


def test_a_stream_says_what_the_whole_answer_says(client: Any) -> None:
    answer = client.chat("one two three", stream=True, stream_options={"include_usage": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert "content-length" not in answer.headers
    events = answer.events
    assert events[-1] == "[DONE]"
    assert contents(events[:-1]) == "one two three"
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert events[-2]["usage"] == client.chat("one two three").json["usage"]
    assert len({(event["id"], event["created"], event["model"]) for event in events[:-1]}) == 1


@pytest.mark.parametrize("base", ["/v1", "/inference/v1"])
def test_tokens_of_log_probabilities_may_be_named_by_their_ids(client: Any, base: str) -> None:
    body = {
        "model": "tabular-mini",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 4,
        "seed": 1,
        "logprobs": True,
        "top_logprobs": 2,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }
    whole = client.send("POST", f"{base}/chat/completions", body).json
    (choice,) = whole["choices"]
    assert whole["prompt_token_ids"] == choice["prompt_token_ids"] != []
    named = [f"token_id:{id_}" for id_ in choice["token_ids"]]
    entries = choice["logprobs"]["content"]
    assert [entry["token"] for entry in entries] == named
    assert all(other["token"].startswith("token_id:") for entry in entries for other in entry["top_logprobs"])
    *chunks, done = client.send("POST", f"{base}/chat/completions", {**body, "stream": True}).events
    streamed = [
        entry["token"] for chunk in chunks for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert (streamed, done) == (named, "[DONE]")
    usual = client.send("POST", f"{base}/chat/completions", {**body, "return_tokens_as_token_ids": False}).json
    shown = usual["choices"][0]["logprobs"]["content"]
    assert [entry["bytes"] for entry in shown] == [entry["bytes"] for entry in entries]
    assert not any(entry["token"].startswith("token_id:") for entry in shown)
    del body["return_token_ids"]
    assert "prompt_token_ids" not in client.send("POST", f"{base}/chat/completions", body).json


@pytest.mark.parts
def test_the_deprecation_header_depends_on_the_requested_name(client_for: Any) -> None:
    with open_platform() as platform:
        old = attrs.evolve(platform.catalogue.get("echo"), id="old-echo", deprecation_date=date(2020, 1, 2))
        platform.catalogue.register(old, answers_as="echo")
        client = client_for(platform)
        hello = [{"role": "user", "content": "hi"}]
        bodies = {
            "/inference/v1/chat/completions": {"messages": hello},
            "/v1/completions": {"prompt": "hi"},
            "/v1/messages": {"messages": hello, "max_tokens": 5},
            "/v1/responses": {"input": "hi"},
        }
        for path, stream in itertools.product(bodies, (False, True)):
            answer = client.send("POST", path, {"model": "old-echo", "stream": stream, **bodies[path]})
            assert answer.status == 200
            assert answer.headers["deprecation"] == "@1577923200"
        assert "deprecation" not in client.chat().headers


@attrs.define
class Saying:
    """A backend that says its pieces; an exception among them is raised in its place."""

    pieces: list[Any]
    blocking: bool = False
    generated: int = 0
    closed: int = 0

    def entries(self) -> tuple[CatalogueEntry, ...]:
        return (CatalogueEntry("sayer", "h", "Sayer", 0, Quantization.FP32, 10_000, 10_000),)

    def capabilities(self, model: str) -> Capabilities:
        return Capabilities()

    def prompt_tokens(self, request: Any, model: Any) -> int:
        return 1

    def stream(self, request: Any, model: Any) -> Iterator[Delta]:
        try:
            for piece in self.pieces:
                if isinstance(piece, Exception):
                    raise piece
                self.generated += 1
                yield Delta(piece, 1)
            yield Delta(finish_reason=FinishReason.STOP)
        finally:
            self.closed += 1


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_failure_before_the_first_token_is_a_plain_answer(
    blocking: bool, asynchronous: bool, client_for: Any
) -> None:
    with open_platform(backend=Saying([Overloaded("full", 7)], blocking)) as platform:
        answer = client_for(platform, asynchronous).chat(model="sayer", stream=True)
    assert answer.status == 503
    assert answer.headers["retry-after"] == "7"
    assert answer.json["error"]["code"] == "overloaded"


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_failure_later_ends_the_stream_with_an_event_and_books_what_was_said(
    blocking: bool, asynchronous: bool, client_for: Any
) -> None:
    with open_platform(backend=Saying(["a ", "b ", BackendError("out of luck")], blocking)) as platform:
        answer = client_for(platform, asynchronous).chat(model="sayer", stream=True)
        (entry,) = platform.usage.list().page().items
    assert answer.status == 200
    *reported, last = answer.events
    assert contents(reported) == "a b "
    assert set(last["error"]) == {"message", "type", "param", "code"}
    assert "out of luck" in last["error"]["message"]
    assert (entry.model, entry.completion_tokens) == ("sayer", 2)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("generated", [[], ["a "]])
def test_an_overload_is_logged_in_one_line_without_a_traceback_and_a_full_queue_not_at_all(
    asynchronous: bool, generated: list[str], client_for: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "modelyard.http"):
        for refusal in (QueueFull("too many\nwait"), Overloaded("no\nroom")):
            with open_platform(backend=Saying([*generated, refusal])) as platform:
                client_for(platform, asynchronous).chat(model="sayer", stream=True)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().endswith("was refused: no\\nroom")


@attrs.define
class Unspeakable(Saying):
    """Gives, besides its last piece, bytes that are none."""

    def capabilities(self, model: str) -> Capabilities:
        return Capabilities(logprobs=True)

    def stream(self, request: Any, model: Any) -> Iterator[Delta]:
        try:
            for at, piece in enumerate(self.pieces, 1):
                raw: Any = 7 if at == len(self.pieces) else None
                yield Delta(piece, 1, logprobs=(TokenLogprob(piece, -1.0, raw),))
            yield Delta(finish_reason=FinishReason.STOP)
        finally:
            self.closed += 1


@pytest.mark.parametrize("asynchronous", [False, True])
def test_an_unwritable_delta_ends_the_stream_with_an_error_event_and_is_booked(
    asynchronous: bool, client_for: Any
) -> None:
    backend = Unspeakable(["a ", "b "])
    with open_platform(backend=backend) as platform:
        answer = client_for(platform, asynchronous).chat(model="sayer", stream=True, logprobs=True)
        (entry,) = platform.usage.list().page().items
    *reported, last = answer.events
    assert contents(reported) == "a "
    assert last["error"]["type"] == "server_error"
    assert entry.completion_tokens == 2
    assert backend.closed == 1
    assert b"[DONE]" not in answer.raw
    assert entry.completion_tokens == 2


class Wrong(Saying):
    """Gives, on an event loop, a delta with a wrong count."""

    async def astream(self, request: Any, model: Any) -> AsyncIterator[Delta]:
        try:
            for piece in self.pieces:
                yield Delta(piece, -1)
        finally:
            self.closed += 1


def test_a_backend_is_closed_before_a_failed_answer_is_sent() -> None:
    backend = Wrong(["a ", "b "])

    async def body() -> AsyncIterator[bytes]:
        yield b'{"model": "sayer", "messages": [{"role": "user", "content": "x"}]}'

    async def status_and_closed(platform: Any) -> tuple[int, int]:
        headers = [("authorization", f"Bearer {platform.keys.create('acme').secret}")]
        request = Request("POST", "/v1/chat/completions", "", headers, body())
        response = await Endpoint(platform).ahandle(request)
        return response.status, backend.closed

    with open_platform(backend=backend) as platform:
        assert asyncio.run(status_and_closed(platform)) == (502, 1)


def pieces_of(platform: Any, asynchronous: bool, stop_after: int | None = None) -> list[bytes]:
    """The body of a stream as it is handed to the server; broken off after so many pieces."""
    endpoint, key = Endpoint(platform), platform.keys.create("acme").secret
    raw = b'{"model": "sayer", "messages": [{"role": "user", "content": "x"}], "stream": true}'
    headers = [("authorization", f"Bearer {key}")]

    async def chunks() -> Any:
        yield raw

    async def read() -> list[bytes]:
        response = await endpoint.ahandle(Request("POST", "/v1/chat/completions", "", headers, chunks()))
        body: Any = response.body
        pieces = []
        async for piece in body:
            pieces.append(piece)
            if len(pieces) == stop_after:
                break
        await body.aclose()
        return pieces

    if asynchronous:
        return asyncio.run(read())
    body: Any = endpoint.handle(Request("POST", "/v1/chat/completions", "", headers, iter([raw]))).body
    pieces = []
    for piece in body:
        pieces.append(piece)
        if len(pieces) == stop_after:
            break
    body.close()
    return pieces


@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_is_ready_together_is_sent_together_in_bounded_pieces(asynchronous: bool) -> None:
    with open_platform(backend=Saying(["word "] * 1000)) as platform:
        pieces = pieces_of(platform, asynchronous)
    assert 5 < len(pieces) < 30
    assert all(len(piece) < 2 * JOINED for piece in pieces)
    assert b"".join(pieces).endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_has_to_be_waited_for_is_sent_as_it_comes(asynchronous: bool) -> None:
    with open_platform(backend=Saying(["a ", "b ", "c "], blocking=True)) as platform:
        pieces = pieces_of(platform, asynchronous)
    assert [piece.count(b'"content":"a "') for piece in pieces][:2] == [1, 0]
    assert len(pieces) >= 4


@each_case("blocking", [False, True])
@each_case("asynchronous", [False, True])
def test_a_reader_who_goes_away_stops_the_backend_and_pays_for_what_was_said(
    blocking: bool, asynchronous: bool
) -> None:
    backend = Saying(["word "] * 9000, blocking)
    with open_platform(backend=backend) as platform:
        pieces_of(platform, asynchronous, stop_after=2)
        (entry,) = platform.usage.list().page().items
    assert backend.closed == 1
    assert backend.generated < 1000
    assert entry.completion_tokens == backend.generated


def test_streams_of_several_threads_do_not_mix(client_for: Any) -> None:
    with open_platform() as platform:
        client = client_for(platform)
        generated: dict[str, str] = {}

        def ask(word: str) -> None:
            generated[word] = contents(client.chat(f"{word} " * 50, stream=True).events[:-1])

        threads = [threading.Thread(target=ask, args=(f"word{number}",)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert all(set(text.split()) == {word} for word, text in generated.items())
    assert len(generated) == 8
