"""Tokens of a base model: conversations through its chat template, and the bytes that a token stands for.

Sampled tokens are never made again from their text: `encode(decode(ids))` is often different.
"""

import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, meta
from jinja2.exceptions import TemplateError
from tokenizers import Tokenizer
from transformers import AutoTokenizer
from transformers.utils.chat_template_utils import render_jinja_template

from modelyard.domain.completion import TEMPLATE, TEMPLATE_WITHOUT_EFFECT, Message, Role, Tool, ToolCall
from modelyard.domain.record import EMPTY
from modelyard.errors import BackendError, InvalidInput, Problem, nearest
from modelyard.formats.converter import UNKNOWN
from modelyard.parts.torch import reasoning
from modelyard.parts.torch.loading import LOADING
from modelyard.parts.torch.network import first_line
from modelyard.parts.torch.rendered import Rendered, Span
from modelyard.parts.torch.tool_calls import FORMATS, format_of
from modelyard.trainers.loop import check_text

# Noncharacters: no text uses them, and every tokenizer accepts them.
_OPEN, _CLOSE = "\ufdd0", "\ufdd1"
_HIDDEN = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")


class SpecialTokenEscaper:
    """Escapes the names of special tokens in text, so that text cannot forge them.

    The names are replaced by placeholders while the template is rendered, and then encoded as ordinary text.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._texts = [_OPEN, *(added.content for added in tokenizer.added_tokens_decoder.values() if added.special)]
        self._pattern = re.compile("|".join(map(re.escape, sorted(self._texts, key=len, reverse=True))))
        self._plain = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._plain.encode_special_tokens = True

    def escape(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._pattern.sub(lambda found: f"{_OPEN}{self._texts.index(found[0])}{_CLOSE}", value)
        if isinstance(value, dict):
            return {self.escape(key): self.escape(one) for key, one in value.items()}
        return [self.escape(one) for one in value] if isinstance(value, list) else value

    def encode(self, text: str) -> list[int]:
        return [token for _, encoded in self._pieces(text) for token in encoded.ids]

    def encode_with_spans(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        ids: list[int] = []
        spans: list[tuple[int, int]] = []
        for found, encoded in self._pieces(text):
            start, stop = found
            hidden = text[start] == _OPEN and text[stop - 1] == _CLOSE
            ids += encoded.ids
            spans += [found if hidden else (start + first, start + last) for first, last in encoded.offsets]
        return ids, spans

    def _pieces(self, text: str) -> Iterator[tuple[tuple[int, int], Any]]:
        """Yield the span and the encoding of each piece of a string: of a placeholder, or of what lies between."""
        start = 0
        for hidden in _HIDDEN.finditer(text):
            if hidden.start() > start:
                yield (start, hidden.start()), self._encoded(text[start : hidden.start()])
            yield hidden.span(), self._plain.encode(self._texts[int(hidden[1])], add_special_tokens=False)
            start = hidden.end()
        if start < len(text):
            yield (start, len(text)), self._encoded(text[start:])

    def _encoded(self, text: str) -> Any:
        return self._tokenizer(text, add_special_tokens=False).encodings[0]


_RENDERING = threading.Lock()
"""Held while a template is rendered: all tokenizers share compiled templates, which note where answers are."""

_ANSWER = "\ufdd3"
_CALL = Message(
    Role.ASSISTANT, tool_calls=(ToolCall("c4ll00000", "f", json.dumps({"x": _ANSWER}, ensure_ascii=False)),)
)

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_SPACE = "\u2581"
_MARK = re.compile(r"\{%-?\s*generation\s*-?%\}")


_GENERATION = re.compile(r"\{%-?\s*(?:end)?generation\s*-?%\}")
_OURS = frozenset(
    {
        *("messages", "tools", "documents", "add_generation_prompt", "raise_exception", "strftime_now"),
        *("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"),
    }
)


@lru_cache(maxsize=32)
def variables_of(template: str) -> frozenset[str]:
    """Return the variables that a chat template reads, but for those that every template is given."""
    environment = Environment(extensions=["jinja2.ext.loopcontrols"])  # noqa: S701 - nothing is rendered
    try:
        found = meta.find_undeclared_variables(environment.parse(_GENERATION.sub("", template)))
    except TemplateError:
        return frozenset()
    return frozenset(found) - _OURS - environment.globals.keys()


ANY_LENGTH = 2**63 - 1
"""The length that a tokenizer takes without a warning: what is too long is refused here, and by the engine's limit."""


