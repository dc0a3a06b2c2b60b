"""What the files of a model folder say without torch, and what is wrong with it or only looks so."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf.errors import ModelError
from rlhf.models.model_files import (
    Shapes,
    Values,
    check_dimensions,
    check_template,
    check_vocabulary,
    context_tokens,
    embedding_rows,
    family_of,
    parameters,
    tensor_shapes,
)
from tests.model_folders import CONFIG, LAYERS, PARAMETERS, ROWS, SHAPES, WIDTH, change, save_folder, save_tensors


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_folder(tmp_path / "model")


@pytest.mark.parametrize(
    ("config", "tokens"),
    [({"n_positions": 9}, 9), ({"text_config": {"max_seq_len": 8}}, 8), ({"model_max_length": None}, None)],
)
def test_the_context_is_known_by_the_names_that_families_give_it(config: Values, tokens: int | None):
    assert context_tokens(config) == tokens


def test_a_family_is_read_from_its_folder_and_a_hub_name_stands_for_itself(folder: Path):
    assert (family_of(str(folder)), family_of("an/owner-s")) == ("qwen2", "an/owner-s")


class TestHeaders:
    def test_a_file_says_every_shape(self, folder: Path):
        assert tensor_shapes(folder) == SHAPES

    def test_the_files_of_an_index_are_one_model(self, folder: Path):
        (folder / "model.safetensors").unlink()
        for name, shape in SHAPES.items():
            save_tensors(folder / f"{name}.safetensors", {name: shape})
        change(folder / "model.safetensors.index.json", weight_map={name: f"{name}.safetensors" for name in SHAPES})
        shapes = tensor_shapes(folder)
        assert shapes == SHAPES
        assert parameters(SHAPES) == PARAMETERS


class TestDimensions:
    @pytest.mark.parametrize(
        ("said", "told"),
        [
            ({"vocab_size": ROWS + 1}, "model.embed_tokens.weight is 8 x 4, and vocab_size is 9"),
            ({"hidden_size": WIDTH - 1}, "model.embed_tokens.weight is 8 x 4, and hidden_size is 3"),
            ({"num_hidden_layers": LAYERS + 1}, "they have 2 layers, and num_hidden_layers is 3"),
            ({"num_hidden_layers": LAYERS - 1}, "they have 2 layers, and num_hidden_layers is 1"),
            ({"text_config": {"vocab_size": ROWS + 1}}, "vocab_size is 9"),
        ],
    )
    def test_what_differs_is_named(self, said: dict[str, object], told: str):
        with pytest.raises(ModelError, match=told):
            check_dimensions(Path("model"), CONFIG | said, SHAPES)

    @pytest.mark.parametrize(
        ("said", "more"),
        [
            ({}, {}),
            ({"text_config": {}, "vocab_size": 1}, {}),  # a model of pictures has another vocabulary outside
            ({"word_embed_proj_dim": WIDTH, "hidden_size": 64}, {}),
            ({"num_hidden_layers": 1, "num_nextn_predict_layers": 1}, {}),
            ({"vocab_size": ROWS - 1}, {"lm_head.weight": (ROWS - 1, WIDTH)}),  # rows for tokens it cannot say
            ({"num_hidden_layers": LAYERS}, {"model.vision_tower.layers.8.weight": (WIDTH,)}),
        ],
    )
    def test_what_families_have_of_their_own_is_not_refused(self, said: dict[str, object], more: Shapes):
        check_dimensions(Path("model"), CONFIG | said, SHAPES | more)

    @pytest.mark.parametrize(
        "name",
        ["transformer.wte.weight", "wte.weight", "gpt_neox.embed_in.weight", "transformer.word_embeddings.weight",
         "language_model.model.embed_tokens.weight", "backbone.embeddings.weight"],
    )  # fmt: skip
    def test_the_embedding_goes_by_many_names(self, name: str):
        assert embedding_rows({name: (8, 4), "vision.embeddings.weight": (9, 3, 2, 2)}) == 8

    def test_of_two_embeddings_none_is_taken(self):
        assert embedding_rows({"a.embed_tokens.weight": (8, 4), "b.embed_tokens.weight": (9, 4)}) is None


class TestVocabulary:
    def test_the_last_row_is_for_the_last_token(self, folder: Path):
        check_vocabulary(folder, ROWS - 1)
        with pytest.raises(
            ModelError, match=r"its tokenizer gives '<end>' the id 6, and the embedding has 6 rows, 0 to"
        ):
            check_vocabulary(folder, ROWS - 2)

    @pytest.mark.parametrize(
        "named",
        [
            {"pad_token": "[PAD]"},
            {"pad_token": {"content": "[PAD]"}},
            {"extra_special_tokens": ["[PAD]", "<end>"]},
            {"added_tokens_decoder": {"3": {"content": "[PAD]"}}},
        ],
    )
    def test_a_token_that_only_the_configuration_names_comes_behind_all(self, folder: Path, named: dict[str, object]):
        change(folder / "tokenizer_config.json", **named)
        with pytest.raises(ModelError, match=r"'\[PAD\]' the id 7, and"):
            check_vocabulary(folder, ROWS - 1)

    def test_a_unigram_vocabulary_is_a_list(self, folder: Path):
        change(folder / "tokenizer.json", model={"vocab": [["a", 0.0]] * 4 + [["b", 0.0]]}, added_tokens=[])
        change(folder / "tokenizer_config.json", eos_token="a")
        check_vocabulary(folder, 5)
        with pytest.raises(ModelError, match="'b' the id 4"):
            check_vocabulary(folder, 4)

    def test_older_files_say_it_too(self, folder: Path):
        (folder / "tokenizer.json").unlink()
        change(folder / "vocab.json", a=0, b=5)
        change(folder / "added_tokens.json", **{"<late>": 7})
        with pytest.raises(ModelError, match="'<late>' the id 7"):
            check_vocabulary(folder, 7)

    @pytest.mark.parametrize("named", [{"image_token": "<end>"}, {"extra_special_tokens": {"image_token": "<end>"}}])
    def test_a_placeholder_of_a_picture_needs_no_row(self, folder: Path, named: dict[str, object]):
        change(folder / "tokenizer_config.json", **named)
        check_vocabulary(folder, ROWS - 2)

    def test_a_file_that_is_none_is_one_line(self, folder: Path):
        change(folder / "tokenizer.json", model=None)
        with pytest.raises(ModelError, match="its tokenizer's files are not in a saved tokenizer's form"):
            check_vocabulary(folder, ROWS)


class TestTemplate:
    def test_it_may_be_a_file_or_a_setting_or_one_of_several(self, folder: Path):
        template = folder / "chat_template.jinja"
        check_template(folder)
        (folder / "additional_chat_templates").mkdir()
        template.rename(folder / "additional_chat_templates" / "default.jinja")
        check_template(folder)
        (folder / "additional_chat_templates" / "default.jinja").unlink()
        with pytest.raises(ModelError, match="no chat template"):
            check_template(folder)
        change(folder / "tokenizer_config.json", chat_template="{{ messages }}")
        check_template(folder)

    def test_that_of_a_processor_is_not_the_tokenizers(self, folder: Path):
        (folder / "chat_template.jinja").unlink()
        change(folder / "chat_template.json", chat_template="{{ messages }}")
        with pytest.raises(ModelError, match=r"write it into chat_template\.jinja"):
            check_template(folder)
