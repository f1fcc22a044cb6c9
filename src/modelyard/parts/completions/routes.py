"""Prompts that are continued as they are, on both bases; token ids in and out; and the tokens of a model."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import attrs

from modelyard.domain.completion import Completion, CompletionRequest
from modelyard.errors import InvalidInput
from modelyard.flow import Call, Flow
from modelyard.http.answer_stream import AnswerEvents, stream_answer
from modelyard.http.auth import attribution
from modelyard.http.interface import Auth
from modelyard.http.message import JSON_HEADER, Response, deprecation, json_response
from modelyard.http.route import Body, FlowHandler, Handler, Parameter, Route, RouteCall, documented_route
from modelyard.parts.completions import at_once
from modelyard.parts.completions.formats import generate as generate_format
from modelyard.parts.completions.formats import request as request_format
from modelyard.parts.completions.formats import response as response_format
from modelyard.parts.completions.formats import stream as stream_format
from modelyard.parts.completions.formats import tokens as tokens_format
from modelyard.parts.completions.interface import COMPLETIONS
from modelyard.platform.chat.assembly import check_length
from modelyard.platform.chat.backend_stream import CompletionResult, StreamStarted


def create_completion(call: RouteCall) -> Flow[Response | None]:
    """Continue prompts, given as text or as token ids."""
    parsed = yield Call(partial(request_format.read_body, call.body, "body"), threads=call.threads)
    texts = yield from _texts(call, parsed)
    first, answers = parsed.requests[0], [_answer(call, request) for request in parsed.requests]
    if len(answers) * first.n > 1:
        check_length(first, sum(map(len, texts)) * first.n, "n")
    clock = call.platform.clock
    if parsed.streamed:
        yield from stream_answer(_in_turn(answers), AnswerEvents(_Begun(parsed, texts), clock))
        return None
    results: list[CompletionResult]
    results = [(yield from answers[0])] if len(answers) == 1 else (yield at_once.AtOnce(_bounded(first, answers)))
    completions: list[Completion] = [result.completion for result in results]
    body = yield Call(partial(response_format.completion_json, completions, parsed, texts), threads=call.threads)
    return Response(200, [JSON_HEADER, *deprecation(results[0].entry, clock)], body)


def _bounded(of: CompletionRequest, answers: Sequence[Flow[CompletionResult]]) -> list[Flow[CompletionResult]]:
    """Return flows that fail as soon as the answers are too long together."""
    length = 0

    def counted(answer: Flow[CompletionResult]) -> Flow[CompletionResult]:
        nonlocal length
        result = yield from answer
        length += sum(len(choice.message.text) for choice in result.completion.choices)
        check_length(of, length, "prompt")
        return result

    return [counted(answer) for answer in answers]


def generate_tokens(call: RouteCall) -> Flow[Response | None]:
    """Continue token ids, and answer with token ids."""
    parsed = yield Call(partial(generate_format.read_generate, call.body, "body"), threads=call.threads)
    answer, clock = _naming("token_ids", _answer(call, parsed.prompts.requests[0])), call.platform.clock
    if parsed.prompts.streamed:
        events = AnswerEvents(lambda started: generate_format.GeneratedChunks(started.id, parsed), clock)
        yield from stream_answer(answer, events)
        return None
    result = yield from answer
    body = yield Call(partial(generate_format.generated_json, result.completion, parsed), threads=call.threads)
    return Response(200, [JSON_HEADER, *deprecation(result.entry, clock)], body)


def tokenize_prompt(call: RouteCall) -> Flow[Response | None]:
    """Return the tokens of a prompt, or of the messages of a chat as the model's template writes them."""
    body = yield Call(partial(_tokenized, call), threads=call.threads)
    return Response(200, [JSON_HEADER], body)


def detokenize_tokens(call: RouteCall) -> Flow[Response | None]:
    """Return the text of tokens."""
    body = yield Call(partial(_detokenized, call), threads=call.threads)
    return Response(200, [JSON_HEADER], body)


# ---- completions -------------------------------------------------------------------------------------------------


def _answer(call: RouteCall, request: Any) -> Flow[CompletionResult]:
    booked_on = attribution(call.headers, call.principal)
    return call.platform.compat.completions._pipeline(request, booked_on, client=call.client)


def _naming(name: str, answer: Flow[CompletionResult]) -> Flow[CompletionResult]:
    """Answer, and report what is wrong with a prompt as this member of the body."""
    try:
        return (yield from answer)
    except InvalidInput as error:
        raise _renamed(error, name) from None


def _renamed(error: InvalidInput, name: str) -> InvalidInput:
    problems = [
        attrs.evolve(problem, loc=(name, *problem.loc[1:])) if problem.loc[:1] == ("prompt",) else problem
        for problem in error.problems
    ]
    return type(error)(problems)


def _in_turn(answers: "list[Flow[CompletionResult]]") -> Flow[None]:
    for answer in answers:
        yield from answer


def _texts(call: RouteCall, parsed: "request_format.ParsedPrompts") -> Flow[list[str]]:
    """Return the texts of the prompts that are to be shown. Only a tokenizer can read token ids."""
    texts = []
    for request in parsed.requests if parsed.echo else ():
        prompt, raw = request.prompt, ()
        if isinstance(prompt, tuple):
            raw = yield Call(
                partial(call.platform.compat.completions._token_bytes, request.model, prompt), threads=call.threads
            )
        texts.append(response_format.prompt_text(prompt or "", raw))
    return texts


