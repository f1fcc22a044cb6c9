"""Commands that manage the API keys of a store."""

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import click

from modelyard.cli.lazy_group import Group
from modelyard.cli.terminal import StoreName, json_option, opened, show, store_option
from modelyard.domain.identity import ApiKey
from modelyard.platform.platform import Platform


@click.group(cls=Group)
def keys() -> None:
    """Manage API keys."""


@keys.command("create")
@store_option
@click.option("--entity", required=True, help="The entity that the key belongs to.")
@click.option(
    "--project", "projects", multiple=True, help="A project that it may use; repeat for more; none means all."
)
@click.option("--name", default="", help="A word to recognise it by.")
@click.option("--days", type=click.IntRange(1), help="Days until it expires.")
@click.option("--host", is_flag=True, help="A key of the host itself: metrics, keys and budgets of every entity.")
@click.option("--requests-per-minute", type=int, help="How many requests it may make in a minute.")
@click.option("--concurrent-requests", type=int, help="How many requests it may run at once.")
@click.option(
    "--prefix",
    default="my_",
    show_default=True,
    help="How the key begins, for clients that require it (Tinker's: tml-).",
)
@json_option
def create_key(
    store: StoreName,
    entity: str,
    projects: Sequence[str],
    name: str,
    days: int | None,
    host: bool,
    prefix: str,
    as_json: bool,
    **limits: int | None,
) -> None:
    """Create a key and show it once."""
    with opened(store, must_exist=False) as platform:
        expires = timedelta(days=days) if days else None
        more: Any = {"expires_in": expires, "host": host, "prefix": prefix, **limits}
        made = platform.keys.create(entity, projects or None, name=name, **more)
    click.echo(json.dumps({"key": made.secret, "id": made.key.id}) if as_json else made.secret)
    if not as_json:
        click.echo("Keep it now: it is stored as a digest and cannot be shown again.", err=True)


@keys.command("list")
@store_option
@json_option
def list_keys(store: StoreName, as_json: bool) -> None:
    """List keys without their secrets."""
    with opened(store) as platform:
        rows = [_key_row(key) for key in platform.keys.list()]
    dates, limits = ("created", "expires", "revoked"), ("requests_per_minute", "concurrent_requests")
    show(as_json, ("id", "prefix", "name", "entity", "projects", "host", *dates, *limits), rows)


def _key_row(key: ApiKey) -> tuple[Any, ...]:
    projects = ",".join(key.projects) or "all"
    shown = key.id, key.prefix, key.name, key.entity, projects, key.host, key.created_at, key.expires_at, key.revoked_at
    return *shown, key.requests_per_minute, key.concurrent_requests


@keys.command("revoke")
@store_option
@click.argument("key")
def revoke_key(store: StoreName, key: str) -> object:
    """Revoke KEY: its id, its name or how its secret begins. Requests with it are refused within a second."""
    with opened(store) as platform:
        found = platform.keys.revoke(key_named(platform, key).id)
    click.echo(f"revoked {found.prefix}… of {found.entity}")
    return {"id": found.id, "entity": found.entity, "prefix": found.prefix, "revoked": found.revoked_at}


def key_named(platform: Platform, text: str) -> ApiKey:
    found = [key for key in platform.keys.list() if text in (key.id, key.prefix, key.name)]
    alive = [key for key in found if key.revoked_at is None] or found
    if len(alive) != 1:
        many = f"{len(alive)} keys have" if alive else "no key has"
        raise click.ClickException(f"{many} the id, the name or the beginning {text}; modelyard keys list shows all")
    return alive[0]
