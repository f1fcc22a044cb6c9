"""Responses over HTTP, on both bases and both faces: what clients send, what they get, and who gets it."""

from typing import Any

import attrs
import pytest

from backends import Failing, FixedAnswer
from modelyard import ScriptedBackend, open_platform
from modelyard.backends import call, reasoning, say
from modelyard.domain.catalogue import Pricing
from modelyard.domain.completion import Delta, FinishReason, ToolCallDelta
from modelyard.errors import BackendError

BASES = pytest.mark.parametrize("base", ["/v1", "/inference/v1"])
LOOK = {
    "type": "function",
    "name": "look",
    "description": "look something up",
    "parameters": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]},
    "strict": True,
}


def asked(client: Any, input: Any = "hello there", base: str = "/v1", **members: Any) -> Any:
    return client.send("POST", f"{base}/responses", {"model": "echo", "input": input, **members})


def made(client: Any, input: Any = "hello there", **members: Any) -> Any:
    answer = asked(client, input, **members)
    assert answer.status == 200, answer.raw
    return answer.json


# ---- answers -----------------------------------------------------------------------------------------------------


@BASES
def test_a_response_has_items_usage_and_the_parameters_of_its_request(client: Any, base: str) -> None:
    response = made(client, base=base, instructions="Be brief.", metadata={"k": "v"}, temperature=0.5, tools=[LOOK])
    assert response["status"] == "completed"
    (message,) = response["output"]
    assert message["content"] == [{"type": "output_text", "text": "hello there", "annotations": [], "logprobs": []}]
    assert (message["role"], message["status"]) == ("assistant", "completed")
    usage = response["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert response["completed_at"] >= response["created_at"]
    assert (response["instructions"], response["metadata"], response["temperature"]) == ("Be brief.", {"k": "v"}, 0.5)
    assert response["tools"] == [LOOK]
    assert client.ok("GET", f"{base}/responses/{response['id']}") == response


def test_a_call_is_an_item_and_its_output_is_sent_back(client: Any) -> None:
    first = made(client, tools=[LOOK], tool_choice={"type": "function", "name": "look"})
    (call,) = first["output"]
    assert (call["type"], call["name"], call["status"]) == ("function_call", "look", "completed")
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "found"}
    then = made(client, [output, {"role": "user", "content": "and?"}], previous_response_id=first["id"])
    assert then["output"][0]["content"][0]["text"] == "and?"
    messages = client.platform.compat.responses.messages(then["id"])
    assert [message.role for message in messages] == ["user", "assistant", "tool", "user", "assistant"]
    assert messages[1].tool_calls[0].name == "look"


def test_json_follows_its_schema(client: Any) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    form = {"type": "json_schema", "name": "number", "schema": schema, "strict": True}
    response = made(client, text={"format": form})
    assert response["output"][0]["content"][0]["text"].startswith('{"n":')
    assert response["text"]["format"] == form


def test_log_probabilities_come_when_they_are_included(client: Any) -> None:
    members = {"model": "tabular-mini", "max_output_tokens": 2, "top_logprobs": 2, "temperature": 0}
    response = made(client, include=["message.output_text.logprobs"], **members)
    entries = response["output"][0]["content"][0]["logprobs"]
    assert [len(entry["top_logprobs"]) for entry in entries] == [2, 2]
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert response["output"][0]["status"] == "incomplete"
    plain = made(client, model="tabular-mini", max_output_tokens=2)
    assert plain["output"][0]["content"][0]["logprobs"] == []


# ---- streams -----------------------------------------------------------------------------------------------------


