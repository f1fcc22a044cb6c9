"""Servers on loopback for the backend that asks servers."""

from canned_answers import canned  # noqa: F401 - a fixture
