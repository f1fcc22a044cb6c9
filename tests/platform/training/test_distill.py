"""Distillation: jobs on what a teacher said of each token, from their rows to the model that answers as it would."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

import attrs
import pytest

from modelyard.compose import open_platform
from modelyard.domain.completion import Message, Role, TokenLogprob
from modelyard.domain.job import JobKind
from modelyard.domain.training import History, SampledChoice, Trajectory, TrajectoryGroup
from modelyard.errors import InvalidInput, JobFailed
from modelyard.formats.taught import dump_taught
from modelyard.platform.platform import Platform

COLOURS = {"sea": "It is blue.", "grass": "It is green.", "fire": "It is red."}


def asked(word: str) -> str:
    return f"What colour is the {word}?"


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    """Has a teacher that knows some colours."""
    with open_platform(randomness=Random(1).randbytes) as opened:
        opened.models.create("teacher", project="p", base_model="tabular-mini")
        rows = [
            {"messages": [{"role": "user", "content": asked(word)}, {"role": "assistant", "content": answer}]}
            for word, answer in COLOURS.items()
        ]
        opened.training.sft("p/teacher", rows * 20, learning_rate=1e-4).result()
        yield opened


@pytest.fixture(scope="module")
def answers(platform: Platform) -> Sequence[Trajectory]:
    """What the teacher answers, with the likeliest tokens at each place."""
    found = []
    for word in COLOURS:
        answer = platform.chat.complete(
            model="p/teacher", messages=asked(word), logprobs=True, top_logprobs=20, max_tokens=20, temperature=0
        )
        found.append(Trajectory.of([Message(Role.USER, asked(word))], answer.choices[0], 0.0))
    return found


@pytest.fixture
def student(platform: Platform) -> Iterator[str]:
    platform.models.create("student", project="p", base_model="tabular-mini")
    yield "p/student"
    platform.models.delete("p/student")


def losses(job: Any) -> list[float]:
    return [event.data["loss"] for event in job.events() if event.type == "gradient_step"]


def said(platform: Platform, model: str) -> list[str | None]:
    return [
        platform.chat.complete(model=model, messages=asked(word), max_tokens=20, temperature=0).text for word in COLOURS
    ]


@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_a_model_learns_to_answer_as_its_teacher(
    platform: Platform, student: str, answers: Sequence[Trajectory], beta: float
) -> None:
    job = platform.training.distill(student, [*answers] * 20, learning_rate=1e-4, beta=beta)
    found = losses(job)
    assert len(found) == 30
    assert found[-1] < found[0] / 2
    assert job.refresh().kind == JobKind.DISTILL
    assert job.refresh().config["beta"] == beta
    if beta == 0:
        assert said(platform, student) == [*COLOURS.values()] == said(platform, "p/teacher")


def test_every_form_of_the_same_rows_trains_the_same(
    platform: Platform, student: str, answers: Sequence[Trajectory], tmp_path: Path
) -> None:
    lines = b"".join(map(dump_taught, answers))
    (tmp_path / "rows.jsonl").write_bytes(lines)
    plain = [json.loads(line) for line in lines.splitlines()]
    dataset = platform.training.upload("scored", answers, project="p")
    forms: Mapping[str, Any] = {
        "values": answers,
        "plain data": plain,
        "a group": [TrajectoryGroup(tuple(answers))],
        "a plain group": [{"trajectories": plain}],
        "an iterator": iter(answers),
        "a file": tmp_path / "rows.jsonl",
        "a dataset": dataset.url,
    }
    metrics = {}
    for name, rows in forms.items():
        platform.models.create("form", project="p", base_model="tabular-mini")
        metrics[name] = platform.training.distill("p/form", rows, learning_rate=1e-4).result().metrics
        platform.models.delete("p/form")
    assert all(one == metrics["values"] for one in metrics.values()), metrics


def test_the_same_by_ids_and_by_bytes(platform: Platform, student: str, answers: Sequence[Trajectory]) -> None:
    def without(entry: TokenLogprob) -> TokenLogprob:
        return attrs.evolve(entry, id=None, top=tuple(map(without, entry.top)))

    def by_bytes(one: Trajectory) -> Trajectory:
        *before, choice = one.histories[0].items
        assert isinstance(choice, SampledChoice)
        bare = attrs.evolve(choice, logprobs=tuple(map(without, choice.logprobs or ())), token_ids=())
        return attrs.evolve(one, histories=(History((*before, bare)),))

    first = losses(platform.training.distill(student, answers, learning_rate=1e-9))
    again = losses(platform.training.distill(student, [*map(by_bytes, answers)], learning_rate=1e-9))
    assert again == pytest.approx(first, rel=1e-3)


def test_held_out_rows_and_epochs_are_as_in_sft(
    platform: Platform, student: str, answers: Sequence[Trajectory]
) -> None:
    job = platform.training.distill(student, answers, epochs=3, batch_size=1, learning_rate=[1e-5] * 9)
    assert len(losses(job)) == 9


def refused(platform: Platform, student: str, data: Any, **options: Any) -> tuple[tuple[str | int, ...], str]:
    with pytest.raises(InvalidInput) as wrong:
        platform.training.distill(student, data, **options)
    return wrong.value.problems[0].loc, wrong.value.problems[0].msg


def test_what_no_teacher_has_scored_is_refused(platform: Platform, student: str) -> None:
    unscored = Trajectory((History((Message(Role.USER, "hi"), SampledChoice(Message(Role.ASSISTANT, "ho")))),))
    place, text = refused(platform, student, [unscored])
    assert place[:2] == ("data", 0)
    assert "teacher_logprobs" in text
    example = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}
    assert refused(platform, student, [example])[0][:2] == ("data", 0)
    assert refused(platform, student, [])[0] == ("data",)


@pytest.mark.parametrize("beta", [-0.1, 1.1, float("nan")])
def test_a_divergence_lies_between_the_two_kls(
    platform: Platform, student: str, answers: Sequence[Trajectory], beta: float
) -> None:
    assert refused(platform, student, answers, beta=beta)[0] == ("beta",)


def test_rows_of_another_method_are_refused_by_their_dataset(
    platform: Platform, student: str, answers: Sequence[Trajectory]
) -> None:
    scored = platform.training.upload("scored", answers, project="p")
    with pytest.raises(InvalidInput, match="messages"):
        platform.training.sft(student, scored)
    row = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}
    examples = platform.training.upload("examples", [row], project="p")
    with pytest.raises(InvalidInput, match="messages_and_choices"):
        platform.training.distill(student, examples.url)


@pytest.mark.parts
def test_a_file_has_rows_of_one_form(platform: Platform, answers: Sequence[Trajectory], tmp_path: Path) -> None:
    row = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]}
    (tmp_path / "mixed.jsonl").write_bytes(json.dumps(row).encode() + b"\n" + dump_taught(answers[0]))
    with pytest.raises(InvalidInput, match="as in the rows before it"):
        platform.training.upload("mixed", tmp_path / "mixed.jsonl", project="p")


def test_a_teacher_with_another_tokenizer_is_told_at_the_token(platform: Platform, student: str) -> None:
    foreign = SampledChoice(
        Message(Role.ASSISTANT, "hello"), teacher=(TokenLogprob("hello there", -1.0, (*b"hello there",)),)
    )
    job = platform.training.distill(student, [Trajectory((History((Message(Role.USER, "hi"), foreign)),))])
    with pytest.raises(JobFailed, match="no token of this model"):
        job.result()


def scored(*entries: TokenLogprob, token_ids: tuple[int, ...] = (), further: bool = False) -> Trajectory:
    choice = SampledChoice(Message(Role.ASSISTANT, "a"), teacher=entries, token_ids=token_ids)
    plain = History((Message(Role.USER, "hi"), Message(Role.ASSISTANT, "ho")))
    history = History((Message(Role.USER, "hi"), choice))
    return Trajectory((plain, history) if further else (history,))


def a(logprob: float = -1.0, **more: Any) -> TokenLogprob:
    return attrs.evolve(TokenLogprob("a", logprob, (97,)), **more)


def test_alternatives_that_the_model_does_not_have_are_of_the_rest(platform: Platform, student: str) -> None:
    known = TokenLogprob("b", -1.5, (98,))
    first = losses(platform.training.distill(student, [scored(a(top=(known,)))], learning_rate=1e-9))
    for other in (TokenLogprob("z", -3.0, id=10**9), TokenLogprob("\u4e16\u754c", -3.0, (*"\u4e16\u754c".encode(),))):
        again = platform.training.distill(student, [scored(a(top=(known, other)))], learning_rate=1e-9)
        assert losses(again) == pytest.approx(first, rel=1e-4)


def test_a_token_is_that_of_its_id_if_it_has_one(platform: Platform, student: str) -> None:
    by_bytes = platform.training.distill(student, [scored(a())], learning_rate=1e-9)
    by_id = platform.training.distill(student, [scored(TokenLogprob("\ufffd", -1.0, id=97))], learning_rate=1e-9)
    assert losses(by_id) == pytest.approx(losses(by_bytes), rel=1e-4)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (scored(TokenLogprob("\u4e16", -1.0, (*"\u4e16".encode(),)), token_ids=(97,)), "no token of this model"),
        (scored(a(id=98), token_ids=(97,)), "is token 98 to the teacher, and 97 stands there"),
        (scored(a(-0.1, top=(TokenLogprob("b", -0.1, (98,)),))), "add up to 1.81"),
        (scored(a(id=98), token_ids=(97,), further=True), "additional_histories.0.messages_and_choices.1"),
    ],
    ids=["unknown", "another", "too much", "further"],
)
def test_what_a_teacher_cannot_have_said_is_told_at_its_place(
    platform: Platform, student: str, row: Trajectory, says: str
) -> None:
    with pytest.raises(JobFailed, match=re.escape("teacher_logprobs.content.0")) as wrong:
        platform.training.distill(student, [row]).result()
    assert says in str(wrong.value)


def test_a_file_may_have_groups(
    platform: Platform, student: str, answers: Sequence[Trajectory], tmp_path: Path
) -> None:
    plain = [json.loads(dump_taught(one)) for one in answers]
    (tmp_path / "groups.jsonl").write_text(json.dumps({"trajectories": plain}))
    job = platform.training.distill(student, tmp_path / "groups.jsonl", batch_size=1)
    assert len(losses(job)) == len(answers)
