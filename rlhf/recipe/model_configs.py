"""Find the `config.json` of a recipe's model without the hub: a given file, the model folder, the table of this
package, the hub's local cache, or the tiny model that the recipe makes."""

from __future__ import annotations

import json
import os
from importlib.resources import files
from pathlib import Path

from rlhf.errors import ModelError
from rlhf.models.config import ModelConfig, TinyModelConfig
from rlhf.models.model_files import Values
from rlhf.recipe.preflight import is_hub_name, read_model_config

TINY_VOCABULARY = 288
"""The byte tokenizer's tokens, rounded up (`rlhf.models.tiny`)."""


def model_values(model: ModelConfig, given: Path | None = None) -> tuple[str, Values]:
    """Return the model's name and its configuration. Raises `ModelError` if this machine lacks it."""
    if given is not None:
        return str(given), _read(given)
    name, values = find_values(model)
    if values is None:
        raise ModelError(
            f"model.path={name} is neither in this machine's cache nor among the configurations that come with rlhf "
            f"({', '.join(known_models())}); give its config.json: --config FILE"
        )
    return name, values


def find_values(model: ModelConfig) -> tuple[str, Values | None]:
    """Return the model's name and, if it is here, its configuration. Raises `ModelError` for a broken folder."""
    if model.tiny is not None:
        return f"tiny {model.tiny.architecture}", tiny_values(model.tiny)
    name = str(model.path)
    if not is_hub_name(name):
        return name, read_model_config(Path(name).expanduser())
    known, cached = known_models().get(name), _cached(name)
    return name, known or (_read(cached) if cached else None)


def known_models() -> dict[str, Values]:
    """Read what decides shapes in the `config.json` of well-known models, by hub name."""
    table: dict[str, Values] = json.loads(files("rlhf.recipe").joinpath("known_models.json").read_text())
    return table


def tiny_values(tiny: TinyModelConfig) -> Values:
    """Return the configuration that `rlhf.models.tiny` gives such a model."""
    text = {
        "vocab_size": TINY_VOCABULARY,
        "hidden_size": tiny.hidden_size,
        "intermediate_size": tiny.intermediate_size,
        "num_hidden_layers": tiny.layers,
        "num_attention_heads": tiny.heads,
        "num_key_value_heads": tiny.kv_heads,
        "head_dim": tiny.hidden_size // tiny.heads,
        "max_position_embeddings": tiny.max_position_embeddings,
        "tie_word_embeddings": tiny.tie_word_embeddings,
        **tiny.of_architecture,
    }
    if tiny.sees:
        tied = tiny.tie_word_embeddings
        return {
            "model_type": "qwen3_vl", "text_config": text, "vision_config": tiny.of_tower, "tie_word_embeddings": tied
        }  # fmt: skip
    return {"model_type": "qwen3_5_text" if tiny.architecture == "qwen3_5" else tiny.architecture, **text}


def _read(file: Path) -> Values:
    try:
        values = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} cannot be read as a config.json: {error}") from None
    if not isinstance(values, dict) or "model_type" not in values:
        raise ModelError(f"{file} has no model_type; give the config.json of a Hugging Face model")
    return values


def _cached(name: str) -> Path | None:
    """Return the newest `config.json` of this hub name in the hub's cache, as huggingface_hub lays it out."""
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    hub = Path(os.environ.get("HF_HUB_CACHE", home / "hub"))
    found = sorted(hub.glob(f"models--{name.replace('/', '--')}/snapshots/*/config.json"), key=os.path.getmtime)
    return found[-1] if found else None
