"""Attention of long sequences without masks: against every sequence alone, its memory, and the calls of a GPU."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rlhf.models import blocks, long_attention, torch_internals, varlen
from rlhf.models.attention import attention
from rlhf.models.blocks import blocks_of
from rlhf.models.config import TinyModelConfig
from rlhf.models.head import chosen_logprobs
from rlhf.models.policy import PolicyModel
from rlhf.models.tiny import byte_tokenizer, tiny_model
from tests.models.test_attention import HEADS, LAYOUTS, WIDTH, assert_close, dense, in_blocks, made, positions

ODD = {"softcap": 0.7, "s_aux": torch.tensor([-1.0, 0.0, 1.0, 2.0])}


def test_a_value_of_another_width_than_its_key_is_attended_with_a_mask() -> None:
    """DeepSeek's keys are wider than its values: no kernel without a mask takes them."""
    where = positions("longer than a small block")
    query, key, value = made(where)
    narrow = value[..., :6]
    options = {"scaling": WIDTH**-0.5, "blocks": blocks_of(where, query.dtype)}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(blocks, "LONG_KEYS", 3)
        found = attention(nn.Module(), query, key, narrow, None, **options)[0]
    assert_close(found, dense(query, key, value, where)[..., :6], [query, key, value], 2e-6)


def branches(tokens: int) -> Tensor:
    """A sequence and two branches of it: a quarter of the tokens is a prefix that all share."""
    quarter = tokens // 4
    runs = [torch.arange(2 * quarter), torch.arange(quarter, 2 * quarter), torch.arange(quarter, 2 * quarter)]
    return torch.cat(runs)[None]


def allocations(work: Callable[[], object]) -> tuple[int, int]:
    """The most bytes that were held at once, and the largest tensor's."""
    with torch.profiler.profile(profile_memory=True) as profile:
        work()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes = torch.tensor([event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())])
    return int(changes.cumsum(0).max()), int(changes.max())


def both_passes(tokens: int, heads: int, window: int | None = None, **odd: Any) -> Callable[[], object]:
    where = branches(tokens)
    inputs = [x[:, :heads].detach().requires_grad_() for x in made(where)]
    options = {"scaling": WIDTH**-0.5, "sliding_window": window, **odd}

    def work() -> object:
        seen = blocks_of(where, torch.float32)
        out = attention(nn.Module(), *inputs, None, **options, blocks=seen)[0]
        return torch.autograd.grad(out.sum(), inputs)

    return work


def test_memory_grows_with_the_tokens() -> None:
    held = [allocations(both_passes(tokens, heads=1))[0] for tokens in (2048, 4096, 8192)]
    for short, long in pairwise(held):
        assert long <= 2.05 * short
    bytes_a_token = held[-1] / 8192
    assert bytes_a_token <= 40 * WIDTH * 4


@pytest.mark.parametrize("odd", [{"window": 100}, ODD], ids=["window", "capped, with sinks"])
def test_nothing_is_as_large_as_a_mask_of_long_rows(odd: dict[str, Any]) -> None:
    _, largest = allocations(both_passes(4096, HEADS, **odd))
    assert largest <= 4 * long_attention.TILE_SCORES < 4 * HEADS * 4096**2 / 2


def test_log_probs_and_gradients_of_a_model_are_those_of_sequences_alone() -> None:
    """A pair of replies, of 1,500 tokens together with their prompt, as preference losses train them."""
    shape = TinyModelConfig(hidden_size=64, intermediate_size=32, layers=1, heads=2, max_position_embeddings=2048)
    policy = PolicyModel(tiny_model(shape, byte_tokenizer(), 0))
    torch.manual_seed(0)
    prompt, replies = torch.randint(3, 200, (1000,)), torch.randint(3, 200, (2, 500))
    ids = torch.cat([prompt, *replies])[None]
    where = torch.cat([torch.arange(1500), torch.arange(1000, 1500)])[None]
    targets = torch.arange(1000, 2000)
    sources = torch.cat([torch.tensor([999]), targets[:499], torch.tensor([999]), targets[500:-1]])
    packed, _ = policy(ids, where, sources, targets, 1.0)
    of_packed = torch.autograd.grad(packed.sum(), list(policy.parameters()))
    each = [policy.model(torch.cat([prompt, reply])[None]).logits[0, 999:-1] for reply in replies]
    single = torch.cat([chosen_logprobs(logits, reply)[0] for logits, reply in zip(each, replies, strict=True)])
    torch.testing.assert_close(packed, single, rtol=0, atol=1e-5)
    for one, other in zip(of_packed, torch.autograd.grad(single.sum(), list(policy.parameters())), strict=True):
        assert float((one - other).norm() / other.norm()) <= 1e-5


def unseen(queries: int, keys: int, window: list[int]) -> Tensor:
    """The keys that each query does not see, `bool [queries, keys]`."""
    back = torch.arange(queries)[:, None] + keys - queries - torch.arange(keys)
    return (back < -window[1] if window[1] >= 0 else back < -(10**9)) | ((back > window[0]) & (window[0] >= 0))


