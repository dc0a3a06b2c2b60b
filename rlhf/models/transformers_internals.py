"""Names that transformers does not promise to keep: a new transformers breaks this page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from transformers import PreTrainedModel
from transformers.modeling_utils import _get_resolved_checkpoint_files


def attends_in_blocks(model: PreTrainedModel) -> bool:
    """Whether the argument `blocks` of the model's forward pass reaches the attention of its layers."""
    return bool(model._supports_attention_backend) and model.config._attn_implementation == "sdpa"


def processed_image(processor: Any, picture: Any) -> tuple[Mapping[str, Any], str]:
    """Return the tensors of an image, and the text that the model's processor writes in place of its mark."""
    settings = processor._merge_kwargs(
        processor.valid_processor_kwargs, tokenizer_init_kwargs=processor.tokenizer.init_kwargs, return_tensors="pt"
    )
    given, misplaced = settings["images_kwargs"], "use_image_special_tokens"  # LFM2-VL moves it in `__call__`
    given |= {misplaced: settings["text_kwargs"][misplaced]} if misplaced in settings["text_kwargs"] else {}
    tensors, (expansion,) = processor._process_images([picture], **given)
    return tensors, expansion


def checkpoint_files(model: PreTrainedModel, path: str) -> list[str]:
    """Return the files with the weights of a folder or a name of the hub."""
    files, _ = _get_resolved_checkpoint_files(
        pretrained_model_name_or_path=path,
        variant=None,
        gguf_file=None,
        use_safetensors=None,
        user_agent=None,
        is_remote_code=type(model).is_remote_code(),
        transformers_explicit_filename=vars(model.config).get("transformers_weights"),
    )
    return files or []


def checkpoint_by(layer: Any, checkpoint: Callable[..., Any]) -> None:
    """Have a layer recomputed by `checkpoint`, which gets the default function as its first argument."""
    layer._gradient_checkpointing_func = partial(checkpoint, layer._gradient_checkpointing_func)
