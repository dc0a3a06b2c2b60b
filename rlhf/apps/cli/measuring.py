"""What `rlhf plan --measure` measures on this machine, in about a minute."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rlhf.cluster.loop_thread import run_anywhere
from rlhf.controller.build import Serving
from rlhf.controller.inference import served_here
from rlhf.models.config import TinyModelConfig
from rlhf.models.loading import DTYPES
from rlhf.models.tiny import save_tiny
from rlhf.recipe.planning.rates import MeasuredRates
from rlhf.recipe.schema import Recipe
from rlhf.recipe.workers import learner_device
from rlhf.types import Prompt, Sampling

SECONDS = 2.0
"""How long a rate is measured."""
SIDE, COPIED = 1024, 1 << 27
FEW, MANY, TOKENS = 32, 256, 32
"""Sequences that the engine runs at once, and their tokens."""


def measured_rates(recipe: Recipe) -> MeasuredRates:
    """Measure this machine for a recipe. Raises `UserError` where the engine does not start."""
    device = torch.device(learner_device(recipe))
    here, there, target = (torch.ones(COPIED, dtype=torch.uint8, device=one) for one in ("cpu", device, device))
    step, sequence = run_anywhere(_engine_seconds(recipe))
    return MeasuredRates(
        products=2 * SIDE**3 / _seconds(_product(DTYPES[recipe.model.dtype], device), device),
        copies=COPIED / _seconds(lambda: target.copy_(there), device),
        host=COPIED / _seconds(lambda: there.copy_(here), device),
        step=step,
        sequence=sequence,
    )


def _product(dtype: torch.dtype, device: torch.device) -> Callable[[], Tensor]:
    one = torch.rand(SIDE, SIDE, device=device).to(dtype)
    return lambda: one @ one


def _seconds(work: Callable[[], Tensor], device: torch.device) -> float:
    """Return the mean seconds of a call, by one thread on a CPU."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    work()
    calls, began = 0, time.perf_counter()
    while time.perf_counter() - began < SECONDS:
        work()
        if device.type == "cuda":
            torch.cuda.synchronize()
        calls += 1
    torch.set_num_threads(before)
    return (time.perf_counter() - began) / calls


async def _engine_seconds(recipe: Recipe) -> tuple[float, float]:
    """Return an engine's seconds of a step, and of each sequence in it, with the recipe's tiny model, else another:
    what is left is the processor's."""

    async def time_steps(serving: Serving) -> tuple[float, float]:
        await _play(serving, MANY, "warm")
        few, many = [await _play(serving, count, str(count)) / TOKENS for count in (FEW, MANY)]
        sequence = max(many - few, 1e-7) / (MANY - FEW)
        return max(few - FEW * sequence, 1e-4), sequence

    with tempfile.TemporaryDirectory() as folder:
        model = save_tiny(recipe.model.tiny or TinyModelConfig(), 0, Path(folder) / "model")
        return await served_here(str(model), time_steps)


async def _play(serving: Serving, count: int, name: str) -> float:
    """Return the seconds of so many replies of `TOKENS` tokens at once."""
    prompt, began = Prompt(token_ids=np.array([5], np.int32)), time.perf_counter()
    sampling = Sampling(temperature=1.0, max_tokens=TOKENS)
    await asyncio.gather(
        *(
            serving.router.generate(prompt, sampling=sampling, seed=seed, session=f"{name}-{seed}")
            for seed in range(count)
        )
    )
    return time.perf_counter() - began
