"""From traffic to training: what is collected, what of it is kept out, and the way back from a checkpoint."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from modelyard import Message, Platform, Principal, Role, Scope, ScriptedBackend, open_platform
from modelyard.backends import reasoning, say
from modelyard.domain.training import Example, Preference
from modelyard.errors import Forbidden, InvalidInput, NotFound, Unauthenticated
from modelyard.formats.training_data import dump_example, example_of, read_dataset

CALL = {"id": "c", "type": "function", "function": {"name": "mail", "arguments": json.dumps({"to": ["ada@x.org", 1]})}}
TOOL = {"type": "function", "function": {"name": "mail", "description": "As boss@x.org", "parameters": {}}}


@pytest.fixture
def platform() -> Iterator[Platform]:
    with open_platform() as platform:
        yield platform


def ask(platform: Platform, words: Any, **options: Any) -> str:
    return platform.chat.complete(**{"model": "echo", "messages": words, "store": True, **options}).id


def rows(platform: Platform, url: str) -> list[Any]:
    """The rows of a dataset."""
    *_, entity, project, name = url.split("/")
    dataset = platform.compat.uploads.find(name, project=project, entity=entity)
    assert dataset is not None
    with platform._runtime.artifacts.open(dataset.artifact) as file:
        return [*read_dataset(file)]


def answers(platform: Platform, url: str) -> list[str]:
    return [row.messages[-1].text for row in rows(platform, url)]


def traced(platform: Platform, words: str, answer: Any, *, id: str = "", model: str = "traced", **more: Any) -> Any:
    call = platform.compat.traces.calls.start(
        "ask", {"model": model, "messages": [{"role": "user", "content": words}]}, **more
    )
    message = {"role": "assistant", "content": answer, "refusal": None}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    output = {"id": id or f"id-{call.id}", "object": "chat.completion", "model": "echo", "choices": [choice]}
    return platform.compat.traces.calls.end(call.id, output)


def test_every_interface_is_collected_once_and_each_row_names_its_source(platform: Platform) -> None:
    platform.chat.complete(model="echo", messages="not stored")
    stored = ask(platform, "chat")
    ask(platform, "chat")
    response = platform.compat.responses.create(model="echo", input="response", instructions="Be short.")
    call = traced(platform, "traced", "yes")
    found = platform.traffic.collect("all")
    assert found.train is not None
    kept = rows(platform, found.train.url)
    assert [row.messages[-1].text for row in kept] == ["chat", "response", "yes"]
    assert kept[1].messages[0] == Message(Role.SYSTEM, "Be short.")
    assert [row.sources for row in kept[1:]] == [(response.id,), (call.ref,)]
    assert kept[0].sources != (stored,), "the newest of equal rows is named"
    assert (found.held_out, found.left_out) == (None, {"equal": 1})
    assert answers(platform, platform.traffic.collect("some", sources=["traces"]).url) == ["yes"]
    assert platform.traffic.collect("all").train == found.train, "the same rows are the same version"


def test_rows_are_selected_by_model_checkpoint_time_metadata_and_a_function(platform: Platform) -> None:
    model = platform.models.create("support", project="desk", base_model="tabular-mini")
    pings = [Example((Message(Role.USER, "ping"), Message(Role.ASSISTANT, "pong")))] * 4
    for _ in range(2):
        platform.training.sft(model, pings).wait()
    platform.models.promote(model, 1)
    ask(platform, "other")
    for name in ("desk/support", "desk/support:prod", "local/desk/support:step1"):
        words = [{"role": "system", "content": name}, {"role": "user", "content": "ping"}]
        ask(platform, words, model=name, temperature=0)
    answer = platform.chat.complete(model="desk/support:prod", messages="ping", temperature=0)
    traced(platform, "traced", answer.text, id=answer.id, model="desk/support:prod")
    stored = {at.request["messages"][0]["content"]: at for at in platform.chat.list()}

    def asked(**options: Any) -> list[str]:
        found = platform.traffic.collect("some", **options)
        return [] if found.train is None else [row.messages[0].text for row in rows(platform, found.url)]

    prod = ["local/desk/support:step1", "desk/support:prod", "traced"]
    assert asked(model="desk/support:prod") == asked(model="desk/support:step1") == prod
    assert asked(model="desk/support") == asked(model=model.id) == [*prod[:2], "desk/support", "traced"]
    assert asked(model="desk/support:step2") == ["desk/support"]
    assert asked(model="echo") == asked(until=stored["desk/support"].created_at) == ["other"]
    assert asked(since=stored["desk/support:prod"].created_at, sources=["chat"]) == prod[:2]
    assert asked(metadata={"team": "7"}) == []
    assert asked(where=lambda row: row.answer.text == "other") == ["other"]
    with pytest.raises(NotFound):
        asked(model="desk/support:nothing")


def test_reasoning_is_left_out() -> None:
    script = [say(reasoning("hm"), "chat"), say(reasoning("hm"), "response")]
    earlier = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "so", "reasoning_content": "hm"},
        {"role": "user", "content": "and?"},
    ]
    with open_platform(backend=ScriptedBackend(script, ["echo"])) as platform:
        ask(platform, earlier)
        platform.compat.responses.create(model="echo", input="hello")
        kept = rows(platform, platform.traffic.collect("all").url)
    assert sorted(row.messages[-1].text for row in kept) == ["chat", "response"]
    assert {message.reasoning for row in kept for message in row.messages} == {None}


def test_only_the_callers_own_rows_are_collected(platform: Platform) -> None:
    acme = platform.acting_as(Principal("acme", "acme", Scope("acme")))
    ask(platform, "the host's")
    traced(platform, "the host's trace", "yes")
    ask(acme, "acme's")
    found = acme.traffic.collect("mine")
    assert found.train is not None
    assert found.train.entity == "acme"
    assert answers(platform, found.url) == ["acme's"]
    with pytest.raises(Forbidden):
        acme.traffic.collect("theirs", entity="local")
    one = platform.acting_as(Principal("one", "acme", Scope("acme", frozenset(["p"]))))
    ask(one, "in p", project="p")
    assert answers(platform, one.traffic.collect("mine", project="p").url) == ["in p"]
    with pytest.raises(Forbidden):
        one.traffic.collect("mine", project="q")


@pytest.mark.parametrize("turn", [{"content": None}, {"content": []}, {}, {"content": None, "tool_calls": []}])
def test_conversations_with_a_turn_that_says_nothing_are_left_out(platform: Platform, turn: dict[str, Any]) -> None:
    traced(platform, "asked", None)
    asked = {"role": "user", "content": "asked"}
    inputs = {"model": "traced", "messages": [asked, {"role": "assistant", **turn}, asked]}
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "yes"}}
    output = {"id": "c", "object": "chat.completion", "model": "echo", "choices": [choice]}
    platform.compat.traces.calls.end(platform.compat.traces.calls.start("ask", inputs).id, output)
    traced(platform, "asked, too", "yes")
    found = platform.traffic.collect("answered")
    assert (found.train is not None, found.left_out) == (True, {"no answer": 2})


def test_redaction_reaches_every_text_and_leaves_json_whole(platform: Platform) -> None:
    turns = [
        {"role": "system", "content": "Write to root@x.org"},
        {"role": "user", "name": "ada@x.org", "content": [{"type": "text", "text": "I am ada@x.org, PIN 1234"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c", "content": "sent to ada@x.org"},
        {"role": "user", "content": "thanks, ada@x.org"},
    ]
    ask(platform, turns, tools=[TOOL])
    ask(platform, [{"role": "user", "content": [{"type": "text", "text": "see"}]}])
    found = platform.traffic.collect("clean", redact=["email", re.compile(r"\b\d{4}\b"), lambda text: text.lower()])
    (_, row) = rows(platform, found.url)
    text = str(row)
    assert "x.org" not in text
    assert "1234" not in text
    assert "[redacted]" in text
    assert "[email]" in text
    assert json.loads(row.messages[2].tool_calls[0].arguments) == {"to": ["[email]", 1]}
    assert row.tools[0].description == "as [email]"
    with pytest.raises(InvalidInput, match="email"):
        platform.traffic.collect("clean", redact="emial")


def test_the_sides_of_a_split_stay_when_rows_are_added(platform: Platform) -> None:
    def split() -> tuple[set[str], set[str]]:
        found = platform.traffic.collect("split", holdout=0.4)
        sides = (found.train, found.held_out)
        return tuple({row.messages[0].text for row in rows(platform, one.url)} if one else set() for one in sides)  # type: ignore[return-value]

    for number in range(12):
        ask(platform, f"question {number}")
    train, held_out = split()
    assert train
    assert held_out
    assert not train & held_out
    for number in range(12, 24):
        ask(platform, f"question {number}")
    more, more_held_out = split()
    assert more > train
    assert more_held_out > held_out
    for number in range(24):  # later turns of a conversation are on the side of its first
        ask(platform, [*Turns.of(f"question {number}"), {"role": "user", "content": "and?"}])
    assert split() == (more, more_held_out)


class Turns:
    @staticmethod
    def of(words: str) -> list[dict[str, str]]:
        return [{"role": "user", "content": words}, {"role": "assistant", "content": words}]


def test_feedback_selects_rows_and_makes_pairs(platform: Platform) -> None:
    outer = platform.compat.traces.calls.start("app")
    good = traced(platform, "best?", "this", parent=outer)
    for call, up in ((outer, True), (traced(platform, "best?", "that"), False), (traced(platform, "alone", "x"), True)):
        platform.compat.traces.feedback.add(call.ref, "thumbs", {"up": up})
    stored = ask(platform, "plain")
    found = platform.traffic.collect("good", score="up", at_least=1)
    assert answers(platform, found.url) == ["x", "this"]
    assert found.left_out == {"no score": 1, "score": 1}
    platform.compat.traces.feedback.add(stored, "thumbs", {"up": 1})
    assert answers(platform, platform.traffic.collect("good", score="up", at_least=1).url) == ["plain", "x", "this"]
    assert answers(platform, platform.traffic.collect("last", score="up", at_least=1, limit=2).url) == ["plain", "x"]
    found = platform.traffic.collect("pairs", score="up", pairs=True)
    (pair,) = rows(platform, found.url)
    assert isinstance(pair, Preference)
    assert (pair.chosen.text, pair.rejected.text, pair.sources[0]) == ("this", "that", good.ref)
    assert found.left_out["not paired"] == 2
    assert platform.traffic.collect("pairs", score=lambda row: len(row.answer.text) == 9, pairs=True).train is None
    for wrong in ({"pairs": True}, {"at_least": 1}, {"holdout": 1}, {"limit": 0}, {"sources": ["chats"]}):
        with pytest.raises(InvalidInput):
            platform.traffic.collect("wrong", **wrong)


def test_a_judge_scores_rows() -> None:
    def judge(request: Any) -> str:
        return "yes" if "good" in request.messages[-1].text else "no"

    with open_platform(backend=ScriptedBackend(judge, models=["m"])) as platform:
        for words in ("good", "bad"):
            ask(platform, words, model="m")
        rule = {"type": "llm_judge", "model": "m", "prompt": "Is it well? {prompt} {output}"}
        found = platform.traffic.collect("judged", score=rule, at_least=1)
        assert [row.messages[0].text for row in rows(platform, found.url)] == ["good"]


def test_a_checkpoint_leads_back_to_every_row(platform: Platform) -> None:
    platform.models.create("support", project="desk", base_model="tabular-mini")
    ids = [ask(platform, f"ping {number}") for number in range(3)]
    checkpoint = platform.training.sft("desk/support", platform.traffic.collect("pings", limit=2).url).result()
    back = [*platform.traffic.lineage("desk/support", checkpoint.step)]
    assert [(row.step, row.row, row.sources) for row in back] == [(1, 0, (ids[2],)), (1, 1, (ids[1],))]
    assert platform.chat.get(back[0].sources[0]).request["messages"][0]["content"] == "ping 2"
    with pytest.raises(InvalidInput, match="another model 3"):
        assert platform.traffic.collect("none", model="nothing").url


def test_what_fails_half_way_leaves_nothing(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(8):
        ask(platform, f"ping {number}")
    before = {*platform._runtime.artifacts.names()}

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a fault")

    def fails(row: Any) -> bool:
        if row.messages[0].text == "ping 0":
            raise RuntimeError("a fault")
        return True

    with pytest.raises(RuntimeError, match="a fault"):
        platform.traffic.collect("half", where=fails, holdout=0.5)
    with monkeypatch.context() as patch:
        patch.setattr(type(platform._runtime.store), "transact", broken)
        with pytest.raises(RuntimeError, match="a fault"):
            platform.traffic.collect("half")
    assert {*platform._runtime.artifacts.names()} == before
    assert platform.compat.uploads.find("half:latest", project="default") is None


def test_a_row_says_what_it_was_made_from_and_other_words_of_that_name_are_nothing() -> None:
    row = Example((Message(Role.USER, "a"), Message(Role.ASSISTANT, "b")), (), ("x", "y"))
    assert example_of(json.loads(dump_example(row))) == row
    for other in ("web", 3, {"a": 1}, [1], None):
        assert example_of({**json.loads(dump_example(row)), "sources": other}).sources == ()


def test_calls_that_no_client_of_models_sends_are_left_out(platform: Platform) -> None:
    message = {"role": "assistant", "content": "yes"}
    for inputs, choices in (
        ({}, [{"message": message}]),
        ({"messages": "hello"}, [{"message": message}]),
        ({"messages": [{"role": "user", "content": {"a": 1}}]}, [{"message": message}]),
        ({"messages": [{"role": "user", "content": "q"}]}, "yes"),
        ({"messages": [{"role": "user", "content": "q"}]}, [{"text": "yes"}]),
        ({"messages": [{"role": "user", "content": "q"}]}, [{"message": {"role": "user", "content": "no"}}]),
        ({"messages": [{"role": "user", "content": "q"}]}, [{"message": message, "finish_reason": "length"}]),
        ({"messages": [{"role": "user", "content": "q"}], "tools": 3}, [{"message": message}]),
    ):
        call = platform.compat.traces.calls.start("ask", inputs)
        platform.compat.traces.calls.end(call.id, {"id": "x", "object": "chat.completion", "choices": choices})
    platform.compat.traces.calls.end(platform.compat.traces.calls.start("other").id, {"id": 3})
    found = platform.traffic.collect("calls")
    assert found.train is None
    assert found.left_out == {"no answer": 1, "not finished": 1, "unreadable": 4, "no messages": 2}


ASKED = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
SPOKEN = {"role": "user", "parts": [{"type": "text", "content": "hi"}]}
WEATHER = {"type": "tool_call", "id": "1", "name": "weather", "arguments": {"in": "Rome"}}


@pytest.mark.parametrize(
    ("inputs", "output", "said"),
    [
        (
            {"model": "m", "input": "hi", "instructions": "Be short."},
            {"object": "response", "output": [{"type": "message", "role": "assistant", "content": "yes"}]},
            ["Be short.", "hi", "yes"],
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}], "tools": [{"name": "f"}]},
            {
                "object": "response",
                "status": "completed",
                "output": [
                    {"type": "reasoning", "id": "r", "summary": []},
                    {
                        "type": "message",
                        "id": "m",
                        "status": "completed",
                        "role": "assistant",
                        "content": [{"type": "output_text", "text": "yes", "annotations": [], "logprobs": []}],
                    },
                ],
            },
            ["hi", "yes"],
        ),
        ({"input": "hi", "previous_response_id": "x"}, {"object": "response", "output": []}, None),
        ({"input": 3}, {"object": "response", "output": []}, None),
        (
            {"messages": [SPOKEN], "system_instructions": [{"type": "text", "content": "Be short."}]},
            {
                "messages": [
                    {"role": "assistant", "parts": [{"type": "text", "content": "yes"}], "finish_reason": "stop"}
                ]
            },
            ["Be short.", "hi", "yes"],
        ),
        (
            {
                "messages": [
                    SPOKEN,
                    {"role": "assistant", "parts": [WEATHER]},
                    {"role": "tool", "parts": [{"type": "tool_call_response", "id": "1", "response": "sun"}]},
                ],
                "tools": [{"type": "function", "name": "weather", "description": "Of a town"}],
            },
            {"messages": [{"role": "assistant", "parts": [{"type": "text", "content": "sun"}]}]},
            ["hi", "", "sun", "sun"],
        ),
        ({"messages": [SPOKEN]}, {"messages": [{**SPOKEN, "role": "assistant", "finish_reason": "length"}]}, None),
        ({"messages": 3}, {"messages": [3]}, None),
        ({"messages": [SPOKEN]}, {"messages": [{"role": "assistant", "parts": [{"type": "blob"}]}]}, None),
    ],
)
def test_calls_of_responses_and_spans_are_conversations(
    platform: Platform, inputs: Any, output: Any, said: list[str] | None
) -> None:
    call = platform.compat.traces.calls.start("ask", inputs, attributes={"gen_ai.response.id": "x"})
    platform.compat.traces.calls.end(call.id, {"id": "x", **output})
    found = platform.traffic.collect("calls", sources=["traces"])
    assert (found.train is None) is (said is None), found
    if said is not None:
        (row,) = rows(platform, found.url)
        assert [message.text for message in row.messages] == said
        assert row.sources == (call.ref,)


def test_nothing_is_kept_of_an_entity_that_is_deleted_meanwhile(platform: Platform) -> None:
    ask(platform, "one", project="p")
    ask(platform, "two", project="p")

    def score(row: Any) -> float:
        platform.delete_entity("local")
        return 1.0

    with pytest.raises(Unauthenticated):
        platform.traffic.collect("d", score=score, project="p")
    assert platform.compat.uploads.find("d", project="p") is None
    assert list(platform._runtime.artifacts.names()) == []


# ---- what a variant answered


def test_rows_are_selected_by_variant_and_by_the_version_that_answered(platform: Platform) -> None:
    for system in ("one", "two", "three"):
        platform.variants.publish("desk/support", model="echo", system=system)
        platform.variants.publish("desk/other", model="echo", system=system)
    platform.variants.promote("desk/support", 1)
    ask(platform, "prod 1", model="variants/desk/support@prod")
    platform.variants.promote("desk/support", 2)
    ask(platform, "prod 2", model="variants/desk/support@prod")
    ask(platform, "newest", model="variants/desk/support")
    ask(platform, "by number", model="variants/local/desk/support@1")
    ask(platform, "other", model="variants/desk/other@1")
    ask(platform, "echo")
    answer = platform.compat.responses.create(model="variants/desk/support@prod", input="response 2")
    call = ask(platform, "traced 2", model="variants/desk/support@prod")
    traced(platform, "a call", "yes", id=call, model="variants/desk/support@prod")

    def asked(model: str, **options: Any) -> set[str]:
        found = platform.traffic.collect("some", model=model, **options)
        return set() if found.train is None else {row.messages[-2].text for row in rows(platform, found.url)}

    ones, twos = {"prod 1", "by number"}, {"prod 2", "response 2", "traced 2", "a call"}
    for name in ("variants/desk/support@1", "variants/local/desk/support@1"):
        assert asked(name) == ones
    assert asked("variants/desk/support@2") == asked("variants/desk/support@prod") == twos
    assert asked("variants/desk/support@latest") == asked("variants/desk/support@3") == {"newest"}
    assert asked("variants/desk/support") == {*ones, *twos, "newest"}
    assert asked("variants/desk/other") == {"other"}
    assert asked("variants/desk/other", sources=["traces"]) == set()
    seen: dict[str, str] = {}
    platform.traffic.collect("some", where=lambda row: seen.setdefault(row.messages[-2].text, row.variant) is None)
    assert {words: name.partition("@")[2] for words, name in seen.items() if "support" in name} == {
        **dict.fromkeys(ones, "1"),
        **dict.fromkeys(twos, "2"),
        "newest": "3",
    }
    assert (seen["prod 2"], seen["echo"]) == ("variants/local/desk/support@2", "")
    assert platform.compat.responses.get(answer.id).model == "variants/desk/support@prod"
    assert platform.chat.get(call).model == "variants/desk/support@prod"
    assert call in [one.id for one in platform.chat.list(model="variants/desk/support@prod")]
    for name in ("variants/desk/support@9", "variants/desk/support@beta"):
        with pytest.raises(NotFound):
            asked(name)
    platform.variants.promote("desk/support", 3)
    assert asked("variants/desk/support@prod") == {"newest"}


def test_the_version_that_a_rollout_chose_is_the_one_that_answered(platform: Platform) -> None:
    for number in (1, 2):
        platform.variants.publish("desk/support", model="echo", template=f"{number}: {{question}}")
    platform.variants.promote("desk/support", 1)
    platform.rollouts.start("variants/desk/support", 2, canary=[0.5, 1])
    said = {
        platform.chat.complete(model="variants/desk/support@prod", messages=f"m{at}", user=f"u{at}", store=True).text
        for at in range(20)
    }
    for number in (1, 2):
        found = platform.traffic.collect("some", model=f"variants/desk/support@{number}")
        assert set(answers(platform, found.url)) == {text for text in said if text.startswith(f"{number}:")}


def test_the_answers_of_a_version_whose_checkpoint_is_gone_are_still_found(platform: Platform) -> None:
    platform.models.create("agent", project="desk", base_model="tabular-mini")
    pings = [Example((Message(Role.USER, "ping"), Message(Role.ASSISTANT, "pong")))] * 4
    for _ in range(2):
        platform.training.sft("desk/agent", pings, epochs=1).wait()
    platform.variants.publish("desk/support", model="desk/agent:step1")
    ask(platform, "ping", model="variants/desk/support@1")
    platform.models.delete_checkpoints("desk/agent", [1])
    assert platform.traffic.collect("some", model="variants/desk/support@1").train is not None


def test_a_job_keeps_the_version_to_which_the_alias_pointed(platform: Platform) -> None:
    for system in ("one", "two"):
        platform.variants.publish("desk/support", model="echo", system=system)
    platform.variants.promote("desk/support", 1)
    ask(platform, "first", model="variants/desk/support@prod")
    job = platform.traffic.submit("some", model="variants/desk/support@prod")
    platform.variants.promote("desk/support", 2)
    assert answers(platform, job.result().url) == ["first"]


def test_a_variant_of_another_tenant_selects_nothing(platform: Platform) -> None:
    platform.variants.publish("desk/support", model="echo")
    ask(platform, "ours", model="variants/desk/support@1")
    acme = platform.acting_as(Principal("acme", "acme", Scope("acme")))
    for name in ("variants/local/desk/support@1", "variants/local/desk/support"):
        assert acme.traffic.collect("some", model=name).train is None
