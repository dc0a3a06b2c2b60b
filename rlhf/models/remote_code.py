"""Find whether a model folder needs its own code, from transformers' list of model types without importing it."""

from __future__ import annotations

from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from rlhf.errors import ModelError
from rlhf.models.folder import Values, read_json_object

MODEL_TYPES = ("models/auto/auto_mappings.py", "models/auto/configuration_auto.py")
"""Files in which transformers lists the model types that it supports."""
FILES = ("config.json", "tokenizer_config.json")


def brings_code(folder: Path, config: Values) -> bool:
    """Whether transformers does not support the model itself and the folder has its own code in `auto_map`. For models
    that it supports, transformers ignores such code."""
    return not is_known(str(config.get("model_type"))) and bool(_naming(folder))


def check_remote_code(folder: Path, config: Values, *, trusted: bool) -> None:
    """Raise `ModelError` for a model that needs its own code when the recipe does not trust it."""
    if not trusted and brings_code(folder, config):
        raise ModelError(
            f"{folder} brings its own code (auto_map in {_naming(folder)[0]}): transformers {version('transformers')} "
            f"does not know model_type {config.get('model_type')}; if you trust that code, set "
            "model.trust_remote_code: true"
        )


def is_known(model_type: str) -> bool:
    """Whether the installed transformers supports this type itself. True if transformers is not installed."""
    listed = _listed()
    return listed is None or f'"{model_type}"' in listed


def _naming(folder: Path) -> list[str]:
    return [name for name in FILES if read_json_object(folder / name).get("auto_map")]


@cache
def _listed() -> str | None:
    """Return the source text that contains every supported model type in quotes."""
    spec = find_spec("transformers")
    if spec is None or spec.origin is None:
        return None
    files = [Path(spec.origin).parent / name for name in MODEL_TYPES]
    return "".join(file.read_text() for file in files if file.exists()) or None
