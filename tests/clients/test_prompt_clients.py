"""Unmodified clients that send prompts, as text and as token ids, to a local model of a few thousand weights."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ |= {"HF_HUB_OFFLINE": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # read when they are imported

from modelyard import open_platform
from modelyard.asgi import asgi_app
from modelyard.domain.identity import anonymous
from modelyard.parts.doubles.clients.server import asgi_server
from openapi_check import Checked

openai = pytest.importorskip("openai")
torch = pytest.importorskip("torch")
pytest.importorskip("lm_eval")

TASK = [("Where is", " my order?"), ("The box", " is red."), ("Hi", " there"), ("Where is", " it?")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from modelyard.parts.torch.tiny_model import build_tiny_model

    torch.set_num_threads(1)
    return build_tiny_model(tmp_path_factory.mktemp("model"), "nano")


@pytest.fixture(scope="module")
def yard(folder: Path) -> Iterator[Any]:
    """Where a platform answers that has the model `tiny`, and a key; callers without one are the entity `local`."""
    with open_platform() as platform:
        platform.add_base_model(folder, id="tiny")
        application = Checked(asgi_app(platform, anonymous=anonymous("local")))
        with asgi_server(application, log_level="warning") as server:
            yield server.url, platform.keys.create("acme").secret
        assert application.faults == []


@pytest.fixture(scope="module")
def logprobs(folder: Path) -> Any:
    """The log-probability of each token but the first, as transformers computes it."""
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(folder)

    def of(ids: list[int]) -> list[float]:
        with torch.no_grad():
            found = network(torch.tensor([ids])).logits[0].log_softmax(-1)
        return [found[at, token].item() for at, token in enumerate(ids[1:])]

    return of


def test_log_likelihoods_of_lm_eval_are_those_of_transformers(
    yard: Any, folder: Path, logprobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI
    from transformers import AutoTokenizer

    monkeypatch.setenv("OPENAI_API_KEY", yard[1])
    model = LocalCompletionsAPI(
        model="tiny", base_url=f"{yard[0]}/v1/completions", tokenizer=str(folder), batch_size=3, num_concurrent=1
    )
    found = model.loglikelihood([Instance("loglikelihood", {}, pair, at) for at, pair in enumerate(TASK)])
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for (context, answer), (score, _) in zip(TASK, found, strict=True):
        ids, size = tokenizer(context + answer)["input_ids"], len(tokenizer(context)["input_ids"])
        assert score == pytest.approx(sum(logprobs(ids)[size - 1 :]), abs=1e-4)
    until = Instance("generate_until", {}, ("Where is", {"until": ["\n\n"], "max_gen_toks": 4}), 0)
    assert len(model.generate_until([until])) == 1


def test_lm_eval_takes_the_tokenizer_of_the_server(
    yard: Any, folder: Path, logprobs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names no model when it asks for tokens: the base of its address does."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI
    from transformers import AutoTokenizer

    monkeypatch.setenv("OPENAI_API_KEY", yard[1])
    model = LocalCompletionsAPI(
        model="tiny",
        base_url=f"{yard[0]}/models/tiny/v1/completions",
        tokenizer_backend="remote",
        batch_size=3,
        num_concurrent=1,
    )
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert model.tokenizer.encode("Where is") == tokenizer("Where is", add_special_tokens=False)["input_ids"]
    assert model.tokenizer.decode(model.tokenizer.encode("Where is")) == "Where is"
    assert model.tokenizer.eos_token == tokenizer.eos_token
    assert model.tokenizer.apply_chat_template([{"role": "user", "content": "hi"}]) == tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    found = model.loglikelihood([Instance("loglikelihood", {}, pair, at) for at, pair in enumerate(TASK)])
    for (context, answer), (score, _) in zip(TASK, found, strict=True):
        ids, size = tokenizer(context + answer)["input_ids"], len(tokenizer(context)["input_ids"])
        assert score == pytest.approx(sum(logprobs(ids)[size - 1 :]), abs=1e-4)


def test_trl_samples_and_scores_without_a_key(yard: Any, logprobs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from trl.generation import vllm_client

    monkeypatch.setattr(vllm_client, "is_vllm_available", lambda *_, **__: True)  # it is asked to talk to one only
    client = vllm_client.VLLMClient(base_url=yard[0])
    client.model = "tiny"
    made = client.generate([[72, 73], [74]], n=2, max_tokens=4, logprobs=0)
    assert made["prompt_ids"] == [[72, 73], [74]]
    for prompt, answer, scored in zip(
        [[72, 73]] * 2 + [[74]] * 2, made["completion_ids"], made["logprobs"], strict=True
    ):
        assert [one for (one,) in scored] == pytest.approx(logprobs([*prompt, *answer])[-len(answer) :], abs=1e-4)
    whole = client.get_sequence_logprobs([[72, 73, 74, 75]], [2], top_logprobs=3)
    actual = [one for (one,) in whole["actual_logprobs"][0]]
    assert actual == pytest.approx(logprobs([72, 73, 74, 75])[1:], abs=1e-4)
    paired = client.generate([[72, 73]], features=[None], n=2, max_tokens=3, logprobs=1, generation_kwargs={"seed": 1})
    assert [len(ids) for ids in paired["completion_ids"]] == [3, 3]


def test_trl_chats_by_token_ids(yard: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from trl.generation import vllm_client

    monkeypatch.setattr(vllm_client, "is_vllm_available", lambda *_, **__: True)
    client = vllm_client.VLLMClient(base_url=yard[0])
    client.model = "tiny"
    made = client.chat([[{"role": "user", "content": text}] for text in ("hi", "there")], n=2, max_tokens=4, logprobs=2)
    assert [len(ids) > 2 for ids in made["prompt_ids"]] == [True, True]
    assert [len(ids) for ids in made["completion_ids"]] == [len(ids) for ids in made["logprob_token_ids"]]
    for answer, tokens in zip(made["completion_ids"], made["logprob_token_ids"], strict=True):
        assert all(sampled in among for sampled, among in zip(answer, tokens, strict=True))


def test_verifiers_generates_from_token_ids(yard: Any, folder: Path) -> None:
    from renderers import create_renderer
    from renderers.base import load_tokenizer
    from renderers.client import generate

    async def made() -> Any:
        async with openai.AsyncOpenAI(base_url=f"{yard[0]}/v1", api_key=yard[1]) as client:
            renderer = create_renderer(load_tokenizer(str(folder)))
            asked = {"messages": [{"role": "user", "content": "hi"}], "sampling_params": {"max_tokens": 5}}
            return await generate(client=client, renderer=renderer, model="tiny", **asked)

    found = asyncio.run(made())
    assert found["usage"]["prompt_tokens"] == len(found["prompt_ids"])
    assert len(found["completion_ids"]) == len(found["completion_logprobs"]) <= 5


def test_the_openai_client_continues_prompts(yard: Any) -> None:
    client = openai.OpenAI(base_url=f"{yard[0]}/v1", api_key=yard[1], max_retries=0)
    asked: Any = {"model": "tiny", "max_tokens": 3, "seed": 1}  # without a seed, a few in a thousand end early
    made = client.completions.create(**asked, prompt=["ab", "cd"], logprobs=2, echo=True)
    assert [choice.text[:2] for choice in made.choices] == ["ab", "cd"]
    assert [len(choice.logprobs.tokens) for choice in made.choices] == [5, 5]
    asked["prompt"] = "ab"
    streamed = client.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    *chunks, last = streamed
    assert "".join(chunk.choices[0].text for chunk in chunks) == client.completions.create(**asked).choices[0].text
    assert last.usage.completion_tokens == 3
    with pytest.raises(openai.BadRequestError, match="suffix"):
        client.completions.create(**asked, suffix="x")


def test_litellm_and_llama_index_continue_prompts_by_default(yard: Any) -> None:
    import litellm
    from llama_index.llms.openai_like import OpenAILike

    for provider in ("text-completion-openai", "openai", "hosted_vllm"):
        asked: Any = {"prompt": "ab", "max_tokens": 3, "seed": 1, "api_base": f"{yard[0]}/v1", "api_key": yard[1]}
        made = litellm.text_completion(model=f"{provider}/tiny", **asked)
        assert made.usage.completion_tokens == 3
    model = OpenAILike(
        model="tiny", api_base=f"{yard[0]}/v1", api_key=yard[1], max_tokens=5, additional_kwargs={"seed": 1}
    )
    assert model.complete("ab").text
    assert len(list(model.stream_complete("ab"))) > 1
