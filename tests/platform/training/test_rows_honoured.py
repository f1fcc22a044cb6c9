"""A row is trained as it says, or refused at its place: in Python, from a file, and from an uploaded dataset."""

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from example_counts import examples
from modelyard.compose import open_platform
from modelyard.domain.completion import ContentPart, Message, Role, TokenLogprob, Tool, ToolCall
from modelyard.domain.training import Example, History, Preference, SampledChoice, Trajectory, TrajectoryGroup
from modelyard.engines import TabularBackend
from modelyard.engines.tabular.tokenizer import encode
from modelyard.errors import InvalidInput, JobFailed
from modelyard.platform.platform import Platform
from modelyard.protocols import Capabilities

USER = {"role": "user", "content": "hello"}
ANSWER = {"role": "assistant", "content": "I am fine."}
IMAGE = {
    "role": "user",
    "content": [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "data:x"}}],
}
SOUND = {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}]}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]}
TOOL = {"type": "function", "function": {"name": "f"}}


class WithoutTools(TabularBackend):
    def capabilities(self, model: str) -> Capabilities:
        return attrs.evolve(super().capabilities(model), tools=False)


def opened(backend: TabularBackend) -> Iterator[Platform]:
    with open_platform(backend=backend) as platform:
        platform.models.create("m", project="p", base_model="tabular-mini")
        yield platform


@pytest.fixture
def platform() -> Iterator[Platform]:
    yield from opened(TabularBackend())


@pytest.fixture
def without_tools() -> Iterator[Platform]:
    yield from opened(WithoutTools())


# ---- what a base model cannot read ---------------------------------------------------------------------------------

THOUGHT = {**ANSWER, "reasoning_content": "so"}


def sampled(message: Any = ANSWER, **more: Any) -> dict[str, Any]:
    return {"message": message, "logprobs": {"content": [{"token": "I", "logprob": -1.0}]}, **more}


def rewarded(*items: Any, **more: Any) -> dict[str, Any]:
    """A group of a plain trajectory, and one of these items."""
    plain = {"messages_and_choices": [USER, sampled()], "reward": 1}
    return {"trajectories": [plain, {"messages_and_choices": [*items], "reward": 0, **more}]}


SECOND = ("trajectories", 1, "messages_and_choices")
GOOD: dict[str, dict[str, Any]] = {
    "sft": {"messages": [USER, ANSWER]},
    "dpo": {"messages": [USER], "chosen": "yes", "rejected": "no"},
    "rl": rewarded(USER, sampled()),
}


def as_plain(platform: Platform, rows: list[Any], folder: Path) -> tuple[Any, tuple[Any, ...]]:
    return rows, ("data", 1)


def as_file(platform: Platform, rows: list[Any], folder: Path) -> tuple[Any, tuple[Any, ...]]:
    path = folder / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return path, ("line", 2)


def as_dataset(platform: Platform, rows: list[Any], folder: Path) -> tuple[Any, tuple[Any, ...]]:
    return platform.training.upload("rows", rows, project="p").url, ("training_data_url", "line", 2)


DOORS = [as_plain, as_file, as_dataset]


CASES: list[tuple[str, Any, tuple[Any, ...], str]] = [
    ("sft", {"messages": [IMAGE, ANSWER]}, ("messages", 0, "content", 1), "does not take image_url"),
    ("sft", {"messages": [SOUND, ANSWER]}, ("messages", 0, "content", 0), "does not take input_audio"),
    ("sft", {"messages": [USER, CALL]}, ("messages", 1, "tool_calls"), "calls no tools"),
    ("sft", {"messages": [USER, ANSWER], "tools": [TOOL]}, ("tools",), "takes no tools"),
    ("dpo", {**GOOD["dpo"], "messages": [IMAGE]}, ("messages", 0, "content", 1), "does not take image_url"),
    ("dpo", {**GOOD["dpo"], "rejected": CALL}, ("rejected", "tool_calls"), "calls no tools"),
    ("dpo", {**GOOD["dpo"], "chosen": {"content": IMAGE["content"]}}, ("chosen", "content", 1), "image_url"),
    ("sft", {"messages": [USER, THOUGHT]}, ("messages", 1, "reasoning_content"), "writes no reasoning"),
    (
        "sft",
        {**GOOD["sft"], "chat_template_kwargs": {"enable_thinking": False, "preserve_thinking": True}},
        ("chat_template_kwargs", "enable_thinking"),
        "has no template that reads it",
    ),
    ("dpo", {**GOOD["dpo"], "chat_template_kwargs": {"a": 1}}, ("chat_template_kwargs", "a"), "has no template"),
    ("dpo", {**GOOD["dpo"], "rejected": THOUGHT}, ("rejected", "reasoning_content"), "writes no reasoning"),
    ("rl", rewarded(IMAGE, sampled()), (*SECOND, 0, "content", 1), "does not take image_url"),
    ("rl", rewarded(USER, sampled(THOUGHT)), (*SECOND, 1, "message", "reasoning_content"), "writes no reasoning"),
    ("rl", rewarded(USER, CALL, USER, sampled()), (*SECOND, 1, "tool_calls"), "calls no tools"),
    ("rl", rewarded(USER, sampled(), tools=[TOOL]), ("trajectories", 1, "tools"), "takes no tools"),
    (
        "rl",
        rewarded(USER, additional_histories=[{"messages_and_choices": [SOUND, sampled()]}]),
        ("trajectories", 1, "additional_histories", 0, "messages_and_choices", 0, "content", 0),
        "does not take input_audio",
    ),
]


