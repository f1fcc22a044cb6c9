"""A small yard: everything in memory, time moved by hand."""

from yard_fixtures import build, platform, undisturbed, yard, yard_on_disk  # noqa: F401 - fixtures
