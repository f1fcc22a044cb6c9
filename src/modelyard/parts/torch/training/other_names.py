"""Options as TRL, Unsloth, axolotl and the services call them, so that a refusal names ours."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from modelyard.errors import nearest

OTHER_NAMES: Mapping[str, str] = {
    **dict.fromkeys(("num_train_epochs", "num_epochs", "n_epochs", "max_epochs"), "epochs"),
    **dict.fromkeys(("per_device_train_batch_size", "micro_batch_size", "train_batch_size"), "batch_size"),
    "lr": "learning_rate",
    **dict.fromkeys(("lr_scheduler_type", "lr_scheduler", "scheduler"), "schedule"),
    **dict.fromkeys(("max_seq_length", "max_seq_len", "sequence_len", "cutoff_len"), "max_length"),
    **dict.fromkeys(("max_prompt_length", "max_target_length"), "max_length"),
    **dict.fromkeys(("truncation_mode", "truncation_side", "excess_length_strategy"), "overlong"),
    **dict.fromkeys(("sample_packing", "padding_free"), "packing"),
    **dict.fromkeys(("assistant_only_loss", "completion_only_loss", "train_on_inputs"), "assistant_turns"),
    **dict.fromkeys(("train_on_responses_only", "roles_to_train"), "assistant_turns"),
    **dict.fromkeys(("train_on_eos", "train_on_eot"), "train_after_end"),
    **dict.fromkeys(("lora_r", "r", "rank"), "lora_rank"),
    "alpha": "lora_alpha",
    **dict.fromkeys(("target_modules", "lora_target_modules", "lora_target_linear"), "lora_targets"),
    **dict.fromkeys(("random_state", "data_seed"), "seed"),
    **dict.fromkeys(("val_set_size", "test_size", "eval_split"), "validation_split"),
    "load_best_model_at_end": "early_stopping_patience",
    **dict.fromkeys(("shuffle_dataset", "shuffle_merged_datasets"), "shuffle"),
    **dict.fromkeys(("rl_beta", "dpo_beta", "kd_beta", "pref_beta"), "beta"),
    **dict.fromkeys(("dpo_label_smoothing", "cdpo_label_smoothing"), "label_smoothing"),
    "loss_type": "loss_fn",
    **dict.fromkeys(("clip", "clip_range", "cliprange", "clip_ratio", "clip_ratio_low", "epsilon_low"), "epsilon"),
    **dict.fromkeys(("clip_ratio_high", "clip_range_high"), "epsilon_high"),
    **dict.fromkeys(("kl_coef", "init_kl_coef", "kl_loss_coef"), "kl_penalty_coef"),
    **dict.fromkeys(
        ("vllm_importance_sampling_correction", "vllm_importance_sampling_cap"), "truncated_importance_sampling"
    ),
    **dict.fromkeys(("num_generations", "group_size", "rollout_n"), "samples"),
    **dict.fromkeys(("max_completion_length", "max_new_tokens"), "max_tokens"),
}
"""By their name elsewhere, our options that mean the same, or come nearest to it."""

FIXED: Mapping[str, str] = {
    **dict.fromkeys(("optim", "optimizer", "adam_beta1", "adam_beta2"), "it is AdamW with betas 0.9 and 0.99"),
    "weight_decay": "matrices decay by 0.1",
    "max_grad_norm": "gradients are clipped to a norm of 1",
    **dict.fromkeys(("lora_dropout", "disable_dropout"), "there is no dropout"),
    "gradient_checkpointing": "layers are computed twice by themselves where memory is short",
    "use_gradient_checkpointing": "layers are computed twice by themselves where memory is short",
    "group_by_length": "rows of about one length share a pass by themselves",
    **dict.fromkeys(("bf16", "fp16"), "adapters are trained in 32 bits, next to weights of 16 on graphics cards"),
    **dict.fromkeys(("save_steps", "logging_steps"), "every step is recorded, and states are saved by themselves"),
    "eval_steps": "held-out rows are validated about twenty times a job, and at the end of each epoch",
    "max_steps": "give epochs",
    **dict.fromkeys(
        (
            *("rpo_alpha", "orpo_alpha", "cpo_alpha", "ld_alpha", "rl_alpha", "gamma_beta_ratio", "delta"),
            *("entropy_coef", "entropy_target", "advantage_estimator", "loraplus_lr_ratio", "nll_loss_coef"),
            *("loss_fn", "sft_weight", "reference_free", "sync_ref_model", "precompute_ref_log_probs"),
            *("packing_strategy", "eval_packing", "label_smoothing_factor"),
        ),
        "nothing here does the same; leave it out",
    ),
}
"""What others let you choose, and what it is here."""


_ANSWERS_ALONE = "of a pair, the answers alone are trained, up to their end tokens"

NOT_OF_DPO: Mapping[str, str] = {
    **dict.fromkeys(("assistant_turns", "train_after_end"), _ANSWERS_ALONE),
    "loss_fn": "the loss is that of DPO (sigmoid), and there is no other",
    **dict.fromkeys(
        ("rpo_alpha", "sft_weight", "pref_ftx", "nll_loss_coef", "loss_weights"),
        "no loss of SFT is added; train the chosen answers by sft first",
    ),
    **dict.fromkeys(
        (
            *("reference_free", "ref_model", "precompute_ref_log_probs"),
            *("sync_ref_model", "ref_model_mixup_alpha", "ref_model_sync_steps"),
        ),
        "the reference is the checkpoint that the job starts from, for the whole job",
    ),
}
"""Options of SFT and of others' DPO, and why ours has none of them."""

