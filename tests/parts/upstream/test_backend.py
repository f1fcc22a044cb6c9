"""A server as a backend: what it answers, when it fails, who waits, and what is given up."""

import asyncio
import gc
import logging
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import attrs
import pytest

from each import each_case
from modelyard import Fallback, Router, open_platform
from modelyard.backends import VLLM, Timeouts, UpstreamBackend, offer
from modelyard.backends.deltas import aone_by_one, one_by_one
from modelyard.backends.echo import EchoBackend
from modelyard.domain.completion import Sampling
from modelyard.engines.tabular.backend import TabularBackend
from modelyard.errors import BackendError, ContextLengthExceeded, InvalidInput, ModelNotFound, Overloaded
from modelyard.parts.contracts.backend import BackendContract
from modelyard.parts.doubles.clients.server import asgi_server
from modelyard.parts.upstream.fake_vllm.misbehaviour import Break, CutConnection, Garble, Gate, Hold, Refuse
from modelyard.parts.upstream.fake_vllm.server import FakeVllm
from modelyard.testing.clock import ManualClock
from polling import until
from upstream_asking import (
    FREE,
    SECRET,
    TIMEOUTS,
    Hurried,
    ask,
    ask_on_loop,
    backend_at,
    http,
    passing,
    request_of,
    served,
    text_of,
)


@attrs.frozen
class Far:
    """A server, and a backend that asks it."""

    fake: FakeVllm
    backend: UpstreamBackend
    clock: ManualClock


@pytest.fixture(scope="module")
def fakes() -> Iterator[tuple[FakeVllm, str]]:
    fake = FakeVllm(EchoBackend(), api_key=SECRET)
    with fake.serve() as url:
        yield fake, f"{url}/v1"


@pytest.fixture
def far(fakes: tuple[FakeVllm, str]) -> Iterator[Far]:
    fake, url = fakes
    fake.requests.clear()
    clock = Hurried()
    with backend_at(url, clock=clock, timeouts=TIMEOUTS) as backend:
        yield Far(fake, backend, clock)


# ---- the contract --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sampling() -> Iterator[str]:
    """Where a server with a model that really samples answers."""
    with FakeVllm(TabularBackend()).serve() as url:
        yield f"{url}/v1"


class TestVllmAsItsOwn(BackendContract):
    """A double of a vLLM server with a model that really samples."""

    @pytest.fixture
    def backend(self, sampling: str) -> Iterator[UpstreamBackend]:
        can = attrs.evolve(VLLM, forced_tools=False, json_mode=False, structured_outputs=False)
        offered = offer("tabular-mini", context_length=8192, pricing=FREE, capabilities=can)
        with UpstreamBackend(sampling, models=[offered]) as backend:
            yield backend


# ---- what is sent and what comes back ------------------------------------------------------------------------------


