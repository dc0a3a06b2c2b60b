"""Settings of rewards."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from rlhf.config import Config, compiled_pattern
from rlhf.errors import ConfigError
from rlhf.http.config import HttpConfig, RecordingConfig, Url
from rlhf.reward.code.config import CodeRewardConfig

Number = Annotated[float, Field(ge=-3.4e38, le=3.4e38)]
"""A number that is finite in float32, which training computes in."""


class RemoteConfig(Config):
    """An external reward server."""

    url: Url
    """Address of the server, without the path of its API, for example http://127.0.0.1:8100."""
    api: Literal["openrlhf", "slime", "vllm_classify", "vllm_pooling", "vllm_score"] = "openrlhf"
    """The server's API: OpenRLHF's `POST /get_reward`, slime's `POST /`, or vLLM's `/classify`, `/pooling`,
    `/score`."""
    model: str | None = None
    """Name of the model, for vLLM's APIs."""
    sends: Literal["text", "tokens"] = "text"
    """`tokens` sends the sampled token ids to `vllm_classify` and `vllm_pooling`: for a reward model with the policy's
    tokenizer."""
    token_env: str | None = None
    """Environment variable with the bearer token."""

    @model_validator(mode="after")
    def _complete(self) -> RemoteConfig:
        if self.sends == "tokens" and self.api not in ("vllm_classify", "vllm_pooling"):
            raise ValueError(f"sends: tokens is for vllm_classify and vllm_pooling; api {self.api} reads text")
        return self


class JudgeConfig(Config):
    """A generative judge behind an OpenAI-compatible endpoint."""

    url: Url
    """Address of the endpoint with its version, for example http://127.0.0.1:8000/v1."""
    model: str
    """Name of the judge model."""
    mode: Literal["pointwise", "pairwise"] = "pointwise"
    """`pointwise`: every reply gets a mark; `pairwise`: the replies of a group are compared in pairs, each pair in both
    orders, and a reply's reward is the share of its comparisons that it won, a tie counting half."""
    rubric: str = "Judge how correct and how helpful the reply is."
    """The judge's criteria."""
    low: float = 0
    """The worst mark (pointwise). Rewards are marks scaled to 0 … 1."""
    high: float = 10
    """The best mark (pointwise)."""
    max_tokens: int = Field(1024, ge=1)
    """Maximum length of a verdict in tokens, its reasons included."""
    temperature: float = Field(0, ge=0)
    """Sampling temperature of the judge."""
    token_env: str | None = None
    """Environment variable with the bearer token."""

    @model_validator(mode="after")
    def _complete(self) -> JudgeConfig:
        if self.low >= self.high:
            raise ValueError(f"judge.low ({self.low:g}) must be less than judge.high ({self.high:g})")
        return self


ScorerKind = Literal[
    "exact", "regex", "format", "math", "code", "function", "model", "remote", "judge", "environment", "combined",
    "none",
]  # fmt: skip
UNBREAKABLE = ("exact", "format", "environment", "combined", "none")
"""Kinds that a reply cannot break: they score every reply, or a missing score has another cause."""
LOWEST = dict.fromkeys(("regex", "math", "code"), 0.0)
"""Lowest score of kinds that only a reply can break. Their highest is 1."""


