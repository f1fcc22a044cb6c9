"""What is the same for all requests of a caller to a model."""

from decimal import Decimal

import attrs

from modelyard.domain.catalogue import CatalogueEntry, Pricing
from modelyard.domain.completion import CompletionRequest, Usage
from modelyard.domain.frozen_fast import maker
from modelyard.domain.identity import Principal
from modelyard.domain.usage import cost
from modelyard.errors import InvalidInput
from modelyard.part import Capture, Named
from modelyard.platform.chat.capability_checks import check_conversation, check_supported
from modelyard.protocols import AsyncBackend, Backend, ServedModel

_usage = maker(Usage)


@attrs.frozen(eq=False)
class CompletionPlan:
    """How a principal's requests to a model are answered, and under which name their usage is booked.

    `limited` is whether a limit or a budget applies, and `budgets` are the ids of the budgets that do. `asks_after` is
    whether these may be asked after a whole answer: of a backend that never waits, where no limit applies, too. `waits`
    is whether the backend may keep an event loop waiting, and `counts_in_thread` whether it may even while it counts a
    prompt. `offers` and `settings_version` are what was in force when the plan was made; `entries` is the tuple that
    the backend offered then, if it was one. `dearest` are the prices by which the most that a request can cost is
    found. `captures` keeps the answers. `named` is what a part serves under the name.
    """

    principal: Principal
    served: ServedModel
    backend: Backend | AsyncBackend
    booked_as: str
    limited: bool
    budgets: tuple[str, ...]
    asks_after: bool
    waits: bool
    counts_in_thread: bool
    offers: object
    entries: tuple[CatalogueEntry, ...] | None
    settings_version: int | None
    dearest: Pricing
    captures: Capture | None = None
    named: Named | None = None

    def asks(self, request: CompletionRequest) -> CompletionRequest:
        """Return what the model is asked. Raises `InvalidInput`."""
        return request if self.named is None else self.named.asks(request)

    def most(self, prompt_tokens: int, images: int, tokens: int) -> Decimal:
        """Return the most in USD that a request can cost with so many tokens in all of its answers."""
        return cost(_usage(prompt_tokens, tokens, 0, images), self.dearest)

    def count(self, request: CompletionRequest, strict: bool) -> int:
        """Return how many tokens a prompt has. Raises `InvalidInput`, also where answers alone report it."""
        request, entry = self.asks(request), self.served.entry
        capabilities = self.backend.capabilities(self.served.base_model)
        if strict and capabilities.strict_conversations:
            check_conversation(request)
        check_supported(request, entry, capabilities)
        tokens = self.backend.prompt_tokens(request, self.served)
        if tokens is None:
            raise InvalidInput.at("model", msg=f"{entry.id} is of a server that counts tokens with its answers only")
        return tokens
