"""What a version of a variant is made of: a model, a prompt and parameters, checked."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from modelyard.domain.canonical import digest
from modelyard.domain.completion import SAMPLING_PARAMETERS, CompletionRequest
from modelyard.domain.record import EMPTY, frozen_mapping
from modelyard.errors import InvalidInput, Problem
from modelyard.formats.chat.bounds import is_unicode
from modelyard.formats.chat.values import json_data, read_values
from modelyard.formats.json import as_json, dumps
from modelyard.parts.variants.template import Template

MAX_SIZE = 256 * 1024
"""How many bytes the texts and the parameters of a version may have together, as JSON."""

MAX_MODEL = 512
MAX_EXAMPLES = 100
MAX_NESTING = 32

SAMPLED = tuple(name for name in SAMPLING_PARAMETERS if name != "seed")
PARAMETERS = (
    *SAMPLED,
    "max_tokens",
    "stop",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "response_format",
    "reasoning_effort",
    "verbosity",
    "chat_template_kwargs",
)
"""The parameters of a completion that a version may set."""


@attrs.frozen
class VariantExample:
    """A question and its answer, shown before what is asked. Instead of the question as the `user` says it, there may
    be the `inputs` of the template."""

    assistant: str
    user: str = ""
    inputs: Mapping[str, str] = attrs.field(converter=frozen_mapping, default=EMPTY)


@attrs.frozen
class VariantContent:
    """A model with a prompt and parameters. `system` and `template` are "" for none."""

    model: str
    system: str = ""
    template: str = ""
    examples: tuple[VariantExample, ...] = ()
    parameters: Mapping[str, Any] = attrs.field(converter=frozen_mapping, default=EMPTY)

    @property
    def data(self) -> Mapping[str, Any]:
        """The content as JSON data."""
        examples = [
            {"inputs": dict(one.inputs), "assistant": one.assistant}
            if one.inputs
            else {"user": one.user, "assistant": one.assistant}
            for one in self.examples
        ]
        return {
            "model": self.model,
            "system": self.system,
            "template": self.template,
            "examples": examples,
            "parameters": dict(self.parameters),
        }

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> "VariantContent":
        """Return the content of its `data`."""
        examples = tuple(VariantExample(**one) for one in data["examples"])
        return cls(data["model"], data["system"], data["template"], examples, data["parameters"])

    @property
    def digest(self) -> str:
        """The digest of all of it."""
        return digest(as_json(self.data))

    def settings(self) -> CompletionRequest:
        """Return a request with the parameters."""
        return _read(self.parameters)


def checked_content(
    model: str,
    system: str,
    template: str,
    examples: Iterable[VariantExample | Mapping[str, Any]],
    parameters: Mapping[str, Any],
) -> VariantContent:
    """Return the content. Raises `InvalidInput` at the place of all that is wrong."""
    problems = [
        *_text_problems(("model",), model, least=1, most=MAX_MODEL),
        *_text_problems(("system",), system),
        *_text_problems(("template",), template),
    ]
    if problems:
        raise InvalidInput(problems)
    inputs = Template(template).inputs if template else ()
    shown = tuple(_example(at, one, inputs) for at, one in enumerate(_listed(examples)))
    content = VariantContent(model, system, template, shown, _checked_parameters(parameters))
    if (size := len(dumps(content.data))) > MAX_SIZE:
        raise InvalidInput.at(msg=f"is too large: {size} bytes of texts and parameters, of at most {MAX_SIZE}")
    return content


def _text_problems(loc: tuple[str | int, ...], text: object, least: int = 0, most: int = MAX_SIZE) -> list[Problem]:
    if not isinstance(text, str) or not least <= len(text) <= most:
        return [Problem(loc, f"must be a text of {least} to {most} characters")]
    if "\0" in text or not is_unicode(text):
        return [Problem(loc, "has a character that cannot be stored: NUL, or half of a surrogate pair")]
    return []


# ---- examples


def _listed(examples: Any) -> Sequence[Any]:
    if isinstance(examples, str | Mapping) or not isinstance(examples, Iterable):
        raise InvalidInput.at("examples", msg="must be a list")
    found = list(examples)
    if len(found) > MAX_EXAMPLES:
        raise InvalidInput.at("examples", msg=f"may be {MAX_EXAMPLES} at most, and are {len(found)}")
    return found


def _example(at: int, given: VariantExample | Mapping[str, Any], inputs: tuple[str, ...]) -> VariantExample:
    values = attrs.asdict(given, recurse=False) if isinstance(given, VariantExample) else given
    if not isinstance(values, Mapping) or not values.keys() <= {"user", "inputs", "assistant"}:
        raise InvalidInput.at("examples", at, msg="must have user or inputs, and assistant, and nothing else")
    asked, given_inputs = values.get("user") or "", values.get("inputs") or {}
    if not isinstance(given_inputs, Mapping) or bool(asked) is bool(given_inputs):
        raise InvalidInput.at("examples", at, msg="must have either user, a text, or inputs, texts by their names")
    texts = {"assistant": values.get("assistant", "")} | ({"user": asked} if asked else {})
    problems = [one for name, text in texts.items() for one in _text_problems(("examples", at, name), text, least=1)]
    problems += [
        one for name, text in given_inputs.items() for one in _text_problems(("examples", at, "inputs", name), text)
    ]
    if given_inputs and set(given_inputs) != set(inputs):
        named = ", ".join(inputs) or "none: there is no template"
        problems.append(Problem(("examples", at, "inputs"), f"must be those of the template, which are {named}"))
    if problems:
        raise InvalidInput(problems)
    return VariantExample(texts["assistant"], asked, {name: given_inputs[name] for name in sorted(given_inputs)})


# ---- parameters


def _checked_parameters(given: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise InvalidInput.at("parameters", msg="must be parameters by their names")
    known = ", ".join(PARAMETERS)
    unknown = [Problem(("parameters", str(name)), f"is not one of {known}") for name in given if name not in PARAMETERS]
    if unknown:
        raise InvalidInput(unknown)
    try:
        values = json_data({name: value for name, value in given.items() if value is not None})
        _read(values)
    except InvalidInput as error:
        raise InvalidInput(
            [attrs.evolve(one, loc=("parameters", *one.loc)) for one in error.problems if one.loc[:1] != ("messages",)]
        ) from None
    return {name: _sorted(values[name], ("parameters", name)) for name in sorted(values)}


def _read(parameters: Mapping[str, Any]) -> CompletionRequest:
    return read_values({"model": "-", "messages": [{"role": "user", "content": "-"}], **parameters}, details=False)


def _sorted(value: Any, loc: tuple[str | int, ...]) -> Any:
    """Return JSON data with sorted members. Raises `InvalidInput` for what a file cannot have."""
    if len(loc) > MAX_NESTING:
        raise InvalidInput.at(*loc, msg=f"is nested deeper than {MAX_NESTING} levels")
    if value is None or (isinstance(value, str) and _text_problems(loc, value)):
        raise InvalidInput.at(*loc, msg="is null, or a text that cannot be stored; leave it out")
    if isinstance(value, Mapping):
        return {name: _sorted(value[name], (*loc, name)) for name in sorted(value)}
    if isinstance(value, list | tuple):
        return [_sorted(one, (*loc, at)) for at, one in enumerate(value)]
    return value
