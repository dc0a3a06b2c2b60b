# `make setup`, `make quickstart` and `make test` are each enough on a fresh clone with Python 3.11.
PY := .venv/bin/python
export OMP_NUM_THREADS ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: setup quickstart lint test-fast test test-all test-ecosystem test-slurm mutants benchmark clean

setup:
	@scripts/setup.sh

quickstart: setup
	@.venv/bin/rlhf train recipes/quickstart.yaml

lint: setup
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy rlhf
	.venv/bin/lint-imports

# Without Ray, vLLM and DeepSpeed: the heart, in seconds.
test-fast: lint
	$(PY) -m pytest -q -m "not engine and not slow and not gpu and not ecosystem and not slurm"

# Everything that a change must keep, on real parts. One test at a time: several Rays on one machine take each other's ports.
test: lint
	$(PY) -m pytest -q -m "not slow and not gpu and not ecosystem and not slurm"

test-all: lint
	@scripts/ecosystem.sh
	$(PY) -m pytest -q -m "not gpu and not ecosystem and not slurm"
	.venv-ecosystem/environments/bin/python -m pytest -q -m "ecosystem and slow" tests/end_to_end

# Stock packages of others against our servers and clients, each in a virtual environment of its own, kept between runs.
test-ecosystem: setup
	@scripts/ecosystem.sh
	$(PY) -m pytest -q -m "ecosystem and not slow" tests/ecosystem
	.venv-ecosystem/environments/bin/python -m pytest -q -m "ecosystem and not slow" tests/env

# The recipes on a real SLURM: a private one, with two nodes on this machine. Needs root, which is checked first.
test-slurm:
	@scripts/test-slurm.sh

# Whether the suite can fail: plants faults one by one. The first time it installs a mutation library beside .venv.
mutants: setup
	$(PY) -m tests.mutants

benchmark: setup
	$(PY) -m benchmarks end_to_end

clean:
	rm -rf .venv .venv-ecosystem .venv-mutants-* .mypy_cache .ruff_cache .pytest_cache build dist *.egg-info
