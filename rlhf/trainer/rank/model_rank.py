"""Base class of the training ranks: the process group, optimizer steps, and state on disk, for any model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.distributed
from numpy.typing import NDArray
from torch import Tensor

from rlhf.durable import files_below
from rlhf.errors import CheckpointError
from rlhf.models.failures import naming_model
from rlhf.models.loading import bare_tokenizer
from rlhf.models.lora import save_adapter
from rlhf.models.model_files import UNNAMED_CONTEXT, context_tokens
from rlhf.models.policy import PolicyModel
from rlhf.models.scalar import ScalarHead, pad_alike
from rlhf.models.towers import copy_processors, towers
from rlhf.trainer.checkpoint import ADAPTER, AVERAGE, MODEL
from rlhf.trainer.rank import zero
from rlhf.trainer.rank.ema import Average
from rlhf.trainer.rank.metric_accumulator import MetricAccumulator
from rlhf.trainer.rank.offload import RankOffload
from rlhf.trainer.rank.process_memory import freed_at_once
from rlhf.trainer.rank.snapshot import Create, Snapshot, on_disk
from rlhf.trainer.rank.tensor_files import export_weights
from rlhf.trainer.settings import LearnerSettings, Residency
from rlhf.types import PolicyVersion, Written
from rlhf.weight_sync import weights


class ModelRank:
    """One rank's model, optimizer and place in the process group, which it has joined (`zero.join`)."""

    def __init__(self, module: PolicyModel | ScalarHead, rank: int, world_size: int, settings: LearnerSettings) -> None:
        self.module, self.rank, self.world_size, self.settings = module, rank, world_size, settings
        self.device = torch.device(settings.device)
        torch.manual_seed(settings.seed + rank)  # for dropout, independent of earlier draws
        trainer = settings.trainer
        with TemporaryDirectory() as tried, naming_model(f"model.path={settings.model_path} cannot be saved again"):
            self._export_settings(Path(tried))
        self.engine = zero.build_engine(
            module, trainer.optimizer, settings, world_size, total_steps=trainer.policy_steps
        )
        decay = settings.trainer.ema_decay
        self.average = Average(module, decay, rank) if decay else None
        self._offload = RankOffload(self.device)
        self._snapshot: Snapshot | None = None

    def facts(self) -> dict[str, Any]:
        config = self.module.model.config.get_text_config()
        return {
            "parameters": sum(int(np.prod(spec.shape)) for spec in weights.publish_manifest(self.module).tensors),
            "context_tokens": context_tokens(config.to_dict()) or UNNAMED_CONTEXT,
            "vocab_size": int(config.vocab_size),
            "why_alone": self.module.rows.why_alone,
        }

    def hold(self, held: Residency) -> None:
        """Keep everything, only the weights, or nothing on the device: engines use its memory meanwhile."""
        self._offload.hold(self, self.module, held)

    def snapshot(self, path: Path, version: PolicyVersion) -> None:
        """Copy this rank's part of the state, and of ready model folders; `written` has it on disk. Collective."""
        self._snapshot = Snapshot(path)
        create = self._snapshot.create
        own = self._save_state(path, create)
        if not self.settings.policy:
            with freed_at_once():  # or the allocator keeps a gap for each weight, too small for the next
                own += self._export(path / MODEL, create)
        own += self._export_adapter(path / ADAPTER)
        if self.average:
            own += self.average.save(path / "ema", create)
            with self.average.in_place(), freed_at_once():
                own += self._export(path / AVERAGE, create)
        torch.save(random_state(self.device), path / f"random-{self.rank}.pt")
        own.append(path / f"random-{self.rank}.pt")
        if self.rank == 0:
            (path / "learner.json").write_text(json.dumps({"version": version, "plan": self._plan}))
            own.append(path / "learner.json")
        self._snapshot.take(own)

    async def written(self) -> dict[str, Written]:
        """Return what this rank's part of the snapshot consists of, once another thread has it on disk."""
        assert self._snapshot is not None, "asked after a snapshot"
        return await self._snapshot.written(self.settings.trainer.deepspeed.timeout_seconds)

    def _save_state(self, path: Path, create: Create) -> list[Path]:
        """Save the ranks' state; return the files of this one."""
        return zero.save(self.engine, path / "state", self.rank, create, frozen=not self.settings.policy)

    def load(self, path: Path) -> PolicyVersion:
        try:
            saved = json.loads((path / "learner.json").read_text())
        except FileNotFoundError:
            raise CheckpointError(f"{path} is not a learner's state: it has no learner.json") from None
        if _precision(saved["plan"]) != _precision(self._plan):
            raise CheckpointError(f"{path} was written by {saved['plan']}; this run has {self._plan}")
        self._load_state(path)
        if self.average:
            self.average.load(path / "ema")
        if saved["plan"] == self._plan:
            set_random_state(torch.load(path / f"random-{self.rank}.pt", weights_only=True))
        return int(saved["version"])

    def _load_state(self, path: Path) -> None:
        optimizer, frozen = self.settings.trainer.optimizer, not self.settings.policy
        zero.load(self.engine, path / "state", optimizer, self.rank, frozen=frozen)

    def export(self, path: Path) -> None:
        """Export a model folder: weights by all ranks, configuration, tokenizer and chat template by rank 0. The folder
        is whole on return. Collective."""
        self._export(path)

    def _export(self, path: Path, create: Create = on_disk) -> list[Path]:
        """Export, and return the files that this rank wrote. Those of weights are opened by `create`."""
        own: list[Path] = []
        if self.rank == 0:
            path.mkdir(parents=True, exist_ok=True)
            trusted = self.settings.model.trust_remote_code
            tokenizer = bare_tokenizer(self.settings.model_path, trust_remote_code=trusted)
            if isinstance(self.module, ScalarHead):
                pad_alike(self.module.model, tokenizer)
            self._export_settings(path)
            own = files_below(path)
        torch.distributed.barrier()
        own += export_weights(self.module, path, self.settings.bucket_bytes, create=create)
        torch.distributed.barrier()
        return own

    def _export_settings(self, path: Path) -> None:
        """Write a model folder without the weights."""
        self.module.model.save_pretrained(path, state_dict={})
        trust = self.settings.model.trust_remote_code
        bare_tokenizer(self.settings.model_path, trust_remote_code=trust).save_pretrained(path)
        if towers(self.module.model):
            copy_processors(self.settings.model_path, path)

    def _export_adapter(self, path: Path) -> list[Path]:
        """Write the adapters as `peft` reads them. Collective, like `export`."""
        lora = self.settings.model.lora
        if lora is None:
            return []
        tensors = weights.whole_adapter(self.module, self.settings.bucket_bytes, keep=self.rank == 0)
        if self.rank == 0:
            # Not `model_path`: that of a made model is a cache, which nobody else has.
            save_adapter(path, tensors, lora, self.settings.model.path)
        return files_below(path) if self.rank == 0 else []

    def stop(self) -> None:
        """Leave everything that was joined except the process group."""

    @property
    def _plan(self) -> str:
        """Return the settings, other than the model, that DeepSpeed's state depends on."""
        stage, model = self.settings.trainer.deepspeed.zero_stage, self.settings.model
        adapters = ""
        if model.lora:
            targets = ", ".join(model.lora.target_modules) or "all linear layers"
            adapters = f", LoRA of rank {model.lora.rank} for {targets}"
        return f"{self.world_size} rank(s) of ZeRO stage {stage} in {model.dtype}{adapters}"

    def _end_update(self) -> None:
        """Add the weights to their average, and forget what towers saw."""
        self.module.rows.forget_images()
        if self.average:
            self.average.update()

    def _step(self, loss: Tensor, accumulator: MetricAccumulator) -> None:
        """Apply the gradients of this rank's part of a step's `loss`."""
        # Parts of a step's loss add up; ranks that share rows have the same part.
        share = self.settings.trainer.deepspeed.sequence_parallel / self.world_size
        accumulator.add("optimizer/loss", loss, count=share)
        learning_rate = self.engine.get_lr()[0]
        accumulator.step({"optimizer/grad_norm": zero.step(self.engine), "optimizer/learning_rate": learning_rate})

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        return torch.tensor(array, device=self.device)


def _precision(plan: str) -> str:
    """Return the part of a plan about precision and adapters; the rest may differ."""
    return plan.partition(" in ")[2]


def random_state(device: torch.device) -> dict[str, Tensor]:
    """Return the states of torch's generators, by device: dropout in a user's own model uses them; this library does
    not."""
    state = {"cpu": torch.get_rng_state()}
    return state | ({"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {})


def set_random_state(state: Mapping[str, Tensor]) -> None:
    torch.set_rng_state(state["cpu"])
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])
