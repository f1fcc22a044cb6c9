"""The options of jobs on local models: order, rates, long rows, packed rows, an early end, seeds and adapters."""

import json
from collections.abc import Mapping
from typing import Any

import attrs
import pytest
import torch
from training_kit import TINY, groups_of_words, learner_of, trainer_of

from modelyard.domain.completion import Message, Role
from modelyard.domain.training import Example, Preference
from modelyard.errors import InvalidInput, TrainingError
from modelyard.parts.contracts.trainer import WORDS, Run, context_of, followed
from modelyard.parts.torch.training.options import (
    BatchOptions,
    LocalDPOConfig,
    LocalRLConfig,
    LocalSFTConfig,
    RateOptions,
)
from modelyard.protocols import Started, Step, TrainContext

transformers = pytest.importorskip("transformers")


def example(question: str, answer: str) -> Example:
    return Example((Message(Role.USER, question), Message(Role.ASSISTANT, answer)))


ROWS = [example(f"What is {word}?", word * (1 + place % 3)) for place, word in enumerate(WORDS[:6])]
PAIRS = [
    Preference(one.messages[:1], one.messages[1], Message(Role.ASSISTANT, "no" * (1 + place % 4)))
    for place, one in enumerate(ROWS)
]


def trained(
    config: Any, data: Any = ROWS, context: TrainContext | None = None, method: str = "sft", **options: Any
) -> Run:
    rows = [*data] * getattr(config, "epochs", 1)
    return followed(trainer_of(**options).train(method, config, rows, context or context_of(TINY)))


def about(run: Run) -> Mapping[str, Any]:
    (started,) = run.started
    return started.about


def losses(run: Run) -> list[float]:
    return [step.metrics["loss"] for step in run.steps]


# ---- rates -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("warm", [0, 3])
@pytest.mark.parametrize("name", ["constant", "linear", "cosine"])
def test_a_schedule_is_that_of_transformers(name: str, warm: int) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2e-3)
    kind = {"constant": "constant_with_warmup"}.get(name, name)
    schedule = transformers.get_scheduler(kind, optimizer, num_warmup_steps=warm, num_training_steps=11)
    wanted = []
    for _ in range(11):
        wanted.append(schedule.get_last_lr()[0])
        optimizer.step()
        schedule.step()
    config = LocalSFTConfig(learning_rate=2e-3, batch_size=2, schedule=name, warmup_steps=warm)  # type: ignore[arg-type]
    assert config.learning_rates(21) == pytest.approx(wanted, abs=1e-12)


def test_a_ratio_of_steps_warms_up() -> None:
    by_ratio = LocalSFTConfig(batch_size=1, warmup_ratio=0.25).learning_rates(10)
    assert by_ratio == LocalSFTConfig(batch_size=1, warmup_steps=3).learning_rates(10)


def test_the_rates_of_a_schedule_are_trained_with() -> None:
    config = LocalSFTConfig(batch_size=2, epochs=2, schedule="cosine", warmup_ratio=0.2, learning_rate=1e-3)
    run = trained(config)
    assert [step.metrics["learning_rate"] for step in run.steps] == list(config.learning_rates(12))


def test_steps_of_preferences_and_of_trajectories_have_the_rates_of_a_schedule() -> None:
    dpo = LocalDPOConfig(batch_size=2, schedule="linear", warmup_steps=1, learning_rate=1e-3)
    run = trained(dpo, PAIRS, method="dpo")
    assert [step.metrics["learning_rate"] for step in run.steps] == pytest.approx([0, 1e-3, 5e-4])
    rl = LocalRLConfig(packed_sequence_length=32, schedule="linear", warmup_steps=1, learning_rate=1e-3)
    groups = groups_of_words(6)
    whole = trained(rl, groups, method="rl", save_every=1)
    steps = len(whole.steps)
    assert steps >= 3
    wanted = [0, *(1e-3 * (1 - done / (steps - 1)) for done in range(steps - 1))]
    assert [step.metrics["learning_rate"] for step in whole.steps] == pytest.approx(wanted)
    assert len({step.metrics["loss"] for step in whole.steps}) > 1
    constant = trained(attrs.evolve(rl, schedule="constant", warmup_steps=0), groups, method="rl")
    assert constant.files != whole.files
    for state in whole.states.items():
        resumed = trained(rl, groups, context_of(TINY, resume=state), "rl", save_every=1)
        assert (resumed.files, resumed.metrics) == (whole.files, whole.metrics)


