"""The platform's API keys keep the contract of authenticators, and broken authenticators are caught by it."""

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from each import each_case
from modelyard.compose import open_platform
from modelyard.domain.identity import Principal, Scope
from modelyard.errors import Unauthenticated
from modelyard.protocols import Authenticator
from modelyard.testing import AuthenticatorContract
from modelyard.testing.clock import ManualClock


class TestKeysThatAreRevoked(AuthenticatorContract):
    @pytest.fixture(params=["memory", "sqlite"])
    def authenticator(self, request: pytest.FixtureRequest, yard_file: Path) -> Iterator[Authenticator]:
        path = yard_file if request.param == "sqlite" else None
        with open_platform(path, durability="process") as platform:
            yield platform.keys

    def issue(self, authenticator: Any) -> str:
        return str(authenticator.create("acme").secret)

    def end(self, authenticator: Any, secret: str) -> None:
        (key,) = [key for key in authenticator.list(entity="acme") if secret.startswith(key.prefix)]
        authenticator.revoke(key.id)


class TestKeysThatExpire(AuthenticatorContract):
    @pytest.fixture
    def authenticator(self) -> Iterator[Authenticator]:
        self.clock = ManualClock()
        with open_platform(clock=self.clock) as platform:
            yield platform.keys

    def issue(self, authenticator: Any) -> str:
        from datetime import timedelta

        return str(authenticator.create("acme", expires_in=timedelta(hours=1)).secret)

    def end(self, authenticator: Authenticator, secret: str) -> None:
        self.clock.advance(3600)


# ---- teeth -------------------------------------------------------------------------------------------------------


class Sessions:
    """A sound authenticator, to be spoilt: sessions in memory."""

    blocking = False
    longest = 100

    def __init__(self) -> None:
        self.known: dict[str, Principal] = {}
        self.ended: set[str] = set()
        self.numbers = itertools.count(1)

    def issue(self) -> str:
        number = next(self.numbers)
        secret = f"Session-{number}-{number * 7919:032x}"
        self.known[secret] = self.principal(number, secret)
        return secret

    def principal(self, number: int, secret: str) -> Principal:
        return Principal(f"user {number}", "acme", Scope("acme"), f"user-{number}")

    def end(self, secret: str) -> None:
        del self.known[secret]
        self.ended.add(secret)

    def authenticate(self, secret: str) -> Principal:
        if secret not in self.known:
            raise Unauthenticated("this session is not valid; log in again")
        return self.known[secret]


class ContractOfSessions(AuthenticatorContract):
    def issue(self, authenticator: Any) -> str:
        return str(authenticator.issue())

    def end(self, authenticator: Any, secret: str) -> None:
        authenticator.end(secret)


class TestSessions(ContractOfSessions):
    @pytest.fixture
    def authenticator(self) -> Authenticator:
        return Sessions()


class AcceptsAPrefix(Sessions):
    def authenticate(self, secret: str) -> Principal:
        found = [one for known, one in self.known.items() if secret and known.startswith(secret)]
        return found[0] if found else super().authenticate(secret)


class AcceptsAnythingThatBeginsSo(Sessions):
    def authenticate(self, secret: str) -> Principal:
        return super().authenticate(next((known for known in self.known if secret.startswith(known)), secret))


class IgnoresCase(Sessions):
    def authenticate(self, secret: str) -> Principal:
        return super().authenticate({known.lower(): known for known in self.known}.get(secret.lower(), secret))


class StripsSpaces(Sessions):
    def authenticate(self, secret: str) -> Principal:
        return super().authenticate(secret.strip())


class LooksAtTheNumberOnly(Sessions):
    def authenticate(self, secret: str) -> Principal:
        start = secret.rpartition("-")[0]
        return super().authenticate(next((known for known in self.known if start and known.startswith(start)), secret))


class TellsRevokedFromUnknown(Sessions):
    def authenticate(self, secret: str) -> Principal:
        if secret in self.ended:
            raise Unauthenticated("this session was ended")
        return super().authenticate(secret)


class CachesPastRevocation(Sessions):
    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[str, Principal] = {}

    def authenticate(self, secret: str) -> Principal:
        if secret not in self.cache:
            self.cache[secret] = super().authenticate(secret)
        return self.cache[secret]


class EndsEverybody(Sessions):
    def end(self, secret: str) -> None:
        super().end(secret)
        self.issue = lambda: "closed-for-ever"  # type: ignore[method-assign]


class RepeatsTheSecret(Sessions):
    def authenticate(self, secret: str) -> Principal:
        if secret not in self.known:
            raise Unauthenticated(f"{secret} is not valid")
        return self.known[secret]


class NamesCallersByTheirSecret(Sessions):
    def principal(self, number: int, secret: str) -> Principal:
        return attrs.evolve(super().principal(number, secret), name=secret)


class LetsGuestsIn(Sessions):
    def authenticate(self, secret: str) -> Principal:
        return self.known.get(secret, Principal("guest", "acme", Scope("acme"), "guest"))


