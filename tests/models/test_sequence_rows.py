"""Sequences of packed rows taken apart: for whole models, and for layers that carry a state."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from rlhf.errors import ModelError
from rlhf.models import stateful_layers as stateful
from rlhf.models.loading import ready_to_train
from rlhf.models.policy import PolicyModel, RowForward, SequencesAlone, WholeRows
from rlhf.models.probe import proved_rows
from rlhf.models.sequence_rows import sequence_rows
from tests.architectures.families import Family, made
from tests.models.seeing import LINEAR

POSITIONS = torch.tensor([[0, 1, 2, 3, 4, 2, 3, 0, 0], [0, 1, 0, 1, 2, 1, 0, 0, 0]])
"""Two rows: a sequence, a branch of it behind its first two tokens and padding; two sequences, a branch and padding."""
SEQUENCES = [[0, 1, 2, 3, 4], [0, 1, 5, 6], [9, 10], [11, 12, 13], [11, 14]]
STATES: dict[str, Any] = {
    "qwen3_5_text": LINEAR, "lfm2": {"layer_types": ["conv", "full_attention"]}, "mamba": {"state_size": 4},
}  # fmt: skip
ALONE = ("bloom", "mpt")


def model_of(kind: str) -> PreTrainedModel:
    return made(Family(name=kind, kind=kind, settings=STATES.get(kind, {}))).eval()


def test_every_sequence_has_its_row_and_every_token_its_place() -> None:
    rows = sequence_rows(POSITIONS)
    assert [row[: len(tokens)] for row, tokens in zip(rows.sources.tolist(), SEQUENCES, strict=True)] == SEQUENCES
    packed = torch.arange(POSITIONS.numel()).view(*POSITIONS.shape, 1)
    back = rows.together(rows.apart(packed), like=packed)[..., 0]
    held = [7, 8, 15, 16, 17]
    kept = [place for place in range(18) if place not in held]
    assert back.flatten()[kept].tolist() == kept


def test_rows_of_one_sequence_stay_as_they_are() -> None:
    positions = torch.tensor([[0, 1, 2], [0, 1, 0]])
    packed = torch.arange(6).view(2, 3)
    assert sequence_rows(positions).apart(packed)[:, :2].tolist() == packed[:, :2].tolist()
    assert sequence_rows(torch.zeros(2, 1, dtype=torch.long)).sources.tolist() == [[0]]  # a micro-batch of padding


def loss_of(policy: PolicyModel) -> torch.Tensor:
    ids = torch.randint(64, POSITIONS.shape, generator=torch.Generator().manual_seed(0))
    targets = torch.tensor([place for tokens in SEQUENCES for place in tokens[1:]])
    sources = torch.tensor([place for tokens in SEQUENCES for place in tokens[:-1]])
    logprobs, _ = policy(ids, POSITIONS, sources, targets, 1.0)
    return (logprobs * torch.linspace(1, 2, len(targets))).sum()


def loss_alone(model: PreTrainedModel) -> torch.Tensor:
    """The same sum by transformers alone."""
    ids = torch.randint(64, POSITIONS.shape, generator=torch.Generator().manual_seed(0)).flatten()
    chosen = [
        model(input_ids=ids[tokens][None], use_cache=False)
        .logits[0, :-1]
        .log_softmax(-1)[range(len(tokens) - 1), ids[tokens[1:]]]
        for tokens in SEQUENCES
    ]
    logprobs = torch.cat(chosen)
    return (logprobs * torch.linspace(1, 2, len(logprobs))).sum()


def gradients(loss: torch.Tensor, model: PreTrainedModel) -> torch.Tensor:
    model.zero_grad()
    loss.backward()
    return torch.cat([weight.grad.flatten() for weight in model.parameters() if weight.grad is not None])


def assert_as_alone(model: PreTrainedModel, rows: RowForward) -> None:
    expected_loss = loss_alone(model)
    expected = gradients(expected_loss, model)
    loss = loss_of(PolicyModel(model, rows))
    assert torch.allclose(loss, expected_loss, atol=1e-4)
    assert (gradients(loss, model) - expected).norm() / expected.norm() < 2e-6


@pytest.mark.parametrize("checkpointing", [0, 1])
@pytest.mark.parametrize("kind", STATES)
def test_layers_with_a_state_start_anew_at_every_sequence_of_a_row(kind: str, checkpointing: int) -> None:
    model = model_of(kind)
    ready_to_train(model, gradient_checkpointing=checkpointing)
    rows = proved_rows(model, kind, packing="always")
    assert isinstance(rows, WholeRows)
    assert_as_alone(model, rows)


def test_a_state_that_leaks_is_caught_and_every_sequence_computed_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stateful, "stateful_layers", lambda model: [])
    model = model_of("qwen3_5_text")
    with pytest.raises(ModelError, match=r"logits of packed sequences .* are off by"):
        proved_rows(model, "leaky", packing="always")
    rows = proved_rows(model, "leaky")
    assert "are off by" in rows.why_alone
    assert_as_alone(model, rows)


@pytest.mark.parametrize("kind", ALONE)
def test_a_model_that_is_wrong_in_packed_rows_computes_every_sequence_alone(kind: str) -> None:
    model = model_of(kind)
    rows = proved_rows(model, kind)
    assert isinstance(rows, SequencesAlone)
    assert_as_alone(model, rows)


def test_packing_never_gives_the_same_gradient() -> None:
    model = model_of("llama")
    rows = proved_rows(model, "llama", packing="never")
    assert rows.why_alone == "trainer.packing is never"
    assert_as_alone(model, rows)
    packed = gradients(loss_of(PolicyModel(model, WholeRows())), model)
    alone = gradients(loss_of(PolicyModel(model, rows)), model)
    assert (packed - alone).norm() / alone.norm() < 1e-6
