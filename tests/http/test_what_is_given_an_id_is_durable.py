"""Whatever a client was given an id for is on the disk before: a call of every operation, stored answers each way."""

from collections.abc import Iterator
from typing import Any

import pytest

import openapi_calls
from http_client import client_of
from modelyard import open_platform
from modelyard.domain.schema import records_of
from modelyard.part import standard_parts
from modelyard.platform.runtime import Settings
from modelyard.stores import MemoryStore
from noting_store import NotingStore

MAY_BE_LOST = {
    "Admission": "a reservation ends with its process",
    "EpisodeTurn": "a turn reaches the disk with its row of usage, or both are lost",
    "LedgerEntry": "rows of usage reach the disk within a second",
    "ProcessRecord": "a sign of life",
    "RolloutAnswer": "the arm of an answer reaches the disk with its row of usage, or both are lost",
    "Sample": "a sample is lost with its process",
    "SlowAnswer": "a note of a row of usage, kept within a second as that is",
    "UsageTotal": "a sum of rows of usage",
    "WorkerProcess": "a sign of life",
    "WorkerRecord": "a sign of life",
}
"""Records that a loss of power may take, by the docs."""


@pytest.fixture
def store() -> Iterator[NotingStore]:
    store = NotingStore(MemoryStore(records_of(standard_parts())))
    yield store
    store.close()


def lost(store: NotingStore) -> set[str]:
    kept = {(type(record), getattr(record, "id", None)) for record in store.added[True]}  # a job is added again
    loose = [record for record in store.added[False] if (type(record), getattr(record, "id", None)) not in kept]
    return {type(record).__name__ for record in loose} - MAY_BE_LOST.keys()


@pytest.mark.slow
def test_a_host_that_bills_by_the_ledger_has_each_row_on_the_disk(
    store: NotingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(durable_usage=True)
    monkeypatch.setattr(
        openapi_calls, "open_platform", lambda **options: open_platform(store=store, settings=settings, **options)
    )
    openapi_calls.record()
    assert not {type(record).__name__ for record in store.added[False]} & {"LedgerEntry", "UsageTotal"}


@pytest.mark.slow
def test_no_operation_gives_an_id_that_a_loss_of_power_takes(
    store: NotingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openapi_calls, "open_platform", lambda **options: open_platform(store=store, **options))
    openapi_calls.record()
    assert lost(store) == set()
    assert len({type(record) for record in store.added[True]}) > 30


ANSWERS: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "store": True}, "StoredCompletion"),
    ("/v1/responses", {"input": "hi"}, "ModelResponse"),
]


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize("budget", [False, True])
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("path", "body", "kept"), ANSWERS)
def test_a_stored_answer_is_durable_however_it_is_answered(
    store: NotingStore, path: str, body: dict[str, Any], kept: str, streamed: bool, budget: bool, blocking: bool
) -> None:
    store.blocking = blocking
    with open_platform(store=store) as platform:
        if budget:
            platform.usage.set_budget(100)
        client = client_of(platform)
        for _ in range(2):  # the second is answered before its budget is asked
            assert client.send("POST", path, {"model": "echo", "stream": streamed, **body}).status == 200
    assert [type(record).__name__ for record in store.added[True]].count(kept) == 2
    assert lost(store) == set()


@pytest.mark.parametrize("durability", ["process", "none"])
@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize("streamed", [False, True])
def test_what_a_store_promises_less_than_is_left_to_the_store(
    store: NotingStore, monkeypatch: pytest.MonkeyPatch, streamed: bool, blocking: bool, durability: str
) -> None:
    """Its durable commits may still wait, as for a server whose disk is not synced."""
    monkeypatch.setattr(store, "durability", durability)
    store.blocking = blocking
    with open_platform(store=store) as platform:
        for path, body, kept in ANSWERS:
            sent = {"model": "echo", "stream": streamed, **body}
            assert client_of(platform).send("POST", path, sent).status == 200
            assert kept in {type(record).__name__ for record in store.added[True]}
    assert lost(store) == set()


@pytest.mark.parametrize("blocking", [False, True])
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("budget", [None, "1"])
def test_a_turn_of_an_episode_is_as_durable_as_its_row_of_usage(
    store: NotingStore, budget: str | None, streamed: bool, blocking: bool
) -> None:
    store.blocking = blocking
    with open_platform(store=store) as platform:
        platform.models.create("support", project="desk", entity="acme", base_model="tabular-mini")
        client = client_of(platform)
        owner = platform.acting_as(platform.keys.authenticate(client.key))
        (episode,) = owner.episodes.group("g", model="desk/support", size=1, budget=budget)
        sent = {"messages": [{"role": "user", "content": "hi"}], "stream": streamed, "max_tokens": 3}
        for model, body in (("any", {}), ("any", {"store": True}), ("echo", {})):
            path = "/v1/chat/completions"
            assert client.send("POST", path, {"model": model, **sent, **body}, key=episode.key).status == 200
        kept = {durable: [type(one).__name__ for one in store.added[durable]] for durable in (False, True)}
        assert [kept[durable].count("EpisodeTurn") for durable in (False, True)] == [2, 1]
        assert [kept[durable].count("LedgerEntry") for durable in (False, True)] == [2, 1]
        episode.reward(1)
    assert lost(store) == set()


def test_a_plain_completion_needs_no_disk(store: NotingStore) -> None:
    with open_platform(store=store) as platform:
        platform.chat.complete(model="echo", messages="hi")
        assert not store.added[True]
