"""`platform.compat.completions`: prompts continued as they are, without a chat template, and the tokens of a model."""

from collections.abc import Mapping, Sequence
from typing import Any, Unpack, cast

from modelyard.domain.completion import Completion, CompletionRequest, ResponseFormat
from modelyard.domain.identity import Principal
from modelyard.domain.models import Checkpoint, Model
from modelyard.errors import InvalidInput, UnsupportedParameter
from modelyard.flow import Flow
from modelyard.formats.chat import values
from modelyard.parts.completions.formats import request as prompts
from modelyard.platform.chat.backend_stream import CompletionResult
from modelyard.platform.chat.booked_request import report_unread
from modelyard.platform.chat.capability_checks import unsupported_extras
from modelyard.platform.chat.completion_plan import CompletionPlan
from modelyard.platform.chat.plan import known_plan, make_plan
from modelyard.platform.chat.request import Messages, SamplingOptions, build_messages
from modelyard.platform.chat.service import AsyncCompletionStream, Chat, CompletionStream
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Detokenizing, Tokenizing, TokenReading


class PromptOptions(SamplingOptions, total=False):
    """The keywords of the completion of a prompt. None means the default, as leaving it out does."""

    model: "str | Model | Checkpoint"
    prompt: str | Sequence[int]
    n: int | None
    max_tokens: int | None
    stop: str | Sequence[str] | None
    logprobs: int | None
    prompt_logprobs: int | None
    add_special_tokens: bool | None
    return_token_ids: bool | None
    response_format: ResponseFormat | Mapping[str, Any] | None
    structured_outputs: Mapping[str, Any] | None
    user: str | None
    entity: str | None
    project: str | None


_OF_HTTP = frozenset({"stream", "stream_options", "echo", "return_tokens_as_token_ids"})
"""Parameters of the format that are methods here, or say how an answer is written."""


class Completions:
    """Completions of a prompt, a string or the ids of its tokens, which a model continues as it is.

    answer = platform.compat.completions.complete(model="echo", prompt="hello", max_tokens=20, return_token_ids=True)
    answer.text, answer.choices[0].token_ids

    The parameters are those of `PromptOptions`; `logprobs` is how many alternatives each token is returned with, and
    `max_tokens` is 16 unless it is given. Usage is recorded as for a chat completion.
    """

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self._runtime, self._principal = runtime, principal
        self._chat = Chat(runtime, principal)

    def complete(self, **options: Unpack[PromptOptions]) -> Completion:
        """Return the whole answer. Raises as `CompletionPipeline.flow` does."""
        return self._chat.complete(self._read(options), **_recorded_on(options))

    async def acomplete(self, **options: Unpack[PromptOptions]) -> Completion:
        """Return the whole answer, without blocking the event loop."""
        return await self._chat.acomplete(self._read(options), **_recorded_on(options))

    def stream(self, **options: Unpack[PromptOptions]) -> CompletionStream:
        """Stream the answer, once its first deltas are there. Raises as `complete` does."""
        return self._chat.stream(self._read(options), **_recorded_on(options))

    def astream(self, **options: Unpack[PromptOptions]) -> AsyncCompletionStream:
        """Stream the answer on an event loop."""
        return self._chat.astream(self._read(options), **_recorded_on(options))

    def tokenize(
        self,
        *,
        model: "str | Model | Checkpoint",
        prompt: str | None = None,
        messages: Messages | None = None,
        add_special_tokens: bool = True,
    ) -> tuple[int, ...]:
        """Return the tokens of a prompt, or of the messages of a chat as the model's template writes them.

        Raises `InvalidInput`, `ModelNotFound`, `Forbidden`, and `UnsupportedParameter` if the model's backend has no
        tokenizer.
        """
        if (prompt is None) is (messages is None):
            raise InvalidInput.at("prompt", msg="is needed, or messages, and not both")
        named = self._chat._named({"model": model})["model"]
        request = CompletionRequest(
            cast("str", named),
            () if messages is None else build_messages(messages),
            prompt=None if prompt is None else prompts.read_prompts(prompt)[0],
            extras={} if add_special_tokens else {"add_special_tokens": False},
        )
        return self._tokens(request)

    def detokenize(self, *, model: "str | Model | Checkpoint", tokens: Sequence[int]) -> str:
        """Return the text that tokens stand for in a prompt. Raises as `tokenize` does."""
        named = cast("str", self._chat._named({"model": model})["model"])
        plan = self._plan(named)
        if hasattr(plan.backend, "text_of_tokens"):
            return cast("Detokenizing", plan.backend).text_of_tokens(tokens, plan.served)
        return b"".join(self._token_bytes(named, tokens)).decode(errors="replace")

    # ---- for HTTP

    def _pipeline(self, request: CompletionRequest, *of: Any, **more: Any) -> Flow[CompletionResult]:
        return self._chat._pipeline(request, *of, **more)

    def _tokens(self, request: CompletionRequest) -> tuple[int, ...]:
        plan = self._able(request.model, "tokens")
        request = plan.asks(request)
        if refused := unsupported_extras(request, plan.backend.capabilities(plan.served.base_model)):
            raise UnsupportedParameter.at(refused[0], msg=f"{plan.served.entry.id} does not support this; leave it out")
        return tuple(cast("Tokenizing", plan.backend).tokens(request, plan.served))

    def _token_bytes(self, model: str, tokens: Sequence[int]) -> Sequence[bytes]:
        plan = self._able(model, "token_bytes")
        return cast("TokenReading", plan.backend).token_bytes(tokens, plan.served)

    def _tokenizer(self, model: str) -> Mapping[str, Any]:
        """Return what is known of a model's tokenizer. Raises as `tokenize` does."""
        plan = self._able(model, "tokens")
        known: Mapping[str, Any] = getattr(plan.backend, "tokenizer_info", lambda _: {})(plan.served)
        return known

    def _context_length(self, model: str) -> int:
        return self._plan(model).served.entry.context_length

    def _able(self, model: str, method: str) -> CompletionPlan:
        plan = self._plan(model)
        if not hasattr(plan.backend, method):
            knows = "does not say what each token stands for" if hasattr(plan.backend, "tokens") else "has no tokenizer"
            raise UnsupportedParameter.at("model", msg=f"{plan.served.entry.id} {knows} here: ask its server")
        return plan

    def _plan(self, model: str) -> CompletionPlan:
        asked = self._runtime, self._principal, self._principal.attribution(), model
        return known_plan(*asked) or make_plan(*asked)

    def _read(self, options: PromptOptions) -> CompletionRequest:
        try:
            return self._request(options)
        except InvalidInput as wrong:
            place = options.get("entity"), options.get("project")
            report_unread(self._runtime, self._principal, wrong, options.get("model"), *place)
            raise

    def _request(self, options: PromptOptions) -> CompletionRequest:
        if of_http := _OF_HTTP.intersection(options):
            raise InvalidInput.at(min(of_http), msg="is not a parameter here: stream or astream streams an answer")
        named: Any = self._chat._named(cast("Any", {"model": "", **options}))
        body = {name: value for name, value in named.items() if name not in ("entity", "project")}
        read = prompts.read_body(values.json_data(body))
        if len(read.requests) > 1:
            raise InvalidInput.at(
                "prompt", msg="must be one prompt; complete several in turn, or at once with acomplete"
            )
        return read.requests[0]


def _recorded_on(options: PromptOptions) -> Any:
    return {"entity": options.get("entity"), "project": options.get("project")}
