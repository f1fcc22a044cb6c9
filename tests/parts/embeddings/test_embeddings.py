"""Embeddings of a platform: found, checked, reserved, embedded and booked as completions are."""

import asyncio
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import attrs
import pytest

from modelyard import EchoBackend, Platform, Pricing, Router, open_platform
from modelyard.domain.embedding import EmbeddedBatch, EmbeddingRequest
from modelyard.domain.events import CompletionBooked, CompletionFailed
from modelyard.domain.schema import RECORDS
from modelyard.domain.usage import Admission
from modelyard.engines.tabular.backend import TabularBackend
from modelyard.errors import (
    BackendError,
    BudgetExceeded,
    ContextLengthExceeded,
    Forbidden,
    InvalidInput,
    ModelNotFound,
    RateLimited,
    StoreClosed,
    UnsupportedParameter,
)
from modelyard.protocols import Capabilities, ServedModel
from modelyard.stores.memory import MemoryStore

CENT = Pricing(prompt="0.01")


class Batches(EchoBackend):
    """Yields what a test hands it; `closed` counts the requests that have ended."""

    blocking = False

    def __init__(self, *batches: Any, size: int = 2, completions: bool = True, fewer: bool = False) -> None:
        super().__init__(pricing=CENT)
        self.batches, self.closed, self.asked = batches, 0, list[EmbeddingRequest]()
        self.can = Capabilities(embedding_size=size, completions=completions, embedding_dimensions=fewer)

    def capabilities(self, model: str) -> Capabilities:
        return self.can

    def embed(self, request: EmbeddingRequest, model: ServedModel) -> Iterator[EmbeddedBatch]:
        self.asked.append(request)
        try:
            for batch in self.batches:
                if isinstance(batch, Exception):
                    raise batch
                yield batch() if callable(batch) else batch
        finally:
            self.closed += 1


def batch(*vectors: Sequence[float], tokens: Any = 3) -> EmbeddedBatch:
    return EmbeddedBatch(tuple(vectors), tokens)


GOOD = batch([1.0, 0.0])


@pytest.fixture
def happened() -> list[Any]:
    return []


def opened(backend: Any, happened: list[Any] | None = None) -> Platform:
    return open_platform(backend=backend, observer=None if happened is None else happened.append)


def ledger(platform: Platform) -> list[tuple[int, int, Decimal, bool]]:
    """What was booked."""
    return [(one.prompt_tokens, one.completion_tokens, one.cost, one.estimated) for one in platform.usage.list()]


def reserved(platform: Platform) -> int:
    return platform._runtime.store.read(lambda snapshot: snapshot.count(Admission, "all"))


# ---- the answer ----


def test_each_input_has_a_vector_and_its_tokens_are_booked(happened: list[Any]) -> None:
    with opened(EchoBackend(pricing=CENT), happened) as platform:
        made = platform.embeddings.create(model="echo", input=["one two", "three"], user="u")
        assert [len(vector) for vector in made.vectors] == [256, 256]
        assert (made.model, made.tokens, made.estimated) == ("echo", 3, False)
        assert ledger(platform) == [(3, 0, Decimal("0.03"), False)]
        assert [one.requests for one in platform.usage.total()] == [1]
        assert [one.id for one in platform.usage.list()] == [made.id]
    (booked,) = happened
    assert isinstance(booked, CompletionBooked)
    assert (booked.prompt_tokens, booked.status) == (3, 200)


def test_all_forms_of_input_are_taken_and_the_loop_makes_the_same() -> None:
    with opened(EchoBackend()) as platform:
        for given, count in (("a b", 1), (["a", "b"], 2), ([5, 6], 1), ([[5], [6, 7]], 2), (("a", "b"), 2)):
            made = platform.embeddings.create(model="echo", input=given)
            again = asyncio.run(platform.embeddings.acreate(model="echo", input=given))
            assert (len(made.vectors), again.vectors) == (count, made.vectors)


