"""Misspelt members of small bodies of trace clients: refused, as more would be found or deleted without them."""

from typing import Any

import pytest

from http_client import Client

PROJECT = {"project_id": "acme/support"}


@pytest.mark.parametrize(
    ("path", "body", "at", "meant"),
    [
        ("/calls/stream_query", {"limits": 1}, ["limits"], "limit"),
        ("/calls/stream_query", {"filter": {"trace_id": ["a"]}}, ["filter", "trace_id"], "trace_ids"),
        ("/calls/query_stats", {"filter": {"op_name": ["a"]}}, ["filter", "op_name"], "op_names"),
        ("/calls/query_stats", {"querry": {}}, ["querry"], "query"),
        ("/objs/query", {"filter": {"latest": True, "latest_onli": True}}, ["filter", "latest_onli"], "latest_only"),
        ("/table/query", {"digest": "a", "filter": {"row_digest": ["a"]}}, ["filter", "row_digest"], "row_digests"),
        ("/feedback/query", {"ofset": 1}, ["ofset"], "offset"),
        ("/obj/read", {"object_id": "a", "digest": "b", "metadata_onli": True}, ["metadata_onli"], "metadata_only"),
    ],
)
def test_a_misspelt_member_is_refused_with_the_one_that_is_meant(
    client: Client, path: str, body: Any, at: list[str], meant: str
) -> None:
    answer = client.send("POST", path, {**PROJECT, **body}, auth="Basic", check=False)
    assert answer.status == 422, answer.raw
    (problem,) = answer.json["detail"]
    assert (problem["loc"], problem["msg"]) == (["body", *at], f"is not known; did you mean {meant!r}?")


@pytest.mark.parametrize("extra", ["include_storage_size", "expand_columns", "wb_user_id", "limits"])
def test_what_another_server_reads_and_what_is_null_is_left_out(client: Client, extra: str) -> None:
    body = {**PROJECT, extra: None if extra == "limits" else True}
    assert client.send("POST", "/calls/query_stats", body, auth="Basic", check=False).status == 200
