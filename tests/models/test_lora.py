"""Adapters in a model: what they start as, what leaves with them, and what the base says without them."""

from __future__ import annotations

from pathlib import Path

import peft
import pytest
import torch
from torch import Tensor, nn

from rlhf.errors import ModelError
from rlhf.models.config import LoraConfig, TinyModelConfig
from rlhf.models.loading import load_policy, sharing_weights
from rlhf.models.lora import add_lora, load_adapter, lora_for_model, low_ranks, save_adapter, without_adapter
from rlhf.models.policy import PolicyModel
from rlhf.models.scalar import load_scalar
from rlhf.models.tiny import save_tiny
from rlhf.recipe.preflight import read_model_config
from rlhf.weight_sync import weights
from tests.architectures.families import FAMILIES, save
from tests.whole import whole_state

LORA = LoraConfig(rank=4, alpha=6)
MODELS = [("qwen2", True), ("llama", False)]
IDS = torch.arange(3, 40)[None]


@pytest.fixture(params=MODELS, ids=["-".join((name, "tied" if tied else "untied")) for name, tied in MODELS])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    architecture, tied = request.param
    config = TinyModelConfig(architecture=architecture, hidden_size=64, intermediate_size=96, tie_word_embeddings=tied)
    return str(save_tiny(config, 0, tmp_path / "model"))


def adapted(folder: str, lora: LoraConfig = LORA, *, learnt: bool = True) -> PolicyModel:
    """A policy whose adapters are as far as training might bring them."""
    policy = PolicyModel(add_lora(load_policy(folder), lora))
    if learnt:
        generator = torch.Generator().manual_seed(1)
        for low in low_ranks(policy.model).values():
            nn.init.normal_(low.b, std=0.1, generator=generator)
    return policy


def logits(model: nn.Module) -> Tensor:
    with torch.no_grad():
        found: Tensor = model(IDS).logits
    return found


def test_two_adapters_share_a_base_that_neither_changes(folder: str) -> None:
    base = load_policy(folder)
    alone, shared = logits(base), {id(tensor) for tensor in (*base.parameters(), *base.buffers())}
    solver, proposer = (add_lora(sharing_weights(base), LoraConfig(rank=rank)) for rank in (4, 8))
    for low in low_ranks(solver).values():
        nn.init.normal_(low.b, std=0.1, generator=torch.Generator().manual_seed(1))
    for policy in (solver, proposer):
        held = {id(tensor) for tensor in (*policy.parameters(), *policy.buffers())}
        own = {id(tensor) for low in low_ranks(policy).values() for tensor in (low.a, low.b)}
        assert held == shared | own
    assert not torch.equal(logits(solver), alone)
    assert torch.equal(logits(proposer), alone)
    assert torch.equal(logits(base), alone)


@pytest.mark.parametrize("left", ["adapter_config.json", "adapter_model.safetensors"])
def test_adapters_beside_whole_weights_are_refused_wherever_the_folder_is_named(folder: str, left: str) -> None:
    save_adapter(Path(folder), weights.whole_adapter(adapted(folder), 1 << 20, keep=True), LORA, folder)
    for load in (load_policy, lambda path: load_scalar(path, fresh_head=True, setting="trainer.critic.path")):
        with pytest.raises(ModelError, match=r"holds both a model and LoRA adapters \(adapter_config\.json\)"):
            load(folder)
    for file in {"adapter_config.json", "adapter_model.safetensors"} - {left}:
        (Path(folder) / file).unlink()
    for key in ("model.path", "reward.model", "trainer.reference_path"):
        with pytest.raises(ModelError, match=f"^{key}=.* LoRA adapters .{left}.*move adapter_config.json"):
            read_model_config(Path(folder), key)


def test_training_starts_from_the_base_and_only_adapters_are_trained(folder: str) -> None:
    policy = adapted(folder, learnt=False)
    assert torch.equal(logits(policy.model), logits(load_policy(folder)))
    trained = {name.rpartition("lora_")[2] for name, weight in policy.named_parameters() if weight.requires_grad}
    assert trained == {"A.default.weight", "B.default.weight"}
    assert len(low_ranks(policy.model)) == 7 * 2, "seven linear layers in each of two decoder layers"


