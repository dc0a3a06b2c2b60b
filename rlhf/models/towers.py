"""Multimodal models: a language part, which text trains, and towers, which stay unchanged."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from torch import nn
from transformers import (
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedModel,
)
from transformers.utils.hub import cached_file

from rlhf.models.attention import decoder_of

PROCESSORS = ("preprocessor_config.json", "video_preprocessor_config.json", "processor_config.json")
"""Files that describe how a model takes images, videos or audio."""


def auto_class(config: Any) -> Any:
    """Return the class of transformers that loads a policy with this configuration, with its towers."""
    return AutoModelForImageTextToText if type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING else AutoModelForCausalLM


def towers(model: nn.Module) -> list[nn.Module]:
    """Return the parts other than the language part: encoders of images or audio, their projections into the embedding,
    and weights that belong to no part. None for a model of text alone."""
    if not isinstance(model, PreTrainedModel):
        return []
    base, decoder, head = model.base_model, decoder_of(model), model.get_output_embeddings()  # type: ignore[no-untyped-call]
    if base is decoder:
        return []
    parts = [part for part in base.children() if decoder not in part.modules() and part is not head]
    loose = list(base.parameters(recurse=False))
    return [*parts, nn.ParameterList(loose)] if loose else parts


def copy_processors(model_path: str, folder: Path) -> None:
    """Copy the processors' files of a model folder or hub name, as far as it has them, into `folder`."""
    lenient = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
    for name in PROCESSORS:
        if found := cached_file(model_path, name, **lenient):
            shutil.copyfile(found, folder / name)
