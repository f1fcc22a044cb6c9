"""Faults come on schedule, do what they say, and are recorded; a client sees what the specification says."""

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends import OnLoops
from modelyard import open_platform
from modelyard.backends.echo import EchoBackend
from modelyard.backends.router import Router
from modelyard.domain.completion import Delta
from modelyard.errors import (
    ArtifactMissing,
    BackendError,
    ModelyardError,
    Overloaded,
    RateLimited,
    StorageFull,
    StoreBusy,
)
from modelyard.http.endpoint import Endpoint
from modelyard.http.message import Request
from modelyard.parts.doubles.faults.faults import Cut, Disconnect, Faults, Killed, Malformed, Slow, Timeout
from modelyard.parts.scripted.backend import ScriptedBackend
from modelyard.testing.clock import ManualClock

WORDS = "one two three four five six"


@pytest.fixture(params=["sync", "async"])
def backend(request: pytest.FixtureRequest) -> Any:
    """Both kinds of backend, which share nothing of how they are disturbed."""
    return EchoBackend() if request.param == "sync" else OnLoops(EchoBackend())


def generated(platform: Any) -> tuple[str, Exception | None]:
    """What a stream says, and how it fails."""
    text: list[str] = []
    try:
        for delta in platform.chat.stream(model="echo", messages=WORDS):
            text.append(delta.text)
    except ModelyardError as error:
        return "".join(text), error
    return "".join(text), None


def outcomes(platform: Any, count: int) -> list[str]:
    """What came of so many requests: the text, or the code of the error."""
    seen = []
    for _ in range(count):
        try:
            seen.append(platform.chat.complete(model="echo", messages="ok").text)
        except ModelyardError as error:
            seen.append(error.code)
    return seen


# ---- when ----------------------------------------------------------------------------------------------------------


def test_a_fault_comes_at_its_time_and_once(faults: Faults) -> None:
    faults.completion(RateLimited("slow down", 2.0), at=3)
    with faults.open_platform() as platform:
        assert outcomes(platform, 5) == ["ok", "ok", "rate_limit_exceeded", "ok", "ok"]
    (happened,) = faults.happened
    assert (happened.operation, happened.number, str(happened.fault)) == ("completion", 3, "slow down")
    assert str(happened) == "completion 3: RateLimited('slow down')"


def test_a_fault_comes_as_often_as_it_is_to(faults: Faults) -> None:
    faults.completion(Overloaded("full"), at=2, times=2)
    with faults.open_platform() as platform:
        assert outcomes(platform, 5) == ["ok", "overloaded", "overloaded", "ok", "ok"]


def test_time_is_counted_from_when_a_fault_is_scheduled(faults: Faults) -> None:
    with faults.open_platform() as platform:
        assert outcomes(platform, 2) == ["ok", "ok"]
        faults.completion(Overloaded("full"))
        assert outcomes(platform, 2) == ["overloaded", "ok"]
    assert faults.happened[0].number == 3


def test_of_two_faults_at_one_time_the_second_comes_next(faults: Faults) -> None:
    faults.completion(Overloaded("full"))
    faults.completion(RateLimited("slow down", 1.0))
    with faults.open_platform() as platform:
        assert outcomes(platform, 3) == ["overloaded", "rate_limit_exceeded", "ok"]


@pytest.mark.slow
@given(st.integers(0, 2**32), st.floats(0, 1))
def test_the_same_seed_gives_the_same_faults(seed: int, rate: float) -> None:
    def history() -> list[str]:
        faults = Faults(seed)
        faults.completion(Overloaded("full"), rate=rate)
        with faults.open_platform() as platform:
            return outcomes(platform, 20)

    seen = history()
    assert seen == history()
    assert rate not in (0, 1) or set(seen) == {"overloaded" if rate else "ok"}


