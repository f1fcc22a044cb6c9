"""What serving and training share: the base models of the tabular engine, and how a request is read."""

from collections.abc import Sequence
from decimal import Decimal
from zlib import crc32

import attrs

from modelyard.backends.entries import entry_for
from modelyard.domain.catalogue import CatalogueEntry, Pricing
from modelyard.domain.completion import SAMPLING_PARAMETERS, Message, Role, Tool
from modelyard.protocols import Capabilities

BASE_MODELS = ("tabular-mini",)
"""The base models that are offered and trained by default."""


def base_seed(base_model: str) -> int:
    """Return the seed of a base model: each name is a model with preferences of its own."""
    return crc32(base_model.encode())


def conversation(messages: Sequence[Message], tools: Sequence[Tool] = ()) -> tuple[Message, ...]:
    """Return the messages as the model reads them: tools as a leading system message, tool calls as text."""
    offered = (Message(Role.SYSTEM, "tools: " + "; ".join(map(_tool_text, tools))),) if tools else ()
    return (*offered, *map(_spelled_out, messages))


def _tool_text(tool: Tool) -> str:
    return f"{tool.name} {tool.description}".rstrip()


def _spelled_out(message: Message) -> Message:
    speaker = "" if message.role is Role.ASSISTANT else message.name  # an answer is its text alone
    if not (message.tool_calls or speaker):
        return message
    said = f"{speaker}: {message.text}" if speaker else message.text
    calls = "".join(f"\n{call.name} {call.arguments}" for call in message.tool_calls)
    return Message(message.role, (said + calls).lstrip("\n"))


CAPABILITIES = Capabilities(
    parameters=frozenset(SAMPLING_PARAMETERS),
    logprobs=True,
    top_logprobs=20,
    token_ids=True,
    tools=True,
    trainable=True,
    prompts=True,
    prompt_logprobs=True,
    strict_conversations=True,
)
PRICING = Pricing(prompt=Decimal("0.0000001"), completion=Decimal("0.0000002"))
CONTEXT_LENGTH = 16_384
MAX_OUTPUT_LENGTH = 4_096


def tabular_entries(base_models: Sequence[str] = BASE_MODELS, pricing: Pricing = PRICING) -> tuple[CatalogueEntry, ...]:
    """Return one catalogue entry per base model. It lists no tools, since these models read tools and call none."""
    return tuple(
        attrs.evolve(
            entry_for(model, CAPABILITIES, pricing, CONTEXT_LENGTH),
            max_output_length=MAX_OUTPUT_LENGTH,
            supported_features=(),
        )
        for model in base_models
    )
