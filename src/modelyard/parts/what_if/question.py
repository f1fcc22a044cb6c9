"""What is asked of stored traffic, checked, and what asking would cost."""

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import attrs

from modelyard.domain.catalogue import Pricing
from modelyard.domain.completion import Usage
from modelyard.domain.evaluation.scorers import LlmJudge
from modelyard.domain.identity import Principal
from modelyard.domain.record import EMPTY
from modelyard.domain.usage import EXACT, LedgerEntry, cost
from modelyard.errors import InvalidInput, located_at
from modelyard.formats.json import as_json
from modelyard.parts.routers.service import Routers
from modelyard.parts.traffic.request import CollectRequest
from modelyard.parts.traffic.rows import TrafficReader
from modelyard.parts.traffic.selection import AnsweredBy, Selection
from modelyard.parts.traffic.traffic_row import LeftOut, TrafficRow
from modelyard.parts.what_if.records import ANSWERS, LOGPROBS
from modelyard.parts.what_if.repricing import Tariff
from modelyard.platform.catalogue.service import resolve
from modelyard.platform.chat.request import build_request
from modelyard.platform.paging import get_or_none
from modelyard.platform.runtime import Runtime

LETTERS_A_TOKEN = 3
"""By how many characters a token of a text is estimated that nobody has counted."""

MAX_TOKENS = 1024
"""How long an answer may become if neither the stored request nor the question says so."""

SKEW = timedelta(hours=1)
"""By how much less the time of a stored answer may be than that of one that was stored before."""

VERDICT_TOKENS = 16
"""How long the answer of a judge is estimated to be."""


@attrs.frozen
class Question:
    """What is asked: of the rows that `collect` chooses, with these `options` of a completion, judged by its score, and
    of what users said as `metric`. `prices` are other prices as JSON data."""

    collect: CollectRequest
    metric: str
    options: Mapping[str, Any] = EMPTY
    prices: Mapping[str, Any] | None = None

    @property
    def judge(self) -> LlmJudge | None:
        """The judge, if there is one."""
        return self.collect.judge

    def plain(self) -> dict[str, Any]:
        """Return it as JSON data."""
        options = as_json(dict(self.options), at=("options",))
        prices = None if self.prices is None else dict(self.prices)
        return {"collect": {**self.collect.plain()}, "metric": self.metric, "options": options, "prices": prices}

    @classmethod
    def of_plain(cls, plain: Mapping[str, Any]) -> "Question":
        """Return it from JSON data."""
        collect = CollectRequest.of_plain(plain["collect"])
        return cls(collect, plain["metric"], plain["options"], plain["prices"])


def chosen_rows(runtime: Runtime, principal: Principal, question: Question, asked_at: datetime) -> Iterator[TrafficRow]:
    """Yield the first answer of each stored request that is asked about, the newest first, if it was stored before."""
    request = question.collect
    reader = TrafficReader(runtime, principal, request.entity, None if request.everywhere else request.project)
    answered = None
    if (name := request.model) is not None:
        answered = runtime.store.read(lambda snapshot: AnsweredBy.of(snapshot, principal, name))
    selection = Selection(runtime, answered, request.metadata, request.since, request.until)
    for source in request.sources:
        for stored in reader.answers(source):
            first = next((one for one in stored.found if not isinstance(one, LeftOut)), None)
            if isinstance(first, TrafficRow):
                if source != "traces" and request.since is not None and first.created_at < request.since - SKEW:
                    break
                if first.created_at <= asked_at and selection.missed(first) is None:
                    yield first


@attrs.frozen
class AskingEstimate:
    """What asking would cost, in USD, by the tokens of the stored `rows` and the prices of now: as if the answers
    became as long as those that were given. It is no bound: another model may write more. `longest` is what the longest
    request may cost, which a budget must have left for it."""

    rows: int
    prompt_tokens: int
    completion_tokens: int
    cost: Decimal
    judge_cost: Decimal
    longest: Decimal

    @property
    def total(self) -> Decimal:
        """What all of it would cost."""
        return EXACT.add(self.cost, self.judge_cost)

    def __str__(self) -> str:
        tokens = f"{self.prompt_tokens} and {self.completion_tokens} tokens"
        judge = f", {self.judge_cost:f} of it the judge's" if self.judge_cost else ""
        return f"{self.rows} stored requests of {tokens}: about {self.total:f} USD{judge}"


