"""What commands say of an entity of which nothing is stored: it is made by its first use, so a misspelt one is new."""

from itertools import islice

import click

from modelyard.errors import nearest
from modelyard.platform.platform import Platform

MOST = 10_000
"""How many keys are looked at."""


def say_if_unknown(platform: Platform, entity: str) -> None:
    """Write a line to standard error if no key, model or usage is of this entity, with the nearest that has some."""
    known = {key.entity for key in islice(platform.keys.list(), MOST)}
    known |= {sums.entity for sums in platform.usage.total(by=("entity",)) if sums.entity}
    known |= {model.entity for model in islice(platform.models.list(), MOST)}
    if known and entity not in known:
        click.echo(f"note: no key, model or usage is of {entity!r}{nearest(entity, known) or ' yet'}", err=True)
