"""DeepSpeed's AutoEP on two ranks, each with half of the experts: what of it is right, and what is not.

Recipes cannot ask for it (docs/recipes.md). These are the measurements behind that.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from rlhf.trainer.rank import zero
from rlhf.trainer.rank.learner_worker import LearnerWorker
from rlhf.trainer.rank.zero_config import deepspeed_module
from rlhf.weight_sync.types import GroupAddress
from tests.integration.learner_ranks import rank_processes
from tests.pace import scaled

pytestmark = [pytest.mark.engine, pytest.mark.slow]

RANKS, EXPERTS, TOKENS, WIDTH = 2, 4, 24, 48
SHAPE: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": WIDTH, "moe_intermediate_size": WIDTH, "head_dim": 16,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "num_experts": EXPERTS,
    "num_local_experts": EXPERTS, "num_experts_per_tok": 2, "max_position_embeddings": 64, "tie_word_embeddings": False,
}  # fmt: skip
PARTS = {
    "w1": ("gate_up_proj", slice(0, WIDTH)),
    "w3": ("gate_up_proj", slice(WIDTH, None)),
    "w2": ("down_proj", slice(None)),
}


def made(family: str) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **SHAPE)).eval()
    return model


def loss_of(model: nn.Module, rank: int) -> Tensor:
    ids = torch.randint(64, (1, TOKENS), generator=torch.Generator().manual_seed(rank + 1))
    logprobs = model(input_ids=ids, use_cache=False).logits[0, :-1].log_softmax(-1)
    return -logprobs.gather(1, ids[0, 1:, None]).mean()


def engine_of(family: str, rank: int, address: GroupAddress, stage: int) -> Any:
    zero.join(rank, RANKS, address, "cpu", timeout_seconds=60)
    model = made(family)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "train_batch_size": RANKS,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0, "overlap_comm": False},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "expert_parallel": {"enabled": True, "autoep_size": RANKS, "use_grouped_mm": False},
    }
    optimizer = torch.optim.AdamW(model.parameters())
    engine, *_ = deepspeed_module().initialize(
        model=model, optimizer=optimizer, config=config, dist_init_required=False
    )
    return engine


def sharded_gradient(family: str, rank: int, address: GroupAddress) -> tuple[dict[str, Tensor], float]:
    """This rank's gradients of the mean loss of both ranks under ZeRO-3, by AutoEP's names, and the norm of all."""
    from deepspeed.utils import safe_get_full_grad

    engine = engine_of(family, rank, address, stage=3)
    engine.backward(loss_of(engine, rank))
    gradients = {name: safe_get_full_grad(p).clone() for name, p in engine.module.named_parameters()}
    engine.step()
    return gradients, float(engine.get_global_grad_norm())


def whole_gradient(family: str) -> dict[str, Tensor]:
    model = made(family)
    loss = torch.stack([loss_of(model, rank) for rank in range(RANKS)]).mean()
    return dict(zip(dict(model.named_parameters()), torch.autograd.grad(loss, list(model.parameters())), strict=True))


def expected(name: str, rank: int, whole: dict[str, Tensor]) -> Tensor:
    """The gradient of one of AutoEP's parameters, in the unsharded model's."""
    path, _, part = name.rpartition(".")
    if not path.endswith("mlp.experts"):
        return whole[name.replace("mlp.router.gate.", "mlp.gate.")]
    stacked, rows = PARTS[part]
    own = slice(rank * EXPERTS // RANKS, (rank + 1) * EXPERTS // RANKS)
    return whole[f"{path}.{stacked}"][own, rows]


def on_both(work: Any, *arguments: Any) -> Iterator[Any]:
    address = LearnerWorker(loopback=True).group_address()
    with rank_processes(RANKS) as workers:
        futures = [worker.process.submit(work, *arguments, rank, address) for rank, worker in enumerate(workers)]
        yield from [future.result(timeout=scaled(120)) for future in futures]


@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral"])
def test_under_zero_3_the_gradient_of_sharded_experts_is_that_of_the_whole_model(family: str) -> None:
    whole = whole_gradient(family)
    norm = float(torch.stack([gradient.norm() for gradient in whole.values()]).norm())
    for rank, (gradients, found) in enumerate(on_both(sharded_gradient, family)):
        assert sum(gradient.numel() for gradient in gradients.values()) < sum(g.numel() for g in whole.values())
        for name, gradient in gradients.items():
            exact = expected(name, rank, whole)
            assert float((gradient - exact).norm() / exact.norm()) <= 1e-6, name
        assert found == pytest.approx(norm, rel=1e-6)


def refusal(family: str, stage: int, rank: int, address: GroupAddress) -> str:
    try:
        engine_of(family, rank, address, stage)
    except AssertionError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("stage", [1, 2])
def test_stages_1_and_2_do_not_take_the_optimizer_of_a_learner(stage: int) -> None:
    for said in on_both(refusal, "qwen3_moe", stage):
        assert "None of the param groups are marked as MoE" in said


def names_sent(family: str, rank: int, address: GroupAddress) -> set[str]:
    return set(dict(engine_of(family, rank, address, stage=3).module.named_parameters()))


def test_sharded_experts_have_neither_the_names_nor_the_shapes_of_the_models_folder() -> None:
    """So a weight sync, a checkpoint and a model folder would need every expert under another name, from all ranks."""
    whole = set(dict(made("qwen3_moe").named_parameters()))
    for names in on_both(names_sent, "qwen3_moe"):
        assert {name.rpartition(".")[2] for name in names - whole} == {"w1", "w2", "w3", "weight"}
        assert {name for name in whole - names if "experts" in name}
