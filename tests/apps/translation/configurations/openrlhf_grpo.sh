# GRPO with a reward function of one's own, started by deepspeed's scheduler through a heredoc.
read -r -d '' training <<EOF
openrlhf.cli.train_ppo_ray \
   --actor_num_nodes 1 --actor_num_gpus_per_node 2 \
   --vllm_num_engines 1 --vllm_tensor_parallel_size 1 \
   --advantage_estimator group_norm --policy_loss_type gspo \
   --init_kl_coef 0 --eps_clip_low_high 3e-4 4e-4 \
   --pretrain Qwen/Qwen3-1.7B --remote_rm_url rewards/exact.py \
   --rollout_batch_size 64 --n_samples_per_prompt 8 --train_batch_size 128 --max_epochs 1 \
   --num_episodes 1 --max_samples 6400 \
   --prompt_max_len 512 --generate_max_len 2048 --micro_train_batch_size 2 \
   --zero_stage 3 --param_dtype bf16 --lora_rank 16 --lora_alpha 32 --target_modules q_proj k_proj v_proj \
   --actor_learning_rate 1e-6 --lr_scheduler cosine --lr_warmup_ratio 0 \
   --prompt_data my-team/puzzles --input_key question --label_key answer \
   --enable_ema --ema_beta 0.995 --freezing_actor_steps -1
EOF
python3 -m $training
