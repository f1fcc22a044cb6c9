"""Traces over HTTP: what clients send is read back, in their words, and what does not fit is refused by its place."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from forms import HEADER, form
from http_client import Client
from modelyard.parts.traces.evaluation_runs import run_id_of
from modelyard.parts.traces.records import TracedCall

PLACE = {"project_id": "acme/traced"}
TIMES = {"started_at": "2026-01-01T00:00:00+01:00", "trace_id": "t"}


@pytest.fixture(autouse=True)
def nothing_left(client: Any) -> Any:
    yield
    ask(client, "/calls/delete", call_ids=[call["id"] for call in calls(client)])
    assert list(client.platform.compat.traces.calls.list(entity="acme", project="traced")) == []


def ask(client: Client, path: str, status: int = 200, **body: Any) -> Any:
    answer = client.send("POST", path, {**PLACE, **body}, auth="Basic")
    assert answer.status == status, answer.raw
    return answer.json if answer.headers["content-type"] == "application/json" else answer.raw


def calls(client: Client, **query: Any) -> list[Any]:
    return [json.loads(line) for line in ask(client, "/calls/stream_query", **query).splitlines()]


def start(call_id: str, **more: Any) -> dict[str, Any]:
    return {"start": {**PLACE, **TIMES, "id": call_id, "op_name": "answer", "inputs": {}, "attributes": {}, **more}}


def end(call_id: str, **more: Any) -> dict[str, Any]:
    return {"end": {**PLACE, "id": call_id, "ended_at": "2026-01-01T00:00:02+01:00", "summary": {}, **more}}


def where(path: str, operator: str, value: Any) -> dict[str, Any]:
    return {"$expr": {operator: [{"$getField": path}, {"$literal": value}]}}


@pytest.mark.parametrize("base", ["", "/v2/acme/traced"])
def test_a_call_is_read_back_as_it_was_sent(client: Any, base: str) -> None:
    inputs, attributes = {"text": "hi", "n": [1, None]}, {"weave": {"os": "x"}}
    begun = ask(client, f"{base}/call/start", **start("c1", inputs=inputs, attributes=attributes, thread_id="th"))
    assert begun == {"id": "c1", "trace_id": "t"}
    assert ask(client, "/call/read", id="c1")["call"]["summary"] == {
        "weave": {"status": "running", "trace_name": "answer"}
    }
    usage = {"usage": {"echo": {"requests": 1}}}
    assert ask(client, f"{base}/call/end", **end("c1", output={"a": [1.5]}, exception=None, summary=usage)) == {}
    (shown,) = calls(client)
    assert shown == ask(client, "/call/read", id="c1")["call"]
    assert (shown["inputs"], shown["attributes"], shown["output"]) == (inputs, attributes, {"a": [1.5]})
    assert (shown["project_id"], shown["op_name"], shown["thread_id"]) == ("acme/traced", "answer", "th")
    assert (shown["started_at"], shown["ended_at"]) == ("2025-12-31T23:00:00.000000Z", "2025-12-31T23:00:02.000000Z")
    assert shown["summary"] == {**usage, "weave": {"status": "success", "trace_name": "answer", "latency_ms": 2000}}
    assert ask(client, "/call/read", id="unknown") == {"call": None}
    ask(client, "/call/update", call_id="c1", display_name="greeting")
    assert calls(client)[0]["display_name"] == "greeting"


def test_batches_hold_starts_ends_and_whole_calls(client: Any) -> None:
    batch = [{"mode": "start", "req": start("c1", id=None, trace_id=None)}, {"mode": "end", "req": end("c2", output=1)}]
    answer = ask(client, "/call/upsert_batch", batch=batch)["res"]
    assert answer[0]["id"] == answer[0]["trace_id"]
    assert answer[1] == {}
    whole = {**start("c3")["start"], "ended_at": "2026-01-01T00:00:05Z", "output": "x", "summary": {}}
    assert ask(client, "/v2/acme/traced/calls/complete", batch=[whole, whole]) == {}
    assert [one["id"] for one in calls(client)] == [answer[0]["id"], "c3", "c2"]
    assert ask(client, "/calls/query_stats") == {"count": 3, "has_more": False}
    assert ask(client, "/calls/query_stats", limit=2) == {"count": 2, "has_more": True}


def test_queries_filter_sort_page_and_cut(client: Any) -> None:
    for at in range(6):
        more = {"inputs": {"n": at, "text": f"word {at}"}, "parent_id": "c0" if at else None}
        ask(client, "/call/start", **start(f"c{at}", started_at=f"2026-01-01T00:00:0{at}Z", **more))

    def ids(**query: Any) -> list[str]:
        return [one["id"] for one in calls(client, **query)]

    assert ids(filter={"trace_roots_only": True}) == ["c0"]
    assert ids(filter={"parent_ids": ["c0"]}, limit=2, offset=1) == ["c2", "c3"]
    assert ids(query=where("inputs.n", "$gte", 4)) == ["c4", "c5"]
    assert ids(query=where("started_at", "$gt", 1767225603.5)) == ["c4", "c5"]
    text = {
        "$expr": {
            "$contains": {
                "input": {"$getField": "inputs.text"},
                "substr": {"$literal": "WORD 3"},
                "case_insensitive": True,
            }
        }
    }
    assert ids(query=text) == ["c3"]
    assert ids(sort_by=[{"field": "inputs.n", "direction": "desc"}], limit=2) == ["c5", "c4"]
    assert ids(sort_by=[{"field": "started_at", "direction": "desc"}], limit=1, offset=1) == ["c4"]
    assert ids(limit=0) == []
    assert ask(client, "/calls/query_stats", query=where("inputs.n", "$lt", 2))["count"] == 2
    cut = calls(client, columns=["inputs.n"], filter={"call_ids": ["c1"]})
    assert cut[0]["inputs"] == {"n": 1, "text": "word 1"}
    assert "output" not in cut[0]


def test_feedback_is_given_found_replaced_and_purged(client: Any) -> None:
    ask(client, "/call/start", **start("c1"))
    ref = "weave:///acme/traced/call/c1"
    said = {"weave_ref": ref, "feedback_type": "wandb.runnable.judge", "payload": {"output": 0.9}}
    first = ask(client, "/feedback/create", id="f1", creator="ann", runnable_ref="r", **said)
    assert ask(client, "/feedback/create", id="f1", **said) == first
    second = ask(client, "/feedback/batch/create", batch=[{**PLACE, **said, "feedback_type": "note"}])["res"][0]
    found = ask(client, "/feedback/query", query=where("weave_ref", "$eq", ref))["result"]
    assert [one["id"] for one in found] == ["f1", second["id"]]
    assert (found[0]["creator"], found[0]["runnable_ref"], found[0]["payload"]) == ("ann", "r", {"output": 0.9})
    ordered = {"sort_by": [{"field": "feedback_type", "direction": "asc"}], "fields": ["id"], "limit": 1}
    assert ask(client, "/feedback/query", **ordered)["result"] == [{"id": second["id"]}]
    judged = where("feedback.[wandb.runnable.judge].payload.output", "$gt", 0.5)
    assert [one["id"] for one in calls(client, query=judged)] == ["c1"]
    (shown,) = calls(client, include_feedback=True)
    assert [one["id"] for one in shown["summary"]["weave"]["feedback"]] == ["f1", second["id"]]
    replaced = ask(client, "/feedback/replace", feedback_id="f1", **{**said, "payload": {"output": 0.1}})
    assert calls(client, query=judged) == []
    assert ask(client, "/feedback/purge", query=where("id", "$eq", replaced["id"])) == {}
    assert [one["id"] for one in ask(client, "/feedback/query")["result"]] == [second["id"]]


def test_objects_tables_and_files_are_read_back(client: Any) -> None:
    made = ask(client, "/obj/create", obj={**PLACE, "object_id": "Thing", "val": {"a": 1, "_class_name": "Thing"}})
    shown = ask(client, "/obj/read", object_id="Thing", digest="latest")["obj"]
    assert (shown["val"]["a"], shown["digest"], shown["kind"]) == (1, made["digest"], "object")
    assert shown["leaf_object_class"] == "Thing"
    assert ask(client, "/objs/query", filter={"object_ids": ["Thing"], "latest_only": True})["objs"] == [shown]
    ref = "weave:///acme/traced/object/Thing:latest/key/a"
    assert ask(client, "/refs/read_batch", refs=[ref, ref + "/key/b"]) == {"vals": [1, None]}
    refused = ask(client, "/obj/create", 409, obj={**PLACE, "object_id": "x", "val": 1, "expected_digest": "other"})
    assert "not the expected one" in refused["detail"]
    for named in ({"digest": [made["digest"]]}, {"digests": []}):  # neither of them means all versions
        (problem,) = ask(client, "/obj/delete", 422, object_id="Thing", **named)["detail"]
        assert problem["loc"] == ["body", *named]
    assert ask(client, "/obj/delete", object_id="Thing") == {"num_deleted": 1}
    ask(client, "/obj/read", 404, object_id="Thing", digest="latest")
    rows = [{"n": at} for at in range(5)]
    table = ask(client, "/table/create", table={**PLACE, "rows": rows})
    again = ask(client, "/table/create_from_digests", row_digests=table["row_digests"])
    assert again == {"digest": table["digest"]}
    changes = [{"append": {"row": {"n": 9}}}, {"pop": {"index": 0}}, {"insert": {"index": 1, "row": {"n": 8}}}]
    changed = ask(client, "/table/update", base_digest=table["digest"], updates=changes)
    found = ask(client, "/table/query", digest=changed["digest"])["rows"]
    assert [row["val"]["n"] for row in found] == [1, 8, 2, 3, 4, 9]
    assert changed["updated_row_digests"] == [found[5]["digest"], table["row_digests"][0], found[1]["digest"]]
    (last,) = ask(client, "/table/query", digest=table["digest"], limit=1, offset=4)["rows"]
    assert (last["val"], last["original_index"]) == ({"n": 4}, 4)
    wanted = {"filter": {"row_digests": table["row_digests"][:2]}, "sort_by": [{"field": "n", "direction": "desc"}]}
    assert [row["val"]["n"] for row in ask(client, "/table/query", digest=table["digest"], **wanted)["rows"]] == [1, 0]
    assert ask(client, "/table/query_stats", digest=table["digest"]) == {"count": 5}
    raw = form(PLACE, b"\x00bytes", "a.bin")
    answer = client.send("POST", "/file/create", raw=raw, headers=[HEADER], auth="Basic")
    assert answer.status == 200
    assert ask(client, "/file/content", digest=answer.json["digest"]) == b"\x00bytes"
    ask(client, "/file/content", 404, digest="unknown")


@pytest.mark.parametrize(
    ("path", "body", "loc"),
    [
        ("/call/start", start("c1", started_at="yesterday"), ["body", "start", "started_at"]),
        ("/call/start", start("c1", project_id="acme"), ["body", "start", "project_id"]),
        ("/v2/acme/traced/call/start", start("c1", project_id="acme/other"), ["body", "start", "project_id"]),
        ("/v2/acme/traced/calls/complete", {"batch": [start("c1")["start"]]}, ["body", "batch", "0", "ended_at"]),
        ("/call/upsert_batch", {"batch": [{"mode": "start", "req": {}}]}, ["body", "batch", "0", "req", "start"]),
        ("/calls/stream_query", {"query": {"$expr": {"$like": []}}}, ["body", "query", "$expr"]),
        ("/calls/stream_query", {"filter": {"wb_user_ids": ["u"]}}, ["body", "filter", "wb_user_ids"]),
        ("/table/create_from_digests", {"row_digests": ["none"]}, ["body", "row_digests", "0"]),
        ("/obj/create", {"obj": {**PLACE, "object_id": "a b", "val": 1}}, ["body", "obj", "object_id"]),
        ("/refs/read_batch", {"refs": ["text"]}, ["ref"]),
    ],
)
def test_what_does_not_fit_is_refused_by_its_place(client: Any, path: str, body: Any, loc: list[Any]) -> None:
    assert ask(client, path, 422, **body)["detail"][0]["loc"] == loc


def test_another_entity_is_none_of_the_callers_business(client: Any) -> None:
    other = client.platform.keys.create("other").secret
    ask(client, "/call/start", **start("c1"))
    for path, body in (
        ("/call/start", start("c1")),
        ("/call/read", {"id": "c1"}),
        ("/calls/stream_query", {}),
        ("/calls/delete", {"call_ids": ["c1"]}),
        ("/objs/query", {}),
        ("/feedback/query", {}),
        ("/refs/read_batch", {"refs": ["weave:///acme/traced/call/c1"]}),
    ):
        assert client.send("POST", path, {**PLACE, **body}, key=other, auth="Basic").status == 403, path
    assert len(calls(client)) == 1


def test_the_client_is_met_with_its_project(client: Any) -> None:
    assert client.send("GET", "/server_info", auth="Basic").json == {"min_required_weave_python_version": "0.50.0"}
    asked = {"query": "query Project($name: String!) { project(name: $name) { name } }", "variables": {"name": "p"}}
    assert client.send("POST", "/graphql", asked, auth="Basic").json == {"data": {"project": {"name": "p"}}}
    made = {**asked, "query": "mutation UpsertModel { upsertModel { model { name } } }"}
    assert client.send("POST", "/graphql", made, auth="Basic").json["data"]["upsertModel"]["model"]["name"] == "p"
    asked["variables"]["entityName"] = "other"
    assert client.send("POST", "/graphql", asked, auth="Basic").status == 403


@pytest.mark.parametrize("odd", [1e12, -1.0, True, 2**63 - 1, 1e308])
def test_an_evaluation_with_odd_numbers_is_recorded_and_kept_as_a_run(client: Any, odd: float) -> None:
    whole = {"op_name": "weave:///acme/traced/op/Evaluation.evaluate:v", "ended_at": "2026-01-01T00:00:05Z"}
    usage = {"usage": {name: {"input_tokens": odd} for name in ("m", "n")}}
    row = {
        **whole,
        "op_name": "weave:///acme/traced/op/Evaluation.predict_and_score:v",
        "parent_id": f"e{odd}",
        "output": {"output": "a", "scores": {"right": True}, "model_latency": odd},
        "summary": usage,
    }
    batch = [
        {**start(f"p{odd}")["start"], **row},
        {**start(f"e{odd}")["start"], **whole, "output": {}, "summary": {}},
    ]
    assert ask(client, "/v2/acme/traced/calls/complete", batch=batch) == {}
    run = client.platform.evaluations.runs.get(
        run_id_of(TracedCall("acme", "traced", f"e{odd}", "t", "op", datetime.now(UTC)))
    )
    assert run.state == "completed"
