"""A system text on rows: its answers, their scores, and what is said of them. Each row is answered and scored once."""

import random
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from typing import Any, TypeVar

import attrs

from modelyard.domain.canonical import digest
from modelyard.domain.evaluation.scorers import text_of
from modelyard.domain.identity import Principal
from modelyard.errors import BackendError, BudgetExceeded, InvalidInput, Overloaded, RateLimited, StoreError
from modelyard.flow import Flow, run
from modelyard.formats.json import as_json
from modelyard.parts.improve.config import PromptConfig
from modelyard.parts.improve.kept import KeptCalls, KeptModel
from modelyard.parts.variants.asking import ServedVariant
from modelyard.parts.variants.content import MAX_SIZE, checked_content
from modelyard.parts.variants.records import Variant, VariantVersion
from modelyard.platform.evaluations.model_under_test import CompletionModel, messages_of
from modelyard.platform.evaluations.row_evaluation import Reply, Retries, RowScorer, error_text, score_row
from modelyard.protocols import Tx

T = TypeVar("T")
RETRIES = 4
_ASKED = ("messages", "prompt")


@attrs.frozen
class RowOutcome:
    """What a row gave: the answer, its score, and what the reflection model is told of it."""

    output: str
    score: float
    feedback: str
    failed: bool = False


@attrs.frozen
class Tried:
    """What candidates are tried with: a version whose system text they replace, and the reward. Thread-safe."""

    variant: Variant
    version: VariantVersion
    scorer: RowScorer
    reflection: CompletionModel
    model: CompletionModel
    principal: Principal
    config: PromptConfig
    calls: KeptCalls
    seed: int

    # ---- rows

    def outcomes(self, text: str, rows: Sequence[Mapping[str, Any]]) -> Generator[None, None, list[RowOutcome]]:
        """Answer and score rows, several at a time, and keep what they gave. Yields after each. Raises
        `BudgetExceeded`, `LeaseLost`, `StoreError`."""
        keys = [digest(["row", text, as_json(row)]) for row in rows]
        found = {key: RowOutcome(**kept) for key in dict.fromkeys(keys) if (kept := self.calls.find(key)) is not None}
        left = {key: row for key, row in zip(keys, rows, strict=True) if key not in found}
        served, new = self._served(text), dict[str, RowOutcome]()
        threads = ThreadPoolExecutor(self.config.concurrency, "modelyard-improve")
        try:
            waiting = {threads.submit(self._outcome, served, row): key for key, row in left.items()}
            for future in as_completed(waiting):
                if (outcome := future.result()) is not None:
                    new[waiting[future]] = outcome
                self.calls.claimed.moved_at = self.calls.runtime.clock.monotonic()
                yield
        finally:
            threads.shutdown(cancel_futures=True)
        if new:
            self.calls.runtime.store.transact(partial(self._keep, new))
        if self.calls.refused is not None:
            raise self.calls.refused
        return [{**found, **new}[key] for key in keys]

    def _keep(self, new: Mapping[str, RowOutcome], tx: Tx) -> None:
        for key, outcome in new.items():
            self.calls.keep(tx, "row", key, attrs.asdict(outcome))

    def _served(self, text: str) -> ServedVariant | None:
        """Return the version with another system text; None for a text that no version can have."""
        content = self.version.content
        try:
            checked_content(content.model, text, content.template, content.examples, content.parameters)
        except InvalidInput:
            return None
        data = attrs.evolve(content, system=text).data
        return ServedVariant(self.variant, attrs.evolve(self.version, body=data))

    def _outcome(self, served: ServedVariant | None, row: Mapping[str, Any]) -> RowOutcome | None:
        """Answer and score a row; None once a budget has refused a call. A row that fails has the score 0."""
        if self.calls.over():
            return None
        if served is None:
            why = f"the system text cannot be stored: it must be text without NUL, of less than {MAX_SIZE} bytes"
            return RowOutcome("", 0.0, why, failed=True)
        try:
            output = self._patiently(lambda: self._answer(served, row)).output
        except (BudgetExceeded, StoreError):
            if not self.calls.over():
                raise
            return None
        except Exception as error:  # noqa: BLE001 - a row that fails is part of what a candidate gives
            return RowOutcome("", 0.0, f"The model gave no answer: {error_text(error)}", failed=True)
        (scored,) = run(score_row((self.scorer,), output, row))
        if self.calls.over():
            return None
        if not isinstance(scored.value, int | float):  # a bool is an int
            why = scored.reason or f"the reward is {scored.value!r}; a reward is a number or a bool"
            return RowOutcome(output, 0.0, f"The answer has no score: {why}", failed=True)
        return RowOutcome(output, float(scored.value), _feedback(row, float(scored.value), scored.comment))

    def _answer(self, served: ServedVariant, row: Mapping[str, Any]) -> Flow[Reply]:
        model = self.model
        sampling = model.request.sampling.seeded(drawn(self.seed)) if model.seeded else model.request.sampling
        asked = model.request.asking(messages_of(served.row(row)), sampling, self.config.max_tokens)
        kept = KeptModel(model, self.calls, "answer")
        return (yield from kept.ask(served.asks(asked), self.principal, model.attribution))

    # ---- reflections

    def reflect(self, question: str, nth: int) -> Generator[None, None, str]:
        """Ask the reflection model. Raises as a completion does."""
        model = self.reflection
        sampling = model.request.sampling.seeded(drawn(self.seed, nth)) if model.seeded else model.request.sampling
        asked = model.request.asking(messages_of({"prompt": question}), sampling, self.config.reflection_max_tokens)
        kept = KeptModel(model, self.calls, "reflection")
        reply = self._patiently(lambda: kept.ask(asked, self.principal, model.attribution, nth))
        self.calls.claimed.moved_at = self.calls.runtime.clock.monotonic()
        yield
        return str(reply.output)

    def _patiently(self, ask: Callable[[], Flow[T]]) -> T:
        clock = self.calls.runtime.clock
        pauses = Retries(RETRIES, clock).pauses()
        while True:
            try:
                return run(ask())
            except (BackendError, Overloaded, RateLimited) as error:
                pause = next(pauses, None)
                if pause is None:
                    raise
                clock.sleep(max(pause, getattr(error, "retry_after", None) or 0.0))


def model_of(calls: KeptCalls, principal: Principal, name: str, namespace: tuple[str, str]) -> CompletionModel:
    """Return a model of the platform, booked on a project."""
    return CompletionModel.of(calls.runtime, principal, name, namespace, {})


def drawn(*seed: int) -> int:
    """Return a seed of sampling that these decide."""
    return random.Random(" ".join(map(str, seed))).randrange(2**31)  # noqa: S311 - it must be the same again


def asked_of(row: Mapping[str, Any]) -> str:
    """Return what a row asks, as the reflection model reads it."""
    if not set(_ASKED) & set(row):
        return _others(row)
    said = messages_of(row)
    return said[0].text if len(said) == 1 else "\n".join(f"{one.role}: {one.text}" for one in said)


def _feedback(row: Mapping[str, Any], score: float, comment: str) -> str:
    lines = [f"Score: {score:g}. {comment}".rstrip(), _others(row)]
    return "\n".join(filter(None, lines))


def _others(row: Mapping[str, Any]) -> str:
    return "\n".join(f"{name}: {text_of(value)}" for name, value in row.items() if name not in _ASKED)
