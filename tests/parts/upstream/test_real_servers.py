"""What real servers were seen to do: vLLM 0.32, llama.cpp, LiteLLM in front of a vLLM, and `transformers serve`."""

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import attrs
import pytest

from modelyard import Platform, Rollout, open_platform
from modelyard.backends import VLLM, Timeouts, offer
from modelyard.domain.completion import Delta, Sampling, Tool, ToolChoice, ToolMode
from modelyard.errors import BackendError, ContextLengthExceeded, InvalidInput, UnsupportedParameter
from modelyard.parts.upstream.connections import KEPT
from modelyard.parts.upstream.fake_vllm.misbehaviour import Gate, Hold
from modelyard.parts.upstream.fake_vllm.server import FakeVllm
from upstream_asking import FREE, TIMEOUTS, Hurried, ask, backend_at, http, request_of, served, text_of


def events(*chunks: Any) -> bytes:
    """An answer that is a stream of these chunks."""
    generated = [chunk if isinstance(chunk, str) else json.dumps(chunk) for chunk in chunks]
    return http("".join(f"data: {one}\n\n" for one in generated).encode(), "text/event-stream")


def chunk(content: str | None = None, reason: str | None = None, **members: Any) -> dict[str, Any]:
    delta = {} if content is None else {"content": content}
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason, **members}]}


def whole(content: str, reason: str = "stop", usage: int | None = None, **members: Any) -> bytes:
    body: dict[str, Any] = {"choices": [{"message": {"content": content}, "finish_reason": reason, **members}]}
    if usage is not None:
        body["usage"] = {"prompt_tokens": 3, "completion_tokens": usage, "total_tokens": 3 + usage}
    return http(json.dumps(body).encode())


def refused(message: str, **members: Any) -> bytes:
    return http(json.dumps({"error": {"message": message, **members}}).encode(), status="400 Bad Request")


def logprobs(*tokens: str) -> dict[str, Any]:
    return {"content": [{"token": token, "logprob": -1.0, "bytes": list(token.encode())} for token in tokens]}


# ---- a server that shuts down ------------------------------------------------------------------------------------


class TestAbort:
    """vLLM ends answers with "abort" when it gets SIGTERM."""

    @pytest.mark.parametrize("streamed", [True, False])
    def test_an_answer_that_is_aborted_before_its_first_token_is_requested_again(
        self, canned: Any, either: Any, streamed: bool
    ) -> None:
        role = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
        aborted = events(role, chunk(None, "abort"), "[DONE]") if streamed else whole("", "abort")
        well = events(chunk("hi", "stop"), "[DONE]") if streamed else whole("hi")
        clock = Hurried()
        with backend_at(canned(aborted, well), clock=clock, timeouts=TIMEOUTS) as backend:
            assert text_of(either(backend, streamed=streamed)) == "hi"
        assert clock.waits[0] == 0.5

    def test_after_the_first_token_it_is_reported_as_broken_off(self, canned: Any, either: Any) -> None:
        aborted = events(chunk("half an"), chunk("", "abort"), "[DONE]")
        with backend_at(canned(aborted)) as backend:
            with pytest.raises(BackendError, match="the upstream server broke the answer off"):
                either(backend, streamed=True)


class TestSilence:
    """vLLM may fall silent after a SIGTERM, and does not exit while a reader waits."""

    def test_a_blocking_reader_waits_for_the_next_token_as_long_as_for_one(self) -> None:
        fake, gate = FakeVllm(), Gate()
        fake.plan(Hold(gate, after=3))
        with fake.serve() as url:
            timeouts = Timeouts(first_token=60.0, between_tokens=0.05)
            with backend_at(f"{url}/v1", timeouts=timeouts) as backend:
                with pytest.raises(BackendError, match=r"sent nothing more within 0\.05 s"):
                    ask(backend, streamed=True)
            fake.chats[0].ended()
        assert fake.chats[0].disconnected


# ---- kept connections --------------------------------------------------------------------------------------------


