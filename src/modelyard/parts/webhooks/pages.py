"""A page about webhooks and the messages that could not be delivered."""

from itertools import islice

from modelyard.parts.dashboard.view import HtmlPage, Redirect, View, empty, name_text, short_id, when
from modelyard.parts.reports.html import Html, chip, joined, section, table, tag
from modelyard.parts.webhooks.records import WebhookEndpoint, WebhookMessage
from modelyard.parts.webhooks.service import Webhooks

SHOWN = 200


def has_webhook(view: View) -> bool:
    return next(iter(view.platform.part(Webhooks).list()), None) is not None


def listed(view: View) -> HtmlPage:
    webhooks = view.platform.part(Webhooks)
    endpoints = [_endpoint(one) for one in islice(webhooks.list(), SHOWN)]
    dead = [_message(view, one) for one in islice(webhooks.dead(), SHOWN)]
    columns = [("address", ""), ("events", "choice")]
    columns += [(name, "brief") for name in ("entity", "state", "made", "id")]
    of_dead = [(name, "") for name in ("event", "attempts", "problem", "made", "id", "")]
    nothing = empty("No webhook yet.", "modelyard webhooks add https://example.org/hook --entity NAME")
    shown = table(columns, endpoints) if endpoints else nothing
    undelivered = section("Could not be delivered", table(of_dead, dead)) if dead else Html("")
    lead = "Addresses that are told of what happens, and the messages that did not reach them."
    return HtmlPage("Webhooks", joined([shown, undelivered]), lead=lead)


def _endpoint(one: WebhookEndpoint) -> tuple[object, ...]:
    state = chip("disabled", "worse") if one.disabled else chip("in force", "better")
    events = ", ".join(one.events) or "all"
    place = name_text(one.entity), state, when(one.created_at), short_id(one.id)
    return tag("code", one.url), events, *place


def _message(view: View, one: WebhookMessage) -> tuple[object, ...]:
    again = view.action("Redeliver", "webhooks", one.id, "redeliver")
    return one.type, one.attempts, one.problem, when(one.created_at), short_id(one.id), again


def redeliver(view: View) -> Redirect:
    view.platform.part(Webhooks).redeliver(view.params["message"])
    return Redirect(view.url("webhooks"))
