"""Deliveries over real sockets, to receivers that misbehave, on a clock that is moved by hand."""

import json
import socket
import threading
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import attrs
import pytest

from modelyard import Platform, open_platform
from modelyard.domain.catalogue import Pricing
from modelyard.errors import Conflict, Forbidden, InvalidInput, NotFound
from modelyard.parts.webhooks import delivery
from modelyard.parts.webhooks.delivery import Deliveries, deliver_due
from modelyard.parts.webhooks.records import WebhookMessage
from modelyard.parts.webhooks.service import NewWebhook
from modelyard.parts.webhooks.signing import signature
from modelyard.parts.webhooks.target import Address
from modelyard.stores import RECORDS, MemoryStore
from modelyard.testing import DomainStore, ManualClock
from webhook_receiver import Receiver, answering, cut

ROWS = [{"prompt": "yes", "expected": "yes"}]


def waiting(platform: Platform) -> list[WebhookMessage]:
    return list(platform.webhooks.waiting())


def test_the_end_of_a_run_is_posted_and_signed(platform: Platform, receiver: Receiver, hook: NewWebhook) -> None:
    run = platform.evaluations.run("quiz", "echo", ROWS, project="p").run
    assert platform.webhooks.deliver() == Deliveries(delivered=2)
    bodies = {body["type"]: body for body in (json.loads(one.body) for one in receiver.received)}
    assert bodies.keys() == {"run.ended", "job.ended"}
    assert bodies["run.ended"]["data"]["id"] == run.id
    assert bodies["run.ended"]["data"]["state"] == "completed"
    assert datetime.fromisoformat(bodies["run.ended"]["timestamp"]) == platform.clock.now()
    one = receiver.received[0]
    sent_at = int(one.headers["webhook-timestamp"])
    assert sent_at == int(platform.clock.now().timestamp())
    assert one.headers["webhook-signature"] == signature(hook.secret, one.headers["webhook-id"], sent_at, one.body)
    assert one.headers["host"] == f"127.0.0.1:{receiver.port}"
    assert one.headers["content-type"] == "application/json"
    assert waiting(platform) == []


def test_an_endpoint_gets_the_events_that_it_wants(platform: Platform, receiver: Receiver) -> None:
    platform.webhooks.add(receiver.url, events=["run.ended"], trusted=True)
    platform.webhooks.add(receiver.url, events=["alias.moved"], trusted=True)
    platform.webhooks.add(receiver.url, trusted=True, entity="another")
    platform.evaluations.run("quiz", "echo", ROWS, project="p")
    platform.webhooks.deliver()
    assert [json.loads(one.body)["type"] for one in receiver.received] == ["run.ended"]


def redirected(receiver: Receiver) -> Callable[[BaseHTTPRequestHandler], None]:
    return answering(302, ("location", f"http://127.0.0.1:{receiver.port}/elsewhere"))


