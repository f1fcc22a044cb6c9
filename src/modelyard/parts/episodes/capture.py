"""Keep what an episode's key is answered, in the transaction that books it, joined to the turns before it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from modelyard.domain.completion import Choice, Completion, CompletionRequest, Role
from modelyard.domain.frozen_fast import maker
from modelyard.domain.identity import Principal
from modelyard.domain.record import WrittenMapping
from modelyard.errors import Unauthenticated
from modelyard.formats.chat.messages import message_object
from modelyard.formats.chat.tools import tool_object
from modelyard.formats.json import dumps
from modelyard.parts.episodes.history import HistoryDigests, tools_digest
from modelyard.parts.episodes.known import KnownConversation, KnownConversations, KnownTokens, tokens_digest
from modelyard.parts.episodes.packed import IDS, packed, sampled
from modelyard.parts.episodes.records import Episode, EpisodeGroup, EpisodeTurn
from modelyard.parts.episodes.seeds import EpisodeCalls, KnownCalls, asked_digest, drawn_seed
from modelyard.platform.chat.capability_checks import with_details
from modelyard.platform.chat.running_completion import RunningCompletion
from modelyard.platform.paging import get_or_none
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Capabilities, Snapshot, Tx

ALIKE = 32
"""How many turns with the same history are looked at to find the one whose tokens continue."""

_turn = maker(EpisodeTurn)
_ASSISTANT = Role.ASSISTANT


def capture_of(runtime: Runtime, snapshot: Snapshot, principal: Principal) -> "EpisodeCapture":
    """Return what keeps the answers to the key of an episode. Raises `Unauthenticated` for one that was deleted."""
    episode = snapshot.find(Episode, "by_key", principal.key_id)
    if episode is None:
        raise Unauthenticated("the episode of this key was deleted; ask with another key")
    known, group = runtime.cache.slot(KnownConversations), snapshot.get(EpisodeGroup, episode.group_id)
    calls = None if group.seed is None else runtime.cache.slot(KnownCalls).of(snapshot, episode.id)
    return EpisodeCapture(episode, group, known, calls)


@attrs.frozen
class EpisodeCapture:
    """Keeps the answers to the program of an episode. There are `calls` if they have seeds."""

    episode: Episode
    group: EpisodeGroup
    known: KnownConversations
    calls: EpisodeCalls | None

    @property
    def model(self) -> str:
        """The model that the program trains."""
        return self.group.model

    def asks(
        self, running: RunningCompletion, request: CompletionRequest, capabilities: Capabilities
    ) -> CompletionRequest:
        """Return a request with the details that training needs, and with a seed if it names none and the group has
        one, where the backend takes seeds."""
        request, sampling = with_details(request, capabilities), request.sampling
        if self.calls is None or sampling.seed is not None or "seed" not in capabilities.parameters:
            return request
        checkpoint, group = running.served.checkpoint, self.group
        is_own = checkpoint is not None and checkpoint.model_id == group.model_id
        asked = asked_digest(request, "" if is_own else request.model)
        number = self.calls.number(running, asked, request)
        seed = drawn_seed(group.seed or 0, self.episode.place % group.size, asked, number)
        return request.asking(request.messages, sampling.seeded(seed), request.max_tokens)

    def chosen(self, running: RunningCompletion) -> str:
        """Return "": the model that a request names answers it."""
        return ""

    def __call__(
        self, running: RunningCompletion, completion: Completion, keep: Callable[[Tx], object] | None
    ) -> Callable[[Tx], object]:
        """Return what keeps an answer, after `keep`."""
        known = self.known.of(self.episode.id)
        asked = AskedTurn.of(running.request, known)
        answers = [AnsweredTurn.of(asked, choice, known) for choice in completion.choices]
        if self.calls is not None:
            self.calls.answer(running)

        def step(tx: Tx) -> None:
            if keep is not None:
                keep(tx)
            found = asked.alike(tx, self.episode.id)
            if not found and get_or_none(tx, Episode, self.episode.id) is None:
                return
            for one in answers:
                before = asked.parent(tx, self.episode.id, found, one.prompt)
                turn = self._turn(running, completion, one, before)
                tx.add(turn)
                conversation = KnownConversation.of(turn.id, one.digests, one.tokens)
                self.known.keep(self.episode.id, conversation, turn.parent_id)

        return step

    def _turn(
        self, running: RunningCompletion, completion: Completion, one: "AnsweredTurn", before: "EarlierTurn | None"
    ) -> EpisodeTurn:
        """Return the turn as it is stored, after the turn that it follows."""
        checkpoint, asked, choice, episode = running.served.checkpoint, one.asked, one.choice, self.episode
        whole = before is None or before.exact not in asked.digests.exact
        joins = before is not None and one.prompt.begins_with(before)
        return _turn(
            f"{completion.id}-{choice.index}" if choice.index else completion.id,
            episode.id,
            episode.group_id,
            episode.entity,
            episode.project,
            "" if before is None else before.id,
            completion.model,
            "" if checkpoint is None else checkpoint.model_id,
            "" if checkpoint is None else checkpoint.id,
            None if checkpoint is None else checkpoint.step,
            getattr(running.client, "route", ""),
            asked.digests.common[-1],
            one.digests.common[-1],
            one.digests.exact[-1],
            asked.offered,
            len(one.tokens.ids),
            one.tokens.digest() if one.tokens.ids else "",
            whole,
            joins,
            WrittenMapping(dumps(one.body(completion.id, before, whole, joins)).decode()),
            completion.usage.prompt_tokens,
            len(choice.token_ids) or completion.usage.completion_tokens // len(completion.choices),
            running.runtime.clock.now(),
        )


@attrs.frozen
class EarlierTurn:
    """What a later turn is joined by: columns of an `EpisodeTurn`."""

    id: str
    exact: str
    offered: str
    length: int
    tokens: str


_COLUMNS = tuple(field.name for field in attrs.fields(EarlierTurn))


@attrs.frozen(eq=False)
class AskedTokens:
    """The tokens of a prompt, and the conversations that are known."""

    tokens: KnownTokens
    known: Sequence[KnownConversation]

    def begins_with(self, turn: EarlierTurn) -> bool:
        """Return whether the token ids begin with the prompt and the answer of a turn."""
        ids = self.tokens.ids
        if not 0 < turn.length <= len(ids):
            return False
        for one in self.known:
            if one.turn == turn.id:
                return one.tokens.begins(ids)
        return tokens_digest(ids[: turn.length]) == turn.tokens


@attrs.frozen(eq=False)
class AskedTurn:
    """What was asked: the messages as the backend got them, and their digests."""

    request: CompletionRequest
    digests: HistoryDigests
    offered: str

    @classmethod
    def of(cls, request: CompletionRequest, known: Sequence[KnownConversation]) -> "AskedTurn":
        digests = HistoryDigests.of(tuple(request.messages), [one.digests for one in known])
        return cls(request, digests, tools_digest(request.tools))

    def alike(self, tx: Tx, episode_id: str) -> Sequence[EarlierTurn]:
        """Return the turns with the longest history that begins the messages, newest first."""
        messages, digests = self.request.messages, self.digests.common
        for place in range(len(messages), 0, -1):
            if messages[place - 1].role is _ASSISTANT:
                where = "by_state", episode_id, digests[place]
                found = tx.select(EpisodeTurn, _COLUMNS, *where, limit=ALIKE, descending=True)
                if found:
                    return [EarlierTurn(*columns) for columns in found]
        return ()

    def parent(self, tx: Tx, episode_id: str, found: Sequence[EarlierTurn], prompt: AskedTokens) -> EarlierTurn | None:
        """Return the turn that a prompt follows: of those with the same history that whose tokens begin those of the
        prompt, else the newest. Where the history is not known, the longest one whose tokens begin the prompt."""
        if found:
            return next((turn for turn in found if prompt.begins_with(turn)), found[0])
        answered = self.request.prompt is not None or any(one.role is _ASSISTANT for one in self.request.messages)
        return by_tokens(tx, episode_id, prompt) if answered else None


@attrs.frozen(eq=False)
class AnsweredTurn:
    """One answer: with the digests of the history, and the tokens, up to its end."""

    asked: AskedTurn
    choice: Choice
    prompt: AskedTokens
    digests: HistoryDigests
    tokens: KnownTokens

    @classmethod
    def of(cls, asked: AskedTurn, choice: Choice, known: Sequence[KnownConversation]) -> "AnsweredTurn":
        prompt = KnownTokens.of(choice.prompt_token_ids, [one.tokens for one in known])
        tokens = prompt.and_(choice.token_ids)
        return cls(asked, choice, AskedTokens(prompt, known), asked.digests.answered(choice.message), tokens)

    def body(self, request_id: str, before: EarlierTurn | None, whole: bool, joins: bool) -> Mapping[str, Any]:
        """Return what is kept of a turn, without what the turn before it has."""
        request, choice, messages = self.asked.request, self.choice, self.asked.request.messages
        begin = 0 if before is None or whole else self.asked.digests.exact.index(before.exact)
        prompt = choice.prompt_token_ids
        body = {
            "request": request_id,
            "messages": [message_object(message) for message in messages[begin:]],
            "answer": message_object(choice.message),
            "finish_reason": choice.finish_reason.value,
            "prompt": packed(IDS, prompt[before.length :] if before is not None and joins else prompt),
            "ids": packed(IDS, choice.token_ids),
            **sampled(choice.logprobs, choice.message),
        }
        if before is None or before.offered != self.asked.offered:
            body["tools"] = [tool_object(tool) for tool in request.tools]
        if request.prompt is not None:
            body["raw"] = True
        return body


def by_tokens(tx: Tx, episode_id: str, prompt: AskedTokens) -> EarlierTurn | None:
    """Return the longest turn whose tokens begin a prompt, whatever its messages are."""
    rows = tx.select(EpisodeTurn, _COLUMNS, "by_episode", episode_id, limit=_MANY)
    longest_first = sorted((EarlierTurn(*columns) for columns in rows), key=lambda turn: -turn.length)
    return next((turn for turn in longest_first if prompt.begins_with(turn)), None)


_MANY = 10_000
