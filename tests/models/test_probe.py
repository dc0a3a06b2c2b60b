"""What is proved of a model when it is loaded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AttentionInterface,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)

from rlhf.errors import ModelError
from rlhf.models import attention as attention_module
from rlhf.models import policy as policy_module
from rlhf.models.config import Packing, TinyModelConfig
from rlhf.models.loading import load_policy
from rlhf.models.policy import SequencesAlone, row_mask
from rlhf.models.probe import check_packed_forward, proved_rows
from rlhf.models.scalar import load_scalar
from rlhf.models.tiny import save_tiny
from tests.architectures.families import FAMILIES, made

NAMES = ("falcon", "gemma3", "gpt_oss", "mistral", "phi3", "qwen2-sliding")
CASES = [
    (name, attention)
    for name in NAMES
    for attention in ("sdpa", "eager")
    if (name, attention) != ("gpt_oss", "sdpa")  # transformers has none for it
]


def family_model(name: str, attention: str) -> PreTrainedModel:
    """Its logits are spread like a trained model's: a token that is seen or not makes nats of a difference."""
    family = next(family for family in FAMILIES if family.name == name)
    if name == "gpt_oss":  # every expert is chosen, so that no rounding decides
        family = replace(family, settings={**family.settings, "num_experts": 2, "num_local_experts": 2})
    model = made(family, attn_implementation=attention)
    with torch.no_grad():
        for weight_name, weight in model.named_parameters():
            if weight.ndim > 1 and "embed" not in weight_name and "lm_head" not in weight_name:
                weight.normal_(0, 1.0 / weight.shape[-1] ** 0.5)
        model.get_output_embeddings().weight.normal_(0, 0.5)  # type: ignore[no-untyped-call]
    return model.train()


SHAPE: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 64,
}  # fmt: skip


@pytest.mark.parametrize(
    ("architecture", "attention", "dtype"),
    [("llama", "sdpa", "float32"), ("qwen2", "eager", "bfloat16"), ("qwen3", "sdpa", "bfloat16")],
)
def test_the_models_that_are_trained_here_pass(architecture: Any, attention: str, dtype: str, tmp_path: Path) -> None:
    folder = str(save_tiny(TinyModelConfig(architecture=architecture, hidden_size=64), 0, tmp_path))
    check_packed_forward(load_policy(folder, attention=attention, dtype=dtype), folder)
    check_packed_forward(load_scalar(folder, attention=attention, dtype=dtype, fresh_head=True), folder)


def test_logits_that_are_not_made_as_is_known_here_are_refused() -> None:
    scaled = LlamaForCausalLM(LlamaConfig(**SHAPE, attn_implementation="sdpa"))
    scaled.get_output_embeddings().weight.data.mul_(20)
    real = scaled.forward

    def forward(*arguments: Any, **named: Any) -> Any:
        output = real(*arguments, **named)
        output.logits = output.logits / 8
        return output

    scaled.forward = forward  # type: ignore[method-assign]
    with pytest.raises(ModelError, match=r"model\.path=scaled: logits of the head alone are off by"):
        check_packed_forward(scaled, "scaled")


@pytest.mark.parametrize(("packing", "what"), [("always", "packed sequences"), ("auto", "a sequence alone")])
def test_a_model_that_cannot_be_computed_is_refused_by_name(packing: Packing, what: str) -> None:
    model = failing(KeyError(1))
    with pytest.raises(ModelError, match=rf"^model\.path=x: LlamaForCausalLM does not take {what} \(KeyError: 1\)$"):
        proved_rows(model, "x", packing=packing)


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("CUDA out of memory")])
def test_a_machine_without_memory_proves_nothing_of_a_model(error: Exception) -> None:
    with pytest.raises(type(error)):
        proved_rows(failing(error), "x")


def failing(error: Exception) -> PreTrainedModel:
    model: PreTrainedModel = LlamaForCausalLM(LlamaConfig(**SHAPE, attn_implementation="sdpa"))

    def forward(*arguments: Any, **named: Any) -> None:
        raise error

    model.model.forward = forward  # type: ignore[method-assign]
    return model


@pytest.mark.parametrize(("family", "attention"), CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_families_pass_with_their_windows(family: str, attention: str, dtype: torch.dtype) -> None:
    check_packed_forward(family_model(family, attention).to(dtype), family)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("family", "attention"), [("falcon", "sdpa"), ("gpt_oss", "eager")])
def test_a_model_that_is_left_to_infer_its_mask_and_does_not_is_refused(
    family: str, attention: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = policy_module.packed_masks

    def nothing_without_branches(model: PreTrainedModel, position_ids: torch.Tensor) -> Any:
        starts = position_ids[:, 1:][position_ids[:, 1:] != position_ids[:, :-1] + 1]
        return right(model, position_ids) if bool((starts > 0).any()) else None

    monkeypatch.setattr(policy_module, "packed_masks", nothing_without_branches)
    with pytest.raises(ModelError, match=r"of packed sequences \(one after the other\) are off by"):
        check_packed_forward(family_model(family, attention).to(dtype), family)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("family", "attention"), [("gemma3", "eager"), ("gpt_oss", "eager"), ("qwen2-sliding", "sdpa")]
)
def test_a_window_that_is_not_kept_in_rows_is_refused(
    family: str, attention: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = attention_module.attention

    def without_window(*tensors: Any, sliding_window: int | None = None, blocks: Any = None, **options: Any) -> Any:
        kept = sliding_window if blocks is None else None
        return real(*tensors, sliding_window=kept, blocks=blocks, **options)

    monkeypatch.setitem(AttentionInterface._global_mapping, "sdpa", without_window)
    monkeypatch.setattr(policy_module, "row_mask", lambda places, dtype, window: row_mask(places, dtype))
    with pytest.raises(ModelError, match=r"longer than the attention window of 12 tokens \(.*\) are off by"):
        check_packed_forward(family_model(family, attention).to(dtype), family)


@pytest.mark.parametrize("neighbours", [False, True])
def test_in_16_bits_the_probe_tells_rounding_of_large_logits_from_a_neighbour_that_is_seen(
    neighbours: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = TinyModelConfig(hidden_size=64, layers=8, tie_word_embeddings=False)
    model = load_policy(str(save_tiny(config, 0, tmp_path)), dtype="bfloat16", attention="eager")
    head = model.get_output_embeddings().weight
    ids = torch.arange(3, 60)[None]
    with torch.no_grad():
        head.mul_(30 / model(ids).logits.abs().max())
    if not neighbours:
        check_packed_forward(model, "hot")
        return
    causal = torch.full((64, 64), torch.finfo(torch.bfloat16).min, dtype=torch.bfloat16).triu(1)
    monkeypatch.setattr(
        policy_module, "packed_masks", lambda model, places: causal[: places.shape[1], : places.shape[1]][None, None]
    )
    with pytest.raises(ModelError, match="of packed sequences"):
        check_packed_forward(model, "hot")


def test_a_model_whose_tokens_see_later_ones_is_refused_also_a_sequence_a_row() -> None:
    """Beyond `index_topk` tokens transformers chooses among all tokens of a sequence."""
    with pytest.raises(ModelError, match="results of 9 tokens that others follow are off by"):
        check_packed_forward(family_model("glm_moe_dsa", "sdpa"), "glm", rows=SequencesAlone("never"))
