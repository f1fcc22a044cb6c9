"""Prompts over HTTP: as text and as token ids, whole and streamed, with what is refused by name."""

import asyncio
import json
from typing import Any

import pytest

from modelyard.backends.echo import EchoBackend
from modelyard.compose import open_platform
from modelyard.domain.completion import Delta
from modelyard.http.endpoint import Endpoint
from modelyard.http.message import Request
from modelyard.parts.scripted.backend import ScriptedBackend

COMPLETIONS = "/inference/v1/completions"
TABULAR = {"model": "tabular-mini", "seed": 3}


def post(client: Any, path: str = COMPLETIONS, **body: Any) -> Any:
    return client.ok("POST", path, {"model": "echo", **body})


def problem(client: Any, path: str = COMPLETIONS, **body: Any) -> tuple[int, str, str]:
    answer = client.send("POST", path, {"model": "echo", **body}, check=False)
    error = answer.json["error"]
    return answer.status, error["param"], error["message"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/completions/", COMPLETIONS, f"{COMPLETIONS}/"])
def test_a_prompt_is_continued_on_both_bases(client: Any, path: str) -> None:
    body = post(client, path, prompt="hello big world", max_tokens=2)
    (choice,) = body["choices"]
    assert (body["object"], choice["text"], choice["finish_reason"]) == ("text_completion", "hello big", "length")
    assert body["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def test_sixteen_tokens_are_the_usual_number_and_none_may_be_asked_for(client: Any) -> None:
    assert post(client, prompt="a " * 30)["usage"]["completion_tokens"] == 16
    body = post(client, prompt="a b", max_tokens=0, echo=True)
    assert (body["choices"][0]["text"], body["usage"]["completion_tokens"]) == ("a b", 0)


def test_the_choices_of_several_prompts_follow_each_other(client: Any) -> None:
    body = post(client, prompt=["a b", "c"], n=2)
    assert [(choice["index"], choice["text"]) for choice in body["choices"]] == [
        (0, "a b"),
        (1, "a b"),
        (2, "c"),
        (3, "c"),
    ]
    assert body["usage"] == {"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9}
    ids = [
        choice["prompt_token_ids"] for choice in post(client, prompt=[[1, 2], [3]], return_token_ids=True)["choices"]
    ]
    assert ids == [[1, 2], [3]]


def test_each_prompt_is_a_completion_of_its_own_in_the_ledger(client: Any) -> None:
    tenant = f"tenant-{client.asynchronous}"
    other = client.another(tenant)
    post(other, prompt=["a b", "c"])
    (total,) = client.platform.usage.total(entity=tenant)
    assert (total.requests, total.prompt_tokens, total.completion_tokens) == (2, 3, 3)


def test_a_prompt_is_shown_with_its_log_probabilities(client: Any) -> None:
    asked = {**TABULAR, "prompt": "Where is", "max_tokens": 1, "logprobs": 1}
    shown = post(client, **asked, echo=True)["choices"][0]
    alone = post(client, **asked)["choices"][0]
    found, tokens = shown["logprobs"], shown["logprobs"]["tokens"]
    assert "".join(tokens) == shown["text"] == "Where is" + alone["text"]
    assert (found["token_logprobs"][0], found["top_logprobs"][0]) == (None, None)
    assert all(logprob < 0 for logprob in found["token_logprobs"][1:])
    assert found["token_logprobs"][-1:] == alone["logprobs"]["token_logprobs"]
    assert found["text_offset"] == [sum(map(len, tokens[:at])) for at in range(len(tokens))]
    assert all(token in top for token, top in zip(tokens[1:], found["top_logprobs"][1:], strict=True))
    assert "prompt_logprobs" not in shown


def test_tokens_are_named_by_their_ids(client: Any) -> None:
    asked = {"prompt": [72, 73], "max_tokens": 2, "logprobs": 0, "prompt_logprobs": 1, "return_token_ids": True}
    choice = post(client, **TABULAR, **asked, return_tokens_as_token_ids=True)["choices"][0]
    assert choice["prompt_token_ids"] == [72, 73]
    assert choice["logprobs"]["tokens"] == [f"token_id:{id_}" for id_ in choice["token_ids"]]
    first, second = choice["prompt_logprobs"]
    assert first is None
    assert second["73"]["decoded_token"] == "I"
    assert len(second) == 2
    assert min(entry["rank"] for entry in second.values()) == 1
    assert 1 < second["73"]["rank"] <= 512


def streamed(client: Any, path: str = COMPLETIONS, **body: Any) -> list[Any]:
    answer = client.send("POST", path, {"model": "echo", "stream": True, **body})
    assert answer.status == 200, answer.raw
    return list(answer.events)


def test_a_stream_has_the_text_in_pieces_and_the_usage_at_its_end(client: Any) -> None:
    prompts = ["one two", "three"]
    *events, last, done = streamed(client, prompt=prompts, echo=True, n=2, stream_options={"include_usage": True})
    texts = [""] * 4
    for event in events:
        assert event["usage"] is None
        texts[event["choices"][0]["index"]] += event["choices"][0]["text"]
    assert texts == ["one twoone two"] * 2 + ["threethree"] * 2
    assert (last["choices"], last["usage"]["completion_tokens"], done) == ([], 6, "[DONE]")


def test_a_stream_says_the_same_as_a_whole_answer(client: Any) -> None:
    asked = {**TABULAR, "prompt": "The order", "max_tokens": 8, "logprobs": 2, "echo": True, "return_token_ids": True}
    *events, done = streamed(client, **asked)
    pieces = [event["choices"][0] for event in events]
    whole = post(client, **asked)["choices"][0]
    assert done == "[DONE]"
    assert "".join(piece["text"] for piece in pieces) == whole["text"]
    assert [id_ for piece in pieces for id_ in piece["token_ids"]] == whole["token_ids"]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [one for piece in pieces for one in piece["logprobs"][name]] == whole["logprobs"][name]


def test_token_ids_are_continued_with_token_ids(client: Any) -> None:
    sampling = {"max_tokens": 3, "n": 2, "seed": 3, "logprobs": 1, "prompt_logprobs": 0, "output_kind": 2, "top_k": 0}
    asked = {"model": "tabular-mini", "token_ids": [72, 73], "request_id": "r-1", "sampling_params": sampling}
    body = client.ok("POST", "/inference/v1/generate", asked)
    same = post(client, **TABULAR, prompt=[72, 73], max_tokens=3, n=2, return_token_ids=True)
    assert body["request_id"] == "r-1"
    assert [choice["token_ids"] for choice in body["choices"]] == [choice["token_ids"] for choice in same["choices"]]
    for choice in body["choices"]:
        assert [entry["token"] for entry in choice["logprobs"]["content"]] == [
            f"token_id:{id_}" for id_ in choice["token_ids"]
        ]
    assert list(body["prompt_logprobs"][1]) == ["73"]
    more = {**asked, "stream": True, "stream_options": {"include_usage": True}}
    *events, last, done = client.send("POST", "/inference/v1/generate", more).events
    found = [[id_ for e in events for c in e["choices"] if c["index"] == at for id_ in c["token_ids"]] for at in (0, 1)]
    assert found == [choice["token_ids"] for choice in body["choices"]]
    assert (last["usage"]["completion_tokens"], done) == (6, "[DONE]")


def test_text_is_read_as_tokens_and_written_again(client: Any) -> None:
    text = "Hällo, order!"
    read = client.ok("POST", "/tokenize", {"model": "tabular-mini", "prompt": text, "return_token_strs": True})
    assert (read["count"], read["max_model_len"]) == (len(read["tokens"]), 16_384)
    assert len(read["token_strs"]) == read["count"]
    written = client.ok("POST", "/detokenize", {"model": "tabular-mini", "tokens": read["tokens"]})
    assert written == {"prompt": text}
    chat = {"model": "tabular-mini", "messages": [{"role": "user", "content": "hi"}]}
    tokens = client.ok("POST", "/tokenize", chat)["tokens"]
    answer = client.ok("POST", "/v1/chat/completions", {**chat, "max_tokens": 1, "seed": 1})
    assert answer["choices"][0]["prompt_token_ids"] == tokens


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no prompt": ({}, "prompt"),
    "an empty text": ({"prompt": ""}, "prompt"),
    "no prompts": ({"prompt": []}, "prompt"),
    "an empty one of several": ({"prompt": [[1], []]}, "prompt[1]"),
    "ids and text": ({"prompt": [1, "a"]}, "prompt"),
    "a number": ({"prompt": 7}, "prompt"),
    "a negative id": ({"prompt": [-1]}, "prompt"),
    "too many prompts": ({"prompt": ["a"] * 1025}, "prompt"),
    "too many choices": ({"prompt": ["a"] * 9, "n": 114}, "n"),
    "a suffix": ({"prompt": "a", "suffix": "b"}, "suffix"),
    "the best of several": ({"prompt": "a", "best_of": 2}, "best_of"),
    "a beam search": ({"prompt": "a", "use_beam_search": True}, "use_beam_search"),
    "fewer than no tokens": ({"prompt": "a", "max_tokens": -1}, "max_tokens"),
    "too many alternatives": ({"prompt": "a", "logprobs": 21}, "logprobs"),
    "stream options without a stream": ({"prompt": "a", "stream_options": {}}, "stream_options"),
    "messages": ({"prompt": "a", "messages": []}, "messages"),
    "embeddings": ({"prompt": "a", "prompt_embeds": "x"}, "prompt_embeds"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_by_name(client: Any, case: str) -> None:
    body, name = REFUSED[case]
    status, param, _ = problem(client, **body)
    assert (status, param) == (400, name)


def test_ids_that_are_no_tokens_are_refused(client: Any) -> None:
    for path, body in {
        COMPLETIONS: {"prompt": [1, 512]},
        "/inference/v1/generate": {"token_ids": [512], "sampling_params": {}},
        "/detokenize": {"tokens": [512]},
    }.items():
        status, param, message = problem(client, path, **{"model": "tabular-mini", **body})
        assert (status, param) == (400, next(iter(body)))
        assert "512 is not a token id of this model" in message
    unknown = {"token_ids": [1], "sampling_params": {"length_penalty": 2}}
    assert problem(client, "/inference/v1/generate", **unknown)[1] == "sampling_params.length_penalty"


def test_a_prompt_beyond_the_context_is_refused(client: Any) -> None:
    status, param, message = problem(client, model="tabular-mini", prompt=[1] * 16_380, max_tokens=5)
    assert (status, param) == (400, "prompt")
    assert "16385 tokens (16380 in the prompt, 5 in the completion)" in message


def test_a_backend_of_messages_only_says_so(client_for: Any) -> None:
    with open_platform(backend=ScriptedBackend(["yes"])) as platform:
        client = client_for(platform)
        status, param, message = problem(client, model="scripted", prompt="a")
        assert (status, param) == (400, "prompt")
        assert "takes messages only" in message
        assert problem(client, "/tokenize", model="scripted", prompt="a")[1] == "model"


def test_a_prompt_counts_against_the_limits_of_its_key(client_for: Any) -> None:
    with open_platform() as platform:
        client = client_for(platform)
        client.key = platform.keys.create("acme", requests_per_minute=1).secret
        assert client.send("POST", COMPLETIONS, {"model": "echo", "prompt": "a"}).status == 200
        assert client.send("POST", COMPLETIONS, {"model": "echo", "prompt": "a"}).status == 429


def test_a_model_of_another_entity_may_not_be_used(client: Any) -> None:
    client.platform.models.create("m", project="p", base_model="tabular-mini", entity="other", return_existing=True)
    for path, body in {
        COMPLETIONS: {"prompt": "a"},
        "/tokenize": {"prompt": "a"},
        "/detokenize": {"tokens": [1]},
    }.items():
        answer = client.send("POST", path, {"model": "other/p/m", **body})
        assert answer.status == 403, path


def test_a_caller_who_leaves_pays_for_what_was_made() -> None:
    async def leave_early(endpoint: Endpoint, key: str) -> None:
        body = json.dumps({"model": "tabular-mini", "prompt": ["a", "b"], "stream": True, "max_tokens": 500})

        async def chunks() -> Any:
            yield body.encode()

        headers = [("authorization", f"Bearer {key}")]
        response = await endpoint.ahandle(Request("POST", COMPLETIONS, "", headers, chunks()))
        await anext(response.body)
        await response.body.aclose()

    with open_platform() as platform:
        asyncio.run(leave_early(Endpoint(platform), platform.keys.create("acme").secret))
        (total,) = platform.usage.total(entity="acme")
        assert total.requests == 1
        assert 0 < total.completion_tokens < 500


def test_prompts_that_are_answered_at_once_end_with_their_caller() -> None:
    """What was made of each is paid for, and nothing runs on."""
    begun, ended = [], []

    class Waiting:
        """Says a word of each answer, and then waits without end."""

        def entries(self) -> Any:
            return EchoBackend(("slow",)).entries()

        def capabilities(self, model: str) -> Any:
            return EchoBackend().capabilities(model)

        def prompt_tokens(self, request: Any, model: Any) -> int:
            return 1

        async def astream(self, request: Any, model: Any) -> Any:
            begun.append(request.prompt)
            try:
                yield Delta("word", 1)
                if len(begun) == 3:
                    task.cancel()
                await asyncio.Event().wait()
            finally:
                ended.append(request.prompt)

    async def ask(platform: Any) -> None:
        nonlocal task
        body = json.dumps({"model": "slow", "prompt": ["a", "b", "c"]}).encode()

        async def chunks() -> Any:
            yield body

        headers = [("authorization", f"Bearer {platform.keys.create('acme').secret}")]
        asked = Endpoint(platform).ahandle(Request("POST", COMPLETIONS, "", headers, chunks()))
        task = asyncio.ensure_future(asked)
        with pytest.raises(asyncio.CancelledError):
            await task

    task: Any = None
    with open_platform(backend=Waiting()) as platform:
        asyncio.run(ask(platform))
        (total,) = platform.usage.total(entity="acme")
        assert (total.requests, total.completion_tokens) == (3, 3)
    assert sorted(begun) == sorted(ended) == ["a", "b", "c"]


def test_the_tokenizer_of_a_model_is_shown(client: Any) -> None:
    for query, path in ((("model", "tabular-mini"), "/tokenizer_info"), ((), "/models/tabular-mini/tokenizer_info")):
        shown = client.send("GET", path, query=[query] if query else "").json
        assert (shown["model"], shown["eos_token"], shown["chat_template"]) == ("tabular-mini", None, None)
        assert shown["model_max_length"] > 0
    refused = client.send("GET", "/tokenizer_info", check=False)
    assert (refused.status, "model" in refused.json["error"]["message"]) == (400, True)
    assert client.send("GET", "/models/nothing/tokenizer_info").status == 404


def test_a_base_that_names_a_model_is_for_clients_that_do_not(client: Any) -> None:
    at = "/models/tabular-mini"

    def ask(path: str, **body: Any) -> Any:
        return client.send("POST", at + path, body)

    tokens = ask("/tokenize", prompt="hello", add_special_tokens=False).json["tokens"]
    assert tokens == post(client, "/tokenize", model="tabular-mini", prompt="hello")["tokens"]
    assert ask("/detokenize", tokens=tokens).json["prompt"] == "hello"
    assert ask("/v1/completions", prompt="hello", max_tokens=1).json["model"] == "tabular-mini"
    assert ask("/v1/completions", prompt="hello", max_tokens=1, model="tabular-mini").status == 200
    refused = ask("/v1/completions", prompt="hello", model="echo")
    assert (refused.status, refused.json["error"]["param"]) == (400, "model")
