#!/usr/bin/env bash
# The tests that need root and packages of Debian. On a real SLURM (tests/slurm/): a private one, whose controller and two nodes
# are processes of this machine. Over real networks (tests/network/): hosts in network namespaces. Every port,
# key and folder is their own, and the tests end and remove all of it. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "$(id -u)" != 0 ]; then
  echo "test-slurm: needs root, because slurmd starts jobs as their users; run it as root (a container will do)" >&2
  exit 2
fi

scripts/setup.sh

scripts/install-debian.sh slurmctld=slurm-wlm slurmd=slurm-wlm munged=munge ip=iproute2
exec .venv/bin/python -m pytest -q -m slurm tests/slurm tests/network "$@"
