"""Models that see train their language part on text; their towers stay as they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForImageTextToText

from rlhf.errors import ModelError
from rlhf.models.loading import load_policy
from rlhf.models.lora import linear_layers
from rlhf.models.policy import PolicyModel, WholeRows
from rlhf.models.probe import proved_rows, sight_of
from rlhf.models.scalar import ScalarHead, load_scalar
from rlhf.models.towers import PROCESSORS, auto_class, copy_processors, towers
from rlhf.recipe.planning.meta_model import shape_of
from rlhf.weight_sync.weights import publish_manifest
from tests.models.seeing import MADE, save_seeing, save_shown
from tests.whole import whole_state

TOWERS = ("visual", "vision_tower", "multi_modal_projector", "embed_vision")


@pytest.fixture(scope="module", params=MADE)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_seeing(request.param, tmp_path_factory.mktemp("seeing") / request.param)


def in_tower(name: str) -> bool:
    return any(part in TOWERS for part in name.split("."))


def loss(model: PolicyModel | ScalarHead) -> torch.Tensor:
    ids, places = torch.arange(3, 19)[None], torch.arange(1, 16)
    inputs = (ids, torch.arange(16)[None], places - 1)
    found: torch.Tensor = model(*inputs, places, 1.0)[0] if isinstance(model, PolicyModel) else model(*inputs)
    return found.sum()


def test_text_trains_the_language_part_alone_and_the_export_has_the_same_towers(folder: Path, tmp_path: Path) -> None:
    model = load_policy(str(folder))
    rows = proved_rows(model, folder.name)
    assert isinstance(rows, WholeRows)
    policy = PolicyModel(model, rows)
    loss(policy).backward()  # type: ignore[no-untyped-call]
    weights = dict(model.named_parameters())
    assert {name for name, weight in weights.items() if weight.grad is None} == set(filter(in_tower, weights))
    assert not any(in_tower(spec.name) for spec in publish_manifest(policy).tensors)
    assert not any(in_tower(name) for name, _ in linear_layers(model))
    torch.optim.SGD([weight for weight in weights.values() if weight.requires_grad], lr=0.1).step()
    model.save_pretrained(tmp_path, state_dict={})
    save_file(whole_state(policy), tmp_path / "model.safetensors", metadata={"format": "pt"})
    before, after = (load_file(one / "model.safetensors") for one in (folder, tmp_path))
    assert set(before) == set(after)
    assert all(torch.equal(before[name], after[name]) for name in before if in_tower(name))
    again = AutoModelForImageTextToText.from_pretrained(tmp_path)
    assert type(again) is type(model)
    assert all(torch.equal(weights[name], weight) for name, weight in again.named_parameters())


def test_a_critic_trains_the_language_part_alone(folder: Path) -> None:
    model = load_scalar(str(folder), fresh_head=True)
    torch.nn.init.ones_(model.get_parameter("score.weight"))
    loss(ScalarHead(model, proved_rows(model, folder.name))).backward()  # type: ignore[no-untyped-call]
    assert {name for name, weight in model.named_parameters() if weight.grad is None} == {
        name for name, _ in model.named_parameters() if in_tower(name)
    }
    assert towers(model)


def test_an_export_has_the_files_of_the_processors(tmp_path: Path) -> None:
    folder, out = tmp_path / "model", tmp_path / "exported"
    folder.mkdir()
    out.mkdir()
    (folder / PROCESSORS[0]).write_text('{"patch_size": 4}')
    copy_processors(str(folder), out)
    assert [file.name for file in out.iterdir()] == [PROCESSORS[0]]
    assert (out / PROCESSORS[0]).read_text() == '{"patch_size": 4}'


def test_images_whose_tokens_see_later_ones_are_refused(tmp_path: Path) -> None:
    folder = save_shown("gemma4", tmp_path / "gemma4")
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["use_bidirectional_attention"] = "vision"
    (folder / "config.json").write_text(json.dumps(config))
    model, sight = load_policy(str(folder), trains_tower=True), sight_of("trained", str(folder))
    with pytest.raises(ModelError, match="images, whose tokens see later ones, are off by"):
        proved_rows(model, folder.name, sight=sight)


def test_they_are_planned(folder: Path) -> None:
    config = load_policy(str(folder)).config
    assert shape_of(folder.name, config.to_dict()).layers == 2


@pytest.mark.parametrize("kind", ["llama4_text", "opt", "llava_next"])
def test_what_text_trains_is_in_no_tower(kind: str) -> None:
    """Heads beside the decoder; decoders inside a part; weights that belong to no part."""
    config = AutoConfig.for_model(kind)
    with torch.device("meta"):
        model = auto_class(config).from_config(config)
    still = {id(weight) for tower in towers(model) for weight in tower.parameters()}
    names = {name.split(".")[1] for name, weight in model.named_parameters() if id(weight) in still}
    assert names == ({"vision_tower", "multi_modal_projector", "image_newline"} if kind == "llava_next" else set())