def test_a_schedule_goes_over_the_rounds_of_a_loop() -> None:
    config = LocalRLConfig(learning_rate=1e-3, schedule="linear", warmup_steps=2)
    rates = [config.of_round(number, 6).step_rates(3) for number in range(6)]
    assert [len(set(of_one)) for of_one in rates] == [1] * 6, "one rate a round"
    assert [rate for rate, *_ in rates] == pytest.approx([5e-4, 1e-3, 1e-3, 7.5e-4, 5e-4, 2.5e-4])
    by_ratio = attrs.evolve(config, schedule="cosine", warmup_steps=0, warmup_ratio=0.3)
    assert [by_ratio.of_round(number, 4).learning_rate for number in range(4)] == pytest.approx(
        [5e-4, 1e-3, 1e-3, 5e-4]
    )
    assert LocalRLConfig(learning_rate=1e-3).of_round(3, 4) == LocalRLConfig(learning_rate=1e-3)


# ---- batches and order -----------------------------------------------------------------------------------------------


def test_accumulated_batches_are_one_step() -> None:
    once = trained(LocalSFTConfig(batch_size=4))
    twice = trained(LocalSFTConfig(batch_size=2, gradient_accumulation_steps=2))
    assert (losses(twice), twice.files) == (losses(once), once.files)


def test_rows_are_shuffled_by_the_seed_alone() -> None:
    config = LocalSFTConfig(shuffle=True, seed=3, epochs=2, batch_size=1)
    run, plain = trained(config), trained(LocalSFTConfig(seed=3, epochs=2, batch_size=1))
    again = trained(config, context=attrs.evolve(context_of(TINY), seed=99))
    other = trained(LocalSFTConfig(shuffle=True, seed=4, epochs=2, batch_size=1))
    assert again.files == run.files
    assert len({losses(one)[0] for one in (run, other, plain)}) > 1
    tokens = [[step.metrics["num_trainable_tokens"] for step in one.steps] for one in (run, plain)]
    first, second = tokens[0][:6], tokens[0][6:]
    assert sorted(first) == sorted(second) == sorted(tokens[1][:6]), "each epoch has every row once"
    assert first != second or losses(run)[:6] != losses(run)[6:]


def test_a_shuffled_job_that_was_killed_ends_as_an_undisturbed_one() -> None:
    config = LocalSFTConfig(
        shuffle=True,
        seed=3,
        batch_size=1,
        epochs=2,
        validation_split=0.2,
        early_stopping_patience=9,
        learning_rate=1e-2,
    )
    whole = trained(config, save_every=3)
    for state in whole.states.items():
        resumed = trained(config, context=context_of(TINY, resume=state), save_every=3)
        assert (resumed.files, resumed.metrics) == (whole.files, whole.metrics)
    assert len(whole.states) >= 2
    assert {"best_step", "best_valid_loss"} <= whole.metrics.keys()


def test_rows_are_held_out_and_measured() -> None:
    run = trained(LocalSFTConfig(validation_split=0.3, seed=1, batch_size=1))
    assert about(run)["rows"] == 4
    assert len(run.steps) == 4
    assert "full_valid_loss" in run.steps[-1].metrics


def test_the_best_validation_is_kept_and_the_job_ends_early() -> None:
    config = LocalSFTConfig(
        validation_split=0.3, seed=1, batch_size=1, epochs=12, early_stopping_patience=2, learning_rate=0.2
    )
    run = trained(config)
    measured = {step.number: step.metrics["valid_loss"] for step in run.steps if "valid_loss" in step.metrics}
    best = min(measured, key=lambda number: measured[number])
    assert run.metrics["best_step"] == best
    assert run.metrics["best_valid_loss"] == measured[best]
    assert [number for number in measured if number > best] == sorted(measured)[-2:]
    assert len(run.steps) < 48
    shorter = attrs.evolve(config, early_stopping_patience=None)
    (at_best,) = [files for step, files in trained(shorter, save_every=best).states.items() if step == best]
    assert run.files == {name: at_best[name] for name in run.files}
    assert run.stop_reason == f"patience (2): no later validation was below {measured[best]:.4g}, of step {best}"
    assert all(run.metrics[name] == pytest.approx(measured[best]) for name in ("valid_loss", "full_valid_loss"))


def test_the_held_out_loss_of_a_job_with_patience_is_that_of_the_weights_it_kept() -> None:
    """It went to its end, without an early stop, and its best step is not its last."""
    config = LocalSFTConfig(
        validation_split=0.3, seed=1, batch_size=1, epochs=12, early_stopping_patience=99, learning_rate=0.2
    )
    run = trained(config)
    assert len(run.steps) == 48
    assert run.metrics["best_step"] < 48
    assert run.metrics["full_valid_loss"] == pytest.approx(run.metrics["best_valid_loss"])
    assert run.steps[-1].metrics["full_valid_loss"] > run.metrics["full_valid_loss"]
    assert run.stop_reason is None


