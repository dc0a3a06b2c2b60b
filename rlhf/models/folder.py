"""Reads the JSON files of a Hugging Face model folder without transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rlhf.errors import ModelError

Values = dict[str, Any]


def read_json_object(file: Path) -> Values:
    """Return the JSON object in `file`; an empty one if the file does not exist. Raises `ModelError`."""
    try:
        loaded = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} cannot be read as JSON ({_reason(error)}); download the model again") from None
    if not isinstance(loaded, dict):
        raise ModelError(f"{file} is not a JSON object; download the model again")
    return loaded


def text_config(config: Values) -> Values:
    """Return the language model's part of a `config.json`, which multimodal models nest."""
    nested = config.get("text_config")
    return nested if isinstance(nested, dict) else config


def _reason(error: OSError | ValueError) -> str:
    return str(error.strerror) if isinstance(error, OSError) else str(error)
