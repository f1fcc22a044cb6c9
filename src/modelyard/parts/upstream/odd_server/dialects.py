"""The dialects of servers: how each of them names and places what it says."""

from collections.abc import Mapping
from enum import StrEnum

import attrs

from modelyard.domain.completion import FinishReason, Usage
from modelyard.parts.upstream.odd_server.rules import (
    CallIndex,
    Json,
    Rules,
    UsageAt,
    openai_usage,
    plain_usage,
    text_part,
)


class OddDialect(StrEnum):
    """A server, in the way in which it writes chat completions."""

    OPENAI = "openai"
    AZURE = "azure"
    VLLM = "vllm"
    SGLANG = "sglang"
    LLAMA_CPP = "llama_cpp"
    OLLAMA = "ollama"
    TGI = "tgi"
    DEEPSEEK = "deepseek"
    KIMI = "kimi"
    GEMINI = "gemini"
    VERTEX = "vertex"
    ANTHROPIC = "anthropic"
    BEDROCK = "bedrock"
    XAI = "xai"
    MISTRAL = "mistral"
    TOGETHER = "together"
    OPENROUTER = "openrouter"
    GROQ = "groq"
    MINIMAX = "minimax"


@attrs.frozen
class ServerDialect:
    """The rules of a server, and which parts of the usage it tells."""

    rules: Rules
    tells_cached: bool = True
    tells_reasoning: bool = True


def _vllm(usage: Usage) -> Json:
    return {**plain_usage(usage), "prompt_tokens_details": {"cached_tokens": usage.cached_tokens}}


def _sglang(usage: Usage) -> Json:
    return {**_vllm(usage), "reasoning_tokens": usage.reasoning_tokens}


def _llama_cpp(usage: Usage) -> Json:
    return {
        "timings": {
            "cache_n": usage.cached_tokens,
            "prompt_n": usage.prompt_tokens - usage.cached_tokens,
            "prompt_ms": 12.5,
            "predicted_n": usage.completion_tokens,
            "predicted_per_second": 31.7,
        }
    }


def _ollama(usage: Usage) -> Json:
    return {"prompt_eval_count": usage.prompt_tokens, "eval_count": usage.completion_tokens, "eval_duration": 10**9}


def _deepseek(usage: Usage) -> Json:
    missed = usage.prompt_tokens - usage.cached_tokens
    counts = {"prompt_cache_hit_tokens": usage.cached_tokens, "prompt_cache_miss_tokens": missed}
    return {
        **plain_usage(usage),
        **counts,
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    }


def _cached_beside(usage: Usage) -> Json:
    return {**plain_usage(usage), "cached_tokens": usage.cached_tokens}


def _gemini(usage: Usage) -> Json:
    """Count reasoning in the total alone."""
    return {**plain_usage(usage), "completion_tokens": usage.completion_tokens - usage.reasoning_tokens}


def _vertex(usage: Usage) -> Json:
    return {
        "promptTokenCount": usage.prompt_tokens,
        "cachedContentTokenCount": usage.cached_tokens,
        "candidatesTokenCount": usage.completion_tokens - usage.reasoning_tokens,
        "thoughtsTokenCount": usage.reasoning_tokens,
        "totalTokenCount": usage.total_tokens,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": usage.prompt_tokens}],
    }


def _anthropic(usage: Usage) -> Json:
    """Count cached tokens beside those of the input, and report no total."""
    written = min(1, usage.prompt_tokens - usage.cached_tokens)
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens - written,
        "cache_creation_input_tokens": written,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "service_tier": "standard",
    }


def _bedrock(usage: Usage) -> Json:
    return {
        "inputTokens": usage.prompt_tokens - usage.cached_tokens,
        "cacheReadInputTokens": usage.cached_tokens,
        "outputTokens": usage.completion_tokens,
        "totalTokens": usage.total_tokens,
    }


