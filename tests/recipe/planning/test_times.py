"""The times of a plan: ranges that hold what is known."""

from __future__ import annotations

import pytest

from rlhf.apps.cli.plan import plan_lines, rate_lines, seconds_text
from rlhf.recipe.planning.machines import CARDS
from rlhf.recipe.planning.processes import bytes_at
from rlhf.recipe.planning.rates import MeasuredRates, Range, Rate, cpu_rates, gpu_rates, with_measured
from tests.recipe.planning.gpu_recipes import MACHINES, plan_of


def test_generation_of_a_small_model_is_bound_by_the_engine_s_processor() -> None:
    """512 replies of 512 tokens on one H100: a second by its memory's rate, and 5 to 14 by vLLM's Python."""
    times = plan_of("gsm8k_one_gpu")[0].times
    assert times.generate.low > 5
    assert times.generate.high == pytest.approx(13.6, rel=0.1)
    assert (times.update.low, times.update.high) == pytest.approx((14.9, 35), rel=0.1)
    assert not times.overlapping


def test_a_large_model_is_bound_by_the_card() -> None:
    times = plan_of("math_7b_one_node")[0].times
    processor = 512 / 2 * 4096 * 50e-6
    assert times.generate.low < processor < times.generate.high * 1.1
    assert times.overlapping
    assert times.update.low == pytest.approx(times.train.low + times.weight_sync.low + times.rest.low)


@pytest.mark.parametrize("name", MACHINES)
def test_every_range_is_one_and_is_told(name: str) -> None:
    found, problem = plan_of(name)
    times = found.times
    for one in (times.generate, times.train, times.weight_sync, times.update):
        assert 0 < one.low < one.high
    assert any(line.startswith("time ") and "to" in line for line in plan_lines(found, problem))


def test_a_colocated_weight_sync_parks_and_wakes() -> None:
    (turns, _), (apart, _) = plan_of("gsm8k_one_gpu"), plan_of("math_7b_one_node")
    assert turns.times.weight_sync.low > 2 * apart.times.weight_sync.low


def test_the_check_of_the_longest_sequence_is_part_of_the_weight_sync() -> None:
    (short, _), (long, _) = plan_of("gsm8k_one_gpu"), plan_of("gsm8k_one_gpu", "sampling.max_tokens=16384")
    assert (
        bytes_at(long.learner["weight sync"], "device") > bytes_at(short.learner["weight sync"], "device") + 10**9 / 2
    )


def test_seconds_have_two_digits_and_one_number_where_they_are_measured() -> None:
    assert seconds_text(Rate(low=3.0, high=6.0, source="").seconds(1234.0)) == "210 to 410 s"
    assert seconds_text(Range(low=0.123, high=0.123)) == "0.12 s"


MEASURED = MeasuredRates(products=1e11, copies=1e10, host=2e10, step=4e-3, sequence=3e-5)


def test_what_is_measured_replaces_the_guesses_and_says_so() -> None:
    rates = with_measured(cpu_rates(2, 4), MEASURED, threads=2, on_gpu=False)
    assert (rates.training.low, rates.training.high) == pytest.approx((1e11, 1.7e11))
    assert (rates.step.low, rates.step.high, rates.step.source) == (4e-3, 4e-3, "measured")
    assert rates.link == cpu_rates(2, 4).link


def test_on_a_card_the_shares_of_its_size_apply_to_the_measured_products() -> None:
    guessed = gpu_rates(CARDS["H100"], 7e9, several_nodes=False)
    rates = with_measured(guessed, MEASURED, threads=1, on_gpu=True)
    assert (rates.training.low, rates.training.high) == pytest.approx((0.30e11, 0.42e11))
    assert rates.decoding.high == pytest.approx(0.6e11)


def test_every_rate_is_listed_with_its_source() -> None:
    lines = [line for line in rate_lines(plan_of("gsm8k_one_gpu")[0]) if line]
    assert len(lines) == 10
    assert all(line.endswith(")") for line in lines)
