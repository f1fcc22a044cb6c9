"""Cassettes: what is recorded and when, what is replayed, and what is said where nothing is."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from backends import OnLoops
from modelyard import open_platform
from modelyard.backends.echo import EchoBackend
from modelyard.backends.router import Router
from modelyard.domain.catalogue import CatalogueEntry
from modelyard.domain.completion import CompletionRequest, Delta, FinishReason, Message, Role, Sampling
from modelyard.engines.tabular.backend import TabularBackend
from modelyard.errors import BackendError, InvalidInput, NoAnswerPrepared, NotFound, Overloaded
from modelyard.parts.contracts.backend import BackendContract
from modelyard.parts.doubles.cassette.cassette import use_cassette
from modelyard.parts.scripted.backend import ScriptedBackend, on, pause, say
from modelyard.platform.platform import Platform
from modelyard.protocols import AsyncBackend, Backend, ServedModel
from modelyard.testing.clock import ManualClock


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cassettes" / "c.jsonl"


class Unreachable:
    """A real backend that no replay may touch."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the network was touched: {name}")


def answers(backend: Any, *questions: str, model: str = "scripted", **options: Any) -> list[str]:
    with open_platform(backend=backend) as platform:
        return [platform.chat.complete(model=model, messages=text, **options).text for text in questions]


def record(path: Path, script: list[Any], *questions: str, **options: Any) -> list[str]:
    return answers(use_cassette(path, ScriptedBackend(script), mode="new"), *questions, **options)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# ---- the contract ------------------------------------------------------------------------------------------------


class ReplayContract(BackendContract):
    """Each law is first asked of the recorder, then of the replay of what it recorded."""

    real: Any

    @pytest.fixture
    def backend(self, path: Path, request: pytest.FixtureRequest) -> Backend | AsyncBackend:
        recorder = use_cassette(path, self.real, mode="all")
        model = recorder.entries()[0].id
        known = {"backend": recorder, "model": model, "can": recorder.capabilities(model)}
        known |= request.node.callspec.params if hasattr(request.node, "callspec") else {}
        wanted = [name for name in request.node._fixtureinfo.argnames if name in known]
        request.function(**{name: known[name] for name in wanted})
        return use_cassette(path, Unreachable())  # type: ignore[arg-type]


class TestReplayOfEcho(ReplayContract):
    real = EchoBackend(("echo", "parrot"))


class TestReplayOfTabular(ReplayContract):
    real = TabularBackend()


class TestReplayOfAnAsynchronousBackend(ReplayContract):
    real = OnLoops(EchoBackend())


# ---- modes -------------------------------------------------------------------------------------------------------


def test_a_replay_needs_no_backend_and_repeats_every_delta(path: Path) -> None:
    options: dict[str, Any] = {"model": "echo", "messages": "one two three", "logprobs": True, "n": 2}

    def converse(platform: Platform) -> Any:
        completion = platform.chat.complete(**options)
        return completion.choices, completion.usage, [*platform.catalogue.list()]

    with open_platform(backend=use_cassette(path, EchoBackend(), mode="new")) as platform:
        recorded = converse(platform)
    with open_platform(backend=use_cassette(path)) as platform:
        assert converse(platform) == recorded


def test_a_replay_never_touches_the_backend_that_it_was_given(path: Path) -> None:
    record(path, ["hi"], "hello")
    backend = use_cassette(path, Unreachable())  # type: ignore[arg-type]
    assert answers(backend, "hello") == ["hi"]
    with pytest.raises(NoAnswerPrepared):
        answers(backend, "something else")


def test_new_records_what_is_missing_and_replays_the_rest(path: Path) -> None:
    record(path, ["first"], "a")
    real = ScriptedBackend(["second"])
    assert answers(use_cassette(path, real, mode="new"), "a", "b") == ["first", "second"]
    assert real.texts == ["b"]
    assert answers(use_cassette(path), "b", "a") == ["second", "first"]


def test_all_forgets_what_was_recorded(path: Path) -> None:
    record(path, ["old", "older"], "a", "b")
    assert answers(use_cassette(path, ScriptedBackend(["new"]), mode="all"), "a") == ["new"]
    assert answers(use_cassette(path), "a") == ["new"]
    assert len(lines(path)) == 3


