"""Mixtures of experts in the learner: choices that are given, and the loss that balances them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlhf.errors import ModelError
from rlhf.models.config import TinyModelConfig
from rlhf.models.loading import load_policy
from rlhf.models.policy import PolicyModel
from rlhf.models.routing import RoutingReplay, balance_of, tokens_of
from rlhf.models.tiny import save_tiny
from tests.architectures.families import FAMILIES, save

TOKENS = 20
IDS = torch.arange(5, 5 + TOKENS)[None]
POSITIONS = torch.arange(TOKENS)[None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A router's scores are far apart here, so that no rounding decides."""
    tiny = TinyModelConfig(architecture="qwen3_moe", intermediate_size=64, hidden_size=64)
    return str(save_tiny(tiny, 0, tmp_path_factory.mktemp("experts")))


def drawn(seed: int = 0) -> np.ndarray:
    """Two different experts of four for each token and layer, `[1, T, layers, 2]`."""
    order = np.random.default_rng(seed).random((1, TOKENS, 2, 4)).argsort(-1)
    return order[..., :2].astype(np.int16)


def logprobs(model: PreTrainedModel) -> Tensor:
    places = torch.arange(1, TOKENS)
    scored: Tensor = PolicyModel(model)(IDS, POSITIONS, places - 1, places, 1.0)[0]
    return scored


def gradient(model: PreTrainedModel) -> Tensor:
    model.zero_grad()
    logprobs(model).sum().backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def test_given_experts_are_taken_and_their_own_choice_is_counted(folder: str) -> None:
    model = load_policy(folder)
    routing = RoutingReplay(model, "replay")
    own = logprobs(model)
    routing.take(drawn())
    taken = logprobs(model)
    differing, of = routing.disagreement()
    assert (own - taken).abs().max() > 1e-4
    assert of == TOKENS * 2 * 2
    assert 0.2 < float(differing) / of < 0.8  # half of what is drawn blindly


def chosen_by(model: PreTrainedModel) -> np.ndarray:
    """What the model's routers choose themselves, `[1, T, layers, 2]`."""
    seen: list[Tensor] = []
    hooks = [
        layer.mlp.gate.register_forward_hook(lambda _, __, output: seen.append(output[-1]))
        for layer in model.model.layers
    ]
    logprobs(model)
    for hook in hooks:
        hook.remove()
    return torch.stack(seen, 1)[None].numpy().astype(np.int16)


def test_the_learners_own_choice_given_back_changes_nothing(folder: str) -> None:
    """In another order too, but for rounding: the weight of an expert goes with it."""
    model = load_policy(folder)
    routing, own = RoutingReplay(model, "replay"), logprobs(model)
    for order, tolerance in ((1, 0), (-1, 1e-6)):
        routing.take(chosen_by(model)[..., ::order].copy())
        torch.testing.assert_close(logprobs(model), own, rtol=0, atol=tolerance)
        assert float(routing.disagreement()[0]) == 0


def test_where_nothing_is_given_the_learner_chooses(folder: str) -> None:
    model = load_policy(folder)
    routing, own = RoutingReplay(model, "replay"), logprobs(model)
    given = chosen_by(model)
    given[:, 5:] = -1
    routing.take(given)
    assert torch.equal(logprobs(model), own)
    assert routing.disagreement()[1] == 5 * 2 * 2
    given[:, :5] = drawn()[:, :5]
    routing.take(given)
    assert not torch.equal(logprobs(model), own)
    routing.take(np.full_like(given, -1))
    assert torch.equal(logprobs(model), own)


def test_compared_experts_change_nothing(folder: str) -> None:
    model = load_policy(folder)
    routing = RoutingReplay(model, "compare")
    own = logprobs(model)
    routing.take(drawn())
    assert torch.equal(logprobs(model), own)
    assert float(routing.disagreement()[0]) > 0


def test_layers_that_are_computed_once_more_take_the_same_experts(folder: str) -> None:
    gradients = []
    for checkpointing in (False, True):
        model = load_policy(folder, gradient_checkpointing=checkpointing)
        RoutingReplay(model, "replay").take(drawn())
        gradients.append(gradient(model))
    alone = load_policy(folder)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-5, atol=1e-7)
    assert (gradient(alone) - gradients[0]).norm() > 1e-2 * gradients[0].norm()


def test_a_dense_model_has_nothing_to_replay(tmp_path: Path) -> None:
    model = load_policy(str(save_tiny(TinyModelConfig(), 0, tmp_path)))
    with pytest.raises(ModelError, match="no experts"):
        RoutingReplay(model, "replay")
    assert balance_of(model, None) is None
    with pytest.raises(ModelError, match="no load-balancing loss; use 0"):
        balance_of(model, 0.1)


def test_the_balance_of_packed_rows_is_that_of_their_tokens(folder: str) -> None:
    """One sequence alone by transformers' own loss, and the same behind room that is filled up."""
    model = load_policy(folder)
    theirs = model(IDS, output_router_logits=True, labels=IDS).aux_loss
    balance = balance_of(model, 0.5)
    assert balance is not None
    filled = torch.nn.functional.pad(IDS, (0, 7)), torch.nn.functional.pad(POSITIONS, (0, 7))
    for ids, positions in ((IDS, POSITIONS), filled):
        places = torch.arange(1, TOKENS)
        PolicyModel(model)(ids, positions, places - 1, places, 1.0)
        torch.testing.assert_close(balance.loss(positions), 0.5 * theirs)


def test_balance_is_trained_where_the_model_asks_for_it(folder: str) -> None:
    model = load_policy(folder)
    assert balance_of(model, None) is None
    model.config.output_router_logits, model.config.router_aux_loss_coef = True, 0.25
    balance, none = balance_of(model, None), balance_of(model, 0.0)
    assert balance is not None
    assert none is None
    logprobs(model)
    loss = balance.loss(POSITIONS)
    torch.testing.assert_close(loss, 0.25 * model(IDS, output_router_logits=True).aux_loss)
    loss.backward()
    assert float(model.model.layers[0].mlp.gate.weight.grad.norm()) > 0


def test_what_fills_up_a_row_is_no_token() -> None:
    rows = torch.tensor([[0, 1, 2, 0, 1, 0, 0], [0, 1, 2, 3, 4, 0, 1]])
    assert tokens_of(rows).tolist() == [[True] * 5 + [False] * 2, [True] * 7]


def test_a_choice_among_groups_of_experts_is_none_of_experts(tmp_path: Path) -> None:
    """glm4_moe asks for the two best of each group, and of the groups, before it chooses."""
    save(next(family for family in FAMILIES if family.name == "glm4_moe"), tmp_path)
    model = load_policy(str(tmp_path))
    routing = RoutingReplay(model, "replay")
    given = drawn()
    given[:, :, 0] = -1  # the first layer is dense
    routing.take(given)
    logprobs(model)
    assert routing.disagreement()[1] == TOKENS * 2
