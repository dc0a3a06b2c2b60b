"""Which models generate text is read from transformers' source, and is what transformers itself says."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

from rlhf.errors import ModelError
from rlhf.models.model_types import check_generates, check_precision, check_remote_code, is_known
from tests.architectures.families import FAMILIES
from tests.model_folders import CONFIG, change, save_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_folder(tmp_path / "model")


def accepted(folder: Path, family: str, **values: object) -> bool:
    try:
        check_generates(folder, {"model_type": family, **values})
    except ModelError:
        return False
    return True


def test_the_list_of_known_families_is_that_of_transformers() -> None:
    assert all(map(is_known, CONFIG_MAPPING))
    assert not is_known("mine")


def test_families_that_generate_text_are_those_of_transformers_without_encoders(folder: Path) -> None:
    decoders = {*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES}
    expected = decoders - set(MODEL_FOR_MASKED_LM_MAPPING_NAMES)
    assert {family for family in CONFIG_MAPPING if accepted(folder, family)} == expected & set(CONFIG_MAPPING)
    assert all(accepted(folder, family.kind) for family in FAMILIES)


def test_an_encoder_that_was_made_a_decoder_generates_text(folder: Path) -> None:
    assert accepted(folder, "bert", is_decoder=True)
    assert not accepted(folder, "bert", is_decoder=False)
    assert not accepted(folder, "qwen2", is_encoder_decoder=True)


def test_quantised_weights_are_refused_with_the_key_that_named_them() -> None:
    with pytest.raises(ModelError, match=r"^reward\.model=a/b: its weights are quantised \(mxfp4\), but training"):
        check_precision("a/b", {"quantization_config": {"quant_method": "mxfp4"}}, "reward.model")


class TestRemoteCode:
    @pytest.mark.parametrize("architectures", [["Qwen2ForCausalLM"], None])
    def test_a_family_that_transformers_knows_needs_none(self, folder: Path, architectures: list[str] | None):
        change(folder / "config.json", auto_map={"AutoConfig": "mine.MyConfig"})
        check_remote_code(folder, CONFIG | {"architectures": architectures}, trusted=False)

    @pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
    @pytest.mark.parametrize(
        ("values", "unknown"), [({"model_type": "mine"}, "model_type mine"), ({"architectures": ["MyLM"]}, "MyLM")]
    )
    def test_one_that_it_does_not_know_is_refused_unless_trusted(
        self, folder: Path, file: str, values: dict[str, object], unknown: str
    ):
        change(folder / file, auto_map={"AutoConfig": "mine.MyConfig"})
        check_generates(folder, CONFIG | values)
        check_remote_code(folder, CONFIG | values, trusted=True)
        with pytest.raises(ModelError, match=rf"auto_map in {file}.*does not know {unknown}; .*trust_remote_code"):
            check_remote_code(folder, CONFIG | values, trusted=False)
