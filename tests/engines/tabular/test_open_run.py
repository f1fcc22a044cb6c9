"""Runs that their callers drive, on tabular models."""

import io
import random

import pytest

from modelyard.domain.training_run import AdamParams, AdapterConfig, Loss, Objective, TargetRow
from modelyard.engines import TabularTrainer
from modelyard.engines.tabular.adapter_file import ADAPTER_FILE, read_adapter
from modelyard.engines.tabular.base import base_seed
from modelyard.engines.tabular.learning import TargetAnswer, WorkingCopy
from modelyard.engines.tabular.model import Adapter, TabularModel, prompt_ids
from modelyard.engines.tabular.raw_prompt import prompt_odds, read_prompt, read_row
from modelyard.engines.tabular.tokenizer import END_OF_TURN, encode
from modelyard.errors import TrainingError
from modelyard.parts.contracts.step_trainer import cross_entropy, flat, read, target_rows, trained
from modelyard.testing import StepTrainerContract

BASE = "tabular-mini"
TEXTS = (
    "user: Where is it?",
    "user: Where is it?|assistant: It is there. Thank you.",
    "system: Be kind.|user: Hello there|assistant: Hello|user: And now?|assistant: ",
    "|assistant: |assist",
    "no role at all: but a colon",
)


class TestTabularSteps(StepTrainerContract):
    @pytest.fixture
    def trainer(self):
        return TabularTrainer()

    @pytest.fixture
    def base_model(self):
        return BASE

    @pytest.fixture
    def tolerance(self):
        return 1e-9


def tokens(text):
    """The tokens of turns that are separated by |."""
    first, *others = text.split("|")
    return [*encode(first), *(token for turn in others for token in (END_OF_TURN, *encode(turn)))]


def opened(files=None):
    held = files or {}
    return TabularTrainer().open_run(BASE, AdapterConfig(), frozenset(held), lambda name: io.BytesIO(held[name]))


def model_of(run):
    return TabularModel(base_seed(BASE), read_adapter(io.BytesIO(read(run.files())[ADAPTER_FILE])))


def next_token_row(text):
    ids = tokens(text)
    return TargetRow(ids[:-1], ids[1:])


def test_the_score_of_a_text_is_what_serving_says_of_a_prompt():
    rows = [next_token_row(text) for text in TEXTS]
    run = trained(opened(), 1)
    run.accumulate(rows, cross_entropy(rows))
    run.optim_step(AdamParams())
    model = model_of(run)
    for text, scores in zip(TEXTS, run.score(rows), strict=True):
        assert scores == [odds.logprob(token) for token, odds in prompt_odds(model, tokens(text))]


def test_several_targets_of_a_position_are_scored_there():
    ids = tokens(TEXTS[1])
    wide = TargetRow(ids, [token for place in range(len(ids)) for token in (place, 300)], 2)
    first, second = TargetRow(ids, range(len(ids))), TargetRow(ids, [300] * len(ids))
    run = trained(opened(), 2)
    found = run.score([wide, first, second])
    assert list(found[0][::2]) == list(found[1])
    assert list(found[0][1::2]) == list(found[2])


def test_an_answers_gradient_is_that_of_sft():
    """The same derivatives as of the answer to the conversation that the tokens write."""
    ids, answer = tokens("user: Where is it?|assistant: "), (*encode("It is there."), END_OF_TURN)
    assert ids == prompt_ids(read_prompt(ids).messages)
    whole = [*ids, *answer]
    copy = WorkingCopy(TabularModel(base_seed(BASE)))
    (trace,) = copy.trace([TargetAnswer(read_prompt(ids).features, answer)])
    plain = copy.gradient([trace], [[-0.1] * len(answer)]).rows
    run = opened()
    weights = [0.0] * (len(ids) - 1) + [-0.1] * len(answer)
    run.accumulate([TargetRow(whole[:-1], whole[1:])], Objective(lambda new: Loss(0.0, [weights], {})))
    norm = sum(slope * slope for row in plain.values() for slope in row) ** 0.5
    assert run.optim_step(AdamParams(learning_rate=1e-9))["grad_norm"] == pytest.approx(norm)
    assert model_of(run).adapter.rows.keys() == plain.keys()


