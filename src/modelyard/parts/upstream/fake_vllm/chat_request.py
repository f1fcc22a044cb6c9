"""A chat request, read and refused by a vLLM double as vLLM 0.32.0 does it, in its order and its words."""

from collections.abc import Mapping
from typing import Any

import attrs

from modelyard.domain.completion import CompletionRequest
from modelyard.formats.chat.bounds import ParsedRequest
from modelyard.formats.chat.request import read_request
from modelyard.parts.upstream.fake_vllm import shape
from modelyard.parts.upstream.fake_vllm.schemas import Json
from modelyard.parts.upstream.fake_vllm.shape import Refused

_CHECKS: Mapping[str, shape.Check] = {
    "messages": shape.array,
    "model": shape.text,
    "frequency_penalty": shape.number,
    "logit_bias": shape.mapping,
    "logprobs": shape.flag,
    "top_logprobs": shape.integer,
    "max_tokens": shape.integer,
    "max_completion_tokens": shape.integer,
    "n": shape.integer,
    "presence_penalty": shape.number,
    "response_format": shape.mapping,
    "seed": shape.int64,
    "stop": shape.stop,
    "stream": shape.flag,
    "stream_options": shape.mapping,
    "temperature": shape.number,
    "top_p": shape.number,
    "tools": shape.array,
    "tool_choice": lambda loc, value: value,
    "parallel_tool_calls": shape.flag,
    "user": shape.text,
    "top_k": shape.integer,
    "min_p": shape.number,
    "repetition_penalty": shape.number,
    "return_token_ids": shape.flag,
    "min_tokens": shape.integer,
    "ignore_eos": shape.flag,
    "stop_token_ids": shape.array,
    "structured_outputs": shape.mapping,
    "reasoning_effort": shape.text,
}
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})
_GREEDY = 1e-5
_MOST_LOGPROBS = 20


def check_members(body: Json) -> Json:
    """Return the members that are known, as vLLM understands them. Raises `Refused`."""
    _check_combinations(body)
    if body.get("messages") is None:
        raise shape.missing("messages", body)
    found = shape.members(body, _CHECKS)
    for at, message in enumerate(found["messages"]):
        _check_message(at, message)
    for at, tool in enumerate(found.get("tools", ())):
        _check_tool(at, tool)
    _check_response_format(found.get("response_format", {}))
    return found


def read_chat(body: Json, model: str) -> ParsedRequest:
    """Read a request with checked members, for a model of the backend. Raises `Refused`, `InvalidInput`."""
    _check_sampling(body)
    if not body["messages"]:
        raise Refused("Cannot apply chat template to an empty conversation. Provide at least one message.")
    taken = {**body, "model": model, "messages": [_message(message, model) for message in body["messages"]]}
    if "logit_bias" in body:
        taken["logit_bias"] = {token: max(-100.0, min(100.0, bias)) for token, bias in body["logit_bias"].items()}
    if _is_forced(body.get("tool_choice")):
        taken["tools"] = [_unless_strict(tool) for tool in body["tools"]]
    if taken.get("n", 1) > 1 and taken.get("temperature", 1.0) < _GREEDY:
        raise Refused(f"n must be 1 when using greedy sampling, got {taken['n']}.")
    return read_request(taken)


def fit(request: CompletionRequest, prompt: int, context: int, most: int) -> CompletionRequest:
    """Return the request with as many tokens as there is room for. Raises `Refused` if there is none."""
    asked = request.max_tokens
    if asked is not None and asked > context:
        words = f"cannot be greater than max_model_len={context}. Please request fewer output tokens."
        raise Refused(f"max_tokens={asked} {words} (parameter=max_tokens, value={asked})", "max_tokens")
    if prompt >= context:
        count = f"at least {context + 1}"
        raise Refused(
            f"This model's maximum context length is {context} tokens. However, your prompt contains {count} input "
            "tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input "
            f"prompt. (parameter=input_tokens, value={context + 1})",
            "input_tokens",
        )
    if asked is None:
        return request
    return attrs.evolve(request, max_tokens=min(asked, most, context - prompt))


