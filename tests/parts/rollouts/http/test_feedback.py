"""What clients of traces and exporters of OpenTelemetry say of an answer is a score of its rollout."""

from collections.abc import Iterator
from typing import Any

import pytest

from http_client import Client, client_of
from modelyard import open_platform
from modelyard.domain.identity import Principal, Scope
from modelyard.parts.rollouts.records import RolloutScore
from modelyard.parts.traces.opinions import said_by
from modelyard.platform.paging import iter_index_live
from rolled_out import trained

PLACE = {"project_id": "acme/traced"}
TIME = "2026-01-01T00:00:00.000001Z"
SPAN = {"traceId": f"{1:032x}", "name": "judge", "startTimeUnixNano": str(10**18), "endTimeUnixNano": str(10**18 + 5)}


class Desk:
    def __init__(self, platform: Any) -> None:
        self.platform = platform
        self.acme = platform.acting_as(Principal("ann", "acme", Scope("acme")))
        trained(self.acme, "desk", platform)
        self.rollout = self.acme.rollouts.start("desk/support", 1, least=1, canary=[0.5, 1])
        self.client: Client = client_of(platform)

    def ask(self, user: str = "ann") -> str:
        answer: str = self.acme.chat.complete(
            model="desk/support:prod", messages="hello", project="desk", user=user, max_tokens=2
        ).id
        return answer

    def send(self, path: str, body: Any, **more: Any) -> Any:
        answer = self.client.send("POST", path, body, auth="Basic", check=False, **more)
        assert answer.status == 200, answer.raw
        return answer.json

    def begin(self, call: str) -> None:
        self.send(
            "/call/start",
            {"start": {**PLACE, "id": call, "trace_id": call, "op_name": "answer", "started_at": TIME}
             | {"attributes": {}, "inputs": {}}},
        )  # fmt: skip

    def end(self, call: str, answer: str) -> None:
        output = {"object": "chat.completion", "id": answer}
        self.send("/call/end", {"end": {**PLACE, "id": call, "ended_at": TIME, "output": output, "summary": {}}})

    def say(self, call: str, type: str, payload: Any, **more: Any) -> None:
        ref = f"weave:///acme/traced/call/{call}"
        self.send("/feedback/create", {**PLACE, "weave_ref": ref, "feedback_type": type, "payload": payload, **more})

    def export(self, *events: Any, **attributes: Any) -> None:
        span = {**SPAN, "spanId": f"{len(self.scores()) + 1:016x}", "attributes": pairs(attributes)}
        span["events"] = [{"name": "gen_ai.evaluation.result", "attributes": pairs(one)} for one in events]
        body = {"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}
        self.send("/v1/traces", body, headers=[("compat-project", "acme/traced")])

    def scores(self) -> list[tuple[str, str, float, bool]]:
        found = iter_index_live(self.platform._runtime, RolloutScore, "by_entity", "acme")
        return [(one.answer_id, one.metric, one.value, one.counted) for one in found]


def pairs(said: dict[str, Any]) -> list[Any]:
    names = {str: "stringValue", float: "doubleValue"}
    return [{"key": key.replace("__", "."), "value": {names[type(one)]: one}} for key, one in said.items()]


@pytest.fixture
def desk() -> Iterator[Desk]:
    with open_platform() as platform:
        yield Desk(platform)


def test_a_reaction_of_the_trace_client_is_a_score(desk: Desk) -> None:
    answer = desk.ask()
    desk.begin("c1")
    desk.end("c1", answer)
    desk.say("c1", "wandb.reaction.1", {"emoji": "\N{THUMBS UP SIGN}", "alias": ":thumbs_up:"}, id="f1")
    assert desk.scores() == [(answer, "thumbs", 1.0, True)]
    desk.say("c1", "wandb.reaction.1", {"emoji": "\N{THUMBS UP SIGN}", "alias": ":thumbs_up:"}, id="f1")
    desk.say("c1", "wandb.reaction.1", {"emoji": "\N{THUMBS DOWN SIGN}"})
    desk.say("c1", "wandb.note.1", {"note": "well done"})
    desk.say("c1", "rating", {"stars": 4})
    assert desk.scores() == [(answer, "thumbs", 1.0, True)]
    found = desk.acme.rollouts.standing(desk.rollout.id)
    assert found.baseline.scores + found.candidate.scores == 1


def test_feedback_may_come_before_the_answer_is_traced(desk: Desk) -> None:
    answer = desk.ask()
    desk.begin("c1")
    desk.say("c1", "thumbs", {"up": False})
    desk.say("c1", "wandb.runnable.polite", {"output": {"score": 0.5}})
    assert desk.scores() == []
    desk.end("c1", answer)
    assert sorted(desk.scores()) == [(answer, "polite", 0.5, False), (answer, "thumbs", 0.0, True)]


def test_a_span_or_its_event_that_names_the_answer_is_a_score(desk: Desk) -> None:
    one, other = desk.ask("ann"), desk.ask("bob")
    said = {"gen_ai__evaluation__name": "thumbs", "gen_ai__evaluation__score__value": 1.0}
    desk.export({**said, "gen_ai__response__id": one})
    assert desk.scores() == [(one, "thumbs", 1.0, True)]
    desk.export(**said, gen_ai__response__id=other)
    assert {*desk.scores()} == {(one, "thumbs", 1.0, True), (other, "thumbs", 1.0, True)}
    desk.export({**said, "gen_ai__evaluation__score__value": 7.0, "gen_ai__response__id": other})
    assert len(desk.scores()) == 2


def test_nobody_scores_the_answers_of_others(desk: Desk) -> None:
    answer = desk.ask()
    other = desk.platform.acting_as(Principal("eve", "acme", Scope("acme", frozenset({"traced"}))))
    call = other.compat.traces.calls.start("answer", project="traced", entity="acme")
    other.compat.traces.calls.end(call.id, {"object": "chat.completion", "id": answer}, project="traced", entity="acme")
    other.compat.traces.feedback.add(call.ref, "thumbs", {"up": True})
    assert desk.scores() == []
    desk.acme.compat.traces.feedback.add(call.ref, "thumbs", {"up": True})
    assert desk.scores() == [(answer, "thumbs", 1.0, True)]


@pytest.mark.parametrize(
    ("type", "payload", "means"),
    [
        ("thumbs", {"up": True}, ("thumbs", 1.0)),
        ("thumbs", {"value": 0.25}, ("thumbs", 0.25)),
        ("stars", {"value": 4}, None),
        ("wandb.runnable.exact", {"output": True}, ("exact", 1.0)),
        ("wandb.reaction.1", {"emoji": "\N{THUMBS UP SIGN}\N{EMOJI MODIFIER FITZPATRICK TYPE-5}"}, ("thumbs", 1.0)),
        ("wandb.reaction.1", {"emoji": "\N{PARTY POPPER}"}, None),
        ("wandb.note.1", {"note": "good"}, None),
    ],
)
def test_what_feedback_means(type: str, payload: Any, means: Any) -> None:
    assert said_by(type, payload) == means