def test_a_stream_has_the_events_of_the_format_in_their_order(client: Any) -> None:
    events = asked(client, "one two", stream=True).events
    assert [event["type"] for event in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert "".join(event["delta"] for event in events if event["type"].endswith(".delta")) == "one two"
    whole = events[-1]["response"]
    assert whole["output"] == [events[-2]["item"]]
    assert events[0]["response"]["output"] == []
    assert client.ok("GET", f"/v1/responses/{whole['id']}") == whole


def test_a_stream_with_calls_says_what_the_whole_answer_says(client: Any) -> None:
    members = {"tools": [LOOK], "tool_choice": "required"}
    events = asked(client, stream=True, **members).events
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[2] == "output_item.added"
    assert kinds[-3:] == ["function_call_arguments.done", "output_item.done", "completed"]
    arguments = "".join(event["delta"] for event in events if event["type"].endswith("arguments.delta"))
    (call,) = events[-1]["response"]["output"]
    (whole,) = made(client, **members)["output"]
    assert call["arguments"] == arguments == whole["arguments"]


def test_text_and_several_calls_are_items_that_follow_each_other(client_for: Any) -> None:
    deltas = [
        Delta("so ", 1),
        Delta(tokens=1, tool_call=ToolCallDelta(0, "c0", "look", '{"q":')),
        Delta(tokens=1, tool_call=ToolCallDelta(0, arguments=' "a"}')),
        Delta(tokens=1, tool_call=ToolCallDelta(1, "c1", "look", '{"q": "b"')),
        Delta(tokens=1, tool_call=ToolCallDelta(2, "c2", "look", "{}")),
        Delta(tokens=1, tool_call=ToolCallDelta(1, arguments="}")),
        Delta("then", 1, finish_reason=FinishReason.TOOL_CALLS),
    ]
    with open_platform(backend=FixedAnswer(deltas)) as platform:
        client = client_for(platform)
        events = asked(client, stream=True, tools=[LOOK]).events
    output = events[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["message", *["function_call"] * 3, "message"]
    assert [item.get("arguments") for item in output[1:4]] == ['{"q": "a"}', '{"q": "b"}', "{}"]
    done = [event for event in events if event["type"] == "response.output_item.done"]
    assert sorted(event["output_index"] for event in done) == [0, 1, 2, 3, 4]
    assert all(event["item"] == output[event["output_index"]] for event in done)
    begun: set[int] = set()
    for event in events:
        if event["type"] == "response.output_item.added":
            begun.add(event["output_index"])
        assert event.get("output_index", 0) in begun | {0}


def test_a_backend_that_fails_in_mid_stream_ends_it_with_an_error_and_a_failed_response(client_for: Any) -> None:
    with open_platform(backend=Failing(BackendError("it broke"), after=1)) as platform:
        client = client_for(platform)
        answer = asked(client, "one two", stream=True)
        events = answer.events
        assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
        assert events[-1]["response"]["error"] == {"code": "backend_error", "message": "it broke"}
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert client.send("GET", f"/v1/responses/{events[0]['response']['id']}").status == 404
        assert [entry.completion_tokens for entry in platform.usage.list(entity="acme")] == [1]


# ---- reasoning -----------------------------------------------------------------------------------------------------

REASONED = say(reasoning("They ask"), reasoning(" for one."), "one", " two")
REASONING_EVENTS = [
    "created",
    "in_progress",
    "output_item.added",
    "content_part.added",
    *["reasoning_text.delta"] * 2,
    "reasoning_text.done",
    "content_part.done",
    "output_item.done",
    "output_item.added",
    "content_part.added",
    *["output_text.delta"] * 2,
    "output_text.done",
    "content_part.done",
    "output_item.done",
    "completed",
]


def test_reasoning_is_an_item_before_the_message_streamed_and_whole(client_for: Any) -> None:
    with open_platform(backend=ScriptedBackend([REASONED, REASONED], ["echo"])) as platform:
        client = client_for(platform)
        whole, events = made(client), asked(client, stream=True).events
    assert [event["type"].removeprefix("response.") for event in events] == REASONING_EVENTS
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    item, message = whole["output"]
    assert item["id"].startswith("rs_")
    assert item | {"id": ""} == {
        "id": "",
        "type": "reasoning",
        "status": "completed",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "They ask for one."}],
    }
    assert message["content"][0]["text"] == "one two"
    assert whole["usage"]["output_tokens"] == 6
    assert whole["usage"]["output_tokens_details"] == {"reasoning_tokens": 4}
    streamed = events[-1]["response"]
    assert streamed["usage"] == whole["usage"]
    assert [one | {"id": ""} for one in streamed["output"]] == [one | {"id": ""} for one in whole["output"]]
    assert [event["item"] for event in events if event["type"].endswith("item.done")] == streamed["output"]
    for event in events:
        if "content_index" in event:
            assert event["item_id"] == streamed["output"][event["output_index"]]["id"]


def test_reasoning_before_a_call_and_reasoning_that_is_cut(client_for: Any) -> None:
    called, long = say(reasoning("hm"), call("look", q="a")), say(reasoning("one two three"), "four")
    with open_platform(backend=ScriptedBackend([called, called, long, long], ["echo"])) as platform:
        client = client_for(platform)
        for stream in (False, True):
            answer = asked(client, tools=[LOOK], stream=stream)
            output = answer.events[-1]["response"]["output"] if stream else answer.json["output"]
            assert [item["type"] for item in output] == ["reasoning", "function_call"]
        for stream in (False, True):
            answer = asked(client, max_output_tokens=2, stream=stream)
            response = answer.events[-1]["response"] if stream else answer.json
            (item,) = response["output"]
            assert (item["type"], item["status"], response["status"]) == ("reasoning", "incomplete", "incomplete")
            assert item["content"][0]["text"] == "one two"


