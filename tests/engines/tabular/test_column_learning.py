"""What is learnt in columns of numpy is what is learnt in plain Python, bit for bit."""

import random
from itertools import repeat

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("numpy")

import numpy as np
from tests.shared.example_counts import examples

from modelyard.domain.completion import Message, Role
from modelyard.engines.tabular import trainer
from modelyard.engines.tabular.fast.column_learning import ColumnCopy
from modelyard.engines.tabular.fast.weight_columns import WeightColumns
from modelyard.engines.tabular.learning import TargetAnswer, WorkingCopy
from modelyard.engines.tabular.model import WEIGHT_LIMIT, Adapter, TabularModel, contexts, prompt_features
from modelyard.engines.tabular.tokenizer import END_OF_TURN, TOKENS, encode
from modelyard.engines.tabular.trainer import TabularTrainer
from modelyard.errors import TrainingError
from modelyard.parts.contracts.trainer import TrainerContract

PROMPTS = ["parcel", "where is my parcel", "my long parcel invoice", "invoice", ""]
"""They share words, whose values differ with the others beside them."""

tokens = st.sampled_from([*encode("the parcel is here."), 0, 300, 511])


@st.composite
def _answers(draw):
    """Answers, and those of which a teacher names several tokens at each position."""
    ids = (*draw(st.lists(tokens, max_size=8)), END_OF_TURN)
    named = draw(st.lists(st.lists(tokens, max_size=3, unique=True), min_size=len(ids), max_size=len(ids)))
    several = [tuple(dict.fromkeys((own, *others))) for own, others in zip(ids, named, strict=True)]
    features = prompt_features([Message(Role.USER, draw(st.sampled_from(PROMPTS)))])
    return TargetAnswer(features, ids, tuple(several) if draw(st.booleans()) else ())


answers = _answers()
steps = st.lists(st.tuples(st.lists(answers, max_size=4), st.integers(0, 99), st.sampled_from([1e-6, 5e-5, 1e-3])))


def started(size, seed=3):
    """A model with weights of up to `size` on features of some of the answers."""
    chance, rows = random.Random(seed), {}
    for asked in PROMPTS[:3]:
        features = prompt_features([Message(Role.USER, asked)])
        active = [feature for feature, _ in features.constant]
        for _, _, ids in contexts(features, encode("the parcel.")):
            active += chance.sample(ids, 4)
        for feature in active:
            rows[feature] = {token: chance.uniform(-size, size) for token in chance.sample(range(512), 3)}
    return TabularModel(7, Adapter(rows))


def derivatives_of(batch, seed):
    chance = random.Random(seed)
    return [[chance.choice([0.0, chance.uniform(-1, 1)]) for _ in row.targets] for row in batch]


def learnt(copy, made):
    """Everything that the steps of a copy return, up to one that diverges, and the weights after them."""
    found = []
    for number, (batch, seed, rate) in enumerate(made, 1):
        traces = copy.trace(batch)
        found.append([(trace.logprobs, trace.entropies) for trace in traces])
        try:
            found.append(copy.step(traces, derivatives_of(batch, seed), rate, number))
        except TrainingError as diverged:
            return [*found, str(diverged)]
    return [*found, copy.parameters(), copy.model().adapter.parameters()]


@pytest.mark.slow
@examples(150)
@given(steps, st.sampled_from([0.0, 1.0, WEIGHT_LIMIT]))
def test_every_number_is_that_of_plain_python(made, size):
    start = started(size) if size else TabularModel(7)
    assert learnt(ColumnCopy(start), made) == learnt(WorkingCopy(start), made)


def test_values_of_one_feature_that_differ_within_a_step_come_in_the_order_of_the_answers():
    batch = [
        TargetAnswer(prompt_features([Message(Role.USER, PROMPTS[at])]), tuple(encode("the the the parcel.")))
        for at in (0, 2, 0, 1, 2)
    ]
    made = [(batch, seed, 5e-5) for seed in range(4)]
    assert learnt(ColumnCopy(TabularModel(7)), made) == learnt(WorkingCopy(TabularModel(7)), made)


def test_what_the_prompt_makes_certain_and_the_context_rules_out_is_summed_again():
    row = TargetAnswer(prompt_features([Message(Role.USER, "parcel")]), tuple(encode("the")))
    (_, _, first_context), *_ = contexts(row.features, row.ids)
    certain = {feature: {ord("x"): WEIGHT_LIMIT} for feature, _ in row.features.constant}
    ruled_out = {feature: {ord("x"): -WEIGHT_LIMIT} for feature in first_context}
    model = TabularModel(7, Adapter({**certain, **ruled_out}))
    assert learnt(ColumnCopy(model), [([row], 0, 1e-6)]) == learnt(WorkingCopy(model), [([row], 0, 1e-6)])


def test_a_copy_leaves_the_model_that_it_started_from_alone():
    start = started(1.0)
    before = start.adapter.parameters()
    copy = ColumnCopy(start)
    batch = [TargetAnswer(prompt_features([Message(Role.USER, PROMPTS[1])]), tuple(encode("the parcel.")))]
    kept = copy.model()
    copy.step(copy.trace(batch), derivatives_of(batch, 1), 5e-5, 1)
    assert start.adapter.parameters() == kept.adapter.parameters() == before != copy.parameters()


@pytest.mark.parametrize("width", [1, 11])
def test_weights_are_taken_whole_when_there_are_more_than_room_was_made_for(width):
    start = {feature: {token: float(feature + token) for token in range(width)} for feature in range(1, 3000)}
    columns = WeightColumns(start)
    columns.load(np.arange(1, 3000), repeat(lambda token: token))
    assert columns.rows == {feature: {TOKENS[token]: row[token] for token in row} for feature, row in start.items()}


class TestTabularTrainerWithoutNumpy(TrainerContract):
    @pytest.fixture
    def trainer(self, monkeypatch: pytest.MonkeyPatch) -> TabularTrainer:
        monkeypatch.setattr(trainer, "WITH_NUMPY", False)
        return TabularTrainer(save_every=2)

    @pytest.fixture
    def base_model(self) -> str:
        (base,) = trainer.BASE_MODELS
        return base
