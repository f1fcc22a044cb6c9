"""Reasoning is read from an answer alike however it is cut into pieces, and nothing of it is lost."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelyard.parts.torch.reasoning import CLOSING, OPENING, ReasoningReader

words = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(
    [OPENING, CLOSING, "<", "</", "</thin", "\n", "\n\n", "<think", " "]
)
texts = st.lists(words, max_size=6).map("".join)


def read(text: str, cuts: list[int], opened: bool) -> tuple[str, str]:
    """Reasoning and content of an answer that is cut into pieces."""
    reader, places = ReasoningReader(opened), [0, *sorted(cuts), len(text)]
    pieces = [text[start:stop] for start, stop in pairwise(places)]
    found = [reader.take(piece, place == len(pieces)) for place, piece in enumerate(pieces, 1)]
    return "".join(reasoning for reasoning, _ in found), "".join(content for _, content in found)


@pytest.mark.parametrize(
    ("opened", "text", "reasoning", "content"),
    [
        (False, "<think>\nTwo and two.\n</think>\n\n4", "Two and two.", "4"),
        (False, "\n<think>a\n\nb</think>4\n", "a\n\nb", "4\n"),
        (False, "4", "", "4"),
        (False, "  4", "", "  4"),
        (False, "<thin", "", "<thin"),
        (False, "4 <think>x</think>", "", "4 <think>x</think>"),
        (False, "<think>\n\n</think>\n\n4", "", "4"),
        (False, "<think>cut o", "cut o", ""),
        (False, "<think>a</think", "a</think", ""),
        (False, "<think>a</think>", "a", ""),
        (False, "<think>a</think>b</think>c", "a", "b</think>c"),
        (True, "Two and two.\n</think>\n\n4", "Two and two.", "4"),
        (True, "never closed\n", "never closed", ""),
        (True, "", "", ""),
    ],
)
def test_marks_divide_an_answer(opened: bool, text: str, reasoning: str, content: str) -> None:
    assert read(text, [], opened) == read(text, [*range(len(text))], opened) == (reasoning, content)


@given(text=texts, opened=st.booleans(), data=st.data())
def test_cuts_change_nothing(text: str, opened: bool, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=6))
    assert read(text, cuts, opened) == read(text, [], opened)


@given(reasoning=texts.filter(lambda text: CLOSING not in text), content=texts)
def test_what_was_written_is_read(reasoning: str, content: str) -> None:
    reasoning, content = reasoning.strip("\n"), content.lstrip("\n")
    written = f"{OPENING}\n{reasoning}\n{CLOSING}\n\n{content}"
    if (reasoning + "\n" + CLOSING).index(CLOSING) == len(reasoning) + 1:
        assert read(written, [], opened=False) == (reasoning, content)


@given(text=texts, opened=st.booleans())
def test_all_reasoning_comes_before_the_content(text: str, opened: bool) -> None:
    reader, contents = ReasoningReader(opened), 0
    for place, character in enumerate(text, 1):
        reasoning, content = reader.take(character, place == len(text))
        assert not (reasoning and contents)
        contents += len(content)
        assert bool(contents) <= reader.ended
