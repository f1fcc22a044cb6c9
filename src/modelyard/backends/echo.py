"""A backend that repeats the last user message, and how a known string is streamed as if it were sampled. A token
begins at each space and each line break, and a word of more than `LONGEST` characters is several tokens. Every
log-probability is 0, there are no alternatives, and there is no end-of-turn token."""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import islice, repeat
from typing import Any, TypeVar
from zlib import crc32

import attrs

from modelyard.backends import word_embedding
from modelyard.backends.entries import entry_for
from modelyard.backends.json_schema import instances
from modelyard.domain import embedding
from modelyard.domain.catalogue import CatalogueEntry, Pricing
from modelyard.domain.completion import (
    SAMPLING_PARAMETERS,
    CompletionRequest,
    Delta,
    FinishReason,
    Message,
    ResponseType,
    Role,
    TokenLogprob,
    ToolCall,
    ToolCallDelta,
    ToolMode,
)
from modelyard.domain.frozen_fast import maker
from modelyard.protocols import Capabilities, Deltas, ServedModel

_text_delta, _logprob = maker(Delta), maker(TokenLogprob)
_REQUIRED, _TEXT, _USER, _STOP = ToolMode.REQUIRED, ResponseType.TEXT, Role.USER, FinishReason.STOP

T = TypeVar("T")

LONGEST, _FEW, _KNOWN = 1024, 4, 4096
_TOKEN = re.compile(rf"[ \n]?[^ \n]{{1,{LONGEST}}}|[ \n]")

AT_ONCE = 64
"""The most tokens that are made at once: the first comes alone, then twice as many each time."""

CERTAIN = Capabilities(
    parameters=frozenset((*SAMPLING_PARAMETERS, "reasoning_effort", "verbosity")),
    logprobs=True,
    top_logprobs=20,
    token_ids=True,
    tools=True,
    synthesises_structure=True,
    guided=frozenset({"choice", "regex"}),
    reasoning=True,
    embedding_size=256,
    embedding_dimensions=True,
    strict_conversations=True,
)
"""A text of probability 1 does not depend on any sampling parameter, so all are supported."""

_LENGTHS = {"min_tokens", "ignore_eos"}
"""What is not honoured: an echo is as long as what it repeats."""

_ECHO = attrs.evolve(CERTAIN, parameters=CERTAIN.parameters - _LENGTHS, prompts=True, prompt_logprobs=True)


class EchoBackend:
    """Answers with the text of the last user message, or with the prompt, word by word if it is streamed.

    Its tokens are words with the space or line break before them, counted exactly; each is certain (log-probability 0).
    An id is a hash, which no word can be read out of: a token that is given by its id is written as `<id>`.
    With a `reasoning_effort` other than "none" it repeats the message as its reasoning, too, before its answer.
    A forced tool call and a response format are answered with a small valid instance (`json_schema.instances`). Texts
    with the same words have near embeddings.

    >>> EchoBackend(("echo", "parrot")).entries()[1].id
    'parrot'
    """

    blocking = False

    def __init__(
        self,
        models: Sequence[str] = ("echo",),
        *,
        pricing: Pricing = Pricing(),  # noqa: B008 - frozen
        context_length: int = 131_072,
    ) -> None:
        self._entries = tuple(entry_for(model, _ECHO, pricing, context_length) for model in models)

    def entries(self) -> Sequence[CatalogueEntry]:
        return self._entries

    def capabilities(self, model: str) -> Capabilities:
        """Return what a text of probability 1 trivially supports: all but what would make it longer."""
        return _ECHO

    def prompt_tokens(self, request: CompletionRequest, model: ServedModel) -> int:
        """Count the words of all messages, or of the prompt."""
        return count_prompt(request.messages) if request.prompt is None else len(_prompt(request))

    def tokens(self, request: CompletionRequest, model: ServedModel) -> Sequence[int]:
        """Return the hashes of the prompt's words."""
        return prompt_ids(request.messages) if request.prompt is None else [entry.id or 0 for entry in _prompt(request)]

    def token_bytes(self, ids: Sequence[int], model: ServedModel) -> Sequence[bytes]:
        """Return what each id is written as."""
        return [_encoded(_given(id_).token) for id_ in ids]

    def stream(self, request: CompletionRequest, model: ServedModel) -> Iterator[Deltas]:
        """Repeat the last user message, or the prompt. Raises `InvalidInput` if no instance of a schema is found."""
        if request.prompt is not None:
            return _continued(request)
        if request.tool_choice.mode is _REQUIRED or request.response_format.type is not _TEXT:
            return _structured(request)
        text = _last_user_text(request.messages)
        if request.sampling.stop_token_ids:
            text = "".join(_up_to_stop(split_tokens(text), token_id, request))
        if request.extras and request.extras.get("reasoning_effort", "none") != "none":
            return stream_message(Message(Role.ASSISTANT, text, reasoning=text), request)
        return answer_of(text, request)

    def embed(self, request: "embedding.EmbeddingRequest", model: ServedModel) -> "Iterator[embedding.EmbeddedBatch]":
        """Embed by the words of each input: see `word_embedding`. Raises `ContextLengthExceeded`."""
        return word_embedding.embedded(request, model, CERTAIN.embedding_size, count)


