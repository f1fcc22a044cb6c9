"""The body of a request to continue a prompt: its shape and bounds, read strictly, and written for another server."""

from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import attrs

from modelyard.domain.completion import CompletionRequest
from modelyard.errors import InvalidInput, Problem
from modelyard.formats.chat.bounds import LONGEST_MODEL_NAME, MAX_TOKENS, is_unicode
from modelyard.formats.chat.request import GenerationBody, contradictions, generation_fields
from modelyard.formats.constraints import Length, Only, Unsupported, Within
from modelyard.formats.converter import structure_exactly
from modelyard.parts.request_objects import request_object

Prompt = str | tuple[int, ...]

MOST_PROMPTS = 1024
"""The most prompts that one request may have."""

MOST_TOP = 20
"""The most alternatives of a token that a request may ask for."""

_MOST_ID = 2**63
_USUAL_TOKENS = 16
"""How many tokens continue a prompt unless a request says so, as in all servers of the format."""


def read_prompts(raw: object) -> tuple[Prompt, ...]:
    if isinstance(raw, str | tuple) or (isinstance(raw, list) and raw and type(raw[0]) is int):
        return (_prompt(raw),)
    if not isinstance(raw, list) or not 1 <= len(raw) <= MOST_PROMPTS:
        raise _unfit(f"must be a string, token ids, or a list of 1 to {MOST_PROMPTS} of these")
    return tuple([_prompt(one, at) for at, one in enumerate(raw)])


def _prompt(raw: object, *loc: int) -> Prompt:
    if isinstance(raw, str) and raw:
        if not is_unicode(raw):
            raise _unfit("has a half of a surrogate pair, which is not Unicode", *loc)
        return raw
    if isinstance(raw, list | tuple) and raw and all(type(one) is int and 0 <= one < _MOST_ID for one in raw):
        return tuple(raw)
    raise _unfit("must be a string or token ids, and not empty", *loc)


def _unfit(says: str, *loc: int) -> InvalidInput:
    return InvalidInput([Problem(loc, says, "type_error")])


@attrs.define(kw_only=True)
class CompletionBody(GenerationBody):
    """The body of a request to continue prompts. Null means the same as leaving a parameter out."""

    CALLED: ClassVar[str] = "a completion"

    prompt: tuple[Prompt, ...] = attrs.field(
        metadata={
            "parser": read_prompts,
            "described_as": str | tuple[str, ...] | tuple[int, ...] | tuple[tuple[int, ...], ...],
        }
    )
    max_tokens: int | None = attrs.field(default=None, validator=Within(0, MAX_TOKENS))
    logprobs: int | None = attrs.field(default=None, validator=Within(0, MOST_TOP))
    prompt_logprobs: int | None = attrs.field(default=None, validator=Within(0, MOST_TOP))
    echo: bool | None = None
    add_special_tokens: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    suffix: object = attrs.field(
        default=None, validator=Unsupported("is not supported: models continue a prompt at its end")
    )
    best_of: object = attrs.field(
        default=None, validator=Only((1,), "is not supported: ask for n, and choose with logprobs")
    )
    use_beam_search: object = attrs.field(
        default=None, validator=Only((False,), "is not supported: tokens are sampled")
    )
    skip_special_tokens: object = attrs.field(
        default=None, validator=Only((True,), "must be true: special tokens have no text; return_token_ids shows them")
    )
    spaces_between_special_tokens: bool | None = None
    include_stop_str_in_output: object = attrs.field(
        default=None, validator=Only((False,), "must be false: the text ends before the stop string")
    )
    truncate_prompt_tokens: object = attrs.field(
        default=None, validator=Unsupported("is not supported: shorten the prompt yourself")
    )
    allowed_token_ids: object = attrs.field(
        default=None, validator=Unsupported("is not supported: use structured_outputs or logit_bias")
    )
    bad_words: object = attrs.field(default=None, validator=Only(([],), "is not supported: use logit_bias"))
    prompt_embeds: object = attrs.field(
        default=None, validator=Unsupported("is not supported: a prompt is text or token ids")
    )


@attrs.define(kw_only=True)
class ModelCompletionBody(CompletionBody):
    """The body of a request to continue prompts, at an address that names the model."""

    model: str | None = attrs.field(default=None, validator=Length(1, LONGEST_MODEL_NAME))  # type: ignore[assignment]


PARAMETERS = frozenset(field.name for field in attrs.fields(CompletionBody))


@attrs.define
class ParsedPrompts:
    """Requests, one for each prompt, and what their answer is to show."""

    requests: tuple[CompletionRequest, ...]
    with_logprobs: bool = False
    with_ids: bool = False
    as_ids: bool = False
    echo: bool = False
    with_usage: bool = False
    with_prompt_logprobs: bool = False

    @property
    def streamed(self) -> bool:
        return self.requests[0].streamed


def read_body(body: object, *loc: str | int) -> ParsedPrompts:
    """Read the JSON of a request. Raises `InvalidInput` naming every problem and every unknown parameter."""
    parsed = structure_exactly(CompletionBody, body, *loc)
    assert isinstance(body, dict)
    try:
        fields = generation_fields(parsed, body)
    except InvalidInput as error:
        raise error.below(*loc) from None
    fields.setdefault("max_tokens", _USUAL_TOKENS)
    problems = contradictions(parsed, fields["max_tokens"])
    if len(parsed.prompt) * fields.get("n", 1) > MOST_PROMPTS:
        problems.append(Problem(("n",), f"makes more than {MOST_PROMPTS} choices of these prompts; send fewer at once"))
    if problems:
        raise InvalidInput(problems).below(*loc)
    return ParsedPrompts(
        tuple([CompletionRequest(messages=(), prompt=prompt, **_details(parsed, fields)) for prompt in parsed.prompt]),
        parsed.logprobs is not None,
        bool(parsed.return_token_ids),
        bool(parsed.return_tokens_as_token_ids),
        bool(parsed.echo),
        parsed.stream_options is not None and parsed.stream_options.include_usage,
        parsed.prompt_logprobs is not None,
    )


def _details(parsed: CompletionBody, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Add the details of tokens. A prompt that is shown with log-probabilities needs its own, and its ids."""
    found = dict(fields)
    shown = bool(parsed.echo) and parsed.logprobs is not None
    scored = parsed.logprobs if shown and parsed.prompt_logprobs is None else parsed.prompt_logprobs
    if parsed.logprobs is not None:
        found |= {"logprobs": True, "top_logprobs": parsed.logprobs}
    if scored is not None:
        found |= {"prompt_logprobs": scored, "return_token_ids": True}
    if parsed.add_special_tokens is False:
        found["extras"] = {"add_special_tokens": False}
    return found


# ---- written -----------------------------------------------------------------------------------------------------


def prompt_object(
    request: CompletionRequest, model: str, max_tokens: int | None, parameters: Collection[str]
) -> dict[str, Any]:
    """Return the JSON of a request for the model that the server calls `model`."""
    body = request_object(request, model, max_tokens, parameters)
    del body["messages"]
    body["prompt"] = list(request.prompt) if type(request.prompt) is tuple else request.prompt
    if request.logprobs:
        body["logprobs"] = body.pop("top_logprobs", 0)
    if request.prompt_logprobs is not None:
        body["prompt_logprobs"] = request.prompt_logprobs
    return body