NOT_OF_DISTILLATION: Mapping[str, str] = {
    **dict.fromkeys(("assistant_turns", "train_after_end"), "what the teacher has scored is trained, and nothing else"),
    "label_smoothing": "it is the distribution of the teacher that is trained",
    **dict.fromkeys(("lmbda", "teacher_model_name_or_path"), "what the model sampled is scored with training.taught"),
    "temperature": "distributions are compared as they are",
    **dict.fromkeys(("loss_top_k", "loss_add_tail"), "all that the rows name counts, and the rest as one more token"),
}
"""Options of SFT and of TRL's distillation, and why there are none of them."""

NOT_OF_RL: Mapping[str, str] = {
    **dict.fromkeys(
        ("batch_size", "gradient_accumulation_steps", "packing"),
        "a step takes trajectories of packed_sequence_length tokens",
    ),
    "epochs": "answers are trained once, as they are those of the weights that gave them; sample again",
    "shuffle": "trajectories are trained in their order",
    **dict.fromkeys(
        ("validation_split", "early_stopping_patience"), "a loop validates by sampling: held_out and stop_when"
    ),
    **dict.fromkeys(("max_length", "overlong"), "turns beyond the context are left out, and counted as num_overlong"),
    **dict.fromkeys(("assistant_turns", "train_after_end"), "all that was sampled is trained, and nothing else"),
    **dict.fromkeys(("beta", "label_smoothing"), "nearness to a reference is kl_penalty_coef"),
    **dict.fromkeys(
        ("sync_ref_model", "ref_model_mixup_alpha", "ref_model_sync_steps", "ref_model"),
        "the reference of kl_penalty_coef is the step kl_penalty_reference_step",
    ),
    **dict.fromkeys(("num_iterations", "ppo_epochs", "num_ppo_epochs"), "answers are trained once; sample again"),
    **dict.fromkeys(("samples", "max_tokens"), "answers are sampled before; training.loop samples them by itself"),
}
"""Options of SFT, of DPO and of others' RL, and what RL has in their place."""


def hint_of(name: str, known: Iterable[str], elsewhere: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return what the refusal of an unknown option adds: our name for it, why there is none, or the nearest ones.

    >>> hint_of("lora_r", ["lora_rank"])
    "; it is called 'lora_rank' here"
    """
    known, ours = [*known], OTHER_NAMES.get(name, name)
    if ours in known:
        return f"; it is called {ours!r} here"
    why = elsewhere.get(ours) or FIXED.get(ours) or FIXED.get(name)
    return f"; {why}" if why else nearest(name, known)
