"""Pages about jobs, models, runs, usage and keys, for people."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from modelyard.part import Part, Site

if TYPE_CHECKING:
    from modelyard.platform.platform import Platform


def _site(platform: "Platform") -> "Callable[..., Site]":
    from modelyard.parts.dashboard.app import Dashboard

    return Dashboard


PART = Part("dashboard", site=_site)
