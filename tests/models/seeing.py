"""Tiny models that see: a language part, and a vision tower of a few KB."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForImageTextToText, PreTrainedModel, PreTrainedTokenizerBase

from rlhf.models.tiny import byte_tokenizer

LANGUAGE: dict[str, Any] = {
    "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 32, "max_position_embeddings": 1024, "initializer_range": 0.05,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
SLIDES = {"sliding_window": 12, "layer_types": ["sliding_attention", "full_attention"]}
LINEAR = {
    "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 1, "linear_num_value_heads": 2,
    "linear_key_head_dim": 64, "linear_value_head_dim": 64,
}  # fmt: skip
SEES = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 1, "num_hidden_layers": 1, "head_dim": 16}
POOLS = {
    "num_key_value_heads": 1, "pooling_kernel_size": 2, "default_output_length": 70, "position_embedding_size": 64,
}  # fmt: skip
SEES_QWEN = {
    "depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 1, "out_hidden_size": 64, "patch_size": 4,
    "num_position_embeddings": 4,
}  # fmt: skip
MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [6, 5, 5]}}
MADE: dict[str, dict[str, Any]] = {
    "qwen3_5": {"text_config": LINEAR, "vision_config": SEES_QWEN},
    "qwen3_vl": {
        "text_config": {"rope_parameters": MROPE["rope_parameters"] | {"mrope_interleaved": True}},
        "vision_config": SEES_QWEN | {"deepstack_visual_indexes": [0]},
    },
    "gemma3": {
        "text_config": {"query_pre_attn_scalar": 16, **SLIDES},
        "vision_config": {"model_type": "siglip_vision_model", "image_size": 16, "patch_size": 4, **SEES},
        "mm_tokens_per_image": 4,
    },
    "gemma4": {
        "text_config": {"hidden_size_per_layer_input": 16, "vocab_size_per_layer_input": 320, **SLIDES},
        "vision_config": {"model_type": "gemma4_vision", "patch_size": 4, **SEES, **POOLS},
    },
    "mistral3": {
        "text_config": {"model_type": "mistral"},
        "vision_config": {"model_type": "pixtral", "image_size": 16, "patch_size": 4, **SEES},
    },
}  # fmt: skip
"""What a model's configuration takes beside `LANGUAGE`, by transformers' name of the model."""


SHOWN: dict[str, dict[str, Any]] = {
    **{kind: MADE[kind] for kind in ("qwen3_vl", "gemma3", "gemma4")},
    "qwen2_5_vl": {
        "text_config": MROPE,
        "vision_config": SEES_QWEN | {"depth": 2, "window_size": 16, "fullatt_block_indexes": [1]},
    },
    "qwen3_5": {
        "text_config": LINEAR
        | {"rope_parameters": MROPE["rope_parameters"] | {"mrope_interleaved": True, "partial_rotary_factor": 1.0}},
        "vision_config": SEES_QWEN,
    },
    "idefics3": {
        "text_config": {"model_type": "llama"},
        "vision_config": SEES | {"image_size": 16, "patch_size": 4},
        "scale_factor": 2,
    },
    "lfm2_vl": {
        "text_config": {
            "model_type": "lfm2", "layer_types": ["conv", "full_attention"], "block_dim": 64, "conv_dim": 64,
            "conv_dim_out": 64, "block_ff_dim": 96, "block_auto_adjust_ff_dim": False,
        },
        "vision_config": SEES | {"patch_size": 4, "num_patches": 64, "vision_use_head": False},
        "projector_hidden_size": 32,
    },
    "internvl": {
        "text_config": {"model_type": "qwen2"},
        "vision_config": SEES | {"image_size": [16, 16], "patch_size": [4, 4]},
        "image_seq_length": 4,
    },
}  # fmt: skip
"""The same of models that are saved with a processor."""
NAMED = {
    "image_token": "<image>", "video_token": "<video>", "boi_token": "<boi>", "eoi_token": "<eoi>",
    "audio_token": "<audio>", "boa_token": "<boa>", "eoa_token": "<eoa>", "start_image_token": "<img>",
    "end_image_token": "</img>", "context_image_token": "<image>",
}  # fmt: skip
UNNAMED = (
    "<fake_token_around_image>", "<global-img>", "<|video|>", "<|image_start|>", "<|image_end|>", "<|img_thumbnail|>",
    "<end_of_utterance>", *(f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)),
    *(f"<|img_row_{row}_col_{column}|>" for row in (1, 2) for column in (1, 2)),
)  # fmt: skip
"""Special tokens that processors ask their tokenizer for, and others that they know."""


def seeing(kind: str, **given: Any) -> PreTrainedModel:
    """A model with random weights, always the same."""
    made = SHOWN[kind] if given else MADE[kind]
    parts = {name: dict(values) if isinstance(values, dict) else values for name, values in made.items()}
    parts["text_config"] = LANGUAGE | parts["text_config"]
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **parts, **given)
    model: PreTrainedModel = AutoModelForImageTextToText.from_config(config)  # type: ignore[no-untyped-call]
    return model


def save_seeing(kind: str, folder: Path) -> Path:
    """The folder of a made model."""
    seeing(kind).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def save_shown(kind: str, folder: Path) -> Path:
    """The folder of a model with its processor, every vector of it other than its neighbours."""
    tokenizer: Any = byte_tokenizer(sees=True)
    tokenizer.add_tokens([*dict.fromkeys(NAMED.values()), *UNNAMED], special_tokens=True)
    tokenizer._set_model_specific_special_tokens(NAMED)
    ids = {
        f"{name}_id": getattr(tokenizer, f"{name}_id")
        for name in ("image_token", "video_token", "boi_token", "eoi_token", "audio_token")
    }
    model = seeing(kind, **ids)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 1:  # norms are ones and biases zeros: one could not be told from another
                weight.add_(0.1 * torch.randn(weight.shape))
    model.save_pretrained(folder)
    if kind == "lfm2_vl":  # transformers loads the names of released models, but writes others
        file = folder / "model.safetensors"
        released = {re.sub(r"(?<=vision_tower\.)", "vision_model.", name): one for name, one in load_file(file).items()}
        save_file(released, file, metadata={"format": "pt"})
    processor(kind, tokenizer).save_pretrained(folder)
    return folder


def processor(kind: str, tokenizer: PreTrainedTokenizerBase) -> Any:
    """A real processor of patches of 4 x 4 pixels, four of which become a token; tiles have 16 x 16 pixels."""
    of: Any = transformers
    tile = {"height": 16, "width": 16}
    qwen = {"patch_size": 4, "merge_size": 2, "temporal_patch_size": 2}
    if kind.startswith("qwen"):
        name = "Qwen2_5_VL" if kind == "qwen2_5_vl" else "Qwen3VL"
        images = of.Qwen2VLImageProcessor(size={"shortest_edge": 8 * 8, "longest_edge": 64 * 64}, **qwen)
        videos = (of.Qwen2VLVideoProcessor if kind == "qwen2_5_vl" else of.Qwen3VLVideoProcessor)(**qwen)
        return getattr(of, f"{name}Processor")(images, tokenizer, videos)
    if kind == "gemma3":
        return of.Gemma3Processor(of.Gemma3ImageProcessor(size=tile), tokenizer, image_seq_length=4)
    if kind == "gemma4":
        sizes = {"patch_size": 4, "pooling_kernel_size": 2, "max_soft_tokens": 70}
        audio = of.Gemma4AudioFeatureExtractor()
        return of.Gemma4Processor(audio, of.Gemma4ImageProcessor(**sizes), tokenizer, of.Gemma4VideoProcessor(**sizes))
    if kind == "idefics3":
        images = of.Idefics3ImageProcessor(size={"longest_edge": 32}, max_image_size={"longest_edge": 16})
        return of.Idefics3Processor(images, tokenizer, image_seq_len=4)
    if kind == "lfm2_vl":
        images = of.Lfm2VlImageProcessor(
            tile_size=16, size=tile, encoder_patch_size=4, min_image_tokens=4, max_image_tokens=16, max_tiles=4
        )
        return of.Lfm2VlProcessor(images, tokenizer)
    images = of.GotOcr2ImageProcessor(size=tile, crop_to_patches=True, max_patches=3)
    return of.InternVLProcessor(images, tokenizer, of.InternVLVideoProcessor(size=tile), image_seq_length=4)
