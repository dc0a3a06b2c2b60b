"""The commands that remote processes run: the cluster's nodes, and the training."""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlhf.cluster.child import PROXIES
from rlhf.deploy.ssh.hosts_file import SshHost

PASSED_ON = (
    "RLHF_", "HF_", "NCCL_", "GLOO_", "VLLM_", "OMP_NUM_THREADS", "PYTHONPATH", "TOKENIZERS_", "TORCH_", "UCX_", "FI_",
    "WANDB_", "LD_LIBRARY_PATH", "CUDA_HOME",
)  # fmt: skip
"""Prefixes of variables that are passed on to every host. `CUDA_VISIBLE_DEVICES` is each host's own."""
SITE = PROXIES | {"NO_PROXY", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"}
"""Variables by which a site says how its machines reach the hub; passed on too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteCommand:
    """A command for a remote process: its arguments, its folder, and additional environment variables."""

    command: Sequence[str]
    folder: Path
    environment: Mapping[str, str]

    def line(self) -> bytes:
        """Return the command as one line of JSON, as it is sent."""
        orders = {"command": list(self.command), "folder": str(self.folder), "environment": dict(self.environment)}
        return json.dumps(orders).encode() + b"\n"


def node_command(rendezvous: Path, host: SshHost, *, head: bool, interface: str | None = None) -> list[str]:
    """`rlhf node` on one host. Cores and GPUs are passed only where the hosts file gives them. `interface` is the
    head's; the other nodes use that of their route to the head."""
    amounts = [("--cpus", host.cpus), ("--gpus", host.gpus)]
    given = [word for option, amount in amounts if amount is not None for word in (option, str(amount))]
    role = ["--head", *(["--interface", interface] if interface else [])] if head else []
    return [sys.executable, "-m", "rlhf", "node", "--rendezvous", str(rendezvous), *given, *role]


def train_command(words: Sequence[str], hosts: int, rendezvous: Path) -> list[str]:
    """`rlhf train` on the head's host; it waits until every host is in the cluster."""
    nodes = f"cluster.nodes={hosts}"
    return [sys.executable, "-m", "rlhf", "train", *words, nodes, "--rendezvous", str(rendezvous)]


def variables(name: str) -> dict[str, str]:
    """Variables that every command gets in addition to its host's environment, with the cluster's run id and token."""
    passed = {key: value for key, value in os.environ.items() if key.startswith(PASSED_ON) or key in SITE}
    run_id = f"{name}-{secrets.token_hex(4)}"
    return passed | {"RLHF_RUN_ID": run_id, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
