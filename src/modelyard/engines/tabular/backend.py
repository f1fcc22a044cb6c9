"""The backend of the tabular language model: small, seeded, with real probabilities, and with a checkpoint's
adapter.
"""

import codecs
import math
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice

import attrs

from modelyard.backends.sampling import check_token_ids, drawn, is_plain, most_likely, next_token
from modelyard.domain.catalogue import CatalogueEntry, Pricing
from modelyard.domain.completion import CompletionRequest, Delta, FinishReason, Sampling, TokenLogprob
from modelyard.engines.tabular.adapter_file import ADAPTER_FILE, read_adapter
from modelyard.engines.tabular.base import BASE_MODELS, CAPABILITIES, PRICING, base_seed, conversation, tabular_entries
from modelyard.engines.tabular.model import Adapter, Odds, PromptScorer, TabularModel, prompt_ids
from modelyard.engines.tabular.raw_prompt import RawPrompt, prompt_odds, read_prompt
from modelyard.engines.tabular.tokenizer import END_OF_TURN, VOCABULARY_SIZE, encode, token_bytes, token_text
from modelyard.errors import BackendError, InvalidInput
from modelyard.protocols import Capabilities, ServedModel

MAX_ADAPTERS = 32
UNSTREAMED_PIECE = 64
"""Tokens sampled between two deltas of an answer that is not streamed; it can be stopped between them."""


class TabularBackend:
    """Samples from tabular models, in about 0.1 ms per token: base models by name, checkpoints by adapter.

    Log-probabilities are the model's own, before any sampling parameter. An answer that ends by itself has the end of
    the turn as its last token: counted, with empty text. Tools are read as context and never called, so that the
    entries do not list them. Up to 32 adapters stay loaded.

    >>> TabularBackend().entries()[0].id
    'tabular-mini'
    """

    blocking = True

    def __init__(self, base_models: Sequence[str] = BASE_MODELS, *, pricing: Pricing = PRICING) -> None:
        self._adapters = _Adapters()
        self._entries = tabular_entries(base_models, pricing)

    def entries(self) -> Sequence[CatalogueEntry]:
        """Return one entry per base model."""
        return self._entries

    def capabilities(self, model: str) -> Capabilities:
        """Return all sampling parameters, log-probabilities and token ids; nothing can be forced."""
        return CAPABILITIES

    def prompt_tokens(self, request: CompletionRequest, model: ServedModel) -> int:
        """Count the tokens of the conversation, or of the prompt. Raises `InvalidInput` as `tokens` does."""
        return len(self.tokens(request, model))

    def tokens(self, request: CompletionRequest, model: ServedModel) -> Sequence[int]:
        """Return the tokens of the conversation, or of the prompt.

        Raises `InvalidInput` if it is not valid Unicode, or has an id that is not a token.
        """
        if type(request.prompt) is tuple:
            self.token_bytes(request.prompt, model)
            return request.prompt
        return _encoded(request)

    def token_bytes(self, ids: Sequence[int], model: ServedModel) -> Sequence[bytes]:
        """Return the bytes of tokens; none for the end of a turn. Raises `InvalidInput` for an unknown id."""
        if unknown := [id_ for id_ in ids if not 0 <= id_ < VOCABULARY_SIZE]:
            raise InvalidInput.at("prompt", msg=f"{unknown[0]} is not a token id of this model: it has 0 to 511")
        return list(map(token_bytes, ids))

    def stream(self, request: CompletionRequest, model: ServedModel) -> Iterator[Delta]:
        """Sample an answer. Raises `InvalidInput`, `ArtifactMissing`, or `BackendError` for an unreadable
        checkpoint.
        """
        check_token_ids(request.sampling, VOCABULARY_SIZE)
        prompt = self.tokens(request, model)
        served = TabularModel(base_seed(model.base_model), self._adapters.of(model))
        limit = model.entry.max_output_length if request.max_tokens is None else request.max_tokens
        read = _read(request, prompt)
        tokens = _sampled(served.scorer(read.features), request, prompt, limit, read.begun)
        scored = _scored(served, request, prompt)
        for delta in _deltas(tokens, request, prompt, limit):
            yield attrs.evolve(delta, prompt_logprobs=scored) if scored else delta
            scored = ()


def _read(request: CompletionRequest, prompt: Sequence[int]) -> RawPrompt:
    """Return the conversation of a request, and how its answer begins."""
    if request.prompt is not None:
        return read_prompt(prompt)
    return RawPrompt(conversation(request.messages, request.tools), ())


def _scored(model: TabularModel, request: CompletionRequest, prompt: Sequence[int]) -> tuple[TokenLogprob, ...]:
    """Return the log-probabilities of the prompt's tokens, where they are requested."""
    if (count := request.prompt_logprobs) is None:
        return ()
    scored = [(_entry(token, odds, _top(odds, count)), odds) for token, odds in prompt_odds(model, prompt)]
    return tuple([attrs.evolve(entry, rank=_rank(entry.id or 0, odds)) for entry, odds in scored])


def _rank(token: int, odds: Odds) -> int:
    return 1 + sum(map(odds.logits[token].__lt__, odds.logits))


