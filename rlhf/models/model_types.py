"""Which models can be trained to generate text, from a `config.json` and the source text of transformers."""

from __future__ import annotations

import re
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from rlhf.errors import ModelError
from rlhf.models.model_files import DEPTHS, WIDTHS, Values, read_json_object, text_config

SOURCES = ("auto_mappings.py", "configuration_auto.py", "modeling_auto.py")
"""Files in which transformers lists the model types and classes that it supports."""
FILES = ("config.json", "tokenizer_config.json")
TEXT, PICTURES, MASKED = "CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "MASKED_LM"
"""transformers' names for the abilities of a model type: generate text, also about pictures, and fill in tokens."""
NUMBERS = (*WIDTHS, *DEPTHS, "vocab_size", "num_attention_heads", "max_position_embeddings")


def check_generates(folder: Path, config: Values, key: str = "model.path") -> None:
    """Raise `ModelError` for a `config.json` whose model cannot be trained to generate text: of an unknown type, an
    encoder, quantised, or with a number that is none. A model with its own code is accepted."""
    named, text = f"{key}={folder}", text_config(config)
    for name in NUMBERS:
        if isinstance(text.get(name), str | float | bool):
            raise ModelError(f"{named}: {name} in its config.json is {text[name]!r}, not a whole number")
    check_precision(str(folder), config, key)
    if brings_code(folder, config):
        return
    family = str(config.get("model_type"))
    if not is_known(family):
        raise ModelError(f"{named}: transformers {version('transformers')} does not know its model_type {family}")
    if kind := _other_kind(family, config):
        raise ModelError(f"{named}: {family} is {kind}; take a decoder that generates text (…ForCausalLM)")


def check_precision(path: str, config: Values, key: str = "model.path") -> None:
    """Raise `ModelError` for quantised weights, which cannot be trained."""
    found = config.get("quantization_config") or text_config(config).get("quantization_config")
    if found:
        method = found.get("quant_method", "an unknown method") if isinstance(found, dict) else found
        raise ModelError(
            f"{key}={path}: its weights are quantised ({method}), but training needs 16 or 32 bits; use the model "
            "that it was made from, or dequantise it"
        )


def brings_code(folder: Path, config: Values) -> bool:
    """Whether the folder has its own code, in `auto_map`, for a model that transformers does not support itself."""
    classes = config.get("architectures") or ()
    return bool(_naming(folder)) and not all(map(is_known, (str(config.get("model_type")), *classes)))


def check_remote_code(folder: Path, config: Values, *, trusted: bool) -> None:
    """Raise `ModelError` for a model that needs its own code when the recipe does not trust it."""
    if not trusted and brings_code(folder, config):
        family = str(config.get("model_type"))
        unknown = f"{config['architectures'][0]}" if is_known(family) else f"model_type {family}"
        raise ModelError(
            f"{folder} brings its own code (auto_map in {_naming(folder)[0]}): transformers {version('transformers')} "
            f"does not know {unknown}; if you trust that code, set model.trust_remote_code: true"
        )


def is_known(name: str) -> bool:
    """Whether the installed transformers supports this type or class itself. True if transformers is not installed."""
    listed = _listed()
    return listed is None or f'"{name}"' in listed


def _other_kind(family: str, config: Values) -> str:
    """Describe a model that does not generate text by itself; empty for one that does."""
    if config.get("is_encoder_decoder"):
        return "an encoder-decoder"
    if _can(family, MASKED) and not config.get("is_decoder"):
        return "an encoder"
    return "" if _can(family, TEXT) or _can(family, PICTURES) else "no language model"


def _can(family: str, what: str) -> bool:
    listed = _listed()
    table = listed and re.search(rf"MODEL_FOR_{what}_MAPPING_NAMES = OrderedDict\(.*?\n\)", listed, re.DOTALL)
    return not table or f'("{family}", ' in table[0]


def _naming(folder: Path) -> list[str]:
    return [name for name in FILES if read_json_object(folder / name).get("auto_map")]


@cache
def _listed() -> str | None:
    """Return the source text that contains every supported model type and class in quotes."""
    spec = find_spec("transformers")
    if spec is None or spec.origin is None:
        return None
    files = [Path(spec.origin).parent / "models" / "auto" / name for name in SOURCES]
    return "".join(file.read_text() for file in files if file.exists()) or None
