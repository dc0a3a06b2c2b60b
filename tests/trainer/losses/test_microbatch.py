"""What a rank calls: the recipe's words as losses, terms and weights, against the functions that they stand for."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from rlhf.errors import ConfigError
from rlhf.trainer.config import CorrectionConfig, KLConfig, LossConfig
from rlhf.trainer.losses import (
    Actions,
    LossMetrics,
    Objective,
    engine_difference,
    off_policy_metrics,
    policy_loss,
    policy_loss_of,
    sft_loss,
)
from rlhf.trainer.losses.microbatch import importance_weights
from rlhf.trainer.losses.off_policy import mismatch
from rlhf.trainer.losses.policy import cispo, gspo, policy_gradient, ppo, sapo
from tests.trainer.losses.made import ADVANTAGES, BEHAVIOUR, MASK, NEW, OLD, REFERENCE, actions, flat, sequences_of

CLIPS = {"clip_low": 0.1, "clip_high": 0.3}
TEMPERATURES = {"temperature_positive": 1.5, "temperature_negative": 0.5}


def flat_tokens(logprobs: torch.Tensor = NEW, **changes: torch.Tensor | None) -> Actions:
    given: dict[str, Any] = {
        "logprobs": logprobs[MASK], "entropies": torch.arange(float(MASK.sum())), "behaviour_logprobs": BEHAVIOUR[MASK],
        "proximal_logprobs": OLD[MASK], "advantages": ADVANTAGES[MASK],
        "loss_weights": torch.linspace(0.5, 2.0, int(MASK.sum())), "sequences": sequences_of(MASK),
    }  # fmt: skip
    return Actions(**(given | changes))


def nothing(given: Actions) -> tuple[torch.Tensor, LossMetrics]:
    """A policy loss of 0 for every token."""
    return 0 * given.logprobs, LossMetrics(len(given.logprobs))


def own_loss(given: Actions) -> tuple[torch.Tensor, LossMetrics]:
    return given.logprobs * 7, LossMetrics(1)


def all_columns(given: Actions, *, sharpness: float, floor: float = 0.0) -> tuple[torch.Tensor, LossMetrics]:
    """A loss of everything that there is to see, each column with a weight of its own."""
    assert given.reference_logprobs is not None
    told = given.logprobs + 2 * given.proximal_logprobs + 3 * given.behaviour_logprobs + 5 * given.reference_logprobs
    return sharpness * (told + 7 * given.entropies + 11 * given.advantages) + floor, LossMetrics(len(given.logprobs))


def test_a_loss_of_one_s_own_sees_all_columns_and_has_the_recipe_s_arguments() -> None:
    entropies = torch.arange(float(MASK.sum()), requires_grad=True)
    given = flat_tokens(reference_logprobs=REFERENCE[MASK], entropies=entropies)
    config = LossConfig(policy=f"{__name__}:all_columns", arguments={"sharpness": 0.5})
    loss, seen = policy_loss(given, 2.0, Objective(policy=policy_loss_of(config)), kl_coefficient=1.0)
    columns = (
        NEW[MASK], 2 * OLD[MASK], 3 * BEHAVIOUR[MASK], 5 * REFERENCE[MASK], 7 * given.entropies, 11 * ADVANTAGES[MASK]
    )  # fmt: skip
    torch.testing.assert_close(loss, (0.5 * sum(columns) * given.loss_weights).sum() / 2.0)
    assert "policy/kl_reference" not in seen.sums, "held for the loss, not for a KL term"
    loss.backward()
    torch.testing.assert_close(entropies.grad, (0.5 * 7 * given.loss_weights / 2.0).float())


@pytest.mark.parametrize("arguments", [{}, {"sharpness": 1.0, "bluntness": 2.0}])
def test_a_loss_that_cannot_be_called_so_is_one_line_before_anything_is_learnt(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"policy is .*:all_columns, which cannot be called with 1 value"):
        policy_loss_of(LossConfig(policy=f"{__name__}:all_columns", arguments=arguments))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"policy": "ppo"} | CLIPS, ppo(actions(), **CLIPS)),
        ({"policy": "ppo", "dual_clip": 1.5} | CLIPS, ppo(actions(), dual_clip=1.5, **CLIPS)),
        ({"policy": "gspo"} | CLIPS, gspo(actions(), **CLIPS)),
        ({"policy": "cispo"} | CLIPS, cispo(actions(), **CLIPS)),
        ({"policy": "sapo"} | TEMPERATURES, sapo(actions(), **TEMPERATURES)),
        ({"policy": "policy_gradient"}, policy_gradient(actions())),
        ({"policy": f"{__name__}:own_loss"}, own_loss(actions())),
    ],
    ids=["ppo", "dual-clip", "gspo", "cispo", "sapo", "policy-gradient", "own"],
)
def test_a_recipe_s_policy_loss_is_the_function_of_its_name_with_its_settings(
    settings: dict[str, Any], expected: tuple[torch.Tensor, LossMetrics]
) -> None:
    per_token, metrics = policy_loss_of(LossConfig(**settings))(actions())
    torch.testing.assert_close(per_token, expected[0])
    assert metrics.count == expected[1].count
    assert {n: float(v) for n, v in metrics.sums.items()} == {n: float(v) for n, v in expected[1].sums.items()}
    assert {n: float(v) for n, v in metrics.maxima.items()} == {n: float(v) for n, v in expected[1].maxima.items()}


def test_a_loss_that_cannot_be_imported_is_named_with_its_setting() -> None:
    with pytest.raises(ConfigError, match=r"trainer\.loss\.policy is tests\.nowhere:loss"):
        policy_loss_of(LossConfig(policy="tests.nowhere:loss"))


def test_the_policy_s_term_is_summed_with_weights() -> None:
    given = flat_tokens()
    loss, seen = policy_loss(given, 3.0, Objective(policy=policy_loss_of(LossConfig(policy="gspo")), kl=KLConfig()),
                             kl_coefficient=0.0)  # fmt: skip
    per_token, metrics = gspo(actions(), clip_low=0.2, clip_high=0.28)
    torch.testing.assert_close(loss, (per_token * given.loss_weights).sum() / 3.0)
    assert seen.count == metrics.count == int(MASK.sum())
    assert set(seen.sums) == {"policy/clip_fraction_low", "policy/clip_fraction_high"}
    assert float(seen.maxima["policy/ratio_max"]) == pytest.approx(float(metrics.maxima["policy/ratio_max"]))


@pytest.mark.parametrize(("estimator", "coefficient"), [("k1", 0.5), ("k2", 0.0), ("k3", 0.5)])
def test_kl_is_a_term_of_every_token_at_its_price_and_is_told_whatever_that_is(
    estimator: str, coefficient: float
) -> None:
    d = NEW[MASK] - REFERENCE[MASK]
    values = {"k1": d, "k2": d.square() / 2, "k3": torch.exp(-d) - 1 + d}[estimator]
    given = flat_tokens(reference_logprobs=REFERENCE[MASK])
    objective = Objective(policy=nothing, kl=KLConfig(estimator=estimator))
    loss, seen = policy_loss(given, 2.0, objective, kl_coefficient=coefficient)
    assert float(loss) == pytest.approx(float((coefficient * values * given.loss_weights).sum()) / 2.0)
    assert float(seen.sums["policy/kl_reference"]) == pytest.approx(float(values.sum()))


def test_the_exact_gradient_of_kl_is_that_of_half_the_square() -> None:
    logprobs = NEW[MASK].clone().requires_grad_()
    given = replace(flat_tokens(reference_logprobs=REFERENCE[MASK]), logprobs=logprobs)
    objective = Objective(policy=nothing, kl=KLConfig(estimator="k1", exact_gradient=True))
    loss, seen = policy_loss(given, 1.0, objective, kl_coefficient=2.0)
    loss.backward()
    torch.testing.assert_close(logprobs.grad, 2.0 * (logprobs.detach() - REFERENCE[MASK]) * given.loss_weights)
    assert not seen.sums["policy/kl_reference"].requires_grad


def test_without_a_reference_no_divergence_is_told() -> None:
    _, seen = policy_loss(flat_tokens(), 1.0, Objective(policy=nothing, kl=KLConfig()), kl_coefficient=1.0)
    assert "policy/kl_reference" not in seen.sums


def test_the_entropy_bonus_is_taken_off_the_loss() -> None:
    given = flat_tokens()
    loss, _ = policy_loss(given, 2.0, Objective(policy=nothing, kl=KLConfig(), entropy_coefficient=0.1),
                          kl_coefficient=0.0)  # fmt: skip
    assert float(loss) == pytest.approx(-0.1 * float((given.entropies * given.loss_weights).sum()) / 2.0)


def ratios(level: str) -> torch.Tensor:
    log = OLD - BEHAVIOUR
    rows = [log[row][MASK[row]] for row in range(len(MASK)) if MASK[row].any()]
    spread = {"token": lambda x: x, "sequence": lambda x: x.sum().expand(len(x)),
              "geometric": lambda x: x.mean().expand(len(x))}[level]  # fmt: skip
    return torch.cat([spread(one).exp() for one in rows])


@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
@pytest.mark.parametrize("method", ["truncate", "mask", "none"])
def test_a_correction_weighs_tokens_as_its_method_and_level_say(method: str, level: str) -> None:
    correction = CorrectionConfig(method=method, level=level, low=0.9, high=1.1)
    plain = ratios(level)
    expected = {
        "truncate": plain.clamp(max=1.1),
        "mask": torch.where((plain >= 0.9) & (plain <= 1.1), plain, 0.0),
        "none": torch.ones_like(plain),
    }[method]
    given = flat_tokens()
    torch.testing.assert_close(importance_weights(given, correction), expected)
    loss, seen = policy_loss(given, 1.0, Objective(policy=own_loss, kl=KLConfig(), correction=correction),
                             kl_coefficient=0.0)  # fmt: skip
    assert float(loss) == pytest.approx(float((7 * given.logprobs * expected * given.loss_weights).sum()))
    assert float(seen.sums["correction/weight_mean"]) == pytest.approx(float(expected.sum()))
    assert float(seen.sums["correction/masked_fraction"]) == float((expected == 0).sum())
    assert float(seen.sums["correction/abs_dev"]) == pytest.approx(float((expected - 1).abs().sum()))
    assert seen.count == 1


def test_an_empty_micro_batch_costs_nothing_and_still_has_a_gradient() -> None:
    logprobs = NEW.clone().requires_grad_()
    empty = flat(torch.zeros_like(MASK), logprobs, OLD, ADVANTAGES)
    loss, seen = policy_loss(empty, 5.0, Objective(policy=policy_loss_of(LossConfig()), kl=KLConfig()),
                             kl_coefficient=0.0)  # fmt: skip
    loss.backward()
    assert (float(loss.detach()), seen.count, float(seen.maxima["policy/ratio_max"])) == (0.0, 0, 0.0)
    assert not logprobs.grad.any()


def test_a_correction_leaves_what_the_policy_s_loss_says() -> None:
    policy = policy_loss_of(LossConfig())
    plain, corrected = (
        policy_loss(flat_tokens(), 1.0, Objective(policy=policy, kl=KLConfig(), correction=correction),
                    kl_coefficient=0.0)[1]
        for correction in (None, CorrectionConfig())
    )  # fmt: skip
    assert corrected.maxima == plain.maxima
    assert plain.sums == {name: corrected.sums[name] for name in plain.sums}


def test_a_dropped_token_costs_nothing_however_large_its_loss() -> None:
    def endless(given: Actions) -> tuple[torch.Tensor, LossMetrics]:
        return torch.where(given.log_ratio > 0, torch.inf, given.logprobs), LossMetrics(1)

    grown = NEW > OLD
    proximal, behaviour = torch.where(grown, OLD, NEW), torch.where(grown, OLD - 9, NEW)
    given = flat_tokens(proximal_logprobs=proximal[MASK], behaviour_logprobs=behaviour[MASK])
    correction = CorrectionConfig(method="mask", high=2.0)
    loss, seen = policy_loss(given, 1.0, Objective(policy=endless, kl=KLConfig(), correction=correction),
                             kl_coefficient=0.0)  # fmt: skip
    healthy = ~grown[MASK]
    assert 0 < int(healthy.sum()) < len(healthy)
    assert float(loss) == pytest.approx(float((given.logprobs * given.loss_weights)[healthy].sum()))
    assert float(seen.sums["correction/masked_fraction"]) == float((~healthy).sum())


def test_demonstrations_are_weighed_divided_and_counted() -> None:
    logprobs, weights = torch.tensor([-1.0, -2.0, -4.0]), torch.tensor([1.0, 0.5, 0.0])
    loss, seen = sft_loss(logprobs, weights, 4.0)
    assert float(loss) == 0.5
    assert (seen.count, float(seen.sums["sft/nll"])) == (3, 7.0)


def test_the_distance_from_the_policy_that_sampled_is_k3_of_the_ratio_to_it() -> None:
    logprobs = torch.tensor([-1.0, -2.0], requires_grad=True)
    seen = off_policy_metrics(logprobs, torch.tensor([0.25, 0.5]), torch.tensor([-1.5, -1.0]))
    expected = (math.exp(0.5) - 1 - 0.5) + (math.exp(-1) - 1 + 1)
    assert seen.count == 2
    assert {name: float(total) for name, total in seen.sums.items()} == pytest.approx(
        {"policy/approx_kl": expected, "policy/entropy": 0.75}
    )
    assert not seen.sums["policy/approx_kl"].requires_grad


def test_the_distance_from_the_engine_is_told_with_all_that_the_mismatch_measures() -> None:
    logprobs = torch.tensor([-1.0, -2.0, -3.0]), torch.tensor([-1.5, -1.0, -3.0])
    seen, measured = engine_difference(*logprobs), mismatch(*logprobs, 1.2)
    assert seen.count == measured.count == 3
    assert {name: float(total) for name, total in {**seen.sums, **measured.sums}.items()} == pytest.approx(
        {
            "policy/logprob_difference": 1.5,
            "mismatch/k1": 0.5,
            "mismatch/k3": math.exp(0.5) - 1.5 + math.exp(-1),
            "mismatch/weight_mean": 1.2 + math.exp(-1) + 1,
            "mismatch/weight_squared": 1.44 + math.exp(-2) + 1,
            "mismatch/truncated_fraction": 1.0,
        }
    )
    assert {name: float(most) for name, most in seen.maxima.items()} == {"policy/logprob_difference_max": 1.0}