def test_a_model_reads_its_reasoning_again_by_items_references_and_the_response_before(client_for: Any) -> None:
    backend = ScriptedBackend([say(reasoning("hm"), call("look", q="a")), *["done"] * 3], ["echo"])
    with open_platform(backend=backend) as platform:
        client = client_for(platform)
        first = made(client, tools=[LOOK])
        returned = {"type": "function_call_output", "call_id": first["output"][1]["call_id"], "output": "found"}
        begun = {"role": "user", "content": "hello there"}
        references = [{"type": "item_reference", "id": item["id"]} for item in first["output"]]
        made(client, [returned], previous_response_id=first["id"], tools=[LOOK])
        made(client, [begun, *first["output"], returned], tools=[LOOK])
        made(client, [begun, *references, returned], tools=[LOOK])
    for request in backend.requests[1:]:
        user, answered, tool = request.messages
        assert (user.role, answered.reasoning, answered.tool_calls[0].name, tool.text) == (
            *("user", "hm", "look", "found"),
        )


def test_echo_reasons_where_it_is_asked_to(client: Any) -> None:
    item, message = made(client, reasoning={"effort": "low"})["output"]
    assert item["content"][0]["text"] == message["content"][0]["text"] == "hello there"
    assert len(made(client, reasoning={"effort": "none"})["output"]) == 1


# ---- what was answered before ------------------------------------------------------------------------------------


def test_a_response_continues_the_one_before_without_its_instructions(client: Any) -> None:
    first = made(client, "first", instructions="Say it in rhyme.")
    second = made(client, "second", previous_response_id=first["id"], instructions="Be plain.")
    third = made(client, "third", previous_response_id=second["id"])
    assert third["previous_response_id"] == second["id"]
    messages = client.platform.compat.responses.messages(third["id"])
    assert [message.text for message in messages] == ["first", "first", "second", "second", "third", "third"]


def test_an_item_is_referred_to_by_its_id(client: Any) -> None:
    first = made(client, "first")
    reference = {"type": "item_reference", "id": first["output"][0]["id"]}
    then = made(client, [{"role": "user", "content": "first"}, reference, {"role": "user", "content": "then"}])
    assert [message.text for message in client.platform.compat.responses.messages(then["id"])] == [
        *("first", "first", "then", "then")
    ]
    lost = asked(client, [{"id": "msg_nothing_0"}])
    assert (lost.status, lost.json["error"]["param"]) == (400, "input[0].id")


def test_what_is_not_stored_is_not_there(client: Any) -> None:
    response = made(client, store=False)
    assert response["store"] is False
    assert client.send("GET", f"/v1/responses/{response['id']}").status == 404
    refused = asked(client, previous_response_id=response["id"])
    assert (refused.status, refused.json["error"]["param"]) == (400, "previous_response_id")


@BASES
def test_a_deleted_response_is_gone(client: Any, base: str) -> None:
    response = made(client, base=base)
    path = f"{base}/responses/{response['id']}"
    assert client.ok("DELETE", path) == {"id": response["id"], "object": "response", "deleted": True}
    for method, end in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
        assert client.send(method, path + end).status == 404
    assert asked(client, previous_response_id=response["id"]).status == 400


def test_the_items_of_the_input_are_paged_the_last_first(client: Any) -> None:
    items = [{"role": "user", "content": f"word {at}"} for at in range(5)]
    items.append({"role": "assistant", "content": "ok", "id": "mine"})
    path = f"/v1/responses/{made(client, items)['id']}/input_items"

    def page(query: str) -> Any:
        return client.ok("GET", path, query=query)

    newest = page("limit=2")
    assert [item["content"][0]["text"] for item in newest["data"]] == ["ok", "word 4"]
    assert (newest["has_more"], newest["first_id"], newest["data"][0]["type"]) == (True, "mine", "message")
    older = page(f"limit=2&after={newest['last_id']}")
    assert [item["content"][0]["text"] for item in older["data"]] == ["word 3", "word 2"]
    assert [item["content"][0]["text"] for item in page("order=asc")["data"]][:2] == ["word 0", "word 1"]
    assert client.send("GET", path, query="after=nothing").status == 400
    assert client.send("GET", path, query="order=up").status == 400


