"""The models of a run, under test and as judges: their names resolved, rows turned into requests."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

import attrs

from modelyard.domain.completion import Completion, CompletionRequest, Message, Role
from modelyard.domain.evaluation.objects import LATEST, MODEL_KINDS, ObjectKind, ObjectRef, RefKind, object_id
from modelyard.domain.evaluation.run import PROMPTS
from modelyard.domain.evaluation.scorers import LlmJudge, Unscored, fill, text_of
from modelyard.domain.identity import Attribution, Principal
from modelyard.domain.models import ModelName
from modelyard.domain.record import truncate_for_storage
from modelyard.domain.usage import cost
from modelyard.errors import InvalidInput
from modelyard.flow import Flow
from modelyard.platform.catalogue.service import Catalogue
from modelyard.platform.chat.capability_checks import check_supported
from modelyard.platform.chat.pipeline import CompletionPipeline
from modelyard.platform.chat.plan import known_plan, make_plan
from modelyard.platform.chat.request import CompletionOptions, build_messages, build_request
from modelyard.platform.evaluations.references import Namespace, find_version, is_trained
from modelyard.platform.evaluations.row_evaluation import (
    Reply,
    Retries,
    ScoreResult,
    call_with_retries,
    missing_field,
    to_score_result,
)
from modelyard.platform.runtime import Runtime
from modelyard.protocols import ServedModel, Snapshot


@attrs.frozen
class CompletionModel:
    """A model of the platform that is called by completions. `request` is the request without messages; its model is
    pinned to a checkpoint. `seeded`: the model takes a seed; `blocking`: it may wait; `needs_loop`: it needs an event
    loop. `reads` makes the prompt of a row."""

    runtime: Runtime
    principal: Principal
    attribution: Attribution
    request: CompletionRequest
    prompts: Mapping[str, str]
    base_model: str
    ref: ObjectRef
    price: Mapping[str, Any]
    checkpoint_step: int | None
    seeded: bool
    blocking: bool
    needs_loop: bool
    reads: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None

    @classmethod
    def of(
        cls, runtime: Runtime, principal: Principal, model: str, namespace: Namespace, options: Mapping[str, Any]
    ) -> "CompletionModel":
        name, attribution = chat_name(runtime, principal, model), Attribution(*namespace)
        plan = known_plan(runtime, principal, attribution, name) or make_plan(runtime, principal, attribution, name)
        served, backend, named = plan.served, plan.backend, plan.named
        ref, pinned = _pinned(served, name, principal, namespace) if named is None else (named.ref, named.name)
        prompts, chat = _prompts(options), {name: options[name] for name in options if name not in PROMPTS}
        request = build_request(cast("CompletionOptions", {**chat, "model": pinned, "messages": ""}), streamed=False)
        capabilities = backend.capabilities(served.base_model)
        check_supported(request, served.entry, capabilities)
        step = None if served.checkpoint is None else served.checkpoint.step
        how = "seed" in capabilities.parameters, getattr(backend, "blocking", True), not hasattr(backend, "stream")
        reads = None if named is None or "prompt" in prompts else named.row
        of = runtime, principal, attribution, request, prompts, served.base_model, ref
        return cls(*of, served.entry.pricing.texts, step, *how, reads)

    def reply(self, row: Mapping[str, Any], seed: int) -> Flow[Reply]:
        sampling = self.request.sampling.seeded(seed) if self.seeded else self.request.sampling
        row = row if self.reads is None else self.reads(row)
        request = self.request.asking(messages_asked(self.prompts, row), sampling, self.request.max_tokens)
        pipeline = CompletionPipeline(self.runtime, self.principal, request, self.attribution)
        pipeline.reserves_first = True  # a row and its usage are stored together
        given = yield from pipeline.flow()
        usage = given.completion.usage
        spent = cost(usage, given.entry.pricing)
        return Reply(_output(given.completion), usage.prompt_tokens, usage.completion_tokens, spent)


def _output(completion: Completion) -> Any:
    message = completion.choices[0].message
    if not message.tool_calls:
        return message.text
    calls = [{"name": call.name, "arguments": call.arguments} for call in message.tool_calls]
    return {"content": message.text, "tool_calls": calls}


@attrs.frozen
class JudgeScorer:
    """A model of the platform as a scorer: its usage is that of the score, not of the model under test."""

    name: str
    ref: ObjectRef
    rule: LlmJudge
    model: CompletionModel
    retries: Retries

    def score(self, output: Any, row: Mapping[str, Any]) -> Flow[ScoreResult]:
        try:
            question = self.rule.asks(output, row)
        except KeyError as missing:
            raise missing_field(missing) from None
        call = yield from call_with_retries(self.model, {"prompt": question}, 0, self.retries)
        if call.reply is None:
            return ScoreResult(None, f"the judge failed: {call.error}", scored=False)
        used, words = call.reply, text_of(call.reply.output)
        try:
            result = to_score_result(self.rule.read(words))
        except Unscored as why:
            result = ScoreResult(None, str(why))
        return attrs.evolve(
            result,
            prompt_tokens=used.prompt_tokens,
            completion_tokens=used.completion_tokens,
            cost=used.cost,
            comment=truncate_for_storage(words),
        )


def chat_name(runtime: Runtime, principal: Principal, model: str) -> str:
    """Return the name that completions take, of a model that is given by it or by its reference. The reference is that
    of a trained model or a checkpoint, or the one under which a catalogue entry is evaluated. Raises `InvalidInput` for
    a model that is source code, `Forbidden`."""
    ref = ObjectRef.parse(model)
    if ref is None:
        return model
    if ref.kind not in MODEL_KINDS:
        raise InvalidInput.at("model", msg="must be a name, or the reference of a model")
    principal.require(ref.entity, ref.project)
    trained, stored = runtime.store.read(partial(_named_by, ref))
    if stored and (ref.version not in _NEWEST or not trained):
        raise InvalidInput.at("model", msg="is source code, which is stored and never run; name a platform's model")
    name = f"{ref.entity}/{ref.project}/{ref.name}" + (f":{ref.version}" if ref.version else "")
    return name if trained else _listed(runtime, principal, ref) or name


_NEWEST = (None, LATEST)


def _named_by(ref: ObjectRef, snapshot: Snapshot) -> tuple[bool, bool]:
    """Return whether a reference names a trained model, and whether it names a published model."""
    kind = ObjectKind.OP if ref.kind is RefKind.OP else ObjectKind.MODEL
    stored = find_version(snapshot, (ref.entity, ref.project), kind, ref.name, ref.version)
    trained = ref.kind is RefKind.OBJECT and is_trained(snapshot, ref)
    return trained, stored is not None and stored.deleted_at is None


def _listed(runtime: Runtime, principal: Principal, ref: ObjectRef) -> str | None:
    if ref.kind is RefKind.OP or ref.version not in _NEWEST:
        return None
    ids = [entry.id for entry in Catalogue(runtime, principal).list() if object_id(entry.id) == ref.name]
    if len(ids) > 1:
        raise InvalidInput.at("model", msg=f"is the reference of {' and '.join(ids)}; name one of them by its id")
    return ids[0] if ids else None


def messages_of(row: Mapping[str, Any]) -> tuple[Message, ...]:
    for name in ("messages", "prompt"):
        if name in row:
            return build_messages(row[name])
    raise InvalidInput.at("messages", msg="a row needs messages, or a prompt")


def _prompts(options: Mapping[str, Any]) -> Mapping[str, str]:
    given = {name: options[name] for name in PROMPTS if options.get(name) is not None}
    for name, text in given.items():
        if not isinstance(text, str) or not text.strip():
            raise InvalidInput.at(name, msg="must be a string with words, in which {name} stands for a field of a row")
    return given


def messages_asked(prompts: Mapping[str, str], row: Mapping[str, Any]) -> tuple[Message, ...]:
    try:
        texts = {name: fill(text, row) for name, text in prompts.items()}
    except KeyError as missing:
        raise InvalidInput.at("row", str(missing.args[0]), msg="is missing, and the prompt asks for it") from None
    asked = messages_of({"prompt": texts["prompt"]} if "prompt" in texts else row)
    if "system" not in texts:
        return asked
    told = build_messages([{"role": "system", "content": texts["system"]}])
    return (*told, *(message for message in asked if message.role is not Role.SYSTEM))


def _pinned(served: ServedModel, name: str, principal: Principal, namespace: Namespace) -> tuple[ObjectRef, str]:
    """Return the reference of a model, and its name, of a checkpoint if it is trained."""
    named = None if name == served.entry.id else ModelName.within(principal.entity, name)
    if served.checkpoint is None or named is None:
        return ObjectRef(*namespace, RefKind.OBJECT, object_id(served.entry.id)), name
    step = f"step{served.checkpoint.step}"
    pinned = f"{named.entity}/{named.project}/{named.name}:{step}"
    return ObjectRef(named.entity, named.project, RefKind.OBJECT, named.name, step), pinned
