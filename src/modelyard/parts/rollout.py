"""Rollouts: conversations with a model that become trajectories to train it on."""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar, Unpack, cast

from modelyard.domain.completion import Choice, CompletionRequest, Message, Role
from modelyard.domain.training import History, RolloutError, SampledChoice, Trajectory, TrajectoryGroup
from modelyard.flow import arun, run
from modelyard.platform.chat.request import CompletionOptions, Messages, build_messages, build_request
from modelyard.platform.chat.service import Chat

T = TypeVar("T")


class Rollout:
    """A conversation with one model that remembers what was sampled, exactly, so that it can be trained on.

    `options` are those of `chat.complete` and hold for every turn. Log-probabilities and token ids are requested
    wherever the backend has them.

        rollout = Rollout(platform.chat, model="local/desk/support", project="desk", max_tokens=60)
        answer = rollout.ask("Is my parcel on its way?")
        trajectory = rollout.trajectory(reward=score(answer.message.text))
    """

    def __init__(
        self, chat: Chat, *, entity: str | None = None, project: str | None = None, **options: Unpack[CompletionOptions]
    ) -> None:
        self._chat, self._options = chat, options
        self._attribution = chat._principal.attribution(entity, project)
        self._items: list[Message | SampledChoice] = []
        self._base = self._build((Message(Role.USER, ""),), options)

    def ask(self, messages: Messages = (), /, **options: Unpack[CompletionOptions]) -> Choice:
        """Return the model's next turn, after a string of the user or messages, such as a tool's answer. `options` hold
        for this turn alone. Raises as `chat.complete` does; then the conversation is unchanged."""
        turn = build_messages(messages) if messages else ()
        answer = run(self._chat._pipeline(self._request(turn, options), self._attribution, details=True))
        return self._keep(turn, answer.completion.choices[0])

    async def aask(self, messages: Messages = (), /, **options: Unpack[CompletionOptions]) -> Choice:
        """Return the model's next turn without blocking the event loop; see `ask`."""
        turn = build_messages(messages) if messages else ()
        answer = await arun(self._chat._pipeline(self._request(turn, options), self._attribution, details=True))
        return self._keep(turn, answer.completion.choices[0])

    def trajectory(self, reward: float, metrics: Mapping[str, Any] | None = None) -> Trajectory:
        """Return the conversation so far, with its reward."""
        return Trajectory((History(tuple(self._items), self._base.tools),), reward, metrics or {})

    def _request(self, turn: tuple[Message, ...], options: CompletionOptions) -> CompletionRequest:
        messages = (*[_spoken(item) for item in self._items], *turn)
        if options:
            return self._build(messages, {**self._options, **options})
        return self._base.asking(messages, self._base.sampling, self._base.max_tokens)

    def _build(self, messages: tuple[Message, ...], options: Mapping[str, Any]) -> CompletionRequest:
        keywords = self._chat._named(cast("CompletionOptions", {**options, "messages": messages, "n": 1}))
        return build_request(keywords, streamed=False, details=True)

    def _keep(self, turn: tuple[Message, ...], choice: Choice) -> Choice:
        self._items += [*turn, SampledChoice.of(choice)]
        return choice


def _spoken(item: Message | SampledChoice) -> Message:
    return item.message if isinstance(item, SampledChoice) else item


def gather(attempt: Callable[[T], Trajectory], over: Iterable[T], *, concurrency: int = 1) -> TrajectoryGroup:
    """Group attempts at one task, one for each item, such as a seed. Attempts that raise are kept as failures.

    Up to `concurrency` attempts run at the same time, in threads; the trajectories keep the order of the items.

    group = gather(lambda seed: attempt_at(question, seed), range(8), concurrency=8)
    """
    if concurrency == 1:
        outcomes = [_attempted(attempt, item) for item in over]
    else:
        with ThreadPoolExecutor(concurrency, "modelyard-rollout") as threads:
            outcomes = list(threads.map(partial(_attempted, attempt), over))
    return TrajectoryGroup(
        tuple(one for one in outcomes if isinstance(one, Trajectory)),
        tuple(one for one in outcomes if isinstance(one, RolloutError)),
    )


def _attempted(attempt: Callable[[T], Trajectory], item: T) -> Trajectory | RolloutError:
    try:
        made: Any = attempt(item)
    except Exception as error:  # noqa: BLE001 - the attempt is the caller's code, and its failure is part of the group
        return RolloutError(type(error).__name__, str(error))
    if isinstance(made, Trajectory):
        return made
    return RolloutError("TypeError", f"the attempt returned {type(made).__name__}, not a Trajectory")
