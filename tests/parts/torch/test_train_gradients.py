"""What training descends along is the derivative of the stated loss: torch's own, of formulas written here again."""

import random
from collections.abc import Sequence
from itertools import chain
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from training_kit import learner_of, micro

from modelyard.domain.training_config import ImportanceSamplingLevel, RLConfig
from modelyard.parts.torch.network import Network
from modelyard.parts.torch.records import Tuning
from modelyard.parts.torch.training import token_logprobs as scoring
from modelyard.parts.torch.training.examples import TokenRow
from modelyard.parts.torch.training.memory_plan import MemoryBudget
from modelyard.trainers.credits import Credit
from modelyard.trainers.loop import Objective
from modelyard.trainers.losses import TrainedSequence, policy_loss, supervised_loss

LEVELS = get_args(ImportanceSamplingLevel)

# ---- the formulas, in tensors ----------------------------------------------------------------------------------------


def stated_loss(sequences: Sequence[TrainedSequence], news: Sequence[Any], config: RLConfig) -> Any:
    """The policy loss as the documentation states it; `news` are the new log-probabilities, leaves."""
    tokens = sum(len(new) for new in news)
    references = [
        new if s.reference is None else torch.tensor(s.reference) for s, new in zip(sequences, news, strict=True)
    ]
    k = [(new - reference).detach() for new, reference in zip(news, references, strict=True)]
    mean_k = torch.cat(k).mean()
    total = torch.zeros(())
    for sequence, new, gap in zip(sequences, news, k, strict=True):
        drift = new - torch.tensor(
            [at if old is None else old for at, old in zip(new.tolist(), sequence.old, strict=True)]
        )
        token = drift.clamp(-20, 20)
        mean = token.mean().exp()
        ratio = {
            "token": token.exp(),
            "sequence": mean.expand(len(new)),
            "average": (token.exp() + mean) / 2,
            "geometric_average": (token.exp() * mean).sqrt(),
        }[config.importance_sampling_level]
        if config.max_negative_advantage_importance_sampling_weight:
            ratio = ratio.clamp(max=config.max_negative_advantage_importance_sampling_weight)
        if config.mask_prob_ratio:
            trusted = (ratio > 1 - config.epsilon) & (ratio < 1 + config.epsilon_high)
            ratio = torch.where(trusted, ratio, torch.zeros(()))
        advantage = sequence.credit.advantage - (config.kimi_k2_tau or 0) * drift.detach()
        advantage = advantage + config.kl_penalty_coef * (mean_k - gap)
        clipped = ratio.clamp(1 - config.epsilon, 1 + config.epsilon_high)
        if config.ppo:
            term = -torch.minimum(ratio * advantage, clipped * advantage)
        else:
            term = -clipped.detach() * advantage * new
        total = total + (term * sequence.credit.weight).sum() / tokens
    return total


LOGPROBS = st.floats(-4, -0.01)


@st.composite
def sequences(draw: st.DrawFn) -> list[TrainedSequence]:
    found = []
    for number in range(draw(st.integers(1, 3))):
        length = draw(st.integers(1, 4))
        values = st.lists(LOGPROBS, min_size=length, max_size=length)
        old = [value if draw(st.integers(0, 5)) else None for value in draw(values)]
        credit = Credit(0, number, draw(st.floats(-2, 2)), draw(st.floats(0.1, 2)))
        found.append(TrainedSequence(credit=credit, new=draw(values), old=old, reference=draw(values)))
    return found


CONFIGS = st.builds(
    lambda **options: RLConfig(**options),
    ppo=st.booleans(),
    importance_sampling_level=st.sampled_from(LEVELS),
    kl_penalty_coef=st.sampled_from([0.0, 0.3]),
    kimi_k2_tau=st.sampled_from([None, 0.1]),
    mask_prob_ratio=st.booleans(),
    max_negative_advantage_importance_sampling_weight=st.sampled_from([None, 1.5]),
)


@settings(max_examples=200, deadline=None)
@given(sequences(), CONFIGS)
def test_the_derivatives_of_the_policy_loss_are_those_of_autograd(
    sequences: list[TrainedSequence], config: RLConfig
) -> None:
    with double():
        news = [torch.tensor(sequence.new, requires_grad=True) for sequence in sequences]
        value = stated_loss(sequences, news, config)
        expected = torch.autograd.grad(value, news, allow_unused=True, materialize_grads=True)
    found = policy_loss(sequences, config)
    assert found.value == pytest.approx(value.item(), abs=1e-9)
    for row, derivative in zip(found.derivatives, expected, strict=True):
        assert list(row) == pytest.approx(derivative.tolist(), abs=1e-9)


class double:
    """64-bit floats, so that a difference is a fault."""

    def __enter__(self) -> None:
        torch.set_default_dtype(torch.float64)

    def __exit__(self, *_: object) -> None:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("level", LEVELS)
