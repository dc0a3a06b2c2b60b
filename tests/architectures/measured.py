"""What is measured of one family, in this process: every cell is a number, or the named error that refuses it."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoConfig, PreTrainedModel

from rlhf.chat.image_reader import noise_image
from rlhf.engines.vllm.environment import engine_environment
from rlhf.errors import ConfigError, EngineBroken, ModelError, TransferError, WeightSyncError
from rlhf.images import ImageFeatures, PlacedImage, RowImages
from rlhf.models.attention import decoder_of
from rlhf.models.config import LoraConfig
from rlhf.models.image_probe import SIZES, own_arguments
from rlhf.models.loading import load_policy
from rlhf.models.lora import add_lora, lora_for_model
from rlhf.models.policy import PolicyModel, logits_of
from rlhf.models.probe import proved_rows, sight_of
from rlhf.models.scalar import HEAD, ScalarHead, load_scalar
from rlhf.models.towers import auto_class
from rlhf.types import Routing
from rlhf.weight_sync.canary import canary, tolerance_for
from rlhf.weight_sync.publish import Publisher
from tests.architectures.families import SHAPE, Family, save
from tests.architectures.table import MAIN, Cell
from tests.integration.torch_learner import BUCKET_BYTES, ThreadedEngine, TorchLearner
from tests.models.seeing import save_shown
from tests.whole import whole_state


class FamilyLearner(TorchLearner):
    """A `WeightSource` over a folder."""

    def __init__(
        self, folder: Path, *, attention: str, dtype: str, lora: LoraConfig | None = None, tower: str | None = None
    ) -> None:
        self.attention, self.lora, self.tower = attention, lora, tower
        self.sight = sight_of(tower, str(folder))
        self.form = lora.weight_sync if lora else "merged"
        super().__init__(folder, dtype)
        self.policy = PolicyModel(self.model, self.rows)

    def loaded(self, folder: Path, dtype: str) -> PreTrainedModel:
        model = load_policy(str(folder), dtype=dtype, attention=self.attention, trains_tower=self.tower == "trained")
        self.rows = proved_rows(model, folder.name, sight=self.sight)
        return add_lora(model, self.lora)

    async def token_logprobs(
        self,
        token_ids: NDArray[np.int32],
        routing: Routing | None = None,
        policy: str = "",
        images: Sequence[PlacedImage] = (),
    ) -> NDArray[np.float32]:
        rows = [
            self._logprobs(torch.from_numpy(row).long(), images) for row in token_ids.reshape(-1, token_ids.shape[-1])
        ]
        self.rows.forget_images()
        return np.stack(rows).reshape(*token_ids.shape[:-1], -1)

    def _logprobs(self, ids: Tensor, images: Sequence[PlacedImage]) -> NDArray[np.float32]:
        targets, starts = torch.arange(1, len(ids)), np.array([one.start for one in images], np.int64)
        shown = RowImages(images=tuple(one.features for one in images), starts=starts) if images else None
        with torch.no_grad():
            logprobs, _ = self.policy(ids[None], torch.arange(len(ids))[None], targets - 1, targets, 1.0, images=shown)
        found: NDArray[np.float32] = logprobs.numpy()
        return found


LENGTHS = (60, 52, 31)
SHARED, PLACE = 20, 10
"""The number of tokens that the second sequence, a branch of the first in the row, shares with it, and the number of
text tokens before an image."""
Measure = Callable[[Family, Path], float]
REFUSALS = (ModelError, ConfigError, WeightSyncError, TransferError, EngineBroken)


def measure(family: Family, columns: Sequence[str] = ()) -> dict[str, Cell]:
    """These cells of a family's row, or all. What is no refusal by name is an error of ours, and raised."""
    os.environ.update(engine_environment("cpu"))
    cells: dict[str, Cell] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / family.name
        (save_shown(family.kind, folder) if family.sees else save(family, folder))
        for name in columns or (OF_IMAGES if family.sees else OF_TEXT):
            cells[name] = _cell(partial(MEASURES[name], family), folder)
            if name == "packed" and cells[name].refused:
                break
            if name == "packed":
                cells[name] = replace(cells[name], alone=learner_of(family, folder).rows.why_alone)
    return cells


