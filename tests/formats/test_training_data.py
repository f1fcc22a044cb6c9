"""Training data in the shapes that clients send: read strictly, kept line by line, the same on the way back."""

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from each import each_case
from example_counts import examples
from modelyard.domain.completion import ContentPart, FinishReason, Message, Role, TokenLogprob, Tool, ToolCall
from modelyard.domain.training import Example, History, RolloutError, SampledChoice, Trajectory, TrajectoryGroup
from modelyard.errors import InvalidInput
from modelyard.formats import training_data as training
from modelyard.formats import trajectories
from modelyard.formats.training_data import (
    DATASETS,
    dump_example,
    example_of,
    read_dataset,
    read_examples,
    read_groups,
    says_nothing,
)
from modelyard.formats.trajectories import dump_group, group_of

CAPTURES = Path(__file__).parent.parent / "captures" / "training"

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
OBJECTS = st.dictionaries(TEXT, st.none() | st.booleans() | st.integers(-9, 9) | TEXT | st.floats(-1, 1), max_size=3)
CALLS = st.lists(st.builds(ToolCall, TEXT, TEXT, TEXT), max_size=2).map(tuple)
IMAGES = st.fixed_dictionaries({"url": TEXT, "detail": st.sampled_from(["auto", "low", "high"])})
PARTS = (
    st.builds(ContentPart, st.just("text"), TEXT)
    | st.builds(ContentPart, st.just("image_url"), data=IMAGES)
    | st.builds(ContentPart, st.just("input_audio"), data=st.fixed_dictionaries({"data": TEXT}))
)
CONTENT = st.none() | TEXT | st.lists(PARTS, max_size=3).map(tuple)
MESSAGES = st.builds(Message, st.sampled_from(Role), CONTENT, st.none() | TEXT, CALLS, st.none() | TEXT)
ANSWERS = st.builds(Message, st.just(Role.ASSISTANT), CONTENT, tool_calls=CALLS)
TOOLS = st.lists(st.builds(Tool, TEXT, TEXT, OBJECTS, st.booleans()), max_size=2).map(tuple)
EXAMPLES = st.builds(
    lambda messages, last, tools: Example((*messages, last), tools), st.lists(MESSAGES), ANSWERS, TOOLS
).filter(lambda one: not any(says_nothing(message) for message in one.messages if message.role is Role.ASSISTANT))
LOGPROBS = st.builds(
    TokenLogprob, TEXT, st.floats(-100, 0), st.none() | st.lists(st.integers(0, 255), max_size=4).map(tuple)
)


@st.composite
def choices(draw: st.DrawFn) -> SampledChoice:
    logprobs = draw(st.none() | st.lists(LOGPROBS, max_size=4).map(tuple))
    size = 3 if logprobs is None else len(logprobs)
    ids = st.lists(st.integers(0, 10**6), min_size=size, max_size=size).map(tuple)
    return SampledChoice(
        draw(ANSWERS), draw(st.sampled_from(FinishReason)), logprobs, draw(st.just(()) | ids), draw(st.just(()) | ids)
    )


HISTORIES = st.builds(History, st.lists(MESSAGES | choices(), max_size=3).map(tuple), TOOLS)
STEPS = st.none() | st.integers(0, 9)
LOGS = st.lists(TEXT, max_size=2).map(tuple)
TRAJECTORIES = st.builds(
    Trajectory,
    st.lists(HISTORIES, min_size=1, max_size=2).map(tuple),
    st.floats(-10, 10),
    OBJECTS,
    OBJECTS,
    LOGS,
    STEPS,
    STEPS,
)
GROUPS = st.builds(
    TrajectoryGroup,
    st.lists(TRAJECTORIES, max_size=2).map(tuple),
    st.lists(st.builds(RolloutError, TEXT, TEXT, TEXT), max_size=1).map(tuple),
    OBJECTS,
    OBJECTS,
    LOGS,
)


