"""What a sweep is asked for, and what is refused: a line each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlhf.apps.cli import sweep as command
from rlhf.apps.sweeps.request import checked_sweep, owned
from rlhf.apps.sweeps.results import SweepResults, SweptRun, ranked, write_on_top, write_results
from rlhf.apps.sweeps.space import Search, as_words, search_of, split_space
from rlhf.errors import UserError
from rlhf.recipe.loading import load_recipe
from tests.apps.cli.conftest import Command

RATE = "trainer.optimizer.learning_rate"
GRID = {RATE: Search("list", (1e-4, 1e-3))}


def test_searches_are_told_from_plain_overrides() -> None:
    words = [f"{RATE}=[1e-4,0.5]", "seed=int(1,9)", "a.b=log(1e-6,1e-4)", "model.path=a(b)", "c=uniform(-1,2.5)"]
    space, overrides = split_space(words)
    assert space == {
        RATE: Search("list", (1e-4, 0.5)), "seed": Search("int", (1, 9)), "a.b": Search("log", (1e-6, 1e-4)),
        "c": Search("uniform", (-1, 2.5)),
    }  # fmt: skip
    assert overrides == ["model.path=a(b)"]


@pytest.mark.parametrize("given", ["[1,2.5,null]", "log(1e-06,0.123456789012)", '["a", [1, 2]]', "int(2,3)"])
def test_a_search_is_read_as_it_is_written(given: str) -> None:
    search = search_of("key", given)
    assert search_of("key", str(search)) == search
    (word,) = as_words({"key": search.values[0]})
    assert search_of("key", f"[{word.removeprefix('key=')}]") == Search("list", (search.values[0],))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("trainer.updates=3",), "nothing to search"),
        ((f"{RATE}=[]",), "no value to try"),
        (("trainer.optimizer.learning_rat=[1e-4]",), "did you mean 'trainer.optimizer.learning_rate'"),
        ((f"{RATE}=[1e-4,-2.0]",), "greater than or equal to 0"),
        ((f"{RATE}=log(0,1)",), "above 0"),
        ((f"{RATE}=uniform(1)",), "takes two numbers"),
        ((f"{RATE}=[1e-4]", "--metric", "rewad/mean"), "did you mean 'reward/mean'"),
        ((f"{RATE}=[1e-4]", "--metric", "banana"), "no run has the metric 'banana'"),
        ((f"{RATE}=log(1e-5,1)", "--algorithm", "grid"), "lists"),
        (("seed=[1,2]", "--algorithm", "pbt"), "keeps its data"),
        ((f"{RATE}=[1e-4]", "--goal", "sped"), "reward or speed"),
        (("--goal", "speed", "--algorithm", "pbt"), "run alone"),
        ((f"{RATE}=[1e-4]", "--folder", "."), "something else"),
        ((f"{RATE}=[1e-4]", "rollout.cpus_per_engine=4000"), "4000 cores"),
    ],
)
def test_what_cannot_be_swept_is_one_line(rlhf: Command, recipe: Path, words: tuple[str, ...], said: str) -> None:
    ended = rlhf("sweep", recipe, *words)
    assert ended.returncode == 2, ended.stdout
    assert said in ended.stderr
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("change", "said"), [({"overrides": ["trainer.updates=7"]}, "another recipe"), ({"samples": 3}, "another samples")]
)
def test_a_folder_belongs_to_one_sweep(tmp_path: Path, recipe: Path, change: dict[str, object], said: str) -> None:
    folder = tmp_path / "sweep"
    with owned(checked_sweep(recipe, GRID, folder=folder)):
        same = checked_sweep(recipe, GRID, folder=folder)
        with pytest.raises(UserError, match="another process"), owned(same):
            pass
    with pytest.raises(UserError, match=said):
        checked_sweep(recipe, GRID, folder=folder, **change)  # type: ignore[arg-type]


def test_scores_are_compared_after_equal_updates_and_a_failure_is_never_best() -> None:
    def trial(name: str, updates: int, score: float, outcome: str = "finished") -> SweptRun:
        return SweptRun(name=name, run=name, values={}, scores=[(updates, score)], outcome=outcome)

    trials = [
        trial("early", 3, 0.9, "stopped"),
        trial("low", 8, 0.2),
        trial("high", 8, 0.7),
        trial("dead", 8, 1.0, "failed: no"),
        trial("own end", 3, 0.99),
    ]
    assert [one.name for one in ranked(trials, "max")] == ["own end", "high", "low", "early", "dead"]
    assert [one.name for one in ranked(trials, "min")] == ["low", "high", "own end", "early", "dead"]
    assert SweepResults(folder=Path(), trials=(trials[3],)).best is None


def test_a_finished_sweep_is_only_printed(
    tmp_path: Path, recipe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = checked_sweep(recipe, GRID, folder=tmp_path / "sweep")

    def searched(again: object) -> tuple[int, SweepResults]:
        return 77, SweepResults(folder=sweep.folder, trials=())

    monkeypatch.setattr(command, "searched", searched)
    trials = [
        SweptRun(name=f"t{n}", run=f"t{n}", values={RATE: n}, scores=[(4, n)], outcome="finished") for n in (2, 1)
    ]
    sweep.folder.mkdir()
    write_results(sweep.folder, trials, recipe, [])
    best = (sweep.folder / "best.yaml").stat().st_mtime_ns
    assert command.swept(sweep) == 0
    assert "best: learning_rate=2" in capsys.readouterr().out
    assert (sweep.folder / "best.yaml").stat().st_mtime_ns == best
    trials[1].outcome = "failed: no"
    write_results(sweep.folder, trials, recipe, [])
    assert command.swept(sweep) == 77, "what failed is tried again"


def test_the_best_values_are_a_recipe_on_top_of_the_swept_one(tmp_path: Path, recipe: Path) -> None:
    target = tmp_path / "sweep" / "best.yaml"
    target.parent.mkdir()
    write_on_top(target, recipe, ["trainer.updates=4", *as_words({RATE: 1.25e-05})], "The best.")
    loaded = load_recipe(target).recipe
    assert (loaded.trainer.updates, loaded.trainer.optimizer.learning_rate) == (4, 1.25e-05)
    assert loaded.sampling.max_tokens == 8
    assert json.loads(as_words({RATE: 1.25e-05})[0].partition("=")[2]) == 1.25e-05
