"""A reward model as a worker. `start` imports torch and transformers, so that constructing a worker is cheap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rlhf.chat.image_reader import check_same_images
from rlhf.images import row_images
from rlhf.models.model_files import UNNAMED_CONTEXT, context_tokens
from rlhf.types import Prompt

if TYPE_CHECKING:
    from rlhf.models.scalar import ScalarHead


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardModelSettings:
    """Settings of a worker: the folders of the reward model and of the policy whose tokens it will read, whether it
    `sees` the images among them, and how it computes. `tokens_per_batch` bounds a forward pass, padding included."""

    model: str
    policy: str
    dtype: str = "float32"
    attention: str = "auto"
    trust_remote_code: bool = False
    sees: bool = False
    device: str = "cpu"
    tokens_per_batch: int = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardModelFacts:
    context_tokens: int
    vocab_size: int


class RewardModelWorker:
    """Scores token sequences, without gradients. Call `start` first."""

    def __init__(self, name: str = "reward-0") -> None:
        self.name = name
        self._head: ScalarHead | None = None

    def start(self, settings: RewardModelSettings) -> RewardModelFacts:
        """Load the model. Raises `ModelError` for a model with more than one output, or with another vocabulary."""
        from rlhf.models.probe import proved_rows, sight_of
        from rlhf.models.scalar import ScalarHead, check_same_vocabulary, load_scalar

        model = load_scalar(
            settings.model,
            dtype=settings.dtype,
            attention=settings.attention,
            trust_remote_code=settings.trust_remote_code,
            setting="reward.model",
        )
        trusted = settings.trust_remote_code
        if settings.sees:
            check_same_images(settings.policy, settings.model, trust_remote_code=trusted, setting="reward.model")
        sight = sight_of("frozen" if settings.sees else None, settings.model, trust_remote_code=trusted)
        rows = proved_rows(model, settings.model, device=settings.device, setting="reward.model", sight=sight)
        check_same_vocabulary(settings.policy, settings.model, trust_remote_code=trusted)
        self._settings = settings
        self._head = ScalarHead(model, rows).requires_grad_(False).eval()
        text = model.config.get_text_config()
        return RewardModelFacts(
            context_tokens=context_tokens(text.to_dict()) or UNNAMED_CONTEXT, vocab_size=int(text.vocab_size)
        )

    def score(self, sequences: Sequence[Prompt]) -> list[float]:
        """Return the model's output at the last token of every sequence, in order, NaN included."""
        scores = np.zeros(len(sequences))
        for places in batches([len(one.token_ids) for one in sequences], self._settings.tokens_per_batch):
            scores[places] = self._forward([sequences[place] for place in places])
        return [float(score) for score in scores]

    def _forward(self, sequences: Sequence[Prompt]) -> NDArray[np.float32]:
        import torch

        assert self._head is not None, "start comes first"
        arrays, device = padded([one.token_ids for one in sequences]), self._settings.device
        length = arrays[0].shape[1]
        images = [(row * length + at.start, at.features) for row, one in enumerate(sequences) for at in one.images]
        with torch.no_grad():
            given = (torch.as_tensor(array, device=device) for array in arrays)
            scores = self._head(*given, images=row_images(images, ()))
        self._head.rows.forget_images()
        answer: NDArray[np.float32] = scores.cpu().numpy()
        return answer


def batches(lengths: Sequence[int], tokens: int) -> list[list[int]]:
    """Batches of sequences of similar length, longest first, of at most `tokens` with padding, or one sequence."""
    found: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if found and lengths[found[-1][0]] * (len(found[-1]) + 1) <= tokens:
            found[-1].append(index)
        else:
            found.append([index])
    return found


def padded(sequences: Sequence[NDArray[np.int32]]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """One sequence per row: token ids and positions `[R, L]`, and the flat index of every last token `[R]`."""
    lengths = np.array([len(tokens) for tokens in sequences])
    token_ids = np.zeros((len(sequences), lengths.max()), np.int64)
    # Every pad has position 0: each is its own sequence, and no other token attends to it.
    position_ids = np.zeros_like(token_ids)
    for row, tokens in enumerate(sequences):
        token_ids[row, : len(tokens)] = tokens
        position_ids[row, : len(tokens)] = np.arange(len(tokens))
    return token_ids, position_ids, np.arange(len(sequences)) * token_ids.shape[1] + lengths - 1
