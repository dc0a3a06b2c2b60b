"""What is measured of one family, in this process: every cell is a number, or the named error that refuses it."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from rlhf.engines.vllm.environment import engine_environment
from rlhf.errors import ConfigError, EngineBroken, ModelError, TransferError, WeightSyncError
from rlhf.images import PlacedImage, RowImages
from rlhf.models.attention import decoder_of
from rlhf.models.config import LoraConfig
from rlhf.models.loading import load_policy
from rlhf.models.lora import add_lora, lora_for_model
from rlhf.models.policy import PolicyModel, logits_of
from rlhf.models.probe import proved_rows
from rlhf.models.scalar import HEAD, ScalarHead, load_scalar
from rlhf.types import Routing
from rlhf.weight_sync.canary import canary, tolerance_for
from rlhf.weight_sync.publish import Publisher
from tests.architectures.families import SHAPE, Family, save
from tests.architectures.table import Cell
from tests.integration.torch_learner import BUCKET_BYTES, ThreadedEngine, TorchLearner
from tests.whole import whole_state


class FamilyLearner(TorchLearner):
    """A `WeightSource` over a folder."""

    def __init__(self, folder: Path, *, attention: str, dtype: str, lora: LoraConfig | None = None) -> None:
        self.attention, self.lora = attention, lora
        self.form = lora.weight_sync if lora else "merged"
        super().__init__(folder, dtype)
        self.policy = PolicyModel(self.model, self.rows)

    def loaded(self, folder: Path, dtype: str) -> PreTrainedModel:
        model = load_policy(str(folder), dtype=dtype, attention=self.attention)
        self.rows = proved_rows(model, folder.name)
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
SHARED = 20
"""The second sequence begins with so many tokens of the first, and is a branch of it in the row."""
Measure = Callable[[Family, Path], float]
REFUSALS = (ModelError, ConfigError, WeightSyncError, TransferError, EngineBroken)


def measure(family: Family, columns: Sequence[str] = ()) -> dict[str, Cell]:
    """These cells of a family's row, or all. What is no refusal by name is an error of ours, and raised."""
    os.environ.update(engine_environment("cpu"))
    cells: dict[str, Cell] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / family.name
        save(family, folder)
        for name in columns or MEASURES:
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


def sequences() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    first, second, third = (torch.randint(3, SHAPE["vocab_size"] - 64, (n,), generator=generator) for n in LENGTHS)
    second[:SHARED] = first[:SHARED]
    return [first, second, third]


def row_of() -> tuple[torch.Tensor, torch.Tensor, int]:
    """The sequences in one row, the positions of its tokens, and where the last one begins."""
    first, second, third = sequences()
    positions = torch.cat([torch.arange(LENGTHS[0]), torch.arange(SHARED, LENGTHS[1]), torch.arange(LENGTHS[2])])
    return torch.cat([first, second[SHARED:], third]), positions, LENGTHS[0] + LENGTHS[1] - SHARED


def loss_of_row(policy: PolicyModel) -> torch.Tensor:
    """A sum of weighted log-probs of sequences in one row."""
    row, positions, behind = row_of()
    targets = torch.tensor([n for n in range(len(row)) if n not in (0, behind)])
    sources = torch.where(targets == LENGTHS[0], SHARED - 1, targets - 1)
    logprobs, _ = policy(row[None], positions[None], sources, targets, 1.0)
    return (logprobs * _weights(row[targets])).sum()


def loss_of_each(model: PreTrainedModel) -> torch.Tensor:
    """The same sum, a sequence a row, by transformers alone."""
    loss = torch.zeros((), dtype=torch.float64)
    for ids, start in zip(sequences(), (0, SHARED - 1, 0), strict=True):
        logprobs = model(input_ids=ids[None], use_cache=False).logits[0, :-1].log_softmax(-1)
        chosen = logprobs.gather(-1, ids[1:, None])[start:, 0]
        loss = loss + (chosen.double() * _weights(ids[start + 1 :])).sum()
    return loss


def _weights(ids: torch.Tensor) -> torch.Tensor:
    return 1 + torch.cos(ids.float())


