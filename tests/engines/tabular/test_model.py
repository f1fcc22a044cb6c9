import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each import each_case
from modelyard.domain.completion import Message, Role
from modelyard.domain.training_config import RLConfig, SFTConfig
from modelyard.engines.tabular.learning import TargetAnswer, WorkingCopy
from modelyard.engines.tabular.model import (
    WEIGHT_LIMIT,
    Adapter,
    PromptFeatures,
    TabularModel,
    contexts,
    prompt_features,
    prompt_ids,
)
from modelyard.engines.tabular.tokenizer import END_OF_TURN, VOCABULARY_SIZE, decode, encode
from modelyard.errors import TrainingError
from modelyard.trainers.credits import credit_trajectories, packed
from modelyard.trainers.losses import TrainedSequence, policy_loss, supervised_loss

BASE = TabularModel(seed=11)

ANSWERS = {
    "password": "Open the sign-in page and choose Forgot password. We send you a link.",
    "invoice": "All invoices are under Settings, Billing. Choose the month you need.",
    "refund": "Please send us the order number. The money is back within five days.",
    "delivery": "The carrier shows where your parcel is. Look in the shipping email.",
    "newsletter": "Click Unsubscribe at the bottom of the email and you are done.",
    "warranty": "It lasts two years from the day your lamp arrived. Keep the receipt.",
}
ASKING = [
    "How about my {}?",
    "I have a question about the {}, please.",
    "Hello, can you help me with a {}?",
    "The {} is what I need to know about.",
]
HELD_OUT = "What should I do about this {} of mine?"


def features(text):
    return prompt_features([Message(Role.USER, text)])


def answer(question, text):
    return TargetAnswer(features(question), (*encode(text), END_OF_TURN))


def rows(asking=ASKING, answers=ANSWERS):
    made = [answer(requested.format(word), text) for requested in asking for word, text in answers.items()]
    return random.Random(5).sample(made, len(made))


def shuffled(made, seed):
    ids = [row.ids for row in made]
    random.Random(seed).shuffle(ids)
    return [TargetAnswer(row.features, other) for row, other in zip(made, ids, strict=True)]


def mean_loss(model, made):
    scores = [score for row in made for score in model.score(row.features, row.ids)]
    return -math.fsum(scores) / len(scores)


def imitate(model, made, config=None, first_step=1):
    """SFT as a trainer does it; the model and the metrics of each step."""
    config, learner, metrics = config or SFTConfig(), WorkingCopy(model), []
    size = config.rows_per_batch
    for step, rate in enumerate(config.learning_rates(len(made)), first_step):
        start = (step - first_step) * size
        traces = learner.trace(made[start : start + size])
        loss = supervised_loss([trace.logprobs for trace in traces])
        metrics.append({**loss.metrics, **learner.step(traces, loss.derivatives, rate, step)})
    return learner.model(), metrics


def sample(model, requested, seed, limit=16):
    chance, scorer, ids = random.Random(seed), model.scorer(requested), []
    while len(ids) < limit and ids[-1:] != [END_OF_TURN]:
        odds = map(math.exp, scorer.next_logprobs(ids))
        ids += chance.choices(range(VOCABULARY_SIZE), weights=list(odds))
    return tuple(ids)


def greedy(model, question, limit=60):
    scorer, ids = model.scorer(features(question)), []
    while len(ids) < limit and ids[-1:] != [END_OF_TURN]:
        logprobs = scorer.next_logprobs(ids)
        ids.append(max(range(VOCABULARY_SIZE), key=logprobs.__getitem__))
    return decode(ids)


# ---- features --------------------------------------------------------------------------------------------------


def test_letter_case_and_spacing_do_not_change_what_a_prompt_says():
    assert features("Where is MY  Parcel") == features("where is my parcel?")


def test_words_carry_the_role_that_said_them():
    generated = [
        prompt_features([Message(role, "parcel"), Message(Role.USER, "hi")]) for role in (Role.SYSTEM, Role.USER)
    ]
    assert generated[0] != generated[1]


def test_the_last_user_message_counts_more_than_earlier_ones():
    first = prompt_features([Message(Role.USER, "parcel"), Message(Role.USER, "invoice")])
    swapped = prompt_features([Message(Role.USER, "invoice"), Message(Role.USER, "parcel")])
    assert dict(first.constant).keys() == dict(swapped.constant).keys()
    assert sorted(dict(first.constant).values()) == sorted(dict(swapped.constant).values())
    assert dict(first.constant) != dict(swapped.constant)


