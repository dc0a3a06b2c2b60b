"""The recorded runs that the page is opened on: really trained, as short as they show everything."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.end_to_end.running import QUICKSTART, ROOT, train

RECIPES = ROOT / "recipes"
SORTER = ("model.warmup.updates=100", "model.warmup.batch_size=32")
"""One start model for all that sort."""
LOCAL = "cluster.kind=local"
"""Without Ray, whose start takes longer than such a run; the quickstart and the tool recipe have it."""
FEW = ("trainer.groups_per_update=8", "trainer.group_size=4")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a run is made of."""

    file: Path
    overrides: tuple[str, ...]


LIVE = Recipe(
    file=QUICKSTART,
    overrides=(*SORTER, "trainer.updates=12", "trainer.groups_per_update=16", "trainer.eval_every=4",
               "data.eval.arguments.rows=32"),
)  # fmt: skip
"""The quickstart, which is watched while it trains."""
LATER: Mapping[str, Recipe] = {
    "tools": Recipe(
        file=RECIPES / "tool_calculator.yaml",
        overrides=(*FEW, "trainer.updates=3", "trainer.eval_every=3", "data.eval.seeds=16", "model.tiny.layers=1",
                   "model.warmup.updates=150", "model.warmup.batch_size=16", "model.warmup.learning_rate=3e-3",
                   "environment.arguments.digits=1", "model.warmup.arguments.digits=1"),
    ),
    "selfplay": Recipe(
        file=RECIPES / "tictactoe_selfplay.yaml",
        overrides=(LOCAL, "trainer.groups_per_update=4", "trainer.group_size=4", "trainer.minibatches=1",
                   "trainer.updates=2", "trainer.eval_every=2", "data.eval.seeds=8", "model.warmup.updates=30",
                   "model.warmup.batch_size=16"),
    ),
    "policies": Recipe(
        file=RECIPES / "tictactoe_two_policies.yaml",
        overrides=(LOCAL, *FEW, "trainer.minibatches=1", "trainer.updates=3", "trainer.eval_every=3",
                   "data.eval.seeds=8", "model.warmup.updates=30", "model.warmup.batch_size=16"),
    ),
    "ppo": Recipe(
        file=QUICKSTART,
        overrides=(LOCAL, *SORTER, *FEW, "trainer.algorithm=ppo", "trainer.updates=3", "trainer.eval_every=3",
                   "data.eval.arguments.rows=16"),
    ),
    "dpo": Recipe(
        file=RECIPES / "dpo.yaml",
        overrides=(LOCAL, *SORTER, "trainer.updates=6", "trainer.groups_per_update=32", "trainer.eval_every=3",
                   "data.eval.arguments.rows=64"),
    ),
    "sft": Recipe(file=RECIPES / "preference_ppo" / "1_sft.yaml", overrides=(LOCAL, "trainer.updates=6",)),
}  # fmt: skip


def train_later(folder: Path, cache: Path) -> None:
    """Train `LATER`, two at a time: each waits more than it computes."""

    def made(name: str) -> None:
        recipe = LATER[name]
        train(folder / name, cache, f"name={name}", *recipe.overrides, recipe=recipe.file)

    with ThreadPoolExecutor(2) as two:
        list(two.map(made, LATER))
