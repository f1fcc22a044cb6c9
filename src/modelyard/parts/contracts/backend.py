"""The contract of every backend, synchronous or asynchronous, to run on your own implementation:

    class TestMyBackend(BackendContract):
        @pytest.fixture
        def backend(self):
            return MyBackend()

It tests each law with one offered model, the first one unless the fixture `model` names another, and skips what the
backend does not declare.
"""

import json
import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from modelyard.domain.catalogue import SamplingParameter, check_entry
from modelyard.domain.completion import (
    ANSWER_EXTRAS,
    SAMPLING_PARAMETERS,
    CompletionRequest,
    Delta,
    FinishReason,
    ResponseFormat,
    ResponseType,
    Sampling,
    Tool,
    ToolChoice,
    ToolMode,
    token_bytes,
)
from modelyard.parts.contracts import strategies
from modelyard.parts.contracts.backend_client import (
    MAX_TOKENS,
    AnyBackend,
    choice_of,
    close,
    deltas_of,
    opened,
    request_for,
    served,
)
from modelyard.protocols import Capabilities

# Equal requests each time; and as a backend may be slow, a failing request is not shrunk.
_quick = settings(
    max_examples=25,
    derandomize=True,
    phases=[Phase.generate],
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)

SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": {"found": {"type": "boolean"}, "count": {"type": "integer", "minimum": 2}},
    "required": ["found", "count"],
    "additionalProperties": False,
}
LOOK_UP = Tool("look_up", "looks a thing up", SCHEMA)


def needs(declared: object, what: str) -> None:
    if not declared:
        pytest.skip(f"this backend does not declare {what}")