def test_a_job_that_is_killed_where_it_stops_early_ends_as_an_undisturbed_one() -> None:
    config = LocalSFTConfig(
        validation_split=0.3, seed=1, batch_size=1, epochs=12, early_stopping_patience=2, learning_rate=0.2
    )
    whole = trained(config, save_every=1)
    for state in whole.states.items():
        resumed = trained(config, context=context_of(TINY, resume=state), save_every=1)
        assert (resumed.files, resumed.metrics, resumed.stop_reason) == (whole.files, whole.metrics, whole.stop_reason)


def test_options_that_contradict_the_rows_are_refused() -> None:
    with pytest.raises(InvalidInput, match="early_stopping_patience: needs held-out rows"):
        trained(LocalSFTConfig(early_stopping_patience=2))
    context = attrs.evolve(context_of(TINY), held_out=ROWS[:1])
    with pytest.raises(InvalidInput, match="validation_split: is not possible"):
        trained(LocalSFTConfig(validation_split=0.5), context=context)
    with pytest.raises(InvalidInput, match="leaves none of 1 rows to train"):
        LocalSFTConfig(validation_split=0.5).check_rows(1)


def test_a_bad_row_is_named_by_its_place_in_the_file() -> None:
    bad = Example((Message(Role.USER, "hi"), Message(Role.ASSISTANT, "x" * 400)))
    with pytest.raises(InvalidInput) as refused:
        trained(
            LocalSFTConfig(shuffle=True, seed=5, validation_split=0.2, overlong="refuse"), [*ROWS[:4], bad, *ROWS[4:]]
        )
    assert refused.value.problems[0].loc == ("data", 4, "messages")


# ---- long rows -------------------------------------------------------------------------------------------------------

LONG = example("q" * 30, "answer" * 4)


@pytest.mark.parametrize(("policy", "truncated", "dropped"), [("drop", 0, 1), ("keep_start", 1, 0), ("keep_end", 1, 0)])
def test_long_rows_are_handled_as_said_and_counted(policy: str, truncated: int, dropped: int) -> None:
    learner, _ = learner_of({})
    whole = learner.sft_turns(LONG, "all")[0]
    limit = whole.length - 5
    config = LocalSFTConfig(max_length=limit, overlong=policy, batch_size=8)  # type: ignore[arg-type]
    short = example("a", "b")
    run = trained(config, [short, LONG])
    found = about(run)
    assert (found["truncated"], found["dropped"], found["rows"]) == (truncated, dropped, 2)
    learner.read_as(config)
    left = learner.sft_turns(LONG, "all")[0]
    assert (
        len(left.logprobs)
        == {"drop": 0, "keep_start": len(whole.logprobs) - 5, "keep_end": len(whole.logprobs)}[policy]
    )
    kept = [left.ids[place] for place in left.places]  # type: ignore[attr-defined]
    every = [whole.ids[place] for place in whole.places]  # type: ignore[attr-defined]
    assert kept == {"drop": [], "keep_start": every[:-5], "keep_end": every}[policy]
    assert found["tokens"] == len(kept) + len(learner.sft_turns(short, "all")[0].logprobs)


def test_a_long_row_is_refused_by_its_place_if_so_said() -> None:
    limit = learner_of({})[0].sft_turns(LONG, "all")[0].length - 1
    with pytest.raises(InvalidInput, match=f"at most {limit} are allowed") as refused:
        trained(LocalSFTConfig(max_length=limit, overlong="refuse"), [example("a", "b"), LONG])
    assert refused.value.problems[0].loc == ("data", 1, "messages")


# ---- packed rows -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["sft", "dpo"])
def test_packed_rows_train_as_rows_alone(method: str) -> None:
    cls: Any = {"sft": LocalSFTConfig, "dpo": LocalDPOConfig}[method]
    data = {"sft": ROWS, "dpo": PAIRS}[method]
    runs = [
        trained(cls(batch_size=6, epochs=4, packing=packing, learning_rate=1e-3), data, None, method)
        for packing in (False, True)
    ]
    assert losses(runs[1]) == pytest.approx(losses(runs[0]), abs=1e-6)
    norms = [[step.metrics["grad_norm"] for step in run.steps] for run in runs]
    assert norms[1] == pytest.approx(norms[0], abs=1e-5)


def test_packed_rows_are_one_row_of_the_network() -> None:
    learner, _ = learner_of({})
    seen: list[tuple[int, ...]] = []
    body = learner._scorer._network.body

    def look(_: Any, args: Any, given: Any) -> None:
        seen.append(tuple(given["input_ids"].shape))

    handle = body.register_forward_pre_hook(look, with_kwargs=True)
    turns = [turn for row in ROWS for turn in learner.sft_turns(row, "all")]
    learner.read_as(LocalSFTConfig(packing=True))
    seen.clear()
    learner.scores(None, turns)
    handle.remove()
    assert seen == [(1, sum(turn.length for turn in turns))]


