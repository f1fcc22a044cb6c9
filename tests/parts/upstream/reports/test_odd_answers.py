"""Answers that servers were reported to give: none is lost, and each is booked as the server counted it.

What a whole dialect or fault covers is in `answers/test_odd_server.py`; these are the single streams of the reports.
"""

import json
import logging
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from decimal import Decimal
from typing import Any

import attrs
import httpx
import pytest

from each import each_case
from modelyard import Pricing, open_platform
from modelyard.backends import VLLM, Timeouts, UpstreamBackend, offer
from modelyard.domain.completion import Completion
from modelyard.errors import BackendError, ModelyardError
from modelyard.parts.upstream import exchange
from modelyard.testing import HttpxTransport

PRICE = Pricing(prompt=Decimal("0.001"), completion=Decimal("0.01"), input_cache_read=Decimal("0.0001"))
CAN = attrs.evolve(VLLM, token_ids=False, prompt_logprobs=False)
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("get_weather", "get_time")]
FIRST, SECOND = ("get_weather", '{"city":"Paris"}'), ("get_time", '{"tz":"JST"}')


def http(body: bytes, kind: str, length: bool) -> bytes:
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\nconnection: close\r\n"
    return (head + (f"content-length: {len(body)}\r\n" if length else "") + "\r\n").encode() + body


def written(chunk: Any) -> bytes:
    return chunk if isinstance(chunk, bytes) else b"data: " + json.dumps(chunk).encode() + b"\n\n"


def stream(*chunks: Any, done: bool = True) -> bytes:
    return http(b"".join([*map(written, chunks), b"data: [DONE]\n\n" if done else b""]), "text/event-stream", False)


def document(value: Any) -> bytes:
    return http(value if isinstance(value, bytes) else json.dumps(value).encode(), "application/json", True)


def chunk(delta: Any = None, reason: Any = None, **members: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {} if delta is None else delta, "finish_reason": reason, **members}]}


def counted(prompt: Any = 10, completion: Any = 2, **members: Any) -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion, **members}}


def whole(message: Any = None, reason: Any = "stop", usage: Any = None, **members: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"content": "hi there"} if message is None else message, "finish_reason": reason}
    counts = counted()["usage"] if usage is None else usage
    return {"choices": [{**choice, **members}], "usage": counts}


HI = (chunk({"role": "assistant", "content": ""}), chunk({"content": "hi"}), chunk({"content": " there"}))
STOP = chunk({}, "stop")


def piece(id_: str | None, name: str | None, arguments: Any = None, **members: Any) -> dict[str, Any]:
    given = {"name": name, "arguments": arguments}
    function = {member: value for member, value in given.items() if value is not None}
    return {**({"id": id_, "type": "function"} if id_ else {}), "function": function, **members}


def calling(*pieces: Any) -> dict[str, Any]:
    return chunk({"tool_calls": list(pieces)})


@attrs.define
class Asked:
    """What came of a request: the completion, or the error that it ended with, and what was booked."""

    completion: Completion | None
    error: ModelyardError | None
    booked: Sequence[Any]

    @property
    def text(self) -> str:
        assert self.error is None, self.error
        assert self.completion is not None
        return self.completion.text

    @property
    def calls(self) -> list[tuple[str, str]]:
        assert self.completion is not None, self.error
        made = self.completion.choices[0].message.tool_calls
        assert len({call.id for call in made}) == len(made)
        return [(call.name, call.arguments) for call in made]

    @property
    def bill(self) -> tuple[int, int, int, bool]:
        (one,) = self.booked
        return one.prompt_tokens, one.completion_tokens, one.cached_tokens, one.estimated


@pytest.fixture
def ask(canned: Any) -> Any:
    """Asks a server that gives these answers, streamed unless it is said otherwise."""

    def asked(*answers: bytes, streamed: bool = True, retries: int = 0, **request: Any) -> Asked:
        timeouts = Timeouts(retries=retries, backoff=0.001, first_token=60, between_tokens=60)
        model = offer("m", context_length=4096, pricing=PRICE, capabilities=CAN)
        request = {"messages": "hello there, how is it going?", **request}
        with UpstreamBackend(canned(*answers), models=[model], timeouts=timeouts) as backend:
            with open_platform(backend=backend) as yard:
                completion, error = None, None
                try:
                    completion = _completed(yard, streamed, request)
                except ModelyardError as failure:
                    error = failure
                return Asked(completion, error, list(yard.usage.list()))

    return asked