def answered(**fields: Any) -> dict[str, Any]:
    return {"message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop", **fields}


def trajectory(*items: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    return {"messages_and_choices": list(items), **fields}


def choice_of(plain: Mapping[str, Any]) -> SampledChoice:
    (item,) = group_of({"trajectories": [trajectory(plain)]}).trajectories[0].histories[0].items
    assert isinstance(item, SampledChoice)
    return item


def captured(name: str) -> list[dict[str, Any]]:
    (path,) = CAPTURES.glob(f"{name}-*.json")
    return [exchange["request"]["body"] for exchange in json.loads(path.read_text())["exchanges"]]


# ---- there and back ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@examples(25)
@given(st.lists(EXAMPLES, max_size=3))
def test_examples_survive_the_way_there_and_back(examples: list[Example]) -> None:
    lines = b"".join(map(dump_example, examples))
    assert lines.count(b"\n") == len(examples)
    assert list(read_examples(io.BytesIO(lines))) == examples


@pytest.mark.slow
@examples(25)
@given(st.lists(GROUPS, max_size=2))
def test_groups_survive_the_way_there_and_back(groups: list[TrajectoryGroup]) -> None:
    assert list(read_groups(io.BytesIO(b"".join(map(dump_group, groups))))) == groups


@each_case("name", ["10", "11", "12", "17"])
def test_the_groups_that_a_public_client_sends_are_read(name: str) -> None:
    for group in captured(name)[0]["trajectory_groups"]:
        read = group_of(group)
        assert [one.reward for one in read.trajectories] == [one["reward"] for one in group["trajectories"]]
        assert [len(one.histories) for one in read.trajectories] == [
            1 + len(one["additional_histories"]) for one in group["trajectories"]
        ]
        assert list(read_groups(io.BytesIO(dump_group(read)))) == [read]
        assert list(read_groups(io.BytesIO(json.dumps(group).encode()))) == [read]


def test_all_parts_of_a_captured_group_arrive() -> None:
    group = group_of(captured("11")[0]["trajectory_groups"][0])
    with_tools = group.trajectories[2]
    assert [type(item) for item in with_tools.histories[0].items][-1] is SampledChoice
    assert with_tools.histories[0].tools[0].name == "lookup"
    sampled = with_tools.histories[0].items[-1]
    assert isinstance(sampled, SampledChoice)
    assert sampled.token_ids == (100, 101, 102, 103, 104)
    assert sampled.logprobs is not None
    assert sampled.logprobs[0] == TokenLogprob(" Hello", -0.25, tuple(b" Hello"))
    assert sampled.finish_reason is FinishReason.TOOL_CALLS
    assert sampled.message.tool_calls[0].name == "lookup"
    assert with_tools.histories[1:]
    assert group.exceptions[0].type


def test_trajectories_on_lines_of_their_own_belong_to_the_group_that_follows() -> None:
    lines = [trajectory(reward=1), trajectory(reward=2), {"trajectories": [trajectory(reward=3)], "logs": ["a"]}]
    first, second = read_groups(io.BytesIO(b"\n".join(json.dumps(row).encode() for row in [*lines, *lines[1:]])))
    assert [one.reward for one in first.trajectories] == [1, 2, 3]
    assert [one.reward for one in second.trajectories] == [2, 3]
    assert first.logs == ("a",)


def test_ids_that_a_backend_gave_with_its_logprobs_are_kept() -> None:
    logprobs = (TokenLogprob("a", -1.0, (97,), id=97), TokenLogprob("", -2.0, (), id=256))
    group = TrajectoryGroup(
        (Trajectory((History((SampledChoice(Message(Role.ASSISTANT, "a"), logprobs=logprobs),)),)),)
    )
    (read,) = read_groups(io.BytesIO(dump_group(group)))
    (item,) = read.trajectories[0].histories[0].items
    assert isinstance(item, SampledChoice)
    assert item.token_ids == (97, 256)
    half = attrs.evolve(item, token_ids=(), logprobs=(logprobs[0], attrs.evolve(logprobs[1], id=None)))
    assert trajectories._plain_choice(half)["token_ids"] == ()


# ---- shapes --------------------------------------------------------------------------------------------------------


def test_extras_are_dropped_except_the_sampled_ids() -> None:
    token = {"token": "x", "logprob": -1, "bytes": [120], "top_logprobs": [{"token": "y", "logprob": -2}]}
    plain = answered(
        logprobs={"content": [token], "refusal": None}, token_ids=[5], prompt_token_ids=[1, 2], stop_reason=None, seed=1
    )
    assert choice_of(plain) == SampledChoice(
        Message(Role.ASSISTANT, "hi"), FinishReason.STOP, (TokenLogprob("x", -1.0, (120,)),), (5,), (1, 2)
    )


def test_the_older_spelling_of_ids_is_read() -> None:
    tokens = [{"token": f"token_id:{number}", "logprob": -1.0} for number in (17, 4)]
    assert choice_of(answered(logprobs={"content": tokens})).token_ids == (17, 4)
    tokens.append({"token": " word", "logprob": -1.0})
    assert choice_of(answered(logprobs={"content": tokens})).token_ids == ()
    assert choice_of(answered(logprobs={"content": [{"token": "token_id:²", "logprob": -1.0}]})).token_ids == ()


def test_null_is_as_good_as_absent() -> None:
    names = ("tools", "additional_histories", "reward", "metrics", "metadata", "logs", "initial_policy_version")
    group = {"trajectories": [trajectory(**dict.fromkeys(names))], "exceptions": None, "metadata": None}
    assert group_of(group) == TrajectoryGroup((Trajectory((History(()),)),))
    assert choice_of(answered(logprobs=None, token_ids=None)).logprobs is None
    assert choice_of(answered(logprobs={"content": None})).logprobs is None


def test_blank_lines_and_a_missing_last_line_break_mean_nothing() -> None:
    row = b'{"messages": [{"role": "assistant", "content": "hi"}]}'
    assert len(list(read_examples(io.BytesIO(b"\n" + row + b"\r\n  \n" + row)))) == 2


MESSAGE = {"role": "assistant", "content": "hi"}


@each_case(
    ("row", "loc", "says"),
    [
        ([], (), "must be an object"),
        ({}, ("messages",), "is required"),
        ({"messages": {}}, ("messages",), "must be a list"),
        ({"messages": []}, ("messages",), "no assistant message"),
        ({"messages": [{"role": "user", "content": "hi"}]}, ("messages",), "no assistant message"),
        ({"messages": [MESSAGE, 5]}, ("messages", 1), "must be an object"),
        ({"messages": [{"content": "hi"}]}, ("messages", 0, "role"), "is required"),
        ({"messages": [{"role": "robot"}]}, ("messages", 0, "role"), "must be 'system', 'developer', 'user'"),
        ({"messages": [{"role": "user", "content": 5}]}, ("messages", 0, "content"), "must be a string"),
        ({"messages": [{"role": "user", "content": [{}]}]}, ("messages", 0, "content", 0, "type"), "is required"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]},
            ("messages", 0, "tool_calls", 0, "function", "name"),
            "is required",
        ),
        (
            {"messages": [MESSAGE], "tools": [{"type": "search", "function": {"name": "f"}}]},
            ("tools", 0, "type"),
            "must be 'function'",
        ),
        ({"messages": [MESSAGE], "tools": [{"function": {"name": 5}}]}, ("tools", 0, "function", "name"), "a string"),
    ],
)
def test_a_bad_example_is_named_by_line_and_field(row: object, loc: tuple[str | int, ...], says: str) -> None:
    good = json.dumps({"messages": [MESSAGE]}).encode()
    with pytest.raises(InvalidInput) as caught:
        list(read_examples(io.BytesIO(good + b"\n\n" + json.dumps(row).encode())))
    (problem,) = caught.value.problems
    assert (problem.loc, says in problem.msg) == (("line", 3, *loc), True), problem


