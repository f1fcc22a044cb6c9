"""The seeds of calls that name none, in a group that has a seed: the same again for an attempt that asks the same.

A seed is drawn from the group's seed, the place of the attempt, what the call asks, and how many calls of the attempt
have asked the same before. A call that failed does not count, so that it is made again as it was.
"""

import threading
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable, Mapping
from weakref import WeakKeyDictionary, ref

import attrs

from modelyard.domain.canonical import canonical_json
from modelyard.domain.completion import CompletionRequest, Message, ToolCall
from modelyard.formats.converter import unstructure
from modelyard.lazy import hashlib
from modelyard.parts.episodes.history import HistoryDigests, common_form
from modelyard.parts.episodes.known import is_text
from modelyard.parts.episodes.records import EpisodeTurn
from modelyard.platform.chat.running_completion import RunningCompletion
from modelyard.protocols import Snapshot

MOST_EPISODES = 4096
"""Of how many episodes a process knows the calls."""

_BITS = 53  # a double has them all, as which some read the numbers of JSON


def drawn_seed(*of: str | int) -> int:
    """Return the seed that is drawn from these.

    >>> drawn_seed(7, "round", 0) == drawn_seed(7, "round", 0) != drawn_seed(7, "round", 1)
    True
    """
    drawn = hashlib.sha256("/".join(map(str, of)).encode()).digest()
    return int.from_bytes(drawn[:8], "big") >> (64 - _BITS)


def asked_digest(request: CompletionRequest, called: str) -> str:
    """Return the digest of what decides an answer, in the form in which histories are compared: without the ids of tool
    calls, and without what says only how the answer is given or who asks. `called` stands for the name of the model."""
    options = attrs.evolve(
        request,
        model=called,
        messages=(),
        logprobs=False,
        top_logprobs=0,
        return_token_ids=False,
        streamed=False,
        user=None,
        metadata={},
        store=False,
        extras={},
        prompt_logprobs=None,
    )
    hashed = hashlib.sha256(canonical_json(unstructure(options)).encode())
    for form in _forms(request.messages):
        hashed.update(b"\n%d:" % len(form) + form)
    return str(hashed.hexdigest())


def _forms(messages: Iterable[Message]) -> Iterable[bytes]:
    numbers: dict[str, str] = {}

    def number(id_: str | None) -> str | None:
        return id_ and numbers.setdefault(id_, str(len(numbers)))

    for message in messages:
        if message.tool_calls or message.tool_call_id or message.name or not is_text(message):
            calls = tuple(ToolCall(number(one.id) or "", one.name, one.arguments) for one in message.tool_calls)
            form = common_form(attrs.evolve(message, tool_calls=calls, tool_call_id=number(message.tool_call_id)))
        else:
            form = f"{_ROLES.get(message.role, message.role)} {message.text}"
        yield form.encode("utf-8", "surrogatepass")


_ROLES = {"developer": "system"}


class EpisodeCalls:
    """The calls of an episode, as a process knows them: those that ask the same are numbered from 0. `answered` counts
    those that were answered when the process first saw the episode, by the digest of their messages."""

    def __init__(self, answered: Mapping[str, int]) -> None:
        self._answered = answered
        self._begun: defaultdict[str, list[ref[RunningCompletion] | None]] = defaultdict(list)
        self._places = WeakKeyDictionary[RunningCompletion, tuple[str, int]]()
        self._mutex = threading.Lock()

    def number(self, running: RunningCompletion, asked: str, request: CompletionRequest) -> int:
        """Return the number of a call among those that ask the same: the first that none has which was answered, or
        may still be."""
        before = self._answered[HistoryDigests.of(request.messages).common[-1]] if self._answered else 0
        with self._mutex:
            begun = self._begun[asked]
            free = next((place for place, one in enumerate(begun) if one is not None and _failed(one())), len(begun))
            begun[free : free + 1] = [ref(running)]
            self._places[running] = asked, free
        return before + free

    def answer(self, running: RunningCompletion) -> None:
        """Note that a call was answered, so that its number stays taken."""
        with self._mutex:
            place = self._places.pop(running, None)
            if place is not None:
                self._begun[place[0]][place[1]] = None


def _failed(running: RunningCompletion | None) -> bool:
    return running is None or running.failure is not None


class KnownCalls:
    """The calls of the episodes that a process has answered last."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, EpisodeCalls] = OrderedDict()
        self._mutex = threading.Lock()

    def of(self, snapshot: Snapshot, episode_id: str) -> EpisodeCalls:
        """Return the calls of an episode."""
        known = self._known.get(episode_id) or EpisodeCalls(_answered(snapshot, episode_id))
        with self._mutex:
            known = self._known.setdefault(episode_id, known)
            self._known.move_to_end(episode_id)
            if len(self._known) > MOST_EPISODES:
                self._known.popitem(last=False)
        return known


def _answered(snapshot: Snapshot, episode_id: str) -> Mapping[str, int]:
    """Count the calls of an episode that were answered, each once, however many choices it had."""
    turns = dict(snapshot.select(EpisodeTurn, ("id", "prompt"), "by_episode", episode_id, limit=_MANY))
    return Counter(prompt for turn, prompt in turns.items() if turn.rpartition("-")[0] not in turns)


_MANY = 10_000
