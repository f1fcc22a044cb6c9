"""Check that a model can do what a request needs. What it cannot do is refused by name, never ignored."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any
from unicodedata import normalize

import attrs

from modelyard.domain.catalogue import CatalogueEntry
from modelyard.domain.completion import (
    ANSWER_EXTRAS,
    TEMPLATE,
    TEMPLATE_WITHOUT_EFFECT,
    CompletionRequest,
    ContentPart,
    Message,
    NoCalls,
    ResponseType,
    Role,
    Sampling,
    Tool,
    ToolMode,
    tool_choice_problems,
)
from modelyard.domain.record import EMPTY
from modelyard.errors import ContextLengthExceeded, InvalidInput, Problem, UnsupportedParameter
from modelyard.formats import converter
from modelyard.formats.json import dumps
from modelyard.protocols import Capabilities

_DEFAULTS = attrs.fields(CompletionRequest)
_SAMPLING, _FORMAT, _CHOICE = (
    field.default for field in (_DEFAULTS.sampling, _DEFAULTS.response_format, _DEFAULTS.tool_choice)
)
_OFF: dict[str, tuple[Any, ...]] = {field.name: (field.default,) for field in attrs.fields(Sampling)}
_OFF |= {"top_k": (None, 0, -1), "logit_bias": ({},)}
_GUIDED = (ResponseType.CHOICE, ResponseType.REGEX)

TEMPLATE_TOKENS = 1024
"""Tokens that a chat template may add to a prompt: the markers, a default system message, how tools are called."""
MESSAGE_TOKENS = 32

_FORMATS = {ResponseType.JSON_OBJECT: "json_mode", ResponseType.JSON_SCHEMA: "structured_outputs"}


def check_supported(request: CompletionRequest, entry: CatalogueEntry, capabilities: Capabilities) -> int:
    """Return how many images the messages have. Raises `UnsupportedParameter` naming what this model cannot honour."""
    if not capabilities.completions:
        raise InvalidInput.at("model", msg=f"{entry.id} makes embeddings only; name a model that answers")
    missing: list[str] = []
    problems: list[Problem] = []
    images = 0
    if (  # anything that `_details` may find
        request.logprobs
        or request.top_logprobs
        or request.return_token_ids
        or request.prompt_logprobs is not None
        or request.tools
        or request.extras
        or request.response_format is not _FORMAT
        or request.tool_choice is not _CHOICE
    ):
        missing = _details(request, capabilities)
    if request.prompt is not None and not capabilities.prompts:
        raise UnsupportedParameter([Problem(("prompt",), f"{entry.id} takes messages only; send it a chat completion")])
    if request.sampling is not _SAMPLING:
        missing = _sampling(request.sampling, capabilities) + missing
    if missing:
        problems = [Problem((name,), f"{entry.id} does not support this; leave it out") for name in missing]
    for message in request.messages:
        if type(message.content) is tuple:
            problems += _modalities(request.messages, entry)
            images = _images(request.messages)
            break
    if problems:
        raise UnsupportedParameter(problems)
    return images


def _sampling(sampling: Sampling, capabilities: Capabilities) -> list[str]:
    return [name for name in _unsupported(capabilities.parameters) if getattr(sampling, name) not in _OFF[name]]


@lru_cache(maxsize=64)
def _unsupported(parameters: frozenset[str]) -> tuple[str, ...]:
    """Return the sampling parameters that are not among these."""
    return tuple(name for name in _OFF if name not in parameters)


def _details(request: CompletionRequest, capabilities: Capabilities) -> list[str]:
    refused = []
    if request.logprobs and not capabilities.logprobs:
        refused.append("logprobs")
    if request.top_logprobs > capabilities.top_logprobs:
        refused.append("top_logprobs")
    if request.return_token_ids and not capabilities.token_ids:
        refused.append("return_token_ids")
    if (wanted := request.prompt_logprobs) is not None:
        refused += ["prompt_logprobs"] * (not capabilities.prompt_logprobs or wanted > capabilities.top_logprobs)
    if request.tools and not capabilities.tools:
        refused.append("tools")
    if request.response_format.type in _GUIDED and request.response_format.type not in capabilities.guided:
        refused.append("structured_outputs")
    if request.extras:
        refused += unsupported_extras(request, capabilities)
    return refused if capabilities.synthesises_structure else refused + _structure(request, capabilities)


def unsupported_extras(request: CompletionRequest, capabilities: Capabilities) -> list[str]:
    """Return the extras that would change the answer, and that the backend does not honour."""
    given = [name for name in ANSWER_EXTRAS if name in request.extras and name not in capabilities.parameters]
    neutral = request.extras.get(TEMPLATE, EMPTY).keys() <= TEMPLATE_WITHOUT_EFFECT.keys()
    return [name for name in given if not (neutral and name == TEMPLATE)]


def _structure(request: CompletionRequest, capabilities: Capabilities) -> list[str]:
    refused = []
    if request.tool_choice.mode is ToolMode.REQUIRED and not capabilities.forced_tools:
        refused.append("tool_choice")
    needed = _FORMATS.get(request.response_format.type)
    if needed is not None and not getattr(capabilities, needed):
        refused.append("response_format")
    return refused


def _modalities(messages: Sequence[Message], entry: CatalogueEntry) -> Iterator[Problem]:
    for at, message in enumerate(messages):
        for place, part in enumerate(_parts(message)):
            if modality_of(part.type) not in entry.input_modalities:
                takes = f"its input_modalities are {', '.join(entry.input_modalities)}"
                yield Problem(("messages", at, "content", place), f"{entry.id} does not take {part.type}; {takes}")


def _images(messages: Sequence[Message]) -> int:
    return sum(modality_of(part.type) == "image" for message in messages for part in _parts(message))


def _parts(message: Message) -> Sequence[ContentPart]:
    return message.content if type(message.content) is tuple else ()


def modality_of(part: str) -> str:
    """Return the modality of a part of this type: "image" for `image_url`, "audio" for `input_audio`, and so on."""
    return part.removeprefix("input_").removesuffix("_url")


def check_tool_choice(request: CompletionRequest) -> None:
    """Raise `InvalidInput` when a tool must be called that is not there."""
    if problems := tool_choice_problems(request.tool_choice, request.tools):
        raise InvalidInput(problems)


def estimated_prompt(request: CompletionRequest) -> int:
    """Return about how many tokens the prompt has: four characters each, or as many as there are ids."""
    if type(request.prompt) is tuple:
        return len(request.prompt)
    characters = sum(len(message.text) for message in request.messages) + len(request.prompt or "")
    return characters // 4 + 1


def most_prompt(request: CompletionRequest, context_length: int) -> int:
    """Return how many tokens a prompt can have that nothing here can count.

    A token has at least one byte, also of a text that is normalised first. Templates add some, and may write tools,
    calls and forms with spaces and escapes; more than that is not booked where a budget applies. What an image or
    another part costs only the server knows: then it is the whole context.
    """
    if any(part.type != "text" for message in request.messages for part in _parts(message)):
        return context_length
    size = TEMPLATE_TOKENS + MESSAGE_TOKENS * len(request.messages)
    size += _size(request.prompt) if isinstance(request.prompt, str) else len(request.prompt or ())
    structured: list[Any] = [request.tools, request.response_format, request.extras]
    for message in request.messages:
        size += sum(map(_size, (message.text, message.reasoning, message.name, message.tool_call_id)))
        structured.append(message.tool_calls)
    raw = dumps(converter.unstructure(structured))
    size += 2 * max(len(raw), _size(raw.decode("unicode_escape")))
    return min(size, context_length)


def _size(text: str | None) -> int:
    return max(len(one.encode("utf-8", "surrogatepass")) for one in (text, normalize("NFKD", text))) if text else 0


def resolve_max_tokens(entry: CatalogueEntry, prompt_tokens: int | None, request: CompletionRequest) -> int:
    """Return how many tokens a choice may have: the requested number, else as many as fit.

    Raises `ContextLengthExceeded`, and `InvalidInput` beyond the model's `max_output_length`.
    """
    max_tokens = request.max_tokens
    if max_tokens is not None and max_tokens > entry.max_output_length:
        raise InvalidInput.at("max_tokens", msg=f"must be at most {entry.max_output_length} for {entry.id}")
    prompt = prompt_tokens or 0
    wanted = 1 if max_tokens is None else max_tokens
    if prompt + wanted > entry.context_length:
        where = "messages" if request.prompt is None else "prompt"
        raise ContextLengthExceeded(
            [
                Problem(
                    (where,),
                    f"This model's maximum context length is {entry.context_length} tokens. However, you asked for "
                    f"{prompt + wanted} tokens ({prompt} in the {where}, {wanted} in the completion); "
                    f"shorten the {where} or the completion.",
                    "context_length_exceeded",
                )
            ]
        )
    if max_tokens is not None:
        return max_tokens
    left = entry.context_length - prompt
    return left if left < entry.max_output_length else entry.max_output_length


def with_details(request: CompletionRequest, capabilities: Capabilities) -> CompletionRequest:
    """Return the request with the log-probabilities and token ids that the backend has.

    An answer without log-probabilities is context in training. So it is where those of the backend would not be the
    model's own. Raises `UnsupportedParameter` where they were requested.
    """
    masked = capabilities.masked_logprobs and _is_constrained(request)
    if masked and request.logprobs:
        says = (
            "are not the model's own under a form or a forced call, so that they cannot be trained on; leave this out"
        )
        raise UnsupportedParameter([Problem(("logprobs",), says)])
    with_logprobs = request.logprobs or (capabilities.logprobs and not masked)
    return request.detailed(with_logprobs, request.return_token_ids or capabilities.token_ids)


def _is_constrained(request: CompletionRequest) -> bool:
    return request.tool_choice.mode is ToolMode.REQUIRED or request.response_format.type is not ResponseType.TEXT


# ---- the shape of a conversation ------------------------------------------------------------------------------------

_NONE, _TOOL = (), Role.TOOL  # an empty list of calls is not none, and a constant is read in a twentieth of the time
_OPT_OUT = "; vendors refuse this, and Settings(strict_conversations=False) does not"


def check_conversation(request: CompletionRequest) -> None:
    """Raise `InvalidInput` for answers of tools without their call, calls without an id, or without one answer, and
    doubled tools: what vendors refuse, so that a test on a double does not pass with it."""
    problems = list(_doubled(request.tools))
    if [message for message in request.messages if message.tool_calls is not _NONE or message.role is _TOOL]:
        problems += _unpaired(request.messages)
    if problems:
        raise InvalidInput(problems[:100])


def _doubled(tools: Sequence[Tool]) -> Iterator[Problem]:
    names = set[str]()
    for at, tool in enumerate(tools):
        if tool.name in names:
            yield Problem(("tools", at, "function", "name"), f"{tool.name!r} names a tool before, too{_OPT_OUT}")
        names.add(tool.name)


def _unpaired(messages: Sequence[Message]) -> Iterator[Problem]:
    called: dict[str, None] = {}
    pending: dict[str, None] = {}
    calls_at = 0
    for at, message in enumerate(messages):
        if message.role is Role.TOOL:
            id_ = message.tool_call_id or ""
            if id_ not in pending:
                why = "is answered before, too" if id_ in called else "the assistant's turn before it did not call"
                yield Problem(("messages", at, "tool_call_id"), f"answers {id_!r}, which {why}{_OPT_OUT}")
            pending.pop(id_, None)
            continue
        if pending:
            yield _unanswered(pending, calls_at)
        if type(message.tool_calls) is NoCalls:
            yield Problem(("messages", at, "tool_calls"), f"must not be empty; leave it out{_OPT_OUT}")
        called, calls_at = {}, at
        for place, call in enumerate(message.tool_calls):
            if not call.id or call.id in called:
                says = f"{call.id!r} is the id of a call before, too" if call.id else "must not be empty"
                yield Problem(("messages", at, "tool_calls", place, "id"), says + _OPT_OUT)
            called[call.id] = None
        pending = dict(called)
    if pending:
        yield _unanswered(pending, calls_at)


def _unanswered(pending: dict[str, None], at: int) -> Problem:
    ids = ", ".join(map(repr, pending))
    return Problem(("messages", at, "tool_calls"), f"calls {ids} without an answer right after it{_OPT_OUT}")
