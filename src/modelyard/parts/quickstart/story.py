"""Train and evaluate a small model from end to end, on real data, in seconds: `modelyard quickstart`. A model is
fine-tuned, then reinforced twice: by a reward that helps, and by a tempting one that rises while the held-out
evaluation falls. The first is promoted, the second is refused."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import click

from modelyard import examples
from modelyard.cli.terminal import PlaceType, made_whole
from modelyard.compose import open_platform
from modelyard.domain.completion import Message, Role
from modelyard.domain.promotion import NotWorse
from modelyard.domain.training import Trajectory, TrajectoryGroup
from modelyard.errors import PromotionRefused
from modelyard.platform.evaluations.result import EvaluationResult
from modelyard.platform.platform import Platform
from modelyard.report.numbers import difference_text, interval_text, mean_text, span_text
from modelyard.report.table import means, text_table

PROJECT = "quickstart"
BASE_MODEL = "tabular-mini"
EVALUATION = "held_out"
BATCH = 2
SAMPLES = 4
TEMPERATURE = 0.4
"""At 1 most of the answers of so small a model are noise, and it would learn the noise."""
LONGEST = 80

Task = Mapping[str, Any]
Reward = Callable[[str, Task], float]


def overlap(output: str, row: Task) -> float:
    words, expected = output.lower().split(), str(row["expected"]).lower().split()
    common = sum(min(words.count(word), expected.count(word)) for word in set(words))
    return 2 * common / (len(words) + len(expected)) if words else 0.0


def brevity(output: str, row: Task) -> float:
    return 10 / (10 + len(output.split()))


@attrs.frozen
class RewardPlan:
    reward: Reward
    rounds: int
    questions: int
    learning_rate: float


HELPFUL = RewardPlan(overlap, rounds=8, questions=28, learning_rate=1e-5)
TEMPTING = RewardPlan(brevity, rounds=6, questions=16, learning_rate=4e-5)


@click.command()
@click.argument("folder", type=PlaceType(file_okay=False), default=Path("quickstart"))
def quickstart(folder: Path) -> object:
    """Fine-tune, reinforce and evaluate a small model, in seconds.

    The data are real. All that it makes lies in FOLDER (default: ./quickstart).
    """
    return {"store": folder / "yard.db", "model": run(folder)}


def run(folder: Path, say: Callable[[str], None] = click.echo) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "yard.db"
    with made_whole(file), open_platform(file, project=PROJECT) as platform:
        say(f"A platform in one file: {file}\n")
        _show_catalogue(platform, say)
        name = _new_name(platform)
        platform.models.create(name, base_model=BASE_MODEL)
        story = _Story(platform, name, say)
        story.tell()
        _show_usage(platform, say)
        _show_places(file, story.address, say)
    return story.address


def _new_name(platform: Platform) -> str:
    number = 1
    while platform.models.find(name := "support" if number == 1 else f"support-{number}"):
        number += 1
    return name


class _Story:
    def __init__(self, platform: Platform, name: str, say: Callable[[str], None]) -> None:
        self.platform, self.name, self.say = platform, name, say
        self.model, self.address = f"{PROJECT}/{name}", f"local/{PROJECT}/{name}"
        data = examples.support()
        self.train, self.held_out = data.train, examples.tasks(data.held_out)
        self.tasks = examples.tasks(data.train)
        self.question = next(row for row in self.held_out if row["messages"][-1]["content"].endswith("an invoice?"))

    def tell(self) -> None:
        self.ask("the base model", BASE_MODEL)
        base = self.evaluate(BASE_MODEL)
        self.fine_tune()
        self.ask("the checkpoint", self.address)
        tuned = self.evaluate(self.address)
        self.platform.models.promote(self.model, 1)
        self.reinforce(HELPFUL, "the words of the expected answer")
        better = self.evaluate(self.address)
        self.show(
            f"{len(self.held_out)} held-out questions", {BASE_MODEL: base, "after SFT": tuned, "after RL": better}
        )
        self.promote(tuned, better)
        self.reinforce(TEMPTING, "short answers, which looks like a good idea")
        worse = self.evaluate(self.address)
        self.ask("the checkpoint", self.address)
        self.show("the same questions", {"after RL": better, "after RL for short answers": worse})
        self.promote(better, worse)

    def ask(self, who: str, model: str) -> None:
        messages = self.question["messages"]
        answer = self.platform.chat.complete(model=model, messages=messages, temperature=0, max_tokens=LONGEST)
        self.say(f"{messages[-1]['content']}\n  {who}: {answer.text.strip()!r}\n")

    def evaluate(self, model: str) -> EvaluationResult:
        options: Any = {"temperature": 0, "max_tokens": LONGEST}
        return self.platform.evaluations.run(EVALUATION, model, self.held_out, overlap, **options)

    # ---- training

    def fine_tune(self) -> None:
        self.say(f"SFT on {len(self.tasks)} support answers")
        job = self.platform.training.sft(self.model, self.train, batch_size=BATCH)
        losses = []
        with _bar(len(self.tasks) // BATCH, "loss") as bar:
            for event in job.events():
                if event.type == "gradient_step":
                    losses.append(event.data["loss"])
                    bar.update(1, event.data["loss"])
        self.say(f"  loss {_curve(means(losses, 40))}\n")

    def reinforce(self, plan: RewardPlan, rewarded: str) -> None:
        self.say(
            f"RL, {plan.rounds} jobs of {plan.questions} other questions x {SAMPLES} samples, rewarded for {rewarded}"
        )
        rewards = []
        with _bar(plan.rounds, "reward") as bar:
            for number in range(plan.rounds):
                groups = list(self.roll_out(plan, number))
                self.platform.training.rl(self.model, groups, learning_rate=plan.learning_rate).wait()
                rewards.append(_mean([one.reward for group in groups for one in group.trajectories]))
                bar.update(1, rewards[-1])
        self.say(f"  reward {_curve(rewards)}\n")

    def roll_out(self, plan: RewardPlan, number: int) -> Iterator[TrajectoryGroup]:
        for task in self.tasks[number % 8 :: 8][: plan.questions]:
            answer = self.platform.chat.complete(
                model=self.address,
                messages=task["messages"],
                n=SAMPLES,
                seed=number,
                temperature=TEMPERATURE,
                max_tokens=LONGEST,
                logprobs=True,
            )
            prompt = tuple(Message(Role(message["role"]), message["content"]) for message in task["messages"])
            yield TrajectoryGroup(
                tuple(Trajectory.of(prompt, one, reward=plan.reward(one.message.text, task)) for one in answer.choices)
            )

    # ---- what came of it

    def show(self, title: str, results: dict[str, EvaluationResult]) -> None:
        self.say(f"Evaluation on {title}: overlap with the expected answer, 1 is best, and its 95 % interval")
        reports = {who: self.platform.evaluations.report(result).metric("overlap") for who, result in results.items()}
        rows = [
            (who, mean_text(metric.mean, metric.kind), interval_text(metric.interval, metric.kind))
            for who, metric in reports.items()
            if metric.mean is not None and metric.interval is not None
        ]
        self.say(text_table(("model", "score", "interval"), rows, right=("score",)) + "\n")

    def promote(self, baseline: EvaluationResult, candidate: EvaluationResult) -> None:
        found = self.platform.evaluations.compare(baseline=baseline, candidate=candidate).metric("overlap")
        paired, step = found.paired, self.platform.models.get(self.model).last_step
        if paired is not None and paired.interval is not None:
            shown = difference_text(paired.difference, found.kind), span_text(paired.interval, found.kind)
            self.say(f"Row by row: {shown[0]} ({shown[1]}), {found.verdict}")
        try:
            self.platform.models.promote(self.model, step, require=NotWorse(EVALUATION))
            self.say(f"  step {step} is promoted: {self.address}:prod\n")
        except PromotionRefused as refused:
            prod = next(iter(self.platform.models.aliases(self.model))).step
            self.say(f"  step {step} is not promoted, {str(refused).splitlines()[0]}; prod stays at step {prod}\n")


def _bar(length: int, name: str) -> Any:
    def show(value: float | None) -> str | None:
        return None if value is None else f"{name} {value:.2f}"

    return click.progressbar(length=length, label="  training", item_show_func=show)


def _curve(values: Sequence[float]) -> str:
    return f"{values[0]:.2f} {sparkline(values)} {values[-1]:.2f}"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _show_catalogue(platform: Platform, say: Callable[[str], None]) -> None:
    entries = platform.catalogue.list()
    prices = ("USD/prompt token", "USD/answer token")
    listed = [(one.id, one.context_length, f"{one.pricing.prompt:f}", f"{one.pricing.completion:f}") for one in entries]
    say(text_table(("model", "context", *prices), listed, right=prices) + "\n")


def _show_usage(platform: Platform, say: Callable[[str], None]) -> None:
    totals = platform.usage.total(by=("model",), project=PROJECT)
    listed = [(row.model, row.requests, row.prompt_tokens + row.completion_tokens, f"{row.cost:f}") for row in totals]
    say(text_table(("model", "requests", "tokens", "USD"), listed) + "\n")


def _show_places(file: Path, address: str, say: Callable[[str], None]) -> None:
    say(f"Everything is stored in {file} and {file}-artifacts. Look at it at http://127.0.0.1:8001/ with")
    say(f"  modelyard ui --store {file}")
    say("or serve it:")
    say(f"  modelyard keys create --store {file} --entity local")
    say(f"  modelyard serve --store {file} --worker --dashboard")
    say(f"and point an OpenAI client at http://127.0.0.1:8000/inference/v1, model {address}:prod.")
    say("Both need the extra: pip install 'modelyard[serve]'")


_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float]) -> str:
    if not values:
        return ""
    least, most = min(values), max(values)
    spread = (most - least) or 1.0
    return "".join(_BARS[round((value - least) / spread * (len(_BARS) - 1))] for value in values)
