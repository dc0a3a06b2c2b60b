#!/usr/bin/env bash
# Makes one virtual environment for each list in requirements/ecosystem/ under .venv-ecosystem/. They do not install
# together, nor beside ours. Three are ours with others on top: `environments`, in-process environments, `trackers`, which
# our loggers import, and `openrlhf`, which imports all that it trains with. One that is ready is kept; a changed list makes it anew.
set -euo pipefail
cd "$(dirname "$0")/.."

# make_venv NAME LIST…: an environment with the pins of the lists, and nothing that they do not name.
make_venv() {
  local name=$1
  shift
  local venv=.venv-ecosystem/$name
  local stamp
  stamp="$venv/.ready-$(cat "$@" | sha256sum | cut -c1-16)"
  [ -e "$stamp" ] && return
  echo "ecosystem: $(cat "$@" | grep -c ==) pinned packages into $venv"
  rm -rf "$venv"
  .venv/bin/python -m venv "$venv"
  if [[ " environments openrlhf trackers " == *" $name "* ]]; then
    .venv/bin/python -c 'import site; print(site.getsitepackages()[0])' \
      >"$("$venv/bin/python" -c 'import site; print(site.getsitepackages()[0])')/ours.pth"
  fi
  local pins=()
  for list in "$@"; do pins+=(-r "$list"); done
  "$venv/bin/python" -m pip install -q --disable-pip-version-check --no-deps "${pins[@]}" \
    2> >(grep -v "is ignored: it is neither a file" >&2)
  touch "$stamp"
}

python=$(.venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
if [ "$python" != 3.11 ]; then
  echo "ecosystem: these lists are for Python 3.11 and .venv has $python: a pin may have no wheel (make setup PYTHON=python3.11)"
fi

for list in requirements/ecosystem/*.txt; do
  make_venv "$(basename "$list" .txt)" "$list"
done
make_venv environments requirements/environments.txt requirements/envpool.txt
