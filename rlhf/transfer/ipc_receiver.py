"""The engine's end of a publish over CUDA IPC. *Untested*: no machine has run it yet."""

from __future__ import annotations

from vllm.distributed.weight_transfer.ipc_engine import (
    IPCWeightTransferEngine,
    IPCWeightTransferInitInfo,
    IPCWeightTransferUpdateInfo,
)

from rlhf.errors import TransferError
from rlhf.transfer.handles import HandleDesk
from rlhf.transfer.infos import ManifestInfo, MeetingInfo


class IpcReceiver(IPCWeightTransferEngine):
    """vLLM's `ipc` engine, fetching handles itself: a publish is one call here, however many chunks it has.

    The manifest it is given is what the chunks repeat, piece by piece. *Untested.*
    """

    init_info_cls = MeetingInfo
    update_info_cls = ManifestInfo

    _desk: HandleDesk | None = None

    def init_transfer_engine(self, init_info: MeetingInfo) -> None:
        super().init_transfer_engine(IPCWeightTransferInitInfo(packed=True))
        self._desk = HandleDesk(init_info.first_rank + self.parallel_config.rank, init_info.rendezvous)

    def receive_weights(self, update_info: ManifestInfo) -> None:
        if self._desk is None:
            raise TransferError("receive_weights came before init_transfer_engine")
        for chunk in self._desk.updates():
            super().receive_weights(IPCWeightTransferUpdateInfo(**chunk))
