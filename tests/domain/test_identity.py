"""Names, scopes and keys as values."""

import string
from datetime import UTC, datetime, timedelta

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from each import each_case
from modelyard.domain.identity import ApiKey, Attribution, Limits, NewKey, Principal, Scope, check_name, host
from modelyard.errors import Forbidden, InvalidInput
from modelyard.platform.keys.service import SECRET_BYTES, secret_digest, secret_of, secret_prefix

ALPHABET = "ABCXYZabcxyz0189._-"
names = st.text(ALPHABET, min_size=1, max_size=128).filter(lambda name: name.strip(".") != "")
scopes = st.builds(
    Scope, st.sampled_from([None, "a", "b"]), st.none() | st.frozensets(st.sampled_from(["p", "q", "r"]), max_size=3)
)
NOW = datetime(2026, 11, 20, tzinfo=UTC)
KEY = ApiKey("id", "my_abcdefgh", "digest", "", "acme", ("red", "blue"), NOW)


@given(names)
def test_a_name_is_any_text_of_its_alphabet_that_is_not_dots_only(name: str) -> None:
    assert check_name(name) == name


@given(st.text(max_size=140) | st.text(ALPHABET, max_size=140))
def test_a_string_is_a_name_exactly_when_it_is_short_plain_ascii_of_the_alphabet_and_not_dots_only(text: str) -> None:
    plain = text.isascii() and len(text) <= 128 and all(c.isalnum() or c in "._-" for c in text)
    if plain and text.strip("."):
        assert check_name(text) == text
    else:
        with pytest.raises(InvalidInput):
            check_name(text)


@each_case("text", ["", ".", "..", "a/b", "a b", "naïve", "a\n", "a\0", "x" * 129, "ａ", "a\u200b"])
def test_what_is_not_a_name_is_refused_where_it_stands(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check_name(text, "projects", 2)
    assert refused.value.problems[0].loc == ("projects", 2)


def test_a_scope_covers_its_entity_and_the_projects_it_names() -> None:
    some = Scope("acme", frozenset({"red"}))
    assert some.covers("acme")
    assert some.covers("acme", "red")
    assert not some.covers("acme", "blue")
    assert not some.covers("other", "red")
    assert Scope("acme").covers("acme", "blue")
    assert Scope(None).covers("anything", "at all")


@given(scopes, scopes)
def test_a_scope_holds_another_exactly_when_it_covers_all_that_the_other_covers(one: Scope, other: Scope) -> None:
    entities, projects = ["a", "b", "c"], ["p", "q", "r", "s"]
    covered = all(one.covers(e, p) for e in entities for p in projects if other.covers(e, p))
    # An entity without projects is covered too, and a scope of no projects covers just that.
    covered = covered and all(one.covers(e) for e in entities if other.covers(e))
    assert one.holds(other) == covered


def test_limits_hold_what_allows_no_more() -> None:
    some = Limits(60, 4)
    assert some.hold(Limits(60, 4))
    assert some.hold(Limits(1, 1))
    assert not some.hold(Limits(61, 4))
    assert not some.hold(Limits(60, None))
    assert Limits().hold(Limits())


def test_a_principal_may_not_use_what_its_scope_lacks_and_hears_the_same_words_for_all_of_it() -> None:
    principal = KEY.principal()
    principal.require("acme", "red")
    with pytest.raises(Forbidden, match="may not use acme/green"):
        principal.require("acme", "green")
    with pytest.raises(Forbidden, match="may not use other/red"):
        principal.require("other", "red")


def test_a_completion_is_booked_on_what_was_named_or_on_the_only_project_there_is() -> None:
    one = Principal("k", "acme", Scope("acme", frozenset({"red"})))
    assert one.attribution() == Attribution("acme", "red")
    assert KEY.principal().attribution() == Attribution("acme")
    assert KEY.principal().attribution("acme", "blue") == Attribution("acme", "blue")
    assert host().attribution("other", "p") == Attribution("other", "p")
    with pytest.raises(Forbidden):
        one.attribution("other")


@given(st.binary(min_size=SECRET_BYTES, max_size=SECRET_BYTES))
def test_a_secret_is_letters_digits_and_underscores_of_fixed_length(random: bytes) -> None:
    secret = secret_of(random)
    head, prefix, hidden = secret.split("_")
    assert (head, len(prefix), len(hidden)) == ("my", 8, 43)
    assert (prefix + hidden).isalnum()
    assert secret.isascii()
    assert secret_prefix(secret) == f"my_{prefix}"


@given(st.integers(0, 2**256 - 1))
def test_the_random_bytes_can_be_read_back_from_the_secret_so_none_of_them_is_lost(number: int) -> None:
    hidden = secret_of(bytes(6) + number.to_bytes(32)).rsplit("_", 1)[1]
    digits = string.digits + string.ascii_uppercase + string.ascii_lowercase
    assert sum(digits.index(digit) * 62**at for at, digit in enumerate(reversed(hidden))) == number


def test_the_extremes_of_the_random_bytes_fit() -> None:
    assert secret_of(bytes(SECRET_BYTES)) == "my_00000000_" + "0" * 43
    assert len(secret_of(b"\xff" * SECRET_BYTES)) == 55


def test_any_text_has_a_digest_even_one_that_no_key_can_be() -> None:
    assert secret_digest("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert len(secret_digest("\ud800")) == 64


def test_a_key_lives_until_it_is_revoked_or_expires() -> None:
    later = NOW + timedelta(seconds=1)
    assert KEY.alive(later)
    assert not attrs.evolve(KEY, revoked_at=NOW).alive(NOW)
    assert attrs.evolve(KEY, expires_at=later).alive(NOW)
    assert not attrs.evolve(KEY, expires_at=later).alive(later)


def test_a_key_acts_with_its_scope_and_limits_and_none_means_all_projects() -> None:
    principal = attrs.evolve(KEY, requests_per_minute=5).principal()
    assert principal.scope == Scope("acme", frozenset({"red", "blue"}))
    assert principal.limits == Limits(5)
    assert (principal.name, principal.key_id) == ("my_abcdefgh", "id")
    assert attrs.evolve(KEY, projects=()).scope == Scope("acme")


def test_neither_secret_nor_digest_is_in_a_representation() -> None:
    assert "digest'" not in repr(KEY)
    assert "s3cret" not in repr(NewKey(KEY, "s3cret"))