def test_fewer_dimensions_where_the_model_can() -> None:
    with opened(EchoBackend()) as platform:
        (vector,) = platform.embeddings.create(model="echo", input="a", dimensions=64).vectors
        assert len(vector) == 64
        with pytest.raises(InvalidInput, match="dimensions: must be at most 256 for echo"):
            platform.embeddings.create(model="echo", input="a", dimensions=257)
    with opened(Batches(GOOD)) as platform:
        assert platform.embeddings.create(model="echo", input="a", dimensions=2).vectors
        with pytest.raises(UnsupportedParameter, match="makes embeddings of 2 numbers only"):
            platform.embeddings.create(model="echo", input="a", dimensions=1)


def test_a_model_that_makes_none_is_refused_with_those_that_do() -> None:
    with opened(Router([EchoBackend(), TabularBackend()])) as platform:
        platform.catalogue.register(attrs.evolve(platform.catalogue.get("echo"), id="words"), answers_as="echo")
        with pytest.raises(InvalidInput, match="model: tabular-mini makes no embeddings; these do: echo, words"):
            platform.embeddings.create(model="tabular-mini", input="a")
        assert platform.embeddings.create(model="words", input="a").vectors
        with pytest.raises(ModelNotFound):
            platform.embeddings.create(model="nothing", input="a")
    with opened(TabularBackend()) as platform, pytest.raises(InvalidInput, match="no model of this platform does"):
        platform.embeddings.create(model="tabular-mini", input="a")


def test_a_model_that_only_embeds_is_refused_for_a_chat() -> None:
    with opened(Batches(GOOD, completions=False)) as platform:
        with pytest.raises(InvalidInput, match="model: echo makes embeddings only"):
            platform.chat.complete(model="echo", messages="hi")
        assert ledger(platform) == []


def test_the_catalogue_shows_what_makes_embeddings() -> None:
    with open_platform() as platform:
        shown = {entry.id: entry.output_modalities for entry in platform.catalogue.list()}
    assert shown == {"echo": ("text", "embeddings"), "tabular-mini": ("text",)}


def test_inputs_are_bounded_by_the_context_and_in_all() -> None:
    with opened(EchoBackend(context_length=4)) as platform:
        with pytest.raises(ContextLengthExceeded, match="input 1 has 5 tokens"):
            platform.embeddings.create(model="echo", input=["a", "a b c d e"])
        assert ledger(platform) == []
    with opened(EchoBackend()) as platform, pytest.raises(InvalidInput, match="300003 tokens in all"):
        platform.embeddings.create(model="echo", input=["a " * 100_000] * 3)


# ---- booking ----


def test_a_budget_is_reserved_for_the_longest_and_settled_with_the_real_cost() -> None:
    seen: list[int] = []
    backend = Batches(lambda: seen.append(reserved(platform)) or GOOD)
    with opened(backend) as platform:
        platform.usage.set_budget(Decimal("0.50"))
        platform.embeddings.create(model="echo", input="abc")  # at most 3 + 8 tokens
        assert (seen, reserved(platform)) == ([1], 0)
        budget = platform.usage.get_budget()
        assert budget is not None
        assert (budget.spent, budget.reserved) == (Decimal("0.03"), 0)
        with pytest.raises(BudgetExceeded):
            platform.embeddings.create(model="echo", input="a" * 100)
        assert reserved(platform) == 0


def test_tokens_never_cost_more_than_was_reserved() -> None:
    with opened(Batches(batch([1.0, 0.0], tokens=10**9))) as platform:
        platform.usage.set_budget(Decimal("0.20"))
        assert platform.embeddings.create(model="echo", input="abc").tokens == 11


def test_tokens_that_no_backend_knows_are_estimated() -> None:
    with opened(Batches(batch([1.0, 0.0], tokens=None))) as platform:
        made = platform.embeddings.create(model="echo", input="a" * 40)
        assert (made.tokens, made.estimated) == (13, True)
        assert ledger(platform)[0][3]


def test_limits_of_a_key_hold(happened: list[Any]) -> None:
    with opened(EchoBackend(), happened) as platform:
        made = platform.keys.create("acme", requests_per_minute=1)
        own = platform.acting_as(platform.keys.authenticate(made.secret))
        own.embeddings.create(model="echo", input="a")
        with pytest.raises(RateLimited):
            own.embeddings.create(model="echo", input="a")
        with pytest.raises(Forbidden):
            own.embeddings.create(model="echo", input="a", entity="rival")
        assert [one.key_id for one in platform.usage.list(entity="acme")] == [made.key.id]
    assert [type(one) for one in happened[:2]] == [CompletionBooked, CompletionFailed]


