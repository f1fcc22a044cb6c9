"""A platform on each store."""

from yard_fixtures import platform  # noqa: F401 - a fixture
