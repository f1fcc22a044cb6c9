"""Variants by name on every door: what the model is asked, what is booked, and what is said of it."""

import asyncio
import json
import logging
from collections.abc import Iterator
from decimal import Decimal
from itertools import product
from typing import Any

import attrs
import pytest

from each import each_case
from http_client import Client, client_of
from modelyard import CompletionBooked, Platform, Principal, Scope, open_platform
from modelyard.backends.echo import EchoBackend
from modelyard.domain.catalogue import Pricing
from modelyard.domain.evaluation.scorers import LlmJudge
from modelyard.errors import Forbidden, InvalidInput, ModelNotFound
from modelyard.testing import ManualClock

NAME = "variants/desk/support"
RENDERED = "Customer: where?\nHelper:"


@attrs.define
class Noting:
    """A backend that notes what it is asked, and answers as the echo does."""

    inner: EchoBackend = attrs.field(factory=EchoBackend)
    asked: list[Any] = attrs.field(factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def stream(self, request: Any, served: Any) -> Any:
        self.asked.append(request)
        return self.inner.stream(request, served)


@pytest.fixture
def backend() -> Noting:
    return Noting()


@pytest.fixture
def seen() -> list[object]:
    return []


@pytest.fixture
def platform(backend: Noting, seen: list[object]) -> Iterator[Platform]:
    with open_platform(entity="acme", backend=backend, clock=ManualClock(), observer=seen.append) as opened:
        echo = opened.catalogue.get("echo")
        opened.catalogue.register(attrs.evolve(echo, pricing=Pricing(prompt=Decimal("0.01"))))
        opened.variants.publish(
            "desk/support",
            model="echo",
            system="Be brief.",
            template="Customer: {question}\nHelper:",
            examples=[{"user": "Hi", "assistant": "Hello."}, {"inputs": {"question": "Who?"}, "assistant": "Me."}],
            parameters={"max_tokens": 50, "stop": ["STOP"]},
        )
        opened.variants.promote("desk/support", 1)
        yield opened


@pytest.fixture
def client(platform: Platform) -> Client:
    return client_of(platform)


def said(request: Any) -> list[tuple[str, str]]:
    return [(message.role.value, message.text) for message in request.messages]


ASKED = [
    ("system", "Be brief."),
    ("user", "Hi"),
    ("assistant", "Hello."),
    ("user", "Customer: Who?\nHelper:"),
    ("assistant", "Me."),
    ("user", RENDERED),
]


# ---- every door, whole and streamed


USER = {"role": "user", "content": "where?"}
DOORS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/v1/chat/completions", {"messages": [USER]}),
    "messages": ("/v1/messages", {"messages": [USER], "max_tokens": 60}),
    "responses": ("/v1/responses", {"input": "where?"}),
    "completions": ("/v1/completions", {"prompt": "where?", "max_tokens": 60}),
}


@pytest.mark.slow
@each_case(("door", "streamed", "version"), product(DOORS, (False, True), ("", "@1", "@prod", "@latest")))
def test_a_variant_is_asked_for_over_http_at_every_door(
    client: Client, backend: Noting, door: str, streamed: bool, version: str
) -> None:
    before, (path, body) = len(list(client.platform.usage.list())), DOORS[door]
    backend.asked.clear()
    answer = client.send("POST", path, {"model": NAME + version, "stream": streamed, **body})
    assert answer.status == 200, answer.raw
    if streamed:
        assert any(event != "[DONE]" and NAME + version in json.dumps(event) for event in answer.events)
    else:
        assert answer.json["model"] == NAME + version
    assert b"Helper" in answer.raw
    (request,) = backend.asked
    assert said(request) == ASKED
    assert (request.max_tokens, request.stop, request.prompt) == (50, ("STOP",), None)
    (booked,) = list(client.platform.usage.list())[before:]
    assert (booked.model, booked.base_model) == ("echo", "echo")
    assert booked.cost == Decimal("0.01") * booked.prompt_tokens > 0


