"""A prompt job beside the package itself: the same score, of no more calls than its own `optimize` makes.

The tasks have the form of its own examples, `input`, `additional_context` and `answer`, and are judged by the package's
own evaluator, which looks for the answer. Its data sets are downloaded, and so are not used here.
"""

from collections.abc import Mapping
from typing import Any

import gepa
import pytest
from gepa.adapters.default_adapter.default_adapter import ContainsAnswerEvaluator, EvaluationResult

from modelyard import ScriptedBackend, open_platform
from prompt_tasks import BEGIN, FACTS, MODELS, answered, reflected, script

EXAMPLES = [{"input": f"What about {name}?", "additional_context": {}, "answer": fact} for name, fact in FACTS.items()]
TASKS = [{"prompt": one["input"], "expected": one["answer"]} for one in EXAMPLES]
MOST = 1.05


class SameFeedback(ContainsAnswerEvaluator):
    """The package's evaluator, which says what the reflection model of the tests reads."""

    def __call__(self, data: Any, response: str) -> EvaluationResult:
        score = super().__call__(data, response).score
        return EvaluationResult(score, f"Score: {score:g}.\nexpected: {data['answer']}")


def found(output: Any, row: Mapping[str, Any]) -> float:
    """The score that the package's evaluator gives."""
    data = {"input": row["prompt"], "additional_context": {}, "answer": row["expected"]}
    return float(ContainsAnswerEvaluator()(data, output).score)  # type: ignore[arg-type]


class Silent:
    def log(self, message: str) -> None:
        pass


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("calls", "split"), [(60, 8), (150, 8), (150, 5), (400, 5)])
def test_the_same_score_of_no_more_calls_than_the_package_makes_by_itself(seed: int, calls: int, split: int) -> None:
    asked: list[str] = []

    def task(messages: Any) -> str:
        asked.append("task")
        return answered(messages[0]["content"], messages[1]["content"])

    def reflection(prompt: Any) -> str:
        asked.append("reflection")
        return reflected(prompt)

    train, held_out = EXAMPLES[:split], EXAMPLES[split:] or EXAMPLES
    plain = gepa.optimize(
        {"system": BEGIN},
        train,
        held_out,
        task_lm=task,
        evaluator=SameFeedback(),
        reflection_lm=reflection,
        max_metric_calls=calls,
        seed=seed,
        logger=Silent(),
    )
    backend = ScriptedBackend(script, MODELS)
    with open_platform(backend=backend) as platform:
        platform.variants.publish("desk/support", model="scripted", system=BEGIN)
        rest = {"held_out": TASKS[split:]} if TASKS[split:] else {}
        job = platform.training.prompt(
            "desk/support", TASKS[:split], found, reflection="thinker", calls=calls, seed=seed, **rest
        )
        made = job.version()
        metrics = job.refresh().metrics
    assert metrics["best_held_out"] == plain.val_aggregate_scores[plain.best_idx]
    assert made.content.system == plain.best_candidate["system"]
    assert metrics["calls"] == plain.total_metric_calls
    assert len(backend.requests) <= MOST * len(asked)
    assert sum(one.model == "thinker" for one in backend.requests) <= asked.count("reflection")
