#!/usr/bin/env bash
# Makes .venv from a pinned list: requirements/gpu.txt where an NVIDIA GPU is found, else requirements/cpu.txt.
#   GPU=1, GPU=0       choose the list            PYTHON=/path/to/python3.12   choose the Python
#   TORCH_INDEX_URL=…  a mirror of PyTorch's CPU index                   UV=0   leave uv alone
# A finished set-up returns at once and keeps its choice. One that was interrupted, whose folder was moved, or for which
# another list or Python is asked, is made anew from what the installer's cache holds.
set -euo pipefail
cd -P "$(dirname "$0")/.."

venv=.venv
torch_index=${TORCH_INDEX_URL:-https://download.pytorch.org/whl/cpu}
container="docker build --file Dockerfile.cpu --tag rlhf-cpu . && docker run --rm -it --shm-size 2g rlhf-cpu"

say() { echo "set-up: $*"; }
stop() {
  say "$*" >&2
  exit 2
}

# What .venv was made for: the list, the Python, this folder. `.ready` is written last; it holds the pins' checksum.
was_list='' was_python='' was_folder='' was_pins=''
if [ -e "$venv/.made-for" ]; then
  { read -r was_list && read -r was_python && read -r was_folder; } <"$venv/.made-for" || true
fi
[ ! -e "$venv/.ready" ] || read -r was_pins <"$venv/.ready" || true

choose_list() {
  case "${GPU:-}" in
    0) echo requirements/cpu.txt ;;
    1) echo requirements/gpu.txt ;;
    '')
      if [ -e "$was_list" ]; then
        echo "$was_list"
      elif [[ "$(nvidia-smi -L 2>/dev/null)" == GPU\ * ]]; then
        echo requirements/gpu.txt
      else
        echo requirements/cpu.txt
      fi
      ;;
    *) stop "GPU is 1 or 0, not '$GPU'" ;;
  esac
}

version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null || true; }

# CPython with the lock: the wheels of the lists are for no other.
supported() {
  "$1" -c 'import sys, sysconfig
good = (3, 11) <= sys.version_info[:2] <= (3, 13) and sys.implementation.name == "cpython"
sys.exit(not good or bool(sysconfig.get_config_var("Py_GIL_DISABLED")))' 2>/dev/null
}

find_python() {
  local candidate found
  if [ -n "${PYTHON:-}" ]; then
    if supported "$PYTHON"; then echo "$PYTHON" && return; fi
    found=$(version_of "$PYTHON")
    stop "PYTHON=$PYTHON is ${found:+Python $found, }not CPython 3.11, 3.12 or 3.13: name one of these"
  fi
  for candidate in python3 python3.12 python3.11 python3.13; do
    if supported "$candidate"; then echo "$candidate" && return; fi
  done
  # Those that uv keeps are on no PATH.
  if [ -n "$uv" ] && candidate=$(uv python find --no-python-downloads '>=3.11,<3.14' 2>/dev/null); then
    echo "$candidate" && return
  fi
  found=$(version_of python3)
  stop "Python 3.11, 3.12 or 3.13 is needed${found:+, python3 is $found}: install one (a package of your system," \
    "pyenv, or 'uv python install 3.12'), or name one with make setup PYTHON=/path/to/python3.12"
}

# One line, with the container, where there are no wheels.
check_platform() {
  local machine libc
  machine="$(uname -s) $(uname -m)"
  case "$machine" in
    "Linux x86_64" | "Linux aarch64") ;;
    *) stop "the packages exist for Linux on x86-64 and aarch64, and this is $machine; use the container: $container" ;;
  esac
  libc=$(getconf GNU_LIBC_VERSION 2>/dev/null || true)
  if [ "$(printf '%s\n' "glibc 2.31" "$libc" | sort -V | head -n 1)" != "glibc 2.31" ]; then
    stop "the packages need glibc 2.31 or newer, and this system has ${libc:-another libc}; use the container: $container"
  fi
}

