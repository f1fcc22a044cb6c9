"""Train and evaluate a small model from end to end, on real data, in seconds: `modelyard quickstart`."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from modelyard.compose import open_platform
from modelyard.domain.completion import Message, Role
from modelyard.domain.training import Trajectory, TrajectoryGroup
from modelyard.platform.platform import Platform
from modelyard.report.table import means, sparkline, text_table

PROJECT = "quickstart"
BASE_MODEL = "tabular-mini"
PASSES = 1
BATCH = 2
ROUNDS = 6
PROMPTS = 8
SAMPLES = 6
RL_RATE = 1e-5
LONGEST = 80


def data_folder() -> Path:
    """Return the folder of the support data set: inside an installed package, or in the project's `examples`."""
    here = Path(__file__).parent
    installed = here / "examples" / "support"
    return installed if installed.exists() else here.parents[1] / "examples" / "support"


def run(folder: Path, say: Callable[[str], None] = click.echo) -> None:
    """Run through catalogue, base model, SFT, RL, evaluation and usage, and show each as it happens."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "yard.db"
    train, held_out = data_folder() / "train.jsonl", data_folder() / "held_out.jsonl"
    rows = [_row(line) for line in _lines(held_out)]
    with open_platform(file) as platform:
        say(f"A platform in one file: {file}\n")
        _show_catalogue(platform, say)
        name = _new_name(platform)
        model = f"local/{PROJECT}/{name}"
        platform.models.create(name, project=PROJECT, base_model=BASE_MODEL)
        question = rows[0]["messages"]
        _show_answer(platform, "the base model", BASE_MODEL, question, say)
        before = _evaluate(platform, BASE_MODEL, rows)
        _fine_tune(platform, f"{PROJECT}/{name}", train, say)
        _show_answer(platform, "the checkpoint", model, question, say)
        tuned = _evaluate(platform, model, rows)
        _reinforce(platform, f"{PROJECT}/{name}", model, _practice(train), say)
        _show_answer(platform, "the checkpoint after RL", model, question, say)
        after = _evaluate(platform, model, rows)
        _show_evaluations(rows, {BASE_MODEL: before, f"{name} after SFT": tuned, f"{name} after RL": after}, say)
        _show_usage(platform, say)
        _show_places(file, model, say)


def _lines(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def _practice(train: Path) -> list[Mapping[str, Any]]:
    """Return the training questions of the RL jobs: the same in each round, so that rewards can be compared."""
    lines = _lines(train)
    return [_row(line) for line in lines[:: len(lines) // PROMPTS][:PROMPTS]]


def _row(line: Mapping[str, Any]) -> Mapping[str, Any]:
    *prompt, answer = line["messages"]
    return {"messages": prompt, "expected": answer["content"]}


def _new_name(platform: Platform) -> str:
    """Return `support`, or `support-2` and so on if the quickstart ran on this file before."""
    number = 1
    while platform.models.find(name := "support" if number == 1 else f"support-{number}", project=PROJECT):
        number += 1
    return name


def _show_catalogue(platform: Platform, say: Callable[[str], None]) -> None:
    entries = platform.catalogue.list()
    listed = [(entry.id, entry.context_length, entry.pricing.prompt, entry.pricing.completion) for entry in entries]
    say(text_table(("model", "context", "USD/prompt token", "USD/answer token"), listed) + "\n")


def _show_answer(platform: Platform, who: str, model: str, messages: Any, say: Callable[[str], None]) -> None:
    answer = platform.chat.complete(model=model, messages=messages, temperature=0, max_tokens=LONGEST, project=PROJECT)
    say(f"{who} answers: {answer.text.strip()!r}\n")


def overlap(output: str, row: Mapping[str, Any]) -> float:
    """Return the F1 score of the words of an answer against those of the expected answer."""
    words, expected = output.lower().split(), str(row["expected"]).lower().split()
    common = sum(min(words.count(word), expected.count(word)) for word in set(words))
    return 2 * common / (len(words) + len(expected)) if words else 0.0


def _evaluate(platform: Platform, model: str, rows: Sequence[Mapping[str, Any]]) -> float:
    result = platform.evaluations.run(
        "held_out", model, rows, overlap, project=PROJECT, temperature=0, max_tokens=LONGEST
    )
    return result.score or 0.0


def _fine_tune(platform: Platform, model: str, train: Path, say: Callable[[str], None]) -> None:
    lines = _lines(train)
    say(f"SFT on {len(lines)} rows of {train.name}, passes: {PASSES}")
    job = platform.training.sft(model, lines * PASSES, batch_size=BATCH)
    losses = []
    with click.progressbar(length=len(lines) * PASSES // BATCH, label="  training", item_show_func=_loss_of) as bar:
        for event in job.events():
            if event.type == "gradient_step":
                losses.append(event.data["loss"])
                bar.update(1, event.data["loss"])
    shown = means(losses, 40)
    say(f"  loss {shown[0]:.2f} {sparkline(shown)} {shown[-1]:.2f}\n")


def _loss_of(loss: float | None) -> str | None:
    return None if loss is None else f"loss {loss:.2f}"


def _reinforce(
    platform: Platform, model: str, name: str, rows: Sequence[Mapping[str, Any]], say: Callable[[str], None]
) -> None:
    say(f"RL, {ROUNDS} jobs of {PROMPTS} training questions x {SAMPLES} samples, rewarded for the expected words:")
    rewards = []
    with click.progressbar(length=ROUNDS, label="  training", item_show_func=_reward_of) as bar:
        for number in range(ROUNDS):
            groups = list(_roll_out(platform, name, rows, number))
            platform.training.rl(model, groups, learning_rate=RL_RATE).wait()
            rewards.append(_mean([trajectory.reward for group in groups for trajectory in group.trajectories]))
            bar.update(1, rewards[-1])
    say(f"  reward {rewards[0]:.2f} {sparkline(rewards)} {rewards[-1]:.2f}\n")


def _reward_of(reward: float | None) -> str | None:
    return None if reward is None else f"reward {reward:.2f}"


def _roll_out(
    platform: Platform, name: str, rows: Sequence[Mapping[str, Any]], number: int
) -> Iterator[TrajectoryGroup]:
    for row in rows:
        messages = row["messages"]
        answer = platform.chat.complete(
            model=name, messages=messages, n=SAMPLES, seed=number, max_tokens=LONGEST, logprobs=True, project=PROJECT
        )
        prompt = tuple(Message(Role(message["role"]), message["content"]) for message in messages)
        yield TrajectoryGroup(
            tuple(Trajectory.of(prompt, choice, reward=overlap(choice.message.text, row)) for choice in answer.choices)
        )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _show_evaluations(rows: Sequence[object], scores: dict[str, float], say: Callable[[str], None]) -> None:
    say(f"Evaluation on {len(rows)} held-out questions (overlap with the expected answer, 1 is best):")
    say(text_table(("model", "score"), [(model, round(score, 3)) for model, score in scores.items()]) + "\n")


def _show_usage(platform: Platform, say: Callable[[str], None]) -> None:
    totals = platform.usage.total(by=("model",), project=PROJECT)
    listed = [(row.model, row.requests, row.prompt_tokens + row.completion_tokens, f"{row.cost:f}") for row in totals]
    say(text_table(("model", "requests", "tokens", "USD"), listed) + "\n")


def _show_places(file: Path, model: str, say: Callable[[str], None]) -> None:
    say(f"Everything is stored in {file} and {file}-artifacts. Look at it in a browser:")
    say(f"  modelyard ui --store {file}")
    say("or serve it:")
    say(f"  modelyard keys create --store {file} --entity local")
    say(f"  modelyard serve --store {file} --worker")
    say(f"and point an OpenAI client at http://127.0.0.1:8000/inference/v1, model {model}.")
