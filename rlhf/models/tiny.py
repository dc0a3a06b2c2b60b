"""Makes small models from a recipe: a byte tokenizer with a chat template, and a causal LM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import pre_tokenizers
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Qwen2Tokenizer
from transformers.utils.logging import disable_progress_bar

from rlhf.models.config import TinyModelConfig

disable_progress_bar()  # type: ignore[no-untyped-call]
PAD, START, END = "<|pad|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ARCHITECTURES: dict[str, tuple[Any, Any]] = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    "qwen3_moe": (transformers.Qwen3MoeConfig, transformers.Qwen3MoeForCausalLM),
    "qwen3_5": (transformers.Qwen3_5TextConfig, transformers.Qwen3_5ForCausalLM),
}


def byte_tokenizer() -> PreTrainedTokenizerBase:
    """Return a tokenizer with a token for every byte and ChatML's special tokens. It is Qwen's without merges;
    `AutoTokenizer` restores this class unchanged for every architecture."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Qwen2Tokenizer(
        vocab={token: index for index, token in enumerate([PAD, START, END, *alphabet])},
        merges=[],
        pad_token=PAD,
        eos_token=END,
        unk_token=None,  # type: ignore[arg-type]  # every byte has a token, so none is unknown
        additional_special_tokens=[START],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def tiny_model(config: TinyModelConfig, tokenizer: PreTrainedTokenizerBase, seed: int) -> PreTrainedModel:
    """Return a float32 model with random weights that depend only on `config` and `seed`."""
    config_class, model_class = ARCHITECTURES[config.architecture]
    torch.manual_seed(seed)
    model: PreTrainedModel = model_class(
        config_class(
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
    )
    return model


def save_tiny(config: TinyModelConfig, seed: int, folder: Path) -> Path:
    tokenizer = byte_tokenizer()
    tiny_model(config, tokenizer, seed).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
