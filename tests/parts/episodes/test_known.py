"""What a process knows of a conversation changes what a call costs, and nothing that is stored of it."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelyard import Platform, open_platform
from modelyard.domain.completion import ContentPart, Message, Role, TokenLogprob, ToolCall
from modelyard.parts.episodes import capture, history, known, packed
from modelyard.parts.episodes.history import HistoryDigests
from modelyard.parts.episodes.known import KnownConversation, KnownConversations, KnownTokens
from modelyard.parts.episodes.records import EpisodeTurn

TEXTS = st.text("ab \u00e9", max_size=4)
CALLS = st.builds(ToolCall, TEXTS, TEXTS, st.sampled_from(("{}", '{"a": 1}', '{"a":1}', "broken")))
CONTENTS = st.none() | TEXTS | st.tuples(st.builds(ContentPart, st.just("text"), TEXTS))
MESSAGES = st.builds(
    Message, st.sampled_from(Role), CONTENTS, tool_calls=st.tuples() | st.tuples(CALLS), reasoning=st.none() | TEXTS
)
HISTORIES = st.lists(MESSAGES, max_size=5).map(tuple)
IDS = st.lists(st.integers(-(2**40), 2**40) | st.integers(0, 5), max_size=6).map(tuple)


@given(st.lists(HISTORIES, max_size=3), HISTORIES, HISTORIES, MESSAGES)
def test_digests_that_are_continued_are_those_from_the_beginning(
    others: Sequence[tuple[Message, ...]], begin: tuple[Message, ...], end: tuple[Message, ...], answer: Message
) -> None:
    known_ones = [HistoryDigests.of(begin).answered(answer), *map(HistoryDigests.of, others)]
    for messages in ((*begin, *end), (*begin, answer, *end)):
        found, anew = HistoryDigests.of(messages, known_ones), HistoryDigests.of(messages)
        assert (found.messages, found.common, found.exact) == (anew.messages, anew.common, anew.exact)
        assert found.answered(answer).exact == HistoryDigests.of((*messages, answer)).exact


@given(st.lists(IDS, max_size=3), IDS, IDS)
def test_token_digests_that_are_continued_are_those_from_the_beginning(
    others: Sequence[tuple[int, ...]], begin: tuple[int, ...], end: tuple[int, ...]
) -> None:
    tokens = KnownTokens.of((*begin, *end), [KnownTokens.of(ids) for ids in (begin, *others)])
    assert tokens.digest() == KnownTokens.of((*begin, *end)).digest() == KnownTokens.of(begin).and_(end).digest()


@given(IDS, st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=6))
def test_packed_numbers_are_those_that_were_packed(ids: tuple[int, ...], logprobs: list[float]) -> None:
    assert packed.unpacked(packed.IDS, packed.packed(packed.IDS, ids)) == ids == packed.unpacked(packed.IDS, list(ids))
    found = packed.unpacked(packed.LOGPROBS, packed.packed(packed.LOGPROBS, logprobs))
    assert list(map(repr, found)) == list(map(repr, logprobs))


ENTRIES = st.builds(
    TokenLogprob,
    TEXTS,
    st.floats(-9, 0),
    st.none() | st.lists(st.integers(0, 255), max_size=3).map(tuple) | st.sampled_from(((97,), (98, 97), ())),
)


@given(st.lists(ENTRIES, max_size=5).map(tuple), st.none() | TEXTS)
def test_what_was_sampled_is_read_as_it_was(entries: tuple[TokenLogprob, ...], other: str | None) -> None:
    for content in ("".join(one.token for one in entries), other):
        answer = Message(Role.ASSISTANT, content)
        found = packed.entries_of(packed.sampled(entries, answer), answer)
        assert found is not None
        expected = [(one.token, one.logprob, one.bytes or tuple(one.token.encode())) for one in entries]
        given = [(one.token, one.logprob, one.bytes) for one in found]
        assert [one[:2] for one in given] == [one[:2] for one in expected]
        for one, read in zip(entries, found, strict=True):
            assert read.bytes == (tuple(one.token.encode()) if one.bytes is None else one.bytes)


def test_numbers_in_parts_are_digested_anew() -> None:
    """1 and true are equal, and other JSON."""
    parts = [(ContentPart("image_url", data={"detail": value}),) for value in (1, True)]
    one, other = ((Message(Role.USER, content),) for content in parts)
    assert one == other
    kept = KnownConversations()
    kept.keep("e", KnownConversation.of("t", HistoryDigests.of(one), KnownTokens.of(())), "")
    assert kept.of("e") == ()
    assert HistoryDigests.of(one).exact != HistoryDigests.of(other).exact


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known, "MOST_SIZE", 5000)
    kept = KnownConversations()
    for number in range(100):
        for turn in range(10):
            conversation = KnownConversation.of(f"{turn}", HistoryDigests.of(()), KnownTokens.of(tuple(range(9))))
            kept.keep(f"{number}", conversation, "")
        assert len(kept.of(f"{number}")) == known.BRANCHES
    left = [number for number in range(100) if kept.of(f"{number}")]
    assert left == list(range(100 - len(left), 100))
    assert 0 < len(left) * known.BRANCHES * 9 * 44 <= 5000


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The messages that were digested."""
    noted: list[Any] = []
    form = history.exact_form
    monkeypatch.setattr(history, "exact_form", lambda message: noted.append(message) or form(message))
    return noted