def test_the_same_request_is_replayed_in_the_order_in_which_it_was_answered(path: Path) -> None:
    record(path, ["one", "two", "three"], "a", "a", "a")
    backend = use_cassette(path)
    assert answers(backend, "a", "a", "a") == ["one", "two", "three"]
    with pytest.raises(NoAnswerPrepared, match="answers this request 3 times, and it is requested once more"):
        answers(backend, "a")


def test_a_recorder_asks_the_backend_again_for_a_repeated_request(path: Path) -> None:
    assert record(path, ["one", "two"], "a", "a") == ["one", "two"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"mode": "new"}, "backend: is needed to record"),
        ({"mode": "once"}, "mode: must be 'none', 'new' or 'all'"),
        ({"ignore": ["heat"]}, "ignore: 'heat' is none of .*temperature"),
        ({"ignore": ["n"], "match": lambda request: 1}, "ignore: cannot be combined with match"),
    ],
)
def test_what_cannot_be_meant_is_refused(path: Path, arguments: dict[str, Any], why: str) -> None:
    record(path, ["hi"], "hello")
    with pytest.raises(InvalidInput, match=why):
        use_cassette(path, **arguments)


def test_a_cassette_that_is_not_there_says_how_to_record_it(path: Path) -> None:
    with pytest.raises(NotFound, match=r"cassette .*c.jsonl' not found; record it once with mode='new'.*--yard-record"):
        use_cassette(path)


# ---- matching ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.5},
        {"seed": 3},
        {"max_tokens": 5},
        {"stop": "x"},
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        {"response_format": {"type": "json_object"}},
        {"logprobs": True},
    ],
)
def test_requests_that_differ_are_not_the_same(path: Path, options: dict[str, Any]) -> None:
    (name,) = options
    record(path, ["hi"], "hello")
    with pytest.raises(NoAnswerPrepared, match=f"line 3, differs: {name}: not recorded, requested "):
        answers(use_cassette(path), "hello", **options)
    assert answers(use_cassette(path, ignore=[name]), "hello", **options) == ["hi"]


def test_neither_a_seed_that_the_platform_draws_nor_who_asks_is_compared(path: Path) -> None:
    record(path, ["hi", "ho"], "hello", n=2, user="me", metadata={"a": "b"})
    assert answers(use_cassette(path), "hello", n=2, user="you") == ["hi"]


def test_a_seed_that_was_named_is_compared(path: Path) -> None:
    record(path, ["hi"], "hello", seed=7)
    assert answers(use_cassette(path), "hello", seed=7) == ["hi"]
    with pytest.raises(NoAnswerPrepared, match="seed: recorded 7, requested 8"):
        answers(use_cassette(path), "hello", seed=8)


def test_a_function_says_what_is_compared(path: Path) -> None:
    def last(request: CompletionRequest) -> str:
        return request.messages[-1].text

    record(path, ["hi"], "hello", temperature=0.1)
    assert answers(use_cassette(path, match=last), "hello", temperature=0.9) == ["hi"]
    with pytest.raises(NoAnswerPrepared, match="differs: recorded 'hello', requested 'bye'"):
        answers(use_cassette(path, match=last), "bye")


def test_a_function_may_compare_values_of_the_request(path: Path) -> None:
    record(path, ["hi"], "hello", temperature=0.1)
    assert answers(use_cassette(path, match=lambda request: request.messages), "hello") == ["hi"]
    with pytest.raises(InvalidInput, match="match: must return strings"):
        use_cassette(path, match=lambda request: {object()})


def test_a_missing_recording_is_reported_with_the_nearest_one(path: Path) -> None:
    long = "x" * 200
    record(path, ["1", "2", "3"], "What is the capital of France?", "Tell me a joke.", f"{long} red and round")
    with pytest.raises(NoAnswerPrepared) as refused:
        answers(use_cassette(path), "What is the capital of Italy?")
    assert str(refused.value) == (
        f"messages: nothing in {path} answers this request; the nearest, in line 3, differs: messages.0.content: "
        "recorded 'What is the capital of France?', requested 'What is the capital of Italy?'; "
        "record it with mode='new' (pytest --yard-record=new), or compare less with ignore= or match="
    )
    with pytest.raises(NoAnswerPrepared, match=r"line 5.*recorded '\.\.\.x+ red and round', requested '\.\.\.x+ blue"):
        answers(use_cassette(path), f"{long} blue and round")


def test_an_empty_cassette_says_that_it_is_empty(path: Path) -> None:
    use_cassette(path, EchoBackend(), mode="new").entries()
    with pytest.raises(NoAnswerPrepared, match="has no recording"):
        answers(use_cassette(path), "hello", model="echo")


