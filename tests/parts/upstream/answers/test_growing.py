"""Text that is said again with each piece, or in each message, is read once; pieces that only stutter are kept."""

from itertools import accumulate, pairwise

from hypothesis import example, given
from hypothesis import strategies as st

from each import each_case
from modelyard.parts.upstream.answers.growing import GrowingText, SaidText

pieces_of = st.lists(st.text("ab -🙂", min_size=1, max_size=4), min_size=1, max_size=8)


def read(pieces: list[str]) -> str:
    text = GrowingText()
    return "".join([*map(text.take, pieces), text.end()])


@given(pieces_of)
@example(["I", " am", " here", " now"])
def test_pieces_that_repeat_those_before_are_read_once(pieces: list[str]) -> None:
    grown = list(accumulate(pieces))
    varied = len({*"".join(pieces[:4])}) > 2
    expected = grown[-1] if len(pieces) == 1 or (len(pieces) > 2 and varied) else "".join(grown)
    assert read(grown) == expected
    if len(pieces) > 2:
        assert read([*grown, grown[-1]]) == (expected if varied else expected + grown[-1])


@given(pieces_of, st.integers(2, 8))
def test_pieces_that_do_not_grow_are_all_kept(pieces: list[str], odd: int) -> None:
    """One piece among the first that does not begin with the one before it tells that none has those before."""
    before = list(accumulate(pieces))[: min(odd, 3)]
    given_ = [*before, "#", *pieces]
    assert read(given_) == "".join(given_)


@each_case(
    "pieces",
    [
        ["ha", "ha", "ha"],
        [" ", "  ", "   ", "    ", "x"],
        ["-", "--", "---", "----"],
        ["Hi", "Hi there"],
        ["a", "ab", "b"],
    ],
)
def test_what_may_be_the_text_itself_is_kept(pieces: list[str]) -> None:
    assert read(pieces) == "".join(pieces)


def test_most_texts_wait_for_nothing() -> None:
    text = GrowingText()
    assert [text.take("so"), text.take(" it"), text.is_plain] == ["so", " it", True]


@given(st.lists(st.text("ab -🙂", min_size=1, max_size=4), min_size=2, max_size=8), st.booleans())
@example(["abcd", "abcd efg"], True)
def test_the_last_piece_may_be_the_text_again(pieces: list[str], is_last: bool) -> None:
    text, whole = SaidText(False), "".join(pieces)
    if len(pieces) > 2 and all(after.startswith(one) for one, after in pairwise(pieces)):
        return  # each piece may repeat the one before
    said = "".join([*map(text.take, pieces), text.take(whole, is_last), text.end()])
    assert said == (whole if is_last and len(whole.encode()) >= 12 else whole * 2)


@given(st.lists(st.sampled_from(["a", "é", "\ud83d", "\udcc3", "\udca9", "\ude42", " b"]), min_size=1, max_size=6))
def test_messages_with_half_characters_are_read_once(pieces: list[str]) -> None:
    text, whole = SaidText(False), SaidText(False)
    said = "".join([*map(text.take_message, accumulate(pieces)), text.end()])
    assert said == whole.take_message("".join(pieces)) + whole.end()


@given(pieces_of)
def test_messages_that_grow_are_read_once(pieces: list[str]) -> None:
    text = SaidText(False)
    said = [text.take_message(one) for one in accumulate(pieces)]
    assert (said, text.end()) == (pieces, "")


@given(pieces_of, pieces_of)
def test_a_message_after_pieces_adds_what_they_did_not_say(pieces: list[str], more: list[str]) -> None:
    text, whole = SaidText(False), "".join([*pieces, *more])
    said = "".join(map(text.take, pieces))
    assert said + text.take_message(whole) + text.end() == whole
    assert text.take_message("") == ""


def test_pieces_that_are_called_messages_are_joined() -> None:
    text = SaidText(False)
    assert "".join(map(text.take_message, ["so ", "be", " it ", "\ud83d", "\ude42"])) == "so be it 🙂"
    assert text.take_message("so be it 🙂") == text.take_message("so be it 🙂 ".strip()) == ""
