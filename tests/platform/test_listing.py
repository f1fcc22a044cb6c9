"""Whatever lists is one kind of thing, and iterating over it reaches the end."""

import asyncio
from collections.abc import Iterator

import pytest

from each import each_case
from modelyard import Platform, open_platform
from modelyard.errors import Forbidden, InvalidInput, NotFound
from modelyard.platform.listing import BATCH, Cursor, Listing, ShownPage, in_batches


@pytest.fixture
def yard() -> Iterator[Platform]:
    with open_platform() as platform:
        yield platform


def numbers(count: int, keep: int = 1) -> tuple[Listing[int], list[int]]:
    """A listing of the multiples of `keep` below `count`, and the sizes that were read of it."""
    read: list[int] = []

    def batch(cursor: Cursor | None, size: int) -> list[int]:
        read.append(size)
        start = 0 if cursor is None else int(str(cursor[0])) + 1
        return list(range(start, min(start + size, count)))

    return Listing(in_batches(batch, lambda n: (n,), lambda n: n % keep == 0), lambda id: (int(id),)), read


@each_case("count", [0, 1, 19, BATCH - 1, BATCH, BATCH + 1, 3 * BATCH])
def test_iterating_reaches_the_end_in_batches_of_bounded_size(count: int) -> None:
    listing, read = numbers(count)
    assert list(listing) == list(listing) == list(range(count))
    assert set(read) == {BATCH}


def test_nothing_is_read_before_and_no_more_than_is_needed() -> None:
    listing, read = numbers(10 * BATCH)
    assert read == []
    assert next(iter(listing)) == 0
    assert read == [BATCH]
    assert bool(listing)
    assert read == [BATCH, 1]


def test_it_is_false_where_nothing_is_kept_also_after_many() -> None:
    assert not numbers(0)[0]
    assert numbers(BATCH, keep=7)[0]


def test_async_for_yields_the_same() -> None:
    async def all_of(listing: Listing[int]) -> list[int]:
        return [item async for item in listing]

    assert asyncio.run(all_of(numbers(2 * BATCH + 3, keep=3)[0])) == list(range(0, 2 * BATCH + 3, 3))


@each_case("after", ["x" * 1001, "\u20ac" * 334, "\ud800" * 1001, "x" * 10**6])
def test_an_id_that_no_store_can_hold_is_not_found(after: str) -> None:
    listing = numbers(3)[0]
    with pytest.raises(NotFound):
        listing.page(after=after)
    with pytest.raises(NotFound):
        listing.after(after)


def test_pages_join_to_the_whole() -> None:
    listing, _ = numbers(23, keep=2)
    found, after = [], None
    while True:
        page = listing.page(5, after)
        found += page.items
        if not page.has_more:
            break
        after = str(page.items[-1])
    assert found == list(listing)
    assert listing.page(12) == ShownPage(tuple(range(0, 23, 2)), has_more=False)


def test_it_shows_its_first_items_one_a_line_each_cut() -> None:
    assert repr(numbers(0)[0]) == "<Listing of nothing>"
    assert repr(numbers(2)[0]) == "<Listing\n  0\n  1>"
    assert repr(numbers(99)[0]).endswith("\n  9\n  and more>")


def test_every_job_is_listed_not_twenty_of_them(yard: Platform) -> None:
    yard.models.create("m", base_model="tabular-mini")
    row = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    made = [yard.training.sft("default/m", [row], idempotency_key=str(number)).id for number in range(25)]
    assert [job.id for job in yard.jobs.list()] == [job.id for job in yard.training.list()] == made
    assert len(yard.jobs.list().page().items) == 20


@pytest.mark.parts
def test_every_listing_is_one_kind_of_thing(yard: Platform) -> None:
    model = yard.models.create("m", base_model="tabular-mini")
    job = yard.training.sft(
        model, [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}]
    )
    yard.models.promote(model, job.result().step)
    yard.models.log_trajectories(model, [])
    yard.chat.complete(model="echo", messages="hi", store=True)
    yard.keys.create()
    listings = (
        yard.catalogue.list(),
        yard.chat.list(),
        yard.keys.list(),
        yard.usage.list(),
        yard.jobs.list(),
        yard.training.list(),
        yard.training.events(job.id),
        yard.models.list(),
        yard.models.trainable(),
        yard.models.checkpoints(model),
        yard.models.aliases(model),
        yard.models.promotions(model),
        yard.models.trajectory_logs(model),
        yard.base_models(),
    )
    for listing in listings:
        assert isinstance(listing, Listing)
        items = list(listing)
        assert tuple(items) == listing.page(1000).items
        assert bool(items) is bool(listing)
        for number, item in enumerate(items):
            name = item if isinstance(item, str) else getattr(item, "id", None) or item.name
            assert listing.page(1000, after=name).items == tuple(items[number + 1 :])
    assert [*map(bool, listings)] == [True] * 13 + [False]


def test_a_page_of_invalid_size_or_after_an_unknown_cursor_is_refused(yard: Platform) -> None:
    for listing in (yard.jobs.list(), yard.keys.list(), yard.usage.list(), yard.chat.list()):
        with pytest.raises(InvalidInput):
            listing.page(0)
        with pytest.raises(NotFound):
            listing.page(after="nothing")


def test_what_the_caller_may_not_see_is_refused_before_anything_is_read(yard: Platform) -> None:
    tenant = yard.acting_as(yard.keys.authenticate(yard.keys.create("acme").secret))
    for listing in (tenant.jobs.list, tenant.models.list, tenant.keys.list, tenant.usage.list, tenant.chat.list):
        with pytest.raises(Forbidden):
            listing(entity="umbrella")


def test_a_place_is_read_and_a_length_is_refused_with_what_to_do() -> None:
    with open_platform(project="d") as platform:
        for name in "abc":
            platform.models.create(name, base_model="tabular-mini")
        models = platform.models.list()
        assert [models[0].name, models[2].name, *(one.name for one in list(models))] == ["a", "c", "a", "b", "c"]
        with pytest.raises(IndexError, match="no item 3"):
            models[3]
        for wrong in (-1, True, slice(2)):
            with pytest.raises(TypeError, match="whole number from 0"):
                models[wrong]
        with pytest.raises(TypeError, match=r"read it with list\(\.\.\.\)"):
            len(models)
