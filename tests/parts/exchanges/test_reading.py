"""Trajectories that are recorded as requests with their answers: put together to the histories that they are."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each import each_case
from modelyard.domain.completion import Message, Role
from modelyard.domain.training import History, SampledChoice
from modelyard.errors import InvalidInput
from modelyard.formats.trajectories import trajectory_of
from modelyard.parts.exchanges.reading import read_trajectory

TOKENS = {"content": [{"token": "token_id:7", "logprob": -0.5, "bytes": None, "top_logprobs": []}]}


def said(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def choice(text: str) -> dict[str, Any]:
    message = {"role": "assistant", "content": text, "refusal": None}
    return {"index": 0, "message": message, "finish_reason": "stop", "logprobs": TOKENS, "prompt_token_ids": [1, 2]}


def exchange(second: int, messages: list[Any], *texts: str, **asked: Any) -> dict[str, Any]:
    return {
        "start_time": f"2026-01-01T00:00:{second:02}Z",
        "end_time": "2026-01-01T00:01:00.5Z",
        "model": "m",
        "request": {"model": "m", "messages": messages, "temperature": 1, "nvext": {}, **asked},
        "response": {"id": "c", "choices": [choice(text) for text in texts]},
    }


def histories(*exchanges: Any, kind: str = "chat_completions") -> list[list[Any]]:
    """Messages as their contents, choices as tuples of theirs."""
    found = read_trajectory({"exchanges": {kind: list(exchanges)}}).histories
    return [
        [(item.message.text,) if isinstance(item, SampledChoice) else item.text for item in one.items] for one in found
    ]


@given(
    st.lists(st.tuples(st.text(min_size=1, max_size=5), st.text(max_size=5)), min_size=1, max_size=5),
    st.floats(-1, 1),
    st.randoms(),
)
def test_a_conversation_of_many_exchanges_is_the_one_history_that_it_was(
    turns: list[tuple[str, str]], reward: float, order: Any
) -> None:
    talk: list[Any] = []
    legacy: list[Any] = []
    exchanges = []
    for second, (asked, answered) in enumerate(turns):
        talk, legacy = [*talk, said(asked)], [*legacy, said(asked), choice(answered)]
        exchanges.append(exchange(second, talk, answered))
        talk = [*talk, {"role": "assistant", "content": answered}]
    order.shuffle(exchanges)
    rest = {"reward": reward, "metrics": {"a": 1}, "logs": ["x"], "metadata": {"k": "v"}}
    read = read_trajectory({**rest, "exchanges": {"chat_completions": exchanges}})
    assert read == trajectory_of({**rest, "messages_and_choices": legacy})


def test_every_answer_is_sampled_in_one_history_only() -> None:
    hello, more = said("hello"), said("more")
    echoed = {"role": "assistant", "content": "a"}
    assert histories(exchange(0, [hello], "a", "b")) == [["hello", ("a",)], ["hello", ("b",)]]
    continued = exchange(1, [hello, echoed, more], "c", "d")
    assert histories(exchange(0, [hello], "a", "b"), continued) == [
        ["hello", ("b",)],
        ["hello", ("a",), "more", ("c",)],
        ["hello", "a", "more", ("d",)],
    ]
    assert histories(exchange(0, [hello], "a"), exchange(1, [hello], "b")) == [["hello", ("a",)], ["hello", ("b",)]]
    tools = [{"type": "function", "function": {"name": "f"}}]
    other = exchange(1, [hello, echoed, more], "c", tools=tools)
    assert histories(exchange(0, [hello], "a"), other) == [["hello", ("a",)], ["hello", "a", "more", ("c",)]]


def test_prompts_that_are_continued_are_trained_behind_their_tokens() -> None:
    asked = {"model": "m", "prompt": [5, 6], "n": 2}
    logprobs = {"tokens": ["token_id:7", "x"], "token_logprobs": [-0.5, None], "text_offset": [0, 1]}
    texts = [
        {"index": at, "text": text, "finish_reason": "length", "logprobs": logprobs} for at, text in enumerate("ab")
    ]
    read = read_trajectory({"exchanges": {"completions": [{"request": asked, "response": {"choices": texts}}]}})
    for history, text in zip(read.histories, "ab", strict=True):
        (sampled,) = history.items
        assert isinstance(sampled, SampledChoice)
        assert (sampled.message.text, sampled.prompt_token_ids, sampled.token_ids) == (text, (5, 6), (7,))
        assert sampled.logprobs is not None
        assert [entry.logprob for entry in sampled.logprobs] == [-0.5]
    of_text = {"request": {**asked, "prompt": "p"}, "response": {"choices": texts}}
    assert problem("completions", of_text)[0] == ("response", "choices", 0, "prompt_token_ids")
    texts[0]["prompt_token_ids"] = texts[1]["prompt_token_ids"] = [9]
    read = read_trajectory({"exchanges": {"completions": [of_text]}})
    assert [item.prompt_token_ids for one in read.histories for item in one.items] == [(9,), (9,)]  # type: ignore[union-attr]
    assert problem("completions", {**of_text, "request": {**asked, "echo": True}})[0] == ("request", "echo")


def test_messages_and_their_answers_are_one_history() -> None:
    used = {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}
    first = {
        "request": {"model": "m", "max_tokens": 9, "system": "short", "messages": [said("hi")], "tools": []},
        "response": {"content": [{"type": "text", "text": "so", "citations": None}, used], "stop_reason": "tool_use"},
    }
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "done"}]}
    talk = [said("hi"), {"role": "assistant", "content": first["response"]["content"]}, result]
    second = {
        "request": {**first["request"], "messages": talk},
        "response": {"content": [{"type": "text", "text": "end"}], "stop_reason": "end_turn"},
    }
    assert histories(first, second, kind="messages") == [["short", "hi", ("so",), "done", ("end",)]]
    assert problem("messages", {**first, "response": {"content": [{"type": "server_tool_use"}]}})[0][0] == "response"
    tokens = {"token_ids": [7, 8], "logprobs": [-0.5, -1], "prompt_token_ids": [1]}
    one = {**second, "response": second["response"] | tokens}
    (history,) = read_trajectory({"exchanges": {"messages": [one]}}).histories
    sampled = history.items[-1]
    assert isinstance(sampled, SampledChoice)
    assert (sampled.message.text, sampled.token_ids, sampled.prompt_token_ids) == ("end", (7, 8), (1,))
    assert [entry.logprob for entry in sampled.logprobs or ()] == [-0.5, -1]
    one["response"]["logprobs"] = [-0.5]
    assert problem("messages", one)[0] == ("response", "token_ids")


def test_responses_continue_each_other_by_their_ids_and_items() -> None:
    def output(id: str, text: str) -> dict[str, Any]:
        part = {"type": "output_text", "text": text, "annotations": [], "logprobs": TOKENS["content"]}
        return {"type": "message", "id": id, "role": "assistant", "status": "completed", "content": [part]}

    def answered(number: int, asked: Any, text: str, **more: Any) -> dict[str, Any]:
        response = {"id": f"r{number}", "status": "completed", "output": [output(f"i{number}", text)]}
        return {"request": {"model": "m", "input": asked, **more}, "response": response}

    first, by_id = answered(1, "hi", "a"), answered(2, "more", "b", previous_response_id="r1")
    assert histories(first, by_id, kind="responses") == [["hi", ("a",), "more", ("b",)]]
    referred = [{"role": "user", "content": "hi"}, {"type": "item_reference", "id": "i1"}, said("more")]
    assert histories(first, answered(2, referred, "b"), kind="responses") == [["hi", ("a",), "more", ("b",)]]
    (history,) = read_trajectory({"exchanges": {"responses": [first]}}).histories
    (_, sampled) = history.items
    assert isinstance(sampled, SampledChoice)
    assert sampled.logprobs is not None
    assert problem("responses", answered(2, "x", "b", previous_response_id="r9"))[0] == (
        "request",
        "previous_response_id",
    )


def problem(kind: str, exchange: Any) -> tuple[tuple[Any, ...], str]:
    with pytest.raises(InvalidInput) as caught:
        read_trajectory({"exchanges": {kind: [exchange]}})
    first = caught.value.problems[0]
    assert first.loc[:3] == ("exchanges", kind, 0)
    return first.loc[3:], first.msg


CHATS = {"exchanges": {"chat_completions": [exchange(0, [said("x")], "a")]}}
AT = ("exchanges", "chat_completions", 0)


@each_case(
    ("data", "loc"),
    [
        ({"exchanges": {"chats": []}}, ("exchanges", "chats")),
        ({"exchanges": {"chat_completions": [{"request": {}, "responze": {}}]}}, (*AT, "responze")),
        ({"exchanges": {"chat_completions": [exchange(0, [], "a") | {"start_time": "x"}]}}, (*AT, "start_time")),
        (CHATS | {"rewrad": 1}, ("rewrad",)),
        (CHATS | {"messages_and_choices": [said("x")]}, ("messages_and_choices",)),
        ({"exchanges": []}, ("messages_and_choices",)),
        ({"exchanges": 5}, ("exchanges",)),
    ],
)
def test_what_does_not_fit_is_refused_at_its_place(data: Any, loc: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_trajectory(data)
    assert caught.value.problems[0].loc == loc


def test_the_older_form_is_read_as_before_next_to_exchanges_that_are_empty() -> None:
    older = {"messages_and_choices": [said("hi"), choice("a")], "reward": 1.0}
    empty = {"chat_completions": [], "completions": [], "responses": [], "messages": []}
    assert read_trajectory(older | {"exchanges": empty}) == read_trajectory(older) == trajectory_of(older)
    (one,) = trajectory_of(older).histories
    assert isinstance(one, History)
    assert one.items[0] == Message(Role.USER, "hi")
