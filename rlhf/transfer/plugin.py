"""The plugin that vLLM calls in each of its processes at start (entry point group `vllm.general_plugins`)."""

from __future__ import annotations

from rlhf.transfer.init_info import ENGINE_BACKENDS


def register() -> None:
    """Register the backends of `ENGINE_BACKENDS` for vLLM's `WeightTransferConfig`. May be called again. The receiver
    is imported only when an engine is created with one of them."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    for backend in ENGINE_BACKENDS.values():
        if backend not in WeightTransferEngineFactory._registry:
            WeightTransferEngineFactory.register_engine(backend, "rlhf.transfer.receiver", "Receiver")