def _up_to_stop(tokens: list[T], id_of: Callable[[T], int | None], request: CompletionRequest) -> list[T]:
    """Return the tokens up to the first one that ends an answer, and it too."""
    stops = request.sampling.stop_token_ids
    return tokens[: next((at + 1 for at, token in enumerate(tokens) if id_of(token) in stops), len(tokens))]


def _structured(request: CompletionRequest) -> Iterator[Deltas]:
    if (call := instances.forced_call(request)) is not None:
        yield from stream_message(Message(Role.ASSISTANT, tool_calls=(call,)), request)
        return
    text = instances.structured_text(request)
    yield from answer_of(_last_user_text(request.messages) if text is None else text, request)


def _last_user_text(messages: Sequence[Message]) -> str:
    for message in reversed(messages):
        if message.role is _USER:
            return message.content if type(message.content) is str else message.text
    return messages[-1].text


# ---- a prompt that is continued --------------------------------------------------------------------------------------


def _prompt(request: CompletionRequest) -> list[TokenLogprob]:
    given = request.prompt
    return list(map(_given, given)) if type(given) is tuple else _words(str(given))


def _words(text: str) -> list[TokenLogprob]:
    return [_certain(word, with_top=False) for word in split_tokens(text)]


def _given(id_: int) -> TokenLogprob:
    word = f"<{id_}>"
    return TokenLogprob(word, 0.0, tuple(_encoded(word)), id=id_)


def _continued(request: CompletionRequest) -> Iterator[Delta]:
    prompt, text = _prompt(request), instances.structured_text(request)
    entries = _up_to_stop(prompt if text is None else _words(text), lambda entry: entry.id, request)
    kept = entries[: request.max_tokens]
    scored: tuple[TokenLogprob, ...] = ()
    if (count := request.prompt_logprobs) is not None:
        scored = _with_top([attrs.evolve(entry, rank=1) for entry in prompt[1:]], count)
    ids = tuple([entry.id or 0 for entry in prompt]) if request.return_token_ids else ()
    for group in ([[entry] for entry in kept] if request.streamed else [kept]) or [[]]:
        ended = not group or group[-1] is kept[-1]
        reason = FinishReason.STOP if len(kept) == len(entries) else FinishReason.LENGTH
        yield Delta(
            "".join([entry.token for entry in group]),
            len(group),
            logprobs=_with_top(group, request.top_logprobs) if request.logprobs else (),
            token_ids=tuple([entry.id or 0 for entry in group]) if request.return_token_ids else (),
            prompt_token_ids=ids,
            finish_reason=reason if ended else None,
            prompt_logprobs=scored,
        )
        ids, scored = (), ()


