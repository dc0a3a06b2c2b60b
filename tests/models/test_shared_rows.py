"""How rows are cut for the ranks of a team, and which models a team can take."""

from typing import Any, cast

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from rlhf.errors import ModelError
from rlhf.models.shared_rows import NAME, Shard, Team, shared_attention


@pytest.mark.parametrize(("length", "size"), [(1, 2), (7, 2), (8, 2), (10, 4), (3, 4)])
def test_every_token_is_held_by_one_rank_and_found_there(length: int, size: int) -> None:
    rows = torch.arange(100, 100 + 3 * length).view(3, length)
    places = torch.randperm(rows.numel())
    holders = torch.zeros(rows.numel(), dtype=torch.long)
    for rank in range(size):
        shard = Shard(length=length, size=size, rank=rank)
        mine = shard.holds(places)
        holders += mine
        columns = shard.of(rows)
        assert columns.shape == (3, shard.width)
        assert torch.equal(columns.flatten()[shard.here(places[mine])], rows.flatten()[places[mine]])
    assert torch.equal(holders, torch.ones_like(holders))


def made_model(heads: int, kv_heads: int, attention: str = "sdpa") -> PreTrainedModel:
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=8 * heads,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
    )
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    return model


def team(size: int) -> Team:
    return Team(group=cast(Any, None), size=size, rank=0, exchange=nn.Identity())


@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(4, 4, 2), (4, 1, 2), (4, 2, 4), (6, 6, 3)])
def test_a_team_takes_models_whose_heads_can_be_dealt(heads: int, kv_heads: int, size: int) -> None:
    model = made_model(heads, kv_heads)
    team(size).take(model)
    assert model.config._attn_implementation == NAME


@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(3, 1, 2), (6, 3, 2), (2, 2, 4)])
def test_heads_that_cannot_be_dealt_are_refused(heads: int, kv_heads: int, size: int) -> None:
    with pytest.raises(ModelError, match=f"sequence_parallel is {size}, but the model has {heads} attention heads"):
        team(size).take(made_model(heads, kv_heads))


def test_attention_that_would_not_be_exchanged_is_refused() -> None:
    with pytest.raises(ModelError, match="the attention of LlamaForCausalLM cannot be shared"):
        team(2).take(made_model(2, 2, attention="eager"))


def test_sinks_that_would_not_be_dealt_with_their_heads_are_refused() -> None:
    heads = [torch.zeros(1, 2, 4, 8)] * 3
    with pytest.raises(ModelError, match="sequence_parallel is 2, but the attention of this model has sinks"):
        shared_attention(nn.Module(), *heads, None, team=team(2), s_aux=torch.zeros(2))
