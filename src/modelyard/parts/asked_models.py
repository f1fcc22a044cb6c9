"""Base models that a command names, and that this machine has: in the cache of a hub, or in a folder or file."""

import os
import re

import click

from modelyard.errors import MissingExtra, ModelNotFound
from modelyard.platform.platform import Platform

_OF_A_HUB = re.compile(r"[\w-][\w.-]*/[\w.-]+", re.ASCII)


def offer_named(platform: Platform, model: str) -> None:
    """Offer a model under the name by which it was asked for, unless the platform serves that; nothing is fetched.

    Without the part or the packages that would answer it, it stays unknown. Raises `NotFound` with what fetches it,
    `InvalidInput`.
    """
    if is_served(platform, model):
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


def is_served(platform: Platform, model: str) -> bool:
    """Return whether the name is that of a catalogue entry or of a trained model. Raises `Forbidden`."""
    try:
        platform.catalogue.resolve(model)
    except ModelNotFound:
        return False
    return True


def is_named_like_a_hub(model: str) -> bool:
    """Return whether a name has two parts and no version, and is not a path that begins here."""
    return bool(_OF_A_HUB.fullmatch(model)) and not os.path.lexists(model.partition("/")[0])