class TestAnswers:
    def test_an_answer_comes_whole_or_token_by_token(self, far: Far, either: Any) -> None:
        assert [delta.text for delta in either(far.backend)] == ["one two three four"]
        streamed = either(far.backend, streamed=True)
        assert [delta.text for delta in streamed] == ["one", " two", " three", " four", ""]
        assert streamed[-1].usage == either(far.backend)[-1].usage

    def test_the_key_goes_to_the_server_and_nowhere_else(self, far: Far, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.DEBUG):
            ask(far.backend)
            assert far.fake.chats[-1].headers["authorization"] == f"Bearer {SECRET}"
            far.fake.plan(Refuse(500, f"I was given {SECRET}"))
            ask(far.backend, streamed=True)
            far.fake.plan(Refuse(400, f"I was given {SECRET}"))
            with pytest.raises(InvalidInput) as refused:
                ask(far.backend)
        everything = f"{far.backend!r} {vars(far.backend)!r} {refused.value} {refused.value.__cause__!r} {caplog.text}"
        assert SECRET not in everything

    def test_a_model_may_have_another_name_there(self, fakes: tuple[FakeVllm, str]) -> None:
        named = offer("shop/echo", context_length=1000, pricing=FREE, served_as="echo")
        with backend_at(fakes[1], models=[named]) as backend:
            assert text_of(ask(backend, model="shop/echo")) == "one two three four"
        assert fakes[0].chats[-1].body["model"] == "echo"

    def test_a_limit_that_is_the_models_own_is_left_to_the_server(self, far: Far) -> None:
        ask(far.backend, max_tokens=1000)
        ask(far.backend, max_tokens=999)
        assert [requested.body.get("max_tokens") for requested in far.fake.chats] == [None, 999]

    def test_a_server_that_does_not_stream_answers_in_one_piece(self, canned: Any, either: Any) -> None:
        body = b'{"choices":[{"index":0,"message":{"content":"all at once"},"finish_reason":"stop"}]}'
        with backend_at(canned(http(body))) as backend:
            assert text_of(either(backend, streamed=True)) == "all at once"

    @pytest.mark.parametrize("streamed", [True, False])
    def test_the_stop_string_that_the_server_names_ended_the_answer(
        self, far: Far, either: Any, streamed: bool
    ) -> None:
        deltas = either(far.backend, streamed=streamed, stop=("four", "three", "END"))
        assert text_of(deltas) == "one two "
        assert [delta.stop_string for delta in deltas if delta.finish_reason] == ["three"]

    @pytest.mark.parametrize("named", ['"other"', "7", '["END"]', "null", '{"END":1}'])
    def test_what_else_a_server_names_is_no_stop_string(self, canned: Any, either: Any, named: str) -> None:
        ended = f'{{"choices":[{{"message":{{"content":"hi"}},"finish_reason":"stop","stop_reason":{named}}}]}}'
        with backend_at(canned(http(ended.encode()))) as backend:
            assert either(backend, stop=("END",))[-1].stop_string is None

    def test_usage_that_the_server_does_not_report_is_estimated(self, canned: Any, either: Any) -> None:
        body = b'data: {"choices":[{"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
        with backend_at(canned(http(body, "text/event-stream"))) as backend:
            usage = either(backend, streamed=True)[-1].usage
        assert (usage.completion_tokens, usage.estimated) == (1, True)

    def test_a_platform_books_an_estimate_as_one(self, canned: Any) -> None:
        body = b'{"choices":[{"message":{"content":"hi"},"finish_reason":"stop"}]}'
        with backend_at(canned(http(body))) as backend, open_platform(backend=backend) as platform:
            platform.chat.complete(model="echo", messages="x")
            (booked,) = platform.usage.list().page().items
        assert booked.estimated

    def test_connections_are_used_again(self) -> None:
        with counted() as (url, seen), backend_at(url) as backend:
            for streamed in (True, False, True):
                ask(backend, streamed=streamed)
        assert len(seen) == 1

    def test_connections_are_used_again_on_a_loop(self) -> None:
        async def main(backend: UpstreamBackend) -> None:
            for streamed in (True, False, True):
                requested = request_of(streamed=streamed)
                assert [delta async for delta in backend.astream(requested, served(backend))]

        with counted() as (url, seen), backend_at(url) as backend:
            asyncio.run(main(backend))
        assert len(seen) == 1


@contextmanager
def counted() -> Iterator[tuple[str, set[Any]]]:
    """A server, and the connections that it was asked by."""
    fake, seen = FakeVllm(), set()

    async def counting(scope: Any, receive: Any, send: Any) -> None:
        seen.add(tuple(scope["client"]))
        await fake(scope, receive, send)

    with asgi_server(counting, lifespan="off") as server:
        yield f"{server.url}/v1", seen


# ---- refusals ------------------------------------------------------------------------------------------------------


