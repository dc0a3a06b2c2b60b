"""Routing replay (R3, arXiv 2510.11370): the learner uses the experts that the engine chose. Otherwise rounding would
decide between two that are almost equally good, and engine and learner would compute different functions. The learner
weighs them by its own router, so the expert probabilities keep their gradient."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedConfig, PreTrainedModel

from rlhf.errors import ModelError
from rlhf.models.attention import decoder_of
from rlhf.models.config import RoutingMode
from rlhf.models.loading import load_config
from rlhf.types import Routing

REPLAYED = frozenset({"mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "granitemoe", "glm4_moe", "hunyuan_v1_moe"})
"""`model_type`s whose choices were tested to be those of the engine (tests/integration/test_routing.py)."""


EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
"""Names of the number of experts per layer in configurations."""
CHOSEN = ("num_experts_per_tok", "moe_topk")
"""Names of the number of experts per token in configurations."""


def is_replayed(path: str, *, trust_remote_code: bool = False) -> bool:
    """Whether this model's choices are known to be those of the engine."""
    config = load_config(path, trust_remote_code=trust_remote_code)
    return bool(config.get_text_config().model_type in REPLAYED)


class RoutingReplay:
    """Makes the layers of `model` choose the experts given by `take`, also when gradient checkpointing recomputes them;
    in mode `compare` differences are only counted. Raises `ModelError` for a model without experts."""

    def __init__(self, model: PreTrainedModel, mode: RoutingMode) -> None:
        self._experts, self._chosen = expert_counts(model.config)
        self.mode: RoutingMode = mode
        self._device = next(model.parameters()).device
        self._given: Tensor | None = None
        self._asked: list[int] = []
        self._compared = 0
        self._shape = (0, 0)
        self._layers = [_Layer(self, number) for number, _ in enumerate(_layers_of(model))]
        for choice, layer in zip(self._layers, _layers_of(model), strict=True):
            layer.register_forward_pre_hook(choice.enter)
            layer.register_forward_hook(choice.leave, always_call=True)

    def take(self, routing: Routing | None) -> None:
        """Set the experts of the next forward pass, `[R, L, layers, k]`; the learner chooses for -1 and None."""
        known = np.zeros((1, 1, 0, 1), bool) if routing is None else routing >= 0
        self._asked, self._compared = np.flatnonzero(known.any((0, 1, 3))).tolist(), int(known.sum())
        self._shape = known.shape[:2]
        self._given = None if routing is None else torch.tensor(routing, device=self._device).flatten(0, 1)
        for layer in self._layers:
            layer.seen, layer.differing = 0, torch.zeros((), device=self._device)

    def disagreement(self) -> tuple[Tensor, int]:
        """Return the number of the engine's experts in the last pass that the learner would not have chosen, and the
        number compared. Raises `ModelError` if a layer's choice was not observed."""
        for number in self._asked:
            if (seen := self._layers[number].seen) != 1:
                raise ModelError(
                    f"the experts of layer {number} cannot be replayed: {self._chosen} of {self._experts} were chosen "
                    f"{seen} times for each token, not once; write rollout.routing: ignore"
                )
        return torch.stack([layer.differing for layer in self._layers]).sum(), self._compared

    def given(self, layer: int) -> Tensor | None:
        """Return the experts `[N, k]` for one layer; None if the engine chose none in it."""
        return self._given[:, layer] if self._given is not None and layer in self._asked else None

    def is_choice(self, scores: Tensor, count: int) -> bool:
        """Whether a `topk` of `count` over `scores` `[..., experts]` is a choice of experts, one for each token."""
        *tokens, experts = scores.shape
        rows = list(self._shape)
        return count == self._chosen and experts == self._experts and tokens in (rows, [math.prod(rows)])


class _Layer(TorchFunctionMode):
    """Intercepts the `topk` of one layer over its experts."""

    def __init__(self, replay: RoutingReplay, number: int) -> None:
        super().__init__()
        self._replay, self._number = replay, number
        self.seen, self.differing = 0, torch.zeros(())

    def enter(self, *_: Any) -> None:
        self.__enter__()  # type: ignore[no-untyped-call]

    def leave(self, *_: Any) -> None:
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        answer = function(*args, **(kwargs or {}))
        if function not in (torch.topk, torch.Tensor.topk):
            return answer
        given = self._replay.given(self._number)
        scores, own = args[0] if args else (kwargs or {})["input"], answer.indices
        if given is None or not self._replay.is_choice(scores, own.shape[-1]):
            return answer
        self.seen += 1
        given = given[:, : own.shape[-1]].to(own.device, own.dtype).reshape(own.shape)
        known = given >= 0
        self.differing = self.differing + (known & (given.unsqueeze(-1) != own.unsqueeze(-2)).all(-1)).sum()
        taken = torch.where(known, given, own) if self._replay.mode == "replay" else own
        return torch.return_types.topk((scores.gather(-1, taken), taken))


def expert_counts(config: PreTrainedConfig) -> tuple[int, int]:
    """Return the number of experts per layer and per token. Raises `ModelError` for a model without experts."""
    settings = config.get_text_config().to_dict()
    numbers = [_first(settings, names) for names in (EXPERTS, CHOSEN)]
    if None in numbers:
        raise ModelError("the model has no experts; set rollout.routing: ignore")
    experts, chosen = numbers
    return int(experts or 0), int(chosen or 0)


def _first(config: Mapping[str, Any], names: Iterable[str]) -> int | None:
    for name in names:
        found = config.get(name)
        if isinstance(found, list):  # one per layer, all the same
            found = found[0]
        if isinstance(found, int):
            return found
    return None


def _layers_of(model: PreTrainedModel) -> nn.ModuleList:
    layers = getattr(decoder_of(model), "layers", None)
    if not isinstance(layers, nn.ModuleList):
        raise ModelError("the model's layers are not known; set rollout.routing: ignore")
    return layers


class RouterBalance:
    """The load-balancing loss of the model's code (arXiv 2101.03961, eq. 4-6), multiplied by `coefficient`. Keeps the
    router logits of the last forward pass. Raises `ModelError` for a model without such a loss."""

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
        decoder.register_forward_pre_hook(
            lambda decoder, given, named: (given, named | {"output_router_logits": True}), with_kwargs=True
        )
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
    """Mark the tokens of packed rows `[R, L]`. Padding has position 0 and no successor, unlike any token."""
    filled = position_ids.flip(-1).cummax(-1).values.flip(-1) > 0
    return filled | (torch.arange(position_ids.shape[-1], device=position_ids.device) == 0)
