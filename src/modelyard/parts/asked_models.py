"""Base models that a command names, and that this machine has: in the cache of a hub, or in a folder or file."""

import os
import re

import click

from modelyard.errors import MissingExtra, ModelNotFound, NotFound
from modelyard.platform.platform import Platform
from modelyard.report.table import printable

_OF_A_HUB = re.compile(r"[\w-][\w.-]*/[\w.-]+", re.ASCII)
_ID = re.compile(r"[A-Za-z0-9][\w.@:+/-]{0,254}", re.ASCII)


def offer_named(platform: Platform, model: str) -> None:
    """Offer a model under the name by which it was asked for, unless the platform serves that; nothing is fetched.

    What is in a path that can be no id, such as ./model, has the name of its folder, which is said. Without the part or
    the packages that would answer it, it stays unknown. Raises `NotFound` with what fetches it, `InvalidInput`.
    """
    if is_served(platform, model):
        return
    add = getattr(platform, "add_base_model", None)
    if add is None:
        return
    try:
        entry = add(model, id=model if _ID.fullmatch(model) else None, local_only=True)
    except MissingExtra as missing:
        if missing.package in ("torch", "transformers"):
            return
        raise
    source = next((one.source for one in platform.base_models() if one.id == entry.id), {})
    if "revision" in source:
        click.echo(f"{model} is at commit {source['revision']}, from the cache of {source['endpoint']}", err=True)
    if entry.id != model:
        click.echo(f"{printable(model)} is served as {entry.id}", err=True)


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


def refuse_path(platform: Platform, model: str) -> None:
    """Raise `NotFound` for the path of a folder or file that is here, unless a model has this name."""
    if os.path.lexists(model) and not is_served(platform, model):
        raise NotFound("Model", model, f"it is a path; offer it first: modelyard base-models add {model}")
