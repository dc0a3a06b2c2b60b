#!/usr/bin/env bash
# Makes .venv from the pinned list. Safe to run again: an interrupted or failed set-up is repaired, a finished one
# returns at once. REQUIREMENTS=requirements/gpu.txt takes the CUDA build of the same vLLM version.
set -euo pipefail
cd "$(dirname "$0")/.."

requirements=${REQUIREMENTS:-requirements/cpu.txt}
venv=.venv
stamp="$venv/.ready-$(cat "$requirements" pyproject.toml | sha256sum | cut -c1-16)"
[ -e "$stamp" ] && exit 0

find_python() {
  for candidate in "${PYTHON:-}" python3.11 python3; do
    if [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  echo "set-up needs Python 3.11: install it, or name one with PYTHON=/path/to/python3.11 make setup" >&2
  exit 2
}

# pip's own words without the notes about index folders that do not hold every package.
pip() {
  "$venv/bin/python" -m pip --disable-pip-version-check "$@" 2> >(grep -v 'is ignored: it is neither a file' >&2)
}

torch_pin=$(grep -E '^torch==' "$requirements")
explain_missing_torch() {
  cat >&2 <<EXPLAIN

The package index has no $torch_pin. Add the index with PyTorch's CPU builds and run the same command again:
  PIP_EXTRA_INDEX_URL=<the CPU index that pytorch.org shows under "Get Started": pip, CPU> make setup
Nothing was installed; in particular, no CUDA packages.
EXPLAIN
  exit 2
}

if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
  python=$(find_python)
  rm -rf "$venv"
  "$python" -m venv "$venv"
fi

echo "set-up: $(grep -c == "$requirements") pinned packages into $venv (about 2.5 GB and two minutes, once)"
if ! "$venv/bin/python" -c 'import torch' 2>/dev/null; then
  pip install -q --dry-run --no-deps "$torch_pin" >/dev/null || explain_missing_torch
fi
pip install -q --no-deps -r "$requirements"
pip install -q --no-deps --no-build-isolation -e .
# The sandbox for model-written code prefers bubblewrap, a Debian package; without it, it uses Landlock.
if ! command -v bwrap >/dev/null; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    { apt-get update -qq && apt-get install -y -qq bubblewrap; } >/dev/null
  else
    echo "set-up: bubblewrap is missing; install it for the sandbox (apt-get install bubblewrap)"
  fi
fi
rm -f "$venv"/.ready-*
touch "$stamp"
echo "set-up: ready; \`. $venv/bin/activate\` gives you the \`rlhf\` command"
