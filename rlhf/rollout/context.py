"""A context that grows by appending tokens: the model's input, and one segment of the trajectory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rlhf.types import Completion, Routing, Segment, TokenKind, Turn


class Context:
    """A prompt, followed by replies and the environment's messages after each. Append-only."""

    def __init__(self, prompt: NDArray[np.int32]) -> None:
        self._tokens: list[NDArray[np.int32]] = []
        self._kinds: list[NDArray[np.int8]] = []
        self._logprobs: list[NDArray[np.float32]] = []
        self._versions: list[NDArray[np.int32]] = []
        self._routing: list[Routing] = []
        self._turns: list[Turn] = []
        self._add(prompt, TokenKind.PROMPT)

    def __len__(self) -> int:
        return sum(len(tokens) for tokens in self._tokens)

    @property
    def token_ids(self) -> NDArray[np.int32]:
        """All tokens so far, `int32 [T]`."""
        return np.concatenate(self._tokens).astype(np.int32)

    @property
    def last(self) -> int:
        """The last token so far."""
        return int(self._tokens[-1][-1])

    def say(self, completion: Completion) -> None:
        """Append a reply of the policy with the token ids as sampled; it is one turn."""
        start = len(self)
        self._tokens.append(completion.token_ids)
        self._kinds.append(np.full(len(completion.token_ids), TokenKind.ACTION, np.int8))
        self._logprobs.append(completion.logprobs)
        self._versions.append(completion.versions)
        if completion.routing is not None:
            # Earlier sampled tokens keep the experts that they were sampled with.
            self._routing.append(completion.routing[sum(map(len, self._routing)) :])
        self._turns.append(Turn(start=start, stop=len(self)))

    def hear(self, token_ids: NDArray[np.int32]) -> None:
        """Append what the environment said, and the header of the next reply."""
        self._add(token_ids, TokenKind.ENV)

    def reward_turn(self, reward: float | None) -> None:
        """Add the environment's reward to the last turn."""
        self._turns[-1] = replace(self._turns[-1], reward=reward)

    def end(self, earned: float | None = None) -> None:
        """Mark the last turn as terminal, and pay it the reward of the whole episode in addition to its own reward."""
        last = self._turns[-1]
        paid = last.reward if earned is None else earned + (last.reward or 0.0)
        self._turns[-1] = replace(last, reward=paid, terminated=True)

    def cut_off(self) -> None:
        """Mark the last turn as truncated: the episode stopped without a terminal state."""
        self._turns[-1] = replace(self._turns[-1], truncated=True)

    def segment(self) -> Segment:
        return Segment(
            token_ids=self.token_ids,
            kinds=np.concatenate(self._kinds),
            logprobs=np.concatenate(self._logprobs).astype(np.float32),
            versions=np.concatenate(self._versions).astype(np.int32),
            turns=tuple(self._turns),
            routing=self._known_routing(),
        )

    def _known_routing(self) -> Routing | None:
        """Return the experts of all tokens, `[T, layers, k]`; -1 for the last token, which was never computed."""
        if not self._routing:
            return None
        known = np.concatenate(self._routing)
        unknown = np.full((len(self) - len(known), *known.shape[1:]), -1, np.int16)
        routing: Routing = np.concatenate([known, unknown])
        return routing

    def _add(self, token_ids: NDArray[np.int32], kind: TokenKind) -> None:
        self._tokens.append(token_ids)
        self._kinds.append(np.full(len(token_ids), kind, np.int8))
        self._logprobs.append(np.zeros(len(token_ids), np.float32))
        self._versions.append(np.full(len(token_ids), -1, np.int32))
