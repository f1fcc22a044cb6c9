"""Judging a model: one row asked and scored at a time."""

from collections.abc import Mapping
from typing import Any, cast

import attrs

from modelyard.domain.completion import CompletionRequest, Message
from modelyard.domain.evaluation import Outcome, RowResult, Scorer, exact_match, judged
from modelyard.domain.identity import Principal, check_name
from modelyard.domain.reference import EVALUATION_KINDS, ObjectRef, RefKind, object_id
from modelyard.domain.training import ModelName
from modelyard.errors import InvalidInput, ModelyardError
from modelyard.protocols import ServedModel
from modelyard.service.asking import Options, asked, messages_of
from modelyard.service.catalogue import resolve
from modelyard.service.completion import Chat
from modelyard.service.ports import Ports
from modelyard.service.support import check_supported

Place = tuple[str, str]
"""An entity and a project."""

SCORERS: Mapping[str, Scorer] = {"exact_match": exact_match}
"""The built-in scorers by name."""


@attrs.frozen
class Judge:
    """Asks one model and scores its answers.

    `request` is what is asked, without the messages: the model in it is held at a checkpoint. `model` is the model's
    reference; `name` is the scorer's.
    """

    chat: Chat
    request: CompletionRequest
    model: ObjectRef
    name: str
    scorer: Scorer
    place: Place

    @classmethod
    def of(
        cls,
        ports: Ports,
        principal: Principal,
        model: str,
        scorer: Scorer | str,
        place: Place,
        options: Mapping[str, Any],
    ) -> "Judge":
        """The judge of a model. Raises `ModelNotFound`, `Forbidden`, `InvalidInput`, before any row is asked."""
        name, function = _named_scorer(scorer)
        asked_name = _chat_name(model)
        served = resolve(ports, asked_name, principal)
        ref = _model_ref(served, asked_name, place)
        held = f"{ref.entity}/{ref.project}/{ref.name}:{ref.version}" if ref.version else asked_name
        request = asked(cast("Options", {**options, "model": held, "messages": ""}), streamed=False)
        check_supported(request, served.entry, ports.backend.capabilities(served.base_model))
        return cls(Chat(ports, principal), request, ref, name, function, place)

    def row(self, index: int, row: Mapping[str, Any]) -> RowResult:
        """Ask and score one row. What the library refuses and what the scorer raises are results, not exceptions."""
        team, project = self.place
        try:
            request = attrs.evolve(self.request, messages=_messages(row))
            answer = self.chat.complete(request, team=team, project=project)
        except ModelyardError as error:
            return RowResult(index, row, Outcome.MODEL_ERROR, detail=f"{error.code}: {error}")
        try:
            value = self.scorer(answer.text, row)
        except Exception as error:  # noqa: BLE001 - the scorer is the caller's code, and its fault is a result
            return RowResult(index, row, Outcome.SCORER_ERROR, answer.text, detail=f"{type(error).__name__}: {error}")
        return judged(index, row, answer.text, value)


def evaluation_ref(evaluation: str, place: Place) -> ObjectRef:
    """The reference of an evaluation that is given by reference, or by its name in a place. Raises `InvalidInput`."""
    if "://" not in evaluation:
        return ObjectRef(*place, RefKind.OBJECT, check_name(evaluation, "evaluation"))
    ref = ObjectRef.parse(evaluation)
    if ref is None or ref.kind not in EVALUATION_KINDS:
        raise InvalidInput.at("evaluation", msg="must be a name, or the reference of an evaluation")
    return ref


def _named_scorer(scorer: Scorer | str) -> tuple[str, Scorer]:
    if callable(scorer):
        return getattr(scorer, "__name__", type(scorer).__name__), scorer
    if scorer not in SCORERS:
        raise InvalidInput.at("scorer", msg=f"must be a function or one of {', '.join(sorted(SCORERS))}")
    return scorer, SCORERS[scorer]


def _messages(row: Mapping[str, Any]) -> tuple[Message, ...]:
    for name in ("messages", "prompt"):
        if name in row:
            return messages_of(row[name])
    raise InvalidInput.at("messages", msg="a row needs messages, or a prompt")


def _chat_name(model: str) -> str:
    """The name that completions take, of a model that is given by it or by its reference."""
    ref = ObjectRef.parse(model)
    if ref is None:
        return model
    return f"{ref.entity}/{ref.project}/{ref.name}" + (f":{ref.version}" if ref.version else "")


def _model_ref(served: ServedModel, asked: str, place: Place) -> ObjectRef:
    """A trained model's checkpoint; or the catalogue's entry, as an object of the place where it is judged."""
    named = ModelName.parse(asked)
    if served.checkpoint is None or named is None:
        return ObjectRef(*place, RefKind.OBJECT, object_id(served.entry.id))
    return ObjectRef(named.entity, named.project, RefKind.OBJECT, named.name, f"step{served.checkpoint.step}")
