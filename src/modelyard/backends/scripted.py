"""The model that says what a test wrote down for it."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from modelyard.backends import words
from modelyard.backends.listing import entry_for
from modelyard.domain.catalogue import CatalogueEntry, Pricing
from modelyard.domain.completion import Choice, Completion, CompletionRequest, Delta, Message, ToolCallDelta
from modelyard.errors import BackendError
from modelyard.protocols import Capabilities, ServedModel

Answer = str | Message | Choice | Completion | Iterable[Delta]
"""What a script may hold: content; a message with tool calls; a finished choice (of a completion the first); deltas."""

Script = Callable[[CompletionRequest], Answer]


class ScriptedBackend:
    """Answers from a list, in order, or with what a function of the request returns; each choice takes one answer.

    `requests` is everything that was asked, oldest first. Raises `BackendError` when the list is used up.

    >>> ScriptedBackend(["first", "second"]).requests
    []
    """

    blocking = False

    def __init__(self, answers: Sequence[Answer] | Script, models: Sequence[str] = ("scripted",)) -> None:
        self.requests: list[CompletionRequest] = []
        self._script = answers if callable(answers) else _reader(answers)
        self._entries = tuple(entry_for(model, words.CERTAIN, Pricing(), 131_072) for model in models)

    def entries(self) -> Sequence[CatalogueEntry]:
        """One entry per model."""
        return self._entries

    def capabilities(self, model: str) -> Capabilities:
        """Everything: the script is responsible for what it says."""
        return words.CERTAIN

    def prompt_tokens(self, request: CompletionRequest, model: ServedModel) -> int:
        """The words of all messages."""
        return words.count_prompt(request.messages)

    def stream(self, request: CompletionRequest, model: ServedModel) -> Iterator[Delta]:
        """The script's next answer."""
        self.requests.append(request)
        yield from _deltas(self._script(request), request)


def _reader(answers: Sequence[Answer]) -> Script:
    left = deque(answers)

    def read(request: CompletionRequest) -> Answer:
        try:
            return left.popleft()
        except IndexError:
            asked = request.messages[-1].text[:80]
            raise BackendError(
                f"the script is used up: it held {len(answers)} answers, and {asked!r} asks for one more; "
                "give the ScriptedBackend as many answers as choices are asked for, or a function"
            ) from None

    return read


def _deltas(answer: Answer, request: CompletionRequest) -> Iterable[Delta]:
    if isinstance(answer, str):
        return words.say(answer, request)
    if isinstance(answer, Message):
        return words.say_message(answer, request)
    if isinstance(answer, Completion):
        return _finished(answer.choices[0], request)
    if isinstance(answer, Choice):
        return _finished(answer, request)
    return answer


def _finished(choice: Choice, request: CompletionRequest) -> Iterable[Delta]:
    """A choice with tokens of its own is given whole; one without is said in words."""
    message, tokens = choice.message, len(choice.logprobs or choice.token_ids)
    if not tokens:
        return words.say_message(message, request, choice.finish_reason)
    calls = [ToolCallDelta(at, call.id, call.name, call.arguments) for at, call in enumerate(message.tool_calls)]
    spoken = Delta(
        message.text,
        tokens,
        logprobs=choice.logprobs or () if request.logprobs else (),
        token_ids=choice.token_ids if request.return_token_ids else (),
        prompt_token_ids=choice.prompt_token_ids if request.return_token_ids else (),
    )
    return [spoken, *(Delta(tool_call=call) for call in calls), Delta(finish_reason=choice.finish_reason)]