class TestRefusals:
    def test_an_error_of_the_caller_is_reported_with_its_place(self, far: Far, either: Any) -> None:
        with pytest.raises(InvalidInput) as refused:
            either(far.backend, sampling=Sampling(temperature=9))
        (problem,) = refused.value.problems
        assert (problem.loc, problem.msg) == (
            ("temperature",),
            "temperature must be in [0, 2], got 9.0. (parameter=temperature, value=9.0)",
        )
        assert len(far.fake.chats) == 1

    def test_a_prompt_that_is_too_long_is_reported_as_such(self, far: Far) -> None:
        far.fake.plan(Refuse(400, "This model's maximum context length is 10 tokens. However, ..."))
        with pytest.raises(ContextLengthExceeded, match="This model's maximum context length is 10 tokens"):
            ask(far.backend)

    @pytest.mark.parametrize("status", [401, 403])
    def test_a_key_that_is_refused_is_the_hosts_affair(self, far: Far, either: Any, status: int) -> None:
        far.fake.plan(Refuse(status, f"bad key {SECRET}"))
        with pytest.raises(BackendError, match=rf"refuses this host's key \({status}\)") as refused:
            either(far.backend)
        assert SECRET not in str(refused.value)
        assert len(far.fake.chats) == 1

    def test_a_model_that_the_server_has_not_is_a_fault_of_the_backend(self, far: Far, either: Any) -> None:
        far.fake.plan(Refuse(404, "The model `echo` does not exist."))
        with pytest.raises(BackendError, match=r"does not know this model.*The model `echo` does not exist"):
            either(far.backend)

    def test_an_error_in_the_place_of_an_answer_is_one(self, canned: Any, either: Any) -> None:
        body = b'{"error": {"message": "too hot", "code": 400, "param": "temperature"}}'
        with backend_at(canned(http(body))) as backend, pytest.raises(InvalidInput, match="temperature: too hot"):
            either(backend)

    @pytest.mark.parametrize(
        ("body", "says"),
        [
            (b'{"object": "error", "message": "old\\nwords"}', "status 501: old words"),
            (b'{"detail": "Not here"}', "status 501: Not here"),
            (b'{"error": "plain"}', "status 501: plain"),
            (b"<html>" + b"x" * 9999, "status 501: <html>x{494}$"),
            (b"", "status 501$"),
            (b"\xff\x00", "status 501: �$"),
        ],
    )
    def test_the_message_of_the_server_is_shown_in_any_format(self, canned: Any, body: bytes, says: str) -> None:
        with backend_at(canned(http(body, status="501 No"))) as backend, pytest.raises(BackendError, match=says):
            ask(backend)


# ---- trying again --------------------------------------------------------------------------------------------------


