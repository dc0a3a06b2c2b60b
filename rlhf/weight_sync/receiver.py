"""The engine's side of a weight sync: one weight-transfer engine for vLLM's workers, over any transport."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.lora.lora_weights import LoRALayerWeights
from vllm.model_executor.layers.fused_moe.oracle.unquantized import UnquantizedMoeBackend
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.model_loader.mtp_validation import disable_mtp_completeness_check
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

from rlhf.errors import TransferError
from rlhf.weight_sync.broadcast import BroadcastSource
from rlhf.weight_sync.buckets import Bucket, unpack_bucket
from rlhf.weight_sync.ipc import IpcSource
from rlhf.weight_sync.lora import AdapterReload
from rlhf.weight_sync.rehearsal import start_reload
from rlhf.weight_sync.stopwatch import Stopwatch
from rlhf.weight_sync.types import Manifest, Rendezvous, Seconds
from rlhf.weight_sync.vllm_internals import give_up_reload

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


BucketSource = BroadcastSource | IpcSource
"""The source of a worker's buckets. The bytes of a bucket are valid until the next one is requested, and for `held`
more."""


def source_for(rank: int, rendezvous: Rendezvous) -> BucketSource:
    """Join the weight transfer as `rank`, from 1."""
    return IpcSource(rank, rendezvous) if rendezvous.backend == "ipc" else BroadcastSource(rank, rendezvous)


class Receiver(WeightTransferEngine[InitInfo, UpdateInfo]):
    """Receives in each of the engine's workers. Each receives whole tensors and keeps its shard. After a failed receive
    the worker leaves the transfer, so that the peers need not wait for their deadline.

    An engine with adapters receives only these; after an update they are in `received`. `seconds` are those of
    the last weight sync.
    """

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo

    received: Mapping[str, Mapping[str, LoRALayerWeights]]
    seconds: Seconds
    _source: BucketSource | None = None
    _reload: Reload | AdapterReload | None = None
    _watch: Stopwatch

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        self.shutdown()
        self._source = source_for(init_info.first_rank + self.parallel_config.rank, init_info.rendezvous)

    def start_weight_update(self) -> None:
        self._watch = Stopwatch()
        with self._watch.timing("reload"):
            if self.vllm_config.lora_config is None:
                self._reload = Reload(self.model, self.model_config)
            else:
                self._reload = AdapterReload(self.model)

    def receive_weights(self, update_info: UpdateInfo) -> None:
        if self._source is None:
            raise TransferError("receive_weights came before init_transfer_engine, or after one that failed")
        with ExitStack() as failing, disable_mtp_completeness_check():
            failing.callback(self._give_up)
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
            self.received = reload.layers
        self.seconds = self._watch.taken()

    def shutdown(self) -> None:
        if self._source is not None:
            self._source.close()
            self._source = None

    def _give_up(self) -> None:
        """Leave the transfer, and the reload."""
        self.shutdown()
        if isinstance(self._reload, Reload):
            give_up_reload(self.model)
        self._reload = None

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


class Reload:
    """One reload of all weights of a live vLLM model: construct it, `load` each bucket and `leave` it before its memory
    is used again, `finish`. A rehearsal has checked that the buckets contain every weight
    (`rlhf.weight_sync.rehearsal`)."""

    def __init__(self, model: nn.Module, model_config: Any) -> None:
        self._model: Any = model
        self._model_config = model_config
        pack_experts_again(model)
        start_reload(model)

    def load(self, tensors: Iterator[tuple[str, Tensor]]) -> None:
        """Load tensors that are views of one buffer."""
        self._model.load_weights(tensors)

    def leave(self, buffer: Tensor) -> None:
        """Copy tensors in `buffer` that unfinished layers still need (for instance q without k and v, when a bucket
        ends there); afterwards it may be reused."""
        storage = buffer.untyped_storage().data_ptr()
        for layer in self._model.modules():
            for _, arguments in get_layerwise_info(layer).loaded_weights:
                for key, value in arguments.arguments.items():
                    if (
                        isinstance(value, Tensor)
                        and not value.is_meta
                        and value.untyped_storage().data_ptr() == storage
                    ):
                        arguments.arguments[key] = value.clone()

    def finish(self) -> None:
        """Finish the reload, so that the model can serve again."""
        finalize_layerwise_reload(self._model, self._model_config)  # type: ignore[no-untyped-call]
        share_packed_embeddings(self._model)


def pack_experts_again(model: nn.Module) -> None:
    """Make vLLM pack the experts' weights again. On a CPU it packs them when it makes their kernel, which it does once,
    so reloaded weights would be read in the wrong order. Without a kernel the reload makes one, and packs."""
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if isinstance(method, UnquantizedFusedMoEMethod) and method.unquantized_backend == UnquantizedMoeBackend.CPU:
            method.moe_kernel = None


def share_packed_embeddings(model: nn.Module) -> None:
    """Let tied heads multiply by the embedding's packed copy. On a CPU vLLM multiplies by a packed copy of the head.
    The reload packs every loaded layer, but not a tied head, whose weight is the embedding's. Without this the engine
    silently uses the old head. Packing it once more would cost a seventh of a reload, and the memory."""
    # In vLLM's classes a head is an embedding too.
    embeddings = [module for module in model.modules() if isinstance(module, VocabParallelEmbedding)]
    heads = [module for module in embeddings if isinstance(module, ParallelLMHead)]
    for head in heads:
        for other in embeddings:
            if other is not head and other.weight is head.weight and "cpu_linear" in vars(other):
                head.cpu_linear = vars(other)["cpu_linear"]