class BackendContract:
    """The laws of `modelyard.protocols.Backend` and `AsyncBackend`, for the fixture `backend`."""

    @pytest.fixture
    def model(self, backend: AnyBackend) -> str:
        """Return the id of the tested model; override it to name another."""
        return backend.entries()[0].id

    @pytest.fixture
    def can(self, backend: AnyBackend, model: str) -> Capabilities:
        return backend.capabilities(model)

    # ---- what is offered ----

    def test_entries_fit_the_catalogue_under_ids_of_their_own(self, backend: AnyBackend) -> None:
        entries = backend.entries()
        assert entries
        assert len({entry.id for entry in entries}) == len(entries)
        for entry in entries:
            check_entry(entry)

    def test_what_is_listed_agrees_with_the_capabilities(self, backend: AnyBackend) -> None:
        for entry in backend.entries():
            can = backend.capabilities(entry.id)
            assert set(entry.supported_sampling_parameters) <= {*can.parameters, SamplingParameter.STOP}
            assert ("tools" in entry.supported_features) <= can.tools

    def test_capabilities_make_sense_together(self, can: Capabilities) -> None:
        assert can.parameters <= {*SAMPLING_PARAMETERS, *ANSWER_EXTRAS}
        assert can.guided <= {"choice", "regex"}
        assert can.top_logprobs >= 0
        assert can.logprobs or not can.top_logprobs
        assert can.tools or not can.forced_tools

    def test_every_offered_model_answers(self, backend: AnyBackend) -> None:
        for entry in backend.entries():
            assert deltas_of(backend, request_for(entry.id))

    # ---- the answer ----

    @pytest.mark.parametrize("streamed", [False, True])
    def test_the_last_delta_and_no_other_has_a_finish_reason(
        self, backend: AnyBackend, model: str, streamed: bool
    ) -> None:
        reasons = [delta.finish_reason for delta in deltas_of(backend, request_for(model, streamed=streamed))]
        assert isinstance(reasons[-1], FinishReason)
        assert set(reasons[:-1]) <= {None}

    def test_one_choice_has_index_0_and_counted_tokens(self, backend: AnyBackend, model: str) -> None:
        deltas = deltas_of(backend, request_for(model))
        assert {delta.index for delta in deltas} == {0}
        assert all(isinstance(delta.text, str) and delta.tokens >= 0 for delta in deltas)
        assert all(isinstance(delta.reasoning, str) for delta in deltas)
        assert sum(delta.tokens for delta in deltas) > 0

    @pytest.mark.parametrize("streamed", [False, True])
    @pytest.mark.parametrize("limit", [1, 2, 5])
    def test_an_answer_keeps_to_its_token_limit_and_says_when_it_was_cut(
        self, backend: AnyBackend, model: str, limit: int, streamed: bool
    ) -> None:
        deltas = deltas_of(backend, request_for(model, max_tokens=limit, streamed=streamed))
        whole = deltas_of(backend, request_for(model, streamed=streamed))
        tokens, wanted = (sum(delta.tokens for delta in answer) for answer in (deltas, whole))
        assert tokens <= limit
        if wanted > limit:
            assert deltas[-1].finish_reason is FinishReason.LENGTH

    def test_an_answer_reads_the_same_streamed_and_whole(
        self, backend: AnyBackend, model: str, can: Capabilities
    ) -> None:
        needs("seed" in can.parameters, "seeds")
        _ask_before(backend, model)
        detail = {"logprobs": can.logprobs, "return_token_ids": can.token_ids}
        whole = choice_of(deltas_of(backend, request_for(model, **detail)))
        streamed = choice_of(deltas_of(backend, request_for(model, streamed=True, **detail)))
        assert streamed == whole

    def test_asking_for_detail_changes_nothing_about_the_text(
        self, backend: AnyBackend, model: str, can: Capabilities
    ) -> None:
        needs("seed" in can.parameters, "seeds")
        _ask_before(backend, model)
        plain = choice_of(deltas_of(backend, request_for(model)))
        detail = {"logprobs": can.logprobs, "top_logprobs": can.top_logprobs, "return_token_ids": can.token_ids}
        assert choice_of(deltas_of(backend, request_for(model, **detail))).message == plain.message

    def test_the_same_seed_gives_the_same_answer(self, backend: AnyBackend, model: str, can: Capabilities) -> None:
        needs("seed" in can.parameters, "seeds")
        _ask_before(backend, model)
        assert deltas_of(backend, request_for(model)) == deltas_of(backend, request_for(model))

    def test_choices_are_made_side_by_side_where_that_is_declared(
        self, backend: AnyBackend, model: str, can: Capabilities
    ) -> None:
        needs(can.choices, "several choices")
        deltas = deltas_of(backend, request_for(model, n=3))
        assert list(dict.fromkeys(delta.index for delta in deltas)) == [0, 1, 2]
        for index in range(3):
            own = [delta.finish_reason for delta in deltas if delta.index == index]
            assert own[-1] is not None
            assert set(own[:-1]) <= {None}

    def test_whatever_the_core_may_ask_is_answered_lawfully(
        self, backend: AnyBackend, model: str, can: Capabilities
    ) -> None:
        """Any conversation, any parameters that are declared; see `modelyard.parts.contracts.strategies.requests`."""

        @_quick
        @given(strategies.requests(model, can))
        def ask(request: CompletionRequest) -> None:
            deltas = deltas_of(backend, request)
            assert {delta.index for delta in deltas} == set(range(request.n))
            for index in range(request.n):
                _check_choice([delta for delta in deltas if delta.index == index], request)

        ask()

    # ---- side by side ----

    def test_answers_do_not_depend_on_what_is_answered_meanwhile(
        self, backend: AnyBackend, model: str, can: Capabilities
    ) -> None:
        needs("seed" in can.parameters, "seeds")
        _ask_before(backend, model)
        requests = [request_for(model, streamed=True, sampling=Sampling(seed=seed)) for seed in range(4)]
        apart = [deltas_of(backend, request) for request in requests]
        assert _interleaved(backend, requests) == apart

    def test_threads_may_ask_at_once(self, backend: AnyBackend, model: str, can: Capabilities) -> None:
        needs("seed" in can.parameters, "seeds")
        _ask_before(backend, model)
        requests = [request_for(model, sampling=Sampling(seed=seed)) for seed in range(8)]
        with ThreadPoolExecutor(4) as threads:
            together = list(threads.map(lambda request: deltas_of(backend, request), requests))
        assert together == [deltas_of(backend, request) for request in requests]

    def test_a_stream_may_be_closed_at_any_time(self, backend: AnyBackend, model: str) -> None:
        before = deltas_of(backend, request_for(model))
        for taken in range(3):
            with opened(backend, [request_for(model, streamed=True)]) as (stream,):
                for _ in range(taken):
                    next(stream, None)
                close(stream)
                assert next(stream, None) is None, "a closed answer continues"
        assert bool(deltas_of(backend, request_for(model))) == bool(before)

    # ---- tokens ----

    def test_the_prompt_is_counted(self, backend: AnyBackend, model: str, can: Capabilities) -> None:
        request = request_for(model, return_token_ids=can.token_ids, streamed=True)
        counted = backend.prompt_tokens(request, served(backend, model))
        deltas = deltas_of(backend, request)
        reported = [delta.usage.prompt_tokens for delta in deltas if delta.usage]
        assert counted is not None or reported
        assert (reported[-1] if counted is None else counted) > 0
        if can.token_ids:
            assert [len(delta.prompt_token_ids) for delta in deltas[1:]] == [0] * (len(deltas) - 1)
            assert counted in (None, len(deltas[0].prompt_token_ids))

    @pytest.mark.parametrize("streamed", [False, True])
    def test_each_token_has_an_id(self, backend: AnyBackend, model: str, can: Capabilities, streamed: bool) -> None:
        needs(can.token_ids, "token ids")
        for delta in deltas_of(backend, request_for(model, return_token_ids=True, streamed=streamed)):
            assert len(delta.token_ids) == delta.tokens
            assert all(token >= 0 for token in delta.token_ids)

    @pytest.mark.parametrize("streamed", [False, True])
    def test_each_token_has_a_logprob(self, backend: AnyBackend, model: str, can: Capabilities, streamed: bool) -> None:
        needs(can.logprobs, "logprobs")
        for delta in deltas_of(backend, request_for(model, logprobs=True, streamed=streamed)):
            assert len(delta.logprobs) == delta.tokens
            assert all(math.isfinite(token.logprob) and token.logprob <= 0 for token in delta.logprobs)

    def test_logprobs_come_only_when_they_are_asked_for(self, backend: AnyBackend, model: str) -> None:
        assert not any(delta.logprobs for delta in deltas_of(backend, request_for(model)))

    @pytest.mark.parametrize("streamed", [False, True])
    def test_the_bytes_of_the_tokens_are_the_text(
        self, backend: AnyBackend, model: str, can: Capabilities, streamed: bool
    ) -> None:
        needs(can.logprobs, "logprobs")
        deltas = deltas_of(backend, request_for(model, logprobs=True, streamed=streamed))
        tokens = b"".join(token_bytes(token) for delta in deltas for token in delta.logprobs)
        assert tokens.decode(errors="replace") == "".join(delta.text for delta in deltas)

    def test_alternatives_come_in_order_and_not_more_than_were_asked_for(
        self, backend: AnyBackend, model: str, can: Capabilities
    ) -> None:
        needs(can.top_logprobs, "top_logprobs")
        for asked in {1, min(3, can.top_logprobs), can.top_logprobs}:
            deltas = deltas_of(backend, request_for(model, logprobs=True, top_logprobs=asked))
            tokens = [token for delta in deltas for token in delta.logprobs]
            assert tokens
            for token in tokens:
                likely = [other.logprob for other in token.top]
                assert 1 <= len(likely) <= asked
                assert likely == sorted(likely, reverse=True)
                assert all(logprob <= 0 for logprob in likely)
                assert token.logprob <= likely[0]

    # ---- structure ----

    @pytest.mark.parametrize("streamed", [False, True])
    def test_a_forced_tool_call_is_made(
        self, backend: AnyBackend, model: str, can: Capabilities, streamed: bool
    ) -> None:
        needs(can.forced_tools or can.synthesises_structure, "forced tool calls")
        forced = ToolChoice(ToolMode.REQUIRED, LOOK_UP.name)
        asked = request_for(model, tools=(LOOK_UP,), tool_choice=forced, streamed=streamed, max_tokens=256)
        deltas = deltas_of(backend, asked)
        (call,) = choice_of(deltas).message.tool_calls
        assert deltas[-1].finish_reason is FinishReason.TOOL_CALLS
        assert (bool(call.id), call.name) == (True, LOOK_UP.name)
        _check_by_hand(json.loads(call.arguments))
        pieces = [delta.tool_call for delta in deltas if delta.tool_call]
        assert [bool(piece.id or piece.name) for piece in pieces] == [True] + [False] * (len(pieces) - 1)

    def test_json_mode_gives_an_object(self, backend: AnyBackend, model: str, can: Capabilities) -> None:
        needs(can.json_mode or can.synthesises_structure, "JSON mode")
        wanted = ResponseFormat(ResponseType.JSON_OBJECT)
        answer = choice_of(deltas_of(backend, request_for(model, response_format=wanted, max_tokens=256)))
        assert isinstance(json.loads(answer.message.text), dict)

    def test_a_schema_is_kept(self, backend: AnyBackend, model: str, can: Capabilities) -> None:
        needs(can.structured_outputs or can.synthesises_structure, "structured outputs")
        wanted = ResponseFormat(ResponseType.JSON_SCHEMA, "finding", SCHEMA, strict=True)
        answer = choice_of(deltas_of(backend, request_for(model, response_format=wanted, max_tokens=256)))
        _check_by_hand(json.loads(answer.message.text))

    def test_a_prompt_is_continued_in_the_place_of_messages(
        self, backend: AnyBackend, model: str, can: Capabilities
    ) -> None:
        needs(can.prompts, "prompts")
        request = attrs.evolve(request_for(model, max_tokens=5), messages=(), prompt="one two three")
        deltas = deltas_of(backend, request)
        _check_choice(deltas, request)
        assert choice_of(deltas).message.text == choice_of(deltas_of(backend, request)).message.text

    def test_a_prompt_is_as_many_tokens_as_it_is_scored(
        self, backend: AnyBackend, model: str, can: Capabilities
    ) -> None:
        needs(can.prompt_logprobs and can.token_ids, "log-probabilities of prompts")
        request = attrs.evolve(request_for(model, max_tokens=1), messages=(), prompt="one two three")
        answer = choice_of(deltas_of(backend, attrs.evolve(request, prompt_logprobs=0, return_token_ids=True)))
        assert len(answer.prompt_logprobs) == len(answer.prompt_token_ids) - 1
        assert all(entry.logprob <= 0 for entry in answer.prompt_logprobs)
        again = attrs.evolve(request, prompt=answer.prompt_token_ids)
        assert choice_of(deltas_of(backend, again)).prompt_logprobs == ()
        count = backend.prompt_tokens(again, served(backend, model))
        assert count in (None, len(answer.prompt_token_ids))
        if hasattr(backend, "tokens") and hasattr(backend, "token_bytes"):
            assert list(backend.tokens(again, served(backend, model))) == list(answer.prompt_token_ids)

    def test_tools_that_may_be_ignored_do_no_harm(self, backend: AnyBackend, model: str, can: Capabilities) -> None:
        needs(can.tools, "tools")
        answer = choice_of(deltas_of(backend, request_for(model, tools=(LOOK_UP,))))
        for call in answer.message.tool_calls:
            assert call.name == LOOK_UP.name


