"""What the model of a version is asked: the request of a caller with the prompt and the parameters of the version."""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from modelyard.domain.completion import CompletionRequest, ContentPart, Message, Role, Sampling
from modelyard.domain.evaluation.objects import ObjectRef
from modelyard.domain.evaluation.scorers import text_of
from modelyard.domain.identity import Principal
from modelyard.errors import Conflict, Forbidden, InvalidInput, ModelNotFound, NotFound
from modelyard.formats.json import dumps, loads
from modelyard.parts.variants.content import SAMPLED, VariantContent
from modelyard.parts.variants.keeping import refuse_gone
from modelyard.parts.variants.models import full_name
from modelyard.parts.variants.naming import VariantName, found_variant, found_version
from modelyard.parts.variants.records import Variant, VariantVersion
from modelyard.parts.variants.template import MAX_RENDERED, Template, template_of
from modelyard.protocols import Snapshot

_SYSTEM = (Role.SYSTEM, Role.DEVELOPER)
_EXTRAS = ("reasoning_effort", "verbosity", "chat_template_kwargs")
_MEMBERS = {
    "stop": "stop",
    "tools": "tools",
    "tool_choice": "tool_choice",
    "parallel_tool_calls": "parallel_tool_calls",
    "response_format": "response_format",
}


def served_variant(snapshot: Snapshot, principal: Principal, name: str) -> "ServedVariant | None":
    """Return what is served under a name, None for one of another form. Raises `ModelNotFound`, `Forbidden`."""
    parsed = VariantName.parse(name, principal.entity)
    if parsed is None:
        return None
    try:
        variant = found_variant(snapshot, principal, parsed)
        version = found_version(snapshot, variant, parsed)
        refuse_gone(snapshot, variant, version)
        return ServedVariant(variant, version)
    except Forbidden:
        raise
    except (NotFound, InvalidInput, Conflict) as error:
        raise ModelNotFound("model", name[:255], str(error)) from None


class ServedVariant:
    """A version of a variant as it is served (`modelyard.part.Named`)."""

    def __init__(self, variant: Variant, version: VariantVersion) -> None:
        content = version.content
        self.model: str = full_name(variant.entity, content.model)
        self.name: str = variant.served_as(version.number)
        self.ref: ObjectRef = variant.ref(version.number)
        self._template: Template | None = template_of(content.template) if content.template else None
        self._system = (Message(Role.SYSTEM, content.system),) if content.system else ()
        self._shown = tuple(self._examples(content))
        self._set, self._settings = content.parameters, content.settings()
        self._extras = {name: value for name, value in self._settings.extras.items() if name in _EXTRAS}

    # ---- a request

    def asks(self, request: CompletionRequest) -> CompletionRequest:
        """Return what the model is asked. What the version sets, it sets for every caller; of two bounds of the tokens
        the smaller counts. Raises `InvalidInput` at the place of an input that is missing."""
        asked = request.messages if request.prompt is None else _prompted(request)
        place = ("messages",) if request.prompt is None else ("prompt",)
        bounds = [one for one in (request.max_tokens, self._settings.max_tokens) if one is not None]
        extras = {**request.extras, **self._extras}
        if request.prompt is not None:
            extras.pop("add_special_tokens", None)
        return attrs.evolve(
            request,
            messages=self._messages(asked, place),
            prompt=None,
            sampling=self._sampling(request.sampling),
            max_tokens=min(bounds, default=None),
            extras=extras,
            **{member: getattr(self._settings, member) for name, member in _MEMBERS.items() if name in self._set},
        )

    def _sampling(self, given: Sampling) -> Sampling:
        names = [name for name in SAMPLED if name in self._set]
        return attrs.evolve(given, **{name: getattr(self._settings.sampling, name) for name in names})

    def _messages(self, given: Sequence[Message], place: tuple[str, ...]) -> tuple[Message, ...]:
        """Return the messages: what the system says, the examples, and what is asked. The system text of the version
        replaces every other one; the template makes the first message of the user."""
        begin = 0
        while begin < len(given) and given[begin].role in _SYSTEM:
            begin += 1
        told, asked = given[:begin], given[begin:]
        if self._system:
            told, asked = self._system, [one for one in asked if one.role not in _SYSTEM]
        if self._template is not None:
            asked = _with_first(asked, self._template, place)
        return (*told, *self._shown, *asked)

    def _examples(self, content: VariantContent) -> list[Message]:
        shown: list[Message] = []
        for one in content.examples:
            asked = one.user
            if one.inputs and self._template is not None:
                asked = self._template.fill(one.inputs, "examples")
            shown += [Message(Role.USER, asked), Message(Role.ASSISTANT, one.assistant)]
        return shown

    # ---- a row of an evaluation

    def row(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the row with a prompt of the inputs that its fields are, unless it has messages or a prompt."""
        inputs = () if self._template is None else self._template.inputs
        if not inputs or "messages" in row or ("prompt" in row and "prompt" not in inputs):
            return row
        missing = [name for name in inputs if name not in row]
        if missing:
            msg = "is missing, and the template asks for it; or give the row messages, or a prompt"
            raise InvalidInput.at("row", missing[0], msg=msg)
        values = {name: text_of(row[name]) for name in inputs}
        return {**row, "prompt": values[inputs[0]] if len(inputs) == 1 else dumps(values).decode()}


def _prompted(request: CompletionRequest) -> tuple[Message, ...]:
    """Return a prompt, which would be continued as it is, as what a user says."""
    if not isinstance(request.prompt, str):
        raise InvalidInput.at("prompt", msg="must be text for a variant, which puts it into its own prompt")
    if request.prompt_logprobs is not None:
        msg = "a variant shows no log-probabilities of its prompt; leave it out"
        raise InvalidInput.at("prompt_logprobs", msg=msg)
    return (Message(Role.USER, request.prompt),)


def _with_first(messages: Sequence[Message], template: Template, place: tuple[str, ...]) -> list[Message]:
    at = next((at for at, one in enumerate(messages) if one.role is Role.USER), None)
    if at is None:
        raise InvalidInput.at(*place, msg=f"needs a message of the user, with {', '.join(template.inputs)}")
    first, found = messages[at], list(messages)
    text = template.fill(_values(first.text, template.inputs, place), *place)
    others = [one for one in first.content if one.type != "text"] if isinstance(first.content, tuple) else []
    content = (ContentPart("text", text), *others) if others else text
    found[at] = attrs.evolve(first, content=content)
    return found


def _values(text: str, inputs: tuple[str, ...], place: tuple[str, ...]) -> Mapping[str, str]:
    """Return the inputs in a text: of one input it is the value, several are members of a JSON object."""
    if len(inputs) == 1:
        return {inputs[0]: text}
    names = ", ".join(inputs)
    if len(text) > MAX_RENDERED:
        raise InvalidInput.at(*place, msg=f"must have at most {MAX_RENDERED} characters")
    try:
        given = loads(text.encode())
    except (InvalidInput, UnicodeEncodeError):
        given = None
    if not isinstance(given, dict) or set(given) != set(inputs):
        msg = f"must begin with a message of the user that is a JSON object with the members {names}, and no other"
        raise InvalidInput.at(*place, msg=msg)
    return {name: text_of(value) for name, value in given.items()}