class _Begun:
    """Tells the one writer of a stream that the answer to the next prompt begins."""

    def __init__(self, parsed: "request_format.ParsedPrompts", texts: "list[str]") -> None:
        self._parsed, self._texts = parsed, iter(texts)
        self._chunks: stream_format.TextChunks | None = None

    def __call__(self, started: StreamStarted) -> "stream_format.TextChunks":
        if self._chunks is None:
            self._chunks = stream_format.TextChunks(started.id, started.created, started.model, self._parsed)
        self._chunks.begin(next(self._texts, ""))
        return self._chunks


# ---- tokens ------------------------------------------------------------------------------------------------------


def show_tokenizer(call: RouteCall) -> Flow[Response | None]:
    """Show the tokenizer of a model: its special tokens and its chat template."""
    model = call.params.get("model") or call.one("model")
    if not model:
        raise InvalidInput.at(
            "query", "model", msg="is required; or ask at /models/{model}/tokenizer_info", type="missing"
        )
    info = yield Call(partial(_tokenizer, call, model), threads=call.threads)
    return json_response(info)


def _tokenizer(call: RouteCall, model: str) -> tokens_format.TokenizerInfo:
    completions = call.platform.compat.completions
    return tokens_format.tokenizer_info(model, completions._context_length(model), completions._tokenizer(model))


def _of_model(handler: FlowHandler, call: RouteCall) -> Flow[Response | None]:
    """Handle a request at a base that names the model, for clients that do not name it."""
    model = call.params["model"]
    if isinstance(call.body, dict) and call.body.setdefault("model", model) != model:
        raise InvalidInput.at("body", "model", msg=f"must be {model!r}, the model of this address, or left out")
    return (yield from handler(call))


def _tokenized(call: RouteCall) -> bytes:
    request, shown = tokens_format.read_tokenize(call.body, "body")
    completions = call.platform.compat.completions
    tokens = completions._tokens(request)
    raw = completions._token_bytes(request.model, tokens) if shown else None
    return tokens_format.tokenized_json(tokens, completions._context_length(request.model), raw)


def _detokenized(call: RouteCall) -> bytes:
    body = tokens_format.read_detokenize(call.body, "body")
    try:
        text = call.platform.compat.completions.detokenize(model=body.model, tokens=body.tokens)
    except InvalidInput as error:
        raise _renamed(error, "tokens") from None
    return tokens_format.detokenized_json(text)


# ---- routes ------------------------------------------------------------------------------------------------------


def _route(path: str, handler: Handler, **more: Any) -> tuple[Route, ...]:
    """Return the route with and without a slash at its end: a redirect would lose bodies and keys."""
    make = partial(documented_route, COMPLETIONS, Auth.BEARER, "POST", handler=handler, body=Body.CHAT)
    return tuple(make(path=path + end, **more) for end in ("", "/"))


def _completions(path: str) -> tuple[Route, ...]:
    return _route(
        path,
        create_completion,
        request=request_format.CompletionBody,
        response=response_format.TextCompletion,
        events=stream_format.TextCompletionChunk,
    )


_SHOW = partial(documented_route, COMPLETIONS, Auth.BEARER, "GET", response=tokens_format.TokenizerInfo)
_AT_MODEL = partial(documented_route, COMPLETIONS, Auth.BEARER, "POST", body=Body.CHAT)
_MODEL = Parameter("model", description="The model, which may also be in the path: /models/{model}/tokenizer_info.")

ROUTES: tuple[Route, ...] = (
    _SHOW("/tokenizer_info", show_tokenizer, query=(_MODEL,)),
    _SHOW("/models/{model}/tokenizer_info", show_tokenizer, operation="show_model_tokenizer"),
    _AT_MODEL(
        "/models/{model}/tokenize",
        partial(_of_model, tokenize_prompt),
        request=tokens_format.TokenizeModelBody,
        response=tokens_format.Tokenized,
        operation="tokenize_model_prompt",
        summary="Return the tokens of a prompt of the model of this address.",
    ),
    _AT_MODEL(
        "/models/{model}/detokenize",
        partial(_of_model, detokenize_tokens),
        request=tokens_format.DetokenizeModelBody,
        response=tokens_format.Detokenized,
        operation="detokenize_model_tokens",
        summary="Return the text of tokens of the model of this address.",
    ),
    _AT_MODEL(
        "/models/{model}/v1/completions",
        partial(_of_model, create_completion),
        request=request_format.ModelCompletionBody,
        response=response_format.TextCompletion,
        events=stream_format.TextCompletionChunk,
        operation="create_model_completion",
        summary="Continue prompts by the model of this address.",
    ),
    *_completions("/v1/completions"),
    *_completions("/inference/v1/completions"),
    *_route(
        "/inference/v1/generate",
        generate_tokens,
        request=generate_format.GenerateBody,
        response=generate_format.Generated,
        events=generate_format.GeneratedChunk,
    ),
    *_route("/tokenize", tokenize_prompt, request=tokens_format.TokenizeBody, response=tokens_format.Tokenized),
    *_route("/detokenize", detokenize_tokens, request=tokens_format.DetokenizeBody, response=tokens_format.Detokenized),
)
