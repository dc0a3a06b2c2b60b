"""What the canary says of an engine."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

from rlhf.models.config import TinyModelConfig
from rlhf.models.tiny import byte_tokenizer, tiny_model
from rlhf.trainer.canary import canary, difference, disagreement, staleness, tolerance_for

START = [np.zeros(3, np.float32), np.zeros(3, np.float32)]


def moved(by: float) -> list[np.ndarray]:
    """One log-prob of one sequence moved."""
    return [START[0], START[1] + np.array([0, by, 0], np.float32)]


def test_the_sequences_are_fixed_in_vocabulary_and_fit_the_context() -> None:
    one, other = (canary(50, 1000, 0.1) for _ in range(2))
    assert [s.tolist() for s in one.sequences] == [s.tolist() for s in other.sequences]
    assert [len(s) for s in one.sequences] == [24] * 4
    assert all(s.min() >= 0 and s.max() < 50 for s in one.sequences)
    assert {len(s) for s in canary(50, 16, 0.1).sequences} == {16}


def test_one_log_prob_that_is_off_is_a_disagreement() -> None:
    for sign in (1, -1):
        assert disagreement(moved(sign * 0.09), START, 0.1) is None
        assert "differ from the learner's by 0.2, tolerance 0.1" in str(disagreement(moved(sign * 0.2), START, 0.1))


@pytest.mark.parametrize("broken", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_a_number_agrees_with_nothing(broken: float) -> None:
    assert difference(moved(broken), moved(broken)) == float("inf")
    assert disagreement(moved(broken), moved(broken), 0.1)


def test_an_engine_that_stays_while_the_learner_moves_is_stale() -> None:
    for sign in (1, -1):
        assert staleness(START, START, moved(sign * 0.31), START, 0.1)
        assert staleness(moved(sign * 0.05), START, moved(sign * 0.31), START, 0.1)
        assert staleness(moved(sign * 0.31), START, moved(sign * 0.31), START, 0.1) is None
    told = str(staleness(moved(0.05), START, moved(0.4), START, 0.1))
    assert "the learner's canary log-probs moved by 0.4, its own by 0.05" in told


def test_a_learner_that_hardly_moved_makes_no_engine_stale() -> None:
    assert staleness(START, START, moved(0.29), START, 0.1) is None


@cache
def computed(dtype: torch.dtype, changed: str = "") -> list[np.ndarray]:
    """The canary's log-probs by a model in `dtype`, its tensors called `changed` a twentieth larger."""
    model = tiny_model(TinyModelConfig(), byte_tokenizer(), seed=0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.mul_(1.05 if changed and changed in name else 1.0)
        sequences = torch.from_numpy(np.stack(canary(256, 256, 0.1).sequences)).long()
        logprobs = model.to(dtype)(sequences).logits.float().log_softmax(-1)[:, :-1]
    return list(logprobs.gather(-1, sequences[:, 1:, None])[..., 0].numpy())


def test_rounding_is_far_within_the_tolerance_of_float32_and_one_norm_is_not() -> None:
    rounding = difference(computed(torch.float64), computed(torch.float32))
    assert 0 < rounding < tolerance_for("float32") / 10
    assert difference(computed(torch.float32, "model.norm"), computed(torch.float32)) > 10 * tolerance_for("float32")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rounding_to_sixteen_bits_is_within_their_tolerance_and_not_within_that_of_float32(dtype: str) -> None:
    rounding = difference(computed(getattr(torch, dtype)), computed(torch.float32))
    assert tolerance_for("float32") < rounding < tolerance_for(dtype) / 10
