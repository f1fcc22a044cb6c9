"""Distillation against TRL's: the loss and its gradient for two networks, and a row of a job."""

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from training_kit import learner_of
from trl.trainer.distillation_trainer import _chunked_divergence_loss

from modelyard.domain.completion import Message, Role, TokenLogprob
from modelyard.domain.training import History, SampledChoice, Trajectory
from modelyard.domain.training_config import DistillConfig
from modelyard.domain.training_run import Objective
from modelyard.parts.torch.training.examples import TokenRow
from modelyard.trainers.distillation import divergence_loss
from modelyard.trainers.loop import Policies
from modelyard.trainers.methods import LEARNER_METHODS

BETAS = (0.0, 0.3, 0.5, 1.0)
WORDS, WIDTH, PLACES = 40, 8, 7


def theirs(hidden: Tensor, head: Tensor, teacher: tuple[Tensor, Tensor], beta: float) -> Tensor:
    """TRL's loss of the positions of one completion, all of which are trained."""
    mask = torch.ones(1, len(hidden), dtype=torch.long)
    loss, _, _ = _chunked_divergence_loss(hidden[None], teacher[0][None], head, teacher[1], mask, beta)
    return loss


def log_softmax(logits: Tensor) -> list[list[float]]:
    rows: list[list[float]] = logits.double().log_softmax(-1).tolist()
    return rows


@pytest.mark.parametrize("beta", BETAS)
def test_the_loss_of_all_tokens_and_its_gradient_are_those_of_trl(beta: float) -> None:
    numbers = torch.Generator().manual_seed(5)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=numbers)

    hidden, head, teacher = (
        drawn(PLACES, WIDTH).requires_grad_(),
        drawn(WORDS, WIDTH),
        (drawn(PLACES, 5), drawn(WORDS, 5)),
    )
    wanted = theirs(hidden, head, teacher, beta)
    (slopes,) = torch.autograd.grad(wanted, hidden)

    logprobs = (hidden @ head.T).log_softmax(-1)
    known = [one for row in log_softmax(teacher[0] @ teacher[1].T) for one in row]
    found = divergence_loss([logprobs.flatten().tolist()], [known], [[WORDS] * PLACES], beta)
    assert found.value == pytest.approx(wanted.item(), abs=1e-6)
    derivatives = torch.tensor(found.derivatives[0]).reshape(PLACES, WORDS)
    (own,) = torch.autograd.grad(logprobs, hidden, derivatives)
    assert torch.allclose(own, slopes, atol=1e-6)


@pytest.mark.parametrize("beta", BETAS)
def test_a_step_of_a_job_has_the_loss_and_the_gradient_of_trl(beta: float) -> None:
    student, trained = learner_of({})
    network, vocabulary = student._scorer._network, student._scorer.vocabulary
    with torch.no_grad():
        for number, parameter in enumerate(trained.parameters):
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number)))
    numbers = torch.Generator().manual_seed(9)
    answer = "It is blue."
    rows = student.taught(scored(student, answer, torch.randn(len(answer), vocabulary, generator=numbers)))
    (row,) = rows
    teacher_logits = torch.tensor([logprobs for _, logprobs in ordered(row, vocabulary)])

    hidden = network.body(input_ids=torch.tensor([row.ids]), use_cache=False).last_hidden_state[0, row.before]
    head = network.model.get_output_embeddings().weight
    teacher = (teacher_logits.float(), torch.eye(vocabulary))  # hidden states whose logits are these log-probabilities
    wanted = theirs(hidden, head, teacher, beta)
    slopes = torch.autograd.grad(wanted, trained.parameters)

    sizes = [row.sizes]
    known = [[one or 0.0 for one in row.logprobs]]
    for parameter in trained.parameters:
        parameter.grad = None
    _, found, _ = student._gradient(rows, Objective(lambda new: divergence_loss(new, known, sizes, beta)))
    assert found.value == pytest.approx(wanted.item(), abs=1e-6)
    for parameter, slope in zip(trained.parameters, slopes, strict=True):
        assert parameter.grad is not None
        assert torch.allclose(parameter.grad, slope, atol=1e-6)


def scored(student: object, answer: str, logits: Tensor) -> Trajectory:
    """An answer byte by byte, with a distribution over all tokens at each."""
    entries = []
    for one, logprobs in zip(answer.encode(), log_softmax(logits), strict=True):
        named = [TokenLogprob("", logprob, None, (), token) for token, logprob in enumerate(logprobs)]
        token = student._chat.token_of_bytes[bytes([one])]  # type: ignore[attr-defined]
        entries.append(TokenLogprob("", named[token].logprob, (one,), tuple(named), token))
    choice = SampledChoice(
        Message(Role.ASSISTANT, answer), teacher=tuple(entries), token_ids=tuple(one.id or 0 for one in entries)
    )
    return Trajectory((History((Message(Role.USER, "What colour is the sea?"), choice)),))


def ordered(row: TokenRow, vocabulary: int) -> Sequence[tuple[Sequence[int], Sequence[float]]]:
    """The teacher's log-probabilities by token."""
    found = []
    for ids, logprobs in row.taught:
        assert sorted(ids) == list(range(vocabulary))
        by_token = dict(zip(ids, logprobs, strict=True))
        found.append((range(vocabulary), [by_token[token] for token in range(vocabulary)]))
    return found


def test_a_job_of_several_steps_lowers_the_divergence() -> None:
    student, _ = learner_of({})
    answer = "It is blue."
    peaked = torch.full((len(answer), student._scorer.vocabulary), -3.0)
    for place, one in enumerate(answer.encode()):
        peaked[place, student._chat.token_of_bytes[bytes([one])]] = 9.0
    rows = [scored(student, answer, peaked)] * 12
    config = DistillConfig(learning_rate=1e-2, batch_size=1)
    plan = LEARNER_METHODS["distill"].plan(student, config, rows, Policies(), 0, ())
    losses = [metrics["loss"] for _, metrics in plan.steps]
    assert losses[-1] < losses[0] / 2
    assert all(map(math.isfinite, losses))