def test_a_start_does_not_depend_on_draws_before_it_and_leaves_no_trace_in_them(folder: str) -> None:
    torch.manual_seed(5)
    first = weights.whole_adapter(adapted(folder, learnt=False), 1 << 20, keep=True)
    drawn = torch.rand(1)
    torch.manual_seed(5)
    assert torch.equal(torch.rand(1), drawn)
    second = weights.whole_adapter(adapted(folder, learnt=False), 1 << 20, keep=True)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_peft_reads_the_adapter_and_has_the_same_logits(folder: str, tmp_path: Path) -> None:
    policy = adapted(folder)
    save_adapter(tmp_path / "adapter", weights.whole_adapter(policy, 1 << 14, keep=True), LORA, folder)
    read = peft.PeftModel.from_pretrained(load_policy(folder), tmp_path / "adapter")
    assert torch.equal(logits(read), logits(policy.model))


def test_without_its_adapter_a_policy_is_its_base_and_learns_on_afterwards(folder: str) -> None:
    policy = adapted(folder)
    trained = [weight.requires_grad for weight in policy.parameters()]
    before = logits(policy.model)
    with without_adapter(policy):
        assert torch.equal(logits(policy.model), logits(load_policy(folder)))
    assert torch.equal(logits(policy.model), before)
    assert [weight.requires_grad for weight in policy.parameters()] == trained


def test_a_policy_without_adapters_has_no_free_reference(folder: str) -> None:
    with pytest.raises(ModelError, match="no adapter"), without_adapter(PolicyModel(load_policy(folder))):
        pass


def test_an_adapter_alone_is_sent_scaled_and_kept_unscaled(folder: str) -> None:
    policy = adapted(folder)
    sent = {name: tensor.clone() for name, tensor in weights.published_tensors(policy, 1 << 14, "adapter")}
    kept = weights.whole_adapter(policy, 1 << 14, keep=True)
    assert [spec.name for spec in weights.publish_manifest(policy, "adapter").tensors] == list(sent) == list(kept)
    for name, low in low_ranks(policy.model).items():
        layer = name.removesuffix(".weight")
        assert torch.equal(sent[f"{layer}.lora_A.weight"], low.a)
        assert torch.equal(sent[f"{layer}.lora_B.weight"], low.b * 1.5), "alpha / rank"
        assert torch.equal(kept[f"{layer}.lora_B.weight"], low.b)


@pytest.mark.parametrize("form", ["merged", "adapter"])
def test_a_start_check_moves_every_tensor_that_is_published_and_leaves_no_trace(
    folder: str, form: weights.Form
) -> None:
    policy = adapted(folder)
    before = {name: tensor.clone() for name, tensor in weights.published_tensors(policy, 1 << 14, form)}
    held = weights.snapshot(policy, form)
    if form == "adapter":
        trained = [part for low in low_ranks(policy.model).values() for part in (low.a, low.b)]
        assert sum(copy.nbytes for copy in held) == sum(part.nbytes for part in trained), "the base is not copied"
    weights.perturb(policy, form)
    moved = dict(weights.published_tensors(policy, 1 << 14, form))
    assert not any(torch.equal(moved[name], before[name]) for name in before)
    if form == "adapter":
        with without_adapter(policy):
            assert torch.equal(logits(policy.model), logits(load_policy(folder))), "the base is not published"
    weights.put_back(policy, held, form)
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights.published_tensors(policy, 1 << 14, form))


@pytest.mark.parametrize("target", ["lm_head", "embed_tokens", "q_prjo", "norm"])
def test_what_cannot_have_an_adapter_is_refused_in_a_line_that_names_what_can(folder: str, target: str) -> None:
    with pytest.raises(ModelError, match=rf"the decoder has no linear layer {target}; use down_proj, .*q_proj"):
        adapted(folder, LoraConfig(target_modules=("q_proj", target)))


def test_without_targets_all_linear_layers_of_the_family_get_adapters_but_the_head(folder: str) -> None:
    fitted = lora_for_model(LoraConfig(), folder)
    assert fitted is not None
    assert fitted.target_modules == ("down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj")
    assert low_ranks(adapted(folder, LoraConfig()).model).keys() == low_ranks(adapted(folder, fitted).model).keys()
    assert lora_for_model(LoraConfig(target_modules=("q_proj",)), folder) == LoraConfig(target_modules=("q_proj",))
    assert lora_for_model(None, folder) is None