@contextmanager
def closing_kept_connections(answer: bytes, kept: int) -> Iterator[tuple[str, list[int]]]:
    """A server that answers the first request of each connection, and closes it when the second arrives.

    From the connection after the first `kept` on, it answers every request. Yields its address and, for each
    connection, how many requests it got.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    counts: list[int] = []

    def attend(connection: socket.socket, number: int) -> None:
        with connection, suppress(ConnectionError):
            while read_one(connection):
                counts[number] += 1
                if counts[number] > 1 and number < kept:
                    return
                connection.sendall(answer)

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                counts.append(0)
                threading.Thread(target=attend, args=(connection, len(counts) - 1), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1", counts
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def read_one(connection: socket.socket) -> bool:
    """Read one request; False at the end of the connection."""
    raw = b""
    while b"\r\n\r\n" not in raw:
        piece = connection.recv(65536)
        if not piece:
            return False
        raw += piece
    head, _, body = raw.partition(b"\r\n\r\n")
    length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    while len(body) < length:
        body += connection.recv(65536)
    return True


class TestKeptConnections:
    def test_they_are_given_up_before_the_server_closes_them(self) -> None:
        uvicorn_closes_after = 5.0
        assert uvicorn_closes_after - 2 >= KEPT

    def test_one_that_the_server_has_closed_is_replaced_at_once_and_not_counted(self, either: Any) -> None:
        clock, timeouts = Hurried(), attrs.evolve(TIMEOUTS, retries=0)
        with closing_kept_connections(whole("hi"), kept=2) as (url, counts):
            with backend_at(url, clock=clock, timeouts=timeouts) as backend:
                if either is ask:
                    assert [text_of(ask(backend)) for _ in range(4)] == ["hi"] * 4
                else:
                    assert many_on_a_loop(backend, 4) == ["hi"] * 4
        assert counts == [2, 2, 2]
        assert clock.waits == []

    def test_a_new_connection_that_breaks_counts(self, canned: Any, either: Any) -> None:
        clock = Hurried()
        with backend_at(canned(b"", b"", b""), clock=clock, timeouts=TIMEOUTS) as backend:
            with pytest.raises(BackendError, match="broke the connection off"):
                either(backend)
        assert clock.waits == [0.5, 1.0]


def many_on_a_loop(backend: Any, times: int) -> list[str]:
    async def main() -> list[str]:
        generated = []
        for _ in range(times):
            generated.append(text_of([delta async for delta in backend.astream(request_of(), served(backend))]))
        return generated

    return asyncio.run(main())


# ---- whose fault it is -------------------------------------------------------------------------------------------


class TestRefusals:
    @pytest.mark.parametrize(
        ("message", "members", "loc", "msg"),
        [
            ("n must be 1 when using greedy sampling, got 2.", {"param": None}, ("n",), None),
            (
                "temperature must be in [0, 2], got 3.0. (parameter=temperature, value=3.0)",
                {"param": "temperature"},
                ("temperature",),
                None,
            ),
            ("no good. (parameter=top_p, value=7)", {}, ("top_p",), None),
            ("seed: is too large", {"param": "body.seed"}, ("seed",), "is too large"),
            ("1 validation error", {"param": "body"}, (), None),
            ("At most 0 image(s) may be provided in one prompt.", {}, (), None),
            ("whatever it means", {"param": "None"}, (), None),
            ("", {}, (), "the upstream server refused the request without a reason"),
        ],
    )
    def test_a_place_is_named_only_where_one_was_reported(
        self, canned: Any, either: Any, message: str, members: Any, loc: tuple[str, ...], msg: str | None
    ) -> None:
        with backend_at(canned(refused(message, **members))) as backend, pytest.raises(InvalidInput) as wrong:
            either(backend)
        (problem,) = wrong.value.problems
        assert (problem.loc, problem.msg) == (loc, message if msg is None else msg)

    @pytest.mark.parametrize(
        ("message", "members"),
        [
            (
                "{'error': '/chat/completions: Invalid model name passed in model=x. Call `/v1/models`'}",
                {"code": "400"},
            ),
            ("No connected db.", {"type": "no_db_connection", "param": None, "code": "400"}),
            ("echo is not a local folder and is not a valid model identifier listed on the hub", {}),
            ("The model `echo` does not exist.", {"type": "NotFoundError"}),
            ("Authentication Error, Invalid proxy server token passed", {"type": "auth_error"}),
            ("Incorrect API key provided", {"code": "invalid_api_key"}),
            ("something about it", {"param": "model"}),
        ],
    )
    def test_the_models_name_and_the_key_are_the_hosts_affair(
        self, canned: Any, either: Any, message: str, members: Any
    ) -> None:
        with backend_at(canned(refused(message, **members))) as backend:
            with pytest.raises(BackendError, match="what the host has set up for this model"):
                either(backend)

    @pytest.mark.parametrize(
        ("message", "members"),
        [
            (
                "This model's maximum context length is 1024 tokens. However, you requested 16 output tokens and your "
                "prompt contains at least 1025 input tokens, for a total of at least 1041 tokens.",
                {"param": "input_tokens", "code": 400},
            ),
            (
                "litellm.ContextWindowExceededError: litellm.BadRequestError: ContextWindowExceededError: "
                "OpenAIException - This model's maximum context length is 1024 tokens.",
                {"type": None, "param": None, "code": "400"},
            ),
            (
                "request (1025 tokens) exceeds the available context size (1024 tokens), try increasing it",
                {"type": "exceed_context_size_error", "code": 400, "n_prompt_tokens": 1025, "n_ctx": 1024},
            ),
            ("too long for me", {"type": "exceed_context_size_error", "code": 400}),
            ("The input (1025 tokens) is longer than the model's context length (1024 tokens).", {}),
            ("too long", {"code": "context_length_exceeded"}),
        ],
    )
    @pytest.mark.parametrize("streamed", [True, False])
    def test_a_prompt_that_is_too_long_is_recognised_in_every_servers_words(
        self, canned: Any, either: Any, message: str, members: Any, streamed: bool
    ) -> None:
        answer = refused(message, **members)
        if streamed and "code" in members:
            answer = events({"error": {"message": message, "code": 400, **members}}, "[DONE]")
        with backend_at(canned(answer)) as backend, pytest.raises(ContextLengthExceeded) as wrong:
            either(backend, streamed=streamed)
        assert wrong.value.problems[0].loc == ("messages",)


# ---- what was promised and does not come -------------------------------------------------------------------------


class TestWhatWasPromised:
    @pytest.mark.parametrize("streamed", [True, False])
    @pytest.mark.parametrize(
        ("request_", "named"),
        [
            ({"return_token_ids": True}, "token_ids"),
            ({"logprobs": True}, "logprobs"),
            ({"logprobs": True, "return_token_ids": True}, "logprobs and token_ids"),
        ],
    )
    def test_ids_and_logprobs_that_do_not_come_are_an_error_before_the_first_token(
        self, canned: Any, either: Any, streamed: bool, request_: Any, named: str
    ) -> None:
        answer = events(chunk("hi"), chunk("", "stop"), "[DONE]") if streamed else whole("hi")
        with backend_at(canned(answer)) as backend:
            with pytest.raises(BackendError, match=f"did not send the {named} that were requested"):
                either(backend, streamed=streamed, **request_)

    def test_nothing_is_missed_where_nothing_was_produced(self, canned: Any) -> None:
        with backend_at(canned(whole("", usage=0))) as backend:
            assert text_of(ask(backend, logprobs=True, return_token_ids=True)) == ""

    @pytest.mark.parametrize("streamed", [True, False])
    def test_litellm_puts_the_ids_of_a_vllm_elsewhere(self, canned: Any, either: Any, streamed: bool) -> None:
        ids = {"provider_specific_fields": {"token_ids": [104, 105]}}
        answer = events(chunk("hi", "stop", **ids), "[DONE]") if streamed else whole("hi", **ids)
        with backend_at(canned(answer)) as backend:
            deltas: list[Delta] = either(backend, streamed=streamed, return_token_ids=True)
        assert [token for delta in deltas for token in delta.token_ids] == [104, 105]

    def test_alternatives_come_with_the_likeliest_first(self, canned: Any) -> None:
        tops = [{"token": token, "logprob": logprob} for token, logprob in (("c", -7.0), ("a", -0.1), ("b", -3.0))]
        entry = {"token": "c", "logprob": -7.0, "top_logprobs": tops}
        with backend_at(canned(whole("c", logprobs={"content": [entry]}))) as backend:
            (delta,) = ask(backend, logprobs=True, top_logprobs=3)
        assert [other.token for other in delta.logprobs[0].top] == ["a", "b", "c"]


class TestUsage:
    """llama.cpp counts one choice of three."""

    @pytest.mark.parametrize(
        "shown",
        [
            whole("abc", usage=1, logprobs=logprobs("a", "b", "c")),
            whole("abc", usage=1, token_ids=[1, 2, 3]),
        ],
        ids=["logprobs", "token ids"],
    )
    def test_tokens_that_were_shown_are_booked_and_marked_as_estimated(self, canned: Any, shown: bytes) -> None:
        with backend_at(canned(shown)) as backend:
            usage = ask(backend, streamed=b"event-stream" in shown)[-1].usage
        assert usage is not None
        assert (usage.prompt_tokens, usage.completion_tokens, usage.estimated) == (3, 3, True)

    def test_a_count_that_is_higher_than_what_was_shown_stands(self, canned: Any) -> None:
        with backend_at(canned(whole("abc", usage=9, token_ids=[1, 2, 3]))) as backend:
            usage = ask(backend)[-1].usage
        assert usage is not None
        assert (usage.completion_tokens, usage.estimated) == (9, False)

    def test_a_string_alone_shows_no_tokens(self, canned: Any) -> None:
        body = {"choices": [{"index": at, "message": {"content": "x" * 99}, "finish_reason": "stop"} for at in (0, 1)]}
        body["usage"] = {"prompt_tokens": 3, "completion_tokens": 4}  # type: ignore[assignment]
        with backend_at(canned(http(json.dumps(body).encode()))) as backend:
            usage = ask(backend, n=2)[-1].usage
        assert usage is not None
        assert (usage.completion_tokens, usage.estimated) == (4, False)


class TestGreedyChoices:
    """vLLM refuses several choices of greedy sampling, which are equal."""

    @pytest.mark.parametrize("streamed", [True, False])
    def test_one_answer_is_requested_and_given_for_each_choice(self, either: Any, streamed: bool) -> None:
        fake = FakeVllm()
        with fake.serve() as url, backend_at(f"{url}/v1") as backend:
            deltas = either(backend, n=3, streamed=streamed, sampling=Sampling(temperature=0.0), logprobs=True)
        assert "n" not in fake.chats[0].body
        texts = [text_of([delta for delta in deltas if delta.index == index]) for index in range(3)]
        assert texts == ["one two three four"] * 3
        (usage,) = [delta.usage for delta in deltas if delta.usage]
        assert (deltas[-1].usage, usage.prompt_tokens, usage.completion_tokens) == (usage, 4, 12)

    def test_others_are_requested_together(self) -> None:
        fake = FakeVllm()
        with fake.serve() as url, backend_at(f"{url}/v1") as backend:
            ask(backend, n=3)
        assert fake.chats[0].body["n"] == 3


class TestForcedCalls:
    """vLLM keeps the arguments of a forced call to their schema only if the tool is `strict`."""

    TOOL = Tool("look", "", {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})

    def test_a_tool_that_must_be_called_is_strict_for_a_vllm(self) -> None:
        fake = FakeVllm()
        with fake.serve() as url, backend_at(f"{url}/v1") as backend:
            deltas = ask(backend, tools=(self.TOOL,), tool_choice=ToolChoice(ToolMode.REQUIRED))
            ask(backend, tools=(self.TOOL,))
        (call,) = [delta.tool_call for delta in deltas if delta.tool_call]
        assert json.loads(call.arguments) == {"a": 0}
        strict = [chat.body["tools"][0]["function"].get("strict") for chat in fake.chats]
        assert strict == [True, None]

    def test_other_servers_get_what_the_caller_sent(self) -> None:
        fake, can = FakeVllm(), attrs.evolve(VLLM, guided=frozenset())
        offered = offer("echo", context_length=1000, pricing=FREE, capabilities=can)
        with fake.serve() as url, backend_at(f"{url}/v1", models=[offered]) as backend:
            ask(backend, tools=(self.TOOL,), tool_choice=ToolChoice(ToolMode.REQUIRED))
        assert "strict" not in fake.chats[0].body["tools"][0]["function"]


class TestMaskedLogprobs:
    """vLLM reports log-probabilities under a grammar after its mask, so that nothing can be trained on them."""

    @pytest.fixture
    def platform(self) -> Iterator[Platform]:
        with FakeVllm().serve() as url, backend_at(f"{url}/v1") as backend, open_platform(backend=backend) as platform:
            yield platform

    def test_a_rollout_has_none_so_that_the_answer_is_context(self, platform: Platform) -> None:
        rollout = Rollout(platform.chat, model="echo")
        assert rollout.ask("hello").logprobs
        assert rollout.ask("hello", response_format={"type": "json_object"}).logprobs is None
        assert rollout.ask("hello").logprobs

    def test_a_rollout_that_requests_them_is_refused_by_name(self, platform: Platform) -> None:
        rollout = Rollout(platform.chat, model="echo", logprobs=True)
        with pytest.raises(UnsupportedParameter, match="logprobs: are not the model's own under a form"):
            rollout.ask("hello", response_format={"type": "json_object"})

    def test_a_chat_that_requests_them_gets_them(self, platform: Platform) -> None:
        (choice,) = platform.chat.complete(
            model="echo", messages="hello", response_format={"type": "json_object"}, logprobs=True
        ).choices
        assert choice.logprobs
