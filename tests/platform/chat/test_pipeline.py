"""Answering: what a caller sees, what is booked, and what a backend may not do to either."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from each import each_case
from example_counts import examples
from modelyard import open_platform
from modelyard.backends.echo import EchoBackend
from modelyard.backends.router import Router
from modelyard.domain.catalogue import CatalogueEntry, Pricing, Quantization
from modelyard.domain.completion import (
    Completion,
    CompletionRequest,
    ContentPart,
    Delta,
    FinishReason,
    Message,
    ResponseFormat,
    ResponseType,
    Role,
    Sampling,
    TokenLogprob,
    Tool,
    ToolCallDelta,
    ToolChoice,
    ToolMode,
    Usage,
)
from modelyard.domain.events import CompletionBooked, CompletionFailed
from modelyard.domain.identity import Attribution, Principal, Scope, host
from modelyard.domain.schema import RECORDS
from modelyard.domain.usage import LedgerEntry
from modelyard.errors import (
    BackendError,
    BudgetExceeded,
    ContextLengthExceeded,
    Forbidden,
    InvalidInput,
    ModelNotFound,
    NotFound,
    Overloaded,
    UnsupportedParameter,
)
from modelyard.flow import iterate, run
from modelyard.platform.chat.assembly import fold_choice
from modelyard.platform.chat.backend_stream import CompletionResult, StreamStarted
from modelyard.platform.chat.service import Chat
from modelyard.platform.usage.service import Ledger
from modelyard.protocols import Capabilities, ServedModel, Store
from modelyard.stores.memory import MemoryStore
from modelyard.stores.sqlite import SqliteStore
from modelyard.testing.clock import ManualClock
from modelyard.testing.run_twice_store import RunTwiceStore

HOST = host("acme")
STOP, LENGTH, TOOL_CALLS = FinishReason.STOP, FinishReason.LENGTH, FinishReason.TOOL_CALLS
EVERYTHING = Capabilities(
    parameters=frozenset(field.name for field in attrs.fields(Sampling)),
    logprobs=True,
    top_logprobs=20,
    token_ids=True,
    tools=True,
    forced_tools=True,
    json_mode=True,
    structured_outputs=True,
)
TOOL = Tool("weather", "of a city", {"type": "object"})


@attrs.define(eq=False)
class Saying:
    """Answers what it is given, however wrong, and remembers its requests."""

    answer: Callable[[CompletionRequest], Iterable[Any]]
    can: Capabilities = EVERYTHING
    counts: int | None = 4
    modalities: tuple[str, ...] = ("text",)
    requested: list[CompletionRequest] = attrs.field(factory=list)
    made: int = 0
    stopped: int = 0
    story: list[str] = attrs.field(factory=list)

    def entries(self) -> tuple[CatalogueEntry, ...]:
        pricing = Pricing(Decimal("0.001"), Decimal("0.01"), image=Decimal(5), input_cache_read=Decimal("0.0001"))
        entry = CatalogueEntry("m", "lab/m", "M", 0, Quantization.FP32, 100, 50, pricing, self.modalities)
        return (entry,)

    def capabilities(self, model: str) -> Capabilities:
        return self.can

    def prompt_tokens(self, request: CompletionRequest, model: ServedModel) -> int | None:
        return self.counts

    def deltas(self, request: CompletionRequest) -> Iterator[Delta]:
        self.requested.append(request)
        self.story.append("requested")
        try:
            for delta in self.answer(request):
                if isinstance(delta, Exception):
                    raise delta
                self.made += 1
                yield delta
        finally:
            self.stopped += 1
            self.story.append("stopped")


@attrs.define(eq=False)
class Says(Saying):
    """A synchronous backend."""

    blocking: bool = False

    def stream(self, request: CompletionRequest, model: ServedModel) -> Iterator[Delta]:
        return self.deltas(request)


class SaysLater(Saying):
    """A backend that is asynchronous only."""

    async def astream(self, request: CompletionRequest, model: ServedModel) -> AsyncIterator[Delta]:
        for delta in self.deltas(request):
            await asyncio.sleep(0)
            yield delta


def always(*deltas: Any) -> Callable[[CompletionRequest], Sequence[Any]]:
    return lambda request: deltas


def text(*pieces: str, reason: FinishReason = STOP) -> list[Delta]:
    """One token a piece."""
    return [*(Delta(piece, 1) for piece in pieces), Delta(finish_reason=reason)]


def make(backend: Any, store: Store | None = None, observer: Any = None) -> Any:
    """What a platform with this backend runs on."""
    ids, seeds = count(1), count(1)
    platform = open_platform(
        entity="acme",
        store=store or RunTwiceStore(MemoryStore(RECORDS)),
        backend=backend,
        trainers=(),
        clock=ManualClock(),
        ids=lambda: f"id-{next(ids):06}",
        randomness=lambda size: next(seeds).to_bytes(size, "big"),
        observer=observer,
    )
    return platform._runtime


def chat(backend: Any, principal: Principal = HOST, **others: Any) -> Chat:
    return Chat(make(backend, **others), principal)


def says(*pieces: str, **others: Any) -> Says:
    return Says(always(*text(*pieces)), **others)


def ledger(of: Chat) -> tuple[LedgerEntry, ...]:
    return Ledger(of._runtime, HOST).list().page().items


def ask(of: Chat, how: str, **options: Any) -> Completion:
    """Ask in one of the four ways."""
    options = {"model": "m", "messages": "hi", **options}
    if how == "complete":
        return of.complete(**options)
    if how == "acomplete":
        return asyncio.run(of.acomplete(**options))
    if how == "stream":
        stream = of.stream(**options)
        return folded(list(stream), stream.completion)

    async def main() -> Completion:
        stream = of.astream(**options)
        return folded([delta async for delta in stream], stream.completion)

    return asyncio.run(main())


def folded(deltas: list[Delta], completion: Completion | None) -> Completion:
    """The completion of a stream, which its deltas must make."""
    assert completion is not None
    for choice in completion.choices:
        own = [delta for delta in deltas if delta.index == choice.index]
        assert fold_choice(choice.index, own, choice.logprobs is not None) == choice
        assert [delta.finish_reason is not None for delta in own] == [False] * (len(own) - 1) + [True]
    assert all(delta.usage is None for delta in deltas)
    appeared = list(dict.fromkeys(delta.index for delta in deltas))
    assert appeared == list(range(len(completion.choices)))
    return completion


WAYS = pytest.mark.parametrize("how", ["complete", "acomplete", "stream", "astream"])
BACKENDS = pytest.mark.parametrize("kind", [Says, lambda *a, **k: Says(*a, blocking=True, **k), SaysLater])

# ---- the same answer in every way --------------------------------------------------------------------------------


@WAYS
@BACKENDS
def test_every_way_gives_the_same_answer_and_books_it_once(how: str, kind: Any) -> None:
    of = chat(kind(always(*text("one", " two"))))
    answer = ask(of, how, n=2, seed=7, project="books")
    assert [choice.message.content for choice in answer.choices] == ["one two", "one two"]
    assert [choice.finish_reason for choice in answer.choices] == [STOP, STOP]
    assert answer.usage == Usage(4, 4)
    assert answer.model == "m"
    assert answer.created == int(datetime(2026, 1, 1, tzinfo=UTC).timestamp())
    (entry,) = ledger(of)
    assert (entry.id, entry.entity, entry.project, entry.model) == (answer.id, "acme", "books", "m")
    assert (entry.prompt_tokens, entry.completion_tokens) == (4, 4)
    assert entry.cost == Decimal("0.044")


@WAYS
@BACKENDS
def test_a_store_on_disk_changes_nothing(how: str, kind: Any, yard_file: Path) -> None:
    store = SqliteStore(yard_file, RECORDS)
    of = chat(kind(always(*text("one", " two"))), store=store)
    Ledger(of._runtime, HOST).set_budget(2)
    answer = ask(of, how, n=2, seed=7, project="books", store=True)
    budget = Ledger(of._runtime, HOST).get_budget()
    assert budget is not None
    assert (budget.reserved, budget.spent) == (0, Decimal("0.044"))
    assert [entry.id for entry in ledger(of)] == [one.id for one in of.list()] == [answer.id]
    store.close()


@examples(40)
@given(st.data())
def test_a_stream_folds_to_the_whole_answer_for_any_pieces_stops_and_limits(data: st.DataObject) -> None:
    pieces = data.draw(st.lists(st.text("ab\u00e9", max_size=4), max_size=8))
    stops = data.draw(st.lists(st.text("ab\u00e9", min_size=1, max_size=3), max_size=3))
    most = data.draw(st.integers(1, 9))
    backend = Says(always(*logged(pieces)))
    whole, streamed = (
        ask(chat(backend), how, stop=stops or None, max_tokens=most, logprobs=True) for how in ("complete", "stream")
    )
    assert whole.choices == streamed.choices
    assert whole.usage == streamed.usage


def test_a_request_value_may_be_given_in_the_place_of_keywords() -> None:
    of = chat(EchoBackend())
    request = CompletionRequest("echo", (Message(Role.USER, "hi"),), streamed=True)
    assert of.complete(request).text == "hi"
    assert "".join(delta.text for delta in of.stream(request)) == "hi"
    with pytest.raises(TypeError):
        of.complete(request, model="echo")


def test_an_asynchronous_backend_of_a_router_answers_in_every_way() -> None:
    of = chat(Router([EchoBackend(), SaysLater(always(*text("later")))]))
    for how in ("complete", "acomplete", "stream", "astream"):
        assert ask(of, how).text == "later"
        assert ask(of, how, model="echo").text == "hi"


# ---- the friendly call -------------------------------------------------------------------------------------------


def test_plain_dicts_in_the_usual_shape_become_the_request() -> None:
    backend = says("x")
    function = {"name": "weather", "description": "of a city", "parameters": {"type": "object"}}
    chat(backend).complete(
        model="m",
        messages=[
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "rain"},
            Message(Role.USER, "and?"),
        ],
        tools=[{"type": "function", "function": function}],
        tool_choice={"type": "function", "function": {"name": "weather"}},
        response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}},
        stop="END",
        logit_bias={"5": 1},
        temperature=0,
        max_tokens=None,
    )
    (request,) = backend.requested
    system, user, call, result, last = request.messages
    assert (system.role, user.text, last.text) == (Role.SYSTEM, "hi", "and?")
    assert (call.content, call.tool_calls[0].name, result.tool_call_id) == (None, "weather", "c1")
    assert request.tools == (TOOL,)
    assert request.tool_choice == ToolChoice(ToolMode.REQUIRED, "weather")
    assert request.response_format.type is ResponseType.JSON_SCHEMA
    assert (request.stop, request.sampling.temperature, dict(request.sampling.logit_bias)) == (("END",), 0, {5: 1.0})


@each_case(
    ("options", "where"),
    [
        ({"messages": []}, "messages"),
        ({"messages": 5}, "messages"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages"),
        ({"messages": ["x"]}, "messages"),
        ({"messages": "\ud800"}, "messages"),
        ({"model": None}, "model"),
        ({"model": 3}, "model"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": True}, "n"),
        ({"n": 129}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"seed": 2**63}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"logprobs": 1}, "logprobs"),
        ({"tools": [{}]}, "tools"),
        ({"tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": ToolChoice(ToolMode.REQUIRED, "other")}, "tool_choice"),
        ({"response_format": {"type": "xml"}}, "response_format"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {1: 101}}, "logit_bias"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"tempratur": 1}, "tempratur"),
    ],
)
def test_what_does_not_fit_is_refused_by_name_without_calling_the_backend(options: Any, where: str) -> None:
    backend = says("x")
    with pytest.raises(InvalidInput) as refused:
        ask(chat(backend), "complete", **options)
    assert {problem.loc[0] for problem in refused.value.problems} == {where}
    assert backend.requested == []


def test_all_that_does_not_fit_is_named_at_once() -> None:
    with pytest.raises(InvalidInput) as refused:
        chat(says("x")).complete(model="m", messages="hi", temperature=9, n=0)
    assert [problem.loc for problem in refused.value.problems] == [("temperature",), ("n",)]


# ---- what a model cannot do --------------------------------------------------------------------------------------


@each_case(
    ("options", "where"),
    [
        ({"temperature": 0.5}, "temperature"),
        ({"top_p": 0.5}, "top_p"),
        ({"top_k": 3}, "top_k"),
        ({"min_p": 0.1}, "min_p"),
        ({"frequency_penalty": 1}, "frequency_penalty"),
        ({"presence_penalty": 1}, "presence_penalty"),
        ({"repetition_penalty": 1.5}, "repetition_penalty"),
        ({"logit_bias": {1: 1}}, "logit_bias"),
        ({"seed": 1}, "seed"),
        ({"logprobs": True}, "logprobs"),
        ({"return_token_ids": True}, "return_token_ids"),
        ({"tools": [TOOL]}, "tools"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"response_format": ResponseFormat(ResponseType.JSON_SCHEMA, "s")}, "response_format"),
    ],
)
@each_case("how", ["complete", "stream"])
def test_what_a_backend_does_not_declare_is_refused_by_name(options: Any, where: str, how: str) -> None:
    backend = says("x", can=Capabilities())
    with pytest.raises(UnsupportedParameter) as refused:
        ask(chat(backend), how, **options)
    assert [problem.loc for problem in refused.value.problems] == [(where,)]
    assert backend.requested == []
    ask(chat(says("x")), how, **options)


@each_case("options", [{"temperature": 1.0}, {"top_p": 1}, {"top_k": -1}, {"top_k": 0}, {"n": 3}])
def test_what_changes_nothing_or_is_the_core_s_own_is_never_refused(options: Any) -> None:
    ask(chat(says("x", can=Capabilities())), "complete", stop=["z"], max_tokens=9, **options)


def test_forcing_a_tool_needs_a_backend_that_can_or_a_double() -> None:
    tools = attrs.evolve(EVERYTHING, forced_tools=False)
    forced = {"tools": [TOOL], "tool_choice": "required"}
    with pytest.raises(UnsupportedParameter, match="tool_choice"):
        ask(chat(says("x", can=tools)), "complete", **forced)
    ask(chat(says("x", can=attrs.evolve(tools, synthesises_structure=True))), "complete", **forced)


def test_more_alternatives_than_a_backend_has_are_refused() -> None:
    few = says("x", can=attrs.evolve(EVERYTHING, top_logprobs=2))
    with pytest.raises(UnsupportedParameter, match="top_logprobs"):
        ask(chat(few), "complete", logprobs=True, top_logprobs=3)


def test_an_image_is_refused_where_the_model_takes_none_and_priced_where_it_does() -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "u"}}]}
    ]
    with pytest.raises(UnsupportedParameter) as refused:
        ask(chat(says("x")), "complete", messages=messages)
    assert refused.value.problems[0].loc == ("messages", 0, "content", 1)
    of = chat(says("x", modalities=("text", "image")))
    assert ask(of, "complete", messages=messages).usage.images == 1
    assert ledger(of)[0].cost == Decimal("5.014")


def test_everything_that_is_missing_is_named_at_once() -> None:
    with pytest.raises(UnsupportedParameter) as refused:
        ask(chat(says("x", can=Capabilities())), "complete", temperature=0, logprobs=True, tools=[TOOL])
    assert {problem.loc[0] for problem in refused.value.problems} == {"temperature", "logprobs", "tools"}


# ---- room --------------------------------------------------------------------------------------------------------


@each_case(("prompt", "most"), [(99, 2), (51, 50), (100, None), (5_000, 1)])
def test_what_does_not_fit_the_context_is_refused_in_the_words_that_clients_look_for(
    prompt: int, most: int | None
) -> None:
    with pytest.raises(ContextLengthExceeded, match="This model's maximum context length is 100 tokens") as refused:
        ask(chat(says("x", counts=prompt)), "complete", max_tokens=most)
    assert refused.value.problems[0].loc == ("messages",)


@each_case(("prompt", "most", "given"), [(99, 1, 1), (50, 50, 50), (99, None, 1), (4, None, 50), (80, None, 20)])
def test_a_backend_gets_the_token_limit_of_a_choice(prompt: int, most: int | None, given: int) -> None:
    backend = says("x", counts=prompt)
    ask(chat(backend), "complete", max_tokens=most)
    assert backend.requested[0].max_tokens == given


def test_more_than_the_model_s_longest_answer_is_refused() -> None:
    with pytest.raises(InvalidInput, match="max_tokens: must be at most 50"):
        ask(chat(says("x")), "complete", max_tokens=51)


# ---- token limits and stop strings -------------------------------------------------------------------------------


def logged(pieces: Sequence[str], ids: bool = True) -> list[Delta]:
    """One token a piece, with its log-probability and id."""
    deltas = [
        Delta(
            piece,
            1,
            logprobs=(TokenLogprob(piece, -0.5 * at, tuple(piece.encode())),),
            token_ids=(at,) if ids else (),
        )
        for at, piece in enumerate(pieces)
    ]
    return [*deltas, Delta(finish_reason=STOP)]


def cut(spoken: str, stops: Sequence[str]) -> str:
    """The text up to the stop string that is complete first, read letter by letter."""
    for end in range(len(spoken) + 1):
        ends = [len(stop) for stop in stops if spoken[:end].endswith(stop)]
        if ends:
            return spoken[: end - max(ends)]
    return spoken


words = st.lists(st.text("ab\u00e9 \U0001f600", max_size=5), max_size=10)
stop_strings = st.lists(st.text("ab\u00e9 \U0001f600", min_size=1, max_size=4), min_size=1, max_size=4)


@pytest.mark.slow
@examples(100)
@given(words, stop_strings, st.sampled_from(["complete", "stream"]))
def test_no_text_ever_contains_a_stop_string_however_it_is_cut_into_pieces(
    pieces: list[str], stops: list[str], how: str
) -> None:
    answer = ask(
        chat(Says(always(*logged(pieces))), store=MemoryStore(RECORDS)), how, stop=stops or None, logprobs=True
    )
    (choice,) = answer.choices
    assert choice.message.content == cut("".join(pieces), stops)
    assert not any(stop in choice.message.content for stop in stops)
    if choice.stop_string is None:
        assert choice.message.content == "".join(pieces)
    else:
        assert choice.stop_string in stops
        assert "".join(pieces).startswith(choice.message.content + choice.stop_string)
    assert choice.logprobs is not None
    assert len(choice.logprobs) == len(choice.token_ids) == answer.usage.completion_tokens
    spoken = b"".join(bytes(entry.bytes or ()) for entry in choice.logprobs)
    assert spoken.decode() == choice.message.content == "".join(entry.token for entry in choice.logprobs)
    assert [entry.logprob for entry in choice.logprobs] == [-0.5 * at for at in range(len(choice.logprobs))]


@examples(60)
@given(st.text("ab\u00e9\U0001f600", max_size=12), stop_strings, st.sampled_from(["complete", "stream"]))
def test_log_probabilities_stay_with_the_text_when_tokens_are_single_bytes(
    spoken: str, stops: list[str], how: str
) -> None:
    """A token may end within a character; its text comes with the token that completes it."""
    deltas = []
    for letter in spoken:
        *before, last = letter.encode()
        deltas += [Delta("", 1, logprobs=(TokenLogprob("\ufffd", -1.0, (byte,)),)) for byte in before]
        deltas.append(Delta(letter, 1, logprobs=(TokenLogprob(letter[-1], -1.0, (last,)),)))
    backend = Says(always(*deltas, Delta(finish_reason=STOP)))
    (choice,) = ask(chat(backend, store=MemoryStore(RECORDS)), how, stop=stops or None, logprobs=True).choices
    assert choice.message.content == cut(spoken, stops)
    assert choice.logprobs is not None
    assert b"".join(bytes(entry.bytes or ()) for entry in choice.logprobs).decode() == choice.message.content


def test_only_what_may_become_a_stop_string_is_held_back() -> None:
    of = chat(says("one", " E", "N", "two", " EN", "D", " three"))
    shown = [delta.text for delta in of.stream(model="m", messages="x", stop=["END"])]
    assert shown == ["one", " E", "N", "two", " ", ""]


def test_an_answer_that_ends_with_the_beginning_of_a_stop_string_is_whole() -> None:
    for how in ("complete", "stream"):
        assert ask(chat(says("one", " EN")), how, stop=["END"]).text == "one EN"


@pytest.mark.parametrize("how", ["complete", "stream"])
def test_a_stop_string_that_a_backend_names_ends_its_choice_alone(how: str) -> None:
    def named(text: str, at: int) -> list[Delta]:
        return [Delta(text, 1, at), Delta(index=at, finish_reason=STOP, stop_string="B" if at else None)]

    backend = Says(always(*named("one", 0), *named("two", 1)), can=attrs.evolve(EVERYTHING, choices=True))
    answer = ask(chat(backend), how, n=2, stop=["A", "B"])
    assert [choice.stop_string for choice in answer.choices] == [None, "B"]


def test_a_stop_string_ends_the_backend_s_work_and_its_tokens_count() -> None:
    backend = says("a", "STOP", "b", "c", "d")
    of = chat(backend)
    answer = ask(of, "complete", stop=["STOP"])
    assert (answer.text, answer.choices[0].finish_reason, answer.usage.completion_tokens) == ("a", STOP, 2)
    assert (backend.made, backend.stopped) == (2, 1)
    assert ledger(of)[0].completion_tokens == 2


@pytest.mark.slow
@examples(60)
@given(
    st.lists(st.tuples(st.text("ab", max_size=6), st.integers(0, 5)), min_size=1, max_size=6),
    st.integers(1, 8),
    st.booleans(),
    st.sampled_from(["complete", "stream"]),
)
def test_no_choice_has_more_tokens_than_it_may_have(
    pieces: list[tuple[str, int]], most: int, with_logprobs: bool, how: str
) -> None:
    total = sum(tokens for _, tokens in pieces)
    deltas = [
        Delta(
            piece,
            tokens,
            logprobs=tuple(TokenLogprob(piece if at == 0 else "", 0.0) for at in range(tokens))
            if with_logprobs
            else (),
        )
        for piece, tokens in pieces
    ]
    if total == 0:
        deltas.append(Delta("", 1, logprobs=(TokenLogprob("", 0.0),)))
    backend = Says(always(*deltas, Delta(finish_reason=STOP)))
    answer = ask(chat(backend, store=MemoryStore(RECORDS)), how, max_tokens=most, logprobs=with_logprobs)
    assert answer.usage.completion_tokens == min(max(total, 1), most)
    assert answer.choices[0].finish_reason is (LENGTH if total > most else STOP)
    assert "".join(piece for piece, _ in pieces).startswith(answer.text)
    if with_logprobs:
        assert len(answer.choices[0].logprobs or ()) == answer.usage.completion_tokens


def test_a_piece_that_passes_the_limit_is_cut_where_its_tokens_are() -> None:
    (piece,) = (Delta("one two three", 3, logprobs=tuple(TokenLogprob(w, 0.0) for w in ("one", " two", " three"))),)
    answer = ask(chat(Says(always(piece, Delta(finish_reason=STOP)))), "complete", max_tokens=2, logprobs=True)
    assert (answer.text, answer.choices[0].finish_reason) == ("one two", LENGTH)


# ---- choices and seeds -------------------------------------------------------------------------------------------


@WAYS
def test_a_backend_that_makes_one_choice_is_called_once_per_choice_with_different_seeds(how: str) -> None:
    backend = Says(lambda request: text(str(request.sampling.seed)))
    answer = ask(chat(backend), how, n=3, seed=2**63 - 2)
    assert [choice.message.content for choice in answer.choices] == [str(2**63 - 2), str(2**63 - 1), str(-(2**63))]
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert [request.n for request in backend.requested] == [1, 1, 1]
    assert answer.usage == Usage(4, 3)


@WAYS
def test_a_backend_that_makes_choices_may_mix_them_and_each_appears_in_turn(how: str) -> None:
    mixed = [
        Delta("c", 1, index=2),
        Delta("a", 1, index=0, finish_reason=STOP),
        Delta("b", 1, index=1),
        Delta(index=2, finish_reason=LENGTH),
        Delta(index=1, finish_reason=STOP),
    ]
    backend = Says(always(*mixed), can=attrs.evolve(EVERYTHING, choices=True))
    answer = ask(chat(backend), how, n=3)
    assert [choice.message.content for choice in answer.choices] == ["a", "b", "c"]
    assert [choice.finish_reason for choice in answer.choices] == [STOP, STOP, LENGTH]
    assert backend.requested[0].n == 3
    assert answer.usage.completion_tokens == 3


@WAYS
def test_a_choice_that_was_stopped_does_not_disturb_the_others(how: str) -> None:
    mixed = [Delta(letter, 1, index=at) for letter in "xyz" for at in (0, 1)]
    mixed = [attrs.evolve(mixed[0], text="END"), *mixed[1:], *(Delta(index=at, finish_reason=STOP) for at in (0, 1))]
    backend = Says(always(*mixed), can=attrs.evolve(EVERYTHING, choices=True))
    answer = ask(chat(backend), how, n=2, stop="END")
    assert [choice.message.content for choice in answer.choices] == ["", "xyz"]
    assert answer.usage.completion_tokens == 4


@WAYS
def test_a_choice_that_had_its_tokens_does_not_disturb_the_others(how: str) -> None:
    mixed = [Delta(letter, 1, index=at) for letter in "xy" for at in (0, 1)]
    mixed += [Delta("z", 1, index=0), Delta("z", 1, index=0)]
    backend = Says(always(*mixed, Delta(index=1, finish_reason=STOP)), can=attrs.evolve(EVERYTHING, choices=True))
    answer = ask(chat(backend), how, n=2, max_tokens=2)
    assert [choice.message.content for choice in answer.choices] == ["xy", "xy"]
    assert [choice.finish_reason for choice in answer.choices] == [LENGTH, STOP]


@WAYS
def test_one_choice_s_work_has_stopped_before_the_next_begins(how: str) -> None:
    backend = says("a", "END", "b")
    ask(chat(backend), how, n=2, stop="END")
    assert backend.story == ["requested", "stopped", "requested", "stopped"]


def test_a_request_without_a_seed_gets_a_random_one_and_one_with_a_seed_keeps_it() -> None:
    backend = says("x")
    of = chat(backend)
    for seed in (None, None, 9):
        ask(of, "complete", seed=seed)
    assert [request.sampling.seed for request in backend.requested] == [1, 2, 9]


# ---- tools -------------------------------------------------------------------------------------------------------


def calls(*pieces: ToolCallDelta, reason: FinishReason = TOOL_CALLS) -> Callable[[CompletionRequest], Sequence[Any]]:
    return always(*(Delta(tokens=1, tool_call=piece) for piece in pieces), Delta(finish_reason=reason))


@WAYS
def test_tool_calls_are_put_together_and_end_a_choice_with_their_own_reason(how: str) -> None:
    reply = calls(
        ToolCallDelta(0, "c0", "weather", '{"city"'),
        ToolCallDelta(0, arguments=': "Ulm"}'),
        ToolCallDelta(1, "c1", "weather", "{}"),
        reason=STOP,
    )
    (choice,) = ask(chat(Says(reply)), how, tools=[TOOL]).choices
    assert choice.finish_reason is TOOL_CALLS
    assert choice.message.content is None
    assert [(call.id, call.arguments) for call in choice.message.tool_calls] == [
        ("c0", '{"city": "Ulm"}'),
        ("c1", "{}"),
    ]


@WAYS
def test_without_parallel_calls_the_second_ends_the_choice(how: str) -> None:
    backend = Says(calls(ToolCallDelta(0, "c0", "weather", "{}"), ToolCallDelta(1, "c1", "weather", "{}")))
    answer = ask(chat(backend), how, tools=[TOOL], parallel_tool_calls=False)
    assert [call.id for call in answer.choices[0].message.tool_calls] == ["c0"]
    assert answer.choices[0].finish_reason is TOOL_CALLS


# ---- nonsense ----------------------------------------------------------------------------------------------------

INFINITY = float("inf")
NONSENSE = {
    "none": [None],
    "no delta": ["text"],
    "no text": [Delta(None, 1)],  # type: ignore[arg-type]
    "surrogate": [Delta("\ud800", 1)],
    "no count": [Delta("a", "1")],  # type: ignore[arg-type]
    "negative count": [Delta("a", -1)],
    "true as count": [Delta("a", True)],
    "uncounted": [Delta("text"), Delta(finish_reason=STOP)],
    "no finish": [Delta("a", 1)],
    "nothing": [],
    "continues": [Delta("a", 1, index=0, finish_reason=STOP), Delta("b", 1, index=0)],
    "unknown finish": [Delta("a", 1, finish_reason="stop")],  # type: ignore[arg-type]
    "index": [Delta("a", 1, index=9)],
    "negative index": [Delta("a", 1, index=-1)],
    "logprobs": [Delta("a", 2, logprobs=(TokenLogprob("a", 0.0),))],
    "nan": [Delta("a", 1, logprobs=(TokenLogprob("a", float("nan")),))],
    "infinite alternative": [
        Delta("a", 1, logprobs=(TokenLogprob("a", 0.0, top=(TokenLogprob("b", -float("inf")),)),))
    ],
    "no logprob": [Delta("a", 1, logprobs=("a",))],  # type: ignore[arg-type]
    "ids": [Delta("a", 1, token_ids=(1, 2))],
    "no call": [Delta("a", 1, tool_call="weather")],  # type: ignore[arg-type]
    "call without a name": [Delta("", 1, tool_call=ToolCallDelta(0, "c0"))],
    "no usage": [Delta("a", 1, usage={"prompt_tokens": 1})],  # type: ignore[arg-type]
    "negative usage": [Delta("a", 1, usage=Usage(-1, 1))],
    "cached": [Delta("a", 1, usage=Usage(1, 1, 2))],
    "huge": [Delta("a" * (2**24 + 1), 1)],
}


@each_case("how", ["complete", "astream"])
@each_case("nonsense", NONSENSE)
def test_nonsense_of_a_backend_is_its_fault_and_the_next_request_is_answered(nonsense: str, how: str) -> None:
    lines = [NONSENSE[nonsense], text("fine")]
    backend = Says(lambda request: lines.pop(0), can=attrs.evolve(EVERYTHING, choices=nonsense == "continues"))
    of = chat(backend)
    with pytest.raises(BackendError):
        ask(of, how, n=2 if nonsense == "continues" else 1)
    assert ask(of, how).text == "fine"


def test_an_unexpected_error_of_a_backend_is_wrapped_and_its_message_hidden() -> None:
    with pytest.raises(BackendError) as failed:
        ask(chat(Says(always(ValueError("secret")))), "complete")
    assert "secret" not in str(failed.value)
    assert isinstance(failed.value.__cause__, ValueError)


@pytest.mark.parametrize("fault", [Overloaded("full"), InvalidInput.at("messages", msg="no")])
def test_what_a_backend_may_raise_passes_as_it_is(fault: Exception) -> None:
    with pytest.raises(type(fault)) as raised:
        ask(chat(Says(always(fault))), "stream")
    assert raised.value is fault


# ---- usage -------------------------------------------------------------------------------------------------------


def reported(usage: Usage) -> Callable[[CompletionRequest], Sequence[Any]]:
    return always(Delta("a", 1, usage=Usage(1, 1)), Delta("b", 1, finish_reason=STOP, usage=usage))


def test_a_backend_s_last_report_wins_over_what_was_counted() -> None:
    of = chat(Says(reported(Usage(3, 7, 2)), counts=None))
    assert ask(of, "complete").usage == Usage(3, 7, 2)
    assert ledger(of)[0].cost == Decimal("0.001") + 2 * Decimal("0.0001") + 7 * Decimal("0.01")


@pytest.mark.parametrize(
    ("report", "billed"),
    [(Usage(90, 90, 90), Usage(4, 5, 4)), (Usage(25, 3), Usage(4, 3)), (Usage(24, 3), Usage(24, 3))],
)
def test_no_caller_is_billed_for_more_than_was_reserved(report: Usage, billed: Usage) -> None:
    of = chat(Says(reported(report)))
    Ledger(of._runtime, HOST).set_budget("0.054")  # for 4 tokens of the prompt, and 5 of the answer
    assert ask(of, "complete", max_tokens=5).usage == billed
    assert ledger(of)[0].cost <= Decimal("0.054")


def test_a_report_beyond_what_was_counted_holds_up_to_the_context_where_nothing_was_reserved() -> None:
    assert ask(chat(Says(reported(Usage(90, 90, 90)))), "complete", max_tokens=5).usage == Usage(90, 5, 90)
    assert ask(chat(Says(reported(Usage(900, 2)))), "complete", max_tokens=5).usage == Usage(100, 2)


def test_the_tokens_of_an_uncounted_prompt_are_estimated_and_marked() -> None:
    of = chat(says("x", counts=None))
    usage = ask(of, "complete", messages="12345678").usage
    assert usage == Usage(3, 1, estimated=True)
    assert ledger(of)[0].estimated


def test_tokens_of_an_end_of_turn_without_text_are_counted() -> None:
    of = chat(Says(always(Delta("a", 1), Delta("", 1, finish_reason=STOP))))
    assert ask(of, "complete").usage.completion_tokens == 2


# ---- going away --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [1, 2, 4])
def test_a_stream_that_is_closed_stops_the_backend_and_books_exactly_what_was_shown(pieces: int) -> None:
    backend = says("a", "b", "c", "d", "e")
    of = chat(backend)
    stream = of.stream(model="m", messages="x")
    for _ in range(pieces):
        next(stream)
    stream.close()
    assert (backend.made, backend.stopped, stream.completion) == (pieces, 1, None)
    (entry,) = ledger(of)
    assert (entry.prompt_tokens, entry.completion_tokens) == (4, pieces)


def test_an_asynchronous_stream_that_is_closed_does_the_same() -> None:
    backend = SaysLater(always(*text("a", "b", "c")))
    of = chat(backend)

    async def main() -> None:
        async with of.astream(model="m", messages="x") as stream:
            await anext(stream)

    asyncio.run(main())
    assert ledger(of)[0].completion_tokens == 1


def test_a_stream_that_is_read_to_its_end_and_closed_is_booked_once() -> None:
    of = chat(says("a", "b"))
    with of.stream(model="m", messages="x") as stream:
        list(stream)
    stream.close()
    assert [entry.completion_tokens for entry in ledger(of)] == [2]


@pytest.mark.parametrize(
    ("kind", "produced"), [(lambda answer: Says(answer, blocking=True), 3), (SaysLater, 2)], ids=["blocking", "async"]
)
def test_a_cancelled_completion_is_booked_for_what_was_produced(kind: Any, produced: int) -> None:
    """A thread ends the piece that it is making; a task stops where it waits."""
    begun, go = threading.Event(), threading.Event()

    def slowly(request: CompletionRequest) -> Iterator[Delta]:
        yield Delta("a", 1)
        yield Delta("b", 1)
        begun.set()
        assert kind is SaysLater or go.wait(60)
        yield Delta("c", 1)
        yield Delta("d", 1, finish_reason=STOP)

    backend = kind(slowly)
    of = chat(backend)

    async def main() -> None:
        task = asyncio.create_task(of.acomplete(model="m", messages="x"))
        while not begun.is_set():
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    (entry,) = ledger(of)
    assert entry.completion_tokens == produced
    assert (backend.made, backend.stopped) == (3, 1)


def test_a_caller_who_goes_before_anything_was_made_pays_nothing() -> None:
    begun = threading.Event()

    class Waits(Saying):
        async def astream(self, request: CompletionRequest, model: ServedModel) -> AsyncIterator[Delta]:
            begun.set()
            await asyncio.Event().wait()
            yield Delta("never", 1)

    of = chat(Waits(always()))

    async def main() -> None:
        task = asyncio.create_task(of.acomplete(model="m", messages="x"))
        while not begun.is_set():
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert ledger(of) == ()


@WAYS
def test_a_fault_half_way_is_booked_for_what_was_produced(how: str) -> None:
    of = chat(Says(always(Delta("a", 1), Delta("b", 1), Overloaded("gone"))))
    with pytest.raises(Overloaded):
        ask(of, how)
    (entry,) = ledger(of)
    assert entry.completion_tokens == 2


# ---- what HTTP builds on -----------------------------------------------------------------------------------------


def items(of: Chat, request: CompletionRequest, **others: Any) -> list[Any]:
    return list(iterate(of._pipeline(request, Attribution("acme"), **others)))


REQUEST = CompletionRequest("m", (Message(Role.USER, "hi"),), streamed=True)


def test_a_streamed_flow_shows_its_opening_its_deltas_and_its_completion() -> None:
    of = chat(says("a", "b"))
    opening, *deltas, completion = items(of, REQUEST)
    assert opening == StreamStarted("id-000001", 1767225600, "m", of._runtime.backend.entries()[0])
    assert [[delta.text for delta in several] for several in deltas] == [["a"], ["b"], [""]]
    assert type(completion) is Completion
    assert (completion.id, completion.text) == (opening.id, "ab")


def test_a_flow_that_is_not_streamed_shows_nothing_and_returns_the_answer() -> None:
    of = chat(says("a"))
    request = attrs.evolve(REQUEST, streamed=False)
    assert items(of, request) == []
    answer = run(of._pipeline(request, Attribution("acme")))
    assert type(answer) is CompletionResult
    assert (answer.completion.text, answer.entry.id) == ("a", "m")


@each_case(
    ("request_", "attribution", "fault"),
    [
        (attrs.evolve(REQUEST, model="nothing"), Attribution("acme"), ModelNotFound),
        (attrs.evolve(REQUEST, max_tokens=99), Attribution("acme"), InvalidInput),
        (REQUEST, Attribution("rival"), Forbidden),
        (REQUEST, Attribution("acme", "secret"), Forbidden),
        (REQUEST, Attribution("acme", "a/b"), InvalidInput),
    ],
)
def test_what_fails_before_the_first_token_shows_nothing(request_: Any, attribution: Any, fault: Any) -> None:
    backend = says("a")
    of = chat(backend, Principal("caller", "acme", Scope("acme", frozenset({"p"})), "key-1"))
    shown = iterate(of._pipeline(request_, attribution))
    with pytest.raises(fault):
        next(shown)
    assert backend.requested == []


def test_a_backend_that_fails_at_once_shows_nothing_either() -> None:
    shown = iterate(chat(Says(always(Overloaded("full"))))._pipeline(REQUEST, Attribution("acme")))
    with pytest.raises(Overloaded):
        next(shown)


def test_details_are_requested_where_the_backend_has_them() -> None:
    rich = Says(always(*logged(["a", "b"])))
    completion = items(chat(rich), REQUEST, details=True)[-1]
    assert len(completion.choices[0].logprobs) == len(completion.choices[0].token_ids) == 2
    assert rich.requested[0].return_token_ids
    poor = says("a", can=Capabilities())
    completion = items(chat(poor), REQUEST, details=True)[-1]
    assert completion.choices[0].logprobs is None
    assert not poor.requested[0].logprobs


def test_logprobs_that_were_not_requested_are_not_in_the_answer() -> None:
    assert ask(chat(Says(always(*logged(["a"])))), "complete").choices[0].logprobs is None


# ---- booking -----------------------------------------------------------------------------------------------------


def test_a_key_books_on_its_own_entity_and_project_and_on_no_other() -> None:
    of = chat(says("a"), Principal("caller", "acme", Scope("acme", frozenset({"p"})), "key-1"))
    of.complete(model="m", messages="x")
    (entry,) = ledger(of)
    assert (entry.entity, entry.project, entry.key_id) == ("acme", "p", "key-1")
    for entity, project in (("rival", None), ("acme", "q")):
        with pytest.raises(Forbidden):
            of.complete(model="m", messages="x", entity=entity, project=project)
    assert len(ledger(of)) == 1


def test_an_observer_hears_of_what_was_booked_and_what_failed() -> None:
    seen: list[object] = []
    of = chat(says("a"), observer=seen.append)
    answer = of.complete(model="m", messages="x", project="p")
    with pytest.raises(ModelNotFound):
        of.complete(model="nothing", messages="x")
    assert seen == [
        CompletionBooked(answer.id, "acme", "p", "m", 4, 1, Decimal("0.014")),
        CompletionFailed("acme", "", "nothing", "model_not_found", status=404),
    ]


@pytest.mark.parametrize("wrong", [{"temperature": 3}, {"temprature": 1}, {"messages": 5}])
def test_an_observer_hears_of_parameters_that_cannot_be_read(wrong: Any) -> None:
    seen: list[Any] = []
    of = chat(says("a"), observer=seen.append)
    asked: Any = {"model": "m", "messages": "x", "project": "p", **wrong}
    with pytest.raises(InvalidInput):
        of.complete(**asked)
    with pytest.raises(InvalidInput):
        of.stream(**asked)
    assert [(one.entity, one.project, one.model, one.status) for one in seen] == [("acme", "p", "m", 422)] * 2


def test_no_fault_leaves_a_trace_of_the_request_running() -> None:
    of = chat(Says(always(Delta("a", 1), Overloaded("gone"))))
    Ledger(of._runtime, HOST).set_budget(100)
    with pytest.raises(Overloaded):
        of.complete(model="m", messages="x")
    Ledger(of._runtime, HOST).set_budget(0)
    with pytest.raises(BudgetExceeded):
        of.complete(model="m", messages="x")
    assert of._runtime.cache.running == {} == of._runtime.cache.bookings


# ---- stored completions ------------------------------------------------------------------------------------------


def test_a_completion_that_is_to_be_kept_can_be_listed() -> None:
    of = chat(EchoBackend())
    kept = [
        of.complete(model="echo", messages=f"hi {at}", project="p", store=True, metadata={"at": str(at)})
        for at in range(3)
    ]
    of.complete(model="echo", messages="not this one", project="p")
    of.complete(model="echo", messages="elsewhere", project="q", store=True)
    page = of.list(project="p").page(limit=2)
    assert [one.id for one in page] == [answer.id for answer in kept[:2]]
    assert page.has_more
    (last,) = of.list(project="p").page(after=page.items[-1].id)
    assert dict(last.metadata) == {"at": "2"}
    assert last.request["messages"][0] == {"role": "user", "content": "hi 2"}
    assert last.answer["choices"][0]["message"]["content"] == "hi 2"
    assert len(of.list().page().items) == 4
    assert [one.project for one in of.list(order="desc").page(limit=1)] == ["q"]


def test_kept_completions_of_other_projects_and_tenants_are_not_seen() -> None:
    of = chat(EchoBackend())
    kept = of.complete(model="echo", messages="x", project="q", store=True)
    held = Chat(of._runtime, Principal("caller", "acme", Scope("acme", frozenset({"p", "r"})), "key-1"))
    assert held.list().page().items == ()
    with pytest.raises(Forbidden):
        held.list(project="q")
    rival = Chat(of._runtime, Principal("caller", "rival", Scope("rival"), "key-2"))
    for view in (held, rival):
        for after in (kept.id, "nothing"):
            with pytest.raises(NotFound):
                view.list().page(after=after)


def test_parts_that_are_not_text_take_part_in_a_kept_request() -> None:
    backend = says("x", modalities=("text", "image"))
    of = chat(backend)
    parts = (ContentPart("text", "see"), ContentPart("image_url", data={"image_url": {"url": "u"}}))
    of.complete(model="m", messages=[Message(Role.USER, parts)], store=True)
    (kept,) = of.list()
    assert kept.request["messages"][0]["content"][1]["data"] == {"url": "u", "detail": "auto"}
