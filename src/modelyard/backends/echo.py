"""A backend that repeats the last user message: a deterministic double that costs microseconds."""

from collections.abc import Iterator, Sequence

from modelyard.backends import fixed_text
from modelyard.backends.entries import entry_for
from modelyard.backends.json_schema import instances
from modelyard.domain.catalogue import CatalogueEntry, Pricing
from modelyard.domain.completion import CompletionRequest, Delta, Message, ResponseType, Role, ToolMode
from modelyard.protocols import Capabilities, ServedModel


class EchoBackend:
    """Answers with the text of the last user message, word by word if it is streamed.

    Its tokens are words with the space or line break before them, counted exactly; each is certain (log-probability 0).
    A forced tool call and a response format are answered with a small valid instance (`json_schema.instances`).

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
        self._entries = tuple(entry_for(model, fixed_text.CERTAIN, pricing, context_length) for model in models)

    def entries(self) -> Sequence[CatalogueEntry]:
        """Return one entry per model."""
        return self._entries

    def capabilities(self, model: str) -> Capabilities:
        """Return what a text of probability 1 trivially supports."""
        return fixed_text.CERTAIN

    def prompt_tokens(self, request: CompletionRequest, model: ServedModel) -> int:
        """Count the words of all messages."""
        return fixed_text.count_prompt(request.messages)

    def stream(self, request: CompletionRequest, model: ServedModel) -> Iterator[Delta]:
        """Repeat the last user message. Raises `InvalidInput` if no instance of a schema is found."""
        if request.tool_choice.mode is ToolMode.REQUIRED or request.response_format.type is not ResponseType.TEXT:
            yield from _structured(request)
        else:
            yield from fixed_text.stream_text(_last_user_text(request.messages), request)


def _structured(request: CompletionRequest) -> Iterator[Delta]:
    call = instances.forced_call(request)
    if call is not None:
        yield from fixed_text.stream_message(Message(Role.ASSISTANT, tool_calls=(call,)), request)
        return
    text = instances.structured_text(request)
    yield from fixed_text.stream_text(_last_user_text(request.messages) if text is None else text, request)


def _last_user_text(messages: Sequence[Message]) -> str:
    for message in reversed(messages):
        if message.role is Role.USER:
            return message.text
    return messages[-1].text
