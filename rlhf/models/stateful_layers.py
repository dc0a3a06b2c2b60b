"""Layers that carry a state from token to token: linear attention, short convolutions, state-space models. Such a layer
gets every sequence in its own row, a branch together with the tokens that it shares; all other layers stay packed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel

from rlhf.models.attention import decoder_of
from rlhf.models.sequence_rows import SequenceRows, sequence_rows


def separate_states(model: PreTrainedModel) -> None:
    """Restart the state of `model`'s layers at each sequence of the rows whose `position_ids` the decoder gets; without
    these a row is one sequence. `rlhf.models.probe` tests whether that separates the sequences."""
    separation = _Separation()
    layers = stateful_layers(model)
    if layers:
        decoder_of(model).register_forward_pre_hook(separation.announce, with_kwargs=True)
    for layer in layers:
        layer.forward = partial(separation.compute, layer.forward)


def stateful_layers(model: nn.Module) -> list[nn.Module]:
    """Return the layers that carry a state: in every known family they hold a convolution along the tokens."""
    return [module for module in model.modules() if any(isinstance(child, nn.Conv1d) for child in module.children())]


class _Separation:
    """Keeps the rows of the last forward pass until the next one: gradient checkpointing computes layers again."""

    def __init__(self) -> None:
        self._rows: SequenceRows | None = None

    def announce(self, decoder: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        positions = named.get("position_ids")
        if positions is not None and positions.ndim == 3:
            positions = positions[0] if len(positions) == 4 else None  # of the text; without it, one sequence a row
        self._rows = None if positions is None else sequence_rows(positions)

    def compute(self, forward: Callable[..., Tensor], hidden_states: Tensor, *given: Any, **named: Any) -> Tensor:
        """Compute a layer. For single sequences a mask and a cache say nothing, and are left out."""
        if self._rows is None:
            return forward(hidden_states, *given, **named)
        return self._rows.together(forward(self._rows.apart(hidden_states)), like=hidden_states)
