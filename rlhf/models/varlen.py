"""Attention of many stretches of tokens in one call, without masks and without padding, and its backward pass: on a GPU
flash attention with variable lengths (arXiv 2307.08691), on a CPU torch's flash attention, stretch by stretch. Both
return the log-sum-exp of the scores with the outputs, and compute gradients from an output and a log-sum-exp that are
given: those of all the keys a query sees, of which the call may hold a part (`rlhf.models.long_attention`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from rlhf.models import torch_internals

Parts = Sequence[tuple[int, int]]
FLASH_TYPES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, kw_only=True, eq=False)
class Stretches:
    """Tokens by their flat positions `queries` `int64 [T]` and `keys` `int64 [K]`, cut at `query_ends` and `key_ends`,
    which begin with 0: stretch i of the queries sees stretch i of the keys, which is itself if `causal`."""

    queries: Tensor
    keys: Tensor
    query_ends: tuple[int, ...]
    key_ends: tuple[int, ...]
    causal: bool

    def cuts(self) -> Iterator[tuple[slice, slice]]:
        """Iterate over the slices of the queries and keys of each stretch."""
        for (a, b), (c, d) in zip(pairwise(self.query_ends), pairwise(self.key_ends), strict=True):
            yield slice(a, b), slice(c, d)

    @cached_property
    def for_flash(self) -> tuple[Tensor, Tensor, int, int]:
        """Return the ends of stretches, `int32` on the device, and the longest of each kind; once for all layers."""
        ends, device = (self.query_ends, self.key_ends), self.queries.device
        most_queries, most_keys = (max(b - a for a, b in pairwise(each)) for each in ends)
        query_ends, key_ends = (torch.tensor(each, dtype=torch.int32, device=device) for each in ends)
        return query_ends, key_ends, most_queries, most_keys


def stretches(queries: Sequence[Parts], keys: Sequence[Parts], device: torch.device, *, causal: bool) -> Stretches:
    """From the parts of every stretch, each `(first position, length)`."""
    return Stretches(
        queries=_positions(queries, device),
        keys=_positions(keys, device),
        query_ends=_ends(queries),
        key_ends=_ends(keys),
        causal=causal,
    )


def runs_without_masks(query: Tensor, value: Tensor) -> bool:
    """Whether there is a kernel for heads `[…, d]` of this kind."""
    width = query.shape[-1]
    if width != value.shape[-1]:
        return False
    return query.device.type == "cpu" or flash_takes(query)


def flash_takes(query: Tensor) -> bool:
    """Whether flash attention with variable lengths takes these heads: on GPUs, in 16 bits."""
    width = query.shape[-1]
    if not _on_gpu(query) or query.dtype not in FLASH_TYPES or width % 8 != 0:
        return False
    return width <= widest_head(_capability(query.device))


def widest_head(capability: tuple[int, int]) -> int:
    """Return the largest width of a head whose gradients flash attention computes on a GPU of this CUDA capability:
    none before Ampere; where a multiprocessor has little shared memory (8.6 to 8.9, 12) less than on others."""
    if capability < (8, 0):
        return 0
    return 192 if (8, 6) <= capability <= (8, 9) or capability >= (12, 0) else 256


def _on_gpu(query: Tensor) -> bool:
    return query.is_cuda


@cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


def varlen_forward(
    query: Tensor, key: Tensor, value: Tensor, cut: Stretches, scale: float, window: int | None = None
) -> tuple[Tensor, Tensor]:
    """Return the outputs `[T, heads, d]` for `query` `[T, heads, d]`, `key` and `value` `[K, heads or fewer, d]`, and
    the log-sum-exp of the scores, `float32 [T, heads]`. A `window` of tokens that a causal query sees is for GPUs."""
    if _on_gpu(query):
        out, total, _ = torch_internals.varlen_forward(
            query, key, value, *cut.for_flash, cut.causal and window is None, scale,
            _flash_window(cut, window), True,
        )  # fmt: skip
        return out, total.T
    heads, dtype = key.shape[1], torch.promote_types(query.dtype, torch.float32)
    out, total = torch.empty_like(query), torch.empty(query.shape[:2], dtype=dtype)
    for own, seen in cut.cuts():
        outputs, sums = torch_internals.cpu_attention(
            *_heads(query[own], key[seen], value[seen]), 0.0, cut.causal, scale=scale
        )
        _by_key_head(out[own], heads).copy_(outputs)
        _by_key_head(total[own], heads).copy_(sums)
    return out, total


def varlen_backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    total: Tensor,
    cut: Stretches,
    scale: float,
    window: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `query`, `key` and `value`, for the `gradient` of the outputs `out` `[T, heads, d]` whose scores
    have the log-sum-exp `total` `[T, heads]`: over these keys, and any others that these queries see."""
    if _on_gpu(query):
        state = torch.zeros(2, dtype=torch.uint64, device=query.device)  # state of dropout, which is off
        of_query, of_key, of_value = torch_internals.varlen_backward(
            gradient, query, key, value, out, total.T.contiguous(), *cut.for_flash, cut.causal and window is None,
            state, scale, _flash_window(cut, window),
        )  # fmt: skip
        return of_query, of_key, of_value
    heads = key.shape[1]
    of_query, of_key, of_value = (torch.empty_like(x) for x in (query, key, value))
    for own, seen in cut.cuts():
        parts = torch_internals.cpu_attention_backward(
            _by_key_head(gradient[own], heads),
            *_heads(query[own], key[seen], value[seen]),
            _by_key_head(out[own], heads),
            _by_key_head(total[own], heads),
            0.0,
            cut.causal,
            scale=scale,
        )
        _by_key_head(of_query[own], heads).copy_(parts[0])
        of_key[seen], of_value[seen] = (part.sum(0).transpose(0, 1) for part in parts[1:])
    return of_query, of_key, of_value


def _positions(stretches: Sequence[Parts], device: torch.device) -> Tensor:
    firsts, lengths = torch.tensor([part for parts in stretches for part in parts]).T
    before = firsts - (lengths.cumsum(0) - lengths)
    positions: Tensor = torch.arange(int(lengths.sum())) + before.repeat_interleave(lengths)
    return positions.to(device)


def _ends(stretches: Sequence[Parts]) -> tuple[int, ...]:
    return (0, *accumulate(sum(length for _, length in parts) for parts in stretches))


def _heads(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return heads as torch's attention for CPUs takes them, `[groups, key heads, T, d]`; keys are not repeated."""
    groups = query.shape[1] // key.shape[1]
    keys, values = (x.transpose(0, 1).expand(groups, -1, -1, -1) for x in (key, value))
    return _by_key_head(query, key.shape[1]), keys, values


def _by_key_head(tensor: Tensor, heads: int) -> Tensor:
    """Return a view `[groups, heads, T, …]` of `[T, heads * groups, …]`."""
    return tensor.view(len(tensor), heads, -1, *tensor.shape[2:]).movedim((2, 1, 0), (0, 1, 2))


def _flash_window(cut: Stretches, window: int | None) -> list[int]:
    """How many keys before and after a query's own it sees; -1 is all."""
    return [-1 if window is None else window - 1, 0 if cut.causal else -1]
