"""The record of an episode: its task, tokens, score, training data and outcome.

Every per-token column of a record has the length `[T]` of its concatenated segments, and `segment_lengths` the length
of each. Log-probs and advantages are NaN, and versions -1, at tokens that the policy did not sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf.runs.jsonl import finite
from rlhf.types import ThreadKind


class EpisodeOutcome(StrEnum):
    """The outcome of an episode. Every admitted episode has exactly one."""

    TRAINED = "trained"
    """It was part of an update."""
    FILTERED = "filtered"
    """It was valid, and the recipe's filter replaced its group."""
    FAILED = "failed"
    """Its environment or engine failed, or that of its group."""
    UNSCORED = "unscored"
    """Its scorer failed: it has no score and was not part of the update."""
    IN_FLIGHT = "in_flight"
    """The run ended before it could be trained."""
    EVALUATED = "evaluated"
    """It was played to evaluate the policy, not for training."""
    SECOND_USE = "second_use"
    """It was part of a second update; its record as `trained`, of an earlier one, has its tokens and reward."""
    BASELINE = "baseline"
    """It was played greedily as its group's baseline, not for training."""
    SERVED = "served"
    """An external agent played it with a served policy, outside of any run."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EpisodeRecord:
    """One row of the recorded episodes. Values that do not apply are null."""

    ordinal: int
    """Position of the group in the order of training."""
    sample: int
    """Index of the episode in its group; each role of an episode has an index. A baseline follows the last sample."""
    task: str
    """Id of the task."""
    group_name: str | None = None
    """Name of the group, for a served episode whose agent gave one."""
    evaluation_set: str | None = None
    """Name of the evaluation set, for an evaluated episode."""
    outcome: EpisodeOutcome
    admitted_version: int
    """Policy version when the group was admitted."""
    update: int | None = None
    """Update (from 1) that trained it; a token's staleness is `update - 1 - versions[t]`."""
    prompt: list[dict[str, Any]]
    """The messages of the prompt, each with `role` and `content`, and with the hashes of its `images`, if any."""
    answer: str | None = None
    """The reference answer."""
    response: str | None = None
    """The reply as text; training reads `token_ids`."""
    status: str | None = None
    """`terminated` or `truncated`."""
    reward: float | None = None
    reward_parts: dict[str, float] | None = None
    """The named parts of the reward before weighting."""
    reward_detail: str | None = None
    """The scorer's explanation: for kind `code`, the number of passed tests, and whether they trusted the code."""
    reward_per_turn: bool | None = None
    """Whether the reward is only the sum over `turns`."""
    turn_weight: float | None = None
    """The weight of the rewards of `turns` in the reward, if they are part of it."""
    advantage: float | None = None
    """Mean advantage of its sampled tokens."""
    advantages: NDArray[np.float32] | None = None
    """Advantage of every token, only where advantages differ within the episode (with a critic)."""
    failure_kind: str | None = None
    """The failure, or the reason of the filter, in one word."""
    failure_detail: str | None = None
    engine: str | None = None
    """Name of the engine that sampled it."""
    generate_seconds: float | None = None
    environment_seconds: float | None = None
    sampled_tokens: int | None = None
    """Number of tokens that the policy sampled."""
    conversation: list[dict[str, Any]] | None = None
    """With an environment: all messages in order, each with `role`, `content` and, if any, `tool_calls`, or the
    `tool_call_id` that it answers, and the hashes of its `images`. Training reads `token_ids`."""
    role: str | None = None
    """With an environment: the role whose turns these are."""
    policy: str | None = None
    """With `policies` in the recipe: the one that played it."""
    malformed_calls: int | None = None
    """Number of replies with malformed tool calls."""
    cut_replies: int | None = None
    """Number of replies that end at a stop text of the agent, where `client_stop` is `cut`."""
    constrained_replies: int | None = None
    """Number of replies that a grammar constrained (a forced tool call, a JSON schema). Their tokens are of kind 2."""
    segment_lengths: list[int] | None = None
    segment_threads: list[ThreadKind] | None = None
    token_ids: NDArray[np.int32] | None = None
    kinds: NDArray[np.int8] | None = None
    """0 prompt, 1 action (sampled by the policy), 2 environment."""
    behaviour_logprobs: NDArray[np.float32] | None = None
    """The engine's log-probs, in the distribution sampled from."""
    proximal_logprobs: NDArray[np.float32] | None = None
    """The learner's log-probs in the forward pass of the episode's first optimizer step; where the recipe has the ranks
    compute them before the update, those of that pass."""
    entropies: NDArray[np.float32] | None = None
    """Entropy in nats of the distribution that the learner gives each token, in the forward pass of the episode's first
    optimizer step."""
    versions: NDArray[np.int32] | None = None
    """Policy version that sampled each token."""
    turns: list[dict[str, Any]] | None = None
    """Every turn: its `segment`, the range `start`, `stop` of its actions there, the environment's `reward` or null,
    whether it `terminated` or `truncated` the episode, and its `message`: the place of the reply in `conversation`,
    null for a side call, without a conversation, and in the records of earlier versions."""
    images: list[dict[str, Any]] | None = None
    """Every image among the tokens: its `segment`, the range `start`, `stop` of its tokens there, the `sha256` of its
    bytes, and its `file` in the run folder. Null without any."""


COLUMNS = tuple(field.name for field in fields(EpisodeRecord))
UNKNOWN_VERSION = -1
PER_TOKEN: Mapping[str, type[np.generic]] = {
    "advantages": np.float32, "token_ids": np.int32, "kinds": np.int8, "behaviour_logprobs": np.float32,
    "proximal_logprobs": np.float32, "entropies": np.float32, "versions": np.int32,
}  # fmt: skip
"""The per-token columns, each an array `[T]`."""
RENAMED: Mapping[str, str] = {"engine_logprobs": "behaviour_logprobs", "learner_logprobs": "proximal_logprobs"}
"""Columns of schema 1, and their names now."""


def as_row(record: EpisodeRecord) -> dict[str, Any]:
    """Return the record as a JSON object, with null where a token has no value."""
    row = {column: getattr(record, column) for column in COLUMNS}
    return row | {name: None if row[name] is None else _nullable(row[name]) for name in PER_TOKEN}


def record_of_row(row: Mapping[str, Any]) -> EpisodeRecord:
    """Return the record of a JSON object made by `as_row`, now or with schema 1."""
    row = {RENAMED.get(name, name): value for name, value in row.items()}
    arrays = {name: _array(row[name], dtype) for name, dtype in PER_TOKEN.items() if row.get(name) is not None}
    return EpisodeRecord(**{**row, **arrays, "outcome": EpisodeOutcome(row["outcome"])})


def _nullable(values: NDArray[Any]) -> list[float | int | None]:
    """Return the values as JSON: floats with nine significant digits, which reproduce every float32 in half the text of
    a float64."""
    if values.dtype.kind == "f":
        return [finite(float(f"{value:.9g}")) for value in values.tolist()]
    return [None if value == UNKNOWN_VERSION else value for value in values.tolist()]


def _array(values: Sequence[float | None], dtype: type[np.generic]) -> NDArray[Any]:
    unknown = np.nan if np.issubdtype(dtype, np.floating) else UNKNOWN_VERSION
    return np.array([unknown if value is None else value for value in values], dtype)
