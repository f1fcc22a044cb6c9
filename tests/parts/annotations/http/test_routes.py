"""Tags and notes over HTTP, with the key of a tenant."""

from collections.abc import Iterator

import pytest

from http_client import Client, client_of
from modelyard import open_platform

PATH = "/v1/annotations"


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """A client with a key of acme, which has the models bots/a and bots/b."""
    with open_platform() as platform:
        client = client_of(platform)
        for name in ("a", "b"):
            platform.models.create(name, project="bots", entity="acme", base_model="tabular-mini")
        yield client


def test_tags_and_notes_are_replaced_shown_and_listed_in_pages(client: Client) -> None:
    made = [client.ok("PUT", f"{PATH}/bots/{name}", {"tags": ["x", name], "note": "n"}) for name in ("a", "b")]
    assert [one["tags"] for one in made] == [["a", "x"], ["b", "x"]]
    assert client.ok("PUT", f"{PATH}/{made[0]['id']}", {"note": "other"})["tags"] == ["a", "x"]
    assert client.ok("GET", f"{PATH}/bots/a")["note"] == "other"
    first = client.ok("GET", PATH, query={"kind": "model", "tag": "x", "limit": 1})
    assert (first["has_more"], [one["id"] for one in first["data"]]) == (True, [made[0]["id"]])
    rest = client.ok("GET", PATH, query={"kind": "model", "tag": "x", "after": first["last_id"]})
    assert (rest["has_more"], [one["id"] for one in rest["data"]]) == (False, [made[1]["id"]])
    last = client.ok("GET", PATH, query={"kind": "model", "text": "N", "order": "desc"})
    assert [one["id"] for one in last["data"]] == [made[1]["id"]]
    assert client.ok("GET", PATH)["data"] == []


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        ({"tags": ["a,b"]}, ["body", "tags", "0"]),
        ({"tags": "a"}, ["body", "tags"]),
        ({"note": 1}, ["body", "note"]),
    ],
)
def test_a_body_that_does_not_fit_is_refused_at_its_place(client: Client, body: object, loc: list[object]) -> None:
    answer = client.send("PUT", f"{PATH}/bots/a", body)
    assert answer.status == 422
    assert answer.locs == [loc]


def test_an_unknown_kind_and_a_foreign_subject_are_refused(client: Client) -> None:
    assert client.send("GET", PATH, query={"kind": "key"}).status == 422
    model = client.platform.models.create("c", project="p", entity="other", base_model="tabular-mini")
    for method, body in (("GET", None), ("PUT", {"note": "mine"})):
        assert client.send(method, f"{PATH}/{model.id}", body).status == 404
        assert client.send(method, f"{PATH}/nothing", body).status == 404
    assert client.platform.annotations.get(model.id).note == ""