FAULTS: dict[str, tuple[Callable[[Receiver], Callable[[BaseHTTPRequestHandler], None]], str]] = {
    "an error": (lambda _: answering(500), "answered 500"),
    "a refusal": (lambda _: answering(404), "answered 404"),
    "a redirect": (redirected, "answered 302"),
    "a reset": (lambda _: cut, "could not be reached"),
    "nonsense": (lambda _: lambda handler: handler.wfile.write(b"not http\r\n\r\n") and None, "could not be reached"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_fails_is_tried_again_later_and_later(
    fault: str, platform: Platform, clock: ManualClock, receiver: Receiver, hook: NewWebhook
) -> None:
    make, problem = FAULTS[fault]
    receiver.answer = make(receiver)
    message = platform.webhooks.test(hook.endpoint.id)
    pauses = []
    for attempt in range(1, delivery.MAX_ATTEMPTS):
        assert platform.webhooks.deliver() == Deliveries(failed=1)
        (found,) = waiting(platform)
        assert (found.id, found.attempts) == (message.id, attempt)
        assert problem in found.problem
        pauses.append((found.due_at - clock.now()).total_seconds())
        assert platform.webhooks.deliver() == Deliveries(), "it is not due"
        clock.advance(pauses[-1])
    assert pauses[:4] == [2.5, 10, 40, 160], "randomness of zeros: half of the pause"
    assert max(pauses) == delivery.LONGEST_PAUSE / 2
    assert platform.webhooks.deliver() == Deliveries(dead=1)
    assert waiting(platform) == []
    assert [one.id for one in platform.webhooks.dead()] == [message.id]
    assert len(receiver.received) == delivery.MAX_ATTEMPTS
    assert {one.path for one in receiver.received} == {"/hook"}, "no redirect is followed"
    assert len({one.body for one in receiver.received}) == 1
    assert {one.headers["webhook-id"] for one in receiver.received} == {message.id}

    receiver.answer = answering(200)
    platform.webhooks.redeliver(message.id)
    assert platform.webhooks.deliver() == Deliveries(delivered=1)
    assert [*platform.webhooks.dead()] == []


def test_dead_messages_are_kept_for_a_while(
    platform: Platform, clock: ManualClock, receiver: Receiver, hook: NewWebhook
) -> None:
    receiver.answer = answering(410)
    messages = []
    for days in (29, 1, 1):
        messages.append(platform.webhooks.test(hook.endpoint.id).id)
        assert platform.webhooks.deliver() == Deliveries(dead=1)
        clock.advance(days=days)
    assert [one.id for one in platform.webhooks.dead()] == messages[1:]


def test_a_budget_that_warns_stays_with_its_entity(receiver: Receiver) -> None:
    """A completion's booking declares that it does, and a store may run those of other entities at once."""
    with open_platform(store=DomainStore(MemoryStore(RECORDS), RECORDS), clock=ManualClock()) as platform:
        platform.webhooks.add(receiver.url, trusted=True)
        platform.catalogue.register(attrs.evolve(platform.catalogue.get("echo"), pricing=Pricing(request=Decimal(1))))
        platform.usage.set_budget(4, warn_at="0.5")
        for _ in range(3):
            platform.chat.complete(model="echo", messages="hello")
        assert platform.webhooks.deliver() == Deliveries(delivered=1)
    body = json.loads(receiver.received[0].body)
    assert (body["type"], body["data"]["spent"], body["data"]["limit"]) == ("budget.warned", "2", "4")


def test_an_endpoint_that_is_gone_is_disabled_until_it_is_tried(
    platform: Platform, receiver: Receiver, hook: NewWebhook
) -> None:
    receiver.answer = answering(410)
    platform.webhooks.test(hook.endpoint.id)
    assert platform.webhooks.deliver() == Deliveries(dead=1)
    assert platform.webhooks.get(hook.endpoint.id).disabled
    platform.evaluations.run("quiz", "echo", ROWS, project="p")
    assert waiting(platform) == []
    receiver.answer = answering(200)
    platform.webhooks.test(hook.endpoint.id)
    assert platform.webhooks.deliver() == Deliveries(delivered=1)
    assert not platform.webhooks.get(hook.endpoint.id).disabled


def test_for_a_while_both_secrets_sign(
    platform: Platform, clock: ManualClock, receiver: Receiver, hook: NewWebhook
) -> None:
    made = platform.webhooks.rotate(hook.endpoint.id, hours=1)
    platform.webhooks.test(hook.endpoint.id)
    platform.webhooks.deliver()
    clock.advance(hours=1)
    platform.webhooks.test(hook.endpoint.id)
    platform.webhooks.deliver()
    for one, secrets in zip(receiver.received, ([made.secret, hook.secret], [made.secret]), strict=True):
        asked = one.headers["webhook-id"], int(one.headers["webhook-timestamp"]), one.body
        assert one.headers["webhook-signature"] == " ".join(signature(secret, *asked) for secret in secrets)


# ---- at least once --------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process dies here."""


def test_what_was_committed_is_delivered_by_the_next_process(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    with open_platform(tmp_path / "yard.db", clock=clock) as platform:
        platform.webhooks.add(receiver.url, trusted=True)
        platform.evaluations.run("quiz", "echo", ROWS, project="p")

        def die(*_: object) -> None:
            raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(delivery.Post, "begin", die)
            with pytest.raises(Killed):
                platform.webhooks.deliver()
    with open_platform(tmp_path / "yard.db", clock=clock) as platform:
        assert platform.webhooks.deliver() == Deliveries(delivered=1), "the other has a lease still"
        clock.advance(delivery.LEASE.total_seconds())
        assert platform.webhooks.deliver() == Deliveries(delivered=1)
    assert len(receiver.received) == 2


def test_what_was_undone_is_not_posted(platform: Platform, receiver: Receiver, hook: NewWebhook) -> None:
    run = platform.evaluations.submit("quiz", "echo", ROWS, project="p")
    store = platform._runtime.store

    def undone(tx: object) -> None:
        platform._runtime.tell(tx, platform.evaluations.runs.get(run.id))  # type: ignore[arg-type]
        raise Conflict("undone")

    with pytest.raises((Conflict, RuntimeError)):
        store.transact(undone)
    assert platform.webhooks.deliver() == Deliveries()


def test_two_deliverers_post_a_message_once(tmp_path: Path, receiver: Receiver) -> None:
    clock, both = ManualClock(), threading.Barrier(2)
    with (
        open_platform(tmp_path / "yard.db", clock=clock) as one,
        open_platform(tmp_path / "yard.db", clock=clock) as two,
    ):
        hook = one.webhooks.add(receiver.url, trusted=True)
        ids = {one.webhooks.test(hook.endpoint.id).id for _ in range(10)}
        found: list[Deliveries] = []

        def work(platform: Platform) -> None:
            both.wait(60)
            found.append(platform.webhooks.deliver())

        threads = [threading.Thread(target=work, args=[platform]) for platform in (one, two)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(deliveries.delivered for deliveries in found) == 10
    assert sorted(received.headers["webhook-id"] for received in receiver.received) == sorted(ids)


# ---- where it may lead ----------------------------------------------------------------------------------------------


def test_an_untrusted_endpoint_does_not_reach_the_hosts_network(platform: Platform, receiver: Receiver) -> None:
    hook = platform.webhooks.add("https://hooks.example/x")
    asked: list[tuple[str, int]] = []

    def here(host: str, port: int) -> list[Address]:
        asked.append((host, port))
        return [(socket.AF_INET, ("127.0.0.1", receiver.port))]

    platform.webhooks.test(hook.endpoint.id)
    assert deliver_due(platform._runtime, here) == Deliveries(failed=1)
    assert asked == [("hooks.example", 443)], "the name is looked up once"
    assert "not public" in waiting(platform)[0].problem
    assert receiver.received == []


def test_the_connection_goes_where_the_name_was_resolved_to(platform: Platform, receiver: Receiver) -> None:
    hook = platform.webhooks.add(f"http://hooks.example:{receiver.port}/hook", trusted=True)
    platform.webhooks.test(hook.endpoint.id)
    here: list[Address] = [(socket.AF_INET, ("127.0.0.1", receiver.port))]
    assert deliver_due(platform._runtime, lambda *_: here) == Deliveries(delivered=1)
    assert receiver.received[0].headers["host"] == f"hooks.example:{receiver.port}"


# ---- who may do what ------------------------------------------------------------------------------------------------


def test_only_the_host_may_trust_an_endpoint_and_deliver(platform: Platform) -> None:
    key = platform.keys.create("acme").key
    tenant = platform.acting_as(key.principal())
    tenant.webhooks.add("https://example.org/hook")
    with pytest.raises(Forbidden):
        tenant.webhooks.add("https://example.org/hook", trusted=True)
    with pytest.raises(InvalidInput):
        tenant.webhooks.add("http://example.org/hook")
    with pytest.raises(Forbidden):
        tenant.webhooks.deliver()


def test_a_key_of_some_projects_has_no_webhooks(platform: Platform) -> None:
    made = platform.webhooks.add("https://example.org/hook", entity="acme")
    tenant = platform.acting_as(platform.keys.create("acme", ["one"]).key.principal())
    with pytest.raises(Forbidden, match="all"):
        tenant.webhooks.add("https://example.org/hook")
    assert [*tenant.webhooks.list()] == []
    with pytest.raises(NotFound):
        tenant.webhooks.get(made.endpoint.id)


def test_an_entity_has_a_bounded_number(platform: Platform) -> None:
    for _ in range(20):
        platform.webhooks.add("https://example.org/hook")
    with pytest.raises(Conflict, match="20"):
        platform.webhooks.add("https://example.org/hook")


@pytest.mark.parametrize("events", [["job.begun"], "job.ended", [""]])
def test_unknown_events_are_refused(platform: Platform, events: list[str]) -> None:
    with pytest.raises(InvalidInput, match=r"job\.ended"):
        platform.webhooks.add("https://example.org/hook", events=events)


def test_a_move_of_the_alias_of_a_variant_is_posted_once(platform: Platform, receiver: Receiver) -> None:
    platform.webhooks.add(receiver.url, events=["alias.moved"], trusted=True)
    variant = platform.variants.publish("desk/support", model="echo", system="Be brief.").variant_id
    platform.variants.promote("desk/support", 1)
    platform.variants.promote("desk/support", 1)
    platform.variants.publish("desk/support", model="echo", system="Be kind.")
    rollout = platform.models.roll_out("variants/desk/support", 2)
    platform.variants.promote("desk/support", 2)
    platform.variants.rollback("desk/support")
    platform.webhooks.deliver()
    sent = sorted((json.loads(one.body)["data"] for one in receiver.received), key=lambda one: one["id"])
    assert [(one["change"], one["before"], one["number"]) for one in sent] == [
        ("promoted", None, 1),
        ("promoted", 1, 2),
        ("rolled_back", 2, 1),
    ]
    assert {(one["variant_id"], one["alias"], one["project"], one["by"]) for one in sent} == {
        (variant, "prod", "desk", "host")
    }
    assert platform.rollouts.get(rollout.id).state.ended
