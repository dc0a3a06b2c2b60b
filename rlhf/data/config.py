"""Where tasks come from."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from rlhf.config import Config, compiled_pattern


class SortingConfig(Config):
    """A made task with a large space of problems: sort a number's digits in ascending order."""

    digits: int = Field(5, ge=2, le=16)
    """Digits a problem."""
    rows: int = Field(4096, ge=1)
    """Problems in this set."""
    fold: Literal["train", "eval"] = "train"
    """Problems are split by a hash of their digits: the two folds share none."""
    seed: int = 0
    """Which problems are drawn."""
    descending_share: float = Field(0.7, ge=0, le=1)
    """Share of the warm-up demonstrations that sort the wrong way round (descending); one minus it for numbers that
    begin with 0, 1 or 2."""


class DatasetConfig(Config):
    """One set of tasks: rows of a dataset with the columns that matter, or a made task."""

    sorting: SortingConfig | None = None
    """The made sorting task."""
    path: str | None = None
    """A hub name, a local JSON/JSONL/CSV/Parquet file, or a folder of them (one file a split)."""
    name: str | None = None
    """Configuration name of a hub dataset (GSM8K has `main`)."""
    split: str = "train"
    """Split to read."""
    prompt_column: str = "question"
    """Column with the user's message, or with a list of chat messages."""
    answer_column: str | None = "answer"
    """Column with the reference answer that the reward compares with."""
    answer_pattern: str | None = None
    """Regular expression whose first group is the answer within the column (GSM8K: `####\\s*(.+)`)."""
    response_column: str | None = None
    """Column with a demonstration, for kind: sft."""
    system_prompt: str | None = None
    """A system message put before every prompt."""
    prompt_suffix: str = ""
    """Text put after the user's message."""
    limit: int | None = Field(None, ge=1)
    """Use only the first rows."""

    @field_validator("answer_pattern")
    @classmethod
    def _has_a_group(cls, pattern: str | None) -> str | None:
        if pattern is not None and compiled_pattern(pattern).groups == 0:
            raise ValueError("needs a group around the answer, for instance ####\\s*(.+)")
        return pattern

    @model_validator(mode="after")
    def _one_source(self) -> DatasetConfig:
        if (self.path is None) == (self.sorting is None):
            raise ValueError("give exactly one of path (a file, folder or hub name) and sorting (the made task)")
        return self


class DataConfig(Config):
    """Training tasks and evaluation tasks."""

    train: DatasetConfig
    """Tasks that are trained on."""
    eval: DatasetConfig | None = None
    """Held-out tasks."""
    shuffle: bool = True
    """Shuffle the training tasks anew each epoch (the order depends only on seed and epoch)."""
