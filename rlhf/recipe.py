"""A recipe: the parts' settings composed, and checked across the parts, without torch, ray or vllm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from rlhf.cluster.config import ClusterConfig
from rlhf.config import Config, Origins, build, merge, parse_override, read_yaml
from rlhf.data.config import DataConfig
from rlhf.models.config import ModelConfig
from rlhf.reward.config import RewardConfig
from rlhf.rollout.config import RolloutConfig, SamplingConfig
from rlhf.runs.config import RunConfig
from rlhf.trainer.config import TrainerConfig


class Recipe(Config):
    """Everything that decides a run."""

    name: str = Field("run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the run and of its folder."""
    kind: Literal["rl", "sft"] = "rl"
    """Reinforcement learning, or supervised fine-tuning with the same learner."""
    seed: int = Field(0, ge=0)
    """Decides the order of tasks and every draw."""
    model: ModelConfig
    data: DataConfig
    sampling: SamplingConfig = SamplingConfig()
    rollout: RolloutConfig = RolloutConfig()
    reward: RewardConfig = RewardConfig()
    trainer: TrainerConfig = TrainerConfig()
    cluster: ClusterConfig = ClusterConfig()
    run: RunConfig = RunConfig()

    @model_validator(mode="after")
    def _parts_agree(self) -> Recipe:
        if self.cluster.kind == "local":
            self._fit_one_process()
        tiny = self.model.tiny
        if tiny and self.sampling.max_tokens >= tiny.max_position_embeddings:
            raise ValueError(
                f"sampling.max_tokens is {self.sampling.max_tokens}, but the model's context is only "
                f"{tiny.max_position_embeddings} tokens (model.tiny.max_position_embeddings)"
            )
        if self.rollout.max_context_tokens and tiny and self.rollout.max_context_tokens > tiny.max_position_embeddings:
            raise ValueError(
                f"rollout.max_context_tokens is {self.rollout.max_context_tokens}, longer than the model's context of "
                f"{tiny.max_position_embeddings} tokens (model.tiny.max_position_embeddings)"
            )
        if self.model.warmup and not self.data.train.sorting:
            raise ValueError(
                "model.warmup needs demonstrations, and only data.train.sorting makes them; for your own data run a "
                "recipe of kind: sft first and start from its checkpoint (model.path)"
            )
        if self.kind == "sft" and self.data.train.path and not self.data.train.response_column:
            raise ValueError("data.train.response_column is required by kind: sft: the column with the demonstration")
        self._hold_problems_out()
        for name, dataset in (("train", self.data.train), ("eval", self.data.eval)):
            if self.kind == "rl" and self.reward.needs_answer and dataset and dataset.answer_column is None:
                raise ValueError(
                    f"data.{name}.answer_column is null, but reward.kind: {self.reward.kind} compares with an answer; "
                    "name its column"
                )
        return self

    def _fit_one_process(self) -> None:
        counts = {"rollout.engines": self.rollout.engines, "trainer.deepspeed.ranks": self.trainer.deepspeed.ranks}
        for key, count in counts.items():
            if count != 1:
                raise ValueError(
                    f"{key} is {count}, but cluster.kind: local runs one engine and one rank in one process; "
                    "use cluster.kind=ray"
                )

    def _hold_problems_out(self) -> None:
        train, held_out = self.data.train.sorting, self.data.eval and self.data.eval.sorting
        if train and held_out and train.fold == held_out.fold:
            raise ValueError(
                f"data.eval.sorting.fold is {held_out.fold}, as is that of data.train: held-out problems come from "
                "the other fold"
            )

    @property
    def run_dir(self) -> Path:
        return Path(self.run.dir).expanduser() if self.run.dir else Path("runs") / self.name


@dataclass(frozen=True, slots=True)
class LoadedRecipe:
    """A recipe with the origin of every value that is not a default."""

    recipe: Recipe
    origins: Origins
    path: Path | None = None


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> LoadedRecipe:
    """Read a recipe file and apply `key=value` overrides. Raises `ConfigError`."""
    file_values = read_yaml(path)
    name = {} if "name" in file_values else {"name": path.stem}
    layers = [("override", {key: value}) for key, value in map(parse_override, overrides)]
    values, origins = merge(("file name", name), (str(path), file_values), *layers)
    return LoadedRecipe(build(Recipe, values), origins, path)


def recipe_from(values: dict[str, Any]) -> LoadedRecipe:
    """A recipe from a mapping, for use from Python."""
    merged, origins = merge(("python", values))
    return LoadedRecipe(build(Recipe, merged), origins)
