"""Catalogue entries: their bounds, and the record that keeps them."""

from datetime import date
from decimal import Decimal
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from each import each_case
from modelyard.domain.catalogue import (
    CatalogueEntry,
    Datacenter,
    Feature,
    Pricing,
    Quantization,
    RegisteredEntry,
    SamplingParameter,
    check_entry,
)
from modelyard.errors import InvalidInput

ENTRY = CatalogueEntry(
    id="lab/model-1",
    hub_id="lab/model-1",
    name="Model 1",
    created=1_700_000_000,
    quantization=Quantization.FP8,
    context_length=8192,
    max_output_length=4096,
)

prices = st.decimals(0, 1000, allow_nan=False, allow_infinity=False, places=12)
entries = st.builds(
    CatalogueEntry,
    id=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._/@:+-]{0,60}", fullmatch=True),
    hub_id=st.sampled_from(["lab/m", "x" * 255]),
    name=st.sampled_from(["Model", "Modèle 2"]),
    created=st.integers(0, 2**53),
    quantization=st.sampled_from(Quantization),
    context_length=st.integers(2**20, 2**53),
    max_output_length=st.integers(1, 2**20),
    pricing=st.builds(Pricing, prices, prices, prices, prices, prices),
    input_modalities=st.just(("text", "image")),
    output_modalities=st.just(("text",)),
    supported_sampling_parameters=st.lists(st.sampled_from(SamplingParameter), unique=True).map(tuple),
    supported_features=st.lists(st.sampled_from(Feature), unique=True).map(tuple),
    datacenters=st.just((Datacenter("US"), Datacenter("NL"))),
    deprecation_date=st.none() | st.dates(),
)


@given(entries)
def test_an_entry_comes_back_from_its_record_exactly(entry: CatalogueEntry) -> None:
    check_entry(entry)
    record = RegisteredEntry.of(entry, answers_as="echo")
    assert record.answers_as == "echo"
    assert record.entry() == entry


def test_prices_stay_exact() -> None:
    price = Decimal("0.000000000000000000000000000001")
    entry = attrs.evolve(ENTRY, pricing=Pricing(prompt=price))
    check_entry(entry)
    assert RegisteredEntry.of(entry, "echo").entry().pricing.prompt == price


@each_case(
    ("field", "value"),
    [
        ("id", ""),
        ("id", "/leading"),
        ("id", "a b"),
        ("id", "x" * 256),
        ("id", "a\n"),
        ("hub_id", ""),
        ("name", "x" * 256),
        ("name", "bell\a"),
        ("created", -1),
        ("created", 2**53 + 1),
        ("context_length", 0),
        ("max_output_length", 0),
        ("input_modalities", ("smell",)),
        ("output_modalities", ("text", "smell")),
    ],
)
def test_a_field_out_of_its_bounds_is_named(field: str, value: Any) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_entry(attrs.evolve(ENTRY, **{field: value}))
    assert [problem.loc for problem in refused.value.problems] == [(field,)]


@each_case("price", ["-1", "NaN", "Infinity", "0." + "1" * 31])
def test_a_price_that_is_not_an_amount_is_named(price: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_entry(attrs.evolve(ENTRY, pricing=Pricing(completion=Decimal(price))))
    assert [problem.loc for problem in refused.value.problems] == [("pricing", "completion")]


@each_case("code", ["us", "USA", "", "1A", "ÄÖ"])
def test_a_datacenter_is_named_by_its_country_code(code: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_entry(attrs.evolve(ENTRY, datacenters=(Datacenter("US"), Datacenter(code))))
    assert [problem.loc for problem in refused.value.problems] == [("datacenters", 1, "country_code")]


def test_every_fault_of_an_entry_is_named_at_once() -> None:
    entry = attrs.evolve(ENTRY, id="", created=-1, input_modalities=("smell",), deprecation_date=date(2030, 1, 1))
    with pytest.raises(InvalidInput) as refused:
        check_entry(entry)
    assert [problem.loc for problem in refused.value.problems] == [("id",), ("created",), ("input_modalities",)]


def test_the_strings_of_the_specification_stand_for_enums_dates_prices_and_places() -> None:
    entry = attrs.evolve(
        ENTRY,
        quantization="fp4",
        pricing=Pricing(prompt="0.1", request=2),
        supported_sampling_parameters=["seed"],
        supported_features=("tools",),
        datacenters=["US", Datacenter("DE")],
        deprecation_date="2027-01-31",
    )
    assert entry == attrs.evolve(
        ENTRY,
        quantization=Quantization.FP4,
        pricing=Pricing(prompt=Decimal("0.1"), request=Decimal(2)),
        supported_sampling_parameters=(SamplingParameter.SEED,),
        supported_features=(Feature.TOOLS,),
        datacenters=(Datacenter("US"), Datacenter("DE")),
        deprecation_date=date(2027, 1, 31),
    )


@each_case(
    ("field", "value", "words"),
    [
        ("quantization", "fp9", "quantization: must be one of int4, int8, fp4, fp6, fp8, fp16, bf16, fp32, not 'fp9'"),
        ("supported_sampling_parameters", ("min_p",), "supported_sampling_parameters.0: must be one of temperature"),
        ("supported_features", "tools", "supported_features: must be a list or tuple, not 'tools'"),
        ("supported_features", 3, "supported_features: must be a list or tuple, not 3"),
        ("datacenters", (1,), "country_code: must be a string, not 1"),
        ("input_modalities", (None,), "input_modalities: must be a string, not None"),
        ("deprecation_date", "2027-13-01", "deprecation_date: must be a date such as 2027-01-31, not '2027-13-01'"),
        ("deprecation_date", 5, "deprecation_date: must be a date such as 2027-01-31, not 5"),
        ("created", "1", "created: must be a whole number, not '1'"),
        ("created", 1.0, "created: must be a whole number, not 1.0"),
        ("context_length", True, "context_length: must be a whole number, not True"),
        ("name", None, "name: must be a string, not None"),
        ("pricing", "0.1", "pricing: must be a Pricing, not '0.1'"),
    ],
)
def test_a_value_of_another_type_is_refused_at_its_field(field: str, value: Any, words: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        attrs.evolve(ENTRY, **{field: value})
    assert str(refused.value).startswith(words)


@each_case("price", [0.1, "free", None, True])
def test_a_price_that_is_not_exact_is_refused_at_its_kind(price: Any) -> None:
    with pytest.raises(InvalidInput, match=r"pricing\.completion: must be an exact number"):
        Pricing(completion=price)


def test_an_answer_cannot_be_longer_than_the_context() -> None:
    with pytest.raises(InvalidInput, match="max_output_length: must be at most context_length"):
        check_entry(attrs.evolve(ENTRY, max_output_length=8193))
