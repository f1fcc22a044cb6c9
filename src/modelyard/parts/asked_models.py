"""Base models that a command names, and that this machine has: in the cache of a hub, or in a folder or file."""

import click

from modelyard.errors import MissingExtra
from modelyard.platform.platform import Platform


def offer_named(platform: Platform, model: str) -> None:
    """Offer a model under the name by which it was asked for, unless it is offered; nothing is fetched.

    Without the part or the packages that would answer it, it stays unknown. Raises `NotFound` with what fetches it,
    `InvalidInput`.
    """
    if any(entry.id == model for entry in platform.catalogue.list()):
        return
    add = getattr(platform, "add_base_model", None)
    if add is None:
        return
    try:
        entry = add(model, id=model, local_only=True)
    except MissingExtra as missing:
        if missing.package in ("torch", "transformers"):
            return
        raise
    source = next((one.source for one in platform.base_models() if one.id == entry.id), {})
    if "revision" in source:
        click.echo(f"{model} is at commit {source['revision']}, from the cache of {source['endpoint']}", err=True)


def is_named_like_a_hub(model: str) -> bool:
    """Return whether a name has two parts, which no name of a trained model has."""
    return model.count("/") == 1 and all(model.split("/"))
