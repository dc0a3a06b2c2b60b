#!/usr/bin/env bash
# The tests on a real SLURM (tests/slurm/): a private one, whose controller and two nodes are processes of this machine. Every
# port, key and folder is its own, and the tests end and remove all of it. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "$(id -u)" != 0 ]; then
  echo "test-slurm: needs root, because slurmd starts jobs as their users; run it as root (a container will do)" >&2
  exit 2
fi

scripts/setup.sh

# Services that the packages may start do no harm: the tests use none of their ports, keys and folders.
if ! { command -v slurmctld && command -v slurmd && command -v munged; } >/dev/null; then
  if ! command -v apt-get >/dev/null; then
    echo "test-slurm: slurmctld, slurmd or munged is missing, and there is no apt-get to install slurm-wlm and munge" >&2
    exit 2
  fi
  echo "test-slurm: installing Debian's slurm-wlm and munge"
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends slurm-wlm munge >/dev/null
fi

exec .venv/bin/python -m pytest -q -m slurm tests/slurm "$@"
