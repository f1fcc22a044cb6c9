"""The docs as two texts: a sentence a page, and every page as it is."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from each import each_case
from http_client import Client, client_of
from modelyard import open_platform
from modelyard.http.interface import Interface
from modelyard.parts.docs import pages
from modelyard.parts.docs.pages import DocsPage

ROOT = Path(__file__).parents[3]
KNOWN = pages.pages()
LISTED = re.findall(r"^- \[(.+?)\]\((\S+)\): (.+)$", pages.text_of("llms.txt"), re.MULTILINE)


def test_every_page_of_the_navigation_is_there_as_it_is() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    assert [page.path for page in KNOWN] == re.findall(r"[\w/-]+\.md", navigation)
    for page in KNOWN:
        text = (ROOT / "docs" / page.path).read_text(encoding="utf-8")
        if "\n::: " not in text and "--8<--" not in text:
            assert page.text.strip() == text.strip()


def test_each_has_a_title_an_address_and_one_sentence() -> None:
    assert [address for _, address, _ in LISTED] == [page.address for page in KNOWN]
    for title, _, sentence in LISTED:
        assert title.strip()
        assert 15 <= len(sentence) <= 300, (title, sentence)
        assert sentence.endswith("."), (title, sentence)
        assert "](" not in sentence
    sentences = [sentence for _, _, sentence in LISTED]
    assert len({*sentences}) == len(sentences)


def test_each_how_to_names_the_words_that_people_look_for() -> None:
    for page in KNOWN:
        if page.path.startswith("how-to/"):
            assert page.text.splitlines()[2].startswith("Also: "), page.path
            assert len(page.also) >= 3, page.path
            assert len({*page.also}) == len(page.also), page.path


@each_case(
    ("text", "sentence"),
    [
        ("# A\n\nAlso: b, c.\n\nDo [this](x.md) first. Then that.\n", "Do this first."),
        ("# A\n\n```python\nx. Y\n```\n\nUse `a.b` here:\n\n- more\n", "Use `a.b` here."),
        ("# A\n\n| a | b |\n\n**Bold is said\nfirst.** And more.\n", "Bold is said first."),
        ("# A\n\nSend `Key: Value` there: Now. (Or not.)\n", "Send `Key: Value` there: Now."),
        ("# A\n\nIs it so? It is.\n", "Is it so."),
        ("# A\n", ""),
    ],
)
def test_the_sentence_is_the_first_of_the_prose(text: str, sentence: str) -> None:
    assert DocsPage("a.md", "", text).sentence == sentence


@pytest.fixture
def client() -> Iterator[Client]:
    with open_platform() as platform:
        yield client_of(platform)


@pytest.mark.parametrize("file", ["llms.txt", "llms-full.txt"])
def test_both_are_served_to_everybody(file: str, client: Client) -> None:
    answer = client.send("GET", f"/{file}", key="")
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.raw.decode() == pages.text_of(file)


@each_case("interface", [*Interface], ids=str)
def test_both_are_where_the_openapi_document_is(interface: Interface) -> None:
    with open_platform() as platform:
        client = client_of(platform, interfaces=(interface,))
        for path in ("/openapi.json", "/llms.txt", "/llms-full.txt"):
            assert client.send("GET", path, key="").status == 200
        assert {"/llms.txt", "/llms-full.txt"} <= client.send("GET", "/openapi.json", key="").json["paths"].keys()


def test_without_the_docs_each_says_where_they_are(
    client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(pages, "CHECKOUT", tmp_path)
    pages.text_of.cache_clear()
    answer = client.send("GET", "/llms.txt", key="")
    assert answer.status == 404
    assert "https://modelyard.readthedocs.io/llms.txt" in json.dumps(answer.json)


def test_what_the_wheel_has_is_read_before_the_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "llms.txt").write_text("of the wheel")
    monkeypatch.setattr(pages, "HERE", tmp_path)
    pages.text_of.cache_clear()
    assert pages.text_of("llms.txt") == "of the wheel"
    pages.text_of.cache_clear()
