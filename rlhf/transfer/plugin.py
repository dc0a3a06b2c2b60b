"""The plugin that vLLM calls in each of its processes at start (entry point group `vllm.general_plugins`)."""

from __future__ import annotations

RECEIVERS = {
    "gloo": ("rlhf.transfer.gloo_receiver", "GlooReceiver"),
    "ipc_desk": ("rlhf.transfer.ipc_receiver", "IpcReceiver"),
}


def register() -> None:
    """Register the backends `gloo` and `ipc_desk` for vLLM's `WeightTransferConfig`. May be called again. A receiver is
    imported only when an engine is created with its backend."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    for backend, (module, receiver) in RECEIVERS.items():
        if backend not in WeightTransferEngineFactory._registry:
            WeightTransferEngineFactory.register_engine(backend, module, receiver)
