"""Continuous batching: every step reads the prompts that have come and adds one token to each answer under way.

The engine has no thread. Whoever waits for a token leads: it steps for all until it has its own, and then hands over to
another who waits. So a lone caller never waits for company, and many share each step.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Many
from functools import partial

import torch

from modelyard.backends.local.rows import Rows, causal
from modelyard.backends.local.sampler import Sampler
from modelyard.backends.local.sequence import Sampled, Sequence, State
from modelyard.causal_lm.lora import AdapterBank, LoraShape
from modelyard.causal_lm.network import Network
from modelyard.domain.completion import FinishReason
from modelyard.errors import BackendError, Overloaded

PREFILL_TOKENS = 2048
"""Tokens of prompts that are read in one pass: this bounds what a pass needs beside the cache."""

Wake = Callable[[], object]


class Engine:
    """Answers sequences on one network.

    Up to `rows` run at a time, their keys and values within `memory` bytes, and up to `waiting` more wait.
    `end_tokens` end an answer.
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
    ) -> None:
        self._network, self._bank, self._end_tokens, self._most_waiting = network, bank, end_tokens, waiting
        self.rows = Rows(network, rows, memory)
        self._waiting: deque[Sequence] = deque()
        self._lock = threading.Lock()
        self._led = False
        self._readers: dict[Sequence, Wake] = {}
        self._claims: deque[Wake] = deque()
        self._sampler: Sampler | None = None

    # ---- for whoever wants an answer

    def submit(self, sequence: Sequence) -> None:
        """Take a sequence in. Raises `Overloaded` when too many wait, or when it can never fit."""
        if not self.rows.can_ever_hold(sequence):
            raise Overloaded(f"{sequence.most} tokens do not fit the memory of this engine; ask for fewer", 60.0)
        with self._lock:
            if len(self._waiting) >= self._most_waiting:
                raise Overloaded(f"{len(self._waiting)} requests are waiting for this model; try again later")
            self._waiting.append(sequence)

    def wait(self, sequence: Sequence, seen: int) -> None:
        """Return when it has more than `seen` tokens or has ended."""
        while not _news(sequence, seen):
            woken = threading.Event()
            if self._takes_lead(sequence, seen, woken.set):
                self._lead(sequence, seen)
            else:
                woken.wait()

    async def await_(self, sequence: Sequence, seen: int) -> None:
        """The same on an event loop: the lead is taken on a thread of its executor."""
        loop = asyncio.get_running_loop()
        while not _news(sequence, seen):
            woken = asyncio.Event()
            if self._takes_lead(sequence, seen, partial(loop.call_soon_threadsafe, woken.set)):
                await asyncio.shield(loop.run_in_executor(None, self._lead, sequence, seen))
            else:
                await woken.wait()

    def cancel(self, sequence: Sequence) -> None:
        """Stop its work: at the next step, or now when nobody leads."""
        if sequence.state is State.ENDED:
            return
        sequence.cancelled = True
        with self._lock:
            self._readers.pop(sequence, None)
            if self._led:
                return
            self._led = True
        try:
            self._drop_cancelled()
        finally:
            self._hand_over()

    def load(self, slot: int, shape: LoraShape, weights: Mapping[str, torch.Tensor]) -> None:
        """Put an adapter into a slot that no sequence uses, between two steps. Raises `BackendError`."""
        self._claim()
        try:
            self._bank.load(slot, shape, weights)
            self.rows.forget(slot)
        finally:
            self._hand_over()

    # ---- the lead

    def _takes_lead(self, sequence: Sequence, seen: int, wake: Wake) -> bool:
        """Whether the caller is to lead; otherwise `wake` is called when it should look again."""
        with self._lock:
            if self._led:
                if _news(sequence, seen):
                    wake()
                else:
                    self._readers[sequence] = wake
                return False
            self._led = True
            return True

    def _claim(self) -> None:
        """Wait for the lead, before the next step."""
        while True:
            woken = threading.Event()
            with self._lock:
                if not self._led:
                    self._led = True
                    return
                self._claims.append(woken.set)
            woken.wait()

    def _lead(self, sequence: Sequence, seen: int) -> None:
        try:
            with torch.inference_mode():
                while not _news(sequence, seen) and not self._claims:
                    self._tell(self._step())
        finally:
            self._hand_over()

    def _tell(self, changed: Many[Sequence]) -> None:
        with self._lock:
            woken = [self._readers.pop(sequence) for sequence in changed if sequence in self._readers]
        for wake in woken:
            wake()

    def _hand_over(self) -> None:
        with self._lock:
            self._led = False
            heir = next(iter(self._readers), None)
            woken = [self._claims.popleft()] if self._claims else [] if heir is None else [self._readers.pop(heir)]
        for wake in woken:
            wake()

    # ---- a step

    def _step(self) -> list[Sequence]:
        """Returns the sequences that have news."""
        changed = self._drop_cancelled()
        try:
            changed += self._read_prompts()
            if self.rows.running:
                changed += self._decode()
        except (RuntimeError, MemoryError) as fault:
            changed += self._fail_newest(fault)
        return changed

    def _drop_cancelled(self) -> list[Sequence]:
        with self._lock:
            gone = [sequence for sequence in self._waiting if sequence.cancelled]
            for sequence in gone:
                self._waiting.remove(sequence)
        for sequence in [one for one in self.rows.running if one.cancelled]:
            self._leave(sequence)
            gone.append(sequence)
        for sequence in gone:
            sequence.end()
        return gone

    def _fail_newest(self, fault: Exception) -> list[Sequence]:
        """What does not fit, or cannot be computed, fails alone: the one that came last; the others go on."""
        if self.rows.running:
            sequence = self.rows.running[-1]
            self._leave(sequence)
        else:
            with self._lock:
                sequence = self._waiting.popleft()
        kind = Overloaded if isinstance(fault, torch.OutOfMemoryError | MemoryError) else BackendError
        sequence.end(failure=kind(f"the model could not go on: {type(fault).__name__}"))
        return [sequence]

    # ---- prompts

    def _read_prompts(self) -> list[Sequence]:
        """Admit what waits, in order, and read it. Those with a common beginning are read one after the other, so that
        it is computed once."""
        changed: list[Sequence] = []
        while new := self._admitted():
            changed += self._prefill(new)
        return changed

    def _admitted(self) -> list[Sequence]:
        new: list[Sequence] = []
        tokens = 0
        while self._waiting:
            sequence = self._waiting[0]
            fresh = len(sequence.prompt)
            if new and (tokens + fresh > PREFILL_TOKENS or any(_alike(sequence, one) for one in new)):
                break
            if not self.rows.admit(sequence):
                break
            with self._lock:
                self._waiting.popleft()
            sequence.state = State.RUNNING
            new.append(sequence)
            tokens += fresh - sequence.cached
        return new

    def _prefill(self, new: Many[Sequence]) -> list[Sequence]:
        """Read what is left of the prompts of the last rows, and draw the first token of each answer."""
        first = len(self.rows.running) - len(new)
        logits = self._first_logits(first, new)
        return self._took(new, Sampler(new, self._network.device).draw(logits))

    def _first_logits(self, first: int, new: Many[Sequence]) -> torch.Tensor:
        """Right-padded: what the padding leaves in the cache is overwritten before anything looks at it."""
        device, limit = self._network.device, self.rows.cache.length - 1
        found: list[torch.Tensor | None] = [None] * len(new)
        width = max(1, PREFILL_TOKENS // len(new))
        while any(logits is None for logits in found):
            parts = [list(one.prompt[one.cached : one.cached + width]) for one in new]
            longest = max(map(len, parts))
            ids = torch.tensor([part + [0] * (longest - len(part)) for part in parts], device=device)
            starts = torch.tensor([one.cached for one in new], device=device)
            positions = (starts[:, None] + torch.arange(longest, device=device)[None]).clamp(max=limit)
            hidden = self._pass(first, new, ids, positions)
            for row, (one, part) in enumerate(zip(new, parts, strict=True)):
                one.cached += len(part)
                if found[row] is None and one.cached == len(one.prompt):
                    found[row] = hidden[row, len(part) - 1]
        return self._network.logits(torch.stack([state for state in found if state is not None]))

    def _pass(self, first: int, sequences: Many[Sequence], ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        seen = int(positions.max()) + 1
        self.rows.cache.begin(first, positions, seen)
        self._bank.select([sequence.slot for sequence in sequences])
        return self._network.hidden(ids, positions, causal(positions, seen), self.rows.cache)

    # ---- answers

    def _decode(self) -> list[Sequence]:
        running, device = list(self.rows.running), self._network.device
        ids = torch.tensor([[sequence.answer[-1]] for sequence in running], device=device)
        positions = torch.tensor([[sequence.length - 1] for sequence in running], device=device)
        hidden = self._pass(0, running, ids, positions)
        for sequence in running:
            sequence.cached = sequence.length
        if self._sampler is None:
            self._sampler = Sampler(running, device)
        return self._took(running, self._sampler.draw(self._network.logits(hidden[:, -1])))

    def _took(self, sequences: Many[Sequence], drawn: Many[Sampled]) -> list[Sequence]:
        for sequence, sampled in zip(sequences, drawn, strict=True):
            sequence.answer.append(sampled.token)
            sequence.sampled.append(sampled)
            if sequence.grammar is not None:
                sequence.grammar.accept(sampled.token)
            if sampled.token in self._end_tokens:
                self._finish(sequence, FinishReason.STOP)
            elif len(sequence.answer) >= sequence.max_tokens:
                self._finish(sequence, FinishReason.LENGTH)
        if len(sequences) != len(self.rows.running) or any(one.state is State.ENDED for one in sequences):
            self._sampler = None
        return list(sequences)

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        self._leave(sequence)
        sequence.end(reason)

    def _leave(self, sequence: Sequence) -> None:
        self.rows.drop(sequence)
        self._sampler = None


def _news(sequence: Sequence, seen: int) -> bool:
    return len(sequence.sampled) > seen or sequence.state is State.ENDED


def _alike(one: Sequence, other: Sequence) -> bool:
    """Whether the second is read faster when the first has been: they begin with the same tokens."""
    shared = min(32, len(one.prompt) - 1, len(other.prompt) - 1)
    return one.slot == other.slot and shared > 0 and one.prompt[:shared] == other.prompt[:shared]