def talk(platform: Platform, key: str, turns: int, seed: int = 0) -> None:
    chat = platform.acting_as(platform.keys.authenticate(key)).chat
    told: list[dict[str, str]] = [{"role": "user", "content": "Where is my refund?"}]
    for _ in range(turns):
        answer = chat.complete(model="m", messages=told, max_tokens=5, seed=seed)
        told += [{"role": "assistant", "content": answer.text}, {"role": "user", "content": "and?"}]


def stored(platform: Platform, episode_id: str) -> list[EpisodeTurn]:
    return platform._runtime.store.read(lambda snapshot: snapshot.page(EpisodeTurn, "by_episode", episode_id))


def test_a_call_digests_what_it_adds(counted: list[Any]) -> None:
    with open_platform() as platform:
        platform.models.create("support", project="desk", base_model="tabular-mini")
        (episode,) = platform.episodes.group("g", model="desk/support", size=1)
        talk(platform, episode.key, 6)
        assert len(counted) == 6 * 2
        turns = stored(platform, episode.id)
        assert [len(turn.body["messages"]) for turn in turns] == [1] * 6


def test_a_process_that_knows_nothing_stores_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for knows in (True, False):
        with open_platform() as platform:
            platform.models.create("support", project="desk", base_model="tabular-mini")
            (episode,) = platform.episodes.group("g", model="desk/support", size=1)
            if not knows:
                monkeypatch.setattr(capture.KnownConversations, "keep", lambda *_: None)
            for count, seed in ((3, 1), (4, 1), (3, 2)):
                talk(platform, episode.key, count, seed)
            turns = stored(platform, episode.id)
            ids = {turn.id: at for at, turn in enumerate(turns)}
            places = [ids.get(turn.parent_id) for turn in turns]
            same = [(one.state, one.exact, one.tokens, one.length, one.whole, one.continues) for one in turns]
            found.append((places, same))
    assert found[0] == found[1]
    assert len(found[0][1]) == 10


def test_turns_of_a_version_before_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their numbers were lists, and each token had its text."""
    shown = []
    for packs in (True, False):
        with open_platform() as platform:
            platform.models.create("support", project="desk", base_model="tabular-mini")
            (episode,) = platform.episodes.group("g", model="desk/support", size=1)
            if not packs:
                monkeypatch.setattr(capture, "packed", lambda _, numbers: list(numbers))
                monkeypatch.setattr(capture, "sampled", as_before)
            talk(platform, episode.key, 3)
            shown.append([(one.prompt_ids, one.ids, one.logprobs, one.untrained) for one in episode.turns()])
    assert shown[0] == shown[1]
    assert all(not one[3] for one in shown[0])


def as_before(entries: Sequence[TokenLogprob], answer: Message) -> dict[str, Any]:
    return {"logprobs": [one.logprob for one in entries], "texts": [one.token for one in entries]}


def test_a_turn_without_the_turns_that_it_follows_is_not_trained() -> None:
    """Its prompt is not known any more, as old turns were removed."""
    with open_platform() as platform:
        platform.models.create("support", project="desk", base_model="tabular-mini")
        (episode,) = platform.episodes.group("g", model="desk/support", size=1)
        talk(platform, episode.key, 3)
        first = episode.turns()[0].id
        platform._runtime.store.transact(lambda tx: tx.remove(EpisodeTurn, first))
        assert [one.untrained for one in episode.turns()] == ["turns that it follows were removed"] * 2
