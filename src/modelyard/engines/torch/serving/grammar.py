"""Constraints on an answer, token by token: any JSON object, a JSON schema, or one tool call (llguidance)."""

import json
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from modelyard.domain.completion import CompletionRequest, ResponseType, Tool, ToolMode
from modelyard.engines.torch.tokenizer import ChatTokenizer
from modelyard.errors import BackendError, InvalidInput
from modelyard.formats.chat.tool_calls import ToolFormat

if find_spec("llguidance") is not None:
    import llguidance
    import llguidance.hf

_OBJECT: Mapping[str, Any] = {"type": "object"}


class Matcher:
    """The state of a grammar within one answer."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher

    def allowed(self) -> bytes:
        """Return one byte per token, 0 if it may not come next."""
        return self._matcher.compute_logit_bias()

    def accept(self, token: int) -> bool:
        """Advance by a token; return whether the answer is complete. Raises `BackendError` if it cannot continue."""
        if not self._matcher.consume_token(token):
            raise BackendError(f"the answer cannot be kept to its grammar: {self._matcher.get_error()[:200]}")
        return bool(self._matcher.is_stopped())


class Grammars:
    """Creates grammars for one base model. Preparing the vocabulary takes about 2 s for 100,000 tokens, once."""

    def __init__(self, chat: ChatTokenizer, vocabulary: int) -> None:
        end = min(chat.end_tokens, default=None)
        self._tokens = llguidance.hf.from_tokenizer(chat.tokenizer, n_vocab=vocabulary, eos_token=end)
        self._known = chat.tokenizer.get_vocab()

    def of(self, request: CompletionRequest, form: ToolFormat | None) -> Matcher | None:
        """Return the grammar of this request's answer, if any. Raises `InvalidInput` for an unsupported schema."""
        if request.tool_choice.mode is ToolMode.REQUIRED and form is not None:
            named = [tool for tool in request.tools if request.tool_choice.name in (None, tool.name)]
            return self._matcher(self._of_call(named, form), "tools")
        kind = request.response_format.type
        if kind is ResponseType.TEXT:
            return None
        schema = request.response_format.schema if kind is ResponseType.JSON_SCHEMA else _OBJECT
        return self._matcher(_of_schema(_plain(schema)), "response_format")

    def _matcher(self, grammar: str, loc: str) -> Matcher:
        matcher = llguidance.LLMatcher(self._tokens, grammar)
        if matcher.get_error():
            raise InvalidInput.at(loc, msg=f"holds a schema that cannot be kept: {_fault(matcher.get_error())}")
        return Matcher(matcher)

    def _of_call(self, tools: Sequence[Tool], form: ToolFormat) -> str:
        """Return the grammar of a call as the chat template writes it, with its markers as special tokens."""
        calls = [
            {
                "type": "object",
                "properties": {"name": {"const": tool.name}, form.arguments_key: _plain(tool.parameters) or _OBJECT},
                "required": ["name", form.arguments_key],
                "additionalProperties": False,
            }
            for tool in tools
        ]
        one: Mapping[str, Any] = calls[0] if len(calls) == 1 else {"anyOf": calls}
        wanted = {"type": "array", "items": one, "minItems": 1, "maxItems": 1} if form.listed else one
        opening = "" if form.name == "object" else self._mark(form.opening)
        return f"start: {opening} call {self._mark(form.closing)}\ncall: %json {_json(wanted)}\n"

    def _mark(self, text: str) -> str:
        if not text:
            return ""
        token = self._known.get(text)
        return json.dumps(text) if token is None else f"<[{token}]>"


def _fault(error: str) -> str:
    """Return the message about a schema, without the grammar around it, which is ours."""
    found = re.search(r"JSON schema: (.*?)\n +\d+ \| ", error, re.DOTALL)
    return " ".join((found[1] if found else error).split())


def _of_schema(schema: Mapping[str, Any]) -> str:
    return f"start: %json {_json(schema)}\n"


def _json(schema: Mapping[str, Any]) -> str:
    """Return JSON without white space between its parts: a weak model might continue with white space for ever."""
    return json.dumps({**schema, "x-guidance": {"whitespace_flexible": False}})


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=dict))
