"""Finds the cluster of a training through the rendezvous file that the head writes."""

from __future__ import annotations

from pathlib import Path

from rlhf.deploy.node import check_token, run_id
from rlhf.deploy.rendezvous import wait_for

HEAD_SECONDS = 300.0
"""Deadline for the head's file to appear; the nodes of one job do not start at the same moment."""


def joining(rendezvous: Path | None) -> list[str]:
    """The override that sets the cluster's address; empty without a file. Raises `UserError`, `DeadlinePassed`."""
    if rendezvous is None:
        return []
    check_token()
    found = wait_for(rendezvous.absolute(), run_id(), HEAD_SECONDS)
    return [f"cluster.address={found.address}"] if found else []
