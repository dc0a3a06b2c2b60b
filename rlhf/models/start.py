"""The start model of a run: the recipe's own, or a tiny one that is made if missing and cached."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from rlhf.durable import files_below, sync_file, sync_folder, sync_tree
from rlhf.errors import ModelError
from rlhf.models.config import ModelConfig

FORMAT = 1
"""Increased whenever the same recipe would make a model with other weights."""

WarmUp = Callable[[Path, Path], Awaitable[None]]
"""Trains the model in the first folder on demonstrations and writes the result to the second folder."""


def start_folder(config: ModelConfig, *, seed: int, demonstrations: Any) -> Path:
    """Return the cache folder of this recipe's made model: a hash of everything that determines its weights.
    `demonstrations` is what determines the warm-up's data, as JSON values."""
    decides = {
        "format": FORMAT,
        "seed": seed,
        "tiny": config.tiny and config.tiny.model_dump(mode="json"),
        "warmup": config.warmup and config.warmup.model_dump(mode="json") | {"dtype": config.dtype},
        "demonstrations": demonstrations if config.warmup else None,
    }
    digest = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:16]
    return Path(config.cache_dir).expanduser() / digest


async def start_model(config: ModelConfig, *, seed: int, demonstrations: Any, warm_up: WarmUp) -> str:
    """Return the folder or hub name to start from. A tiny model that is not in the cache is made and added to it."""
    if config.tiny is None:
        return os.path.expanduser(str(config.path))
    finished = start_folder(config, seed=seed, demonstrations=demonstrations)
    if not finished.is_dir():
        making = finished.with_name(f"{finished.name}.making-{os.getpid()}")
        shutil.rmtree(making, ignore_errors=True)
        try:
            making.mkdir(parents=True)
        except OSError as error:
            raise ModelError(
                f"the start model cannot be made in {finished.parent} ({error.strerror}); set model.cache_dir to a "
                "folder that can be written"
            ) from None
        try:
            from rlhf.models.tiny import save_tiny  # imports torch

            raw = save_tiny(config.tiny, seed, making / "raw")
            made = making / "warm" if config.warmup else raw
            if config.warmup:
                await warm_up(raw, made)
            for file in files_below(made):
                sync_file(file)
            sync_tree(made)
            try:
                made.rename(finished)
            except OSError:
                if not finished.is_dir():  # otherwise another run made the same model first
                    raise
            sync_folder(finished.parent)
        finally:
            shutil.rmtree(making, ignore_errors=True)
    return str(finished)
