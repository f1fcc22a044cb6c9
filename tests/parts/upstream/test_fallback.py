"""Several backends for one model: the next one is tried if one fails before its first delta."""

import asyncio
import json
import logging
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends import AsynchronousFace, Failing, OnLoops
from canned_answers import answering
from modelyard import Platform, Pricing, open_platform
from modelyard.backends import VLLM, Timeouts, UpstreamBackend, offer
from modelyard.backends.echo import EchoBackend
from modelyard.backends.router import Router
from modelyard.domain.completion import CompletionRequest, Delta, FinishReason, Message, Role, Usage
from modelyard.engines.tabular.backend import TabularBackend
from modelyard.errors import BackendError, InvalidInput, ModelNotFound, Overloaded
from modelyard.parts.contracts.backend import BackendContract
from modelyard.parts.scripted.backend import ScriptedBackend
from modelyard.parts.upstream.fallback import Fallback
from modelyard.protocols import Capabilities, ServedModel
from upstream_asking import http

REQUEST = CompletionRequest("echo", (Message(Role.USER, "hi there"),), max_tokens=10, streamed=True)


def served(backend: Any, model: str = "echo") -> ServedModel:
    return ServedModel(model, next(entry for entry in backend.entries() if entry.id == model))


def ask(backend: Any) -> str:
    return generated(backend.stream(REQUEST, served(backend)))


def ask_on_loop(backend: Any) -> str:
    async def main() -> str:
        return generated([delta async for delta in backend.astream(REQUEST, served(backend))])

    return asyncio.run(main())


