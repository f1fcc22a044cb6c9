"""How many examples a property is tried with: some in a plain run, many where new counterexamples are searched."""

from typing import Any

from hypothesis import settings

PLAIN = 50
"""The examples of a property that names no number, in a plain run."""


def examples(number: int, **others: Any) -> settings:
    """Return settings for `number` examples in a plain run; with another profile, for more or fewer in proportion."""
    return settings(max_examples=max(1, number * settings.default.max_examples // PLAIN), **others)
