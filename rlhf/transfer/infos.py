"""The dictionaries of `rlhf.transfer.init_info`, parsed in vLLM's workers for the receivers of this package."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm.distributed.weight_transfer.base import WeightTransferInitInfo, WeightTransferUpdateInfo

from rlhf.transfer.init_info import manifest_of
from rlhf.transfer.types import Manifest, Rendezvous


@dataclass
class MeetingInfo(WeightTransferInitInfo):
    """The rendezvous; a worker's rank is `first_rank` plus its rank in the engine."""

    backend: str
    address: str
    port: int
    first_rank: int
    world_size: int
    timeout_seconds: float
    secret: str = field(repr=False)
    bucket_bytes: int
    senders: int

    @property
    def rendezvous(self) -> Rendezvous:
        """The rendezvous of the transfer group."""
        return Rendezvous(
            backend=self.backend,
            address=self.address,
            port=self.port,
            world_size=self.world_size,
            timeout_seconds=self.timeout_seconds,
            secret=self.secret,
            bucket_bytes=self.bucket_bytes,
            senders=self.senders,
        )


@dataclass
class ManifestInfo(WeightTransferUpdateInfo):
    """The manifest field by field, with vLLM's names."""

    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]

    @property
    def manifest(self) -> Manifest:
        """The manifest that this was made from."""
        return manifest_of(self.names, self.dtype_names, self.shapes)
