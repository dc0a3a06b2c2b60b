"""What the canary says of an engine."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

from rlhf.images import Image, ImageFeatures
from rlhf.models.config import TinyModelConfig
from rlhf.models.tiny import byte_tokenizer, tiny_model
from rlhf.weight_sync.canary import canary, difference, disagreement, staleness, tolerance_for
from rlhf.weight_sync.tolerance import EXACT, LogprobTolerance, measured, uniform_tolerance

START = [np.zeros(3, np.float32), np.zeros(3, np.float32)]


def moved(by: float) -> list[np.ndarray]:
    """One log-prob of one sequence moved."""
    return [START[0], START[1] + np.array([0, by, 0], np.float32)]


def test_the_sequences_are_fixed_in_vocabulary_and_fit_the_context() -> None:
    one, other = (canary(50, 1000, None) for _ in range(2))
    assert [s.tolist() for s in one.sequences] == [s.tolist() for s in other.sequences]
    assert [len(s) for s in one.sequences] == [12] * 8
    assert [len(s) for s in canary(50, 1000, EXACT).sequences] == [12] * 4
    assert all(s.min() >= 0 and s.max() < 50 for s in one.sequences)
    assert {len(s) for s in canary(50, 10, None).sequences} == {10}
    assert {s.dtype for s in (*one.sequences, one.long_prompt)} == {np.dtype(np.int32)}
    assert canary(50, 16, EXACT).limits == EXACT


def test_every_token_of_the_vocabulary_may_be_in_it() -> None:
    made = canary(2, 1000, None)
    assert set(np.concatenate(made.sequences).tolist()) == set(made.long_prompt.tolist()) == {0, 1}


@pytest.mark.parametrize(("context", "reply"), [(16, 8), (100, 32), (1000, 32)])
def test_the_long_prompt_and_its_reply_fill_the_context(context: int, reply: int) -> None:
    made = canary(50, context, None)
    assert (len(made.long_prompt), made.reply_tokens) == (context - reply, reply)
    assert made.long_prompt.max() < 50


def test_one_log_prob_that_is_off_is_a_disagreement() -> None:
    told = "differ from the learner's by 0.2, on average 0.0333; allowed are 0.1 and 0.1"
    for sign in (1, -1):
        assert disagreement(moved(sign * 0.09), START, uniform_tolerance(0.1)) is None
        assert told in str(disagreement(moved(sign * 0.2), START, uniform_tolerance(0.1)))


def test_what_is_just_the_limit_is_within_it() -> None:
    limits = uniform_tolerance(0.25)
    assert disagreement(moved(0.25), START, limits) is None
    assert staleness(START, START, moved(0.75), START, limits) is None
    assert staleness(moved(0.25), START, moved(1.0), START, limits)


def test_limits_that_were_measured_allow_a_rare_large_difference_and_no_larger_mean() -> None:
    limits = LogprobTolerance(mean=0.1, high=0.5, share=0.01)
    start, gaps = [np.zeros(1000, np.float32)], np.full(1000, 0.05, np.float32)
    assert disagreement([gaps], start, limits) is None
    gaps[:10] = 3
    assert disagreement([gaps], start, limits) is None
    gaps[:11] = 3
    assert disagreement([gaps], start, limits)
    assert disagreement([np.full(1000, 0.11, np.float32)], start, limits)
    one_of_few, two_of_few = (np.array([0.6] * count + [0] * (22 - count), np.float32) for count in (1, 2))
    assert disagreement([one_of_few], [start[0][:22]], limits) is None
    assert disagreement([two_of_few], [start[0][:22]], limits)


def test_what_is_measured_allows_four_times_as_much_of_a_mean_twice_or_thrice_and_never_less_than_float32() -> None:
    rounding = np.linspace(0, 1, 1001, dtype=np.float32)
    assert measured(rounding) == LogprobTolerance(
        mean=pytest.approx(1.0), high=pytest.approx(3.96), share=pytest.approx(0.01)
    )
    few = measured(rounding[::20])
    assert (few.mean, few.high) == (pytest.approx(2.0), pytest.approx(3.96))
    assert measured(rounding, few=True).mean == pytest.approx(1.5)
    assert measured(rounding[::20], few=True) == few
    exact = measured(np.zeros(10, np.float32))
    assert (exact.mean, exact.high) == (EXACT.mean, EXACT.high)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("broken", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_a_number_agrees_with_nothing(broken: float) -> None:
    assert difference(moved(broken), moved(broken)) == float("inf")
    assert disagreement(moved(broken), moved(broken), uniform_tolerance(0.1))


def test_an_engine_that_stays_while_the_learner_moves_is_stale() -> None:
    for sign in (1, -1):
        assert staleness(START, START, moved(sign * 0.31), START, uniform_tolerance(0.1))
        assert staleness(moved(sign * 0.05), START, moved(sign * 0.31), START, uniform_tolerance(0.1))
        assert staleness(moved(sign * 0.31), START, moved(sign * 0.31), START, uniform_tolerance(0.1)) is None
    told = str(staleness(moved(0.05), START, moved(0.4), START, uniform_tolerance(0.1)))
    assert "the learner's canary log-probs moved by 0.4, its own by 0.05" in told


def test_a_learner_that_hardly_moved_makes_no_engine_stale() -> None:
    assert staleness(START, START, moved(0.29), START, uniform_tolerance(0.1)) is None


def test_limits_are_fixed_in_float32_or_by_the_recipe_and_else_measured() -> None:
    assert tolerance_for("float32") == EXACT
    assert tolerance_for("bfloat16") is tolerance_for("float16") is None
    assert tolerance_for("bfloat16", 0.2) == tolerance_for("float32", 0.2) == uniform_tolerance(0.2)


@cache
def computed(dtype: torch.dtype, changed: str = "") -> list[np.ndarray]:
    """The canary's log-probs by a model in `dtype`, its tensors called `changed` a twentieth larger."""
    model = tiny_model(TinyModelConfig(), byte_tokenizer(), seed=0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.mul_(1.05 if changed and changed in name else 1.0)
        sequences = torch.from_numpy(np.stack(canary(256, 256, None).sequences)).long()
        logprobs = model.to(dtype)(sequences).logits.float().log_softmax(-1)[:, :-1]
    return list(logprobs.gather(-1, sequences[:, 1:, None])[..., 0].numpy())


def test_rounding_is_far_within_the_limits_of_float32_and_one_norm_is_not() -> None:
    rounding = difference(computed(torch.float64), computed(torch.float32))
    assert 0 < rounding < EXACT.high / 10
    assert difference(computed(torch.float32, "model.norm"), computed(torch.float32)) > 10 * EXACT.high


def test_sequences_of_a_model_that_sees_begin_with_the_image_and_have_no_other_token_of_one() -> None:
    image = ImageFeatures(
        image=Image(sha256="0" * 64, data=b""), tensors={}, checksum=0, size=(1, 1), token_ids=(7, 5, 5, 5, 8), mark=5
    )
    made = canary(12, 1000, EXACT, image=image)
    assert [placed.start for placed in made.images] == [0]
    for sequence in made.sequences:
        assert sequence[:5].tolist() == [7, 5, 5, 5, 8]
        assert len(sequence) == 5 + 12
        assert not np.isin(sequence[5:], [5, 7, 8]).any()
    assert canary(12, 17, EXACT, image=image).images == ()
