"""A training that finds its cluster by the file that the head writes."""

from __future__ import annotations

from pathlib import Path

from rlhf.deploy.node import check_token, run_id
from rlhf.deploy.rendezvous import wait_for

HEAD_SECONDS = 300.0
"""Deadline for the head to be there; nodes of one job do not start in the same moment."""


def joining(rendezvous: Path | None) -> list[str]:
    """The override that names the cluster's address; none without a file. Raises `UserError`, `DeadlinePassed`."""
    if rendezvous is None:
        return []
    check_token()
    found = wait_for(rendezvous.absolute(), run_id(), HEAD_SECONDS)
    return [f"cluster.address={found.address}"] if found else []
