# REINFORCE++ with a baseline, rewards of a server, generation while training.
set -x
python -m openrlhf.cli.train_ppo_ray \
   --actor_num_nodes 1 \
   --actor_num_gpus_per_node 4 \
   --vllm_num_engines 2 \
   --vllm_tensor_parallel_size 2 \
   --async_train --async_queue_size 2 \
   --advantage_estimator reinforce_baseline \
   --init_kl_coef 1e-4 --use_kl_loss --kl_estimator k2 \
   --eps_clip_low_high 0.2 0.27 \
   --pretrain Qwen/Qwen3-4B-Thinking-2507 \
   --remote_rm_url http://10.1.2.3:5000/get_reward \
   --train_batch_size 1024 --rollout_batch_size 128 --n_samples_per_prompt 8 \
   --use_dynamic_batch --train_max_tokens_per_gpu 24000 --rollout_max_tokens_per_gpu 32768 \
   --prompt_max_len 1024 --generate_max_len 8000 --temperature 0.9 --top_p 0.95 \
   --zero_stage 2 --bf16 --ring_attn_size 2 --ring_head_stride 2 \
   --actor_learning_rate 5e-7 --lr_scheduler constant \
   --prompt_data rows/math.jsonl --input_key problem --label_key solution \
   --eval_dataset rows/aime.jsonl --eval_steps 10 --eval_n_samples_per_prompt 8 \
   --enable_vllm_is_correction --vllm_is_truncated_threshold 3 \
   --dynamic_filtering --dynamic_filtering_reward_range 0.01 0.99 \
   --use_wandb $WANDB_TOKEN --wandb_run_name reinforce-4b --experimental_cache
