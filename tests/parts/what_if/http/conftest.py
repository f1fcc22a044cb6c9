"""A platform and a client for each module, in both faces of the endpoint."""

from http_fixtures import client, client_for, platform  # noqa: F401 - fixtures