def estimated(
    runtime: Runtime, principal: Principal, question: Question, model: str | None, asks: str
) -> AskingEstimate:
    """Return what asking would cost. Raises `ModelNotFound`, `Forbidden`."""
    judge, now = question.judge, runtime.clock.now()
    minute = now.hour * 60 + now.minute
    tariffs = {name: tariff_of(runtime, principal, name) for name in (model, judge and judge.model) if name}
    rows = prompts = completions = longest = 0
    answers, judged = Decimal(0), Decimal(0)
    for row in chosen_rows(runtime, principal, question, now):
        if question.collect.limit is not None and rows >= question.collect.limit:
            break
        rows += 1
        usage = _usage(runtime, row)
        prompts, completions = prompts + usage.prompt_tokens, completions + usage.completion_tokens
        if model is not None and asks == ANSWERS:
            answers = EXACT.add(answers, _price(tariffs[model], minute, usage))
        if model is not None and asks == LOGPROBS:
            whole = usage.prompt_tokens + usage.completion_tokens
            for tokens in (whole, whole, usage.prompt_tokens, usage.completion_tokens):
                answers = EXACT.add(answers, _price(tariffs[model], minute, Usage(tokens, 1)))
        if judge is not None and asks == ANSWERS:
            asked = usage.prompt_tokens + usage.completion_tokens + len(judge.prompt) // LETTERS_A_TOKEN
            one = _price(tariffs[judge.model], minute, Usage(asked, VERDICT_TOKENS))
            judged = EXACT.fma(one, Decimal(2), judged)
        longest = max(longest, usage.prompt_tokens + usage.completion_tokens)
    most = max([_price(one, minute, _longest(longest, question)) for one in tariffs.values()], default=Decimal(0))
    return AskingEstimate(rows, prompts, completions, answers, judged, most)


def _longest(tokens: int, question: Question) -> Usage:
    most = question.options.get("max_tokens", MAX_TOKENS)
    return Usage(2 * tokens + MAX_TOKENS, most if type(most) is int else MAX_TOKENS)


def tariff_of(runtime: Runtime, principal: Principal, model: str) -> Tariff:
    """Return what a model costs now. Raises `ModelNotFound`, `Forbidden`."""
    entry = resolve(runtime, model, principal).entry
    return Tariff(entry.pricing, Routers(runtime, principal).get(entry.id).rules)


def _price(tariff: Tariff, minute: int, usage: Usage) -> Decimal:
    pricing: Pricing = tariff.at(minute, usage.prompt_tokens)
    return cost(usage, pricing)


def _usage(runtime: Runtime, row: TrafficRow) -> Usage:
    """Return the tokens of a stored answer, as they were booked, or by the length of its texts."""
    booked = runtime.store.read(lambda snapshot: get_or_none(snapshot, LedgerEntry, row.completion_id))
    if booked is not None and booked.entity == row.entity:
        return Usage(booked.prompt_tokens, booked.completion_tokens, images=booked.images)
    asked = sum(len(message.text) for message in row.messages[:-1])
    return Usage(asked // LETTERS_A_TOKEN + 1, len(row.answer.text) // LETTERS_A_TOKEN + 1)


def check_options(options: object, *place: str) -> None:
    """Raise `InvalidInput` for options that no completion can have, or that this one has by itself."""
    if not isinstance(options, Mapping):
        raise InvalidInput.at(*place, msg="must be a mapping, such as {'temperature': 0}")
    for name in ("model", "messages", "n", "store"):
        if name in options:
            raise InvalidInput.at(*place, name, msg="is not an option here; leave it out")
    with located_at(*place):
        whole: Any = {**options, "model": "any", "messages": "anything"}
        build_request(whole, streamed=False)


def check_model(model: object) -> str:
    """Return the name of a model that is given. Raises `InvalidInput`."""
    if not isinstance(model, str) or not 0 < len(model) <= 512:
        raise InvalidInput.at("model", msg="must be the name of a model, of 1 to 512 characters")
    return model
