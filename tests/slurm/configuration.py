"""What the private SLURM is told: two nodes on one machine, free ports, and nothing outside its folder."""

from __future__ import annotations

import socket
from contextlib import ExitStack, closing
from pathlib import Path

NODES = ("n1", "n2")
CPUS = 2
"""Of each node, whatever the machine has."""
REQUEUE_SECONDS = 15
"""How long a requeued job waits before it starts again: as long as SLURM's credentials live, and elsewhere 120 s. SLURM
takes 5 and more; a busy machine may need some seconds to use a credential."""
GRACE_SECONDS = 90
"""How long a job goes on after it was chosen for preemption."""
CONFIGURATION = """
ClusterName=private
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire={requeue_seconds}
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
# No cgroups: SLURM loses sight of a process whose parent has gone, so the job has to end its own.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
MailProg=/bin/true
JobRequeue=1
ReturnToService=2
# A job of the partition `urgent` takes the nodes of one of `debug`, which is queued again, and has this long to save.
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
# GPUs that are no hardware: SLURM counts files.
GresTypes=gpu
SchedulerType=sched/builtin
SchedulerParameters=sched_interval=1,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
# Nodes have the cores that are written here, whatever the machine has.
SlurmdParameters=config_overrides
{nodes}
PartitionName=debug Nodes={names} Default=YES MaxTime=INFINITE State=UP GraceTime={grace_seconds}
PartitionName=urgent Nodes={names} PriorityTier=2 PreemptMode=OFF
"""
GPUS = "Name=gpu Type=tiny File=/dev/null,/dev/zero\n"
"""The text of `gres.conf`."""


def configuration(folder: Path) -> str:
    """The text of `slurm.conf` for a cluster that lives in `folder`, on ports that are free now."""
    host = socket.gethostname().partition(".")[0]
    controller_port, *ports = free_ports(1 + len(NODES))
    nodes = "\n".join(
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={CPUS} Gres=gpu:tiny:2 State=UNKNOWN"
        for name, port in zip(NODES, ports, strict=True)
    )
    return CONFIGURATION.format(
        host=host, controller_port=controller_port, folder=folder, nodes=nodes, names=",".join(NODES),
        requeue_seconds=REQUEUE_SECONDS, grace_seconds=GRACE_SECONDS,
    )  # fmt: skip


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, all different."""
    with ExitStack() as open_sockets:
        sockets = [open_sockets.enter_context(closing(socket.socket())) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