def test_many_differences_are_not_all_listed(path: Path) -> None:
    record(path, ["1"], "hello")
    many = [{"role": "user", "content": str(n)} for n in range(20)]
    with open_platform(backend=use_cassette(path)) as platform:
        with pytest.raises(NoAnswerPrepared, match="and 14 more"):
            platform.chat.complete(model="scripted", messages=many)


def test_a_trained_model_is_answered_by_the_recording_of_its_own_step(path: Path) -> None:
    entry = TabularBackend().entries()[0]
    request = CompletionRequest("local/desk/m", (Message(Role.USER, "hi"),), Sampling(seed=1), max_tokens=3)
    models = [ServedModel(entry.id, entry, checkpoint=_Checkpoint(step)) for step in (0, 1)]  # type: ignore[arg-type]
    recorder: Any = use_cassette(path, ScriptedBackend(["untrained", "trained"]), mode="new")
    replay_order = [1, 0]
    for model in models:
        list(recorder.stream(request, model))
    replay: Any = use_cassette(path)
    generated = ["".join(delta.text for delta in replay.stream(request, models[step])) for step in replay_order]
    assert generated == ["trained", "untrained"]


@attrs.frozen
class _Checkpoint:
    step: int


# ---- streams -----------------------------------------------------------------------------------------------------

TALE = say("Once", pause(5), " upon", pause(2), " a time", pause(1))


def timed(clock: ManualClock, stream: Iterator[Delta]) -> list[tuple[float, str]]:
    return [(clock.monotonic(), delta.text) for delta in stream]


ASKED = CompletionRequest("scripted", (Message(Role.USER, "hi"),), max_tokens=50, streamed=True)
TIMES = [(0.0, "Once"), (5.0, " upon"), (7.0, " a time"), (8.0, "")]


def served(backend: Any) -> ServedModel:
    return ServedModel("scripted", backend.entries()[0])


def recorded_tale(path: Path) -> None:
    clock = ManualClock()
    recorder: Any = use_cassette(path, ScriptedBackend([TALE], clock=clock), mode="new", clock=clock)
    assert timed(clock, recorder.stream(ASKED, served(recorder))) == TIMES


def test_a_stream_is_recorded_with_its_timing_and_replayed_at_once(path: Path) -> None:
    recorded_tale(path)
    assert [delta["at"] for delta in lines(path)[-1]["deltas"]] == [0, 5, 7, 8]
    replay: Any = use_cassette(path)
    assert replay.blocking is False
    assert [delta.text for delta in replay.stream(ASKED, served(replay))] == ["Once", " upon", " a time", ""]


def test_a_replay_with_a_clock_takes_the_time_that_was_recorded(path: Path) -> None:
    recorded_tale(path)
    clock = ManualClock()
    replay: Any = use_cassette(path, clock=clock)
    assert replay.blocking is True
    assert timed(clock, replay.stream(ASKED, served(replay))) == TIMES


def test_a_replay_on_an_event_loop_takes_the_time_too(path: Path) -> None:
    recorded_tale(path)
    clock = ManualClock()
    replay: Any = use_cassette(path, clock=clock)

    async def listen() -> list[tuple[float, str]]:
        return [(clock.monotonic(), delta.text) async for delta in replay.astream(ASKED, served(replay))]

    assert asyncio.run(listen()) == TIMES


def test_time_that_the_reader_takes_is_not_waited_for_again(path: Path) -> None:
    recorded_tale(path)
    clock = ManualClock()
    replay: Any = use_cassette(path, clock=clock)
    seen = []
    for delta in replay.stream(ASKED, served(replay)):
        seen.append((clock.monotonic(), delta.text))
        clock.advance(6)
    assert seen == [(0.0, "Once"), (6.0, " upon"), (12.0, " a time"), (18.0, "")]


def test_an_answer_is_written_down_before_the_reader_has_its_end(path: Path) -> None:
    recorder: Any = use_cassette(path, ScriptedBackend([say("a", "b")]), mode="new")
    stream = recorder.stream(ASKED, served(recorder))
    assert [next(stream).text, next(stream).text] == ["a", "b"]
    assert len(lines(path)) == 2
    assert next(stream).finish_reason is FinishReason.STOP
    stream.close()
    assert "left_early" not in lines(path)[2]
    assert len(lines(path)) == 3


