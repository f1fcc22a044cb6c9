"""Continuous batching: every step reads the prompts that have arrived and adds one token to each running answer.

The engine has no thread. A caller that waits for a token leads: it steps for all until it has its own, and then hands
over to another waiting caller. So a lone caller never waits for others, and many share each step.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Many
from concurrent import futures
from contextlib import contextmanager
from functools import partial

import torch

from modelyard.domain.completion import FinishReason
from modelyard.errors import BackendError, CallerError, QueueFull
from modelyard.parts.torch.cuda_graphs import NewRecorder
from modelyard.parts.torch.lora import AdapterBank, LoraShape
from modelyard.parts.torch.network import Network, failure_of
from modelyard.parts.torch.serving.cache_slots import CacheSlots, bound
from modelyard.parts.torch.serving.forward import ForwardPass, side_by_side
from modelyard.parts.torch.serving.leader import LeaderElection, Waiter
from modelyard.parts.torch.serving.sampler import Sampler
from modelyard.parts.torch.serving.separate_caches import SeparateCaches
from modelyard.parts.torch.serving.sequence import SampledToken, Sequence, SequenceState
from modelyard.parts.torch.threads import torch_threads


class Engine:
    """Answers sequences on one network.

    Up to `rows` run at a time, with their keys and values in `memory` bytes; `waiting` more wait. `end_tokens` end an
    answer. Torch computes on `threads` or its own number. A `recorder` records passes of one token per row to replay.
    """

    def __init__(
        self,
        network: Network,
        bank: AdapterBank,
        end_tokens: frozenset[int],
        *,
        rows: int = 32,
        memory: int = 2**30,
        waiting: int = 1024,
        threads: int | None = None,
        recorder: NewRecorder | None = None,
    ) -> None:
        self._network, self._bank, self._end_tokens, self._threads = network, bank, end_tokens, threads
        self._most, self.shares_passes = rows + waiting, network.in_rows
        network.lay_out()
        self.rows: CacheSlots | SeparateCaches
        self._passes: ForwardPass | SeparateCaches
        if network.in_rows:
            self.rows = CacheSlots(network, rows, memory, padded=recorder is not None)
            self._passes = ForwardPass(network, bank, self.rows, rows, recorder)
        else:
            self.rows = self._passes = SeparateCaches(network, bank, rows, memory)
        self._waiting: deque[Sequence] = deque()
        self._lock, self._lead, self._leaders = threading.Lock(), LeaderElection(), futures.ThreadPoolExecutor(4)
        self._changed: list[Sequence] = []
        self._sampler: Sampler | None = None

    # ---- for callers

    def submit(self, sequence: Sequence) -> None:
        """Accept a sequence; its answer is limited to what memory allows.

        Raises `QueueFull` if too many wait, `ContextLengthExceeded` if there is no memory for its prompt and one token,
        and `BackendError` if the model does not know all of its tokens.
        """
        last, vocabulary = max(sequence.prompt, default=0), self._network.vocabulary
        if last >= vocabulary:
            raise BackendError(
                f"token {last} of the prompt is not one of this model's {vocabulary}: its tokenizer or chat template "
                "belongs to another model"
            )
        bound(sequence, self.rows.longest)
        sequence.ends_at(self._end_tokens)
        with self._lock:
            if len(self._waiting) + len(self.rows.running) >= self._most:
                raise QueueFull(f"{len(self._waiting)} requests wait for this model; send fewer at once, or later")
            self._waiting.append(sequence)

    def wait(self, sequence: Sequence, seen: int) -> None:
        while not _news(sequence, seen):
            woken = threading.Event()
            if self._lead.follow(sequence, Waiter(partial(_news, sequence, seen), woken.set)):
                woken.wait()
            else:
                self._try_to_lead(sequence, seen)

    async def await_(self, sequence: Sequence, seen: int) -> None:
        """Wait as `wait` does, on an event loop: a thread of the engine leads for all tasks."""
        loop = asyncio.get_running_loop()
        while not _news(sequence, seen):
            woken = asyncio.Event()
            wake = partial(loop.call_soon_threadsafe, woken.set)
            if self._lead.follow(sequence, Waiter(partial(_news, sequence, seen), wake, on_loop=True)):
                await woken.wait()
                continue
            leading = loop.run_in_executor(self._leaders, self._try_to_lead_tasks)
            leading.add_done_callback(partial(_woken, woken))
            await woken.wait()
            if leading.done():
                leading.result()

    def cancel(self, sequence: Sequence) -> None:
        """Stop its work: at the next step, or now if there is no leader."""
        if sequence.state is SequenceState.ENDED:
            return
        sequence.cancelled = True
        if self._lead.take():
            with self._leading():
                pass

    def load(self, slot: int, shape: LoraShape, weights: Mapping[str, torch.Tensor]) -> None:
        """Put an adapter into a slot that no sequence uses, between two steps. Raises `BackendError`.

        Cancelled sequences that used it are gone by then: a leader drops them before it hands over.
        """
        with self._claimed():
            self.rows.forget(slot)
            self._bank.load(slot, shape, weights)

    def hidden(self, slot: int, prompts: Many[Many[int]]) -> torch.Tensor:
        """Return the last hidden states of these tokens (prompts x tokens x size), in one pass between two steps."""
        with self._claimed():
            self._bank.select([slot] * len(prompts))
            return self._network.read(prompts)

    # ---- the lead

    @contextmanager
    def _claimed(self) -> Iterator[None]:
        """Lead, as soon as the step that is under way has ended."""
        self._lead.claim()
        with self._leading():
            yield

    def _try_to_lead(self, sequence: Sequence, seen: int) -> None:
        """Step until the sequence has news, unless another caller leads by now."""
        if self._lead.take():
            with self._leading():
                while not _news(sequence, seen) and not self._lead.claimed:
                    self._step()
                    self._notify()

    def _try_to_lead_tasks(self) -> None:
        """Step while there are waiting callers and no other leader: one step ahead, as tasks return meanwhile."""
        if self._lead.take():
            with self._leading():
                wanted = True
                while wanted and not self._lead.claimed:
                    self._step()
                    wanted = self._lead.followed
                    self._notify()

    @contextmanager
    def _leading(self) -> Iterator[None]:
        """Hold the lead until the end: then drop what was cancelled, and hand over."""
        with torch.inference_mode(), torch_threads(self._threads):
            try:
                yield
            finally:
                self._tidy_up()

    def _tidy_up(self) -> None:
        finished = False
        try:
            while not finished:
                self._drop_cancelled()
                self._notify()
                finished = self._lead.hand_over(unfinished=self._any_cancelled)
        except BaseException:  # interrupted: the next leader drops what is left
            self._lead.hand_over()
            raise

    def _notify(self) -> None:
        changed, self._changed = self._changed, []
        self._lead.notify(changed)

    def _any_cancelled(self) -> bool:
        with self._lock:
            return any(sequence.cancelled for sequence in (*self._waiting, *self.rows.running))

    # ---- a step

    def _step(self) -> None:
        """Add one token to each answer. An error ends only one answer, and the others continue."""
        try:
            self._drop_cancelled()
            self._make_room()
            self._read_prompts()
            if self.rows.running:
                self._decode()
        except Exception as fault:  # noqa: BLE001 - reported to the reader of the answer that it ends
            self._fail_one(fault)

    def _drop_cancelled(self) -> None:
        with self._lock:
            gone = [sequence for sequence in self._waiting if sequence.cancelled]
            for sequence in gone:
                self._waiting.remove(sequence)
        for sequence in [*gone, *(one for one in self.rows.running if one.cancelled)]:
            self._end(sequence)

    def _fail_one(self, fault: Exception) -> None:
        """Fail the last sequence after an error of a pass; first read all of a shared pass again one by one."""
        unread = self._unread()
        if len(unread) > 1 and not all(one.alone for one in unread):
            for one in unread:
                one.alone = True
            return
        failed = (unread or self.rows.running)[-1:]
        if not failed:
            raise fault
        self._end(failed[0], failure=failure_of(fault))

    def _end(self, sequence: Sequence, failure: BackendError | CallerError | None = None) -> None:
        if sequence.state is SequenceState.RUNNING:
            self._leave(sequence, failed=failure is not None)
        sequence.end(failure)
        self._changed.append(sequence)

    def _leave(self, sequence: Sequence, failed: bool) -> None:
        self._sampler = None
        try:
            self.rows.drop(sequence, failed=failed)
        except Exception as fault:  # noqa: BLE001 - the content of the cache is unknown now
            for one in self.rows.running:
                one.end(failure=failure_of(fault))
            self._changed += self.rows.running
            self.rows.clear()

    # ---- prompts

    def _make_room(self) -> None:
        """Make room for one more token in each row; without memory for all, put some back to be read again."""
        self._put_back(self.rows.crowded())
        self.rows.lengthen()

    def _read_prompts(self) -> None:
        """Admit and read what waits, in order, after what an error kept from being read; a common prefix once."""
        self._put_back(self._unread())
        while new := self._admitted():
            self._prefill(new)

    def _unread(self) -> list[Sequence]:
        return [sequence for sequence in self.rows.running if not sequence.read]

    def _put_back(self, sequences: Many[Sequence]) -> None:
        """Take away their rows and put them at the front of the queue."""
        for sequence in reversed(sequences):
            self._sampler = None
            self.rows.drop(sequence)
            sequence.state, sequence.read = SequenceState.WAITING, False
        with self._lock:
            self._waiting.extendleft(reversed(sequences))

    def _admitted(self) -> list[Sequence]:
        """Choose what is read next as one batch, with bounded padding, or one sequence alone.

        A sequence that shares a prefix with a chosen sequence waits until that has been read, and then copies it.
        """
        new: list[Sequence] = []
        longest = 0
        with self._lock:
            waiting = list(self._waiting)
        for sequence in waiting:
            if any(one.shares_prefix_with(sequence) for one in new):
                continue
            if new and (sequence.alone or not side_by_side(len(new) + 1, max(longest, self.rows.unread(sequence)))):
                break
            if not self._admit(sequence):
                break
            if sequence.state is SequenceState.RUNNING:
                new.append(sequence)
                longest = max(longest, sequence.length - sequence.cached)
            if sequence.alone:
                break
        return new

    def _admit(self, sequence: Sequence) -> bool:
        failure = None
        try:
            if not self.rows.admit(sequence):
                return False
            sequence.state, self._sampler = SequenceState.RUNNING, None
        except Exception as fault:  # noqa: BLE001 - reported to the reader of the answer
            failure = failure_of(fault)
        with self._lock:
            self._waiting.remove(sequence)
        if failure is not None:
            self._end(sequence, failure=failure)
        return True

    def _prefill(self, new: Many[Sequence]) -> None:
        """Read the unread rest of the last rows, and sample the next token of each answer."""
        drawn = Sampler(new, self._network.device).draw(self._passes.read(new))
        for sequence in new:
            sequence.read = True
        self._took(new, drawn)

    # ---- answers

    def _decode(self) -> None:
        running = list(self.rows.running)
        logits = self._passes.decode(running)
        if self._sampler is None:
            self._sampler = Sampler(running, self._network.device)
        self._took(running, self._sampler.draw(logits))

    def _took(self, sequences: Many[Sequence], drawn: Many[SampledToken]) -> None:
        for sequence, sampled in zip(sequences, drawn, strict=True):
            if sequence.state is SequenceState.RUNNING:
                self._take(sequence, sampled)

    def _take(self, sequence: Sequence, sampled: SampledToken) -> None:
        """Add a token to an answer, and end it if it is complete. An error here affects only this answer."""
        try:
            reason = self._reason(sequence, sequence.take(sampled))
        except Exception as fault:  # noqa: BLE001 - reported to the reader of the answer
            self._end(sequence, failure=failure_of(fault))
            return
        sequence.show(sampled, reason)
        if reason is None:
            self._changed.append(sequence)
        else:
            self._end(sequence)

    def _reason(self, sequence: Sequence, complete: bool) -> FinishReason | None:
        if sequence.answer[-1] in sequence.ends or (complete and not self._end_tokens & sequence.ends):
            return FinishReason.STOP
        if len(sequence.answer) < sequence.max_tokens:
            return None
        return FinishReason.STOP if complete else FinishReason.LENGTH


def _news(sequence: Sequence, seen: int) -> bool:
    return len(sequence.sampled) > seen or sequence.state is SequenceState.ENDED


def _woken(event: asyncio.Event, _: object) -> None:
    event.set()
