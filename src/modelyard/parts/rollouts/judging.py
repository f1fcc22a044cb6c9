"""Scores of mirrored requests: one scorer reads what the users got and what the candidate answered, on the purse."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import attrs

from modelyard.domain.completion import CompletionRequest, Role
from modelyard.domain.evaluation.scorer_rules import rule_of
from modelyard.domain.evaluation.scorers import LlmJudge, OwnRule, Unscored
from modelyard.domain.identity import Attribution, Principal
from modelyard.errors import InvalidInput, ModelyardError
from modelyard.lazy import log
from modelyard.parts.rollouts.records import (
    JUDGED_STAGE,
    UNIT,
    RolloutScore,
    RolloutUser,
    Side,
    StagedRollout,
    checked_score,
)
from modelyard.parts.rollouts.upkeep import add_to_tally
from modelyard.platform.evaluations.model_under_test import CompletionModel, messages_asked
from modelyard.platform.evaluations.objects import Objects
from modelyard.platform.evaluations.scorers import name_scorers
from modelyard.platform.paging import get_or_none
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Tx

Ask = Callable[[CompletionRequest, Attribution], str]
"""Asks a model on the purse, and returns its words. Raises `ModelyardError`."""


def checked_scorer(runtime: Runtime, principal: Principal, place: tuple[str, str], scorer: Any) -> Mapping[str, Any]:
    """Return a scorer as a rollout keeps it. Raises `InvalidInput` unless it is one declarative scorer that asks for
    nothing but the `prompt`, and as a completion does for the model of a judge."""
    try:
        named = name_scorers(scorer, Objects(runtime, principal))
    except InvalidInput as wrong:  # located below its name among the scorers
        places = [("shadow", "scorer", *one.loc[2:]) for one in wrong.problems]
        found = [attrs.evolve(one, loc=loc) for one, loc in zip(wrong.problems, places, strict=True)]
        raise InvalidInput(found) from None
    rule = named[0].rule if len(named) == 1 else None
    if not isinstance(rule, OwnRule | LlmJudge):
        msg = "must be one declarative scorer or its reference: functions and formulas cannot be kept on a purse"
        raise InvalidInput.at("shadow", "scorer", msg=msg)
    if missing := rule.asked_for - {"prompt"}:
        msg = f"asks for {', '.join(sorted(missing))}, which requests of users do not have; they have prompt"
        raise InvalidInput.at("shadow", "scorer", msg=msg)
    if isinstance(rule, LlmJudge):
        CompletionModel.of(runtime, principal, rule.model, place, rule.options)
    return {"name": named[0].name, "rule": rule.plain()}


def judge(
    runtime: Runtime, principal: Principal, rollout: StagedRollout, row: Mapping[str, Any], output: str, ask: Ask
) -> float | None:
    """Return the score of an output, from 0 to 1; None if there is none."""
    rule = rule_of(rollout.shadow["scorer"]["rule"])
    try:
        if isinstance(rule, LlmJudge):
            return checked_score(rule.read(_words(runtime, principal, rollout, rule, rule.asks(output, row), ask)))
        assert isinstance(rule, OwnRule), "`checked_scorer` saw to it"
        return checked_score(rule.score(output, row))
    except (ModelyardError, Unscored, KeyError, ValueError) as error:
        log.info("a mirrored answer of rollout %s has no score: %r", rollout.id, error)
        return None


def _words(
    runtime: Runtime, principal: Principal, rollout: StagedRollout, rule: LlmJudge, question: str, ask: Ask
) -> str:
    place = rollout.entity, rollout.project
    model = CompletionModel.of(runtime, principal, rule.model, place, rule.options)
    asked = messages_asked(model.prompts, {"prompt": question})
    return ask(model.request.asking(asked, model.request.sampling, model.request.max_tokens), Attribution(*place))


def row_of(request: CompletionRequest) -> Mapping[str, Any]:
    """Return the row that a scorer reads: what the user said last, as `prompt`."""
    if request.prompt is not None:
        return {"prompt": request.prompt if isinstance(request.prompt, str) else ""}
    said = [message.text for message in request.messages if message.role is Role.USER]
    return {"prompt": said[-1] if said else ""}


def keep_pair(runtime: Runtime, rollout: StagedRollout, user: str, scored: Mapping[str, tuple[Side, float]]) -> None:
    """Keep the scores of two answers to one request by their ids, and count the pair if it is the first of its user.
    They wait for the disk no more than the answers did."""
    runtime.store.transact(partial(_keep, runtime, rollout.id, user, scored), runtime.settings.durable_usage)


def _keep(runtime: Runtime, rollout_id: str, user: str, scored: Mapping[str, tuple[Side, float]], tx: Tx) -> None:
    rollout = get_or_none(tx, StagedRollout, rollout_id)
    if rollout is None:
        return
    place, metric = (rollout.entity, rollout.project), rollout.shadow["scorer"]["name"]
    if any(get_or_none(tx, RolloutScore, answer, metric) is not None for answer in scored):
        return
    counts = get_or_none(tx, RolloutUser, rollout.id, JUDGED_STAGE, user) is None
    for answer, (side, value) in scored.items():
        of = answer, metric, rollout.id, *place, JUDGED_STAGE, side
        tx.add(RolloutScore(*of, value, counts, runtime.clock.now()))
    if not counts:
        return
    tx.add(RolloutUser(rollout.id, JUDGED_STAGE, user, *place))
    for side, value in scored.values():
        add_to_tally(tx, rollout, JUDGED_STAGE, side, scores=1, total=round(value * UNIT))