# Triton compiles its launcher before its first kernel: without these an engine dies minutes after its start.
check_compiler() {
  local header
  header=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["include"])')/Python.h
  if [ -e "$header" ] && { command -v gcc || command -v clang || command -v cc; } >/dev/null; then return; fi
  stop "on a GPU Triton needs a C compiler and $header: apt-get install build-essential" \
    "python$(version_of "$python")-dev, and run the same command again"
}

uv=''
if [ "${UV:-}" != 0 ]; then uv=$(command -v uv || true); fi

requirements=${REQUIREMENTS:-$(choose_list)}
[ -e "$requirements" ] || stop "there is no list $requirements"
pins=$(cat "$requirements" pyproject.toml | sha256sum | cut -c1-16)
wanted_python=$was_python
if [ -n "${PYTHON:-}" ]; then wanted_python=$(version_of "$PYTHON"); fi
same=no
if [ "$requirements|$wanted_python|$PWD" = "$was_list|$was_python|$was_folder" ] && [ -n "$was_pins" ] &&
  [ -x "$venv/bin/python" ]; then same=yes; fi
if [ "$same" = yes ] && [ "$pins" = "$was_pins" ]; then exit 0; fi

check_platform
python=$(find_python)
case "$requirements" in *gpu*) check_compiler ;; esac

# Two at a time would take each other's .venv. The one that waited looks again from the start.
if command -v flock >/dev/null; then
  exec 9>.venv-lock
  if ! flock --nonblock 9; then
    say "another set-up is at work in this folder; waiting for it, an hour at most"
    flock --timeout 3600 9 || stop "the other set-up has not ended in an hour: look for it (ps), end it, and run this again"
    exec "$BASH" scripts/setup.sh
  fi
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT

# `install WHAT`: quiet; what went wrong is in $log.
install() {
  if [ -n "$uv" ]; then
    uv pip install -q --python "$venv/bin/python" --no-deps "$@" 2>"$log"
  else
    PIP_USER=0 "$venv/bin/python" -m pip install -q --disable-pip-version-check --no-deps "$@" 2>"$log"
  fi
}

# Ends with one line that says what to do, below the installer's own last words.
explain() {
  grep -v 'is ignored: it is neither a file' "$log" | tail -n 15 >&2
  if grep -qiE 'no space left|os error 28' "$log"; then
    stop "the disk is full: .venv takes 3 GB (more than 10 GB with CUDA), and as much for a time under ${TMPDIR:-/tmp}" \
      "(TMPDIR=/elsewhere) and ${XDG_CACHE_HOME:-~/.cache}; make room and run the same command again"
  elif grep -qiE 'proxy|tunnel' "$log"; then
    stop "the proxy gives no way to the package index: correct HTTPS_PROXY (or unset it), and run the same command again"
  elif grep -qiE 'certificate|UnknownIssuer' "$log"; then
    stop "the package index shows a certificate that is not trusted: name your organisation's with" \
      "PIP_CERT=/path/to/ca.pem (uv: SSL_CERT_FILE), and run the same command again"
  elif unreachable; then
    stop "the package index cannot be reached: go online, or behind a proxy set HTTPS_PROXY, or name a mirror with" \
      "PIP_INDEX_URL (uv: UV_DEFAULT_INDEX), and run the same command again"
  fi
  stop "the packages could not be installed, see above; the same command begins again with what is in the cache"
}

unreachable() {
  grep -qiE 'retrying|connection|timed out|name or service|dns error|error sending request|failed to fetch' "$log"
}

