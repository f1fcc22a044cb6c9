"""The model that says what it is told: a double that costs microseconds and never surprises."""

from collections.abc import Iterator, Sequence

from modelyard.backends import fixed_text as words
from modelyard.backends.entries import entry_for
from modelyard.backends.json_schema import instances as structure
from modelyard.domain.catalogue import CatalogueEntry, Pricing
from modelyard.domain.completion import CompletionRequest, Delta, Message, ResponseType, Role, ToolMode
from modelyard.protocols import Capabilities, ServedModel


class EchoBackend:
    """Answers with the text of the last user message, word by word when it is streamed.

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
        self._entries = tuple(entry_for(model, words.CERTAIN, pricing, context_length) for model in models)

    def entries(self) -> Sequence[CatalogueEntry]:
        """One entry per model."""
        return self._entries

    def capabilities(self, model: str) -> Capabilities:
        """Everything that is trivially true of a certain answer."""
        return words.CERTAIN

    def prompt_tokens(self, request: CompletionRequest, model: ServedModel) -> int:
        """The words of all messages."""
        return words.count_prompt(request.messages)

    def stream(self, request: CompletionRequest, model: ServedModel) -> Iterator[Delta]:
        """Echo. Raises `InvalidInput` when it can satisfy a schema with nothing."""
        if request.tool_choice.mode is ToolMode.REQUIRED or request.response_format.type is not ResponseType.TEXT:
            yield from _structured(request)
        else:
            yield from words.stream_text(_last_user_text(request.messages), request)


def _structured(request: CompletionRequest) -> Iterator[Delta]:
    call = structure.forced_call(request)
    if call is not None:
        yield from words.say_message(Message(Role.ASSISTANT, tool_calls=(call,)), request)
        return
    text = structure.structured_text(request)
    yield from words.stream_text(_last_user_text(request.messages) if text is None else text, request)


def _last_user_text(messages: Sequence[Message]) -> str:
    for message in reversed(messages):
        if message.role is Role.USER:
            return message.text
    return messages[-1].text
