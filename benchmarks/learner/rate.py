"""Forward and backward passes against the bare matrix products of the same shapes, and the optimizer's step."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import nn

from benchmarks.end_to_end.workload import EQUAL_TOKENS
from benchmarks.learner.clock import fastest
from benchmarks.learner.figures import Figure
from benchmarks.learner.model import PROMPT_TOKENS, SAMPLES, batch, loss, policy
from benchmarks.learner.packing import microbatches
from rlhf.models.config import ModelConfig
from rlhf.models.policy import PolicyModel
from rlhf.trainer.batching.batch import MicroBatch
from rlhf.trainer.config import TrainerConfig
from rlhf.trainer.rank import zero
from rlhf.trainer.rank.learner_worker import LearnerWorker
from rlhf.trainer.settings import LearnerSettings

TOKENS = 2048
GROUPS = 8
REPLY = (TOKENS // GROUPS - PROMPT_TOKENS) // SAMPLES
BOUNDS = {torch.float32: 0.75, torch.bfloat16: 0.5}
GROUPS_OF_A_RANK = 32
"""Of the end-to-end benchmark's 64 groups of equal replies, on two ranks."""


def figures(rounds: int) -> list[Figure]:
    return [*(rate(dtype, rounds) for dtype in BOUNDS), optimizer_step(rounds)]


def rate(dtype: torch.dtype, rounds: int) -> Figure:
    """The rate of both passes over that of the products alone: seconds the other way round, since both do the same
    products. Attention's own products are not counted."""
    model = policy(dtype)
    (micro,) = microbatches(batch([REPLY] * (GROUPS * SAMPLES)))
    whole, bare = fastest(rounds, lambda: loss(model, micro).backward(), products(model, micro))
    work = 6 * sum(layer.weight.numel() * tokens for layer, tokens in _layers(model, micro))
    how = f"{work / whole / 1e9:.0f} of {work / bare / 1e9:.0f} GFLOP/s, {micro.tokens} tokens"
    return Figure(name=f"rate_{str(dtype).removeprefix('torch.')}", value=bare / whole, bound=BOUNDS[dtype], how=how)


def products(model: PolicyModel, micro: MicroBatch) -> Callable[[], None]:
    """Every linear layer's three products (output, gradients of input and weight), and nothing else."""
    operands = [
        (torch.randn(tokens, layer.in_features).to(layer.weight.dtype), layer.weight.detach())
        for layer, tokens in _layers(model, micro)
    ]

    def multiply() -> None:
        for inputs, weight in operands:
            outputs = inputs @ weight.t()
            outputs @ weight
            outputs.t() @ inputs

    return multiply


def optimizer_step(rounds: int) -> Figure:
    """The step's share of an update of one rank, through DeepSpeed as ranks do it."""
    zero.join(0, 1, LearnerWorker(loopback=True).group_address(), "cpu", timeout_seconds=60)
    trainer = TrainerConfig()
    settings = LearnerSettings(model_path="", model=ModelConfig(path="made"), trainer=trainer)
    engine = zero.build_engine(
        policy(torch.float32), trainer.optimizer, settings, 1, total_steps=trainer.optimizer_steps
    )
    rows = microbatches(batch([EQUAL_TOKENS] * (GROUPS_OF_A_RANK * SAMPLES)))
    stepping: list[float] = []

    def update() -> None:
        for micro in rows:
            zero.backward(engine, loss(engine, micro), 1, last=micro is rows[-1])
        began = time.process_time()
        zero.step(engine)
        stepping.append(time.process_time() - began)

    (seconds,) = fastest(rounds, update)
    share = min(stepping) / seconds
    how = f"{min(stepping) * 1e3:.0f} ms of {seconds:.1f} s: {GROUPS_OF_A_RANK * SAMPLES} replies of {EQUAL_TOKENS}"
    return Figure(name="optimizer_share", value=share, bound=0.05, at_most=True, how=how)


def _layers(model: PolicyModel, micro: MicroBatch) -> list[tuple[nn.Linear, int]]:
    """Every linear layer and the tokens it sees."""
    head = model.model.get_output_embeddings()
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    return [(layer, len(micro.targets) if layer is head else micro.tokens) for layer in linear]
