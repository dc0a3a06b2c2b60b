"""Settings by the names of TRL, verl, OpenRLHF and transformers, and the keys of a recipe that they mean."""

from __future__ import annotations

from collections.abc import Mapping

NAMES: Mapping[str, str] = {
    "trainer.optimizer.learning_rate": "lr learning_rate actor_learning_rate actor_lr",
    "trainer.critic.optimizer.learning_rate": "critic_learning_rate critic_lr",
    "trainer.optimizer.schedule": "lr_scheduler_type lr_scheduler",
    "trainer.optimizer.warmup_steps": "warmup_steps lr_warmup_steps warmup_ratio lr_warmup_ratio lr_warmup_steps_ratio",
    "trainer.optimizer.weight_decay": "weight_decay l2",
    "trainer.optimizer.max_grad_norm": "max_grad_norm grad_clip max_norm gradient_clipping",
    "trainer.optimizer.betas": "adam_betas adam_beta1 adam_beta2",
    "trainer.optimizer.eps": "adam_epsilon",
    "trainer.updates": (
        "max_steps steps num_episodes total_episodes total_training_steps num_train_epochs total_epochs "
        "max_epochs num_epochs"
    ),
    "trainer.groups_per_update": (
        "batch_size train_batch_size rollout_batch_size gen_batch_size generation_batch_size "
        "global_batch_size per_device_train_batch_size gradient_accumulation_steps"
    ),
    "trainer.group_size": "num_generations n_samples_per_prompt n rollout_n num_samples_per_prompt n_generations",
    "trainer.tokens_per_microbatch": (
        "per_device_train_batch_size gradient_accumulation_steps micro_train_batch_size micro_batch_size "
        "ppo_max_token_len_per_gpu ppo_micro_batch_size_per_gpu ppo_micro_batch_size"
    ),
    "rollout.max_concurrent_groups": "per_device_eval_batch_size",
    "trainer.epochs": "num_iterations ppo_epochs num_ppo_epochs",
    "trainer.minibatches": "ppo_mini_batch_size num_mini_batches mini_batch_size steps_per_generation",
    "sampling.max_tokens": (
        "max_completion_length max_new_tokens max_tokens response_length generate_max_len max_response_length "
        "max_length"
    ),
    "rollout.max_context_tokens": "max_length max_model_len max_len",
    "data.train.max_prompt_tokens": "max_prompt_length prompt_max_len",
    "sampling.temperature": "temperature",
    "trainer.kl.coefficient": "beta kl_coef init_kl_coef kl_loss_coef kl_coefficient",
    "trainer.preference.beta": "beta",
    "trainer.kl.estimator": "kl_penalty kl_loss_type kl_estimator",
    "trainer.kl.target": "kl_target target_kl",
    "trainer.kl.place": "use_kl_loss use_kl_in_reward",
    "trainer.preference.label_smoothing": "label_smoothing",
    "trainer.loss.entropy_coefficient": "entropy_coeff entropy_coef entropy_loss_coef ent_coef",
    "trainer.loss.clip_low": "epsilon clip_ratio clip_ratio_low eps_clip cliprange clip_range eps_clip_low_high",
    "trainer.loss.clip_high": "eps_clip_low_high epsilon_high clip_ratio_high",
    "trainer.loss.dual_clip": "clip_ratio_c dual_clip",
    "trainer.critic.value_clip": "cliprange_value value_clip",
    "trainer.algorithm": "loss_type adv_estimator advantage_estimator algo",
    "trainer.preference.loss": "loss_type",
    "trainer.loss.aggregation": "loss_agg_mode",
    "trainer.advantage.normalize_by_std": "scale_rewards norm_adv_by_std_in_grpo",
    "trainer.advantage.whiten": "whiten_advantages",
    "trainer.advantage.lam": "lambd gae_lambda lam",
    "trainer.advantage.gamma": "gamma",
    "trainer.overlong.mask_truncated": "mask_truncated_completions",
    "trainer.filter.equal_rewards": "dynamic_filtering filter_groups",
    "trainer.save_every": "save_steps save_freq save_strategy",
    "trainer.keep_checkpoints": "save_total_limit max_ckpt_num",
    "trainer.eval_every": "eval_steps test_freq eval_strategy",
    "trainer.deepspeed.zero_stage": "zero_stage",
    "trainer.deepspeed.offload_optimizer": "adam_offload optimizer_offload",
    "trainer.deepspeed.offload_parameters": "param_offload",
    "trainer.deepspeed.sequence_parallel": "ulysses_sequence_parallel_size ring_attn_size",
    "trainer.deepspeed.ranks": "num_processes n_gpus_per_node",
    "rollout.engines": "n_gpus_per_node vllm_num_engines",
    "cluster.nodes": "nnodes num_nodes",
    "cluster.placement": "colocate_all_models vllm_mode",
    "rollout.tensor_parallel_size": "vllm_tensor_parallel_size tensor_model_parallel_size tensor_parallel_size",
    "rollout.gpu_memory_utilization": "gpu_memory_utilization vllm_gpu_memory_utilization",
    "model.path": "model_name_or_path model_name pretrain model_path",
    "trainer.reference_path": "ref_model ref_model_path",
    "model.dtype": "bf16 fp16 torch_dtype dtype",
    "model.attention": "attn_implementation",
    "model.gradient_checkpointing": "gradient_checkpointing enable_gradient_checkpointing",
    "model.lora": "use_peft peft_config",
    "model.lora.rank": "lora_r lora_rank",
    "model.lora.alpha": "lora_alpha",
    "model.lora.target_modules": "target_modules",
    "data.train.path": "dataset_name dataset prompt_data train_dataset train_files",
    "data.eval.path": "val_files eval_dataset",
    "data.train.prompt_column": "input_key prompt_key",
    "data.train.answer_column": "label_key",
    "data.train.chosen_column": "chosen_key",
    "data.train.rejected_column": "rejected_key",
    "data.train.limit": "max_samples",
    "reward.function": "reward_funcs reward_func reward_fn custom_reward_function",
    "reward.model": "reward_pretrain",
    "reward.remote": "remote_rm_url",
    "reward.parts": "reward_weights",
    "run.dir": "output_dir save_path default_local_dir",
    "name": "run_name experiment_name",
    "run.loggers": "report_to logger use_wandb",
    "run.show_replies": "log_completions",
}
"""Names by our key, for the last part of a key; of the keys that one name means, the likeliest is first."""

OTHER_NAMES: Mapping[str, tuple[str, ...]] = {
    name: tuple(key for key, names in NAMES.items() if name in names.split())
    for name in " ".join(NAMES.values()).split()
}
