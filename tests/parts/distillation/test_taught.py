"""A teacher scores what a model sampled: the very tokens, each choice once, booked as any other request."""

import json
import threading
from collections.abc import Iterator, Sequence
from itertools import count
from random import Random
from typing import Any

import attrs
import pytest

from modelyard import Platform, Rollout, open_platform
from modelyard.domain.training import History, SampledChoice, Trajectory, TrajectoryGroup
from modelyard.errors import InvalidInput, ModelNotFound
from modelyard.formats.trajectories import dump_trajectory

WORDS = ("sea", "grass", "fire")
SAID = {"user": "Say", "assistant": "The"}


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    with open_platform(randomness=Random(1).randbytes) as opened:
        opened.models.create("teacher", project="p", base_model="tabular-mini")
        rows = [
            {"messages": [{"role": role, "content": f"{said} {word}."} for role, said in SAID.items()]}
            for word in WORDS
        ]
        opened.training.sft("p/teacher", rows * 20, learning_rate=1e-4).result()
        yield opened


def rollout(platform: Platform, *asked: str, seed: int = 1) -> Trajectory:
    made = Rollout(platform.chat, model="tabular-mini", max_tokens=6, seed=seed)
    for text in asked:
        made.ask(text)
    return made.trajectory(0.0)


def choices(one: Trajectory) -> list[SampledChoice]:
    return [item for history in one.histories for item in history.items if isinstance(item, SampledChoice)]


def test_each_token_has_the_log_probability_that_the_teacher_gives_it(platform: Platform) -> None:
    sampled = rollout(platform, "Say sea.", "Say grass.", "Say fire.")
    (scored,) = platform.training.taught("p/teacher", [sampled], top_logprobs=5)
    for given, choice in zip(choices(sampled), choices(scored), strict=True):
        assert attrs.evolve(choice, teacher=None) == given
        answer = platform.compat.completions.complete(
            model="p/teacher", prompt=[*given.prompt_token_ids, *given.token_ids], prompt_logprobs=5, max_tokens=1
        )
        known = answer.choices[0].prompt_logprobs[len(given.prompt_token_ids) - 1 :]
        assert choice.teacher == known
        assert [entry.id for entry in choice.teacher or ()] == [*given.token_ids]
        assert all(len(entry.top) == 5 for entry in choice.teacher or ())


def test_what_the_teacher_itself_sampled_is_scored_as_it_was_sampled(platform: Platform) -> None:
    made = Rollout(platform.chat, model="p/teacher", max_tokens=8, temperature=1.0, seed=3)
    made.ask("Say sea.")
    (scored,) = platform.training.taught("p/teacher", [made.trajectory(0.0)])
    (choice,) = choices(scored)
    for own, again in zip(choice.logprobs or (), choice.teacher or (), strict=True):
        assert again.logprob == pytest.approx(own.logprob, abs=1e-9)


def test_rows_come_in_their_order_however_many_are_scored_at_once(platform: Platform) -> None:
    sampled = [rollout(platform, f"Say {word}.", seed=seed) for word in WORDS for seed in range(3)]
    groups = [TrajectoryGroup(tuple(sampled[:4])), TrajectoryGroup(()), TrajectoryGroup(tuple(sampled[4:]))]
    for concurrency in (1, 2, 20):
        found = [*platform.training.taught("p/teacher", groups, concurrency=concurrency)]
        assert [[*map(without_teacher, choices(one))] for one in found] == [choices(one) for one in sampled]


def without_teacher(choice: SampledChoice) -> SampledChoice:
    return attrs.evolve(choice, teacher=None)


def test_a_conversation_is_read_once_and_booked(platform: Platform) -> None:
    sampled = rollout(platform, "Say sea.", "Say grass.", "Say fire.")
    before = platform.usage.total()[0].requests
    [*platform.training.taught("p/teacher", [sampled])]
    last = choices(sampled)[-1]
    whole = (*last.prompt_token_ids, *last.token_ids)
    begun = [(*one.prompt_token_ids, *one.token_ids) for one in choices(sampled)]
    apart = sum(whole[: len(ids)] != ids for ids in begun)
    assert platform.usage.total()[0].requests - before == 1 + apart


