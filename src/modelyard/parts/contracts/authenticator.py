"""The contract of every authenticator, to run on your own implementation:

    class TestMySessions(AuthenticatorContract):
        @pytest.fixture
        def authenticator(self):
            return MySessions()

        def issue(self, authenticator):
            return authenticator.log_in("ann")

        def end(self, authenticator, secret):
            authenticator.log_out(secret)

`issue` creates a secret for another caller each time. If secrets only expire, `end` moves your clock beyond that time.
"""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from modelyard.domain.identity import NAME, Principal
from modelyard.errors import Unauthenticated
from modelyard.protocols import Authenticator

SENDABLE = re.compile(r"[A-Za-z0-9._~+/-]+={0,2}")
STRANGERS = (*("", " ", "-", "*", "%", "\n", "a\0b", "\ud800", "é", "🔑", "null", "None", "' OR ''='"), "x" * 100_000)
_quick = settings(max_examples=40, deadline=None, database=None, suppress_health_check=list(HealthCheck))


def variations(secret: str) -> Iterator[str]:
    """Yield strings that resemble the secret: parts of it, something around it, another case, a changed character."""
    yield from (secret[:-1], secret[1:], secret[: len(secret) // 2], secret[len(secret) // 2 :])
    yield from (f"{secret} ", f" {secret}", f"{secret}\n", f"{secret}\0", f"{secret}=", f"x{secret}", secret * 2)
    yield from (text for text in (secret.upper(), secret.lower(), secret.swapcase()) if text != secret)
    for place in range(0, len(secret) - 1, max(1, len(secret) // 16)):
        yield secret[:place] + ("y" if secret[place] == "x" else "x") + secret[place + 1 :]


def refusal(authenticator: Authenticator, secret: str) -> str:
    try:
        answer = authenticator.authenticate(secret)
    except Unauthenticated as refused:
        return str(refused)
    raise AssertionError(f"{secret[:80]!r} was not refused: it authenticates {answer!r}")


class AuthenticatorContract:
    """The laws of `modelyard.protocols.Authenticator`, for the fixture `authenticator`, without any secrets yet."""

    def issue(self, authenticator: Authenticator) -> str:
        """Return a secret of a caller that has no other secret."""
        raise NotImplementedError("override `issue` to return a secret of your authenticator")

    def end(self, authenticator: Authenticator, secret: str) -> None:
        """Revoke the secret, or let it expire; others stay valid."""
        pytest.skip("`end` is not overridden: revoked and expired secrets are not tested")

    # ---- accepted secrets ----

    def test_a_secret_leads_to_a_principal_who_holds_their_own_entity(self, authenticator: Authenticator) -> None:
        principal = authenticator.authenticate(self.issue(authenticator))
        assert isinstance(principal, Principal)
        assert NAME.fullmatch(principal.entity), "an entity is 1 to 128 characters of A-Z a-z 0-9 . _ -"
        assert principal.scope.covers(principal.entity), "the scope must cover the caller's own entity, the default"

    def test_every_caller_has_an_id_of_their_own(self, authenticator: Authenticator) -> None:
        ids = [authenticator.authenticate(self.issue(authenticator)).key_id for _ in range(3)]
        assert all(ids), 'limits and usage are counted under `key_id`, and "" is the host\'s'
        assert len(set(ids)) == 3, "two callers share the `key_id` under which limits and usage are counted"

    def test_the_same_secret_lets_the_same_caller_in_again(self, authenticator: Authenticator) -> None:
        one, other = self.issue(authenticator), self.issue(authenticator)
        first = authenticator.authenticate(one)
        assert authenticator.authenticate(other) != first
        assert authenticator.authenticate(one) == first

    def test_many_threads_may_ask_and_each_hears_of_its_own_caller(self, authenticator: Authenticator) -> None:
        secrets = [self.issue(authenticator) for _ in range(8)]
        expected = [authenticator.authenticate(secret) for secret in secrets]
        with ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(authenticator.authenticate, secrets * 8))
        assert answers == expected * 8

    def test_a_secret_fits_the_header_that_carries_it(self, authenticator: Authenticator) -> None:
        secret = self.issue(authenticator)
        assert SENDABLE.fullmatch(secret), "a Bearer token is letters, digits and -._~+/ and then at most two ="
        assert len(secret) <= authenticator.longest
        assert isinstance(authenticator.blocking, bool)

    # ---- refused secrets ----

    def test_nothing_but_the_whole_secret_lets_in(self, authenticator: Authenticator) -> None:
        secret = self.issue(authenticator)
        for text in variations(secret):
            refusal(authenticator, text)
        assert isinstance(authenticator.authenticate(secret), Principal)

    @pytest.mark.parametrize("text", STRANGERS, ids=lambda text: repr(text[:20]))
    def test_a_text_that_is_no_secret_is_refused(self, authenticator: Authenticator, text: str) -> None:
        refusal(authenticator, text)
        self.issue(authenticator)
        refusal(authenticator, text)

    def test_any_text_is_refused_and_nothing_worse(self, authenticator: Authenticator) -> None:
        self.issue(authenticator)

        @_quick
        @given(st.text())
        def ask(text: str) -> None:
            refusal(authenticator, text)

        ask()

    def test_what_ended_is_refused_from_then_on_and_others_go_on(self, authenticator: Authenticator) -> None:
        gone = self.issue(authenticator)
        authenticator.authenticate(gone)
        self.end(authenticator, gone)
        refusal(authenticator, gone)
        assert isinstance(authenticator.authenticate(self.issue(authenticator)), Principal)
        refusal(authenticator, gone)

    def test_all_are_refused_in_the_same_words_whatever_the_reason(self, authenticator: Authenticator) -> None:
        gone = self.issue(authenticator)
        self.end(authenticator, gone)
        words = {text: refusal(authenticator, text) for text in (gone, gone[:-1], f"{gone}x", *STRANGERS)}
        assert len(set(words.values())) == 1, "the messages reveal which secrets were ever valid"

    def test_no_secret_is_repeated(self, authenticator: Authenticator) -> None:
        secret = self.issue(authenticator)
        assert secret not in repr(authenticator.authenticate(secret)), "a principal is shown in logs"
        for text in (f"{secret}x", secret[:-1], "a-stranger-s-own-secret"):
            assert text not in refusal(authenticator, text)
