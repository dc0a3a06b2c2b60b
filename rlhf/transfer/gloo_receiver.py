"""The engine's side of a gloo weight sync: a weight-transfer engine for vLLM's workers, on CPU or GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import torch
from torch import Tensor
from vllm.distributed.weight_transfer.base import WeightTransferEngine

from rlhf.errors import TransferError
from rlhf.transfer.adapter import AdapterReload, Layers
from rlhf.transfer.buckets import Bucket, buffers_for, cut_buckets, digest, unpack_bucket
from rlhf.transfer.gloo_group import GlooGroup
from rlhf.transfer.infos import ManifestInfo, MeetingInfo
from rlhf.transfer.reload import Reload
from rlhf.transfer.types import Manifest


class GlooReceiver(WeightTransferEngine[MeetingInfo, ManifestInfo]):
    """One member of the transfer group in each of the engine's workers. Each receives whole tensors and keeps its
    shard. After a failed receive the member leaves the group, so that the peers need not wait for their deadline.

    An engine with adapters receives only these; after an update they are in `received_adapter`.
    """

    init_info_cls = MeetingInfo
    update_info_cls = ManifestInfo

    received_adapter: Layers
    _group: GlooGroup | None = None
    _reload: Reload | AdapterReload | None = None
    _buffers: tuple[Tensor, ...] = ()
    _bucket_bytes = 0

    def init_transfer_engine(self, init_info: MeetingInfo) -> None:
        self._bucket_bytes = init_info.bucket_bytes
        self._group = GlooGroup(init_info.first_rank + self.parallel_config.rank, init_info.rendezvous)

    def start_weight_update(self) -> None:
        if self.vllm_config.lora_config is None:
            self._reload = Reload(self.model, self.model_config)
        else:
            self._reload = AdapterReload()

    def receive_weights(self, update_info: ManifestInfo) -> None:
        with ExitStack() as failing:
            failing.callback(self.shutdown)
            self._receive(update_info.manifest)
            failing.pop_all()

    def finish_weight_update(self) -> None:
        if self._reload is None:
            raise TransferError("finish_weight_update came before start_weight_update")
        reload, self._reload = self._reload, None
        reload.finish()
        if isinstance(reload, AdapterReload):
            self.received_adapter = reload.layers

    def shutdown(self) -> None:
        if self._group is not None:
            self._group.close()
            self._group = None

    def load(self, tensors: Iterator[tuple[str, Tensor]], buffer: Tensor) -> None:
        """Load one bucket's tensors, which are views of `buffer`."""
        if self._reload is None:
            raise TransferError("receive_weights came before start_weight_update")
        self._reload.load(tensors, buffer)

    def _receive(self, manifest: Manifest) -> None:
        if self._group is None:
            raise TransferError("receive_weights came before init_transfer_engine")
        self._agree(self._group, manifest)
        buckets = cut_buckets(manifest, self._bucket_bytes)
        for bucket, buffer in self._arrivals(self._group, buckets):
            self.load(unpack_bucket(bucket, buffer), buffer)
        self._group.meet()

    def _agree(self, group: GlooGroup, manifest: Manifest) -> None:
        received = torch.empty(32, dtype=torch.uint8)
        group.broadcast(received)
        if bytes(received.tolist()) != digest(manifest, self._bucket_bytes):
            raise TransferError("the learner sends another manifest than the one this engine acknowledged")

    def _arrivals(self, group: GlooGroup, buckets: tuple[Bucket, ...]) -> Iterator[tuple[Bucket, Tensor]]:
        """Yields buckets as they arrive; while one is loaded, the next is received into the other buffer."""
        if not self._buffers or self._buffers[0].numel() < max(bucket.bytes for bucket in buckets):
            self._buffers = buffers_for(buckets, 2)
        for index, bucket in enumerate(buckets):
            if index == 0:
                group.start_broadcast(self._part(buckets, 0))
            group.finish_broadcast()
            if index + 1 < len(buckets):
                group.start_broadcast(self._part(buckets, index + 1))
            yield bucket, self._buffers[index % 2]

    def _part(self, buckets: tuple[Bucket, ...], index: int) -> Tensor:
        return self._buffers[index % 2][: buckets[index].bytes]
