"""Another way of rounding: small errors of the right size everywhere, and the model as it was afterwards."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rlhf.models.rounding import DRAWS, Errors, rounded


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_number_is_off_by_one_unit_in_the_last_place_or_not_at_all(dtype: torch.dtype) -> None:
    output = torch.rand(3, DRAWS // 2, generator=torch.Generator().manual_seed(1)).to(dtype) + 1
    before = output.clone()
    changed = (Errors(0).put_on(output).double() - before.double()) / torch.finfo(dtype).eps
    assert changed.abs().max() == 1
    assert 0.05 < (changed != 0).double().mean() < 0.5
    assert abs(float(changed.mean())) < 0.01
    assert torch.equal(output, before)


def test_every_call_reads_other_errors_also_behind_the_end_of_those_that_were_drawn() -> None:
    errors, ones = Errors(0), torch.ones(DRAWS - 7)
    first, second = (errors.put_on(ones) for _ in range(2))
    assert not torch.equal(first, second)
    assert torch.equal(second[7:], first[:-7])
    assert not torch.equal(Errors(1).put_on(ones), first)


def test_a_measurement_can_be_repeated_and_leaves_the_model_as_it_was() -> None:
    model, rows = nn.Linear(64, 64), torch.randn(2, 64)
    plain = model(rows)
    with rounded(model):
        other = model(rows)
    with rounded(model):
        assert torch.equal(model(rows), other)
    assert not torch.equal(other, plain)
    assert torch.equal(model(rows), plain)