class ScorerConfig(Config):
    """One rule, a function of your own, a reward model, a server, or a judge."""

    alternatives: ClassVar = {
        **{f"kind={kind}": () for kind in UNBREAKABLE},
        "kind=combined": ("parts",),
        "kind=regex": ("pattern", "on_scorer_failure"),
        "kind=math": ("on_scorer_failure",),
        "kind=code": ("on_scorer_failure",),
        "kind=function": ("function", "arguments", "on_scorer_failure"),
        "kind=model": ("model", "on_scorer_failure"),
        "kind=remote": ("remote", "recording", "on_scorer_failure"),
        "kind=judge": ("judge", "recording", "on_scorer_failure"),
    }
    kind: ScorerKind = "exact"
    """`exact`: the reply equals the answer; `regex`: `pattern` is found, and the group of its last match (where it has
    one) equals the answer; `format`: the reply consists of `tags`; `math`: math-verify finds the same value; `code`:
    unit tests of the row, run on the reply's code in a sandbox; `function`: your own; `model`: the score of a reward
    model; `remote`: a reward server; `judge`: a model's verdict; `environment`: the sum of the environment's rewards of
    all turns; `combined`: the weighted sum of `parts`; `none`: no scoring, every episode counts 0, for training that
    reads no reward (kind: distill)."""
    tags: tuple[str, ...] = Field(("think", "answer"), min_length=1)
    """Names of the blocks that make up a reply of kind `format`, in order; each must occur once and not be empty."""
    text_after: bool = False
    """Kind `format`: the reply goes on after the last block, with text that is not blank. With `tags: [think]` this is
    the form of R1 and Qwen3: `<think>…</think>`, then the answer in prose."""
    pattern: str | None = None
    """Regular expression of kind `regex`."""
    function: str | None = None
    """`module:function` of kind `function`: `(response, row, **arguments) -> float`, or with more of the episode, or as
    TRL, verl, verifiers or OpenRLHF call it; run in a worker process that can be killed."""
    arguments: dict[str, Any] = Field({})
    """Keyword arguments of the function of kind `function`: JSON types only."""
    model: str | None = None
    """Reward model of kind `model`: a folder or hub name of a sequence-classification model with one label, or the run
    folder of a recipe of kind: reward_model. Its tokenizer is the policy's."""
    workers: int = Field(1, ge=1)
    """Worker processes of kinds `regex`, `math`, `function` and `model`."""
    variables: tuple[str, ...] = ()
    """Names of environment variables that worker processes receive in addition to the usual ones, such as PATH; for
    example the token of a server that your function calls. Worker processes receive no other token."""
    timeout_seconds: float = Field(10, gt=0)
    """Deadline for one response; a scorer that exceeds it is killed, and the response is unscored. For kind `model`,
    the deadline for one batch of responses; for kinds `remote` and `judge`, for one attempt of a request."""
    on_scorer_failure: Literal["unscored"] | Number | None = None
    """The score of a reply that makes the scorer fail (it hangs, raises, dies, or returns no number or verdict):
    `unscored` leaves the reply out of training, a number is its score. By default, kinds `regex`, `math` and `code`
    score it 0, their lowest, and as parts with a negative weight 1, their highest; other kinds leave it out.
    docs/your-own-data-and-reward.md explains what a policy can exploit with each."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Precision of the reward model."""
    tokens_per_batch: int = Field(4096, ge=1)
    """Maximum tokens of one forward pass of a reward model."""
    cpus_per_worker: float = Field(0.5, gt=0)
    """CPU cores reserved for a reward model's worker; the number of threads is this rounded down, at least 1."""
    gpus_per_worker: float = Field(0, ge=0)
    """GPUs reserved for a reward model's worker."""
    start_timeout_seconds: float = Field(300, gt=0)
    """Deadline for loading a reward model."""
    code: CodeRewardConfig = CodeRewardConfig()
    remote: RemoteConfig | None = None
    judge: JudgeConfig | None = None
    http: HttpConfig = HttpConfig()
    recording: RecordingConfig | None = None

    @model_validator(mode="after")
    def _complete(self) -> ScorerConfig:
        if self.kind == "regex" and not self.pattern:
            raise ValueError("reward.pattern is required by kind: regex")
        if self.pattern:
            compiled_pattern(self.pattern)
        if self.kind == "function" and (not self.function or ":" not in self.function):
            raise ValueError("reward.function is required by kind: function, as module:function")
        if self.arguments and self.kind != "function":
            raise ValueError(f"reward.arguments belong to kind: function, but reward.kind is {self.kind}")
        if (self.kind == "model") != (self.model is not None):
            raise ValueError("reward.model and kind: model belong together; give both or neither")
        for key, given in (("remote", self.remote), ("judge", self.judge)):
            if (self.kind == key) != (given is not None):
                raise ValueError(f"reward.{key} and kind: {key} belong together; give both or neither")
        if self.on_scorer_failure not in (None, "unscored") and self.kind in UNBREAKABLE:
            raise ValueError(
                f"a reply cannot break reward.kind: {self.kind}; remove reward.on_scorer_failure, or move it to a "
                "part that a reply can break"
            )
        if self.recording and not (self.remote or self.judge):
            raise ValueError("reward.recording is only for kinds remote and judge, which call a server")
        return self

    @property
    def worth_of_failures(self) -> float | None:
        """The score of a reply that makes the scorer fail; None if it stays unscored."""
        given = self._worst if self.on_scorer_failure is None else self.on_scorer_failure
        return None if isinstance(given, str) else given

    @property
    def _worst(self) -> float | None:
        """The lowest score of the kind; None if unknown."""
        return LOWEST.get(self.kind)

    @property
    def needs_answer(self) -> bool:
        if self.kind == "regex":
            return compiled_pattern(self.pattern or "").groups > 0
        return self.kind in ("exact", "math")

    @property
    def needs_prompt(self) -> bool:
        return self.kind in ("remote", "judge")

    @property
    def asks(self) -> bool:
        """Whether a server is called; a replayed recording calls none, and needs no token."""
        return self.kind in ("remote", "judge") and not (self.recording and self.recording.mode == "replay")