@given(st.lists(st.builds(Message, st.sampled_from(Role), st.text() | st.none()), max_size=5))
def test_any_conversation_has_features_of_bounded_size(messages):
    found = prompt_features(messages)
    assert len(found.keys) <= 6
    assert math.fsum(value * value for _, value in (*found.constant, *found.keys)) < 5
    assert all(0 <= feature < 1 << 54 for feature, _ in (*found.constant, *found.keys))


def test_a_prompt_is_tokens_that_name_its_roles():
    ids = prompt_ids([Message(Role.SYSTEM, "Be brief."), Message(Role.USER, "Hi")])
    assert decode(ids) == "system: Be brief.user: Hiassistant: "
    assert ids.count(END_OF_TURN) == 2


# ---- the softmax -------------------------------------------------------------------------------------------------


def random_model(seed, size, others=40):
    """A model with weights of up to `size` on features of the question "where is it" and of this answer."""
    chance, row = random.Random(seed), answer("where is it", "The the parcel")
    met = {feature: set(row.ids) for feature, _ in row.features.constant}
    for target, _, active in contexts(row.features, row.ids):
        for feature in active:
            met.setdefault(feature, set()).add(target)
    weights = {
        feature: {token: chance.uniform(-size, size) for token in {*tokens, *chance.sample(range(512), others)}}
        for feature, tokens in met.items()
    }
    return TabularModel(BASE.seed, Adapter(weights)), row


def plain_logprobs(model, requested, ids):
    """The definition, spelled out: untrained logits, plus value x weight of all active features, through a softmax."""
    result = []
    for place, (target, _, active) in enumerate(contexts(requested, ids)):
        logits = TabularModel(model.seed).scorer(requested).next_logprobs(ids[:place])
        for feature, value in (*requested.constant, *zip(active, requested.values, strict=True)):
            for token, weight in model.adapter.rows.get(feature, {}).items():
                logits[token] += value * weight
        top = max(logits)
        result.append(logits[target] - top - math.log(math.fsum(math.exp(logit - top) for logit in logits)))
    return result


@each_case("size", [0.1, 5.0, WEIGHT_LIMIT])
@each_case("seed", range(3))
def test_the_sparse_softmax_is_the_plain_one_however_extreme_the_weights(seed, size):
    model, row = random_model(seed, size)
    assert model.score(row.features, row.ids) == pytest.approx(
        plain_logprobs(model, row.features, row.ids), rel=1e-9, abs=1e-9
    )


def test_what_the_prompt_makes_certain_and_the_context_rules_out_leaves_exact_digits_of_the_rest():
    row = answer("hi", "the")
    (_, _, first_context), *_ = contexts(row.features, row.ids)
    certain = {feature: {ord("x"): WEIGHT_LIMIT} for feature, _ in row.features.constant}
    ruled_out = {feature: {ord("x"): -WEIGHT_LIMIT} for feature in first_context}
    model = TabularModel(BASE.seed, Adapter({**certain, **ruled_out}))
    expected = pytest.approx(plain_logprobs(model, row.features, row.ids), abs=1e-9)
    assert model.score(row.features, row.ids) == expected
    assert WorkingCopy(model).trace([row])[0].logprobs == expected


def test_scores_do_not_depend_on_the_order_in_which_weights_were_loaded():
    for seed in range(20):
        model, row = random_model(seed, 5.0, others=5)
        turned = {feature: dict(reversed(weights.items())) for feature, weights in model.adapter.rows.items()}
        again = TabularModel(BASE.seed, Adapter(turned))
        assert again.score(row.features, row.ids) == model.score(row.features, row.ids)


@pytest.mark.parametrize("size", [0.1, 5.0, WEIGHT_LIMIT])
def test_next_logprobs_are_a_distribution_and_agree_with_the_score(size):
    model, row = random_model(3, size)
    scorer, scores = model.scorer(row.features), model.score(row.features, row.ids)
    for place, target in enumerate(row.ids):
        logprobs = scorer.next_logprobs(row.ids[:place])
        assert len(logprobs) == VOCABULARY_SIZE
        assert math.fsum(map(math.exp, logprobs)) == pytest.approx(1.0)
        assert logprobs[target] == scores[place]