class TestTryingAgain:
    @pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
    def test_what_may_pass_is_tried_again(self, far: Far, either: Any, status: int) -> None:
        far.fake.plan(Refuse(status), Refuse(status))
        before = far.backend.retries
        assert text_of(either(far.backend)) == "one two three four"
        assert far.clock.waits == [0.5, 1.0]
        assert Router([Fallback([far.backend, far.backend])]).retries - before == 2

    def test_jitter_lengthens_a_pause_up_to_twice(self, fakes: tuple[FakeVllm, str]) -> None:
        fakes[0].plan(Refuse(503), Refuse(503))
        clock = Hurried()
        with backend_at(fakes[1], clock=clock, timeouts=TIMEOUTS, jitter=lambda: 1.0) as backend:
            ask(backend)
        assert clock.waits == [1.0, 2.0]

    def test_the_server_may_say_how_long_to_wait(self, far: Far, either: Any) -> None:
        far.fake.plan(Refuse(429, retry_after=7), Refuse(503, retry_after="Thu, 01 Jan 2026 00:00:19 GMT"))
        assert text_of(either(far.backend)) == "one two three four"
        assert far.clock.waits == [7.0, 12.0]

    def test_only_so_often(self, far: Far, either: Any) -> None:
        far.fake.plan(*[Refuse(503, "no room", retry_after=2)] * 3)
        with pytest.raises(Overloaded, match=r"no room now \(503\): no room") as busy:
            either(far.backend)
        assert busy.value.retry_after == 2
        assert len(far.fake.chats) == 3

    def test_never_beyond_the_deadline(self, far: Far, either: Any) -> None:
        far.fake.plan(Refuse(429, retry_after=31))
        with pytest.raises(Overloaded) as busy:
            either(far.backend)
        assert (busy.value.retry_after, far.clock.waits) == (31, [])

    def test_a_connection_that_breaks_before_the_first_token(self, far: Far, either: Any) -> None:
        far.fake.plan(CutConnection(), CutConnection(after=0))
        assert text_of(either(far.backend, streamed=True)) == "one two three four"

    def test_an_unreachable_server_is_an_error(self, canned: Any, either: Any) -> None:
        clock = Hurried()
        with backend_at(canned(), clock=clock, timeouts=TIMEOUTS) as backend:
            with pytest.raises(BackendError, match="cannot be reached"):
                either(backend)
        assert clock.waits == [0.5, 1.0]

    def test_nothing_is_retried_after_the_first_token(self, far: Far, either: Any) -> None:
        for breaking, says in (
            (CutConnection(after=3), "broke the connection off"),
            (Break(after=3), "status 500: EngineCore"),
        ):
            far.fake.requests.clear()
            far.fake.plan(breaking)
            with pytest.raises(BackendError, match=says):
                either(far.backend, streamed=True)
            assert len(far.fake.chats) == 1


# ---- nonsense ------------------------------------------------------------------------------------------------------


