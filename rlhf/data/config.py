"""Settings of datasets, the sources of tasks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from rlhf.config import Config, compiled_pattern, is_piece
from rlhf.data.expressions import Condition, TextTemplate

HELD_OUT = "held_out"
"""Name of a single evaluation set without a name."""
SET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
RENDERED_BY_US = (
    "conversation",
    "messages",
    "tokenize",
    "add_generation_prompt",
    "continue_final_message",
    "return_dict",
)
"""Arguments of `apply_chat_template` that rlhf sets itself."""
OF_ROWS = {
    "name", "split", "prompt_column", "system_column", "tools_column", "answer_pattern", "system_prompt",
    "prompt_suffix", "row", "filter", "template", "system_template", "few_shot",
}  # fmt: skip
"""Settings that say how a row becomes a task."""
OF_PROMPTS = ("min_prompt_tokens", "max_prompt_tokens")
"""Settings of questions that the tasks themselves ask."""


class FewShotConfig(Config):
    """Worked examples before every prompt, as earlier turns. The run's seed chooses them, the same ones for all prompts
    of a set: an engine then computes them once. No example is a held-out problem, or asks what the prompt asks."""

    alternatives: ClassVar = {"path": ("split",), "rows": ()}
    k: int = Field(ge=1)
    """Number of examples."""
    path: str | None = None
    """Examples to choose from: a file, folder or hub name, often the training rows. They are read as the set's rows."""
    split: str = "train"
    """Split of `path` to read."""
    rows: tuple[dict[str, Any], ...] = ()
    """The examples to choose from themselves, instead of `path`."""
    reply: TextTemplate | None = None
    """Jinja template of an example's reply over its row: `<think>{{ reasoning }}</think>{{ answer }}`. Without it the
    reply is the text of `response_column`, or else of `answer_column`."""

    @model_validator(mode="after")
    def _complete(self) -> FewShotConfig:
        if (self.path is None) == (not self.rows):
            raise ValueError("give either path (a file, folder or hub name) or rows, the examples to choose from")
        return self


