"""A whole answer in the chat-completion format: its shape, and its text."""

from collections.abc import Mapping, Sequence
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, Literal

import attrs

from modelyard.domain.completion import Choice, Completion, Message, TokenLogprob, Usage
from modelyard.formats.chat.messages import MessageToolCall, tool_call_object
from modelyard.formats.json import dumps

_AT_ONCE = 100
"""Log-probabilities that are written together, while nobody else runs."""

# ---- the shape ------------------------------------------------------------------------------------------------------


@attrs.frozen
class AnsweredMessage:
    """The answer of a model. `content` is null only next to tool calls; `reasoning_content` is what came before it."""

    role: Literal["assistant"]
    content: str | None
    tool_calls: tuple[MessageToolCall, ...] | None = None
    reasoning_content: str | None = None


@attrs.frozen
class TopLogprob:
    """A token that could have been sampled."""

    token: str
    logprob: float
    bytes: tuple[int, ...] | None


@attrs.frozen
class TokenEntry:
    """A sampled token. An end-of-turn token has an empty text."""

    token: str
    logprob: float
    bytes: tuple[int, ...] | None
    top_logprobs: tuple[TopLogprob, ...]


@attrs.frozen
class Logprobs:
    """One entry per sampled token."""

    content: tuple[TokenEntry, ...]


@attrs.frozen
class AnsweredChoice:
    """One answer. Token ids are given on the training interface, elsewhere with `return_token_ids`."""

    index: int
    message: AnsweredMessage
    finish_reason: Literal["stop", "length", "tool_calls", "content_filter"]
    logprobs: Logprobs | None
    token_ids: tuple[int, ...] | None = None
    prompt_token_ids: tuple[int, ...] | None = None
    stop_reason: str | None = None


@attrs.frozen
class PromptTokens:
    """How much of the prompt was read from a cache."""

    cached_tokens: int


@attrs.frozen
class CompletionTokens:
    """How much of an answer is reasoning."""

    reasoning_tokens: int


@attrs.frozen
class AnsweredUsage:
    """Tokens counted, over all choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokens | None = None
    completion_tokens_details: CompletionTokens | None = None


@attrs.frozen
class ChatCompletion:
    """A finished completion (specification 2.2). With `return_token_ids` it has the prompt's ids, too, as in vLLM."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: tuple[AnsweredChoice, ...]
    usage: AnsweredUsage
    prompt_token_ids: tuple[int, ...] | None = None


# ---- written -----------------------------------------------------------------------------------------------------


def completion_json(
    completion: Completion,
    with_logprobs: bool = False,
    with_ids: bool = False,
    as_ids: bool = False,
    prompt_ids: bool = False,
) -> bytes:
    """Write the answer of a request that does not stream.

    With `as_ids` the tokens of log-probabilities are named by their ids; with `prompt_ids` those of the prompt stand
    next to the choices, too.

    The members that every answer has are formatted as text: that costs a third of making dicts and encoding them.
    """
    choices = completion.choices
    if len(choices) == 1:
        written = _choice(choices[0], with_logprobs, with_ids, as_ids)
    else:
        written = ",".join([_choice(choice, with_logprobs, with_ids, as_ids) for choice in choices])
    more = f',"prompt_token_ids":{_numbers(choices[0].prompt_token_ids)}' if prompt_ids else ""
    return (
        f'{{"id":{quoted(completion.id)},"object":"chat.completion","created":{completion.created},'
        f'"model":{quoted(completion.model)},"choices":[{written}],"usage":{usage_text(completion.usage)}{more}}}'
    ).encode()


def _choice(choice: Choice, with_logprobs: bool, with_ids: bool, as_ids: bool) -> str:
    message, logprobs, ids = choice.message, "null", ""
    if with_logprobs and choice.logprobs is not None:
        some = [choice.logprobs[at : at + _AT_ONCE] for at in range(0, len(choice.logprobs), _AT_ONCE)]
        texts = [json_text(logprobs_object(entries, as_ids)["content"])[1:-1] for entries in some]
        logprobs = f'{{"content":[{",".join(texts)}]}}'
    if with_ids:
        ids = _ids(choice)
    content = quoted(message.content) if type(message.content) is str else _content(message)
    more = _calls(message) if message.tool_calls else ""
    if message.reasoning:
        more += f',"reasoning_content":{quoted(message.reasoning)}'
    stop = "" if choice.stop_string is None else f',"stop_reason":{json_text(choice.stop_string)}'  # as vLLM does
    return (
        f'{{"index":{choice.index},"message":{{"role":"assistant","content":{content}{more}}},'
        f'"finish_reason":"{choice.finish_reason._value_}","logprobs":{logprobs}{ids}{stop}}}'
    )


def _ids(choice: Choice) -> str:
    return f',"token_ids":{_numbers(choice.token_ids)},"prompt_token_ids":{_numbers(choice.prompt_token_ids)}'


def _numbers(ids: Sequence[int]) -> str:
    return f"[{','.join(map(str, ids))}]" if ids else "null"


def _content(message: Message) -> str:
    return "null" if message.content is None else quoted(message.text)


def _calls(message: Message) -> str:
    return f',"tool_calls":{json_text([tool_call_object(call) for call in message.tool_calls])}'


def usage_text(usage: Usage) -> str:
    """Write the usage of an answer."""
    prompt, completion = usage.prompt_tokens, usage.completion_tokens
    details = f',"prompt_tokens_details":{{"cached_tokens":{usage.cached_tokens}}}' if usage.cached_tokens else ""
    if usage.reasoning_tokens:
        details += f',"completion_tokens_details":{{"reasoning_tokens":{usage.reasoning_tokens}}}'
    return (
        f'{{"prompt_tokens":{prompt},"completion_tokens":{completion},"total_tokens":{prompt + completion}{details}}}'
    )


def json_text(value: object) -> str:
    return dumps(value).decode("ascii")


def logprobs_object(entries: Sequence[TokenLogprob], as_ids: bool = False) -> Mapping[str, Any]:
    """Return the JSON of log-probabilities, token by token; with `as_ids` tokens are named by their ids."""
    return {
        "content": [
            {**_token(entry, as_ids), "top_logprobs": [_token(other, as_ids) for other in entry.top]}
            for entry in entries
        ]
    }


def _token(entry: TokenLogprob, as_ids: bool) -> dict[str, Any]:
    return {
        "token": f"token_id:{entry.id}" if as_ids and entry.id is not None else entry.token,
        "logprob": entry.logprob,
        "bytes": None if entry.bytes is None else list(entry.bytes),
    }
