"""What a request reserves where only an answer tells how many tokens its prompt has: what its bytes allow."""

import json
import unicodedata
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import partial
from typing import Any

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from each import each_case
from example_counts import examples
from modelyard import Pricing, open_platform
from modelyard.backends.echo import EchoBackend
from modelyard.domain.completion import (
    CompletionRequest,
    ContentPart,
    Delta,
    FinishReason,
    Message,
    ResponseFormat,
    ResponseType,
    Role,
    Tool,
    ToolCall,
    Usage,
)
from modelyard.errors import BudgetExceeded
from modelyard.platform.chat.capability_checks import MESSAGE_TOKENS, TEMPLATE_TOKENS, most_prompt
from modelyard.protocols import ServedModel

CONTEXT = 131_072
PRICE = Pricing(Decimal("0.0000025"), Decimal("0.00001"), input_cache_read=Decimal("0.00000025"))


class Uncounted(EchoBackend):
    """A server that tells with its answer how many tokens the prompt had; `report` makes that of the request."""

    blocking = True
    platform: Any

    def __init__(self, report: Any, context: int = CONTEXT) -> None:
        super().__init__(["m"], context_length=context, pricing=PRICE)
        self.report, self.held = report, Decimal(0)

    def prompt_tokens(self, request: CompletionRequest, model: ServedModel) -> None:  # type: ignore[override]
        return None

    def stream(self, request: CompletionRequest, model: ServedModel) -> Iterator[Delta]:
        self.held = self.platform.usage.get_budget().reserved
        yield Delta("hi", request.max_tokens or 0, usage=self.report(request), finish_reason=FinishReason.STOP)


def budgeted(backend: Uncounted, limit: str, **asked: Any) -> Any:
    with open_platform(backend=backend) as platform:
        backend.platform = platform
        platform.usage.set_budget(limit)
        platform.chat.complete(model="m", **asked)
        (booked,) = platform.usage.list().page().items
        return booked


def test_a_short_request_fits_a_small_budget_of_a_model_with_a_long_context() -> None:
    backend = Uncounted(lambda request: Usage(10, 16))
    assert budgeted(backend, "0.01", messages="x", max_tokens=16).cost == Decimal("0.000185")
    reserved = (backend.held - 16 * PRICE.completion) / PRICE.prompt
    assert 1 < reserved - TEMPLATE_TOKENS - MESSAGE_TOKENS < 100


@pytest.mark.parametrize("streamed", [True, False])
def test_an_answer_without_a_limit_reserves_the_longest_one(streamed: bool) -> None:
    backend = Uncounted(lambda request: Usage(10, 16))
    with open_platform(backend=backend) as platform:
        backend.platform = platform
        platform.usage.set_budget("0.5")
        with pytest.raises(BudgetExceeded, match="max_tokens"):
            platform.chat.complete(model="m", messages="x")
        if streamed:
            list(platform.chat.stream(model="m", messages="x", max_tokens=5, n=2))
        else:
            platform.chat.complete(model="m", messages="x", max_tokens=5, n=2)
    assert backend.held >= 10 * PRICE.completion


def test_a_part_that_is_not_text_reserves_the_whole_context() -> None:
    parts = (ContentPart("text", "what is it?"), ContentPart("image_url", data={"image_url": {"url": "http://x/y"}}))
    assert most_prompt(CompletionRequest("m", (Message(Role.USER, parts),)), CONTEXT) == CONTEXT


@pytest.mark.parametrize("context", [100, 2_000, CONTEXT])
def test_more_than_the_text_can_have_is_not_booked_where_a_budget_applies(
    context: int, caplog: pytest.LogCaptureFixture
) -> None:
    backend = Uncounted(lambda request: Usage(10**6, 1), context)
    booked = budgeted(backend, "0.5", messages="x", max_tokens=1)
    assert booked.cost <= backend.held
    assert booked.prompt_tokens == most_prompt(CompletionRequest("m", (Message(Role.USER, "x"),)), context)
    assert ("more than its text can have" in caplog.text) is (context > 1_500)


# ---- an upper bound, whatever is asked

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
SCHEMAS = st.recursive(TEXTS | st.integers() | st.booleans(), lambda inner: st.dictionaries(TEXTS, inner, max_size=3))
TOOLS = st.builds(Tool, TEXTS, TEXTS, st.dictionaries(TEXTS, SCHEMAS, max_size=3))
CALLS = st.builds(ToolCall, TEXTS, TEXTS, st.dictionaries(TEXTS, SCHEMAS, max_size=3).map(json.dumps))
CONTENTS = TEXTS | st.lists(st.builds(ContentPart, st.just("text"), TEXTS), max_size=3).map(tuple) | st.none()
MESSAGES = st.builds(
    Message,
    st.sampled_from(Role),
    CONTENTS,
    st.none() | TEXTS,
    st.lists(CALLS, max_size=2).map(tuple),
    st.none() | TEXTS,
    st.none() | TEXTS,
)
FORMS = st.just(ResponseFormat()) | st.builds(
    ResponseFormat, st.just(ResponseType.JSON_SCHEMA), TEXTS, st.dictionaries(TEXTS, SCHEMAS, max_size=3)
)
REQUESTS = st.builds(
    CompletionRequest,
    st.just("m"),
    st.lists(MESSAGES, max_size=4).map(tuple),
    tools=st.lists(TOOLS, max_size=3).map(tuple),
    response_format=FORMS,
    prompt=st.none() | TEXTS | st.lists(st.integers(0, 2**31 - 1), max_size=50).map(tuple),
)


