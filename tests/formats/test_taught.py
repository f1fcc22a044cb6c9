"""Rows that a teacher has scored: written and read again, and refused at the place of what is wrong."""

import json
from io import BytesIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelyard.domain.completion import Message, Role, TokenLogprob
from modelyard.domain.training import History, SampledChoice, Trajectory, TrajectoryGroup
from modelyard.errors import InvalidInput
from modelyard.formats.taught import TEACHER, dump_taught, taught_of
from modelyard.formats.training_data import DATASETS, GROUPS, TAUGHT

ASKED = {"role": "user", "content": "hello"}
TOKEN = {"token": "hi", "logprob": -0.5, "bytes": [104, 105], "id": 7, "top_logprobs": [{"token": "ho", "logprob": -1}]}


SCORES = ("messages_and_choices", 1, TEACHER)


def row(**choice: Any) -> dict[str, Any]:
    answered = {"message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop", **choice}
    return {"messages_and_choices": [ASKED, answered]}


logprobs = st.floats(-50, 0)
named = st.builds(
    TokenLogprob,
    st.text(max_size=3),
    logprobs,
    st.none() | st.binary(max_size=3).map(tuple),
    id=st.none() | st.integers(0, 2**31),
)
by_id = st.builds(lambda logprob, id: TokenLogprob("", logprob, id=id), logprobs, st.integers(0, 2**31))
entries = st.builds(
    lambda one, top: TokenLogprob(one.token, one.logprob, one.bytes, tuple(top), one.id),
    named,
    st.lists(named.filter(lambda one: one.id is None), max_size=3)
    | st.lists(by_id, max_size=3, unique_by=lambda one: one.id),
)


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    histories = []
    for _ in range(draw(st.integers(1, 3))):
        teacher = tuple(draw(st.lists(entries, min_size=1, max_size=4)))
        answer = SampledChoice(Message(Role.ASSISTANT, draw(st.text(max_size=5))), teacher=teacher)
        unscored = SampledChoice(Message(Role.ASSISTANT, "as I said"))
        histories.append(History((Message(Role.USER, "hello"), *draw(st.permutations([answer, unscored])))))
    return Trajectory(tuple(histories), draw(st.floats(-10, 10)))


@given(trajectories())
def test_what_is_written_is_read_again(one: Trajectory) -> None:
    assert list(TAUGHT.read(BytesIO(dump_taught(one)))) == [one]
    assert list(DATASETS.read(BytesIO(DATASETS.dump(one)))) == [one]


def test_the_logprobs_of_a_teachers_own_answer_are_its_scores() -> None:
    found = taught_of(row(logprobs={"content": [TOKEN], "refusal": None}))
    (choice,) = [item for item in found.histories[0].items if isinstance(item, SampledChoice)]
    assert choice.teacher == (TokenLogprob("hi", -0.5, (104, 105), (TokenLogprob("ho", -1),), 7),)


def test_a_teachers_scores_go_before_the_samplers() -> None:
    found = taught_of(row(logprobs={"content": [TOKEN]}, teacher_logprobs={"content": [{**TOKEN, "logprob": -3}]}))
    (choice,) = [item for item in found.histories[0].items if isinstance(item, SampledChoice)]
    assert choice.logprobs is not None
    assert choice.teacher is not None
    assert (choice.logprobs[0].logprob, choice.teacher[0].logprob) == (-0.5, -3)


def test_a_token_that_a_server_spells_by_its_id_has_that_id() -> None:
    found = taught_of(row(teacher_logprobs={"content": [{"token": "token_id:12", "logprob": -1}]}))
    (choice,) = [item for item in found.histories[0].items if isinstance(item, SampledChoice)]
    assert choice.teacher is not None
    assert choice.teacher[0].id == 12


def test_a_trajectory_of_rl_keeps_what_a_teacher_said() -> None:
    group = TrajectoryGroup((taught_of(row(teacher_logprobs={"content": [TOKEN]})),))
    assert list(GROUPS.read(BytesIO(GROUPS.dump(group)))) == [group]