# ---- what belongs together -----------------------------------------------------------------------------------------


def _check_combinations(body: Json) -> None:
    """Check the combinations that vLLM checks before the shape."""
    if body.get("stream_options") and not body.get("stream"):
        raise _refused("Stream options can only be defined when `stream=True`.", "stream_options")
    if body.get("top_logprobs") and not body.get("logprobs"):
        raise _refused("when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs")
    form = body.get("response_format")
    if isinstance(form, dict) and form.get("type") == "json_schema" and not form.get("json_schema"):
        words = "When response_format type is 'json_schema', the 'json_schema' field must be provided."
        raise _refused(words, "response_format")
    if body.get("tools") == []:
        words = "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely."
        raise _refused(words, "tools")
    _check_tool_choice(body.get("tool_choice"), body.get("tools"))


def _check_tool_choice(choice: Any, tools: Any) -> None:
    if choice in (None, "none"):
        return
    if not tools:
        raise _refused("When using `tool_choice`, `tools` must be set.", "tool_choice")
    if isinstance(choice, str) and choice not in ("auto", "required"):
        words = 'Only named tools, "none", "auto" or "required" are supported.'
        raise _refused(f"Invalid value for `tool_choice`: {choice}! {words}", "tool_choice")
    if isinstance(choice, dict):
        name = choice.get("function", {}).get("name")
        if all(tool.get("function", {}).get("name") != name for tool in tools):
            raise _refused(
                "The tool specified in `tool_choice` does not match any of the specified `tools`", "tool_choice"
            )


def _refused(message: str, parameter: str, value: object = None) -> Refused:
    detail = f"parameter={parameter}" if value is None else f"parameter={parameter}, value={value}"
    return Refused(f"{message} ({detail})", parameter)


def _check_message(at: int, message: Any) -> None:
    if not isinstance(message, dict):
        words = "Input should be a valid dictionary"
        raise shape.bad_shape(
            shape.fault("dict_type", f"messages.{at}.ChatCompletionDeveloperMessageParam", words, message)
        )
    if message.get("role") is None:
        raise shape.missing(f"messages.{at}.ChatCompletionDeveloperMessageParam.role", message)


def _check_tool(at: int, tool: Any) -> None:
    function = shape.mapping(f"tools.{at}", tool).get("function")
    if function is None:
        raise shape.missing(f"tools.{at}.function", tool)
    if shape.mapping(f"tools.{at}.function", function).get("name") is None:
        raise shape.missing(f"tools.{at}.function.name", function)


def _check_response_format(form: Json) -> None:
    kinds = ("text", "json_object", "json_schema")
    if form and form.get("type") not in kinds:
        expected = "'text', 'json_object' or 'json_schema'"
        found = form.get("type")
        words = f"Input should be {expected}"
        raise shape.bad_shape(shape.fault("literal_error", "response_format.type", words, found, expected=expected))


# ---- sampling ------------------------------------------------------------------------------------------------------


def _check_sampling(body: Json) -> None:
    """Check the parameters of sampling, in vLLM's order. It names some of them in `param`, and others not."""
    _least(body, "n", 1)
    _check_penalties(body)
    _check_probabilities(body)
    _check_lengths(body)
    _check_structure(body.get("structured_outputs", {}))
    if "" in (body.get("stop"), *(body["stop"] if isinstance(body.get("stop"), list) else ())):
        raise Refused("stop cannot contain an empty string.")
    _check_top_logprobs(body.get("top_logprobs", 0))
    _check_bias(body.get("logit_bias", {}))