@pytest.mark.parametrize("on_loop", [False, True])
def test_a_reader_who_leaves_early_is_replayed_as_far_as_it_read(path: Path, on_loop: bool) -> None:
    recorder: Any = use_cassette(
        path, OnLoops(ScriptedBackend(["a b c"])) if on_loop else ScriptedBackend(["a b c"]), mode="new"
    )

    async def read() -> None:
        stream = recorder.astream(ASKED, served(recorder))
        assert (await anext(stream)).text == "a"
        await stream.aclose()

    if on_loop:
        asyncio.run(read())
    else:
        stream = recorder.stream(ASKED, served(recorder))
        assert next(stream).text == "a"
        stream.close()
    replay: Any = use_cassette(path)
    again = replay.stream(ASKED, served(replay))
    assert next(again).text == "a"
    with pytest.raises(NoAnswerPrepared, match="the recording in line 3 ends here, because its reader disconnected"):
        next(again)


def test_a_stop_string_that_cuts_an_answer_cuts_the_replay_at_the_same_place(path: Path) -> None:
    assert record(path, ["one two three four"], "hi", stop="three", logprobs=True) == ["one two "]
    assert answers(use_cassette(path), "hi", stop="three", logprobs=True) == ["one two "]


def test_a_failure_is_passed_on_and_not_recorded(path: Path) -> None:
    with pytest.raises(Overloaded):
        record(path, [Overloaded("busy")], "hi")
    with pytest.raises(BackendError, match="cable cut"):
        record(path, [say("a", BackendError("cable cut"))], "hi")
    assert len(lines(path)) == 2
    assert record(path, ["at last"], "hi") == ["at last"]


# ---- kinds of backends -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("real", "kinds"),
    [(EchoBackend(), (True, False)), (OnLoops(EchoBackend()), (False, True)), (ScriptedBackend([]), (True, True))],
)
def test_a_recorder_is_synchronous_or_asynchronous_as_its_backend_is(path: Path, real: Any, kinds: Any) -> None:
    recorder = use_cassette(path, real, mode="new")
    assert (hasattr(recorder, "stream"), hasattr(recorder, "astream")) == kinds
    replay = use_cassette(path)
    assert (hasattr(replay, "stream"), hasattr(replay, "astream")) == (True, True)


def test_an_asynchronous_backend_is_recorded_and_replayed_on_an_event_loop(path: Path) -> None:
    async def converse(backend: Any) -> list[str]:
        async with open_platform(backend=backend) as platform:
            whole = await platform.chat.acomplete(model="echo", messages="one two")
            pieces = [item.text async for item in platform.chat.astream(model="echo", messages="one two")]
        return [whole.text, *pieces]

    recorded = asyncio.run(converse(use_cassette(path, OnLoops(EchoBackend()), mode="new")))
    assert recorded == ["one two", "one", " two"]
    assert asyncio.run(converse(use_cassette(path))) == recorded


def test_a_router_of_both_kinds_is_recorded_by_one_cassette(path: Path) -> None:
    router = Router([OnLoops(EchoBackend()), ScriptedBackend(["hi"]), EchoBackend(("parrot",))])
    recorder = use_cassette(path, router, mode="new")
    generated = [answers(recorder, "hello", model=model) for model in ("echo", "scripted", "parrot")]
    assert generated == [["hello"], ["hi"], ["hello"]]
    replay = use_cassette(path)
    assert [entry.id for entry in replay.entries()] == ["echo", "scripted", "parrot"]
    assert [answers(replay, "hello", model=model) for model in ("parrot", "scripted", "echo")] == generated[::-1]


def test_a_model_that_is_offered_differently_now_is_written_down_once_more(path: Path) -> None:
    class Renamed(EchoBackend):
        def entries(self) -> tuple[CatalogueEntry, ...]:
            return tuple(attrs.evolve(entry, name="Renamed") for entry in super().entries())

    for real in (EchoBackend(), EchoBackend(), Renamed()):
        backend = use_cassette(path, real, mode="new")
        assert backend.entries() == backend.entries()
    assert len(lines(path)) == 3
    assert use_cassette(path).entries() == Renamed().entries()


def test_a_script_of_rules_can_be_recorded_like_any_backend(path: Path) -> None:
    rules = [on("refund").answer({"amount": 3}), on().answer("What?")]
    assert record(path, rules, "refund", "hm") == ['{"amount": 3}', "What?"]
    assert answers(use_cassette(path), "hm", "refund") == ["What?", '{"amount": 3}']
