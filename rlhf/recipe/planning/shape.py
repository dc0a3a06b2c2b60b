"""The sizes of a model that decide its memory; `rlhf.recipe.planning.meta_model` reads them from the modules."""

from __future__ import annotations

from dataclasses import dataclass

from rlhf.models.head_chunks import tokens_at_once

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Numbers of elements in a model's modules. `parameters` counts tied weights once. `layer_parameters` and
    `largest_parameter` are those of the largest decoder layer and tensor. `adapter` counts a LoRA of rank 1 on all
    linear layers of the decoder. `tied`: the head is the embedding. `cached_layers` have keys and values in a cache."""

    name: str
    architecture: str
    parameters: int
    layers: int
    layer_parameters: int
    largest_parameter: int
    head_parameters: int
    adapter: int
    tied: bool
    hidden_size: int
    vocabulary: int
    kv_heads: int
    head_size: int
    cached_layers: int
    context_tokens: int

    def cache_elements(self, tensor_parallel_size: int = 1) -> int:
        """Count the elements of keys and values of one token in all layers, on one GPU of an engine."""
        return 2 * self.cached_layers * max(1, -(-self.kv_heads // tensor_parallel_size)) * self.head_size


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearBytes:
    """Bytes as a function of a number of tokens, measured at two numbers."""

    base: float
    each: float

    @classmethod
    def through(cls, a: tuple[int, float], b: tuple[int, float]) -> LinearBytes:
        """Return the line through two measurements `(tokens, bytes)`."""
        each = (b[1] - a[1]) / (b[0] - a[0])
        return cls(base=a[1] - each * a[0], each=each)

    def plus(self, other: LinearBytes, times: float = 1) -> LinearBytes:
        """Return the sum of this line and `times` the other."""
        return LinearBytes(base=self.base + times * other.base, each=self.each + times * other.each)

    def at(self, tokens: int) -> int:
        return round(max(self.base + self.each * tokens, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Activations:
    """Bytes of one micro-batch's forward and backward pass, without weights and gradients of the decoder: `saved` is
    kept for its backward pass, `decoder_peak` is the peak in that pass, and `head_peak` the most that the head adds to
    `saved`. All are lines over the tokens of a micro-batch."""

    saved: LinearBytes
    decoder_peak: LinearBytes
    head_peak: LinearBytes

    def peak(self, tokens: int) -> int:
        """Return the peak for a micro-batch of `tokens` tokens."""
        return max(self.decoder_peak.at(tokens), self.saved.at(tokens) + self.head_peak.at(tokens))


def some_recomputed(none: Activations, all: Activations, share: float) -> Activations:
    """Interpolate the passes with this share of the layers recomputed between those with no layer and `all` layers
    recomputed. The peak occurs while a layer is recomputed."""
    saved = none.saved.plus(none.saved.plus(all.saved, -1), -share)
    peak = saved.plus(all.decoder_peak.plus(all.saved, -1))
    return Activations(saved=saved, decoder_peak=peak, head_peak=none.head_peak)


def head_line(vocabulary: int, hidden_size: int, width: int, memory: int | None) -> LinearBytes:
    """Estimate the memory that the head adds on a GPU with `memory` bytes (None: a CPU), for weights of `width` bytes:
    the larger of a chunk's logits (four times float32; in 16 bits three times, and once 16 bits) and two gradients of
    the head's weights; the sum of these gradients; and the gradients of the hidden states."""
    logits = (16 if width == 4 else 14) * tokens_at_once(vocabulary, memory) * vocabulary
    weights = vocabulary * hidden_size * width
    return LinearBytes(base=max(logits, 2 * weights) + weights, each=2 * hidden_size * width)
