"""What base models in local folders offer is known without torch, and may grow."""

from datetime import UTC, datetime
from pathlib import Path

import attrs
import pytest

from modelyard.backends.echo import EchoBackend
from modelyard.backends.router import Router
from modelyard.domain.catalogue import Feature, Quantization, check_entry
from modelyard.errors import InvalidInput, ModelNotFound
from modelyard.parts.torch import entries as local_offer
from modelyard.parts.torch.entries import LocalOffer, capabilities
from modelyard.parts.torch.records import BaseModel, Tuning
from modelyard.parts.torch.serving.backend import LocalBackend
from modelyard.protocols import Capabilities

BASE = BaseModel(
    id="tiny",
    name="Tiny",
    path="/models/tiny",
    architecture="Qwen3ForCausalLM",
    quantization=Quantization.BF16,
    context_length=512,
    parameters=10,
    tuning=Tuning.LORA,
    tool_format="tags",
    created_at=datetime(2026, 1, 1, tzinfo=UTC),
    digests={"config.json": "0" * 64},
    prices={"prompt": "0.000001"},
)


class Offering(EchoBackend):
    """A backend whose entries are those of base models that may grow."""

    def __init__(self, bases: list[BaseModel]) -> None:
        super().__init__()
        self.offer = LocalOffer(bases)

    def entries(self):  # type: ignore[no-untyped-def]
        return self.offer.entries()

    def capabilities(self, model: str) -> Capabilities:
        return capabilities(self.offer.base_model(model))


@pytest.fixture(autouse=True)
def _forget() -> None:
    local_offer._capabilities.cache_clear()


def test_an_entry_says_what_the_base_model_says() -> None:
    (entry,) = LocalOffer([BASE]).entries()
    check_entry(entry)
    assert (entry.id, entry.name, entry.quantization, entry.context_length) == ("tiny", "Tiny", Quantization.BF16, 512)
    assert str(entry.pricing.prompt) == "0.000001"


def test_tools_come_with_a_format_and_constraints_with_llguidance(monkeypatch: pytest.MonkeyPatch) -> None:
    for there in (True, False):
        local_offer._capabilities.cache_clear()
        monkeypatch.setattr(local_offer, "find_spec", lambda name, there=there: there or None)
        with_tools, without = capabilities(BASE), capabilities(attrs.evolve(BASE, tool_format=""))
        assert (with_tools.tools, without.tools) == (True, False)
        assert (with_tools.forced_tools, without.forced_tools) == (there, False)
        assert with_tools.json_mode is with_tools.structured_outputs is there
        (entry,) = LocalOffer([BASE]).entries()
        assert (Feature.STRUCTURED_OUTPUTS in entry.supported_features) is there
    local_offer._capabilities.cache_clear()


@pytest.mark.parametrize("known", [True, False])
def test_reasoning_effort_is_honoured_where_the_chat_template_knows_it(tmp_path: Path, known: bool) -> None:
    generated = "Reasoning: {{ reasoning_effort or 'medium' }}" if known else "a reasoning_effort_or_two"
    (tmp_path / "chat_template.jinja").write_text(generated)
    base = attrs.evolve(BASE, path=str(tmp_path))
    assert ("reasoning_effort" in capabilities(base).parameters) is known
    (entry,) = LocalOffer([base]).entries()
    assert (Feature.REASONING in entry.supported_features) is known


def test_entries_are_the_same_tuple_until_there_are_more() -> None:
    bases = [BASE]
    offer = LocalOffer(bases)
    first = offer.entries()
    assert offer.entries() is first
    bases.append(attrs.evolve(BASE, id="other"))
    assert [entry.id for entry in offer.entries()] == ["tiny", "other"]
    with pytest.raises(ModelNotFound):
        offer.base_model("third")


def test_an_offer_that_a_backend_shares_lists_what_the_backend_finds() -> None:
    offer = LocalOffer([BASE])
    backend = LocalBackend(offer)
    assert backend.entries() is offer.entries()
    backend._offer.limit("tiny", 100)
    assert [entry.context_length for entry in offer.entries()] == [100]


def test_a_router_follows_members_that_grow() -> None:
    bases: list[BaseModel] = []
    local, echo = Offering(bases), EchoBackend()
    router = Router([echo, Router([local])])
    before = router.entries()
    assert router.entries() is before
    with pytest.raises(ModelNotFound):
        router.backend_of("tiny")
    bases.append(BASE)
    assert [entry.id for entry in router.entries()] == ["echo", "tiny"]
    assert router.backend_of("tiny") is local
    assert router.capabilities("tiny").trainable


def test_a_member_that_grows_into_a_name_that_is_taken_is_refused() -> None:
    bases: list[BaseModel] = []
    router = Router([EchoBackend(), Offering(bases)])
    router.entries()
    bases.append(attrs.evolve(BASE, id="echo"))
    with pytest.raises(InvalidInput, match="already offered"):
        router.entries()