@pytest.mark.parametrize("size", [0.1, 5.0, WEIGHT_LIMIT])
def test_odds_are_logits_and_their_exponentials(size):
    model, row = random_model(5, size)
    scorer = model.scorer(row.features)
    for place in range(len(row.ids)):
        odds = scorer.odds(row.ids[:place])
        assert odds.weights == list(map(math.exp, odds.logits))
        assert math.log(math.fsum(odds.weights)) == pytest.approx(odds.log_total, abs=1e-9)
        assert [odds.logprob(token) for token in range(VOCABULARY_SIZE)] == odds.logprobs


@pytest.mark.parametrize("size", [0.1, 5.0])
def test_entropy_is_that_of_the_distribution(size):
    model, row = random_model(4, size)
    scorer = model.scorer(row.features)
    (trace,) = WorkingCopy(model).trace([row])
    for at, entropy in enumerate(trace.entropies):
        logprobs = scorer.next_logprobs(row.ids[:at])
        assert entropy == pytest.approx(-math.fsum(math.exp(x) * x for x in logprobs), abs=1e-9)


@each_case("size", [0.1, 5.0, WEIGHT_LIMIT])
@each_case("seed", range(3))
def test_a_trace_scores_as_the_model_does_however_extreme_the_weights(seed, size):
    model, row = random_model(seed, size)
    (trace,) = WorkingCopy(model).trace([row])
    assert trace.logprobs == pytest.approx(model.score(row.features, row.ids), rel=1e-9, abs=1e-9)


def test_bases_of_different_seeds_answer_differently_and_each_the_same_again():
    answers = [sample(TabularModel(seed), features("hello"), seed=0) for seed in (1, 2, 1)]
    assert answers[0] == answers[2] != answers[1]


def test_the_untrained_model_says_words():
    words = Counter(word for seed in range(20) for word in decode(sample(BASE, features("hi"), seed)).split())
    assert {"the", "you", "to"} & set(words)


# ---- the gradient ------------------------------------------------------------------------------------------------


def test_the_gradient_of_every_weight_equals_the_finite_difference_of_a_plain_loss():
    chance = random.Random(0)
    batch = [answer("where is it", "the th"), answer("is it there", "it the"), answer("where is it", "the")]
    model, _ = imitate(BASE, batch)
    learner = WorkingCopy(model)
    traces = learner.trace(batch)
    factors = [[chance.uniform(-1, 1) for _ in row.ids] for row in batch]
    gradient = learner.gradient(traces, factors)
    rows = learner.model().adapter.rows

    def weighted_loss(feature, token, by):
        changed = {**rows, feature: {**rows[feature], token: rows[feature][token] + by}}
        moved = TabularModel(model.seed, Adapter(changed))
        scores = (plain_logprobs(moved, row.features, row.ids) for row in batch)
        return math.fsum(f * x for fs, xs in zip(factors, scores, strict=True) for f, x in zip(fs, xs, strict=True))

    pairs = [(feature, place, token) for feature, row in rows.items() for place, token in enumerate(row)]
    assert gradient.rows.keys() == rows.keys()
    for feature, place, token in chance.sample(pairs, 40):
        difference = (weighted_loss(feature, token, 1e-4) - weighted_loss(feature, token, -1e-4)) / 2e-4
        assert gradient.rows[feature][place] == pytest.approx(difference, abs=1e-7), (feature, token)


def test_the_norm_is_that_of_all_derivatives_together():
    learner, batch = WorkingCopy(BASE), [answer("a", "the"), answer("b", "it")]
    traces, factors = learner.trace(batch), [[1.0] * len(row.ids) for row in batch]
    squares = [d * d for row in learner.gradient(traces, factors).rows.values() for d in row]
    norm = learner.step(traces, factors, 1e-9, step=1)["grad_norm"]
    assert norm == pytest.approx(math.sqrt(math.fsum(squares)))
    assert norm > 0


def test_a_weight_moves_by_the_mean_derivative_over_the_places_of_its_feature():
    learner, row = WorkingCopy(BASE), answer("a", "the the the the")
    traces = learner.trace([row])
    derivatives = supervised_loss([traces[0].logprobs]).derivatives
    gradient = learner.gradient(traces, derivatives)
    learner.step(traces, derivatives, 1e-6, step=1)
    active = Counter(feature for _, _, at in contexts(row.features, row.ids) for feature in at)
    active.update({feature: len(row.ids) for feature, _ in row.features.constant})
    for feature, weights in learner.rows.items():
        moved = [-0.04 * len(row.ids) / (active[feature] + 1) * d for d in gradient.rows[feature]]
        assert list(weights.values()) == pytest.approx(moved)