def test_responses_of_others_are_not_there(client: Any) -> None:
    response = made(client, "secret")
    other = client.another("rival")
    for method, end in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
        missing = other.send(method, f"/v1/responses/resp_nothing{end}")
        foreign = other.send(method, f"/v1/responses/{response['id']}{end}")
        assert (missing.status, foreign.status) == (404, 404)
        hidden = foreign.json["error"]["message"].replace(response["id"], "resp_nothing")
        assert hidden == missing.json["error"]["message"]
    assert asked(other, previous_response_id=response["id"]).json["error"]["param"] == "previous_response_id"
    assert asked(other, [{"id": response["output"][0]["id"]}]).json["error"]["param"] == "input[0].id"
    client.ok("GET", f"/v1/responses/{response['id']}")


# ---- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [LOOK, {"type": "mcp", "server_label": "x"}]}, "tools[1].type"),
        ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
        ({"tools": [LOOK], "tool_choice": {"type": "file_search"}}, "tool_choice.type"),
        ({"tools": [LOOK], "tool_choice": {"type": "function", "name": "other"}}, "tool_choice.name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"temperatur": 1}, "temperatur"),
        ({"temperature": 3}, "temperature"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options"),
        ({"background": True, "store": False}, "background"),
        ({"metadata": {"k": "v" * 513}}, "metadata"),
        ({"input": []}, "input"),
        ({"input": [{"type": "computer_call"}]}, "input[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}]}, "input"),
        ({"model": "tabular-mini", "text": {"format": {"type": "json_object"}}}, "text.format"),
        ({"model": "tabular-mini", "reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"max_output_tokens": 10**9}, "max_output_tokens"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_its_name(client: Any, members: Any, param: str) -> None:
    answer = asked(client, **members)
    assert (answer.status, answer.json["error"]["param"]) == (400, param)


def test_reading_a_response_as_a_stream_needs_the_background(client: Any) -> None:
    response = made(client)
    answer = client.send("GET", f"/v1/responses/{response['id']}", query="stream=true", check=False)
    assert (answer.status, answer.json["error"]["param"]) == (400, "stream")
    assert client.send("POST", f"/v1/responses/{response['id']}/cancel").status == 400


def test_a_missing_model_is_a_404_and_a_budget_names_what_would_fit(client_for: Any) -> None:
    with open_platform() as platform:
        client = client_for(platform)
        assert asked(client, model="nothing").json["error"]["code"] == "model_not_found"
        mini = attrs.evolve(platform.catalogue.get("tabular-mini"), id="dear", pricing=Pricing(completion="0.01"))
        platform.catalogue.register(mini, answers_as="tabular-mini")
        platform.usage.set_budget("0.05", entity="acme")
        refused = asked(client, model="dear", max_output_tokens=10)
        assert (refused.status, refused.json["error"]["param"]) == (402, "max_output_tokens")
        assert refused.json["error"]["message"].startswith("max_output_tokens:")
        assert asked(client, model="dear", max_output_tokens=5).status == 200
        later = asked(client, model="dear", max_output_tokens=10, background=True).json["id"]
        platform.worker().run_until_idle()
        failed = client.ok("GET", f"/v1/responses/{later}")
        assert (failed["status"], failed["output"]) == ("failed", [])
        assert "budget" in failed["error"]["message"]


# ---- in the background -------------------------------------------------------------------------------------------


def test_a_response_in_the_background_is_queued_answered_and_booked_once(client: Any) -> None:
    platform = client.platform
    first = made(client, "first")
    queued = made(client, "later", background=True, previous_response_id=first["id"], metadata={"k": "v"})
    assert (queued["status"], queued["output"], queued["usage"]) == ("queued", [], None)
    path = f"/v1/responses/{queued['id']}"
    assert asked(client, previous_response_id=queued["id"]).status == 400
    before = len(list(platform.usage.list(entity="acme")))
    platform.worker().run_until_idle()
    ended = client.ok("GET", path)
    assert (ended["status"], ended["output"][0]["content"][0]["text"]) == ("completed", "later")
    assert (ended["background"], ended["metadata"]) == (True, {"k": "v"})
    assert len(list(platform.usage.list(entity="acme"))) == before + 1
    assert client.ok("POST", f"{path}/cancel") == ended
    messages = platform.compat.responses.messages(queued["id"])
    assert [message.text for message in messages] == ["first", "first", "later", "later"]


TYPES = [
    *("created", "queued", "in_progress", "output_item.added", "content_part.added", "output_text.delta"),
    *("output_text.done", "content_part.done", "output_item.done", "completed"),
]


def test_a_response_in_the_background_is_streamed_after_any_event(client: Any) -> None:
    queued = made(client, "one two", background=True)
    path = f"/v1/responses/{queued['id']}"
    client.platform.worker().run_until_idle()
    events = client.send("GET", path, query="stream=true").events
    assert [event["type"].removeprefix("response.") for event in events] == TYPES
    assert events[-1]["response"] == client.ok("GET", path)
    numbers = [event["sequence_number"] for event in events]
    assert numbers == sorted(set(numbers))
    for number, event in zip(numbers, events, strict=True):
        rest = client.send("GET", path, query=f"stream=true&starting_after={number}").events
        assert rest == events[events.index(event) + 1 :]
    middle = client.send("GET", path, query=f"stream=true&starting_after={numbers[4] + 3}").events
    assert (middle[0]["delta"], middle[1:]) == (" two", events[6:])
    assert client.send("GET", path, query="stream=true&starting_after=x", check=False).status == 400
    assert client.another("globex").send("GET", path, query="stream=true").status == 404


@pytest.mark.slow
def test_a_response_in_the_background_is_streamed_as_it_is_answered(client: Any) -> None:
    with client.platform.worker():
        events = asked(client, "one two", background=True, stream=True).events
    assert [event["type"].removeprefix("response.") for event in events] == TYPES
    assert client.ok("GET", f"/v1/responses/{events[0]['response']['id']}") == events[-1]["response"]


def test_a_stream_of_a_response_that_was_cancelled_ends_with_its_failure(client: Any) -> None:
    queued = made(client, "later", background=True)
    client.ok("POST", f"/v1/responses/{queued['id']}/cancel")
    events = client.send("GET", f"/v1/responses/{queued['id']}", query="stream=true").events
    assert [event["type"] for event in events][-1] == "response.failed"
    assert events[-1]["response"]["status"] == "cancelled"


def test_a_queued_response_is_cancelled_at_once_and_a_deleted_one_too(client: Any) -> None:
    queued, deleted = (made(client, "later", background=True) for _ in range(2))
    cancelled = client.ok("POST", f"/v1/responses/{queued['id']}/cancel")
    assert cancelled["status"] == "cancelled"
    client.ok("DELETE", f"/v1/responses/{deleted['id']}")
    client.platform.worker().run_until_idle()
    assert client.ok("GET", f"/v1/responses/{queued['id']}")["status"] == "cancelled"
    kinds = {job.status for job in client.platform.jobs.list() if job.subject in (queued["id"], deleted["id"])}
    assert kinds == {"cancelled"}


def test_the_same_request_under_one_key_is_queued_once(client: Any) -> None:
    def queue(text: str) -> Any:
        body = {"model": "echo", "input": text, "background": True}
        return client.send("POST", "/v1/responses", body, headers=[("idempotency-key", "k1")])

    first, again, other = queue("a"), queue("a"), queue("b")
    assert first.json == again.json
    assert other.status == 409
    client.platform.worker().run_until_idle()


def test_what_cannot_be_answered_is_refused_before_it_is_queued(client: Any) -> None:
    jobs = len(list(client.platform.jobs.list()))
    assert asked(client, background=True, model="nothing").status == 404
    assert asked(client, background=True, max_output_tokens=10**9).status == 400
    assert len(list(client.platform.jobs.list())) == jobs


@BASES
def test_the_tokens_of_an_input_are_counted_as_they_are_billed(client: Any, base: str) -> None:
    request = {"model": "echo", "input": "three small words", "instructions": "Be brief."}
    first = made(client, base=base, **{name: one for name, one in request.items() if name != "model"})
    counted = client.ok("POST", f"{base}/responses/input_tokens", request)
    assert counted == {"input_tokens": first["usage"]["input_tokens"], "object": "response.input_tokens"}
    following = {"model": "echo", "input": "and more", "previous_response_id": first["id"]}
    more = client.ok("POST", f"{base}/responses/input_tokens", following)["input_tokens"]
    assert more == made(client, "and more", previous_response_id=first["id"])["usage"]["input_tokens"]
    wrong = client.send("POST", f"{base}/responses/input_tokens", {**request, "instructionx": 1}, check=False)
    assert (wrong.status, wrong.json["error"]["param"]) == (400, "instructionx")
    stranger = client.another("rival").send("POST", f"{base}/responses/input_tokens", following)
    assert (stranger.status, stranger.json["error"]["param"]) == (400, "previous_response_id")
