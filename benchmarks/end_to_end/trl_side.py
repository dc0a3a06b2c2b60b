"""TRL's side, run by TRL's own virtualenv: `python trl_side.py '{"model": …}'`. The last line is `RESULT {json}`.

Every choice is TRL's fastest on two cores (docs/benchmarks.md has the alternatives that were measured).
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import torch
from datasets import load_dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from workload import COMPLETION_TOKENS, LEARNING_RATE, SAMPLES_PER_PROMPT, SAMPLES_PER_UPDATE, reward


def letters(completions: Sequence[list[dict[str, str]]], **columns: Any) -> list[float]:
    return [reward(completion[0]["content"], {}) for completion in completions]


class Stopwatch(TrainerCallback):
    """The time at which each update ended."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, *arguments: Any, **keywords: Any) -> None:
        self.ends.append(time.perf_counter())


class TimedTrainer(GRPOTrainer):
    """`GRPOTrainer` that notes how long it samples and scores; the rest of an update is training."""

    generate_seconds: list[float]

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        began = time.perf_counter()
        outputs = super()._generate_and_score_completions(inputs)
        self.generate_seconds.append(time.perf_counter() - began)
        lengths = outputs["completion_mask"].sum(dim=1)
        assert bool((lengths == COMPLETION_TOKENS).all()), "a reply ended before its budget"
        return outputs


def configuration(folder: str, updates: int, microbatch: int, bf16: bool, extra: dict[str, Any]) -> GRPOConfig:
    """One optimizer step an update over all samples, no reference model, nothing saved or reported."""
    return GRPOConfig(
        output_dir=folder,
        max_steps=updates,
        per_device_train_batch_size=microbatch,
        gradient_accumulation_steps=SAMPLES_PER_UPDATE // microbatch,
        num_generations=SAMPLES_PER_PROMPT,
        max_completion_length=COMPLETION_TOKENS,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        optim="adamw_torch_fused",
        beta=0.0,
        bf16=bf16,
        use_cpu=True,
        gradient_checkpointing=False,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        model_init_kwargs={"dtype": "float32"},
        **extra,
    )


def measure(
    *,
    model: str,
    prompts: str,
    precision: str,
    threads: int,
    warmup: int,
    updates: int,
    microbatch: int,
    extra: dict[str, Any],
) -> dict[str, Any]:
    torch.set_num_threads(threads)
    dataset = load_dataset("json", data_files=prompts, split="train", cache_dir=tempfile.mkdtemp())
    dataset = dataset.map(lambda row: {"prompt": [{"role": "user", "content": row["question"]}]})
    stopwatch = Stopwatch()
    with tempfile.TemporaryDirectory() as folder:
        trainer = TimedTrainer(
            model=model,
            args=configuration(folder, warmup + updates, microbatch, precision == "bfloat16", extra),
            train_dataset=dataset,
            reward_funcs=letters,
            callbacks=[stopwatch],
        )
        trainer.generate_seconds = []
        trainer.train()
    seconds = stopwatch.ends[-1] - stopwatch.ends[warmup - 1]
    generate = sum(trainer.generate_seconds[warmup:])
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "cpu": usage.ru_utime + usage.ru_stime,
        "samples_per_second": updates * SAMPLES_PER_UPDATE / seconds,
        "update_seconds": seconds / updates,
        "phase_seconds": {"generate": generate / updates, "train": (seconds - generate) / updates},
    }


if __name__ == "__main__":
    print("RESULT", json.dumps(measure(**json.loads(sys.argv[1]))))