def _with_top(entries: Sequence[TokenLogprob], count: int) -> tuple[TokenLogprob, ...]:
    return tuple([attrs.evolve(entry, top=(entry,)) for entry in entries] if count else entries)


# ---- a string as a stream of deltas ----------------------------------------------------------------------------------


def split_tokens(text: str) -> list[str]:
    return _TOKEN.findall(text)


def count(text: str) -> int:
    breaks = text.count("\n") if "\n" in text else 0  # testing for one is much faster than counting
    words = breaks + (text != "" and text[0] not in " \n")
    if len(text) <= LONGEST:
        return words + text.count(" ")
    return words + (text.count(" ") if " " in text else 0) + _further_tokens(text)


def _further_tokens(text: str) -> int:
    """Count the tokens of long words, but for the first of each."""
    further, at, end = 0, -1, len(text) - LONGEST - 1  # at is that of a space or a line break
    following = {" ": -1, "\n": -1}
    while at < end:
        near = text.rfind(" ", at + 1, at + LONGEST + 2)
        near = near if near >= 0 else text.rfind("\n", at + 1, at + LONGEST + 2)
        if near < 0:
            for mark, known in following.items():  # each is looked for from where it was found last
                if known <= at:
                    found = text.find(mark, at + 1)
                    following[mark] = len(text) if found < 0 else found
            near = min(following.values())
            further += (near - at - 2) // LONGEST
        at = near
    return further


@lru_cache(_KNOWN)
def token_id(token: str) -> int:
    """Return 32 bits that depend on the token alone, on every machine."""
    return crc32(_encoded(token))


def count_prompt(messages: Sequence[Message]) -> int:
    if len(messages) > _FEW and (total := _count_texts([message.content for message in messages])) is not None:
        return total
    total = 0
    for message in messages:
        total += count(message.content if type(message.content) is str else message.text)
    return total


def _count_texts(contents: list[Any]) -> int | None:
    """Count the tokens of many short strings together. Returns None for any others."""
    try:
        whole = "".join(contents).encode()
    except (TypeError, UnicodeEncodeError):
        return None
    if max(map(len, contents)) > LONGEST:
        return None
    begun = len(contents) - sum(map(str.startswith, contents, repeat((" ", "\n")))) - contents.count("")
    return len(whole) - len(whole.translate(None, b" \n")) + begun


def prompt_ids(messages: Sequence[Message]) -> tuple[int, ...]:
    texts = [message.text for message in messages]
    return tuple([id_ for text in texts for id_ in (_ids if len(text) <= LONGEST else _ids.__wrapped__)(text)])


@lru_cache(_KNOWN)
def _ids(text: str) -> tuple[int, ...]:
    return tuple(map(token_id, split_tokens(text)))


def answer_of(text: str, request: CompletionRequest) -> Iterator[Deltas]:
    if request.streamed or request.logprobs or request.return_token_ids:
        return _word_by_word(text, request)
    tokens = count(text)
    if request.max_tokens is None or tokens <= request.max_tokens:
        return iter((_text_delta(text, tokens, 0, None, (), (), (), _STOP),))
    kept = [word[0] for word in islice(_TOKEN.finditer(text), request.max_tokens)]
    return iter((Delta("".join(kept), len(kept), finish_reason=FinishReason.LENGTH),))


def _word_by_word(text: str, request: CompletionRequest) -> Iterator[Deltas]:
    """Stream a string token by token, several at once, and split only what is read."""
    found, left, first, size = _TOKEN.finditer(text), request.max_tokens, True, 1 if request.streamed else AT_ONCE
    words = [word[0] for word in islice(found, size)]
    while words or first:
        size = min(2 * size, AT_ONCE)
        following = [word[0] for word in islice(found, size)]
        ending = None if following else FinishReason.STOP
        if left is not None and (left < len(words) or (following and left == len(words))):
            words, following, ending = words[:left], [], FinishReason.LENGTH
        yield _deltas_of(words, request, first, ending)
        left = None if left is None else left - len(words)
        words, first = following, False


