"""What the observer and the meters learn of a completion: who asked, how long it took, how it ended."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import attrs
import pytest

from backends import FixedAnswer
from modelyard import open_platform
from modelyard.domain.completion import CompletionRequest, Delta, FinishReason
from modelyard.domain.events import CALLER_LEFT, CompletionBooked, CompletionFailed
from modelyard.errors import Overloaded
from modelyard.platform.meters import BOUNDS, MOST, OTHER, Meters
from modelyard.testing import ManualClock


class Slow(FixedAnswer):
    """Takes 2 seconds for the first token and 3 for the rest; then it fails, if it is given an error."""

    def __init__(self, clock: ManualClock, error: Exception | None = None) -> None:
        super().__init__([Delta("a", 1), Delta("b", 1, finish_reason=FinishReason.STOP)])
        self.clock, self.error = clock, error

    def stream(self, request: CompletionRequest, model: Any) -> Iterator[Delta]:
        self.clock.advance(2)
        first, *rest = super().stream(request, model)
        yield first
        self.clock.advance(3)
        if self.error is not None:
            raise self.error
        yield from rest


def opened(clock: ManualClock, seen: list[Any], error: Exception | None = None) -> Any:
    platform = open_platform(entity="acme", backend=Slow(clock, error), trainers=(), clock=clock, observer=seen.append)
    platform._runtime.cache.meters = Meters()
    return platform


def test_a_whole_answer_has_its_times_and_its_key() -> None:
    clock, seen = ManualClock(), []
    with opened(clock, seen) as platform:
        made = platform.keys.create("acme").key
        caller = platform.acting_as(made.principal())
        list(caller.chat.stream(model="echo", messages="x"))
        caller.chat.complete(model="echo", messages="x")
        (meter,) = platform._runtime.cache.meters.models.values()
    streamed, whole = seen
    assert isinstance(streamed, CompletionBooked)
    assert (streamed.duration, streamed.first_token, streamed.status) == (5, 2, 200)
    assert (streamed.key_id, streamed.request_id) == (made.id, "")
    assert (whole.duration, whole.first_token) == (5, None)
    assert (meter.requests, meter.completion_tokens) == ({200: 2}, 4)
    assert (meter.seconds.total, sum(meter.seconds.counts)) == (10, 2)
    assert (meter.first_token.total, sum(meter.first_token.counts)) == (2, 1)
    assert meter.first_token.counts[BOUNDS.index(2.5)] == 1


def test_a_failure_after_the_first_token_is_counted_once_and_what_was_made_is_too() -> None:
    clock, seen = ManualClock(), []
    with opened(clock, seen, Overloaded("full")) as platform:
        with pytest.raises(Overloaded):
            list(platform.chat.stream(model="echo", messages="x"))
        meters = platform._runtime.cache.meters
        (meter,) = meters.models.values()
    booked, failed = seen
    assert (booked.status, booked.completion_tokens, booked.duration) == (503, 1, 5)
    assert isinstance(failed, CompletionFailed)
    assert (failed.status, failed.code, failed.duration, failed.first_token) == (503, "overloaded", 5, 2)
    assert (meter.requests, meter.completion_tokens, sum(meter.seconds.counts)) == ({503: 1}, 1, 0)
    assert meters.refusals == {"overloaded": 1}


def test_a_caller_who_leaves_is_counted_as_such() -> None:
    clock, seen = ManualClock(), []
    with opened(clock, seen) as platform:
        with closing(platform.chat.stream(model="echo", messages="x")) as stream:
            next(stream)
        meters = platform._runtime.cache.meters
    (booked,) = [event for event in seen if isinstance(event, CompletionBooked)]
    assert booked.status == CALLER_LEFT
    assert {model: meter.requests for model, meter in meters.models.items()} == {"echo": {CALLER_LEFT: 1}}


def test_names_that_no_model_has_share_one_label() -> None:
    clock, seen = ManualClock(), []
    with opened(clock, seen) as platform:
        for name in ("one", "two"):
            with pytest.raises(Exception, match=name):
                platform.chat.complete(model=name, messages="x")
        assert {model: meter.requests for model, meter in platform._runtime.cache.meters.models.items()} == {
            "": {404: 2}
        }


def test_models_beyond_the_most_are_counted_together() -> None:
    meters = Meters()
    with open_platform() as platform:
        platform.chat.complete(model="echo", messages="x")
        (entry,) = platform.usage.list()
    for number in range(MOST + 3):
        meters.booked(attrs.evolve(entry, model=f"model-{number}"), 1.0, None)
        meters.answered("GET", f"/{number}", 200, 1.0)
    assert (len(meters.models), meters.models[OTHER].prompt_tokens) == (MOST + 1, 3)
    assert (len(meters.routes), meters.routes[OTHER, OTHER].requests) == (MOST + 1, {200: 3})
