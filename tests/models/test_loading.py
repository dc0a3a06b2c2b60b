import json
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from rlhf.errors import ModelError
from rlhf.models.config import TinyModelConfig
from rlhf.models.loading import load_policy, load_tokenizer, savable, unsaved_settings, without_dropout
from rlhf.models.tiny import save_tiny
from tests.architectures.families import FAMILIES, save


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(TinyModelConfig(hidden_size=64, max_position_embeddings=96), 0, tmp_path_factory.mktemp("tiny"))


def changed(folder: Path, target: Path, **values: object) -> str:
    target.mkdir()
    config = json.loads((folder / "config.json").read_text()) | values
    (target / "config.json").write_text(json.dumps(config))
    return str(target)


def test_a_made_model_comes_back_ready_for_training(folder: Path) -> None:
    model = load_policy(str(folder), dtype="bfloat16")
    assert all(weight.requires_grad for weight in model.parameters())
    assert model.dtype == torch.bfloat16
    assert "<|im_start|>" in load_tokenizer(str(folder)).chat_template


def doubled_embedding(path: str, **arguments: object) -> PreTrainedModel:
    """A loader of one's own: the folder's model with an embedding twice as large."""
    model = AutoModelForCausalLM.from_pretrained(path, **arguments)
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(2)
    return model


def test_a_model_of_one_s_own_is_the_one_that_is_trained(folder: Path) -> None:
    plain, own = load_policy(str(folder)), load_policy(str(folder), loader=f"{__name__}:doubled_embedding")
    assert torch.equal(own.get_input_embeddings().weight, 2 * plain.get_input_embeddings().weight)
    assert all(weight.requires_grad for weight in own.parameters())


def test_a_model_with_dropout_is_trained_without_it(folder: Path, tmp_path: Path) -> None:
    path = changed(folder, tmp_path / "dropout", attention_dropout=0.5)
    (Path(path) / "model.safetensors").symlink_to(folder / "model.safetensors")
    model, ids = load_policy(path), torch.arange(3, 30)[None]
    assert torch.equal(model(ids).logits, model(ids).logits)


@pytest.mark.parametrize("path", ["./nowhere/at-all", "/nowhere/at/all", "~/nowhere-at-all/model"])
def test_a_missing_folder_is_one_line(path: str) -> None:
    with pytest.raises(ModelError, match="there is no such folder") as raised:
        load_policy(path)
    assert "\n" not in str(raised.value)
    assert raised.value.exit_code == 2


def test_a_folder_that_is_no_model_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"not a Hugging Face model folder: it has no config\.json"):
        load_policy(str(tmp_path))


def whole(folder: Path, target: Path, **values: object) -> str:
    """The model with another configuration."""
    path = changed(folder, target, **values)
    (target / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    return path


def test_weights_of_another_shape_are_named(folder: Path, tmp_path: Path) -> None:
    told = (
        r"mlp\.down_proj\.weight is 64 x 512, and 64 x 128 by config\.json; take config\.json and weights of the same"
    )
    with pytest.raises(ModelError, match=told) as raised:
        load_policy(whole(folder, tmp_path / "other", intermediate_size=128))
    assert "\n" not in str(raised.value)


def test_a_weight_that_is_missing_is_named_and_not_drawn_at_random(folder: Path, tmp_path: Path) -> None:
    more = {"num_hidden_layers": 3, "layer_types": ["full_attention"] * 3}
    with pytest.raises(ModelError, match=r"has no weights for model\.layers\.2\."):
        load_policy(whole(folder, tmp_path / "more", **more))


def test_weights_that_are_cut_short_are_one_line(folder: Path, tmp_path: Path) -> None:
    path = whole(folder, tmp_path / "short")
    file = tmp_path / "short" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ModelError, match=f"model.path={path}: "):
        load_policy(path)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_nothing_is_drawn_in_a_forward_pass(tmp_path: Path, checkpointing: bool) -> None:
    """The routers of this family choose by chance when they are trained."""
    save(next(family for family in FAMILIES if family.name == "phimoe"), tmp_path)
    ids = torch.arange(3, 63)[None]
    with torch.no_grad():
        expected = AutoModelForCausalLM.from_pretrained(tmp_path).eval()(input_ids=ids, use_cache=False).logits
    found = load_policy(str(tmp_path), gradient_checkpointing=checkpointing)(input_ids=ids, use_cache=False).logits
    assert torch.allclose(found, expected, atol=1e-5)


def test_a_broken_tokenizer_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    path = changed(folder, tmp_path / "broken")
    for name, text in {"tokenizer.json": '{"model": {"vocab": {}}}', "tokenizer_config.json": "{}"}.items():
        (Path(path) / name).write_text(text)
    with pytest.raises(ModelError, match=f"^model.path={path}: no tokenizer: "):
        load_tokenizer(path)


def test_every_dropout_of_a_configuration_is_turned_off() -> None:
    for family, names in {"opt": ["dropout", "attention_dropout"], "gptj": ["attn_pdrop", "resid_pdrop"]}.items():
        config = AutoConfig.for_model(family, **dict.fromkeys(names, 0.3))
        assert [vars(without_dropout(config))[name] for name in names] == [0.0, 0.0]


def test_a_tokenizer_without_a_chat_template_is_refused(folder: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(str(folder))
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    with pytest.raises(ModelError, match="no chat template"):
        load_tokenizer(str(tmp_path))


@pytest.mark.parametrize(
    ("settings", "left"),
    [
        ({"temperature": 0.9, "top_p": 0.6}, ["temperature", "top_p"]),
        ({"temperature": 0.9, "output_scores": True, "do_sample": True}, ["output_scores"]),
        ({"num_beams": 4, "early_stopping": True, "eos_token_id": [2, 3]}, []),
    ],
)
def test_settings_that_transformers_does_not_save_again_are_left_out(
    tmp_path: Path, settings: dict[str, object], left: list[str]
) -> None:
    kept, refused = savable(GenerationConfig(**settings))
    kept.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "generation_config.json").read_text())
    assert refused == left
    assert {name: saved.get(name) for name in settings if name not in left} == {
        name: value for name, value in settings.items() if name not in left
    }


def test_settings_that_transformers_refuses_to_read_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"num_return_sequences": 4}')
    with pytest.raises(ModelError, match=r"cannot read its generation_config.json: ValueError: Greedy"):
        unsaved_settings(str(tmp_path))