def test_a_variant_is_asked_for_in_python_at_every_door(platform: Platform, backend: Noting) -> None:
    name, compat = f"{NAME}@prod", platform.compat
    texts = [
        platform.chat.complete(model=name, messages="where?").text,
        "".join(delta.text for delta in platform.chat.stream(model=name, messages="where?")),
        compat.completions.complete(model=name, prompt="where?").text,
        "".join(delta.text for delta in compat.completions.stream(model=name, prompt="where?")),
        compat.responses.create(model=name, input="where?").output[0]["content"][0]["text"],
    ]
    assert texts[:2] == [RENDERED] * 2
    assert texts[4] == RENDERED
    assert [said(request) for request in backend.asked] == [ASKED] * 5


def test_a_variant_is_asked_for_on_an_event_loop(platform: Platform, backend: Noting) -> None:
    async def ask() -> list[str]:
        whole = await platform.chat.acomplete(model=NAME, messages="where?")
        parts = [delta.text async for delta in platform.chat.astream(model=NAME, messages="where?")]
        return [whole.text, "".join(parts)]

    assert asyncio.run(ask()) == [RENDERED] * 2
    assert [said(request) for request in backend.asked] == [ASKED] * 2


def test_the_tokens_of_a_variant_are_those_of_what_the_model_is_asked(client: Client) -> None:
    counted = client.ok("POST", "/v1/messages/count_tokens", {"model": NAME, "messages": [USER]})["input_tokens"]
    whole = client.ok("POST", "/v1/messages", {"model": NAME, "messages": [USER], "max_tokens": 9})
    assert counted == whole["usage"]["input_tokens"]
    bare = client.ok("POST", "/v1/messages/count_tokens", {"model": "echo", "messages": [USER]})["input_tokens"]
    assert counted > bare


# ---- what is said of it


def test_it_is_named_in_the_log_and_to_the_observer(
    client: Client, seen: list[object], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "modelyard.access")
    client.ok("POST", "/v1/chat/completions", {"model": f"{NAME}@prod", "messages": [USER]})
    client.ok("POST", "/v1/chat/completions", {"model": "echo", "messages": [USER]})
    first, second = (record.access for record in caplog.records if hasattr(record, "access"))
    assert (first["model"], first["asked"]) == ("echo", "variants/acme/desk/support@1")
    assert "asked" not in second
    booked = [event for event in seen if isinstance(event, CompletionBooked)]
    assert [(event.model, event.asked) for event in booked] == [("echo", "variants/acme/desk/support@1"), ("echo", "")]


def test_a_stored_completion_has_the_name_and_what_was_asked(platform: Platform) -> None:
    made = platform.chat.complete(model=NAME, messages="where?", store=True)
    (kept,) = platform.chat.list(model=NAME)
    assert kept.request["messages"][0]["content"] == "where?"
    assert platform.chat.lineage(made.id).model == "echo"


# ---- names


def test_an_alias_or_the_newest_is_looked_up_at_each_request(platform: Platform, backend: Noting) -> None:
    def systems() -> list[str]:
        backend.asked.clear()
        for version in ("@prod", "", "@1"):
            platform.chat.complete(model=NAME + version, messages="hi", max_tokens=2)
        return [said(request)[0][1] for request in backend.asked]

    assert systems() == ["Be brief."] * 3
    platform.variants.publish("desk/support", model="echo", system="Be long.")
    assert systems() == ["Be brief.", "Be long.", "Be brief."]
    platform.variants.promote("desk/support", 2)
    assert systems() == ["Be long.", "Be long.", "Be brief."]
    platform.variants.rollback("desk/support")
    assert systems() == ["Be brief.", "Be long.", "Be brief."]


@pytest.mark.parametrize("name", ["@9", "@beta", "@v1", "x", "@1/2", ":1"])
def test_an_unknown_version_is_an_unknown_model(client: Client, name: str) -> None:
    with pytest.raises((ModelNotFound, Forbidden)):
        client.platform.chat.complete(model=NAME + name, messages="hi")
    assert client.send("POST", "/v1/chat/completions", {"model": NAME + name, "messages": [USER]}).status in (403, 404)


