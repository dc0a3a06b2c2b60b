"""The load-balancing loss of a mixture of experts, as the model's own code has it (arXiv 2101.03961, eq. 4 to 6)."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlhf.errors import ModelError
from rlhf.models.attention import decoder_of
from rlhf.models.routing import expert_counts


class RouterBalance:
    """Keeps the router logits of `model`'s last forward pass, for `loss`, which is multiplied by `coefficient`. Raises
    `ModelError` for a model without such a loss."""

    def __init__(self, model: PreTrainedModel, coefficient: float) -> None:
        function = vars(sys.modules[type(model).__module__]).get("load_balancing_loss_func")
        if function is None:
            raise ModelError(
                f"trainer.loss.router_aux_loss_coefficient is {coefficient}, but {type(model).__name__} has no "
                "load-balancing loss; use 0"
            )
        self._loss: Callable[..., Tensor] = function
        self._coefficient = coefficient
        self._experts, self._chosen = expert_counts(model.config)
        self._router_logits: tuple[Tensor, ...] = ()
        decoder = decoder_of(model)
        decoder.register_forward_pre_hook(_ask, with_kwargs=True)
        decoder.register_forward_hook(self._keep)

    def loss(self, position_ids: Tensor) -> Tensor:
        """Return the loss over the tokens of the last forward pass, without row padding; `position_ids` `[R, L]`."""
        logits = tuple(layer.flatten(0, -2) for layer in self._router_logits)
        return self._coefficient * self._loss(logits, self._experts, self._chosen, tokens_of(position_ids))

    def _keep(self, decoder: nn.Module, given: Any, output: Any) -> None:
        self._router_logits = output.router_logits


def balance_of(model: PreTrainedModel, coefficient: float | None) -> RouterBalance | None:
    """Return the load-balancing loss to train with, or None. Its coefficient is `coefficient`, or if that is None the
    one of the model's configuration, provided that this asks for router logits."""
    config = model.config.get_text_config().to_dict()
    if coefficient is None:
        coefficient = config.get("router_aux_loss_coef", 0.0) if config.get("output_router_logits") else 0.0
    return RouterBalance(model, coefficient) if coefficient else None


def tokens_of(position_ids: Tensor) -> Tensor:
    """Mark the positions of packed rows `[R, L]` that hold tokens. Padding has position 0 and no successor; a training
    sequence has at least two tokens."""
    filled = position_ids.flip(-1).cummax(-1).values.flip(-1) > 0
    return filled | (torch.arange(position_ids.shape[-1], device=position_ids.device) == 0)


def _ask(decoder: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return given, named | {"output_router_logits": True}
