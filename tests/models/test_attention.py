"""Attention in blocks against a dense mask over all tokens."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from rlhf.errors import ModelError
from rlhf.models.attention import attention
from rlhf.models.blocks import blocks_of, runs_of
from rlhf.models.config import TinyModelConfig
from rlhf.models.policy import branch_mask, hidden_states
from rlhf.models.tiny import byte_tokenizer, tiny_model

HEADS, KEY_HEADS, WIDTH = 4, 2, 8
SHAPE = TinyModelConfig(hidden_size=64, intermediate_size=32, layers=1, heads=2, kv_heads=1)
LAYOUTS = {
    "sequences of many lengths": [(0, 5), (0, 1), (0, 12), (0, 7), (0, 11)],
    "branches of two sequences": [(0, 9), (4, 3), (4, 6), (4, 1), (0, 3), (0, 20), (13, 5), (13, 7)],
    "beginnings of about one length": [(0, 9), (7, 5), (0, 12), (8, 6), (8, 5)],
    "longer than a small block": [(0, 300), (290, 8), (290, 12), (0, 280), (280, 11)],
}
"""Runs as `(first position, tokens)`."""


def positions(layout: str, rows: int = 1) -> Tensor:
    row = torch.cat([torch.arange(first, first + tokens) for first, tokens in LAYOUTS[layout]])
    return row.expand(rows, -1).clone()


def made(tokens: Tensor, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(0)
    shape = tokens.shape
    heads = (HEADS, KEY_HEADS, KEY_HEADS)
    return [torch.randn(shape[0], h, shape[1], WIDTH, dtype=dtype).requires_grad_() for h in heads]


def dense(query: Tensor, key: Tensor, value: Tensor, position_ids: Tensor) -> Tensor:
    """Softmax over every token of the row in float64, with the mask of positions."""
    key, value = (x.double().repeat_interleave(HEADS // KEY_HEADS, 1) for x in (key, value))
    scores = query.double() @ key.transpose(-1, -2) / WIDTH**0.5
    mask = branch_mask(position_ids, torch.float64)
    if mask is None:
        starts = (position_ids == 0).cumsum(1)
        seen = (starts[:, :, None] == starts[:, None]) & torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        mask = torch.zeros(seen.shape, dtype=torch.float64).masked_fill(~seen, -torch.inf)[:, None]
    return (torch.softmax(scores + mask, -1) @ value).transpose(1, 2)


def in_blocks(query: Tensor, key: Tensor, value: Tensor, position_ids: Tensor) -> Tensor:
    blocks = blocks_of(position_ids, query.dtype)
    return attention(nn.Module(), query, key, value, None, scaling=WIDTH**-0.5, blocks=blocks)[0]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-6), (torch.bfloat16, 2e-2)])
def test_blocks_give_what_a_dense_mask_gives(layout: str, rows: int, dtype: torch.dtype, tolerance: float) -> None:
    where = positions(layout, rows)
    inputs = made(where, dtype)
    found, exact = in_blocks(*inputs, where), dense(*inputs, where)
    assert found.shape == (rows, where.shape[1], HEADS, WIDTH)
    assert float((found.detach().double() - exact.detach()).norm() / exact.detach().norm()) <= tolerance
    direction = torch.randn(exact.shape)
    gradients = [torch.autograd.grad((y * direction).sum(), inputs) for y in (found, exact)]
    for one, other in zip(*gradients, strict=True):
        assert float((one.double() - other.double()).norm() / other.double().norm()) <= tolerance


def test_runs_are_stretches_of_rising_positions_and_know_their_sequence() -> None:
    runs = runs_of(positions("branches of two sequences"))
    assert [(run.start, run.length, run.root, run.shared) for run in runs] == [
        (0, 9, 0, 0), (9, 3, 0, 4), (12, 6, 0, 4), (18, 1, 0, 4),
        (19, 3, 19, 0), (22, 20, 22, 0), (42, 5, 22, 13), (47, 7, 22, 13),
    ]  # fmt: skip


def test_little_more_is_computed_than_is_seen() -> None:
    lengths = [max(1, int(36 * 1.9 ** (i % 7 - 3))) for i in range(40)]
    where = torch.cat([torch.arange(length) for length in lengths])[None]
    computed = sum(block.queries.numel() for block in blocks_of(where, torch.float32).blocks)
    assert computed <= 1.34 * sum(lengths)


def test_a_window_that_would_hide_tokens_is_refused() -> None:
    where = positions("sequences of many lengths")
    options = {"scaling": 1.0, "blocks": blocks_of(where, torch.float32)}
    attention(nn.Module(), *made(where), None, sliding_window=12, **options)
    with pytest.raises(ModelError, match="12 tokens pass the model's attention window of 11"):
        attention(nn.Module(), *made(where), None, sliding_window=11, **options)


def test_a_model_that_loses_the_blocks_gives_no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(SHAPE, byte_tokenizer(), 0)
    where = positions("branches of two sequences")
    assert torch.isfinite(hidden_states(model, where + 5, where)).all()
    layer = model.model.layers[0].self_attn
    forward = layer.forward
    monkeypatch.setattr(layer, "forward", lambda *args, blocks, **options: forward(*args, **options))
    assert torch.isnan(hidden_states(model, where + 5, where)).all()


def test_a_call_without_blocks_is_transformers_own() -> None:
    model = tiny_model(SHAPE, byte_tokenizer(), 0)
    ids = torch.arange(3, 15)[None]
    padded = torch.nn.functional.pad(ids, (4, 0))
    mask = (torch.arange(16) >= 4).long()[None]
    with torch.no_grad():
        alone, beside = model(ids).logits, model(padded, attention_mask=mask).logits[:, 4:]
    torch.testing.assert_close(alone, beside, rtol=0, atol=1e-5)
