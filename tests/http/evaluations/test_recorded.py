"""The exchanges of the public trace client, as they were recorded: objects, predictions and scores, in their order."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from modelyard.compose import open_platform

CAPTURES = Path(__file__).parents[2] / "captures" / "evaluation"
PLACE = "/v2/acme/capture"


@attrs.define
class Replay:
    """Sends what the public client sent, with our ids, digests and references in the place of the recorded ones."""

    client: Any
    ours: dict[str, str] = attrs.field(factory=dict)

    def send(self, method: str, path: str, body: Any = None, query: Any = (), headers: Any = ()) -> Any:
        return self.client.send(method, path, body, query=query, headers=headers, auth="Basic")

    def __call__(self, name: str) -> tuple[Any, Any]:
        """Our answer, read, and the recorded one with our ids in it."""
        capture = self.translated((CAPTURES / f"{name}.json").read_text(encoding="utf-8"))
        sent, received = capture["request"], capture["response"]
        headers = [(key.lower(), value) for key, value in sent["headers"].items() if isinstance(value, str)]
        answer = self.send(sent["method"], sent["path"], sent["body"], [tuple(p) for p in sent["query"]], headers)
        assert answer.status == received["status"], answer.raw
        assert answer.headers["content-type"] == received["content_type"]
        if received["content_type"] == "application/jsonl":
            return [json.loads(line) for line in answer.raw.splitlines()], received["body"]
        return answer.json, received["body"]

    def translated(self, text: str) -> Any:
        """Recorded JSON with our ids in it."""
        for theirs, mine in self.ours.items():
            text = text.replace(theirs, mine)
        return json.loads(text)

    def create(self, name: str, *named: str) -> None:
        """An exchange that makes something, whose digest or id is ours from now on."""
        answer, theirs = self(name)
        assert answer.keys() == theirs.keys()
        known = [key for key in ("digest", "prediction_id", "score_id") if key in theirs]
        self.ours.update({theirs[key]: answer[key] for key in known})
        self.agree(answer, {**theirs, **{key: answer[key] for key in known}})

    def agree(self, ours: Any, theirs: Any) -> None:
        """Ours has all that theirs has, apart from times and the references that only their server makes."""
        theirs = self.translated(json.dumps(theirs))
        own = {"created_at", "rows", "score_op", "evaluate_op", "predict_and_score_op", "summarize_op"}
        assert theirs.keys() <= ours.keys()
        assert {key: ours[key] for key in theirs if key not in own} == {k: v for k, v in theirs.items() if k not in own}

    def agree_in(self, name: str) -> None:
        ours, theirs = self(name)
        if isinstance(theirs, dict):
            self.agree(ours, theirs)
            return
        assert len(ours) == len(theirs)
        for mine, other in zip(ours, theirs, strict=True):
            self.agree(mine, other)


@pytest.fixture
def replay(client_for: Any) -> Iterator[Replay]:
    with open_platform() as platform:
        yield Replay(client_for(platform))


def test_recorded_objects_predictions_and_scores_work(replay: Replay) -> None:
    for kind in ("datasets", "datasets-200-2", "datasets-200-3", "scorers", "models", "evaluations"):
        replay.create(f"post-{kind}" if "200" in kind else f"post-{kind}-200")
    for kind in ("datasets", "scorers", "models", "evaluations"):
        replay.agree_in(f"get-{kind}-200")
        replay.agree_in(f"get-{kind}-name-versions-v-200")

    model = {"evaluation": f"weave:///{PLACE[4:]}/object/e", "model": f"weave:///{PLACE[4:]}/object/m"}
    run = replay.send("POST", f"{PLACE}/evaluation_runs", model).json["evaluation_run_id"]
    replay.ours["01a1f83b-65f2-768e-861d-f8c25dc4a692"] = run
    for name in ("", "-2", "-3"):
        replay.create(f"post-predictions-200{name}")
    for name in ("get-predictions-200", "get-predictions-200-2", "get-predictions-id-200"):
        replay.agree_in(name)
    for name in ("", "-2", "-3"):
        answer, theirs = replay(f"post-predictions-id-finish-200{name}")
        assert answer == theirs
    # Their server forgets the output of a prediction that is finished; ours keeps it.
    ours, theirs = replay("get-predictions-id-200-2")
    replay.agree(ours, {**theirs, "output": "wrong"})
    for name in ("", "-2", "-3"):
        replay.create(f"post-scores-200{name}")
    replay.agree_in("get-scores-200")
    replay.agree_in("get-scores-id-200")

    alone = {"model": model["model"], "inputs": {}, "output": "x"}
    prediction = replay.send("POST", f"{PLACE}/predictions", alone).json["prediction_id"]
    value = {"passed": True, "detail": {"overlap": 0.5}, "why": "text"}
    scorer = replay.translated((CAPTURES / "get-scores-id-200-2.json").read_text())["response"]["body"]["scorer"]
    score = {"prediction_id": prediction, "scorer": scorer, "value": value}
    answer = replay.send("POST", f"{PLACE}/scores", score)
    replay.ours["01a1f83b-685e-72ea-8911-c07f8a66c139"] = answer.json["score_id"]
    ours, theirs = replay("get-scores-id-200-2")
    replay.agree(ours, theirs)
    answer, theirs = replay("delete-scores-200")
    assert answer == theirs
    answer, theirs = replay("get-scores-id-404")
    assert theirs.keys() <= answer.keys()
    answer, theirs = replay("delete-evaluations-name-200")
    assert answer == theirs
    answer, theirs = replay("get-evaluations-name-versions-v-404")
    assert theirs.keys() <= answer.keys()
    assert answer["deleted_at"] in answer["reason"]
