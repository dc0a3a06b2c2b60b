"""`rlhf export`: a checkpoint's model as a Hugging Face folder of its own."""

from __future__ import annotations

import shutil
from pathlib import Path

from rlhf.errors import UserError
from rlhf.trainer.checkpoint import model_folder


def export(checkpoint: str, output: Path) -> int:
    """Copy the ready model folder. Raises `UserError` when `output` holds something already."""
    source = Path(model_folder(checkpoint))
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(f"{output} exists already; name a folder that does not")
    shutil.copytree(source, output, dirs_exist_ok=True)
    print(f"{output}: load it with transformers, vLLM, or as model.path of a recipe")
    return 0