@pytest.mark.parametrize(
    ("door", "method", "row", "place", "says"),
    [(door, *case) for case in CASES for door in DOORS if (door, case[0]) != (as_dataset, "rl")],
)
def test_what_a_base_model_cannot_read_is_refused_at_its_place_through_each_door(
    without_tools: Platform, tmp_path: Path, door: Any, method: str, row: Any, place: tuple[Any, ...], says: str
) -> None:
    data, below = door(without_tools, [GOOD[method], row], tmp_path)
    with pytest.raises(InvalidInput) as wrong:
        getattr(without_tools.training, method)("p/m", data)
    (problem,) = wrong.value.problems
    assert (problem.loc, says in problem.msg) == ((*below, *place), True), problem
    assert list(without_tools.training.list()) == []


def test_values_of_the_host_are_refused_as_plain_rows_are(without_tools: Platform) -> None:
    image = Message(Role.USER, (ContentPart("image_url", data={"url": "data:x"}),))
    asked, answered = Message(Role.USER, "x"), Message(Role.ASSISTANT, "y")
    called = Message(Role.ASSISTANT, tool_calls=(ToolCall("1", "f", "{}"),))
    cases: list[tuple[str, Any, tuple[Any, ...]]] = [
        ("sft", Example((image, answered)), ("messages", 0, "content", 0)),
        ("sft", Example((asked, answered), (Tool("f"),)), ("tools",)),
        ("dpo", Preference((asked,), called, answered), ("chosen", "tool_calls")),
        ("sft", Example((asked,)), ("messages",)),
    ]
    for method, row, place in cases:
        with pytest.raises(InvalidInput) as wrong:
            getattr(without_tools.training, method)("p/m", [row])
        assert wrong.value.problems[0].loc == ("data", 0, *place)


def test_tools_are_trained_where_the_model_reads_them_and_reasoning_that_it_cannot_write_is_refused(
    platform: Platform,
) -> None:
    assert platform.training.sft("p/m", [{"messages": [USER, CALL], "tools": [TOOL]}]).result().step == 1
    thought = {"messages": [USER, {**ANSWER, "reasoning_content": "so"}]}
    with pytest.raises(InvalidInput, match=r"data\.0\.messages\.1\.reasoning_content"):
        platform.training.sft("p/m", [thought])
    earlier = {"messages": [USER, {**ANSWER, "reasoning_content": "so", "weight": 0}, USER, ANSWER]}
    assert platform.training.sft("p/m", [earlier]).result().step == 2
    assert platform.training.sft("p/m", [{"messages": [USER, THOUGHT, *earlier["messages"]]}], assistant_turns="last")


ITEMS: list[Any] = [USER, IMAGE, ANSWER, THOUGHT, {"role": "assistant"}, sampled(), sampled(THOUGHT)]
ITEMS += [
    sampled(prompt_token_ids=[5]),
    {"message": ANSWER},
    {"message": {"content": None}},
    sampled({"content": None}),
]


@pytest.mark.slow
@examples(100)
@given(items=st.lists(st.sampled_from(range(len(ITEMS))), max_size=4), by_text=st.booleans())
@example(items=[1, 7], by_text=False)
@example(items=[5, 1], by_text=False)
@example(items=[0, 4], by_text=True)
def test_a_trajectory_is_refused_for_what_is_trained_and_for_what_its_trained_answers_follow(
    items: list[int], by_text: bool
) -> None:
    given = [ITEMS[at] for at in items]
    messages = [item.get("message", item) for item in given]
    by_its_text = [
        by_text and "logprobs" not in item and message.get("role", "assistant") == "assistant"
        for item, message in zip(given, messages, strict=True)
    ]
    trained = [text or "logprobs" in item for text, item in zip(by_its_text, given, strict=True)]
    read = max((at + 1 for at, is_ in enumerate(trained) if is_ and "prompt_token_ids" not in given[at]), default=0)
    wrong = any(message is IMAGE for message in messages[:read])
    wrong |= any(is_ and message is THOUGHT for is_, message in zip(trained, messages, strict=True))
    wrong |= any(is_ and not message.get("content") for is_, message in zip(by_its_text, messages, strict=True))
    with open_platform() as platform:
        platform.models.create("m", project="p", base_model="tabular-mini")
        try:
            platform.training.rl("p/m", [rewarded(*given)], allow_training_without_logprobs=by_text)
        except InvalidInput as refused:
            places = [one.loc[:4] for one in refused.problems]
            assert wrong, refused
            assert set(places) == {("data", 0, "trajectories", 1)}
        else:
            assert not wrong