def dense_forward(
    query: Tensor, key: Tensor, value: Tensor, query_ends: Tensor, key_ends: Tensor, longest: int, most: int,
    causal: bool, scale: float, window: list[int], shared_heads: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """What flash attention with variable lengths returns, stretch by stretch: `[T, heads, d]` and `[heads, T]`."""
    assert shared_heads
    assert causal == (window == [-1, 0]), "as torch's public varlen_attn calls it"
    assert query_ends.dtype == key_ends.dtype == torch.int32
    assert (longest, most) == (int(query_ends.diff().max()), int(key_ends.diff().max()))
    key, value = (x.repeat_interleave(query.shape[1] // key.shape[1], 1).double() for x in (key, value))
    outs, sums = [], []
    for (a, b), (c, d) in zip(pairwise(query_ends.tolist()), pairwise(key_ends.tolist()), strict=True):
        scores = torch.einsum("qhd,khd->hqk", query[a:b].double(), key[c:d]) * scale
        scores = scores.masked_fill(unseen(b - a, d - c, window), -torch.inf)
        outs.append(torch.einsum("hqk,khd->qhd", torch.softmax(scores, -1), value[c:d]))
        sums.append(torch.logsumexp(scores, -1))
    return torch.cat(outs).to(query.dtype), torch.cat(sums, 1).float(), torch.zeros(2, dtype=torch.uint64)


def dense_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, total: Tensor, query_ends: Tensor,
    key_ends: Tensor, longest: int, most: int, causal: bool, state: Tensor, scale: float, window: list[int],
) -> tuple[Tensor, ...]:  # fmt: skip
    """Its gradients, by the probabilities that `total` `[heads, T]` gives."""
    assert total.is_contiguous()
    assert total.shape == (query.shape[1], len(query))
    assert causal == (window == [-1, 0])
    groups = query.shape[1] // key.shape[1]
    sums = [torch.zeros(x.shape, dtype=torch.float64) for x in (query, key, value)]
    for (a, b), (c, d) in zip(pairwise(query_ends.tolist()), pairwise(key_ends.tolist()), strict=True):
        keys, values = (x[c:d].repeat_interleave(groups, 1).double() for x in (key, value))
        scores = torch.einsum("qhd,khd->hqk", query[a:b].double(), keys) * scale
        chances = torch.exp(scores - total[:, a:b, None].double()).masked_fill(unseen(b - a, d - c, window), 0.0)
        upstream = gradient[a:b].double()
        of_chances = torch.einsum("qhd,khd->hqk", upstream, values)
        of_scores = chances * (of_chances - (upstream * out[a:b].double()).sum(-1).T[..., None]) * scale
        sums[0][a:b] = torch.einsum("hqk,khd->qhd", of_scores, keys)
        sums[1][c:d] = torch.einsum("hqk,qhd->khd", of_scores, query[a:b].double()).unflatten(1, (-1, groups)).sum(2)
        sums[2][c:d] = torch.einsum("hqk,qhd->khd", chances, upstream).unflatten(1, (-1, groups)).sum(2)
    return tuple(total.to(query.dtype) for total in sums)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("window", [None, 4])
def test_a_gpu_is_called_for_all_runs_at_once(layout: str, window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dense attention with the kernel's arguments, results and shapes takes its place."""
    monkeypatch.setattr(varlen, "_on_gpu", lambda query: True)
    monkeypatch.setattr(varlen, "_capability", lambda device: (9, 0))
    monkeypatch.setattr(varlen, "FLASH_TYPES", (torch.float32,))
    calls: list[int] = []
    monkeypatch.setattr(torch_internals, "varlen_forward", lambda *given: (calls.append(1), dense_forward(*given))[1])
    monkeypatch.setattr(torch_internals, "varlen_backward", dense_backward)
    where = positions(layout, 2)
    inputs = made(where)
    assert_close(in_blocks(*inputs, where, window), dense(*inputs, where, window), inputs, 2e-6)
    branching = any(first for first, _ in LAYOUTS[layout])
    assert len(calls) == ((2 if window is None else 0) if branching else 1)


def test_flash_attention_is_for_gpus_that_have_it() -> None:
    """By the names of cards: V100, T4, A100, A10, L40S, H100, B200, RTX 5090."""
    capabilities = [(7, 0), (7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0)]
    assert [varlen.widest_head(one) for one in capabilities] == [0, 0, 256, 192, 192, 256, 256, 192]


def test_the_kernel_of_a_gpu_takes_what_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own operators, with tensors that have shapes and no content."""
    monkeypatch.setattr(varlen, "_on_gpu", lambda query: True)
    runs = blocks_of(positions("branches of two sequences"), torch.bfloat16).every
    assert runs.shared is not None
    for cut, window in ((runs.own, None), (runs.own, 4), (runs.shared, None)):
        query, key, value = (
            torch.empty(len(at), heads, WIDTH, dtype=torch.bfloat16, device="meta")
            for at, heads in ((cut.queries, 4), (cut.keys, 2), (cut.keys, 2))
        )
        out, total = varlen.varlen_forward(query, key, value, cut, 1.0, window)
        assert (out.shape, total.shape) == (query.shape, query.shape[:2])
        gradients = varlen.varlen_backward(out, query, key, value, out, total, cut, 1.0, window)
        assert [x.shape for x in gradients] == [query.shape, key.shape, value.shape]


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 2e-2), (torch.float16, 3e-3), (torch.float32, 1e-5)])
def test_on_a_gpu_attention_gives_what_a_dense_mask_gives(
    layout: str, window: int | None, dtype: torch.dtype, tolerance: float
) -> None:
    where = positions(layout, 2)
    inputs = made(where, dtype)
    there = [x.detach().cuda().requires_grad_() for x in inputs]
    assert varlen.flash_takes(there[0]) == (dtype != torch.float32)
    found, exact = in_blocks(*there, where.cuda(), window), dense(*inputs, where, window)
    direction = torch.randn(exact.shape)
    gradients = torch.autograd.grad((found * direction.to(found)).sum(), there)
    wanted = torch.autograd.grad((exact * direction).sum(), inputs)
    for one, other in zip((found.detach(), *gradients), (exact.detach(), *wanted), strict=True):
        assert float((one.cpu().double() - other.double()).norm() / other.double().norm()) <= tolerance
