"""The seeds of calls that name none, in a group with a seed."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modelyard import Platform, open_platform
from modelyard.domain.completion import CompletionRequest, ContentPart, Message, Role, Sampling, Tool, ToolCall
from modelyard.engines.tabular.backend import TabularBackend
from modelyard.errors import BackendError, InvalidInput
from modelyard.parts.episodes.seeds import asked_digest, drawn_seed

SAID = "Where is my refund?"
Calls = Sequence[tuple[int, int]]
"""The place of the attempt, and which question it asks."""


@pytest.fixture
def platform() -> Iterator[Platform]:
    with open_platform() as opened:
        opened.models.create("m", project="p", base_model="tabular-mini")
        yield opened


def programs(platform: Platform, seed: int | None, size: int = 2) -> list[Platform]:
    group = platform.episodes.group("g", model="p/m", size=size, seed=seed)
    return [platform.acting_as(platform.keys.authenticate(one.key)) for one in group]


def ask(program: Platform, asked: Any = SAID, **options: Any) -> str:
    return program.chat.complete(model="any", messages=asked, max_tokens=8, **options).text


def answers(platform: Platform, seed: int, calls: Calls) -> list[str]:
    """Return the answers, in an order that does not depend on that of the calls of different attempts or questions."""
    asking = programs(platform, seed)
    said = [(place, question, ask(asking[place], f"question {question}")) for place, question in calls]
    return [text for *_, text in sorted(said, key=lambda one: one[:2])]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**63 - 1), st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2)), max_size=10), st.randoms())
def test_an_attempt_that_asks_the_same_is_answered_the_same(seed: int, calls: Calls, dice: Random) -> None:
    with open_platform() as platform:
        platform.models.create("m", project="p", base_model="tabular-mini")
        first, shuffled = answers(platform, seed, calls), [*calls]
        dice.shuffle(shuffled)
        assert answers(platform, seed, shuffled) == first


@given(st.sets(st.tuples(st.integers(0), st.integers(0, 99), st.text("0af"), st.integers(0, 9)), min_size=2))
def test_no_two_calls_have_one_seed(of: set[tuple[int, int, str, int]]) -> None:
    assert len({drawn_seed(*one) for one in of}) == len(of)


def test_attempts_and_repeated_calls_and_seeds_differ(platform: Platform) -> None:
    said = [ask(one) for seed in (1, 2) for one in programs(platform, seed) for _ in range(3)]
    assert len(set(said)) == 12


def test_groups_without_a_seed_differ(platform: Platform) -> None:
    assert ask(programs(platform, None)[0]) != ask(programs(platform, None)[0])


def test_a_seed_that_is_named_is_kept(platform: Platform) -> None:
    named = platform.chat.complete(model="p/m", messages=SAID, max_tokens=8, seed=3).text
    assert {ask(one, seed=3) for one in programs(platform, 1)} == {named}


def test_equal_calls_at_a_time_are_answered_as_one_after_another(platform: Platform) -> None:
    one_by_one = [ask(programs(platform, 1)[0]) for _ in range(1)]
    asking = programs(platform, 1)[0]
    in_turn = [ask(asking) for _ in range(6)]
    asking = programs(platform, 1)[0]
    with ThreadPoolExecutor(6) as threads:
        at_once = list(threads.map(lambda _: ask(asking), range(6)))
    assert sorted(at_once) == sorted(in_turn)
    assert len(set(in_turn)) == 6
    assert one_by_one == in_turn[:1]


def test_a_call_that_failed_is_made_again_as_it_was(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    asking = programs(platform, 1)[0]
    expected = [ask(asking) for _ in range(2)]
    asking, broken, stream = programs(platform, 1)[0], [1], TabularBackend.stream

    def fails_once(*of: Any) -> Any:
        if broken:
            broken.clear()
            raise BackendError("it is out")
        return stream(*of)

    monkeypatch.setattr(TabularBackend, "stream", fails_once)
    with pytest.raises(BackendError):
        ask(asking)
    assert [ask(asking) for _ in range(2)] == expected


def test_a_process_that_goes_on_counts_what_others_have_answered(tmp_path: Path) -> None:
    with open_platform(tmp_path / "yard.db") as platform:
        platform.models.create("m", project="p", base_model="tabular-mini")
        expected = [ask(asking, n=2) for asking in programs(platform, 1)[:1] for _ in range(3)]
        key = platform.episodes.group("g", model="p/m", size=2, seed=1)[0].key
        first = [ask(platform.acting_as(platform.keys.authenticate(key)), n=2) for _ in range(2)]
    with open_platform(tmp_path / "yard.db") as platform:
        assert [*first, ask(platform.acting_as(platform.keys.authenticate(key)), n=2)] == expected


def test_a_backend_without_seeds_is_asked_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    capabilities = TabularBackend.capabilities

    def without(*of: Any) -> Any:
        found = capabilities(*of)
        return attrs.evolve(found, parameters=found.parameters - {"seed"})

    monkeypatch.setattr(TabularBackend, "capabilities", without)
    with open_platform() as platform:
        platform.models.create("m", project="p", base_model="tabular-mini")
        assert ask(programs(platform, 1)[0]) != ask(programs(platform, 1)[0])


def test_streamed_and_whole_answers_are_the_same(platform: Platform) -> None:
    asked: Any = {"model": "any", "messages": SAID, "max_tokens": 8, "n": 2}
    whole = [one.message.text for one in programs(platform, 1)[0].chat.complete(**asked).choices]
    with programs(platform, 1)[0].chat.stream(**asked) as stream:
        streamed = ["", ""]
        for delta in stream:
            streamed[delta.index] += delta.text
    assert streamed == whole


@pytest.mark.parametrize("seed", [-1, 2**63, True, "1"])
def test_a_seed_is_a_whole_number_that_every_store_keeps(platform: Platform, seed: Any) -> None:
    with pytest.raises(InvalidInput, match="seed: must be a whole number"):
        platform.episodes.group("g", model="p/m", size=2, seed=seed)


# ---- what decides a seed


def request(*messages: Message, **more: Any) -> CompletionRequest:
    return CompletionRequest("m", messages, **more)


def called(id_: str, arguments: str = "{}") -> tuple[Message, ...]:
    call = ToolCall(id_, "look", arguments)
    return (
        Message(Role.USER, "Look."),
        Message(Role.ASSISTANT, None, tool_calls=(call, ToolCall(id_ + "2", "look", "{}"))),
        Message(Role.TOOL, "a box", tool_call_id=id_),
        Message(Role.TOOL, "a cup", tool_call_id=id_ + "2"),
    )


HELLO = Message(Role.USER, "Hello")
ALIKE = [
    (request(*called("a")), request(*called("b"))),
    (request(*called("a")), request(*called("a", " { } "))),
    (request(HELLO), request(Message(Role.USER, (ContentPart("text", "Hello"),)))),
    (request(Message(Role.SYSTEM, "Be kind.")), request(Message(Role.DEVELOPER, "Be kind."))),
    (request(HELLO), request(HELLO, user="me", metadata={"run": "1"}, streamed=True, store=True, logprobs=True)),
]
OTHERS = [
    (request(*called("a")), request(*called("a", '{"at": 1}'))),
    (request(*called("a")), request(*called("a")[:2], *reversed(called("a")[2:]))),
    (request(HELLO), request(HELLO, HELLO)),
    (request(Message(Role.USER, "a\nuser b")), request(Message(Role.USER, "a"), Message(Role.USER, "b"))),
    (request(HELLO), request(Message(Role.SYSTEM, "Hello"))),
    (request(HELLO), request(HELLO, sampling=Sampling(temperature=0.5))),
    (request(HELLO), request(HELLO, tools=(Tool("look"),))),
    (request(HELLO), request(HELLO, max_tokens=3)),
    (request(prompt="a"), request(prompt="b")),
]


@pytest.mark.parametrize(("one", "other"), ALIKE)
def test_what_asks_the_same(one: CompletionRequest, other: CompletionRequest) -> None:
    assert asked_digest(one, "") == asked_digest(other, "")


@pytest.mark.parametrize(("one", "other"), OTHERS)
def test_what_asks_something_else(one: CompletionRequest, other: CompletionRequest) -> None:
    assert asked_digest(one, "") != asked_digest(other, "")
