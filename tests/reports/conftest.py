"""A server on loopback that answers with given bytes."""

from canned_answers import canned  # noqa: F401 - a fixture