def test_another_tenant_or_project_may_not_ask(platform: Platform) -> None:
    platform.variants.publish("lab/other", model="echo")
    globex = platform.acting_as(Principal("key", "globex", Scope("globex"), "key"))
    lab = platform.acting_as(Principal("key", "acme", Scope("acme", frozenset({"lab"})), "key"))
    with pytest.raises(ModelNotFound):
        globex.chat.complete(model=f"{NAME}@1", messages="hi")
    for asking, name in ((globex, "variants/acme/desk/support@1"), (lab, NAME), (lab, "variants/acme/desk/support@1")):
        with pytest.raises(Forbidden):
            asking.chat.complete(model=name, messages="hi")
    assert lab.chat.complete(model="variants/lab/other", messages="hi").text == "hi"
    with pytest.raises(ModelNotFound, match="did you mean 'lab/other'"):
        lab.chat.complete(model="variants/lab/othr", messages="hi")


def test_a_key_needs_the_model_of_a_variant_too() -> None:
    with open_platform(entity="acme") as platform:
        platform.models.create("agent", project="secret", base_model="tabular-mini")
        platform.variants.publish("lab/other", model="secret/agent")
        lab = platform.acting_as(Principal("key", "acme", Scope("acme", frozenset({"lab"})), "key"))
        with pytest.raises(Forbidden):
            lab.chat.complete(model="variants/lab/other", messages="hi")
        assert platform.chat.complete(model="variants/lab/other", messages="hi", max_tokens=2).usage.prompt_tokens
        (booked,) = platform.usage.list()
        assert (booked.model, booked.checkpoint_step) == ("acme/secret/agent", 0)


def test_what_has_the_name_already_goes_before_a_variant(platform: Platform) -> None:
    platform.catalogue.register(attrs.evolve(platform.catalogue.get("echo"), id=NAME), answers_as="echo")
    assert platform.chat.complete(model=NAME, messages="hi").text == "hi"
    assert platform.chat.complete(model=f"{NAME}@1", messages="hi").text != "hi"


def test_a_variant_makes_no_embeddings(platform: Platform) -> None:
    with pytest.raises(InvalidInput):
        platform.embeddings.create(model=NAME, input="hi")


# ---- what the model is asked


def asked(platform: Platform, backend: Noting, **options: Any) -> Any:
    backend.asked.clear()
    platform.chat.complete(model=NAME, **options)
    return backend.asked[0]


def test_the_template_makes_the_first_message_of_the_user_and_no_other(platform: Platform, backend: Noting) -> None:
    platform.variants.publish("desk/support", model="echo", template="Q: {q}")
    history = [
        {"role": "system", "content": "old"},
        {"role": "user", "content": [{"type": "text", "text": "{q} {x"}]},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "and?"},
    ]
    assert said(asked(platform, backend, messages=history)) == [
        ("system", "old"),
        ("user", "Q: {q} {x"),
        ("assistant", "yes"),
        ("user", "and?"),
    ]


def test_the_system_text_replaces_that_of_the_caller(platform: Platform, backend: Noting) -> None:
    history = [{"role": "system", "content": "old"}, {"role": "developer", "content": "older"}, USER]
    assert said(asked(platform, backend, messages=history)) == ASKED


def test_what_a_version_sets_it_sets_for_every_caller(platform: Platform, backend: Noting) -> None:
    platform.variants.publish(
        "desk/support", model="echo", parameters={"max_tokens": 50, "stop": "A", "response_format": {"type": "text"}}
    )
    request = asked(platform, backend, messages="hi", stop=["B"], max_tokens=9, seed=7)
    assert (request.stop, request.max_tokens, request.sampling.seed) == (("A",), 9, 7)
    assert asked(platform, backend, messages="hi", max_tokens=99).max_tokens == 50


INPUTS = '{"question": "where?", "customer": {"name": "Ada"}}'


def test_several_inputs_are_members_of_the_message(platform: Platform, backend: Noting) -> None:
    platform.variants.publish("desk/support", model="echo", template="{customer} asks: {question}")
    request = asked(platform, backend, messages=INPUTS)
    assert said(request) == [("user", '{"name": "Ada"} asks: where?')]


WRONG = ("where?", "[]", "{}", '{"question": "a"}', INPUTS[:-1] + ', "more": 1}', '{"question": 1, "question": 2}')


