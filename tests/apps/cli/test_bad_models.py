"""A model folder that cannot be trained is one line before anything starts: for `check`, and so for `train`."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.apps.cli.conftest import Command
from tests.apps.cli.test_bad_input import refusal
from tests.model_folders import ROWS, change, save_tensors

Spoil = Callable[[Path], object]


def without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def without_a_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def with_a_pointer_to_its_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")


def without_a_template(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()


def with_gguf_weights(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-Q4_K_M.gguf")


def with_gguf_files_alone(folder: Path) -> None:
    with_gguf_weights(folder)
    (folder / "config.json").unlink()


def with_adapters(folder: Path) -> None:
    (folder / "config.json").unlink()
    change(folder / "adapter_config.json", base_model_name_or_path="Qwen/Qwen3-0.6B", peft_type="LORA")


def that_is_a_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("")


def with_config(text: str) -> Spoil:
    return lambda folder: folder.joinpath("config.json").write_text(text)


def with_generation_config(text: str) -> Spoil:
    return lambda folder: folder.joinpath("generation_config.json").write_text(text)


def changed(**values: object) -> Spoil:
    return lambda folder: change(folder / "config.json", **values)


def with_a_larger_vocabulary(folder: Path) -> None:
    change(folder / "tokenizer.json", added_tokens=[{"id": ROWS, "content": "<late>"}])


OF_ANOTHER_WIDTH = changed(hidden_size=16)
WITH_ITS_OWN_CODE = changed(model_type="mine", auto_map={"AutoConfig": "mine.MyConfig"})
NO_TEXT = "; take a decoder that generates text (…ForCausalLM)"
QUANTISED = "but training needs 16 or 32 bits; use the model that it was made from, or dequantise it"
WRONG_CONFIGS = [
    (changed(model_type="qwen9"), "model.path=FOLDER: transformers VERSION does not know its model_type qwen9"),
    (changed(model_type="clip"), f"model.path=FOLDER: clip is no language model{NO_TEXT}"),
    (changed(model_type="modernbert"), f"model.path=FOLDER: modernbert is an encoder{NO_TEXT}"),
    (changed(quantization_config={"quant_method": "gptq", "bits": 4}),
     f"model.path=FOLDER: its weights are quantised (gptq), {QUANTISED}"),
    (changed(quantization_config={"load_in_4bit": True}), "model.path=FOLDER: its weights are quantised (an unknown"),
    (changed(text_config={"model_type": "qwen2", "quantization_config": {"quant_method": "fp8"}}),
     "model.path=FOLDER: its weights are quantised (fp8)"),
    (changed(hidden_size="4"), "model.path=FOLDER: hidden_size in its config.json is '4', not a whole"),
    (changed(num_hidden_layers=2.0), "model.path=FOLDER: num_hidden_layers in its config.json is 2.0"),
    (with_config("{'model_type': 'qwen2'}"), "FOLDER/config.json cannot be read as JSON (Expecting property name"),
    (with_config("[]"), "FOLDER/config.json is not a JSON object; download the model again"),
    (with_config("{}"), "FOLDER/config.json has no model_type; model.path must be a Hugging Face folder"),
    (with_adapters, "FOLDER is not a model folder: it has no config.json; it holds LoRA adapters of Qwen/Qwen3-0.6B: "
                    "merge them into that model"),
    (with_gguf_files_alone, "FOLDER is not a model folder: it has no config.json; it holds GGUF files, which cannot"),
    (that_is_a_file, "model.path=FOLDER is a file; give the Hugging Face folder that holds the model"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("spoilt", "told"),
    [
        *WRONG_CONFIGS,
        (with_gguf_weights, "FOLDER has no weights (model.safetensors, pytorch_model.bin, or the .index.json of "
                            "several such files); it holds GGUF files, which cannot be trained: take the"),
        (changed(architectures=["MyLM"], auto_map={"AutoModelForCausalLM": "mine.MyLM"}),
         "FOLDER brings its own code (auto_map in config.json): transformers VERSION does not "
                                  "know MyLM; if you trust that code, set model.trust_remote_code: true"),
        (without_weights, "FOLDER has no weights (model.safetensors, pytorch_model.bin"),
        (without_a_tokenizer, "FOLDER has no tokenizer (tokenizer.json"),
        (with_a_pointer_to_its_weights, "FOLDER/model.safetensors is not a whole safetensors file ("),
        (OF_ANOTHER_WIDTH, "FOLDER: its weights do not fit its config.json: model.embed_tokens.weight is 8 x 4, and "
                           "hidden_size is 16; take config.json and weights of the same model"),
        (with_a_larger_vocabulary, "FOLDER: its tokenizer gives '<late>' the id 8, and the embedding has 8 rows, 0 to "
                                   "7; take the model's own tokenizer"),
        (without_a_template, "FOLDER: its tokenizer has no chat template (chat_template.jinja, or chat_template in "
                             "tokenizer_config.json); use an instruction-tuned model, or add a template"),
        (changed(dual_chunk_attention_config={"chunk_size": 262144}),
         "FOLDER: its config.json has dual_chunk_attention_config, which learner"),
        (with_generation_config("0"), "FOLDER/generation_config.json is not a JSON object; download the model again"),
        (with_generation_config('{"eos_token_id": "2"}'),
         "FOLDER/generation_config.json: eos_token_id is '2'; it must be the number of a token, or several"),
        (WITH_ITS_OWN_CODE, "FOLDER brings its own code (auto_map in config.json)"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_model_is_named(rlhf: Command, recipe: Path, model_folder: Path, spoilt: Spoil, told: str):
    spoilt(model_folder)
    error = refusal(rlhf, recipe, "model.tiny=null", f"model.path={model_folder}")
    assert error.startswith(f"error: {whole(told, model_folder)}")


@pytest.mark.parametrize(("spoilt", "told"), WRONG_CONFIGS[:: len(WRONG_CONFIGS) - 1])
@pytest.mark.parametrize("command", ["plan", "train"])
def test_a_plan_and_a_run_refuse_it_as_well(
    rlhf: Command, recipe: Path, model_folder: Path, command: str, spoilt: Spoil, told: str
):
    spoilt(model_folder)
    ended = rlhf(command, recipe, "model.tiny=null", f"model.path={model_folder}")
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1), ended.stderr
    assert ended.stderr.startswith(f"error: {whole(told, model_folder)}")


def whole(told: str, folder: Path) -> str:
    return told.replace("FOLDER", str(folder)).replace("VERSION", version("transformers"))


def test_code_that_is_trusted_is_not_judged(rlhf: Command, recipe: Path, model_folder: Path):
    WITH_ITS_OWN_CODE(model_folder)
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
    OF_ANOTHER_WIDTH(model_folder)
    given = ("model.tiny=null", f"model.path={model_folder}", "model.loader=mine:load")
    assert rlhf("check", recipe, *given).returncode == 0


def test_recorded_episodes_need_no_template(rlhf: Command, recipe: Path, model_folder: Path, tmp_path: Path):
    without_a_template(model_folder)
    (tmp_path / "episodes.jsonl").write_text("")
    given = ("model.tiny=null", f"model.path={model_folder}", f"data.episodes={tmp_path / 'episodes.jsonl'}")
    ended = rlhf("check", recipe, "kind=offline", "data.train=null", *given)
    assert ended.stderr.endswith("episodes.jsonl has no episodes\n")  # and of the template not a word


def test_every_file_of_an_index_is_read(rlhf: Command, recipe: Path, model_folder: Path):
    without_weights(model_folder)
    save_tensors(model_folder / "a.safetensors", {"model.embed_tokens.weight": (8, 4)})
    change(model_folder / "model.safetensors.index.json", weight_map={"a": "a.safetensors", "b": "b.safetensors"})
    error = refusal(rlhf, recipe, "model.tiny=null", f"model.path={model_folder}")
    assert f"{model_folder / 'b.safetensors'} is missing, but the index names it" in error
