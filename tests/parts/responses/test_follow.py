"""Following a response in the background: while it is answered, again and again, and after its worker was lost."""

import threading
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import attrs
from hypothesis import given
from hypothesis import strategies as st

from modelyard import EchoBackend, Settings, open_platform
from modelyard.backends.deltas import one_by_one
from modelyard.domain.job import Job
from modelyard.parts.responses.formats.replay import Replay
from modelyard.parts.responses.records import ModelResponse


class Waiting(EchoBackend):
    """Answers the first words, and the rest when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()

    def stream(self, request: Any, *more: Any) -> Iterator[Any]:
        for number, delta in enumerate(one_by_one(super().stream(request, *more))):
            if number == 3:
                assert self.go.wait(60)
            yield delta


def test_the_text_is_streamed_before_the_answer_has_ended() -> None:
    backend = Waiting()
    with open_platform(backend=backend, settings=Settings(poll=1e-9)) as platform, platform.worker():
        queued = platform.compat.responses.create(model="echo", input="one two three four five", background=True)
        with platform.compat.responses.follow(queued.id) as events:
            types = []
            for event in events:
                types.append(event.type)
                if event.text:
                    assert not platform.compat.responses.get(queued.id).ended
                    break
            before = event
        assert types[-1] == "response.output_text.delta"
        backend.go.set()
        rest = list(platform.compat.responses.follow(queued.id, starting_after=before.data["sequence_number"]))
        assert before.text + "".join(event.text for event in rest) == platform.compat.responses.get(queued.id).text
        assert rest[-1].type == "response.completed"


def test_an_answer_that_begins_again_has_a_new_series_of_events() -> None:
    with open_platform(settings=Settings(poll=0.0)) as platform:
        queued = platform.compat.responses.create(model="echo", input="one two", background=True)

        def lost_once(tx: Any) -> None:
            job = tx.get(Job, queued.job_id)
            tx.replace(attrs.evolve(job, result={"attempt": 1}))

        platform._runtime.store.transact(lost_once)
        platform.worker().run_until_idle()
        events = list(platform.compat.responses.follow(queued.id, starting_after=5))
        assert events[0].type == "response.created"
        assert events[0].data["sequence_number"] == 10**9


def stored(platform_id: str = "resp_1", **members: Any) -> ModelResponse:
    with open_platform() as platform:
        response = platform.compat.responses.create(model="echo", input="a b c d e f", **members)
    return attrs.evolve(response, job_id="j")


WHOLE = stored(reasoning={"effort": "low"})
LONGEST = len(WHOLE.reasoning + WHOLE.text)


def opened(length: int) -> ModelResponse:
    """The response when so many characters of it were written."""
    output = []
    for item in WHOLE.output:
        (part,) = item["content"]
        if length >= 0:
            ended = length > len(part["text"])
            part, status = {**part, "text": part["text"][:length]}, "completed" if ended else "in_progress"
            output.append({**item, "status": status, "content": [part]})
        length -= len(part["text"]) if length > 0 and ended else length + 1
    return attrs.evolve(WHOLE, status=type(WHOLE.status)("in_progress"), output=tuple(output), usage={})


def written(events: Any) -> str:
    """All that was written, reasoning and text."""
    return "".join(event.data["delta"] for event in events if event.type.endswith("_text.delta"))


@given(st.lists(st.integers(0, LONGEST), max_size=5), st.data())
def test_however_it_is_read_the_events_are_the_same(lengths: list[int], data: st.DataObject) -> None:
    replay, events = Replay(), []
    for length in sorted(lengths):
        events += replay.of(opened(length), 1)
    events += replay.of(WHOLE, 1)
    assert replay.of(WHOLE, 1) == []
    numbers = [event.data["sequence_number"] for event in events]
    assert all(one < other for one, other in pairwise(numbers))
    assert written(events) == WHOLE.reasoning + WHOLE.text
    whole = Replay().of(WHOLE, 1)
    others = [[event for event in made if "_text.delta" not in event.type] for made in (events, whole)]
    assert others[0] == others[1]
    after = data.draw(st.sampled_from(numbers))
    rest = Replay(after).of(WHOLE, 1)
    before = [event for event in events if event.data["sequence_number"] <= after]
    assert written([*before, *rest]) == WHOLE.reasoning + WHOLE.text
