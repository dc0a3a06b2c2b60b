"""`rlhf node` runs this machine's part of a Ray cluster until SIGTERM or the end of the cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def node(
    rendezvous: Annotated[Path, typer.Option(metavar="FILE", help="File with the head's address.")],
    head: Annotated[bool, typer.Option("--head", help="Be the head instead of joining it.")] = False,
    interface: Annotated[
        str | None,
        typer.Option(help="Network interface; default: that of the route to the head, or the default route."),
    ] = None,
    cpus: Annotated[
        int | None, typer.Option(min=1, envvar="SLURM_CPUS_ON_NODE", help="Cores to offer; default: all it may use.")
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(min=0, envvar="SLURM_GPUS_ON_NODE", help="GPUs to offer; default: all it sees.")
    ] = None,
    log_dir: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Append the output to `node-HOST.log` in this folder.")
    ] = None,
    grace: Annotated[
        float, typer.Option(min=0.0, help="Seconds that a training has to save and end after SIGTERM.")
    ] = 0.0,
    timeout: Annotated[float, typer.Option(min=1.0, help="Deadline of each wait at the start, in seconds.")] = 300.0,
) -> None:
    """Run one machine of a Ray cluster. Needs RLHF_RUN_ID and RAY_AUTH_TOKEN."""
    from rlhf.apps.deploy.node import NodeSettings, run_node
    from rlhf.apps.deploy.ray_start import node_name
    from rlhf.apps.deploy.rendezvous import check_token, run_id
    from rlhf.cluster.machine import this_machine
    from rlhf.cluster.ray_host import redirect_output
    from rlhf.cluster.supervisor import supervise

    check_token()
    machine = this_machine()
    settings = NodeSettings(
        run=run_id(),
        head=head,
        rendezvous=rendezvous.absolute(),
        interface=interface,
        cpus=cpus if cpus is not None else int(machine.cpus),
        gpus=gpus if gpus is not None else int(machine.gpus),
        timeout_seconds=timeout,
        grace_seconds=grace,
    )
    if log_dir is not None:
        redirect_output(log_dir / f"node-{node_name()}.log")
    raise typer.Exit(supervise(lambda: run_node(settings), grace_seconds=grace))
