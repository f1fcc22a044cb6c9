"""Token ids in, token ids out: the bodies of requests and answers, as vLLM has them at `/inference/v1/generate`."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import attrs

from modelyard.domain.completion import Completion, CompletionRequest, Delta, TokenLogprob, Usage
from modelyard.errors import InvalidInput, Problem, nearest
from modelyard.formats.chat.bounds import MAX_TOKENS
from modelyard.formats.chat.hints import CACHED
from modelyard.formats.chat.request import GenerationBody, StreamOptions, contradictions, generation_fields
from modelyard.formats.chat.response import AnsweredUsage, Logprobs
from modelyard.formats.chat.stream import DONE, event
from modelyard.formats.constraints import Length, Only, Unsupported, Within
from modelyard.formats.converter import MAX_PROBLEMS, UNKNOWN, structure, structure_exactly
from modelyard.formats.json import dumps
from modelyard.parts.completions.formats.request import MOST_TOP, ParsedPrompts, Prompt, read_prompts
from modelyard.parts.completions.formats.response import PromptLogprob, prompt_logprobs_list, usage_object

# ---- the shape ---------------------------------------------------------------------------------------------------

_GENERATION = frozenset(field.name for field in attrs.fields(GenerationBody)) - {
    *("model", "stream", "stream_options", "user", "return_token_ids", "nvext"),
    *("response_format", "guided_json", "guided_choice", "guided_regex"),
}
"""What the sampling parameters have in common with the bodies of other requests."""

_OF_TEXT = "an answer in token ids has no text"
SAMPLING_WITHOUT_EFFECT: Mapping[str, str] = {
    "detokenize": _OF_TEXT,
    "skip_special_tokens": _OF_TEXT,
    "spaces_between_special_tokens": _OF_TEXT,
    "output_kind": "stream says whether the answer comes in pieces",
    "skip_reading_prefix_cache": CACHED,
    "routed_experts_prompt_start": "no answer has its routing",
}
"""Sampling parameters that change no answer, and why."""


@attrs.define(kw_only=True)
class SamplingParams:
    """How tokens are sampled. `max_tokens` is by default as many as fit. Null means the same as leaving a parameter
    out.
    """

    max_tokens: int | None = attrs.field(default=None, validator=Within(0, MAX_TOKENS))
    logprobs: int | None = attrs.field(default=None, validator=Within(0, MOST_TOP))
    prompt_logprobs: int | None = attrs.field(default=None, validator=Within(0, MOST_TOP))
    include_stop_str_in_output: object = attrs.field(
        default=None, validator=Only((False,), "must be false: an answer ends before the stop string")
    )
    allowed_token_ids: object = attrs.field(
        default=None, validator=Unsupported("is not supported: use structured_outputs or logit_bias")
    )
    bad_words: object = attrs.field(default=None, validator=Only(([],), "is not supported: use logit_bias"))
    logits_processors: object = attrs.field(default=None, validator=Unsupported("is not supported"))


_OWN = frozenset(field.name for field in attrs.fields(SamplingParams))


def read_token_ids(raw: object) -> tuple[int, ...]:
    found = read_prompts(raw)[0] if isinstance(raw, list) and all(type(one) is int for one in raw) and raw else ""
    if isinstance(found, str):
        raise InvalidInput([Problem((), "must be a list of token ids, and not empty", "type_error")])
    return found


@attrs.define(kw_only=True)
class GenerateBody:
    """The body of a request to continue token ids. `sampling_params` are those of vLLM's `SamplingParams`."""

    CALLED: ClassVar[str] = "generate"

    token_ids: tuple[int, ...] = attrs.field(metadata={"parser": read_token_ids})
    sampling_params: Mapping[str, Any]
    model: str = attrs.field(validator=Length(1, 1024))
    request_id: str | None = attrs.field(default=None, validator=Length(1, 256))
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: str | None = attrs.field(default=None, validator=Length(1, 1024))
    priority: object = attrs.field(default=None, validator=Only((0,), "is not supported: requests are served in order"))
    features: object = attrs.field(default=None, validator=Unsupported("is not supported: prompts are text"))
    kv_transfer_params: object = attrs.field(
        default=None, validator=Unsupported("is not supported: a model keeps its own cache")
    )


@attrs.frozen
class GeneratedChoice:
    """One continuation of a prompt. In `logprobs`, a token is written as `token_id:<id>`."""

    index: int
    logprobs: Logprobs | None
    finish_reason: Literal["stop", "length", "content_filter"] | None
    token_ids: tuple[int, ...]


