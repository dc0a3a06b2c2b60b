"""Every recipe for GPUs fits on the machine that it is for, by the figures of its header."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from tests.recipe.planning.gpu_recipes import MACHINES, figures_of, header_of, plan_of


@pytest.mark.parametrize("name", MACHINES)
def test_a_recipe_fits_its_machine_by_the_figures_of_its_header(name: str) -> None:
    found, problem = plan_of(name)
    assert (problem, found.shortages) == ("", ())
    assert found.microbatch is not None
    assert found.microbatch >= found.run.learner.tokens
    assert asdict(figures_of(found)) == pytest.approx(asdict(header_of(name)), rel=0.1)


def test_a_model_three_times_as_large_fits_the_one_gpu_by_one_override() -> None:
    found, problem = plan_of("gsm8k_one_gpu", "model.path=Qwen/Qwen2.5-1.5B-Instruct")
    assert (problem, found.shortages) == ("", ())
    assert found.shape.parameters == 1_543_714_304


def test_what_is_sampled_at_most_fits_the_context_of_the_engines() -> None:
    found, _ = plan_of("long_context_64k")
    assert found.context is not None
    assert found.context >= 65_536 + found.run.prompt