def test_an_observer_hears_of_parameters_that_cannot_be_read(happened: list[Any]) -> None:
    with opened(EchoBackend(), happened) as platform:
        with pytest.raises(InvalidInput):
            platform.embeddings.create(model="echo", input=5, entity="acme")  # type: ignore[arg-type]
    assert [(one.entity, one.model, one.status) for one in happened] == [("acme", "echo", 422)]


# ---- faults ----


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ((), "0 embeddings of 1"),
        ((batch([1.0]),), "of 1 numbers instead of 2"),
        ((batch([1.0, float("nan")]),), "not finite"),
        ((batch([1.0, float("inf")]),), "not finite"),
        ((batch([1.0, 1e300]),), "not finite"),
        ((batch([1.0, "a"]),), "failed with TypeError"),
        ((batch([1.0, 0.0], [0.0, 1.0]),), "more than 1"),
        ((batch(),), "instead of embeddings"),
        (("text",), "a str instead of embeddings"),
        ((batch([1.0, 0.0], tokens=-1),), "-1 as its number of tokens"),
        ((batch([1.0, 0.0], tokens=True),), "True as its number of tokens"),
        ((ValueError("secret"),), "failed with ValueError"),
        ((BackendError("gone"),), "gone"),
    ],
)
def test_a_backend_that_breaks_its_laws_fails_the_request_and_nothing_is_booked(
    batches: Sequence[Any], message: str, happened: list[Any]
) -> None:
    with opened(Batches(*batches), happened) as platform:
        platform.usage.set_budget(Decimal(1))
        with pytest.raises(BackendError, match=message):
            platform.embeddings.create(model="echo", input="abc")
        assert (ledger(platform), reserved(platform)) == ([], 0)
        assert platform._runtime.cache.running == {}
    assert [type(one) for one in happened] == [CompletionFailed]


def test_what_was_embedded_before_a_fault_is_paid_for() -> None:
    backend = Batches(GOOD, BackendError("gone"))
    with opened(backend) as platform:
        with pytest.raises(BackendError, match="gone"):
            platform.embeddings.create(model="echo", input=["abc", "def"])
        assert ledger(platform) == [(3, 0, Decimal("0.03"), False)]
        assert backend.closed == 1


def test_a_caller_who_leaves_stops_the_work_and_pays_for_what_was_done() -> None:
    async def leave() -> None:
        task = asyncio.ensure_future(platform.embeddings.acreate(model="echo", input=["abc", "def", "ghi"]))
        backend.batches = (GOOD, lambda: task.cancel() and GOOD, GOOD)
        with pytest.raises(asyncio.CancelledError):
            await task

    backend = Batches()
    with opened(backend) as platform:
        platform.usage.set_budget(Decimal(1))
        asyncio.run(leave())
        assert ledger(platform) == [(6, 0, Decimal("0.06"), False)]
        assert (backend.closed, reserved(platform)) == (1, 0)


def test_a_platform_that_is_closed_books_what_was_embedded() -> None:
    backend = Batches(GOOD, lambda: platform.close() or GOOD)
    store = MemoryStore(RECORDS)
    platform = open_platform(backend=backend, store=store)
    with pytest.raises(StoreClosed):
        platform.embeddings.create(model="echo", input=["abc", "def", "ghi"])
    assert backend.closed == 1
    with open_platform(store=store) as again:
        assert ledger(again) == [(3, 0, Decimal("0.03"), False)]


def test_long_inputs_are_embedded_off_the_event_loop() -> None:
    import threading

    threads: list[int] = []
    backend = Batches(lambda: threads.append(threading.get_ident()) or GOOD)
    with opened(backend) as platform:
        for text in ("short", "long " * 20_000):
            asyncio.run(platform.embeddings.acreate(model="echo", input=text))
    assert [one == threading.get_ident() for one in threads] == [True, False]