def test_a_layer_that_is_called_as_the_experts_are_gets_an_adapter_and_they_do_not(tmp_path: Path) -> None:
    save(next(family for family in FAMILIES if family.name == "qwen2_moe"), tmp_path)
    adapted_to = low_ranks(adapted(str(tmp_path), LoraConfig(rank=2, target_modules=("gate_proj",))).model)
    assert sorted(adapted_to) == [f"model.layers.{n}.mlp.shared_expert.gate_proj.weight" for n in range(2)]


@pytest.mark.parametrize("name", ["llama", "llama-tied", "glm4_moe", "phimoe", "mamba", "gpt2"])
def test_all_adapters_of_a_family_learn_and_merge(name: str, tmp_path: Path) -> None:
    """Experts whose names end as a layer's do; routers that are linear layers; layers that are never called; weights
    that are transposed."""
    save(next(family for family in FAMILIES if family.name == name), tmp_path)
    policy = adapted(str(tmp_path))
    policy.model(IDS).logits.square().sum().backward()
    assert all(weight.grad is not None and weight.grad.any() for weight in policy.parameters() if weight.requires_grad)
    policy.model.save_pretrained(tmp_path / "merged", state_dict=whole_state(policy, 1 << 14))
    reloaded = logits(load_policy(str(tmp_path / "merged")))
    torch.testing.assert_close(reloaded, logits(policy.model), rtol=0, atol=1e-5)
    assert (reloaded - logits(load_policy(str(tmp_path)))).abs().max() > 0.1


def kept(delta: dict[str, Tensor], published: dict[str, Tensor]) -> float:
    """The part of what was learnt that is there in what is published: the projection of the one on the other."""
    along = sum(float((published[name] * change).sum()) for name, change in delta.items())
    return along / sum(float((change * change).sum()) for change in delta.values())


def test_merged_in_bfloat16_a_small_change_is_lost_and_as_an_adapter_it_is_not(tmp_path: Path) -> None:
    """Why recipes publish adapters in 16 bits: a step of 1e-5 beside weights of 0.02."""
    folder = str(save_tiny(TinyModelConfig(hidden_size=64, intermediate_size=96), 0, tmp_path / "model"))
    policy = PolicyModel(add_lora(load_policy(folder, dtype="bfloat16"), LORA))
    base = {name: tensor.float() for name, tensor in weights.published_tensors(policy, 1 << 20)}
    for low in low_ranks(policy.model).values():
        nn.init.normal_(low.b, std=3e-5, generator=torch.Generator().manual_seed(1))
    delta = {
        name: low.scaling * low.b.detach().float() @ low.a.detach().float()
        for name, low in low_ranks(policy.model).items()
    }
    merged = {name: tensor.float() - base[name] for name, tensor in weights.published_tensors(policy, 1 << 20)}
    sent = {name: tensor.float() for name, tensor in weights.published_tensors(policy, 1 << 20, "adapter")}
    layers = {name: name.removesuffix(".weight") for name in delta}
    beside = {name: sent[f"{at}.lora_B.weight"] @ sent[f"{at}.lora_A.weight"] for name, at in layers.items()}
    assert kept(delta, merged) < 0.5
    assert kept(delta, beside) == pytest.approx(1, abs=0.01)


def test_an_adapter_on_disk_is_taken_up_or_refused_by_name(folder: str, tmp_path: Path) -> None:
    policy, saved = adapted(folder), tmp_path / "adapter"
    save_adapter(saved, weights.whole_adapter(policy, 1 << 20, keep=True), LORA, folder)
    fresh = adapted(folder, learnt=False)
    load_adapter(fresh.model, LORA, str(saved))
    assert torch.equal(logits(fresh.model), logits(policy.model))
    with pytest.raises(ModelError, match="has rank 4 and alpha 6, but the policy's lora says rank 4 and alpha 8"):
        load_adapter(fresh.model, LoraConfig(rank=4, alpha=8), str(saved))
    narrow = LoraConfig(rank=4, alpha=6, target_modules=("q_proj",))
    with pytest.raises(ModelError, match=r"does not fit this model and lora\.target_modules: .*lora_A"):
        load_adapter(adapted(folder, narrow).model, narrow, str(saved))
    with pytest.raises(ModelError, match="is not an adapter"):
        load_adapter(fresh.model, LORA, str(tmp_path))
