"""GRPO with two reward functions, a prompt format and a filter of rows, as a user of TRL writes it."""

import json
import re
from functools import partial
from pathlib import Path

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

SYSTEM_PROMPT = """Sort the digits.
Reply with the digits only."""
DIGITS = re.compile(r"\d+")


def make_conversation(example):
    return {
        "prompt": [
            {"role": "system", "content": SYSTEM_PROMPT},
            {"role": "user", "content": example["number"]},
        ]
    }


def _text(completion):
    return completion[0]["content"]  # one message


def accuracy_reward(completions, answer, **kwargs):
    """1 for the right order."""
    return [float(_text(one) == right) for one, right in zip(completions, answer, strict=True)]


def format_reward(completions, least, **kwargs):
    return [float(DIGITS.fullmatch(_text(one)) is not None and len(_text(one)) >= least) for one in completions]


def main():
    rows = json.loads(Path("numbers.json").read_text())
    dataset = Dataset.from_list(rows)
    dataset = dataset.filter(lambda row: len(row["number"]) == 5)
    dataset = dataset.map(make_conversation)
    print(dataset)
    args = GRPOConfig(
        output_dir="runs/sorting", learning_rate=1e-3, per_device_train_batch_size=16, num_generations=4, max_steps=2,
        max_completion_length=8, reward_weights=[1.0, 0.5], report_to="none", lr_scheduler_type="constant",
    )  # fmt: skip
    trainer = GRPOTrainer(
        model="Qwen/Qwen3-0.6B",
        reward_funcs=[accuracy_reward, partial(format_reward, least=1)],
        args=args,
        train_dataset=dataset,
    )
    trainer.train()


if __name__ == "__main__":
    main()
