"""A clock that stands still, and faults on it."""

from clock_fixtures import clock, faults  # noqa: F401 - fixtures