def test_a_rate_is_about_met_and_differs_by_seed_and_by_fault() -> None:
    def history(seed: int, port: str) -> list[bool]:
        faults = Faults(seed)
        faults.transact(StoreBusy("x"), rate=0.5)
        faults.completion(Overloaded("full"), rate=0.2)
        plan = faults._plan
        return [plan.struck(port) is not None for _ in range(1000)]

    assert 150 < sum(history(1, "completion")) < 250
    assert history(1, "completion") != history(2, "completion")
    assert 400 < sum(history(1, "transact")) < 600


def test_what_one_platform_suffers_no_other_sees() -> None:
    one, other = Faults(), Faults()
    one.completion(Overloaded("full"), times=2)
    with one.open_platform() as first, other.open_platform() as second, open_platform() as third:
        assert [outcomes(platform, 1) for platform in (second, third, first)] == [["ok"], ["ok"], ["overloaded"]]
    assert other.happened == ()


def test_a_planned_fault_that_did_not_happen_is_reported(faults: Faults) -> None:
    faults.completion(RateLimited("slow down", 1.0), at=9)
    faults.completion(Cut(), times=2, after=2)
    faults.put(StorageFull("full"), rate=0.0)
    with faults.open_platform() as platform:
        generated(platform)
    assert faults.unused == (
        "completion, from call 9 on: RateLimited('slow down') occurred 0 of 1 times",
        "completion, from call 1 on after 2: Cut() occurred 1 of 2 times",
        "put, at a rate of 0: StorageFull('full') occurred 0 times",
    )


def test_a_fault_after_more_tokens_than_came_did_not_happen(faults: Faults) -> None:
    faults.completion(Disconnect(), after=100)
    with faults.open_platform() as platform:
        assert generated(platform) == (WORDS, None)
    assert len(faults.unused) == 1
    assert faults.happened == ()


@pytest.mark.parametrize(
    ("operation", "fault"),
    [
        ("completion", "slow down"),
        ("completion", RateLimited),
        ("completion", Killed()),
        ("connection", Cut()),
        ("transact", Slow(3)),
        ("read", None),
        ("put", StorageFull),
        ("open", Timeout(1)),
        ("step", Disconnect()),
        ("submit", Slow(1)),
    ],
    ids=repr,
)
def test_a_fault_that_an_operation_cannot_have_is_refused(faults: Faults, operation: str, fault: Any) -> None:
    with pytest.raises(TypeError, match=f"`{operation}` is one of an exception") as refused:
        getattr(faults, operation)(fault)
    assert ("did you mean" in str(refused.value)) is isinstance(fault, type)
    assert not faults.unused


@pytest.mark.parametrize(
    "schedule", [{"at": 0}, {"times": 0}, {"rate": 1.1}, {"rate": -0.1}, {"rate": 0.5, "at": 2}, {"after": -1}]
)
def test_a_schedule_that_means_nothing_is_refused(faults: Faults, schedule: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="`"):
        faults.completion(Cut(), **schedule)


# ---- what a completion suffers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Disconnect(), "connection"),
        (Cut(), "without a finish reason"),
        (Malformed(), "a str instead of a Delta"),
        (Malformed(Delta(index=7)), "choice 7"),
        (Timeout(30), "within 30 seconds"),
        (BackendError("broken"), "broken"),
    ],
)
@pytest.mark.parametrize("after", [0, 1, 3])
def test_an_answer_ends_after_a_planned_number_of_tokens(
    faults: Faults, backend: Any, fault: Any, words: str, after: int
) -> None:
    faults.completion(fault, after=after)
    with faults.open_platform(backend=backend) as platform:
        text, error = generated(platform)
        assert text == " ".join(WORDS.split()[:after])
        assert isinstance(error, BackendError)
        assert words in str(error)
        assert generated(platform) == (WORDS, None)
        (booked,) = platform.usage.total()
        assert booked.completion_tokens == after + len(WORDS.split())
    assert not faults.unused