def test_rows_are_read_as_they_are_needed(platform: Platform) -> None:
    read = count()

    def rows() -> Iterator[Trajectory]:
        while True:
            next(read)
            yield rollout(platform, "Say sea.")

    scored = platform.training.taught("p/teacher", rows(), concurrency=2)
    next(scored)
    scored.close()  # type: ignore[attr-defined]
    assert next(read) <= 4
    assert not [one for one in threading.enumerate() if one.name.startswith("modelyard-teacher")]


@pytest.mark.parametrize("concurrency", [1, 2, 4])
@pytest.mark.parametrize("kind", ["a row", "the data"])
def test_what_was_asked_for_before_a_failure_is_given_before_it_is_raised(
    platform: Platform, kind: str, concurrency: int
) -> None:
    sampled = [rollout(platform, f"Say {word}.") for word in (*WORDS, "air")]
    bad = evolved(sampled[1], prompt_token_ids=())

    def rows() -> Iterator[Trajectory]:
        yield sampled[0]
        if kind == "the data":
            raise InvalidInput.at("file", msg="is cut off")
        yield from (bad, *sampled[2:])

    before, taken = platform.usage.total()[0].requests, []
    with pytest.raises(InvalidInput, match="file: is cut off" if kind == "the data" else "prompt_token_ids"):  # noqa: PT012
        for one in platform.training.taught("p/teacher", rows(), concurrency=concurrency):
            taken.append(without_teacher(choices(one)[0]))
    assert len(taken) == platform.usage.total()[0].requests - before
    known = [choices(one)[0] for one in sampled]
    assert [known.index(one) for one in taken] == sorted(known.index(one) for one in taken)
    assert taken[0] == known[0]


def test_a_group_of_episodes_is_taken_as_it_is(platform: Platform) -> None:
    platform.models.create("pupil", project="p", base_model="tabular-mini")
    with platform.episodes.group("g", model="p/pupil", size=2) as group:
        for episode in group:
            caller = platform.acting_as(platform.keys.authenticate(episode.key))
            caller.chat.complete(model="p/pupil", messages=[{"role": "user", "content": "Say sea."}], max_tokens=4)
            episode.reward(0)
    sampled = group.trajectories().trajectories
    for given in (group, [group], [group.trajectories()]):
        found = [*platform.training.taught("p/teacher", given)]
        assert [[*map(without_teacher, choices(one))] for one in found] == [choices(one) for one in sampled]
        assert all(one.teacher for each in found for one in choices(each))
    platform.training.distill("p/pupil", found, learning_rate=1e-4).wait()


@pytest.mark.parametrize("row", [3, None, "text", ["a", "list"], object()])
def test_what_is_no_trajectory_is_refused(platform: Platform, row: Any) -> None:
    assert wrong(platform, row) == (("data", 0), "must be a trajectory, or an object with one, or a group of them")
    if not isinstance(row, list):
        with pytest.raises(InvalidInput, match="data: must be trajectories or groups, not the name of a file"):
            [*platform.training.taught("p/teacher", row)]


def wrong(platform: Platform, *rows: Any, **options: Any) -> tuple[tuple[str | int, ...], str]:
    with pytest.raises(InvalidInput) as found:
        [*platform.training.taught("p/teacher", rows, **options)]
    return found.value.problems[0].loc, found.value.problems[0].msg


def evolved(one: Trajectory, **changes: Any) -> Trajectory:
    *before, choice = one.histories[0].items
    assert isinstance(choice, SampledChoice)
    return attrs.evolve(one, histories=(History((*before, attrs.evolve(choice, **changes))),))