def rendered(request: CompletionRequest, normal: Callable[[str], str] = str) -> int:
    """Write a request as templates do, with JSON over many lines, and count its bytes; an indent is one token. `normal`
    is what the tokenizer makes of a text first.
    """

    def size_of(text: str) -> int:
        return len(normal(text).encode())

    size = len(request.prompt or ()) if isinstance(request.prompt, tuple) else size_of(request.prompt or "")
    written: list[Any] = []
    for message in request.messages:
        texts = message.text, message.reasoning, message.name, message.tool_call_id
        size += sum(size_of(text or "") for text in texts)
        written += [(one.id, one.name, json.loads(one.arguments)) for one in message.tool_calls]
    written += [(tool.name, tool.description, _plain(tool.parameters)) for tool in request.tools]
    written += [_plain(request.response_format.schema)] * bool(request.response_format.schema)
    lines = [line for one in written for line in json.dumps(one, ensure_ascii=False, indent=4).splitlines()]
    return size + sum(1 + size_of(line.strip()) for line in lines)


def _plain(value: Any) -> Any:
    return {name: _plain(one) for name, one in value.items()} if hasattr(value, "items") else value


NORMAL = [str, *[partial(unicodedata.normalize, form) for form in ("NFC", "NFD", "NFKC", "NFKD")], str.lower]
LIGATURE = "\ufdfa" * 200
"""A character of three bytes, of which some tokenizers make eighteen."""


@pytest.mark.slow
@given(REQUESTS, st.integers(1, 10_000))
@example(CompletionRequest("m", (Message(Role.USER, LIGATURE),)), 1)
@example(CompletionRequest("m", (), prompt=LIGATURE), 1)
@example(CompletionRequest("m", (), tools=(Tool("f", LIGATURE, {"enum": [LIGATURE]}),)), 1)
@examples(40)
def test_no_template_makes_more_tokens_of_a_request_than_it_reserves(request: CompletionRequest, context: int) -> None:
    most = most_prompt(request, CONTEXT)
    for normal in NORMAL:
        assert most - TEMPLATE_TOKENS - MESSAGE_TOKENS * len(request.messages) >= rendered(request, normal)
    assert most_prompt(request, context) == min(context, most)


@given(TEXTS, st.integers(1, 50), st.integers(1, 3), st.integers(0, 3_000), st.integers(0, 200), st.integers(0, 3_000))
@examples(30)
def test_no_answer_costs_more_than_its_request_has_reserved(
    text: str, most: int, n: int, prompt: int, produced: int, cached: int
) -> None:
    backend = Uncounted(lambda request: Usage(prompt, produced, min(cached, prompt)))
    booked = budgeted(backend, "5", messages=text or "x", max_tokens=most, n=n)
    assert booked.cost <= backend.held
    if prompt <= TEMPLATE_TOKENS:
        assert booked.prompt_tokens == prompt


LONG = "y" * 5_000


@each_case(
    "more",
    [
        {"messages": (Message(Role.USER, LONG),)},
        {"messages": (Message(Role.USER, (ContentPart("text", LONG),)),)},
        {"messages": (Message(Role.USER, "x", name=LONG),)},
        {"messages": (Message(Role.TOOL, "x", tool_call_id=LONG),)},
        {"messages": (Message(Role.ASSISTANT, "x", reasoning=LONG),)},
        {"messages": (Message(Role.ASSISTANT, None, tool_calls=(ToolCall("c", "f", LONG),)),)},
        {"tools": (Tool("f", LONG),)},
        {"tools": (Tool("f", "", {"enum": [LONG]}),)},
        {"response_format": ResponseFormat(ResponseType.JSON_SCHEMA, "x", {"enum": [LONG]})},
        {"response_format": ResponseFormat(ResponseType.REGEX, pattern=LONG)},
        {"extras": {"documents": [LONG]}},
        {"prompt": LONG},
        {"prompt": (7,) * 5_000},
    ],
    ids=lambda more: next(iter(more)),
)
def test_all_that_is_sent_counts(more: Any) -> None:
    assert most_prompt(attrs.evolve(CompletionRequest("m", ()), **more), CONTEXT) >= TEMPLATE_TOKENS + 5_000


def test_json_may_be_written_over_many_lines() -> None:
    request = CompletionRequest("m", (), tools=(Tool("f", "", {"enum": [[[1]]] * 500}),))
    assert most_prompt(request, CONTEXT) - TEMPLATE_TOKENS >= rendered(request)