class DatasetConfig(Config):
    """One set of tasks: rows of a dataset with their columns, or the tasks that a function returns."""

    alternatives: ClassVar = {"path": {*OF_ROWS, *OF_PROMPTS}, "tasks": {"arguments", *OF_PROMPTS}, "seeds": ()}
    tasks: str | None = None
    """`module:function` `(**arguments) -> tasks`, any iterable of `rlhf.types.Task`. The columns of demonstrations and
    pairs are then those of `Task.row`."""
    arguments: dict[str, Any] = Field({})
    """Keyword arguments of `tasks`."""
    seeds: int | None = Field(None, ge=1)
    """Number of tasks without a question, each with a different seed; the recipe's environment asks."""
    path: str | None = None
    """A hub name, a local JSON/JSONL/CSV/Parquet file, or a folder of them (one file a split)."""
    name: str | None = None
    """Configuration name of a hub dataset (GSM8K has `main`)."""
    split: str = "train"
    """Split to read."""
    prompt_column: str = "question"
    """Column with the user's message, or with a list of chat messages. Dots lead into objects and lists in every name
    of a column: `extra_info.question`, `turns.0`."""
    answer_column: str | None = "answer"
    """Column with the reference answer that the reward compares with (verl: `reward_model.ground_truth`)."""
    answer_pattern: str | None = None
    """Regular expression whose first group is the answer within the column (GSM8K: `####\\s*(.+)`)."""
    response_column: str | None = None
    """Column with a demonstration for kind: sft, a text or messages. Without it the column of the prompt holds whole
    conversations."""
    replies: Literal["every", "last"] = "every"
    """The replies of a conversation that kind: sft imitates."""
    system_column: str | None = "system"
    """Column with the system message of a row; rows without it have none."""
    tools_column: str | None = "tools"
    """Column with the tools that the chat template shows, as functions; rows without it have none."""
    images_column: str | None = "auto"
    """Column with the row's images: files (relative to the dataset's), bytes or base64; `auto`: `images` or `image`.
    `null` leaves it out. Its place is where the messages have a part of type `image` or `<image>`, or before the text.
    """
    chosen_column: str | None = None
    """Column with the preferred of two replies, or with the conversation that ends with it: messages, or a transcript
    of `\\n\\nHuman: …` and `\\n\\nAssistant: …`. The prompt is then the common beginning of both conversations."""
    rejected_column: str | None = None
    """Column with the other reply; it comes with `chosen_column`."""
    margin_column: str | None = None
    """Column with the least difference that the reward model's scores of a pair should have."""
    system_prompt: str | None = None
    """A system message put before every prompt."""
    prompt_suffix: str = ""
    """Text put after the user's message."""
    row: str | None = None
    """`module:function` `(row) -> row`, which changes each row before anything else reads it. It may return a list of
    rows instead, or None to leave the row out."""
    filter: Condition | None = None
    """Jinja expression over the columns of a row, after `row`: `level >= 3 and subject != 'geometry'`. Rows for which
    it is false are left out."""
    template: TextTemplate | None = None
    """Jinja template of the user's message over the columns, instead of `prompt_column`: `Solve: {{ problem }}`."""
    system_template: TextTemplate | None = None
    """Jinja template of the system message over the columns, instead of `system_prompt` or `system_column`."""
    few_shot: FewShotConfig | None = None
    limit: int | None = Field(None, ge=1)
    """Use only the first rows, of those that `row` and `filter` keep."""
    min_prompt_tokens: int | None = Field(None, ge=1)
    """Omit rows whose prompt, as the chat template renders it, has fewer tokens."""
    max_prompt_tokens: int | None = Field(None, ge=1)
    """Omit rows whose prompt, as the chat template renders it, has more tokens."""

    @field_validator("answer_pattern")
    @classmethod
    def _has_a_group(cls, pattern: str | None) -> str | None:
        if pattern is not None and compiled_pattern(pattern).groups == 0:
            raise ValueError("needs a group around the answer, for instance ####\\s*(.+)")
        return pattern

    @model_validator(mode="after")
    def _complete(self) -> DatasetConfig:
        if sum(source is not None for source in (self.path, self.tasks, self.seeds)) != 1:
            raise ValueError(
                "give exactly one of path (a file, folder or hub name), tasks (module:function) and seeds (questions "
                "of an environment)"
            )
        if (self.chosen_column is None) != (self.rejected_column is None):
            raise ValueError("chosen_column and rejected_column belong together: a pair is two replies to one prompt")
        if self.tasks is None and self.arguments:
            raise ValueError("arguments are for the function in tasks, but tasks is not set; remove arguments")
        if self.tasks is not None and not is_piece(self.tasks):
            raise ValueError(f"tasks is {self.tasks!r}; give module:function")
        if self.row is not None and not is_piece(self.row):
            raise ValueError(f"row is {self.row!r}; give module:function")
        if self.system_template and self.system_prompt:
            raise ValueError("system_template and system_prompt both make the system message; remove one of them")
        for key, value in self.model_dump(include=OF_ROWS).items() if self.path is None else ():
            if value != DatasetConfig.model_fields[key].default:
                other = f"{self.tasks} makes complete tasks" if self.tasks else "seeds have no rows"
                raise ValueError(f"{key} is for rows of a dataset, but {other}; remove it")
        if self.seeds and (self.min_prompt_tokens or self.max_prompt_tokens):
            raise ValueError("min_prompt_tokens and max_prompt_tokens are for prompts of a dataset, which seeds lack")
        if self.min_prompt_tokens and self.max_prompt_tokens and self.min_prompt_tokens > self.max_prompt_tokens:
            raise ValueError(
                f"min_prompt_tokens ({self.min_prompt_tokens}) is above max_prompt_tokens ({self.max_prompt_tokens})"
            )
        return self

    @property
    def holds_pairs(self) -> bool:
        return self.chosen_column is not None


class TrainingSetConfig(DatasetConfig):
    """A dataset for training."""

    weight: float | None = Field(None, gt=0)
    """Weight of its share of the tasks; without weights every dataset has the share of its rows."""
    order: Literal["uniform", "learnability"] = "uniform"
    """`uniform`: every task once an epoch; `learnability`: tasks by the recent variance of the rewards of their groups,
    a tenth of them evenly, so that tasks that always or never succeed come rarely (arXiv 2504.03380)."""


class EvaluationSetConfig(DatasetConfig):
    """A held-out dataset, its sampling and its metrics. Each problem counts once, for any `samples`."""

    samples: int = Field(1, ge=1)
    """Replies to each problem (n); the reward is `avg@n`, their mean, averaged over problems."""
    temperature: float = Field(0.0, ge=0, le=2)
    """Softmax temperature; 0 is greedy, and takes one sample."""
    max_tokens: int | None = Field(None, ge=1)
    """Longest reply in tokens; `sampling.max_tokens` when absent."""
    pass_at: tuple[int, ...] = ()
    """Every k for `pass@k`: the chance that one of k replies passes (unbiased, arXiv 2107.03374)."""
    pass_reward: float = 1.0
    """A reply passes when its reward is at least this."""
    majority_at: tuple[int, ...] = ()
    """Every k for `maj@k`: the reward of the most frequent answer of k replies (arXiv 2203.11171)."""
    vote_after: str | None = Field(None, min_length=1)
    """A reply's vote is the text after the last such mark (`####`, `\\boxed{`), up to the end of the line or the
    closing brace; by default the whole reply."""
    trained_on: bool = False
    """Allow training on all its problems, to measure memorization."""

    @model_validator(mode="after")
    def _samples_suffice(self) -> EvaluationSetConfig:
        if self.temperature == 0 and self.samples > 1:
            raise ValueError(f"samples is {self.samples}, but at temperature 0 all are the same; set temperature")
        if 0 < self.temperature < 0.01:
            raise ValueError(
                f"temperature is {self.temperature}; give at least 0.01, vLLM's minimum, or 0 for greedy decoding"
            )
        for key, counts in (("pass_at", self.pass_at), ("majority_at", self.majority_at)):
            if any(not 1 <= k <= self.samples for k in counts):
                raise ValueError(f"{key} is {list(counts)}, but each k must be from 1 to samples ({self.samples})")
        return self