@attrs.frozen
class Generated:
    """A finished answer in token ids."""

    request_id: str
    model: str
    created: int
    choices: tuple[GeneratedChoice, ...]
    usage: AnsweredUsage
    prompt_logprobs: tuple[Mapping[str, PromptLogprob] | None, ...] | None = None


@attrs.frozen
class GeneratedChunk:
    """One event of a streamed answer in token ids."""

    request_id: str
    choices: tuple[GeneratedChoice, ...]
    usage: AnsweredUsage | None = None


# ---- read --------------------------------------------------------------------------------------------------------


@attrs.define
class ParsedGeneration:
    """A request of one prompt, and the id that its answer repeats, if any."""

    prompts: ParsedPrompts
    request_id: str | None


def read_generate(body: object, *loc: str | int) -> ParsedGeneration:
    parsed = structure_exactly(GenerateBody, body, *loc)
    try:
        fields = _sampling_fields(parsed)
    except InvalidInput as error:
        raise error.below(*loc, "sampling_params") from None
    prompt: Prompt = parsed.token_ids
    request = CompletionRequest(**fields, messages=(), prompt=prompt, return_token_ids=True)
    with_usage = parsed.stream_options is not None and parsed.stream_options.include_usage
    return ParsedGeneration(
        ParsedPrompts((request,), request.logprobs, True, True, with_usage=with_usage), parsed.request_id
    )


def _sampling_fields(parsed: GenerateBody) -> dict[str, Any]:
    given = {name: value for name, value in parsed.sampling_params.items() if name not in SAMPLING_WITHOUT_EFFECT}
    known = _OWN | _GENERATION
    unknown = [name for name in given if name not in known][:MAX_PROBLEMS]
    problems = [Problem((name,), f"is not a sampling parameter{nearest(name, known)}", UNKNOWN) for name in unknown]
    if problems:
        raise InvalidInput(problems)
    if given.get("stop") == []:
        del given["stop"]
    common = structure_exactly(
        GenerationBody, {**{name: one for name, one in given.items() if name in _GENERATION}, "model": parsed.model}
    )
    own = structure(SamplingParams, given)
    problems = contradictions(common, own.max_tokens)
    if problems:
        raise InvalidInput(problems)
    fields = generation_fields(common, given) | {"streamed": bool(parsed.stream)}
    fields |= {"max_tokens": own.max_tokens, "prompt_logprobs": own.prompt_logprobs}
    return fields if own.logprobs is None else fields | {"logprobs": True, "top_logprobs": own.logprobs}


# ---- written -----------------------------------------------------------------------------------------------------


def generated_json(completion: Completion, parsed: ParsedGeneration) -> bytes:
    choices = [
        {
            "index": choice.index,
            "logprobs": _logprobs(choice.logprobs or ()) if parsed.prompts.with_logprobs else None,
            "finish_reason": str(choice.finish_reason),
            "token_ids": list(choice.token_ids),
        }
        for choice in completion.choices
    ]
    written: dict[str, Any] = {
        "request_id": parsed.request_id or completion.id,
        "model": completion.model,
        "created": completion.created,
        "choices": choices,
        "usage": usage_object([completion.usage]),
    }
    if parsed.prompts.requests[0].prompt_logprobs is not None:
        written["prompt_logprobs"] = prompt_logprobs_list(completion.choices[0].prompt_logprobs)
    return dumps(written)


class GeneratedChunks:
    def __init__(self, id: str, parsed: ParsedGeneration) -> None:
        self._id, self._prompts = parsed.request_id or id, parsed.prompts

    def of_all(self, deltas: Iterable[Delta]) -> bytes:
        return b"".join([self._of(delta) for delta in deltas if delta.tokens or delta.finish_reason])

    def end(self, usage: Usage) -> bytes:
        if not self._prompts.with_usage:
            return DONE
        return event({"request_id": self._id, "choices": [], "usage": usage_object([usage])}) + DONE

    def _of(self, delta: Delta) -> bytes:
        choice = {
            "index": delta.index,
            "logprobs": _logprobs(delta.logprobs) if self._prompts.with_logprobs else None,
            "finish_reason": None if delta.finish_reason is None else str(delta.finish_reason),
            "token_ids": list(delta.token_ids),
        }
        return event({"request_id": self._id, "choices": [choice]})


def _logprobs(entries: Sequence[TokenLogprob]) -> Mapping[str, Any]:
    return {"content": [{**_token(entry), "top_logprobs": list(map(_token, entry.top))} for entry in entries]}


def _token(entry: TokenLogprob) -> dict[str, Any]:
    raw = None if entry.bytes is None else list(entry.bytes)
    return {"token": f"token_id:{entry.id}", "logprob": entry.logprob, "bytes": raw}
