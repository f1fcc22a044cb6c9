"""The batched sampler draws what `modelyard.backends.sampling` draws, row by row."""

import random
from itertools import pairwise
from typing import Any

import attrs
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from local_models import requested

from modelyard.backends.sampling import kept, next_token, penalised, softened, uniform
from modelyard.domain.completion import Sampling
from modelyard.parts.torch.serving.sampler import Sampler

SIZE = 24
CPU = torch.device("cpu")

rows = st.builds(
    lambda seed, scale: [random.Random(seed).gauss(0, scale) for _ in range(SIZE)],
    st.integers(0, 2**32),
    st.sampled_from([0.0, 0.3, 1.0, 4.0]),
)
tokens = st.lists(st.integers(0, SIZE - 1), max_size=6)
samplings = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 1e-50, 0.01, 0.3, 0.7, 1.0, 1.0, 1.5, 2.0]),
    top_p=st.sampled_from([0.01, 0.3, 0.9, 1.0, 1.0]),
    top_k=st.sampled_from([None, None, -1, 0, 1, 3, 20, 1000]),
    min_p=st.sampled_from([0.0, 0.0, 0.05, 0.5, 1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.0, -0.5, 1.5]),
    presence_penalty=st.sampled_from([0.0, 0.0, -1.0, 0.7]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 0.6, 1.4]),
    logit_bias=st.dictionaries(st.integers(0, SIZE - 1), st.sampled_from([-100.0, -1.0, 2.5, 100.0]), max_size=3),
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
)
requests = st.tuples(rows, samplings, tokens.filter(bool), tokens)

NEAR = 1e-5
"""Sums in 32 bits may be so far from those in 64."""


def is_clear(logprobs: list[float], sampling: Sampling, prompt: list[int], answer: list[int]) -> bool:
    """Whether a little more or less of anything makes no difference."""
    scores = penalised(logprobs, sampling, prompt, answer)
    best = sorted(scores)[-2:]
    if sampling.temperature == 0:
        return best[1] - best[0] > NEAR
    weights = softened(scores, max(sampling.temperature, 1e-30))
    shaken = [
        attrs.evolve(sampling, top_p=min(1.0, sampling.top_p * (1 + off)), min_p=min(1.0, sampling.min_p * (1 + off)))
        for off in (-NEAR, NEAR)
    ]
    if len({tuple(kept(weights, one)) for one in (sampling, *shaken)}) > 1:
        return False
    ordered = sorted(weights)
    if any(0 < high - low < NEAR * high for low, high in pairwise(ordered)):
        return False
    allowed = kept(weights, sampling)
    whole, passed, chance = sum(weights[one] for one in allowed), 0.0, uniform(sampling.seed or 0, len(answer))
    for one in allowed:
        passed += weights[one] / whole
        if abs(passed - chance) < NEAR:
            return False
    return True


@given(st.lists(requests, min_size=1, max_size=5))
def test_each_row_gets_the_token_that_it_would_get_alone_in_plain_python(batch: list[Any]) -> None:
    logits = torch.tensor([row for row, *_ in batch], dtype=torch.float32)
    logprobs = logits.double().log_softmax(-1).tolist()
    asking = [(logprobs[place], sampling, prompt, answer) for place, (_, sampling, prompt, answer) in enumerate(batch)]
    assume(all(is_clear(*one) for one in asking))
    answers = [requested(prompt, 9, sampling, answer=list(answer)) for _, sampling, prompt, answer in batch]
    drawn = Sampler(answers, CPU).draw(logits)
    assert [sampled.token for sampled in drawn] == [next_token(*one) for one in asking]
    for sampled, own in zip(drawn, logprobs, strict=True):
        assert abs(sampled.logprob - own[sampled.token]) < 1e-4


def test_a_sampler_may_be_reused_as_answers_grow() -> None:
    drawn = torch.Generator().manual_seed(1)
    answers = [requested([3], 99, Sampling(seed=seed, presence_penalty=0.5)) for seed in range(3)]
    sampler = Sampler(answers, CPU)
    for _ in range(20):
        logits = torch.randn((3, SIZE), generator=drawn)
        again = [requested([3], 99, one.sampling, answer=list(one.answer)) for one in answers]
        found = sampler.draw(logits.clone())
        assert found == Sampler(again, CPU).draw(logits)
        for one, sampled in zip(answers, found, strict=True):
            one.take(sampled)


def test_the_likeliest_tokens_are_returned_only_on_request() -> None:
    answers = [requested([3], 9, top_logprobs=count) for count in (0, 2, 20)]
    drawn = Sampler(answers, CPU).draw(torch.randn((3, SIZE), generator=torch.Generator().manual_seed(2)))
    assert [len(sampled.top) for sampled in drawn] == [0, 2, 20]
    assert drawn[1].top[0] == (drawn[1].token, drawn[1].logprob)


class Only:
    """A grammar in which some tokens alone may come."""

    def __init__(self, *tokens: int) -> None:
        self._allowed = bytes(token in tokens for token in range(SIZE))

    def allowed(self) -> bytes:
        return self._allowed

    def accept(self, token: int) -> bool:
        return False


def test_at_the_coldest_temperature_biases_and_grammars_still_count() -> None:
    """Scores divided by next to nothing are numbers still: the likeliest token that is allowed comes."""
    cold = Sampling(temperature=5e-324, seed=1, logit_bias={4: 100.0})
    answers = [
        requested([3], 9, cold),
        requested([3], 9, cold, grammar=Only(5, 6)),
        requested([3], 9, cold, grammar=Only(7)),
    ]
    logits = torch.full((3, SIZE), -torch.inf)
    logits[:, 4:8] = torch.tensor([1.0, 2.0, 3.0, -1e4])
    assert [sampled.token for sampled in Sampler(answers, CPU).draw(logits)] == [4, 6, 7]
