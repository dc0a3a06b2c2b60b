"""What is sent and exported has the names, and all the tensors, of the model's folder."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rlhf.errors import ModelError
from rlhf.models.loading import load_policy
from rlhf.models.policy import PolicyModel
from rlhf.weight_sync import weights
from tests.architectures.families import FAMILIES, save
from tests.whole import whole_state

BY_NAME = {family.name: family for family in FAMILIES}
BUCKET_BYTES = 1 << 14


def policy_of(name: str, folder: Path) -> PolicyModel:
    save(BY_NAME[name], folder)
    return PolicyModel(load_policy(str(folder)))


@pytest.mark.parametrize("name", ["llama", "llama-tied", "qwen3_moe", "gpt_neox"])
def test_a_publish_sends_the_tensors_of_the_folder_by_its_names(tmp_path: Path, name: str) -> None:
    policy = policy_of(name, tmp_path)
    sent = {key: tensor.clone() for key, tensor in weights.published_tensors(policy, BUCKET_BYTES)}
    held = load_file(tmp_path / "model.safetensors")
    assert sent.keys() == held.keys()
    assert all(torch.equal(tensor, held[key]) for key, tensor in sent.items())
    manifest = weights.publish_manifest(policy)
    assert [(spec.name, spec.shape) for spec in manifest.tensors] == [(key, tuple(t.shape)) for key, t in sent.items()]


@pytest.mark.parametrize("name", ["apertus", "deepseek_v3", "llama-tied"])
def test_an_export_has_what_training_leaves_as_it_is(tmp_path: Path, name: str) -> None:
    """A constant of an activation, the correction of a router."""
    policy = policy_of(name, tmp_path / "before")
    state = whole_state(policy, BUCKET_BYTES)
    policy.model.save_pretrained(tmp_path / "after", state_dict=state)
    before, after = (load_file(tmp_path / place / "model.safetensors") for place in ("before", "after"))
    assert before.keys() == after.keys()
    assert all(torch.equal(tensor, after[key]) for key, tensor in before.items())


def test_weights_that_a_folder_has_as_one_are_refused(tmp_path: Path) -> None:
    """transformers joins them when it saves a model; weight by weight, one would replace another."""
    with pytest.raises(ModelError, match=r"saves several weights of the model as one, model\.\S+gqkv_proj\.weight"):
        weights.folder_manifest(policy_of("hrm_text", tmp_path))
