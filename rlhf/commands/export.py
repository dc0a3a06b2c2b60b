"""`rlhf export`: a checkpoint's model as a Hugging Face folder of its own."""

from __future__ import annotations

from pathlib import Path

from rlhf.trainer.checkpoint import export_model, model_folder


def run_export(checkpoint: str, output: Path) -> int:
    """Copy the ready model folder. Raises `UserError` when `output` holds something already."""
    export_model(model_folder(checkpoint), output)
    print(f"{output}: load it with transformers, vLLM, or as model.path of a recipe")
    return 0
