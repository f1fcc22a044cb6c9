"""The request to sample from tokens, in JSON, and its answer, in protobuf, as tinker 0.38 has them."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import attrs

from modelyard.domain.completion import Choice, Completion, CompletionRequest, FinishReason, Sampling, TokenLogprob
from modelyard.errors import InvalidInput
from modelyard.formats.chat.bounds import MAX_TOKENS
from modelyard.formats.constraints import Length, Only, Unsupported, Within
from modelyard.parts.completions.formats.request import MOST_TOP
from modelyard.parts.tinker.formats.wire import packed, varint, within

MAX_SAMPLES = 1024
"""How many sequences a request may ask for."""

MAX_STOPS = 64
"""How many strings or tokens may end a sequence."""

MASKED = -99999.0
"""The log-probability of a place in a table of the likeliest tokens where there is none."""

_SEEDS = 2**63


_NO_TEXT = Unsupported("is of an image or a sound, which is not supported: send tokens, encoded_text")


@attrs.define(kw_only=True)
class PromptChunk:
    """A piece of a prompt: token ids."""

    type: str = attrs.field(
        default="encoded_text", validator=Only(("encoded_text",), "is not supported: send tokens, encoded_text")
    )
    tokens: tuple[int, ...] = attrs.field(default=(), metadata={"parser": lambda raw: _token_ids(raw)})
    data: object = attrs.field(default=None, validator=_NO_TEXT)
    dmel: object = attrs.field(default=None, validator=_NO_TEXT)
    format: object = attrs.field(default=None, validator=_NO_TEXT)
    location: object = attrs.field(default=None, validator=_NO_TEXT)
    expected_tokens: object = attrs.field(default=None, validator=_NO_TEXT)


def _read_stop(raw: object) -> str | tuple[str | int, ...] | None:
    if raw is None or isinstance(raw, str):
        return raw
    strings = isinstance(raw, list) and all(isinstance(one, str) and one for one in raw)
    if isinstance(raw, list) and len(raw) <= MAX_STOPS and strings:
        return tuple(raw)
    if not isinstance(raw, list) or len(raw) > MAX_STOPS:
        raise ValueError(f"must be a string, or a list of up to {MAX_STOPS} strings or token ids")
    return _token_ids(raw)


def _token_ids(raw: object) -> tuple[int, ...]:
    if not isinstance(raw, list) or not all(type(one) is int and 0 <= one < 2**31 for one in raw):
        raise ValueError("must be a list of token ids")
    return tuple(raw)


@attrs.define(kw_only=True)
class PromptInput:
    """A prompt, in pieces of token ids."""

    chunks: tuple[PromptChunk, ...]

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(token for chunk in self.chunks for token in chunk.tokens)


@attrs.define(kw_only=True)
class SampledAs:
    """How tokens are sampled. Without `stop` a sequence ends at an end-of-turn token; with an empty list, at none."""

    max_tokens: int | None = attrs.field(default=None, validator=Within(1, MAX_TOKENS))
    seed: int | None = None
    stop: str | tuple[str | int, ...] | None = attrs.field(
        default=None, metadata={"parser": lambda raw: _read_stop(raw)}
    )
    temperature: float = attrs.field(default=1.0, validator=Within(0, 2))
    top_k: int = attrs.field(default=-1, validator=Within(-1))
    top_p: float = attrs.field(default=1.0, validator=Within(0, 1, above=True))


@attrs.define(kw_only=True)
class SampleBody:
    """A request to sample. It names a sampling session, and its own number there."""

    prompt: PromptInput
    sampling_params: SampledAs
    sampling_session_id: str = attrs.field(validator=Length(1, 256))
    seq_id: int = attrs.field(validator=Within(0, 2**63 - 1))
    num_samples: int = attrs.field(default=1, validator=Within(1, MAX_SAMPLES))
    prompt_logprobs: bool | None = None
    topk_prompt_logprobs: int = attrs.field(default=0, validator=Within(0, MOST_TOP))
    topk_sample_logprobs: int = attrs.field(default=0, validator=Within(0, MOST_TOP))
    prompt_logprobs_last_n: int | None = attrs.field(default=None, validator=Within(1))
    target_prompt_logprobs: object = attrs.field(
        default=None, validator=Unsupported("is not supported: ask for topk_prompt_logprobs, or use forward")
    )
    prompt_alt_tokens_k: object = attrs.field(default=0, validator=Only((0,), "is not supported: sample them"))
    record_stability_info: object = attrs.field(
        default=None, validator=Only((False,), "is not supported, nor is the loss stable_reinforce")
    )
    base_model: object = attrs.field(
        default=None, validator=Unsupported("is not supported: create a sampling session for it")
    )
    model_path: object = attrs.field(
        default=None, validator=Unsupported("is not supported: create a sampling session for it")
    )
    type: Literal["sample"] = "sample"


def sample_request(body: SampleBody, model: str) -> CompletionRequest:
    params, tokens = body.sampling_params, body.prompt.tokens
    if not tokens:
        raise InvalidInput.at("body", "prompt", msg="must have at least one token")
    if body.prompt_logprobs_last_n is not None and not (
        body.prompt_logprobs and body.prompt_logprobs_last_n < len(tokens)
    ):
        msg = "must be less than the tokens of the prompt, and needs prompt_logprobs"
        raise InvalidInput.at("body", "prompt_logprobs_last_n", msg=msg)
    ids, strings = _ids_and_strings(params.stop)
    scored = bool(body.prompt_logprobs or body.topk_prompt_logprobs)
    return CompletionRequest(
        model,
        (),
        Sampling(
            temperature=params.temperature,
            top_p=params.top_p,
            top_k=params.top_k if params.top_k > 0 else None,
            seed=None if params.seed is None else (params.seed + _SEEDS) % (2 * _SEEDS) - _SEEDS,
            ignore_eos=params.stop is not None and not isinstance(params.stop, str) and not params.stop,
            stop_token_ids=ids,
        ),
        n=body.num_samples,
        max_tokens=params.max_tokens,
        stop=strings,
        logprobs=True,
        top_logprobs=body.topk_sample_logprobs,
        return_token_ids=True,
        prompt=tokens,
        prompt_logprobs=body.topk_prompt_logprobs if scored else None,
    )


def _ids_and_strings(stop: str | Sequence[Any] | None) -> tuple[tuple[int, ...], tuple[str, ...]]:
    if stop is None or isinstance(stop, str):
        return (), (stop,) if stop else ()
    return tuple(one for one in stop if isinstance(one, int)), tuple(one for one in stop if isinstance(one, str))


# ---- the answer --------------------------------------------------------------------------------------------------


def sample_message(completion: Completion, body: Mapping[str, Any]) -> bytes:
    """Write the answer to a request. Only what was requested is in it."""
    top, prompt_top = int(body.get("topk_sample_logprobs") or 0), int(body.get("topk_prompt_logprobs") or 0)
    parts = [within(1, _sequence(choice, top)) for choice in completion.choices]
    entries, last = completion.choices[0].prompt_logprobs, body.get("prompt_logprobs_last_n")
    skipped = 0 if last is None else max(0, len(entries) - int(last))
    if body.get("prompt_logprobs"):
        scores = [math.nan] * (skipped + 1) + [entry.logprob for entry in entries[skipped:]]
        parts.append(within(2, packed("f", scores)))
    if prompt_top:
        parts.append(within(3, _table([()] * (skipped + 1) + [entry.top for entry in entries[skipped:]], prompt_top)))
    return b"".join([*parts, varint(4, completion.usage.cached_tokens)])


def _sequence(choice: Choice, top: int) -> bytes:
    reason = 1 if choice.finish_reason is FinishReason.LENGTH else 0
    entries = choice.logprobs or ()
    message = varint(1, reason) + within(2, packed("i", choice.token_ids))
    if entries:
        message += within(3, packed("f", [entry.logprob for entry in entries]))
    return message + (within(4, _table([entry.top for entry in entries], top)) if top else b"")


def _table(rows: Sequence[Sequence[TokenLogprob]], width: int) -> bytes:
    ids, scores = list[int](), list[float]()
    for row in rows:
        best = sorted(row, key=lambda entry: -entry.logprob)[:width]
        ids += [entry.id or 0 for entry in best] + [0] * (width - len(best))
        scores += [entry.logprob for entry in best] + [MASKED] * (width - len(best))
    return within(1, packed("i", ids)) + within(2, packed("f", scores)) + varint(3, width) + varint(4, len(rows))
