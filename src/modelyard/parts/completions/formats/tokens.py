"""Text into token ids and back: the bodies of requests and answers, as vLLM has them at `/tokenize`, `/detokenize`."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import attrs

from modelyard.domain.completion import TEMPLATE, CompletionRequest, Message
from modelyard.errors import InvalidInput
from modelyard.formats.chat.messages import ChatMessage, read_messages
from modelyard.formats.chat.tools import FunctionTool, read_tool
from modelyard.formats.constraints import Length, Only, Unsupported
from modelyard.formats.converter import structure_exactly
from modelyard.formats.json import dumps
from modelyard.parts.completions.formats.generate import read_token_ids
from modelyard.parts.completions.formats.request import read_prompts


@attrs.define(kw_only=True)
class TokenizeBody:
    """The body of a request for the tokens of a prompt, or of the messages of a chat as its template writes them."""

    model: str = attrs.field(validator=Length(1, 1024))
    prompt: str | None = attrs.field(default=None, validator=Length(1))
    messages: tuple[ChatMessage, ...] | None = attrs.field(
        default=None, validator=Length(1), metadata={"parser": read_messages}
    )
    tools: tuple[FunctionTool, ...] | None = attrs.field(default=None, validator=Length(1, 1024))
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: object = attrs.field(
        default=None, validator=Only((True,), "must be true: a prompt ends where the answer begins")
    )
    continue_final_message: object = attrs.field(
        default=None, validator=Only((False,), "is not supported: complete a prompt of token ids")
    )
    chat_template: object = attrs.field(
        default=None, validator=Unsupported("is not supported: a model has its own template")
    )
    chat_template_kwargs: Mapping[str, Any] | None = attrs.field(default=None, validator=Length(0, 64))


@attrs.define(kw_only=True)
class DetokenizeBody:
    """The body of a request for the text of tokens."""

    model: str = attrs.field(validator=Length(1, 1024))
    tokens: tuple[int, ...] = attrs.field(metadata={"parser": read_token_ids})


@attrs.define(kw_only=True)
class TokenizeModelBody(TokenizeBody):
    """The body of a request for the tokens of a prompt, at an address that names the model."""

    model: str | None = attrs.field(default=None, validator=Length(1, 1024))  # type: ignore[assignment]


@attrs.define(kw_only=True)
class DetokenizeModelBody(DetokenizeBody):
    """The body of a request for the text of tokens, at an address that names the model."""

    model: str | None = attrs.field(default=None, validator=Length(1, 1024))  # type: ignore[assignment]


@attrs.frozen
class Tokenized:
    """The tokens of a prompt, how many they are, and the most that the model takes."""

    count: int
    max_model_len: int
    tokens: tuple[int, ...]
    token_strs: tuple[str, ...] | None = None


@attrs.frozen
class Detokenized:
    """The text that tokens stand for."""

    prompt: str


@attrs.frozen
class TokenizerInfo:
    """The tokenizer of a model: its special tokens by their text, null where it has none, and its chat template."""

    model: str
    tokenizer_class: str | None
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    unk_token: str | None
    chat_template: str | None
    model_max_length: int


def tokenizer_info(model: str, longest: int, known: Mapping[str, Any]) -> TokenizerInfo:
    names = [field.name for field in attrs.fields(TokenizerInfo)]
    shown: dict[str, Any] = {name: known.get(name) for name in names} | {"model": model, "model_max_length": longest}
    return TokenizerInfo(**shown)


def read_tokenize(body: object, *loc: str | int) -> tuple[CompletionRequest, bool]:
    """Read a request for tokens; also return whether they are to be shown as text too. Raises `InvalidInput`."""
    parsed = structure_exactly(TokenizeBody, body, *loc)
    if (parsed.prompt is None) is (parsed.messages is None):
        raise InvalidInput.at(*loc, "prompt", msg="is needed, or messages, and not both")
    extras: dict[str, Any] = {} if parsed.chat_template_kwargs is None else {TEMPLATE: parsed.chat_template_kwargs}
    if parsed.add_special_tokens is not None:
        extras["add_special_tokens"] = parsed.add_special_tokens
    if parsed.chat_template_kwargs is not None and parsed.messages is None:
        raise InvalidInput.at(*loc, TEMPLATE, msg="needs messages: a prompt has no template")
    tools = tuple([read_tool(tool) for tool in parsed.tools or ()])
    messages = cast("tuple[Message, ...]", parsed.messages or ())
    try:
        prompt = None if parsed.prompt is None else read_prompts(parsed.prompt)[0]
    except InvalidInput as error:
        raise error.below(*loc, "prompt") from None
    request = CompletionRequest(parsed.model, messages, tools=tools, extras=extras, prompt=prompt)
    return request, bool(parsed.return_token_strs)


def read_detokenize(body: object, *loc: str | int) -> DetokenizeBody:
    return structure_exactly(DetokenizeBody, body, *loc)


def tokenized_json(tokens: Sequence[int], longest: int, raw: Sequence[bytes] | None) -> bytes:
    written: dict[str, Any] = {"count": len(tokens), "max_model_len": longest, "tokens": list(tokens)}
    if raw is not None:
        written["token_strs"] = [one.decode(errors="replace") for one in raw]
    return dumps(written)


def detokenized_json(text: str) -> bytes:
    return dumps({"prompt": text})
