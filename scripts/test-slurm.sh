#!/usr/bin/env bash
# The tests that need root and packages of Debian. On a real SLURM (tests/slurm/): a private one, whose controller and two nodes
# are processes of this machine. Over real networks (tests/network/): hosts in network namespaces, and a private sshd. Every port,
# key and folder is their own, and the tests end and remove all of it. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "$(id -u)" != 0 ]; then
  echo "test-slurm: needs root, because slurmd starts jobs as their users; run it as root (a container will do)" >&2
  exit 2
fi

scripts/setup.sh

# The packages' own services are not started: the tests use none of them, and nobody asked for an sshd on this machine.
if ! { command -v slurmctld && command -v slurmd && command -v munged && command -v sshd && command -v ip; } >/dev/null; then
  if ! command -v apt-get >/dev/null; then
    echo "test-slurm: slurmctld, slurmd, munged, sshd or ip is missing, and there is no apt-get to install" \
      "slurm-wlm, munge, openssh-server and iproute2" >&2
    exit 2
  fi
  echo "test-slurm: installing Debian's slurm-wlm, munge, openssh-server and iproute2"
  policy=/usr/sbin/policy-rc.d
  if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
    trap 'rm -f "$policy"' EXIT
  fi
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    slurm-wlm munge openssh-server iproute2 >/dev/null
  if [ -n "$(trap -p EXIT)" ]; then rm -f "$policy"; fi
fi

exec .venv/bin/python -m pytest -q -m slurm tests/slurm tests/network "$@"