def test_the_norm_is_that_of_finite_differences():
    rows = [next_token_row(text) for text in TEXTS[:3]]
    run = trained(opened(), 3)
    run.accumulate(rows, cross_entropy(rows))
    run.optim_step(AdamParams(learning_rate=0.0))
    model = model_of(run)

    def cost(changed):
        scorers = [(TabularModel(model.seed, Adapter(changed)), turn) for row in rows for turn in read_row(row)]
        return -sum(sum(one.scorer(turn.features).score_in(turn.contexts)) for one, turn in scorers)

    weights = {feature: dict(row) for feature, row in model.adapter.rows.items()}
    run.accumulate(rows, cross_entropy(rows))
    step = 1e-4
    copy = WorkingCopy(model)
    traces = copy.trace([turn for row in rows for turn in read_row(row)])
    exact = copy.by_token(copy.gradient(traces, [[-1.0] * len(trace.positions) for trace in traces]))
    pairs = [(feature, token) for feature, row in exact.items() for token in row]
    for feature, token in random.Random(4).sample(pairs, 25):
        sides = []
        for by in (-step, step):
            sides.append(cost({**weights, feature: {**weights[feature], token: weights[feature][token] + by}}))
        assert exact[feature][token] == pytest.approx((sides[1] - sides[0]) / (2 * step), abs=1e-6)
    squares = sum(slope * slope for row in exact.values() for slope in row.values())
    assert run.optim_step(AdamParams())["grad_norm"] == pytest.approx(squares**0.5)


def test_a_step_is_that_of_adam_by_hand():
    """The second step moves a weight by its two means, each divided by what it lacks of its whole."""
    row = next_token_row("user: the the")
    run, norms = opened(), []
    params = AdamParams(learning_rate=1e-4, beta1=0.5, beta2=0.75, eps=1e-8, weight_decay=10.0)
    before = {}
    for _ in range(2):
        copy = WorkingCopy(model_of(run))
        traces = copy.trace(read_row(row))
        exact = copy.by_token(copy.gradient(traces, [[-1.0] * len(trace.positions) for trace in traces]))
        norms.append(exact)
        before = {feature: dict(weights) for feature, weights in model_of(run).adapter.rows.items()}
        run.accumulate([row], cross_entropy([row]))
        run.optim_step(params)
    feature = next(iter(norms[0]))
    token = next(iter(norms[0][feature]))
    first, second = norms[0][feature][token], norms[1][feature][token]
    mean = (0.5 * 0.5 * first + 0.5 * second) / 0.75
    square = (0.75 * 0.25 * first**2 + 0.25 * second**2) / (1 - 0.75**2)
    wanted = before[feature][token] * (1 - 1e-3) - 0.1 * mean / (square**0.5 + 1e-8)
    assert model_of(run).adapter.rows[feature][token] == pytest.approx(wanted, rel=1e-12)


def test_a_weight_past_its_limit_leaves_the_step_out():
    run = trained(opened(), 4)
    before, rows = read(run.state()), target_rows(4)
    run.accumulate(rows, cross_entropy(rows))
    with pytest.raises(TrainingError, match="left out"):
        run.optim_step(AdamParams(learning_rate=1.0))
    assert read(run.state()) == before


def test_unknown_base_models_and_broken_files_are_refused():
    with pytest.raises(TrainingError, match="not here"):
        TabularTrainer().open_run("other", AdapterConfig(), frozenset(), lambda name: io.BytesIO())
    state = dict(read(trained(opened(), 5).state()))
    for name in state:
        with pytest.raises(TrainingError, match=name):
            opened({**state, name: b"no tensors"})
    assert flat(opened(state).score(target_rows(5)))
