"""The engine's side of a weight sync: one weight-transfer engine for vLLM's workers, over any transport."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.lora.lora_model import LoRAModel
from vllm.model_executor.model_loader.mtp_validation import disable_mtp_completeness_check

from rlhf.errors import TransferError
from rlhf.weight_sync.broadcast import BroadcastSource
from rlhf.weight_sync.buckets import Bucket, unpack_bucket
from rlhf.weight_sync.ipc import IpcSource
from rlhf.weight_sync.lora import AdapterReload
from rlhf.weight_sync.reload import Reload
from rlhf.weight_sync.stopwatch import Stopwatch
from rlhf.weight_sync.types import Manifest, Rendezvous, Seconds

Arrivals = Generator[tuple[Bucket, Tensor], None, None]


@dataclass
class InitInfo(WeightTransferInitInfo):
    """The argument of vLLM's `init_weight_transfer_engine`: a worker's rank is `first_rank` plus its rank in the
    engine."""

    rendezvous: Rendezvous
    first_rank: int


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """The argument of vLLM's `update_weights`."""

    manifest: Manifest


class BucketSource(Protocol):
    """The source of a worker's buckets. The bytes of a bucket are valid until the next one is asked for, and for `held`
    more."""

    held: int

    def buckets(self, manifest: Manifest) -> Arrivals:
        """Return the buckets of one weight sync, each with its bytes. Raises `TransferError` where the learner sends
        another manifest, is gone, or hangs for the deadline."""
        ...

    def close(self) -> None: ...


def source_for(rank: int, rendezvous: Rendezvous) -> BucketSource:
    """Join the weight transfer as `rank`, from 1."""
    return IpcSource(rank, rendezvous) if rendezvous.backend == "ipc" else BroadcastSource(rank, rendezvous)


class Receiver(WeightTransferEngine[InitInfo, UpdateInfo]):
    """Receives in each of the engine's workers. Each receives whole tensors and keeps its shard. After a failed receive
    the worker leaves the transfer, so that the peers need not wait for their deadline.

    An engine with adapters receives only these; after an update they are in `received_adapter`. `seconds` are those of
    the last weight sync.
    """

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo

    received_adapter: LoRAModel
    seconds: Seconds
    _source: BucketSource | None = None
    _reload: Reload | AdapterReload | None = None
    _watch: Stopwatch

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        self._source = source_for(init_info.first_rank + self.parallel_config.rank, init_info.rendezvous)

    def start_weight_update(self) -> None:
        self._watch = Stopwatch()
        with self._watch.timing("reload"):
            if self.vllm_config.lora_config is None:
                self._reload = Reload(self.model, self.model_config)
            else:
                self._reload = AdapterReload()

    def receive_weights(self, update_info: UpdateInfo) -> None:
        if self._source is None:
            raise TransferError("receive_weights came before init_transfer_engine, or after one that failed")
        with ExitStack() as failing, disable_mtp_completeness_check():
            failing.callback(self.shutdown)
            arrivals = self._source.buckets(update_info.manifest)
            failing.callback(arrivals.close)
            self._load_all(self._watch.drawn("receive", arrivals), self._source.held)
            failing.pop_all()

    def finish_weight_update(self) -> None:
        if self._reload is None:
            raise TransferError("finish_weight_update came before start_weight_update")
        reload, self._reload = self._reload, None
        with self._watch.timing("repack"):
            reload.finish()
        if isinstance(reload, AdapterReload):
            self.received_adapter = reload.adapter
        self.seconds = self._watch.taken()

    def shutdown(self) -> None:
        if self._source is not None:
            self._source.close()
            self._source = None

    def load(self, tensors: Iterator[tuple[str, Tensor]]) -> None:
        """Load one bucket's tensors."""
        if self._reload is None:
            raise TransferError("receive_weights came before start_weight_update")
        self._reload.load(tensors)

    def _load_all(self, arrivals: Iterator[tuple[Bucket, Tensor]], held: int) -> None:
        kept: deque[Tensor] = deque()
        for bucket, buffer in arrivals:
            with self._watch.timing("reload"):
                self.load(unpack_bucket(bucket, buffer))
                kept.append(buffer)
                del buffer  # memory of another process is closed before the last bucket is acknowledged
                if len(kept) > held and self._reload is not None:
                    self._reload.leave(kept.popleft())