class ChatTokenizer:
    """The tokenizer and chat template of a base model's folder. Raises `BackendError` if they cannot be loaded."""

    _variables: Mapping[str, Any] = EMPTY

    def __init__(self, folder: Path) -> None:
        try:
            with LOADING:
                self.tokenizer: Any = AutoTokenizer.from_pretrained(
                    folder, local_files_only=True, trust_remote_code=False, use_fast=True, model_max_length=ANY_LENGTH
                )
        except Exception as fault:
            raise BackendError(f"the tokenizer in {folder.name!r} cannot be loaded: {first_line(fault)}") from fault
        self._escaper = SpecialTokenEscaper(self.tokenizer)
        self._end = _end_tokens(folder, self.tokenizer) | self._turn_ends()

    @property
    def end_tokens(self) -> frozenset[int]:
        """The tokens with which an answer ends: those that the folder declares, and those that the template writes."""
        return self._end

    @property
    def info(self) -> Mapping[str, Any]:
        """The class, the special tokens by their text, and the chat template for conversations without tools, without
        the tags that mark answers for training: other readers of templates do not know them.
        """
        known = {name: text for name, text in self.tokenizer.special_tokens_map.items() if isinstance(text, str)}
        template = _GENERATION.sub("", self._template(())) if self.tokenizer.chat_template else None
        return {"tokenizer_class": type(self.tokenizer).__name__, "chat_template": template, **known}

    def _turn_ends(self) -> set[int]:
        """Return the first token of a name of its own that the template writes after an answer: base models to which a
        template was added often declare another one.
        """
        if not self.tokenizer.chat_template:
            return set()
        answers = [Message(Role.ASSISTANT, _ANSWER), *([_CALL] if format_of(self._template(())) else [])]
        return {token for answer in answers for token in self._behind(answer)[:1]}

    def _behind(self, answer: Message) -> list[int]:
        """Return the tokens of names of their own behind an answer; none if the template refuses it."""
        try:
            text, _ = self._written([Message(Role.USER, "hi"), answer], ())
        except InvalidInput:
            return []
        added = self.tokenizer.added_tokens_decoder
        marks = {mark for form in FORMATS for mark in (form.opening, form.closing)} | {reasoning.CLOSING}
        _, written, behind = text.rpartition(_ANSWER)
        ids = self._escaper.encode(behind) if written else []
        return [token for token in ids if token in added and added[token].content not in marks]

    def prompt(
        self,
        messages: Sequence[Message],
        tools: Sequence[Tool] = (),
        reasoning_effort: str | None = None,
        variables: Mapping[str, Any] = EMPTY,
    ) -> list[int]:
        """Return the tokens of a conversation up to where the assistant's answer begins.

        `variables` are further ones of the template. Raises `InvalidInput` for one that it does not read, and with the
        template's own message if it refuses these messages.
        """
        given = dict(variables) if reasoning_effort is None else {"reasoning_effort": reasoning_effort, **variables}
        if variables:
            self._check_variables(variables, self._template(tools))
        return self.render(messages, tools, add_generation_prompt=True, **self._escaper.escape(given))

    def given(self, variables: Mapping[str, Any], tools: Sequence[Tool] = ()) -> "ChatTokenizer":
        """Return a tokenizer that renders all conversations with these variables of its template. Raises
        `InvalidInput` for one that it does not read.
        """
        if not variables:
            return self
        self._check_variables(variables, self._template(tools))
        found = copy(self)
        found._variables = self._escaper.escape(dict(variables))
        return found

    def _check_variables(self, variables: Mapping[str, Any], template: str) -> None:
        known = variables_of(template)
        problems = [
            Problem((TEMPLATE, name), f"is not a variable of this model's chat template{nearest(name, known)}", UNKNOWN)
            for name in variables
            if name not in known and name not in TEMPLATE_WITHOUT_EFFECT
        ]
        if problems:
            raise InvalidInput(problems)

    def around(self, text: str) -> list[int]:
        found: list[int] = self.tokenizer(text)["input_ids"]
        return found

    def raw_prompt(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the tokens of a text without a template. The names of special tokens in it are these tokens.

        `add_special_tokens` adds the tokens with which the model's texts begin or end. Raises `InvalidInput`.
        """
        ids: list[int] = self.tokenizer(text, add_special_tokens=add_special_tokens)["input_ids"]
        if not ids:
            raise InvalidInput.at("prompt", msg="has no tokens")
        return ids

    def render(
        self, messages: Sequence[Message], tools: Sequence[Tool], *, add_generation_prompt: bool, **variables: Any
    ) -> list[int]:
        """Return the tokens of a conversation as the template writes it, given further variables of it.

        Only the template makes special tokens: their names in a message are text. Raises `InvalidInput`.
        """
        text, _ = self._written(messages, tools, add_generation_prompt=add_generation_prompt, **variables)
        ids = self._escaper.encode(_sound(text))
        if not ids:
            raise InvalidInput.at("messages", msg="are rendered as nothing by this model's chat template")
        return ids

    def rendered(self, messages: Sequence[Message], tools: Sequence[Tool] = (), **options: Any) -> Rendered:
        """Return a conversation as the template writes it, and what of it the template marks as answers with
        `{% generation %}`. Raises `InvalidInput`.
        """
        asked = bool(options.get("add_generation_prompt"))
        if not asked and _MARK.search(self._template(tools)):
            options["return_assistant_tokens_mask"] = True
        text, marks = self._written(messages, tools, **options)
        return Rendered(_sound(text), marks, bool(marks))

    def escaped(self, text: str) -> str:
        """Return a text of a message as it stands in what is rendered."""
        found: str = self._escaper.escape(text)
        return found

    def encoded(self, text: str) -> tuple[list[int], list[Span]]:
        """Return the tokens of a rendered text, and the characters that each stands for."""
        return self._escaper.encode_with_spans(text)

    def _template(self, tools: Sequence[Tool]) -> str:
        return str(self.tokenizer.get_chat_template(tools=tools or None))

    def _written(self, messages: Sequence[Message], tools: Sequence[Tool], **options: Any) -> tuple[str, list[Span]]:
        """Render the template with escaped special tokens; also return the spans that it marks as answers."""
        check_text(messages)
        try:
            conversation = [self._escaper.escape(plain_message(message)) for message in messages]
            offered = [self._escaper.escape(_plain_tool(tool)) for tool in tools] or None
            with _RENDERING:
                (text,), marks = render_jinja_template(
                    [conversation],
                    tools=offered,
                    chat_template=self._template(tools),
                    **self.tokenizer.special_tokens_map,
                    **self._variables,
                    **options,
                )
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as fault:
            raise InvalidInput.at("messages", msg=f"do not fit this model's chat template: {fault}") from None
        return text, [(first, last) for first, last in marks[0]] if marks else []

    @cached_property
    def token_bytes(self) -> Sequence[bytes]:
        """By token id, the bytes that it stands for in a string; special tokens stand for none, except the marks of
        tool calls and reasoning.
        """
        to_byte = _byte_of_character()
        decoder = self.tokenizer.backend_tokenizer.decoder
        byte_level = decoder is not None and "ByteLevel" in type(decoder).__name__ + str(decoder)
        special = _special_tokens(self.tokenizer).keys()
        texts = self.tokenizer.convert_ids_to_tokens(list(range(len(self.tokenizer))))
        return [
            b"" if token in special or text is None else _bytes_of(text, to_byte if byte_level else None)
            for token, text in enumerate(texts)
        ]

    @property
    def prompt_token_bytes(self) -> Sequence[bytes]:
        """By token id, the bytes that it stands for in a prompt: special tokens are their names."""
        special = _special_tokens(self.tokenizer)
        return [special[token].encode() if token in special else raw for token, raw in enumerate(self.token_bytes)]

    @cached_property
    def token_of_bytes(self) -> Mapping[bytes, int]:
        """The token that stands for these bytes; if several do, the first."""
        return {raw: token for token, raw in reversed(list(enumerate(self.token_bytes))) if raw}


def _sound(text: str) -> str:
    """Return the text. Raises `InvalidInput` if it is not valid Unicode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidInput.at("messages", msg="hold a lone surrogate; send valid Unicode") from None
    return text


def plain_message(message: Message) -> dict[str, Any]:
    """Convert a message to the form that chat templates expect: tool arguments as an object if they are one."""
    plain: dict[str, Any] = {"role": str(message.role), "content": message.text}
    if message.tool_calls:
        plain["tool_calls"] = [
            {"type": "function", "id": call.id, "function": {"name": call.name, "arguments": _object(call.arguments)}}
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        plain["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        plain["name"] = message.name
    if message.reasoning:
        plain["reasoning_content"] = message.reasoning
    return plain


def _object(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def _plain_tool(tool: Tool) -> Mapping[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": json.loads(_text_of(tool.parameters))}
    return {"type": "function", "function": function}


def _text_of(value: Any) -> str:
    return json.dumps(value, default=dict)


def _end_tokens(folder: Path, tokenizer: Any) -> frozenset[int]:
    """Collect the end tokens of the tokenizer, the configuration and the generation configuration."""
    found: set[int] = set()
    if tokenizer.eos_token_id is not None:
        found.add(tokenizer.eos_token_id)
    for name in ("config.json", "generation_config.json"):
        path = folder / name
        named = json.loads(path.read_bytes()).get("eos_token_id") if path.is_file() else None
        found.update(named if isinstance(named, list) else [named] if isinstance(named, int) else [])
    return frozenset(found)


def _special_tokens(tokenizer: Any) -> Mapping[int, str]:
    marks = {mark for form in FORMATS for mark in (form.opening, form.closing)}
    marks.update((reasoning.OPENING, reasoning.CLOSING))
    added = {token: added.content for token, added in tokenizer.added_tokens_decoder.items() if added.special}
    return {token: text for token, text in added.items() if text not in marks}


def _bytes_of(text: str, to_byte: Mapping[str, int] | None) -> bytes:
    if to_byte is not None:
        return (
            bytes(to_byte[character] for character in text) if all(map(to_byte.__contains__, text)) else text.encode()
        )
    alone = _BYTE.fullmatch(text)
    return bytes([int(alone[1], 16)]) if alone else text.replace(_SPACE, " ").encode()


def _byte_of_character() -> Mapping[str, int]:
    """Return how byte-level tokenizers write bytes: printable ones as themselves, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(256 + place): byte for place, byte in enumerate(others)}