def test_where_the_policy_has_not_moved_cispo_ppo_and_reinforce_have_one_gradient(level: str) -> None:
    new = [-0.5, -1.5, -0.1]
    sequence = TrainedSequence(credit=Credit(0, 0, 1.3, 0.7), new=new, old=new)
    reinforce = [-1.3 * 0.7 / 3] * 3
    for ppo in (False, True):
        found = policy_loss([sequence], RLConfig(ppo=ppo, importance_sampling_level=level))  # type: ignore[arg-type]
        if ppo or level == "token":
            assert list(found.derivatives[0]) == pytest.approx(reinforce)
        assert sum(found.derivatives[0]) == pytest.approx(sum(reinforce))


# ---- through the network ---------------------------------------------------------------------------------------------


def drawn_rows(count: int, longest: int = 24) -> list[TokenRow]:
    drawn = random.Random(3)
    rows = []
    for _ in range(count):
        ids = tuple(drawn.randrange(3, 259) for _ in range(drawn.randrange(8, longest)))
        places = tuple(sorted(drawn.sample(range(1, len(ids)), 4)))
        rows.append(TokenRow(ids, places, (None,) * 4))
    return rows


def plain_logprobs(model: Any, row: TokenRow) -> Any:
    """Of one row alone, all logits, no trick."""
    logits = model(input_ids=torch.tensor([row.ids])).logits[0].float()
    table = torch.log_softmax(logits, -1)
    return torch.stack([table[place - 1, row.ids[place]] for place in row.places])


@pytest.mark.parametrize("way", ["one pass", "several passes", "recomputed", "chunked head"])
@pytest.mark.parametrize("tuning", Tuning)
@pytest.mark.parametrize("kind", ["sft", "rl"])
def test_the_gradient_of_a_step_is_that_of_the_loss_for_any_split_into_passes(
    way: str, tuning: Tuning, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, trained = learner_of({}, tuning=tuning)
    if tuning is Tuning.LORA:  # an adapter begins where half of its gradient is 0
        with torch.no_grad():
            for number, parameter in enumerate(trained.parameters):
                parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)) / 10)
    if way == "several passes":
        learner._room.tokens = 40
    if way == "recomputed":
        monkeypatch.setattr(MemoryBudget, "_fits", lambda self, rows, longest, recomputed: recomputed)
    if way == "chunked head":
        monkeypatch.setattr(scoring, "HEAD_LOGITS", 3 * 259)
    rows = drawn_rows(5)
    config = RLConfig(kl_penalty_coef=0.2, importance_sampling_level="average", ppo=True)
    fixed = [[-2.0 - number / 5 - place / 9 for place in range(4)] for number in range(5)]

    def sequence_of(number: int, new: Sequence[float]) -> TrainedSequence:
        credit = Credit(0, number, (-1.0) ** number, 1.0 + number / 4)
        return TrainedSequence(credit=credit, new=new, old=[-5.5] * 4, reference=fixed[number])

    def loss(new: Sequence[Sequence[float]]) -> Any:
        return policy_loss([sequence_of(number, row) for number, row in enumerate(new)], config)

    objective = Objective(supervised_loss, linear=True) if kind == "sft" else Objective(loss)
    metrics = learner.step(rows, objective, 0.0, 1)
    found = [parameter.grad.clone() for parameter in trained.parameters]

    model = learner._scorer._network.model
    news = [plain_logprobs(model, row) for row in rows]
    if kind == "sft":
        value = -torch.cat(news).mean()
    else:
        value = stated_loss([sequence_of(number, new.tolist()) for number, new in enumerate(news)], news, config)
    expected = torch.autograd.grad(value, trained.parameters)
    norm = torch.cat([gradient.flatten() for gradient in expected]).norm()
    assert metrics["loss"] == pytest.approx(value.item(), rel=1e-4)
    assert metrics["grad_norm"] == pytest.approx(float(norm), rel=1e-3)
    scale = min(1.0, 1 / float(norm))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other * scale, rtol=1e-3, atol=2e-5)


def test_an_adapter_in_training_says_the_same_as_the_untouched_network_at_first() -> None:
    learner, trained = learner_of({})
    rows = drawn_rows(3)
    untouched = Network(micro()).model
    expected = [plain_logprobs(untouched, row).tolist() for row in rows]
    found = learner.scores(trained.copy(), rows)
    assert list(chain.from_iterable(found)) == pytest.approx(list(chain.from_iterable(expected)), abs=1e-4)


def test_the_entropy_is_that_of_the_distributions_at_trained_places() -> None:
    learner, _ = learner_of({})
    rows = drawn_rows(3)
    metrics = learner.step(rows, Objective(supervised_loss, linear=True), 0.0, 1)
    model = learner._scorer._network.model
    tables = [torch.log_softmax(model(input_ids=torch.tensor([row.ids])).logits[0], -1) for row in rows]
    entropies = [
        -(t[place - 1].exp() * t[place - 1]).sum() for t, row in zip(tables, rows, strict=True) for place in row.places
    ]
    assert metrics["entropy"] == pytest.approx(sum(entropies).item() / len(entropies), rel=1e-4)