def generated(deltas: Iterable[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


@pytest.fixture(params=[ask, ask_on_loop], ids=["blocking", "on a loop"])
def either(request: pytest.FixtureRequest) -> Any:
    return request.param


class TestFallback(BackendContract):
    @pytest.fixture
    def backend(self) -> Fallback:
        return Fallback([Failing(BackendError("down")), EchoBackend()])


class TestFallbackOnLoops(BackendContract):
    @pytest.fixture
    def backend(self) -> AsynchronousFace:
        down = OnLoops(Failing(BackendError("down")))
        return AsynchronousFace(Fallback([down, TabularBackend(), EchoBackend()]))

    @pytest.fixture(params=["echo", "tabular-mini"])
    def model(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize("error", [BackendError("down"), Overloaded("full", 3)])
def test_the_next_backend_is_tried_and_the_log_says_it(
    either: Any, error: BackendError, blocking: bool, caplog: pytest.LogCaptureFixture
) -> None:
    first, third = Failing(error, blocking=blocking), Failing(error)
    with caplog.at_level(logging.WARNING):
        assert either(Fallback([first, EchoBackend(), third])) == "hi there"
    assert (first.requested, first.closed, third.requested) == (1, 1, 0)
    assert f"trying the next one: {error}" in caplog.text


def test_the_failure_of_the_last_backend_is_raised(either: Any) -> None:
    with pytest.raises(Overloaded, match="full"):
        either(Fallback([Failing(BackendError("down")), Failing(Overloaded("full"))]))


def test_no_other_backend_is_tried_after_the_first_token(either: Any) -> None:
    second = Failing(BackendError("never"))
    with pytest.raises(BackendError, match="down"):
        either(Fallback([Failing(BackendError("down"), after=1), second]))
    assert second.requested == 0


def test_an_error_of_the_caller_is_not_sent_to_another_backend(either: Any) -> None:
    second = Failing(BackendError("never"))
    with pytest.raises(InvalidInput):
        either(Fallback([Failing(InvalidInput.at("stop", msg="is odd")), second]))
    assert second.requested == 0


def test_closing_closes_the_one_that_answers() -> None:
    answering = Failing(BackendError("late"), after=9)
    backend = Fallback([Failing(BackendError("down")), answering, EchoBackend()])
    deltas: Any = backend.stream(REQUEST, served(backend))
    next(deltas)
    deltas.close()
    assert answering.closed == 1


@pytest.mark.parametrize("blocking", [False, True])
def test_closing_on_a_loop_closes_the_one_that_answers(blocking: bool) -> None:
    answering = Failing(BackendError("late"), after=9, blocking=blocking)
    on_loop = OnLoops(EchoBackend())

    async def main(first: Any) -> None:
        backend = Fallback([Failing(BackendError("down")), first, EchoBackend()])
        deltas: Any = backend.astream(REQUEST, served(backend))
        await anext(deltas)
        await deltas.aclose()

    asyncio.run(main(answering))
    asyncio.run(main(on_loop))
    assert (answering.closed, on_loop.closed) == (1, 1)


def test_a_cancelled_task_waits_for_a_thread_and_stops_it() -> None:
    entered, leave = threading.Event(), threading.Event()

    class Slow(Failing):
        def stream(self, request: CompletionRequest, model: ServedModel) -> Iterator[Delta]:
            try:
                entered.set()
                leave.wait(60)
                yield Delta("x", 1, finish_reason=FinishReason.STOP)
            finally:
                self.closed += 1

    slow = Slow(BackendError("never"), blocking=True)
    backend = Fallback([slow, EchoBackend()])

    async def main() -> None:
        task = asyncio.create_task(anext(backend.astream(REQUEST, served(backend))))  # type: ignore[arg-type]
        await asyncio.to_thread(entered.wait, 60)
        task.cancel()
        await asyncio.sleep(0)
        leave.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert slow.closed == 1


def test_the_models_of_all_backends_are_offered_and_each_is_sent_to_those_that_offer_it() -> None:
    backend = Fallback([EchoBackend(("a", "b")), ScriptedBackend(["from the script"] * 2, ("b", "c"))])
    assert [entry.id for entry in backend.entries()] == ["a", "b", "c"]
    with open_platform(backend=Router([backend])) as platform:
        answers = [platform.chat.complete(model=model, messages="x").text for model in "abc"]
    assert answers == ["x", "x", "from the script"]
    with pytest.raises(ModelNotFound):
        backend.capabilities("d")


def test_a_model_can_what_all_its_backends_can() -> None:
    class Real(EchoBackend):
        def capabilities(self, model: str) -> Capabilities:
            return Capabilities(frozenset({"seed"}), logprobs=True, top_logprobs=5, tools=True, forced_tools=True)

    both = Fallback([EchoBackend(), Real()]).capabilities("echo")
    assert both == Capabilities(frozenset({"seed"}), logprobs=True, top_logprobs=5, tools=True, forced_tools=True)
    assert Fallback([EchoBackend(), EchoBackend()]).capabilities("echo") == EchoBackend().capabilities("echo")


@pytest.mark.parametrize("name", ["guided", "parameters"])
def test_of_sets_it_can_what_is_in_all_of_them(name: str) -> None:
    class Guided(EchoBackend):
        def __init__(self, *known: str) -> None:
            super().__init__()
            self.can = Capabilities(**{name: frozenset(known)})

        def capabilities(self, model: str) -> Capabilities:
            return self.can

    def both(one: Guided, other: Guided) -> Any:
        return getattr(Fallback([one, other]).capabilities("echo"), name)

    choice, regex = Guided("choice"), Guided("regex")
    assert both(choice, regex) == both(regex, choice) == frozenset()
    assert both(Guided("choice", "regex"), regex) == both(regex, Guided("choice", "regex")) == {"regex"}


def test_the_prompt_is_counted_where_all_can_count() -> None:
    model = served(EchoBackend())
    assert Fallback([EchoBackend(), EchoBackend()]).prompt_tokens(REQUEST, model) == 2
    assert Fallback([EchoBackend(), Unknowing()]).prompt_tokens(REQUEST, model) is None


class Unknowing(EchoBackend):
    """An echo that cannot count prompts, and does not tell its usage."""

    def prompt_tokens(self, request: CompletionRequest, model: ServedModel) -> Any:
        return None


def test_the_one_that_answers_counts_its_prompt_where_another_cannot() -> None:
    for backends, estimated in (([EchoBackend(), Unknowing()], False), ([Unknowing(), EchoBackend()], True)):
        with open_platform(backend=Fallback(backends)) as platform:
            usage = platform.chat.complete(model="echo", messages="hi there you", n=2).usage
        assert (usage.prompt_tokens, usage.completion_tokens, usage.estimated) == (3 + estimated, 6, estimated)


def test_an_asynchronous_backend_refuses_blocking_calls() -> None:
    with pytest.raises(BackendError, match="asynchronously only"):
        ask(Fallback([OnLoops(EchoBackend())]))


def test_no_backend_at_all_is_refused() -> None:
    with pytest.raises(InvalidInput, match="at least one backend"):
        Fallback([])


def test_it_blocks_when_any_of_them_does() -> None:
    assert not Fallback([EchoBackend()]).blocking
    assert Fallback([EchoBackend(), TabularBackend()]).blocking


# ---- answers that cannot be used, and cost something


USAGE = {"usage": {"prompt_tokens": 9, "completion_tokens": 9}}
UNUSABLE = http(
    json.dumps({"choices": [{"index": 0, "message": {"content": "hi"}, "finish_reason": "error"}], **USAGE}).encode()
)
SAID = http(json.dumps({"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}], **USAGE}).encode())
NO_VECTOR = http(json.dumps({"data": [], **USAGE}).encode())
VECTOR = http(json.dumps({"data": [{"embedding": [1.0, 0.0]}], **USAGE}).encode())
ONE = offer("m", context_length=99, pricing=Pricing(), capabilities=attrs.evolve(VLLM, embedding_size=2))


@pytest.mark.parametrize("on_loop", [False, True])
def test_the_next_one_answers_after_an_answer_that_cannot_be_used_but_has_a_cost(on_loop: bool) -> None:
    def both(first: bytes, second: bytes, stack: ExitStack) -> Platform:
        urls = [stack.enter_context(answering(raw)) for raw in (first, second)]
        backends = [UpstreamBackend(url, models=[ONE], timeouts=Timeouts(retries=0)) for url in urls]
        return stack.enter_context(open_platform(backend=Fallback([stack.enter_context(one) for one in backends])))

    with ExitStack() as stack:
        chats, vectors = both(UNUSABLE, SAID, stack), both(NO_VECTOR, VECTOR, stack)
        if on_loop:
            completion = asyncio.run(chats.chat.acomplete(model="m", messages="x"))
            embedded = asyncio.run(vectors.embeddings.acreate(model="m", input="x"))
        else:
            completion = chats.chat.complete(model="m", messages="x")
            embedded = vectors.embeddings.create(model="m", input="x")
        assert completion.text == "hi"
        assert [list(one) for one in embedded.vectors] == [[1.0, 0.0]]
        assert [(one.prompt_tokens, one.completion_tokens) for one in chats.usage.list()] == [(9, 9)]
        assert [one.prompt_tokens for one in vectors.usage.list()] == [9]


# ---- what comes before an answer


EMPTY_ONES = (Delta(), Delta(index=1), Delta(usage=Usage(7, 0)), Delta(index=2, usage=Usage(7, 3)))


class Leading(EchoBackend):
    """Yields deltas without content, and then fails, or echoes if there is no error."""

    def __init__(self, leading: Iterable[Delta], error: Exception | None = None) -> None:
        super().__init__()
        self.leading, self.error = leading, error

    def prompt_tokens(self, request: CompletionRequest, model: ServedModel) -> Any:
        return None

    def stream(self, request: CompletionRequest, model: ServedModel) -> Iterator[Any]:
        yield from self.leading
        if self.error is not None:
            raise self.error
        yield from super().stream(request, model)


def deltas_of(backend: Any, on_loop: bool) -> list[Delta]:
    async def main() -> list[Any]:
        return [delta async for delta in backend.astream(REQUEST, served(backend))]

    return asyncio.run(main()) if on_loop else list(backend.stream(REQUEST, served(backend)))


@given(st.lists(st.sampled_from(EMPTY_ONES), max_size=4), st.booleans())
def test_what_comes_before_an_answer_is_part_of_it_and_of_a_failure_it_is_dropped(
    leading: list[Delta], on_loop: bool
) -> None:
    alone = deltas_of(Fallback([Leading(leading)]), on_loop)
    assert alone[: len(leading)] == leading
    assert deltas_of(Fallback([Leading(leading), Failing(BackendError("never"))]), on_loop) == alone
    assert deltas_of(Fallback([Leading(leading, BackendError("down")), Leading([])]), on_loop) == alone[len(leading) :]


@pytest.mark.parametrize("on_loop", [False, True])
def test_what_was_spent_is_told_before_an_error_of_the_caller(on_loop: bool) -> None:
    spent, found = Delta(usage=Usage(7, 0)), list[Any]()
    backend = Fallback([Leading([spent], InvalidInput.at("stop", msg="is odd")), EchoBackend()])

    async def main() -> None:
        async for delta in backend.astream(REQUEST, served(backend)):
            found.append(delta)

    with pytest.raises(InvalidInput):
        asyncio.run(main()) if on_loop else found.extend(backend.stream(REQUEST, served(backend)))
    assert found == [spent]


@pytest.mark.parametrize("on_loop", [False, True])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_next_one_answers_however_many_choices_are_asked_for(count: int, temperature: float, on_loop: bool) -> None:
    choices = [{"index": at, "message": {"content": "hi"}, "finish_reason": "stop"} for at in range(count)]
    said = http(json.dumps({"choices": choices if temperature else choices[:1], **USAGE}).encode())
    failed = [{**one, "finish_reason": "error"} for one in choices]
    unusable = http(json.dumps({"choices": failed if temperature else failed[:1], **USAGE}).encode())
    asked = {"model": "m", "messages": "x", "n": count, "temperature": temperature}
    with ExitStack() as stack:
        urls = [stack.enter_context(answering(raw)) for raw in (unusable, said)]
        backends = [UpstreamBackend(url, models=[ONE], timeouts=Timeouts(retries=0)) for url in urls]
        yard = stack.enter_context(open_platform(backend=Fallback([stack.enter_context(one) for one in backends])))
        made = asyncio.run(yard.chat.acomplete(**asked)) if on_loop else yard.chat.complete(**asked)
        assert [choice.message.text for choice in made.choices] == ["hi"] * count
        (booked,) = yard.usage.list()
        assert booked.prompt_tokens == 9