def _ask_before(backend: AnyBackend, model: str) -> None:
    """Ask once, so that all answers that are compared are to a prompt that was asked before: the first one may report
    no cached tokens, and have other last digits.
    """
    deltas_of(backend, request_for(model, max_tokens=1))


def _interleaved(backend: AnyBackend, requests: list[CompletionRequest]) -> list[list[Delta]]:
    with opened(backend, requests) as streams:
        rounds = list(zip_longest(*streams))
    return [[delta for delta in answer if delta is not None] for answer in zip(*rounds, strict=True)]


def _check_choice(deltas: list[Delta], request: CompletionRequest) -> None:
    reasons = [delta.finish_reason for delta in deltas]
    assert isinstance(reasons[-1], FinishReason)
    assert set(reasons[:-1]) <= {None}
    assert sum(delta.tokens for delta in deltas) <= (request.max_tokens or MAX_TOKENS)
    for delta in deltas:
        delta.text.encode()  # not a part of a character
        assert len(delta.logprobs) == (delta.tokens if request.logprobs else 0)
        assert len(delta.token_ids) == (delta.tokens if request.return_token_ids else 0)


def _check_by_hand(value: Any) -> None:
    assert value.keys() == {"found", "count"}
    assert type(value["found"]) is bool
    assert type(value["count"]) is int
    assert value["count"] >= 2
