"""What this part brings to the tests of all parts."""

from typing import Any

from modelyard import Platform

TABLES = {
    "steering_entries": "da8f6268b58c0115",
    "earlier_answers": "82c6e9a32ef400b1",
}

KEYED = ("/v1/runs/{run}/steering",)

ROWS = [{"prompt": "one of theirs", "expected": "one of theirs"}, {"prompt": "another", "expected": "no"}]


def fill(platform: Platform) -> None:
    run = platform.evaluations.submit("of-theirs", "echo", ROWS, "exact_match", project="of-theirs")
    platform.worker().run_until_idle()
    platform.evaluations.steering.requeue(run.id, [0])
    platform.worker().run_until_idle()
    waits = platform.evaluations.submit("of-theirs", "echo", ROWS, "exact_match", project="of-theirs")
    platform.evaluations.steering.add_rows(waits.id, ROWS)
    platform.evaluations.steering.pause(waits.id)


def clear(platform: Platform) -> None:
    for run in [*platform.evaluations.runs.list(project="of-theirs")]:
        platform.evaluations.runs.delete([run.id], project="of-theirs")
    platform.remove_orphans(0)  # the file of rows that waited to be added


def record(yard: Any, platform: Platform) -> None:
    run = platform.evaluations.submit("replies", "echo", ROWS[:1], "exact_match", project="help", entity="acme")
    of = f"/v1/runs/{run.id}"
    yard.send("POST", f"{of}/steering", {"action": "limits", "limits": {"concurrency": 2}})
    platform.worker().run_until_idle()
    yard.send("POST", f"{of}/steering", {"action": "requeue", "indices": [0]})
    platform.worker().run_until_idle()
    yard.send("GET", f"{of}/steering")
    yard.send("GET", f"{of}/earlier-answers", limit=1)
