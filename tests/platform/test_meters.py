"""What a process counts: each time in the bucket whose bounds it is between, each request under its own labels."""

from datetime import UTC, datetime
from decimal import Decimal
from itertools import pairwise
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from example_counts import examples
from modelyard.platform.meters import BOUNDS, MOST, NOTED, SLOWEST, Meters, TimeHistogram

TIMES = st.sampled_from(BOUNDS) | st.floats(0, 400)


@given(st.lists(st.lists(TIMES, max_size=6), max_size=4))
def test_a_bucket_counts_the_times_up_to_its_bound(given_at_once: list[list[float]]) -> None:
    histogram, total = TimeHistogram(), 0.0
    for times in given_at_once:
        histogram.add(times)
        total += sum(times)
    all_times = [seconds for times in given_at_once for seconds in times]
    bounds = (-1.0, *BOUNDS, float("inf"))
    assert histogram.counts == [sum(low < seconds <= high for seconds in all_times) for low, high in pairwise(bounds)]
    assert histogram.total == total


def test_requests_are_counted_apart_by_route_and_status() -> None:
    meters = Meters()
    for at in range(NOTED + 7):
        meters.answered("GET", "/a", 200 if at % 2 else 404, 0.001)
        meters.answered("POST", "/a", 200, 60.0)
    routes = meters.routes
    assert set(routes) == {("GET", "/a"), ("POST", "/a")}
    assert routes["GET", "/a"].requests == {404: 132, 200: 131}
    assert routes["POST", "/a"].requests == {200: 263}
    assert routes["GET", "/a"].seconds.counts[0] == routes["POST", "/a"].seconds.counts[BOUNDS.index(60.0)] == 263


@examples(50)
@given(st.lists(st.lists(st.floats(-1, 100, allow_nan=False), max_size=300), max_size=3))
def test_the_slowest_answers_are_those_of_all_that_were_noted(batches: list[list[float]]) -> None:
    meters, wanted = Meters(), list[float]()
    for batch in batches:
        for at, seconds in enumerate(batch):
            counts = {"prompt_tokens": 1, "completion_tokens": 1, "cost": Decimal(0)}
            when = datetime(2026, 3, 1 + at % 2, tzinfo=UTC)
            meters.booked(SimpleNamespace(model=f"m{at % 3}", entity="a", created_at=when, **counts), seconds, None)
    for day in (1, 2):
        noted = [seconds for batch in batches for seconds in batch[day - 1 :: 2] if seconds >= 0]
        wanted.extend(sorted(noted, reverse=True)[:SLOWEST])
    assert sorted(seconds for seconds, _ in meters.take_slowest()) == sorted(wanted)
    assert not meters.take_slowest()


def test_a_busy_entity_hides_no_other_and_the_entities_are_bounded() -> None:
    meters, when = Meters(), datetime(2026, 3, 1, tzinfo=UTC)
    for at in range(MOST + 5):
        counts = {"prompt_tokens": 1, "completion_tokens": 1, "cost": Decimal(0)}
        for seconds, entity in ((9.0, "loud"), (1.0, f"quiet{at}")):
            meters.booked(SimpleNamespace(model="m", entity=entity, created_at=when, **counts), seconds, None)
    taken = [entry.entity for _, entry in meters.take_slowest()]
    assert taken.count("loud") == SLOWEST
    assert len({*taken}) == len(taken) - SLOWEST + 1 == MOST
