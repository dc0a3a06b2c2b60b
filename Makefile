# `make setup`, `make quickstart` and `make test` are each enough on a fresh clone with Python 3.11, 3.12 or 3.13.
PY := .venv/bin/python
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false
# Hundreds of processes import the same modules: what is compiled is kept, also where the environment says otherwise.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup pins quickstart lint test-fast heart test test-older-processor test-all test-ecosystem test-attacks test-slurm test-browser test-gpu mutants benchmark docs clean

# `make setup GPU=1`, `GPU=0`, `PYTHON=python3.12`: scripts/setup.sh says what else can be chosen.
setup:
	@scripts/setup.sh

# Both lists anew, from the extras of pyproject.toml; needs a network.
pins: setup
	$(PY) scripts/pins.py

quickstart: setup
	@.venv/bin/rlhf train recipes/quickstart.yaml

lint: setup
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy rlhf recipes/tasks
	.venv/bin/lint-imports
	$(PY) -m tests.house
	$(PY) scripts/pins.py --check

# Two tests at a time on two cores. More than four take more memory than they save time: each may hold an engine.
PYTEST := $(PY) -m pytest -q --numprocesses logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder

# Without Ray, vLLM and DeepSpeed: the heart, in less than a minute. Lint runs beside it.
test-fast: setup
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target lint heart

heart: setup
	$(PYTEST) -m "not engine and not waits and not slow and not attack and not gpu and not ecosystem and not slurm and not browser"

# Everything that a change must keep, on real parts.
test: lint
	$(PYTEST) -m "not slow and not attack and not gpu and not ecosystem and not slurm and not browser"

# The same on the kernels that a processor without AVX-512 and bfloat16 instructions takes.
test-older-processor: lint
	RLHF_TEST_OLDER_PROCESSOR=1 ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 \
	$(PYTEST) -m "not slow and not attack and not gpu and not ecosystem and not slurm and not browser"

test-all: lint
	@scripts/ecosystem.sh
	$(PYTEST) -m "not attack and not gpu and not ecosystem and not slurm and not browser"
	.venv-ecosystem/environments/bin/python -m pytest -q -m "ecosystem and slow" tests/end_to_end

# Everything that attacks our own servers, clients, sandboxes and rewards; its quick part is in `make test`.
test-attacks: setup
	$(PYTEST) -m "attack or not slow and not gpu and not ecosystem and not slurm and not browser" tests/attacks

# Stock packages of others against our servers and clients, each in a virtual environment of its own, kept between runs.
test-ecosystem: setup
	@scripts/ecosystem.sh
	$(PY) -m pytest -q -m "ecosystem and not slow" tests/ecosystem
	.venv-ecosystem/environments/bin/python -m pytest -q -m "ecosystem and not slow" tests/env tests/recipes
	.venv-ecosystem/trackers/bin/python -m pytest -q -m ecosystem tests/runs/test_trackers.py

# What needs a GPU: every check of `rlhf doctor --gpu` that fits this machine, and the tests that are marked so.
test-gpu: setup
	.venv/bin/rlhf doctor --gpu --json gpu-report.json
	$(PY) -m pytest -q -m gpu

# The recipes on a real SLURM: a private one, with two nodes on this machine. Needs root, which is checked first.
test-slurm:
	@scripts/test-slurm.sh

# The page of `rlhf view` in Chromium, and commands in tmux, both of Debian, which it installs if they are missing (that takes root).
test-browser: setup
	@scripts/ecosystem.sh browser
	@scripts/install-debian.sh chromium=chromium tmux=tmux
	.venv-ecosystem/browser/bin/python -m pytest -q -m browser tests/browser

# Whether the suite can fail: plants faults one by one. The first time it installs a mutation library beside .venv.
mutants: setup
	$(PY) -m tests.mutants

benchmark: setup
	$(PY) -m benchmarks end_to_end

# The site of docs/ into build/site; a link that leads nowhere fails it.
docs: setup .venv-docs/.ready
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict

.venv-docs/.ready: SHELL := bash
.venv-docs/.ready: requirements/docs.txt | setup
	rm -rf .venv-docs
	$(PY) -m venv .venv-docs
	.venv-docs/bin/python -m pip install -q --disable-pip-version-check --no-deps -r requirements/docs.txt \
	2> >(grep -v "is ignored: it is neither a file" >&2)
	@touch $@

clean:
	rm -rf .venv .venv-docs .venv-ecosystem .venv-mutants-* .mypy_cache .ruff_cache .pytest_cache build dist *.egg-info