def _encoded(request: CompletionRequest) -> list[int]:
    try:
        if request.prompt is None:
            return prompt_ids(conversation(request.messages, request.tools))
        return encode(str(request.prompt))
    except UnicodeEncodeError:
        where = "messages" if request.prompt is None else "prompt"
        raise InvalidInput.at(where, msg="holds a lone surrogate; send valid Unicode") from None


def _sampled(
    scorer: PromptScorer, request: CompletionRequest, prompt: Sequence[int], limit: int, begun: Sequence[int]
) -> Iterator[TokenLogprob]:
    """Sample token by token, up to one that ends the answer or the limit, after what the prompt has `begun`."""
    answer: list[int] = []
    known, sampling, ends = frozenset(prompt), request.sampling, _ends(request.sampling)
    early = _without(ends, sampling) if sampling.min_tokens else sampling
    while len(answer) < limit and not (answer and answer[-1] in ends):
        odds = scorer.odds([*begun, *answer] if begun else answer)
        token = _next(odds, early if len(answer) < sampling.min_tokens else sampling, known, answer)
        answer.append(token)
        yield _entry(token, odds, _top(odds, request.top_logprobs))


def _ends(sampling: Sampling) -> frozenset[int]:
    """Return the tokens after which an answer ends."""
    return frozenset(sampling.stop_token_ids if sampling.ignore_eos else (END_OF_TURN, *sampling.stop_token_ids))


def _without(ends: Iterable[int], sampling: Sampling) -> Sampling:
    """Return the sampling of the tokens before `min_tokens`, none of which ends the answer."""
    return attrs.evolve(sampling, logit_bias={**sampling.logit_bias, **dict.fromkeys(ends, -math.inf)})


def _next(odds: Odds, sampling: Sampling, prompt: Iterable[int], answer: Sequence[int]) -> int:
    """Sample the next token; only a repetition penalty, which multiplies, needs normalised scores."""
    if is_plain(sampling):
        return drawn(odds.weights, sampling, len(answer))
    scores = odds.logits if sampling.repetition_penalty == 1 else odds.logprobs
    return next_token(scores, sampling, prompt, answer)


def _top(odds: Odds, count: int) -> tuple[TokenLogprob, ...]:
    """Return the `count` likeliest tokens."""
    return tuple(_entry(likely, odds) for likely in most_likely(odds.logits, count)) if count else ()


def _entry(token: int, odds: Odds, top: tuple[TokenLogprob, ...] = ()) -> TokenLogprob:
    return TokenLogprob(token_text(token), min(0.0, odds.logprob(token)), tuple(token_bytes(token)), top, token)


def _deltas(
    tokens: Iterator[TokenLogprob], request: CompletionRequest, prompt: Sequence[int], limit: int
) -> Iterator[Delta]:
    """Join tokens to pieces of text; the bytes of an incomplete character wait for the rest of it."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    prompt_token_ids = tuple(prompt) if request.return_token_ids else ()
    produced, reason, ends = 0, None, _ends(request.sampling)
    while reason is None:
        piece = list(islice(tokens, 1 if request.streamed else UNSTREAMED_PIECE))
        ids = tuple(token.id for token in piece if token.id is not None)
        produced += len(ids)
        reason = _ending(ids, produced, limit, ends)
        yield Delta(
            text=decoder.decode(b"".join(map(token_bytes, ids)), final=reason is not None),
            tokens=len(ids),
            logprobs=tuple(piece) if request.logprobs else (),
            token_ids=ids if request.return_token_ids else (),
            prompt_token_ids=prompt_token_ids,
            finish_reason=reason,
        )
        prompt_token_ids = ()


def _ending(ids: Sequence[int], produced: int, limit: int, ends: Collection[int]) -> FinishReason | None:
    if ids and ids[-1] in ends:
        return FinishReason.STOP
    return FinishReason.LENGTH if produced >= limit else None


class _Adapters:
    """A cache of the most recently used adapters, by checkpoint. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loaded: OrderedDict[str, Adapter] = OrderedDict()

    def of(self, model: ServedModel) -> Adapter:
        """Return the adapter of the model's checkpoint, reading it if needed; an empty one for a base model."""
        checkpoint = model.checkpoint
        if checkpoint is None or not checkpoint.files:
            return Adapter()
        with self._lock:
            found = self._loaded.get(checkpoint.id)
            if found is not None:
                self._loaded.move_to_end(checkpoint.id)
                return found
        return self._keep(checkpoint.id, _loaded(model))

    def _keep(self, checkpoint_id: str, adapter: Adapter) -> Adapter:
        with self._lock:
            self._loaded[checkpoint_id] = adapter
            while len(self._loaded) > MAX_ADAPTERS:
                self._loaded.popitem(last=False)
        return adapter


def _loaded(model: ServedModel) -> Adapter:
    assert model.open_file is not None
    try:
        with model.open_file(ADAPTER_FILE) as file:
            return read_adapter(file)
    except ValueError as fault:
        raise BackendError(f"the checkpoint's {ADAPTER_FILE} holds no adapter of the tabular model: {fault}") from fault