def _xai(usage: Usage) -> Json:
    """Count reasoning beside the completion."""
    visible = usage.completion_tokens - usage.reasoning_tokens
    return {**openai_usage(usage), "completion_tokens": visible, "num_sources_used": 0}


def _openrouter(usage: Usage) -> Json:
    native = {"native_tokens_prompt": usage.prompt_tokens, "native_tokens_completion": usage.completion_tokens}
    return {**openai_usage(usage), **native, "cost": 0.00014, "cost_details": {"upstream_inference_cost": None}}


_ANTHROPIC = {
    FinishReason.STOP: "end_turn",
    FinishReason.LENGTH: "max_tokens",
    FinishReason.TOOL_CALLS: "tool_use",
    FinishReason.CONTENT_FILTER: "refusal",
}
_GEMINI = {
    FinishReason.STOP: "STOP",
    FinishReason.LENGTH: "MAX_TOKENS",
    FinishReason.TOOL_CALLS: "STOP",
    FinishReason.CONTENT_FILTER: "SAFETY",
}

DIALECTS: Mapping[OddDialect, ServerDialect] = {
    OddDialect.OPENAI: ServerDialect(Rules()),
    OddDialect.AZURE: ServerDialect(Rules(filters=True)),
    OddDialect.VLLM: ServerDialect(Rules(_vllm), tells_reasoning=False),
    OddDialect.SGLANG: ServerDialect(Rules(_sglang)),
    OddDialect.LLAMA_CPP: ServerDialect(Rules(_llama_cpp, UsageAt.MEMBERS), tells_reasoning=False),
    OddDialect.OLLAMA: ServerDialect(
        Rules(_ollama, UsageAt.MEMBERS, reasoning="thinking", whole_calls=True),
        tells_cached=False,
        tells_reasoning=False,
    ),
    OddDialect.TGI: ServerDialect(
        Rules(plain_usage, finish={FinishReason.STOP: "eos_token"}, objects=True, whole_calls=True),
        tells_cached=False,
        tells_reasoning=False,
    ),
    OddDialect.DEEPSEEK: ServerDialect(Rules(_deepseek, UsageAt.LAST)),
    OddDialect.KIMI: ServerDialect(Rules(_cached_beside, UsageAt.CHOICE), tells_reasoning=False),
    OddDialect.GEMINI: ServerDialect(
        Rules(_gemini, UsageAt.EACH, index=CallIndex.ABSENT, whole_calls=True), tells_cached=False
    ),
    OddDialect.VERTEX: ServerDialect(Rules(_vertex, UsageAt.LAST, "usageMetadata", finish=_GEMINI, whole_calls=True)),
    OddDialect.ANTHROPIC: ServerDialect(
        Rules(_anthropic, UsageAt.SPLIT, finish=_ANTHROPIC, reasoning="thinking"), tells_reasoning=False
    ),
    OddDialect.BEDROCK: ServerDialect(Rules(_bedrock, finish=_ANTHROPIC), tells_reasoning=False),
    OddDialect.XAI: ServerDialect(Rules(_xai, UsageAt.EACH, whole_calls=True)),
    OddDialect.MISTRAL: ServerDialect(
        Rules(
            plain_usage,
            UsageAt.LAST,
            finish={FinishReason.LENGTH: "model_length"},
            reasoning="parts",
            part=text_part,
            whole_calls=True,
        ),
        tells_cached=False,
        tells_reasoning=False,
    ),
    OddDialect.TOGETHER: ServerDialect(
        Rules(_cached_beside, UsageAt.LAST, finish={FinishReason.STOP: "eos"}, reasoning="reasoning"),
        tells_reasoning=False,
    ),
    OddDialect.OPENROUTER: ServerDialect(Rules(_openrouter, reasoning="reasoning_details")),
    OddDialect.GROQ: ServerDialect(Rules(openai_usage, UsageAt.NESTED, reasoning="reasoning", whole_calls=True)),
    OddDialect.MINIMAX: ServerDialect(Rules(openai_usage, UsageAt.LAST, message_last=True)),
}