def _check_penalties(body: Json) -> None:
    for name in ("presence_penalty", "frequency_penalty"):
        if not -2 <= body.get(name, 0.0) <= 2:
            raise Refused(f"{name} must be in [-2, 2], got {body[name]}.")
    if body.get("repetition_penalty", 1.0) <= 0:
        raise Refused(f"repetition_penalty must be greater than zero, got {body['repetition_penalty']}.")


def _check_probabilities(body: Json) -> None:
    temperature, top_p = body.get("temperature", 1.0), body.get("top_p", 1.0)
    if temperature < 0:
        raise _refused(f"temperature must be non-negative, got {temperature}.", "temperature", temperature)
    if temperature > 2:
        raise _refused(f"temperature must be in [0, 2], got {temperature}.", "temperature", temperature)
    if not 0 < top_p <= 1:
        raise _refused(f"top_p must be in (0, 1], got {top_p}.", "top_p", top_p)
    if body.get("top_k", 0) < -1:
        raise Refused(f"top_k must be 0 (disable), or at least 1, got {body['top_k']}.")
    if not 0 <= body.get("min_p", 0.0) <= 1:
        raise Refused(f"min_p must be in [0, 1], got {body['min_p']}.")


def _check_lengths(body: Json) -> None:
    for name in ("max_tokens", "max_completion_tokens"):
        if body.get(name, 1) < 1:
            raise _refused(f"max_tokens must be at least 1, got {body[name]}.", "max_tokens", body[name])
    if body.get("min_tokens", 0) < 0:
        raise Refused(f"min_tokens must be greater than or equal to 0, got {body['min_tokens']}.")
    if body.get("min_tokens", 0) > body.get("max_tokens", shape.INT64):
        least, most = body["min_tokens"], body["max_tokens"]
        raise Refused(f"min_tokens must be less than or equal to max_tokens={most}, got {least}.")


def _least(body: Json, name: str, least: int) -> None:
    if body.get(name, least) < least:
        raise Refused(f"{name} must be at least {least}, got {body[name]}.")


def _check_structure(outputs: Json) -> None:
    if sum(outputs.get(kind) is not None for kind in ("json", "regex", "choice")) > 1:
        words = "constraints for structured outputs ('json', 'regex' or 'choice')"
        raise Refused(f"You can only use one kind of {words}.")
    if outputs.get("choice") == []:
        raise Refused("Choice '[]' cannot be an empty list")


def _check_top_logprobs(count: int) -> None:
    if count < 0 or count > _MOST_LOGPROBS:
        words = f"Requested sample logprobs of {count}, which is greater than max allowed: {_MOST_LOGPROBS}"
        raise _refused(words, "logprobs", count)


def _check_bias(bias: Json) -> None:
    wrong = [token for token in bias if not token.lstrip("-").isdigit()]
    if wrong:
        words = f"logit_bias contains key(s) that cannot be converted to integer token IDs: {wrong}"
        raise _refused(words, "logit_bias", wrong)


# ---- what the backend gets -----------------------------------------------------------------------------------------


def _message(message: Json, model: str) -> Json:
    """Return a message that the backend takes: chat templates know any role, and need no content."""
    role = message["role"] if message["role"] in _ROLES else "user"
    content = message.get("content")
    if isinstance(content, list) and any(part.get("type") != "text" for part in content if isinstance(part, dict)):
        raise Refused(f"{model} is not a multimodal model")
    taken = {"role": role, "content": "" if content is None else content}
    kept = {"assistant": ("tool_calls", "reasoning"), "tool": ("tool_call_id",)}.get(role, ())
    taken |= {name: message[name] for name in kept if message.get(name)}
    return {"tool_call_id": "call"} | taken if role == "tool" else taken


def _is_forced(choice: Any) -> bool:
    return choice == "required" or isinstance(choice, dict)


def _unless_strict(tool: Json) -> Json:
    """Return a tool that takes any arguments, unless it is `strict`."""
    function = tool["function"]
    return tool if function.get("strict") else {**tool, "function": {**function, "parameters": {}}}
