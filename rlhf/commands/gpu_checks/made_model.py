"""The checks' own model: random weights of a real model's depth, width and vocabulary, with logits as large as a
trained model's."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from rlhf.commands.gpu_checks.machine import GpuMachine, Sizes
from rlhf.models.tiny import byte_tokenizer

LARGEST_LOGIT = 25.0
"""Trained models have logits of 20 to 30, where one unit in the last place of bfloat16 is 0.125."""
REST = 0.25
"""Size of the logits of tokens that no text has, relative to those of bytes, so that a reply is mostly bytes."""


def checked_model(machine: GpuMachine) -> str:
    """The model that `--model` names, else our own."""
    return machine.model or made_model(machine.folder, machine.sizes)


def made_model(folder: Path, sizes: Sizes) -> str:
    """The folder of our own model, which is made when it is first asked for."""
    made = folder / "model"
    if not (made / "config.json").exists():
        save_made_model(sizes, made)
    return str(made)


def save_made_model(sizes: Sizes, folder: Path) -> None:
    """Write the model in bfloat16 and a byte tokenizer."""
    tokenizer = byte_tokenizer()
    torch.manual_seed(0)
    shape = sizes.shape
    model: PreTrainedModel = Qwen2ForCausalLM(  # type: ignore[no-untyped-call]
        Qwen2Config(
            vocab_size=sizes.vocabulary,
            hidden_size=shape.hidden_size,
            intermediate_size=shape.intermediate_size,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            max_position_embeddings=32_768,
            tie_word_embeddings=False,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=None,
        )
    )
    enlarge_logits(model, len(tokenizer))
    model.bfloat16().save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def enlarge_logits(model: PreTrainedModel, named: int) -> None:
    """Scale the head so that the largest logit on some tokens is `LARGEST_LOGIT`; of `named` tokens there is text."""
    head = model.get_output_embeddings().weight  # type: ignore[no-untyped-call]
    with torch.no_grad():
        head[named:] *= REST
        logits = model(torch.arange(named)[None, :64]).logits
        head *= LARGEST_LOGIT / logits.abs().max()
