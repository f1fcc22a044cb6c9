"""How many examples a property is tried with: few in a plain run, many where new counterexamples are searched."""

from typing import Any

from hypothesis import settings

PLAIN = 50
"""The examples of a property that names no number, in a plain run."""


def examples(number: int, **others: Any) -> settings:
    """Return settings for `number` examples in a plain run, and for 20 times as many with the profile `search`."""
    return settings(max_examples=number * settings.default.max_examples // PLAIN, **others)