class TestNonsense:
    def test_a_chunk_that_is_not_json(self, far: Far, either: Any) -> None:
        far.fake.plan(Garble(after=2))
        with pytest.raises(BackendError, match="malformed: answer: is not valid JSON"):
            either(far.backend, streamed=True)

    @pytest.mark.parametrize(
        "body",
        [b"", b"{", b"[]", b'{"choices": []}', b'{"a": NaN}', b"[" * 10_000, b'"\\ud800"', b"\xff"],
        ids=repr,
    )
    def test_an_answer_that_is_none(self, canned: Any, either: Any, body: bytes) -> None:
        for streamed in (True, False):
            generated = http(b"data: " + body + b"\n\n", "text/event-stream") if streamed else http(body)
            with backend_at(canned(generated)) as backend, pytest.raises(BackendError, match="malformed"):
                either(backend, streamed=streamed)

    def test_a_stream_that_ends_in_the_midst(self, canned: Any, either: Any) -> None:
        body = b'data: {"choices":[{"delta":{"content":"hi"}}]}\n\ndata: [DONE]\n\n'
        with backend_at(canned(http(body, "text/event-stream"))) as backend:
            with pytest.raises(BackendError, match="not complete"):
                either(backend, streamed=True)

    def test_a_stream_that_is_complete_needs_no_last_word(self, canned: Any, either: Any) -> None:
        body = b'data: {"choices":[{"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\n'
        with backend_at(canned(http(body, "text/event-stream"))) as backend:
            assert text_of(either(backend, streamed=True)) == "hi"

    def test_a_connection_that_breaks_after_the_last_token_is_not_an_error(self, canned: Any, either: Any) -> None:
        body = b'data: {"choices":[{"delta":{"content":"hi"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
        broken = http(body, "text/event-stream").replace(b"length: ", b"length: 9")
        with backend_at(canned(broken)) as backend:
            assert text_of(either(backend, streamed=True)) == "hi"

    @pytest.mark.parametrize("content_type", ["application/json", "text/event-stream"])
    def test_an_answer_without_end(
        self, canned: Any, either: Any, content_type: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("modelyard.parts.upstream.exchange.MAX_ANSWER", 2**20)
        monkeypatch.setattr("modelyard.parts.upstream.events.EventReader.__init__.__defaults__", (2**20,))
        with backend_at(canned(http(b"x" * 2**22, content_type))) as backend:
            with pytest.raises(BackendError, match=r"longer than|more than"):
                either(backend, streamed=True)

    def test_a_head_that_is_not_http(self, canned: Any, either: Any) -> None:
        with backend_at(canned(*[b"SSH-2.0-OpenSSH\r\n"] * 3), clock=Hurried(), timeouts=TIMEOUTS) as backend:
            with pytest.raises(BackendError, match="is not HTTP"):
                either(backend)


# ---- time ----------------------------------------------------------------------------------------------------------


class TestTime:
    @pytest.mark.parametrize(
        ("after", "says"),
        [
            (None, "gave no first token within 30 s"),
            (0, "gave no first token within 30 s"),
            (3, "sent nothing more within 10 s"),
        ],
    )
    def test_a_server_that_falls_silent_is_given_up(
        self, fakes: tuple[FakeVllm, str], after: int | None, says: str
    ) -> None:
        fake, url = fakes
        gate, clock = Gate(), ManualClock()
        fake.plan(Hold(gate, after))
        timeouts = Timeouts(first_token=1e9 if after else 30, between_tokens=10)
        with backend_at(url, clock=clock, timeouts=timeouts) as backend:
            with passing(clock, gate), pytest.raises(BackendError, match=says):
                ask_on_loop(backend, streamed=True)
        fake.chats[-1].ended()
        assert fake.chats[-1].disconnected

    def test_a_blocking_call_gives_up_too(self, fakes: tuple[FakeVllm, str]) -> None:
        gate = Gate()
        fakes[0].plan(Hold(gate))
        with backend_at(fakes[1], timeouts=Timeouts(first_token=0.05, between_tokens=0.05)) as backend:
            with pytest.raises(BackendError, match=r"gave no first token within 0\.05 s"):
                ask(backend)

    def test_a_slow_reader_does_not_time_the_server_out(
        self, fakes: tuple[FakeVllm, str], caplog: pytest.LogCaptureFixture
    ) -> None:
        clock = ManualClock()

        async def main(backend: UpstreamBackend) -> str:
            generated = ""
            async for delta in aone_by_one(backend.astream(request_of(streamed=True), served(backend))):
                await clock.aadvance(100)
                for _ in range(50):
                    await asyncio.sleep(0)  # a turn for a caller that would give the server up now
                generated += delta.text
            return generated

        gc.freeze()  # the collection below looks at what this test leaves
        with backend_at(fakes[1], clock=clock, timeouts=Timeouts(first_token=30, between_tokens=10)) as backend:
            assert asyncio.run(main(backend)) == "one two three four"
        gc.collect()
        assert not caplog.records

    def test_comments_do_not_extend_a_time_limit_for_ever(self, canned: Any) -> None:
        class Ticking(ManualClock):
            def monotonic(self) -> float:
                self.advance(1)
                return super().monotonic()

        endless = http(b": still here\n\n" * 50_000, "text/event-stream")
        with backend_at(canned(endless), clock=Ticking(), timeouts=Timeouts(first_token=5)) as backend:
            with pytest.raises(BackendError, match="gave no first token within 5 s"):
                ask(backend, streamed=True)


# ---- how many at once ----------------------------------------------------------------------------------------------


class TestManyAtOnce:
    def test_one_more_waits_for_its_turn_and_one_more_than_that_is_sent_away(self, fakes: tuple[FakeVllm, str]) -> None:
        fake, url = fakes
        gate = Gate()
        fake.plan(Hold(gate))
        before = len(fake.chats)
        with backend_at(url, concurrency=1, queue=1) as backend, ThreadPoolExecutor(2) as threads:
            first = threads.submit(ask, backend)
            gate.reached()
            second = threads.submit(ask_on_loop, backend)
            until(lambda: backend._state.limiter._waiting)
            with pytest.raises(Overloaded, match="gets 1 requests at once and 1 more wait"):
                ask(backend)
            with pytest.raises(Overloaded):
                ask_on_loop(backend)
            assert len(fake.chats) == before + 1
            gate.open()
            assert text_of(first.result()) == text_of(second.result()) == "one two three four"
            assert text_of(ask(backend)) == "one two three four"

    def test_who_waits_too_long_is_sent_away_and_takes_nobodys_turn(
        self, fakes: tuple[FakeVllm, str], either: Any
    ) -> None:
        fake, url = fakes
        gate = Gate()
        fake.plan(Hold(gate))
        with backend_at(url, concurrency=1, clock=Hurried(), timeouts=TIMEOUTS) as backend:
            with ThreadPoolExecutor(1) as threads:
                first = threads.submit(ask, backend)
                gate.reached()
                with pytest.raises(Overloaded, match="no room within 30 s"):
                    either(backend)
                gate.open()
                first.result()
            assert text_of(either(backend)) == "one two three four"

    def test_a_failed_request_gives_its_place_back(self, far: Far, either: Any) -> None:
        with backend_at(far.backend._address.url, concurrency=1, queue=0) as backend:
            for _ in range(3):
                far.fake.plan(Refuse(400, "no"))
                with pytest.raises(InvalidInput):
                    either(backend)
            assert either(backend)


# ---- giving up -----------------------------------------------------------------------------------------------------


class TestGivingUp:
    @pytest.mark.parametrize("taken", [1, 3])
    def test_a_stream_that_is_closed_is_closed_there(self, far: Far, taken: int) -> None:
        gate = Gate()
        far.fake.plan(Hold(gate, taken + 1))
        deltas = one_by_one(far.backend.stream(request_of(streamed=True), served(far.backend)))
        assert len([next(deltas) for _ in range(taken)]) == taken
        deltas.close()
        far.fake.chats[-1].ended()
        assert far.fake.chats[-1].disconnected
        assert next(deltas, None) is None

    @pytest.mark.parametrize("streamed", [True, False])
    def test_a_task_that_is_cancelled_stops_the_work_there(self, far: Far, streamed: bool) -> None:
        gate = Gate()
        far.fake.plan(Hold(gate, 2))

        async def main() -> None:
            with open_platform(backend=far.backend) as platform:
                asking = platform.chat.acomplete if not streamed else _drained(platform)
                task = asyncio.create_task(asking(model="echo", messages="a b c d"))
                await asyncio.to_thread(gate.reached)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task

        asyncio.run(main())
        far.fake.chats[-1].ended()
        assert far.fake.chats[-1].disconnected

    def test_an_event_loop_needs_no_thread_of_the_platform(self, far: Far) -> None:
        async def main() -> set[str]:
            with open_platform(backend=far.backend) as platform:
                before = set(threading.enumerate())
                await platform.chat.acomplete(model="echo", messages="a b")
                return {thread.name for thread in set(threading.enumerate()) - before}

        assert asyncio.run(main()) == set()

    def test_a_token_is_passed_on_before_the_next_is_made(self, far: Far) -> None:
        gate = Gate()
        far.fake.plan(Hold(gate, 2))
        deltas = one_by_one(far.backend.stream(request_of(streamed=True), served(far.backend)))
        assert next(deltas).text == "one"
        gate.reached()
        gate.open()
        assert text_of(list(deltas)) == " two three four"


def _drained(platform: Any) -> Any:
    async def drain(**options: Any) -> None:
        async with platform.chat.astream(**options) as deltas:
            async for _ in deltas:
                pass

    return drain


# ---- its life ------------------------------------------------------------------------------------------------------


class TestLife:
    def test_nothing_is_connected_before_the_first_request(self) -> None:
        with backend_at("http://127.0.0.1:9/v1") as backend:
            assert backend.prompt_tokens(request_of(), served(backend)) is None
            assert backend.capabilities("echo") is VLLM

    def test_proxies_of_the_environment_are_not_used(
        self, far: Far, either: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
        monkeypatch.delenv("NO_PROXY", raising=False)
        assert text_of(either(far.backend)) == "one two three four"

    def test_a_closed_backend_raises_that_it_is_closed(self, far: Far, either: Any) -> None:
        far.backend.close()
        far.backend.close()
        with pytest.raises(BackendError, match="is closed"):
            either(far.backend)

    def test_event_loops_come_and_go(self, far: Far) -> None:
        gc.freeze()  # the collection below looks at what this test leaves
        for _ in range(3):
            assert text_of(ask_on_loop(far.backend)) == "one two three four"
        gc.collect()
        assert not far.backend._state.clients._on_loops

    def test_two_loops_at_once_share_nothing(self, fakes: tuple[FakeVllm, str]) -> None:
        with backend_at(fakes[1]) as backend, ThreadPoolExecutor(4) as threads:
            answers = list(threads.map(lambda _: text_of(ask_on_loop(backend, streamed=True)), range(12)))
        assert set(answers) == {"one two three four"}

    def test_it_closes_with_an_asynchronous_block(self, far: Far) -> None:
        async def main() -> None:
            async with far.backend as backend:
                assert [delta async for delta in backend.astream(request_of(), served(backend))]
            assert not backend._state.clients._on_loops

        asyncio.run(main())

    def test_a_forked_process_opens_its_own_connections(self) -> None:
        with counted() as (url, seen), backend_at(url) as backend:
            assert ask(backend)
            child = os.fork()
            if child == 0:
                generated = ""
                try:
                    generated = text_of(ask(backend))
                finally:
                    os._exit(0 if generated == "one two three four" else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            assert ask(backend)
        assert len(seen) == 2

    @each_case(
        "url",
        ["", "localhost:8000", "ftp://x/v1", f"http://me:{SECRET}@x/v1", f"http://x/v1?key={SECRET}", "http://[x"],
    )
    def test_an_address_that_is_none_is_refused_without_repeating_it(self, url: str) -> None:
        with pytest.raises(InvalidInput, match="url: must be like http://host:8000/v1") as refused:
            backend_at(url)
        assert SECRET not in str(refused.value)

    @each_case("key", ["", "a b", "secret\n", "schlüssel"])
    def test_a_key_that_is_none_is_refused_without_repeating_it(self, key: str) -> None:
        with pytest.raises(InvalidInput, match="api_key: must be visible ASCII") as refused:
            backend_at("http://x/v1", api_key=key)
        assert not key or key.strip() not in str(refused.value)

    def test_models_must_be_there_once_each(self) -> None:
        one = offer("m", context_length=10, pricing=FREE)
        unoffered: Any = (["m"], r'models.0: must be of `offer`, such as offer\("m"')
        for models, says in (
            ([], "at least one"),
            unoffered,
            ([one, attrs.evolve(one)], "'m' is given twice"),
        ):
            with pytest.raises(InvalidInput, match=says):
                UpstreamBackend("http://x/v1", models=models)
        with pytest.raises(InvalidInput, match="context_length"):
            UpstreamBackend("http://x/v1", models=[offer("m", context_length=0, pricing=FREE)])

    def test_a_model_that_is_not_offered_is_not_found(self, far: Far) -> None:
        with pytest.raises(ModelNotFound):
            far.backend.capabilities("nobody")

    @pytest.mark.parametrize("wrong", [{"connect": 0}, {"first_token": float("inf")}, {"retries": -1}])
    def test_patience_has_bounds(self, wrong: dict[str, float]) -> None:
        with pytest.raises(InvalidInput, match=next(iter(wrong))):
            Timeouts(**wrong)  # type: ignore[arg-type]