# ---- the end, seeds and adapters -------------------------------------------------------------------------------------


def test_what_follows_the_end_of_an_answer_is_trained_if_so_said() -> None:
    plain, _ = learner_of({})
    after, _ = learner_of({})
    after.read_as(LocalSFTConfig(train_after_end=True))
    one, more = (learner.sft_turns(ROWS[0], "all")[0] for learner in (plain, after))
    end = one.ids[-1]  # type: ignore[attr-defined]
    text = plain._chat.rendered(ROWS[0].messages).text
    ids, _ = plain._chat.encoded(text)
    assert end in plain._chat.end_tokens
    assert len(more.logprobs) - len(one.logprobs) == len(ids) - 1 - max(
        at for at, token in enumerate(ids) if token == end
    )


def test_a_job_has_an_adapter_of_its_own_shape() -> None:
    options: Any = {"lora_rank": 2, "lora_alpha": 6, "lora_targets": ("q_proj", "down_proj")}
    run = trained(LocalSFTConfig(**options))
    kept = json.loads(run.files["adapter_config.json"])
    assert (kept["r"], kept["lora_alpha"], kept["target_modules"]) == (2, 6, ["down_proj", "q_proj"])
    assert (about(run)["lora_rank"], about(run)["lora_alpha"]) == (2, 6)
    again = context_of(TINY, parent=run.files)
    assert trained(LocalSFTConfig(**options), context=again).metrics
    with pytest.raises(TrainingError, match="has an adapter of rank 2"):
        trained(LocalSFTConfig(lora_rank=4), context=again)
    with pytest.raises(TrainingError, match="no linear layer named qproj; it has"):
        trained(LocalSFTConfig(lora_targets=("q_proj", "qproj")))


def test_the_seed_of_a_job_decides_the_adapter() -> None:
    contexts = [attrs.evolve(context_of(TINY), seed=at) for at in range(3)]
    files = [
        trained(LocalSFTConfig(seed=seed), context=context).files
        for seed, context in zip((7, 7, 8), contexts, strict=True)
    ]
    assert files[0] == files[1] != files[2]


def test_all_weights_have_no_adapter_to_choose() -> None:
    from modelyard.parts.torch.records import Tuning

    with pytest.raises(TrainingError, match="is trained in full, without adapters"):
        trained(LocalSFTConfig(lora_rank=2), tuning=Tuning.FULL)


def test_the_first_event_says_what_is_trained_and_what_it_takes() -> None:
    (first, second, *_) = trainer_of(memory=2**30).train("sft", LocalSFTConfig(), ROWS, context_of(TINY))
    assert isinstance(first, Started)
    assert isinstance(second, Step)
    found = first.about
    assert (found["base_model"], found["rows"], found["device"], found["dtype"]) == (TINY, 6, "cpu", "float32")
    memory = found["memory"]
    assert memory["limit"] == 2**30
    assert memory["weights"] + memory["moments"] < memory["estimate"] < 2**30
    json.dumps(found)


# ---- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"schedule": "sine"}, "schedule"),
        ({"schedule": "linear", "learning_rate": [1e-3]}, "schedule"),
        ({"warmup_steps": -1}, "warmup_steps"),
        ({"warmup_steps": 1, "warmup_ratio": 0.1}, "warmup_steps"),
        ({"warmup_ratio": 1.5}, "warmup_ratio"),
        ({"validation_split": 1}, "validation_split"),
        ({"early_stopping_patience": 0}, "early_stopping_patience"),
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps"),
        ({"max_length": 1}, "max_length"),
        ({"overlong": "cut"}, "overlong"),
        ({"seed": -1}, "seed"),
        ({"lora_rank": 0}, "lora_rank"),
        ({"lora_alpha": 0}, "lora_alpha"),
        ({"lora_targets": []}, "lora_targets"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_values_out_of_bounds_are_refused_by_name(options: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        LocalSFTConfig.resolve(options)
    assert {problem.loc for problem in refused.value.problems} == {(name,)}


def test_each_method_has_its_options() -> None:
    assert issubclass(LocalDPOConfig, BatchOptions)
    assert issubclass(LocalRLConfig, RateOptions)
    assert not issubclass(LocalRLConfig, BatchOptions)
    assert LocalRLConfig(ppo=True, lora_rank=2).epsilon_high == 0.2
    assert LocalDPOConfig().learning_rate == 5e-6
