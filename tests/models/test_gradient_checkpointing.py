"""Activations that are computed again in the backward pass: the same numbers and the same gradients."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rlhf.models.config import ModelConfig, TinyModelConfig
from rlhf.models.loading import load_policy
from rlhf.models.policy import PolicyModel
from rlhf.models.scalar import ScalarHead, load_scalar
from rlhf.models.tiny import save_tiny
from rlhf.trainer.batching.batch import MicroBatch, build_minibatches
from tests.trainer.made import made_batch, made_groups, with_one_prompt


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    config = TinyModelConfig(architecture=request.param, hidden_size=64, intermediate_size=128, heads=2, kv_heads=1)
    return str(save_tiny(config, 0, tmp_path_factory.mktemp(request.param)))


def microbatches(shared_prompts: bool) -> Iterator[MicroBatch]:
    groups = [with_one_prompt(group) for group in made_groups()] if shared_prompts else made_groups()
    (steps,) = build_minibatches(made_batch(groups), minibatches=1, ranks=1, tokens_per_microbatch=400)
    return iter(steps[0])


def numbers_of(module: nn.Module, micro: MicroBatch) -> Tensor:
    ids, positions = torch.tensor(micro.token_ids).long(), torch.tensor(micro.position_ids).long()
    if isinstance(module, ScalarHead):
        numbers: Tensor = module(ids, positions, torch.tensor(micro.sources))
        return numbers
    logprobs, entropies = module(
        ids, positions, torch.tensor(micro.sources), torch.tensor(micro.targets), 0.7, entropy_gradient=True
    )
    return logprobs + 0.1 * entropies


def gradient(module: nn.Module, shared_prompts: bool) -> Tensor:
    """Of a weighted sum of what the module says of every token."""
    for micro in microbatches(shared_prompts):
        weights = torch.cos(torch.tensor(micro.places, dtype=torch.float32))
        (numbers_of(module, micro) * weights).sum().backward()
    return torch.cat([p.grad.double().flatten() for p in module.parameters() if p.grad is not None])


def attended(module: Any) -> list[int]:
    """How often the layers attend, from now on."""
    calls = [0]
    for layer in module.model.base_model.layers:
        layer.self_attn.register_forward_hook(lambda *_: calls.__setitem__(0, calls[0] + 1))
    return calls


def policy(folder: str, checkpointing: bool) -> nn.Module:
    return PolicyModel(load_policy(folder, gradient_checkpointing=checkpointing))


def scalar_head(folder: str, checkpointing: bool) -> nn.Module:
    model = load_scalar(folder, gradient_checkpointing=checkpointing, fresh_head=True)
    nn.init.ones_(model.get_submodule("score").weight)
    return ScalarHead(model)


@pytest.mark.parametrize("shared_prompts", [False, True])
@pytest.mark.parametrize("make", [policy, scalar_head])
def test_computing_activations_again_changes_no_gradient(folder: str, make: Any, shared_prompts: bool) -> None:
    plain, checkpointed = make(folder, False), make(folder, True)
    once, twice = attended(plain), attended(checkpointed)
    expected, found = gradient(plain, shared_prompts), gradient(checkpointed, shared_prompts)
    assert twice[0] == 2 * once[0] > 0
    assert float(expected.norm()) > 0
    assert float((found - expected).norm() / expected.norm()) <= 1e-6


@pytest.mark.parametrize(("every", "again"), [(0, 0), (1, 3), (2, 2), (3, 1)])
def test_every_nth_layer_is_computed_again(tmp_path: Path, every: int, again: int) -> None:
    shape = TinyModelConfig(hidden_size=64, intermediate_size=128, heads=2, kv_heads=1, layers=3)
    path = str(save_tiny(shape, 0, tmp_path))
    plain, chosen = policy(path, False), PolicyModel(load_policy(path, gradient_checkpointing=every))
    once, often = attended(plain), attended(chosen)
    assert float((gradient(chosen, False) - gradient(plain, False)).norm()) <= 1e-6
    assert often[0] * 3 == once[0] * (3 + again)


def test_hidden_states_that_wait_in_the_machines_memory_change_no_gradient(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = gradient(policy(folder, True), True)
    offloaded = PolicyModel(load_policy(folder, gradient_checkpointing=True, offload_activations=True))
    moved, real, layers = [], torch.autograd.graph.save_on_cpu, attended(offloaded)
    monkeypatch.setattr(torch.autograd.graph, "save_on_cpu", lambda **named: moved.append(named) or real(**named))
    assert torch.equal(gradient(offloaded, True), expected)
    assert len(moved) == layers[0] / 2 > 0, "once a layer, in the forward pass"


def test_offloading_what_is_not_computed_again_is_refused() -> None:
    with pytest.raises(ValueError, match=r"set model\.gradient_checkpointing too"):
        ModelConfig(tiny=TinyModelConfig(), offload_activations=True)
    assert ModelConfig(tiny=TinyModelConfig(), offload_activations=True, gradient_checkpointing=2).offload_activations
