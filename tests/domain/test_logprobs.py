"""The bytes of tokens, and entries cut to those of a part of a string."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from modelyard.domain.completion import TokenLogprob, token_bytes, trimmed

anywhere: Any = st.characters(exclude_categories=())
entries = st.lists(
    st.builds(TokenLogprob, st.text(anywhere, max_size=3), st.just(-1.0), st.none() | st.binary(max_size=3).map(tuple)),
    max_size=6,
)


def joined(found: list[TokenLogprob]) -> bytes:
    return b"".join(map(token_bytes, found))


def test_the_bytes_that_came_with_a_token_are_worth_more_than_its_text() -> None:
    assert token_bytes(TokenLogprob("�", -1.0, (0xF0, 0x9F))) == b"\xf0\x9f"
    assert token_bytes(TokenLogprob("�", -1.0)) == "�".encode()
    assert token_bytes(TokenLogprob("\ud800", -1.0)) == b"\xed\xa0\x80"


@given(entries, st.integers(0, 20))
def test_entries_are_cut_to_the_first_bytes_and_keep_their_number_and_logprobs(
    whole: list[TokenLogprob], size: int
) -> None:
    cut = trimmed(whole, size)
    assert joined(cut) == joined(whole)[:size]
    assert [entry.logprob for entry in cut] == [-1.0] * len(whole)
    for entry, old in zip(cut, whole, strict=True):
        assert entry == old or len(token_bytes(entry)) < len(token_bytes(old))
