#!/usr/bin/env bash
# Makes one virtual environment for each list in requirements/ecosystem/ under .venv-ecosystem/, or those that the arguments
# name. They do not install together, or with ours. Four are ours with others on top: `environments`, in-process environments,
# `trackers`, which our loggers import, `browser`, which looks at our page, and `openrlhf`, which imports all that it trains with.
# One that is ready is kept; a changed list makes it anew. Two at the same time wait for each other. `coding-agents` comes from npm.
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
  if [[ " browser environments openrlhf trackers " == *" $name "* ]]; then
    .venv/bin/python -c 'import site; print(site.getsitepackages()[0])' \
      >"$("$venv/bin/python" -c 'import site; print(site.getsitepackages()[0])')/ours.pth"
  fi
  local pins=()
  for list in "$@"; do pins+=(-r "$list"); done
  "$venv/bin/python" -m pip install -q --disable-pip-version-check --no-deps "${pins[@]}" \
    2> >(grep -v "is ignored: it is neither a file" >&2)
  touch "$stamp"
}

# make_agents: the coding agents of npm at the versions of our presets, but not Claude Code, whose licence reserves all rights.
make_agents() {
  local folder=.venv-ecosystem/coding-agents agents stamp
  mapfile -t agents < <(sed -n 's/.*npm install -g //p' rlhf/rollout/agent_presets.yaml | grep -v claude-code)
  stamp="$folder/.ready-$(echo "${agents[@]}" | sha256sum | cut -c1-16)"
  [ -e "$stamp" ] && return
  echo "ecosystem: ${agents[*]} into $folder"
  rm -rf "$folder"
  scripts/install-debian.sh node=nodejs npm=npm
  npm install --prefix "$folder" --no-audit --no-fund --loglevel error "${agents[@]}"
  touch "$stamp"
}

python=$(.venv/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
if [ "$python" != 3.11 ]; then
  echo "ecosystem: these lists are for Python 3.11 and .venv has $python: a pin may have no wheel (make setup PYTHON=python3.11)"
fi

mkdir -p .venv-ecosystem
exec 9<.venv-ecosystem
flock 9
if [ $# = 0 ]; then
  mapfile -t names < <(basename --suffix .txt requirements/ecosystem/*.txt)
  set -- "${names[@]}" environments coding-agents
fi
for name in "$@"; do
  if [ "$name" = environments ]; then
    make_venv environments requirements/environments.txt requirements/envpool.txt
  elif [ "$name" = coding-agents ]; then
    make_agents
  else
    make_venv "$name" "requirements/ecosystem/$name.txt"
  fi
done
