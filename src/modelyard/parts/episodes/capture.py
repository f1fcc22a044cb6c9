"""Keep what an episode's key is answered, in the transaction that books it, joined to the turns before it."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs

from modelyard.domain.completion import Choice, Completion, CompletionRequest, Role, TokenLogprob
from modelyard.domain.identity import Principal
from modelyard.domain.record import WrittenMapping
from modelyard.errors import Unauthenticated
from modelyard.formats.chat.messages import message_object
from modelyard.formats.chat.tools import tool_object
from modelyard.formats.json import dumps
from modelyard.parts.episodes.history import HistoryDigests, tokens_digest, tools_digest
from modelyard.parts.episodes.records import Episode, EpisodeGroup, EpisodeTurn
from modelyard.platform.chat.running_completion import RunningCompletion
from modelyard.platform.paging import get_or_none
from modelyard.protocols import Snapshot, Tx

ALIKE = 32
"""How many turns with the same history are looked at to find the one whose tokens continue."""


def capture_of(snapshot: Snapshot, principal: Principal) -> "EpisodeCapture":
    """Return what keeps the answers to the key of an episode. Raises `Unauthenticated` for one that was deleted."""
    episode = snapshot.find(Episode, "by_key", principal.key_id)
    if episode is None:
        raise Unauthenticated("the episode of this key was deleted; ask with another key")
    return EpisodeCapture(episode, snapshot.get(EpisodeGroup, episode.group_id).model)


@attrs.frozen
class EpisodeCapture:
    """Keeps the answers to the program of an episode. `model` is what it trains."""

    episode: Episode
    model: str

    def __call__(
        self, running: RunningCompletion, completion: Completion, keep: Callable[[Tx], object] | None
    ) -> Callable[[Tx], object]:
        """Return what keeps an answer, after `keep`."""
        asked = AskedTurn.of(running.request)
        turns = [self._turn(asked, running, completion, choice) for choice in completion.choices]

        def step(tx: Tx) -> None:
            if keep is not None:
                keep(tx)
            if get_or_none(tx, Episode, self.episode.id) is not None:
                parent = asked.parent(tx, self.episode.id)
                for turn, choice in zip(turns, completion.choices, strict=True):
                    tx.add(asked.joined(turn, choice, parent))

        return step

    def _turn(
        self, asked: "AskedTurn", running: RunningCompletion, completion: Completion, choice: Choice
    ) -> EpisodeTurn:
        checkpoint = running.served.checkpoint
        state, exact = asked.digests.answered(choice.message)
        ids = (*choice.prompt_token_ids, *choice.token_ids)
        return EpisodeTurn(
            completion.id + (f"-{choice.index}" if choice.index else ""),
            self.episode.id,
            self.episode.group_id,
            self.episode.entity,
            self.episode.project,
            "",
            completion.model,
            "" if checkpoint is None else checkpoint.model_id,
            "" if checkpoint is None else checkpoint.id,
            None if checkpoint is None else checkpoint.step,
            getattr(running.client, "route", ""),
            asked.digests.common[-1],
            state,
            exact,
            asked.offered,
            len(ids),
            tokens_digest(ids) if ids else "",
            True,
            False,
            {},
            completion.usage.prompt_tokens,
            len(choice.token_ids) or completion.usage.completion_tokens // len(completion.choices),
            running.runtime.clock.now(),
        )


@attrs.frozen
class AskedTurn:
    """What was asked: the messages as the backend got them, and their digests."""

    request: CompletionRequest
    digests: HistoryDigests
    offered: str

    @classmethod
    def of(cls, request: CompletionRequest) -> "AskedTurn":
        return cls(request, HistoryDigests.of(request.messages), tools_digest(request.tools))

    # ---- the turn before it

    def parent(self, tx: Tx, episode_id: str) -> "Callable[[Choice], EarlierTurn | None]":
        """Return what finds the turn that a prompt follows: the one with the longest history that begins the messages.
        Of several with the same history, that whose tokens begin those of the prompt; else the newest."""
        found = list(self._alike(tx, episode_id))
        answered = self.request.prompt is not None or any(one.role is Role.ASSISTANT for one in self.request.messages)

        def of(choice: Choice) -> EarlierTurn | None:
            ids = choice.prompt_token_ids
            same = next((turn for turn in found if continues(ids, turn)), None) or next(iter(found), None)
            return by_tokens(tx, episode_id, ids) if same is None and answered else same

        return of

    def _alike(self, tx: Tx, episode_id: str) -> "Iterator[EarlierTurn]":
        messages, digests = self.request.messages, self.digests.common
        for place in range(len(messages), 0, -1):
            if messages[place - 1].role is Role.ASSISTANT:
                where = "by_state", episode_id, digests[place]
                found = tx.select(EpisodeTurn, _COLUMNS, *where, limit=ALIKE, descending=True)
                if found:
                    yield from (EarlierTurn(*columns) for columns in found)
                    return

    # ---- the turn

    def joined(
        self, turn: EpisodeTurn, choice: Choice, parent: "Callable[[Choice], EarlierTurn | None]"
    ) -> EpisodeTurn:
        """Return the turn as it is stored, after the turn that it follows."""
        before = parent(choice)
        messages, prompt, tools = self.request.messages, choice.prompt_token_ids, self.request.tools
        whole = before is None or before.exact not in self.digests.exact
        joins = before is not None and continues(prompt, before)
        body = {
            "request": turn.id.removesuffix(f"-{choice.index}"),
            "messages": list(map(message_object, messages if whole else messages[self._after(before) :])),
            "answer": message_object(choice.message),
            "finish_reason": choice.finish_reason.value,
            "prompt": prompt[before.length :] if before is not None and joins else prompt,
            "ids": choice.token_ids,
            **_logprobs(choice.logprobs),
        }
        if before is None or before.offered != self.offered:
            body["tools"] = [tool_object(tool) for tool in tools]
        if self.request.prompt is not None:
            body["raw"] = True
        return attrs.evolve(
            turn,
            parent_id="" if before is None else before.id,
            whole=whole,
            continues=joins,
            body=WrittenMapping(dumps(body).decode()),
        )

    def _after(self, before: "EarlierTurn | None") -> int:
        assert before is not None
        return self.digests.exact.index(before.exact)


@attrs.frozen
class EarlierTurn:
    """What a later turn is joined by: columns of an `EpisodeTurn`."""

    id: str
    exact: str
    offered: str
    length: int
    tokens: str


_COLUMNS = tuple(field.name for field in attrs.fields(EarlierTurn))


def continues(prompt: Sequence[int], turn: EarlierTurn) -> bool:
    """Return whether the token ids of a prompt begin with the prompt and the answer of a turn."""
    return 0 < turn.length <= len(prompt) and tokens_digest(prompt, turn.length) == turn.tokens


def by_tokens(tx: Tx, episode_id: str, prompt: Sequence[int]) -> EarlierTurn | None:
    """Return the longest turn whose tokens begin a prompt, whatever its messages are."""
    rows = tx.select(EpisodeTurn, _COLUMNS, "by_episode", episode_id, limit=_MANY)
    longest_first = sorted((EarlierTurn(*columns) for columns in rows), key=lambda turn: -turn.length)
    return next((turn for turn in longest_first if continues(prompt, turn)), None)


_MANY = 10_000


def _logprobs(entries: tuple[TokenLogprob, ...] | None) -> dict[str, Any]:
    """Return the log-probabilities of the answer, and the text of each token; its bytes if they are not that text."""
    if entries is None:
        return {"logprobs": None}
    odd = {str(at): one.bytes for at, one in enumerate(entries) if not _is_text(one)}
    return {
        "logprobs": [one.logprob for one in entries],
        "texts": [one.token for one in entries],
        **({"bytes": odd} if odd else {}),
    }


def _is_text(entry: TokenLogprob) -> bool:
    return entry.bytes is None or bytes(entry.bytes) == entry.token.encode("utf-8", "surrogatepass")
