"""Keys administered over HTTP by a key of the host."""

from typing import Any

import pytest

from http_client import Client, client_of
from modelyard import open_platform

KEYS = "/v1/admin/keys"


@pytest.fixture
def host() -> Any:
    """A client with a key of the host."""
    with open_platform() as platform:
        client = client_of(platform)
        client.key = platform.keys.create("ops", host=True).secret
        yield client


def test_a_key_is_made_used_shown_listed_and_revoked(host: Client) -> None:
    made = host.ok("POST", KEYS, {"entity": "acme", "projects": ["support"], "name": "desk", "expires_in_days": 2})
    key = made["key"]
    assert (key["projects"], key["host"], key["revoked_at"]) == (["support"], False, None)
    assert made["secret"].startswith(key["prefix"])
    assert host.chat(key=made["secret"]).status == 200
    assert host.ok("GET", f"{KEYS}/{key['id']}") == key
    listed = host.ok("GET", KEYS, query={"entity": "acme"})
    assert key in listed["data"]
    assert host.ok("POST", f"{KEYS}/{key['id']}/revoke")["revoked_at"]
    assert host.platform.keys.get(key["id"]).revoked_at is not None


def test_a_key_begins_as_its_client_insists(host: Client) -> None:
    made = host.ok("POST", KEYS, {"entity": "acme", "prefix": "tml-"})
    assert made["secret"].startswith(made["key"]["prefix"])
    assert made["secret"].startswith("tml-")
    assert host.chat(key=made["secret"]).status == 200


def test_listing_pages_through_all(host: Client) -> None:
    seen, after = [], {}
    while True:
        page = host.ok("GET", KEYS, query={"limit": 1, **after})
        seen += [key["id"] for key in page["data"]]
        if not page["has_more"]:
            break
        after = {"after": page["last_id"]}
    assert seen == [key.id for key in host.platform.keys.list()]
    assert len(seen) == 2


def test_a_host_key_makes_a_host_key_and_sees_every_entity(host: Client) -> None:
    made = host.ok("POST", KEYS, {"entity": "ops", "host": True})
    assert made["key"]["host"]
    assert {key["entity"] for key in host.ok("GET", KEYS, key=made["secret"])["data"]} == {"acme", "ops"}


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        ({"entity": "a b"}, ["body", "entity"]),
        ({"entity": "acme", "projects": ["x"], "host": True}, ["body", "projects"]),
        ({"entity": "acme", "expires_in_days": 0}, ["body", "expires_in_days"]),
        ({"entity": "acme", "prefix": "-x"}, ["body", "prefix"]),
        ({"entity": "acme", "project": ["x"]}, ["body", "project"]),
        ({"entity": "acme", "expires_in_day": 1}, ["body", "expires_in_day"]),
        ({"entity": "acme", "prefix": "longer than 8"}, ["body", "prefix"]),
    ],
)
def test_what_is_wrong_is_named(host: Client, body: Any, loc: list[str]) -> None:
    answer = host.send("POST", KEYS, body, check=False)
    assert (answer.status, answer.locs) == (422, [loc])


@pytest.mark.parametrize(
    ("method", "path"), [("GET", KEYS), ("POST", KEYS), ("GET", f"{KEYS}/x"), ("POST", f"{KEYS}/x/revoke")]
)
def test_a_tenant_is_refused_whatever_it_asks(host: Client, method: str, path: str) -> None:
    tenant = host.platform.keys.create("acme").secret
    body = {"entity": "acme"} if (method, path) == ("POST", KEYS) else None
    answer = host.send(method, path, body, key=tenant)
    assert answer.status == 403
    assert "modelyard keys create --host" in answer.json["detail"]


def test_a_key_that_is_not_there(host: Client) -> None:
    assert host.send("GET", f"{KEYS}/nothing").status == 404
