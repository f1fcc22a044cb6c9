"""The models of a server: as the host declares them, or as the server itself lists them (specification 2.1)."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import attrs

from modelyard.backends.entries import features, output_modalities, sampling_parameters
from modelyard.domain.catalogue import CatalogueEntry, Pricing, Quantization, check_entry
from modelyard.domain.completion import ANSWER_EXTRAS, SAMPLING_PARAMETERS
from modelyard.errors import BackendError, InvalidInput, Problem
from modelyard.lazy import log
from modelyard.parts.upstream.answers.values import count_of, numbered_of, object_of, objects_of, string_of
from modelyard.protocols import Capabilities

COMMON = Capabilities(
    parameters=frozenset(
        {"temperature", "top_p", "frequency_penalty", "presence_penalty", "seed", "reasoning_effort", "verbosity"}
    ),
    tools=True,
    json_mode=True,
)
"""What nearly every server of the format can do."""

VLLM = Capabilities(
    parameters=frozenset((*SAMPLING_PARAMETERS, *ANSWER_EXTRAS)),
    logprobs=True,
    top_logprobs=20,
    token_ids=True,
    choices=True,
    tools=True,
    forced_tools=True,
    json_mode=True,
    structured_outputs=True,
    guided=frozenset({"choice", "regex"}),
    masked_logprobs=True,
    prompts=True,
    prompt_logprobs=True,
)
"""What a vLLM server can do that was started with tools; token ids since its release 0.10.2."""


@attrs.frozen
class UpstreamModel:
    """A model of a server: its catalogue entry, its capabilities, and its name on the server (by default its id)."""

    entry: CatalogueEntry
    capabilities: Capabilities = COMMON
    served_as: str = attrs.field(default=attrs.Factory(lambda self: self.entry.id, takes_self=True))


def offer(
    id: str,
    *,
    context_length: int,
    pricing: Pricing,
    max_output_length: int | None = None,
    capabilities: Capabilities = COMMON,
    served_as: str | None = None,
    quantization: Quantization = Quantization.BF16,
    created: int = 0,
) -> UpstreamModel:
    """Declare a text model of a server. `max_output_length` is the most tokens of an answer that the server allows, by
    default its whole context; a request without `max_tokens` reserves so many of a budget. `Pricing()` is free.

    A model that only makes embeddings has `capabilities=Capabilities(embedding_size=1024, completions=False)`.

    >>> offer("Qwen/Qwen3-8B", context_length=32_768, pricing=Pricing()).entry.hub_id
    'Qwen/Qwen3-8B'
    """
    entry = CatalogueEntry(
        id=id,
        hub_id=id,
        name=id,
        created=created,
        quantization=quantization,
        context_length=context_length,
        max_output_length=context_length if max_output_length is None else max_output_length,
        pricing=pricing,
        supported_sampling_parameters=sampling_parameters(capabilities),
        supported_features=features(capabilities),
        output_modalities=output_modalities(capabilities),
    )
    return UpstreamModel(entry, capabilities, served_as or id)


def check_models(models: Iterable[UpstreamModel]) -> tuple[UpstreamModel, ...]:
    """Return the models. Raises `InvalidInput` for none, for an entry that cannot be listed, and for a repeated id."""
    checked: dict[str, UpstreamModel] = {}
    given: Iterable[object] = models
    for number, model in enumerate(given):
        if not isinstance(model, UpstreamModel):
            example = model if isinstance(model, str) else "<id>"
            msg = f'must be of `offer`, such as offer("{example}", context_length=32_768, pricing=Pricing())'
            raise InvalidInput.at("models", number, msg=msg)
        check_entry(model.entry)
        if checked.setdefault(model.entry.id, model) is not model:
            raise InvalidInput.at("models", msg=f"{model.entry.id!r} is given twice")
    if not checked:
        raise InvalidInput.at("models", msg="must hold at least one model")
    return tuple(checked.values())


# ---- what a server lists ---------------------------------------------------------------------------------------


@attrs.frozen
class Listed:
    """A model as a server lists it: its lengths in tokens if it reports them, `created` in Unix seconds."""

    id: str
    created: int = 0
    context_length: int | None = None
    max_output_length: int | None = None


_LISTS = ("data", "models", "result")
_DEEPEST = 3
"""How many objects may stand around a list of models."""


def read_list(body: Any) -> list[Listed]:
    """Read the models of a server's list, without LoRA adapters, which have a parent. A card without an id is left out.

    One that is listed twice counts once. Raises `BackendError`.
    """
    found = _cards(body, _DEEPEST)
    if found is None:
        raise BackendError("the upstream server's list of models is not in the usual shape: data: must be a list")
    cards = [{"id": one} if isinstance(one, str) else object_of(one) for one in found]
    listed = [_listed(card) for card in cards if not card.get("parent")]
    known = {model.id: model for model in reversed(listed) if model.id}
    if not all(model.id for model in listed):
        log.warning("the upstream server lists models without an id, which are left out")
    return [*reversed(known.values())]


def _cards(value: Any, deepest: int) -> Sequence[Any] | None:
    """Return the list of models in a value, perhaps enclosed, or an object of them by their numbers; None if it has
    none.
    """
    if isinstance(value, list):
        return value
    owner = object_of(value)
    if numbered_of(owner):
        return objects_of(owner)
    found = (_cards(owner.get(name), deepest - 1) for name in _LISTS) if deepest else ()
    return next((one for one in found if one is not None), None)


def _listed(card: Mapping[str, Any]) -> Listed:
    name = next((text for name in ("id", "name", "model") if (text := string_of(card.get(name)))), "")
    meta = object_of(card.get("meta"))  # of llama.cpp
    context = _length(*map(card.get, _LENGTHS), meta.get("n_ctx"), meta.get("n_ctx_train"))
    answer = _length(*map(card.get, _ANSWER_LENGTHS), object_of(card.get("top_provider")).get(_COMPLETION))
    return Listed(name, count_of(card.get("created")) or 0, context, answer)


_LENGTHS = (
    *("max_model_len", "context_length", "max_input_tokens", "context_window", "max_context_length"),
    *("max_context_tokens", "inputTokenLimit", "input_token_limit"),
)
"""Where vLLM and SGLang, hosted servers, LiteLLM, Mistral and Gemini report a context length."""


_COMPLETION = "max_completion_tokens"
_ANSWER_LENGTHS = ("max_output_length", "max_output_tokens", _COMPLETION, "outputTokenLimit", "output_token_limit")
"""Where modelyard, LiteLLM, hosted servers and Gemini report the most tokens of an answer."""


def _length(*reported: Any) -> int | None:
    return next((length for length in map(count_of, reported) if length), None)


def priced(
    listed: Sequence[Listed],
    pricing: Mapping[str, Pricing],
    only: Collection[str] | None,
    names: Mapping[str, str],
    lengths: tuple[int | None, int | None],
    capabilities: Capabilities,
) -> tuple[UpstreamModel, ...]:
    """Return the listed models with the host's prices; `lengths` are of a context and of an answer, for those of which
    none is listed. Raises `InvalidInput` naming each model that lacks something."""
    context_length, longest = lengths
    ids = {model.id for model in listed}
    asked = [("only", name) for name in only or ()] + [("names", name) for name in names]
    problems = [Problem((where,), f"the server does not list {name!r}") for where, name in asked if name not in ids]
    wanted = [model for model in listed if only is None or model.id in only]
    for model in wanted:
        name = names.get(model.id, model.id)
        if name not in pricing:
            problems.append(Problem(("pricing", name), "is missing; `Pricing()` is free, `only` names a choice"))
        if context_length is None and model.context_length is None:
            problems.append(
                Problem(("context_length",), f"must be given: the server does not report that of {model.id!r}")
            )
    if problems:
        raise InvalidInput(problems)
    return check_models(
        offer(
            names.get(model.id, model.id),
            context_length=(context := model.context_length or context_length or 0),
            max_output_length=min(model.max_output_length or longest or context, context),
            pricing=pricing[names.get(model.id, model.id)],
            capabilities=capabilities,
            served_as=model.id,
            created=model.created,
        )
        for model in wanted
    )
