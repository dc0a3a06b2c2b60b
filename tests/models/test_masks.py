"""Rows of several sequences in models of other families, which treat masks, windows and positions otherwise."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlhf.models.policy import hidden_states
from tests.models.families import CASES, family_model

LONG, SHORT, SHARED = 40, 9, 30
Layout = Callable[[PreTrainedModel], list[Tensor]]


def sequences() -> list[Tensor]:
    """Two that begin with the same tokens and are longer than the window, and a short one."""
    generator = torch.Generator().manual_seed(1)
    one, other, short = (torch.randint(64, (n,), generator=generator) for n in (LONG, LONG - 3, SHORT))
    other[:SHARED] = one[:SHARED]
    return [one, other, short]


def alone(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """Log-probs `[T, V]` as transformers' own forward pass gives them."""
    logits: Tensor = model(input_ids=ids[None], use_cache=False).logits[0]
    return logits.log_softmax(-1)


def logprobs(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    return model.get_output_embeddings()(hidden).log_softmax(-1)  # type: ignore[no-untyped-call, no-any-return]


def one_after_the_other(model: PreTrainedModel) -> list[Tensor]:
    order = [2, 0, 1]
    ids = [sequences()[n] for n in order]
    places = torch.cat([torch.arange(len(one)) for one in ids])
    row = hidden_states(model, torch.cat(ids)[None], places[None])[0]
    parts = dict(zip(order, torch.split(row, [len(one) for one in ids]), strict=True))
    return [logprobs(model, parts[n]) for n in range(3)]


def with_a_shared_beginning(model: PreTrainedModel) -> list[Tensor]:
    one, other, short = sequences()
    places = [torch.arange(len(one)), torch.arange(SHARED, len(other)), torch.arange(len(short))]
    row = hidden_states(model, torch.cat([one, other[SHARED:], short])[None], torch.cat(places)[None])[0]
    own, branch, behind = torch.split(row, [len(part) for part in places])
    return [logprobs(model, part) for part in (own, torch.cat([own[:SHARED], branch]), behind)]


@pytest.mark.parametrize("layout", [one_after_the_other, with_a_shared_beginning])
@pytest.mark.parametrize(("family", "attention"), CASES)
def test_a_sequence_in_a_row_is_as_if_it_were_alone_beyond_windows_too(
    family: str, attention: str, layout: Layout
) -> None:
    model = family_model(family, attention)
    found, expected = layout(model), [alone(model, ids) for ids in sequences()]
    assert max(float((a - b).abs().max()) for a, b in zip(found, expected, strict=True)) <= 1e-4
    both = []
    for values in (found, expected):
        model.zero_grad()
        sum(value[:, 7].sum() for value in values).backward()
        both.append(torch.cat([p.grad.double().flatten() for p in model.parameters() if p.grad is not None]))
    assert float((both[0] - both[1]).norm() / both[1].norm()) <= 1e-6
