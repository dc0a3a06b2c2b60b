"""The canary in bfloat16 over depths and sizes of logits: what healthy engines use of its limits, and which faults it
catches.

The learner is a Qwen2 model with random weights. Engines are the same weights computed as engines on other hardware do:
with other rounding in every product, in float32, with another attention, and with every product as a sum of two, as on
two tensor-parallel GPUs. Faults are put into the weights of one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from rlhf.models.rounding import rounded
from rlhf.weight_sync.canary import WHOLE_EVERY, Scores, canary, disagreement, few, staleness
from rlhf.weight_sync.perturbation import add_noise
from rlhf.weight_sync.tolerance import LogprobTolerance, measured

VOCABULARY, HIDDEN = 2048, 256
STEP = 1e-3
"""Standard deviation of a step of the weights relative to their own, one of which is not noticed by design."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One depth and size of logits. `used` is the share of the limits that the `worst` healthy engine needs, `beyond`
    how many times the limits the `least` fault is; `refused` are healthy engines that are refused, `missed` faults that
    are not."""

    layers: int
    logits: float
    perturbed: bool
    limits: LogprobTolerance
    used: float
    worst: str
    beyond: float
    least: str
    refused: tuple[str, ...]
    missed: tuple[str, ...]
    stale_after: int
    """Steps after which an engine that stands still is refused."""
    used_of_few: float
    """As `used`, where only a few sequences are asked for: of any of them."""
    missed_by_few: dict[str, float]
    """Of each fault, the share of these weight syncs that do not find it."""


def model_of(layers: int, logits: float, seed: int) -> PreTrainedModel:
    """A model in bfloat16 whose largest logit on some tokens is `logits`."""
    torch.manual_seed(seed)
    model: PreTrainedModel = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=VOCABULARY,
            hidden_size=HIDDEN,
            intermediate_size=3 * HIDDEN,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            initializer_range=HIDDEN**-0.5,
            tie_word_embeddings=False,
            attn_implementation="sdpa",
        )
    ).eval()
    with torch.no_grad():
        head = model.get_output_embeddings().weight
        head *= logits / model(torch.arange(64)[None]).logits.abs().max()
    return model.bfloat16()


def measure(layers: int, logits: float, *, start_check: bool, seed: int = 0) -> Cell:
    """One cell; with `start_check` on perturbed weights, as at the start of a run."""
    learner = model_of(layers, logits, seed)
    if start_check:
        with torch.no_grad():
            for name, weight in learner.named_parameters():
                add_noise(name, weight)
    own = scores(learner)
    with rounded(learner):
        rounding = np.abs(np.concatenate(scores(learner)) - np.concatenate(own))
    limits = measured(rounding)
    healthy = {name: engine(learner) for name, engine in ENGINES.items()}
    shares = {name: used(told, own, limits) for name, told in healthy.items()}
    worst = max(shares, key=lambda name: shares[name])
    broken = {name: faulty(learner, fault) for name, fault in FAULTS.items()}
    excess = {name: used(told, own, limits) for name, told in broken.items()}
    least = min(excess, key=lambda name: excess[name])
    loose, parts = measured(rounding, few=True), parts_of(own)
    of_few = [(part_of(told, part), part_of(own, part)) for told in healthy.values() for part in parts]
    return Cell(
        layers=layers,
        logits=logits,
        perturbed=start_check,
        limits=limits,
        used=shares[worst],
        worst=worst,
        beyond=excess[least],
        least=least,
        refused=tuple(name for name, told in healthy.items() if disagreement(told, own, limits)),
        missed=tuple(name for name, told in broken.items() if not disagreement(told, own, limits)),
        stale_after=0 if start_check else steps_until_stale(learner, limits),
        used_of_few=max(used(told, learners, loose) for told, learners in of_few),
        missed_by_few={
            name: float(np.mean([not disagreement(part_of(told, part), part_of(own, part), loose) for part in parts]))
            for name, told in broken.items()
        },
    )


def parts_of(whole: Scores) -> list[list[int]]:
    """What the weight syncs ask for that do not ask for all."""
    return [few(len(whole), version) for version in range(1, WHOLE_EVERY)]


def part_of(whole: Scores, part: list[int]) -> Scores:
    return [whole[place] for place in part]


def scores(model: PreTrainedModel) -> Scores:
    """The canary's log-probs."""
    tokens = torch.from_numpy(np.stack(canary(VOCABULARY, 4096, None).sequences)).long()
    with torch.no_grad():
        logprobs = model(tokens, use_cache=False).logits.float().log_softmax(-1)[:, :-1]
    return list(logprobs.gather(-1, tokens[:, 1:, None])[..., 0].numpy())