class PartConfig(ScorerConfig):
    """A part of a combined reward."""

    weight: Number = 1
    """Weight of its score; negative for a penalty, 0 to record it only."""

    @model_validator(mode="after")
    def _plain(self) -> PartConfig:
        if self.kind in ("combined", "none"):
            raise ValueError(f"a part of a combination cannot have kind: {self.kind}; list its parts here instead")
        return self

    @property
    def _worst(self) -> float | None:
        """For a penalty, the highest score: otherwise a reply that makes the rule fail would avoid the penalty."""
        return 1.0 if self.weight < 0 and self.kind in LOWEST else super()._worst


def combination(scorers: Sequence[Any]) -> dict[str, Any]:
    """Return a list of scorers, such as `module:function` or `{kind: math, weight: 0.5}`, as a combined reward, whose
    parts have the names of their functions or kinds. Raises `ConfigError` for what is no scorer."""
    parts: dict[str, Any] = {}
    for scorer in scorers:
        part = dict(scorer) if isinstance(scorer, Mapping) else {"function": scorer}
        if (function := part.get("function")) is not None:
            part.setdefault("kind", "function")
            name = str(getattr(function, "__name__", function)).rpartition(":")[2].replace(".", "_")
        elif not (name := str(part.get("kind", ""))):
            raise ConfigError(f"reward: {scorer!r:.80} has no kind; write module:function, or a mapping with a kind")
        alike = sum(one == name or re.fullmatch(rf"{re.escape(name)}_\d+", one) is not None for one in parts)
        parts[f"{name}_{alike + 1}" if alike else name] = part
    return {"kind": "combined", "parts": parts}


class RewardConfig(ScorerConfig):
    """The reward of an episode: one scorer, or the weighted sum of several."""

    parts: dict[str, PartConfig] = Field(default={})
    """Parts of kind `combined`, by name: each has a `weight` and the keys of a reward. A reply that one part cannot
    score has no reward."""
    patience_minutes: float = Field(15, ge=0)
    """How long replies wait for their scores while a server of kinds `remote` and `judge` does not answer, in each
    outage. Waiting groups keep their tickets, so sampling stops, too. After this time their replies are unscored."""

    @model_validator(mode="after")
    def _parts_are_there(self) -> RewardConfig:
        if (self.kind == "combined") != bool(self.parts):
            raise ValueError("reward.parts and kind: combined belong together; give both or neither")
        if sum(part.kind == "model" for part in self.parts.values()) > 1:
            raise ValueError("reward.parts has more than one of kind: model; serve all but one as kind: remote")
        files = [part.recording.path for part in self.parts.values() if part.recording]
        if len(set(files)) < len(files):
            raise ValueError("two parts of reward.parts have the same recording.path; give each its own file")
        return self

    @property
    def scorers(self) -> Mapping[str, ScorerConfig]:
        """All scorers, by the name of the part; a single scorer by its kind."""
        return self.parts or {self.kind: self}

    @property
    def model_scorer(self) -> ScorerConfig | None:
        return next((scorer for scorer in self.scorers.values() if scorer.kind == "model"), None)

    @property
    def compares(self) -> bool:
        """Whether a scorer compares the replies of a group, so that it cannot score a single reply."""
        return any(one.judge and one.judge.mode == "pairwise" for one in self.scorers.values())

    @property
    def needs_answer(self) -> bool:
        return any(part.needs_answer for part in self.parts.values()) or super().needs_answer

    @property
    def needs_prompt(self) -> bool:
        return any(part.needs_prompt for part in self.parts.values()) or super().needs_prompt
