"""How the prompt of a variant is optimised."""

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, TypedDict

import attrs

from modelyard.domain.training_config import TrainingConfig
from modelyard.errors import InvalidInput, Problem

MOST_MONEY = Decimal(10**9)
AMOUNT_RULE = 'must be an amount in USD, above 0, such as "5.00"'


class PromptJobOptions(TypedDict, total=False):
    """The options of a prompt job: the fields of `PromptConfig` but for the reflection model."""

    calls: int | None
    budget: "str | int | Decimal | None"
    minibatch: int | None
    concurrency: int | None
    max_tokens: int | None
    reflection_max_tokens: int | None
    seed: int | None


@attrs.frozen(kw_only=True)
class PromptConfig(TrainingConfig):
    """How a prompt job works. It asks the model `reflection` for a better text after each `minibatch` of tasks, and
    ends when `calls` answers were scored, counted as the package gepa counts them, or when the `budget`, USD as text,
    cannot pay for what comes next. Answers have at most `max_tokens`, proposals `reflection_max_tokens`. `concurrency`
    rows are answered at a time. Raises `InvalidInput` naming every field that is out of bounds."""

    reflection: str
    calls: int = 150
    budget: str | None = None
    minibatch: int = 3
    concurrency: int = 8
    max_tokens: int = 1024
    reflection_max_tokens: int = 4096
    seed: int | None = None

    def _problems(self) -> list[Problem]:
        whole = {
            "calls": (self.calls, 1_000_000),
            "minibatch": (self.minibatch, 1000),
            "concurrency": (self.concurrency, 1000),
            "max_tokens": (self.max_tokens, 10_000_000),
            "reflection_max_tokens": (self.reflection_max_tokens, 10_000_000),
        }
        problems = [
            Problem((name,), f"must be a whole number from 1 to {most}")
            for name, (value, most) in whole.items()
            if type(value) is not int or not 1 <= value <= most
        ]
        if self.seed is not None and (type(self.seed) is not int or not 0 <= self.seed < 2**63):
            problems.append(Problem(("seed",), "must be a whole number from 0 to 2**63 - 1"))
        if self.budget is not None and amount(self.budget) is None:
            problems.append(Problem(("budget",), AMOUNT_RULE))
        return problems


def amount(given: object) -> Decimal | None:
    """Return what an amount in USD is, None for what is none. A float is none: it may not be what was written."""
    if isinstance(given, bool) or not isinstance(given, str | int | Decimal):
        return None
    try:
        found = Decimal(given)
    except InvalidOperation:
        return None
    return found if found.is_finite() and 0 < found < MOST_MONEY else None


def as_text(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options with the budget as a job stores it: as plain text. Raises `InvalidInput` if it is none."""
    if options.get("budget") is None:
        return options
    found = amount(options["budget"])
    if found is None:
        raise InvalidInput.at("budget", msg=AMOUNT_RULE)
    return {**options, "budget": f"{found:f}"}
