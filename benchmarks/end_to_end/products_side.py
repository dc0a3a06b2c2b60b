"""What nobody is faster than on this machine: the matrix products of an update and nothing else, on both cores.

No attention, norms, activations, sampling, optimizer or waiting; tokens in blocks as large as suit the processor. The
tokens are those of our side: the learner computes a prompt once a group, the engines once a sample (24 tokens fill no
block of their cache). `python -m benchmarks.end_to_end.products_side '{"model": …}'`; the last line is `RESULT {json}`.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.end_to_end.workload import PROMPTS_PER_UPDATE, SAMPLES_PER_UPDATE, Lengths, Precision, reply_tokens
from rlhf.chat.templates import prompt_ids
from rlhf.models.loading import load_policy, load_tokenizer
from rlhf.types import Message

PROCESSES = 2
BLOCK = 2048
"""Tokens of one product."""


def measure(*, model: str, prompts: str, lengths: Lengths, precision: Precision, **others: Any) -> dict[str, Any]:
    """Wall seconds of all products, and by phase."""
    replies, prompt = sum(reply_tokens(lengths)), prompt_tokens(model, prompts)
    work = {
        "generate": (replies + SAMPLES_PER_UPDATE * prompt, 1),
        "train": (replies + PROMPTS_PER_UPDATE * prompt, 3),
    }
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(PROCESSES, spawn) as pool:
        list(pool.map(multiply, [model] * PROCESSES, [precision] * PROCESSES, [BLOCK] * PROCESSES, [3] * PROCESSES))
        phases = {name: timed(pool, model, precision, *amount) for name, amount in work.items()}
    return {"update_seconds": sum(phases.values()), "phase_seconds": phases}


def timed(pool: ProcessPoolExecutor, model: str, precision: Precision, tokens: int, products: int) -> float:
    """Seconds until both processes have done their half."""
    began = time.perf_counter()
    halves = [pool.submit(multiply, model, precision, tokens // PROCESSES, products) for _ in range(PROCESSES)]
    for half in halves:
        half.result()
    return time.perf_counter() - began


def multiply(model: str, precision: Precision, tokens: int, products: int) -> None:
    """The output of every linear layer for this many tokens, and with 3 products the gradients of input and weight."""
    torch.set_num_threads(1)
    weights = layers(model, precision)
    for start in range(0, tokens, BLOCK):
        rows = min(BLOCK, tokens - start)
        for weight in weights:
            inputs = torch.ones(rows, weight.shape[1], dtype=weight.dtype)
            outputs = inputs @ weight.t()
            if products == 3:
                outputs @ weight
                outputs.t() @ inputs


_loaded: dict[str, list[Tensor]] = {}


def layers(model: str, precision: Precision) -> list[Tensor]:
    """The weights of all linear layers, read once a process."""
    if model not in _loaded:
        modules = load_policy(model, dtype=precision).modules()
        _loaded[model] = [module.weight.detach() for module in modules if isinstance(module, nn.Linear)]
    return _loaded[model]


def prompt_tokens(model: str, prompts: str) -> int:
    """Tokens of a prompt; all have as many."""
    question = json.loads(Path(prompts).read_text().splitlines()[0])["question"]
    return len(prompt_ids(load_tokenizer(model), [Message(role="user", content=question)]))


if __name__ == "__main__":
    print("RESULT", json.dumps(measure(**json.loads(sys.argv[1]))))
