# DAPO with trainer and rollout apart, and arguments in arrays.
GPUS=8
clip_high=0.28
DATA=(
    data.train_files="rows/dapo.parquet"
    data.train_batch_size=128
    data.max_prompt_length=2048
    data.max_response_length=8192
)
ACTOR=(
    actor_rollout_ref.model.path=${MODEL_PATH}
    actor_rollout_ref.actor.ppo_mini_batch_size=32
    actor_rollout_ref.actor.clip_ratio_low=0.2
    actor_rollout_ref.actor.clip_ratio_high=${clip_high}
    actor_rollout_ref.actor.loss_agg_mode="token-mean"
    actor_rollout_ref.actor.ulysses_sequence_parallel_size=2
    actor_rollout_ref.rollout.n=16
    +actor_rollout_ref.model.override_config.max_position_embeddings=32768
)
python -m verl.experimental.fully_async_policy.fully_async_main \
    "${DATA[@]}" "${ACTOR[@]}" \
    algorithm.adv_estimator=grpo \
    algorithm.filter_groups.enable=True \
    algorithm.filter_groups.metric=acc \
    reward_model.reward_manager=dapo \
    reward_model.overlong_buffer.enable=True \
    reward_model.overlong_buffer.len=2048 \
    reward_model.overlong_buffer.penalty_factor=1.0 \
    custom_reward_function.path=rewards/dapo.py \
    custom_reward_function.name=compute_score \
    async_training.staleness_threshold=0.5 \
    async_training.partial_rollout=True \
    rollout.nnodes=1 \
    rollout.n_gpus_per_node=4 \
    rollout.total_rollout_steps=51200 \
    trainer.n_gpus_per_node=$((GPUS / 2)) \
    trainer.total_training_steps=400
