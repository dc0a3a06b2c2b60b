"""Request and response bodies of reward servers: each API's body becomes questions, and scores become its response."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rlhf.types import Unscored

QUESTIONS = 4096
"""Maximum number of replies in one request."""
Label = str | int | float | None
Token = Annotated[int, Field(ge=0, lt=2**31)]
Entry = TypeVar("Entry", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyToScore:
    """One reply to score; by its token ids, prompt included, where token ids were sent."""

    prompt: str
    response: str
    label: str | None = None
    token_ids: tuple[int, ...] | None = None


class _Response(BaseModel):
    model_config = ConfigDict(json_schema_serialization_defaults_required=True)


class Rewards(_Response):
    """The response of OpenRLHF's API; a null is a reply without a score, for clients that accept nulls."""

    rewards: list[float | None]
    scores: list[float | None]
    extra_logs: dict[str, Any] = {}


class Classified(_Response):
    index: int
    label: str = "LABEL_0"
    probs: list[float]
    num_classes: Literal[1] = 1


class Pooled(_Response):
    index: int
    object: Literal["pooling"] = "pooling"
    data: list[float]


class Marked(_Response):
    index: int
    object: Literal["score"] = "score"
    score: float


class Listing(_Response, Generic[Entry]):
    """The response of vLLM's APIs: one entry for each input."""

    id: str
    object: Literal["list"] = "list"
    created: int = 0
    model: str
    data: list[Entry]
    usage: dict[str, int | None] = {
        **dict.fromkeys(("prompt_tokens", "total_tokens", "completion_tokens"), 0),
        **dict.fromkeys(("prompt_tokens_details", "completion_tokens_details")),
    }


class _Body(BaseModel):
    """Unknown keys are ignored: they are meant for other servers. NaN is not valid JSON."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)


class GetReward(_Body):
    """The body of OpenRLHF's API. A query is the prompt followed by the reply."""

    query: list[str] = Field(min_length=1, max_length=QUESTIONS)
    prompts: list[str] | None = None
    labels: list[Label] | None = None

    @model_validator(mode="after")
    def _of_one_length(self) -> GetReward:
        for name, given in (("prompts", self.prompts), ("labels", self.labels)):
            if given is not None and len(given) != len(self.query):
                raise ValueError(f"{name} has {len(given)} entries, and query has {len(self.query)}")
        return self

    def questions(self) -> list[ReplyToScore]:
        prompts = self.prompts or [""] * len(self.query)
        labels = self.labels or [None] * len(self.query)
        return [
            ReplyToScore(prompt=prompt, response=query.removeprefix(prompt), label=_text(label))
            for query, prompt, label in zip(self.query, prompts, labels, strict=True)
        ]

    def answer(self, values: Sequence[float]) -> Rewards:
        return Rewards(rewards=[*values], scores=[*values])

    def partial(self, scores: Sequence[float | Unscored]) -> dict[str, Any]:
        """Return a response with a null for each missing score, for clients that declared that they accept nulls."""
        values = [None if isinstance(score, Unscored) else score for score in scores]
        lost = [
            {"index": index, "kind": score.kind, "detail": score.detail}
            for index, score in enumerate(scores)
            if isinstance(score, Unscored)
        ]
        return {"rewards": values, "scores": values, "extra_logs": {}, "unscored": lost}


class SlimeBody(_Body):
    """The body of slime's API: one reply; the response is the number."""

    prompt: str | list[dict[str, Any]] = ""
    response: str
    label: Label = None

    def questions(self) -> list[ReplyToScore]:
        prompt = self.prompt
        if not isinstance(prompt, str):
            prompt = "\n\n".join(str(message.get("content", "")) for message in prompt)
        return [ReplyToScore(prompt=prompt, response=self.response, label=_text(self.label))]

    def answer(self, values: Sequence[float]) -> float:
        return values[0]


class _VllmBody(_Body):
    """Fields that vLLM's APIs share, and `label`, our extension: the reference answer that a rule compares with."""

    model: str | None = None
    label: Label = None

    def _about(self, name: str) -> dict[str, str]:
        return {"id": f"{name}-{uuid.uuid4().hex}", "model": self.model or "reward"}


class _InputBody(_VllmBody):
    """Whole texts to score, or their token ids."""

    input: str | list[str] | list[Token] | list[list[Token]] = Field(min_length=1, max_length=2**26)

    def questions(self) -> list[ReplyToScore]:
        one = isinstance(self.input, str) or isinstance(self.input[0], int)
        inputs: list[Any] = [self.input] if one else list(self.input)
        label = _text(self.label)
        return [
            ReplyToScore(prompt="", response=given, label=label)
            if isinstance(given, str)
            else ReplyToScore(prompt="", response="", label=label, token_ids=tuple(given))
            for given in inputs
        ]


class ClassifyBody(_InputBody):
    def answer(self, values: Sequence[float]) -> Listing[Classified]:
        entries = [Classified(index=index, probs=[value]) for index, value in enumerate(values)]
        return Listing[Classified](data=entries, **self._about("classify"))


class PoolingBody(_InputBody):
    def answer(self, values: Sequence[float]) -> Listing[Pooled]:
        entries = [Pooled(index=index, data=[value]) for index, value in enumerate(values)]
        return Listing[Pooled](data=entries, **self._about("pool"))


class ScoreBody(_VllmBody):
    """The body of vLLM's `/score`: `text_1` is the prompt, one for all or one for each of the replies `text_2`."""

    text_1: str | list[str]
    text_2: str | list[str] = Field(min_length=1, max_length=2**26)

    @model_validator(mode="after")
    def _fit(self) -> ScoreBody:
        if isinstance(self.text_1, list) and len(self.text_1) not in (1, len(_listed(self.text_2))):
            raise ValueError(f"text_1 has {len(self.text_1)} entries, and text_2 has {len(_listed(self.text_2))}")
        return self

    def questions(self) -> list[ReplyToScore]:
        replies, prompts = _listed(self.text_2), _listed(self.text_1)
        prompts = prompts * len(replies) if len(prompts) == 1 else prompts
        return [
            ReplyToScore(prompt=prompt, response=reply, label=_text(self.label))
            for prompt, reply in zip(prompts, replies, strict=True)
        ]

    def answer(self, values: Sequence[float]) -> Listing[Marked]:
        entries = [Marked(index=index, score=value) for index, value in enumerate(values)]
        return Listing[Marked](data=entries, **self._about("score"))


Body = GetReward | SlimeBody | ClassifyBody | PoolingBody | ScoreBody
"""A request body of one API. Its response has the type that `answer` is annotated with."""
BODIES: Mapping[str, type[Body]] = {
    "/get_reward": GetReward,
    "/": SlimeBody,
    "/classify": ClassifyBody,
    "/pooling": PoolingBody,
    "/score": ScoreBody,
}


def _listed(texts: str | list[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else texts


def _text(label: Label) -> str | None:
    return None if label is None else str(label)
