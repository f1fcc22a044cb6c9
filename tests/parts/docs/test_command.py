"""`modelyard docs`: a page by its name, its title, or a word for what is looked for."""

import pytest
from click.testing import CliRunner, Result

from each import each_case
from meant_pages import MEANT
from modelyard.cli import main
from modelyard.parts.docs.command import MOST_PAGES, matching
from modelyard.parts.docs.pages import pages


def shown(*topic: str) -> Result:
    return CliRunner().invoke(main, ["docs", *topic])


@pytest.mark.slow
@each_case("page", pages(), ids=lambda page: page.name)
def test_a_page_is_found_by_its_name_its_path_and_its_title(page) -> None:
    assert shown(page.name).output.strip() == page.text.strip()
    assert shown(page.path).output.strip() == page.text.strip()
    found = shown(*page.title.split())
    assert found.exit_code == 0
    assert page.text.strip() in found.output or page.name in found.output


@pytest.mark.slow
@each_case("page", [page for page in pages() if page.also], ids=lambda page: page.name)
def test_a_page_is_found_by_its_other_words(page) -> None:
    for word in page.also:
        output = shown(*word.upper().split()).output
        assert page.text.strip() in output or page.name in output, word


@each_case(
    ("word", "page"),
    [
        ("otel", "run-in-production"),
        ("opentelemetry", "run-in-production"),
        ("kubernetes", "run-on-many-machines"),
        ("k8s", "run-on-many-machines"),
        ("kubernetes jobs", "run-jobs-on-a-cluster"),
        ("ollama", "put-a-real-server-behind-it"),
        ("vllm", "put-a-real-server-behind-it"),
        ("llama.cpp", "put-a-real-server-behind-it"),
    ],
)
def test_what_people_type_opens_the_page_that_they_mean(word: str, page: str) -> None:
    meant = next(one for one in pages() if one.name == f"how-to/{page}")
    assert shown(*word.split()).output.strip() == meant.text.strip()


def test_a_page_of_the_api_opens_by_its_own_name() -> None:
    assert shown("modelyard.otel").output.startswith("# modelyard.otel\n")


@each_case(("query", "page"), [*MEANT.items()])
def test_what_people_type_finds_the_page_that_they_mean_first(query: str, page: str) -> None:
    assert matching(pages(), query)[0].name == page


@each_case("role", ["operator", "evaluator", "ML engineer", "tester", "application developer"])
def test_whoever_one_is_a_page_begins(role: str) -> None:
    assert shown(role).output.startswith("# ")


def test_without_a_topic_every_page_is_listed_with_its_sentence() -> None:
    lines = shown().output.splitlines()
    assert [line.split()[0] for line in lines] == [page.name for page in pages()]
    assert all(line.endswith(page.sentence) for line, page in zip(lines, pages(), strict=True))


@each_case("topic", ["uvloop", "rollback alias", "retry-after"])
def test_words_that_no_title_has_are_looked_for_in_the_texts(topic: str) -> None:
    words, found = topic.replace("-", " ").split(), matching(pages(), topic)
    assert 1 <= len(found) <= MOST_PAGES
    assert all(word in page.text.lower() for page in found for word in words)
    often = [min(page.text.lower().count(word) for word in words) for page in found]
    assert often == sorted(often, reverse=True)
    output = shown(*topic.split()).output
    assert all(page.name in output for page in found) if len(found) > 1 else output.strip() == found[0].text.strip()


@each_case(("topic", "nearest"), [("trian", "train"), ("kuberntes", "kubernetes"), ("evalute", "evaluate")])
def test_an_unknown_topic_is_refused_with_the_nearest(topic: str, nearest: str) -> None:
    refused = shown(topic)
    assert refused.exit_code == 1
    assert repr(topic) in refused.output
    assert nearest in refused.output.lower()


@each_case("topic", ["qqqqq", "x" * 9000, "\x1b[31m", "%s {0} \\", "[", "é"])
def test_whatever_is_asked_the_answer_is_bounded(topic: str) -> None:
    refused = shown(topic)
    assert refused.exit_code == 1
    assert len(refused.output) < 500
    assert "\x1b" not in refused.output


def test_no_pager_is_started_unless_a_terminal_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGER", "false")
    assert shown("train").output.startswith("# Train")
