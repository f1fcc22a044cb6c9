"""The commands of router listings: prices that depend on the request, and what routers are told."""

import json
from collections.abc import Mapping
from typing import Any

import click

from modelyard.cli.lazy_group import Group
from modelyard.cli.terminal import StoreName, in_own_name, json_option, names_once, opened, show_fields, store_option
from modelyard.parts.routers.records import CAPACITY, RouterListing
from modelyard.parts.routers.service import Routers


def _rule(text: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text, parse_float=str, parse_int=int)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise click.BadParameter(f'{text[:100]!r} is not like {{"from_prompt_tokens": 200001, "prompt": "0.000004"}}')
    return found


def _amount(text: str) -> tuple[str, int]:
    name, _, most = text.partition("=")
    if not most.isascii() or not most.isdigit() or len(most) > 16:
        raise click.BadParameter(f"{text[:100]!r} is not like requests_per_minute=600")
    return name, int(most)


_CAPACITY: Any = {"multiple": True, "type": _amount, "callback": names_once, "metavar": "NAME=N"}


@click.group(cls=Group)
def routers() -> None:
    """Set prices that depend on the request."""


@routers.command("set")
@store_option
@click.argument("model")
@click.option("--rule", "rules", multiple=True, type=_rule, metavar="JSON", help="Other prices; repeat it for more.")
@click.option("--not-ready", is_flag=True, help="Tell routers to send nothing yet.")
@click.option("--capacity", help=f"What it takes: {', '.join(CAPACITY)}.", **_CAPACITY)
def set_router_listing(
    store: StoreName,
    model: str,
    rules: tuple[Mapping[str, Any], ...],
    not_ready: bool,
    capacity: tuple[tuple[str, int], ...],
) -> Mapping[str, Any]:
    """Replace the price rules of MODEL and what routers are told of it."""
    with opened(store) as platform:
        of = in_own_name(platform).part(Routers)
        made = of.set(model, rules, is_ready=not not_ready, capacity=dict(capacity))
    _show(made, as_json=False)
    return _whole(made)


@routers.command("show")
@store_option
@click.argument("model")
@json_option
def show_router_listing(store: StoreName, model: str, as_json: bool) -> None:
    """Show the price rules of MODEL and what routers are told of it."""
    with opened(store) as platform:
        _show(platform.part(Routers).get(platform.catalogue.get(model).id), as_json)


def _show(found: RouterListing, as_json: bool) -> None:
    whole = _whole(found)
    plain = {**whole, "rules": "; ".join(map(json.dumps, whole["rules"])), "capacity": json.dumps(whole["capacity"])}
    show_fields((whole if as_json else plain).items(), as_json)


def _whole(found: RouterListing) -> dict[str, Any]:
    rules = [dict(rule.as_data()) for rule in found.rules]
    return {"model": found.id, "is_ready": found.is_ready, "rules": rules, "capacity": dict(found.capacity)}


@routers.command("remove")
@store_option
@click.argument("model")
def remove_router_listing(store: StoreName, model: str) -> Mapping[str, Any]:
    """Let MODEL have the prices of its entry again."""
    with opened(store) as platform:
        in_own_name(platform).part(Routers).remove(model)
    return {"removed": model}
