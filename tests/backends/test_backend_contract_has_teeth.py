"""Backends that are broken on purpose, each of which the contract must catch."""

import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest

from backends import OnLoops
from each import each_case
from modelyard.backends.deltas import one_by_one
from modelyard.backends.echo import EchoBackend
from modelyard.domain.completion import CompletionRequest, Delta, FinishReason, ToolCallDelta
from modelyard.engines.tabular.backend import TabularBackend
from modelyard.protocols import AsyncBackend, Backend, Capabilities, ServedModel
from modelyard.testing import BackendContract

Change = Callable[[Iterator[Delta], CompletionRequest], Iterator[Delta]]


class Broken:
    """A backend of ours whose deltas, entries or capabilities are spoilt on their way."""

    blocking = False

    def __init__(self, inner: Backend, change: Change | None = None, can: Any = None, entries: Any = None) -> None:
        self.inner, self.change, self.can, self.spoilt_entries = inner, change, can or {}, entries

    def entries(self) -> Any:
        return self.spoilt_entries(self.inner.entries()) if self.spoilt_entries else self.inner.entries()

    def capabilities(self, model: str) -> Capabilities:
        return attrs.evolve(self.inner.capabilities(model), **self.can)

    def prompt_tokens(self, request: CompletionRequest, model: ServedModel) -> int | None:
        return self.inner.prompt_tokens(request, model)

    def answer(self, request: CompletionRequest, model: ServedModel) -> Iterator[Delta]:
        return one_by_one(self.inner.stream(request, model))

    def stream(self, request: CompletionRequest, model: ServedModel) -> Iterator[Delta]:
        deltas = self.answer(request, model)
        yield from self.change(deltas, request) if self.change else deltas


def broken_laws(backend: Backend | AsyncBackend, only: str = "") -> set[str]:
    """The tests of the contract that fail on such a backend."""
    contract = BackendContract()
    model = backend.entries()[0].id
    fixtures = {"backend": backend, "model": model, "can": backend.capabilities(model)}
    broken = set()
    for name in (name for name in dir(contract) if name.startswith("test_") and only in name):
        test = getattr(contract, name)
        for case in cases(test):
            try:
                test(
                    **{name: value for name, value in fixtures.items() if name in inspect.signature(test).parameters},
                    **case,
                )
            except pytest.skip.Exception:
                pass
            except Exception:
                broken.add(name)
    return broken


