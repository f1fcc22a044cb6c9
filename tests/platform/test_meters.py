"""What a process counts: each time in the bucket whose bounds it is between, each request under its own labels."""

from decimal import Decimal
from itertools import pairwise
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from example_counts import examples
from modelyard.platform.meters import BOUNDS, NOTED, SLOWEST, Meters, TimeHistogram

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
    meters = Meters()
    for batch in batches:
        for at, seconds in enumerate(batch):
            entry = SimpleNamespace(model=f"m{at % 3}", prompt_tokens=1, completion_tokens=1, cost=Decimal(0))
            meters.booked(entry, seconds, None)
    times = sorted((seconds for batch in batches for seconds in batch if seconds >= 0), reverse=True)
    assert [seconds for seconds, _ in meters.take_slowest()] == times[:SLOWEST]
    assert not meters.take_slowest()
