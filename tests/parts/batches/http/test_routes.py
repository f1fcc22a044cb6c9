"""Batches over HTTP, as the clients of the chat format ask for them."""

from typing import Any

import pytest

from batch_files import CHAT, asking, lines_of, uploaded
from modelyard import open_platform

PATH = "/v1/batches"


@pytest.fixture(autouse=True)
def a_worker_is_alive(client: Any) -> None:
    client.platform.worker().beat()


def create(client: Any, *requests: bytes, headers: Any = (), path: str = PATH, **members: Any) -> Any:
    file = uploaded(client.platform, requests or [asking("a")], entity="acme")
    body = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h", **members}
    return client.send("POST", path, body, headers=headers)


@pytest.mark.parametrize("path", [PATH, "/inference/v1/batches"])
def test_a_batch_goes_its_course(client: Any, path: str) -> None:
    made = create(client, asking("a", "hello"), asking("b", temperature=9), path=path, metadata={"k": "v"}).json
    assert (made["object"], made["status"], made["endpoint"]) == ("batch", "validating", CHAT)
    assert made["expires_at"] - made["created_at"] == 24 * 3600
    assert made["request_counts"] == {"total": 0, "completed": 0, "failed": 0}
    client.platform.worker().run_until_idle()
    done = client.ok("GET", f"{path}/{made['id']}")
    assert (done["status"], done["errors"], done["metadata"]) == ("completed", None, {"k": "v"})
    assert done["request_counts"] == {"total": 2, "completed": 1, "failed": 1}
    assert done["completed_at"] == done["finalizing_at"] >= done["in_progress_at"] >= made["created_at"]
    assert (done["failed_at"], done["cancelled_at"], done["expired_at"]) == (None, None, None)
    answer = client.send("GET", f"{path.removesuffix('batches')}files/{done['output_file_id']}/content").lines
    assert [(line["custom_id"], line["response"]["status_code"]) for line in answer] == [("a", 200)]
    assert lines_of(client.platform, done["error_file_id"])[0]["response"]["body"]["error"]["param"] == "temperature"
    assert client.ok("GET", path, query="limit=1")["data"] == [done]
    assert client.ok("POST", f"{path}/{made['id']}/cancel") == done


def test_a_file_at_fault_is_told_by_line(client: Any) -> None:
    made = create(client, asking("a"), b"{}\n").json
    client.platform.worker().run_until_idle()
    done = client.ok("GET", f"{PATH}/{made['id']}")
    assert (done["status"], done["failed_at"] is not None) == ("failed", True)
    assert [(one["line"], one["param"]) for one in done["errors"]["data"]] == [(2, "custom_id")]


def test_a_batch_in_the_queue_is_cancelled(client: Any) -> None:
    made = create(client).json
    done = client.ok("POST", f"{PATH}/{made['id']}/cancel")
    assert (done["status"], done["output_file_id"]) == ("cancelled", None)
    assert done["cancelled_at"] is not None


@pytest.mark.parametrize(
    ("members", "status", "param"),
    [
        ({"endpoint": "/v1/moderations"}, 400, "endpoint"),
        ({"completion_window": "1h"}, 400, "completion_window"),
        ({"completion_window": None}, 400, "completion_window"),
        ({"input_file_id": 5}, 400, "input_file_id"),
        ({"input_file_id": "nothing"}, 404, None),
        ({"metadata": {"k": 5}}, 400, "metadata.k"),
        ({"metadata": {str(number): "v" for number in range(17)}}, 400, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, 400, "output_expires_after.seconds"),
        ({"output_expires_after": {"anchor": "now", "seconds": 3600}}, 400, "output_expires_after.anchor"),
        ({"priority": "high"}, 400, "priority"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(
    client: Any, members: dict[str, Any], status: int, param: str | None
) -> None:
    answer = create(client, **members)
    assert (answer.status, answer.json["error"]["param"]) == (status, param)


def test_its_files_may_expire(client: Any) -> None:
    made = create(client, output_expires_after={"anchor": "created_at", "seconds": 3600}).json
    client.platform.worker().run_until_idle()
    done = client.ok("GET", f"{PATH}/{made['id']}")
    file = client.ok("GET", f"/v1/files/{done['output_file_id']}")
    assert file["expires_at"] - file["created_at"] == 3600


def test_the_same_request_under_a_key_is_one_batch(client: Any) -> None:
    file = uploaded(client.platform, [asking("a")], entity="acme")
    headers = [("idempotency-key", f"batch-{client.asynchronous}")]
    body = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"}
    first = client.send("POST", PATH, body, headers=headers)
    assert client.send("POST", PATH, body, headers=headers).json["id"] == first.json["id"]
    assert client.send("POST", PATH, {**body, "metadata": {"a": "b"}}, headers=headers).status == 409


def test_each_tenant_sees_its_own(client: Any) -> None:
    made = create(client).json
    other = client.another("globex")
    assert other.ok("GET", PATH)["data"] == []
    for method, path in (("GET", ""), ("POST", "/cancel")):
        answer = other.send(method, f"{PATH}/{made['id']}{path}")
        assert (answer.status, answer.json["error"]["code"]) == (404, "not_found")
    body = {"input_file_id": made["input_file_id"], "endpoint": CHAT, "completion_window": "24h"}
    assert other.send("POST", PATH, body).status == 404
    client.ok("POST", f"{PATH}/{made['id']}/cancel")


def test_without_a_worker_no_batch_is_taken(client_for: Any) -> None:
    with open_platform() as platform:
        assert create(client_for(platform)).status == 503