# uv reads none of pip's settings: it gets them, so that both ask the same places.
share_pip_settings() {
  local config
  config=$("$python" -m pip config list 2>/dev/null || true)
  setting() { sed -n "s/^[a-z:]*\.$1='\(.*\)'\$/\1/p" <<<"$config" | sed 's/\\n/ /g' | head -n 1; }
  hand_on() { if [ -z "${!1:-}" ] && [ -n "$2" ]; then export "$1=$2"; fi; }
  hand_on UV_DEFAULT_INDEX "$(setting index-url)"
  hand_on UV_INDEX "$(setting extra-index-url)"
  hand_on UV_FIND_LINKS "$(setting find-links | tr -s ' ' ',')"
  hand_on UV_INSECURE_HOST "$(setting trusted-host)"
  hand_on SSL_CERT_FILE "$(setting cert)"
  hand_on UV_INDEX_STRATEGY unsafe-best-match
}

make_venv() {
  rm -rf "$venv"
  if ! "$python" -m venv "$venv" >"$log" 2>&1; then
    rm -rf "$venv"
    if [ -z "$uv" ] || ! uv venv -q --seed --python "$python" "$venv" 2>"$log"; then
      tail -n 3 "$log" >&2
      stop "$python cannot make a virtual environment: install its venv module (Debian: apt-get install" \
        "python$(version_of "$python")-venv), or uv, and run the same command again"
    fi
  fi
  printf '%s\n' "$requirements" "$(version_of "$python")" "$PWD" >"$venv/.made-for"
}

# The pin names the build (+cpu), so no index can give another one in its place. Most have CUDA builds alone.
install_torch() {
  local pin
  pin=$(sed -n 's/^\(torch==[^ ;]*+cpu\).*/\1/p' "$requirements")
  if [ -z "$pin" ] || install "$pin"; then return; fi
  if unreachable; then explain; fi
  say "the package index has no $pin; taking it from $torch_index"
  install --index-url "$torch_index" "$pin" && return
  grep -v 'is ignored: it is neither a file' "$log" | tail -n 5 >&2
  stop "neither the package index nor $torch_index gives $pin for Python $(version_of "$venv/bin/python") on" \
    "$(uname -m). Name a mirror of PyTorch's CPU index with TORCH_INDEX_URL and run the same command again. No CUDA" \
    "package was installed"
}

# The sandbox for model-written code prefers bubblewrap, a Debian package; without it, it uses Landlock.
install_bubblewrap() {
  if command -v bwrap >/dev/null; then return; fi
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    { apt-get update -qq && apt-get install -y -qq bubblewrap; } >/dev/null 2>&1 && return
  fi
  say "bubblewrap is missing, the sandbox does with less; install it if you can (apt-get install bubblewrap)"
}

# Most indexes have torchvision for CUDA alone. Without its kernels it still reads and resizes images, but its import
# fails where it describes two operators that do not exist: here they get a name. A new file, because uv links its cache.
name_torchvision_operators() {
  local file
  for file in "$venv"/lib/python3*/site-packages/torchvision/extension.py; do
    if [ ! -e "$file" ] || grep -q "added by scripts/setup.sh" "$file"; then continue; fi
    cat "$file" - >"$file.new" <<'END'

if not _has_ops():  # added by scripts/setup.sh
    for _name in ("nms", "qnms"):
        torch.library.define(f"torchvision::{_name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
END
    mv "$file.new" "$file"
  done
}

if [ "$same" = no ]; then make_venv; fi
rm -f "$venv/.ready"
if [ -n "$uv" ]; then share_pip_settings; fi
size="3 GB"
case "$requirements" in *gpu*) size="10 GB or more" ;; esac
say "$(grep -c == "$requirements") pinned packages into $venv, Python $(version_of "$venv/bin/python")," \
  "by $([ -n "$uv" ] && echo uv || echo pip) ($size and some minutes, once)"
install_torch
install -r "$requirements" || explain
install --no-build-isolation -e . || explain
name_torchvision_operators
install_bubblewrap
case "$requirements" in
  *gpu*)
    "$venv/bin/python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null ||
      say "PyTorch finds no GPU it can use: its CUDA 13 needs a driver of 580 or newer (nvidia-smi shows yours)"
    ;;
esac
echo "$pins" >"$venv/.ready"
say "ready; \`. $venv/bin/activate\` gives you the \`rlhf\` command"
