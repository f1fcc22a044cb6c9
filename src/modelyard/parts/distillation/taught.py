"""Trajectories scored by a teacher, which reads the very tokens that were sampled and says how likely each was."""

import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import chain, islice
from typing import Any, Protocol

import attrs

from modelyard.domain.completion import Completion, CompletionRequest, Message, Sampling, TokenLogprob, token_bytes
from modelyard.domain.identity import Attribution, Principal
from modelyard.domain.models import Checkpoint, Model
from modelyard.domain.training import History, SampledChoice, Trajectory, TrajectoryGroup
from modelyard.errors import InvalidInput, located_at
from modelyard.flow import run
from modelyard.formats.converter import unstructure
from modelyard.formats.trajectories import trajectory_of
from modelyard.platform.catalogue.service import resolve
from modelyard.platform.chat.backend_stream import backend_of
from modelyard.platform.chat.pipeline import CompletionPipeline
from modelyard.platform.chat.service import Chat
from modelyard.platform.runtime import Runtime
from modelyard.platform.training.data import TaughtData, each_trajectory
from modelyard.platform.usage.booking import CompletionBooking
from modelyard.protocols import Tx

TOP_LOGPROBS = 20
"""As many alternatives as servers usually return."""

CONCURRENCY = 8


class Taught:
    """Has trajectories scored by a teacher: `platform.training.taught`, called as a method is."""

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self._runtime, self._principal = runtime, principal

    def __call__(
        self,
        teacher: "Model | Checkpoint | str",
        data: TaughtData,
        *,
        top_logprobs: int = TOP_LOGPROBS,
        concurrency: int = CONCURRENCY,
        entity: str | None = None,
        project: str | None = None,
    ) -> Iterator[Trajectory]:
        """Yield trajectories, those of groups one by one, with what a teacher says of each sampled token, for
        `training.distill`. Groups may be those of episodes.

        `teacher` is any model whose backend returns log-probabilities of a prompt, and which has the tokenizer of the
        model that sampled. It reads the tokens of each choice after those of its prompt, so both ids are needed: sample
        with `return_token_ids=True`. `top_logprobs` are the alternatives that it names at each token. `concurrency`
        requests are under way at once; each is booked as a completion of one token. If one fails, those under way are
        yielded before that is raised. Raises `InvalidInput` at the place of what is wrong in the data,
        `UnsupportedParameter`, and as `chat.complete` does.
        """
        named = teacher_name(self._runtime, self._principal, teacher)
        for name, given in (("top_logprobs", top_logprobs), ("concurrency", concurrency)):
            if type(given) is not int or given < (name == "concurrency"):
                raise InvalidInput.at(name, msg="must be a whole number, 1 or more for concurrency")
        rows: Any = data
        if isinstance(rows, Trajectory | TrajectoryGroup | Mapping) or _is_episode_group(rows):
            rows = [rows]
        if isinstance(rows, str | bytes | os.PathLike) or not isinstance(rows, Iterable):
            raise InvalidInput.at("data", msg="must be trajectories or groups, not the name of a file or a data set")
        groups = (one.trajectories() if _is_episode_group(one) else one for one in rows)
        attribution = self._principal.attribution(entity, project)
        asked = Teacher(self._runtime, self._principal, attribution, named, top_logprobs)

        def score(number: int, one: Trajectory | Mapping[str, Any]) -> Trajectory:
            with located_at("data", number):
                if not isinstance(one, Trajectory | Mapping):
                    raise InvalidInput.at(msg="must be a trajectory, or an object with one, or a group of them")
                return asked.scored(one if isinstance(one, Trajectory) else trajectory_of(unstructure(one)))

        return _in_order(score, each_trajectory(groups), concurrency)


def _is_episode_group(given: object) -> bool:
    return getattr(given, "is_episode_group", False) is True


def teacher_name(runtime: Runtime, principal: Principal, teacher: "Model | Checkpoint | str") -> str:
    """Return the name by which a model is asked."""
    return str(Chat(runtime, principal)._named({"model": teacher})["model"])


class TeacherScores(Protocol):
    """Where the scores of one answer are kept, so that they are asked for once."""

    def find(self, ids: Sequence[int]) -> Sequence[TokenLogprob] | None:
        """Return what is kept of these tokens."""

    def write(self, ids: Sequence[int], scores: Sequence[TokenLogprob]) -> None:
        """Write the scores of tokens, before they are booked."""

    def keep(self, tx: Tx) -> None:
        """Name what was written, in the transaction that books it."""

    def kept(self) -> None:
        """Note that the transaction is committed."""


class _KeptCompletion(CompletionPipeline):
    """A request of a teacher, whose scores are kept as it is booked."""

    ids: Sequence[int]
    scores: TeacherScores

    def whole_booking(self, completion: Completion) -> CompletionBooking:
        booking = super().whole_booking(completion)
        self.scores.write(self.ids, completion.choices[0].prompt_logprobs)
        before = booking.keep

        def keep(tx: Tx) -> None:
            if before is not None:
                before(tx)
            self.scores.keep(tx)

        booking.keep = keep
        return booking


