"""TRL's side, run by TRL's own virtualenv: `python trl_side.py '{"model": …}'`. The last line is `RESULT {json}`.

Every choice is the fastest for TRL on two cores of those in docs/benchmarks.md.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from datasets import Dataset
from transformers import LogitsProcessor, LogitsProcessorList, TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from workload import LEARNING_RATE, SAMPLES_PER_PROMPT, SAMPLES_PER_UPDATE, reply_tokens, reward


def score(completions: Sequence[list[dict[str, str]]], **columns: Any) -> list[float]:
    """The workload's reward, as TRL calls one."""
    return [reward(completion[0]["content"], {}) for completion in completions]


class Stopwatch(TrainerCallback):
    """The time at which each update ended."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, *arguments: Any, **keywords: Any) -> None:
        self.ends.append(time.perf_counter())


class EndsAt(LogitsProcessor):
    """Leaves nothing but the end token to sample at the last token of each reply, `tokens` `[B]`, and forbids it
    before."""

    def __init__(self, tokens: torch.Tensor, prompt_tokens: int, end_token: int) -> None:
        self.last, self.end_token = prompt_tokens + tokens - 1, end_token

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        due = self.last == input_ids.shape[1]
        scores[:, self.end_token] = -torch.inf
        scores[due] = -torch.inf
        scores[due, self.end_token] = 0.0
        return scores


class TimedTrainer(GRPOTrainer):  # type: ignore[misc]
    """`GRPOTrainer` whose replies have the workload's lengths, and that notes how long it samples and scores; the rest
    of an update is training. `reply_tokens` `[SAMPLES_PER_UPDATE]` are those of an update's samples in order."""

    def __init__(self, *, reply_tokens: Sequence[int], **arguments: Any) -> None:
        super().__init__(**arguments)
        self.reply_tokens = torch.tensor(reply_tokens).view(-1, self.args.generation_batch_size)
        self.generate_seconds: list[float] = []

    def _generate_single_turn(self, prompt_ids: list[list[int]], *rest: Any, **keywords: Any) -> Any:
        ends = EndsAt(self._drawn(), max(map(len, prompt_ids)), self._tokenizer.eos_token_id)
        generate = partial(self.model.generate, logits_processor=LogitsProcessorList([ends]))
        with patch.object(self.model, "generate", generate):
            return super()._generate_single_turn(prompt_ids, *rest, **keywords)

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        began = time.perf_counter()
        outputs = super()._generate_and_score_completions(inputs)
        trained = outputs["completion_mask"].sum(dim=1)
        assert bool((trained == self._drawn()).all()), "a reply has not the length drawn for it"
        self.generate_seconds.append(time.perf_counter() - began)
        return outputs

    def _drawn(self) -> torch.Tensor:
        """Lengths of the batch that is being generated."""
        return self.reply_tokens[len(self.generate_seconds) % len(self.reply_tokens)]


def configuration(
    folder: str, *, updates: int, microbatch: int, generation_batch: int, longest: int, bf16: bool
) -> GRPOConfig:
    """One optimizer step an update over all samples, no reference model, nothing saved or reported."""
    return GRPOConfig(
        output_dir=folder,
        max_steps=updates,
        per_device_train_batch_size=microbatch,
        gradient_accumulation_steps=SAMPLES_PER_UPDATE // microbatch,
        generation_batch_size=generation_batch,
        num_generations=SAMPLES_PER_PROMPT,
        max_completion_length=longest,
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
    *, model: str, prompts: str, lengths: Any, precision: str, threads: int, warmup: int, updates: int, **batches: int
) -> dict[str, Any]:
    """Seconds an update, and by phase, of the updates after the first `warmup`."""
    torch.set_num_threads(threads)
    stopwatch, drawn = Stopwatch(), reply_tokens(lengths)
    with tempfile.TemporaryDirectory() as folder:
        trainer = TimedTrainer(
            reply_tokens=drawn,
            model=model,
            args=configuration(
                folder, updates=warmup + updates, longest=max(drawn), bf16=precision == "bfloat16", **batches
            ),
            train_dataset=tasks(prompts),
            reward_funcs=score,
            callbacks=[stopwatch],
        )
        trainer.train()
    update_seconds = (stopwatch.ends[-1] - stopwatch.ends[warmup - 1]) / updates
    generate = sum(trainer.generate_seconds[warmup * len(trainer.reply_tokens) :]) / updates
    return {
        "update_seconds": update_seconds,
        "phase_seconds": {"generate": generate, "train": update_seconds - generate},
    }


if __name__ == "__main__":
    print("RESULT", json.dumps(measure(**json.loads(sys.argv[1]))))