@pytest.mark.parametrize("name", ["token_ids", "prompt_token_ids"])
def test_ids_are_needed(platform: Platform, name: str) -> None:
    sampled = rollout(platform, "Say sea.")
    (choice,) = choices(sampled)
    bare = tuple(attrs.evolve(entry, id=None) for entry in choice.logprobs or ())
    place, text = wrong(platform, sampled, evolved(sampled, **{"logprobs": bare, name: ()}))
    assert place == ("data", 1, "messages_and_choices", 1, name)
    assert "return_token_ids=True" in text


def test_a_teacher_that_reads_other_tokens_is_told(platform: Platform) -> None:
    sampled = rollout(platform, "Say sea.")
    (choice,) = choices(sampled)
    first, *others = choice.logprobs or ()
    foreign = (attrs.evolve(first, token="Zebra", bytes=(*b"Zebra",)), *others)
    place, text = wrong(platform, evolved(sampled, logprobs=foreign))
    assert place == ("data", 0, "messages_and_choices", 1, "logprobs", "content", 0)
    assert "one tokenizer" in text


def test_a_teacher_that_reads_otherwise_or_is_not_there_is_refused(platform: Platform) -> None:
    sampled = rollout(platform, "Say sea.")
    with pytest.raises(InvalidInput, match="one tokenizer"):
        [*platform.training.taught("echo", [sampled], top_logprobs=3)]
    with pytest.raises(InvalidInput, match="prompt_logprobs"):
        [*platform.training.taught("p/teacher", [sampled], top_logprobs=1000)]
    with pytest.raises(ModelNotFound):
        [*platform.training.taught("p/nobody", [sampled])]


def test_plain_rows_are_read_like_values(platform: Platform) -> None:
    sampled = rollout(platform, "Say sea.")
    plain = json.loads(dump_trajectory(sampled))
    (found,) = platform.training.taught("p/teacher", [plain])
    (same,) = platform.training.taught("p/teacher", [sampled])
    assert [one.teacher for one in choices(found)] == [one.teacher for one in choices(same)]


@pytest.mark.parametrize("row", ["text", {}, {"messages_and_choices": [{"role": "user", "content": "hi"}]}])
def test_what_was_not_sampled_is_refused(platform: Platform, row: Any) -> None:
    assert wrong(platform, row)[0][:2] == ("data", 0)


def test_on_what_it_sampled_itself_a_model_comes_nearer_to_its_teacher(platform: Platform) -> None:
    platform.models.create("student", project="p", base_model="tabular-mini")

    def sampled(number: int) -> Sequence[Trajectory]:
        found = []
        for word in WORDS:
            for seed in range(4):
                made = Rollout(platform.chat, model="p/student", max_tokens=6, seed=100 * number + seed)
                made.ask(f"Say {word}.")
                found.append(made.trajectory(0.0))
        return found

    def distance(number: int) -> float:
        scored = [*platform.training.taught("p/teacher", sampled(number))]
        gaps = [
            own.logprob - seen.logprob
            for one in scored
            for choice in choices(one)
            for own, seen in zip(choice.logprobs or (), choice.teacher or (), strict=True)
        ]
        platform.training.distill("p/student", scored, learning_rate=1e-4).result()
        return sum(gaps) / len(gaps)

    platform.training.distill("p/student", platform.training.taught("p/teacher", [rollout(platform, "Say sea.")]))
    found = [distance(number) for number in range(6)]
    assert found[-1] < found[0] / 2, found


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"top_logprobs": "x"}, "top_logprobs"),
        ({"top_logprobs": None}, "top_logprobs"),
        ({"concurrency": 0}, "concurrency"),
    ],
)
def test_numbers_are_checked_before_anything_is_asked(platform: Platform, options: Any, place: str) -> None:
    assert wrong(platform, rollout(platform, "Say sea."), **options)[0] == (place,)


def test_one_trajectory_is_taken_and_the_name_of_a_file_is_not(platform: Platform) -> None:
    sampled = rollout(platform, "Say sea.")
    assert len([*platform.training.taught("p/teacher", sampled)]) == 1  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="not the name of a file"):
        platform.training.taught("p/teacher", "rows.jsonl")  # type: ignore[arg-type]
