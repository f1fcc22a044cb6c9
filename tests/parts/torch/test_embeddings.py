"""Embeddings of local models: equal to transformers' own hidden states, pooled as the folder says."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from local_models import SHAPE, adapter_weights, alone, answered, base_model, engine_of, prompts, requested
from transformers import AutoModelForCausalLM, AutoTokenizer

from modelyard.domain.embedding import EmbeddingRequest
from modelyard.errors import InvalidInput
from modelyard.parts.contracts.embedder import EmbedderContract, embed
from modelyard.parts.torch.pooling import Pooling, embedding_size, pooling_of
from modelyard.parts.torch.serving.backend import LocalBackend
from modelyard.parts.torch.serving.embedding import embedded
from modelyard.protocols import ServedModel

TEXTS = ["a cat sat", "Größe ≠ 深さ 🌊", "x", "many words " * 12]


class TestLocalEmbedder(EmbedderContract):
    @pytest.fixture
    def backend(self, shared_backend: LocalBackend) -> Any:
        return shared_backend


def by_transformers(folder: Path, inputs: list[list[int]], pooling: Pooling) -> torch.Tensor:
    """What transformers itself makes of each input alone."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    found = []
    with torch.inference_mode():
        for ids in inputs:
            states = model(torch.tensor([ids]), output_hidden_states=True).hidden_states[-1][0]
            found.append(states.mean(0) if pooling is Pooling.MEAN else states[-1])
    return torch.nn.functional.normalize(torch.stack(found), dim=-1)


@pytest.mark.parametrize("pooling", Pooling)
@pytest.mark.parametrize("architecture", ["llama", "qwen3"])
def test_a_batch_equals_transformers_own_states(
    folders: Callable[..., Path], architecture: str, pooling: Pooling
) -> None:
    folder = folders("micro", architecture=architecture)
    inputs = prompts(9, seed=3)
    made = [vector for batch in embedded(engine_of(folder), 0, inputs, pooling) for vector in batch.vectors]
    difference = torch.tensor(made) - by_transformers(folder, inputs, pooling)
    assert float(difference.abs().max()) < 1e-5


@pytest.mark.parametrize("described", ["mean_tokens", "lasttoken"])
def test_the_folder_says_how(folders: Callable[..., Path], tmp_path: Path, described: str) -> None:
    import shutil

    folder = shutil.copytree(folders("micro"), tmp_path / "model")
    (folder / "1_Pooling").mkdir()
    modes = {f"pooling_mode_{mode}": mode == described for mode in ("cls_token", "mean_tokens", "lasttoken")}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 32, **modes}))
    backend = LocalBackend([base_model(folder, "own")], device="cpu")
    ids = [AutoTokenizer.from_pretrained(folder)(text)["input_ids"] for text in TEXTS]
    made = embed(backend, "own", TEXTS)
    assert made.tokens == sum(map(len, ids))
    wanted = by_transformers(folder, ids, Pooling.MEAN if described == "mean_tokens" else Pooling.LAST)
    assert float((torch.tensor([*map(list, made.vectors)]) - wanted).abs().max()) < 1e-5
    assert "1_Pooling/config.json" in base_model(folder, "own").digests
    backend.close()


@pytest.mark.parametrize("modes", [{"pooling_mode_cls_token": True}, {}, [], {"pooling_mode_mean_tokens": 1}])
def test_another_pooling_makes_no_embeddings(folders: Callable[..., Path], tmp_path: Path, modes: Any) -> None:
    import shutil

    folder = shutil.copytree(folders("micro"), tmp_path / "model")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    assert (pooling_of(str(folder)), embedding_size(str(folder))) == (None, 0)
    backend = LocalBackend([base_model(folder, "own")], device="cpu")
    assert backend.capabilities("own").embedding_size == 0
    assert backend.entries()[0].output_modalities == ("text",)


def test_an_adapter_changes_the_vector_and_answers_go_on(folder: Path) -> None:
    engine = engine_of(folder)
    engine.load(1, SHAPE, adapter_weights(folder, SHAPE, seed=1))
    inputs, asked = prompts(5, seed=4), [requested(one, 24) for one in prompts(4, seed=5)]
    plain, adapted = ([*embedded(engine, slot, inputs, Pooling.LAST)] for slot in (0, 1))
    assert plain != adapted
    for one in asked:
        engine.submit(one)
    found: list[Any] = []
    embedding = threading.Thread(
        target=lambda: found.extend([[*embedded(engine, 1, inputs, Pooling.LAST)] for _ in range(8)])
    )
    embedding.start()
    for one in asked:
        engine.wait(one, one.max_tokens)
    embedding.join()
    assert found == [adapted] * 8
    assert [list(one.answer) for one in asked] == alone(folder, *asked)
    assert answered(engine, requested([5, 6, 7])) == alone(folder, requested([5, 6, 7]))


def test_ids_that_the_model_does_not_know_are_refused(shared_backend: LocalBackend) -> None:
    entry = shared_backend.entries()[0]
    request = EmbeddingRequest(entry.id, ((5,), (10**6,)))
    with pytest.raises(InvalidInput, match=r"input.1: holds token 1000000"):
        list(shared_backend.embed(request, ServedModel(entry.id, entry)))