class AnswersNone(Sessions):
    def authenticate(self, secret: str) -> Principal:
        return self.known.get(secret)  # type: ignore[return-value]


class RaisesItsOwnError(Sessions):
    def authenticate(self, secret: str) -> Principal:
        return self.known[secret]


class ChokesOnHalfCharacters(Sessions):
    def authenticate(self, secret: str) -> Principal:
        secret.encode()
        return super().authenticate(secret)


class MixesThreadsUp(Sessions):
    current: Principal

    def __init__(self) -> None:
        super().__init__()
        self.others = threading.Barrier(2)

    def authenticate(self, secret: str) -> Principal:
        self.current = super().authenticate(secret)
        if threading.current_thread() is not threading.main_thread():
            self.others.wait(60)
        return self.current


class ActsElsewhere(Sessions):
    def principal(self, number: int, secret: str) -> Principal:
        return Principal("user", "acme", Scope("rival"), f"user-{number}")


class HasNoNames(Sessions):
    def principal(self, number: int, secret: str) -> Principal:
        return Principal("user", "an entity", Scope("an entity"), f"user-{number}")


class SharesAnId(Sessions):
    def principal(self, number: int, secret: str) -> Principal:
        return attrs.evolve(super().principal(number, secret), key_id="users")


class MakesEverybodyTheHost(Sessions):
    def principal(self, number: int, secret: str) -> Principal:
        return Principal("host", "acme", Scope(None))


class OneCallerForAll(Sessions):
    def principal(self, number: int, secret: str) -> Principal:
        return super().principal(1, secret)


class AnotherCallerEachTime(Sessions):
    def authenticate(self, secret: str) -> Principal:
        return attrs.evolve(super().authenticate(secret), key_id=f"visit-{next(self.numbers)}")


class CannotBeSent(Sessions):
    def issue(self) -> str:
        secret = f"the session {next(self.numbers)}"
        self.known[secret] = self.principal(1, secret)
        return secret


class IsLongerThanItSays(Sessions):
    longest = 10


BROKEN: list[tuple[Callable[[], Sessions], str]] = [
    (AcceptsAPrefix, "nothing_but_the_whole_secret"),
    (AcceptsAnythingThatBeginsSo, "nothing_but_the_whole_secret"),
    (IgnoresCase, "nothing_but_the_whole_secret"),
    (StripsSpaces, "nothing_but_the_whole_secret"),
    (LooksAtTheNumberOnly, "nothing_but_the_whole_secret"),
    (TellsRevokedFromUnknown, "same_words"),
    (CachesPastRevocation, "refused_from_then_on"),
    (EndsEverybody, "refused_from_then_on"),
    (RepeatsTheSecret, "no_secret_is_repeated"),
    (RepeatsTheSecret, "same_words"),
    (NamesCallersByTheirSecret, "no_secret_is_repeated"),
    (LetsGuestsIn, "no_secret_is_refused"),
    (AnswersNone, "any_text_is_refused"),
    (RaisesItsOwnError, "any_text_is_refused"),
    (ChokesOnHalfCharacters, "no_secret_is_refused"),
    (MixesThreadsUp, "many_threads"),
    (ActsElsewhere, "holds_their_own_entity"),
    (HasNoNames, "holds_their_own_entity"),
    (SharesAnId, "id_of_their_own"),
    (MakesEverybodyTheHost, "id_of_their_own"),
    (OneCallerForAll, "same_caller_in_again"),
    (AnotherCallerEachTime, "same_caller_in_again"),
    (CannotBeSent, "fits_the_header"),
    (IsLongerThanItSays, "fits_the_header"),
]


def broken_laws(make: Callable[[], Sessions], only: str = "") -> set[str]:
    """The tests of the contract that fail on such an authenticator, a new one for each."""
    broken = set()
    for name in (name for name in dir(ContractOfSessions) if name.startswith("test_") and only in name):
        test = getattr(ContractOfSessions(), name)
        marks = [mark for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
        for case in marks[0].args[1] if marks else [None]:
            try:
                test(make()) if case is None else test(make(), case)
            except Exception:
                broken.add(name)
    return broken


@each_case(("broken", "law"), BROKEN)
def test_the_contract_catches_an_authenticator_that(broken: Callable[[], Sessions], law: str) -> None:
    assert broken_laws(broken, law)


def test_a_sound_authenticator_breaks_no_law_and_each_law_is_broken_by_some() -> None:
    assert broken_laws(Sessions) == set()
    laws = [name for name in dir(AuthenticatorContract) if name.startswith("test_")]
    assert [law for law in laws if not any(caught in law for _, caught in BROKEN)] == []


def test_a_contract_without_secrets_says_what_to_do() -> None:
    contract, keys = AuthenticatorContract(), Sessions()
    with pytest.raises(NotImplementedError, match="override `issue`"):
        contract.issue(keys)
    with pytest.raises(pytest.skip.Exception, match="`end` is not overridden"):
        contract.end(keys, "x")
