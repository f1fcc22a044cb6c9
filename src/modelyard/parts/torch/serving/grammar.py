"""Constraints on an answer, token by token: a JSON schema, a choice, a pattern, or one tool call (llguidance)."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any, NoReturn

from modelyard.domain.completion import CompletionRequest, ResponseType, ToolMode
from modelyard.errors import InvalidInput
from modelyard.parts.torch.serving.schema_support import Loc, SchemaAt, softened
from modelyard.parts.torch.tokenizer import ChatTokenizer
from modelyard.parts.torch.tool_calls import ToolFormat

if find_spec("llguidance") is not None:
    import llguidance
    import llguidance.hf

_OBJECT: Mapping[str, Any] = {"type": "object"}


class Matcher:
    """The state of a grammar within one answer. `loc` is where the request has it.

    A grammar may turn out to be too large in the middle of an answer: that is the request's fault.
    """

    def __init__(self, matcher: Any, loc: Loc) -> None:
        self._matcher, self._loc = matcher, loc

    def allowed(self) -> bytes:
        bias: bytes = self._matcher.compute_logit_bias()
        if self._matcher.is_error():
            self._refuse()
        return bias

    def accept(self, token: int) -> bool:
        if not self._matcher.consume_token(token):
            self._refuse()
        return bool(self._matcher.is_stopped())

    def _refuse(self) -> NoReturn:
        fault = " ".join(self._matcher.get_error().partition("<state>")[0].split())[:200]
        raise InvalidInput.at(
            *self._loc, msg=f"is too large to be kept to by this engine, so use a simpler one: {fault}"
        )


class Grammars:
    """Creates grammars for one base model. Preparing the vocabulary takes about 2 s for 100,000 tokens, once."""

    def __init__(self, chat: ChatTokenizer, vocabulary: int) -> None:
        end = min(chat.end_tokens, default=None)
        self._tokens = llguidance.hf.from_tokenizer(chat.tokenizer, n_vocab=vocabulary, eos_token=end)
        self._known = chat.tokenizer.get_vocab()

    def of(self, request: CompletionRequest, form: ToolFormat | None) -> Matcher | None:
        if request.tool_choice.mode is ToolMode.REQUIRED and form is not None:
            return self._of_calls(request, form)
        wanted = request.response_format
        if wanted.type is ResponseType.TEXT:
            return None
        if wanted.type is ResponseType.CHOICE:
            return self._of_text("choice", list(wanted.choices))
        if wanted.type is ResponseType.REGEX:
            return self._of_text("regex", wanted.pattern)
        schema = wanted.schema if wanted.type is ResponseType.JSON_SCHEMA else _OBJECT
        place = SchemaAt(("response_format", "json_schema", "schema"), schema)
        return self._of_schemas([place], lambda texts: f"start: %json {texts[0]}\n")

    def _of_text(self, kind: str, value: Any) -> Matcher:
        matcher = llguidance.LLMatcher(self._tokens, llguidance.grammar_from(kind, value))
        if matcher.get_error():
            raise InvalidInput.at("structured_outputs", kind, msg=f"cannot be kept: {_fault(matcher.get_error())}")
        return Matcher(matcher, ("structured_outputs", kind))

    def _of_calls(self, request: CompletionRequest, form: ToolFormat) -> Matcher:
        """Return the grammar of a call as the chat template writes it, with its markers as special tokens.

        The parameters of each tool are a separate JSON schema, so that `$ref` means a place in it.
        """
        choice = request.tool_choice.name
        named = [(at, tool) for at, tool in enumerate(request.tools) if choice in (None, tool.name)]
        places = [SchemaAt(("tools", at, "function", "parameters"), tool.parameters or _OBJECT) for at, tool in named]
        names = [tool.name for _, tool in named]
        return self._of_schemas(places, lambda texts: self._calls(names, texts, form))

    def _calls(self, names: Sequence[str], schemas: Sequence[str], form: ToolFormat) -> str:
        opening = "" if form.name == "object" else self._mark(form.opening)
        before, after = ("[", "]") if form.listed else ("", "")
        rules = [
            f"start: {opening} ({' | '.join(f'call_{at}' for at in range(len(names)))}) {self._mark(form.closing)}"
        ]
        for at, (name, schema) in enumerate(zip(names, schemas, strict=True)):
            head = f'{before}{{"name":{json.dumps(name)},"{form.arguments_key}":'
            rules.append(f"call_{at}: {json.dumps(head)} arguments_{at} {json.dumps('}' + after)}")
            rules.append(f"arguments_{at}: %json {schema}")
        return "\n".join([*rules, ""])

    def _of_schemas(self, places: "list[SchemaAt]", grammar: Callable[[Sequence[str]], str]) -> Matcher:
        """Return the grammar of these schemas, without annotations that llguidance does not know."""
        while True:
            matcher = llguidance.LLMatcher(self._tokens, grammar([_json(place.schema) for place in places]))
            if not matcher.get_error():
                return Matcher(matcher, places[0].loc if len(places) == 1 else ("tools",))
            places = [self._without_annotations(place) for place in places]

    def _without_annotations(self, place: "SchemaAt") -> "SchemaAt":
        """Return a schema that can be kept by itself. Raises `InvalidInput` if it cannot be kept."""
        while fault := llguidance.LLMatcher(self._tokens, f"start: %json {_json(place.schema)}\n").get_error():
            place = softened(place, _fault(fault))
        return place

    def _mark(self, text: str) -> str:
        if not text:
            return ""
        token = self._known.get(text)
        return json.dumps(text) if token is None else f"<[{token}]>"


def _fault(error: str) -> str:
    """Return the message about a schema, without the grammar around it, which is ours."""
    found = re.search(r"JSON schema: (.*?)\n +\d+ \| ", error, re.DOTALL)
    return " ".join((found[1] if found else error).split())


def _json(schema: Mapping[str, Any]) -> str:
    """Return JSON without white space between its parts: a weak model might continue with white space for ever."""
    return json.dumps({**schema, "x-guidance": {"whitespace_flexible": False}}, default=dict)
