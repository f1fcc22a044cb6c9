"""What this part brings to the tests of all parts."""

from typing import Any

from modelyard import Platform
from modelyard.domain.identity import Principal, Scope

TABLES = {"reviews": "c089dbb789a902bc", "review_rows": "1ff04dcad52004cf", "review_labels": "98d01d3b1cc372fd"}

KEYED = ("/v1/reviews",)

ROWS = [{"prompt": f"say {word}", "expected": "a secret of theirs"} for word in ("yes", "no", "perhaps", "never")]


def fill(platform: Platform) -> None:
    run = platform.evaluations.run("quiz-of-theirs", "echo", ROWS)
    review = platform.review.start(run, rows=3)
    platform.review.label(review.id, "ann-of-theirs", 0, True, "a note of theirs")


def clear(platform: Platform) -> None:
    for one in [*platform.review.list()]:
        platform.review.delete(one.id)


def record(yard: Any, platform: Platform) -> None:
    acme = platform.acting_as(Principal("ann", "acme", Scope("acme")))
    rows = [{"prompt": f"Is parcel {at} here?", "expected": f"Is parcel {at} here?"} for at in range(20)]
    before, after = (acme.evaluations.run("parcels", "echo", rows, project="support").run.id for _ in range(2))
    reviews = [yard.send("POST", "/v1/reviews", {"run": run, "rows": 2})["id"] for run in (before, after)]
    of = f"/v1/reviews/{reviews[0]}"
    for row in (0, 1):
        for review in reviews:
            yard.send("PUT", f"/v1/reviews/{review}/people/ann/rows/{row}", {"value": row == 0, "note": "Not asked."})
    yard.send("GET", f"{of}/people/ann/rows")
    file = yard.send("GET", f"{of}/people/ann/file")
    yard.send("PUT", f"{of}/people/bob/file", file)
    yard.send("GET", f"{of}/people/ann/disagreements")
    yard.send("GET", of)
    yard.send("GET", f"{of}/progress")
    yard.send("GET", "/v1/reviews", run=before, limit=1)
    yard.send("GET", "/v1/judged/estimate", run=before)
    yard.send("GET", "/v1/judged/comparison", baseline=before, candidate=after, margin="0.05")
    yard.send("DELETE", of)
