"""Asking stored traffic on the command line: estimated first, then asked on somebody's word."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from modelyard import open_platform
from modelyard.cli import main


@pytest.fixture
def store(tmp_path: Path) -> str:
    path = str(tmp_path / "yard.db")
    with open_platform(path) as platform:
        for at in range(3):
            platform.chat.complete(model="echo", messages=f"hello {at}", store=True)
    return path


def say(store: str, *words: str, code: int = 0, answer: str = "") -> str:
    found = CliRunner().invoke(main, ["what-if", *words, "--store", store], input=answer)
    assert found.exit_code == code, found.output
    return found.output


def asked(store: str) -> list[str]:
    return [one["id"] for one in json.loads(say(store, "list", "--json"))]


def test_nothing_is_asked_without_a_word(store: str) -> None:
    said = say(store, "ask", "tabular-mini", "--since", "7d", answer="n\n", code=1)
    assert "3 stored requests of" in said
    assert "Spend this, and at most half more?" in said
    assert asked(store) == []


def test_it_is_asked_listed_shown_and_deleted(store: str) -> None:
    said = say(store, "ask", "tabular-mini", "--max-tokens", "20", "--judge", "echo", "--yes")
    assert "asked again: 3 rows" in said
    assert "feedback: no estimate" in said
    (one,) = asked(store)
    assert "asked again: 3 rows" in say(store, "show", one)
    found = json.loads(say(store, "show", one, "--json"))
    assert (found["answers"]["done"], found["status"]) == (3, "succeeded")
    assert say(store, "cancel", one) == "succeeded\n"
    assert say(store, "delete", one).strip() == one
    assert asked(store) == []


def test_a_budget_is_a_word(store: str) -> None:
    assert "less left than" in say(store, "ask", "tabular-mini", "--budget", "0.000001")
    assert "asked again: 3 rows" in say(store, "ask", "tabular-mini", "--budget", "1", "--max-tokens", "5")


def test_other_prices_cost_nothing_to_ask(store: str, tmp_path: Path) -> None:
    prices = tmp_path / "prices.json"
    prices.write_text('{"*": {"completion": "0.5"}}')
    assert "cost: " in say(store, "ask", "--prices", str(prices))
    found = json.loads(say(store, "ask", "--prices", str(prices), "--json"))
    assert found["repriced"]["models"][0]["calls"] == 3
    prices.write_text("{")
    assert "must be a JSON file of prices by model" in say(store, "ask", "--prices", str(prices), code=1)


def test_an_estimate_asks_nothing(store: str) -> None:
    found = json.loads(say(store, "ask", "tabular-mini", "--estimate", "--json"))
    assert found["rows"] == 3
    assert asked(store) == []
    assert "rows" in say(store, "ask", "tabular-mini", "--estimate")


def test_what_cannot_be_read_is_told(store: str) -> None:
    assert "'team' is not like team=desk" in say(store, "ask", "echo", "--metadata", "team", code=2)
    assert "prices are required" in say(store, "ask", code=1)
    assert "since: must be a date" in say(store, "ask", "echo", "--since", "soon", "--yes", code=1)
