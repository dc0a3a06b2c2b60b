"""The engine's side of a weight sync over CUDA IPC. *Untested*: no machine has run it yet."""

from __future__ import annotations

from typing import Any

from vllm.distributed.weight_transfer.base import WeightTransferEngine
from vllm.distributed.weight_transfer.ipc_engine import (
    IPCWeightTransferEngine,
    IPCWeightTransferInitInfo,
    IPCWeightTransferUpdateInfo,
)

from rlhf.errors import TransferError
from rlhf.transfer.handles import HandleExchange, arguments_of
from rlhf.transfer.infos import ManifestInfo, MeetingInfo


class IpcReceiver(WeightTransferEngine[MeetingInfo, ManifestInfo]):
    """vLLM's `ipc` engine, with handles from a `HandleExchange`: a weight sync is one call, however many chunks it has.

    The chunks repeat the given manifest piece by piece. *Untested.*
    """

    init_info_cls = MeetingInfo
    update_info_cls = ManifestInfo

    def __init__(self, config: Any, vllm_config: Any, device: Any, model: Any) -> None:
        super().__init__(config, vllm_config, device, model)
        self._ipc = IPCWeightTransferEngine(config, vllm_config, device, model)
        self._exchange: HandleExchange | None = None

    def init_transfer_engine(self, init_info: MeetingInfo) -> None:
        self._ipc.init_transfer_engine(IPCWeightTransferInitInfo(packed=True))
        self._exchange = HandleExchange(init_info.first_rank + self.parallel_config.rank, init_info.rendezvous)

    def start_weight_update(self) -> None:
        self._ipc.start_weight_update()

    def receive_weights(self, update_info: ManifestInfo) -> None:
        if self._exchange is None:
            raise TransferError("receive_weights came before init_transfer_engine")
        for chunk in self._exchange.chunks():
            self._ipc.receive_weights(
                IPCWeightTransferUpdateInfo(
                    names=chunk.names,
                    dtype_names=chunk.dtype_names,
                    shapes=chunk.shapes,
                    tensor_sizes=chunk.tensor_sizes,
                    ipc_handles={gpu: arguments_of(handle) for gpu, handle in chunk.handles.items()},
                )
            )

    def finish_weight_update(self) -> None:
        self._ipc.finish_weight_update()

    def shutdown(self) -> None:
        self._ipc.shutdown()
        self._exchange = None