def logits_of_row(family: Family, folder: Path) -> float:
    """The largest difference of logits, packed and alone."""
    learner, plain = learner_of(family, folder), plain_model(family, folder)
    row, positions, _ = row_of()
    with torch.no_grad():
        _, hidden = learner.rows.hidden(learner.model, row[None], positions[None], torch.arange(len(row)))
        logits = logits_of(learner.model, hidden)
        own = [plain(input_ids=ids[None], use_cache=False).logits[0] for ids in sequences()]
    expected = torch.cat([own[0], own[1][SHARED:], own[2]])
    return float((logits - expected).abs().max())


def gradient_of_row(family: Family, folder: Path) -> float:
    """The relative error of the whole gradient."""
    policy = learner_of(family, folder).policy
    loss_of_row(policy).backward()
    plain = plain_model(family, folder).double()
    loss_of_each(plain).backward()
    found = {name: weight.grad for name, weight in policy.model.named_parameters()}
    gaps, sizes = [], []
    for name, weight in plain.named_parameters():
        own = found[name]
        expected = torch.zeros_like(weight) if weight.grad is None else weight.grad
        gaps.append(((0 if own is None else own.double()) - expected).norm())
        sizes.append(expected.norm())
    return float(torch.stack(gaps).norm() / torch.stack(sizes).norm())


def plain_model(family: Family, folder: Path) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation=family.plain, experts_implementation="eager"
    )
    return model.eval()


def learner_of(family: Family, folder: Path, lora: LoraConfig | None = None, dtype: str = "float32") -> FamilyLearner:
    return FamilyLearner(folder, attention=family.attention, dtype=dtype, lora=lora)


def engine_after_update(family: Family, folder: Path, lora: LoraConfig | None = None) -> float:
    """The difference of log-probs of engine and learner in nats after the start check, an update and a sync: the
    largest, in 16 bits the mean, in which a few tokens that rounding sends to other experts do not stand out."""
    learner = learner_of(family, folder, lora, family.dtype)
    adapters = lora is not None and lora.weight_sync == "adapter"
    engine = ThreadedEngine(folder, family.dtype, lora=lora if adapters else None)
    try:
        return asyncio.run(_followed(learner, engine))
    finally:
        with suppress(EngineBroken):
            engine.stop()


async def _followed(learner: FamilyLearner, engine: ThreadedEngine) -> float:
    publisher = Publisher(
        learner,
        [engine],
        canary=canary(SHAPE["vocab_size"] - 64, engine.worker.facts.max_context_tokens, tolerance_for(learner.dtype)),
        phase_timeout_seconds=60,
    )
    await publisher.connect()
    await publisher.verify()
    learner.update(1e-2)
    await publisher.publish()
    gaps = []
    for ids in sequences():
        tokens = ids.numpy().astype(np.int32)
        gaps.append(np.abs((await engine.token_logprobs(tokens)).logprobs - await learner.token_logprobs(tokens)))
    return float(np.concatenate(gaps).max() if learner.dtype == "float32" else np.concatenate(gaps).mean())


def exported(family: Family, folder: Path) -> float:
    """The largest difference of logits after an export as a checkpoint writes it, and a reload."""
    policy = learner_of(family, folder).policy
    out = folder.with_name("exported")
    policy.model.save_pretrained(out, state_dict={})
    save_file(whole_state(policy, BUCKET_BYTES), out / "model.safetensors", metadata={"format": "pt"})
    first, *_ = sequences()
    with torch.no_grad():
        before, after = (
            plain_model(family, one)(input_ids=first[None], use_cache=False).logits for one in (folder, out)
        )
    return float((before - after).abs().max())


def numbers_of_row(family: Family, folder: Path) -> float:
    """The largest difference of a critic's numbers, packed and alone."""
    model = load_scalar(str(folder), attention=family.attention, fresh_head=True)
    rows = proved_rows(model, folder.name)
    head = model.get_submodule(HEAD)
    torch.manual_seed(0)
    torch.nn.init.normal_(head.weight, std=head.weight.shape[1] ** -0.5)
    row, positions, _ = row_of()
    with torch.no_grad():
        packed = ScalarHead(model, rows)(row[None], positions[None], torch.arange(len(row)))
        own = [head(decoder_of(model)(ids[None], use_cache=False).last_hidden_state)[0, :, 0] for ids in sequences()]
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
}
