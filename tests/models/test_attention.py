"""Attention in blocks and of long runs, which need no masks, against a dense mask over all tokens."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from rlhf.models import blocks, long_attention
from rlhf.models.attention import attention
from rlhf.models.blocks import blocks_of
from rlhf.models.config import TinyModelConfig
from rlhf.models.long_attention import runs_of
from rlhf.models.policy import hidden_states, row_mask
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


def seen_one_by_one(position_ids: Tensor, window: int | None = None) -> Tensor:
    """Which tokens of a row each sees, `bool [L, L]`, token by token as the rule says."""
    (places,) = position_ids.tolist()
    seen = torch.zeros(len(places), len(places), dtype=torch.bool)
    first, own = 0, 0
    for query, place in enumerate(places):
        if place == 0:
            first = query
        if query == 0 or place != places[query - 1] + 1:
            own = query
        shared = [first + place for place in range(places[own])]
        for key in [*shared, *range(own, query + 1)]:
            seen[query, key] = window is None or place - places[key] < window
    return seen


def dense(
    query: Tensor, key: Tensor, value: Tensor, position_ids: Tensor, window: int | None = None,
    *, sinks: Tensor | None = None, cap: float | None = None,
) -> Tensor:  # fmt: skip
    """Softmax over every token of the row in float64, of those that it sees, with capped scores and a sink a head."""
    key, value = (x.double().repeat_interleave(HEADS // KEY_HEADS, 1) for x in (key, value))
    scores = query.double() @ key.transpose(-1, -2) / WIDTH**0.5
    scores = scores if cap is None else cap * torch.tanh(scores / cap)
    scores = scores.masked_fill(~seen_one_by_one(position_ids[:1], window), -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.double()[None, :, None, None].expand(*scores.shape[:3], 1)], -1)
    return (torch.softmax(scores, -1)[..., : key.shape[2]] @ value).transpose(1, 2)


def in_blocks(query: Tensor, key: Tensor, value: Tensor, position_ids: Tensor, window: int | None = None) -> Tensor:
    options = {"scaling": WIDTH**-0.5, "blocks": blocks_of(position_ids, query.dtype), "sliding_window": window}
    return attention(nn.Module(), query, key, value, None, **options)[0]


def assert_close(found: Tensor, exact: Tensor, inputs: list[Tensor], tolerance: float) -> None:
    """Outputs and the gradients of `inputs` are close."""
    direction = torch.randn(exact.shape)
    gradients = [torch.autograd.grad((y * direction).sum(), inputs) for y in (found, exact)]
    for one, other in zip((found.detach(), *gradients[0]), (exact.detach(), *gradients[1]), strict=True):
        assert float((one.double() - other.double()).norm() / other.double().norm()) <= tolerance


@pytest.fixture(params=["blocks", "long runs"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences as they come, and all of them as long runs."""
    if request.param == "long runs":
        monkeypatch.setattr(blocks, "LONG_KEYS", 3)
        monkeypatch.setattr(long_attention, "TILE_QUERIES", (2, 7))


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("rows", "window", "dtype", "tolerance"),
    [
        (1, None, torch.float32, 2e-6), (2, None, torch.bfloat16, 2e-2),
        (2, 4, torch.float32, 2e-6), (1, 12, torch.float32, 2e-6), (1, 4, torch.bfloat16, 2e-2),
    ],
)  # fmt: skip
def test_a_row_gives_what_a_dense_mask_gives(
    layout: str, rows: int, window: int | None, dtype: torch.dtype, tolerance: float
) -> None:
    where = positions(layout, rows)
    inputs = made(where, dtype)
    found = in_blocks(*inputs, where, window)
    assert found.shape == (rows, where.shape[1], HEADS, WIDTH)
    assert_close(found, dense(*inputs, where, window), inputs, tolerance)


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_capped_scores_and_sinks_are_kept(layout: str) -> None:
    where = positions(layout)
    inputs = [*made(where), torch.tensor([-1.0, 0.0, 1.0, 2.0], requires_grad=True)]
    options = {"scaling": WIDTH**-0.5, "blocks": blocks_of(where, torch.float32), "softcap": 0.7, "s_aux": inputs[3]}
    found = attention(nn.Module(), *inputs[:3], None, **options)[0]
    assert_close(found, dense(*inputs[:3], where, sinks=inputs[3], cap=0.7), inputs, 2e-6)


def test_capped_scores_of_a_sequence_that_stands_alone_need_no_mask() -> None:
    inputs = made(torch.arange(12)[None])
    options = {"scaling": WIDTH**-0.5, "softcap": 0.7}
    alone = attention(nn.Module(), *inputs, None, **options)[0]
    seen = torch.ones(12, 12, dtype=torch.bool).tril()[None, None]
    in_a_block = attention(nn.Module(), *inputs, None, **options, blocks=blocks_of(torch.arange(12)[None], alone.dtype))
    for other in (attention(nn.Module(), *inputs, seen, **options), in_a_block):
        torch.testing.assert_close(alone, other[0])


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


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("window", [None, 4])
def test_a_mask_of_a_row_shows_a_token_its_own_sequence_up_to_it(layout: str, window: int | None) -> None:
    mask = row_mask(positions(layout, 2), torch.float32, window)
    assert mask.shape[:2] == (2, 1)
    for row in mask[:, 0]:
        assert torch.equal(row == 0, seen_one_by_one(positions(layout), window))
        assert set(row[row != 0].tolist()) == {torch.finfo(torch.float32).min}


def test_a_model_that_loses_the_blocks_gives_no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(SHAPE, byte_tokenizer(), 0)
    where = positions("branches of two sequences")
    assert torch.isfinite(hidden_states(model, {"input_ids": where + 5}, where)).all()
    layer = model.model.layers[0].self_attn
    forward = layer.forward
    monkeypatch.setattr(layer, "forward", lambda *args, blocks, **options: forward(*args, **options))
    assert torch.isnan(hidden_states(model, {"input_ids": where + 5}, where)).all()


def test_a_call_without_blocks_is_transformers_own() -> None:
    model = tiny_model(SHAPE, byte_tokenizer(), 0)
    ids = torch.arange(3, 15)[None]
    padded = torch.nn.functional.pad(ids, (4, 0))
    mask = (torch.arange(16) >= 4).long()[None]
    with torch.no_grad():
        alone, beside = model(ids).logits, model(padded, attention_mask=mask).logits[:, 4:]
    torch.testing.assert_close(alone, beside, rtol=0, atol=1e-5)
