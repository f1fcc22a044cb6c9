"""Budgets administered over HTTP by a key of the host."""

from typing import Any

import attrs
import pytest

from http_client import Client, client_of
from modelyard import open_platform
from modelyard.domain.catalogue import Pricing

BUDGETS = "/v1/admin/budgets"


@pytest.fixture
def host() -> Any:
    """A client with a key of the host."""
    with open_platform() as platform:
        echo = platform.catalogue.get("echo")
        platform.catalogue.register(attrs.evolve(echo, pricing=Pricing(request="0.75")))
        client = client_of(platform)
        client.key = platform.keys.create("ops", host=True).secret
        yield client


def test_a_budget_is_set_holds_is_shown_listed_and_removed(host: Client) -> None:
    tenant = host.platform.keys.create("acme")
    made = host.ok("PUT", f"{BUDGETS}/acme", {"limit": "1.00", "period": "month", "warn_at": "0.5"})
    assert (made["limit"], made["spent"], made["period"], made["alarming"]) == ("1.00", "0", "month", False)
    assert host.chat(key=tenant.secret).status == 200
    assert host.chat(key=tenant.secret).status == 402
    shown = host.ok("GET", f"{BUDGETS}/acme")
    assert (shown["spent"], shown["remaining"], shown["alarming"]) == ("0.75", "0.25", True)
    assert host.ok("GET", BUDGETS)["data"] == [shown]
    assert host.ok("DELETE", f"{BUDGETS}/acme") == {"id": "acme", "deleted": True}
    assert host.send("GET", f"{BUDGETS}/acme").status == 404
    assert host.chat(key=tenant.secret).status == 200


def test_a_key_has_a_budget_of_its_own(host: Client) -> None:
    key = host.platform.keys.create("acme").key.id
    made = host.ok("PUT", f"{BUDGETS}/acme", {"limit": "1"}, query={"key_id": key})
    assert (made["entity"], made["key_id"]) == ("acme", key)
    assert host.send("GET", f"{BUDGETS}/acme").status == 404
    assert host.ok("GET", BUDGETS, query={"entity": "acme"})["data"] == [made]
    assert host.send("PUT", f"{BUDGETS}/acme", {"limit": "1"}, query={"key_id": "other"}).status == 404


def test_a_project_has_a_budget_of_its_own(host: Client) -> None:
    tenant, other = (host.platform.keys.create("acme", [project]).secret for project in ("support", "sales"))
    made = host.ok("PUT", f"{BUDGETS}/acme", {"limit": "1"}, query={"project": "support"})
    assert (made["entity"], made["key_id"], made["project"]) == ("acme", None, "support")
    assert [host.chat(key=tenant).status, host.chat(key=tenant).status, host.chat(key=other).status] == [200, 402, 200]
    assert host.ok("GET", f"{BUDGETS}/acme", query={"project": "support"})["spent"] == "0.75"
    both = host.send("PUT", f"{BUDGETS}/acme", {"limit": "1"}, query={"project": "support", "key_id": "k"}, check=False)
    assert (both.status, both.locs) == (422, [["query", "project"]])
    assert host.ok("DELETE", f"{BUDGETS}/acme", query={"project": "support"})["deleted"]
    assert host.chat(key=tenant).status == 200


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        ({"limit": "much"}, ["body", "limit"]),
        ({"limit": "1", "warn_at": "2"}, ["body", "warn_at"]),
        ({"limit": "1", "period": "week"}, ["body", "period"]),
    ],
)
def test_what_is_wrong_is_named(host: Client, body: Any, loc: list[str]) -> None:
    answer = host.send("PUT", f"{BUDGETS}/acme", body, check=False)
    assert (answer.status, answer.locs) == (422, [loc])


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", BUDGETS), ("GET", f"{BUDGETS}/acme"), ("PUT", f"{BUDGETS}/acme"), ("DELETE", f"{BUDGETS}/acme")],
)
def test_a_tenant_is_refused_also_for_its_own(host: Client, method: str, path: str) -> None:
    tenant = host.platform.keys.create("acme").secret
    assert host.send(method, path, {"limit": "9"} if method == "PUT" else None, key=tenant).status == 403


@pytest.mark.parametrize("misspelt", ["perod", "warn_a"])
def test_a_budget_with_a_misspelt_member_is_refused_and_the_one_before_stays(host: Client, misspelt: str) -> None:
    made = host.ok("PUT", f"{BUDGETS}/acme", {"limit": "1.00"})
    answer = host.send("PUT", f"{BUDGETS}/acme", {"limit": "9", misspelt: "month"}, check=False)
    assert (answer.status, answer.locs) == (422, [["body", misspelt]])
    assert host.ok("GET", f"{BUDGETS}/acme") == made