def test_an_answer_that_is_not_streamed_fails_whole_and_what_was_made_is_booked(faults: Faults) -> None:
    faults.completion(Disconnect(), after=2)
    with faults.open_platform() as platform:
        with pytest.raises(BackendError, match="connection"):
            platform.chat.complete(model="echo", messages=WORDS)
        assert [total.completion_tokens for total in platform.usage.total()] == [2]


def test_a_backend_is_stopped_when_its_answer_is_cut_off(faults: Faults) -> None:
    backend = OnLoops(EchoBackend())
    faults.completion(Disconnect(), after=2)
    with faults.open_platform(backend=backend) as platform:
        generated(platform)
    assert backend.closed == 1


def test_a_slow_answer_takes_its_time_on_the_clock_and_is_whole(faults: Faults) -> None:
    clock = faults.clock
    faults.completion(Slow(20), after=2)
    with faults.open_platform() as platform:
        assert generated(platform) == (WORDS, None)
        assert clock.monotonic() == 20


def test_a_slow_answer_on_an_event_loop_waits_for_the_clock(faults: Faults, backend: Any) -> None:
    clock = faults.clock
    faults.completion(Slow(20))

    async def main() -> None:
        async with faults.open_platform(backend=backend) as platform:
            answering = asyncio.create_task(platform.chat.acomplete(model="echo", messages="hello"))
            while not clock._waiting:
                await asyncio.sleep(0)
            await clock.aadvance(19)
            assert not answering.done()
            await clock.aadvance(1)
            assert (await answering).text == "hello"

    asyncio.run(main())


def test_every_backend_of_a_router_is_disturbed(faults: Faults) -> None:
    router = Router([EchoBackend(), Router([ScriptedBackend(["never"])])])
    faults.completion(Overloaded("full"), times=2)
    with faults.open_platform(backend=router) as platform:
        for model in ("echo", "scripted"):
            with pytest.raises(Overloaded):
                platform.chat.complete(model=model, messages="x")


def test_one_backend_among_others_can_be_disturbed_alone(faults: Faults) -> None:
    faults.completion(Overloaded("full"))
    router = Router([faults.backend(EchoBackend()), ScriptedBackend(["fine"])])
    with open_platform(backend=router) as platform:
        assert platform.chat.complete(model="scripted", messages="x").text == "fine"
        with pytest.raises(Overloaded):
            platform.chat.complete(model="echo", messages="x")


# ---- what storage suffers ------------------------------------------------------------------------------------------


def test_a_busy_store_refuses_and_nothing_of_it_is_kept(faults: Faults) -> None:
    with faults.open_platform() as platform:
        faults.transact(StoreBusy("locked"), at=2)
        platform.models.create("first", project="p", base_model="tabular-mini")
        with pytest.raises(StoreBusy):
            platform.models.create("second", project="p", base_model="tabular-mini")
        assert [model.name for model in platform.models.list(project="p")] == ["first"]


def test_a_store_is_full_from_a_moment_on(faults: Faults) -> None:
    clock = faults.clock
    clock.after(3600, lambda: faults.transact(StorageFull("no room"), times=2))
    with faults.open_platform() as platform:
        assert outcomes(platform, 1) == ["ok"]
        clock.advance(hours=1)
        assert outcomes(platform, 3) == ["storage_full", "storage_full", "ok"]
    assert [one.moment - faults.happened[0].moment for one in faults.happened] == [timedelta(0)] * 2


def test_an_unreadable_store_is_an_error(faults: Faults) -> None:
    with faults.open_platform() as platform:
        faults.read(StoreBusy("locked"))
        with pytest.raises(StoreBusy):
            list(platform.models.list(project="p"))


def test_on_an_event_loop_the_store_refuses_too(faults: Faults) -> None:
    async def main() -> None:
        async with faults.open_platform() as platform:
            faults.transact(StoreBusy("locked"))
            with pytest.raises(StoreBusy):
                await platform._runtime.store.atransact(lambda tx: None)

    asyncio.run(main())


