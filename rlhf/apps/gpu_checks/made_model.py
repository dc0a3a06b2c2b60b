"""Make the checks' model, and check its forward pass. It has a real model's depth, width and vocabulary, and logits as
large as a trained model's."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from rlhf.apps.gpu_checks.machine import Finding, GpuMachine
from rlhf.errors import ModelError
from rlhf.models.loading import load_policy
from rlhf.models.probe import check_packed_forward
from rlhf.models.tiny import byte_tokenizer

LARGEST_LOGIT = 25.0
"""Trained models have logits of 20 to 30, where one unit in the last place of bfloat16 is 0.125."""
REST = 0.25
"""Factor on the logits of tokens without a text, so that a reply is mostly bytes."""


def packed_rows(machine: GpuMachine) -> Finding:
    """Compare packed rows with single sequences on this device's kernels, as every start of a run does."""
    model = load_policy(checked_model(machine), dtype="bfloat16")
    torch.nn.Module.to(model, machine.device)
    fault = ""
    try:
        check_packed_forward(model, checked_model(machine))
    except ModelError as error:
        fault = str(error)
    return Finding(good=not fault, expected="logits of packed rows within rounding", found=fault or "within rounding")


def checked_model(machine: GpuMachine) -> str:
    """Return the model that `--model` names, else the folder of the made model, which the first check writes."""
    made = machine.shared / "model"
    if not machine.model and not (made / "config.json").exists():
        save_made_model(machine, made)
    return machine.model or str(made)


def save_made_model(machine: GpuMachine, folder: Path) -> None:
    """Write the model in bfloat16 and a byte tokenizer."""
    tokenizer = byte_tokenizer()
    torch.manual_seed(0)
    shape = machine.sizes.shape
    model: PreTrainedModel = Qwen2ForCausalLM(  # type: ignore[no-untyped-call]
        Qwen2Config(
            vocab_size=machine.sizes.vocabulary,
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
    """Scale the head so that the largest logit is `LARGEST_LOGIT`; the first `named` tokens have a text."""
    head = model.get_output_embeddings().weight  # type: ignore[no-untyped-call]
    with torch.no_grad():
        head[named:] *= REST
        logits = model(torch.arange(named)[None, :64]).logits
        head *= LARGEST_LOGIT / logits.abs().max()