@contextmanager
def beating(answer: bytes, beats: bytes = b"data: {}\n\n: beat\n\ndata: ping\n\n") -> Iterator[str]:
    """A server that sends heartbeats after its answer, of every kind, until the reader has left."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            connection.recv(65536)
            connection.sendall(answer)
            while True:
                connection.sendall(beats)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    thread.join(60)
    assert not thread.is_alive()


def _completed(yard: Any, streamed: bool, request: dict[str, Any]) -> Any:
    if not streamed:
        return yard.chat.complete(model="m", **request)
    with yard.chat.stream(model="m", **request) as deltas:
        for _ in deltas:
            pass
        return deltas.completion


# ---- the bill


class TestUsage:
    @each_case(
        ("usages", "bill"),
        [
            ([{"prompt_tokens": 1000, "completion_tokens": 0}, {"completion_tokens": 2}], (1000, 2, 0, False)),
            ([{"prompt_tokens": 1000, "completion_tokens": 1}, {}, {"completion_tokens": 2}], (1000, 2, 0, False)),
            (
                [{"prompt_tokens": 10, "completion_tokens": 2}, {"prompt_tokens": 0, "completion_tokens": 0}],
                (10, 2, 0, False),
            ),
            ([{"prompt_tokens": 10.0, "completion_tokens": "2"}], (10, 2, 0, False)),
            ([{"prompt_tokens": 10, "total_tokens": 12}], (10, 2, 0, False)),
            ([{"completion_tokens": 2, "total_tokens": 12}], (10, 2, 0, False)),
            ([{"prompt_tokens": 10, "completion_tokens": 2, "prompt_cache_hit_tokens": 8}], (10, 2, 8, False)),
            ([{"prompt_tokens": 10, "completion_tokens": 2, "cached_tokens": 8}], (10, 2, 8, False)),
            ([{"prompt_tokens": 10, "completion_tokens": 2, "cache_read_input_tokens": 8}], (10, 2, 8, False)),
            ([{"prompt_tokens": 2, "completion_tokens": 2, "cache_read_input_tokens": 8}], (10, 2, 8, False)),
            ([{"input_tokens": 2, "output_tokens": 2, "cache_read_input_tokens": 8}], (10, 2, 8, False)),
            (
                [{"input_tokens": 10, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 8}}],
                (10, 2, 8, False),
            ),
            (
                [{"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": [{"cached_tokens": 8}]}],
                (10, 2, 8, False),
            ),
            (
                [{"prompt_tokens": 10, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 50}}],
                (10, 2, 10, False),
            ),
            ([{"prompt_tokens": 10, "completion_tokens": -5}, {"completion_tokens": 2}], (10, 2, 0, False)),
            ([{"prompt_tokens": True, "completion_tokens": 10**30}, counted()["usage"]], (10, 2, 0, False)),
            ([[], "much", 3, counted()["usage"]], (10, 2, 0, False)),
        ],
    )
    def test_counts_are_merged_by_their_greatest_value(self, ask: Any, usages: list[Any], bill: Any) -> None:
        asked = ask(stream(*HI, STOP, *[{"choices": [], "usage": usage} for usage in usages]))
        assert (asked.text, asked.bill) == ("hi there", bill)

    @each_case("usage", [{}, {"total_tokens": 0}, counted(0, 0)["usage"], counted(None, None)["usage"], [], 3])
    @each_case("streamed", [True, False])
    def test_an_answer_without_counts_is_never_free(self, ask: Any, usage: Any, streamed: bool) -> None:
        answer = stream(*HI, STOP, {"usage": usage}) if streamed else document(whole(usage=usage))
        prompt, completion, _, estimated = ask(answer, streamed=streamed, messages="word " * 400).bill
        assert (prompt >= 400, completion >= 2, estimated) == (True, True, True)

    def test_a_prompt_that_the_server_does_not_count_is_estimated(self, ask: Any) -> None:
        prompt, completion, _, estimated = ask(stream(*HI, STOP, counted(0, 2)), messages="word " * 400).bill
        assert (prompt >= 400, completion, estimated) == (True, 2, True)

    @each_case(
        ("counts", "tokens"),
        [
            ({"total_tokens": 135, "completion_tokens_details": {"reasoning_tokens": 94}}, 103),
            ({"total_tokens": 41, "completion_tokens_details": {"reasoning_tokens": 7}}, 9),
            ({"completion_tokens_details": {"reasoning_tokens": 7}}, 9),
            ({"completion_tokens_details": {"reasoning_tokens": 94}}, 103),
            ({"total_tokens": 135}, 103),
            ({"total_tokens": 30}, 9),
        ],
    )
    def test_reasoning_beside_the_answer_is_told_by_the_total(self, ask: Any, counts: Any, tokens: int) -> None:
        assert ask(stream(*HI, STOP, counted(32, 9, **counts))).bill == (32, tokens, 0, False)
        assert ask(document(whole(usage=counted(32, 9, **counts)["usage"])), streamed=False).bill == (
            32,
            tokens,
            0,
            False,
        )

    def test_a_chunk_is_not_a_token(self, ask: Any) -> None:
        letters = [chunk({"content": letter}) for letter in "Hello world!"]
        assert ask(stream(*letters, STOP, counted(10, 3))).bill == (10, 3, 0, False)
        asked = ask(stream(*letters, STOP, counted(10, 3)), max_tokens=5)
        assert (asked.text, asked.bill) == ("Hello world!", (10, 3, 0, False))

    @each_case(
        "last",
        [
            chunk({}, "stop", usage=counted(1000, 2)["usage"]),
            chunk({"usage": counted(1000, 2)["usage"]}, "stop"),
            {**STOP, "x_groq": {"id": "r", "usage": counted(1000, 2)["usage"]}},
            {**STOP, "prompt_eval_count": 1000, "eval_count": 2},
            {**STOP, "tokens_evaluated": 1000, "tokens_predicted": 2},
            {**STOP, "timings": {"prompt_n": 400, "cache_n": 600, "predicted_n": 2}},
            {**STOP, "usageMetadata": {"promptTokenCount": 1000, "candidatesTokenCount": 2}},
            {**STOP, "usage": json.dumps(counted(1000, 2)["usage"])},
            {**STOP, "usage": {"prompt_tokens_count": 1000, "completion_tokens_count": 2}},
            {**STOP, "usage": {"input_token_count": 1000, "generated_token_count": 2}},
            {**STOP, "usage": {"prompt-tokens": 1000, "Completion-Tokens": "2"}},
        ],
    )
    def test_usage_is_found_wherever_it_stands(self, ask: Any, last: Any) -> None:
        assert ask(stream(*HI, last)).bill[:2] == (1000, 2)


# ---- calls


class TestCalls:
    @each_case(
        "chunks",
        [
            [calling(piece("a", *FIRST)), calling(piece("b", *SECOND))],
            [calling(piece("a", *FIRST), piece("b", *SECOND))],
            [calling(piece("a", *FIRST, index=0)), calling(piece("b", *SECOND, index=0))],
            [calling(piece("a", *FIRST, index=None)), calling(piece("b", *SECOND, index=None))],
            [calling(piece("a", *FIRST, index=0)), calling(piece("b", *SECOND))],
            [calling(piece(None, *FIRST)), calling(piece(None, *SECOND))],
            [calling(piece(None, *FIRST, index=0)), calling(piece(None, *SECOND, index=0))],
            [calling(piece("a", *FIRST, index=3)), calling(piece("b", *SECOND, index=7))],
            [calling(piece("x", *FIRST, index=0)), calling(piece("x", *SECOND, index=1))],
            [calling(piece("x", *FIRST)), calling(piece("x", *SECOND))],
            [
                calling(piece("a", FIRST[0])),
                calling(piece(None, None, FIRST[1])),
                calling(piece("b", SECOND[0])),
                calling(piece(None, None, SECOND[1])),
            ],
            [
                calling(piece("a", "get_", "", index=0)),
                calling(piece(None, "weather", FIRST[1], index=0)),
                calling(piece("b", *SECOND, index=1)),
            ],
            [
                calling(piece("a", None, "", index=0)),
                calling(piece(None, *FIRST, index=0)),
                calling(piece("b", *SECOND, index=1)),
            ],
            [
                calling(piece("a", None, FIRST[1], index=0)),
                calling(piece(None, FIRST[0], index=0)),
                calling(piece("b", *SECOND, index=1)),
            ],
            [calling(piece(7, *FIRST)), calling(piece(8, *SECOND))],
            [calling(piece("a", FIRST[0], {"city": "Paris"})), calling(piece("b", SECOND[0], {"tz": "JST"}))],
            [
                calling(piece("a", *FIRST)),
                calling(piece("b", *SECOND)),
                calling(piece("a", *FIRST), piece("b", *SECOND)),
            ],
            [chunk({"tool_calls": piece("a", *FIRST)}), chunk({"tool_calls": [None, piece("b", *SECOND), 3]})],
            [
                calling({"id": "a", "name": FIRST[0], "arguments": FIRST[1]}),
                calling({"id": "b", "name": SECOND[0], "input": {"tz": "JST"}}),
            ],
        ],
    )
    def test_two_calls_stay_apart(self, ask: Any, chunks: list[Any]) -> None:
        asked = ask(stream(*chunks, chunk({}, "tool_calls"), counted()), tools=TOOLS)
        assert [(name, json.loads(given)) for name, given in asked.calls] == [
            (name, json.loads(given)) for name, given in (FIRST, SECOND)
        ]

    @each_case("arguments", ['{"a": 1}', "", "{}"])
    @each_case("streamed", [True, False])
    def test_two_calls_of_the_same_tool_without_ids_are_two(self, ask: Any, arguments: str, streamed: bool) -> None:
        both = [piece(None, "get_time", arguments), piece(None, "get_time", arguments)]
        message = {"content": None, "tool_calls": both}
        answer = stream(calling(*both), STOP, counted()) if streamed else document(whole(message))
        assert ask(answer, streamed=streamed, tools=TOOLS).calls == [("get_time", arguments)] * 2

    @each_case(
        "pieces",
        [
            [
                piece("a", "get_time", "", index=0),
                piece("a", "get_time", '{"a"', index=0),
                piece("a", "get_time", ": 1}", index=0),
            ],
            [piece("a", "get_time", ""), piece("a", None, '{"a"'), piece("a", None, ": 1}")],
            [piece("a", "get_time", '{"a"', index=0), piece(None, "", ": 1}", index=0), piece("", "", "", index=0)],
            [piece("a", "get_time", '{"a"', index=0), piece("other", None, ": 1}", index=0)],
            [piece(None, "get_time", "", index=0), piece("a", "get_time", '{"a": 1}', index=0)],
            [piece("a", "get_time", '{"a": 1}', index=0), piece("a", "get_time", "", index=0)],
            [piece("a", "get_time", '{"a": 1}', index=0), piece("a", "get_time", '{"a": 1}', index=0)],
            [piece("a", "get_time"), piece(None, None, '{"a": 1}', index=1)],
        ],
    )
    def test_the_pieces_of_one_call_are_one(self, ask: Any, pieces: list[Any]) -> None:
        asked = ask(stream(*map(calling, pieces), chunk({}, "tool_calls"), counted()), tools=TOOLS)
        assert [(name, json.loads(given)) for name, given in asked.calls] == [("get_time", {"a": 1})]

    @each_case("streamed", [True, False])
    def test_a_function_call_is_a_call(self, ask: Any, streamed: bool) -> None:
        call = {"function_call": {"name": "get_time", "arguments": "{}"}}
        last = chunk({}, "function_call")
        answer = stream(chunk(call), last, counted()) if streamed else document(whole(call, "function_call"))
        asked = ask(answer, streamed=streamed, tools=TOOLS)
        assert (asked.calls, asked.completion.choices[0].finish_reason) == ([("get_time", "{}")], "tool_calls")

    def test_integers_of_any_size_stay_as_they_are(self, ask: Any) -> None:
        call = piece("a", "get_time", {"account": 123456789012345678901234567890})
        (made,) = ask(document(whole({"tool_calls": [call]}, "tool_calls")), streamed=False, tools=TOOLS).calls
        assert json.loads(made[1]) == {"account": 123456789012345678901234567890}


# ---- what is read of the rest

REASONS = (
    *("eos", "eos_token", "end_turn", "STOP", "FinishReason.STOP", "max_tokens", "MAX_TOKENS", "model_length"),
    *("max-tokens", "MaxTokens", "maxtokens", "SAFETY", "refusal", "Content-Filter"),
)
"""Reasons that are known by their names."""


class TestRead:
    @each_case(
        "odd",
        [
            {"choices": [{"index": 0, "finish_reason": None, "content_filter_results": {}}]},
            {"choices": [{"index": 0, "delta": None, "finish_reason": None}]},
            {"choices": [{"index": 0, "delta": "none", "finish_reason": ""}]},
            {"choices": [None]},
            {"choices": None},
            {"choices": {}},
            {"choices": 7},
            chunk({"content": None, "tool_calls": None, "function_call": None}),
            chunk({"content": []}),
            chunk({}, None, logprobs=3, token_ids="x"),
            b'data: {"choices":[{"index":0,"delta":{},"seed":15478239417263476000}],"tps":NaN,"tps":-Infinity}\n\n',
            b"data: null\n\n",
            b"data: []\n\n",
            b"data: ping\n\n",
            b"data:\n\n",
            b": comment\n\n",
            b"event: ping\ndata: {}\n\n",
        ],
    )
    def test_what_is_not_read_costs_nothing(self, ask: Any, odd: Any) -> None:
        asked = ask(stream(odd, HI[1], odd, HI[2], odd, STOP, odd, counted(), odd))
        assert (asked.text, asked.bill) == ("hi there", (10, 2, 0, False))

    @each_case(
        "message",
        [
            {"tool_calls": json.dumps([piece("a", *FIRST)])},
            {"content": [{"type": "tool_use", "id": "a", "name": FIRST[0], "input": {"city": "Paris"}}]},
            {"tool_calls": [{"id": "a", "type": "custom", "custom": {"name": FIRST[0], "input": FIRST[1]}}]},
        ],
    )
    def test_calls_at_other_places(self, ask: Any, message: Any) -> None:
        for asked in (
            ask(stream(chunk(message), STOP, counted()), tools=TOOLS),
            ask(document(whole(message)), streamed=False, tools=TOOLS),
        ):
            assert asked.calls == [FIRST]

    def test_a_delta_next_to_an_empty_message_is_read(self, ask: Any) -> None:
        both = {"choices": [{**HI[1]["choices"][0], "message": {"role": "assistant", "content": None}}]}
        assert ask(stream(both, HI[2], STOP, counted())).text == "hi there"

    def test_log_probabilities_stay_though_ids_of_another_number_come(self, ask: Any) -> None:
        scored = chunk(
            {"content": "hi"}, None, logprobs={"content": [{"token": "hi", "logprob": -1}]}, token_ids=[1, 2]
        )
        (entry,) = ask(stream(scored, STOP, counted()), logprobs=True).completion.choices[0].logprobs
        assert (entry.token, entry.logprob) == ("hi", -1.0)

    def test_an_answer_without_the_log_probabilities_that_were_asked_for_is_booked(self, ask: Any) -> None:
        asked = ask(stream(*HI, STOP, counted()), logprobs=True)
        assert "did not send the logprobs" in str(asked.error)
        assert asked.bill == (10, 2, 0, False)
        assert asked.booked[0].cost > 0

    def test_choices_that_do_not_come_are_named_and_the_others_booked(self, ask: Any) -> None:
        asked = ask(stream(*HI, STOP, counted()), n=2)
        assert "1 of 2 choices are missing; offer the model without the capability choices" in str(asked.error)
        assert asked.bill == (10, 2, 0, False)

    def test_choices_that_were_not_requested_are_left_out(self, ask: Any) -> None:
        other = {"choices": [{"index": 5, "delta": {"content": "other"}, "finish_reason": "length"}]}
        asked = ask(stream(HI[1], other, HI[2], STOP, other, counted()))
        assert (asked.text, asked.completion.choices[0].finish_reason) == ("hi there", "stop")

    def test_the_only_choice_may_have_any_number(self, ask: Any) -> None:
        chunks = [{"choices": [{**one["choices"][0], "index": 1}]} for one in (*HI, STOP)]
        assert ask(stream(*chunks, counted())).text == "hi there"

    def test_a_list_of_chunks_is_read_as_its_chunks(self, ask: Any) -> None:
        assert ask(stream([HI[1], HI[2]], [STOP, counted()])).text == "hi there"

    @pytest.mark.parametrize(
        ("given", "reason"),
        [
            ("eos", "stop"),
            ("eos_token", "stop"),
            ("end_turn", "stop"),
            ("STOP", "stop"),
            ("FinishReason.STOP", "stop"),
            ("max_tokens", "length"),
            ("MAX_TOKENS", "length"),
            ("model_length", "length"),
            ("max-tokens", "length"),
            ("SAFETY", "content_filter"),
            ("refusal", "content_filter"),
            ("MaxTokens", "length"),
            ("maxtokens", "length"),
            ("Content-Filter", "content_filter"),
            ("TIMEOUT", "length"),
            ("timed out", "length"),
            ("user_cancelled", "length"),
            ("UserCanceled", "length"),
            ("INTERRUPTED", "length"),
            ("token_budget_reached", "length"),
            ("function_call_filter", "content_filter"),
            ("Function-Call-Filter", "content_filter"),
            ("blocked by policy", "content_filter"),
            ("server_tool_call", "stop"),
            ("never heard of it", "stop"),
            (3, "stop"),
            ({}, "stop"),
        ],
    )
    def test_finish_reasons_of_all_families(self, ask: Any, given: Any, reason: str, caplog: Any) -> None:
        with caplog.at_level(logging.WARNING, "modelyard.backends.upstream"):
            streamed, at_once = (
                ask(stream(*HI, chunk({}, given), counted())),
                ask(document(whole(reason=given)), streamed=False),
            )
        assert [one.completion.choices[0].finish_reason for one in (streamed, at_once)] == [reason, reason]
        unknown = given not in REASONS
        assert len([one for one in caplog.records if "finish reason" in one.message]) == 2 * unknown

    @each_case(
        ("message", "text", "reasoning"),
        [
            ({"content": [{"type": "text", "text": "hi"}, {"type": "text", "text": " there"}]}, "hi there", None),
            ({"content": {"type": "text", "text": "hi there"}}, "hi there", None),
            (
                {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, "hi there"]},
                "hi there",
                "hm",
            ),
            ({"content": "hi there", "reasoning": "hm"}, "hi there", "hm"),
            ({"content": "hi there", "reasoning_content": "hm"}, "hi there", "hm"),
            ({"content": "hi there", "thinking": "hm"}, "hi there", "hm"),
            (
                {
                    "content": "hi there",
                    "reasoning": None,
                    "reasoning_details": [{"type": "reasoning.text", "text": "hm"}],
                },
                "hi there",
                "hm",
            ),
            ({"refusal": "hi there", "content": None}, "hi there", None),
            ({"content": None, "audio": {"id": "a", "transcript": "hi there"}}, "hi there", None),
            ({"content": 42}, "42", None),
            ({"content": {"city": "Paris"}}, '{"city":"Paris"}', None),
            ({"content": {"summary": "short", "title": "x"}}, '{"summary":"short","title":"x"}', None),
            ({"content": {"type": "person", "name": "Bob"}}, '{"type":"person","name":"Bob"}', None),
            ({"content": [{"city": "Paris"}, {"city": "Rome"}]}, '[{"city":"Paris"},{"city":"Rome"}]', None),
            ({"content": [1, 2]}, "[1,2]", None),
            ({"content": [{"text": "hi"}, {"text": " there"}]}, "hi there", None),
            ({"content": [{"type": "output_text", "text": "hi"}, {"content": " there"}]}, "hi there", None),
            (
                {"content": [{"type": "message", "content": [{"type": "x", "text": "hi"}]}, [" there"]]},
                "hi there",
                None,
            ),
            ({"content": [{"type": "text", "text": {"value": "hi there", "annotations": []}}]}, "hi there", None),
            ({"content": {"parts": [{"text": "hm", "thought": True}, {"text": "hi there"}]}}, "hi there", "hm"),
            ({"content": [{"type": "reasoning", "summary": [{"text": "hm"}]}, {"text": "hi there"}]}, "hi there", "hm"),
        ],
    )
    def test_content_and_reasoning_in_any_form(self, ask: Any, message: Any, text: str, reasoning: Any) -> None:
        for asked in (ask(stream(chunk(message), STOP, counted())), ask(document(whole(message)), streamed=False)):
            assert (asked.text, asked.completion.choices[0].message.reasoning) == (text, reasoning)

    def test_a_part_without_text_is_left_out_with_a_line_in_the_log(self, ask: Any, caplog: Any) -> None:
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,xx"}}
        with caplog.at_level(logging.WARNING, "modelyard.backends.upstream"):
            asked = ask(stream(*HI, chunk({"content": [image]}), chunk({"content": [image]}), STOP, counted()))
        assert asked.text == "hi there"
        assert [one.getMessage().endswith("are left out") for one in caplog.records] == [True]

    @each_case("name", [b"content", b"odd"])
    def test_a_content_that_is_nested_deeply_costs_itself_alone(self, ask: Any, name: bytes) -> None:
        deep = b'{"%s":[' % name * 230 + b"]}" * 230
        raw = b'data: {"choices":[{"index":0,"delta":{"content":[' + deep + b"]}}]}\n\n"
        assert ask(stream(HI[1], raw, HI[2], STOP, counted())).text.replace(deep.decode(), "") in (
            "hi there",
            "hi[] there",
        )

    @each_case("name", ["content", "reasoning_content"])
    def test_halves_of_characters_are_joined(self, ask: Any, name: str) -> None:
        parts = ["ok ", "\ud83d", "\ude00", "!", "\ud8dc", "\udcc2", "\ud83d"]
        asked = ask(stream(*[chunk({name: part}) for part in parts], HI[1], STOP, counted()))
        said = asked.completion.choices[0].message
        assert (said.text if name == "content" else said.reasoning).removesuffix(
            "hi"
        ) == "ok \U0001f600!\U000470c2\ufffd"

    def test_bytes_of_a_character_in_two_chunks_are_joined(self, ask: Any) -> None:
        halves = [
            b'data: {"choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n' % raw
            for raw in (b"a\xf0\x9f", b"\x99\x82b", b"\xff")
        ]
        assert ask(stream(*halves, STOP, counted())).text == "a🙂b\ufffd"

    @each_case("odd", ["-Infinity", "null", "NaN", "-1e400", '"-inf"'])
    def test_log_probabilities_that_are_none_are_very_low(self, ask: Any, odd: str) -> None:
        entries = (
            f'{{"content":[{{"token":"hi there","logprob":{odd},"top_logprobs":[{{"token":"yo","logprob":{odd}}}]}}]}}'
        )
        raw = f'data: {{"choices":[{{"index":0,"delta":{{"content":"hi there"}},"logprobs":{entries}}}]}}\n\n'.encode()
        asked = ask(stream(raw, STOP, counted()), logprobs=True, top_logprobs=1)
        (entry,) = asked.completion.choices[0].logprobs
        assert (entry.logprob, entry.top[0].logprob) == (-9999.0, -9999.0)

    @each_case("reason", ["length", "content_filter"])
    def test_a_choice_that_ended_without_a_message(self, ask: Any, reason: str) -> None:
        body = {"choices": [{"index": 0, "finish_reason": reason}], "usage": {"prompt_tokens": 10, "total_tokens": 10}}
        asked = ask(document(body), streamed=False)
        assert (asked.text, asked.completion.choices[0].finish_reason, asked.bill) == ("", reason, (10, 0, 0, False))


# ---- what stands around it

USAGE = counted()["usage"]
ENVELOPES: dict[str, Any] = {
    "data": lambda answer: {"code": 200, "data": answer},
    "result": lambda answer: {"success": True, "message": "fine", "result": answer},
    "response": lambda answer: {"code": 10000, "message": "success", "response": answer},
    "body": lambda answer: {"statusCode": 200, "headers": {}, "body": json.dumps(answer)},
    "output": lambda answer: {"output": {**answer, "usage": None}, "usage": answer.get("usage"), "request_id": "r"},
    "a list": lambda answer: {"predictions": [answer]},
    "two": lambda answer: {"status": "ok", "data": {"id": 1, "response": answer}},
}


class TestEnvelopes:
    @each_case("streamed", [True, False])
    @each_case("name", ENVELOPES)
    def test_an_answer_is_read_within_an_envelope(self, ask: Any, name: str, streamed: bool) -> None:
        around = ENVELOPES[name]
        answer = stream(*map(around, (*HI, STOP, counted()))) if streamed else document(around(whole()))
        asked = ask(answer, streamed=streamed)
        assert (asked.text, asked.bill) == ("hi there", (10, 2, 0, False))

    @each_case("streamed", [True, False])
    @each_case("name", ENVELOPES)
    def test_an_error_is_read_within_an_envelope_and_booked(self, ask: Any, name: str, streamed: bool) -> None:
        failed = ENVELOPES[name]({"error": {"message": "the engine has died"}, "usage": USAGE})
        asked = ask(stream(failed) if streamed else document(failed), streamed=streamed)
        assert "the engine has died" in str(asked.error)
        assert asked.bill == (10, 2, 0, False)

    @each_case("streamed", [True, False])
    @each_case("name", ENVELOPES)
    def test_what_is_not_understood_within_one_is_booked(self, ask: Any, name: str, streamed: bool) -> None:
        odd = ENVELOPES[name]({"answer": ["hi there"], "usage": USAGE})
        asked = ask(stream(odd) if streamed else document(odd), streamed=streamed)
        assert isinstance(asked.error, BackendError)
        assert asked.bill == (10, 2, 0, False)

    @each_case(
        "before",
        [b"data : ", b"  data: ", b"\tdata:", b"DATA: ", b"data: data : ", b"data:" * 4, b"\xef\xbb\xbfdata: "],
    )
    @each_case("label", ["text/event-stream", "text/plain"])
    def test_data_is_read_with_spaces_around_the_name_of_its_field(self, ask: Any, before: bytes, label: str) -> None:
        lines = [before + json.dumps(one).encode() + b"\n\n" for one in (*HI, STOP, counted())]
        asked = ask(http(b"".join([*lines, before + b"[DONE]\n\n"]), label, False))
        assert (asked.text, asked.bill) == ("hi there", (10, 2, 0, False))

    def test_an_event_that_is_wrapped_without_end_is_left_out(self, ask: Any) -> None:
        asked = ask(stream(b"data:" * 10_000 + b"\n\n", *HI, STOP, counted()))
        assert (asked.text, asked.bill) == ("hi there", (10, 2, 0, False))


# ---- the end


class TestEnd:
    @each_case(
        "after",
        [
            [],
            [b"data: [DONE]\n\n"],
            [b"data:  [DONE] \n\n"],
            [b'data: {"error": {"message": "the engine has died"}}\n\n'],
            [b'data: {"choices": [{"ind'],
            [b"data: not json\n\n", b'data: {"choices": tru}\n\n'],
        ],
    )
    def test_what_comes_after_the_last_needed_piece_loses_nothing(self, ask: Any, after: list[Any]) -> None:
        asked = ask(stream(*HI, STOP, counted(), *after, done=False))
        assert (asked.text, asked.bill) == ("hi there", (10, 2, 0, False))

    def test_heartbeats_after_it_do_not_hold_the_answer(self, caplog: pytest.LogCaptureFixture) -> None:
        with beating(stream(*HI, STOP, counted(), done=False)) as url:
            model = offer("m", context_length=4096, pricing=PRICE)
            with UpstreamBackend(url, models=[model]) as backend, open_platform(backend=backend) as yard:
                with yard.chat.stream(model="m", messages="hello") as deltas:
                    assert "".join(delta.text for delta in deltas) == "hi there"
        assert len(caplog.messages) == 1  # whatever comes how often, it is said once

    def test_heartbeats_without_an_answer_come_to_an_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(exchange, "MAX_ANSWER", 100_000)
        with beating(stream(*HI, done=False)) as url:
            model = offer("m", context_length=4096, pricing=PRICE)
            with UpstreamBackend(url, models=[model]) as backend, open_platform(backend=backend) as yard:
                with yard.chat.stream(model="m", messages="hello") as deltas:
                    with pytest.raises(BackendError, match="longer than 100000 bytes"):
                        list(deltas)

    def test_text_after_a_finish_reason_is_kept(self, ask: Any) -> None:
        asked = ask(stream(chunk({"content": "hi"}, "stop"), chunk({"content": " there"}, "length"), counted()))
        assert (asked.text, asked.completion.choices[0].finish_reason) == ("hi there", "length")

    def test_an_answer_that_is_cut_before_its_finish_reason_is_an_error_and_booked(self, ask: Any) -> None:
        asked = ask(stream(*HI, counted(1000, 2), done=False))
        assert isinstance(asked.error, BackendError)
        assert asked.bill == (1000, 2, 0, False)

    @each_case("streamed", [True, False])
    def test_an_answer_that_is_not_understood_books_what_it_says_it_cost(self, ask: Any, streamed: bool) -> None:
        odd = {"output": ["hi there"], "usage": counted(1000, 2)["usage"]}
        asked = ask(stream(odd) if streamed else document(odd), streamed=streamed)
        assert isinstance(asked.error, BackendError)
        assert asked.bill == (1000, 2, 0, False)

    @each_case("streamed", [True, False])
    @each_case("reason", ["abort", "TIMEOUT", "UserCancelled", "server-error", "ENGINE_FAILURE"])
    def test_an_attempt_that_is_broken_off_is_made_again_though_it_says_what_it_cost(
        self, ask: Any, streamed: bool, reason: str
    ) -> None:
        broken = whole({"content": ""}, reason, counted(1000, 0)["usage"])
        aborted = stream(chunk({}, reason, usage=counted(1000, 0)["usage"])) if streamed else document(broken)
        well = stream(*HI, STOP, counted()) if streamed else document(whole())
        assert ask(aborted, well, streamed=streamed, retries=1).text == "hi there"


def test_an_error_before_the_answer_has_its_status_though_its_cost_is_booked(canned: Any) -> None:
    url = canned(stream({"choices": [], "usage": counted(1000, 0)["usage"]}, {"error": {"message": "no", "code": 500}}))
    model = offer("m", context_length=4096, pricing=PRICE)
    with (
        UpstreamBackend(url, models=[model], timeouts=Timeouts(retries=0)) as backend,
        open_platform(backend=backend) as yard,
    ):
        headers = {"authorization": f"Bearer {yard.keys.create().secret}"}
        body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hello"}]}
        with httpx.Client(transport=HttpxTransport(yard), base_url="http://x", headers=headers) as client:
            assert client.post("/v1/chat/completions", json=body).status_code == 502
        assert [booked.prompt_tokens for booked in yard.usage.list()] == [1000]
