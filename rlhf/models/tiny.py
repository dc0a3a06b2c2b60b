"""Makes small models from a recipe: a byte tokenizer with a chat template, and a causal LM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Qwen2Tokenizer
from transformers.utils.logging import disable_progress_bar

from rlhf.models.config import LARGEST_IMAGE, MERGED_PATCHES, PATCH_PIXELS, TinyModelConfig

disable_progress_bar()  # type: ignore[no-untyped-call]
PAD, START, END = "<|pad|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
VISION_START, VISION_END, IMAGE, VIDEO = SEEN = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
"""Qwen's special tokens around an image, and in its place."""
SEEING_TEMPLATE = CHAT_TEMPLATE.replace(
    "{{ message['content'] }}",
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}{% endif %}",
)
ARCHITECTURES: dict[str, tuple[Any, Any]] = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    "qwen3_moe": (transformers.Qwen3MoeConfig, transformers.Qwen3MoeForCausalLM),
    "qwen3_5": (transformers.Qwen3_5TextConfig, transformers.Qwen3_5ForCausalLM),
    "qwen3_vl": (transformers.Qwen3VLTextConfig, transformers.Qwen3VLForConditionalGeneration),
}


def byte_tokenizer(*, sees: bool = False) -> PreTrainedTokenizerBase:
    """Return a tokenizer with a token for every byte and ChatML's special tokens, and with Qwen's for images if it
    `sees`. It is Qwen's without merges; `AutoTokenizer` restores this class unchanged for every architecture."""
    alphabet, seen = sorted(pre_tokenizers.ByteLevel.alphabet()), SEEN if sees else ()
    tokenizer = Qwen2Tokenizer(
        vocab={token: index for index, token in enumerate([PAD, START, END, *alphabet, *seen])},
        merges=[],
        pad_token=PAD,
        eos_token=END,
        unk_token=None,  # type: ignore[arg-type]  # every byte has a token, so none is unknown
        additional_special_tokens=[START, *seen],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = SEEING_TEMPLATE if sees else CHAT_TEMPLATE
    return tokenizer


def tiny_model(config: TinyModelConfig, tokenizer: PreTrainedTokenizerBase, seed: int) -> PreTrainedModel:
    """Return a float32 model with random weights that depend only on `config` and `seed`."""
    config_class, model_class = ARCHITECTURES[config.architecture]
    text = config_class(
        vocab_size=-(-len(tokenizer) // 32) * 32,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        head_dim=config.hidden_size // config.heads,
        max_position_embeddings=config.max_position_embeddings,
        tie_word_embeddings=config.tie_word_embeddings,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        **config.of_architecture,
    )
    torch.manual_seed(seed)
    model: PreTrainedModel = model_class(_seeing(config, text, tokenizer) if config.sees else text)
    return model


def _seeing(config: TinyModelConfig, text: Any, tokenizer: PreTrainedTokenizerBase) -> transformers.Qwen3VLConfig:
    """Return the configuration of the language model with its tower."""
    of_name: Any = tokenizer.convert_tokens_to_ids
    start, end, image, video = map(of_name, SEEN)
    return transformers.Qwen3VLConfig(
        text_config=text.to_dict(),
        vision_config=config.of_tower,
        image_token_id=image,
        video_token_id=video,
        vision_start_token_id=start,
        vision_end_token_id=end,
        tie_word_embeddings=config.tie_word_embeddings,
    )


def save_tiny(config: TinyModelConfig, seed: int, folder: Path) -> Path:
    tiny_model(config, byte_tokenizer(sees=config.sees), seed).save_pretrained(folder)
    return save_tokenizer(config, folder)


def save_tokenizer(config: TinyModelConfig, folder: Path) -> Path:
    """Save the tokenizer, and the processor of a model that sees; return the folder."""
    tokenizer = byte_tokenizer(sees=config.sees)
    tokenizer.save_pretrained(folder)
    if config.sees:
        sizes = {"patch_size": PATCH_PIXELS, "merge_size": MERGED_PATCHES, "temporal_patch_size": 2}
        limits = {"shortest_edge": (PATCH_PIXELS * MERGED_PATCHES) ** 2, "longest_edge": LARGEST_IMAGE}
        processor: Any = transformers.Qwen3VLProcessor
        processor(
            image_processor=transformers.Qwen2VLImageProcessor(size=limits, **sizes),
            tokenizer=tokenizer,
            video_processor=transformers.Qwen3VLVideoProcessor(**sizes),
            chat_template=tokenizer.chat_template,
        ).save_pretrained(folder)
    return folder