@each_case(("door", "text"), product(DOORS, WRONG))
def test_inputs_that_do_not_fit_are_refused_at_their_place(client: Client, door: str, text: str) -> None:
    client.platform.variants.publish("desk/support", model="echo", template="{customer} asks: {question}")
    path, body = DOORS[door]
    sent = json.loads(json.dumps(body).replace(json.dumps("where?"), json.dumps(text)))
    answer = client.send("POST", path, {"model": NAME, **sent})
    assert answer.status in (400, 422)
    assert b"JSON object with the members" in answer.raw
    assert not list(client.platform.usage.list())


def test_what_cannot_be_put_into_a_prompt_is_refused(platform: Platform) -> None:
    complete = platform.compat.completions.complete
    with pytest.raises(InvalidInput) as caught:
        complete(model=NAME, prompt=[1, 2])
    assert caught.value.problems[0].loc == ("prompt",)
    with pytest.raises(InvalidInput) as caught:
        complete(model=NAME, prompt="a", prompt_logprobs=1)
    assert caught.value.problems[0].loc == ("prompt_logprobs",)
    with pytest.raises(InvalidInput, match="message of the user"):
        platform.chat.complete(model=NAME, messages=[{"role": "system", "content": "a"}])


# ---- evaluated like a model


ROWS = [{"question": word, "expected": f"Customer: {word}\nHelper:"} for word in ("a", "b", "c")]


@pytest.mark.slow
def test_a_variant_is_evaluated_and_compared_like_a_model(platform: Platform) -> None:
    with_template = platform.evaluations.run("quiz", f"{NAME}@prod", ROWS, project="desk")
    assert with_template.run.model == "weave:///acme/desk/object/variants.support:v1"
    assert with_template.run.summary is not None
    assert with_template.run.summary["mean"] == 1.0
    platform.variants.publish("desk/support", model="echo", template="{question}")
    without = platform.evaluations.run("quiz", NAME, ROWS, project="desk")
    assert without.run.summary is not None
    assert without.run.summary["mean"] == 0.0
    report = platform.evaluations.compare(with_template.run.id, without.run.id)
    assert report.comparison.metric("exact_match").paired.difference == -1.0
    assert [run.id for run in platform.variants.lineage("desk/support@1").runs] == [with_template.run.id]
    again = platform.evaluations.run("quiz", with_template.run.model, ROWS, project="desk")
    assert again.run.model == with_template.run.model


def test_a_queued_run_stays_with_the_version_of_its_beginning(platform: Platform) -> None:
    run = platform.evaluations.submit("quiz", f"{NAME}@prod", ROWS, project="desk")
    platform.variants.publish("desk/support", model="echo", template="{question}")
    platform.variants.promote("desk/support", 2)
    platform.worker().run_until_idle()
    summary = platform.evaluations.runs.get(run.id).summary
    assert summary is not None
    assert summary["mean"] == 1.0


def test_rows_have_messages_a_prompt_or_the_inputs(platform: Platform) -> None:
    platform.variants.publish("desk/support", model="echo", template="{a} {b}")
    rows = [
        {"a": "x", "b": [1], "expected": "x [1]"},
        {"prompt": '{"a": "x", "b": "y"}', "expected": "x y"},
        {"messages": [{"role": "user", "content": '{"a": "x", "b": "z"}'}], "expected": "x z"},
    ]
    result = platform.evaluations.run("quiz", NAME, rows)
    assert result.run.summary is not None
    assert result.run.summary["mean"] == 1.0
    lacking = platform.evaluations.run("quiz", NAME, [{"a": "x", "expected": ""}])
    assert "row.b: is missing" in lacking.rows[0].detail


def test_a_variant_is_a_judge(platform: Platform) -> None:
    platform.variants.publish("desk/judge", model="echo", template="{question} 1")
    judge = LlmJudge("variants/desk/judge", "{output}: how good?", scale="number")
    result = platform.evaluations.run("quiz", "echo", [{"prompt": "a"}], [judge])
    assert result.run.summary is not None
    assert result.run.summary["scored"] == 1