# ---- supervised learning -----------------------------------------------------------------------------------------


def test_one_pass_at_the_default_rate_lowers_the_loss_on_seen_and_on_held_out_questions():
    held_out = rows([HELD_OUT])
    model, metrics = imitate(BASE, rows())
    assert metrics[-1]["loss"] < metrics[0]["loss"] / 3
    assert mean_loss(model, held_out) < mean_loss(BASE, held_out) / 3


@pytest.mark.slow
def test_held_out_loss_does_not_fall_when_answers_are_shuffled_among_prompts():
    """From a model that knows all answers, but not yet which one is whose."""
    held_out, knows_answers = rows([HELD_OUT]), BASE
    for seed in range(12):
        knows_answers, _ = imitate(knows_answers, shuffled(rows(), seed))
    before = mean_loss(knows_answers, held_out)
    true_pairs, _ = imitate(knows_answers, rows())
    false_pairs = [imitate(knows_answers, shuffled(rows(), seed))[0] for seed in (20, 21, 22)]
    assert mean_loss(true_pairs, held_out) < 0.5 * before
    assert all(mean_loss(model, held_out) > 0.9 * before for model in false_pairs)


def test_several_passes_memorise_and_the_answers_come_back_word_by_word():
    model = BASE
    for _ in range(4):
        model, _ = imitate(model, rows())
    for word, text in ANSWERS.items():
        assert greedy(model, ASKING[0].format(word)) == text
        assert greedy(model, HELD_OUT.format(word)) == text


def test_each_step_answers_differently():
    steps = [BASE]
    for start in (0, 4, 8):
        steps.append(imitate(steps[-1], rows()[start : start + 4])[0])
    answers = {tuple(greedy(model, HELD_OUT.format(word)) for word in ANSWERS) for model in steps}
    assert len(answers) == len(steps)


def test_a_learner_leaves_the_model_that_it_started_from_alone():
    start, _ = imitate(BASE, rows()[:4])
    before = start.adapter.parameters()
    imitate(start, rows()[4:8])
    assert start.adapter.parameters() == before
    assert BASE.adapter.parameters() == Adapter().parameters()


def test_a_run_resumed_from_saved_columns_equals_an_undisturbed_one_bit_for_bit():
    made = rows()
    whole, metrics = imitate(BASE, made)
    half, first = imitate(BASE, made[:10])
    ids, weights = half.adapter.parameters()
    loaded = TabularModel(BASE.seed, Adapter.from_parameters(ids, weights))
    resumed, rest = imitate(loaded, made[10:], first_step=6)
    assert resumed.adapter.parameters() == whole.adapter.parameters()
    assert first + rest == metrics


def test_a_repeated_run_is_identical():
    assert imitate(BASE, rows())[1] == imitate(BASE, rows())[1]


def test_learning_rates_are_used_as_sent_one_for_each_batch():
    made = rows()[:4]
    slow, _ = imitate(BASE, made, SFTConfig(learning_rate=(5e-5, 1e-12)))
    first, _ = imitate(BASE, made[:2])
    for feature, row in first.adapter.rows.items():
        for token, weight in row.items():
            assert slow.adapter.rows[feature][token] == pytest.approx(weight, abs=1e-4)


@pytest.mark.parametrize("rate", [1e-2, 1.0, 1e300])
def test_too_high_a_rate_diverges_and_the_message_says_where_and_what_to_try(rate):
    with pytest.raises(TrainingError, match=r"diverged at step \d+.*learning rate far below"):
        imitate(BASE, rows(), SFTConfig(learning_rate=rate))


@pytest.mark.parametrize("rate", [2e-4, 5e-4])
def test_ten_times_the_default_rate_still_learns(rate):
    model, _ = imitate(BASE, rows(), SFTConfig(learning_rate=rate))
    assert mean_loss(model, rows()) < mean_loss(BASE, rows()) / 2


