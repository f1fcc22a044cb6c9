"""Whose message is posted next: a slow endpoint keeps no other one waiting, however much waits for it."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import attrs
import pytest

from modelyard import Platform
from modelyard.parts.webhooks import delivery, exchange
from modelyard.parts.webhooks.delivery import Deliveries, deliver_due
from modelyard.parts.webhooks.records import WebhookMessage
from modelyard.parts.webhooks.service import NewWebhook
from modelyard.protocols import Snapshot
from modelyard.testing import ManualClock
from polling import until
from webhook_receiver import Receiver, answering


@attrs.define
class Slow:
    """Answers what goes to /hook, and lets all else wait."""

    platform: Platform
    receiver: Receiver
    release: threading.Event = attrs.field(factory=threading.Event)
    found: list[Deliveries] = attrs.field(factory=list)

    def __call__(self, handler: BaseHTTPRequestHandler) -> None:
        if handler.path != "/hook":
            self.release.wait(100)
        answering(200)(handler)

    def endpoint(self, number: int = 0, entity: str = "slow") -> NewWebhook:
        url = self.receiver.url.replace("/hook", f"/slow/{number}")
        return self.platform.webhooks.add(url, trusted=True, entity=entity)

    def deliver(self) -> threading.Thread:
        thread = threading.Thread(target=lambda: self.found.append(self.platform.webhooks.deliver()))
        thread.start()
        return thread

    def paths(self) -> list[str]:
        return [one.path for one in self.receiver.received]


@pytest.fixture
def slow(platform: Platform, receiver: Receiver) -> Iterator[Slow]:
    slow = Slow(platform, receiver)
    receiver.answer = slow
    yield slow
    slow.release.set()


def test_an_endpoint_gets_all_of_its_messages_while_another_one_hangs(slow: Slow, hook: NewWebhook) -> None:
    hanging = slow.endpoint()
    for _ in range(3):
        slow.platform.webhooks.test(hanging.endpoint.id)
    for _ in range(20):
        slow.platform.webhooks.test(hook.endpoint.id)
    thread = slow.deliver()
    until(lambda: slow.paths().count("/hook") == 20)
    assert slow.paths().count("/slow/0") == 1, "one at a time"
    slow.release.set()
    thread.join()
    assert slow.found == [Deliveries(delivered=23)]


def test_endpoints_of_one_entity_do_not_take_all_places(slow: Slow, clock: ManualClock, hook: NewWebhook) -> None:
    for number in range(delivery.AT_ONCE + 1):
        slow.platform.webhooks.test(slow.endpoint(number).endpoint.id)
    clock.advance(1)
    slow.platform.webhooks.test(hook.endpoint.id)
    thread = slow.deliver()
    until(lambda: "/hook" in slow.paths())
    slow.release.set()
    thread.join()


def test_what_becomes_due_meanwhile_is_posted(slow: Slow, clock: ManualClock, hook: NewWebhook) -> None:
    slow.platform.webhooks.test(slow.endpoint().endpoint.id)
    thread = slow.deliver()
    until(lambda: slow.paths() == ["/slow/0"])
    slow.platform.webhooks.test(hook.endpoint.id)

    def posted() -> bool:
        clock.advance(delivery.GLANCE)  # again, until the thread waits for it
        return "/hook" in slow.paths()

    until(posted)
    slow.release.set()
    thread.join()


def test_what_is_not_answered_counts_for_all_that_waits_for_the_endpoint(slow: Slow, clock: ManualClock) -> None:
    """Else a thousand messages to an endpoint that hangs would take fifteen seconds each, again and again."""
    hanging = slow.endpoint().endpoint
    ids = [slow.platform.webhooks.test(hanging.id).id for _ in range(5)]
    for attempt in range(1, delivery.MAX_ATTEMPTS + 1):
        thread = slow.deliver()
        until(lambda attempt=attempt: len(slow.receiver.received) == attempt)  # type: ignore[misc]
        clock.advance(exchange.LONGEST)
        thread.join()
        found = [*slow.platform.webhooks.waiting(), *slow.platform.webhooks.dead()]
        assert {(one.id, one.attempts) for one in found} == {(id, attempt) for id in ids}
        clock.advance(hours=6)
    assert [one.id for one in slow.platform.webhooks.dead()] == ids


def test_a_refusal_is_of_its_message_alone(platform: Platform, receiver: Receiver, hook: NewWebhook) -> None:
    refused = [platform.webhooks.test(hook.endpoint.id).id]
    accepted = [platform.webhooks.test(hook.endpoint.id).id for _ in range(3)]
    receiver.answer = lambda handler: answering(500 if handler.headers["webhook-id"] in refused else 200)(handler)
    assert platform.webhooks.deliver() == Deliveries(delivered=3, failed=1)
    assert {one.headers["webhook-id"] for one in receiver.received} == {*refused, *accepted}


def test_what_has_been_due_the_longest_is_first(platform: Platform, clock: ManualClock, receiver: Receiver) -> None:
    """However many endpoints there are, and whichever ids they have."""
    entities = [f"e{number % 7}" for number in range(3 * delivery.AT_ONCE)]
    made = [platform.webhooks.add(receiver.url, trusted=True, entity=entity) for entity in entities]
    for one in reversed(made):
        platform.webhooks.test(one.endpoint.id)
        clock.advance(1)
    chosen = platform._runtime.store.read(lambda snapshot: delivery._chosen(platform._runtime, {}, snapshot))
    messages = sorted(platform.webhooks.waiting(), key=lambda one: one.due_at)
    assert [one.id for one in chosen] == [one.id for one in messages[: delivery.AT_ONCE]]


@pytest.mark.slow
def test_to_find_what_is_due_takes_no_look_at_what_waits_behind_it(platform: Platform, receiver: Receiver) -> None:
    hooks = [platform.webhooks.add(receiver.url, trusted=True) for _ in range(3)]
    for hook in hooks:
        for _ in range(50):
            platform.webhooks.test(hook.endpoint.id)
    read: list[WebhookMessage] = []

    @attrs.frozen
    class Counted:
        snapshot: Snapshot

        def page(self, cls: type[Any], *arguments: Any, **options: Any) -> list[Any]:
            found: list[Any] = self.snapshot.page(cls, *arguments, **options)
            read.extend(found)
            return found

    def chosen(snapshot: Snapshot) -> int:
        read.clear()  # a query may run again
        return len(delivery._chosen(platform._runtime, {}, Counted(snapshot)))  # type: ignore[arg-type]

    assert platform._runtime.store.read(chosen) == 3
    assert len(read) == 1 + 3
    assert deliver_due(platform._runtime) == Deliveries(delivered=150)


def test_to_redeliver_what_is_on_its_way_confuses_no_count(slow: Slow, clock: ManualClock) -> None:
    message = slow.platform.webhooks.test(slow.endpoint().endpoint.id)
    thread = slow.deliver()
    until(lambda: slow.receiver.received)
    assert slow.platform.webhooks.redeliver(message.id).attempts == 1
    slow.release.set()
    thread.join()
    assert [*slow.platform.webhooks.waiting()] == [], "it was delivered, whatever was asked for meanwhile"
