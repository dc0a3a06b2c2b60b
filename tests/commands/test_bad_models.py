"""A model folder that cannot be trained is one line before anything starts: for `check`, and so for `train`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.commands.conftest import Command
from tests.commands.test_bad_input import refusal
from tests.model_folders import ROWS, change, save_tensors


def without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def without_a_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def with_a_pointer_to_its_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")


def of_another_width(folder: Path) -> None:
    change(folder / "config.json", hidden_size=16)


def with_a_larger_vocabulary(folder: Path) -> None:
    change(folder / "tokenizer.json", added_tokens=[{"id": ROWS, "content": "<late>"}])


def without_a_template(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()


def with_code_of_its_own(folder: Path) -> None:
    change(folder / "config.json", model_type="mine", auto_map={"AutoConfig": "mine.MyConfig"})


def with_attention_in_two_chunks(folder: Path) -> None:
    change(folder / "config.json", dual_chunk_attention_config={"chunk_size": 262144})


@pytest.mark.parametrize(
    ("spoilt", "told"),
    [
        (without_weights, "FOLDER has no weights (model.safetensors, pytorch_model.bin"),
        (without_a_tokenizer, "FOLDER has no tokenizer (tokenizer.json"),
        (with_a_pointer_to_its_weights, "FOLDER/model.safetensors is not a whole safetensors file ("),
        (of_another_width, "FOLDER: its weights do not fit its config.json: model.embed_tokens.weight is 8 x 4, and "
                           "hidden_size is 16; take config.json and weights of the same model"),
        (with_a_larger_vocabulary, "FOLDER: its tokenizer gives '<late>' the id 8, and the embedding has 8 rows, 0 to "
                                   "7; take the model's own tokenizer"),
        (without_a_template, "FOLDER: its tokenizer has no chat template (chat_template.jinja, or chat_template in "
                             "tokenizer_config.json); use an instruction-tuned model, or add a template"),
        (with_attention_in_two_chunks, "FOLDER: its config.json has dual_chunk_attention_config, which learner"),
        (with_code_of_its_own, "FOLDER brings its own code (auto_map in config.json)"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_model_is_named(
    rlhf: Command, recipe: Path, model_folder: Path, spoilt: Callable[[Path], None], told: str
):
    spoilt(model_folder)
    error = refusal(rlhf, recipe, "model.tiny=null", f"model.path={model_folder}")
    assert error.startswith(f"error: {told.replace('FOLDER', str(model_folder))}")


def test_code_that_is_trusted_is_not_judged(rlhf: Command, recipe: Path, model_folder: Path):
    with_code_of_its_own(model_folder)
    change(model_folder / "config.json", hidden_size=16)
    without_a_tokenizer(model_folder)
    trusted = "model.trust_remote_code=true"
    ended = rlhf("check", recipe, "model.tiny=null", f"model.path={model_folder}", trusted)
    assert ended.returncode == 0, ended.stderr
    assert "mine (Qwen2ForCausalLM): not measured: it is proved at the start of the run" in ended.stdout


def test_weights_that_a_loader_of_its_own_reads_may_have_any_shape(
    rlhf: Command, recipe: Path, model_folder: Path, tmp_path: Path
):
    (tmp_path / "mine.py").write_text("def load(path, **settings): ...")
    of_another_width(model_folder)
    given = ("model.tiny=null", f"model.path={model_folder}", "model.loader=mine:load")
    assert rlhf("check", recipe, *given).returncode == 0


def test_recorded_episodes_need_no_template(rlhf: Command, recipe: Path, model_folder: Path, tmp_path: Path):
    without_a_template(model_folder)
    (tmp_path / "episodes.jsonl").write_text("")
    given = ("model.tiny=null", f"model.path={model_folder}", f"data.episodes={tmp_path / 'episodes.jsonl'}")
    ended = rlhf("check", recipe, "kind=offline", "data.train=null", *given)
    assert ended.returncode == 0, ended.stderr


def test_every_file_of_an_index_is_read(rlhf: Command, recipe: Path, model_folder: Path):
    without_weights(model_folder)
    save_tensors(model_folder / "a.safetensors", {"model.embed_tokens.weight": (8, 4)})
    change(model_folder / "model.safetensors.index.json", weight_map={"a": "a.safetensors", "b": "b.safetensors"})
    error = refusal(rlhf, recipe, "model.tiny=null", f"model.path={model_folder}")
    assert f"{model_folder / 'b.safetensors'} is absent, and the index names it" in error