def test_artifacts_can_be_full_and_missing(faults: Faults) -> None:
    rows = [{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}]
    with faults.open_platform() as platform:
        platform.models.create("m", project="p", base_model="tabular-mini")
        faults.put(StorageFull("no room"))
        with pytest.raises(StorageFull):
            platform.training.sft("p/m", rows)
        assert list(platform._runtime.artifacts.names()) == []
        platform.training.sft("p/m", rows).result()
        faults.open(ArtifactMissing("its bytes are gone"))
        with pytest.raises(ArtifactMissing):
            platform.chat.complete(model="local/p/m", messages="q", max_tokens=1)


# ---- what a client sees --------------------------------------------------------------------------------------------


@attrs.frozen
class Seen:
    """An answer as it is sent."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def events(self) -> list[Any]:
        lines = [line.removeprefix("data: ") for line in self.body.decode().split("\n\n") if line]
        return [line if line == "[DONE]" else json.loads(line) for line in lines]


Post = Callable[..., Seen]


@pytest.fixture
def post(faults: Faults) -> Any:
    """Asks over HTTP, without a socket."""
    with faults.open_platform() as platform:
        key = platform.keys.create().secret
        endpoint = Endpoint(platform)

        def ask(stream: bool = False) -> Seen:
            requested = {"model": "echo", "messages": [{"role": "user", "content": WORDS}], "stream": stream}
            headers = [("authorization", f"Bearer {key}"), ("content-type", "application/json")]
            body = iter([json.dumps(requested).encode()])
            answer = endpoint.handle(Request("POST", "/inference/v1/chat/completions", "", headers, body))
            sent = answer.body if isinstance(answer.body, bytes) else b"".join(answer.body)  # type: ignore[arg-type]
            return Seen(answer.status, dict(answer.headers), sent)

        yield ask


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fault", "status", "retry_after", "code"),
    [
        (RateLimited("slow down", 2.0), 429, "2", "rate_limit_exceeded"),
        (Overloaded("full", 7.5), 503, "8", "overloaded"),
        (ModelyardError("lost its mind"), 500, None, "internal_error"),
        (Disconnect(), 502, None, "backend_error"),
        (Timeout(5), 502, None, "backend_error"),
        (Malformed(), 502, None, "backend_error"),
        (Cut(), 502, None, "backend_error"),
    ],
)
def test_what_fails_before_the_first_token_is_a_plain_answer(
    faults: Faults, post: Post, stream: bool, fault: Any, status: int, retry_after: str | None, code: str
) -> None:
    faults.completion(fault)
    seen = post(stream)
    assert (seen.status, seen.headers.get("retry-after")) == (status, retry_after)
    assert json.loads(seen.body)["error"]["code"] == code
    assert post(stream).status == 200


@pytest.mark.parametrize("fault", [Disconnect(), Cut(), Malformed(), Timeout(5), ModelyardError("lost its mind")])
def test_a_broken_stream_ends_with_an_error_and_without_done(faults: Faults, post: Post, fault: Any) -> None:
    faults.completion(fault, after=2)
    seen = post(stream=True)
    assert seen.status == 200
    *chunks, last = seen.events
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == "one two"
    assert set(last["error"]) == {"message", "type", "param", "code"}
    assert last["error"]["type"] == "server_error"
    assert "[DONE]" not in seen.events
    assert post(stream=True).events[-1] == "[DONE]"


def test_a_busy_store_is_503_and_a_full_one_507(faults: Faults, post: Post) -> None:
    faults.transact(StoreBusy("locked"))
    seen = post()
    assert (seen.status, seen.headers["retry-after"]) == (503, "1")
    faults.transact(StorageFull("no room"))
    assert post().status == 507


# ---- of its own ----------------------------------------------------------------------------------------------------


def test_the_clock_is_that_of_the_platform() -> None:
    clock = ManualClock()
    faults = Faults(clock=clock)
    with faults.open_platform() as platform:
        assert platform._runtime.clock is clock
