"""The catalogue's entries as the specification shows them, and prices to the last digit."""

import json
from datetime import date
from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from each import each_case
from modelyard.domain.catalogue import CatalogueEntry, Datacenter, Feature, Pricing, Quantization, SamplingParameter
from modelyard.formats.converter import structure, unstructure
from modelyard.http.catalogue.schemas import CatalogueBody, ListedModel, ModelList, decimal
from modelyard.http.message import dump


def entry(**more: Any) -> CatalogueEntry:
    return CatalogueEntry(
        id="a/b",
        hub_id="hub/a",
        name="A",
        created=1,
        quantization=Quantization.BF16,
        context_length=8,
        max_output_length=4,
        pricing=Pricing(prompt=Decimal("0.0000001"), completion=Decimal("1E-9"), request=Decimal("2.50")),
        supported_sampling_parameters=(SamplingParameter.TOP_K,),
        supported_features=(Feature.TOOLS,),
        datacenters=(Datacenter("FI"),),
        **more,
    )


def test_an_entry_has_exactly_the_fields_of_the_specification() -> None:
    assert unstructure(CatalogueBody.of([entry()])) == {
        "data": [
            {
                "id": "a/b",
                "hub_id": "hub/a",
                "name": "A",
                "created": 1,
                "input_modalities": ["text"],
                "output_modalities": ["text"],
                "quantization": "bf16",
                "context_length": 8,
                "max_output_length": 4,
                "pricing": {
                    "prompt": "0.0000001",
                    "completion": "0.000000001",
                    "image": "0",
                    "request": "2.5",
                    "input_cache_read": "0",
                },
                "supported_sampling_parameters": ["top_k"],
                "supported_features": ["tools"],
                "datacenters": [{"country_code": "FI"}],
            }
        ]
    }


def test_a_deprecation_date_is_shown_when_there_is_one() -> None:
    (shown,) = unstructure(CatalogueBody.of([entry(deprecation_date=date(2027, 1, 2))]))["data"]
    assert shown["deprecation_date"] == "2027-01-02"


def test_every_answer_fits_its_own_declaration() -> None:
    assert structure(CatalogueBody, json.loads(dump(CatalogueBody.of([entry(deprecation_date=date(2027, 1, 2))]))))


@given(st.decimals(min_value=0, allow_nan=False, allow_infinity=False, places=None))
def test_a_price_is_exact_and_has_neither_exponent_nor_sign(amount: Decimal) -> None:
    text = decimal(amount)
    assert Decimal(text) == amount
    assert set(text) <= set("0123456789.")


@each_case(("amount", "text"), [("0E+3", "0"), ("1E+3", "1000"), ("-0", "0"), ("0.10", "0.1"), ("100", "100")])
def test_prices_read_plainly(amount: str, text: str) -> None:
    assert decimal(Decimal(amount)) == text


def test_the_chat_format_s_own_list() -> None:
    shown = {"id": "a/b", "object": "model", "created": 1, "owned_by": "modelyard"}
    assert unstructure(ModelList("list", (ListedModel.of(entry()),))) == {"object": "list", "data": [shown]}