D = TypeVar("D", bound=DatasetConfig)


def _one_or_named(value: Any) -> str:
    """Distinguish named sets, a mapping of mappings, from one set, which has a set's keys."""
    named = isinstance(value, Mapping) and bool(value) and not set(value) & set(EvaluationSetConfig.model_fields)
    return "[named]" if named and all(isinstance(one, (Mapping, Config)) for one in value.values()) else "[one]"


TrainingSets = Annotated[
    Annotated[TrainingSetConfig, Tag("[one]")] | Annotated[tuple[TrainingSetConfig, ...], Tag("[many]")],
    Discriminator(lambda value: "[many]" if isinstance(value, (list, tuple)) else "[one]"),
]
EvaluationSets = Annotated[
    Annotated[EvaluationSetConfig, Tag("[one]")] | Annotated[dict[str, EvaluationSetConfig], Tag("[named]")],
    Discriminator(_one_or_named),
]


class DataConfig(Config):
    """Training tasks and evaluation tasks."""

    train: TrainingSets | None = None
    """Training tasks: a dataset, or a list of datasets that are mixed by weight."""
    episodes: str | None = None
    """Recorded episodes to learn from, for kind: offline: a run folder, or its folder or file of episodes."""
    eval: EvaluationSets | None = None
    """Held-out tasks: a dataset, or several by name."""
    shuffle: bool = True
    """Shuffle the training tasks anew each epoch (the order depends only on seed and epoch)."""
    chat_template_arguments: dict[str, Any] = Field({})
    """Further arguments of the model's chat template, for instance `{enable_thinking: false}`."""

    @property
    def train_sets(self) -> dict[str, TrainingSetConfig]:
        if isinstance(self.train, TrainingSetConfig):
            return {"data.train": self.train}
        return {f"data.train.{index}": one for index, one in enumerate(self.train or ())}

    @property
    def eval_sets(self) -> dict[str, EvaluationSetConfig]:
        if isinstance(self.eval, EvaluationSetConfig):
            return {HELD_OUT: self.eval}
        return dict(self.eval or {})

    def eval_key(self, name: str) -> str:
        return f"data.eval.{name}" if isinstance(self.eval, dict) else "data.eval"

    def at(self, place: Callable[[str], str]) -> DataConfig:
        """Return the same data with every path replaced by its `place`."""

        def moved(one: D) -> D:
            few = one.few_shot
            shots = few and few.model_copy(update={"path": few.path and place(few.path)})
            return one.model_copy(update={"path": one.path and place(one.path), "few_shot": shots})

        train, held_out = self.train, self.eval
        parts = {
            "train": tuple(map(moved, train)) if isinstance(train, tuple) else train and moved(train),
            "eval": {name: moved(one) for name, one in held_out.items()}
            if isinstance(held_out, dict)
            else held_out and moved(held_out),
            "episodes": self.episodes and place(self.episodes),
        }
        return self.model_copy(update=parts)

    @property
    def sets(self) -> dict[str, DatasetConfig]:
        return {**self.train_sets, **{self.eval_key(name): one for name, one in self.eval_sets.items()}}

    @field_validator("chat_template_arguments")
    @classmethod
    def _only_how(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        for name in RENDERED_BY_US:
            if name in arguments:
                raise ValueError(f"{name} is set by rlhf itself; remove it")
        return arguments

    @model_validator(mode="after")
    def _complete(self) -> DataConfig:
        weights = [one.weight for one in self.train_sets.values()]
        if not weights and self.train is not None:
            raise ValueError("train is an empty list; give at least one dataset")
        if None in weights and any(weights):
            raise ValueError(
                "give every dataset of train a weight, or none of them (then each has the share of its rows)"
            )
        for name in self.eval_sets:
            if not SET_NAME.fullmatch(name):
                raise ValueError(
                    f"eval has a set named {name!r}; a name has letters, digits, dots, dashes and underscores"
                )
        trained = [(one.tasks, one.arguments) for one in self.train_sets.values() if one.tasks]
        for name, one in self.eval_sets.items():
            if (one.tasks, one.arguments) in trained and not one.trained_on:
                raise ValueError(
                    f"{self.eval_key(name)}.arguments are those of data.train, so {one.tasks} makes the same tasks; "
                    "give others (a split, a seed), or set trained_on: true to measure memorization"
                )
        return self