def cases(test: Any) -> Iterator[dict[str, Any]]:
    """Every combination of the test's own parameters."""
    marks = [mark for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
    names = [mark.args[0] for mark in marks]
    for values in itertools.product(*(mark.args[1] for mark in marks)):
        yield dict(zip(names, values, strict=True))


def changed(**fields: Callable[[Delta], Any]) -> Change:
    """Change fields of every delta."""

    def change(deltas: Iterator[Delta], request: CompletionRequest) -> Iterator[Delta]:
        for delta in deltas:
            yield attrs.evolve(delta, **{name: make(delta) for name, make in fields.items()})

    return change


def without_end(deltas: Iterator[Delta], request: CompletionRequest) -> Iterator[Delta]:
    return (attrs.evolve(delta, finish_reason=None) for delta in deltas)


def going_on_after_the_end(deltas: Iterator[Delta], request: CompletionRequest) -> Iterator[Delta]:
    yield from deltas
    yield Delta("more")


class Unlimited(Broken):
    def stream(self, request: CompletionRequest, model: ServedModel) -> Iterator[Delta]:
        return self.answer(attrs.evolve(request, max_tokens=None), model)


class Forgetful(Broken):
    """Gives the next answer of a sequence whatever the seed says."""

    requested = 0

    def stream(self, request: CompletionRequest, model: ServedModel) -> Iterator[Delta]:
        self.requested += 1
        sampling = attrs.evolve(request.sampling, seed=self.requested)
        return self.answer(attrs.evolve(request, sampling=sampling), model)


class Entangled(Broken):
    """Answers of one time share their state: how far one is decides what another says."""

    reported = 0

    def stream(self, request: CompletionRequest, model: ServedModel) -> Iterator[Delta]:
        self.reported = 0
        for delta in self.answer(request, model):
            self.reported += 1
            yield attrs.evolve(delta, text=f"{delta.text}{self.reported}")


class Unclosable(Broken):
    def stream(self, request: CompletionRequest, model: ServedModel) -> Any:
        inner = self.answer(request, model)

        class Going:
            def __iter__(self) -> Any:
                return self

            def __next__(self) -> Delta:
                return next(inner)

            def close(self) -> None:
                pass

        return Going()


class Miscounting(Broken):
    def prompt_tokens(self, request: CompletionRequest, model: ServedModel) -> int:
        return (self.inner.prompt_tokens(request, model) or 0) + 1


def renamed_pieces(deltas: Iterator[Delta], request: CompletionRequest) -> Iterator[Delta]:
    for delta in deltas:
        call = delta.tool_call
        yield attrs.evolve(delta, tool_call=call and ToolCallDelta(call.index, "id", "look_up", call.arguments))


def chatty(deltas: Iterator[Delta], request: CompletionRequest) -> Iterator[Delta]:
    yield Delta("well, ", 1)
    yield from deltas


def always_detailed(inner: Backend) -> Broken:
    class Detailed(Broken):
        def stream(self, request: CompletionRequest, model: ServedModel) -> Iterator[Delta]:
            return self.answer(attrs.evolve(request, logprobs=True), model)

    return Detailed(inner)


def upside_down(deltas: Iterator[Delta], request: CompletionRequest) -> Iterator[Delta]:
    for delta in deltas:
        yield attrs.evolve(delta, logprobs=tuple(attrs.evolve(token, top=token.top[::-1]) for token in delta.logprobs))


def torn_characters(deltas: Iterator[Delta], request: CompletionRequest) -> Iterator[Delta]:
    for delta in deltas:
        yield attrs.evolve(delta, text=delta.text.encode()[:-1].decode(errors="replace"))


def calling_what_is_not_there(deltas: Iterator[Delta], request: CompletionRequest) -> Iterator[Delta]:
    yield Delta(tool_call=ToolCallDelta(0, "id", "look_down", "{}"))
    yield from deltas


def failing_on_prompts(deltas: Iterator[Delta], request: CompletionRequest) -> Iterator[Delta]:
    """It looks at the last message of every request."""
    assert request.messages[-1].role
    return deltas


def failing_on_empty_texts(deltas: Iterator[Delta], request: CompletionRequest) -> Iterator[Delta]:
    assert all(message.text for message in request.messages)
    return deltas


def detail_of_the_first_delta_only(deltas: Iterator[Delta], request: CompletionRequest) -> Iterator[Delta]:
    yield next(deltas)
    for delta in deltas:
        yield attrs.evolve(delta, logprobs=(), token_ids=())


ECHO, TABULAR = EchoBackend(), TabularBackend()

BROKEN = [
    (Broken(ECHO, without_end), "the_last_delta_and_no_other"),
    (Broken(ECHO, going_on_after_the_end), "the_last_delta_and_no_other"),
    (Broken(ECHO, changed(finish_reason=lambda delta: FinishReason.STOP)), "the_last_delta_and_no_other"),
    (Broken(ECHO, changed(index=lambda delta: 1)), "one_choice_has_index_0"),
    (Broken(ECHO, changed(tokens=lambda delta: 0)), "one_choice_has_index_0"),
    (Broken(ECHO, lambda deltas, request: iter(())), "every_offered_model_answers"),
    (Unlimited(ECHO), "keeps_to_its_token_limit"),
    (
        Broken(ECHO, changed(finish_reason=lambda delta: delta.finish_reason and FinishReason.STOP)),
        "keeps_to_its_token_limit",
    ),
    (Forgetful(TABULAR), "the_same_seed"),
    (Forgetful(TABULAR), "reads_the_same_streamed_and_whole"),
    (Forgetful(TABULAR), "asking_for_detail_changes_nothing"),
    (Forgetful(TABULAR), "threads_may_ask_at_once"),
    (Entangled(ECHO), "do_not_depend_on_what_is_answered_meanwhile"),
    (Unclosable(ECHO), "closed_at_any_time"),
    (Broken(ECHO, can={"choices": True}), "choices_are_made_side_by_side"),
    (Miscounting(ECHO), "the_prompt_is_counted"),
    (Broken(ECHO, changed(prompt_token_ids=lambda delta: ())), "the_prompt_is_counted"),
    (Broken(ECHO, changed(token_ids=lambda delta: delta.token_ids[1:])), "each_token_has_an_id"),
    (Broken(ECHO, changed(logprobs=lambda delta: delta.logprobs[1:])), "each_token_has_a_logprob"),
    (
        Broken(
            TABULAR, changed(logprobs=lambda delta: tuple(attrs.evolve(t, logprob=-t.logprob) for t in delta.logprobs))
        ),
        "each_token_has_a_logprob",
    ),
    (always_detailed(ECHO), "only_when_they_are_asked_for"),
    (Broken(ECHO, torn_characters), "the_bytes_of_the_tokens_are_the_text"),
    (Broken(TABULAR, upside_down), "alternatives_come_in_order"),
    (
        Broken(ECHO, can={"top_logprobs": 0, "logprobs": False, "parameters": frozenset({"heat"})}),
        "make_sense_together",
    ),
    (Broken(ECHO, can={"logprobs": False}), "make_sense_together"),
    (Broken(ECHO, can={"parameters": frozenset()}), "listed_agrees"),
    (Broken(ECHO, entries=lambda entries: [*entries, *entries]), "ids_of_their_own"),
    (Broken(ECHO, entries=lambda entries: [attrs.evolve(entries[0], name="")]), "ids_of_their_own"),
    (Broken(TABULAR, can={"forced_tools": True}), "a_forced_tool_call_is_made"),
    (Broken(ECHO, renamed_pieces), "a_forced_tool_call_is_made"),
    (Broken(TABULAR, can={"json_mode": True}), "json_mode"),
    (Broken(TABULAR, can={"structured_outputs": True}), "a_schema_is_kept"),
    (Broken(ECHO, chatty), "a_schema_is_kept"),
    (Broken(ECHO, calling_what_is_not_there), "tools_that_may_be_ignored"),
    (Broken(ECHO, failing_on_empty_texts), "whatever_the_core_may_ask"),
    (Broken(ECHO, failing_on_prompts), "a_prompt_is_continued"),
    (Broken(TABULAR, changed(prompt_logprobs=lambda delta: delta.prompt_logprobs[1:])), "as_it_is_scored"),
    (Broken(ECHO, detail_of_the_first_delta_only), "each_token_has_a_logprob"),
]


@pytest.mark.slow
@pytest.mark.parametrize("sound", [ECHO, TABULAR, OnLoops(ECHO), OnLoops(TABULAR)])
def test_the_contract_finds_no_fault_with_a_sound_backend(sound: Backend) -> None:
    assert broken_laws(sound) == set()


@each_case(("broken", "law"), BROKEN)
def test_the_contract_catches(broken: Backend, law: str) -> None:
    assert broken_laws(broken, law)


@each_case(("broken", "law"), [one for one in BROKEN if not isinstance(one[0], Unclosable)])
def test_the_contract_catches_the_same_of_an_asynchronous_backend(broken: Backend, law: str) -> None:
    assert broken_laws(OnLoops(broken), law)


def test_an_asynchronous_answer_that_cannot_be_closed_is_caught() -> None:
    class Going(OnLoops):
        def astream(self, request: CompletionRequest, model: ServedModel) -> Any:
            inner = super().astream(request, model)

            class Answer:
                def __aiter__(self) -> Any:
                    return self

                async def __anext__(self) -> Delta:
                    return await anext(inner)

            return Answer()

    assert broken_laws(Going(ECHO), "closed_at_any_time")


def test_every_law_is_broken_by_some_backend() -> None:
    laws = [name for name in dir(BackendContract) if name.startswith("test_")]
    assert [law for law in laws if not any(caught in law for _, caught in BROKEN)] == []