def test_a_model_that_is_sure_of_something_else_counts_as_diverged():
    row = answer("hi", "the")
    sure = {feature: {ord("x"): WEIGHT_LIMIT} for feature, _ in row.features.constant}
    learner = WorkingCopy(TabularModel(1, Adapter(sure)))
    traces = learner.trace([row] * 2)
    with pytest.raises(TrainingError, match="diverged at step 7: the model costs"):
        learner.step(traces, [[0.0] * len(row.ids)] * 2, 1e-9, step=7)


def test_unusual_text_causes_no_divergence():
    _, metrics = imitate(BASE, [answer("言語", "日本語のテキスト 😀"), answer("?", "\x00\x7f\u200b")])
    assert metrics[0]["loss"] < 16


# ---- learning from rewards -----------------------------------------------------------------------------------------


PROMPTS = [features(ASKING[0].format(word)) for word in list(ANSWERS)[:4]]
RATE = RLConfig(learning_rate=2e-5)


def reward(ids):
    return decode(ids).casefold().count("e") / (len(decode(ids)) + 1)


def rollouts(model, job, samples=8):
    return [
        [sample(model, requested, f"{job}.{at}.{k}") for k in range(samples)] for at, requested in enumerate(PROMPTS)
    ]


def reinforce(model, groups, config, sign=1):
    """One RL job: the trainer sees token ids and rewards."""
    learner = WorkingCopy(model)
    kept = credit_trajectories([[(sign * reward(ids), len(ids)) for ids in group] for group in groups], config)
    answers = [TargetAnswer(PROMPTS[credit.group], groups[credit.group][credit.member]) for credit in kept]
    runs = packed([len(row.ids) for row in answers], config.packed_sequence_length)
    for step, run in enumerate(runs, 1):
        traces = learner.trace([answers[place] for place in run])
        new = [trace.logprobs for trace in traces]
        old = [model.score(answers[place].features, answers[place].ids) for place in run]
        trained = [TrainedSequence(kept[place], n, o) for place, n, o in zip(run, new, old, strict=True)]
        learner.step(traces, policy_loss(trained, config).derivatives, config.learning_rate, step)
    return learner.model()


def mean_reward_after(sign, config=RATE, jobs=6):
    model = BASE
    for job in range(jobs):
        model = reinforce(model, rollouts(model, job), config, sign)
    rewards = [reward(ids) for group in rollouts(model, "judged") for ids in group]
    return sum(rewards) / len(rewards)


@pytest.mark.slow
def test_rewards_are_learnt_and_negated_rewards_teach_the_opposite():
    before = mean_reward_after(1, jobs=0)
    assert mean_reward_after(1) > 1.5 * before
    assert mean_reward_after(-1) < 0.6 * before


def test_equal_rewards_teach_nothing():
    groups = [[(1, 2)] * 4 for _ in PROMPTS]
    assert credit_trajectories([[(0.5, 2)] * len(group) for group in groups], RATE) == []


@pytest.mark.slow
def test_ppo_learns_too():
    config = RLConfig(ppo=True, learning_rate=2e-5, packed_sequence_length=128)
    assert mean_reward_after(1, config) > 1.3 * mean_reward_after(1, jobs=0)


@pytest.mark.slow
def test_too_high_a_rate_diverges_in_rl():
    with pytest.raises(TrainingError, match="diverged at step 1"):
        reinforce(BASE, rollouts(BASE, 0), RLConfig(learning_rate=1e-1))


# ---- adapters ----------------------------------------------------------------------------------------------------


def test_an_adapter_survives_its_columns():
    model, _ = imitate(BASE, rows()[:2])
    ids, weights = model.adapter.parameters()
    again = Adapter.from_parameters(ids, weights)
    assert again == model.adapter
    assert again.parameters() == (ids, weights)
    assert (ids.itemsize, weights.itemsize, list(ids)) == (8, 8, sorted(ids))


@each_case(
    ("ids", "weights"),
    [([1, 2], [0.0]), ([2, 1], [0.0, 0.0]), ([1, 1], [0.0, 0.0]), ([-1], [0.0]), ([1], [math.nan]), ([1], [101.0])],
)
def test_columns_that_are_not_an_adapter_are_refused(ids, weights):
    with pytest.raises(ValueError, match="an adapter"):
        Adapter.from_parameters(ids, weights)


def test_a_prompt_without_words_is_answered_by_the_bias_alone():
    assert prompt_features([]) == PromptFeatures(((0, 0.5),), ())
