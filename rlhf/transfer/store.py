"""A key-value store in which the members of a process group meet, on one interface and with values signed by the run.

torch's `TCPStore` has no authentication: any process that reaches its port may read, write and delete. So every value
is signed with the run's secret, and a value without a valid signature is refused. A stranger who reaches the interface
can still disturb: fill its memory, delete keys, or increase counters. Then the rendezvous fails with a named error.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

from rlhf.errors import TransferError

ROOT = 0
"""The rank that hosts the store."""
SIGNATURE_BYTES = hashlib.sha256().digest_size


def open_store(rank: int, address: str, port: int, secret: str, timeout_seconds: float) -> SignedStore:
    """The store at `address`. Rank 0 hosts it there, on no other interface; the others wait for it."""
    timeout = timedelta(seconds=timeout_seconds)
    if rank != ROOT:
        return SignedStore(TCPStore(address, port, is_master=False, timeout=timeout), secret)
    # A socket of our own, because the store's would listen on every interface.
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listening = socket.create_server((address, port), family=family, backlog=1024)
    store = TCPStore(
        address,
        port,
        is_master=True,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=listening.detach(),
    )
    return SignedStore(store, secret)


class SignedStore(Store):
    """Signs the values of the store `inner`. torch's process groups use it like any store; counters are not signed."""

    def __init__(self, inner: Any, secret: str) -> None:
        super().__init__()
        if not secret:
            raise TransferError("a meeting without a secret: whoever reaches its port could write to it")
        self._inner, self._secret = inner, secret.encode()

    def set(self, key: str, value: Any) -> None:
        content = value.encode() if isinstance(value, str) else bytes(value)
        self._inner.set(key, self._signature(key, content) + content)

    def get(self, key: str) -> bytes:
        """Raises `TransferError` for a value without this run's signature."""
        value = bytes(self._inner.get(key))
        signature, content = value[:SIGNATURE_BYTES], value[SIGNATURE_BYTES:]
        if not hmac.compare_digest(signature, self._signature(key, content)):
            raise TransferError(f"the value of {key} at the meeting place was written by a stranger; it is not read")
        return content

    def add(self, key: str, amount: int) -> int:
        return int(self._inner.add(key, amount))

    def check(self, keys: Sequence[str]) -> bool:
        return bool(self._inner.check(list(keys)))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        self._inner.wait(list(keys), timeout or self._inner.timeout)

    def delete_key(self, key: str) -> bool:
        return bool(self._inner.delete_key(key))

    def num_keys(self) -> int:
        return int(self._inner.num_keys())

    def set_timeout(self, timeout: timedelta) -> None:
        self._inner.set_timeout(timeout)

    @property
    def timeout(self) -> timedelta:
        timeout: timedelta = self._inner.timeout
        return timeout

    def _signature(self, key: str, content: bytes) -> bytes:
        name = key.encode()
        return hmac.digest(self._secret, len(name).to_bytes(8, "big") + name + content, "sha256")
