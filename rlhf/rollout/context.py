"""A context that grows by appending tokens: the model's input, and one segment of the trajectory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rlhf.chat.image_reader import concatenated
from rlhf.types import Completion, Prompt, Routing, Segment, ThreadKind, TokenKind, Turn


class Context:
    """A prompt, followed by replies and the environment's messages after each. Append-only."""

    def __init__(self, prompt: Prompt) -> None:
        self.prompt = prompt
        """All tokens so far, and the images among them."""
        self._prompt_tokens = len(prompt.token_ids)
        self._turns: list[Turn] = []
        self._replies: list[Completion] = []
        self._routing: list[Routing] = []

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def token_ids(self) -> NDArray[np.int32]:
        """All tokens so far, `int32 [T]`."""
        return self.prompt.token_ids

    @property
    def last(self) -> int:
        return int(self.token_ids[-1])

    def append_reply(self, completion: Completion, message: int | None = None) -> None:
        """Append a reply of the policy with the token ids as sampled; it is one turn, and that `message` of the
        conversation."""
        start = len(self)
        self.append(Prompt(token_ids=completion.token_ids))
        self._replies.append(completion)
        if completion.routing is not None:
            # Tokens sampled earlier keep their experts.
            self._routing.append(completion.routing[sum(map(len, self._routing)) :])
        self._turns.append(Turn(start=start, stop=len(self), message=message))

    def append(self, behind: Prompt) -> None:
        """Append the environment's messages and the header of the next reply."""
        self.prompt = concatenated(self.prompt, behind)

    def reward_turn(self, reward: float | None) -> None:
        self._turns[-1] = replace(self._turns[-1], reward=reward)

    def end(self, earned: float | None = None) -> None:
        """Mark the last turn as terminal, and add the reward of the whole episode to its own."""
        last = self._turns[-1]
        paid = last.reward if earned is None else earned + (last.reward or 0.0)
        self._turns[-1] = replace(last, reward=paid, terminated=True)

    def cut_off(self) -> None:
        """Mark the last turn as truncated: the episode stopped without a terminal state."""
        self._turns[-1] = replace(self._turns[-1], truncated=True)

    def segment(self, thread: ThreadKind = "main", untrained: frozenset[int] = frozenset()) -> Segment:
        """Return the context as a segment, in which the `untrained` turns, by their number, are no ACTION."""
        kinds = np.full(len(self), int(TokenKind.ENV), np.int8)
        kinds[: self._prompt_tokens] = TokenKind.PROMPT
        logprobs, versions = np.zeros(len(self), np.float32), np.full(len(self), -1, np.int32)
        for number, (turn, reply) in enumerate(zip(self._turns, self._replies, strict=True)):
            own, kind = slice(turn.start, turn.stop), TokenKind.UNTRAINED if number in untrained else TokenKind.ACTION
            kinds[own], logprobs[own], versions[own] = int(kind), reply.behaviour_logprobs, reply.versions
        routing: Routing | None = None
        if self._routing:
            known = np.concatenate(self._routing)
            # The last token was never computed.
            unknown = np.full((len(self) - len(known), *known.shape[1:]), -1, np.int16)
            routing = np.concatenate([known, unknown])
        return Segment(
            token_ids=self.token_ids,
            kinds=kinds,
            behaviour_logprobs=logprobs,
            versions=versions,
            turns=tuple(self._turns),
            routing=routing,
            thread=thread,
            images=self.prompt.images,
        )
