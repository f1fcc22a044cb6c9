"""Files over HTTP: the form that uploads one, and what is refused of it."""

import json
from typing import Any

import pytest

from forms import HEADER, form

PATH = "/v1/files"


@pytest.fixture(autouse=True)
def nothing_left(client: Any) -> Any:
    yield
    while found := client.ok("GET", PATH)["data"]:
        client.ok("DELETE", f"{PATH}/{found[0]['id']}")
    assert list(client.platform._runtime.artifacts.names()) == []


def upload(client: Any, file: bytes | None = b'{"a": 1}\n', headers: Any = (), path: str = PATH, **fields: str) -> Any:
    raw = form({"purpose": "fine-tune", **fields}, file)
    return client.send("POST", path, raw=raw, headers=[HEADER, *headers])


@pytest.mark.parametrize("path", [PATH, "/inference/v1/files"])
def test_a_file_comes_back_as_it_went(client: Any, path: str) -> None:
    content = b"line\n" * 200_000
    made = upload(client, content, path=path).json
    assert made["bytes"] == len(content)
    assert (made["object"], made["filename"], made["purpose"], made["expires_at"]) == (
        "file",
        "train.jsonl",
        "fine-tune",
        None,
    )
    answer = client.send("GET", f"{path}/{made['id']}/content")
    assert answer.raw == content
    assert answer.headers["content-length"] == str(len(content))
    assert client.ok("GET", f"{path}/{made['id']}") == made
    assert client.ok("GET", path, query="purpose=fine-tune")["data"] == [made]
    assert client.ok("GET", path, query="purpose=batch")["data"] == []
    assert client.ok("DELETE", f"{path}/{made['id']}") == {"id": made["id"], "object": "file", "deleted": True}
    assert client.send("GET", f"{path}/{made['id']}/content").status == 404


def test_a_file_may_expire(client: Any) -> None:
    made = upload(client, **{"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"}).json
    assert made["expires_at"] - made["created_at"] == 3600


@pytest.mark.parametrize(
    ("fields", "file", "param"),
    [
        ({"purpose": "batch_output"}, b"x", "purpose"),
        ({}, None, "file"),
        ({}, b"", "file"),
        ({"colour": "red"}, b"x", "colour"),
        ({"expires_after[anchor]": "now", "expires_after[seconds]": "3600"}, b"x", "expires_after[anchor]"),
        ({"expires_after[anchor]": "created_at"}, b"x", "expires_after[seconds]"),
        ({"expires_after[seconds]": "-1"}, b"x", "expires_after[seconds]"),
        ({"expires_after[seconds]": "9" * 30}, b"x", "expires_after[seconds]"),
        ({"expires_after[seconds]": "1"}, b"x", "expires_after"),
    ],
)
def test_a_form_at_fault_is_refused_by_name(
    client: Any, fields: dict[str, str], file: bytes | None, param: str
) -> None:
    answer = upload(client, file, **fields)
    assert answer.status == 400
    assert answer.json["error"]["param"] == param


def test_two_files_are_refused(client: Any) -> None:
    raw = form({"purpose": "batch", "file": "a"}, b"x")
    answer = client.send("POST", PATH, raw=raw, headers=[HEADER])
    assert (answer.status, answer.json["error"]["param"]) == (400, "file")


@pytest.mark.parametrize("size", range(0, len(form({"purpose": "batch"}, b"xyz")) - 4, 11))
def test_half_a_form_leaves_nothing(client: Any, size: int) -> None:
    answer = client.send("POST", PATH, raw=form({"purpose": "batch"}, b"xyz")[:size], headers=[HEADER])
    assert answer.status == 400
    assert client.ok("GET", PATH)["data"] == []


@pytest.mark.parametrize(
    "media", [None, "application/json", "multipart/form-data", "multipart/mixed; boundary=a", "text/plain"]
)
def test_what_is_not_declared_a_form_is_refused(client: Any, media: str | None) -> None:
    headers = [] if media is None else [("content-type", media)]
    answer = client.send("POST", PATH, raw=form({"purpose": "batch"}, b"x"), headers=headers)
    assert answer.status == 415
    assert "multipart/form-data" in answer.json["error"]["message"]


def test_the_same_upload_under_a_key_is_one_file(client: Any) -> None:
    key = [("idempotency-key", f"key-{client.asynchronous}")]
    first = upload(client, headers=key)
    assert upload(client, headers=key).raw == first.raw
    assert len(client.ok("GET", PATH)["data"]) == len(list(client.platform._runtime.artifacts.names())) == 1
    assert upload(client, b"other", headers=key).status == 409
    assert upload(client, purpose="batch", headers=key).status == 409
    assert len(list(client.platform._runtime.artifacts.names())) == 1


def test_each_tenant_sees_its_own(client: Any) -> None:
    made = upload(client).json
    other = client.another("globex")
    assert other.ok("GET", PATH)["data"] == []
    for method, path in (("GET", ""), ("GET", "/content"), ("DELETE", "")):
        answer = other.send(method, f"{PATH}/{made['id']}{path}")
        assert (answer.status, answer.json["error"]["code"]) == (404, "not_found")
    assert other.send("GET", PATH, headers=[("openai-project", "acme/p")]).status == 403


def test_a_project_is_that_of_the_header(client: Any) -> None:
    made = upload(client, headers=[("openai-project", "acme/books")]).json
    listed = client.ok("GET", PATH, headers=[("openai-project", "acme/books")])["data"]
    assert [file["id"] for file in listed] == [made["id"]]
    assert client.ok("GET", PATH, headers=[("openai-project", "acme/songs")])["data"] == []
    assert json.loads(client.send("GET", PATH).raw)["data"][0]["id"] == made["id"]
