"""The commands of webhooks and of their deliveries."""

import click

from modelyard.cli.lazy_group import Group
from modelyard.cli.terminal import (
    StoreName,
    entity_option,
    json_option,
    noted_entity,
    opened,
    show,
    show_fields,
    show_values,
    store_option,
)
from modelyard.parts.webhooks.service import NewWebhook, Webhooks

ENDPOINT = ("id", "entity", "url", "events", "trusted", "disabled", "created_at")
MESSAGE = ("id", "endpoint_id", "type", "attempts", "problem", "created_at")


@click.group(cls=Group)
def webhooks() -> None:
    """Post events to an address, and look after them."""


def _show_new(made: NewWebhook, as_json: bool) -> None:
    if as_json:
        show_fields([("id", made.endpoint.id), ("secret", made.secret)], as_json=True)
        return
    click.echo(made.secret)
    click.echo(f"The secret of webhook {made.endpoint.id}. Keep it now: it is not shown again.", err=True)


@webhooks.command("add")
@store_option
@click.argument("url")
@click.option("--entity", required=True, callback=noted_entity, help="The entity whose events are posted.")
@click.option("--event", "events", multiple=True, help="Only events of this type; repeat for more.")
@click.option("--trusted", is_flag=True, help="It may be in this machine's own network, and without TLS.")
@json_option
def add_webhook(store: StoreName, url: str, entity: str, events: tuple[str, ...], trusted: bool, as_json: bool) -> None:
    """Post events to URL from now on, and show the secret that signs them."""
    with opened(store, must_exist=False) as platform:
        made = platform.part(Webhooks).add(url, events=events, trusted=trusted, entity=entity)
    _show_new(made, as_json)


@webhooks.command("list")
@store_option
@entity_option
@json_option
def list_webhooks(store: StoreName, entity: str | None, as_json: bool) -> None:
    """List webhooks without their secrets."""
    with opened(store) as platform:
        found = list(platform.part(Webhooks).list(entity=entity))
        values = [[getattr(one, column) for column in ENDPOINT] for one in found]
        if not as_json:
            values = [[_events_text(value) if isinstance(value, tuple) else value for value in row] for row in values]
        show(as_json, ENDPOINT, values)


def _events_text(events: tuple[str, ...]) -> str:
    return ", ".join(events) or "all"


@webhooks.command("remove")
@store_option
@click.argument("webhook")
def remove_webhook(store: StoreName, webhook: str) -> object:
    """Remove WEBHOOK, with the messages that wait for it."""
    with opened(store) as platform:
        gone = platform.part(Webhooks).remove(webhook)
    click.echo(f"removed {gone.id}")
    return {"id": gone.id, "entity": gone.entity, "url": gone.url}


@webhooks.command("rotate")
@store_option
@click.argument("webhook")
@click.option("--hours", default=24.0, show_default=True, help="How long the old secret signs, too.")
@json_option
def rotate_webhook(store: StoreName, webhook: str, hours: float, as_json: bool) -> None:
    """Make a new secret of WEBHOOK, and show it."""
    with opened(store) as platform:
        made = platform.part(Webhooks).rotate(webhook, hours=hours)
    _show_new(made, as_json)


@webhooks.command("test")
@store_option
@click.argument("webhook")
def test_webhook(store: StoreName, webhook: str) -> object:
    """Post a test message to WEBHOOK, with whatever else is due."""
    with opened(store) as platform:
        message = platform.part(Webhooks).test(webhook)
        platform.part(Webhooks).deliver()
        problem = next((one.problem for one in platform.part(Webhooks).waiting() if one.id == message.id), None)
    if problem is not None:
        raise click.ClickException(f"the message was not delivered: {problem or 'another process delivers it'}")
    click.echo(f"delivered {message.id}")
    return {"id": message.id, "type": message.type, "delivered": True}


@webhooks.command("alert")
@store_option
@click.argument("entity")
@click.option("--share", default=0.1, show_default=True, help="The part of the requests that must have failed.")
@click.option("--at-least", default=5, show_default=True, help="How many must have failed.")
def alert_of_failures(store: StoreName, entity: str, share: float, at_least: int) -> object:
    """Post requests.failed, once in five minutes, when so many requests of ENTITY have failed within them."""
    with opened(store) as platform:
        made = platform.part(Webhooks).alert_of_failures(share, at_least=at_least, entity=entity)
    click.echo(f"{entity} is told when {made.at_least} or more requests fail, and {made.share:.4g} of all")
    return made


@webhooks.command("dead")
@store_option
@entity_option
@json_option
def list_dead(store: StoreName, entity: str | None, as_json: bool) -> None:
    """List the messages that could not be delivered."""
    with opened(store) as platform:
        show_values(as_json, MESSAGE, list(platform.part(Webhooks).dead(entity=entity)))


@webhooks.command("redeliver")
@store_option
@click.argument("message")
def redeliver_message(store: StoreName, message: str) -> object:
    """Try MESSAGE again: a served platform or a worker delivers it."""
    with opened(store) as platform:
        found = platform.part(Webhooks).redeliver(message)
    click.echo(f"{found.id} is due")
    return {column: getattr(found, column) for column in MESSAGE}