# ---- weights -------------------------------------------------------------------------------------------------------

TEXTS = st.text("ab .\n", max_size=5)


@examples(12)
@given(
    rows=st.lists(
        st.lists(st.tuples(TEXTS, st.sampled_from([None, 0, 1])), min_size=1, max_size=3),
        min_size=1,
        max_size=3,
    ),
    which=st.sampled_from(["all", "last"]),
    door=st.sampled_from(["plain", "values", "dataset"]),
)
@example(rows=[[("a", 1)], [("a", 1), ("b", 0)]], which="last", door="plain")
def test_as_many_tokens_are_trained_as_the_rows_say(
    rows: list[list[tuple[str, int | None]]], which: Any, door: str
) -> None:
    data = [
        {"messages": [one for text, weight in row for one in (USER, {**ANSWER, "content": text, "weight": weight})]}
        for row in rows
    ]
    some = [[(text, weight) for text, weight in (row if which == "all" else row[-1:]) if weight != 0] for row in rows]
    expected = sum(len(encode(text)) + 1 for row in some for text, _ in row)
    with open_platform() as platform:
        platform.models.create("m", project="p", base_model="tabular-mini")
        silent = [number for number, row in enumerate(rows) if all(weight == 0 for _, weight in row)]
        if silent:
            with pytest.raises(InvalidInput) as wrong:
                platform.training.sft("p/m", data, assistant_turns=which)
            last = 2 * len(rows[silent[0]]) - 1
            assert wrong.value.problems[0].loc == ("data", silent[0], "messages", last, "weight")
            return
        given: Any = data
        if door == "values":
            given = [
                Example(
                    tuple(
                        one for text, _ in row for one in (Message(Role.USER, "hello"), Message(Role.ASSISTANT, text))
                    ),
                    untrained=tuple(2 * at + 1 for at, (_, weight) in enumerate(row) if weight == 0),
                )
                for row in rows
            ]
        if door == "dataset":
            given = platform.training.upload("rows", data, project="p").url
        job = platform.training.sft("p/m", given, assistant_turns=which, batch_size=1)
        if not expected:
            with pytest.raises(JobFailed, match="no row has a token to train"):
                job.result()
            return
        checkpoint = job.result()
        steps = [event.data for event in job.events() if event.type == "gradient_step"]
        assert sum(step["num_trainable_tokens"] for step in steps) == expected
        assert [("loss" in step, "entropy" in step) for step in steps] == [(bool(row), bool(row)) for row in some]
        assert "loss" in checkpoint.metrics or not some[-1]


@pytest.mark.parametrize("door", ["plain", "values", "dataset"])
def test_a_weight_scales_the_loss_of_its_message(platform: Platform, door: str) -> None:
    """Of two equal answers, the one of weight 0.5 adds half of what the other adds; both count as tokens."""
    losses = []
    for weight in (1, 0.5, 0.25):
        row: Any = {"messages": [USER, {**ANSWER, "weight": weight}]}
        if door == "values":
            asked, answered = Message(Role.USER, "hello"), Message(Role.ASSISTANT, "I am fine.")
            row = Example((asked, answered), weights={} if weight == 1 else {1: weight})
        data: Any = [{"messages": [USER, ANSWER]}, row]
        if door == "dataset":
            data = platform.training.upload("rows", data, project="p").url
        model = platform.models.create(f"m{weight}", project="p", base_model="tabular-mini")
        step = platform.training.sft(model, data, batch_size=2).result()
        losses.append((step.metrics["loss"], step.metrics["num_trainable_tokens"]))
    whole, tokens = losses[0]
    assert losses[1:] == [(pytest.approx(0.75 * whole), tokens), (pytest.approx(0.625 * whole), tokens)]