def _deltas_of(words: Sequence[str], request: CompletionRequest, first: bool, ending: FinishReason | None) -> Deltas:
    if not request.streamed:
        return _detailed(words, "".join(words), None, "", request, first, ending)
    if request.logprobs or request.return_token_ids or not words:
        each, last = [[word] for word in words] or [[]], max(len(words) - 1, 0)
        return [
            _detailed(one, "".join(one), None, "", request, first and at == 0, ending if at == last else None)
            for at, one in enumerate(each)
        ]
    deltas = [_text_delta(word, 1) for word in words]
    if ending is not None:
        deltas[-1] = Delta(words[-1], 1, finish_reason=ending)
    return deltas


def stream_message(message: Message, request: CompletionRequest, reason: FinishReason | None = None) -> Iterator[Delta]:
    """Stream this message, reasoning first, then its content and its tool calls, cut at `request.max_tokens`."""
    ending = FinishReason.TOOL_CALLS if message.tool_calls else FinishReason.STOP
    return _deltas(list(_pieces(message)), request, reason or ending)


@attrs.frozen
class _Piece:
    word: str
    call: ToolCallDelta | None = None
    is_reasoning: bool = False


def _pieces(message: Message) -> Iterator[_Piece]:
    yield from (_Piece(word, is_reasoning=True) for word in split_tokens(message.reasoning or ""))
    yield from map(_Piece, split_tokens(message.text))
    for index, call in enumerate(message.tool_calls):
        for piece in call_pieces(index, call):
            yield _Piece(piece.arguments, piece)


def call_pieces(index: int, call: ToolCall) -> Iterator[ToolCallDelta]:
    first, *rest = split_tokens(call.arguments) or [""]
    yield ToolCallDelta(index, call.id, call.name, first)
    for word in rest:
        yield ToolCallDelta(index, arguments=word)


def _deltas(pieces: list[_Piece], request: CompletionRequest, reason: FinishReason) -> Iterator[Delta]:
    kept = pieces[: request.max_tokens]
    ending = reason if len(kept) == len(pieces) else FinishReason.LENGTH
    separately = request.streamed or any(piece.call or piece.is_reasoning for piece in kept)
    groups = [[piece] for piece in kept] if separately else [kept]
    last = len(groups) - 1
    for at, group in enumerate(groups or [[]]):
        yield _delta(group, request, at == 0, ending if at >= last else None)


def _delta(group: Sequence[_Piece], request: CompletionRequest, first: bool, ending: FinishReason | None) -> Delta:
    text = "".join([piece.word for piece in group if piece.call is None and not piece.is_reasoning])
    reasoning = "".join([piece.word for piece in group if piece.is_reasoning])
    call = group[0].call if group else None
    return _detailed([piece.word for piece in group], text, call, reasoning, request, first, ending)


def _detailed(words: Any, text: str, call: Any, reasoning: str, request: Any, first: bool, ending: Any) -> Delta:
    prompt = prompt_ids(request.messages) if request.return_token_ids and first else ()
    details = logprobs(words, request), token_ids(words, request), prompt
    return _text_delta(text, len(words), 0, call, *details, ending, None, (), None, reasoning)


def logprobs(tokens: Sequence[str], request: CompletionRequest) -> tuple[TokenLogprob, ...]:
    return tuple([_certain(token, request.top_logprobs > 0) for token in tokens]) if request.logprobs else ()


def token_ids(tokens: Sequence[str], request: CompletionRequest) -> tuple[int, ...]:
    return tuple(map(token_id, tokens)) if request.return_token_ids else ()


@lru_cache(_KNOWN)
def _certain(word: str, with_top: bool) -> TokenLogprob:
    raw = _encoded(word)
    alone = _logprob(word, 0.0, tuple(raw), id=crc32(raw))
    return attrs.evolve(alone, top=(alone,)) if with_top else alone


def _encoded(token: str) -> bytes:
    return token.encode("utf-8", "surrogatepass")