@each_case(
    ("row", "loc", "says"),
    [
        ({}, ("trajectories",), "is required"),
        ({"trajectories": [{}]}, ("trajectories", 0, "messages_and_choices"), "is required"),
        ({"trajectories": [trajectory(reward="1")]}, ("trajectories", 0, "reward"), "must be a number"),
        ({"trajectories": [trajectory(reward=1e200)]}, ("trajectories", 0, "reward"), "from -1e+100 to 1e+100"),
        ({"trajectories": [trajectory(rewrad=1)]}, ("trajectories", 0, "rewrad"), "did you mean 'reward'?"),
        ({"trajectories": [], "metdata": {}}, ("metdata",), "did you mean 'metadata'?"),
        (
            {"trajectories": [trajectory({"role": "user", "contnet": "x"})]},
            ("trajectories", 0, "messages_and_choices", 0, "contnet"),
            "did you mean 'content'?",
        ),
        (
            {"trajectories": [trajectory({"role": "assistant", "weight": 0})]},
            ("trajectories", 0, "messages_and_choices", 0, "weight"),
            "is not known",
        ),
        (
            {"trajectories": [trajectory(initial_policy_version=1.5)]},
            ("trajectories", 0, "initial_policy_version"),
            "whole",
        ),
        ({"trajectories": [trajectory(metrics=[])]}, ("trajectories", 0, "metrics"), "must be an object"),
        ({"trajectories": [], "exceptions": [{"type": 5}]}, ("exceptions", 0, "type"), "must be a string"),
        ({"trajectories": [], "logs": [5]}, ("logs", 0), "must be a string"),
    ],
)
def test_a_bad_group_is_named_by_line_and_field(row: object, loc: tuple[str | int, ...], says: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        list(read_groups(io.BytesIO(json.dumps(row).encode())))
    (problem,) = caught.value.problems
    assert (problem.loc, says in problem.msg) == (("line", 1, *loc), True), problem


@each_case(
    ("choice", "loc", "says"),
    [
        ({"message": None, "finish_reason": "stop"}, ("message",), "is required"),
        (answered(message={"role": "user", "content": "hi"}), ("message", "role"), "must be 'assistant'"),
        (answered(finish_reason="tired"), ("finish_reason",), "must be one of"),
        (answered(logprobs=[]), ("logprobs",), "must be an object"),
        (answered(logprobs={"content": [{"token": "a"}]}), ("logprobs", "content", 0, "logprob"), "is required"),
        (answered(logprobs={"content": [{"logprob": -1}]}), ("logprobs", "content", 0, "token"), "is required"),
        (
            answered(logprobs={"content": [{"token": "a", "logprob": 0.5}]}),
            ("logprobs", "content", 0, "logprob"),
            "0 or less",
        ),
        (
            answered(logprobs={"content": [{"token": "a", "logprob": -1, "bytes": [256]}]}),
            ("logprobs", "content", 0, "bytes"),
            "0 to 255",
        ),
        (answered(logprbs=None, logprobs_=[1]), ("logprobs_",), "did you mean 'logprobs'"),
        (answered(message={"content": "a", "tool_cals": []}), ("message", "tool_cals"), "did you mean 'tool_calls'"),
        (answered(message={"content": "a", "weight": 0}), ("message", "weight"), "is not known"),
        (answered(message={"content": "a", "wieght": 0}), ("message", "wieght"), "is not known"),
        (answered(trainable=False), ("trainable",), "is not known"),
        (answered(logprobs={"content": [], "loss_mask": []}), ("logprobs", "loss_mask"), "is not known"),
        (answered(token_ids=[-1]), ("token_ids", 0), "0 or more"),
        (answered(token_ids=[1.0]), ("token_ids", 0), "whole number"),
        (answered(logprobs={"content": []}, token_ids=[1]), ("token_ids",), "one id for each of the 0 logprobs"),
    ],
)
def test_a_bad_choice_is_named_by_field(choice: Mapping[str, Any], loc: tuple[str | int, ...], says: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        group_of({"trajectories": [trajectory(), trajectory({"role": "user"}, choice)]})
    (problem,) = caught.value.problems
    expected = ("trajectories", 1, "messages_and_choices", 1, *loc)
    assert (problem.loc, says in problem.msg) == (expected, True), problem


def test_a_file_that_ends_inside_a_group_is_refused() -> None:
    lines = dump_group(TrajectoryGroup((Trajectory((History(()),)),)))
    with pytest.raises(InvalidInput, match="cut off"):
        list(read_groups(io.BytesIO(lines.split(b"\n")[0])))


@pytest.mark.slow
def test_a_line_that_is_too_long_is_refused() -> None:
    with pytest.raises(InvalidInput, match="longer than 16777216 bytes"):
        list(read_examples(io.BytesIO(b'{"messages": "' + b"x" * 2**24)))
    assert list(read_examples(io.BytesIO(b" " * 2**25 + b"\n"))) == []


@each_case("value", [float("nan"), 2**64, "\ud800", {1, 2}, [[[[]]] * 100_000]])
def test_what_could_not_be_read_back_is_not_written(value: object) -> None:
    with pytest.raises(InvalidInput):
        dump_group(TrajectoryGroup((Trajectory((History(()),), metadata={"value": value}),)))


# ---- what members say --------------------------------------------------------------------------------------------


@each_case(("reward", "number"), [(True, 1.0), (False, 0.0), (None, 0.0), (-3, -3.0), (0.5, 0.5)])
def test_a_reward_is_a_number_or_whether_it_is_right(reward: object, number: float) -> None:
    (read,) = group_of({"trajectories": [trajectory(reward=reward)]}).trajectories
    assert (read.reward, type(read.reward)) == (number, float)


def test_what_servers_add_to_their_answers_is_dropped() -> None:
    plain = answered(matched_stop=2, weight_version="1", native_finish_reason="end_turn", index=3)
    plain["message"] |= {"annotations": [], "audio": {"id": "a"}, "provider_specific_fields": {}}
    assert choice_of(plain) == SampledChoice(Message(Role.ASSISTANT, "hi"))


def test_members_of_public_data_sets_that_mean_nothing_are_left_out() -> None:
    row = {
        "prompt": "hi there",
        "prompt_id": "a1",
        "category": "Chat",
        "metadata": {"anything": [1]},
        "messages": [
            {"role": "user", "content": "hi there", "annotations": [], "weight": 0},
            {"role": "assistant", "content": "hi", "refusal": None, "function_call": None, "weight": 1},
        ],
    }
    assert example_of(row) == Example((Message(Role.USER, "hi there"), Message(Role.ASSISTANT, "hi")))


def test_a_refusal_is_the_answer_and_reasoning_has_two_names() -> None:
    row = {"messages": [{"role": "assistant", "content": None, "refusal": "I cannot.", "reasoning": "Hm."}]}
    assert example_of(row) == Example((Message(Role.ASSISTANT, "I cannot.", reasoning="Hm."),))


USER = {"role": "user", "content": "hi"}
PAIR = {"messages": [USER], "chosen": "a", "rejected": "b"}


@each_case(
    ("row", "loc", "says"),
    [
        ({"messages": [MESSAGE], "tols": []}, ("tols",), "did you mean 'tools'?"),
        ({"mesages": [MESSAGE]}, ("mesages",), "did you mean 'messages'?"),
        ({"messages": [MESSAGE], "weight": 0}, ("weight",), "is not known"),
        ({"messages": [MESSAGE], "prompt": "another"}, ("prompt",), "is not known"),
        ({"messages": [MESSAGE | {"trainable": False}]}, ("messages", 0, "trainable"), "is not known"),
        ({"messages": [MESSAGE | {"wieght": 0}]}, ("messages", 0, "wieght"), "did you mean 'weight'?"),
        *(
            ({"messages": [MESSAGE | {"weight": one}]}, ("messages", 0, "weight"), "must be a number from 0 to 1")
            for one in (1.5, -0.5)
        ),
        ({"messages": [MESSAGE | {"weight": True}]}, ("messages", 0, "weight"), "must be a number"),
        ({"messages": [MESSAGE | {"weight": 0}]}, ("messages", 0, "weight"), "nothing to learn from this row"),
        ({"messages": [USER | {"weight": 1}, MESSAGE]}, ("messages", 0, "weight"), "must be 0 or left out"),
        ({"messages": [USER | {"weight": 0.5}, MESSAGE]}, ("messages", 0, "weight"), "must be 0 or left out"),
        ({"messages": [MESSAGE], "chat_template_kwargs": [1]}, ("chat_template_kwargs",), "must be"),
        (PAIR | {"chosen": MESSAGE | {"weight": 0.5}}, ("chosen", "weight"), "must be 1"),
        ({"messages": [MESSAGE | {"refusal": "no"}]}, ("messages", 0, "refusal"), "must be null"),
        ({"messages": [MESSAGE | {"function_call": {}}]}, ("messages", 0, "function_call"), "send tool_calls"),
        (
            {"messages": [MESSAGE], "tools": [{"function": {"name": "f", "x": 1}}]},
            ("tools", 0, "function", "x"),
            "not known",
        ),
        (
            {"messages": [MESSAGE | {"tool_calls": [{"function": {"name": "f", "args": "{}"}}]}]},
            ("messages", 0, "tool_calls", 0, "function", "args"),
            "is not known",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "cache": 1}]}, MESSAGE]},
            ("messages", 0, "content", 0, "cache"),
            "is not known",
        ),
        (PAIR | {"chosen": MESSAGE | {"weight": 0}}, ("chosen", "weight"), "must be 1"),
        (PAIR | {"rejected": MESSAGE | {"wieght": 1}}, ("rejected", "wieght"), "did you mean 'weight'?"),
        (PAIR | {"messages": [MESSAGE | {"weight": 1}, USER]}, ("messages", 0, "weight"), "must be 0"),
        (PAIR | {"choosen": "c"}, ("choosen",), "did you mean 'chosen'?"),
    ],
)
def test_a_member_that_is_neither_honoured_nor_known_to_mean_nothing_is_refused_at_its_place(
    row: object, loc: tuple[str | int, ...], says: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        list(training.read_dataset(io.BytesIO(json.dumps(row).encode())))
    assert (caught.value.problems[0].loc, says in caught.value.problems[0].msg) == (("line", 1, *loc), True), (
        caught.value
    )


OBJECT_PLACES = ["row", "user", "assistant", "call", "function", "part", "tool", "definition"]
FOREIGN = st.text(st.characters(codec="ascii", categories=["L"]), min_size=1, max_size=9).map("x_{}".format)


@pytest.mark.slow
@examples(50)
@given(
    places=st.sets(st.sampled_from(OBJECT_PLACES)),
    name=FOREIGN,
    value=st.none() | st.integers() | TEXT | OBJECTS,
    weights=st.lists(st.sampled_from([None, 0, 1, 0.0, 1.0, 0.25]), min_size=2, max_size=2),
)
def test_a_row_with_any_members_is_read_as_it_says_or_refused_at_each_unknown_one(
    places: set[str], name: str, value: object, weights: list[float | None]
) -> None:
    def at(place: str, members: dict[str, Any]) -> dict[str, Any]:
        return members | ({name: value} if place in places else {})

    function = at("function", {"name": "f", "arguments": "{}"})
    answers = [{"role": "assistant", "content": "a", "weight": weight} for weight in weights]
    answers[1] = at("assistant", answers[1] | {"tool_calls": [at("call", {"id": "1", "function": function})]})
    user = at("user", {"role": "user", "content": [at("part", {"type": "text", "text": "hi"})]})
    tool = at("tool", {"type": "function", "function": at("definition", {"name": "f"})})
    row = at("row", {"messages": [user, *answers], "tools": [tool]})
    found: dict[str, tuple[str | int, ...]] = {
        "row": (),
        "user": ("messages", 0),
        "assistant": ("messages", 2),
        "call": ("messages", 2, "tool_calls", 0),
        "function": ("messages", 2, "tool_calls", 0, "function"),
        "part": ("messages", 0, "content", 0),
        "tool": ("tools", 0),
        "definition": ("tools", 0, "function"),
    }
    expected = {(*found[place], name) for place in places} if value is not None else set()
    if not expected and weights[0] == weights[1] == 0:
        expected = {("messages", 2, "weight")}
    try:
        read = example_of(row)
    except InvalidInput as refused:
        assert {problem.loc for problem in refused.problems} == expected
        return
    assert not expected
    assert read.untrained == tuple(at + 1 for at, weight in enumerate(weights) if weight == 0)
    assert read.weights == {at + 1: weight for at, weight in enumerate(weights) if weight == 0.25}
    assert list(read_examples(io.BytesIO(dump_example(read)))) == [read]


NOTHING: list[dict[str, Any]] = [{}, {"content": None}, {"content": []}, {"content": None, "tool_calls": []}]
NOTHING += [{"content": None, "refusal": ""}, {"reasoning_content": ""}]
CALLED = {"tool_calls": [{"function": {"name": "f"}}]}
SOMETHING: list[dict[str, Any]] = [{"content": ""}, {"refusal": "no"}, {"reasoning_content": "hm"}, CALLED]


@given(st.lists(st.sampled_from([*NOTHING, *SOMETHING]), min_size=1, max_size=3), st.integers(0, 2))
def test_an_answer_that_is_trained_says_something(answers: list[dict[str, Any]], untrained: int) -> None:
    """Each answer but one, which is read and not trained. An empty text is an answer, too."""
    messages: list[dict[str, Any]] = [USER]
    for at, answer in enumerate(answers):
        messages.append({"role": "assistant", **answer} | ({"weight": 0} if at == untrained else {}))
    messages.append(MESSAGE)
    empty = [at for at, answer in enumerate(answers) if at != untrained and answer in NOTHING]
    line = json.dumps({"messages": messages}).encode()
    if not empty:
        (read,) = read_examples(io.BytesIO(line))
        assert list(read_examples(io.BytesIO(dump_example(read)))) == [read]
        return
    with pytest.raises(InvalidInput) as caught:
        list(read_examples(io.BytesIO(line)))
    assert caught.value.problems[0].loc == ("line", 1, "messages", empty[0] + 1, "content")


@each_case("answer", [*NOTHING, *SOMETHING])
@each_case("name", ["chosen", "rejected"])
def test_so_does_each_answer_of_a_preference(answer: dict[str, Any], name: str) -> None:
    row = {"messages": [USER], "chosen": "a", "rejected": "b", name: answer}
    if answer in SOMETHING:
        assert training.preference_of(row)
        return
    with pytest.raises(InvalidInput) as caught:
        training.preference_of(row)
    assert caught.value.problems[0].loc == (name, "content")


@pytest.mark.parametrize("row", [{"messages": [USER, MESSAGE]}, PAIR])
def test_variables_of_the_template_are_kept_with_their_row(row: dict[str, Any]) -> None:
    given = {"enable_thinking": False, "style": {"a": [1, None]}}
    (read,) = read_dataset(io.BytesIO(json.dumps(row | {"chat_template_kwargs": given}).encode()))
    assert read.template == given
    assert json.loads(DATASETS.dump(read))["chat_template_kwargs"] == given
    (plain,) = read_dataset(io.BytesIO(json.dumps(row).encode()))
    assert (plain.template, "chat_template_kwargs" in json.loads(DATASETS.dump(plain))) == ({}, False)
