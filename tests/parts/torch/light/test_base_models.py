"""Base models in local folders are checked once, kept in the store, and offered by every platform that opens it."""

import shutil
from decimal import Decimal
from pathlib import Path

import pytest

from modelyard import open_platform
from modelyard.backends.echo import EchoBackend
from modelyard.domain.catalogue import Pricing, Quantization
from modelyard.domain.identity import Principal, Scope
from modelyard.errors import Conflict, Forbidden, InvalidInput, MissingExtra
from modelyard.parts.torch import sources as base_model
from modelyard.parts.torch.records import BaseModel, Tuning


@pytest.fixture(autouse=True)
def _torch_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here loads it."""
    monkeypatch.setattr(base_model, "find_spec", lambda name: object())


def test_a_base_model_is_listed_priced_and_can_be_trained(base_folder: Path) -> None:
    with open_platform() as yard:
        entry = yard.add_base_model(base_folder, id="tiny", name="Tiny", pricing=Pricing(prompt=Decimal("0.5")))
        assert entry in yard.catalogue.list()
        assert (entry.id, entry.name, entry.quantization) == ("tiny", "Tiny", Quantization.FP32)
        assert entry.pricing.prompt == Decimal("0.5")
        assert "tiny" in yard.models.trainable()
        assert yard.models.create("m", project="p", base_model="tiny").base_model == "tiny"


def test_it_is_offered_again_when_the_store_is_opened_again(base_folder: Path, tmp_path: Path) -> None:
    with open_platform(tmp_path / "yard.db") as yard:
        entry = yard.add_base_model(base_folder, id="tiny", tuning=Tuning.FULL, pricing=Pricing(prompt=Decimal("0.1")))
        (kept,) = yard._runtime.engines[0].base_models or []
    with open_platform(tmp_path / "yard.db") as yard:
        assert yard._runtime.engines[0].base_models == [kept]
        assert kept.tuning is Tuning.FULL
        assert entry in yard.catalogue.list()
        assert (
            yard.add_base_model(base_folder, id="tiny", tuning=Tuning.FULL, pricing=Pricing(prompt=Decimal("0.1")))
            == entry
        )


def test_the_same_folder_again_changes_nothing_and_another_is_a_conflict(base_folder: Path, tmp_path: Path) -> None:
    other = shutil.copytree(base_folder, tmp_path / "other")
    with open_platform() as yard:
        first = yard.add_base_model(base_folder, id="tiny")
        assert yard.add_base_model(base_folder, id="tiny") == first
        for id in ("tiny", "echo", "tabular-mini"):
            with pytest.raises(Conflict, match="already offered"):
                yard.add_base_model(other, id=id)
        (base_folder / "tokenizer.json").write_text("{} ")
        with pytest.raises(Conflict):
            yard.add_base_model(base_folder, id="tiny")
        assert len(yard._runtime.engines[0].base_models or []) == 1


def test_an_id_that_another_process_has_kept_meanwhile_is_a_conflict(base_folder: Path, tmp_path: Path) -> None:
    with open_platform(tmp_path / "yard.db") as one, open_platform(tmp_path / "yard.db") as other:
        one.add_base_model(base_folder, id="tiny")
        with pytest.raises(Conflict, match="kept in this store already"):
            other.add_base_model(base_folder, id="tiny", name="Other")


@pytest.mark.parametrize("package", ["torch", "transformers"])
def test_without_torch_it_is_refused_with_what_to_install(
    base_folder: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setattr(base_model, "find_spec", lambda name: None if name == package else object())
    with open_platform() as yard, pytest.raises(MissingExtra, match=r"pip install 'modelyard\[torch\]'"):
        yard.add_base_model(base_folder, id="tiny")


def test_weights_of_other_number_formats_are_refused(base_folder: Path) -> None:
    path = base_folder / "model.safetensors"
    path.write_bytes(path.read_bytes().replace(b'"F32"', b'"I32"'))
    with open_platform() as yard, pytest.raises(InvalidInput, match="the weights are I32"):
        yard.add_base_model(base_folder, id="tiny")


def test_a_platform_with_a_given_backend_names_where_a_base_model_belongs(base_folder: Path) -> None:
    with open_platform(backend=EchoBackend()) as yard, pytest.raises(InvalidInput, match="LocalBackend"):
        yard.add_base_model(base_folder, id="tiny")


def test_only_the_host_may_add_one(base_folder: Path) -> None:
    with open_platform() as yard:
        tenant = yard.acting_as(Principal("somebody", "local", Scope("local")))
        with pytest.raises(Forbidden):
            tenant.add_base_model(base_folder, id="tiny")


def test_a_record_can_be_read_from_the_store_as_it_was_written(base_folder: Path, tmp_path: Path) -> None:
    with open_platform(tmp_path / "yard.db") as yard:
        yard.add_base_model(base_folder, id="tiny")
        (kept,) = yard._runtime.engines[0].base_models or []
        assert yard._runtime.store.read(lambda snapshot: snapshot.get(BaseModel, "tiny")) == kept
