"""TRL's side, run by TRL's own virtualenv: `python trl_side.py '{"model": …}'`. The last line is `RESULT {json}`.

Every choice is the fastest for TRL on two cores of those in docs/benchmarks.md.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from workload import COMPLETION_TOKENS, LEARNING_RATE, SAMPLES_PER_PROMPT, SAMPLES_PER_UPDATE, reward


def score(completions: Sequence[list[dict[str, str]]], **columns: Any) -> list[float]:
    """The workload's reward, as TRL calls one."""
    return [reward(completion[0]["content"], {}) for completion in completions]


class Stopwatch(TrainerCallback):
    """The time at which each update ended."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, *arguments: Any, **keywords: Any) -> None:
        self.ends.append(time.perf_counter())


class TimedTrainer(GRPOTrainer):  # type: ignore[misc]
    """`GRPOTrainer` that notes how long it samples and scores; the rest of an update is training."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.generate_seconds: list[float] = []

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        began = time.perf_counter()
        outputs = super()._generate_and_score_completions(inputs)
        self.generate_seconds.append(time.perf_counter() - began)
        lengths = outputs["completion_mask"].sum(dim=1)
        assert bool((lengths == COMPLETION_TOKENS).all()), "a reply ended before its budget"
        return outputs


def configuration(folder: str, *, updates: int, microbatch: int, bf16: bool) -> GRPOConfig:
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
    )


def tasks(prompts: str) -> Dataset:
    """The prompts as conversations, so that the tokenizer's chat template is applied as on our side."""
    questions = [json.loads(line)["question"] for line in Path(prompts).read_text().splitlines()]
    return Dataset.from_dict({"prompt": [[{"role": "user", "content": question}] for question in questions]})


def measure(
    *, model: str, prompts: str, precision: str, threads: int, warmup: int, updates: int, microbatch: int
) -> dict[str, Any]:
    """Seconds an update, and by phase, of the updates after the first `warmup`."""
    torch.set_num_threads(threads)
    stopwatch = Stopwatch()
    with tempfile.TemporaryDirectory() as folder:
        trainer = TimedTrainer(
            model=model,
            args=configuration(folder, updates=warmup + updates, microbatch=microbatch, bf16=precision == "bfloat16"),
            train_dataset=tasks(prompts),
            reward_funcs=score,
            callbacks=[stopwatch],
        )
        trainer.train()
    update_seconds = (stopwatch.ends[-1] - stopwatch.ends[warmup - 1]) / updates
    generate = sum(trainer.generate_seconds[warmup:]) / updates
    return {
        "update_seconds": update_seconds,
        "phase_seconds": {"generate": generate, "train": update_seconds - generate},
    }


if __name__ == "__main__":
    print("RESULT", json.dumps(measure(**json.loads(sys.argv[1]))))
