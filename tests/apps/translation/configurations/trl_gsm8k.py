"""GRPO on GSM8K with TRL and LoRA. Parsed by the tests, never run."""

from datasets import load_dataset
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer

REPLIES = 8


def says_number(completions, answer, **columns):
    return [float(number in completion) for completion, number in zip(completions, answer, strict=True)]


training_args = GRPOConfig(
    output_dir="runs/gsm8k",
    run_name="gsm8k-lora",
    learning_rate=2e-5,
    lr_scheduler_type="cosine",
    warmup_ratio=0.1,
    max_steps=300,
    per_device_train_batch_size=4,
    gradient_accumulation_steps=4,
    num_generations=REPLIES,
    max_prompt_length=384,
    max_completion_length=768,
    num_iterations=2,
    beta=0.02,
    epsilon=0.2,
    epsilon_high=0.28,
    loss_type="dr_grpo",
    scale_rewards=False,
    mask_truncated_completions=True,
    temperature=0.9,
    top_p=0.95,
    bf16=True,
    gradient_checkpointing=True,
    use_vllm=True,
    vllm_mode="colocate",
    vllm_gpu_memory_utilization=0.35,
    save_steps=50,
    logging_steps=5,
    report_to="wandb",
    seed=11,
)
trainer = GRPOTrainer(
    model="Qwen/Qwen2.5-1.5B-Instruct",
    args=training_args,
    reward_funcs=[says_number],
    train_dataset=load_dataset("openai/gsm8k", "main", split="train"),
    peft_config=LoraConfig(r=32, lora_alpha=64, lora_dropout=0.05, target_modules=["q_proj", "v_proj"]),
)
trainer.train()
