"""Runs that ask each row with a system message and a prompt of their own."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_counts import examples
from modelyard import open_platform
from modelyard.errors import InvalidInput
from modelyard.platform.evaluations.model_under_test import messages_asked
from modelyard.platform.platform import Platform

ROWS = [{"question": "2 + 2", "expected": "Say 2 + 2"}, {"question": "3 + 3", "expected": "no"}]


@pytest.fixture
def platform() -> Iterator[Platform]:
    with open_platform(project="demo") as opened:
        yield opened


def texts(prompts: dict[str, str], row: dict[str, Any]) -> list[tuple[str, str]]:
    return [(message.role.value, message.text or "") for message in messages_asked(prompts, row)]


WORDS = st.text(st.sampled_from("ab {}\n:é"), max_size=8)


@examples(60)
@given(st.dictionaries(st.sampled_from(["a", "b", "prompt"]), WORDS, min_size=3), WORDS)
def test_fields_are_filled_in_once_and_a_value_is_never_a_template(row: dict[str, str], end: str) -> None:
    asked = texts({"system": "S {a}", "prompt": f"{{b}}|{{prompt}}|{end.replace('{', '').replace('}', '')}"}, row)
    rest = end.replace("{", "").replace("}", "")
    assert asked == [("system", f"S {row['a']}"), ("user", f"{row['b']}|{row['prompt']}|{rest}")]


def test_a_system_message_takes_the_place_of_the_rows_own_and_keeps_the_turns() -> None:
    turns = [{"role": role, "content": role} for role in ("system", "user", "assistant", "user")]
    asked = texts({"system": "new"}, {"messages": turns})
    assert asked == [("system", "new"), ("user", "user"), ("assistant", "assistant"), ("user", "user")]


def test_what_is_no_text_is_written_as_json_and_other_braces_stay() -> None:
    assert texts({"prompt": 'JSON like {"a": 1}: {list}'}, {"list": [1, "é"]}) == [
        ("user", 'JSON like {"a": 1}: [1, "é"]')
    ]


def test_a_run_is_asked_with_its_prompts_and_keeps_them(platform: Platform) -> None:
    run = platform.evaluations.run("sums", "echo", ROWS, system="Be brief.", prompt="Say {question}")
    assert [row.output for row in run.rows] == ["Say 2 + 2", "Say 3 + 3"]
    assert run.score == 0.5
    assert run.run.prompts == {"system": "Be brief.", "prompt": "Say {question}"}
    assert [row.row for row in run.rows] == ROWS  # so rows pair with those of another prompt
    again = platform.evaluations.rescore(run.run.id, {"type": "contains"})
    assert again.run.prompts == run.run.prompts


def test_prompts_are_compared_and_named(platform: Platform) -> None:
    plain = platform.evaluations.run("sums", "echo", ROWS, prompt="{question}")
    said = platform.evaluations.run("sums", "echo", ROWS, prompt="Say {question}")
    text = str(platform.evaluations.compare(plain, said))
    assert "echo, prompt '{question}'" in text
    assert "echo, prompt 'Say {question}'" in text
    assert "2 rows in both" in text
    assert "echo, prompt 'Say {question}' on sums" in str(platform.evaluations.report(said))


def test_workers_ask_with_the_prompts_too(platform: Platform) -> None:
    run = platform.evaluations.submit("sums", "echo", ROWS, prompt="Say {question}", shards=2)
    assert platform.evaluations.wait(run.id).score == 0.5
    assert platform.evaluations.runs.get(run.id).prompts == {"prompt": "Say {question}"}


@pytest.mark.parametrize("name", ["system", "prompt"])
def test_a_prompt_that_cannot_be_is_refused_before_a_run_is_made(platform: Platform, name: str) -> None:
    for wrong in ("", " ", 5, ["a"], {"a": 1}, True):
        with pytest.raises(InvalidInput, match=f"{name}: must be a string with words"):
            platform.evaluations.run("sums", "echo", ROWS, **{name: wrong})
    with pytest.raises(InvalidInput, match=f"{name}: asks for {{qestion}}, which no row has.*'question'"):
        platform.evaluations.run("sums", "echo", ROWS, **{"prompt": "{question}", name: "{qestion}"})
    with pytest.raises(InvalidInput, match=f"{name}: is an option of completions, and a function takes none"):
        platform.evaluations.run("sums", lambda row: "x", ROWS, **{name: "x"})
    assert [*platform.evaluations.runs.list()] == []


def test_a_row_that_lacks_a_field_is_an_error_of_its_own(platform: Platform) -> None:
    run = platform.evaluations.run("sums", "echo", [*ROWS, {"other": 1}], prompt="{question}")
    (failed,) = run.errors
    assert "question: is missing, and the prompt asks for it" in failed.detail


def test_none_is_no_prompt(platform: Platform) -> None:
    rows = [{"prompt": "a", "expected": "a"}]
    run = platform.evaluations.run("sums", "echo", rows, system=None, prompt=None)
    assert (run.score, run.run.prompts) == (1, {})


@pytest.mark.parametrize("kept", [None, {}, {"prompts": 5}, {"prompts": {"system": 1, "x": "y"}}])
def test_a_clients_summary_may_hold_anything(platform: Platform, kept: dict[str, Any] | None) -> None:
    made = platform.evaluations.runs.create("weave:///local/demo/object/e", "weave:///local/demo/object/m")
    assert platform.evaluations.runs.finish(made.id, kept).prompts == {}


# ---- what no row has


def dataset(platform: Platform, rows: list[dict[str, Any]]) -> Any:
    return platform.evaluations.objects.publish("dataset", "asked", {}, rows)


@pytest.mark.parametrize("published", [False, True])
def test_rows_that_ask_nothing_are_refused_as_the_first_is_read(platform: Platform, published: bool) -> None:
    def rows() -> Iterator[dict[str, Any]]:
        yield ROWS[0]
        raise AssertionError("the second row was read")

    given = dataset(platform, ROWS) if published else rows()
    for options in ({}, {"system": "Be brief."}):
        with pytest.raises(InvalidInput) as refused:
            platform.evaluations.run("sums", "echo", given if published else rows(), **options)  # type: ignore[arg-type]
        assert str(refused.value) == (
            "rows.0: has 'question', 'expected', and neither messages nor prompt; "
            'give prompt="{question}" (in a shell: --prompt "{question}")'
        )
    assert [*platform.evaluations.runs.list()] == []
    given = dataset(platform, ROWS) if published else ROWS
    assert platform.evaluations.run("sums", "echo", given, prompt="{question}").score == 0
    assert platform.evaluations.run("sums", lambda row: row["expected"], given).score == 1


MISSPELT: list[Any] = [
    {"type": kind, "expected": "expectd", **({"path": "$.a"} if kind == "json_path" else {})}
    for kind in ("exact_match", "contains", "numeric", "json_equal", "json_path", "tool_calls", "one_of", "fuzzy")
]


@pytest.mark.parametrize("scorer", MISSPELT, ids=lambda scorer: scorer["type"])
def test_a_scorers_field_that_no_row_has_is_refused_before_the_first_answer(platform: Platform, scorer: Any) -> None:
    asked: list[Any] = []
    found = f"scorers.{scorer['type']}.expected: asks for {{expectd}}, which no row has; did you mean 'expected'?"
    combined = {"type": "combined", "name": "both", "scorers": {"a": scorer}, "formula": "a"}
    for rows in (ROWS, dataset(platform, ROWS)):
        with pytest.raises(InvalidInput) as refused:
            platform.evaluations.run("sums", asked.append, rows, scorer)
        assert str(refused.value) == found
        with pytest.raises(InvalidInput, match=r"scorers\.both.*\{expectd\}, which no row has"):
            platform.evaluations.run("sums", asked.append, rows, combined)
    assert asked == [*platform.evaluations.runs.list()] == []


def test_a_field_that_a_later_row_has_is_not_refused(platform: Platform) -> None:
    rows = [{"prompt": "a"}, {"prompt": "b", "late": "b"}]
    for kept in (rows, dataset(platform, rows)):
        run = platform.evaluations.run("sums", "echo", kept, {"type": "exact_match", "expected": "late"})
        assert [error.detail for error in run.errors] == [
            "invalid_input: row.late: is missing, and the scorer reads it"
        ]
        again = platform.evaluations.rescore(run.run.id, {"type": "contains", "expected": "late"})
        assert len(again.errors) == 1


@pytest.mark.parametrize(
    ("scorer", "place"),
    [
        (MISSPELT[0], "exact_match.expected"),
        ({"type": "llm_judge", "model": "echo", "prompt": "{output} {expectd}"}, "llm_judge.prompt"),
    ],
    ids=["rule", "judge"],
)
def test_a_field_that_no_stored_row_has_is_refused_before_it_is_scored_again(
    platform: Platform, scorer: Any, place: str
) -> None:
    run = platform.evaluations.run("sums", "echo", ROWS, prompt="{question}").run
    asked = platform.usage.total()
    for again in (platform.evaluations.rescore, platform.evaluations.submit_rescore):
        with pytest.raises(InvalidInput) as refused:
            again(run.id, scorer)
        assert str(refused.value).startswith(f"scorers.{place}: asks for {{expectd}}, which no row has; did you mean")
    assert platform.usage.total() == asked
    assert [one.id for one in platform.evaluations.runs.list()] == [run.id]
