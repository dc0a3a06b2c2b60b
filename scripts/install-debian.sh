#!/usr/bin/env bash
# Installs the packages of Debian whose commands are missing: `install-debian.sh COMMAND=PACKAGE…`. Their own services are not
# started: nobody asked for a SLURM on this machine. Two at the same time wait for each other.
set -euo pipefail

missing() {
  local pair
  for pair in "$@"; do command -v "${pair%%=*}" >/dev/null || echo "${pair#*=}"; done | sort -u
}

mapfile -t packages < <(missing "$@")
[ ${#packages[@]} != 0 ] || exit 0
if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
  echo "install-debian: these packages are missing, and installing them takes root and apt-get:" "${packages[@]}" >&2
  exit 2
fi

exec 9</var/lib/dpkg
flock 9
mapfile -t packages < <(missing "$@")
[ ${#packages[@]} != 0 ] || exit 0
echo "install-debian: installing" "${packages[@]}"
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
  trap 'rm -f "$policy"' EXIT
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod +x "$policy"
fi
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