@attrs.frozen
class Teacher:
    """A model that scores what others sampled, with so many alternatives at each token. Thread-safe."""

    runtime: Runtime
    principal: Principal
    attribution: Attribution
    name: str
    top_logprobs: int = TOP_LOGPROBS

    def require(self) -> None:
        """Raise `InvalidInput` for a model that cannot score a prompt, and `ModelNotFound`."""
        served = resolve(self.runtime, self.name, self.principal)
        able = backend_of(self.runtime.backend, served.base_model).capabilities(served.base_model)
        if not able.prompt_logprobs:
            msg = f"is {self.name!r}, whose backend gives no log-probabilities of a prompt; take a local model or vLLM"
            raise InvalidInput.at("teacher", msg=msg)

    def scored(self, one: Trajectory, scores: TeacherScores | None = None) -> Trajectory:
        """Return a trajectory with what the teacher says of its tokens; of one with a single answer, these are kept in
        `scores`."""
        if not any(map(_is_sampled, chain.from_iterable(history.items for history in one.histories))):
            raise InvalidInput.at("messages_and_choices", msg="has no choice with logprobs: nothing was sampled")
        histories = []
        for place, history in enumerate(one.histories):
            with located_at(*(("additional_histories", place - 1) if place else ())):
                histories.append(_scored(history, partial(self._ask, scores)))
        return attrs.evolve(one, histories=tuple(histories))

    def _ask(self, scores: TeacherScores | None, ids: Sequence[int]) -> Sequence[TokenLogprob]:
        if scores is not None and (found := scores.find(ids)) is not None:
            return found
        request = CompletionRequest(
            self.name,
            (),
            sampling=Sampling(temperature=0.0),
            max_tokens=1,
            prompt=tuple(ids),
            prompt_logprobs=self.top_logprobs,
        )
        asked = self.runtime, self.principal, request, self.attribution
        if scores is None:
            return _prompt_of(CompletionPipeline(*asked))
        kept = _KeptCompletion(*asked)
        kept.ids, kept.scores = ids, scores
        found = _prompt_of(kept)
        scores.kept()
        return found


def _prompt_of(pipeline: CompletionPipeline) -> Sequence[TokenLogprob]:
    return run(pipeline.flow(details=True)).completion.choices[0].prompt_logprobs


def _in_order(score: Any, data: Iterable[Any], concurrency: int) -> Iterator[Trajectory]:
    """Score so many trajectories at once, and yield them in their order. If one fails, those that were under way are
    yielded before that is raised: they are paid."""
    rows = enumerate(data)
    with ThreadPoolExecutor(concurrency, "modelyard-teacher") as pool:
        waiting = deque[Future[Trajectory]]()
        try:
            for row in islice(rows, concurrency):
                waiting.append(pool.submit(score, *row))
            while waiting:
                found = waiting[0].result()
                waiting.extend(pool.submit(score, *row) for row in islice(rows, 1))
                waiting.popleft()
                yield found
        except Exception:
            pool.shutdown(cancel_futures=True)
            yield from (one.result() for one in waiting if not one.cancelled() and one.exception() is None)
            raise
        finally:
            pool.shutdown(cancel_futures=True)


def _scored(history: History, ask: Any) -> History:
    """Return a history with the teacher's scores. Choices whose tokens begin
    those of a later one are read with it."""
    items = list(history.items)
    read: tuple[int, ...] = ()
    scores: Sequence[TokenLogprob] = ()
    for place in reversed(range(len(items))):
        choice = items[place]
        if not isinstance(choice, SampledChoice) or not _is_sampled(choice):
            continue
        with located_at("messages_and_choices", place):
            ids = _ids(choice)
            if read[: len(ids)] != ids:
                read, scores = ids, ask(ids)
            entries = tuple(scores[len(choice.prompt_token_ids) - 1 : len(ids) - 1])
            _require_same(choice, entries)
        items[place] = attrs.evolve(choice, teacher=entries)
    return attrs.evolve(history, items=tuple(items))


def _is_sampled(item: Message | SampledChoice) -> bool:
    return isinstance(item, SampledChoice) and item.logprobs is not None


def _ids(choice: SampledChoice) -> tuple[int, ...]:
    ids = choice.token_ids or tuple(one.id for one in choice.logprobs or () if one.id is not None)
    for name, known in (("token_ids", ids), ("prompt_token_ids", choice.prompt_token_ids)):
        if not known:
            raise InvalidInput.at(
                name, msg="are needed, for the teacher reads tokens; sample with return_token_ids=True"
            )
    return (*choice.prompt_token_ids, *ids)


def _require_same(choice: SampledChoice, scored: Sequence[TokenLogprob]) -> None:
    """Raise `InvalidInput` where the teacher reads other tokens than were sampled."""
    for place, (own, seen) in enumerate(zip(choice.logprobs or (), scored, strict=True)):
        texts = [token_bytes(one) for one in (own, seen)]
        if all(texts) and texts[0] != texts[1] and "�" not in own.token + seen.token:
            msg = f"is {own.token!r} to the model, and {seen.token!r} to the teacher: they must share one tokenizer"
            raise InvalidInput.at("logprobs", "content", place, msg=msg)
