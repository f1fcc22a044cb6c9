import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelyard.engines.tabular import tokenizer
from modelyard.engines.tabular.tokenizer import (
    END_OF_TURN,
    VOCABULARY_SIZE,
    decode,
    encode,
    token_bytes,
    token_id,
    token_text,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
ENGLISH = st.lists(st.sampled_from([*tokenizer.CHUNKS, " ", "\n", ".", "é", "😀"])).map("".join)


@given(TEXT | ENGLISH)
def test_every_text_comes_back_from_its_tokens(text):
    ids = encode(text)
    assert decode(ids) == text
    assert b"".join(map(token_bytes, ids)) == text.encode()
    assert all(0 <= i < VOCABULARY_SIZE and i != END_OF_TURN for i in ids)


def test_no_two_tokens_have_the_same_bytes_so_that_bytes_name_a_token():
    assert VOCABULARY_SIZE == 512
    assert [token_id(token_bytes(i)) for i in range(VOCABULARY_SIZE)] == list(range(VOCABULARY_SIZE))
    assert token_id(b"no such chunk") is None


def test_the_end_of_a_turn_is_never_text_and_text_never_ends_a_turn():
    assert (token_text(END_OF_TURN), token_bytes(END_OF_TURN), decode([END_OF_TURN])) == ("", b"", "")
    assert END_OF_TURN not in encode("<|end_of_turn|> <|im_end|> </s>")


def test_english_is_cut_into_words_and_foreign_letters_into_bytes():
    assert [token_text(i) for i in encode("You can order it now.")] == ["You", " can", " order", " it", " now", "."]
    assert encode("ß") == list("ß".encode())


def test_ids_that_are_not_utf8_still_decode():
    assert decode([0xFF, ord("a")]) == "\ufffda"


def test_lone_surrogates_are_refused():
    with pytest.raises(UnicodeEncodeError):
        encode("\ud800")
