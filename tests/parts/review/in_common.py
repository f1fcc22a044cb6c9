"""What this part brings to the tests of all parts."""

from typing import Any

from modelyard import Platform
from modelyard.domain.identity import Principal, Scope

TABLES = {
    "reviews": "5ee0ad95a9ac4697",
    "review_rows": "1ff04dcad52004cf",
    "review_labels": "98d01d3b1cc372fd",
    "watches": "ed90229041e25f08",
    "watched_answers": "4c9c73257b29fa99",
    "watched_days": "33fb6620267bb882",
}

KEYED = ("/v1/reviews", "/v1/watches")

NOT_CREATING = {"/v1/watches/{watch}/stop": "what has stopped stays as it is"}

JUDGE = {"type": "llm_judge", "model": "echo", "prompt": "{output}"}

ROWS = [{"prompt": f"say {word}", "expected": "a secret of theirs"} for word in ("yes", "no", "perhaps", "never")]


def fill(platform: Platform) -> None:
    run = platform.evaluations.run("quiz-of-theirs", "echo", ROWS)
    review = platform.review.start(run, rows=3)
    platform.review.label(review.id, "ann-of-theirs", 0, True, "a note of theirs")
    watch = platform.review.watches.start("echo", {"polite": JUDGE}, share=1.0, purse=10**6)
    platform.chat.complete(model="echo", messages="yes, a secret of theirs", store=True)
    platform.review.watches.look(watch.id)


def clear(platform: Platform) -> None:
    for one in [*platform.review.list()]:
        platform.review.delete(one.id)
    for one in [*platform.review.watches.list()]:
        platform.review.watches.delete(one.id)


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
    judge = {"type": "llm_judge", "model": "echo", "prompt": "Is this polite? {output}", "options": {"max_tokens": 8}}
    body = {"model": "echo", "scorer": {**judge, "name": "polite"}, "share": 1.0, "purse": "5", "project": "support"}
    watch = f"/v1/watches/{yard.send('POST', '/v1/watches', body)['id']}"
    acme.chat.complete(model="echo", messages="Yes, gladly.", store=True, project="support")
    acme.review.watches.look(watch.rpartition("/")[2])
    yard.send("GET", "/v1/watches", limit=1)
    yard.send("GET", watch)
    yard.send("GET", f"{watch}/days")
    yard.send("POST", f"{watch}/stop")
    yard.send("DELETE", watch)
    for number in (1, 2):
        acme.variants.publish("support/parcels", model="echo", system=f"Be brief. ({number})")
        ref = acme.variants.get("support/parcels").ref_of(number)
        run = acme.evaluations.runs.create("weave:///acme/support/object/parcels:v0", ref, project="support")
        for at in range(20):
            of_run: Any = {"run_id": run.id, "project": "support"}
            row = {"prompt": f"Is parcel {at} here?"}
            done = acme.evaluations.predictions.create(ref, row, "Yes.", **of_run)
            acme.evaluations.scores.create(done.id, "weave:///acme/support/object/kind:v0", number == 2, **of_run)
        acme.evaluations.runs.finish(run.id)
        review = acme.review.start(run.id, rows=20)
        for at in range(20):
            acme.review.label(review.id, "ann", at, number == 2)
    acme.variants.promote("support/parcels", 1)
    promoted = {"name": "variants/support/parcels", "number": 2, "evaluation": "parcels:v0", "margin": 0.05}
    yard.send("PUT", "/v1/judged/aliases/prod", promoted)
