"""Reviews over HTTP, with the key of a tenant."""

from collections.abc import Iterator
from typing import Any

import pytest

from each import each_case
from http_client import Client, client_of
from modelyard import open_platform

ROWS = [{"prompt": f"say {at}", "expected": f"say {at}" if at % 3 else "no"} for at in range(30)]


@pytest.fixture
def client() -> Iterator[Client]:
    with open_platform(entity="acme") as platform:
        for _ in range(2):
            platform.evaluations.run("quiz", "echo", ROWS)
        yield client_of(platform)


def runs_of(client: Client) -> list[str]:
    return [run.id for run in client.platform.evaluations.runs.list_all()]


def started(client: Client, run: str, rows: int = 6) -> str:
    """Start a review, and return its path."""
    answer = client.send("POST", "/v1/reviews", {"run": run, "rows": rows})
    assert answer.status == 200, answer.json
    return f"/v1/reviews/{answer.json['id']}"


def label_all(client: Client, path: str, person: str) -> None:
    for row in client.ok("GET", f"{path}/people/{person}/rows")["data"]:
        value = row["output"] == row["inputs"]["expected"]
        labelled = client.ok("PUT", f"{path}/people/{person}/rows/{row['row']}", {"value": value, "note": "n"})
        assert (labelled["value"], labelled["labelled"], labelled["note"]) == (float(value), True, "n")


def test_rows_are_drawn_labelled_and_judges_corrected(client: Client) -> None:
    before, after = runs_of(client)
    paths = [started(client, run, 12) for run in (before, after)]
    first = client.ok("GET", paths[0])
    assert (first["population"], first["size"], first["propensity"], first["choices"]) == (30, 12, 0.4, [0.0, 1.0])
    unchecked = client.ok("GET", "/v1/judged/estimate", query={"run": before})
    assert (unchecked["check"]["checked"], unchecked["low"], unchecked["judged"]) == (False, None, 2 / 3)
    for path in paths:
        label_all(client, path, "ann")
    found = client.ok("GET", "/v1/judged/estimate", query={"run": before, "scorer": "exact_match"})
    assert (found["method"], found["rows"], found["labelled"]) == ("ppi", 30, 12)
    assert found["low"] < found["mean"] < found["high"]
    assert found["check"]["sensitivity"][1] == found["check"]["kappa"] == 1.0
    asked = {"baseline": before, "candidate": after, "lower_is_better": "true"}
    compared = client.ok("GET", "/v1/judged/comparison", query={**asked, "margin": "0.5"})
    assert (compared["verdict"], compared["difference"]["labelled"]) == ("not worse", 12)
    narrow = client.ok("GET", "/v1/judged/comparison", query={**asked, "margin": "0.001"})
    assert narrow["verdict"] == "the judge cannot tell a difference of this size"
    page = client.ok("GET", "/v1/reviews", query={"run": before})
    assert [one["id"] for one in page["data"]] == [first["id"]]
    assert client.ok("DELETE", paths[0])["id"] == first["id"]
    assert client.send("GET", paths[0]).status == 404


def test_nobody_sees_what_others_say_before_they_are_done(client: Client) -> None:
    path = started(client, runs_of(client)[0])
    label_all(client, path, "ann")
    rows = client.ok("GET", f"{path}/people/bob/rows")["data"]
    assert all((row["labelled"], row["value"], row["note"]) == (False, None, "") for row in rows)
    assert all({*row} == {"row", "inputs", "output", "labelled", "value", "note"} for row in rows)
    assert client.send("GET", f"{path}/people/bob/disagreements").status == 409
    file = client.ok("GET", f"{path}/people/bob/file")["file"]
    answers = file.replace(",,\n", ",no,\n")
    assert client.ok("PUT", f"{path}/people/bob/file", {"file": answers})["labels"] == 6
    found = client.ok("GET", f"{path}/people/bob/disagreements")["data"]
    assert all(one["labels"] == {"ann": 1.0, "bob": 0.0} and one["verdict"] == 1.0 for one in found)
    assert client.ok("GET", f"{path}/progress") == {"size": 6, "people": {"ann": 6, "bob": 6}, "counted": 6}
    assert client.send("PUT", f"{path}/people/bob/rows/0", {"value": True, "note": "late"}).status == 409


def test_a_file_with_long_texts_comes_back(client: Client) -> None:
    rows = [{"prompt": f"{at}" * 300_000, "expected": "x"} for at in range(3)]
    run = client.platform.evaluations.run("long", "echo", rows)
    path = started(client, run.run.id, 3)
    file = client.ok("GET", f"{path}/people/ann/file")["file"]
    assert len(file) > 2**20
    assert client.ok("PUT", f"{path}/people/ann/file", {"file": file.replace(",,\n", ",no,\n")})["labels"] == 3


def test_one_key_starts_one_review(client: Client) -> None:
    body, key = {"run": runs_of(client)[0], "rows": 3}, [("idempotency-key", "once")]
    answers = [client.send("POST", "/v1/reviews", body, headers=key).json["id"] for _ in range(3)]
    assert len({*answers}) == 1
    assert len(client.ok("GET", "/v1/reviews")["data"]) == 1


WRONG: tuple[tuple[str, str, Any, list[str]], ...] = (
    ("PUT", "{path}/people/ann/rows/6", {"value": True}, ["body", "row"]),
    ("PUT", "{path}/people/ann/rows/x", {"value": True}, ["path", "row"]),
    ("PUT", "{path}/people/ann/rows/0", {"value": 7}, ["body", "value"]),
    ("PUT", "{path}/people/ann/rows/0", {}, ["body", "value"]),
    ("PUT", "{path}/people/ann/file", {"file": "row,label\n0,perhaps\n"}, ["body", "file", "line 2", "label"]),
    ("PUT", "{path}/people/ann/file", {"file": f"row,label\n{'1' * 5000},yes\n"}, ["body", "file", "line 2", "row"]),
    ("POST", "/v1/reviews", {"run": "{run}", "rows": 0}, ["body", "rows"]),
    ("POST", "/v1/reviews", {"run": "{run}", "scorer": "nobody"}, ["body", "scorer"]),
    ("GET", "/v1/judged/estimate", None, ["query", "run"]),
    ("GET", "/v1/judged/comparison?baseline={run}", None, ["query", "candidate"]),
    ("GET", "/v1/judged/comparison?baseline={run}&candidate={run}&margin=-1", None, ["query", "margin"]),
    ("GET", "/v1/judged/estimate?run={run}&scorer=nobody", None, ["query", "scorer"]),
)


@each_case("wrong", WRONG, ids=lambda one: f"{one[0]} {one[1]} {one[3][-1]}")
def test_what_is_wrong_is_said_where_it_is(wrong: tuple[str, str, Any, list[str]]) -> None:
    method, path, body, place = wrong
    with open_platform(entity="acme") as platform:
        platform.evaluations.run("quiz", "echo", ROWS)
        client = client_of(platform)
        (run,) = runs_of(client)
        path, _, query = path.format(path=started(client, run), run=run).partition("?")
        body = body and {name: run if value == "{run}" else value for name, value in body.items()}
        answer = client.send(method, path, body, query=query)
        assert (answer.status, answer.locs) == (422, [place])
