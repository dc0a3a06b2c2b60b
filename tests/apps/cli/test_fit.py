"""`rlhf fit`: what it refuses, what it tries, and what it reads of a trial."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf.apps.cli.trials import result_table, update_seconds
from rlhf.recipe.loading import load_recipe
from rlhf.recipe.planning.candidates import candidate_axes
from rlhf.recipe.planning.estimating import estimator
from rlhf.recipe.planning.halving import TrialResult
from rlhf.recipe.planning.machines import machine_of
from rlhf.runs.folder import RunFolder
from tests.apps.cli.conftest import Command
from tests.recipe.planning.gpu_recipes import recipe_file
from tests.runs.made_run import made_run


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("trainer.updatse=3",), "did you mean 'trainer.updates'"),
        (("rollout.cpus_per_engine=4000",), "4000 cores"),
        (("kind=offline",), "offline"),
    ],
)
def test_what_cannot_be_fitted_is_one_line(rlhf: Command, recipe: Path, words: tuple[str, ...], said: str) -> None:
    ended = rlhf("fit", recipe, *words)
    assert ended.returncode == 2, ended.stdout
    assert said in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_placements_that_do_not_fit_the_cards_are_not_tried() -> None:
    recipe = load_recipe(recipe_file("math_7b_one_node")).recipe
    placements, microbatches, sequences = candidate_axes(recipe, machine_of("8xH100", 1), estimator(recipe, None, 512))
    tensor_parallel = 2
    for changes in placements:
        cards = tensor_parallel * int(changes["rollout.engines"]) + int(changes["trainer.deepspeed.ranks"])
        assert cards <= 8
    assert placements
    assert {"trainer.tokens_per_microbatch": "65536"} in microbatches
    assert all(change.keys() == {"rollout.max_sequences"} for change in sequences)


def test_an_update_is_counted_without_what_is_beside_it(tmp_path: Path) -> None:
    times = [{"seconds/update": 9.0}, {"seconds/update": 3.0}, {"seconds/update": 7.0, "seconds/save": 1.5}]
    folder = RunFolder(made_run(tmp_path / "run", times))
    assert update_seconds(folder, 1, 3) == pytest.approx((3.0 + 5.5) / 2)


def test_the_table_is_sorted_and_a_failure_has_no_number() -> None:
    table = result_table(
        [
            TrialResult(changes={"rollout.engines": "4"}, updates=2, seconds=None, failure="no room"),
            TrialResult(changes={}, updates=2, seconds=4.0),
            TrialResult(changes={"rollout.engines": "2"}, updates=2, seconds=2.0),
        ],
        samples=64,
    )
    assert [line.split()[0] for line in table[1:]] == ["rollout.engines=2", "the", "rollout.engines=4"]
    assert table[1].split()[-2:] == ["2.00", "32.0"]
    assert table[3].split()[-2:] == ["-", "-"]