@pytest.mark.parametrize("weights", [{0: 0.5}, {1: 0}, {1: 1}, {1: -1}, {5: 0.5}])
def test_a_weight_of_a_value_is_between_0_and_1_and_an_assistants(weights: dict[int, float]) -> None:
    with pytest.raises(InvalidInput, match="assistant message"):
        Example((Message(Role.USER, "x"), Message(Role.ASSISTANT, "y")), weights=weights)


def test_rows_with_and_without_a_weight_are_two_versions(platform: Platform) -> None:
    rows: list[list[dict[str, Any]]] = [
        [{"messages": [USER, {**ANSWER, **weight}, USER, ANSWER]}] for weight in ({}, {"weight": 0}, {"weight": 1})
    ]
    assert [platform.training.upload("rows", one, project="p").version for one in rows] == [0, 1, 0]


# ---- no rule prefers what was not measured -------------------------------------------------------------------------


def test_a_checkpoint_whose_last_step_trained_nothing_is_not_the_best_and_stays(platform: Platform) -> None:
    """It takes no place among the best, and what was not measured is not removed."""
    platform.models.set_retention("p/m", keep_best=("loss", 1), lower_is_better=True)
    unmeasured = {"messages": [USER, ANSWER, USER, {**ANSWER, "weight": 0}]}
    good, worse = {"messages": [USER, ANSWER]}, {"messages": [USER, {**ANSWER, "content": "zqx vjq xxq"}]}
    for data, options in (([good] * 2, {}), ([good, unmeasured], {"assistant_turns": "last"}), ([worse], {})):
        platform.training.sft("p/m", data, batch_size=1, learning_rate=1e-9, **options).result()  # type: ignore[arg-type]
    found = {one.step: one.metrics for one in platform.models.checkpoints("p/m")}
    assert [step for step, metrics in found.items() if step and "loss" not in metrics] == [2]
    assert found[1]["loss"] < found[3]["loss"]


# ---- rewards -------------------------------------------------------------------------------------------------------


class Scalar:
    """A number of another library."""

    def __float__(self) -> float:
        return 0.25


def as_values(rewards: Any) -> Any:
    choice = SampledChoice(Message(Role.ASSISTANT, "x"), logprobs=(TokenLogprob("x", -1.0),))
    histories = (History((Message(Role.USER, "hi"), choice)),)
    return [TrajectoryGroup(tuple(Trajectory(histories, reward) for reward in rewards))]


def as_mappings(rewards: Any) -> Any:
    choice = {"message": {"content": "x"}, "logprobs": {"content": [{"token": "x", "logprob": -1.0}]}}
    return [{"trajectories": [{"messages_and_choices": [USER, choice], "reward": reward} for reward in rewards]}]


@pytest.mark.parametrize(
    ("make", "right", "number"),
    [
        *(
            (make, right, number)
            for make in (as_values, as_mappings)
            for right, number in ((True, 1.0), (1, 1.0), (0.5, 0.5))
        ),
        *((as_values, right, float(right)) for right in (Decimal("0.5"), Fraction(1, 4), Scalar())),
    ],
)
def test_a_reward_is_the_number_that_it_is_to_python(platform: Platform, make: Any, right: Any, number: float) -> None:
    job = platform.training.rl("p/m", make([right, False]))
    assert job.result().metrics["reward"] == number / 2


@pytest.mark.parametrize("make", [as_values, as_mappings])
@pytest.mark.parametrize("wrong", ["1", [1], {}, float("nan"), float("inf"), 1e200, -(10**400), b"1"])
def test_what_cannot_be_a_reward_is_refused_at_the_call_with_its_place(
    platform: Platform, make: Any, wrong: Any
) -> None:
    with pytest.raises(InvalidInput) as refused:
        platform.training.rl("p/m", [*make([1.0, 0.0]), *make([1.0, wrong])])
    assert refused.value.problems[0].loc[:4] == ("data", 1, "trajectories", 1)
    assert list(platform.training.list()) == []


REWARDS = st.floats() | st.floats(-1e100, 1e100) | st.booleans() | st.sampled_from([10**99, -(10**300), 10**400])


@examples(12)
@given(rewards=st.lists(REWARDS, min_size=2, max_size=4), scaled=st.booleans(), normalized=st.booleans())
@example(rewards=[1.7e308, -1.7e308], scaled=False, normalized=False)
def test_no_reward_ends_a_job_in_an_error_of_python(rewards: list[Any], scaled: bool, normalized: bool) -> None:
    with open_platform() as platform:
        platform.models.create("m", project="p", base_model="tabular-mini")
        options: Any = {"scale_rewards": scaled, "normalize_advantages": normalized}
        try:
            platform.training.rl("p/m", as_values(rewards), **options).result()
        except InvalidInput:
            pass
        except JobFailed as failed:
            assert re.search("went astray|diverged|nothing was trained", str(failed))