def test_the_trajectories_of_a_group_on_one_line_are_read_one_by_one() -> None:
    scored = row(teacher_logprobs={"content": [TOKEN]})
    line = json.dumps({"trajectories": [scored, scored]}).encode()
    assert list(TAUGHT.read(BytesIO(line))) == [taught_of(scored)] * 2


@pytest.mark.parametrize(
    ("choice", "at"),
    [
        ({}, ("messages_and_choices",)),
        ({"logprobs": None}, ("messages_and_choices",)),
        ({"teacher_logprobs": {"content": None}}, ("messages_and_choices",)),
        ({"teacher_logprobs": []}, SCORES),
        ({"teacher_logprobs": {"content": [{"token": "hi"}]}}, (*SCORES, "content", 0, "logprob")),
        ({"teacher_logprobs": {"content": [{**TOKEN, "logprob": 0.5}]}}, (*SCORES, "content", 0, "logprob")),
        ({"teacher_logprobs": {"content": [{**TOKEN, "bytes": [256]}]}}, (*SCORES, "content", 0, "bytes")),
        ({"teacher_logprobs": {"content": [{**TOKEN, "id": -1}]}}, (*SCORES, "content", 0, "id")),
        (
            {"teacher_logprobs": {"content": [{**TOKEN, "top_logprobs": [{"token": "x", "logprob": 2}]}]}},
            (*SCORES, "content", 0, "top_logprobs", 0, "logprob"),
        ),
        (
            {"teacher_logprob": {"content": [TOKEN]}, "logprobs": {"content": [TOKEN]}},
            ("messages_and_choices", 1, "teacher_logprob"),
        ),
    ],
)
def test_what_is_wrong_is_refused_at_its_place(choice: dict[str, Any], at: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidInput) as wrong:
        taught_of(row(**choice))
    assert wrong.value.problems[0].loc == at


def test_what_is_wrong_in_a_further_history_is_refused_there() -> None:
    wrong_row = row(teacher_logprobs={"content": [{"token": "hi", "logprob": 1}]})
    with pytest.raises(InvalidInput) as wrong:
        taught_of({**row(teacher_logprobs={"content": [TOKEN]}), "additional_histories": [wrong_row]})
    assert wrong.value.problems[0].loc[:5] == (*("additional_histories", 0), *("messages_and_choices", 1), TEACHER)


def test_a_long_answer_with_many_alternatives_is_one_row() -> None:
    top = tuple(TokenLogprob(f"tok{one}", -3.0 - one, (1, 2, 3), id=one) for one in range(20))
    entries = tuple(TokenLogprob("word ", -0.1, (*b"word ",), top, 7) for _ in range(3000))
    answer = SampledChoice(Message(Role.ASSISTANT, "x"), teacher=entries)
    (found,) = TAUGHT.read(BytesIO(dump_taught(Trajectory((History((Message(Role.USER, "hi"), answer)),)))))
    (choice,) = [item for item in found.histories[0].items if isinstance(item, SampledChoice)]
    assert choice.teacher is not None
    assert [(one.id, one.logprob) for one in choice.teacher[0].top] == [(one.id, one.logprob) for one in top]


def test_of_a_row_that_was_scored_no_sampler_is_taken_for_the_teacher() -> None:
    unscored = {"message": {"role": "assistant", "content": "hi"}, "logprobs": {"content": [TOKEN]}}
    scored = {**unscored, "teacher_logprobs": {"content": [TOKEN]}}
    for rows in ([scored, ASKED, unscored], [unscored, ASKED, scored]):
        found = taught_of({"messages_and_choices": [ASKED, *rows]})
        assert list(TAUGHT.read(BytesIO(dump_taught(found)))) == [found]
        taught = [one.teacher is not None for one in found.histories[0].items if isinstance(one, SampledChoice)]
        assert sorted(taught) == [False, True]


def test_as_many_tokens_are_scored_as_were_sampled() -> None:
    with pytest.raises(InvalidInput, match="2 token_ids") as wrong:
        taught_of(row(teacher_logprobs={"content": [TOKEN]}, token_ids=[7, 8]))
    assert wrong.value.problems[0].loc == SCORES


@pytest.mark.parametrize("value", [None, 7, "text", [], {}, {"messages_and_choices": 7}, {"messages_and_choices": [7]}])
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(InvalidInput):
        taught_of(value)