def _cell(of: Callable[[Path], float], folder: Path) -> Cell:
    try:
        return Cell(value=of(folder))
    except REFUSALS as error:
        return Cell(refused=" ".join(str(error).replace(str(folder), folder.name).split()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Three sequences, the second a branch of the first after `shared` tokens, with the image in each, if any."""

    ids: list[Tensor]
    shared: int
    images: list[ImageFeatures]

    @property
    def row(self) -> tuple[Tensor, Tensor, int, RowImages | None]:
        """The sequences in one row, the positions of its tokens, where the last one begins, and the images."""
        first, second, third = self.ids
        positions = [torch.arange(len(first)), torch.arange(self.shared, len(second)), torch.arange(len(third))]
        behind = len(first) + len(second) - self.shared
        starts = np.array([PLACE, behind + PLACE], np.int64)
        shown = RowImages(images=tuple(self.images[1:]), starts=starts) if self.images else None
        return torch.cat([first, second[self.shared :], third]), torch.cat(positions), behind, shown

    def own_logits(self, model: PreTrainedModel) -> list[Tensor]:
        """Of each sequence, by transformers alone."""
        given = [own_arguments(model, ids, one, PLACE) for ids, one in zip(self.ids, self.images, strict=False)]
        rows = given or [{"input_ids": ids[None]} for ids in self.ids]
        return [model(**row, use_cache=False).logits[0] for row in rows]


def sequences(learner: FamilyLearner | None = None) -> Compared:
    """Sequences of text, or for a learner that is shown images with one in each."""
    generator = torch.Generator().manual_seed(0)
    first, second, third = (torch.randint(3, SHAPE["vocab_size"] - 64, (n,), generator=generator) for n in LENGTHS)
    second[:SHARED] = first[:SHARED]
    if learner is None or learner.sight is None:
        return Compared(ids=[first, second, third], shared=SHARED, images=[])
    one, other = (learner.sight[0].features(noise_image(size)) for size in SIZES)
    images = [one, one, other]
    ids = [
        torch.cat([text[:PLACE], torch.tensor(image.token_ids), text[PLACE:]])
        for text, image in zip((first, second, third), images, strict=True)
    ]
    return Compared(ids=ids, shared=SHARED + len(one.token_ids), images=images)


def loss_of_row(policy: PolicyModel, compared: Compared) -> Tensor:
    """A sum of weighted log-probs of sequences in one row."""
    row, positions, behind, shown = compared.row
    branch = len(compared.ids[0])
    targets = torch.tensor([n for n in range(len(row)) if n not in (0, behind)])
    sources = torch.where(targets == branch, compared.shared - 1, targets - 1)
    logprobs, _ = policy(row[None], positions[None], sources, targets, 1.0, images=shown)
    return (logprobs * _weights(row[targets])).sum()


def loss_of_each(model: PreTrainedModel, compared: Compared) -> Tensor:
    """The same sum, a sequence a row, by transformers alone."""
    loss = torch.zeros((), dtype=torch.float64)
    starts = (0, compared.shared - 1, 0)
    for ids, logits, start in zip(compared.ids, compared.own_logits(model), starts, strict=True):
        chosen = logits[:-1].log_softmax(-1).gather(-1, ids[1:, None])[start:, 0]
        loss = loss + (chosen.double() * _weights(ids[start + 1 :])).sum()
    return loss


def _weights(ids: Tensor) -> Tensor:
    return 1 + torch.cos(ids.float())


def logits_of_row(family: Family, folder: Path) -> float:
    """The largest difference of logits, packed and alone."""
    learner, plain = learner_of(family, folder), plain_model(family, folder)
    compared = sequences(learner)
    row, positions, _, shown = compared.row
    with torch.no_grad():
        _, hidden = learner.rows.hidden(learner.model, row[None], positions[None], torch.arange(len(row)), shown)
        logits = logits_of(learner.model, hidden)
        own = compared.own_logits(plain)
    expected = torch.cat([own[0], own[1][compared.shared :], own[2]])
    return float((logits - expected).abs().max())


def gradient_of_row(family: Family, folder: Path) -> float:
    """The relative error of the whole gradient, that of a trained tower included."""
    learner = learner_of(family, folder)
    policy, compared = learner.policy, sequences(learner)
    loss_of_row(policy, compared).backward()  # type: ignore[no-untyped-call]
    plain = plain_model(family, folder).double()
    loss_of_each(plain, compared).backward()  # type: ignore[no-untyped-call]
    found = {name: weight.grad for name, weight in policy.model.named_parameters()}
    gaps, sizes = [], []
    for name, weight in plain.named_parameters():
        own = found[name]
        expected = torch.zeros_like(weight) if weight.grad is None else weight.grad
        gaps.append(((0 if own is None else own.double()) - expected).norm())
        sizes.append(expected.norm())
    return float(torch.stack(gaps).norm() / torch.stack(sizes).norm())


def plain_model(family: Family, folder: Path) -> PreTrainedModel:
    model: PreTrainedModel = auto_class(AutoConfig.from_pretrained(folder)).from_pretrained(
        folder, attn_implementation=family.plain, experts_implementation="eager"
    )
    return model.eval()


def learner_of(
    family: Family, folder: Path, lora: LoraConfig | None = None, dtype: str = "float32", tower: str = "trained"
) -> FamilyLearner:
    shown = tower if family.sees else None
    return FamilyLearner(folder, attention=family.attention, dtype=dtype, lora=lora, tower=shown)


def engine_after_update(family: Family, folder: Path, lora: LoraConfig | None = None, tower: str = "trained") -> float:
    """The difference of log-probs of engine and learner in nats after the start check, an update and a sync: the
    largest, in 16 bits the mean, in which a few tokens that rounding sends to other experts do not stand out."""
    learner = learner_of(family, folder, lora, family.dtype, tower)
    adapters = lora is not None and lora.weight_sync == "adapter"
    engine = ThreadedEngine(folder, family.dtype, lora=lora if adapters else None, tower=learner.tower)
    try:
        return asyncio.run(_followed(learner, engine))
    finally:
        with suppress(EngineBroken):
            engine.stop()


async def _followed(learner: FamilyLearner, engine: ThreadedEngine) -> float:
    compared, context = sequences(learner), engine.worker.facts.max_context_tokens
    limits, shown = tolerance_for(learner.dtype), next(iter(compared.images), None)
    publisher = Publisher(
        learner,
        [engine],
        canary=canary(SHAPE["vocab_size"] - 64, context, limits, image=shown),
        phase_timeout_seconds=60,
    )
    await publisher.connect()
    await publisher.verify()
    learner.update(1e-2)
    await publisher.publish()
    gaps = []
    for place, ids in enumerate(compared.ids):
        tokens = ids.numpy().astype(np.int32)
        images = [PlacedImage(features=one, start=PLACE) for one in compared.images[place : place + 1]]
        found = (await engine.token_logprobs(tokens, images=images)).logprobs
        gaps.append(np.abs(found - await learner.token_logprobs(tokens, images=images)))
    return float(np.concatenate(gaps).max() if learner.dtype == "float32" else np.concatenate(gaps).mean())


def exported(family: Family, folder: Path) -> float:
    """The largest difference of logits after an export as a checkpoint writes it, and a reload."""
    learner = learner_of(family, folder)
    policy, compared = learner.policy, sequences(learner)
    out = folder.with_name("exported")
    policy.model.save_pretrained(out, state_dict={})
    save_file(whole_state(policy, BUCKET_BYTES), out / "model.safetensors", metadata={"format": "pt"})
    with torch.no_grad():
        before, after = (compared.own_logits(plain_model(family, one))[0] for one in (folder, out))
    return float((before - after).abs().max())


def numbers_of_row(family: Family, folder: Path) -> float:
    """The largest difference of a critic's numbers, packed and alone."""
    model = load_scalar(str(folder), attention=family.attention, fresh_head=True)
    rows = proved_rows(model, folder.name)
    head = model.get_submodule(HEAD)
    torch.manual_seed(0)
    torch.nn.init.normal_(head.weight, std=head.weight.shape[1] ** -0.5)
    compared = sequences()
    row, positions, _, _ = compared.row
    with torch.no_grad():
        packed = ScalarHead(model, rows)(row[None], positions[None], torch.arange(len(row)))
        own = [head(decoder_of(model)(ids[None], use_cache=False).last_hidden_state)[0, :, 0] for ids in compared.ids]
    return float((packed - torch.cat([own[0], own[1][SHARED:], own[2]])).abs().max())


def with_lora(form: str) -> Measure:
    def of(family: Family, folder: Path) -> float:
        lora = lora_for_model(LoraConfig.model_validate({"rank": 4, "alpha": 6, "weight_sync": form}), str(folder))
        return engine_after_update(family, folder, lora)

    return of


MEASURES: dict[str, Measure] = {
    "packed": logits_of_row,
    "gradient": gradient_of_row,
    "engine": engine_after_update,
    "export": exported,
    "critic": numbers_of_row,
    "merged": with_lora("merged"),
    "adapter": with_lora("adapter"),
    "frozen": partial(engine_after_update, tower="frozen"),
}
OF_TEXT = tuple(name for name in MEASURES if name != "frozen")
OF_IMAGES = (*MAIN, "frozen")