def used(engine: Scores, learner: Scores, limits: LogprobTolerance) -> float:
    """The factor by which limits could be smaller before this engine is refused."""
    gaps = np.abs(np.concatenate(engine) - np.concatenate(learner))
    high = np.sort(gaps)[-1 - int(limits.share * len(gaps))]
    return float(max(gaps.mean() / limits.mean, high / limits.high))


def with_other_rounding(seed: int) -> Callable[[PreTrainedModel], Scores]:
    def engine(model: PreTrainedModel) -> Scores:
        with rounded(model, seed):
            return scores(model)

    return engine


def in_float32(model: PreTrainedModel) -> Scores:
    return scores(copy.deepcopy(model).float())


def with_eager_attention(model: PreTrainedModel) -> Scores:
    other = copy.deepcopy(model)
    other.set_attn_implementation("eager")
    return scores(other)


def on_two_gpus(model: PreTrainedModel) -> Scores:
    with split_products(model):
        return scores(model)


@contextmanager
def split_products(model: nn.Module) -> Iterator[None]:
    """Every product of a layer as the sum of two halves, each rounded to bfloat16, as an all-reduce adds them."""

    def halves(layer: nn.Linear) -> Callable[[Tensor], Tensor]:
        def forward(x: Tensor) -> Tensor:
            half = x.shape[-1] // 2
            product = x[..., :half] @ layer.weight[:, :half].T + x[..., half:] @ layer.weight[:, half:].T
            return product if layer.bias is None else product + layer.bias

        return forward

    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    for layer in linear:
        layer.forward = halves(layer)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layer in linear:
            del layer.forward


ENGINES: dict[str, Callable[[PreTrainedModel], Scores]] = {
    **{f"other rounding {seed}": with_other_rounding(seed) for seed in range(1, 5)},
    "float32": in_float32,
    "eager attention": with_eager_attention,
    "two GPUs": on_two_gpus,
}


def faulty(model: PreTrainedModel, fault: Callable[[nn.Module], None]) -> Scores:
    other = copy.deepcopy(model)
    with torch.no_grad():
        fault(other)
    return scores(other)


def _middle(model: nn.Module) -> nn.Module:
    layers = model.model.layers  # type: ignore[union-attr]
    return layers[len(layers) // 2]  # type: ignore[index, no-any-return]


def _swap(one: Tensor, other: Tensor) -> None:
    kept = one.clone()
    one.copy_(other)
    other.copy_(kept)


def gate_and_up(model: nn.Module) -> None:
    mlp = _middle(model).mlp
    _swap(mlp.gate_proj.weight, mlp.up_proj.weight)


def key_and_value(model: nn.Module) -> None:
    attention = _middle(model).self_attn
    _swap(attention.k_proj.weight, attention.v_proj.weight)


def another_layer(model: nn.Module) -> None:
    _middle(model).load_state_dict(model.model.layers[0].state_dict())  # type: ignore[index, union-attr]


def zeroed_output(model: nn.Module) -> None:
    _middle(model).mlp.down_proj.weight.zero_()


def one_unsent_norm(model: nn.Module) -> None:
    model.model.norm.weight.mul_(1.5)  # type: ignore[union-attr]


def transposed_rows(model: nn.Module) -> None:
    weight = model.model.embed_tokens.weight  # type: ignore[union-attr]
    weight.copy_(weight.roll(1, 0))


FAULTS: dict[str, Callable[[nn.Module], None]] = {
    "gate and up swapped in one layer": gate_and_up,
    "key and value swapped in one layer": key_and_value,
    "one layer is another": another_layer,
    "one layer's output missing": zeroed_output,
    "final norm not sent": one_unsent_norm,
    "embedding shifted by a row": transposed_rows,
}


def steps_until_stale(learner: PreTrainedModel, limits: LogprobTolerance, most: int = 400) -> int:
    """Steps of the learner after which an engine with the start weights is refused; doubled from 1 on."""
    start, other, count = scores(learner), copy.deepcopy(learner), 1
    torch.manual_seed(1)
    masters = [weight.detach().float() for weight in other.parameters()]
    moves = [torch.randn_like(weight) * weight.std() * STEP if weight.numel() > 1 else weight * 0 for weight in masters]
    while count <= most:
        with torch.no_grad(), nullcontext():
            for weight, master, move in zip(other.parameters(), masters, moves, strict=True):
                weight.copy_(master + count * torch.nan_to_num(move))
        now = scores(other)
        if staleness(start, start, now, start, limits) or disagreement(start, now, limits):
            return count
        count *= 2
    return most
